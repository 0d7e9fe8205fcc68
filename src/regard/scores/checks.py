"""What scores ask of the numbers and tensors that they hold."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from regard.errors import InputError

__all__ = ["check_devices", "check_heads", "check_softcap", "check_tensor", "check_width", "cut"]


def check_tensor(name: str, tensor: object, *layouts: str) -> None:
    """Raise an InputError where this is no floating-point tensor of a layout such as "(heads, hidden)"."""
    wish = " or ".join(layouts)
    if not isinstance(tensor, Tensor):
        raise InputError(f"`{name}` must be a tensor {wish}, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise InputError(f"`{name}` must be of a floating-point type, got {tensor.dtype}: convert it with .float()")
    if tensor.ndim not in [len(layout.strip("(,)").split(",")) for layout in layouts] or 0 in tensor.shape:
        raise InputError(f"`{name}` must be {wish} and not empty, got shape {tuple(tensor.shape)}")


def check_width(name: str, tensor: Tensor, dim: int, width: int, of: str) -> None:
    """Raise an InputError where a dimension of the tensor is not the width of something else."""
    if tensor.shape[dim] != width:
        raise InputError(
            f"`{name}` must have the width of {of} ({width}) in dimension {dim}, got {tensor.shape[dim]} in shape "
            f"{tuple(tensor.shape)}"
        )


def check_heads(name: str, tensor: Tensor, q: Tensor) -> None:
    """Raise an InputError where the first dimension is not one entry for each head of q."""
    if tensor.shape[0] != q.shape[1]:
        raise InputError(
            f"`{name}` must have one entry for each head of q ({q.shape[1]}), got {tensor.shape[0]} in shape "
            f"{tuple(tensor.shape)}"
        )


def check_devices(score: Any, q: Tensor) -> None:
    """Raise an InputError where a tensor of the score, which is a dataclass, is not on the device of q."""
    for part in fields(score):
        held = getattr(score, part.name)
        if isinstance(held, Tensor) and held.device != q.device:
            raise InputError(
                f"`{part.name}` must be on the device of q ({q.device}), got {held.device}: move it with .to()"
            )


def check_softcap(softcap: float | None) -> None:
    """Raise an InputError where this is neither None nor a positive number."""
    if softcap is None:
        return
    if isinstance(softcap, bool) or not isinstance(softcap, int | float) or not 0 < softcap < 2**62:
        raise InputError(f"`softcap` must be a positive number or None, got {softcap}")


def cut(tensor: Tensor, heads: slice, whole: int) -> Tensor:
    """Give the part of some heads of a tensor that has `whole` dimensions where it has an entry for each head."""
    return tensor[heads] if tensor.ndim == whole else tensor
