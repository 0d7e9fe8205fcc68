"""One call over the ranks that share a sequence, as one of them sees it: its part, the plan, and the keys in rounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from regard.backends.attend import hollow
from regard.parallel.exchange import Exchange, Pending
from regard.parallel.sequence_layout import SequenceLayout, index_of, side_by_side
from regard.parallel.shard_plan import ShardPlan, ShardRectangle, plan_replicated, plan_shards
from regard.part import Part
from regard.problem import Problem

__all__ = ["Round", "ShardedCall"]


@dataclass(frozen=True, eq=False)
class ShardedCall:
    """One call over the ranks of a group.

    Args:
        whole: The call over the whole sequence, checked; its q, k and v have no memory.
        area: The sequences and heads that this rank has; of these it has the rows and keys of the layouts.
        queries: Which rows each rank has.
        keys: Which keys each rank has.
        exchange: The ranks.
        summed: Over which groups the gradients of what score, biases and normalizer hold are summed.
        is_replicated: Whether every rank has all queries, as in decoding.
    """

    whole: Problem
    area: Part
    queries: SequenceLayout
    keys: SequenceLayout
    exchange: Exchange
    summed: tuple[Exchange, ...] = ()
    is_replicated: bool = False

    @property
    def rank(self) -> int:
        """This rank."""
        return self.exchange.rank

    @property
    def hollow(self) -> "ShardedCall":
        """The same without the memory and the graphs of what score, biases and normalizer hold."""
        return replace(self, whole=hollow(self.whole))

    @cached_property
    def plan(self) -> ShardPlan:
        """What each rank computes and sends for the sequences and heads of this one."""
        plan = plan_replicated if self.is_replicated else plan_shards
        return plan(self.whole.mask, self.area, self.queries, self.keys)

    def part_of(self, at: ShardRectangle) -> Part:
        """A rectangle of this rank as a part of the whole call."""
        rows, columns = (slice(one.start, one.stop) for one in (at.rows, at.columns))
        return replace(self.area, rows=rows, spans=(columns,), is_masked=not at.full)

    def rounds(self, k: Tensor, v: Tensor) -> Iterator["Round"]:
        """The rounds in order; the keys of the next one are on their way before one is given."""
        here = Round(0, self.rank, self.plan.keys.places(self.rank), k, v)
        for number in self.plan.all_rounds:
            pending, arriving = self._post(number, k, v)
            yield here
            here = self._arrived(number, pending, arriving, k.shape[-1])
        yield here

    def rectangles(self, now: "Round") -> Iterator[tuple[Part, slice, slice]]:
        """What this rank computes in a round: parts of the call, and where their rows and keys are in what it has."""
        for at in self.plan.rectangles(self.rank, now.owner):
            rows = index_of(self.plan.queries.places(self.rank), at.rows)
            yield self.part_of(at), rows, index_of(now.places, at.columns)

    def peers(self, number: int) -> tuple[int, int]:
        """Whose keys this rank takes in a round, and who takes its own."""
        ranks = self.exchange.ranks
        return (self.rank + number) % ranks, (self.rank - number) % ranks

    def _post(self, number: int, k: Tensor, v: Tensor) -> tuple[Pending, Tensor]:
        owner, taker = self.peers(number)
        sends = {}
        if segments := self.plan.segments(taker, self.rank):
            sends[taker] = torch.cat([self._cut(k, segments), self._cut(v, segments)], -1)
        shape = *k.shape[:2], self.plan.keys_needed(self.rank, owner), k.shape[-1] + v.shape[-1]
        arriving = k.new_empty(shape)
        return self.exchange.post(sends, {owner: arriving}, tag=2 * number), arriving

    def _cut(self, x: Tensor, segments: Sequence[range]) -> Tensor:
        places = self.plan.keys.places(self.rank)
        return torch.cat([x[:, :, index_of(places, one)] for one in segments], 2)

    def _arrived(self, number: int, pending: Pending, whole: Tensor, dim: int) -> "Round":
        pending.wait()
        owner, _ = self.peers(number)
        places = side_by_side(self.plan.segments(self.rank, owner))
        return Round(number, owner, places, whole[..., :dim], whole[..., dim:])


@dataclass(frozen=True, eq=False)
class Round:
    """The keys and values of one round, and where each span of them begins."""

    number: int
    owner: int
    places: Sequence[tuple[range, int]]
    k: Tensor
    v: Tensor
