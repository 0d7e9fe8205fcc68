"""Pairs of queries and keys, and the dimensions in which a tensor holds copies, which tell that it is made of pairs.

    q[:, :, None].expand(-1, -1, m, -1)             inserted: the dimension of the keys holds copies
    q.repeat_interleave(m, 1), k.repeat(1, n, 1)    folded: all pairs in one dimension, until a view splits it

Sizes do not show them: with one query and one key all are 1, and the copies of `repeat` have memory of their own.
"""

import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.call_names_and_products import Layout, TorchCall
from regard.observe.intercept.layouts import permuted
from regard.observe.intercept.operation_kinds import PERMUTES, VIEWS
from regard.observe.intercept.tensor_origins import Origin, storage_of

__all__ = ["Copies", "Spread", "UsedPart"]


@dataclass(frozen=True)
class Fold:
    """A dimension, counted from the end, of `outer` × `inner` entries, which are copies along one of the two."""

    at: int
    outer: int
    inner: int
    copied_inside: bool  # as `repeat_interleave` copies; `repeat` copies the whole

    def split(self, one: Tensor, result: Tensor) -> int:
        """Return into how many dimensions a view of the tensor splits the outer entries, with all others as they were;
        0 if it does something else.
        """
        at, more = one.ndim + self.at, result.ndim - one.ndim
        outer, inner = result.shape[at : at + more], result.shape[at + more :]
        kept = result.shape[:at] == one.shape[:at] and inner == (self.inner, *one.shape[at + 1 :])
        return more if more > 0 and kept and prod(outer) == self.outer else 0

    def as_rows(self, one: Tensor, result: Tensor) -> "Fold | None":
        """Return the copies of each row's width after a view has made rows of them, or None."""
        if self.at != -1 or self.copied_inside or one.ndim < 2:
            return None
        rows = Fold(-2, one.shape[-2], self.outer, copied_inside=True)
        return rows if result.shape == (*one.shape[:-2], rows.outer * rows.inner, self.inner) else None


@dataclass(frozen=True, eq=False)
class Spread:
    """Two activations broadcast against each other; the layout has a letter for each dimension of the result."""

    left: str
    right: str
    layout: Layout
    ends: tuple[Origin, Origin]
    folds: tuple[Fold, Fold] | None = None  # all pairs are in one dimension
    letters: Mapping[str, str] = field(default_factory=dict)  # what `Heads` knows of the dimensions

    @property
    def two_sided(self) -> bool:
        """Whether each has a dimension that the other lacks, which means pairs and not a gate."""
        left, right = set(self.left), set(self.right)
        return self.folds is not None or bool(left - right and right - left)

    @property
    def folded(self) -> tuple[str, str]:
        """The letter of the dimension of all pairs, and what it is in a layout of scores: "p" if the left one is the
        outer one, else "P".
        """
        if self.folds is None:
            return "", ""
        left, _ = self.folds
        return self.layout[left.at], "p" if left.copied_inside else "P"

    def viewed(self, one: Tensor, result: Tensor) -> "Spread | None":
        """Return pairs after a view that makes one dimension of all, or splits it, or None."""
        if self.folds is None:
            return self._merged(one, result) if self.two_sided and result.ndim < one.ndim else None
        more = self.folds[0].split(one, result)
        return self._split(more) if more else None

    def _split(self, more: int) -> "Spread":
        """Return pairs with a dimension for each of the two, and the outer one in `more` parts."""
        letter, order = self.folded
        batch, left, right = "0123456789"[: more - 1], *(("Y", "Z") if order == "p" else ("Z", "Y"))
        sides = self.left.replace(letter, batch + left), self.right.replace(letter, batch + right)
        return Spread(*sides, self.layout.replace(letter, f"{batch}YZ"), self.ends)

    def _merged(self, one: Tensor, result: Tensor) -> "Spread | None":
        """Return pairs after both dimensions became one, alone or with all before them."""
        own, others = set(self.left) - set(self.right), set(self.right) - set(self.left)
        for at, (outer, inner) in enumerate(pairwise(self.layout)):
            begin, end = at + 1 - (one.ndim - result.ndim), at + 2
            paired = (outer in own and inner in others) or (outer in others and inner in own)
            if begin < 0 or not paired:
                continue
            if result.shape[:begin] != one.shape[:begin] or result.shape[begin + 1 :] != one.shape[end:]:
                continue
            sizes, ours = (prod(one.shape[begin : at + 1]), one.shape[at + 1]), outer in own
            folds = Fold(end - one.ndim - 1, *sizes, ours), Fold(end - one.ndim - 1, *sizes, not ours)
            layout = f"{self.layout[:begin]}Y{self.layout[end:]}"
            return Spread(layout, layout, layout, self.ends, folds)
        return None


class Copies:
    """Tracks inserted and folded dimensions through calls on a single tensor."""

    def __init__(self) -> None:
        self._new = WeakIdKeyDictionary()  # dimensions that were inserted by None or unsqueeze, as -1, -2, …
        self._folds = WeakIdKeyDictionary()

    def carry(self, call: TorchCall, result: Tensor) -> None:
        """Process one call."""
        tensors = call.tensors[:1] if call.name == "expand_as" else call.tensors
        if not tensors or not call.args or any(one is not tensors[0] for one in tensors):
            return
        one = tensors[0]
        new, fold = self._new.get(one, frozenset()) | _repeated_in_memory(call, one), self._folds.get(one)
        if call.name in ("unsqueeze", "stack"):  # of one tensor, several times
            at = (call.dim() or 0) % result.ndim - result.ndim
            self._new[result] = frozenset([at, *(old - (old <= at) for old in new)])
        elif call.name == "__getitem__" and (inserted := _inserted_by(call.args[1], result.ndim)):
            self._new[result] = frozenset(inserted)
        elif call.name in _REPEATS:
            self._repeat(call, one, new, result)
        elif call.name in PERMUTES:
            marked = "".join("n" if at in new else "b" for at in range(-one.ndim, 0))
            moved = permuted(marked, call.func, call.args, call.kwargs) if new and call.args[0] is one else None
            self._new[result] = frozenset(at - result.ndim for at, letter in enumerate(moved or "") if letter == "n")
        elif call.name in VIEWS and self._view(one, new, fold, result):
            return
        elif result.ndim == one.ndim:
            if new:
                self._new[result] = new
            if fold is not None and result.shape[fold.at] == one.shape[fold.at]:
                self._folds[result] = fold

    def _view(self, one: Tensor, new: frozenset[int], fold: Fold | None, result: Tensor) -> bool:
        """Process a view, and return whether it is one that adds, merges or splits dimensions of copies."""
        if (places := _places_of(one, result)) is not None:
            self._new[result] = frozenset(range(-result.ndim, 0)) - set(places.values()) | {places[at] for at in new}
        elif (merged := _fold_of(new, one, result)) is not None:
            self._folds[result] = merged
        elif fold is not None and fold.split(one, result) == 1:
            at = fold.at if fold.copied_inside else fold.at - 1
            self._new[result] = frozenset([at, *(old - (old < fold.at) for old in new)])
        elif fold is not None and (rows := fold.as_rows(one, result)) is not None:
            self._folds[result] = rows
        else:
            return False
        return True

    def new_of(self, pair: list[Tensor], result: Tensor) -> tuple[frozenset[int], frozenset[int]]:
        """Return the dimensions inserted into either tensor, including those that broadcasting adds in front."""
        known = any(one in self._new for one in pair)
        left, right = (
            self._new.get(one, frozenset()) | (frozenset(range(-result.ndim, -one.ndim)) if known else frozenset())
            for one in pair
        )
        return left, right

    def folds_of(self, pair: list[Tensor]) -> tuple[Fold, Fold] | None:
        """Return the dimension of two tensors that holds all pairs of the entries of both, or None."""
        left, right = map(self._folds.get, pair)
        if left is None or right is None or left.copied_inside == right.copied_inside:
            return None
        same = (left.at, left.outer, left.inner) == (right.at, right.outer, right.inner)
        return (left, right) if same else None

    def _repeat(self, call: TorchCall, one: Tensor, new: frozenset[int], result: Tensor) -> None:
        """Process copies: a dimension of size one holds nothing else then; another one is folded."""
        inside = call.name == "repeat_interleave"
        if inside and (not isinstance(call.dim(2), int) or result.ndim != one.ndim):
            return
        added = range(-result.ndim, -one.ndim)
        grown = [at for at in range(-one.ndim, 0) if result.shape[at] > one.shape[at]]
        self._new[result] = new | {*added, *(at for at in grown if one.shape[at] == 1)}
        folded = [at for at in grown if one.shape[at] > 1]
        if len(folded) == 1:
            at, size = folded[0], one.shape[folded[0]]
            copies = result.shape[at] // size
            self._folds[result] = Fold(at, size, copies, True) if inside else Fold(at, copies, size, False)


def _repeated_in_memory(call: TorchCall, one: Tensor) -> set[int]:
    """Return the dimensions in which a tensor that is about to be copied or viewed holds one entry several times."""
    if one.layout is not torch.strided or not (call.name in VIEWS or call.name in ("contiguous", "clone")):
        return set()
    return {at for at in range(-one.ndim, 0) if one.shape[at] > 1 and not one.stride(at)}


def _places_of(one: Tensor, result: Tensor) -> dict[int, int] | None:
    """Return where a view has put each dimension, if it has only added some of size one, all counted from the end."""
    if result.ndim <= one.ndim or result.numel() != one.numel():
        return None
    places, at = {}, 0
    for place, size in enumerate(result.shape, -result.ndim):
        if at < one.ndim and size == one.shape[at]:
            places[at - one.ndim], at = place, at + 1
        elif size != 1:
            return None
    return places if at == one.ndim else None


def _fold_of(new: Collection[int], one: Tensor, result: Tensor) -> Fold | None:
    """Return what a view has made of two adjacent dimensions, of which one holds copies, or None."""
    for at in range(-one.ndim, -1) if result.ndim == one.ndim - 1 else ():
        outer, inner = one.shape[at], one.shape[at + 1]
        rest = one.shape[:at] + one.shape[at:][2:]
        if (at in new) != (at + 1 in new) and result.shape == (*one.shape[:at], outer * inner, *one.shape[at:][2:]):
            return Fold(at + 1, outer, inner, copied_inside=at + 1 in new) if rest else None
    return None


_REPEATS = {"repeat", "tile", "repeat_interleave", "cat", "concat", "concatenate"}


def _inserted_by(index: Any, ndim: int) -> list[int]:
    """Return the dimensions, counted from the end, that None in an index inserts into a result with `ndim` dimensions;
    none next to tensors.

    >>> _inserted_by((slice(None), None), 4), _inserted_by((..., None, slice(None)), 4), _inserted_by(0, 4)
    ([-3], [-2], [])
    """
    items = index if isinstance(index, tuple) else (index,)
    if not all(one is None or one is Ellipsis or type(one) in (int, slice) for one in items):
        return []
    kept = [one for one in items if type(one) is not int]
    if Ellipsis in kept:
        at = kept.index(Ellipsis)
        kept[at : at + 1] = [slice(None)] * (ndim - len(kept) + 1)
    return [at - ndim for at, one in enumerate(kept) if one is None]


class UsedPart:
    """A part of weights that has multiplied values, to be recognized if it does so again."""

    def __init__(self, one: Tensor) -> None:
        self._tensor, self._place = weakref.ref(one), _view_of(one)

    def is_in(self, one: Tensor) -> bool:
        """Return whether these weights are the part, or the same view of the softmax's result once more."""
        return self._tensor() is one or (self._place is not None and self._place == _view_of(one))


def _view_of(one: Tensor) -> tuple[Any, ...] | None:
    """Return where a view lies in memory, which the weights that it is a part of keep alive; None for a copy."""
    place = one._base is not None and one.layout is torch.strided
    return (storage_of(one), one.storage_offset(), one.shape, one.stride()) if place else None
