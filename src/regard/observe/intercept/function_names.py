"""Names of torch functions, and the tensors among their arguments."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from regard.torch_private import OpOverload, OpOverloadPacket

__all__ = ["OPERATORS", "is_inexact", "name_of", "tensors_in"]


# torch.ops.<library>.<operator>: the form in exported programs, and of flash-attn's registered kernels.
OPERATORS = OpOverload, OpOverloadPacket


def name_of(func: Callable[..., Any]) -> str:
    """Return the name of a torch function; PyTorch's operators have the name of the function that they compute.

    >>> import torch
    >>> name_of(torch.bmm), name_of(torch.ops.aten.bmm), name_of(torch.ops.aten.bmm.default)
    ('bmm', 'bmm', 'bmm')
    """
    if isinstance(func, OpOverload):
        func = func.overloadpacket
    if isinstance(func, OpOverloadPacket):
        return str(func._qualified_op_name).removeprefix("aten::")
    return getattr(func, "__name__", "")


def tensors_in(values: tuple[Any, ...], *, nested: bool = False) -> Iterator[Tensor]:
    """Yield the tensors in tuples and lists; nested tensors, which have no shape, only on request."""
    for value in values:
        if isinstance(value, Tensor) and (nested or not value.is_nested):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(tuple(value), nested=nested)


def is_inexact(one: Tensor) -> bool:
    """Return whether a tensor holds floating-point or complex numbers, as activations do."""
    return one.is_floating_point() or one.is_complex()
