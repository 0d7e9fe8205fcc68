"""Any visible pairs: as a boolean matrix, or as a function.

Dense: any boolean matrix as a mask.

MaskMod: any function of pairs of positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.checks import check_tensor
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, Rectangles

__all__ = ["Dense", "MaskMod"]

_CELL = 64  # side of the cells in which rectangles are looked up


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """visible[b, h, i, j]: a boolean tensor (queries, keys) or (batch or 1, heads or 1, queries, keys), True = may see.

    Rows are the queries in order, wherever they stand. The tensor is copied: one byte for each entry in memory.

    Cost: O(queries · keys) memory, for the matrix; O(queries · keys · dim) time, less the blocks that are empty.

    >>> import torch
    >>> Dense(torch.tensor([[True, False], [True, True]])).bind(2, 2).dense()[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """

    visible: Bool[Tensor, "..."]
    q_offset: int = field(default=0, init=False)  # position of the first row, set when the mask is bound

    def __post_init__(self) -> None:
        self._check()
        super().__post_init__()

    @classmethod
    def over(cls, visible: Bool[Tensor, "..."]) -> "Dense":
        """The mask of a tensor for one call, which reads the tensor itself instead of copying it."""
        mask = object.__new__(cls)
        object.__setattr__(mask, "visible", visible)
        mask._check()
        return mask

    def _check(self) -> None:
        check_tensor("visible", self.visible, "a boolean tensor (queries, keys) or (batch, heads, queries, keys)")
        if self.visible.dtype != torch.bool:
            raise InputError(
                f"a mask must be boolean, True = may see, got {self.visible.dtype}: write "
                "masks.Padding(mask) for a tokenizer's attention_mask (batch, keys), masks.from_attention_mask(mask) "
                "for other zeros and ones, and `bias=` for numbers that are added to the scores"
            )
        if self.visible.ndim not in (2, 4):
            raise InputError(
                "a boolean mask must be (queries, keys) or (batch, heads, queries, keys), either of which may be 1, "
                f"got {tuple(self.visible.shape)}: write mask[:, None] for one mask a sequence, mask[None] for one a "
                "head"
            )

    @property
    def _four(self) -> Tensor:
        return self.visible if self.visible.ndim == 4 else self.visible[None, None]

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The entry of the matrix."""
        sizes = self._four.shape
        zero = torch.zeros_like(i)  # of what all sequences or heads share, one entry is the answer for all
        return self._four[
            batch if sizes[0] != 1 else zero,
            head if sizes[1] != 1 else zero,
            i - self.q_offset if sizes[2] > 1 else zero,
            j if sizes[3] > 1 else torch.zeros_like(j),
        ]

    def rectangle(self, batch: slice, heads: slice, i: slice, j: slice, device: torch.device) -> Tensor:
        """A part of the matrix, without copying."""
        if self._four.device != device:
            return super().rectangle(batch, heads, i, j, device)
        rows = slice(i.start - self.q_offset, i.stop - self.q_offset)
        part = self._four
        for dim, where in enumerate((batch, heads, rows, j)):
            if part.shape[dim] != 1:
                part = part.narrow(dim, where.start, where.stop - where.start)
        return part

    @cached_property
    def _cells(self) -> tuple[Tensor, Tensor]:
        """Prefix sums over a coarse grid: how many cells are not empty, and how many are not full."""
        four = self._four.cpu()
        rows, columns = four.shape[-2:]
        pad = (0, -columns % _CELL, 0, -rows % _CELL)
        grid = (*four.shape[:2], (rows + pad[3]) // _CELL, _CELL, (columns + pad[1]) // _CELL, _CELL)
        some = torch.nn.functional.pad(four, pad, value=False).view(grid).any(-1).any(-2)
        every = torch.nn.functional.pad(four, pad, value=True).view(grid).all(-1).all(-2)
        return _prefix(some), _prefix(~every)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Cover each rectangle with cells: EMPTY or FULL if all of them are."""
        rows, columns = self._four.shape[-2:]
        top, bottom = (rectangles.top - self.q_offset, rectangles.bottom - self.q_offset)
        if rows == 1:
            top, bottom = torch.zeros_like(top), torch.ones_like(bottom)
        left, right = rectangles.left, rectangles.right
        if columns == 1:
            left, right = torch.zeros_like(left), torch.ones_like(right)
        cover = top // _CELL, -(-bottom // _CELL), left // _CELL, -(-right // _CELL)
        some, lacking = (_count(table, *cover) for table in self._cells)
        kinds = torch.full_like(some, PARTIAL, dtype=torch.int8)
        return kinds.masked_fill(lacking == 0, FULL).masked_fill(some == 0, EMPTY)

    @property
    def leading(self) -> tuple[int, int]:
        """Those of the tensor."""
        return self._four.shape[0], self._four.shape[1]

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Remember where the rows start; check that the matrix fits."""
        rows, columns = self._four.shape[-2:]
        if 1 != rows != q_len or 1 != columns != kv_len:  # "in" compares no symbols of compilers
            raise InputError(
                f"the mask must be {q_len} queries × {kv_len} keys (either may be 1), got shape "
                f"{tuple(self.visible.shape)}"
            )
        return self.with_place(q_offset=q_offset)


def _prefix(cells: Tensor) -> Tensor:
    return torch.nn.functional.pad(cells.long().cumsum(-1).cumsum(-2), (1, 0, 1, 0))


def _count(table: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return table[..., bottom, right] - table[..., top, right] - table[..., bottom, left] + table[..., top, left]


@dataclass(frozen=True)
class MaskMod(Mask):
    """mask_mod(batch, head, i, j): any function of integer tensors that broadcast, True where a query may see a key.

    The same four arguments as `mask_mod` of PyTorch's FlexAttention. `i` and `j` are positions: of fewer queries than
    keys, the first has i = keys − queries, where FlexAttention counts rows from 0 (`bind(..., q_offset=0)` does too).

    Cost: O(queries · keys · dim) time: the function is called for every pair and no block is skipped. No memory.

    >>> import torch
    >>> even = MaskMod(lambda batch, head, i, j: (i - j) % 2 == 0)
    >>> even.bind(3, 3).dense()[0, 0].int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """

    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Call the function."""
        return self.mask_mod(batch, head, i, j)
