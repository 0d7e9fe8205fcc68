"""Shapes at the door: any leading dimensions, inside always (batch, heads, length, width)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import InputError
from regard.torch_private import TorchDispatchModeKey, get_dispatch_mode

__all__ = ["four_dimensional", "has_numbers", "human_bytes"]


def four_dimensional(name: str, tensor: Tensor) -> Tensor:
    """View (n, d), (batch, n, d) or (..., heads, n, d) as (batch, heads, n, d).

    >>> import torch
    >>> four_dimensional("q", torch.zeros(5, 8)).shape
    torch.Size([1, 1, 5, 8])
    >>> four_dimensional("q", torch.zeros(2, 3, 4, 5, 8)).shape
    torch.Size([6, 4, 5, 8])
    """
    if tensor.ndim < 2:
        raise InputError(
            f"`{name}` must be (length, width), (batch, length, width) or (batch, heads, length, width), got shape "
            f"{tuple(tensor.shape)}"
        )
    if tensor.ndim == 2:
        return tensor[None, None]
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor if tensor.ndim == 4 else tensor.flatten(0, -4)


def has_numbers(*tensors: Tensor) -> bool:
    """Whether these tensors hold numbers; those on the device "meta" and those of `FakeTensorMode` have only shapes."""
    return get_dispatch_mode(TorchDispatchModeKey.FAKE) is None and not any(
        one.device.type == "meta" or type(one).__name__ == "FakeTensor" for one in tensors
    )


def human_bytes(count: float) -> str:
    """Bytes as people read them.

    >>> human_bytes(3 * 2**30), human_bytes(1536), human_bytes(7)
    ('3.0 GiB', '1.5 KiB', '7 B')
    """
    if torch.compiler.is_compiling():
        return "some bytes"  # lengths may be symbols: a number of their digits would fix them
    units: Sequence[str] = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    size, unit = float(count), 0
    while size >= 1024 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {units[unit]}"
