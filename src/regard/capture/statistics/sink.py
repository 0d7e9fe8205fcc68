"""Sinks: keys with a large weight from all later queries."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.capture.statistics.base import Extent, PerKey
from regard.capture.weight_rows import Rows

__all__ = ["Sink"]


class Sink(PerKey):
    """a_k = Σ_{i ≥ k} p_ik / (number of queries i ≥ k), the mean weight of key k; (batch, heads, keys).

    Gu et al. 2024, "When Attention Sink Emerges" (https://arxiv.org/abs/2410.10781, section 3): with positions from 1
    to T the number is T − k + 1, and the sink rate of a model is the share of its heads with a_1 > 0.3 at T = 64. Here
    that is `(sink[:, :, 0] > 0.3).mean()`, over the layers. Weights on keys behind the query do not count. In
    cross-attention, where no query comes after a key, it is the mean over all queries. A key that no query follows: 0.

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Sink(), [[1.0, 0.0], [0.5, 0.5]])["sink"]
    array([0.75, 0.5 ], dtype=float32)
    """

    name = "sink"
    by_head = True

    def of(self, rows: Rows) -> Float[Tensor, "heads columns"]:
        """Return the sums of some rows over the keys at or before their positions."""
        ahead = rows.rows.start + self.extent.offset - rows.key_start
        if self.extent.cross or ahead >= rows.weights.shape[2] - 1:
            return rows.weights.sum(1)
        return rows.weights.tril(ahead).sum(1)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the sums divided by the number of queries at or after each key."""
        keys = torch.arange(extent.keys, device=extent.device)
        before = torch.zeros_like(keys) if extent.cross else (keys - extent.offset).clamp_min(0)
        count = (extent.queries - before).clamp_min(1)
        return {self.name: (self.sums(extent) / count).to(extent.dtype).cpu().numpy()}
