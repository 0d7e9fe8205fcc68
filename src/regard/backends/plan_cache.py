"""Plans that are remembered: a model asks the same mask of every layer."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from torch import Tensor

from regard.frozen import tensors
from regard.masks import BoundMask, Mask
from regard.masks.block_runs import Cover, cover
from regard.masks.tensor_holders import holders
from regard.problem import Problem
from regard.shapes import has_numbers

__all__ = ["BLOCK", "Remembered", "covered"]

BLOCK = 128  # rows and columns of a block, at most

Plan = TypeVar("Plan")


class Remembered(Generic[Plan]):
    """The plans for the masks that were asked for last.

    Args:
        most: How many are kept.
        most_bytes: How many bytes they may have together, but for the latest.
        bytes_of: The bytes of one.
    """

    def __init__(
        self, most: int, *, most_bytes: int | None = None, bytes_of: Callable[[Plan], int] | None = None
    ) -> None:
        self._most, self._most_bytes, self._bytes_of = most, most_bytes, bytes_of
        self._plans: OrderedDict[Hashable, tuple[tuple[weakref.ref[Mask], ...], Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, bound: BoundMask, detail: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan for a mask as it was given: by value, and by identity where it holds tensors, which are its own.

        Masks are not kept alive. One that may change is planned for once a call (see `Problem.of`).
        """
        holding = holders(bound.given)
        if holding is None:
            return self._of_this_call(vars(bound).get("of_this_call", {}), detail, make)
        key = _print_of(bound.given), bound.q_len, bound.kv_len, bound.q_offset, detail
        with self._lock:
            held, found = self._plans.get(key, ((), None))
        if found is not None and all(one() is not None for one in held):
            return found  # a dead mask's address may be another's by now
        made = make()
        with self._lock:
            self._plans[key] = tuple(weakref.ref(one) for one in holding), made
            self._plans.move_to_end(key)
            for old, (held, _) in list(self._plans.items()):
                if any(one() is None for one in held):
                    del self._plans[old]
            while len(self._plans) > self._most or (len(self._plans) > 1 and self._are_too_large()):
                self._plans.popitem(last=False)
        return made

    def _of_this_call(self, plans: dict[Hashable, Plan], detail: Hashable, make: Callable[[], Plan]) -> Plan:
        key = id(self), detail
        if key not in plans:
            plans[key] = make()
        return plans[key]

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

    if problem.mask is not None and not has_numbers(*tensors(problem.mask.mask)):
        return cover(None, problem.queries, problem.keys, block)  # nothing is known of the mask: as if all were seen
    return found() if problem.mask is None else _covers.of(problem.mask, block, found)


def _print_of(value: Any) -> Hashable:
    """What tells a mask that does not change from another: by identity where it holds tensors, else by value."""
    if isinstance(value, tuple):
        return tuple(_print_of(one) for one in value)
    if not isinstance(value, Mask):
        return type(value), value
    held = tuple(getattr(value, name) for name in getattr(value, "__dataclass_fields__", ()))
    return type(value), id(value) if any(isinstance(one, Tensor) for one in held) else _print_of(held)
