"""The strongest keys of each query."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.capture.statistics.base import Extent
from regard.capture.weight_rows import Rows
from regard.errors import InputError

__all__ = ["Top"]


class Top:
    """The `k` largest weights of each row and their keys, the largest first; key −1 if there are fewer.

    It is exact without sorting rows, see `Rows.strongest`.

    Raises:
        InputError: `k` is not an integer of at least 1.

    >>> from regard.capture.statistics import of_weights
    >>> of_weights(Top(1), [[1.0, 0.0], [0.25, 0.75]])["top_keys"]
    array([[0],
           [1]], dtype=int32)
    """

    name = "top"
    by_head = True

    def __init__(self, k: int = 8) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"`k` must be a number of keys from 1 on, got {k!r}: such as Top(8)")
        self.k = k
        self._keys: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent, /) -> None:
        """Allocate one tensor for the rows of the call; `finish` joins them."""
        self._first = sum(part.shape[2] for part in self._keys)
        shape = extent.batch, extent.heads, extent.queries - self._first, self.k
        self._keys.append(torch.full(shape, -1, dtype=torch.int32, device=extent.device))
        self._weights.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: Rows) -> None:
        """Store the strongest keys of some rows."""
        values, columns = rows.strongest(self.k)
        keys = (columns + rows.key_start).to(torch.int32).masked_fill(values <= 0, -1)
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        self._keys[-1][rows.batch_index, rows.heads, here, : keys.shape[-1]] = keys
        self._weights[-1][rows.batch_index, rows.heads, here, : keys.shape[-1]] = values

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return all rows, with at most as many columns as there are keys."""
        count = min(self.k, extent.keys)
        keys, weights = torch.cat(self._keys, 2), torch.cat(self._weights, 2)
        return {"top_keys": keys[..., :count].cpu().numpy(), "top_weights": weights[..., :count].cpu().numpy()}
