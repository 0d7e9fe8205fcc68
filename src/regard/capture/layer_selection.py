"""Resolve `layer=`, `stream=`, `head=`, `query=` and `batch_index=`, with an error for each invalid value."""

import operator
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from regard.errors import InputError, ObservationError

__all__ = ["Stream", "at_index", "find_layer", "in_stream", "own_number", "several_streams", "stream_of"]

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


_Layer = TypeVar("_Layer", bound=_Placed)


def stream_of(layer: _Placed) -> Stream:
    """Return the value that selects the layer's stream: its name, or for cross-attention the pair of queries
    and keys.
    """
    pair = layer.query_tokens, layer.key_tokens
    return pair[0] if pair[0] == pair[1] else pair


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
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
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
