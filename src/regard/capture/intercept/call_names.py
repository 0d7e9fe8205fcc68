"""One call of a torch function: its name, whichever way it was called, and its tensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["OPERATORS", "TorchCall", "name_of", "tensors_in"]

# torch.ops.<library>.<operator>: what exported programs call, and how flash-attn registers its kernels.
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
        """All tensors among the arguments, those in lists too."""
        return [*tensors_in(self.args), *tensors_in(tuple(self.kwargs.values()))]

    def dim(self, at: int = 1, name: str = "dim") -> Any:
        """The argument `dim`, wherever it is."""
        return self.kwargs.get(name, self.args[at] if len(self.args) > at else None)


def name_of(func: Callable[..., Any]) -> str:
    """The name of a torch function; one of PyTorch's own operators has the name of the function that it computes.

    >>> name_of(torch.bmm), name_of(torch.ops.aten.bmm), name_of(torch.ops.aten.bmm.default)
    ('bmm', 'bmm', 'bmm')
    """
    if isinstance(func, torch._ops.OpOverload):
        func = func.overloadpacket
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name).removeprefix("aten::")
    return getattr(func, "__name__", "")


def tensors_in(values: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors of tuples and lists in each other; nested tensors, which have no shape, are left out."""
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_nested:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(tuple(value))
