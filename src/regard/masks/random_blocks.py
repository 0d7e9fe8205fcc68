"""Random: each block of queries sees a few blocks of keys, drawn once and for all."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask, Rectangles
from regard.masks.checks import check_count

__all__ = ["Random"]

_TALL = 16  # block rows that are looked through one by one; taller rectangles are PARTIAL


@dataclass(frozen=True, eq=False)
class Random(Mask):
    """⌊j/block⌋ is one of `count` blocks drawn for block row ⌊i/block⌋ (BigBird: Zaheer et al. 2020, arXiv:2007.14062).

    Each block row draws from all blocks of keys, without putting back, each head on its own (`heads=1`: one draw for
    all); with `count` blocks or fewer it sees them all. `seed` and the number of keys decide the draw: the same
    position has the same blocks wherever the queries start, other blocks for another number of keys. Queries outside
    the keys' positions see nothing. Memory grows with the number of blocks.

    Cost: O(n · count · block · dim) time; a number for each block that is drawn.

    >>> Random(1, block=2, seed=1).bind(6, 6).dense()[0, 0].int()
    tensor([[0, 0, 1, 1, 0, 0],
            [0, 0, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 1],
            [0, 0, 0, 0, 1, 1],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0]], dtype=torch.int32)
    """

    count: int
    block: int = 64
    seed: int = 0
    heads: int = 1
    keys: int | None = None  # set, as is the table, when the mask is bound
    table: Int[Tensor, "heads rows count"] | None = None

    def __post_init__(self) -> None:
        check_count("count", self.count, 1, "counts the blocks of keys for each block of queries")
        check_count("block", self.block, 1, "counts the positions of a block")
        check_count("heads", self.heads, 1, "counts the heads, or is 1 for one draw for all")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"`seed` must be an integer, got {self.seed!r}")
        super().__post_init__()

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key's block was drawn for the query's block row."""
        keys, table = self._drawn
        table = table.to(i.device)
        row = (i.clamp(0, max(keys - 1, 0))) // self.block
        column = j // self.block
        head = head if self.heads > 1 else torch.zeros_like(head)
        visible = torch.zeros((), dtype=torch.bool, device=i.device)
        for n in range(table.shape[2]):
            visible = visible | (table[head, row, n] == column)
        return visible & (i >= 0) & (i < keys)

    def blocks(self, rectangles: Rectangles) -> Tensor:
        """Count the drawn blocks in each rectangle, block row by block row; too tall a rectangle is PARTIAL."""
        keys, table = self._drawn
        first, last = rectangles.top // self.block, (rectangles.bottom - 1) // self.block
        left, right = rectangles.left // self.block, (rectangles.right - 1) // self.block
        tall = min(_TALL, int((last - first).max()) + 1)
        hits = torch.zeros((1, *rectangles.shape), dtype=torch.int64)
        for at in range(tall):
            row = first + at
            there = (row <= last) & (row >= 0) & (row < table.shape[1])
            row = row.clamp(0, table.shape[1] - 1)
            for n in range(table.shape[2]):
                drawn = table[:, row, n]
                hits = hits + (there & (left <= drawn) & (drawn <= right))
        low = last - first < tall
        inside = (rectangles.top >= 0) & (rectangles.bottom <= keys)
        return rectangles.answer(
            empty=((hits == 0) & low)[None],
            full=((hits == (last - first + 1) * (right - left + 1)) & low & inside)[None],
        )

    @property
    def leading(self) -> tuple[int, int]:
        """One draw a head."""
        return 1, self.heads

    def resolve(self, queries: int, keys: int, query_start: int) -> Mask:
        """Draw the blocks, now that the number of keys is known."""
        blocks = -(-keys // self.block)
        return self.with_place(keys=keys, table=_draw(self.heads, blocks, min(self.count, blocks), self.seed))

    @property
    def _drawn(self) -> tuple[int, Tensor]:
        if self.keys is None or self.table is None:
            raise InputError("`Random` draws when the number of keys is known: call mask.bind(queries, keys) first")
        return self.keys, self.table


def _draw(heads: int, blocks: int, count: int, seed: int) -> Int[Tensor, "heads rows count"]:
    """Floyd's sample without putting back, for all rows at once: a number drawn twice is replaced by the newest."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.full((heads, blocks, count), -1)
    for n, newest in enumerate(range(blocks - count, blocks)):
        drawn = torch.randint(newest + 1, (heads, blocks, 1), generator=generator)
        twice = (table == drawn).any(-1, keepdim=True)
        table[..., n : n + 1] = torch.where(twice, newest, drawn)
    return table
