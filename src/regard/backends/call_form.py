"""A problem as what a graph can hold: text, numbers and tensors, from which operators make it again.

The text is the JSON of the problem's form (`regard.serialization`). Tensors, integers and floats are operands, which a
compiler may replace by others or by symbols: calls of equal structure share one graph. Nothing refers to the memory of
a process, so graphs can be saved.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard import serialization
from regard.masks import Mask
from regard.problem import Problem
from regard.problem_checks import learns
from regard.serialization import form_of, text_of
from regard.values import Form, flatten, unflatten

__all__ = ["CallForm", "asks_for_gradients", "asks_for_sums", "read", "unwritable", "write"]

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
    return serialization.unwritable(flatten(_values(problem), numbers=True)[1])


def _values(problem: Problem) -> tuple[Any, ...]:
    given = None if problem.mask is None else problem.mask.given
    return given, *[getattr(problem, name) for name in _PARTS]


def write(problem: Problem) -> CallForm:
    """Return the operands of a problem, of whose values none is `unwritable`; runs in code that is being compiled."""
    values = _values(problem)
    needs = learns(problem.q, problem.k, problem.v, *values[1:])
    leaves, form = flatten((needs, problem.wants_lse, problem.q_offset, problem.scale, *values), numbers=True)
    held: list[Tensor] = []
    ints: list[int] = []
    floats: list[float] = []
    texts = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            held.append(leaf)
            texts.append('{"tensor": 0}')
        elif isinstance(leaf, float | torch.SymFloat):
            floats.append(leaf)  # type: ignore[arg-type]
            texts.append('{"float": 0}')
        else:
            ints.append(leaf)
            texts.append('{"int": 0}')
    return CallForm(held, text_of(form, iter(texts)), ints, floats)


def read(
    q: Tensor, k: Tensor, v: Tensor, held: Sequence[Tensor], text: str, ints: Sequence[int], floats: Sequence[float]
) -> Problem:
    """Return the problem whose `CallForm` this is, with the tensors of this call."""
    form, kinds = _parsed(text)
    operands = {"tensor": iter(held), "int": iter(ints), "float": iter(floats)}
    leaves = [next(operands[kind]) for kind in kinds]
    _, wants_lse, q_offset, scale, mask, *parts = unflatten(form, leaves)
    bound = None if mask is None else _owning(mask).bind(q.shape[2], k.shape[2], q_offset)
    named = dict(zip(_PARTS, parts, strict=True))
    return Problem(q, k, v, scale, mask=bound, wants_lse=wants_lse, **named)


def asks_for_gradients(text: str) -> bool:
    """Return whether gradients were wanted of the call with this text."""
    return bool(unflatten(_parsed(text)[0][1], ()))


def asks_for_sums(text: str) -> bool:
    """Return whether the log-sum-exp was wanted of the call with this text."""
    return bool(unflatten(_parsed(text)[0][2], ()))


@lru_cache(512)
def _parsed(text: str) -> tuple[Form, list[str]]:
    form, leaves = form_of(json.loads(text))
    return form, [next(iter(leaf)) for leaf in leaves]


_masks: list[tuple[Form, list[Tensor], Mask]] = []
_lock = threading.Lock()


def _owning(mask: Mask) -> Mask:
    """Return a mask that earlier calls have planned for, if its numbers are these, or make one, with its own tensors.

    Numbers are compared rather than addresses: compilers use memory again without a trace.
    """
    leaves, form = flatten(mask)
    with _lock:
        known = [(tensors, own) for other, tensors, own in _masks if other == form]
    for tensors, own in known:
        if _are_equal(tensors, leaves):
            return own
    made: Mask = unflatten(form, leaves, checked=(Mask,))
    with _lock:
        _masks.append((form, flatten(made)[0], made))
        del _masks[:-_MOST]
    return made


def _are_equal(own: Sequence[Tensor], given: Sequence[Tensor]) -> bool:
    return all(
        one.device == other.device and one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(own, given, strict=True)
    )
