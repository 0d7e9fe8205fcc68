"""A statistic: the largest weight of each row."""

from typing import Any

from torch import Tensor

from regard import statistics

__all__ = ["Largest"]


class Largest(statistics.PerQuery):
    """max_j p_ij, in (0, 1]; (batch, heads, queries)."""

    name = "largest"
    by_head = True

    def of(self, rows: Any) -> Tensor:
        """Return the maximum of some rows."""
        return rows.weights.amax(-1)
