"""Tensors held by frozen values: found, and replaced, so that whoever differentiates by hand knows all its inputs."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["copied", "replace_tensors", "tensors", "versions"]

Value = TypeVar("Value")


def tensors(value: object) -> list[Tensor]:
    """List the tensors in a frozen dataclass, in the order of its fields, and in what it holds in its turn.

    >>> import torch
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Line:
    ...     slope: torch.Tensor
    ...     name: str = "line"
    >>> tensors((Line(torch.tensor(2.0)), Line(torch.tensor(3.0))))
    [tensor(2.), tensor(3.)]
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [one for part in value for one in tensors(part)]
    if isinstance(value, dict):
        return [one for part in value.values() for one in tensors(part)]
    if is_dataclass(value) and not isinstance(value, type):
        return [one for part in fields(value) for one in tensors(getattr(value, part.name))]
    return []


def replace_tensors(value: Value, new: Iterator[Tensor]) -> Value:
    """Copy a value with other tensors in the places, and in the order, of those that `tensors` lists."""
    replaced: Any = _replace(value, new)
    return replaced  # type: ignore[no-any-return]


def copied(value: Value) -> Value:
    """Copy a value with copies of its tensors, without their graphs."""
    return replace_tensors(value, iter([_copied(one) for one in tensors(value)]))


def versions(value: object) -> tuple[tuple[int, int], ...]:
    """Which tensors a value holds, and how often each was changed in place; −1 where that is not counted."""
    return tuple((id(one), -1 if one.is_inference() else one._version) for one in tensors(value))


def _copied(tensor: Tensor) -> Tensor:
    """A copy no larger than the memory that was given where one number stands for many."""
    alone = tensor.detach()
    if torch.compiler.is_compiling() or tensor.layout != torch.strided:  # lengths may be symbols there
        return alone.clone()
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        alone = alone.narrow(dim, 0, 1) if step == 0 and size > 1 else alone
    return alone.clone().expand(tensor.shape)


def _replace(value: Any, new: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(new)
    if not tensors(value):
        return value
    if isinstance(value, tuple | list):
        return type(value)(_replace(part, new) for part in value)
    if isinstance(value, dict):
        return {name: _replace(part, new) for name, part in value.items()}
    # Without __init__, which may check or convert; without what was cached for the old tensors.
    copy = object.__new__(type(value))
    for part in fields(value):
        object.__setattr__(copy, part.name, _replace(getattr(value, part.name), new))
    return copy
