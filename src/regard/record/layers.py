"""One recorded attention layer, as NumPy arrays, and how `layer=`, `stream=`, `head=` and `batch_index=` choose it."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.record.kept_qk import Kept
from regard.record.statistic_axes import Axis

__all__ = [
    "HeadScore",
    "Layer",
    "Stream",
    "at_index",
    "find_layer",
    "has_words",
    "head_at",
    "in_stream",
    "own_number",
    "several_streams",
    "stream_of",
    "with_words",
]


# A stream for self-attention, or the streams of queries and keys for cross-attention.
Stream = str | tuple[str, str]


class _Placed(Protocol):
    """The attributes of a layer that are used here."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int | None: ...
    @property
    def query_tokens(self) -> str: ...
    @property
    def key_tokens(self) -> str: ...
    @property
    def queries(self) -> int: ...
    @property
    def keys(self) -> int: ...


_Layer = TypeVar("_Layer", bound=_Placed)


def stream_of(layer: _Placed) -> Stream:
    """Return what selects the layer's stream: its name, or for cross-attention the pair of queries and keys."""
    pair = layer.query_tokens, layer.key_tokens
    return pair[0] if pair[0] == pair[1] else pair


def has_words(layer: _Placed, tokens: Mapping[str, Sequence[Sequence[object]]]) -> bool:
    """Return whether there is a token for each row and column: fewer positions may be pooled or chosen ones."""
    sides = (layer.query_tokens, layer.queries), (layer.key_tokens, layer.keys)
    return all(len(next(iter(tokens.get(name, ())), ())) == count for name, count in sides)


def with_words(layers: Sequence[_Layer], tokens: Mapping[str, Sequence[Sequence[object]]]) -> Sequence[_Layer]:
    """Return the layers whose rows and columns have known tokens, or all if no layer's streams are in `tokens`.

    Raises:
        ObservationError: Tokens are known, but not which of them the rows or columns are.
    """
    known = [one for one in layers if {one.query_tokens, one.key_tokens} <= tokens.keys()]
    found = [one for one in known if has_words(one, tokens)]
    if known and not found:
        raise ObservationError(
            f"the words of the rows and columns are not known: {known[0].name} has {known[0].queries:,} queries on "
            f"{known[0].keys:,} keys, which may be pooled or chosen positions: use their numbers"
        )
    return found or layers


def several_streams(layers: Sequence[_Placed]) -> bool:
    """Return whether a number is ambiguous without a stream."""
    return len({stream_of(one) for one in layers}) > 1


def own_number(layers: Sequence[_Layer], layer: _Layer) -> int:
    """Return the number of a layer in its stream: the model's, or if unknown, its index."""
    if layer.number is not None:
        return layer.number
    same = [one for one in layers if stream_of(one) == stream_of(layer)]
    return next(index for index, one in enumerate(same) if one is layer)


def in_stream(layers: Sequence[_Layer], stream: Stream | None) -> tuple[_Layer, ...]:
    """Return the layers of a stream.

    Raises:
        InputError: The stream does not exist.
    """
    if stream is None:
        return tuple(layers)
    wanted = tuple(stream) if isinstance(stream, list) else stream
    found = [one for one in layers if stream_of(one) == wanted]
    if not found and isinstance(wanted, str):
        crossing = [one for one in layers if one.query_tokens == wanted]  # a stream with cross-attention only
        found = crossing if not several_streams(crossing) else []
    if not found:
        raise InputError(f"`stream` must be one of {_listed(layers)}, got {stream!r}")
    return tuple(found)


def find_layer(layers: Sequence[_Layer], which: Any, stream: Stream | None = None) -> _Layer:
    """Return the layer with this number in its stream, or with this module name.

    Raises:
        InputError: The layer does not exist, or the number needs a stream too.
        ObservationError: There are no layers.
    """
    if not layers:
        raise ObservationError("the record holds no attention layer, so there is none to choose")
    chosen = in_stream(layers, stream)
    if isinstance(which, str):
        if found := next((one for one in chosen if one.name == which), None):
            return found
        names = ", ".join(one.name for one in chosen)
        raise InputError(f"`layer` must name a layer that was seen, got {which!r}; seen: {names}")
    number = _integer("layer", which, "a number or the name of a module")
    if several_streams(chosen):
        raise InputError(
            f"`layer` {number} needs a `stream` too, as layers are numbered within it: stream= one of {_listed(layers)}"
        )
    numbers = [own_number(layers, one) for one in chosen]
    distinct = sorted(set(numbers))
    if number < 0 and -len(distinct) <= number:
        number = distinct[number]
    found_here = [one for one, own in zip(chosen, numbers, strict=True) if own == number]
    if not found_here:
        raise InputError(f"`layer` must be {_range(distinct)} (seen layers: {len(chosen)}), got {which}")
    if len(found_here) > 1:
        names = ", ".join(one.name for one in found_here)
        raise InputError(f"`layer` {number} has {len(found_here)} attention modules: name one of {names}")
    return found_here[0]


def at_index(name: str, value: Any, count: int, what: str = "") -> int:
    """Return an index among `count`; negative values count from the end as in Python.

    Raises:
        InputError: The value is not an integer, or out of range.
    """
    number = _integer(name, value, "an integer")
    if not -count <= number < count:
        raise InputError(f"`{name}` must be from 0 to {count - 1}{f' ({what}: {count})' if what else ''}, got {value}")
    return number % count


def _integer(name: str, value: Any, rule: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InputError(f"`{name}` must be {rule}, got {value!r}") from None


def _range(numbers: Sequence[int]) -> str:
    whole = len(numbers) == numbers[-1] - numbers[0] + 1 and list(numbers) == sorted(numbers)
    if whole and len(numbers) > 1:
        return f"from {numbers[0]} to {numbers[-1]}"
    return f"{'one of ' if len(numbers) > 1 else ''}{', '.join(map(str, numbers))}"


def _listed(layers: Sequence[_Placed]) -> str:
    """Return the available streams, with the numbers of their layers."""
    parts = []
    for stream in dict.fromkeys(map(stream_of, layers)):
        numbers = sorted({own_number(layers, one) for one in layers if stream_of(one) == stream})
        written = f'"{stream}"' if isinstance(stream, str) else '("{}", "{}")'.format(*stream)
        counted = _range(numbers).removeprefix("from ").removeprefix("one of ")
        parts.append(f"{written} (layer{'s' if len(numbers) > 1 else ''} {counted})")
    return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention call site of a model, as recorded in one forward pass.

    Shapes: `mean`, `max` (batch, heads, query bins, key bins); `top_keys`, `top_weights` (batch, heads, queries, k),
    best first, key −1 and weight 0 where a query sees fewer than k keys; `entropy` (batch, heads, queries) in nats;
    `received` (batch, heads, keys), the sum of each key's column; `weights` (batch, heads, queries, keys) or None. If
    heads were chosen, `head_numbers` are theirs, and the arrays are 0 at all others. `statistics` holds the requested
    statistics by name, as arrays (batch, heads, ...), with heads 1 if all heads share them, and `axes` what the axes
    behind these are: queries, keys or names, chosen ones or all. `qk`, with keep="qk", gives any rectangle of the
    weights. `number` is the layer's in the model, counted within its stream; None if it is unknown, in which case
    layers are counted in the order of their calls. A bin of the heat map spans `query_bin` queries and `key_bin` keys
    (the last may be smaller): `mean` is over its pairs, hidden ones counting 0, `max` its largest weight. With bins of
    1 both are the weights themselves.

    `query_padding` (batch, queries) and `key_padding` (batch, keys) are True where a position is padding; None where no
    sequence is known to have any. Rows of padding are shown as the model computed them, and count in no sum over
    queries (`received`).
    """

    name: str
    kind: Literal["self", "cross"]
    query_tokens: str  # the token stream of the queries
    key_tokens: str
    query_bin: int
    key_bin: int
    mean: npt.NDArray[np.float32]
    max: npt.NDArray[np.float32]
    top_keys: npt.NDArray[np.int32]
    top_weights: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    received: npt.NDArray[np.float32]
    # Factories instead of defaults: class attributes would prevent a layer of an atlas from loading its arrays on
    # access.
    weights: npt.NDArray[np.float32] | None = field(default_factory=lambda: None)
    statistics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    axes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    qk: Kept | None = field(default_factory=lambda: None)
    number: int | None = field(default_factory=lambda: None)  # the model's number within the stream
    head_numbers: tuple[int, ...] | None = field(default_factory=lambda: None)  # recorded heads, if they were chosen
    query_padding: npt.NDArray[np.bool_] | None = field(default_factory=lambda: None)
    key_padding: npt.NDArray[np.bool_] | None = field(default_factory=lambda: None)

    def __repr__(self) -> str:
        of = " → ".join(dict.fromkeys((self.query_tokens, self.key_tokens)))
        return f"<layer {self.name}: {self.kind}-attention of {of}, {self.heads} heads, {self.queries} × {self.keys}>"

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return int(self._shape("entropy")[0])

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return int(self._shape("entropy")[1])

    @property
    def queries(self) -> int:
        """Number of queries (rows)."""
        return int(self._shape("entropy")[2])

    @property
    def keys(self) -> int:
        """Number of keys (columns)."""
        return int(self._shape("received")[2])

    @property
    def recorded_heads(self) -> tuple[int, ...]:
        """The numbers of the heads that were recorded: all, unless some were chosen."""
        return tuple(range(self.heads)) if self.head_numbers is None else self.head_numbers

    @property
    def exact(self) -> npt.NDArray[np.float32] | None:
        """Every weight (batch, heads, queries, keys), if recorded in full or from a map with bins of 1."""
        if self.weights is not None:
            return self.weights
        return self.mean if self.query_bin == self.key_bin == 1 else None

    def _shape(self, name: str) -> tuple[int, ...]:
        array: npt.NDArray[Any] = getattr(self, name)
        return array.shape


def head_at(layer: Layer, head: Any) -> int:
    """Return the number of a head that was recorded; negative ones count from the end.

    Raises:
        InputError: There is no such head, or it was not chosen for recording.
    """
    found = at_index("head", head, layer.heads, "heads")
    if layer.head_numbers is not None and found not in layer.head_numbers:
        there = ", ".join(map(str, layer.head_numbers))
        raise InputError(f"`head` must be one that was chosen for recording, {there} of layer {layer.name}, got {head}")
    return found


@dataclass(frozen=True)
class HeadScore:
    """The weight of one head from one word to another; `stream` and `layer` identify its layer."""

    layer: int
    head: int
    weight: float
    stream: Stream = "text"
