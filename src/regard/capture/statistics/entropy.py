"""Entropy of each row: how evenly a query distributes its attention."""

from jaxtyping import Float
from torch import Tensor

from regard.capture.statistics.base import PerQuery
from regard.capture.weight_rows import Rows

__all__ = ["Entropy"]


class Entropy(PerQuery):
    """−Σ_j p_ij ln p_ij in nats: 0 if one key has all weight, ln(keys) if all are equal; (batch, heads, queries).

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Entropy(), [[1.0, 0.0], [0.5, 0.5]])["entropy"].round(3)
    array([0.   , 0.693], dtype=float32)
    """

    name = "entropy"
    by_head = True

    def of(self, rows: Rows) -> Float[Tensor, "heads rows"]:
        """Return the entropy of some rows."""
        return rows.entropy
