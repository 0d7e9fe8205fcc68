"""What autocast means here: a call gives the type that PyTorch's kernel would, and computes as exactly as without."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["autocast_dtype", "without_autocast"]

_KINDS = ("cpu", "cuda", "mps", "xpu")


def autocast_dtype(q: Tensor) -> torch.dtype:
    """Give the type of the output for these queries: autocast's own where it is on, as of SDPA; float64 stays.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype(torch.zeros(2)), autocast_dtype(torch.zeros(2, dtype=torch.float64))
    (torch.bfloat16, torch.float64)
    """
    kind = q.device.type
    if q.dtype == torch.float64 or kind not in _KINDS or not torch.is_autocast_enabled(kind):
        return q.dtype
    return torch.get_autocast_dtype(kind)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, where it is on: products of float32 would have the digits of bfloat16."""
    if device.type not in _KINDS or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
