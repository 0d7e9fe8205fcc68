"""Rows of weights in blocks: which rows and columns are computed together, and what statistics read of a block."""

from collections.abc import Iterable, Iterator
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
from regard.normalizers.softmax import Sums

__all__ = ["BLOCK_ELEMENTS", "Block", "Plan", "RowBlock", "pool", "runs_of"]


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


BLOCK_ELEMENTS = 2**20  # maximum number of weights: 4 MiB in float32, which fits the cache
_COLUMNS = 128  # the columns of a block begin and end at multiples of this, or at the last key
_ROWS = 16  # minimum number of rows of a unit
_TALLEST = 1024


@dataclass(frozen=True)
class Block:
    """Rows [top, bottom) over columns [left, right) of a call, in indices."""

    top: int
    bottom: int
    left: int
    right: int
    is_masked: bool  # whether the mask may hide some pair


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one call. Rows are grouped in units, which do not cross the bins of the heat map.

    A block has at most BLOCK_ELEMENTS weights, but at least 16 rows: 4 MiB in float32 up to 65,536 keys, and 64 bytes
    per key beyond, independent of the number of queries.
    """

    bounds: npt.NDArray[np.int64]  # edges of the units
    kinds: npt.NDArray[np.int8] | None  # (batch, heads, units, column blocks), None if every pair is visible
    unit: int
    keys: int
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
        unit = max(_ROWS, align)
        while unit > _ROWS and unit * keys > BLOCK_ELEMENTS:
            unit //= 2  # a part of a bin: for very long texts, whole bins would take hundreds of megabytes
        first = min(-start % unit or unit, queries)
        bounds = torch.tensor([0, *range(first, queries, unit), queries], device="cpu")
        kinds = None if mask is None else mask.blocks(bounds, edges(keys, _COLUMNS)).numpy()
        return cls(bounds.numpy(), kinds, unit, keys, chosen)

    def blocks(self, batch_index: int, heads: slice) -> list[Block]:
        """Return the blocks of some heads of one sequence: neighbouring units, joined while they fit the cache."""
        count = heads.stop - heads.start
        batch, all_heads = self.kinds.shape[:2] if self.kinds is not None else (1, 1)
        row, which = batch_index if batch > 1 else 0, heads if all_heads > 1 else slice(0, 1)
        key = (row, which.start, count)
        if key not in self._known:
            if self.kinds is None:
                sees, full = np.ones((len(self.bounds) - 1, -(-self.keys // _COLUMNS)), np.bool_), None
            else:
                kinds = self.kinds[row, which]
                sees, full = (kinds != EMPTY).any(0), (kinds == FULL).all(0)
            blocks = self._join(sees, full, count)
            self._known[key] = blocks if self.chosen is None else [part for one in blocks for part in self._parts(one)]
        return self._known[key]

    def _parts(self, block: Block) -> Iterator[Block]:
        """Yield the chosen rows of a block, in runs."""
        assert self.chosen is not None
        for run in runs_of(row for row in range(block.top, block.bottom) if row in self.chosen):
            yield replace(block, top=run.start, bottom=run.stop)

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
            is_masked = full is not None and not bool(full[unit:last, low:high].all())
            top, bottom = int(self.bounds[unit]), int(self.bounds[last])
            columns_of = int(low) * _COLUMNS, min(int(high) * _COLUMNS, self.keys)
            blocks.append(Block(top, bottom, *columns_of, is_masked))
            unit = last
        return blocks


def runs_of(rows: Iterable[int]) -> list[slice]:
    """Return rows in ascending order as slices of neighbours.

    >>> runs_of([2, 3, 7])
    [slice(2, 4, None), slice(7, 8, None)]
    """
    found: list[slice] = []
    for one in rows:
        if found and found[-1].stop == one:
            found[-1] = slice(found[-1].start, one + 1)
        else:
            found.append(slice(one, one + 1))
    return found


@dataclass(eq=False)
class RowBlock:
    """Some rows of weights: `rows` queries from row `start` on, columns from key `key_start` on; in
    the others the rows are 0.

    `sums` are those of the exponentials of whole rows, with the sink, if they are wanted and there are any.
    """

    batch_index: int
    heads: slice
    start: int
    key_start: int
    weights: Float[Tensor, "heads rows columns"]
    sums: Sums | None = None
    _strongest: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _summed: tuple[int, Tensor] | None = field(default=None, init=False)

    @property
    def rows(self) -> slice:
        """The range of the rows among all queries of the record."""
        return slice(self.start, self.start + self.weights.shape[1])

    @property
    def columns(self) -> slice:
        """The range of the columns among all keys."""
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

    @property
    def lse(self) -> Float[Tensor, "heads rows"] | None:
        """ln z of each row, with the sink, in float64; +inf for rows that see nothing, None where it was not wanted."""
        if self.sums is None:
            return None
        wide = self.weights.dtype if self.weights.device.type == "mps" else torch.float64
        peak, total = (x.to(wide) for x in self.sums)
        return (peak + total.log()).masked_fill(total == 0, torch.inf)

    @cached_property
    def entropy(self) -> Float[Tensor, "heads rows"]:
        """−Σ p ln p of each row."""
        tiny = torch.finfo(self.weights.dtype).tiny
        found: Tensor = torch.linalg.vecdot(self.weights, self.weights.clamp_min(tiny).log_())  # entr takes 5 × as long
        return 0.0 - found  # and not −0


def _strongest(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    columns = weights.shape[-1]
    strips = 1
    while columns // (2 * strips) >= 64 * count:
        strips *= 2
    if strips == 1:
        best = weights.topk(min(count, columns), -1)
        return best.values, best.indices
    length = columns // strips
    body = strips * length
    segments = weights[..., :body].unflatten(-1, (strips, length)).amax(-2).topk(count, -1).indices
    offsets = torch.arange(0, body, length, device=segments.device)
    rest = torch.arange(body, columns, device=segments.device).expand(*segments.shape[:-1], -1)
    candidates = torch.cat([(segments.unsqueeze(-2) + offsets[:, None]).flatten(-2), rest], -1)
    best = weights.gather(-1, candidates).topk(count, -1)
    return best.values, candidates.gather(-1, best.indices)
