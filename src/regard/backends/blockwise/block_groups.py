"""What is computed in one go: row blocks and, for each, equally many column blocks.

Queries lie as (sides, row blocks, rows, dim) and keys as (sides, columns, dim): a side is a sequence and a key–value
head, and the rows of a block are those of all query heads that share it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Band", "Gathered", "Piece"]


@dataclass(frozen=True)
class Band:
    """Row blocks row, row + 1, … (`count`), each with `length` column blocks, the first row's from `start` on.

    The columns of the next row begin `step` blocks later (0 or 1), so that the keys of all rows are one strided view.
    A masked band has one row, or a mask that depends on i − j alone and so has one tile for all rows.
    """

    row: int
    count: int
    start: int
    length: int
    step: int
    masked: bool

    def chunks(self, items: int, length: int) -> Iterator["Band"]:
        """Cut into bands of at most so many rows and columns (in blocks)."""
        for left in range(0, self.length, length):
            for top in range(0, self.count, items):
                yield replace(
                    self,
                    row=self.row + top,
                    count=min(items, self.count - top),
                    start=self.start + top * self.step + left,
                    length=min(length, self.length - left),
                )

    def rows_of(self, x: Float[Tensor, "sides row_blocks ..."]) -> Float[Tensor, "sides items ..."]:
        """The rows, without copying."""
        return x[:, self.row : self.row + self.count]

    def add_rows(self, x: Float[Tensor, "sides row_blocks ..."], what: Float[Tensor, "sides items ..."]) -> None:
        """Add to the rows."""
        x[:, self.row : self.row + self.count].add_(what)

    def set_rows(self, x: Float[Tensor, "sides row_blocks ..."], what: Float[Tensor, "sides items ..."]) -> None:
        """Replace the rows."""
        x[:, self.row : self.row + self.count] = what

    def keys_of(self, x: Float[Tensor, "sides columns dim"], block: int) -> Float[Tensor, "sides items keys dim"]:
        """The keys of each row: overlapping windows, without copying."""
        sides, _, dim = x.shape
        if self.count == 1 or self.step == 0:
            part = x[:, None, self.start * block : (self.start + self.length) * block]
            return part.expand(-1, self.count, -1, -1)
        shape = (sides, self.count, self.length * block, dim)
        return x.as_strided(
            shape, (x.stride(0), self.step * block * dim, dim, 1), x.storage_offset() + self.start * block * dim
        )

    def add_keys(self, x: Float[Tensor, "sides columns dim"], what: Float[Tensor, "sides items keys dim"]) -> None:
        """Add what each row gives to its keys."""
        block = what.shape[2] // self.length
        if self.count == 1 or self.step == 0:
            x[:, self.start * block : (self.start + self.length) * block].add_(
                what.sum(1) if self.count > 1 else what[:, 0]
            )
            return
        blocks = x.unflatten(1, (-1, block))
        for column in range(self.length):
            here = slice(self.start + column, self.start + column + self.count)
            blocks[:, here].add_(what[:, :, column * block : (column + 1) * block])

    def places(self, block: int, shared: bool) -> tuple[Int[Tensor, "items rows"], Int[Tensor, "items columns"]]:
        """Indices of queries and keys; of the first row alone where all rows look alike."""
        count = torch.arange(1 if shared else self.count)[:, None]
        return (
            (self.row + count) * block + torch.arange(block),
            (self.start + self.step * count) * block + torch.arange(self.length * block),
        )


@dataclass(frozen=True, eq=False)
class Gathered:
    """Some row blocks with equally many column blocks each, anywhere: their keys are copied together."""

    rows: Int[Tensor, " items"]
    columns: Int[Tensor, "items length"]
    masked: bool

    @property
    def count(self) -> int:
        """How many row blocks."""
        return self.rows.shape[0]

    @property
    def length(self) -> int:
        """How many column blocks each has."""
        return self.columns.shape[1]

    def chunks(self, items: int, length: int) -> Iterator["Gathered"]:
        """Cut into pieces of at most so many rows and columns (in blocks)."""
        for left in range(0, self.length, length):
            for top in range(0, self.count, items):
                columns = self.columns[top : top + items, left : left + length]
                yield Gathered(self.rows[top : top + items], columns, self.masked)

    def rows_of(self, x: Float[Tensor, "sides row_blocks ..."]) -> Float[Tensor, "sides items ..."]:
        """The rows, copied."""
        return x[:, self.rows.to(x.device)]

    def add_rows(self, x: Float[Tensor, "sides row_blocks ..."], what: Float[Tensor, "sides items ..."]) -> None:
        """Add to the rows, of which none is there twice."""
        x[:, self.rows.to(x.device)] += what

    def set_rows(self, x: Float[Tensor, "sides row_blocks ..."], what: Float[Tensor, "sides items ..."]) -> None:
        """Replace the rows."""
        x[:, self.rows.to(x.device)] = what

    def keys_of(self, x: Float[Tensor, "sides columns dim"], block: int) -> Float[Tensor, "sides items keys dim"]:
        """The keys of each row, copied."""
        blocks = x.unflatten(1, (-1, block))
        keys: Tensor = blocks[:, self.columns.to(x.device)].flatten(2, 3)
        return keys

    def add_keys(self, x: Float[Tensor, "sides columns dim"], what: Float[Tensor, "sides items keys dim"]) -> None:
        """Add what each row gives to its keys; a block may be there for many rows."""
        block = what.shape[2] // self.length
        blocks, columns = x.unflatten(1, (-1, block)), self.columns.flatten().to(x.device)
        parts = what.unflatten(2, (self.length, block)).flatten(1, 2)
        if x.is_cuda:  # index_add_ adds in any order there
            blocks.index_put_((torch.arange(len(x), device=x.device)[:, None], columns), parts, accumulate=True)
        else:
            blocks.index_add_(1, columns, parts)

    def places(self, block: int, shared: bool) -> tuple[Int[Tensor, "items rows"], Int[Tensor, "items columns"]]:
        """Indices of queries and keys."""
        inside = torch.arange(block)
        return self.rows[:, None] * block + inside, (self.columns[..., None] * block + inside).flatten(1)


Piece = Band | Gathered
