"""Entropy of each row: how widely a query spreads its attention."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.observe.rows import Rows
from regard.observe.statistics.base import Extent

__all__ = ["Entropy"]


class Entropy:
    """−Σ_j p_ij ln p_ij in nats: 0 where one key takes all, ln(keys) where all are equal; (batch, heads, queries)."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent) -> None:
        """Rows of one call are one tensor; finish joins them."""
        self._first = sum(part.shape[2] for part in self._parts)
        shape = extent.batch, extent.heads, extent.queries - self._first
        self._parts.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: Rows) -> None:
        """Fill in the entropy of some rows."""
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        self._parts[-1][rows.sequence, rows.heads, here] = rows.entropy

    def finish(self, extent: Extent) -> Mapping[str, Any]:
        """All rows."""
        return {"entropy": torch.cat(self._parts, 2).cpu().numpy()}
