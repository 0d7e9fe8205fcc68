"""Attention distance: the mean distance of the keys of each query."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.capture.statistics.base import PerQuery
from regard.capture.weight_rows import Rows

__all__ = ["Distance"]


class Distance(PerQuery):
    """Σ_j p_ij |i − j| / Σ_j p_ij, in positions; (batch, heads, queries), 0 if a query sees no key.

    i and j are positions, counted from the first key of the record; in cross-attention each text counts from its own
    first token. The mean over rows is the mean attention distance of Dosovitskiy et al. 2021, "An Image is Worth 16x16
    Words" (https://arxiv.org/abs/2010.11929, section 4.5), with tokens in the place of pixels.

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Distance(), [[1.0, 0.0], [0.5, 0.5]])["distance"]
    array([0. , 0.5], dtype=float32)
    """

    name = "distance"
    by_head = True

    def of(self, rows: Rows) -> Float[Tensor, "heads rows"]:
        """Return the distances of some rows."""
        moment = rows.moment(rows.start + self.extent.offset - rows.key_start)
        if not rows.leaks:
            return moment
        mass = rows.mass
        return moment / torch.where(mass > 0, mass, 1.0)
