"""RandomBlocks: each block of queries sees a few blocks of keys, drawn once and for all."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.checks import are_integers, check_count, check_tensor
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.rectangles import Rectangles
from regard.torch_private import outside_transforms
from regard.values import flatten, kinds_in

__all__ = ["RandomBlocks", "draws_blocks"]

_TALL = 16  # block rows that are looked through one by one; taller rectangles are EMPTY or PARTIAL
_MOST = 2**26  # blocks that are drawn, for all heads together: 512 MB


@dataclass(frozen=True, eq=False)
class RandomBlocks(Mask):
    """⌊j/block⌋ is one of r blocks drawn for block row ⌊i/block⌋, r = `num_random_blocks`.

    This is the random part of BigBird (Zaheer et al. 2020, arXiv:2007.14062). Each block row draws r different blocks
    from all blocks of keys. If there are at most r blocks, the block row sees all of them. Each head has a draw of its
    own; `heads=1` makes one draw for all heads. The draw depends on `seed` and on the number of keys. A position
    therefore sees the same blocks wherever the queries start, but other blocks if the number of keys changes. Queries
    outside the positions of the keys see nothing. Memory grows with the number of blocks.

    `table` specifies the blocks instead of a draw, for example the blocks of a BigBird checkpoint. It is an integer
    tensor (heads, rows, blocks); the first dimension is 1 if all heads share the blocks. For each head and each block
    row, it contains the indices of the blocks of keys that the row sees; a repeated one counts once. `heads` and
    `num_random_blocks` are then taken from the table.

    Cost: O(n · r · block · dim) time; a number for each block that is drawn.

    >>> RandomBlocks(1, block=2, seed=1).bind(6, 6).dense()[0, 0].int()
    tensor([[0, 0, 1, 1, 0, 0],
            [0, 0, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 1],
            [0, 0, 0, 0, 1, 1],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0]], dtype=torch.int32)
    """

    num_random_blocks: int | None = None
    block: int = 64
    seed: int = 0
    heads: int = 1
    table: Int[Tensor, "heads rows num_random_blocks"] | None = None
    keys: int | None = field(default=None, init=False)  # set, as is the plan, when the mask is bound
    plan: Int[Tensor, "heads rows num_random_blocks"] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.table is not None:
            self._check_table(self.table)
        check_count("num_random_blocks", self.num_random_blocks, 1, "counts the blocks of each block row")
        check_count("block", self.block, 1, "counts the positions of a block")
        check_count("heads", self.heads, 1, "counts the heads, or is 1 for one draw for all", most=2**16)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**63:
            raise InputError(f"`seed` must be an integer of 64 bits, got {self.seed!r}")
        super().__post_init__()

    def _check_table(self, table: object) -> None:
        """Check a plan of the caller's own, and take heads and blocks from it."""
        check_tensor("table", table, "an integer tensor (heads, rows, blocks), the blocks of keys that each row sees")
        if not isinstance(table, Tensor) or table.ndim != 3 or not are_integers(table) or 0 in table.shape:
            got = f"{table.dtype} of shape {tuple(table.shape)}" if isinstance(table, Tensor) else table
            raise InputError(f"`table` must be an integer tensor (heads, rows, blocks), none of them 0, got {got}")
        if self.num_random_blocks not in (None, table.shape[2]):
            raise InputError(
                f"`num_random_blocks` is the table's, {table.shape[2]}, got {self.num_random_blocks}: leave it out"
            )
        if self.heads not in (1, table.shape[0]):
            raise InputError(f"`heads` is the table's, {table.shape[0]}, got {self.heads}: leave it out")
        object.__setattr__(self, "num_random_blocks", table.shape[2])
        object.__setattr__(self, "heads", table.shape[0])

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

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the drawn blocks in each rectangle, block row by block row; in tall ones, look whether there is any."""
        keys, table = self._drawn
        first, last = rectangles.top // self.block, (rectangles.bottom - 1) // self.block
        left, right = rectangles.left // self.block, (rectangles.right - 1) // self.block
        low = last - first < _TALL
        hits = torch.zeros((1, *rectangles.shape), dtype=torch.int64, device="cpu")
        for at in range(min(_TALL, int((last - first).max()) + 1) if bool(low.any()) else 0):
            row = first + at
            there = (row <= last) & (row >= 0) & (row < table.shape[1])
            row = row.clamp(0, table.shape[1] - 1)
            for n in range(table.shape[2]):
                drawn = table[:, row, n]
                hits = hits + (there & (left <= drawn) & (drawn <= right))
        inside = (rectangles.top >= 0) & (rectangles.bottom <= keys)
        some = (hits > 0) if bool(low.all()) else torch.where(low, hits > 0, self._any(first, last, left, right))
        return rectangles.answer(
            empty=~some[None],
            full=((hits == (last - first + 1) * (right - left + 1)) & low & inside)[None],
        )

    def _any(self, first: Tensor, last: Tensor, left: Tensor, right: Tensor) -> Bool[Tensor, "heads *rectangles"]:
        """Whether any block may be drawn in these block rows and columns: none is, in groups of rows around them."""
        first, last, left, right = torch.broadcast_tensors(first, last, left, right)
        heads, rows, columns = self.heads, self._drawn[1].shape[1], int(self._drawn[1].max()) + 1
        first, last = first.clamp(min=0), last.clamp(max=rows - 1)
        level = (last - first + 1).clamp(min=1).double().log2().floor().long()
        some = torch.zeros((heads, *first.shape), dtype=torch.bool, device="cpu")
        low, high = left.clamp(0, columns), (right + 1).clamp(0, columns)
        for one in level.unique().tolist():
            groups, cells = self._cells(one)
            for at in range(3):  # as tall as two groups at most, so that they stand in three
                group = (first >> one) + at
                there = (level == one) & (group <= last >> one) & (first <= last)
                row = (
                    torch.arange(heads, device="cpu").view(-1, *(1,) * first.ndim) * groups
                    + group.clamp(max=groups - 1)
                ) * columns
                some |= there & (torch.searchsorted(cells, row + low) < torch.searchsorted(cells, row + high))
        return some

    def _cells(self, level: int) -> tuple[int, Int[Tensor, " cells"]]:
        """Groups of 2^level block rows, and every drawn (head, group, column) as one number, sorted."""
        known: dict[int, tuple[int, Tensor]] = self.__dict__.setdefault("_sorted", {})
        if level not in known:
            table = self._drawn[1]
            groups, columns = ((table.shape[1] - 1) >> level) + 1, int(table.max()) + 1
            group = torch.arange(table.shape[1], device=table.device)[:, None] >> level
            cells = (torch.arange(self.heads, device=table.device)[:, None, None] * groups + group) * columns + table
            known[level] = groups, cells[table >= 0].unique()
        return known[level]

    @property
    def leading(self) -> tuple[int, int]:
        """One draw a head."""
        return 1, self.heads

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Draw the blocks, now that the number of keys is known; or check that the given plan fits it."""
        blocks = -(-kv_len // self.block)
        if self.table is not None:
            rows, last = self.table.shape[1], int(self.table.max())
            if rows != blocks or last >= blocks or int(self.table.min()) < 0:
                raise InputError(
                    f"`table` must name blocks from 0 to {blocks - 1} for each of the {blocks} block rows of "
                    f"{kv_len:,} keys in blocks of {self.block}, got {rows} rows and blocks from "
                    f"{int(self.table.min())} to {last}"
                )
            return self.with_place(keys=kv_len, plan=_distinct(self.table))
        count = min(self.num_random_blocks or 0, blocks)
        if self.heads * blocks * count > _MOST:
            raise InputError(
                f"`RandomBlocks` would draw {self.heads * blocks * count:,} blocks, {count:,} for each of {blocks:,} "
                f"block rows and {self.heads:,} heads, more than {_MOST:,}: make `block` larger, or "
                "`num_random_blocks` smaller"
            )
        return self.with_place(keys=kv_len, plan=_draw(self.heads, blocks, count, self.seed))

    @property
    def _drawn(self) -> tuple[int, Tensor]:
        if self.keys is None or self.plan is None:
            raise InputError("`RandomBlocks` draws when the number of keys is known: call mask.bind(q_len, kv_len)")
        return self.keys, self.plan


def draws_blocks(mask: object) -> bool:
    """Return whether a mask has random blocks in it, which a graph can neither draw nor check.

    >>> from regard.masks import Causal
    >>> draws_blocks(Causal() & ~RandomBlocks(2)), draws_blocks(Causal())
    (True, False)
    """
    return isinstance(mask, Mask) and any(kind is RandomBlocks for kind, _ in kinds_in(flatten(mask)[1]))


def _distinct(table: Int[Tensor, "heads rows count"]) -> Int[Tensor, "heads rows count"]:
    """Sort the blocks of each row, with −1 in place of repeated ones: `blocks` would count each of them."""
    ordered = table.long().sort(-1).values
    repeated = ordered[..., 1:] == ordered[..., :-1]
    return torch.cat([ordered[..., :1], ordered[..., 1:].masked_fill(repeated, -1)], -1)


def _draw(heads: int, blocks: int, count: int, seed: int) -> Int[Tensor, "heads rows count"]:
    """Floyd's sample without putting back, for all rows at once: a number drawn twice is replaced by the newest."""
    with outside_transforms():  # the seed decides, and not the `randomness` of torch.func.vmap
        generator = torch.Generator("cpu").manual_seed(seed)
        table = torch.full((heads, blocks, count), -1, device="cpu")
        for n, newest in enumerate(range(blocks - count, blocks)):
            drawn = torch.randint(newest + 1, (heads, blocks, 1), generator=generator, device="cpu")
            twice = (table == drawn).any(-1, keepdim=True)
            table[..., n : n + 1] = torch.where(twice, newest, drawn)
        return table
