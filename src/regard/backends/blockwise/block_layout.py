"""A problem laid out in blocks: which are computed in one go, evenly spaced or gathered.

Queries lie as (sides, row blocks, rows, dim) and keys as (sides, columns, dim): a side is a sequence and a key–value
head, and the rows of a block are those of all query heads that share it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.problem import Problem

__all__ = ["BlockBand", "Gathered", "Piece", "Sheet", "zeros_to_add_to"]


@dataclass(frozen=True)
class BlockBand:
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

    def chunks(self, items: int, length: int) -> Iterator["BlockBand"]:
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
        count = torch.arange(1 if shared else self.count, device="cpu")[:, None]
        return (
            (self.row + count) * block + torch.arange(block, device="cpu"),
            (self.start + self.step * count) * block + torch.arange(self.length * block, device="cpu"),
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
        inside = torch.arange(block, device="cpu")
        return self.rows[:, None] * block + inside, (self.columns[..., None] * block + inside).flatten(1)


Piece = BlockBand | Gathered


_COPIED = 2**21  # numbers of keys that are copied side by side: more leaves the cache, and asks for fresh memory


_ASKED = 2**22  # pairs of a tile for which a mask is asked one by one, in 64-bit positions


@dataclass(frozen=True, eq=False)
class Sheet:
    """Some sequences and heads of a problem whose mask leaves the same blocks, and its pieces.

    A side is a sequence and a key–value head. The query heads that share it lie side by side in the rows of a block,
    so that its keys are read once for all of them.
    """

    problem: Problem
    batch: slice
    heads: slice
    block: int
    pieces: tuple[Piece, ...]

    @property
    def kv(self) -> slice:
        """The key–value heads of these heads."""
        group = self.problem.heads // self.problem.kv_heads
        return slice(self.heads.start // group, (self.heads.stop - 1) // group + 1)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sequences, key–value heads, and query heads for each of these."""
        kv_heads = self.kv.stop - self.kv.start
        return self.batch.stop - self.batch.start, kv_heads, (self.heads.stop - self.heads.start) // kv_heads

    def fold_queries(
        self, x: Float[Tensor, "batch heads queries *dim"], fill: float = 0.0
    ) -> Float[Tensor, "sides row_blocks rows *dim"]:
        """Take the part of this sheet and lay it out by row blocks, the last one filled up."""
        batch, kv_heads, group = self.sizes
        part = x[self.batch, self.heads]
        if part.ndim == 4 and part.stride(-1) != 1:
            part = part.contiguous()  # the fused operators read vectors as if they lay together
        short = -part.shape[2] % self.block
        if short:
            part = pad(part, (0, 0) * (part.ndim - 3) + (0, short), value=fill)
        split = part.reshape(batch * kv_heads, group, -1, self.block, *part.shape[3:])
        folded: Tensor = split.transpose(1, 2).flatten(2, 3)
        return folded

    def fold_backward(self, up: Tensor, output: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        """Lay out what a backward pass takes of each row. Those that only fill up have an lse of ∞, and so no weights:
        0 · exp(s − 0) is NaN where a bias makes s large.
        """
        fills = 0.0, 0.0, torch.inf, 0.0
        return tuple(self.fold_queries(x, fill) for x, fill in zip((up, output, lse, delta), fills, strict=True))

    def unfold_queries(
        self, x: Float[Tensor, "sides row_blocks rows *dim"]
    ) -> Float[Tensor, "batch heads queries *dim"]:
        """The reverse of `fold_queries`."""
        batch, kv_heads, group = self.sizes
        split = x.unflatten(2, (group, self.block)).transpose(1, 2)
        whole = split.reshape(batch, kv_heads * group, -1, *x.shape[3:])
        real: Tensor = whole[:, :, : self.problem.queries]
        return real

    def fold_keys(self, x: Float[Tensor, "batch kv_heads keys dim"]) -> Float[Tensor, "sides columns dim"]:
        """Take the part of this sheet, filled up with zeros to whole blocks."""
        part = x[self.batch, self.kv].flatten(0, 1)
        short = -part.shape[1] % self.block
        return pad(part, (0, 0, 0, short)) if short else part.contiguous()

    def unfold_keys(self, x: Float[Tensor, "sides columns dim"]) -> Float[Tensor, "batch kv_heads keys dim"]:
        """The reverse of `fold_keys`."""
        unfolded: Tensor = x[:, : self.problem.keys].unflatten(0, self.sizes[:2])
        return unfolded

    def chunks(self, elements: int, *, columns: int) -> Iterator[Piece]:
        """All pieces, cut so that a tile of scores has at most so many elements and rows of at most `columns`."""
        batch, kv_heads, group = self.sizes
        square = batch * kv_heads * group * self.block**2
        for piece in self.pieces:
            most = elements if self.shared(piece) or not piece.masked else min(elements, _ASKED)
            if isinstance(piece, Gathered):
                most = min(most, _COPIED * group * self.block // self.problem.k.shape[-1])
            length = min(piece.length, max(1, most // square), max(1, columns // self.block))
            alone = isinstance(piece, BlockBand) and self._alone(piece)
            yield from piece.chunks(1 if alone else max(1, most // (square * length)), length)

    def _alone(self, band: BlockBand) -> bool:
        """Whether each row of a band has numbers of its own."""
        problem = self.problem
        terms = [term for term in (problem.bias, problem.weight_factor) if term is not None]
        return not problem.score.product or any(band.step == 0 or not term.relative for term in terms)

    def real(self, piece: Piece) -> tuple[slice, slice]:
        """The queries and keys of a band's first row, without those that only fill up."""
        assert isinstance(piece, BlockBand)
        top, left = piece.row * self.block, piece.start * self.block
        return (
            slice(top, min(top + self.block, self.problem.queries)),
            slice(left, min(left + piece.length * self.block, self.problem.keys)),
        )

    def shared(self, piece: Piece) -> bool:
        """Whether one tile of the mask serves all rows of a piece."""
        mask = self.problem.mask
        return mask is None or mask.mask.relative

    def hidden(self, piece: Piece) -> Bool[Tensor, "#batch #kv_heads #items #group rows columns"] | None:
        """The pairs of a piece that the mask hides, or None where it hides none."""
        if not piece.masked:
            return None
        problem, device = self.problem, self.problem.q.device
        rows, columns = (x.to(device) for x in piece.places(self.block, shared=self.shared(piece)))
        beyond = (columns >= problem.keys)[:, None]
        if problem.mask is None:
            return beyond.expand(-1, self.block, -1)[None, None, :, None]
        # Rows and columns that fill up the last block stand where a mask that holds tensors can be asked.
        i = rows.clamp(max=problem.queries - 1) + problem.q_offset
        j = columns.clamp(max=problem.keys - 1)
        b, h = (torch.arange(part.start, part.stop, device=device) for part in (self.batch, self.heads))
        seen = problem.mask.mask(
            b[:, None, None, None, None], h[None, :, None, None, None], i[None, None, ..., None], j[None, None, :, None]
        )
        # A rule of one's own may tell sequences and heads apart without saying so.
        hidden = (~seen | beyond).expand(*seen.shape[:2], len(rows), self.block, j.shape[1])
        if hidden.shape[1] == 1:
            return hidden[:, :, :, None]
        grouped: Tensor = hidden.unflatten(1, self.sizes[1:]).transpose(2, 3)
        return grouped


def zeros_to_add_to(like: Tensor) -> Tensor:
    """Zeros to add gradients to; where those have gradients in their turn, that they have even if no pair is seen."""
    differentiated = torch.is_grad_enabled() and like.requires_grad
    return like.masked_fill(like.new_ones((), dtype=torch.bool), 0.0) if differentiated else torch.zeros_like(like)
