"""FlexAttention's lists of blocks, made from runs of blocks: time and memory grow with the blocks that are listed.

Its kernels read a row's list from `row · stride` on, as many entries as the row's count says, so that a table need not
be wider than its longest list. All four tables are given one width: kernels of PyTorch before 2.13 read the list of
full blocks by the strides of that of partial ones, and the decoding kernel still does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int32
from torch import Tensor

from regard.masks.block_plan import Cover, Indices, Runs

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["BlockTables", "block_tables", "bytes_of_tables"]

Listed = tuple[Indices, Indices]  # row and column of each block, sorted by rows, then by columns


@dataclass(frozen=True, eq=False)
class BlockTables:
    """What a `BlockMask` lists, by its names: partial and full blocks of each row, then of each column."""

    kv_num_blocks: Int32[Tensor, "batch heads rows"]
    kv_indices: Int32[Tensor, "batch heads rows width"]
    full_kv_num_blocks: Int32[Tensor, "batch heads rows"]
    full_kv_indices: Int32[Tensor, "batch heads rows width"]
    q_num_blocks: Int32[Tensor, "batch heads columns"]
    q_indices: Int32[Tensor, "batch heads columns width"]
    full_q_num_blocks: Int32[Tensor, "batch heads columns"]
    full_q_indices: Int32[Tensor, "batch heads columns width"]

    def to(self, device: torch.device | str) -> "BlockTables":
        """The same on another device."""
        return BlockTables(*(getattr(self, part.name).to(device) for part in fields(self)))

    def block_mask(self, lengths: tuple[int, int], block: int, mask_mod: Callable[..., Tensor]) -> "BlockMask":
        """Put them together with queries and keys, the size of a block and the rule inside partial ones."""
        from torch.nn.attention.flex_attention import BlockMask

        tables: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        return BlockMask(lengths, **tables, BLOCK_SIZE=(block, block), mask_mod=mask_mod)


def block_tables(found: Cover, *, narrow: bool) -> BlockTables:
    """List the blocks that a mask leaves, those that reach beyond the ends as partial.

    Entries behind a row's count are 0. Tables are as wide as there are blocks, or, if `narrow`, as the next power of
    two from the longest list: a few widths for all batches, so that few kernels are compiled.

    >>> from regard.masks import Causal, Window
    >>> from regard.masks.block_plan import cover
    >>> tables = block_tables(cover((Causal() & Window(2)).bind(64, 64), 64, 64, 16), narrow=True)
    >>> tables.kv_num_blocks, tables.kv_indices
    (tensor([[[1, 2, 2, 2]]], dtype=torch.int32), tensor([[[[0, 0],
              [0, 1],
              [1, 2],
              [2, 3]]]], dtype=torch.int32))
    """
    rows, columns = _grid(found)
    lists = [_by_kind(runs, found) for _, _, runs in found.slices()]
    width = _width(found) if narrow else max(rows, columns)
    parts: list[Tensor] = []
    for turned, height in ((False, rows), (True, columns)):
        for full in (0, 1):
            mine = [_turned(one[full]) if turned else one[full] for one in lists]
            both = zip(*(_table(one, height, width) for one in mine), strict=True)
            parts += [torch.from_numpy(np.stack(one)).unflatten(0, found.leading) for one in both]
    return BlockTables(*parts)


def bytes_of_tables(found: Cover, *, narrow: bool) -> int:
    """Bytes of the tables, which are not made."""
    rows, columns = _grid(found)
    width = _width(found) if narrow else max(rows, columns)
    return 2 * (rows + columns) * (width + 1) * 4 * math.prod(found.leading)


def _grid(found: Cover) -> tuple[int, int]:
    return -(-found.queries // found.block), -(-found.keys // found.block)


def _width(found: Cover) -> int:
    """A power of two that holds each list, and no more than there are blocks."""
    rows, columns = _grid(found)
    longest = 1
    for _, _, runs in found.slices():
        longest = max(longest, int(np.bincount(runs.row, runs.length, minlength=1).max(initial=0)))
        # A run adds one to the count of each of its columns: one more where it begins, one less behind its end.
        steps = np.bincount(runs.start, minlength=columns + 1) - np.bincount(
            runs.start + runs.length, minlength=columns + 1
        )
        longest = max(longest, int(steps.cumsum().max(initial=0)))
    return min(1 << (longest - 1).bit_length(), max(rows, columns))


def _by_kind(runs: Runs, found: Cover) -> tuple[Listed, Listed]:
    """All partial blocks, and all full ones."""
    blocks = runs.single_blocks()
    row, column, full = blocks.row, blocks.start, blocks.full
    rows, columns = _grid(found)
    if found.queries % found.block:
        full = full & (row != rows - 1)
    if found.keys % found.block:
        full = full & (column != columns - 1)
    return (row[~full], column[~full]), (row[full], column[full])


def _turned(listed: Listed) -> Listed:
    row, column = listed
    order = np.argsort(column, kind="stable")  # within a column, rows are in order already
    return column[order], row[order]


def _table(listed: Listed, rows: int, width: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """How many blocks each row has, and which."""
    row, column = listed
    counts = np.bincount(row, minlength=rows)
    table = np.zeros((rows, width), np.int32)
    table[row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)] = column
    return counts.astype(np.int32), table
