"""The second pass: compute whole rows of weights in blocks, from q and k or from weights that a model has computed.

Rows exist only while statistics process them: each block reuses the memory of the previous one. Blocks are small
enough for the cache, because each is passed over about a dozen times.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.masks.causal_and_window import band_of
from regard.normalizers import Softmax
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import BLOCK_ELEMENTS, Block, Plan, RowBlock, log_sum_exp, normalizer_of
from regard.part import Part
from regard.problem import Problem

__all__ = ["HIDDEN", "CallFromQK", "CallFromWeights", "place_of", "visible_pairs"]

# A score below this hides its key, for any number that models use for minus infinity (−1e9, finfo.min, −10,000).
HIDDEN = -9000.0

_TAME = 1e30  # finite scores, far from the range limit of float32
_CEILINGS = 2**24  # maximum bytes of cached mask tiles during a call


def visible_pairs(problem: Problem, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
    """Return which pairs the mask and the bias of a call leave visible."""
    part, device = replace(problem.everything, rows=rows, spans=(columns,)), problem.q.device
    visible = part.visible(problem.mask, device)
    if visible is None:
        visible = torch.ones(1, 1, 1, part.columns, dtype=torch.bool, device=device)
    return visible if problem.bias is None else visible & (part.numbers(problem.bias, device) > HIDDEN)


def place_of(problem: Problem, *, is_bound: bool) -> int | None:
    """Return where the last query of a call stands, if the caller bound its mask to a place."""
    start, last = problem.q_offset, problem.q_offset + problem.queries - 1
    return last if last >= 0 and (is_bound or start != problem.keys - problem.queries) else None


@dataclass(eq=False)
class CallFromQK(WatchedCall):
    """A call with known q and k: weights are computed from these in blocks, and not stored.

    `is_bound`: the caller has bound the mask to a place, at which its queries stand.
    """

    problem: Problem = field(kw_only=False)
    is_bound: bool = False

    def __post_init__(self) -> None:
        self.marks = self.problem.k if self.marks is None else self.marks
        self.problem = self.problem.with_wide_parts().prepared()
        self.batch, self.heads = self.problem.batch, self.problem.heads
        self.queries, self.keys = self.problem.queries, self.problem.keys

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return the rows of each sequence and each group of heads that shares its keys."""
        problem = self.problem
        group = problem.heads // problem.kv_heads
        plan = Plan.of(problem.mask, problem.queries, problem.keys, start, align, self.chosen_rows)
        fit = BLOCK_ELEMENTS // (max(plan.unit, problem.queries) * plan.padded)  # heads whose rows form one block
        ceilings: dict[Any, Tensor] = {}  # kept for as long as the portions are
        if self.head_numbers is not None:
            return [
                partial(
                    self._of_chosen,
                    partial(self._portion, plan, ceilings, batch_index, slice(head, head + 1), start),
                    at,
                )
                for batch_index in range(problem.batch)
                for at, head in enumerate(self.head_numbers)
            ]
        return [
            partial(self._portion, plan, ceilings, batch_index, heads, start)
            for batch_index in range(problem.batch)
            for heads in _together(problem.heads, group, fit)
        ]

    def _portion(
        self, plan: Plan, ceilings: dict[Any, Tensor], batch_index: int, heads: slice, start: int
    ) -> Iterator[RowBlock]:
        problem = self.problem
        wide = torch.promote_types(problem.q.dtype, torch.float32)
        q = problem.q[batch_index, heads].to(wide)
        q = q * problem.scale if problem.score.product else q
        k = torch.zeros(plan.padded, problem.k.shape[-1], dtype=wide, device=q.device)
        k[: problem.keys] = problem.k[batch_index, heads.start // (problem.heads // problem.kv_heads)]
        room = [torch.empty(0, dtype=wide, device=q.device)] * 3
        for block in plan.blocks(batch_index, heads):
            shape = (len(q), block.bottom - block.top, block.right - block.left)
            size = math.prod(shape)
            if size > len(room[0]):
                room = [one.new_empty(size) for one in room]
            scores, weights, scratch = (one[:size].view(shape) for one in room)
            self._score(q[:, block.top : block.bottom], k[block.left : block.right], batch_index, heads, block, scores)
            rows = self._rows(batch_index, heads, block, scores, weights, start, ceilings)
            rows.scratch = scratch
            yield rows

    def gathered(self) -> Problem:
        """Return the call."""
        return self.problem

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return which pairs mask and bias leave visible."""
        return visible_pairs(self.problem, rows, columns)

    @property
    def place(self) -> int | None:
        """Where the last query stands, if the caller bound its mask to a place."""
        return place_of(self.problem, is_bound=self.is_bound)

    @property
    def device(self) -> torch.device:
        """Where q and k are."""
        return self.problem.q.device

    @property
    def nbytes(self) -> int:
        """The bytes of q and k."""
        return self.problem.q.nbytes + self.problem.k.nbytes

    @cached_property
    def is_tame(self) -> bool:
        """Whether no score is NaN or nearly as low as the most negative number."""
        problem = self.problem
        if not problem.score.product or problem.bias is not None or not (problem.q.numel() and problem.k.numel()):
            return False
        q, k = (max(-float(low), float(high)) for low, high in (problem.q.aminmax(), problem.k.aminmax()))
        return abs(problem.scale) * q * k * problem.q.shape[-1] < _TAME

    def _score(self, q: Tensor, k: Tensor, batch_index: int, heads: slice, block: Block, out: Tensor) -> None:
        """Write the scaled scores of a block with keys shared between heads to `out`."""
        problem = self.problem
        if problem.score.product:
            here = q.flatten(0, 1)  # scaled already
            torch.mm(here, k.T, out=out.view(len(here), len(k)))
            return
        inside = min(block.right, problem.keys) - block.left
        rows, columns = slice(block.top, block.bottom), slice(block.left, block.left + inside)
        with torch.no_grad():
            keys, batch = k[:inside].expand(1, len(q), -1, -1), slice(batch_index, batch_index + 1)
            part = Part(batch, heads, rows, (columns,), problem.q_offset, (problem.batch, problem.heads))
            tile = part.scores(problem.score, problem.scale, q[None], keys)
        out.view(*q.shape[:2], len(k))[..., :inside].copy_(tile[0])

    def _rows(
        self,
        batch_index: int,
        heads: slice,
        block: Block,
        scores: Tensor,
        weights: Tensor,
        start: int,
        ceilings: dict[Any, Tensor],
    ) -> RowBlock:
        """Convert one block of scores to weights in place: softcap, bias, mask, softmax, sink, in this order."""
        problem = self.problem
        if (cap := problem.score.softcap) is not None:
            scores.div_(cap).tanh_().mul_(cap)
        lowest = torch.finfo(scores.dtype).min / 4
        inside = min(block.right, problem.keys) - block.left
        if problem.bias is not None:
            # Adding to the most negative number would overflow; whatever is hidden stays at `lowest`.
            rows, columns = slice(block.top, block.bottom), slice(block.left, block.left + inside)
            bias = problem.bias.tile(slice(batch_index, batch_index + 1), heads, problem.i(rows), problem.j(columns))[0]
            scores[..., :inside].add_(bias.to(scores.dtype)).clamp_min_(lowest)
        if inside < scores.shape[2]:
            scores[..., inside:] = lowest
        if block.cut is not None and problem.mask is not None:
            self._hide(scores, batch_index, heads, block, ceilings)
        if not isinstance(problem.normalizer, Softmax):
            # Without a log-sum-exp the entropy is computed from the weights alone.
            weights.copy_(problem.normalizer.weights(scores, scores > lowest)[0])
            return self._rows_of(batch_index, heads, block, weights, None, start, leaks=True)
        torch.softmax(scores, -1, out=weights)
        sink = problem.sink
        if sink is not None:
            lse = log_sum_exp(weights, scores, None)
            weights.mul_(torch.sigmoid(lse - sink[heads, None].to(lse.dtype))[..., None])
        blind = problem.bias is not None or not block.sure
        if blind:
            # A mask hides for certain; in a bias, minus infinity is whatever number the model wrote for it.
            hidden = scores.amax(-1, keepdim=True) <= (lowest if problem.bias is None else HIDDEN)
            blind = bool(hidden.any())
            if blind:
                weights.masked_fill_(hidden, 0.0)
        return self._rows_of(batch_index, heads, block, weights, scores, start, leaks=blind or sink is not None)

    def _hide(self, scores: Tensor, batch_index: int, heads: slice, block: Block, ceilings: dict[Any, Tensor]) -> None:
        """Set the scores of hidden pairs to a quarter of the most negative number.

        By a minimum where no score can be lower or NaN: filling by a boolean mask took forty times as long. What
        scores may be at most, infinity where a pair is seen, is kept for other heads if the mask is a band, the same
        for all.
        """
        assert block.cut is not None
        assert self.problem.mask is not None
        where = slice(block.cut.start, min(block.cut.stop, self.problem.keys))
        part = scores[..., where.start - block.left : where.stop - block.left]
        lowest = torch.finfo(scores.dtype).min / 4
        if not self.is_tame:
            part.masked_fill_(~self._visible(batch_index, heads, block, where), lowest)
            return
        key = block.top, block.bottom, where.start, where.stop
        ceiling = ceilings.get(key)
        if ceiling is None:
            visible = self._visible(batch_index, heads, block, where)
            shared = band_of(self.problem.mask.mask) is not None
            visible = visible[:1] if shared else visible
            ceiling = visible.to(scores.dtype).sub_(0.5).mul_(torch.inf).clamp_min_(lowest)
            if shared and sum(one.nbytes for one in list(ceilings.values())) < _CEILINGS:
                ceilings[key] = ceiling
        torch.minimum(part, ceiling, out=part)

    def _visible(
        self, batch_index: int, heads: slice, block: Block, where: slice
    ) -> Bool[Tensor, "#heads rows columns"]:
        problem = self.problem
        assert problem.mask is not None
        sizes = {"batch": slice(batch_index, batch_index + 1), "heads": heads}
        return problem.mask.tile(slice(block.top, block.bottom), where, **sizes, device=problem.q.device)[0]

    def _rows_of(
        self,
        batch_index: int,
        heads: slice,
        block: Block,
        weights: Tensor,
        scores: Tensor | None,
        start: int,
        leaks: bool,
    ) -> RowBlock:
        """Return the rows, multiplied by the weight factor if there is one."""
        before = None
        if (weight_factor := self.problem.weight_factor) is not None:
            before = None if scores is None else normalizer_of(weights, scores)
            inside = min(block.right, self.problem.keys) - block.left
            i = self.problem.i(slice(block.top, block.bottom))
            j = self.problem.j(slice(block.left, block.left + inside))
            weights[..., :inside].mul_(
                weight_factor.tile(slice(batch_index, batch_index + 1), heads, i, j)[0].to(weights.dtype)
            )
            scores, leaks = None, True
        return RowBlock(batch_index, heads, start + block.top, block.left, weights, scores, leaks, before)


@dataclass(eq=False)
class CallFromWeights(WatchedCall):
    """A call whose weights were computed by the model itself."""

    weights: Float[Tensor, "batch heads queries keys"] = field(kw_only=False)

    def __post_init__(self) -> None:
        self.batch, self.heads, self.queries, self.keys = self.weights.shape

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return the pairs with nonzero weight; hidden keys have none."""
        return self.weights[:, :, rows, columns] > 0

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.device

    @property
    def nbytes(self) -> int:
        """The bytes of the weights."""
        return self.weights.nbytes

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return the rows of each sequence and head."""
        plan = Plan.of(None, self.queries, self.keys, start, align, self.chosen_rows)
        heads = range(self.heads) if self.head_numbers is None else self.head_numbers
        return [
            partial(self._of_chosen, partial(self._portion, plan, batch_index, head, start), at)
            for batch_index in range(self.batch)
            for at, head in enumerate(heads)
        ]

    def _portion(self, plan: Plan, batch_index: int, head: int, start: int) -> Iterator[RowBlock]:
        bounds = [(block.top, block.bottom) for block in plan.blocks(0, slice(0, 1))]
        tallest = max((bottom - top for top, bottom in bounds), default=0)
        wide = torch.promote_types(self.weights.dtype, torch.float32)
        buffer = torch.zeros(1, tallest, plan.padded, dtype=wide, device=self.weights.device)
        for top, bottom in bounds:
            weights = buffer[:, : bottom - top]
            weights[0, :, : self.keys] = self.weights[batch_index, head, top:bottom]
            yield RowBlock(batch_index, slice(head, head + 1), start + top, 0, weights)


def _together(heads: int, group: int, fit: int) -> Iterator[slice]:
    """Yield groups of heads that share their keys, as many as fit in one block."""
    step = max(1, min(group, fit))
    for first in range(0, heads, group):
        for head in range(first, first + group, step):
            yield slice(head, min(head + step, first + group))
