"""The autograd functions: rows attend to the keys of one rank after another, forward and again backward."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.backends.base import merge
from regard.backends.sharded.exchange import Exchange, Pending, redistribute
from regard.backends.sharded.rectangles import Slab, attend_to, gradients_at, problem_of
from regard.backends.sharded.sequence_layout import SequenceLayout
from regard.backends.sharded.shard_plan import ShardPlan, ShardRectangle
from regard.normalizers import Normalizer, Softmax
from regard.problem import Problem, parts_of, with_parts
from regard.values import flatten, unflatten

__all__ = ["AttendInRounds", "Relayout", "ShardedCall", "merged"]

Places = Sequence[tuple[range, int]]


@dataclass(frozen=True, eq=False)
class Round:
    """The keys and values of one round, and what is computed with them."""

    number: int
    owner: int
    places: Places  # which keys these are, and where each span of them begins
    k: Tensor
    v: Tensor


@dataclass(frozen=True, eq=False)
class ShardedCall:
    """One call as this rank sees it.

    Args:
        whole: The call over the whole sequence, without memory for q, k and v.
        slab: The sequences and heads that this rank has.
        plan: What each rank computes and sends.
        exchange: The ranks that share the sequence.
        summed: Over which groups the gradients of what score, biases and normalizer hold are summed.
    """

    whole: Problem
    slab: Slab
    plan: ShardPlan
    exchange: Exchange
    summed: tuple[Exchange, ...]

    @property
    def rank(self) -> int:
        """This rank."""
        return self.exchange.rank

    def over(self, held: Sequence[Tensor]) -> Problem:
        """The whole call with these tensors in its parts."""
        return with_parts(self.whole, unflatten(flatten(parts_of(self.whole))[1], held))

    def rounds(self, k: Tensor, v: Tensor) -> Iterator[Round]:
        """The rounds in order; the keys of the next one are on their way before one is given."""
        numbers = (0, *self.plan.all_rounds)
        here = Round(0, self.rank, self.plan.keys.places(self.rank), k, v)
        for at, number in enumerate(numbers):
            coming = self._post(numbers[at + 1], k, v) if at + 1 < len(numbers) else None
            yield here
            self.exchange.note("computed", number)
            if coming is not None:
                here = self._arrived(numbers[at + 1], *coming, k.shape[-1])

    def partial(self, whole: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output, log-sum-exp, and what rounding took from it, of all rounds, without the sink."""
        wide = torch.promote_types(q.dtype, torch.float32)
        output = q.new_zeros(*q.shape[:3], v.shape[-1], dtype=wide)
        lse, low = q.new_full(q.shape[:3], -torch.inf, dtype=wide), q.new_zeros(q.shape[:3], dtype=wide)
        for now in self.rounds(k, v):
            for at in self.plan.rectangles(self.rank, now.owner):
                rows, columns = self.places_of(now, at)
                part = problem_of(whole, self.slab, at, q[:, :, rows], now.k[:, :, columns], now.v[:, :, columns])
                _add(part.normalizer, attend_to(part), (output[:, :, rows], lse[:, :, rows], low[:, :, rows]))
        return output, lse, low

    def with_sink(self, whole: Problem, output: Tensor, lse: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same rows where a sink takes its share."""
        if whole.sink is None:
            return output, lse, low
        sink = _sink(self, whole).to(lse.dtype)[:, None]
        (lse, low), (share, _) = merge(lse, low, sink, torch.zeros_like(sink))
        return output.mul_(share.unsqueeze(-1)), lse, low

    def places_of(self, now: Round, at: ShardRectangle) -> tuple[slice, slice]:
        """Where the rows and columns of a rectangle are in what this rank has."""
        return _index(self.plan.queries.places(self.rank), at.rows), _index(now.places, at.columns)

    def peers(self, number: int) -> tuple[int, int]:
        """Whose keys this rank takes in a round, and who takes its own."""
        ranks = self.exchange.ranks
        return (self.rank + number) % ranks, (self.rank - number) % ranks

    def cut(self, x: Tensor, segments: Sequence[range]) -> Tensor:
        """Some of this rank's keys."""
        return torch.cat([_rows(x, self.plan.keys.places(self.rank), one) for one in segments], 2)

    def _post(self, number: int, k: Tensor, v: Tensor) -> tuple[Pending, Tensor]:
        owner, taker = self.peers(number)
        sends = {}
        if segments := self.plan.segments(taker, self.rank):
            sends[taker] = torch.cat([self.cut(k, segments), self.cut(v, segments)], -1)
        shape = *k.shape[:2], self.plan.keys_needed(self.rank, owner), k.shape[-1] + v.shape[-1]
        arriving = k.new_empty(shape)
        self.exchange.note("posted", number)
        return self.exchange.post(sends, {owner: arriving}, tag=2 * number), arriving

    def _arrived(self, number: int, pending: Pending, whole: Tensor, dim: int) -> Round:
        pending.wait()
        owner, _ = self.peers(number)
        return Round(number, owner, _placed(self.plan.segments(self.rank, owner)), whole[..., :dim], whole[..., dim:])


class AttendInRounds(torch.autograd.Function):
    """Output, log-sum-exp, and what rounding took from it, of the rows that the plan puts on this rank."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, *held: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        whole = call.over(held)
        output, lse, low = call.with_sink(whole, *call.partial(whole, q, k, v))
        ctx.call = call
        ctx.save_for_backward(q, k, v, *held, output, lse, low)
        ctx.mark_non_differentiable(low)
        ctx.set_materialize_grads(False)
        return output, lse, low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor | None, up_lse: Tensor | None, _: None) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, *held, output, lse, low = ctx.saved_tensors
        rows = output, lse, low
        up = torch.zeros_like(output) if up is None else up.to(output.dtype)
        sums = _Sums(ctx.call, (q, k, v), held, ctx.needs_input_grad[4:])
        sums.add_all(rows, (up, up_lse))
        return None, *sums.finished(rows, (up, up_lse))


class _Sum:
    """A sum of shares of some rows each: the first is kept as it is where it is one of all rows.

    Beside zeros to add it to, it would take the memory of the rows twice.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.dtype, self._like = dtype, like
        self._total: Tensor | None = None

    def add(self, rows: slice, share: Tensor, *, keeps: bool = False) -> None:
        """Add a share of some rows; `keeps` says that it may be written into from now on."""
        if keeps and self._total is None and share.shape == self._like.shape and share.dtype == self.dtype:
            self._total = share
        else:
            self.total[:, :, rows].add_(share)

    @property
    def total(self) -> Tensor:
        """The sum so far."""
        if self._total is None:
            self._total = torch.zeros_like(self._like, dtype=self.dtype)
        return self._total


class _Sums:
    """The gradients of one rank, added up round by round."""

    def __init__(
        self, call: ShardedCall, qkv: Sequence[Tensor], held: Sequence[Tensor], wanted: Sequence[bool]
    ) -> None:
        wide = torch.promote_types(qkv[0].dtype, torch.float32)
        self.call, self.q, self.k, self.v = call, *qkv
        self.held, self.wanted = list(held), list(wanted)
        self.dq, self.dk, self.dv = (_Sum(x, wide) for x in qkv)
        self.shares = [
            torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) if want else None
            for x, want in zip(held, wanted, strict=True)
        ]

    def add_all(self, rows: tuple[Tensor, Tensor, Tensor], up: tuple[Tensor, Tensor | None]) -> None:
        """Go through the rounds; the gradients of the keys of others travel back while the next round is computed."""
        returning: tuple[int, Pending, Tensor] | None = None
        for now in self.call.rounds(self.k, self.v):
            own = now.number == 0
            into = (self.dk, self.dv) if own else tuple(_Sum(x, self.dk.dtype) for x in (now.k, now.v))
            for at in self.call.plan.rectangles(self.call.rank, now.owner):
                self._add(now, at, rows, up, into)
            if returning is not None:
                self._take(*returning)
            returning = self._send_back(now, into) if now.number else None
        if returning is not None:
            self._take(*returning)

    def _add(
        self,
        now: Round,
        at: ShardRectangle,
        rows: tuple[Tensor, Tensor, Tensor],
        up: tuple[Tensor, Tensor | None],
        into: tuple["_Sum", ...],
    ) -> None:
        here, columns = self.call.places_of(now, at)
        output, lse, low = (x[:, :, here] for x in rows)
        up_here = up[0][:, :, here], None if up[1] is None else up[1][:, :, here]

        def make(q: Tensor, k: Tensor, v: Tensor, *held: Tensor) -> Problem:
            return problem_of(self.call.over(held), self.call.slab, at, q, k, v)

        inputs = self.q[:, :, here], now.k[:, :, columns], now.v[:, :, columns], *self.held
        dq, dk, dv, *rest = gradients_at(make, inputs, (True, True, True, *self.wanted), (output, lse, low), up_here)
        keeps = _own_memory((dq, dk, dv))
        for total, where, share in zip((self.dq, *into), (here, columns, columns), (dq, dk, dv), strict=True):
            if share is not None:
                total.add(where, share, keeps=keeps)
        for target, share in zip(self.shares, rest, strict=True):
            if target is not None and share is not None:
                target.add_(share)

    def _send_back(self, now: Round, into: tuple["_Sum", ...]) -> tuple[int, Pending, Tensor]:
        owner, taker = self.call.peers(now.number)
        width = self.k.shape[-1] + self.v.shape[-1]
        keys = self.call.plan.keys_needed(taker, self.call.rank)
        arriving = self.k.new_empty(*self.k.shape[:2], keys, width, dtype=self.dk.dtype)
        sends = {owner: torch.cat([one.total for one in into], -1)}
        return now.number, self.call.exchange.post(sends, {taker: arriving}, tag=2 * now.number + 1), arriving

    def _take(self, number: int, pending: Pending, whole: Tensor) -> None:
        """Add what a rank found for this rank's keys."""
        pending.wait()
        _, taker = self.call.peers(number)
        mine = self.call.plan.keys.places(self.call.rank)
        for segment, start in _placed(self.call.plan.segments(taker, self.call.rank)):
            part = whole[:, :, start : start + len(segment)]
            self.dk.add(_index(mine, segment), part[..., : self.k.shape[-1]])
            self.dv.add(_index(mine, segment), part[..., self.k.shape[-1] :])

    def finished(
        self, rows: tuple[Tensor, Tensor, Tensor], up: tuple[Tensor, Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of q, k, v and what the parts hold, in the types of these."""
        whole = self.call.over(self.held)
        if whole.sink is not None:
            at = next(at for at, one in enumerate(self.held) if one is whole.sink)
            if (share := self.shares[at]) is not None:
                _sink_of(self.call, share).sub_(_sink_gradient(_sink(self.call, whole), rows, up).to(share.dtype))
        for share in self.shares:
            if share is not None:
                for exchange in self.call.summed:
                    exchange.sum_over(share)
        own = (self.q, self.k, self.v, *self.held)
        sums = (self.dq.total, self.dk.total, self.dv.total, *self.shares)
        return tuple(None if one is None else one.to(x.dtype) for one, x in zip(sums, own, strict=True))


class Relayout(torch.autograd.Function):
    """The part of a sequence that another layout puts on this rank; gradients go back to where they came from."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Tensor, source: SequenceLayout, target: SequenceLayout, exchange: Exchange, tag: int
    ) -> Tensor:
        ctx.way = target, source, exchange, tag + 1
        return redistribute(x, 2, source, target, exchange, tag)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        return redistribute(up, 2, *ctx.way), None, None, None, None


def _placed(segments: Sequence[range]) -> Places:
    """Segments that lie one after the other, each with its start."""
    placed, start = [], 0
    for one in segments:
        placed.append((one, start))
        start += len(one)
    return placed


def _index(places: Places, span: range) -> slice:
    """Where a span is, which lies within one of these."""
    for whole, start in places:
        if whole.start <= span.start and span.stop <= whole.stop:
            return slice(start + span.start - whole.start, start + span.stop - whole.start)
    raise AssertionError(f"{span} is in none of {places}")


def _rows(x: Tensor, places: Places, span: range) -> Tensor:
    return x[:, :, _index(places, span)]


def _own_memory(found: Sequence[Tensor | None]) -> bool:
    """Return whether none of these is a view, and no two share their memory."""
    given = [one for one in found if one is not None]
    apart = len({one.untyped_storage().data_ptr() for one in given}) == len(given)
    return apart and all(one._base is None and one.is_contiguous() for one in given)


def _add(normalizer: Normalizer, part: tuple[Tensor, ...], into: tuple[Tensor, ...]) -> None:
    """Merge output and log-sum-exp of some keys into those of the same rows so far."""
    output, lse, low = into
    here, high_here, low_here = part
    if not isinstance(normalizer, Softmax):
        output.add_(here)
        return
    sums, (share, before) = merge(high_here, low_here, lse, low)
    output.mul_(before.unsqueeze(-1)).add_(here * share.unsqueeze(-1))
    lse.copy_(sums[0])
    low.copy_(sums[1])


def merged(
    rows: tuple[Tensor, Tensor, Tensor], exchange: Exchange, normalizer: Normalizer
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge what all ranks found for the same rows, in the order of the ranks: the same numbers on each."""
    output, lse, low = rows
    packed = torch.cat([output, lse.unsqueeze(-1), low.unsqueeze(-1)], -1)
    parts = exchange.gather(packed)
    total = torch.zeros_like(output), torch.full_like(lse, -torch.inf), torch.zeros_like(low)
    for one in parts:
        _add(normalizer, (one[..., :-2], one[..., -2], one[..., -1]), total)
    return total


def _sink(call: ShardedCall, whole: Problem) -> Tensor:
    assert whole.sink is not None
    return _sink_of(call, whole.sink)


def _sink_of(call: ShardedCall, x: Tensor) -> Tensor:
    """The part of this rank's heads."""
    return x[call.slab.head : call.slab.head + call.slab.heads]


def _sink_gradient(sink: Tensor, rows: tuple[Tensor, Tensor, Tensor], up: tuple[Tensor, Tensor | None]) -> Tensor:
    output, lse, low = rows
    delta = torch.linalg.vecdot(up[0], output)
    delta = delta if up[1] is None else delta - up[1]
    gradient: Tensor = ((sink.to(lse.dtype)[:, None] - lse - low).exp() * delta).sum((0, 2))
    return gradient
