"""The autograd functions: rows attend to the keys of one rank after another, forward and again backward."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.backends.attend import with_sink
from regard.backends.sharded.exchange import Exchange, Pending, redistribute
from regard.backends.sharded.rectangles import Slab
from regard.backends.sharded.sequence_layout import SequenceLayout
from regard.backends.sharded.shard_plan import ShardPlan, ShardRectangle
from regard.backends.strips import differentiate, rows_of
from regard.normalizers import Normalizer, Softmax
from regard.normalizers.softmax import Sums
from regard.part import Part
from regard.problem import Problem, held_by, parts_of, with_parts
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
        """The whole call with these tensors in its parts, in float32 at least."""
        wide = [x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x for x in held]
        return with_parts(self.whole, unflatten(flatten(parts_of(self.whole))[1], wide))

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

    def partial(self, whole: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Sums]:
        """Output, and the sums of its rows, of all rounds, without the sink."""
        whole = replace(whole, wants_lse=True)
        wide = torch.promote_types(q.dtype, torch.float32)
        output = q.new_zeros(*q.shape[:3], v.shape[-1], dtype=wide)
        sums = Sums(*(q.new_zeros(q.shape[:3], dtype=wide) for _ in range(2)))
        for now in self.rounds(k, v):
            for at in self.plan.rectangles(self.rank, now.owner):
                rows, columns = self.places_of(now, at)
                own = (x.to(wide) for x in (q[:, :, rows], now.k[:, :, columns], now.v[:, :, columns]))
                found = rows_of(_without_sink(whole), self.part_of(whole, at), *own)
                _add(whole.normalizer, found, (output[:, :, rows], Sums(*(x[:, :, rows] for x in sums))))
        return output, sums

    def part_of(self, whole: Problem, at: ShardRectangle) -> Part:
        """A rectangle of this rank as a part of the whole call."""
        slab = self.slab
        batch = slice(slab.batch, slab.batch + slab.batches)
        heads = slice(slab.head, slab.head + slab.heads)
        rows, columns = (slice(one.start, one.stop) for one in (at.rows, at.columns))
        return Part(batch, heads, rows, (columns,), whole.q_offset, (whole.batch, whole.heads), not at.full)

    def with_sink(self, whole: Problem, output: Tensor, sums: Sums) -> tuple[Tensor, Sums]:
        """The same rows where a sink takes its share."""
        return (output, sums) if whole.sink is None else with_sink(output, sums, _sink(self, whole))

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
    """Output, and peaks and totals, of the rows that the plan puts on this rank."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, *held: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        whole = call.over(held)
        output, sums = call.with_sink(whole, *call.partial(whole, q, k, v))
        ctx.call = call
        ctx.save_for_backward(q, k, v, *held, output, *sums)
        ctx.mark_non_differentiable(sums.peak)
        ctx.set_materialize_grads(False)
        return output, *sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor | None, _: None, up_total: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, *held, output, peak, total = ctx.saved_tensors
        up = torch.zeros_like(output) if up is None else up.to(output.dtype)
        delta = torch.linalg.vecdot(up, output)
        if up_total is not None:
            delta = delta - up_total * total
        gradients = _Gradients(ctx.call, (q, k, v), held, ctx.needs_input_grad[4:])
        gradients.add_all(Sums(peak, total), up, delta)
        return None, *gradients.finished(Sums(peak, total), delta)


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


class _Gradients:
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

    def add_all(self, sums: Sums, up: Tensor, delta: Tensor) -> None:
        """Go through the rounds; the gradients of the keys of others travel back while the next round is computed.

        Args:
            sums: Those of the whole rows.
            up: The gradient of the output.
            delta: Σ_d up · output, less the gradient of the log-sum-exp.
        """
        returning: tuple[int, Pending, Tensor] | None = None
        whole = self.call.over(self.held)
        for now in self.call.rounds(self.k, self.v):
            own = now.number == 0
            into = (self.dk, self.dv) if own else tuple(_Sum(x, self.dk.dtype) for x in (now.k, now.v))
            for at in self.call.plan.rectangles(self.call.rank, now.owner):
                self._add(whole, now, at, (sums, up, delta), into)
            if returning is not None:
                self._take(*returning)
            returning = self._send_back(now, into) if now.number else None
        if returning is not None:
            self._take(*returning)

    def _add(
        self,
        whole: Problem,
        now: Round,
        at: ShardRectangle,
        rows: tuple[Sums, Tensor, Tensor],
        into: tuple["_Sum", ...],
    ) -> None:
        here, columns = self.call.places_of(now, at)
        sums, up, delta = rows
        known = Sums(sums.peak[:, :, here], sums.total[:, :, here])
        cut = self.q[:, :, here], now.k[:, :, columns], now.v[:, :, columns]
        q, k, v = (x.to(self.dq.dtype) for x in cut)
        dq, dk, dv, *rest = differentiate(
            whole,
            self.call.part_of(whole, at),
            (q, k, v),
            up[:, :, here],
            -delta[:, :, here],  # of a part's share of its rows' weight
            (True, True, True, *self.wanted),
            known,
        )
        for total, where, share in zip((self.dq, *into), (here, columns, columns), (dq, dk, dv), strict=True):
            if share is not None:
                total.add(where, share, keeps=True)
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

    def finished(self, sums: Sums, delta: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of q, k, v and what the parts hold, in the types of these."""
        whole = self.call.over(self.held)
        if whole.sink is not None:
            at = next(at for at, one in enumerate(held_by(whole)) if one is whole.sink)
            if (share := self.shares[at]) is not None:
                total = (_sink(self.call, whole)[:, None] - sums.peak).exp() / sums.total
                _sink_of(self.call, share).sub_((total * delta).sum((0, 2)).to(share.dtype))
        for share in self.shares:
            if share is not None:
                for exchange in self.call.summed:
                    exchange.sum_over(share)
        own = (self.q, self.k, self.v, *self.held)
        made = (self.dq.total, self.dk.total, self.dv.total, *self.shares)
        return tuple(None if one is None else one.to(x.dtype) for one, x in zip(made, own, strict=True))


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


def _add(normalizer: Normalizer, part: tuple[Tensor, Sums | None], into: tuple[Tensor, Sums]) -> None:
    """Merge what was found for some keys into what was found for the same rows so far."""
    output, sums = into
    here, found = part
    if not isinstance(normalizer, Softmax) or found is None:
        output.add_(here)
        return
    # The peak of a row that has seen nothing yet is 0, which counts for nothing.
    peaks = [torch.where(one.total == 0, -torch.inf, one.peak) for one in (sums, found)]
    peak = torch.maximum(*peaks)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    before, more = ((one.peak - peak).exp() * one.total for one in (sums, found))
    before, more = (one.masked_fill(x.total == 0, 0.0) for one, x in ((before, sums), (more, found)))
    total = before + more
    whole = total.masked_fill(total == 0, 1.0)
    output.mul_((before / whole).unsqueeze(-1)).add_(here * (more / whole).unsqueeze(-1))
    sums.peak.copy_(peak)
    sums.total.copy_(total)


def merged(output: Tensor, sums: Sums, exchange: Exchange, normalizer: Normalizer) -> tuple[Tensor, Sums]:
    """Merge what all ranks found for the same rows, in the order of the ranks: the same numbers on each."""
    packed = torch.cat([output, sums.peak.unsqueeze(-1), sums.total.unsqueeze(-1)], -1)
    whole: tuple[Tensor, Sums] = (
        torch.zeros_like(output),
        Sums(torch.zeros_like(sums.peak), torch.zeros_like(sums.total)),
    )
    for one in exchange.gather(packed):
        _add(normalizer, (one[..., :-2], Sums(one[..., -2], one[..., -1])), whole)
    return whole


def _without_sink(whole: Problem) -> Problem:
    """Each rank's parts of a row are merged first."""
    return whole if whole.sink is None else replace(whole, normalizer=Softmax())


def _sink(call: ShardedCall, whole: Problem) -> Tensor:
    assert whole.sink is not None
    return _sink_of(call, whole.sink)


def _sink_of(call: ShardedCall, x: Tensor) -> Tensor:
    """The part of this rank's heads."""
    return x[call.slab.head : call.slab.head + call.slab.heads]
