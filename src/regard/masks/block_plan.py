"""The blocks that a mask leaves: runs along rows, found from coarse to fine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from regard.errors import InputError
from regard.masks.base import BoundMask
from regard.masks.plan_cache import PLANS
from regard.masks.rectangles import EMPTY, FULL, Rectangles
from regard.tensors import has_numbers
from regard.torch_private import is_functorch_wrapped_tensor
from regard.values import tensors

__all__ = [
    "BLOCK",
    "Cover",
    "Runs",
    "cover",
    "plan_of",
]

_COARSE = 64  # rows and columns of the first grid, at most
_AT_ONCE = 2**20  # rectangles that a mask is asked for together
_MOST = 2**24  # rectangles of one size, or runs: 1.5 GB while they are looked through

BLOCK = 128  # rows and columns of a block, at most

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of neighbouring blocks of one kind, sorted: index of the sequence and head (among those that the mask tells
    apart), row block, first column block, number of blocks.
    """

    index: Indices
    row: Indices
    start: Indices
    length: Indices
    full: Flags

    @property
    def columns(self) -> tuple[Indices, Indices, Indices, Indices, Flags]:
        """Index, row, start, length and kind of each run."""
        return self.index, self.row, self.start, self.length, self.full

    def where(self, which: Flags | Indices | slice) -> "Runs":
        """Some of the runs."""
        return Runs(self.index[which], self.row[which], self.start[which], self.length[which], self.full[which])

    def merged(self) -> tuple["Runs", Indices]:
        """The same blocks in maximal runs, full where every block is; and in which of them each run has gone."""
        if not len(self.row):
            return self, np.zeros(0, np.int64)
        begins = np.ones(len(self.row), np.bool_)
        begins[1:] = (
            (self.index[1:] != self.index[:-1])
            | (self.row[1:] != self.row[:-1])
            | (self.start[1:] != self.start[:-1] + self.length[:-1])
        )
        first = np.flatnonzero(begins)
        length, full = np.add.reduceat(self.length, first), np.logical_and.reduceat(self.full, first)
        return Runs(self.index[first], self.row[first], self.start[first], length, full), np.cumsum(begins) - 1

    def joined(self) -> "Runs":
        """The same blocks in maximal runs of one kind."""
        return Runs.together([self.where(self.full).merged()[0], self.where(~self.full).merged()[0]])

    def single_blocks(self) -> "Runs":
        """The same blocks, each as a run."""
        before = np.repeat(self.length.cumsum() - self.length, self.length)
        index, row, start = (np.repeat(x, self.length) for x in (self.index, self.row, self.start))
        start = start + np.arange(len(row)) - before
        return Runs(index, row, start, np.ones_like(row), np.repeat(self.full, self.length))

    @classmethod
    def together(cls, parts: list["Runs"]) -> "Runs":
        """All runs of several, sorted."""
        parts = [part for part in parts if len(part.row)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        index, row, start, length, full = (
            np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)
        )
        order = np.lexsort((start, row, index))
        return cls(index[order], row[order], start[order], length[order], full[order])


@dataclass(frozen=True, eq=False)
class Cover:
    """What a bound mask leaves of blocks of `block` × `block`, for each sequence and head that it tells apart."""

    block: int
    queries: int
    keys: int
    leading: tuple[int, int]
    runs: Runs

    def slices(self) -> Iterator[tuple[int, int, Runs]]:
        """Sequence, head (0 where all are alike) and their runs."""
        ends = np.searchsorted(self.runs.index, np.arange(math.prod(self.leading) + 1))
        for at, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            yield at // self.leading[1], at % self.leading[1], self.runs.where(slice(begin, end))

    def runs_for(self, leading: tuple[int, int]) -> Runs:
        """The runs for so many sequences and heads, of which those that are alike here have the same."""
        if leading == self.leading:
            return self.runs
        batch, heads = self.leading
        sequences, others = np.divmod(np.arange(math.prod(leading)), leading[1])
        source = np.minimum(sequences, batch - 1) * heads + np.minimum(others, heads - 1)
        ends = np.searchsorted(self.runs.index, np.arange(batch * heads + 1))
        counts = np.diff(ends)[source]
        index = np.repeat(np.arange(len(source)), counts)
        taken = np.arange(len(index)) + np.repeat(ends[source] - (counts.cumsum() - counts), counts)
        return replace(self.runs.where(taken), index=index)

    @property
    def share(self) -> float:
        """The share of blocks that hold a visible pair."""
        return int(self.runs.length.sum()) / self._blocks

    @property
    def share_partial(self) -> float:
        """The share of blocks that may hold both a visible and a hidden pair."""
        return int(self.runs.length[~self.runs.full].sum()) / self._blocks

    @property
    def nbytes(self) -> int:
        """Bytes of the runs."""
        return sum(column.nbytes for column in self.runs.columns)

    @property
    def _blocks(self) -> int:
        return -(-self.queries // self.block) * -(-self.keys // self.block) * max(1, math.prod(self.leading))


def plan_of(bound: BoundMask | None, queries: int, keys: int, block: int = BLOCK) -> Cover:
    """Give what `cover` finds, once for all calls that share the mask; of one without numbers, as if all were seen."""
    if bound is None or not has_numbers(*tensors(bound.mask)):
        return cover(None, queries, keys, block)
    return PLANS.of(bound, ("blocks", block), lambda: cover(bound, queries, keys, block))


def cover(bound: BoundMask | None, queries: int, keys: int, block: int) -> Cover:
    """Find the blocks that a mask leaves; None leaves all.

    A rectangle that is empty or full is not looked into; the others are cut into 4 × 4, down to `block`. The number of
    rectangles that are asked for grows with the border of what is seen, not with queries × keys. A mask that depends on
    i − j alone is asked for one block of each diagonal.

    Raises:
        InputError: A plan would look at more than 2²⁴ rectangles at once, or list as many runs.
    """
    if bound is None:
        rows = np.arange(-(-queries // block))
        width = np.full_like(rows, -(-keys // block))
        nothing = np.zeros_like(rows)
        everything = Runs(nothing, rows, nothing, width, np.ones(len(rows), np.bool_))
        return Cover(block, queries, keys, (1, 1), everything)
    if not (queries and keys):
        none = np.zeros(0, np.int64)
        return Cover(block, queries, keys, bound.mask.leading, Runs(none, none, none, none, none.astype(np.bool_)))
    if bound.mask.relative and bound.mask.leading == (1, 1):
        return Cover(block, queries, keys, (1, 1), _diagonal_runs(bound, block))
    return Cover(block, queries, keys, bound.mask.leading, _refined(bound, block))


def _refined(bound: BoundMask, block: int) -> Runs:
    """The runs of each sequence and head, from coarse to fine."""
    size = block
    while max(bound.q_len, bound.kv_len) > size * _COARSE:
        size *= 4
    grid = (np.arange(0, n, size) for n in (bound.q_len, bound.kv_len))
    top, left = (places.flatten() for places in np.meshgrid(*grid, indexing="ij"))
    slices = math.prod(bound.mask.leading)
    parts: list[Runs] = [_as_runs(np.zeros((slices, 0), np.int8), top[:0], left[:0], size, block, bound)]
    while len(top):
        bottom, right = (np.minimum(x + size, n) for x, n in ((top, bound.q_len), (left, bound.kv_len)))
        kinds = _kinds(bound, top, bottom, left, right)
        if size == block:
            parts.append(_as_runs(kinds, top, left, size, block, bound))
            break
        all_full = (kinds == FULL).all(0)
        parts.append(_as_runs(kinds[:, all_full], top[all_full], left[all_full], size, block, bound))
        open_ = ~all_full & (kinds != EMPTY).any(0)
        each = int(open_.sum()) * (1 + slices // 16)  # a rectangle takes 16 bytes, and one for each slice
        cuts = 4 if 16 * each <= _MOST else 2
        _check_count(cuts**2 * each, bound, block)
        top, left = _cut(top[open_], left[open_], size, cuts, bound)
        size //= cuts
    return Runs.together(parts).joined()


def _diagonal_runs(bound: BoundMask, block: int) -> Runs:
    """The runs of a mask that depends on i − j alone: whole blocks by diagonals, those that the ends cut off apart."""
    rows, columns = -(-bound.q_len // block), -(-bound.kv_len // block)
    whole_rows, whole_columns = bound.q_len // block, bound.kv_len // block
    diagonal = np.arange(1 - rows, columns)
    top, left = np.maximum(-diagonal, 0) * block, np.maximum(diagonal, 0) * block
    kinds = _kinds(bound, top, top + block, left, left + block)[0]
    edges = np.flatnonzero(np.diff(kinds, prepend=kinds[0] + 1, append=kinds[-1] + 1))
    begin, end = edges[:-1], edges[1:]
    begin, end = (edge[kinds[edges[:-1]] != EMPTY] for edge in (begin, end))
    # Block (r, c) is on diagonal c − r + rows − 1 of the list: the rows in which a run has a column.
    first, last = np.maximum(rows - end, 0), np.minimum(whole_rows, whole_columns + rows - 1 - begin)
    count = np.maximum(last - first, 0)
    _check_count(int(count.sum()), bound, block)
    row = np.arange(int(count.sum())) + np.repeat(first - (count.cumsum() - count), count)
    shift = row - (rows - 1)
    start = np.maximum(np.repeat(begin, count) + shift, 0)
    length = np.minimum(np.repeat(end, count) + shift, whole_columns) - start
    full = np.repeat(kinds[begin] == FULL, count)
    parts = [Runs(np.zeros_like(row), row, start, length, full).where(length > 0)]
    if whole_rows < rows:
        left = np.arange(columns) * block
        top = np.full_like(left, whole_rows * block)
        last = _kinds(bound, top, np.full_like(top, bound.q_len), left, np.minimum(left + block, bound.kv_len))
        parts.append(_as_runs(last, top, left, block, block, bound))
    if whole_rows and whole_columns < columns:
        top = np.arange(whole_rows) * block
        left = np.full_like(top, whole_columns * block)
        last = _kinds(bound, top, top + block, left, np.full_like(left, bound.kv_len))
        parts.append(_as_runs(last, top, left, block, block, bound))
    return Runs.together(parts).joined()


def _check_count(count: int, bound: BoundMask, block: int) -> None:
    if count > _MOST:
        rows, columns = -(-bound.q_len // block), -(-bound.kv_len // block)
        raise InputError(
            f"the mask divides so many of the {rows:,} × {columns:,} blocks of {block} × {block} that its plan would "
            f"list {count:,}, more than {_MOST:,}, for {bound.q_len:,} queries and {bound.kv_len:,} keys: shorten the "
            "sequence, or combine the mask with one that leaves whole blocks out, such as masks.Window"
        )


def _kinds(bound: BoundMask, top: Indices, bottom: Indices, left: Indices, right: Indices) -> npt.NDArray[np.int8]:
    """What the mask tells of rectangles of indices, for each sequence and head that it tells apart; some at a time."""
    slices = math.prod(bound.mask.leading)
    step = max(1, _AT_ONCE // slices)
    parts = []
    for at in range(0, len(top), step):
        t, b, low, high = (torch.from_numpy(x[at : at + step]) for x in (top, bottom, left, right))
        asked = Rectangles(t + bound.q_offset, b + bound.q_offset, low, high)
        kinds = bound.mask.blocks(asked).expand(*bound.mask.leading, len(t)).reshape(slices, len(t))
        # torch.func wraps what is made inside it, and numpy cannot look into that.
        parts.append(np.array(kinds.tolist(), np.int8) if is_functorch_wrapped_tensor(kinds) else kinds.numpy())
    return np.concatenate(parts, 1)


def _cut(top: Indices, left: Indices, size: int, parts: int, bound: BoundMask) -> tuple[Indices, Indices]:
    steps = np.arange(parts) * (size // parts)
    tops = np.broadcast_to(top[:, None, None] + steps[:, None], (len(top), parts, parts)).reshape(-1)
    lefts = np.broadcast_to(left[:, None, None] + steps, (len(left), parts, parts)).reshape(-1)
    inside = (tops < bound.q_len) & (lefts < bound.kv_len)
    return tops[inside], lefts[inside]


def _as_runs(kinds: npt.NDArray[np.int8], top: Indices, left: Indices, size: int, block: int, bound: BoundMask) -> Runs:
    """The squares of `size` that are not empty, (slices, squares), as runs of blocks: one for each row of blocks."""
    index, square = np.nonzero(kinds != EMPTY)
    each = size // block
    rows = (top[square, None] // block + np.arange(each)).reshape(-1)
    start = np.repeat(left[square] // block, each)
    length = np.minimum(start + each, -(-bound.kv_len // block)) - start
    full = np.repeat((kinds == FULL)[index, square], each)
    runs = Runs(np.repeat(index, each), rows, start, length, full).where(rows * block < bound.q_len)
    order = np.lexsort((runs.start, runs.row, runs.index))
    return runs.where(order)
