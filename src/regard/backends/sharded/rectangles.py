"""A rectangle of a call as a call of its own: its mask, bias, score and dropout know where it is in the whole.

A rectangle counts keys from its own first key, and queries from there too, so whatever depends on the distance i − j
alone stays as it is. What looks at positions, sequences or heads is wrapped, and is asked with those of the whole.
"""

from dataclasses import dataclass

from torch import Tensor

from regard.backends.sharded.shard_plan import ShardRectangle
from regard.dropout import Dropout
from regard.masks import BoundMask, Mask, Window
from regard.masks.rectangles import Rectangles
from regard.normalizers import Softmax
from regard.part import Part
from regard.positions import Bias, DenseBias, Relative
from regard.problem import Problem
from regard.scores import Score

__all__ = ["PlacedMask", "Slab", "problem_of"]

_FAR = 2**31  # beyond every distance; more is no window


@dataclass(frozen=True)
class Slab:
    """The sequences and heads that a rank has of a call: those from `batch` and `head` on."""

    batch: int
    batches: int
    head: int
    heads: int


@dataclass(frozen=True)
class SlabPlace(Slab):
    """Where a rectangle is in the whole: its slab, and its first query and key."""

    row: int
    column: int


@dataclass(frozen=True)
class PlacedMask(Mask):
    """A mask of the whole call, asked about a part of its sequences, heads and positions."""

    whole: Mask
    batch: int
    batches: int
    head: int
    heads: int
    position: int

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The same pair in the whole."""
        return self.whole(batch + self.batch, head + self.head, i + self.position, j + self.position)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """The same rectangles in the whole, for these sequences and heads."""
        shift = self.position
        edges = (rectangles.top, rectangles.bottom, rectangles.left, rectangles.right)
        kinds = self.whole.blocks(Rectangles(*(edge + shift for edge in edges)))
        for dim, (start, count) in enumerate(((self.batch, self.batches), (self.head, self.heads))):
            kinds = kinds.narrow(dim, start, count) if kinds.shape[dim] > 1 else kinds
        return kinds

    @property
    def leading(self) -> tuple[int, int]:
        """Those of the whole, cut."""
        batch, heads = self.whole.leading
        return (self.batches if batch > 1 else 1), (self.heads if heads > 1 else 1)

    @property
    def relative(self) -> bool:
        """The whole is."""
        return self.whole.relative


@dataclass(frozen=True, eq=False)
class _PlacedBias(Bias):
    whole: Bias
    place: SlabPlace

    @property
    def leading(self) -> tuple[int, int]:
        batch, heads = self.whole.leading
        return (self.place.batches if batch > 1 else 1), (self.place.heads if heads > 1 else 1)

    def tile(self, batch: slice, heads: slice, i: Tensor, j: Tensor) -> Tensor:
        at = self.place
        b, h = _moved(batch, at.batch), _moved(heads, at.head)
        return self.whole.tile(b, h, i + at.column, j + at.column)


@dataclass(frozen=True, eq=False)
class _HeadsOfBias(Relative):
    whole: Relative
    first: int
    count: int

    def diagonals(self, distance: Tensor) -> Tensor:
        values = self.whole.diagonals(distance)
        return values[self.first : self.first + self.count] if values.shape[0] > 1 else values


@dataclass(frozen=True, eq=False)
class _PlacedScore(Score):
    whole: Score
    place: SlabPlace
    sizes: tuple[int, int]  # sequences and heads of the whole
    softcap: float | None

    @property
    def floats_per_pair(self) -> int:
        return self.whole.floats_per_pair

    def tile(  # type: ignore[override]
        self, q: Tensor, k: Tensor, i: Tensor, j: Tensor, batch: Tensor, head: Tensor
    ) -> Tensor:
        return self._part(i, j, batch, head).scores(self.whole, 1.0, q, k)

    def _part(self, i: Tensor, j: Tensor, batch: Tensor, head: Tensor) -> Part:
        at = self.place
        starts = at.batch, at.head, at.column, at.column
        b, h, rows, columns = (
            slice(int(one[0]) + by, int(one[-1]) + 1 + by) for one, by in zip((batch, head, i, j), starts, strict=True)
        )
        return Part(b, h, rows, (columns,), 0, self.sizes)


@dataclass(frozen=True, eq=False)
class _PlacedDropout(Dropout):
    place: SlabPlace

    def row_bits(self, batch: slice, heads: slice, rows: Tensor) -> Tensor:
        at = self.place
        return super().row_bits(_moved(batch, at.batch), _moved(heads, at.head), rows + at.row)

    def column_bits(self, columns: Tensor) -> Tensor:
        return super().column_bits(columns + self.place.column)


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def problem_of(whole: Problem, slab: Slab, at: ShardRectangle, q: Tensor, k: Tensor, v: Tensor) -> Problem:
    """Give a rectangle of a call as a call; q, k and v are those of its rows and columns, and of the slab."""
    place = SlabPlace(slab.batch, slab.batches, slab.head, slab.heads, at.rows.start, at.columns.start)
    q_offset = whole.q_offset + at.rows.start - at.columns.start
    sizes = len(at.rows), len(at.columns), q_offset
    dropout = whole.dropout
    return Problem(
        q=q,
        k=k,
        v=v,
        scale=whole.scale,
        score=_score(whole, place),
        mask=_mask(whole, place, at, sizes),
        bias=_bias(whole.bias, place, at, q_offset),
        normalizer=Softmax() if isinstance(whole.normalizer, Softmax) else whole.normalizer,
        weight_factor=_bias(whole.weight_factor, place, at, q_offset),
        dropout=None if dropout is None else _PlacedDropout(dropout.p, dropout.seed, place),
        max_bytes=whole.max_bytes,
        outer=tuple(q.shape[:2]),
    )


def _mask(whole: Problem, place: SlabPlace, at: ShardRectangle, sizes: tuple[int, int, int]) -> BoundMask | None:
    if at.full or whole.mask is None:
        if whole.score.product and whole.bias is None and whole.weight_factor is None:
            return None
        return Window(left=_FAR, right=_FAR).bind(*sizes)  # hides nothing, and knows where the queries are
    mask = whole.mask.mask
    alike = mask.leading == (1, 1) and place.batch == place.head == 0
    if not (mask.relative and alike):
        mask = PlacedMask(mask, place.batch, place.batches, place.head, place.heads, place.column)
    return BoundMask(mask, *sizes, given=mask)


def _bias(bias: Bias | None, place: SlabPlace, at: ShardRectangle, q_offset: int) -> Bias | None:
    if bias is None:
        return None
    if isinstance(bias, DenseBias):
        four = bias.four
        batch, heads = range(place.batch, place.batch + place.batches), range(place.head, place.head + place.heads)
        for dim, part in enumerate((batch, heads, at.rows, at.columns)):
            four = four.narrow(dim, part.start, len(part)) if four.shape[dim] > 1 else four
        return DenseBias(four, q_offset)
    if isinstance(bias, Relative):
        return bias if bias.leading[1] in (1, place.heads) else _HeadsOfBias(bias, place.head, place.heads)
    return _PlacedBias(bias, place)


def _score(whole: Problem, place: SlabPlace) -> Score:
    score = whole.score
    if type(score).__module__.startswith("regard."):
        # Ours know positions by their distance alone, and heads by this.
        return score if place.heads == whole.heads else score.of_heads(slice(place.head, place.head + place.heads))
    return _PlacedScore(score, place, (whole.batch, whole.heads), score.softcap)
