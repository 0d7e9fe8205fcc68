"""Weights on their way from a softmax to the values: which are shown, once something was made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.follow_tensors import moved
from regard.capture.intercept.key_origins import Origin
from regard.capture.intercept.layout import Layout
from regard.capture.intercept.operation_kinds import LINEAR, MIXES, NORMS, PRODUCTS, REWEIGHTS
from regard.capture.missing_attention import Caller

__all__ = ["Scores", "Softmax", "Weights", "changed", "is_part", "reweighted", "source_of"]


@dataclass(eq=False)
class Softmax:
    """One softmax over scores: where it ran, and what became of it."""

    caller: Caller
    used: bool = False  # its weights were seen on values
    missed: bool = False
    suspect: str | None = None  # why it is missing, unless its weights are used elsewhere
    ticket: Any = None  # of the call that was seen, to take it back


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores, or what a call made of them; `ends` are the origins of the dimensions "q" and "k" of the layout."""

    layout: Layout | None
    ends: tuple[Origin, Origin]
    exponential: bool = False
    weak: bool = False  # perhaps a sum over positions: only a softmax over the other letter shows that they are scores

    def rank(self, one: Tensor, result: Tensor) -> tuple[bool, ...]:
        """Which of several to follow to a result: those that are certain, whose layout is known and stays."""
        return not self.weak, bool(self.layout), one.shape == result.shape


@dataclass(eq=False)
class Weights:
    """Weights, or what a call made of them.

    `source` is what they were before dropout and casts, in the same layout; None for the tensor itself, which must not
    keep itself alive.
    """

    source: Tensor | None
    softmaxes: tuple[Softmax, ...]  # of several, weights were added to or taken from one another
    layout: Layout | None  # of which "k" is the dimension that the softmax ran over
    ends: tuple[Origin, Origin]
    altered: bool = False  # by something that may have made them negative
    blended: bool = False  # heads were mixed: the source is what is shown, whatever comes after
    part: bool = False  # some keys were cut off, as a sink's is


def source_of(weights: Weights, one: Tensor) -> Tensor:
    """What is shown of weights, which `one` is now."""
    return one.detach() if weights.source is None else weights.source


def changed(call: TorchCall, weights: Weights, parts: Sequence[Weights], one: Tensor, result: Tensor) -> Weights:
    """What a function made of weights, beside masks and factors: where it mixes heads, what the softmax gave is shown.

    Talking heads are sums of heads with learned factors, which fall below 0 and do not sum to 1.
    """
    layout = weights.layout and moved(weights.layout, call, one, result)
    blends = weights.blended or call.name in LINEAR or call.name in NORMS or call.name in PRODUCTS
    if layout is not None and result.shape == one.shape and blends and layout == weights.layout:
        return replace(weights, source=source_of(weights, one), blended=True)
    if layout is not None and not blends:
        return reweighted(call, weights, parts, one, result)
    return replace(weights, source=None, layout=None)


def reweighted(call: TorchCall, weights: Weights, parts: Sequence[Weights], one: Tensor, result: Tensor) -> Weights:
    """Weights after the softmax are seen as they are used; other weights, `parts`, may have a share in them."""
    same = result.shape == one.shape and all(part.layout == weights.layout for part in parts)
    layout = weights.layout if same else None
    if layout is None and call.name not in REWEIGHTS | MIXES and weights.layout is not None:
        layout = moved(weights.layout, call, one, result)
    softmaxes = tuple(dict.fromkeys(softmax for part in (weights, *parts) for softmax in part.softmaxes))
    source = _still_blind(weights, layout, result)
    return Weights(source, softmaxes, layout, weights.ends, altered=True, part=weights.part)


def is_part(weights: Weights, one: Tensor, layout: Layout | None, result: Tensor) -> bool:
    """Whether these are not the weights of all keys."""
    if weights.layout is None or layout is None:
        return weights.part
    return weights.part or result.shape[layout.index("k")] < one.shape[weights.layout.index("k")]


def _still_blind(weights: Weights, layout: Layout | None, result: Tensor) -> Tensor | None:
    """What stands for reweighted weights: nothing but themselves, unless queries that see nothing were taken out."""
    if weights.source is None or layout is None:
        return None
    blind = (weights.source == 0).all(layout.index("k"), keepdim=True)
    return result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None
