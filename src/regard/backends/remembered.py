"""Plans that are remembered: a model asks the same mask of every layer."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from regard.frozen import tensors
from regard.masks import BoundMask, Mask
from regard.masks.cover import Cover, cover
from regard.problem import Problem

__all__ = ["BLOCK", "covered", "key_of"]

BLOCK = 128  # rows and columns of a block, at most
_KEPT = 32

_covers: OrderedDict[Hashable, tuple[tuple[weakref.ref[Tensor], ...], Cover]] = OrderedDict()
_lock = threading.Lock()


def covered(problem: Problem, block: int = BLOCK) -> Cover:
    """The blocks that a problem's mask leaves.

    Remembered for the mask as it was given, by value, and by identity and version where it holds tensors: a tensor that
    was changed in place is planned for again. Tensors are not kept alive.
    """
    bound = problem.mask
    key = None if bound is None else key_of(bound, block)
    if bound is None or key is None:
        return cover(bound, problem.queries, problem.keys, block)
    with _lock:
        held, found = _covers.get(key, ((), None))
    if found is not None and all(one() is not None for one in held):
        return found  # a dead tensor's address may be another's by now
    found = cover(bound, problem.queries, problem.keys, block)
    with _lock:
        _covers[key] = tuple(weakref.ref(one) for one in tensors(bound.given)), found
        _covers.move_to_end(key)
        while len(_covers) > _KEPT:
            _covers.popitem(last=False)
    return found


def key_of(bound: BoundMask, block: int) -> Hashable | None:
    """What tells a mask as it was given, and where it is bound, from any other; None where nothing does."""
    try:
        return _print_of(bound.given), bound.queries, bound.keys, bound.query_start, block
    except (RuntimeError, TypeError):  # inference tensors count no versions; what is no value cannot be told apart
        return None


def _print_of(value: Any) -> Hashable:
    """What tells a value from another."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, tuple):
        return tuple(_print_of(one) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(_print_of(getattr(value, part.name)) for part in fields(value))
    if isinstance(value, Mask):
        raise TypeError("a mask that is no dataclass may hold anything")
    if value is None or isinstance(value, int | float | str):
        return value
    return weakref.ref(value)
