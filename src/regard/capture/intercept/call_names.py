"""One call of a torch function: its canonical name and its tensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["OPERATORS", "TorchCall", "name_of", "tensors_in"]

# torch.ops.<library>.<operator>: the form in exported programs, and of flash-attn's registered kernels.
OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket


@dataclass(frozen=True, eq=False)
class TorchCall:
    """One call of a torch function."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments, including those in lists."""
        return [*tensors_in(self.args), *tensors_in(tuple(self.kwargs.values()))]

    def dim(self, at: int = 1, name: str = "dim") -> Any:
        """Return the argument `dim`, whether positional or keyword."""
        return self.kwargs.get(name, self.args[at] if len(self.args) > at else None)


def name_of(func: Callable[..., Any]) -> str:
    """Return the name of a torch function; PyTorch's operators have the name of the function that they compute.

    >>> name_of(torch.bmm), name_of(torch.ops.aten.bmm), name_of(torch.ops.aten.bmm.default)
    ('bmm', 'bmm', 'bmm')
    """
    if isinstance(func, torch._ops.OpOverload):
        func = func.overloadpacket
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name).removeprefix("aten::")
    return getattr(func, "__name__", "")


def tensors_in(values: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples and lists, without nested tensors, which have no shape."""
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_nested:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(tuple(value))
