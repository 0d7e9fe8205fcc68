"""The cache of what is planned for masks: blocks, tables of kernels, keys that are seen."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.masks.base import BoundMask

__all__ = ["PLANS", "PlanCache"]

Plan = TypeVar("Plan")


class PlanCache:
    """Plans by the form of a mask, its tensors, its place and what is planned; the last used are kept.

    Tensors are not kept alive: the plans of a mask whose tensors are gone are dropped.

    Args:
        max_plans: Number of plans that are kept.
        max_bytes: Bytes that they may have together (`nbytes` of each that has it), but for the latest.
    """

    def __init__(self, max_plans: int, max_bytes: int) -> None:
        self._max_plans, self._max_bytes = max_plans, max_bytes
        self._plans: OrderedDict[Hashable, tuple[tuple[weakref.ref[Tensor], ...], Any]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, bound: "BoundMask", detail: Hashable, make: Callable[[], Plan]) -> Plan:
        """Return what was made for a mask at its place, or make it.

        For a mask that may change unseen, that is what was made in this call.

        Args:
            bound: The mask.
            detail: What is planned, such as the size of blocks.
            make: Makes the plan.
        """
        identity = bound.given.identity()
        if identity is None:
            plans: dict[Hashable, Plan] = vars(bound).get("of_this_call", {})
            if detail not in plans:
                plans[detail] = make()
            return plans[detail]
        leaves, form = identity
        key = form, tuple([id(leaf) for leaf in leaves]), bound.q_len, bound.kv_len, bound.q_offset, detail
        with self._lock:
            if key in self._plans:
                holders, plan = self._plans[key]
                if all(holder() is not None for holder in holders):  # else an address was used again
                    self._plans.move_to_end(key)
                    known: Plan = plan
                    return known
        with torch.inference_mode(False):  # a later call may train with it
            made = make()
        with self._lock:
            self._plans[key] = tuple(weakref.ref(leaf) for leaf in leaves), made
            self._plans.move_to_end(key)
            self._shrink()
        return made

    def _shrink(self) -> None:
        """Drop plans whose tensors are gone, then the oldest ones beyond the limits."""
        for key, (holders, _) in list(self._plans.items()):
            if any(holder() is None for holder in holders):
                del self._plans[key]
        total = sum(_bytes_of(plan) for _, plan in self._plans.values())
        while len(self._plans) > self._max_plans or (len(self._plans) > 1 and total > self._max_bytes):
            _, (_, plan) = self._plans.popitem(last=False)
            total -= _bytes_of(plan)

    def clear(self) -> None:
        """Drop all plans."""
        with self._lock:
            self._plans.clear()


def _bytes_of(plan: object) -> int:
    return int(getattr(plan, "nbytes", 0))


PLANS = PlanCache(128, 2**29)
