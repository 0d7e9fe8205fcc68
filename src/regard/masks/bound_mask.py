"""A mask with its place: how many queries and keys there are, and where the queries are."""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NoReturn

import torch
from jaxtyping import Bool, Int8
from torch import Tensor

from regard.errors import InputError
from regard.masks.block_plan import EMPTY, Rectangles, edges

if TYPE_CHECKING:
    from regard.masks.base import Mask

__all__ = ["BoundMask", "check_blocks", "check_kind", "refuse_to_combine"]

_PAIRS = 2**22  # pairs that are asked for together
_ALL = 2**30  # rectangles that are asked for one by one: minutes
_AT_ONCE = 2**18  # rectangles that are counted together: a million tokens have 61 million of 128 × 128


@dataclass(frozen=True, eq=False)
class BoundMask:
    """A mask with its place: `q_len` rows from position `q_offset` on, `kv_len` columns from position 0 on."""

    mask: "Mask"
    q_len: int
    kv_len: int
    q_offset: int
    given: "Mask"  # as it was before it was bound

    def __and__(self, _: object) -> NoReturn:
        """Refuse to be combined: masks are, before they are bound."""
        refuse_to_combine(self)

    __or__ = __rand__ = __ror__ = __and__

    def __invert__(self) -> NoReturn:
        """Refuse to be inverted."""
        refuse_to_combine(self)

    def tile(
        self, rows: slice, columns: slice, *, batch: slice | int = 1, heads: slice | int = 1, device: torch.device
    ) -> Bool[Tensor, "#batch #heads rows columns"]:
        """Evaluate the mask for some rows and columns (indices, not positions), broadcast over batch and heads.

        It may be a view of the mask's own tensor, and is not to be written to; what `dense` gives is.
        """
        visible = self._rectangle(rows, columns, batch, heads, device)
        return visible.expand(*visible.shape[:2], rows.stop - rows.start, columns.stop - columns.start)

    def broadcast(self, batch: int, heads: int, device: torch.device) -> Bool[Tensor, "#batch #heads #queries #keys"]:
        """Evaluate the mask for all rows and columns, each dimension of size 1 where all along it are alike."""
        return self._rectangle(slice(0, self.q_len), slice(0, self.kv_len), batch, heads, device)

    def _rectangle(
        self, rows: slice, columns: slice, batch: slice | int, heads: slice | int, device: torch.device
    ) -> Tensor:
        sequences, others = (x if isinstance(x, slice) else slice(0, x) for x in (batch, heads))
        positions = slice(rows.start + self.q_offset, rows.stop + self.q_offset)
        return self.mask.rectangle(sequences, others, positions, columns, device)

    def dense(
        self, batch: int | None = None, heads: int | None = None, device: torch.device | None = None
    ) -> Bool[Tensor, "#batch #heads queries keys"]:
        """Evaluate the mask for all rows and columns of so many sequences and heads, by default those that it declares
        (`Mask.leading`); of a function that reads `batch` or `head`, which declares none, give both.
        """
        own = self.mask.leading
        batch, heads = own[0] if batch is None else batch, own[1] if heads is None else heads
        device, columns = device or torch.device("cpu"), slice(0, self.kv_len)
        if torch.compiler.is_compiling():  # a loop over lengths would fix them, where they may be symbols
            return self.tile(slice(0, self.q_len), columns, batch=batch, heads=heads, device=device)
        # Positions are 64 bits a pair while a mask is asked: some rows at a time.
        rows = max(1, _PAIRS // max(1, self.kv_len))
        parts = [
            self.tile(slice(top, min(top + rows, self.q_len)), columns, batch=batch, heads=heads, device=device)
            for top in range(0, max(1, self.q_len), rows)
        ]
        return parts[0].clone() if len(parts) == 1 else torch.cat(parts, 2)

    def blocks(self, row_edges: Tensor, column_edges: Tensor, /) -> Int8[Tensor, "batch heads rows columns"]:
        """Tell of every rectangle between consecutive edges (indices) whether it is EMPTY, PARTIAL or FULL."""
        top = row_edges[:-1, None] + self.q_offset
        bottom = row_edges[1:, None] + self.q_offset
        return self.mask.blocks(Rectangles(top, bottom, column_edges[None, :-1], column_edges[None, 1:]))

    def share_visible(self, block: int = 128) -> float:
        """The share of blocks of `block` × `block` that hold a visible pair, of which all are asked for."""
        check_blocks(self, block, _ALL)
        rows, columns = edges(self.q_len, block), edges(self.kv_len, block)
        seen = total = 0
        step = max(1, _AT_ONCE // len(columns))
        for top in range(0, len(rows) - 1, step):
            kinds = self.blocks(rows[top : top + step + 1], columns)
            seen, total = seen + int((kinds != EMPTY).sum()), total + kinds.numel()
        return seen / total


def check_blocks(bound: BoundMask, block: int, most: int) -> None:
    """Raise where there are more blocks than may be gone through one by one."""
    count = -(-bound.q_len // block) * -(-bound.kv_len // block) * prod(bound.mask.leading)
    if count > most:
        raise InputError(
            f"{bound.q_len:,} queries and {bound.kv_len:,} keys are {count:,} blocks of {block} × {block}, more than "
            f"{most:,}: take larger ones, `block={2 * block}` or more"
        )


def refuse_to_combine(other: object) -> NoReturn:
    """Raise where a mask is combined with what is bound already, or is none."""
    raise InputError(
        f"masks combine with masks that are not bound yet, got {type(other).__name__}: write masks.Dense(tensor) "
        "for a boolean tensor, and bind the whole at the end"
    )


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise unless `value` is of a kind."""
    if not isinstance(value, kind):
        way_out = ": call mask.bind(q_len, kv_len) first" if kind.__name__ == "BoundMask" else ""
        raise InputError(f"`{name}` must be a {kind.__name__}, got {type(value).__name__}{way_out}")
