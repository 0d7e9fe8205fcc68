"""Attention received: how much weight each key gets from all queries."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.observe.rows import Rows
from regard.observe.statistics.base import Extent

__all__ = ["Received"]


class Received:
    """c_j = Σ_i p_ij, the sum of each column; (batch, heads, keys). Sinks stand out in it."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def start(self, extent: Extent) -> None:
        """Make room for new keys."""
        if self._sums is None:
            self._sums = torch.zeros(extent.batch, extent.heads, extent.keys, dtype=extent.dtype, device=extent.device)
        elif (more := extent.keys - self._sums.shape[2]) > 0:
            # Decoding adds a key a call: leave room, so that a long generation does not copy at every step.
            self._sums = functional.pad(self._sums, (0, max(more, extent.keys // 4)))

    def fold(self, rows: Rows) -> None:
        """Add the columns of some rows."""
        assert self._sums is not None  # start comes first
        sums = self._sums[rows.sequence, rows.heads, rows.columns]
        sums += rows.weights.sum(1)[:, : sums.shape[1]]

    def finish(self, extent: Extent) -> Mapping[str, Any]:
        """The sums of the keys there are."""
        assert self._sums is not None
        return {"received": self._sums[..., : extent.keys].cpu().numpy()}
