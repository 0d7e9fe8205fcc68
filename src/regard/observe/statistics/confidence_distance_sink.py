"""Confidence and attention distance of each query, and the share that each key has as a sink."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.observe.statistics.base import Extent, PerKey, PerQuery
from regard.observe.weight_rows import RowBlock

__all__ = ["Confidence", "Distance", "Sink"]


class Confidence(PerQuery):
    """max_j p_ij; (batch, heads, queries). Its mean over rows is a head's confidence.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (https://arxiv.org/abs/1905.09418, section 4), who leave
    the end-of-sentence token out.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Confidence(), [[1.0, 0.0], [0.25, 0.75]])["confidence"]
    array([1.  , 0.75], dtype=float32)
    """

    name = "confidence"
    by_head = True
    reads_rows_alone = True

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows"]:
        """The largest weights of some rows."""
        return rows.largest


class Distance(PerQuery):
    """Σ_j p_ij |i − j| / Σ_j p_ij, in positions; (batch, heads, queries), 0 if a query sees no key.

    i and j are positions, counted from the first key of the record; in cross-attention each text counts from its own
    first token. The mean over rows is the mean attention distance of Dosovitskiy et al. 2021, "An Image is Worth 16x16
    Words" (https://arxiv.org/abs/2010.11929, section 4.5), with tokens in the place of pixels.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Distance(), [[1.0, 0.0], [0.5, 0.5]])["distance"]
    array([0. , 0.5], dtype=float32)
    """

    name = "distance"
    by_head = True
    reads_rows_alone = True

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows"]:
        """Return the distances of some rows."""
        mass = rows.mass
        return rows.moment(rows.start + self.extent.offset - rows.key_start) / torch.where(mass > 0, mass, 1.0)


class Sink(PerKey):
    """a_k = Σ_{i ≥ k} p_ik / (number of queries i ≥ k), the mean weight of key k; (batch, heads, keys).

    Gu et al. 2024, "When Attention Sink Emerges" (https://arxiv.org/abs/2410.10781, section 3): with positions from 1
    to T the number is T − k + 1, and the sink rate of a model is the share of its heads with a_1 > 0.3 at T = 64. Here
    that is `(sink[:, :, 0] > 0.3).mean()`, over the layers. Weights on keys behind the query do not count. In
    cross-attention and of pooled keys, where no query comes after a key, it is the mean over all queries. A key that no
    query follows: 0. Queries that are padding do not count. If `queries=` were chosen, the sum is over these, and the
    number is still that of all queries.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Sink(), [[1.0, 0.0], [0.5, 0.5]])["sink"]
    array([0.75, 0.5 ], dtype=float32)
    """

    name = "sink"
    by_head = True
    reads_rows_alone = True

    def of(self, rows: RowBlock) -> Float[Tensor, "heads columns"]:
        """Return the sums of some rows over the keys at or before their positions."""
        ahead = rows.rows.start + self.extent.offset - rows.key_start
        if self.extent.cross or ahead >= rows.weights.shape[2] - 1:
            return rows.weights.sum(1)
        return rows.weights.tril(ahead).sum(1)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the sums divided by the number of queries at or after each key."""
        keys = torch.arange(extent.keys, device=extent.device)
        before = torch.zeros_like(keys) if extent.cross else (keys - extent.offset).clamp_min(0)
        count = extent.queries - before
        if extent.padding is not None:
            shown = torch.tensor(~extent.padding.queries).to(extent.device)
            after = functional.pad(shown.flip(1).cumsum(1).flip(1), (0, 1))  # the number of queries from each one on
            count = after[:, None, before.clamp_max(extent.queries)]
        count = count.clamp_min(1)
        return {self.name: (self.sums(extent) / count).to(extent.dtype).cpu().numpy()}
