"""A problem as what a graph can hold: text, numbers and tensors, from which operators make it again.

    Causal() & Document(ids)  →  {"kind": "And", "fields": {"left": {"kind": "Causal", …}, "right": …}},  [ids],  [0]

The text holds the structure alone. Tensors, integers and floats are operands, which a compiler may replace by others or
by symbols: calls of equal structure share one graph. Nothing refers to the memory of a process, so graphs can be saved.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.dropout import Dropout
from regard.masks import Mask
from regard.positions.base import WithLeading
from regard.problem import Problem
from regard.problem_checks import learns
from regard.serialization import KINDS
from regard.tensors import tensors

__all__ = ["CallForm", "asks_for_gradients", "read", "unwritable", "write"]

_KINDS = {**KINDS, "Dropout": Dropout, "WithLeading": WithLeading}
_PARTS = ("score", "bias", "normalizer", "weight_factor", "dropout")
_MOST = 32  # masks that are kept


@dataclass(frozen=True, eq=False)
class CallForm:
    """The operands of an operator besides q, k and v; neither list of numbers is empty."""

    held: list[Tensor]
    text: str
    ints: list[int]
    floats: list[float]


def unwritable(problem: Problem) -> str | None:
    """Return the name of the first class in a problem that is written in Python by the user; None if there is none.

    >>> from regard import masks
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> unwritable(Problem.of(x, x, x, mask=masks.Causal() & masks.MaskMod(lambda batch, head, i, j: i > j)))
    'MaskMod'
    """
    given = None if problem.mask is None else problem.mask.given
    return _unknown((given, *(getattr(problem, name) for name in _PARTS)))


def _unknown(value: Any) -> str | None:
    if value is None or isinstance(value, bool | int | float | str | Tensor | torch.SymInt | torch.SymFloat):
        return None
    if isinstance(value, tuple | list | range):
        parts = list(value)
    else:
        kind = type(value)
        if _KINDS.get(kind.__name__) is not kind or not is_dataclass(value):
            return kind.__name__
        parts = [getattr(value, field.name) for field in fields(value)]
    for one in parts:
        if (found := _unknown(one)) is not None:
            return found
    return None


def write(problem: Problem) -> CallForm:
    """Return the operands of a problem, of whose values none is `unwritable`; runs in code that is being compiled."""
    held: list[Tensor] = []
    ints, floats = [problem.q_offset], [problem.scale]
    mask = "null" if problem.mask is None else _text(problem.mask.given, held, ints, floats)
    of_mask = len(held)
    parts = [f'"{name}": {_text(getattr(problem, name), held, ints, floats)}' for name in _PARTS]
    needs = learns(problem.q, problem.k, problem.v, *(getattr(problem, name) for name in _PARTS))
    flags = [f'"lse": {_word(problem.wants_lse)}', f'"learns": {_word(needs)}', f'"of_mask": {of_mask}']
    return CallForm(held, f'{{"mask": {mask}, {", ".join(parts)}, {", ".join(flags)}}}', ints, floats)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _text(value: Any, held: list[Tensor], ints: list[int], floats: list[float]) -> str:
    """The JSON of a value, in which tensors and numbers are places in the lists, to which they are added."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return _word(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Tensor):
        held.append(value)
        return f'{{"tensor": {len(held) - 1}}}'
    if isinstance(value, float | torch.SymFloat):
        floats.append(value)  # type: ignore[arg-type]
        return f'{{"float": {len(floats) - 1}}}'
    if isinstance(value, int | torch.SymInt):
        ints.append(value)  # type: ignore[arg-type]
        return f'{{"int": {len(ints) - 1}}}'
    if isinstance(value, tuple | list | range):
        return "[" + ", ".join([_text(one, held, ints, floats) for one in value]) + "]"
    named = [f'"{one.name}": {_text(getattr(value, one.name), held, ints, floats)}' for one in fields(value)]
    return f'{{"kind": "{type(value).__name__}", "fields": {{{", ".join(named)}}}}}'


def read(
    q: Tensor, k: Tensor, v: Tensor, held: Sequence[Tensor], text: str, ints: Sequence[int], floats: Sequence[float]
) -> Problem:
    """Return the problem whose `CallForm` this is, with the tensors of this call."""
    form = _parsed(text)
    mask = _mask(form, text, (held, ints, floats)) if form["mask"] else None
    queries, keys = q.shape[2], k.shape[2]
    parts = {name: _value(form[name], held, ints, floats) for name in _PARTS}
    return Problem(
        q,
        k,
        v,
        floats[0],
        mask=None if mask is None else mask.bind(queries, keys, ints[0]),
        wants_lse=form["lse"],
        **parts,
    )


def asks_for_gradients(text: str) -> bool:
    """Return whether gradients were wanted of the call with this text."""
    return bool(_parsed(text)["learns"])


@lru_cache(512)
def _parsed(text: str) -> Any:
    return json.loads(text)


def _value(form: Any, held: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]) -> Any:
    if form is None or isinstance(form, bool | str):
        return form
    if isinstance(form, list):
        return tuple(_value(one, held, ints, floats) for one in form)
    if "tensor" in form:
        return held[form["tensor"]]
    if "int" in form:
        return ints[form["int"]]
    if "float" in form:
        return floats[form["float"]]
    value: Any = object.__new__(_KINDS[form["kind"]])
    for name, one in form["fields"].items():
        object.__setattr__(value, name, _value(one, held, ints, floats))
    if isinstance(value, Mask):
        value.__post_init__()  # checks, and copies the tensors; those of other values may be learned
    return value


_masks: list[tuple[Any, Mask]] = []
_lock = threading.Lock()


def _mask(form: Any, text: str, operands: tuple[Sequence[Tensor], Sequence[int], Sequence[float]]) -> Mask:
    """Return a mask that earlier calls have planned for, if its numbers are these, or make it.

    Numbers are compared rather than addresses: compilers use memory again without a trace.
    """
    held, ints, floats = operands
    key, given = (text, tuple(ints), tuple(floats)), held[: form["of_mask"]]
    with _lock:
        known = [mask for other, mask in _masks if other == key]
    for mask in known:
        if _are_equal(tensors(mask), given):
            return mask
    made: Mask = _value(form["mask"], *operands)
    with _lock:
        _masks.append((key, made))
        del _masks[:-_MOST]
    return made


def _are_equal(own: Sequence[Tensor], given: Sequence[Tensor]) -> bool:
    return all(
        one.device == other.device and one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(own, given, strict=True)
    )
