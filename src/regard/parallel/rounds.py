"""The engine of a rank: its rows attend to the keys of one rank after another, forward and again backward.

Results of parts of rows are merged here, by their sums, and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.backends.attend import Gradients, Results, as_first_derivatives, with_sink
from regard.backends.strips import differentiate, rows_of
from regard.normalizers import Normalizer, Softmax
from regard.normalizers.softmax import Sums
from regard.parallel.exchange import Exchange, Pending
from regard.parallel.sequence_layout import index_of, side_by_side
from regard.parallel.sharded_call import Round, ShardedCall
from regard.part import Part
from regard.problem import Problem, held_by, parts_of, with_parts

__all__ = ["Rounds", "merge", "merged"]

_NO_SECOND = "attention over several ranks has no second derivative: compute it in one process, of x.full_tensor()"


@dataclass(frozen=True, eq=False)
class Rounds:
    """An `Engine` (`backends.attend`), of this rank's rows; the calls that it is given have this rank's q, k and v."""

    call: ShardedCall
    name = "strips"
    keeps_rows = True

    def forward(self, local: Problem) -> Results:
        """Compute the rows that the plan puts on this rank."""
        whole = self._whole(local)
        return self.with_sink(whole, *self.partial(whole, local.q, local.k, local.v))

    def backward(
        self, local: Problem, rows: Results | None, up: Tensor, up_total: Tensor | None, wanted: tuple[bool, ...]
    ) -> Gradients:
        """Go through the rounds again; all ranks take part whatever of q, k and v is wanted on one of them."""
        assert rows is not None
        output, *sums = rows
        with torch.no_grad():
            gradients = _Gradients(self.call, self._whole(local), local, wanted[3:])
            found = gradients.of_rounds(output, Sums(*sums), up, up_total)  # type: ignore[arg-type]
        if torch.is_grad_enabled():
            given = up, local.q, local.k, local.v, *held_by(local)
            found = as_first_derivatives(found, self.name, *given, words=_NO_SECOND)
        return found

    def partial(self, whole: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Sums]:
        """Output, and the sums of its rows, of all rounds, without the sink."""
        alone = replace(whole, wants_lse=True, normalizer=_without_sink(whole.normalizer))
        wide = torch.promote_types(q.dtype, torch.float32)
        output = q.new_zeros(*q.shape[:3], v.shape[-1], dtype=wide)
        sums = Sums(*(q.new_zeros(q.shape[:3], dtype=wide) for _ in range(2)))
        for now in self.call.rounds(k, v):
            for part, rows, keys in self.call.rectangles(now):
                own = (x.to(wide) for x in (q[:, :, rows], now.k[:, :, keys], now.v[:, :, keys]))
                found = rows_of(alone, part, *own)
                merge(alone.normalizer, found, (output[:, :, rows], Sums(*(x[:, :, rows] for x in sums))))
        return output, sums

    def with_sink(self, whole: Problem, output: Tensor, sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
        """The same rows where a sink takes its share."""
        if whole.sink is not None:
            output, sums = with_sink(output, sums, whole.sink[self.call.area.heads])
        return output, *sums

    def _whole(self, local: Problem) -> Problem:
        """The call over the whole sequence with what the parts of this one hold."""
        return with_parts(self.call.whole, parts_of(local))


class _Gradients:
    """The gradients of one rank, added up round by round."""

    def __init__(self, call: ShardedCall, whole: Problem, local: Problem, wanted: Sequence[bool]) -> None:
        self.call, self.whole, self.wanted = call, whole, tuple(wanted)
        self.q, self.k, self.v = local.q, local.k, local.v
        self.wide = torch.promote_types(local.q.dtype, torch.float32)
        self.dq, self.dk, self.dv = (_Sum(x, self.wide) for x in (self.q, self.k, self.v))
        held = held_by(whole)
        self.shares = [torch.zeros_like(x) if want else None for x, want in zip(held, wanted, strict=True)]

    def of_rounds(self, output: Tensor, sums: Sums, up: Tensor, up_total: Tensor | None) -> Gradients:
        """Go through the rounds; the gradients of the keys of others travel back while the next round is computed."""
        up = up.to(output.dtype)
        # What a part's share of its rows' weight costs: Σ_d up · output, less the gradient of the log-sum-exp.
        delta = torch.linalg.vecdot(up, output)
        if up_total is not None:
            delta = delta - up_total * sums.total
        returning: tuple[int, Pending, Tensor] | None = None
        for now in self.call.rounds(self.k, self.v):
            own = now.number == 0
            into = (self.dk, self.dv) if own else tuple(_Sum(x, self.wide) for x in (now.k, now.v))
            for part, rows, keys in self.call.rectangles(now):
                self._add(part, now, (rows, keys), (sums, up, delta), into)
            if returning is not None:
                self._take(*returning)
            returning = None if own else self._send_back(now, into)
        if returning is not None:
            self._take(*returning)
        self._add_sink(sums, delta)
        for share in self.shares:
            if share is not None:
                for exchange in self.call.summed:
                    exchange.sum_over(share)
        made = self.dq.total, self.dk.total, self.dv.total
        return [*(x.to(like.dtype) for x, like in zip(made, (self.q, self.k, self.v), strict=True)), *self.shares]

    def _add(
        self,
        part: Part,
        now: Round,
        where: tuple[slice, slice],
        of_rows: tuple[Sums, Tensor, Tensor],
        into: tuple["_Sum", ...],
    ) -> None:
        """Add the gradients of a part of the call."""
        rows, keys = where
        sums, up, delta = of_rows
        cut = self.q[:, :, rows], now.k[:, :, keys], now.v[:, :, keys]
        q, k, v = (x.to(self.wide) for x in cut)
        wanted = (True, True, True, *self.wanted)
        known = Sums(*(x[:, :, rows] for x in sums))
        found = differentiate(self.whole, part, (q, k, v), up[:, :, rows], -delta[:, :, rows], wanted, known)
        for total, place, share in zip((self.dq, *into), (rows, keys, keys), found[:3], strict=True):
            if share is not None:
                total.add(place, share, keeps=True)
        for target, share in zip(self.shares, found[3:], strict=True):
            if target is not None and share is not None:
                target.add_(share)

    def _send_back(self, now: Round, into: tuple["_Sum", ...]) -> tuple[int, Pending, Tensor]:
        owner, taker = self.call.peers(now.number)
        width = self.k.shape[-1] + self.v.shape[-1]
        keys = self.call.plan.keys_needed(taker, self.call.rank)
        arriving = self.k.new_empty(*self.k.shape[:2], keys, width, dtype=self.wide)
        sends = {owner: torch.cat([one.total for one in into], -1)}
        return now.number, self.call.exchange.post(sends, {taker: arriving}, tag=2 * now.number + 1), arriving

    def _take(self, number: int, pending: Pending, whole: Tensor) -> None:
        """Add what a rank found for this rank's keys."""
        pending.wait()
        _, taker = self.call.peers(number)
        mine = self.call.plan.keys.places(self.call.rank)
        for segment, start in side_by_side(self.call.plan.segments(taker, self.call.rank)):
            dk, dv = whole[:, :, start : start + len(segment)].tensor_split([self.k.shape[-1]], -1)
            self.dk.add(index_of(mine, segment), dk)
            self.dv.add(index_of(mine, segment), dv)

    def _add_sink(self, sums: Sums, delta: Tensor) -> None:
        """Add what a sink gets of this rank's rows: its weight times what weight costs there."""
        sink, heads = self.whole.sink, self.call.area.heads
        if sink is None:
            return
        at = next(at for at, one in enumerate(held_by(self.whole)) if one is sink)
        if (share := self.shares[at]) is not None:
            total = sums.total.masked_fill(sums.total == 0, 1.0)  # of a row that sees nothing, whose sink is −inf
            weight = (sink[heads, None] - sums.peak).exp() / total
            share[heads].sub_((weight * delta).sum((0, 2)).to(share.dtype))


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


def merge(normalizer: Normalizer, part: tuple[Tensor, Sums | None], into: tuple[Tensor, Sums]) -> None:
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


def merged(normalizer: Normalizer, output: Tensor, sums: Sums, exchange: Exchange) -> tuple[Tensor, Sums]:
    """Merge what all ranks found for the same rows, in the order of the ranks: the same numbers on each."""
    packed = torch.cat([output, sums.peak.unsqueeze(-1), sums.total.unsqueeze(-1)], -1)
    whole = torch.zeros_like(output), Sums(*map(torch.zeros_like, sums))
    for one in exchange.gather(packed):
        merge(normalizer, (one[..., :-2], Sums(one[..., -2], one[..., -1])), whole)
    return whole


def _without_sink(normalizer: Normalizer) -> Normalizer:
    """A sink takes its share of whole rows, of which the parts are merged first."""
    return Softmax() if isinstance(normalizer, Softmax) else normalizer
