"""Dimensions in which the entries of a tensor are copies of each other, as queries are copied for each key.

    q[:, :, None].expand(-1, -1, m, -1)             inserted: the dimension of the keys holds copies
    q.repeat_interleave(m, 1), k.repeat(1, n, 1)    folded: all pairs in one dimension, until a view splits it

Sizes do not show them: with one query and one key all are 1, and the copies of `repeat` have memory of their own.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.intercept.call_names_and_products import TorchCall
from regard.capture.intercept.operation_kinds import PERMUTES, VIEWS

__all__ = ["Copies", "Fold"]


@dataclass(frozen=True)
class Fold:
    """A dimension, counted from the end, of `outer` × `inner` entries, which are copies along one of the two."""

    at: int
    outer: int
    inner: int
    copied_inside: bool  # as `repeat_interleave` copies; `repeat` copies the whole

    def split(self, one: Tensor, result: Tensor) -> bool:
        """Return whether a view of the tensor has the dimension as two, and all others as they were."""
        at, sizes = one.ndim + self.at, list(one.shape)
        return list(result.shape) == [*sizes[:at], self.outer, self.inner, *sizes[at + 1 :]]


class Copies:
    """Tracks inserted and folded dimensions through calls on a single tensor."""

    def __init__(self) -> None:
        self._new = WeakIdKeyDictionary()  # dimensions that were inserted by None or unsqueeze, as -1, -2, …
        self._folds = WeakIdKeyDictionary()

    def carry(self, call: TorchCall, result: Tensor) -> None:
        """Process one call."""
        one = call.args[0] if call.args else None
        if not isinstance(one, Tensor) or len(call.tensors) != 1:
            return
        new, fold = self._new.get(one, frozenset()), self._folds.get(one)
        if call.name == "unsqueeze":
            at = (call.dim() or 0) % result.ndim - result.ndim
            self._new[result] = frozenset([at, *(old - (old <= at) for old in new)])
        elif call.name == "__getitem__" and (inserted := _inserted_by(call.args[1], result.ndim)):
            self._new[result] = frozenset(inserted)
        elif call.name in _REPEATS:
            self._repeat(call, one, new, result)
        elif fold is not None and call.name in VIEWS and fold.split(one, result):
            at = fold.at if fold.copied_inside else fold.at - 1
            self._new[result] = frozenset([at, *(old - (old < fold.at) for old in new)])
        elif result.ndim == one.ndim and call.name not in PERMUTES:
            if new:
                self._new[result] = new
            if fold is not None and result.shape[fold.at] == one.shape[fold.at]:
                self._folds[result] = fold

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


_REPEATS = {"repeat", "tile", "repeat_interleave"}


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
