"""A bound mask for several calls in a row, such as those of a model's layers."""

from typing import Any

import torch
from torch import Tensor

from regard.masks.base import BoundMask, Mask

__all__ = ["SharedMask", "share"]


class SharedMask(BoundMask):
    """A bound mask whose dense form is made once; its tensors must not change as long as it is used."""

    def dense(self, batch: int = 1, heads: int = 1, device: torch.device | None = None) -> Tensor:
        """Evaluate the mask for all rows and columns, or give what was evaluated before."""
        asked = batch, heads, device
        known: dict[Any, Tensor] = self.__dict__.setdefault("_known", {})
        if asked not in known:
            known[asked] = super().dense(batch, heads, device)
        return known[asked]

    def proven(self, device: torch.device) -> bool:
        """Whether it was asked on this device before, and remember that it was."""
        devices: set[torch.device] = self.__dict__.setdefault("_proven", set())
        before = device in devices
        devices.add(device)
        return before


def share(mask: Mask, queries: int, keys: int) -> SharedMask:
    """Bind a mask for several calls; the queries are the last positions.

    >>> from regard.masks import Causal
    >>> bound = share(Causal(), 2, 2)
    >>> bound.dense() is bound.dense()
    True
    """
    bound = mask.bind(queries, keys)
    return SharedMask(bound.mask, bound.q_len, bound.kv_len, bound.q_offset, bound.given)
