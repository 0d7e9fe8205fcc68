"""Rows of weights in blocks: which rows and columns are computed together, and what statistics read of a block."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.masks import EMPTY, FULL, BoundMask
from regard.masks.rectangles import edges

__all__ = ["BLOCK_ELEMENTS", "Block", "Plan", "RowBlock", "log_sum_exp", "normalizer_of", "pool"]


def pool(x: Tensor, dim: int, offset: int, width: int, how: Literal["sum", "max"]) -> Tensor:
    """Pool runs of `width` along `dim`, of which the first begins `offset` before x; 0 is neutral for weights."""
    if width == 1:
        return x
    length = x.shape[dim]
    if offset + length <= width:  # a part of one run
        return x.sum(dim, keepdim=True) if how == "sum" else x.amax(dim, keepdim=True)
    before, after = offset, -(offset + length) % width
    if before or after:
        x = functional.pad(x, (before, after) if dim == 2 else (0, 0, before, after))
    if dim == 2 and how == "max":
        return functional.max_pool1d(x, width)  # five times as fast as a maximum over a short last dimension
    shape = (*x.shape[:dim], x.shape[dim] // width, width, *x.shape[dim + 1 :])
    runs = x.reshape(shape)
    return runs.sum(dim + 1) if how == "sum" else runs.amax(dim + 1)


BLOCK_ELEMENTS = 2**20  # maximum number of scores, and of weights: 4 MiB each in float32, which fits the cache
_COLUMNS = 128  # the columns of a block are a multiple of this; those after the last key have weight 0
_ROWS = 16  # minimum number of rows of a unit
_TALLEST = 1024


@dataclass(frozen=True)
class Block:
    """Rows [top, bottom) over columns [left, right) of a call, in indices."""

    top: int
    bottom: int
    left: int
    right: int
    cut: slice | None  # the columns in which the mask must be evaluated pair by pair
    sure: bool  # whether every row sees at least one key


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one call. Rows are grouped in units, which do not cross the bins of the heat map.

    A block has at most BLOCK_ELEMENTS scores, but at least 16 rows: twice 4 MiB in float32 up to 65,536 keys, and
    twice 64 bytes per key beyond, independent of the number of queries.
    """

    bounds: npt.NDArray[np.int64]  # edges of the units
    kinds: npt.NDArray[np.int8] | None  # (batch, heads, units, column blocks), None if every pair is visible
    unit: int
    padded: int
    chosen: frozenset[int] | None = None  # the rows that are computed; None for all
    _known: dict[tuple[int, int, int], list[Block]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        mask: BoundMask | None,
        queries: int,
        keys: int,
        start: int,
        align: int,
        chosen: frozenset[int] | None = None,
    ) -> "Plan":
        """Return the plan of a call whose first row is row `start` of the record, in which bins span `align` rows, for
        all rows or the chosen ones.
        """
        padded = -(-keys // _COLUMNS) * _COLUMNS
        unit = max(_ROWS, align)
        while unit > _ROWS and unit * padded > BLOCK_ELEMENTS:
            unit //= 2  # a part of a bin: for very long texts, whole bins would take hundreds of megabytes
        first = min(-start % unit or unit, queries)
        bounds = torch.tensor([0, *range(first, queries, unit), queries], device="cpu")
        kinds = None if mask is None else mask.blocks(bounds, edges(keys, _COLUMNS)).numpy()
        return cls(bounds.numpy(), kinds, unit, padded, chosen)

    def blocks(self, batch_index: int, heads: slice) -> list[Block]:
        """Return the blocks of some heads of one sequence: neighbouring units, joined while they fit the cache."""
        count = heads.stop - heads.start
        batch, all_heads = self.kinds.shape[:2] if self.kinds is not None else (1, 1)
        row, which = batch_index if batch > 1 else 0, heads if all_heads > 1 else slice(0, 1)
        key = (row, which.start, count)
        if key not in self._known:
            if self.kinds is None:
                sees, full = np.ones((len(self.bounds) - 1, self.padded // _COLUMNS), np.bool_), None
            else:
                kinds = self.kinds[row, which]
                sees, full = (kinds != EMPTY).any(0), (kinds == FULL).all(0)
            blocks = self._join(sees, full, count)
            self._known[key] = blocks if self.chosen is None else [part for one in blocks for part in self._parts(one)]
        return self._known[key]

    def _parts(self, block: Block) -> Iterator[Block]:
        """Yield the chosen rows of a block, in runs."""
        assert self.chosen is not None
        rows = [row for row in range(block.top, block.bottom) if row in self.chosen]
        for at, row in enumerate(rows):
            if at == 0 or rows[at - 1] != row - 1:
                top = row
            if at + 1 == len(rows) or rows[at + 1] != row + 1:
                yield replace(block, top=top, bottom=row + 1)

    def _join(self, sees: npt.NDArray[np.bool_], full: npt.NDArray[np.bool_] | None, heads: int) -> list[Block]:
        columns = sees.shape[1]
        left = np.where(sees.any(1), sees.argmax(1), 0)
        right = np.where(sees.any(1), columns - sees[:, ::-1].argmax(1), 1)
        blocks, unit = [], 0
        while unit < len(left):
            low, high, last = left[unit], right[unit], unit + 1
            while last < len(left):
                wider = max(high, right[last]) - min(low, left[last])
                rows = self.bounds[last + 1] - self.bounds[unit]
                if rows > _TALLEST or heads * rows * wider * _COLUMNS > BLOCK_ELEMENTS:
                    break
                low, high, last = min(low, left[last]), max(high, right[last]), last + 1
            blocks.append(self._block(unit, last, int(low), int(high), full))
            unit = last
        return blocks

    def _block(self, unit: int, last: int, low: int, high: int, full: npt.NDArray[np.bool_] | None) -> Block:
        cut, sure = None, full is None
        if full is not None:
            part = full[unit:last, low:high]
            asked = np.flatnonzero(~part.all(0))
            if len(asked):
                cut = slice((low + int(asked[0])) * _COLUMNS, (low + int(asked[-1]) + 1) * _COLUMNS)
            sure = bool(part.any(1).all())
        top, bottom = int(self.bounds[unit]), int(self.bounds[last])
        return Block(top, bottom, low * _COLUMNS, high * _COLUMNS, cut, sure)


@dataclass(eq=False)
class RowBlock:
    """Some rows of weights: `rows` queries from row `start` on, columns from key `key_start` on; whole rows, or parts.

    The object is valid until the next block is requested.
    """

    batch_index: int
    heads: slice
    start: int
    key_start: int
    weights: Float[Tensor, "heads rows columns"]
    scores: Float[Tensor, "heads rows columns"] | None = None
    leaks: bool = True  # rows may sum to less than 1, because of a sink or a fully masked row
    before_factor: Tensor | None = None  # the log-sum-exps, if the weights were changed after the softmax
    is_part: bool = False  # whether other blocks have the other columns of these rows
    scratch: Tensor | None = None  # a buffer for products, because allocation costs more than the product
    _strongest: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _summed: tuple[int, Tensor] | None = field(default=None, init=False)

    @property
    def rows(self) -> slice:
        """The range of the rows among all queries of the record."""
        return slice(self.start, self.start + self.weights.shape[1])

    @property
    def columns(self) -> slice:
        """The range of the columns among all keys; it may extend beyond the last key, with weights of 0 there."""
        return slice(self.key_start, self.key_start + self.weights.shape[2])

    def strongest(self, count: int) -> tuple[Float[Tensor, "heads rows count"], Int[Tensor, "heads rows count"]]:
        """Return the largest weights of each row and their columns in this block, the largest first.

        The k largest of a row lie in the k segments with the largest maxima, so whole rows need not be searched.
        Segments are strided, which makes their maxima plain elementwise maxima of contiguous strips, and they are no
        fewer than 64 k, from where on `topk` keeps a heap instead of partitioning.
        """
        if count not in self._strongest:
            self._strongest[count] = _strongest(self.weights, count)
        return self._strongest[count]

    def dot(self, other: Float[Tensor, "#heads rows columns"]) -> Float[Tensor, "heads rows"]:
        """Return Σ_j p_ij x_ij of each row."""
        if self.scratch is None:
            product: Tensor = torch.linalg.vecdot(self.weights, other)
            return product
        return torch.mul(self.weights, other, out=self.scratch).sum(-1)

    def summed(self, height: int) -> Float[Tensor, "heads runs columns"]:
        """Return sums over runs of `height` rows of the record, of which the first and the last may be cut."""
        if self._summed is None or self._summed[0] != height:
            self._summed = height, pool(self.weights, 1, self.start % height, height, "sum")
        return self._summed[1]

    def pooled(
        self, tall: int, broad: int
    ) -> tuple[Float[Tensor, "heads row_bins column_bins"], Float[Tensor, "heads row_bins column_bins"]]:
        """Return sums and maxima over bins of the record, of which the outer ones may be cut; rows are pooled first,
        since they are contiguous in memory.
        """
        sums = pool(self.summed(tall), 2, self.key_start % broad, broad, "sum")
        most = pool(self.weights, 1, self.start % tall, tall, "max")
        return sums, pool(most, 2, self.key_start % broad, broad, "max")

    def moment(self, first: int) -> Float[Tensor, "heads rows"]:
        """Return Σ_j p_ij |i − j| of each row, for a first row at column `first`.

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
        """The sum of each column of the block; it reuses sums over runs of rows, if there are any."""
        return (self.weights if self._summed is None else self._summed[1]).sum(1)

    @property
    def largest(self) -> Float[Tensor, "heads rows"]:
        """The largest weight of each row."""
        if self._strongest:
            return next(iter(self._strongest.values()))[0][..., 0]
        return self.weights.amax(-1)

    @cached_property
    def lse(self) -> Float[Tensor, "heads rows"] | None:
        """ln z of each row, including a sink, in float64; +inf for rows without weight, None without a softmax."""
        if self.before_factor is not None or self.scores is None:
            return self.before_factor
        return normalizer_of(self.weights, self.scores, next(iter(self._strongest.values()), None))

    @cached_property
    def entropy(self) -> Float[Tensor, "heads rows"]:
        """−Σ p ln p of each row; with known scores s computed as ln(z)·Σp − Σ p·s, without logarithms of a matrix."""
        if self.scores is None:
            unscored: Tensor = torch.special.entr(self.weights).sum(-1)
            return unscored
        lse = log_sum_exp(self.weights, self.scores, next(iter(self._strongest.values()), None))
        mass = self.mass if self.leaks else 1.0
        return (lse * mass - self.dot(self.scores)).clamp_min(0.0)


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


def log_sum_exp(weights: Tensor, scores: Tensor, strongest: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return ln z of each row from its largest weight p = exp(s − ln z), without another pass over exponentials."""
    best, at = weights.max(-1) if strongest is None else (strongest[0][..., 0], strongest[1][..., 0])
    best = best.clamp_min(torch.finfo(best.dtype).tiny)
    return scores.gather(-1, at[..., None]).squeeze(-1) - best.log()


def normalizer_of(weights: Tensor, scores: Tensor, strongest: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the number to subtract from a score so that its exponential is the weight: p = exp(s − lse)."""
    best, at = weights.max(-1) if strongest is None else (strongest[0][..., 0], strongest[1][..., 0])
    score = scores.gather(-1, at[..., None]).squeeze(-1)
    wide = best.dtype if best.device.type == "mps" else torch.float64
    return score.to(wide) - best.to(wide).log()  # +inf for rows without weight, since no score is infinite here
