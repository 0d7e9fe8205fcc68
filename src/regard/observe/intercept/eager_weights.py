"""Weights between a softmax and the values: which weights are recorded, or why they cannot be."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Protocol

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.call_kinds import CallFromWeights
from regard.observe.intercept.call_names_and_products import Layout, Product, TorchCall
from regard.observe.intercept.copied_entries import UsedPart
from regard.observe.intercept.layouts import follows, moved, product_layout, summed
from regard.observe.intercept.operation_kinds import (
    CASTS,
    DROPOUTS,
    LINEAR,
    MIXES,
    MULTIPLIES,
    NORMS,
    PARTS,
    PRODUCTS,
    REARRANGES,
    REWEIGHTS,
    SHAPES,
    WRITES,
)
from regard.observe.intercept.tensor_origins import LearnedTensors, Origin
from regard.record.missing_attention import REARRANGED, Caller
from regard.torch_private import DisableTorchFunction

__all__ = [
    "FollowedWeights",
    "SoftmaxUse",
    "Verdicts",
    "drops_in_place",
    "forget_written",
    "layouts_after",
    "main_factors",
    "multiplies_one_by_one",
    "passed_on",
    "reweighted",
    "show",
]


@dataclass(eq=False)
class SoftmaxUse:
    """One softmax over scores: where it ran, and the fate of its weights."""

    caller: Caller
    used: bool = False  # its weights were recorded on values
    missed: bool = False
    suspect: str | None = None  # why it is missing, unless its weights are used in another place
    ticket: Any = None  # the ticket of the recorded call, to remove it
    part: UsedPart | None = None  # what was recorded, if that was a part of the weights


@dataclass(eq=False)
class FollowedWeights:
    """Weights, or the result of a call on them.

    `source` is the weights before dropout and casts, in the same layout; None stands for the tensor itself, to avoid a
    reference cycle.
    """

    source: Tensor | None
    softmaxes: tuple[SoftmaxUse, ...]  # combined of several weights by addition or subtraction
    layout: Layout | None  # in which "k" is the dimension of the softmax
    ends: tuple[Origin, Origin]
    altered: bool = False  # by a function that may have made them negative
    blended: bool = False  # heads were mixed: the source is recorded, regardless of later changes
    part: bool = False  # some were removed: a sink's column, or all but some rows or heads
    odd: str | None = None  # why the scores cannot be shown
    lost: Layout | None = None  # the roles before a rearrangement, if the layout is unknown since then


class _Followed(Protocol):
    """Scores or weights."""

    @property
    def layout(self) -> Layout | None: ...
    @property
    def lost(self) -> Layout | None: ...


def layouts_after(
    followed: _Followed, call: TorchCall, one: Tensor, result: Tensor
) -> tuple[Layout | None, Layout | None]:
    """Return `layout` and `lost` of a result.

    A rearrangement that keeps the numbers of queries and keys keeps their roles. This does not suffice to show weights,
    but to follow them, so that they are missing where they meet values. A view or a pooling may make features of them.
    """
    before = followed.layout or followed.lost
    after = None if before is None else moved(before, call, one, result)
    if followed.layout is not None and after is not None:
        return after, None
    rearranged = call.name in REARRANGES or call.name == "__getitem__"
    if before is None or after is not None or not rearranged or result.ndim != one.ndim:
        return None, after
    same = (result.shape[at] == one.shape[at] for at, letter in enumerate(before) if letter != "b")
    return None, before if all(same) else None


def source_of(weights: FollowedWeights, one: Tensor) -> Tensor:
    """Return the tensor to record for weights that are now `one`."""
    return one.detach() if weights.source is None else weights.source


def passed_on(
    call: TorchCall, weights: FollowedWeights, parts: Sequence[FollowedWeights], one: Tensor, result: Tensor
) -> FollowedWeights | None:
    """Return what a function that neither masks nor sums makes of weights; None if they end there."""
    name = call.name
    if name in DROPOUTS or name in CASTS:
        return replace(weights, source=source_of(weights, one))
    if name in PARTS:
        layout, lost = layouts_after(weights, call, one, result)
        return replace(weights, layout=layout, lost=lost, source=None, altered=True, part=True)
    if not follows(weights.layout or weights.lost, call, one, result):
        return None
    if name not in SHAPES:
        return changed(call, weights, parts, one, result)
    (layout, lost), source = layouts_after(weights, call, one, result), weights.source
    if source is not None and call.args and call.args[0] is one:
        with DisableTorchFunction():
            # A view may need the strides that `contiguous` gave to the tensor in use.
            again = name != "view"
            source = call.func(source, *call.args[1:], **call.kwargs) if again else source.reshape(result.shape)
    part = weights.part or result.numel() < one.numel()
    return replace(weights, source=source, layout=layout, lost=lost, part=part)


def changed(
    call: TorchCall, weights: FollowedWeights, parts: Sequence[FollowedWeights], one: Tensor, result: Tensor
) -> FollowedWeights:
    """Return the result of a function on weights other than masks and factors; if it mixes heads, the softmax's output
    is recorded.

    Talking heads are sums of heads with learned factors, which can be negative and do not sum to 1.
    """
    layout, lost = layouts_after(weights, call, one, result)
    blends = weights.blended or call.name in LINEAR or call.name in NORMS or call.name in PRODUCTS
    if layout is not None and result.shape == one.shape and blends and layout == weights.layout:
        return replace(weights, source=source_of(weights, one), blended=True)
    if layout is not None and not blends:
        return reweighted(call, weights, parts, one, result)
    return replace(weights, source=None, layout=None, lost=lost)


def reweighted(
    call: TorchCall, weights: FollowedWeights, parts: Sequence[FollowedWeights], one: Tensor, result: Tensor
) -> FollowedWeights:
    """Return weights that are changed after the softmax, which are recorded as used; other weights, `parts`, may
    contribute.
    """
    same = result.shape == one.shape and all(part.layout == weights.layout for part in parts)
    layout = weights.layout if same else None
    if layout is None and call.name not in REWEIGHTS | MIXES and weights.layout is not None:
        layout = moved(weights.layout, call, one, result)
    softmaxes = tuple(dict.fromkeys(softmax for part in (weights, *parts) for softmax in part.softmaxes))
    source = _still_blind(weights, layout, result)
    part = weights.part or result.numel() < one.numel()
    lost = (weights.layout or weights.lost) if layout is None and result.shape == one.shape else None
    return FollowedWeights(source, softmaxes, layout, weights.ends, altered=True, part=part, odd=weights.odd, lost=lost)


def _still_blind(weights: FollowedWeights, layout: Layout | None, result: Tensor) -> Tensor | None:
    """Return the tensor to record for changed weights: the weights themselves, unless fully masked queries were set to
    0.
    """
    if weights.source is None or layout is None or weights.source.shape != result.shape:
        return None
    blind = (weights.source == 0).all(layout.index("k"), keepdim=True)
    return result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None


def drops_in_place(call: TorchCall) -> bool:
    """Return whether a dropout overwrites its input."""
    name, args = call.name, call.args
    inplace = name == "dropout_" or call.kwargs.get("inplace") or (name == "dropout" and args[3:4] == (True,))
    return name in DROPOUTS and bool(inplace and args)


def forget_written(call: TorchCall, known: WeakIdKeyDictionary) -> None:
    """Let weights that a call writes to be recorded as they then are, not as they were before a copy or cast."""
    written = call.args[0] if call.args else None
    if not isinstance(written, Tensor) or not (call.name in WRITES or re.search(r"[a-z]_$|^__i[a-z]+__$", call.name)):
        return
    whole = written if written._base is None else written._base
    changed = call.name not in REWEIGHTS | MIXES | DROPOUTS
    for one, weights in list(known.items()):
        if (one is written and changed) or (one is not written and (one is whole or one._base is whole)):
            weights.source = None


def multiplies_one_by_one(call: TorchCall, one: Tensor, others: Iterable[Tensor], result: Tensor) -> bool:
    """Return whether weights with room for a width are multiplied by another tensor that has one."""
    roomy = call.name in MULTIPLIES and one.shape[-1] == 1 < result.shape[-1]  # a single key would remain one
    return roomy and any(other.is_floating_point() for other in others)


def main_factors(
    product: Product, result: Tensor, learned: LearnedTensors, known: WeakIdKeyDictionary
) -> Product | None:
    """Return the two relevant factors: of several, weights and values, or else queries and keys."""
    if len(product.factors) == 2:
        return product
    active = [at for at, one in enumerate(product.factors) if not learned.holds(one)]
    pairs = [product.pair(one, other) for one, other in combinations(active, 2)]
    weighted = [pair for pair in pairs if any(one in known for one in pair.factors)]
    return max(weighted or pairs, key=lambda pair: _suits(pair, result, known), default=None)


def _suits(pair: Product, result: Tensor, known: WeakIdKeyDictionary) -> int:
    """Return a rank for two of several factors as weights and values, or as queries and keys."""
    for at, one in enumerate(pair.factors):
        if (weights := known.get(one)) is not None:
            return (
                weights.layout is not None and summed(weights.layout, at, pair.factors[1 - at], pair.labels) is not None
            )
    return len(set(product_layout(result, pair.labels) or "") & {"q", "k"})


class Verdicts:
    """Reports softmaxes to `miss`, each once: immediately, or at the end if they are only suspected."""

    def __init__(self, miss: Callable[[Caller, str], None], take_back: Callable[[Any, str], None]) -> None:
        self._miss, self._take_back = miss, take_back
        self._suspects: list[SoftmaxUse] = []

    def fail(self, softmaxes: Iterable[SoftmaxUse], reason: str) -> None:
        """Report softmaxes whose weights were used in an unsupported way."""
        for softmax in softmaxes:
            if not softmax.used and not softmax.missed:
                softmax.missed = True
                self._miss(softmax.caller, reason)

    def use_again(self, weights: FollowedWeights, one: Tensor) -> None:
        """Process weights on values after a part of them was recorded: that part is not all that was in use."""
        for softmax in weights.softmaxes:
            if softmax.part is not None and not softmax.part.is_in(one):
                self._take_back(softmax.ticket, REARRANGED)

    def doubt(self, weights: FollowedWeights, one: Tensor, reason: str) -> None:
        """Process a use that cannot be shown: they are missing unless they are also used on values as a whole."""
        self.use_again(weights, one)
        self.suspect(weights.softmaxes, reason)

    def suspect(self, softmaxes: Iterable[SoftmaxUse], reason: str) -> None:
        """Store softmaxes whose weights were passed to a function that is not analyzed."""
        for softmax in softmaxes:
            if softmax.suspect is None:
                softmax.suspect = reason
                self._suspects.append(softmax)

    def finish(self) -> None:
        """Report the suspected softmaxes whose weights were used nowhere else."""
        for softmax in self._suspects:
            self.fail((softmax,), softmax.suspect or "")


def show(matrix: Tensor, layout: Layout, merged: tuple[int, int] | None, values: Tensor, axis: int) -> CallFromWeights:
    """Return weights and the values they were multiplied by, whose dimension `axis` was summed, as a watched call."""
    values = (values.abs() if values.is_complex() else values).movedim(axis, -2)  # the norms are the same
    order = [at for letter in "bwhqk" for at, one in enumerate(layout) if one == letter]
    if "w" in layout:  # windows are batch entries, since each sees only itself
        matrix = matrix.permute(order).flatten(0, layout.count("w") - 1)
        matrix = matrix.flatten(1, -3) if matrix.ndim > 3 else matrix[:, None]
        values = values.permute(*order[:-2], -2, -1) if values.ndim == len(order) else values
        values = values.reshape(*matrix.shape[:2], *values.shape[-2:])
        return CallFromWeights(matrix, marks=values, v=values)
    matrix = matrix.permute(order)
    if "q" not in layout:  # a single query without a dimension
        matrix, merged = matrix[..., None, :], None
    shared = (values.ndim == matrix.ndim == 5 and values.shape[2] == 1) or values.ndim + 1 == matrix.ndim == 5
    four = _four(matrix, merged, shared_values=shared)
    marks = values.reshape(*merged, *values.shape[-2:]) if merged and values.ndim == 3 else values
    marks = marks[(None,) * (4 - marks.ndim)] if marks.ndim < 3 else marks
    marks = marks.reshape(marks.shape[0], -1, *marks.shape[-2:])
    return CallFromWeights(four, marks=marks, v=marks)


def _four(matrix: Tensor, merged: tuple[int, int] | None, *, shared_values: bool) -> Tensor:
    """Return four dimensions: (n, m) is one sequence and head, (batch, n, m) has one head per sequence, further
    leading dimensions are batch.

    Five dimensions of which the third shares its values are (batch, kv_heads, group, n, m).
    """
    pairs = matrix.shape[-2:]
    if matrix.ndim == 2:
        return matrix[None, None]
    if matrix.ndim == 3:
        return matrix.reshape(*merged, *pairs) if merged else matrix[:, None]
    if shared_values:
        return matrix.reshape(matrix.shape[0], -1, *pairs)
    return matrix.reshape(-1, *matrix.shape[-3:])
