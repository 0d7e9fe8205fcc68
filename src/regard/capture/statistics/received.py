"""Attention received: how much weight each key gets from all queries."""

from jaxtyping import Float
from torch import Tensor

from regard.capture.statistics.base import PerKey
from regard.capture.weight_rows import Rows

__all__ = ["Received"]


class Received(PerKey):
    """c_j = Σ_i p_ij, the sum of each column; (batch, heads, keys). Sinks stand out in it.

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Received(), [[1.0, 0.0], [0.5, 0.5]])["received"]
    array([1.5, 0.5], dtype=float32)
    """

    name = "received"
    by_head = True

    def of(self, rows: Rows) -> Float[Tensor, "heads columns"]:
        """Return the sums of some rows."""
        return rows.column_sums
