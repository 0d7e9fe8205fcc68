"""What a tensor is of attention: pairs of queries and keys, their scores, weights, an output."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard.observe.call_kinds import CallFromWeights
from regard.observe.following.axes import Axes, Axis, Factor, size_of
from regard.observe.following.origins import Origin
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import REARRANGED, Caller

__all__ = [
    "Edges",
    "Exponentials",
    "Noise",
    "Output",
    "Pairs",
    "Sampled",
    "Scores",
    "Shares",
    "SoftmaxUse",
    "Sums",
    "Verdicts",
    "Weights",
    "is_pure",
    "letters_of",
    "show",
]


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Each query beside each key, of which a sum or a layer over the rest makes scores."""

    ends: tuple[Origin, Origin]
    two_sided: bool  # else one of them has no positions: a gate looks the same, until a softmax runs over the others


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """Scores of queries and keys; `ends` are the origins of "q" and "k"."""

    ends: tuple[Origin, Origin]
    exponential: bool = False
    weak: bool = (
        False  # possibly a sum over positions: only a softmax over the other letter proves that they are scores
    )
    blind: Tensor | None = None  # rows without a visible key, if their maximum was subtracted
    odd: str | None = None  # why they cannot be shown
    lost: bool = False  # whether they were rearranged: the letters are those from before
    call: WatchedCall | None = None  # with q and k, if the function that computes them is known
    log_of: tuple[Any, int] | None = None  # the scores that these are the log_softmax of, and its dimension


@dataclass(eq=False, slots=True)
class SoftmaxUse:
    """One softmax over scores: where it ran, and the fate of its weights."""

    caller: Caller
    used: bool = False  # its weights were recorded on values
    missed: bool = False
    suspect: str | None = None  # why it is missing, unless its weights are used in another place
    ticket: Any = None  # the ticket of the recorded call, to remove it
    part: Any = None  # what was recorded, if that was a part of the weights
    windows: bool = False  # made of a layer's features without queries and keys: only its sum over values says more


@dataclass(eq=False, slots=True)
class Weights:
    """Weights, or the result of a call on them.

    `source` is the weights before dropout and casts, of the same sizes; None stands for the tensor itself.
    """

    source: Tensor | None
    softmaxes: tuple[SoftmaxUse, ...]  # combined of several weights by addition or subtraction
    ends: tuple[Origin, Origin]
    altered: bool = False  # by a function that may have made them negative
    blended: bool = False  # heads were mixed: the source is recorded, regardless of later changes
    part: Any = None  # where a part of them lies, if some were removed: a sink's column, or all but some rows or heads
    odd: str | None = None  # why the scores cannot be shown
    lost: bool = False  # whether they were rearranged


@dataclass(frozen=True, slots=True)
class Noise:
    """Random zeros and ones, or these scaled, as dropout multiplies."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The result of a softmax over no scores."""

    caller: Caller | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Values sampled from a map at computed places."""


@dataclass(frozen=True, slots=True)
class Exponentials:
    """The result of exp."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Exponentials that were summed by an index, as those of a node's edges."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Exponentials over such sums: a softmax over edges."""


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """The output of attention calls, up to the next projection."""

    tickets: frozenset[Any]


class Verdicts:
    """Reports softmaxes to `miss`, each once: immediately, or at the end if they are only suspected."""

    def __init__(self, miss: Callable[[Caller, str], None], withdraw: Callable[[Any, str], None]) -> None:
        self._miss, self._withdraw = miss, withdraw
        self._suspects: list[SoftmaxUse] = []

    def take_back(self, ticket: Any, reason: str) -> None:
        """Remove a recorded call that turns out not to be attention between tokens."""
        if ticket is not None:
            self._withdraw(ticket, reason)

    def fail(self, softmaxes: Iterable[SoftmaxUse], reason: str) -> None:
        """Report softmaxes whose weights were used in an unsupported way."""
        for softmax in softmaxes:
            if not softmax.used and not softmax.missed:
                softmax.missed = True
                self._miss(softmax.caller, reason)

    def use_again(self, weights: Weights) -> None:
        """Process weights on values after a part of them was recorded: that part is not all that was in use."""
        for softmax in weights.softmaxes:
            if softmax.part is not None and softmax.part != weights.part:
                self.take_back(softmax.ticket, REARRANGED)

    def suspect(self, weights: Weights, reason: str) -> None:
        """Store softmaxes whose weights were used in a way that cannot be shown, unless all are also used on values."""
        self.use_again(weights)
        for softmax in weights.softmaxes:
            if softmax.suspect is None:
                softmax.suspect = reason
                self._suspects.append(softmax)

    def finish(self) -> None:
        """Report the suspected softmaxes whose weights were used nowhere else."""
        for softmax in self._suspects:
            self.fail((softmax,), softmax.suspect or "")
        self._suspects = []


def letters_of(axes: Axes) -> set[str]:
    """Return the letters of all factors."""
    return {factor[0] for axis in axes for factor in axis}


def is_pure(axis: Axis, letter: str) -> bool:
    """Return whether a dimension is that of the queries or keys alone, beside factors of size 1."""
    return any(factor[0] == letter for factor in axis) and all(one[0] == letter or one[1] == 1 for one in axis)


def show(matrix: Tensor, axes: Axes, values: Tensor, value_axes: Axes | None) -> CallFromWeights:
    """Return weights and the values (…, keys, width) that they were multiplied by as a watched call.

    Heads are what a view has cut from the features. Where nothing was, of several dimensions beside queries and keys,
    the last is that of heads, or the last two if values share it (groups of queries); the others are batch.
    """
    factors: list[tuple[int, Factor]] = [(at, factor) for at, axis in enumerate(axes) for factor in _kept(axis)]
    ends: list[list[int]] = []
    for letter in "qk":  # where a view has taken them apart, the last is that of positions
        places = [number for number, (_, factor) in enumerate(factors) if factor[0] == letter]
        last = max((factors[number][0] for number in places), default=-1)
        ends.append([number for number in places if factors[number][0] == last])
    order = [number for number in range(len(factors)) if number not in ends[0] + ends[1]]
    leading = [factors[number] for number in order]
    four = matrix.reshape([factor[1] for _, factor in factors]).permute(*order, *ends[0], *ends[1])
    pairs = [math.prod(factors[number][1][1] for number in end) for end in ends]
    four = four.reshape(*(factor[1] for _, factor in leading), *pairs)
    batch = max(0, values.ndim - 2)
    inner = [number for number, (at, _) in enumerate(factors) if at < batch]
    values = values.abs() if values.is_complex() else values  # the norms are the same
    sizes = [factors[number][1][1] for number in inner]
    fits = math.prod(sizes) == math.prod(values.shape[:batch])
    values = values.reshape(*(sizes if fits else [1] * len(inner)), *values.shape[-2:])
    shared = bool(leading) and _shares(value_axes, leading[-1][0], axes)
    for at, number in reversed(list(enumerate(inner))):
        if number in ends[0] + ends[1]:
            values = values.select(at, 0)
    here = [number for number, (at, _) in enumerate(leading) if at < batch]
    for number in range(len(leading)):
        if number not in here:
            values = values.unsqueeze(number)
    values = values.expand(*(factor[1] for _, factor in leading), *values.shape[-2:])
    count = len(leading)
    heads = sum(factor[0] == "h" for _, factor in leading)
    if heads:
        order = sorted(range(count), key=lambda number: leading[number][1][0] == "h")
        four, values = (one.permute(*order, count, count + 1) for one in (four, values))
    else:
        heads = 2 if count > 2 and shared else int(count > 1)
    return CallFromWeights(
        _four(four, count - heads), marks=_four(values, count - heads), v=_four(values, count - heads)
    )


def _kept(axis: Axis) -> Axis:
    """Return factors without inserted ones beside others, and without any of size 1 beside queries and keys."""
    if len(axis) == 1:
        return axis
    if any(one[0] in "qk" for one in axis):
        return tuple(one for one in axis if one[1] > 1 or one[0] in "qk")
    return tuple(one for one in axis if one != ("n", 1)) or axis[:1]


def _shares(value_axes: Axes | None, at: int, axes: Axes) -> bool:
    """Return whether values hold copies along the last factor of a dimension, as those of the queries of a group."""
    if value_axes is None:
        return False
    if at >= len(value_axes) - 2:  # beside the queries
        return True
    own, other = _kept(axes[at]), _kept(value_axes[at])
    if size_of(other) == 1 < size_of(own):
        return True
    return bool(other[-1][0] == "n" and other[-1][1] == own[-1][1] > 1)


def _four(tensor: Tensor, batch: int) -> Tensor:
    """Return four dimensions: the first `batch` leading ones as one, and the other leading ones as heads."""
    sizes = tensor.shape[:-2]
    return tensor.reshape(math.prod(sizes[:batch]), math.prod(sizes[batch:]), *tensor.shape[-2:])


def still_blind(weights: Weights, keys: int, result: Tensor) -> Tensor | None:
    """Return the tensor to record for changed weights: the weights themselves, unless fully masked queries were set to
    0.
    """
    if weights.source is None or weights.source.shape != result.shape:
        return None
    blind = (weights.source == 0).all(keys, keepdim=True)
    return result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None


def combined(weights: Weights, others: Sequence[Weights], source: Tensor | None, *, lost: bool) -> Weights:
    """Return weights that were changed after the softmax, together with others."""
    softmaxes = tuple(dict.fromkeys(softmax for one in (weights, *others) for softmax in one.softmaxes))
    return replace(weights, source=source, softmaxes=softmaxes, altered=True, lost=weights.lost or lost)
