"""FlexAttention's block masks, from our masks and back.

A `BlockMask` lists for each block of queries the blocks of keys that are partly visible, and those that are wholly
visible; what is in neither list is not visited. `torch.nn.attention.flex_attention` is imported when it is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int8, Int32
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import BoundMask, Mask, check_blocks, check_kind
from regard.masks.block_plan import cover
from regard.masks.block_tables import BlockTables, block_tables
from regard.masks.dense import _count, _prefix
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, Rectangles, edges

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["from_block_mask", "mask_mod_of", "to_block_mask"]

_MOST = 2**28  # blocks of tables at full width: 16 bytes each
_AT_ONCE = 2**20  # blocks that are listed together: finding their places takes 64-bit numbers


def to_block_mask(
    mask: BoundMask, *, block: int = 128, device: torch.device | str = "cpu", narrow: bool = False
) -> "BlockMask":
    """Write a mask as FlexAttention's `BlockMask`, from what it knows of its blocks: no pair is evaluated.

    The batch and head dimensions of the tables are those of the mask. They are 1 if the mask is the same for all, as
    `flex_attention` expects. `mask_mod` is the mask itself with its tensors on `device`, the device on which attention
    will run.

    By default the tables have (n / block)² entries. With `narrow` they are as wide as their longest list, so time and
    memory grow with the number of listed blocks. For a window of 4,096 keys in 1,000,000 tokens, narrow tables need 8
    MB instead of 1 GB. Narrow tables are for `flex_attention` on CUDA, whose kernels read the lists by their strides.
    The compiled CPU kernel refuses narrow tables. `to_dense`, `to_string` and slices of a `BlockMask` do not support
    them, because these methods assume that the width of a table is the number of blocks.

    >>> from regard.masks import Causal, Window
    >>> block_mask = to_block_mask((Causal() & Window(200)).bind(512, 512))
    >>> (block_mask.to_dense() + 0)[0, 0]  # full blocks and partial ones
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1]], dtype=torch.int32)
    """
    check_kind("mask", mask, BoundMask)
    if block < 1:
        raise InputError(f"`block` must be at least 1, got {block}")
    tables = block_tables(cover(mask, mask.q_len, mask.kv_len, block), narrow=True) if narrow else _wide(mask, block)
    return tables.to(device).block_mask((mask.q_len, mask.kv_len), block, mask_mod_of(mask, device))


def from_block_mask(block_mask: "BlockMask") -> Mask:
    """Convert FlexAttention's `BlockMask`: its `mask_mod` in the blocks that it lists as partial, all of the full ones.

    `mask_mod` is called with tensors that broadcast, where FlexAttention gives it single numbers. Queries are counted
    from 0 there, wherever they stand here.

    >>> from torch.nn.attention.flex_attention import create_block_mask
    >>> block_mask = create_block_mask(lambda batch, head, i, j: j <= i, 1, 1, 3, 3, device="cpu")
    >>> from_block_mask(block_mask).bind(3, 3).dense()[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    if not hasattr(block_mask, "seq_lengths"):
        raise InputError(f"`block_mask` must be a BlockMask of FlexAttention, got {type(block_mask).__name__}")
    queries, keys = block_mask.seq_lengths
    columns = -(-keys // block_mask.BLOCK_SIZE[1])
    kinds = _marked(block_mask.kv_num_blocks, block_mask.kv_indices, columns).to(torch.int8) * PARTIAL
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        full = _marked(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
        kinds = kinds.masked_fill(full, FULL)
    kinds = kinds[(None,) * (4 - kinds.ndim)]  # without batch and heads it holds for all
    return _Listed(kinds, block_mask.BLOCK_SIZE, (queries, keys), block_mask.mask_mod)


@dataclass(frozen=True, eq=False)
class _Listed(Mask):
    """The kinds of all blocks of one size, and a rule within the partial ones."""

    kinds: Int8[Tensor, "batch heads rows columns"]
    block: tuple[int, int]
    lengths: tuple[int, int]
    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    q_offset: int = 0

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The block is full, or partial and the rule holds."""
        row = i - self.q_offset
        batches, heads = self.leading
        kinds = self.kinds[
            batch if batches > 1 else torch.zeros_like(batch),
            head if heads > 1 else torch.zeros_like(head),
            row // self.block[0],
            j // self.block[1],
        ]
        return (kinds == FULL) | ((kinds == PARTIAL) & self.mask_mod(batch, head, row, j))

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        kinds = self.kinds.cpu()
        return _prefix(kinds != EMPTY), _prefix(kinds != FULL)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Cover each rectangle with the listed blocks: EMPTY or FULL if all of them are."""
        height, width = self.block
        top, bottom = rectangles.top - self.q_offset, rectangles.bottom - self.q_offset
        cover = top // height, -(-bottom // height), rectangles.left // width, -(-rectangles.right // width)
        some, lacking = (_count(sums, *cover) for sums in self._sums)
        kinds = torch.full_like(some, PARTIAL, dtype=torch.int8)
        return kinds.masked_fill(lacking == 0, FULL).masked_fill(some == 0, EMPTY)

    @property
    def leading(self) -> tuple[int, int]:
        """Those of the tables."""
        return self.kinds.shape[0], self.kinds.shape[1]

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Remember where the rows start; check that the block mask was made for these lengths."""
        if (q_len, kv_len) != self.lengths:
            made = " queries × ".join(map(str, self.lengths))
            raise InputError(f"the block mask was made for {made} keys, got {q_len} queries × {kv_len} keys")
        return self.with_place(q_offset=q_offset)


def mask_mod_of(mask: BoundMask, device: torch.device | str) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Give the mask as FlexAttention asks for it: counted from the first query, with what it holds on `device`."""
    rule = _placed(mask.mask, torch.device(device))
    start, last_query, last_key = mask.q_offset, mask.q_len - 1, mask.kv_len - 1

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The mask; the last blocks may reach beyond the ends, where masks that hold tensors have nothing."""
        seen: Tensor = rule(batch, head, query.clamp(max=last_query) + start, key.clamp(max=last_key))
        return seen

    return mask_mod


def _placed(value: Any, device: torch.device) -> Any:
    """Place what tensors a mask holds or has computed on a device: inside a kernel nothing can be moved.

    They are other objects, also on the same device: what is planned for a mask is dropped when its tensors are gone.
    """
    if isinstance(value, Tensor):
        return value.detach().to(device)
    if type(value) in (tuple, list):
        return type(value)(_placed(one, device) for one in value)
    if not isinstance(value, Mask):
        return value
    copy = object.__new__(type(value))
    for name, one in tuple(vars(value).items()):  # fields, and what was computed from them
        object.__setattr__(copy, name, _placed(one, device))
    return copy


def _wide(mask: BoundMask, block: int) -> BlockTables:
    """Tables as `create_block_mask` makes them, with the blocks that are not listed behind those that are."""
    kinds = _kinds(mask, block)
    partial, full = kinds == PARTIAL, kinds == FULL
    # The key blocks of each query block, then the query blocks of each key block.
    return BlockTables(*_listed(partial), *_listed(full), *_listed(partial.mT), *_listed(full.mT))


def _kinds(mask: BoundMask, block: int) -> Int8[Tensor, "batch heads rows columns"]:
    """What the mask knows of all blocks; those that reach beyond the ends are never FULL."""
    check_blocks(mask, block, _MOST)
    rows, columns = edges(mask.q_len, block), edges(mask.kv_len, block)
    step = max(1, _AT_ONCE // len(columns))
    kinds = torch.cat(
        [mask.blocks(rows[top : top + step + 1], columns) for top in range(0, len(rows) - 1, step)], dim=2
    )
    if mask.q_len % block:
        kinds[:, :, -1] = kinds[:, :, -1].clamp(max=PARTIAL)
    if mask.kv_len % block:
        kinds[..., -1] = kinds[..., -1].clamp(max=PARTIAL)
    return kinds


def _listed(
    marked: Bool[Tensor, "batch heads rows columns"],
) -> tuple[Int32[Tensor, "batch heads rows"], Int32[Tensor, "batch heads rows columns"]]:
    """Count the marked columns of each row, and list them before all others, at full width, as kernels expect it."""
    counts = marked.sum(-1, dtype=torch.int32)
    indices = torch.empty(marked.shape, dtype=torch.int32, device=marked.device)
    step = max(1, _AT_ONCE // marked[:, :, 0].numel())
    for top in range(0, marked.shape[2], step):
        part = marked[:, :, top : top + step]
        marked_before, others_before = part.cumsum(-1) - 1, (~part).cumsum(-1) - 1
        place = torch.where(part, marked_before, counts[:, :, top : top + step, None] + others_before)
        columns = torch.arange(part.shape[-1], dtype=torch.int32, device=marked.device).expand(part.shape)
        indices[:, :, top : top + step].scatter_(-1, place, columns)
    return counts, indices


def _marked(counts: Tensor, indices: Tensor, columns: int) -> Bool[Tensor, "*batch rows columns"]:
    """Undo `_listed`: mark the listed columns of each row."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    marked = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    return marked.scatter(-1, torch.where(listed, indices, columns).long(), True)[..., :columns]
