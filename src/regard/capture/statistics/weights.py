"""Every weight, on request."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.capture.statistics.base import Extent
from regard.capture.weight_rows import Rows

__all__ = ["Weights"]


class Weights:
    """p_ij itself (batch, heads, queries, keys): n × n numbers per head, stored only on request and within
    `max_bytes`.

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Weights(), [[1.0, 0.0], [0.25, 0.75]])["weights"]
    array([[1.  , 0.  ],
           [0.25, 0.75]], dtype=float32)
    """

    name = "weights"

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent, /) -> None:
        """Allocate one tensor for the rows of the call; `finish` joins them."""
        self._first = sum(part.shape[2] for part in self._parts)
        shape = extent.batch, extent.heads, extent.queries - self._first, extent.keys
        self._parts.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: Rows) -> None:
        """Copy some rows."""
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        part = self._parts[-1][rows.batch_index, rows.heads, here, rows.columns]
        part.copy_(rows.weights[..., : part.shape[-1]])

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return all rows; earlier rows have weight 0 for later keys."""
        if len(self._parts) == 1:
            return {"weights": self._parts[0].cpu().numpy()}
        whole = self._parts[0].new_zeros(extent.batch, extent.heads, extent.queries, extent.keys)
        row = 0
        for part in self._parts:
            whole[:, :, row : row + part.shape[2], : part.shape[3]] = part
            row += part.shape[2]
        return {"weights": whole.cpu().numpy()}
