"""Where the attention of a model goes: to a record (a watch), to rows (a tap), or as it is (a lesson)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from regard.observe.padding import HeardMasks
from regard.observe.running import Locator
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import Caller, Missing, sum_missing

__all__ = ["Sink", "entries"]

Missed = Counter[tuple[Caller, str]]


class Sink(Locator):
    """Takes the calls of one model, each while its module runs (`caller`), and counts what cannot be taken.

    `needs_output`: whether calls are to have the output of attention by heads.
    """

    needs_output = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.missed: Missed = Counter()
        self.masks: HeardMasks | None = None  # where it takes the attention masks of the model's calls
        self.calls = 0  # total number of attention calls

    def see(self, call: WatchedCall) -> Any:
        """Take a call, and return a ticket to withdraw it; None if it cannot be withdrawn."""
        raise NotImplementedError  # by sink

    def withdraw(self, ticket: Any, reason: str) -> None:
        """Remove a call, because a later one shows that it is not attention between tokens."""
        self.miss(ticket.caller, reason)

    def miss(self, caller: Caller, reason: str) -> None:
        """Count attention that cannot be taken."""
        self.missed[caller, reason] += 1

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The attention that could not be taken."""
        return entries(self.missed)


def entries(missed: Mapping[tuple[Caller, str], int]) -> tuple[Missing, ...]:
    """Return what was missed by module and reason."""
    return sum_missing(Missing(one.module, f"{one.kind} {reason}", calls) for (one, reason), calls in missed.items())
