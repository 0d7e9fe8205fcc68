"""The second pass: whole rows of weights, a block at a time, from q and k or from weights that a model computed.

Rows exist only while they are folded into statistics: a block reuses the memory of the one before. A block that stays
in cache matters more than anything else here, since each is swept about a dozen times.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.masks import EMPTY, FULL
from regard.masks.base import edges
from regard.problem import Problem

__all__ = ["Call", "Computed", "Given", "Rows"]

COLUMN_BLOCK = 128  # columns of a block are a multiple of this, the rest has weight 0
_ELEMENTS = 2**19  # of a block: 2 MiB of scores and 2 MiB of weights in float32
_STRIPS = 16

# A score below this hides its key, whatever number the model wrote for minus infinity (−1e9, finfo.min, −10,000).
HIDDEN = -9000.0


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

        The k largest of a row lie in the k segments with the largest maxima, so whole rows need not be sorted.
        Segments are strided, which makes their maxima plain elementwise maxima of contiguous strips.
        """
        heads, rows, columns = self.weights.shape
        length = columns // _STRIPS
        if columns < 512 or length < count:
            best = self.weights.topk(min(count, columns), -1)
            return best.values, best.indices
        segments = self.weights.view(heads, rows, _STRIPS, length).amax(2).topk(count, -1).indices
        strips = torch.arange(0, columns, length, device=segments.device)
        candidates = (segments.unsqueeze(-2) + strips[:, None]).flatten(-2)
        best = self.weights.gather(-1, candidates).topk(count, -1)
        return best.values, candidates.gather(-1, best.indices)

    @cached_property
    def entropy(self) -> Float[Tensor, "heads rows"]:
        """−Σ p ln p of each row, as ln(z)·Σp − Σ p·s where the scores s are at hand: no logarithm of a matrix."""
        if self.scores is None:
            unscored: Tensor = torch.special.entr(self.weights).sum(-1)
            return unscored
        best, at = self.weights.max(-1, keepdim=True)
        lse = self.scores.gather(-1, at) - best.clamp_min(torch.finfo(best.dtype).tiny).log()
        mass = self.weights.sum(-1)
        entropy: Tensor = lse.squeeze(-1) * mass - torch.linalg.vecdot(self.weights, self.scores)
        return entropy.clamp_min(0.0)


class Call(Protocol):
    """One attention call, ready for the second pass."""

    batch: int
    heads: int
    queries: int
    keys: int

    def blocks(self, start: int, align: int) -> Iterator[Rows]:
        """Go through all rows; the first is row `start` of the record, blocks end at multiples of `align` rows."""
        ...

    def last_row(self) -> Bool[Tensor, "#batch #heads keys"]:
        """Which keys the last query sees."""
        ...


@dataclass(eq=False)
class Computed:
    """A call of which q and k are known: weights are computed from them, block by block, and never kept."""

    problem: Problem

    def __post_init__(self) -> None:
        self.batch, self.heads = self.problem.batch, self.problem.heads
        self.queries, self.keys = self.problem.queries, self.problem.keys

    def blocks(self, start: int, align: int) -> Iterator[Rows]:
        """Go through the rows of each sequence and each group of heads that shares its keys."""
        problem = self.problem
        group = problem.heads // problem.kv_heads
        wide = torch.promote_types(problem.q.dtype, torch.float32)
        padded = -(-problem.keys // COLUMN_BLOCK) * COLUMN_BLOCK
        plan = _Plan.of(problem, _rows_at_once(group, padded, align), start, align)
        scores = torch.empty(group * plan.tallest * padded, dtype=wide, device=problem.q.device)
        buffers = scores, torch.empty_like(scores)
        for sequence in range(problem.batch):
            for kv_head in range(problem.kv_heads):
                heads = slice(kv_head * group, (kv_head + 1) * group)
                q = problem.q[sequence, heads].to(wide) * problem.scale
                k = torch.zeros(padded, q.shape[-1], dtype=wide, device=q.device)
                k[: problem.keys] = problem.k[sequence, kv_head]
                for top, bottom in plan.rows(sequence, heads):
                    left, right, cut = plan.columns(sequence, heads, top)
                    tile = _Tile(sequence, heads, slice(top, bottom), slice(left, right))
                    yield self._rows(tile, q[:, top:bottom], k[left:right], cut, buffers, start)

    def last_row(self) -> Bool[Tensor, "#batch #heads keys"]:
        """What mask and bias leave of the last row."""
        problem = self.problem
        visible = torch.ones(1, 1, problem.keys, dtype=torch.bool, device=problem.q.device)
        if problem.mask is not None:
            last = slice(problem.queries - 1, problem.queries)
            columns = slice(0, problem.keys)
            sizes = {"batch": problem.batch, "heads": problem.heads}
            visible = problem.mask.tile(last, columns, **sizes, device=visible.device)[:, :, 0]
        if problem.bias is not None:
            visible = visible & (problem.bias[:, :, -1] > HIDDEN)
        return visible

    def _rows(
        self, tile: "_Tile", q: Tensor, k: Tensor, cut: slice | None, buffers: tuple[Tensor, Tensor], start: int
    ) -> Rows:
        """One block: scores, softcap, bias, mask, softmax, sink — in this order, in place."""
        problem, shape = self.problem, (q.shape[0], q.shape[1], k.shape[0])
        scores, weights = (buffer[: shape[0] * shape[1] * shape[2]].view(shape) for buffer in buffers)
        torch.mm(q.reshape(-1, q.shape[-1]), k.T, out=scores.view(-1, shape[2]))
        if (cap := problem.score.softcap) is not None:
            scores.div_(cap).tanh_().mul_(cap)
        lowest = torch.finfo(scores.dtype).min / 4
        inside = min(tile.columns.stop, problem.keys) - tile.columns.start
        if problem.bias is not None:
            bias = _part(problem.bias, tile, inside)
            # Adding to the most negative number would overflow; whatever is hidden stays at `lowest`.
            scores[..., :inside].add_(bias.to(scores.dtype)).clamp_min_(lowest)
        scores[..., inside:] = lowest
        if cut is not None and problem.mask is not None:
            where = slice(cut.start, min(cut.stop, problem.keys))
            visible = problem.mask.tile(
                tile.rows,
                where,
                batch=slice(tile.sequence, tile.sequence + 1),
                heads=tile.heads,
                device=scores.device,
            )[0]
            part = scores[..., where.start - tile.columns.start : where.stop - tile.columns.start]
            part.masked_fill_(~visible, lowest)
        torch.softmax(scores, -1, out=weights)
        if problem.normalizer.sink is not None:
            _give_to_sink(weights, scores, problem.normalizer.sink[tile.heads])
        if problem.mask is not None or problem.bias is not None:
            blind = scores.amax(-1, keepdim=True) <= HIDDEN
            if bool(blind.any()):
                weights.masked_fill_(blind, 0.0)
        return Rows(tile.sequence, tile.heads, start + tile.rows.start, tile.columns.start, weights, scores)


@dataclass(frozen=True)
class _Tile:
    sequence: int
    heads: slice
    rows: slice
    columns: slice


@dataclass(eq=False)
class Given:
    """A call of which the model itself computed the weights; `blind` marks rows in which everything was hidden."""

    weights: Float[Tensor, "batch heads queries keys"]
    blind: Bool[Tensor, "batch #heads queries"] | None = None

    def __post_init__(self) -> None:
        self.batch, self.heads, self.queries, self.keys = self.weights.shape

    def last_row(self) -> Bool[Tensor, "#batch #heads keys"]:
        """What has any weight in the last row: a hidden key has none."""
        return self.weights[:, :, -1] > 0

    def blocks(self, start: int, align: int) -> Iterator[Rows]:
        """Go through the rows of each sequence and head."""
        wide = torch.promote_types(self.weights.dtype, torch.float32)
        padded = -(-self.keys // COLUMN_BLOCK) * COLUMN_BLOCK
        step = _rows_at_once(1, padded, align)
        buffer = torch.zeros(1, step + align, padded, dtype=wide, device=self.weights.device)
        bounds = _row_bounds(self.queries, step, start, align)
        for sequence in range(self.batch):
            for head in range(self.heads):
                for top, bottom in bounds:
                    weights = buffer[:, : bottom - top]
                    weights[0, :, : self.keys] = self.weights[sequence, head, top:bottom]
                    if self.blind is not None:
                        row = self.blind[sequence, head if self.blind.shape[1] > 1 else 0, top:bottom]
                        weights.masked_fill_(row[None, :, None], 0.0)
                    yield Rows(sequence, slice(head, head + 1), start + top, 0, weights)


@dataclass(frozen=True, eq=False)
class _Plan:
    """Which columns each block of rows needs, and which of them the mask cuts through: read from `mask.blocks`."""

    bounds: list[tuple[int, int]]
    kinds: Int[Tensor, "batch heads rows columns"] | None
    padded: int

    @classmethod
    def of(cls, problem: Problem, step: int, start: int, align: int) -> "_Plan":
        bounds = _row_bounds(problem.queries, step, start, align)
        padded = -(-problem.keys // COLUMN_BLOCK) * COLUMN_BLOCK
        if problem.mask is None:
            return cls(bounds, None, padded)
        row_edges = torch.tensor([top for top, _ in bounds] + [problem.queries])
        return cls(bounds, problem.mask.blocks(row_edges, edges(problem.keys, COLUMN_BLOCK)), padded)

    @property
    def tallest(self) -> int:
        return max(bottom - top for top, bottom in self.bounds)

    def rows(self, sequence: int, heads: slice) -> Iterator[tuple[int, int]]:
        """All row blocks; those that see nothing too, for their zeros are part of the answer."""
        return iter(self.bounds)

    def columns(self, sequence: int, heads: slice, top: int) -> tuple[int, int, slice | None]:
        """First and last column that the rows from `top` on see, and the columns that need the mask's own answer."""
        if self.kinds is None:
            return 0, self.padded, None
        kinds = self.kinds[sequence if self.kinds.shape[0] > 1 else 0]
        kinds = kinds[heads] if kinds.shape[0] > 1 else kinds
        row = kinds[:, [first for first, _ in self.bounds].index(top)]
        seen = (row != EMPTY).any(0).nonzero().flatten().tolist() or [0]
        left, right = seen[0], seen[-1] + 1
        cut = ((row != FULL).any(0).nonzero().flatten()).tolist()
        cut = [block for block in cut if left <= block < right]
        where = slice(cut[0] * COLUMN_BLOCK, (cut[-1] + 1) * COLUMN_BLOCK) if cut else None
        return left * COLUMN_BLOCK, right * COLUMN_BLOCK, where


def _rows_at_once(group: int, columns: int, align: int) -> int:
    """Rows of a block: as many as stay in cache, and whole bins of the heat map."""
    fit = max(16, _ELEMENTS // (group * columns))
    return max(align, fit // align * align) if align <= 512 else 512


def _row_bounds(queries: int, step: int, start: int, align: int) -> list[tuple[int, int]]:
    """Row blocks [top, bottom) of a call; all but the first begin at a multiple of `align` in the record."""
    first = step if start % align == 0 else align - start % align
    tops = [0, *range(first, queries, step)]
    return list(zip(tops, [*tops[1:], queries], strict=True))


def _part(bias: Tensor, tile: _Tile, inside: int) -> Tensor:
    """The bias of one tile; dimensions of 1 stay."""
    b = bias[tile.sequence if bias.shape[0] > 1 else 0]
    b = b[tile.heads] if b.shape[0] > 1 else b
    b = b[:, tile.rows] if b.shape[1] > 1 else b
    return b[:, :, tile.columns.start : tile.columns.start + inside] if b.shape[2] > 1 else b


def _give_to_sink(weights: Tensor, scores: Tensor, sink: Tensor) -> None:
    """Shrink rows that sum to 1 by what the sink takes: 1 / (1 + exp(sink − lse))."""
    best, at = weights.max(-1, keepdim=True)
    lse = scores.gather(-1, at) - best.log()
    weights.mul_(torch.sigmoid(lse - sink.to(scores.dtype)[:, None, None]))
