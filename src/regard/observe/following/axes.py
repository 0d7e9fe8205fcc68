"""What the dimensions of a tensor are, as in einops: each is a product of factors, and each factor has a letter.

    b  a batch or positions, or unknown       q, k  of scores and weights: the queries, the keys
    f  the features that a layer computed     n     inserted: size 1, or copies of one entry
    h  heads, cut from features               s, l  tensors that were stacked (heads, steps), outputs of layers
    p  a slice of several factors: it has where it starts, and the factors

A view merges and splits factors, so (batch · heads, queries, keys) can be taken apart again. Sizes do not show which
dimension is which: with one query and one key all are 1.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from regard.record.missing_attention import CHANNELS, DEPTH, OWN_KEYS

__all__ = [
    "Axes",
    "Axis",
    "Pairing",
    "broadcast",
    "joined",
    "paired",
    "plain",
    "project",
    "score",
    "size_of",
    "sliced",
    "viewed",
    "with_letters",
]

Factor = tuple[Any, ...]  # letter and size; of "p" also the start and the whole axis
Axis = tuple[Factor, ...]
Axes = tuple[Axis, ...]
Pairing = tuple[Axes, bool, bool]

_RANKS = "npblshfqk"  # what is known best wins where two tensors meet
_POSITIONS = {"b": 2, "p": 2, "n": 1}  # what the queries and keys of scores may be, before heads and features


def size_of(axis: Axis) -> int:
    """Return the size of a dimension."""
    return math.prod(factor[1] for factor in axis)


@functools.cache
def plain(shape: tuple[int, ...]) -> Axes:
    """Return the axes of a tensor of which nothing is known."""
    return tuple((("b", size),) for size in shape)


def with_letters(axes: Axes, old: str, new: str) -> Axes:
    """Return axes with some letters exchanged."""
    table = str.maketrans(old, new)
    return tuple(tuple((factor[0].translate(table), *factor[1:]) for factor in axis) for axis in axes)


@functools.cache
def viewed(axes: Axes, shape: tuple[int, ...]) -> Axes | None:
    """Return the axes after a view, or None if it cuts queries, keys or slices, or does not follow the factors.

    >>> viewed(((("b", 2),), (("b", 5),), (("f", 12),)), (2, 5, 3, 4))
    ((('b', 2),), (('b', 5),), (('h', 3),), (('f', 4),))
    >>> viewed(((("b", 2),), (("h", 3),), (("b", 1),), (("f", 4),)), (6, 1, 4))
    ((('b', 2), ('h', 3)), (('b', 1),), (('f', 4),))
    """
    if 0 in shape:
        return plain(shape)
    if tuple(map(size_of, axes)) == shape:
        return axes
    factors = [factor for axis in axes for factor in axis]
    found: list[list[Factor]] = [[] for _ in shape]
    large = [factor for factor in factors if factor[1] > 1]
    next_one, rest = 0, None  # of the larger factors, and what is left of one that is cut
    gaps: list[float] = []  # how many of them end before each dimension
    cuts: dict[float, int] = {}  # where each that is cut begins
    for at, size in enumerate(shape):
        gaps.append(next_one + (0.5 if rest is not None else 0))
        while size > 1:
            if rest is None and next_one == len(large):
                return None
            factor = large[next_one] if rest is None else rest
            if size % factor[1] == 0:
                found[at].append(factor)
                size //= factor[1]
                next_one, rest = next_one + 1, None
                continue
            if factor[1] % size or factor[0] in "qkp":
                return None
            if rest is None and not found[at]:
                cuts[next_one] = at
            found[at].append(("h" if factor[0] == "f" else factor[0], size))
            rest, size = (factor[0], factor[1] // size), 1
    if rest is not None or next_one < len(large):
        return None
    _place_ones(factors, shape, gaps, cuts, found)
    return tuple(tuple(axis) for axis in found)


def _place_ones(
    factors: Sequence[Factor],
    shape: tuple[int, ...],
    gaps: Sequence[float],
    cuts: Mapping[float, int],
    found: list[list[Factor]],
) -> None:
    """Put factors of size 1 into dimensions of size 1 between the same larger ones, or else beside a neighbour: that
    which was cut, as heads into which a batch of one is merged, or the one before.
    """
    count = 0
    ones: dict[float, list[Factor]] = {}
    for factor in factors:
        if factor[1] > 1:
            count += 1
        else:
            ones.setdefault(count, []).append(factor)
    places: dict[float, list[int]] = {}
    for at, size in enumerate(shape):
        if size == 1:
            places.setdefault(gaps[at], []).append(at)
    for gap, some in ones.items():
        here = places.get(gap, [])
        before = [at for at, size in enumerate(shape) if size > 1 and gaps[at] < gap]
        for number, factor in enumerate(some):
            if here:
                found[here[min(number, len(here) - 1)]].append(factor)
            elif gap in cuts:
                found[cuts[gap]].insert(number, factor)
            elif before:
                found[before[-1]].append(factor)
            elif found:
                found[0].insert(number, factor)
    for at in (at for some in places.values() for at in some if not found[at]):
        found[at].append(("n", 1))


def sliced(axis: Axis, start: int, size: int) -> Axis:
    """Return a dimension of which a part was taken."""
    if size == size_of(axis):
        return axis
    if len(axis) == 1:
        return ((axis[0][0] if axis[0][0] != "p" else "b", size),)
    return (("p", size, start, axis),)


@functools.cache
def broadcast(sides: tuple[Axes, ...], shape: tuple[int, ...]) -> Axes:
    """Return the axes of tensors that are broadcast against each other: of each dimension what is known best."""
    found = []
    for at, size in enumerate(shape, -len(shape)):
        own = [axes[at] for axes in sides if len(axes) >= -at]
        whole = [axis for axis in own if size_of(axis) == size]
        wide: list[Axis] = [
            ((factor[0], size),) for axis in own for factor in axis if factor[0] in "qk" and size_of(axis) == 1
        ]
        found.append(max(whole + wide[:1], key=_knowledge, default=(("n", size),)))
    return tuple(found)


def _knowledge(axis: Axis) -> tuple[int, int]:
    return max(_RANKS.index(factor[0]) for factor in axis), len(axis)


@functools.cache
def joined(sides: tuple[Axes, ...], dim: int, size: int) -> Axes:
    """Return the axes of tensors that were concatenated."""
    shape = tuple(size_of(axis) for axis in sides[0])
    rest = broadcast(sides, (*shape[:dim], 1, *shape[dim + 1 :])) if len(sides) > 1 else sides[0]
    letters = {axes[dim][0][0] if len(axes[dim]) == 1 else "b" for axes in sides}
    letter = max(letters - {"p"} or {"b"}, key=_RANKS.index)
    return (*rest[:dim], ((letter, size),), *rest[dim + 1 :])


def _refined(left: Axis, right: Axis, size: int) -> list[tuple[Factor, Factor]]:
    """Return the factors of one dimension of two tensors, cut to the same sizes; a tensor without it has copies."""
    if size_of(left) != size:
        left = tuple(("n", factor[1]) for factor in right)
    if size_of(right) != size:
        right = tuple(("n", factor[1]) for factor in left)
    if len(left) == len(right) and all(one[1] == other[1] for one, other in zip(left, right, strict=True)):
        return list(zip(left, right, strict=True))
    found: list[tuple[Factor, Factor]] = []
    while left and right and left[0][1] == right[0][1] == 1:  # a batch of one
        found.append((left[0], right[0]))
        left, right = left[1:], right[1:]
    sides = [[factor for factor in axis if factor[1] > 1][::-1] for axis in (left, right)]
    while sides[0] and sides[1]:
        one, other = sides[0].pop(), sides[1].pop()
        small = min(one[1], other[1])
        for side, factor in zip(sides, (one, other), strict=True):
            if factor[1] > small:
                if factor[1] % small:
                    return [(("b", size), ("b", size))]
                side.append((factor[0], factor[1] // small))
        found.append(((one[0], small, *one[2:]), (other[0], small, *other[2:])))
    return found or [(("b", size), ("b", size))]


class _Meeting:
    """The dimensions of two tensors, of which some factors are those of one alone."""

    def __init__(self) -> None:
        self.axes: list[list[Factor]] = []
        self.own: dict[str, list[tuple[int, int, str]]] = {"q": [], "k": []}
        self.shared: list[Factor] = []

    def add(self, pairs: list[tuple[Factor, Factor]]) -> None:
        """Add a dimension that both have."""
        axis: list[Factor] = []
        for left, right in pairs:
            at = len(self.axes), len(axis)
            if (left[0] == "n") != (right[0] == "n"):
                side, factor = ("q", left) if right[0] == "n" else ("k", right)
                self.own[side].append((*at, factor[0]))
                axis.append(factor)
                continue
            factor = max(left, right, key=lambda one: _RANKS.index(one[0]))
            self.shared.append(factor)
            axis.append(factor)
        self.axes.append(axis)

    def add_own(self, axis: Axis, side: str) -> None:
        """Add a dimension of one alone."""
        self.own[side] += [(len(self.axes), at, factor[0]) for at, factor in enumerate(axis)]
        self.axes.append(list(axis))

    def choose(self, side: str) -> str | None:
        """Let the last dimension of positions that one alone has be its queries or keys; return the letter it had."""
        ranked = [(_POSITIONS.get(letter, 0), number) for number, (_, _, letter) in enumerate(self.own[side])]
        if not ranked:
            return None
        axis, at, letter = self.own[side][max(ranked)[1]]
        if letter in "hs":  # a single query, or key, without a dimension
            return None
        self.axes[axis][at] = (side, self.axes[axis][at][1])
        own = {place[:2] for place in self.own[side]}
        while letter == "b" and at and (axis, at - 1) in own and self.axes[axis][at - 1][0] in "bs":
            at -= 1  # rows and columns of an image are one dimension of positions
            self.axes[axis][at] = (side, self.axes[axis][at][1])
        return letter

    def result(self) -> Axes:
        """Return the dimensions."""
        return tuple(tuple(axis) for axis in self.axes)


@functools.cache
def paired(left: Axes, right: Axes, shape: tuple[int, ...]) -> Pairing:
    """Return the axes of two activations that are broadcast against each other, and whether either has positions of its
    own: each query then meets each key.

    >>> paired(((("b", 5),), (("n", 1),), (("f", 4),)), ((("n", 1),), (("b", 7),), (("f", 4),)), (5, 7, 4))
    (((('q', 5),), (('k', 7),), (('f', 4),)), True, True)
    """
    meeting, nothing = _Meeting(), cast(Axis, (("n", 1),))
    for at, size in enumerate(shape, -len(shape)):
        one, other = (axes[at] if len(axes) >= -at else nothing for axes in (left, right))
        meeting.add(_refined(one, other, size))
    own = [any(letter in "bhlps" for _, _, letter in meeting.own[side]) for side in "qk"]
    for side, has in zip("qk", own, strict=True):
        if has and any(letter in "bp" for _, _, letter in meeting.own[side]):
            meeting.choose(side)
    return meeting.result(), own[0], own[1]


@functools.cache
def score(left: Axes, right: Axes) -> tuple[Axes | None, str | None]:
    """Return the axes of the product of queries and keys, (…, rows, inner) and (…, inner, columns), of which either may
    be a vector, and why it cannot be shown as queries × keys.

    >>> score(((("b", 2), ("h", 3)), (("b", 5),), (("f", 4),)), ((("b", 2), ("h", 3)), (("f", 4),), (("b", 7),)))
    (((('b', 2), ('h', 3)), (('q', 5),), (('k', 7),)), None)
    """
    meeting = _Meeting()
    batch = max(0, min(len(left), len(right)) - 2)
    for one, other in zip(left[:batch], right[:batch], strict=True):
        meeting.add(_refined(one, other, max(size_of(one), size_of(other))))
    if len(left) > 1:
        meeting.add_own(left[-2], "q")
    if len(right) > 1:
        meeting.add_own(right[-1], "k")
    ends = [meeting.choose(side) for side in "qk"]
    axes = meeting.result()
    keys = math.prod(factor[1] for axis in axes for factor in axis if factor[0] == "k")
    if ends == ["f", "f"] and keys > 1:
        return axes, CHANNELS
    if "l" in ends and keys > 1:
        return axes, DEPTH
    shared = [factor for factor in meeting.shared if factor[0] in "bp"][1:]  # besides the batch
    own_keys = any(end in (None, "n") for end in ends) and any(factor[1] > 1 for factor in shared)
    return (axes if ends != [None, None] else None), OWN_KEYS if own_keys else None


@functools.cache
def project(left: Axes, right: Axes, *, is_left: bool) -> Axes:
    """Return the axes of a product with a parameter: what only the parameter has are features, before them heads."""
    meeting = _Meeting()
    batch = max(0, min(len(left), len(right)) - 2)
    for one, other in zip(left[:batch], right[:batch], strict=True):
        meeting.add(_refined(one, other, max(size_of(one), size_of(other))))
    if len(left) > 1:
        meeting.add_own(left[-2], "q")
    if len(right) > 1:
        meeting.add_own(right[-1], "k")
    learned = meeting.own["k" if is_left else "q"]
    large = [place for place in learned if meeting.axes[place[0]][place[1]][1] > 1] or learned[-1:]
    for place in learned:
        axis, at, _ = place
        letter = "n" if place not in large else "f" if place == large[-1] else "h"
        meeting.axes[axis][at] = (letter, meeting.axes[axis][at][1])
    return meeting.result()
