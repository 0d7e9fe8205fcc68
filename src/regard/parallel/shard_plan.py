"""What each rank computes, and what it sends to whom: rectangles, rounds, work and bytes, read from the mask.

In round t a rank computes its rows with keys of rank + t, which this rank sends. Keys that none of the rows sees are
not sent, and a round without any is left out.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.masks.base import BoundMask
from regard.masks.block_plan import BLOCK, Cover, Runs, plan_of
from regard.masks.rectangles import EMPTY, FULL, Rectangles
from regard.parallel.exchange import moves
from regard.parallel.sequence_layout import RowWork, SequenceLayout, balanced, contiguous, mirrored
from regard.part import Part
from regard.problem import Problem
from regard.tensors import human_bytes

__all__ = ["ShardPlan", "ShardRectangle", "TensorSizes", "plan_replicated", "plan_shards", "work_of"]

_ROWS_LEAST = 16  # of a block that is planned with, however short the sequence is
_LISTED = 16  # ranks that are listed one by one, at most
_BLOCKS_EACH = 8  # blocks of a rank's rows, at least


@dataclass(frozen=True)
class ShardRectangle:
    """Rows and columns (indices of queries and keys) that are computed in one go, and whether all pairs are visible."""

    rows: range
    columns: range
    full: bool


@dataclass(frozen=True)
class TensorSizes:
    """The sizes of q, k and v on one rank but for the length: sequences, heads, widths, and bytes of a number."""

    batch: int
    heads: int
    kv_heads: int
    dim: int
    key_dim: int
    value_dim: int
    itemsize: int

    @classmethod
    def of(cls, whole: Problem, area: Part) -> "TensorSizes":
        """Those of a rank that has some sequences and heads of a call."""
        batch, heads = (one.stop - one.start for one in (area.batch, area.heads))
        kv_heads = heads * whole.kv_heads // max(1, whole.heads)
        dim, key_dim, value_dim = (x.shape[-1] for x in (whole.q, whole.k, whole.v))
        return cls(batch, heads, kv_heads, dim, key_dim, value_dim, whole.q.element_size())

    @property
    def key_bytes(self) -> int:
        """The bytes of one key with its value."""
        return self.batch * self.kv_heads * (self.key_dim + self.value_dim) * self.itemsize

    @property
    def key_gradient_bytes(self) -> int:
        """The bytes of the gradient of one key with its value, in float32 at least."""
        return self.key_bytes // self.itemsize * max(4, self.itemsize)

    @property
    def query_bytes(self) -> int:
        """The bytes of one query."""
        return self.batch * self.heads * self.dim * self.itemsize

    @property
    def output_bytes(self) -> int:
        """The bytes of one row of the output."""
        return self.batch * self.heads * self.value_dim * self.itemsize


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """The plan of one call over the ranks of one axis of a mesh.

    Args:
        stored: Where the queries are, and where their output is wanted.
        queries: Where the rows of the queries are computed.
        keys: Where the keys and values are.
        kinds: EMPTY, PARTIAL or FULL for each span of `queries` and each span of `keys`, in the order of the ranks.
        block: Rows and columns of a block.
        runs: The blocks that the mask leaves, of all sequences and heads.
        work: What the rows cost.
        exchanges: Whether keys are sent; where every rank has all queries, none are.
    """

    stored: SequenceLayout
    queries: SequenceLayout
    keys: SequenceLayout
    kinds: npt.NDArray[np.int8]
    block: int
    runs: Runs
    work: RowWork
    exchanges: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.keys.ranks

    @cached_property
    def _row_spans(self) -> list[list[tuple[int, range]]]:
        return _numbered(self.queries)

    @cached_property
    def _column_spans(self) -> list[list[tuple[int, range]]]:
        return _numbered(self.keys)

    @cached_property
    def _sorted_runs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Row block, first column and end of all runs, sorted by rows."""
        row, start, length = self.runs.row, self.runs.start, self.runs.length
        order = np.argsort(row, kind="stable")
        ends = np.minimum((start + length) * self.block, self.keys.length)
        return row[order], (start * self.block)[order], ends[order]

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[ShardRectangle, ...]]:
        return {}

    def rectangles(self, rank: int, owner: int) -> tuple[ShardRectangle, ...]:
        """What a rank computes with the keys of an owner."""
        if (known := self._known.get((rank, owner))) is not None:
            return known
        found = []
        for at, rows in self._row_spans[rank]:
            for to, columns in self._column_spans[owner]:
                if self.kinds[at, to] != EMPTY and len(seen := self._hull(rows, columns)):
                    found.append(ShardRectangle(rows, seen, bool(self.kinds[at, to] == FULL)))
        self._known[rank, owner] = tuple(found)
        return tuple(found)

    def _hull(self, rows: range, columns: range) -> range:
        """The columns from the first to the last block that some row sees."""
        row, start, end = self._sorted_runs
        here = slice(*np.searchsorted(row, [rows.start // self.block, -(-rows.stop // self.block)]).tolist())
        start, end = start[here], end[here]
        touching = (start < columns.stop) & (end > columns.start)
        if not touching.any():
            return range(0)
        return range(max(columns.start, int(start[touching].min())), min(columns.stop, int(end[touching].max())))

    def segments(self, rank: int, owner: int) -> tuple[range, ...]:
        """The keys of an owner that a rank needs, in the order in which the owner holds them."""
        needed: dict[range, range] = {}
        for _, span in self._column_spans[owner]:
            mine = [one.columns for one in self.rectangles(rank, owner) if one.columns.start in span]
            if mine:
                needed[span] = range(min(one.start for one in mine), max(one.stop for one in mine))
        return tuple(needed.values())

    def keys_needed(self, rank: int, owner: int) -> int:
        """How many keys of an owner a rank needs."""
        return sum(map(len, self.segments(rank, owner)))

    def rounds(self, rank: int) -> tuple[int, ...]:
        """The rounds in which a rank receives keys."""
        return tuple(t for t in range(1, self.ranks) if self.segments(rank, (rank + t) % self.ranks))

    @cached_property
    def all_rounds(self) -> tuple[int, ...]:
        """The rounds in which any rank receives keys."""
        if not self.exchanges:
            return ()
        return tuple(sorted({t for rank in range(self.ranks) for t in self.rounds(rank)}))

    def keys_sent(self, rank: int) -> int:
        """How many keys a rank sends to others."""
        return sum(self.keys_needed(other, rank) for other in range(self.ranks) if other != rank)

    def keys_received(self, rank: int) -> int:
        """How many keys a rank receives from others."""
        return sum(self.keys_needed(rank, owner) for owner in range(self.ranks) if owner != rank)

    def rows_moved(self, rank: int, *, back: bool = False) -> int:
        """How many rows a rank gives away so that work is even; `back`: how many results it returns."""
        source, target = (self.queries, self.stored) if back else (self.stored, self.queries)
        if source == target:
            return 0
        others = (peer for peer in range(self.ranks) if peer != rank)
        return sum(one[2] for peer in others for one in moves(source, target, rank, peer))

    def bytes_forward(self, rank: int, sizes: TensorSizes) -> int:
        """The bytes that a rank sends for the output."""
        keys = self.keys_sent(rank) * sizes.key_bytes
        return keys + self.rows_moved(rank) * sizes.query_bytes + self.rows_moved(rank, back=True) * sizes.output_bytes

    def bytes_backward(self, rank: int, sizes: TensorSizes) -> int:
        """The bytes that a rank sends for the gradients of q, k and v: keys again, and their gradients back."""
        keys = self.keys_sent(rank) * sizes.key_bytes + self.keys_received(rank) * sizes.key_gradient_bytes
        return keys + self.rows_moved(rank) * sizes.output_bytes + self.rows_moved(rank, back=True) * sizes.query_bytes

    def work_of(self, rank: int) -> float:
        """The pairs that a rank computes, in whole blocks of the mask."""
        return self.work.of_ranks(self.queries)[rank]

    @property
    def imbalance(self) -> float:
        """The work of the busiest rank as a multiple of the mean."""
        return self.work.imbalance(self.queries)

    def summary(self, sizes: TensorSizes) -> list[str]:
        """What all ranks do, in lines to be read, and each of them in a table where they are few."""
        sent = [[each(rank, sizes) for rank in range(self.ranks)] for each in (self.bytes_forward, self.bytes_backward)]
        there, back = (f"{human_bytes(sum(x) / self.ranks)} on average, {human_bytes(max(x))} at most" for x in sent)
        length = self.stored.length
        moved = "rows are computed where they are"
        if self.queries != self.stored:
            moved = f"{sum(map(self.rows_moved, range(self.ranks))):,} rows are computed on their mirror rank"
        share = self.work.of(range(length)) / max(1, length * self.keys.length)
        lines = [
            f"{length:,} tokens over {self.ranks} ranks, {max(self.stored.sizes):,} each; {moved}",
            f"the mask leaves {share:.2%} of the pairs, in blocks; the busiest rank has {self.imbalance:.2f} × the "
            "mean work",
            f"{len(self.all_rounds)} of {self.ranks - 1} rounds send keys",
            f"forward, a rank sends {there}; backward {back}",
        ]
        return lines + (self._table(sizes) if self.ranks <= _LISTED else [])

    def _table(self, sizes: TensorSizes) -> list[str]:
        """Each rank: its number, rows, work, whose keys it takes, and what it sends."""
        mean = self.work.of(range(self.stored.length)) / self.ranks
        table = [("rank", "rows", "work / mean", "keys from", "forward", "backward")]
        for rank in range(self.ranks):
            owners = sorted((rank + number) % self.ranks for number in self.rounds(rank))
            work = f"{self.work_of(rank) / mean if mean else 0:.2f}"
            there, back = (human_bytes(each(rank, sizes)) for each in (self.bytes_forward, self.bytes_backward))
            taken = ", ".join(map(str, owners)) or "none"
            table.append((str(rank), f"{self.queries.sizes[rank]:,}", work, taken, there, back))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]


def plan_shards(mask: BoundMask | None, area: Part, stored: SequenceLayout, keys: SequenceLayout) -> ShardPlan:
    """Plan a call of some sequences and heads whose queries and keys lie so; rows that are in order may be computed on
    their mirror rank.
    """
    block, runs, work = _runs_and_work(mask, area, stored.length, keys.length, stored)
    queries = stored
    if stored == contiguous(stored.length, stored.ranks):
        queries = balanced(work, (stored, mirrored(stored.length, stored.ranks)))
    return ShardPlan(stored, queries, keys, _kinds(mask, area, queries, keys), block, runs, work)


def plan_replicated(mask: BoundMask | None, area: Part, queries: SequenceLayout, keys: SequenceLayout) -> ShardPlan:
    """Plan a call of which every rank has all queries and some of the keys, and computes what they see of those."""
    block, runs, work = _runs_and_work(mask, area, queries.sizes[0], keys.length, keys)
    return ShardPlan(queries, queries, keys, _kinds(mask, area, queries, keys), block, runs, work, exchanges=False)


def work_of(mask: BoundMask, layout: SequenceLayout) -> RowWork:
    """What the rows of a mask cost, in blocks that fit a layout."""
    return _row_work(plan_of(mask, layout.length, layout.length, _block_for(layout)))


def _runs_and_work(
    mask: BoundMask | None, area: Part, queries: int, keys: int, fits: SequenceLayout
) -> tuple[int, Runs, RowWork]:
    """The blocks that a mask leaves of some sequences and heads, of a size that fits a layout, and what they cost."""
    cover = plan_of(mask, queries, keys, _block_for(fits))
    batch, heads = (_told_apart(own, count) for own, count in zip((area.batch, area.heads), cover.leading, strict=True))
    if (len(batch), len(heads)) != cover.leading:
        parts = [runs for b, h, runs in cover.slices() if b in batch and h in heads]
        runs = Runs.together(parts) if parts else cover.runs.where(slice(0))  # a rank may have no sequence
        cover = replace(cover, leading=(len(batch), len(heads)), runs=runs)
    return cover.block, cover.runs, _row_work(cover)


def _told_apart(own: slice, count: int) -> range:
    """Which of the sequences or heads that a mask tells apart are these: one stands for all where it tells none."""
    return range(own.start, own.stop) if count > 1 else range(1)


def _row_work(cover: Cover) -> RowWork:
    """The pairs in the blocks that are left of each row block, on average of what the mask tells apart."""
    block, blocks = cover.block, -(-cover.queries // cover.block)
    edges = np.minimum(np.arange(blocks + 1) * block, cover.queries)
    runs = cover.runs
    widths = np.minimum((runs.start + runs.length) * block, cover.keys) - runs.start * block
    columns = np.bincount(runs.row, weights=widths, minlength=blocks) / max(1, math.prod(cover.leading))
    return RowWork(edges, np.concatenate([[0.0], np.cumsum(columns * np.diff(edges))]))


def _block_for(layout: SequenceLayout) -> int:
    """Blocks small enough that a rank has some, and large enough that the plan is short."""
    each = max(1, layout.length // (layout.ranks * _BLOCKS_EACH))
    return min(BLOCK, max(_ROWS_LEAST, 1 << (each.bit_length() - 1)))


def _numbered(layout: SequenceLayout) -> list[list[tuple[int, range]]]:
    """The spans of each rank, numbered through all ranks."""
    count = iter(range(sum(map(len, layout.spans))))
    return [[(next(count), span) for span in mine] for mine in layout.spans]


def _kinds(mask: BoundMask | None, area: Part, queries: SequenceLayout, keys: SequenceLayout) -> npt.NDArray[np.int8]:
    """What the mask leaves of each span of queries and each span of keys, of some sequences and heads together."""
    rows, columns = ([span for mine in one.spans for span in mine] for one in (queries, keys))
    if mask is None:
        return np.full((len(rows), len(columns)), FULL, np.int8)
    found = mask.mask.blocks(
        Rectangles(
            _edge([one.start + mask.q_offset for one in rows])[:, None],
            _edge([one.stop + mask.q_offset for one in rows])[:, None],
            _edge([one.start for one in columns])[None],
            _edge([one.stop for one in columns])[None],
        )
    ).expand(*mask.mask.leading, len(rows), len(columns))
    batch, heads = (_told_apart(*one) for one in zip((area.batch, area.heads), mask.mask.leading, strict=True))
    kinds = found[batch.start : batch.stop, heads.start : heads.stop].flatten(0, 1)
    full, empty = (kinds == FULL).all(0), (kinds == EMPTY).all(0)
    answer: npt.NDArray[np.int8] = torch.where(full, FULL, torch.where(empty, EMPTY, 1)).to(torch.int8).cpu().numpy()
    return answer


def _edge(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")
