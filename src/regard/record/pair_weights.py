"""The weights of some queries on some keys, from whatever a layer's record holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.record.layers import Layer

__all__ = ["weights_of_pairs"]


def weights_of_pairs(
    layer: Layer, batch_index: int, queries: Sequence[int], keys: Sequence[int]
) -> npt.NDArray[np.floating]:
    """Return the weights (heads, queries, keys), 0 for heads that were not recorded, NaN where they are unknown.

    A pooled map has the strongest keys of each query only. Where a query has all its keys among these, the weight of
    any other is 0.
    """
    rows, columns = list(queries), list(keys)
    recorded = list(layer.recorded_heads)
    if layer.exact is not None:
        exact: npt.NDArray[Any] = layer.exact[batch_index][:, rows][:, :, columns]
        return exact
    if layer.qk is not None:
        block = np.zeros((layer.heads, len(rows), len(columns)), layer.entropy.dtype)
        around = slice(min(columns), max(columns) + 1)
        for head in recorded:
            for at, row in enumerate(rows):
                found = layer.qk.tile(batch_index, head, slice(row, row + 1), around)[0]
                block[head, at] = found[[one - around.start for one in columns]]
        return block
    kept = layer.top_keys[batch_index][:, rows]  # (heads, queries, strongest)
    among = kept[..., None] == np.array(columns)
    weights: npt.NDArray[Any] = (layer.top_weights[batch_index][:, rows, :, None] * among).sum(-2)
    unknown = ~among.any(-2) & (kept >= 0).all(-1, keepdims=True)
    weights[recorded] = np.where(unknown, np.nan, weights)[recorded]
    return weights
