"""Confidence: the largest weight of each query."""

from jaxtyping import Float
from torch import Tensor

from regard.capture.statistics.base import PerQuery
from regard.capture.weight_rows import Rows

__all__ = ["Confidence"]


class Confidence(PerQuery):
    """max_j p_ij; (batch, heads, queries). Its mean over rows is a head's confidence.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (https://arxiv.org/abs/1905.09418, section 4), who leave
    the end-of-sentence token out.

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Confidence(), [[1.0, 0.0], [0.25, 0.75]])["confidence"]
    array([1.  , 0.75], dtype=float32)
    """

    name = "confidence"
    by_head = True

    def of(self, rows: Rows) -> Float[Tensor, "heads rows"]:
        """The largest weights of some rows."""
        return rows.largest
