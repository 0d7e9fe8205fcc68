"""Compute a statistic for given weights, to try it out."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from regard.capture.call_context import Around, Ids
from regard.capture.statistics.base import Extent, Statistic
from regard.capture.weights_from_qk import Given

__all__ = ["of_weights"]


def of_weights(
    statistic: Statistic, weights: Any, *, input_ids: Sequence[int] | None = None
) -> Mapping[str, npt.NDArray[Any]]:
    """Return a statistic of one matrix of weights (queries, keys), or of (batch, heads, queries, keys).

    For one matrix, results have no batch and head dimensions. `input_ids` are the tokens of a text with
    self-attention.

    >>> from regard.capture.statistics import Distance
    >>> of_weights(Distance(), [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])["distance"]
    array([0. , 0.5, 1. ], dtype=float32)
    """
    # A copy: those of an atlas are mapped from its file and may not be written.
    given = torch.as_tensor(np.array(weights) if isinstance(weights, np.ndarray) else weights)
    single = given.ndim == 2
    call = Given(given[None, None] if single else given)
    known = None if input_ids is None else torch.as_tensor(input_ids).expand(call.batch, -1)
    around = Around("these weights", call, ids=None if known is None else Ids(known, known, lambda _: None))
    dtype, offset = torch.promote_types(given.dtype, torch.float32), call.keys - call.queries
    extent = Extent(call.batch, call.heads, call.queries, call.keys, dtype, given.device, offset, around=around)
    folding = copy.deepcopy(statistic)
    folding.start(extent)
    for rows in call.blocks(0, 1):
        folding.fold(rows)
    found = {name: np.asarray(array) for name, array in folding.finish(extent).items()}
    return {name: array[0, 0] for name, array in found.items() if array.ndim > 1} if single else found
