"""The formula on strips: whole rows with the keys that they see, so that nothing is merged, in O(n) memory.

Weights are computed again in the backward, by autograd, and once more for second derivatives (after Rabe & Staats 2021,
arXiv:2112.05682, who divide rows too).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from regard.backends.attend import Gradients, Results, answer, attend
from regard.backends.base import DERIVATIVES, OPERATORS, Answer, Backend
from regard.backends.call_form import unwritable
from regard.backends.formula import formula
from regard.backends.operators import Operator
from regard.masks.block_plan import BLOCK, Cover, Runs
from regard.normalizers import is_of_parts
from regard.normalizers.softmax import Sums
from regard.part import Part
from regard.positions import Bias
from regard.problem import Problem, parts_of, with_parts
from regard.problem_checks import learns
from regard.tensors import is_traced
from regard.values import flatten, unflatten

__all__ = ["ENGINE", "Strips", "differentiate", "rows_of", "strips_of"]

_SCORES = 2**20  # of a strip, in which a float is 4 MB
_LEAST_ROWS = 16  # of a block that a mask is asked for
_OVERHEAD = 2**18  # pairs that could be computed while Python plans and visits
_OVERHEAD_EACH = 2**18  # and again for each sequence or head with strips of its own


class Strips(Backend):
    """Any score, mask, bias, normalizer, factor and dropout in O(n) memory, forward and backward, in plain PyTorch.

    A strip has whole rows of some sequences and heads, and the keys that one of the rows sees; its weights are computed
    again in the backward. Results do not depend on the order of threads.
    """

    name = "strips"
    lacks = (
        DERIVATIVES
        | OPERATORS
        | {
            "weights": "it never holds all weights",
            "torch.func": "it does not run inside torch.func",
            "mapped mask": "it cannot plan for a mask that torch.func.vmap maps over",
        }
    )

    def bytes(self, problem: Problem) -> int:
        """Working copies of q, k, v and output, and the strips."""
        wide = torch.promote_types(problem.q.dtype, torch.float32).itemsize
        rows = problem.q.numel() + problem.batch * problem.heads * problem.queries * problem.v.shape[-1]
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        strip = max(min(pairs, _SCORES), problem.keys) * problem.score.floats_per_pair
        return (rows + problem.k.numel() + problem.v.numel() + 6 * strip) * wide

    def cost(self, problem: Problem) -> float:
        """The pairs of the blocks that the mask leaves, and what Python needs to visit them."""
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        share = problem.plan(_block_for(problem)).share if problem.mask is not None and not _is_short(problem) else 1.0
        each = 1.7 if problem.score.product else 2.5 * problem.score.floats_per_pair
        return each * share * pairs + self.least_cost(problem)

    def least_cost(self, problem: Problem) -> float:
        """What Python needs to plan and to visit strips, for each sequence or head with strips of its own.

        Nothing for few queries, of which the formula over everything would read all keys, and for a bias that learns,
        whose gradient it would compute as an autocast around the backward has it.
        """
        if problem.leaves_keys_out or learns(problem.bias):
            return 0.0
        sheets = 1 if problem.mask is None or _is_short(problem) else math.prod(problem.mask.mask.leading)
        return _OVERHEAD + _OVERHEAD_EACH * (sheets - 1)

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a value of the call is written in Python."""
        return unwritable(problem) is not None

    def __call__(self, problem: Problem) -> Answer:
        """Compute, in float32 at least, whatever autocast would have."""
        return OPERATOR(problem) if is_traced(problem.q) else answer(problem, attend(problem, ENGINE))


class _Engine:
    name, keeps_rows = "strips", False

    def forward(self, call: Problem) -> Results:
        output, sums = rows_of(call, call.everything, call.q, call.k, call.v)
        return (output, None, None) if sums is None else (output, *sums)

    def backward(
        self, call: Problem, rows: Results | None, up: Tensor, up_total: Tensor | None, wanted: tuple[bool, ...]
    ) -> Gradients:
        return differentiate(call, call.everything, (call.q, call.k, call.v), up, up_total, wanted)


ENGINE = _Engine()


def rows_of(call: Problem, area: Part, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Sums | None]:
    """Compute the output, and the sums of the rows if they are wanted, of a part of a call strip by strip.

    Args:
        call: The call, of whose q, k and v only the sizes are read.
        area: The part, with one span of keys.
        q: Its queries (batch, heads, rows, dim).
        k: Its keys (batch, kv_heads, columns, key_dim).
        v: Its values (batch, kv_heads, columns, value_dim).
    """
    output = q.new_zeros(*q.shape[:3], v.shape[-1])
    sums = Sums(q.new_zeros(q.shape[:3]), q.new_zeros(q.shape[:3])) if call.wants_lse else None
    for strip in strips_of(call, area):
        place = _Place(call, area, strip)
        rows = formula(call, strip, place.rows(q), place.keys(k), place.keys(v))
        place.rows(output).copy_(rows.output)
        if sums is not None and rows.sums is not None:
            place.rows(sums.peak).copy_(rows.sums.peak)
            place.rows(sums.total).copy_(rows.sums.total)
    return output, sums


def differentiate(
    call: Problem,
    area: Part,
    qkv: tuple[Tensor, Tensor, Tensor],
    up: Tensor,
    up_total: Tensor | None,
    wanted: Sequence[bool],
    known: Sums | None = None,
) -> Gradients:
    """Give the gradients of a part's q, k and v and of what the call's parts hold (`held_by`), as far as wanted.

    With derivatives of their own where a graph is being made.

    Args:
        call: The call, with what its parts hold, of whose q, k and v only the sizes are read.
        area: The part, with one span of keys.
        qkv: Its queries, keys and values.
        up: The gradient of the output.
        up_total: The gradient of the totals, None where it is zero.
        wanted: Whose gradients are wanted.
        known: The sums of the rows over all keys, where the part has some of them (see `formula`).
    """
    q, k, v = qkv
    held, form = flatten(parts_of(call))
    twice = torch.is_grad_enabled()
    sums = [_zeros(x, twice) if want else None for x, want in zip((q, k, v, *held), wanted, strict=True)]
    dq, dk, dv, *rest = sums
    totals = unflatten(form, [x if total is None else total for x, total in zip(held, rest, strict=True)])
    for strip in strips_of(call, area):
        place = _Place(call, area, strip)
        own, form_here = flatten(_within(parts_of(call), strip))
        leaves = [place.rows(q), place.keys(k), place.keys(v), *own]
        # Views, because a tensor may be there twice.
        leaves = [
            x.view_as(x) if twice else x.detach().requires_grad_(want) for x, want in zip(leaves, wanted, strict=True)
        ]
        with torch.enable_grad():
            here = with_parts(call, unflatten(form_here, leaves[3:]))
            sums_here = None if known is None else Sums(*map(place.rows, known))
            rows = formula(here, strip, leaves[0], leaves[1], leaves[2], sums_here)
        if not rows.output.requires_grad:
            continue  # nothing that learns is in these rows
        outputs, ups = [rows.output], [place.rows(up)]
        if up_total is not None and rows.sums is not None and rows.sums.total.requires_grad:
            outputs, ups = [*outputs, rows.sums.total], [*ups, place.rows(up_total)]
        targets = [x for x, want in zip(leaves, wanted, strict=True) if want]
        shares = iter(torch.autograd.grad(outputs, targets, ups, allow_unused=True, create_graph=twice))
        found = [next(shares) if want else None for want in wanted]
        for total, share in zip((dq, dk, dv), found, strict=False):
            if total is not None and share is not None:
                place.add(total, share, to_keys=total is not dq)
        for total, share in zip(flatten(_within(totals, strip))[0], found[3:], strict=True):
            if share is not None:
                total.add_(share)
    return sums


def _zeros(x: Tensor, twice: bool) -> Tensor:
    """Zeros like a tensor, with a gradient of zeros where one may be asked for: there may be no strip."""
    zeros = torch.zeros_like(x)
    return zeros + x.flatten()[:0].sum() if twice else zeros


def strips_of(call: Problem, area: Part) -> Iterator[Part]:
    """Cut a part of a call into strips: rows of the same spans of keys, as many as a strip has room for."""
    mask, (columns,) = call.mask, area.spans
    if mask is None or _is_short(call) or not is_of_parts(call.normalizer):
        yield from _fitting(call, replace(area, is_masked=mask is not None))
        return
    cover = call.plan(_block_for(call))
    for b, h, runs in cover.slices():
        batch = _intersection(area.batch, slice(b, b + 1)) if cover.leading[0] > 1 else area.batch
        heads = _intersection(area.heads, slice(h, h + 1)) if cover.leading[1] > 1 else area.heads
        if batch.start < batch.stop and heads.start < heads.stop:
            for rows, spans, is_full in _bands(cover, runs, area.rows, columns):
                if not spans:  # of rows that see nothing, the sums are those of the sink
                    if not (call.sink is not None and call.wants_lse):
                        continue
                    spans = (slice(columns.start, columns.start + 1),)
                yield from _fitting(
                    call, replace(area, batch=batch, heads=heads, rows=rows, spans=spans, is_masked=not is_full)
                )


_Band = tuple[slice, tuple[slice, ...], bool]


def _bands(cover: Cover, runs: Runs, rows: slice, columns: slice) -> Iterator[_Band]:
    """Rows that follow one another and have the same spans, of which all pairs are visible or not."""
    block = cover.block
    starts = np.maximum(runs.start * block, columns.start).tolist()
    stops = np.minimum((runs.start + runs.length) * block, columns.stop).tolist()
    edges = np.searchsorted(runs.row, np.arange(-(-cover.queries // block) + 1)).tolist()
    last: _Band | None = None
    for at in range(rows.start // block, -(-rows.stop // block)):
        here, is_full = _intersection(rows, slice(at * block, (at + 1) * block)), True
        spans: list[slice] = []
        for run in range(edges[at], edges[at + 1]):
            if starts[run] < stops[run]:
                is_full = is_full and bool(runs.full[run])
                if spans and spans[-1].stop == starts[run]:
                    spans[-1] = slice(spans[-1].start, stops[run])
                else:
                    spans.append(slice(starts[run], stops[run]))
        if last is not None and (tuple(spans), is_full and bool(spans)) == last[1:]:
            last = slice(last[0].start, here.stop), *last[1:]
            continue
        if last is not None:
            yield last
        last = here, tuple(spans), is_full and bool(spans)
    if last is not None:
        yield last


def _fitting(call: Problem, part: Part) -> Iterator[Part]:
    """Cut sequences, then heads, then rows, so that a strip has at most `_SCORES` scores, and a row at least.

    A normalizer of one's own is given all sequences and heads: it cannot be told which they are.
    """
    room = max(1, _SCORES // (part.columns * call.score.floats_per_pair))
    rows, heads, batch = (one.stop - one.start for one in (part.rows, part.heads, part.batch))
    if not is_of_parts(call.normalizer):
        steps = [max(1, min(rows, room // (heads * batch))), heads, batch]
    else:
        steps = []
        for size in (rows, heads, batch):
            steps.append(max(1, min(size, room)))
            room //= steps[-1]
        steps[1] = _whole_groups(steps[1], call.heads // call.kv_heads)
    for batch in _steps(part.batch, steps[2]):
        for heads in _steps(part.heads, steps[1]):
            for rows in _steps(part.rows, steps[0]):
                yield replace(part, batch=batch, heads=heads, rows=rows)


def _whole_groups(heads: int, group: int) -> int:
    """The most heads, up to so many, that are whole groups or share a group evenly."""
    if heads >= group:
        return heads - heads % group
    return next(count for count in range(heads, 0, -1) if group % count == 0)


def _steps(part: slice, step: int) -> Iterator[slice]:
    return (slice(at, min(at + step, part.stop)) for at in range(part.start, part.stop, step))


def _intersection(one: slice, other: slice) -> slice:
    return slice(max(one.start, other.start), min(one.stop, other.stop))


def _block_for(call: Problem) -> int:
    """Rows of a block: fewer where there are few queries."""
    return BLOCK if call.queries > BLOCK // 2 else max(_LEAST_ROWS, 1 << (call.queries - 1).bit_length())


def _is_short(call: Problem) -> bool:
    """Whether all pairs are computed, because what the mask leaves out of a block would not be worth a plan."""
    return max(call.queries, call.keys) <= BLOCK


def _within(parts: tuple[object, ...], strip: Part) -> tuple[object, ...]:
    """The parts of a call with as much of their tensors of pairs as a strip needs, as views."""
    rows = slice(strip.rows.start + strip.q_offset, strip.rows.stop + strip.q_offset)
    columns = slice(strip.spans[0].start, strip.spans[-1].stop)
    return tuple(one.within(strip.batch, strip.heads, rows, columns) if isinstance(one, Bias) else one for one in parts)


class _Place:
    """Where a strip is in tensors of an area."""

    def __init__(self, call: Problem, area: Part, strip: Part) -> None:
        group = call.heads // call.kv_heads
        kv = slice(strip.heads.start // group, -(-strip.heads.stop // group))
        batch = _counted_from(strip.batch, area.batch.start)
        self._rows = batch, _counted_from(strip.heads, area.heads.start), _counted_from(strip.rows, area.rows.start)
        self._sides = batch, _counted_from(kv, area.heads.start // group)
        self._spans = tuple(_counted_from(span, area.spans[0].start) for span in strip.spans)

    def rows(self, x: Tensor) -> Tensor:
        """The strip's rows of a tensor (batch, heads, rows, …), as a view."""
        return x[self._rows]

    def keys(self, x: Tensor) -> Tensor:
        """The strip's keys of a tensor (batch, kv_heads, columns, …), a view where they are one span."""
        found = [x[*self._sides, span] for span in self._spans]
        return found[0] if len(found) == 1 else torch.cat(found, 2)

    def add(self, total: Tensor, share: Tensor, *, to_keys: bool) -> None:
        """Add a share of the strip's rows, or of its keys."""
        if not to_keys:
            self.rows(total).add_(share)
            return
        start = 0
        for span in self._spans:
            count = span.stop - span.start
            total[*self._sides, span].add_(share.narrow(2, start, count))
            start += count


def _counted_from(part: slice, start: int) -> slice:
    return slice(part.start - start, part.stop - start)


OPERATOR = Operator(
    "strips",
    lambda problem, known, _: attend(problem, ENGINE, known),
    output_dtype=lambda dtype, _: torch.promote_types(dtype, torch.float32),
)
