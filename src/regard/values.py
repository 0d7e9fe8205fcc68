"""Frozen values, such as masks, biases and scores: one walk over what they are made of.

    flatten(value) -> (leaves, form)          unflatten(form, leaves) -> value

The leaves are the tensors, in the order of the fields; the form is all the rest, as nested tuples:

    (Tensor,)                         a leaf; with `numbers=True` also (int,) and (float,)
    (kind, form, form, ...)           a dataclass, with a form for each field; a tuple or list, for each item
    (dict, names, form, ...)          a dictionary
    (type, constant)                  anything else

A form is hashable where its constants are: the key of caches. `regard.serialization` writes forms as JSON, the text of
files and of graphs. (Equinox and JAX call the two a PyTree and its treedef.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = [
    "Form",
    "copied",
    "field_names",
    "flatten",
    "is_fixed",
    "is_leaf",
    "kinds_in",
    "names",
    "tensors",
    "unflatten",
]

Value = TypeVar("Value")
Form = tuple[Any, ...]

_LEAVES = (Tensor, int, float)
# Types that never change: a form of these and frozen dataclasses is the key of a value.
_FIXED = (Tensor, tuple, type(None), bool, int, float, str, bytes, range, torch.dtype, torch.device)


def flatten(value: object, *, numbers: bool = False) -> tuple[list[Any], Form]:
    """Return the tensors of a value, and its form; with `numbers`, integers and floats are leaves as well.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Line:
    ...     slope: Tensor
    ...     name: str = "line"
    >>> leaves, form = flatten((Line(torch.tensor(2.0)), None))
    >>> leaves, form == (tuple, (Line, (Tensor,), (str, "line")), (type(None), None))
    ([tensor(2.)], True)
    >>> unflatten(form, [torch.tensor(3.0)])[0].slope
    tensor(3.)
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, numbers)


def _flatten(value: Any, leaves: list[Any], numbers: bool) -> Form:
    if value is None:  # compilers of PyTorch 2.11 cannot follow is_dataclass(None)
        return type(None), None
    if isinstance(value, Tensor):
        leaves.append(value)
        return (Tensor,)
    if numbers and not isinstance(value, bool):
        if isinstance(value, int | torch.SymInt):
            leaves.append(value)
            return (int,)
        if isinstance(value, float | torch.SymFloat):
            leaves.append(value)
            return (float,)
    if isinstance(value, tuple | list):
        return type(value), *[_flatten(item, leaves, numbers) for item in value]
    if isinstance(value, dict):
        return dict, tuple(value), *[_flatten(item, leaves, numbers) for item in value.values()]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *[_flatten(getattr(value, field.name), leaves, numbers) for field in fields(value)]
    return type(value), value


def unflatten(form: Form, leaves: Sequence[Any], *, checked: tuple[type, ...] = ()) -> Any:
    """Return the value of a form with these leaves.

    Dataclasses are made without `__init__`, whose arguments may differ from the fields; those of the types in `checked`
    with their `__post_init__`.
    """
    rest = iter(leaves)
    return _unflatten(form, rest, checked)


def _unflatten(form: Form, rest: Iterator[Any], checked: tuple[type, ...]) -> Any:
    if is_leaf(form):
        return next(rest)
    kind: Any
    kind, *parts = form
    if kind is dict:
        keys, *parts = parts
        return dict(zip(keys, [_unflatten(part, rest, checked) for part in parts], strict=True))
    if issubclass(kind, tuple | list):
        items = [_unflatten(part, rest, checked) for part in parts]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    made: type[Any] = kind
    if not is_dataclass(kind):
        return parts[0]
    value: Any = object.__new__(made)
    for name, part in zip(field_names(value), parts, strict=True):
        object.__setattr__(value, name, _unflatten(part, rest, checked))
    if issubclass(made, checked) and hasattr(value, "__post_init__"):
        value.__post_init__()
    return value


def field_names(value: Any) -> list[str]:
    """Return the names of the fields of a dataclass, or of a value of it, in the order in its form."""
    return [field.name for field in fields(value)]


def is_leaf(form: Form) -> bool:
    """Return whether a form is that of a leaf."""
    return len(form) == 1 and form[0] in _LEAVES


def tensors(value: object) -> list[Tensor]:
    """Return the leaves of a value."""
    return flatten(value)[0]


def copied(value: Value) -> Value:
    """Return a value with copies of its tensors, without their graphs."""
    leaves, form = flatten(value)
    copy: Value = unflatten(form, [_copy_of(tensor) for tensor in leaves])
    return copy


def _copy_of(tensor: Tensor) -> Tensor:
    """Copy no more memory than the tensor has, where one number stands for many."""
    alone = tensor.detach()
    if torch.compiler.is_compiling() or tensor.layout != torch.strided:  # lengths may be symbols there
        return alone.clone()
    if 0 not in alone.stride():
        return alone.clone()
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        alone = alone.narrow(dim, 0, 1) if step == 0 and size > 1 else alone
    return alone.clone().expand(tensor.shape)


def kinds_in(form: Form) -> Iterator[tuple[type, Any]]:
    """Yield every type in a form, in order, with the constant, or the number of parts."""
    kind, *parts = form
    if kind is dict:
        parts = parts[1:]
    elif parts and not (issubclass(kind, tuple | list) or is_dataclass(kind)):
        yield kind, parts[0]
        return
    yield kind, len(parts)
    for part in parts:
        yield from kinds_in(part)


def is_fixed(form: Form) -> bool:
    """Return whether a value of this form can change only in its tensors: frozen dataclasses around constants.

    >>> is_fixed(flatten((1, None))[1]), is_fixed(flatten((1, print))[1]), is_fixed(flatten([1])[1])
    (True, False, False)
    """
    for kind, _ in kinds_in(form):
        settings = getattr(kind, "__dataclass_params__", None)
        if not (kind in _FIXED if settings is None else settings.frozen):
            return False
    return True


def names(form: Form, prefix: str = "") -> Iterator[str]:
    """Yield a name for each leaf: the fields and places that lead to it, or "values" where nothing does.

    >>> list(names(flatten((torch.zeros(1), {"a": torch.zeros(1)}))[1]))
    ['0', '1_a']
    """
    kind, *parts = form
    if is_leaf(form):
        yield prefix or "values"
        return
    if kind is dict:
        keys, *parts = parts
    elif issubclass(kind, tuple | list):
        keys = range(len(parts))
    elif is_dataclass(kind):
        keys = field_names(kind)
    else:
        return
    for key, part in zip(keys, parts, strict=True):
        yield from names(part, f"{prefix}_{key}".lstrip("_"))
