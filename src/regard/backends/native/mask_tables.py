"""Tables of a mask for the kernels: runs of blocks for each tile of queries, and bytes of the visible pairs in
partial blocks.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.backends.native.sizes import BLOCK, STRIP, STRIPS
from regard.masks import BoundMask
from regard.masks.block_plan import Cover, Runs
from regard.masks.plan_cache import PLANS
from regard.problem import Problem
from regard.tensors import has_numbers
from regard.values import tensors

__all__ = ["Tables", "bytes_of_tables", "tables_for"]

_AT_ONCE = 2**22  # number of pairs for which a mask is evaluated in one step

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tables:
    """For each tile of 64 queries, for each sequence and head that the mask distinguishes, its runs of blocks
    of keys.
    """

    leading: tuple[int, int]  # sequences and heads; 1 if all are equal
    tile_runs: Numbers  # start of each tile's runs, and the end of the last
    run_starts: Numbers  # first block of each run
    run_lengths: Numbers  # number of blocks of each run
    run_masks: Numbers  # index in `visible` of its single block; −1 if every pair is visible
    visible: npt.NDArray[np.uint8]  # (masks, 64, 64): 1 for visible pairs
    strip_ranges: Numbers  # (masks, 2, 4, 2): of each 16 rows, the 16s of columns that are computed, and vice versa

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The tables by the names that the record of a call has for them."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "leading"}

    @property
    def nbytes(self) -> int:
        """The bytes of all tables."""
        return sum(array.nbytes for array in self.arrays.values())


def tables_for(problem: Problem) -> Tables:
    """Return the tables of a problem's mask, which are planned once for all calls that share it."""
    if problem.mask is None:
        return _made(problem)
    return PLANS.of(problem.mask, ("tables", problem.batch, problem.heads), lambda: _made(problem))


def bytes_of_tables(problem: Problem) -> int:
    """Return the approximate bytes of the tables, without making them."""
    if problem.mask is None:
        return 0
    found = problem.plan(BLOCK)
    divided = int(found.runs.length[~found.runs.full].sum())
    if problem.mask.mask.relative:  # blocks along a diagonal are equal
        divided = min(divided, 4 * (problem.queries + problem.keys) // BLOCK + 4)
    return divided * BLOCK * BLOCK * math.prod(_leading(problem, found)) // max(1, math.prod(found.leading))


def _leading(problem: Problem, found: Cover) -> tuple[int, int]:
    """Return the numbers of sequences and heads that a mask distinguishes; for a rule they follow from its result."""
    bound, one = problem.mask, slice(0, 1)
    if bound is None or bound.mask.relative or not has_numbers(*tensors(bound.mask)):
        return found.leading
    answer = bound.tile(one, one, batch=problem.batch, heads=problem.heads, device=torch.device("cpu"))
    return max(found.leading[0], answer.shape[0]), max(found.leading[1], answer.shape[1])


def _made(problem: Problem) -> Tables:
    bound, found = problem.mask, problem.plan(BLOCK)
    leading, tiles = _leading(problem, found), -(-problem.queries // BLOCK)
    runs = found.runs_for(leading)
    runs = Runs.together([runs.where(runs.full), runs.where(~runs.full).single_blocks()])
    masks = np.full(len(runs.row), -1)
    visible = np.zeros((0, BLOCK, BLOCK), np.uint8)
    if not runs.full.all():
        assert bound is not None
        masks[~runs.full], visible = _divided(bound, leading[1], runs.where(~runs.full))
    counts = np.bincount(runs.index * tiles + runs.row, minlength=math.prod(leading) * tiles)
    tile_runs = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    return Tables(leading, tile_runs, runs.start, runs.length, masks, visible, _strip_ranges(visible))


def _strip_ranges(seen: npt.NDArray[np.uint8]) -> Numbers:
    """Return, for each strip of 16 rows of a tile, from which to which strip of columns it is computed, and for each of
    columns from which to which of rows: the smallest ranges that hold all visible pairs and agree with each other.
    """
    strips: npt.NDArray[np.bool_] = np.asarray(seen.reshape(-1, STRIPS, STRIP, STRIPS, STRIP).any((2, 4)))
    while True:
        spans = np.stack([_ends(strips), _ends(strips.swapaxes(1, 2))], 1)
        at = np.arange(STRIPS)
        by_rows, by_columns = ((one[..., :1] <= at) & (at < one[..., 1:]) for one in (spans[:, 0], spans[:, 1]))
        filled = by_rows | by_columns.swapaxes(1, 2)
        if np.array_equal(filled, strips):
            return spans
        strips = filled


def _ends(strips: npt.NDArray[np.bool_]) -> Numbers:
    """Return the first place on the last axis that is true and the one after the last, or 0 and 0 where none is."""
    first, last = strips.argmax(-1), STRIPS - strips[..., ::-1].argmax(-1)
    return (np.stack([first, last], -1) * strips.any(-1, keepdims=True)).astype(np.int64)


def _divided(bound: BoundMask, heads: int, blocks: Runs) -> tuple[Numbers, npt.NDArray[np.uint8]]:
    """Return the index of each block's tile, and the tiles; equal blocks share a tile."""
    which = np.arange(len(blocks.row))
    if bound.mask.relative:
        short = ((blocks.row + 1) * BLOCK > bound.q_len) * 2 + ((blocks.start + 1) * BLOCK > bound.kv_len)
        kinds = np.stack([blocks.index, blocks.row - blocks.start, short], 1)
        _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        blocks, which = blocks.where(first), which.reshape(-1)
    at_once = _AT_ONCE // BLOCK**2
    bits = [
        _evaluated(bound, heads, blocks.where(slice(at, at + at_once))) for at in range(0, len(blocks.row), at_once)
    ]
    return which, np.concatenate(bits)


def _evaluated(bound: BoundMask, heads: int, blocks: Runs) -> npt.NDArray[np.uint8]:
    """Return the visible pairs of some blocks; positions beyond the ends are hidden."""
    within = torch.arange(BLOCK, device="cpu")
    index, row, column = (torch.from_numpy(x)[:, None, None] for x in (blocks.index, blocks.row, blocks.start))
    i, j = row * BLOCK + within[:, None], column * BLOCK + within
    real = (i < bound.q_len) & (j < bound.kv_len)
    i, j = i.clamp(max=bound.q_len - 1) + bound.q_offset, j.clamp(max=bound.kv_len - 1)
    visible: Tensor = bound.mask(index // heads, index % heads, i, j)
    bits: npt.NDArray[np.uint8] = (visible & real).to(torch.uint8).expand(real.shape).contiguous().numpy()
    return bits
