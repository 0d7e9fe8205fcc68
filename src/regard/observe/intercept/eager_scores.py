"""Scores before a softmax that are no matrix product, and how they are recognized.

Additive scores are pairs of broadcast activations, each query with each key, whose sum over a dimension gives scores:

    q[:, :, None] * k[:, None]    (batch, queries, keys, width), and its sum over the width is q @ k.mT

Such a result counts as scores only after a dimension that both have was summed, which excludes masks, decays and
gates. One of the two may have no position dimension, as the only query of a recurrent decoder. Such scores are weak,
because a gate over features looks the same until a softmax runs over the positions of the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.call_names_and_products import Layout, Product, TorchCall, pair_labels, read_product
from regard.observe.intercept.copied_entries import Copies, Spread
from regard.observe.intercept.head_dimensions import Heads, place
from regard.observe.intercept.layouts import contracted, dims_of, is_transformed, moved
from regard.observe.intercept.operation_kinds import (
    JOINS,
    KNOWN,
    LINEAR,
    MULTIPLIES,
    PERMUTES,
    PRODUCTS,
    SPREADS,
    SUBTRACTS,
    VIEWS,
)
from regard.observe.intercept.tensor_origins import Origin, Origins, storage_of
from regard.observe.weigh import HIDDEN
from regard.tensors import unwrapped

__all__ = [
    "FollowedScores",
    "Spreads",
    "Transformed",
    "blind_before",
    "blind_rows",
    "both_ways",
    "is_exponential",
    "may_multiply",
    "softmax_dim",
]


@dataclass(frozen=True, eq=False)
class FollowedScores:
    """Scores, or the result of a call on them; `ends` are the origins of the dimensions "q" and "k" of the layout."""

    layout: Layout | None
    ends: tuple[Origin, Origin]
    exponential: bool = False
    weak: bool = (
        False  # possibly a sum over positions: only a softmax over the other letter proves that they are scores
    )
    blind: Tensor | None = None  # rows without a visible key, if their maximum was subtracted
    odd: str | None = None  # why they cannot be shown
    lost: Layout | None = None  # the roles before a rearrangement, if the layout is unknown since then

    def rank(self, one: Tensor, result: Tensor) -> tuple[bool, ...]:
        """Return a rank among several tensors to follow: certain ones with a known and preserved layout are first."""
        return not self.weak, bool(self.layout), one.shape == result.shape

    def is_gate(self, tensors: Sequence[Tensor], result: Tensor) -> bool:
        """Return whether a product of tensors that descend from these scores is not one of them: a number of each
        position, which gates activations, is not one of each pair.
        """
        return all(one is not result for one in tensors) and not {"q", "k"} <= set(self.layout or "qk")


_EXPONENTIALS = {f"{name}{end}" for name in ("exp", "exp2", "expm1") for end in ("", "_")}
_EXPONENTIALS |= {"special_exp2", "special_expm1"}
_POWERS = {"pow", "__rpow__", "float_power"}
_SUMS = {"sum", "mean", "nansum", "nanmean", "norm", "vector_norm", "linalg_norm", "linalg_vector_norm"}
_NEW = "b"  # a dimension that neither of the two had, in the notation of `moved`


class Spreads:
    """Tracks broadcast activations up to their sum."""

    def __init__(self, origins: Origins, is_learned: Callable[[Tensor], bool]) -> None:
        self._origins = origins
        self._known = WeakIdKeyDictionary()
        self._copies, self._heads = Copies(), Heads(is_learned)

    def of_product(self, product: Product, result: Tensor) -> FollowedScores:
        """Return the scores that a product of two activations is."""
        layout, odd = self._heads.scores(product, self._copies.new_of(list(product.factors), result), result)
        left, right = map(self._origins.of, product.factors)
        return FollowedScores(layout, (left, right), odd=odd)

    def carry(
        self, call: TorchCall, tensors: list[Tensor], active: list[Tensor], results: list[Tensor]
    ) -> FollowedScores | None:
        """Process one call on tensors, some of which are activations, and return the scores that it computes,
        or None.
        """
        result = results[0]
        self._copies.carry(call, result)
        self._heads.carry(call, tensors, results)
        one = next((one for one in tensors if one in self._known), None)
        spread: Spread | None = None if one is None else self._known[one]
        began = (spread is None or call.name in JOINS or not spread.two_sided) and self._begin(
            call, active, result, spread
        )
        if began or one is None or spread is None:
            return None
        if call.name in VIEWS and (viewed := spread.viewed(one, result)) is not None:
            self._known[result] = viewed
            return None
        if call.name in _SUMS:
            return self._summed(spread, dims_of(call.dim(1 if call.name != "norm" else 2), one), result)
        if call.name in LINEAR or call.name in PRODUCTS:
            weighted = len(active) == 1 or self.are_weighted(active)  # by a learned vector, or one that was made now
            return self._weighted(spread, call, one, result) if weighted and spread.two_sided else None
        others = sum(other.numel() == result.numel() for other in active)
        edges = call.name in SPREADS and others == 2 and spread.two_sided and one.shape == result.shape
        if call.name not in JOINS and not edges and (others > 1 or one.numel() < result.numel()):
            return None  # another tensor that pairs were added to
        layout = moved(spread.layout, call, one, result)
        if layout is not None and len(layout) == result.ndim:
            still = result.ndim == one.ndim and call.name not in PERMUTES
            self._known[result] = replace(spread, layout=layout, folds=spread.folds if still else None)
        return None

    def are_weighted(self, factors: Sequence[Tensor]) -> bool:
        """Return whether pairs are multiplied by one vector of their width, which makes one score of each."""
        if len(factors) != 2:
            return False
        known = self._known.get(factors[0])
        return known is not None and known.two_sided and factors[1].numel() == factors[0].shape[-1]

    def _begin(self, call: TorchCall, active: list[Tensor], result: Tensor, before: Spread | None) -> bool:
        joins = call.name in JOINS and len(active) > 1
        if not joins and (call.name not in SPREADS or len(active) != 2):
            return False
        left, right = pair = active[:2]
        if left is right or max(left.ndim, right.ndim) > result.ndim:
            return False
        labels = pair_labels(left, right, self._copies.new_of(pair, result))
        folds = self._copies.folds_of(pair)
        if labels is None or len(labels[2]) != result.ndim or (labels[0] == labels[1] and folds is None):
            return False
        letters: dict[str, str] = {}
        for one in pair:  # what either knows
            known = zip(labels[2][result.ndim - one.ndim :], self._heads.of(one), strict=True)
            letters |= {name: letter for name, letter in known if letter != "b"}
        spread = Spread(*labels, (self._origins.of(left), self._origins.of(right)), folds, letters)
        if not spread.two_sided and (call.name not in MULTIPLIES or before is not None):
            return False
        if joins and spread.layout[(call.dim() or 0) % result.ndim] not in set(labels[0]) & set(labels[1]):
            return False  # not the features of each pair, but other positions
        self._known[result] = spread
        return True

    def _weighted(self, spread: Spread, call: TorchCall, one: Tensor, result: Tensor) -> FollowedScores | None:
        """Return the scores that a layer, or a product with a vector, makes of pairs."""
        product = read_product(call) if call.name == "einsum" else None
        if product is not None and product.labels is not None:
            at = [factor is one for factor in product.factors].index(True)
            names = dict(zip(product.labels[at], spread.layout, strict=True))
            kept = "".join(names.get(label, _NEW) for label in product.labels[-1])
            return self._summed(spread, product.summed(one), result, kept)
        dim = contracted(call, one) if call.name in LINEAR else one.ndim - 1
        first = bool(call.args) and call.args[0] is one
        return self._summed(spread, [dim], result) if first and dim is not None else None

    def _summed(
        self, spread: Spread, dims: list[int], result: Tensor, kept: str | None = None
    ) -> FollowedScores | None:
        letter, folded = spread.folded
        shared = set(spread.left) & set(spread.right) - {letter}
        if not dims or not all(spread.layout[at] in shared for at in dims):
            return None
        if not spread.two_sided and dims != [len(spread.layout) - 1]:
            return None  # a mean over positions, with a mask as weights; the last dimension is the width
        if kept is None:
            kept = "".join(letter for at, letter in enumerate(spread.layout) if at not in dims)
        if result.ndim == len(spread.layout):
            kept = "".join(_NEW if at in dims else letter for at, letter in enumerate(spread.layout))
        layout, odd = place((spread.left, spread.right, kept), spread.letters, result)
        if letter:
            layout = "".join(folded if one == letter else _NEW for one in kept)
        return None if layout is None else FollowedScores(layout, spread.ends, weak=not spread.two_sided, odd=odd)


def both_ways(layout: Layout) -> tuple[Layout, Layout]:
    """Return both layouts, since keys may be either dimension."""
    return layout, layout.translate(str.maketrans("qk", "kq"))


def blind_before(call: TorchCall) -> Tensor | None:
    """Return which rows of scores see no key, before a call subtracts their maximum; None for any other call."""
    if call.name not in SUBTRACTS or len(call.args) < 2 or not all(isinstance(one, Tensor) for one in call.args[:2]):
        return None
    scores, other = call.args[:2]
    if scores.is_complex():
        return None
    summed = [at for at, size in enumerate(scores.shape) if other.ndim == scores.ndim and other.shape[at] < size]
    return scores.detach().amax(summed[0], keepdim=True) <= HIDDEN if len(summed) == 1 else None


def blind_rows(scores: Tensor, dim: int, before: Tensor | None) -> Tensor:
    """Return which rows of scores see no key, or saw none `before` their maximum was subtracted."""
    blind = scores.detach().amax(dim, keepdim=True) <= HIDDEN
    return blind if before is None or before.shape != blind.shape else blind | before


def is_exponential(call: TorchCall, scores: Tensor) -> bool:
    """Return whether a call raises a number to the power of scores."""
    if call.name in _POWERS:
        base = call.args[0] if call.args else call.kwargs.get("input", call.kwargs.get("self"))
        return (base is scores) == (call.name == "__rpow__")
    return call.name in _EXPONENTIALS


def softmax_dim(call: TorchCall) -> object:
    """Return the dimension over which a softmax runs."""
    if call.name == "gumbel_softmax":
        return call.dim(4) or -1
    return call.dim(2 if call.name == "_masked_softmax" else 1)


def may_multiply(call: TorchCall, tensors: list[Tensor], result: Tensor) -> bool:
    """Return whether an unknown function may have multiplied tensors: it is not elementwise, and does not return a
    loss.
    """
    if call.name in KNOWN or not result.ndim:
        return False
    try:
        return bool(torch.broadcast_shapes(*(one.shape for one in tensors)) != result.shape)
    except RuntimeError:
        return True


class Transformed:
    """Tracks scores and weights into transforms of torch.func (vmap, grad), whose tensors are wrapped, and scores out
    of them, which are views of what was wrapped. Their layout is unknown on the other side.
    """

    def __init__(self) -> None:
        self._inside: dict[tuple[int, int], Any] = {}  # by place in memory, which leaving does not change

    def carry(self, call: TorchCall, scores: WeakIdKeyDictionary, weights: WeakIdKeyDictionary) -> list[Any]:
        """Process the arguments of one call, and return the softmaxes whose weights were passed into a transform."""
        if not is_transformed() and not self._inside:
            return []
        used: list[Any] = []
        for one in call.tensors:
            inner = unwrapped(one)
            known = self._inside.get((storage_of(one), one.numel())) if inner is one else scores.get(inner)
            if inner is not one and inner in weights:
                used += weights[inner].softmaxes
            if known is not None and one not in scores:
                scores[one] = replace(known, layout=None)
        return used

    def begin(self, result: Tensor, scores: Any) -> None:
        """Process new scores."""
        if (inner := unwrapped(result)) is not result:
            self._inside[storage_of(inner), inner.numel()] = scores
