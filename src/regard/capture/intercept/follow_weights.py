"""Follow weights from a softmax to the values, and determine which weights to record."""

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
    """One softmax over scores: where it ran, and the fate of its weights."""

    caller: Caller
    used: bool = False  # its weights were recorded on values
    missed: bool = False
    suspect: str | None = None  # why it is missing, unless its weights are used in another place
    ticket: Any = None  # the ticket of the recorded call, to remove it


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores, or the result of a call on them; `ends` are the origins of the dimensions "q" and "k" of the layout."""

    layout: Layout | None
    ends: tuple[Origin, Origin]
    exponential: bool = False
    weak: bool = (
        False  # possibly a sum over positions: only a softmax over the other letter proves that they are scores
    )

    def rank(self, one: Tensor, result: Tensor) -> tuple[bool, ...]:
        """Return a rank among several tensors to follow: certain ones with a known and preserved layout are first."""
        return not self.weak, bool(self.layout), one.shape == result.shape


@dataclass(eq=False)
class Weights:
    """Weights, or the result of a call on them.

    `source` is the weights before dropout and casts, in the same layout; None stands for the tensor itself, to avoid a
    reference cycle.
    """

    source: Tensor | None
    softmaxes: tuple[Softmax, ...]  # combined of several weights by addition or subtraction
    layout: Layout | None  # in which "k" is the dimension of the softmax
    ends: tuple[Origin, Origin]
    altered: bool = False  # by a function that may have made them negative
    blended: bool = False  # heads were mixed: the source is recorded, regardless of later changes
    part: bool = False  # some keys were removed, such as a sink


def source_of(weights: Weights, one: Tensor) -> Tensor:
    """Return the tensor to record for weights that are now `one`."""
    return one.detach() if weights.source is None else weights.source


def changed(call: TorchCall, weights: Weights, parts: Sequence[Weights], one: Tensor, result: Tensor) -> Weights:
    """Return the result of a function on weights other than masks and factors; if it mixes heads, the softmax's output
    is recorded.

    Talking heads are sums of heads with learned factors, which can be negative and do not sum to 1.
    """
    layout = weights.layout and moved(weights.layout, call, one, result)
    blends = weights.blended or call.name in LINEAR or call.name in NORMS or call.name in PRODUCTS
    if layout is not None and result.shape == one.shape and blends and layout == weights.layout:
        return replace(weights, source=source_of(weights, one), blended=True)
    if layout is not None and not blends:
        return reweighted(call, weights, parts, one, result)
    return replace(weights, source=None, layout=None)


def reweighted(call: TorchCall, weights: Weights, parts: Sequence[Weights], one: Tensor, result: Tensor) -> Weights:
    """Return weights that are changed after the softmax, which are recorded as used; other weights, `parts`, may
    contribute.
    """
    same = result.shape == one.shape and all(part.layout == weights.layout for part in parts)
    layout = weights.layout if same else None
    if layout is None and call.name not in REWEIGHTS | MIXES and weights.layout is not None:
        layout = moved(weights.layout, call, one, result)
    softmaxes = tuple(dict.fromkeys(softmax for part in (weights, *parts) for softmax in part.softmaxes))
    source = _still_blind(weights, layout, result)
    return Weights(source, softmaxes, layout, weights.ends, altered=True, part=weights.part)


def is_part(weights: Weights, one: Tensor, layout: Layout | None, result: Tensor) -> bool:
    """Return whether these are the weights of only some of the keys."""
    if weights.layout is None or layout is None:
        return weights.part
    return weights.part or result.shape[layout.index("k")] < one.shape[weights.layout.index("k")]


def _still_blind(weights: Weights, layout: Layout | None, result: Tensor) -> Tensor | None:
    """Return the tensor to record for changed weights: the weights themselves, unless fully masked queries were set to
    0.
    """
    if weights.source is None or layout is None:
        return None
    blind = (weights.source == 0).all(layout.index("k"), keepdim=True)
    return result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None
