"""The second pass: whole rows of weights, a block at a time, from q and k or from weights that a model computed.

Rows exist only while they are folded into statistics: a block reuses the memory of the one before. A block that stays
in cache matters more than anything else here, since each is swept about a dozen times.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.masks.band import band_of
from regard.normalizers import Softmax
from regard.observe.plan import BLOCK_ELEMENTS, Block, Plan
from regard.observe.pooling import pool
from regard.problem import Problem

__all__ = ["Call", "Computed", "Given", "Rows"]


# A score below this hides its key, whatever number the model wrote for minus infinity (−1e9, finfo.min, −10,000).
HIDDEN = -9000.0

_TAME = 1e30  # scores of finite numbers, far from where float32 ends
_CEILINGS = 2**24  # bytes of tiles of the mask that are kept during a call


@dataclass(eq=False)
class Rows:
    """Some whole rows of weights: `rows` queries from row `start` on, columns from key `key_start` on.

    Valid until the next block is asked for.
    """

    sequence: int
    heads: slice
    start: int
    key_start: int
    weights: Float[Tensor, "heads rows columns"]
    scores: Float[Tensor, "heads rows columns"] | None = None
    leaks: bool = True  # rows may sum to less than 1: a sink takes a share, or a row sees nothing
    before_factor: Tensor | None = None  # the log-sum-exps, where weights are no longer those of the softmax
    scratch: Tensor | None = None  # as large as the weights, for products: fresh memory costs more than they do
    _strongest: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _summed: tuple[int, Tensor] | None = field(default=None, init=False)

    @property
    def rows(self) -> slice:
        """Where the rows stand among all queries of the record."""
        return slice(self.start, self.start + self.weights.shape[1])

    @property
    def columns(self) -> slice:
        """Where the columns stand among all keys; may end behind the last key, with weights of 0 there."""
        return slice(self.key_start, self.key_start + self.weights.shape[2])

    def strongest(self, count: int) -> tuple[Float[Tensor, "heads rows count"], Int[Tensor, "heads rows count"]]:
        """The largest weights of each row and their columns in this block, best first.

        The k largest of a row lie in the k segments with the largest maxima, so whole rows need not be searched.
        Segments are strided, which makes their maxima plain elementwise maxima of contiguous strips, and they are no
        fewer than 64 k, from where on `topk` keeps a heap instead of partitioning.
        """
        if count not in self._strongest:
            self._strongest[count] = _strongest(self.weights, count)
        return self._strongest[count]

    def dot_scores(self) -> Float[Tensor, "heads rows"]:
        """Σ_j p_ij s_ij of each row."""
        assert self.scores is not None
        return self.dot(self.scores)

    def dot(self, other: Float[Tensor, "#heads rows columns"]) -> Float[Tensor, "heads rows"]:
        """Σ_j p_ij x_ij of each row."""
        if self.scratch is None:
            product: Tensor = torch.linalg.vecdot(self.weights, other)
            return product
        return torch.mul(self.weights, other, out=self.scratch).sum(-1)

    def summed(self, height: int) -> Float[Tensor, "heads runs columns"]:
        """Sums over runs of `height` rows of the record, of which the first and the last here may be cut."""
        if self._summed is None or self._summed[0] != height:
            self._summed = height, pool(self.weights, 1, self.start % height, height, "sum")
        return self._summed[1]

    def pooled(
        self, tall: int, broad: int
    ) -> tuple[Float[Tensor, "heads row_bins column_bins"], Float[Tensor, "heads row_bins column_bins"]]:
        """Sums and maxima over bins of the record, of which the outer ones here may be cut: rows first, which runs
        along contiguous memory, then the few columns that are left.
        """
        sums = pool(self.summed(tall), 2, self.key_start % broad, broad, "sum")
        most = pool(self.weights, 1, self.start % tall, tall, "max")
        return sums, pool(most, 2, self.key_start % broad, broad, "max")

    def moment(self, first: int) -> Float[Tensor, "heads rows"]:
        """Σ_j p_ij |i − j| of each row, if the first stands at column `first`.

        Among the block's own positions pair by pair, elsewhere by products of matrix and vector. Σ p·i − Σ p·j would
        cancel in float32. Before and after the block's own positions the way to a key is that to the block's edge and
        the rest, neither of them negative: nothing cancels.
        """
        weights = self.weights
        height, columns = weights.shape[1:]
        last = first + height - 1
        i = torch.arange(first, first + height, dtype=weights.dtype, device=weights.device)
        j = torch.arange(columns, dtype=weights.dtype, device=weights.device)
        own = slice(*(min(max(at, 0), columns) for at in (first, last + 1)))
        moment: Tensor = torch.linalg.vecdot(weights[..., own], (i[:, None] - j[own]).abs_())
        for far, edge, sign in ((slice(0, own.start), first, 1), (slice(own.stop, columns), last, -1)):
            if far.start < far.stop:
                part = weights[..., far]
                moment += part @ (sign * (edge - j[far])) + sign * (i - edge) * part.sum(-1)
        return moment

    @property
    def mass(self) -> Float[Tensor, "heads rows"]:
        """The sum of each row."""
        return self.weights.sum(-1)

    @property
    def column_sums(self) -> Float[Tensor, "heads columns"]:
        """The sum of each column of the block; a sweep less where runs of rows have been summed."""
        return (self.weights if self._summed is None else self._summed[1]).sum(1)

    @property
    def largest(self) -> Float[Tensor, "heads rows"]:
        """The largest weight of each row."""
        if self._strongest:
            return next(iter(self._strongest.values()))[0][..., 0]
        return self.weights.amax(-1)

    @cached_property
    def lse(self) -> Float[Tensor, "heads rows"] | None:
        """ln z of each row, a sink's share in it, in float64; +inf where nothing has weight, None without a softmax."""
        if self.before_factor is not None or self.scores is None:
            return self.before_factor
        return _normalizer_of(self.weights, self.scores, next(iter(self._strongest.values()), None))

    @cached_property
    def entropy(self) -> Float[Tensor, "heads rows"]:
        """−Σ p ln p of each row, as ln(z)·Σp − Σ p·s where the scores s are at hand: no logarithm of a matrix."""
        if self.scores is None:
            unscored: Tensor = torch.special.entr(self.weights).sum(-1)
            return unscored
        lse = _log_sum_exp(self.weights, self.scores, next(iter(self._strongest.values()), None))
        mass = self.mass if self.leaks else 1.0
        entropy = lse * mass - self.dot_scores()
        return entropy.clamp_min(0.0)


def _strongest(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    heads, rows, columns = weights.shape
    strips = 1
    while columns % (2 * strips) == 0 and columns // (2 * strips) >= 64 * count:
        strips *= 2
    if strips == 1:
        best = weights.topk(min(count, columns), -1)
        return best.values, best.indices
    length = columns // strips
    segments = weights.view(heads, rows, strips, length).amax(2).topk(count, -1).indices
    offsets = torch.arange(0, columns, length, device=segments.device)
    candidates = (segments.unsqueeze(-2) + offsets[:, None]).flatten(-2)
    best = weights.gather(-1, candidates).topk(count, -1)
    return best.values, candidates.gather(-1, best.indices)


def _log_sum_exp(weights: Tensor, scores: Tensor, strongest: tuple[Tensor, Tensor] | None) -> Tensor:
    """ln z of each row, from its largest weight p = exp(s − ln z): no second pass over all exponentials."""
    if strongest is None:
        best, at = weights.max(-1)
    else:
        best, at = strongest[0][..., 0], strongest[1][..., 0]
    best = best.clamp_min(torch.finfo(best.dtype).tiny)
    return scores.gather(-1, at[..., None]).squeeze(-1) - best.log()


def _normalizer_of(weights: Tensor, scores: Tensor, strongest: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """What to subtract from a score so that its exponential is the weight: p = exp(s − lse)."""
    best, at = weights.max(-1) if strongest is None else (strongest[0][..., 0], strongest[1][..., 0])
    score = scores.gather(-1, at[..., None]).squeeze(-1)
    wide = best.dtype if best.device.type == "mps" else torch.float64
    return score.to(wide) - best.to(wide).log()  # +inf where nothing has weight, as no score is infinite here


class Call(Protocol):
    """One attention call, ready for the second pass."""

    batch: int
    heads: int
    queries: int
    keys: int

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[Rows]]]:
        """The rows of each sequence and some heads, to be gone through one after the other or side by side.

        The first row is row `start` of the record, blocks end at multiples of `align` rows.
        """
        ...

    def blocks(self, start: int, align: int) -> Iterator[Rows]:
        """Go through all rows."""
        return (rows for portion in self.portions(start, align) for rows in portion())

    def row(self, at: int) -> Bool[Tensor, "#batch #heads keys"]:
        """Which keys one query sees."""
        ...


@dataclass(eq=False)
class Computed(Call):
    """A call of which q and k are known: weights are computed from them, block by block, and never kept."""

    problem: Problem

    def __post_init__(self) -> None:
        self.problem = self.problem.prepared()
        self.batch, self.heads = self.problem.batch, self.problem.heads
        self.queries, self.keys = self.problem.queries, self.problem.keys

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[Rows]]]:
        """The rows of each sequence and each group of heads that shares its keys."""
        problem = self.problem
        group = problem.heads // problem.kv_heads
        plan = Plan.of(problem.mask, problem.queries, problem.keys, start, align)
        fit = BLOCK_ELEMENTS // (max(plan.unit, problem.queries) * plan.padded)  # heads whose rows are one block
        ceilings: dict[Any, Tensor] = {}  # kept for as long as the portions are
        return [
            partial(self._portion, plan, ceilings, sequence, heads, start)
            for sequence in range(problem.batch)
            for heads in _together(problem.heads, group, fit)
        ]

    def _portion(
        self, plan: Plan, ceilings: dict[Any, Tensor], sequence: int, heads: slice, start: int
    ) -> Iterator[Rows]:
        problem = self.problem
        wide = torch.promote_types(problem.q.dtype, torch.float32)
        q = problem.q[sequence, heads].to(wide)
        q = q * problem.scale if problem.score.product else q
        k = torch.zeros(plan.padded, problem.k.shape[-1], dtype=wide, device=q.device)
        k[: problem.keys] = problem.k[sequence, heads.start // (problem.heads // problem.kv_heads)]
        room = [torch.empty(0, dtype=wide, device=q.device)] * 3
        for block in plan.blocks(sequence, heads):
            shape = (len(q), block.bottom - block.top, block.right - block.left)
            size = math.prod(shape)
            if size > len(room[0]):
                room = [one.new_empty(size) for one in room]
            scores, weights, scratch = (one[:size].view(shape) for one in room)
            self._score(q[:, block.top : block.bottom], k[block.left : block.right], heads, block, scores)
            rows = self._rows(sequence, heads, block, scores, weights, start, ceilings)
            rows.scratch = scratch
            yield rows

    def row(self, at: int) -> Bool[Tensor, "#batch #heads keys"]:
        """What mask and bias leave of one row."""
        problem = self.problem
        visible = torch.ones(1, 1, problem.keys, dtype=torch.bool, device=problem.q.device)
        if problem.mask is not None:
            row, columns = slice(at, at + 1), slice(0, problem.keys)
            sizes = {"batch": problem.batch, "heads": problem.heads}
            visible = problem.mask.tile(row, columns, **sizes, device=visible.device)[:, :, 0]
        if problem.bias is not None:
            bias = problem.bias_tile(rows=slice(at, at + 1))
            visible = visible if bias is None else visible & (bias[:, :, 0] > HIDDEN)
        return visible

    def _score(self, q: Tensor, k: Tensor, heads: slice, block: Block, out: Tensor) -> None:
        """Write the scaled scores of a block, which shares its keys between heads, to `out`."""
        problem = self.problem
        if problem.score.product:
            here = q.flatten(0, 1)  # scaled already
            torch.mm(here, k.T, out=out.view(len(here), len(k)))
            return
        inside = min(block.right, problem.keys) - block.left
        i, j = problem.i(slice(block.top, block.bottom)), problem.j(slice(block.left, block.left + inside))
        with torch.no_grad():
            tile = problem.score.of_heads(heads).tile(q[None], k[:inside].expand(1, len(q), -1, -1), i, j)
        torch.mul(tile[0], problem.scale, out=out.view(*q.shape[:2], len(k))[..., :inside])

    def _rows(
        self,
        sequence: int,
        heads: slice,
        block: Block,
        scores: Tensor,
        weights: Tensor,
        start: int,
        ceilings: dict[Any, Tensor],
    ) -> Rows:
        """One block of scores made weights: softcap, bias, mask, softmax, sink — in this order, in place."""
        problem = self.problem
        if (cap := problem.score.softcap) is not None:
            scores.div_(cap).tanh_().mul_(cap)
        lowest = torch.finfo(scores.dtype).min / 4
        inside = min(block.right, problem.keys) - block.left
        if problem.bias is not None:
            # Adding to the most negative number would overflow; whatever is hidden stays at `lowest`.
            rows, columns = slice(block.top, block.bottom), slice(block.left, block.left + inside)
            bias = problem.bias.tile(slice(sequence, sequence + 1), heads, problem.i(rows), problem.j(columns))[0]
            scores[..., :inside].add_(bias.to(scores.dtype)).clamp_min_(lowest)
        if inside < scores.shape[2]:
            scores[..., inside:] = lowest
        if block.cut is not None and problem.mask is not None:
            self._hide(scores, sequence, heads, block, ceilings)
        if not isinstance(problem.normalizer, Softmax):
            # Without a log-sum-exp the entropy is computed from the weights alone.
            weights.copy_(problem.normalizer.weights(scores, scores > lowest)[0])
            return self._rows_of(sequence, heads, block, weights, None, start, leaks=True)
        torch.softmax(scores, -1, out=weights)
        sink = problem.sink
        if sink is not None:
            lse = _log_sum_exp(weights, scores, None)
            weights.mul_(torch.sigmoid(lse - sink[heads, None].to(lse.dtype))[..., None])
        blind = problem.bias is not None or not block.sure
        if blind:
            # A mask hides for certain; in a bias, minus infinity is whatever number the model wrote for it.
            hidden = scores.amax(-1, keepdim=True) <= (lowest if problem.bias is None else HIDDEN)
            blind = bool(hidden.any())
            if blind:
                weights.masked_fill_(hidden, 0.0)
        return self._rows_of(sequence, heads, block, weights, scores, start, leaks=blind or sink is not None)

    def _hide(self, scores: Tensor, sequence: int, heads: slice, block: Block, ceilings: dict[Any, Tensor]) -> None:
        """Lower the scores of hidden pairs to a quarter of the most negative number.

        By a minimum where no score can be lower or NaN: filling by a boolean mask took forty times as long. What scores
        may be at most, infinity where a pair is seen, is kept for other heads if the mask is a band, the same for all.
        """
        assert block.cut is not None
        assert self.problem.mask is not None
        where = slice(block.cut.start, min(block.cut.stop, self.problem.keys))
        part = scores[..., where.start - block.left : where.stop - block.left]
        lowest = torch.finfo(scores.dtype).min / 4
        if not self._is_tame:
            part.masked_fill_(~self._visible(sequence, heads, block, where), lowest)
            return
        key = block.top, block.bottom, where.start, where.stop
        ceiling = ceilings.get(key)
        if ceiling is None:
            visible = self._visible(sequence, heads, block, where)
            shared = band_of(self.problem.mask.mask) is not None
            visible = visible[:1] if shared else visible
            ceiling = visible.to(scores.dtype).sub_(0.5).mul_(torch.inf).clamp_min_(lowest)
            if shared and sum(one.nbytes for one in list(ceilings.values())) < _CEILINGS:
                ceilings[key] = ceiling
        torch.minimum(part, ceiling, out=part)

    def _visible(self, sequence: int, heads: slice, block: Block, where: slice) -> Bool[Tensor, "#heads rows columns"]:
        problem = self.problem
        assert problem.mask is not None
        sizes = {"batch": slice(sequence, sequence + 1), "heads": heads}
        return problem.mask.tile(slice(block.top, block.bottom), where, **sizes, device=problem.q.device)[0]

    @cached_property
    def _is_tame(self) -> bool:
        """No score is NaN or nearly as low as numbers go."""
        problem = self.problem
        if not problem.score.product or problem.bias is not None or not (problem.q.numel() and problem.k.numel()):
            return False
        q, k = (max(-float(low), float(high)) for low, high in (problem.q.aminmax(), problem.k.aminmax()))
        return abs(problem.scale) * q * k * problem.q.shape[-1] < _TAME

    def _rows_of(
        self, sequence: int, heads: slice, block: Block, weights: Tensor, scores: Tensor | None, start: int, leaks: bool
    ) -> Rows:
        """The rows, multiplied by the factor where there is one."""
        before = None
        if (factor := self.problem.factor) is not None:
            before = None if scores is None else _normalizer_of(weights, scores)
            inside = min(block.right, self.problem.keys) - block.left
            i = self.problem.i(slice(block.top, block.bottom))
            j = self.problem.j(slice(block.left, block.left + inside))
            weights[..., :inside].mul_(factor.tile(slice(sequence, sequence + 1), heads, i, j)[0].to(weights.dtype))
            scores, leaks = None, True
        return Rows(sequence, heads, start + block.top, block.left, weights, scores, leaks, before)


@dataclass(eq=False)
class Given(Call):
    """A call of which the model itself computed the weights."""

    weights: Float[Tensor, "batch heads queries keys"]

    def __post_init__(self) -> None:
        self.batch, self.heads, self.queries, self.keys = self.weights.shape

    def row(self, at: int) -> Bool[Tensor, "#batch #heads keys"]:
        """What has any weight in one row: a hidden key has none."""
        return self.weights[:, :, at] > 0

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[Rows]]]:
        """The rows of each sequence and head."""
        plan = Plan.of(None, self.queries, self.keys, start, align)
        return [
            partial(self._portion, plan, sequence, head, start)
            for sequence in range(self.batch)
            for head in range(self.heads)
        ]

    def _portion(self, plan: Plan, sequence: int, head: int, start: int) -> Iterator[Rows]:
        bounds = [(block.top, block.bottom) for block in plan.blocks(0, slice(0, 1))]
        tallest = max(bottom - top for top, bottom in bounds)
        wide = torch.promote_types(self.weights.dtype, torch.float32)
        buffer = torch.zeros(1, tallest, plan.padded, dtype=wide, device=self.weights.device)
        for top, bottom in bounds:
            weights = buffer[:, : bottom - top]
            weights[0, :, : self.keys] = self.weights[sequence, head, top:bottom]
            yield Rows(sequence, slice(head, head + 1), start + top, 0, weights)


def _together(heads: int, group: int, fit: int) -> Iterator[slice]:
    """Heads that share their keys, as many at once as fit."""
    step = max(1, min(group, fit))
    for first in range(0, heads, group):
        for head in range(first, first + group, step):
            yield slice(head, min(head + step, first + group))
