"""Which positions of a sequence each rank holds, and layouts that give every rank the same work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from regard.masks import Mask

__all__ = [
    "OrderedMask", "Places", "SequenceLayout", "balanced", "contiguous", "dealt_blocks", "index_of", "mirrored",
    "replicated", "side_by_side", "zigzag",
]  # fmt: skip

_EVEN = 1.05  # the work of the busiest rank, as a multiple of the mean, that is called balanced
_BLOCKS_EACH = 16  # blocks that a rank is dealt, at least where the sequence is long enough

Spans = tuple[range, ...]
Places = Sequence[tuple[range, int]]  # spans of positions, each with the index at which it begins


@dataclass(frozen=True)
class SequenceLayout:
    """The spans of positions that each rank holds, in the order in which it holds them.

    >>> contiguous(7, 2)
    SequenceLayout(spans=((range(0, 4),), (range(4, 7),)))
    """

    spans: tuple[Spans, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.spans)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of positions of each rank."""
        return tuple(sum(map(len, mine)) for mine in self.spans)

    @cached_property
    def length(self) -> int:
        """Number of positions of all ranks."""
        return sum(self.sizes)

    def positions(self, rank: int) -> Int[Tensor, " held"]:
        """The positions that a rank holds, in its order."""
        parts = [torch.arange(one.start, one.stop, device="cpu") for one in self.spans[rank]]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device="cpu")

    @cached_property
    def order(self) -> Int[Tensor, " length"]:
        """The positions of all ranks, one rank after the other."""
        return torch.cat([self.positions(rank) for rank in range(self.ranks)])

    def places(self, rank: int) -> Places:
        """The spans of a rank, each with the index of its first position in what the rank holds."""
        return side_by_side(self.spans[rank])


@dataclass(frozen=True, eq=False)
class OrderedMask:
    """The `mask=` of a call whose DTensors were permuted by `shard_sequence`.

    Args:
        mask: The mask over the positions of the sequence as it was; None hides nothing.
        layout: Which positions each rank has.
    """

    mask: Mask | None
    layout: SequenceLayout


def side_by_side(spans: Sequence[range]) -> Places:
    """Spans that lie one after the other."""
    starts = np.cumsum([0, *map(len, spans)]).tolist()
    return tuple(zip(spans, starts[:-1], strict=True))


def index_of(places: Places, span: range) -> slice:
    """Where a span is, which lies within one of these."""
    for whole, start in places:
        if whole.start <= span.start and span.stop <= whole.stop:
            return slice(start + span.start - whole.start, start + span.stop - whole.start)
    raise AssertionError(f"{span} is in none of {places}")


def contiguous(length: int, ranks: int) -> SequenceLayout:
    """Give each rank one span, as torch.chunk and DTensor's Shard do: the last ranks may get less, or nothing."""
    each = -(-length // ranks)
    edges = [min(rank * each, length) for rank in range(ranks + 1)]
    return SequenceLayout(tuple(_spans(range(*pair)) for pair in pairwise(edges)))


def replicated(length: int, ranks: int) -> SequenceLayout:
    """Give each rank all positions."""
    return SequenceLayout(((range(length),),) * ranks)


def zigzag(length: int, ranks: int) -> SequenceLayout:
    """Give each rank a span from the front and one from the back, which balances a causal mask.

    >>> zigzag(8, 2).spans
    ((range(0, 2), range(6, 8)), (range(2, 4), range(4, 6)))
    """
    sizes = contiguous(length, ranks).sizes
    fronts = [-(-size // 2) for size in sizes]
    backs = [size - front for size, front in zip(sizes, fronts, strict=True)]
    front_edges = np.cumsum([0, *fronts]).tolist()
    back_edges = (length - np.cumsum([0, *backs])).tolist()
    return SequenceLayout(
        tuple(
            _spans(range(front_edges[r], front_edges[r + 1]), range(back_edges[r + 1], back_edges[r]))
            for r in range(ranks)
        )
    )


def mirrored(length: int, ranks: int) -> SequenceLayout:
    """Give each rank the first half of its contiguous span and the second half of its mirror rank's span.

    >>> mirrored(8, 2).spans
    ((range(0, 2), range(6, 8)), (range(4, 6), range(2, 4)))
    """
    halves = []
    for mine in contiguous(length, ranks).spans:
        whole = mine[0] if mine else range(0)
        middle = whole.start + -(-len(whole) // 2)
        halves.append((range(whole.start, middle), range(middle, whole.stop)))
    return SequenceLayout(tuple(_spans(halves[rank][0], halves[-1 - rank][1]) for rank in range(ranks)))


def dealt_blocks(length: int, ranks: int, work: "RowWork") -> SequenceLayout:
    """Deal blocks of rows to the ranks, the costliest first, back and forth; as many rows to each as `contiguous`."""
    sizes = contiguous(length, ranks).sizes
    each = max(1, sizes[0] // _BLOCKS_EACH)
    blocks = [range(at, min(at + each, length)) for at in range(0, length, each)]
    costly = sorted(blocks, key=lambda one: (-work.of(one), one.start))
    hands: list[list[range]] = [[] for _ in range(ranks)]
    for at, block in enumerate(costly):
        lap, place = divmod(at, ranks)
        hands[place if lap % 2 == 0 else ranks - 1 - place].append(block)
    return SequenceLayout(tuple(_joined(hand) for hand in _evened(hands, sizes)))


def _evened(hands: list[list[range]], sizes: Sequence[int]) -> list[list[range]]:
    """Hands of exactly these sizes: what is too much is cut off, and given to whom something is missing."""
    spare: list[range] = []
    for hand, size in zip(hands, sizes, strict=True):
        over = sum(map(len, hand)) - size
        while over > 0:
            last = hand.pop()
            cut = min(over, len(last))
            hand += _spans(last[: len(last) - cut])
            spare.append(last[len(last) - cut :])
            over -= cut
    for hand, size in zip(hands, sizes, strict=True):
        missing = size - sum(map(len, hand))
        while missing > 0:
            block = spare.pop()
            hand.append(block[:missing])
            spare += _spans(block[missing:])
            missing -= len(hand[-1])
    return hands


def _joined(spans: list[range]) -> Spans:
    """Spans in order, neighbours as one."""
    joined: list[range] = []
    for one in sorted(spans, key=lambda span: span.start):
        if joined and joined[-1].stop == one.start:
            joined[-1] = range(joined[-1].start, one.stop)
        else:
            joined.append(one)
    return tuple(joined)


def _spans(*spans: range) -> Spans:
    return tuple(one for one in spans if len(one))


@dataclass(frozen=True, eq=False)
class RowWork:
    """What the rows of a mask cost: `sums[t]` pairs in the rows before `edges[t]`."""

    edges: npt.NDArray[np.int64]
    sums: npt.NDArray[np.float64]

    def of(self, rows: range) -> float:
        """The pairs of some rows; within a block of rows, all cost alike."""
        top, bottom = np.interp([rows.start, rows.stop], self.edges, self.sums)
        return float(bottom - top)

    def of_ranks(self, layout: SequenceLayout) -> tuple[float, ...]:
        """The pairs of the rows of each rank."""
        return tuple(sum(map(self.of, mine)) for mine in layout.spans)

    def imbalance(self, layout: SequenceLayout) -> float:
        """The work of the busiest rank as a multiple of the mean; 1 where there is no work."""
        work = self.of_ranks(layout)
        return max(work) * len(work) / sum(work) if sum(work) else 1.0


def balanced(work: RowWork, candidates: Sequence[SequenceLayout]) -> SequenceLayout:
    """Take the first layout that is balanced, or the one that is nearest to it."""
    scored = [(work.imbalance(one), one) for one in candidates]
    return next((one for times, one in scored if times <= _EVEN), min(scored, key=lambda pair: pair[0])[1])
