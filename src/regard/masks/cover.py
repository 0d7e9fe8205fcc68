"""The blocks that a mask leaves, as runs along rows: found from coarse to fine, never by looking at all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from regard.masks.base import EMPTY, FULL, BoundMask, Rectangles

__all__ = ["Cover", "Runs", "cover"]

_COARSE = 64  # rows and columns of the first grid, at most
_FINER = 4  # a rectangle is cut into 4 × 4

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of neighbouring blocks of one kind: row block, first column block, number of blocks; in this order."""

    row: Indices
    start: Indices
    length: Indices
    full: npt.NDArray[np.bool_]

    @property
    def columns(self) -> tuple[Indices, Indices, Indices, npt.NDArray[np.bool_]]:
        """Row, start, length and kind of each run."""
        return self.row, self.start, self.length, self.full

    def where(self, which: npt.NDArray[np.bool_]) -> "Runs":
        """Some of the runs."""
        return Runs(self.row[which], self.start[which], self.length[which], self.full[which])

    def merged(self) -> tuple["Runs", Indices]:
        """The same blocks in maximal runs, full where every block is; and in which of them each run has gone."""
        if not len(self.row):
            return self, np.zeros(0, np.int64)
        begins = np.ones(len(self.row), np.bool_)
        begins[1:] = (self.row[1:] != self.row[:-1]) | (self.start[1:] != self.start[:-1] + self.length[:-1])
        first = np.flatnonzero(begins)
        length, full = np.add.reduceat(self.length, first), np.logical_and.reduceat(self.full, first)
        return Runs(self.row[first], self.start[first], length, full), np.cumsum(begins) - 1

    def joined(self) -> "Runs":
        """The same blocks in maximal runs of one kind."""
        return Runs.together([self.where(self.full).merged()[0], self.where(~self.full).merged()[0]])

    @classmethod
    def together(cls, parts: list["Runs"]) -> "Runs":
        """All runs of several, sorted."""
        row, start, length, full = (
            np.concatenate(same) for same in zip(*(part.columns for part in parts), strict=True)
        )
        order = np.lexsort((start, row))
        return cls(row[order], start[order], length[order], full[order])


@dataclass(frozen=True, eq=False)
class Cover:
    """What a bound mask leaves of blocks of `block` × `block`, for each sequence and head that it tells apart."""

    block: int
    queries: int
    keys: int
    leading: tuple[int, int]
    runs: tuple[Runs, ...]  # one for each of batch × heads of `leading`

    def slices(self) -> Iterator[tuple[int, int, Runs]]:
        """Sequence, head (0 where all are alike) and their runs."""
        for at, runs in enumerate(self.runs):
            yield at // self.leading[1], at % self.leading[1], runs

    @property
    def share(self) -> float:
        """The share of blocks that hold a visible pair."""
        return sum(int(runs.length.sum()) for runs in self.runs) / self._blocks

    @property
    def share_partial(self) -> float:
        """The share of blocks that may hold both a visible and a hidden pair."""
        return sum(int(runs.length[~runs.full].sum()) for runs in self.runs) / self._blocks

    @property
    def _blocks(self) -> int:
        return -(-self.queries // self.block) * -(-self.keys // self.block) * len(self.runs)


def cover(bound: BoundMask | None, queries: int, keys: int, block: int) -> Cover:
    """Find the blocks that a mask leaves; None leaves all.

    A rectangle that is empty or full is not looked into; the others are cut into 4 × 4, down to `block`. The number of
    rectangles that are asked for grows with the border of what is seen, not with queries × keys.
    """
    if bound is None:
        rows = np.arange(-(-queries // block))
        width = np.full_like(rows, -(-keys // block))
        everything = Runs(rows, np.zeros_like(rows), width, np.ones(len(rows), np.bool_))
        return Cover(block, queries, keys, (1, 1), (everything,))
    size = block
    while max(queries, keys) > size * _COARSE:
        size *= _FINER
    top, left = (
        grid.flatten() for grid in np.meshgrid(*(np.arange(0, n, size) for n in (queries, keys)), indexing="ij")
    )
    batch, heads = bound.mask.leading
    found: list[list[Runs]] = [[] for _ in range(batch * heads)]
    while True:
        if not len(top):
            break
        kinds = _kinds(bound, top, left, size)
        if size == block:
            for at, mine in enumerate(kinds):
                found[at].append(_as_runs(top, left, size, mine != EMPTY, mine == FULL, block, bound))
            break
        all_full = (kinds == FULL).all(0)
        for mine in found:
            mine.append(_as_runs(top, left, size, all_full, all_full, block, bound))
        open_ = ~all_full & (kinds != EMPTY).any(0)
        top, left, size = _cut(top[open_], left[open_], size, bound)
    return Cover(block, queries, keys, (batch, heads), tuple(Runs.together(mine).joined() for mine in found))


def _kinds(bound: BoundMask, top: Indices, left: Indices, size: int) -> npt.NDArray[np.int8]:
    t, low = torch.from_numpy(top), torch.from_numpy(left)
    bottom, right = (t + size).clamp(max=bound.queries), (low + size).clamp(max=bound.keys)
    start = bound.query_start
    kinds = bound.mask.blocks(Rectangles(t + start, bottom + start, low, right))
    kinds = kinds.expand(*bound.mask.leading, len(top)).reshape(-1, len(top))
    if is_functorch_wrapped_tensor(kinds):  # torch.func wraps what is made inside it, and numpy cannot look into that
        return np.array(kinds.tolist(), np.int8)
    return kinds.numpy()


def _cut(top: Indices, left: Indices, size: int, bound: BoundMask) -> tuple[Indices, Indices, int]:
    size //= _FINER
    steps = np.arange(_FINER) * size
    tops = np.broadcast_to(top[:, None, None] + steps[:, None], (len(top), _FINER, _FINER)).reshape(-1)
    lefts = np.broadcast_to(left[:, None, None] + steps, (len(left), _FINER, _FINER)).reshape(-1)
    inside = (tops < bound.queries) & (lefts < bound.keys)
    return tops[inside], lefts[inside], size


def _as_runs(
    top: Indices,
    left: Indices,
    size: int,
    which: npt.NDArray[np.bool_],
    full: npt.NDArray[np.bool_],
    block: int,
    bound: BoundMask,
) -> Runs:
    """Squares of `size` as runs of blocks, one for each row of blocks inside."""
    each = size // block
    rows = (top[which, None] // block + np.arange(each)).reshape(-1)
    start = np.repeat(left[which] // block, each)
    length = np.minimum(start + each, -(-bound.keys // block)) - start
    inside = rows * block < bound.queries
    return Runs(rows[inside], start[inside], length[inside], np.repeat(full[which], each)[inside])
