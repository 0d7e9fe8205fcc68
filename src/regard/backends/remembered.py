"""Plans that are remembered: a model asks the same mask of every layer."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from regard.frozen import tensors
from regard.masks import BoundMask, Mask
from regard.masks.cover import Cover, cover
from regard.problem import Problem

__all__ = ["BLOCK", "Remembered", "covered", "is_value", "key_of"]

BLOCK = 128  # rows and columns of a block, at most

Plan = TypeVar("Plan")


class Remembered(Generic[Plan]):
    """The plans for the masks that were asked for last, made anew where a tensor in a mask was changed or has gone.

    Args:
        most: How many are kept.
        most_bytes: How many bytes they may have together, but for the latest.
        bytes_of: The bytes of one.
    """

    def __init__(
        self, most: int, *, most_bytes: int | None = None, bytes_of: Callable[[Plan], int] | None = None
    ) -> None:
        self._most, self._most_bytes, self._bytes_of = most, most_bytes, bytes_of
        self._plans: OrderedDict[Hashable, tuple[tuple[weakref.ref[Tensor], ...], Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, bound: BoundMask, detail: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan for a mask as it was given, by value, and by identity and version where it holds tensors.

        Tensors are not kept alive, and one that is changed through `.data` counts as the same. What cannot be told
        from another mask is planned for anew.
        """
        key = key_of(bound, detail)
        if key is None:
            return make()
        with self._lock:
            held, found = self._plans.get(key, ((), None))
        if found is not None and all(one() is not None for one in held):
            return found  # a dead tensor's address may be another's by now
        made = make()
        with self._lock:
            self._plans[key] = tuple(weakref.ref(one) for one in tensors(bound.given)), made
            self._plans.move_to_end(key)
            for old, (held, _) in list(self._plans.items()):
                if any(one() is None for one in held):
                    del self._plans[old]
            while len(self._plans) > self._most or (len(self._plans) > 1 and self._are_too_large()):
                self._plans.popitem(last=False)
        return made

    def _are_too_large(self) -> bool:
        if self._most_bytes is None or self._bytes_of is None:
            return False
        return sum(self._bytes_of(plan) for _, plan in self._plans.values()) > self._most_bytes

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._plans.clear()


_covers: Remembered[Cover] = Remembered(32)


def covered(problem: Problem, block: int = BLOCK) -> Cover:
    """The blocks that a problem's mask leaves."""

    def found() -> Cover:
        return cover(problem.mask, problem.queries, problem.keys, block)

    return found() if problem.mask is None else _covers.of(problem.mask, block, found)


def is_value(value: Any, *, with_tensors: bool = True) -> bool:
    """Whether a mask is numbers, masks and, if allowed, tensors alone: a rule of code may answer differently later."""
    if isinstance(value, Tensor):
        return with_tensors
    if isinstance(value, tuple):
        return all(is_value(one, with_tensors=with_tensors) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_value(getattr(value, part.name), with_tensors=with_tensors) for part in fields(value))
    return value is None or isinstance(value, int | float | str)


def key_of(bound: BoundMask, detail: Hashable) -> Hashable | None:
    """What tells a mask as it was given, and where it is bound, from any other; None where nothing does."""
    try:
        return _print_of(bound.given), bound.queries, bound.keys, bound.query_start, detail
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
