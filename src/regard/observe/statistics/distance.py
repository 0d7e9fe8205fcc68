"""Attention distance: how far each query looks."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.observe.rows import Rows
from regard.observe.statistics.base import PerQuery

__all__ = ["Distance"]


class Distance(PerQuery):
    """Σ_j p_ij |i − j| / Σ_j p_ij, in positions; (batch, heads, queries), 0 where a query sees nothing.

    i and j are positions, counted from the first key of the record; in cross-attention each text counts from its own
    first token. The mean over rows is the mean attention distance of Dosovitskiy et al. 2021, "An Image is Worth 16x16
    Words" (https://arxiv.org/abs/2010.11929, section 4.5), with tokens in the place of pixels.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Distance(), [[1.0, 0.0], [0.5, 0.5]])["distance"]
    array([0. , 0.5], dtype=float32)
    """

    name = "distance"
    by_head = True

    def of(self, rows: Rows) -> Float[Tensor, "heads rows"]:
        """The distances of some rows."""
        moment = self._moment(rows)
        if not rows.leaks:
            return moment
        mass = rows.weights.sum(-1)
        return moment / torch.where(mass > 0, mass, 1.0)

    def _moment(self, rows: Rows) -> Float[Tensor, "heads rows"]:
        """Σ_j p_ij |i − j|: far from the block as a product of a matrix and a vector, near it pair by pair.

        Σ p·i − Σ p·j would cancel in float32. Counted from the block's first row, a far key is as many positions away
        as the block has rows, or more, and what row i adds to that is small: nothing cancels.
        """
        weights = rows.weights
        height, columns = weights.shape[1:]
        first = rows.start + self.extent.offset - rows.key_start  # the column at which the first row stands
        left, right = (min(max(at, 0), columns) for at in (first - height, first + 2 * height))
        i = torch.arange(first, first + height, dtype=weights.dtype, device=weights.device)
        j = torch.arange(columns, dtype=weights.dtype, device=weights.device)
        near = slice(left, max(left, right))
        moment: Tensor = torch.linalg.vecdot(weights[..., near], (i[:, None] - j[near]).abs_())
        for far, sign in ((slice(0, left), 1.0), (slice(near.stop, columns), -1.0)):
            if far.start < far.stop:
                part = weights[..., far]
                moment += part @ (sign * (first - j[far])) + sign * (i - first) * part.sum(-1)
        return moment
