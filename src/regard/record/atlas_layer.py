"""Layers of an atlas. Small values are loaded immediately; arrays are loaded, verified and decompressed at first
access.
"""

import operator
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.record.atlas_compression import DTYPES, Held, Stored, deflated, plain
from regard.record.kept_qk import NUMBERS, Kept, Segment
from regard.record.records import Layer
from regard.record.statistic_axes import read_axes

__all__ = ["PADDING", "StoredLayer", "spans_of", "stored_arrays", "stored_kept"]

Array = npt.NDArray[Any]

# The arrays of a layer, and those that are reduced to 16 bits for long texts.
_ARRAYS = ("mean", "max", "top_keys", "top_weights", "entropy", "received", "weights")
_HALVED = ("mean", "max", "top_weights")
_LARGE = 4096  # bytes above which an array of a mask or bias is compressed
PADDING = ("query_padding", "key_padding")
_OPTIONAL = ("axes", "head_numbers", *PADDING)
LIGHT = tuple(one.name for one in fields(Layer) if one.name not in (*_ARRAYS, *_OPTIONAL, "statistics", "qk"))


class StoredLayer(Layer):
    """A layer whose arrays are in a file, otherwise like any other layer."""

    _arrays: Mapping[str, Stored]
    _kept: Mapping[str, Any] | None
    _held: Mapping[str, Stored]

    @classmethod
    def of(
        cls,
        about: Mapping[str, Any],
        arrays: Mapping[str, Stored],
        kept: Mapping[str, Any] | None = None,
        held: Mapping[str, Stored] | None = None,
    ) -> "StoredLayer":
        """Return a layer from the header's JSON and its arrays by name; names of statistics begin with "statistics.".

        Raises:
            ValueError, LookupError, TypeError: JSON and arrays are inconsistent.
        """
        if set(about) - set(_OPTIONAL) != set(LIGHT):
            raise ValueError(f"a layer has other fields than {', '.join(LIGHT)}")
        _check(about, arrays)
        if kept is not None:
            _check_kept(kept, held or {}, arrays)
        (batch, _, queries), keys = arrays["entropy"].shape, arrays["received"].shape[2]
        padding = {
            name: None if about.get(name) is None else _flags(about[name], batch, count)
            for name, count in zip(PADDING, (queries, keys), strict=True)
        }
        layer = object.__new__(cls)
        shapes = {name.removeprefix("statistics."): array.shape for name, array in arrays.items()}
        axes = read_axes(about.get("axes", {}), shapes)
        vars(layer).update({"head_numbers": None, **about, "axes": axes, **padding})
        if layer.head_numbers is not None:
            vars(layer)["head_numbers"] = tuple(layer.head_numbers)
        vars(layer).update({"_arrays": arrays, "_kept": kept, "_held": held or {}})
        return layer

    def __getattr__(self, name: str) -> Any:
        """Load an array at its first access."""
        if name not in Layer.__dataclass_fields__ or "_arrays" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        vars(self)[name] = value = self._read(name)
        return value

    def check_file(self) -> None:
        """Check that the file is as long as when it was opened; arrays that are mapped from it may be read then.

        Raises:
            AtlasError: It was cut off.
        """
        for one in (*self._arrays.values(), *self._held.values()):
            one.check_file()
            return  # all are of one file

    def _shape(self, name: str) -> tuple[int, ...]:
        stored: Mapping[str, Stored] = vars(self).get("_arrays", {})
        return stored[name].shape if name in stored else super()._shape(name)  # without loading it

    def _read(self, name: str) -> Any:
        if name == "qk":
            return None if self._kept is None else _kept(self._kept, Held(self._held))
        if name == "statistics":
            own = {one: stored for one, stored in self._arrays.items() if one.startswith("statistics.")}
            return {one.removeprefix("statistics."): stored.read() for one, stored in own.items()}
        if name in self._arrays:
            return self._arrays[name].read()
        return self.mean if name == "max" else None


def stored_arrays(layer: Layer) -> dict[str, Stored]:
    """Return the arrays of a layer in their stored form; arrays that are in an atlas already are reused.

    Raises:
        InputError: A statistic's array has a dtype that the format does not support.
    """
    if isinstance(layer, StoredLayer) and "_arrays" in vars(layer):
        return {name: one.summed() for name, one in vars(layer)["_arrays"].items()}
    long = layer.query_bin > 1 or layer.key_bin > 1
    found = {}
    for name in _ARRAYS:
        array = getattr(layer, name)
        if array is None or (name == "max" and array is layer.mean):
            continue
        small = long and name != "weights"
        found[name] = deflated(name, array, halve=name in _HALVED) if small else plain(name, array)
    for name, array in layer.statistics.items():
        if array.dtype not in DTYPES.values():
            raise InputError(
                f"the statistic {name!r} is of type {array.dtype}, which an atlas cannot hold: give it as float64, "
                "float32, float16, a signed integer, uint16, uint8 or bool"
            )
        at = f"statistics.{name}"
        found[at] = deflated(at, array) if long else plain(at, array)
    return found


def stored_kept(layer: Layer) -> tuple[dict[str, Any] | None, dict[str, tuple[int, Stored]]]:
    """Return the JSON of the stored queries, keys and values, and their arrays, each with a number that identifies
    shared arrays.
    """
    if isinstance(layer, StoredLayer) and "_arrays" in vars(layer):
        about = vars(layer)["_kept"]
        return (None if about is None else dict(about)), {
            name: (id(one), one) for name, one in vars(layer)["_held"].items()
        }
    kept = layer.qk
    if kept is None:
        return None, {}
    held = {}
    for name, array in kept.arrays.items():
        small = name not in NUMBERS and array.nbytes > _LARGE
        held[name] = (id(array), deflated(name, array) if small else plain(name, array))
    return {"brain": kept.brain, "segments": [asdict(one) for one in kept.segments]}, held


def spans_of(flags: npt.NDArray[np.bool_]) -> list[list[list[int]]]:
    """Return the runs of flags of each sequence as [start, stop], which are few: padding stands at the ends.

    >>> spans_of(np.array([[True, True, False], [False, False, False]]))
    [[[0, 2]], []]
    """
    edges = np.diff(np.pad(np.asarray(flags, np.int8), ((0, 0), (1, 1))), axis=1)
    return [np.flatnonzero(one).reshape(-1, 2).tolist() for one in edges]


def _flags(spans: Any, batch: int, count: int) -> npt.NDArray[np.bool_]:
    """Return the flags (batch, count) of these runs."""
    if not isinstance(spans, list) or len(spans) != batch:
        raise ValueError(f"the padding of a layer must be lists for {batch} sequences, got {spans!r:.80}")
    flags = np.zeros((batch, count), np.bool_)
    for row, runs in zip(flags, spans, strict=True):
        for start, stop in runs:
            if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= count:
                raise ValueError(f"padding must be from 0 to {count}, got {start!r} to {stop!r}")
            row[start:stop] = True
    return flags


def _kept(about: Mapping[str, Any], held: Held) -> Kept:
    return Kept(held, tuple(Segment(**one) for one in about["segments"]), bool(about["brain"]))


def _check(about: Mapping[str, Any], found: Mapping[str, Stored]) -> None:
    """Check that the arrays of one layer are consistent."""
    for one in found.values():
        one.check()
    _check_light(about)
    batch, heads, queries = found["entropy"].shape
    keys = found["received"].shape[2]
    tall, broad = (_bin(about[name]) for name in ("query_bin", "key_bin"))
    bins = -(-queries // tall), -(-keys // broad)
    expected = {
        "mean": (batch, heads, *bins),
        "max": (batch, heads, *bins),
        "top_keys": (batch, heads, queries, found["top_keys"].shape[-1]),
        "top_weights": found["top_keys"].shape,
        "received": (batch, heads, keys),
        "weights": (batch, heads, queries, keys),
    }
    for name, shape in expected.items():
        if name in found and found[name].shape != shape:
            raise ValueError(f"{name} of {about['name']} must have shape {shape}, got {found[name].shape}")
    for name, array in found.items():
        if name.startswith("statistics."):
            if array.shape[:2] not in ((batch, heads), (batch, 1)):
                raise ValueError(f"{name} must begin with (batch, heads) {batch, heads}, got {array.shape}")
        elif array.dtype.kind != ("i" if name == "top_keys" else "f"):
            raise ValueError(f"{name} of {about['name']} cannot be of type {array.dtype}")
    found["mean"], found["top_weights"]  # are there


def _check_light(about: Mapping[str, Any]) -> None:
    for text in (about[name] for name in ("name", "query_tokens", "key_tokens")):
        if not isinstance(text, str) or any("\ud800" <= one <= "\udfff" for one in text):  # which no page can show
            raise ValueError(
                f"a layer's name and streams must be texts without half a surrogate pair, got {text!r:.80}"
            )
    if about["kind"] not in ("self", "cross"):
        raise ValueError(f"{about['name']} must be of kind self or cross, got {about['kind']!r}")
    if (number := about["number"]) is not None and (type(number) is not int or not 0 <= number < 2**31):
        raise ValueError(f"{about['name']} must have a number from 0 on, got {number!r}")
    chosen = about.get("head_numbers")
    if chosen is not None and not (isinstance(chosen, list) and all(type(one) is int and one >= 0 for one in chosen)):
        raise ValueError(f"the recorded heads of {about['name']} must be numbers from 0 on, got {chosen!r}")


def _bin(size: Any) -> int:
    if type(size) is not int or size < 1 or size & (size - 1):
        raise ValueError(f"a bin must span a power of two, got {size!r}")
    return size


def _check_values(v: Stored, sizes: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    batch, heads, keys = sizes
    if (v.shape[0], v.shape[2], len(v.shape)) != (batch, keys, 4) or not v.shape[1] or heads % v.shape[1]:
        raise ValueError(f"the values of a layer must be those of {keys} keys, got {v.shape}")
    if v.dtype != dtype:
        raise ValueError(f"values cannot be of type {v.dtype} where queries are of type {dtype}")


def _check_kept(about: Mapping[str, Any], held: Mapping[str, Stored], arrays: Mapping[str, Stored]) -> None:
    """Check that queries and keys fit the layer."""
    for one in held.values():
        one.check()
    shape, keys = arrays["entropy"].shape, arrays["received"].shape[2]
    q, k, lse = (held[name] for name in ("q", "k", "lse"))
    if q.shape[:3] != shape or lse.shape != shape or len(q.shape) != 4:
        raise ValueError(f"the queries of a layer must be {shape}, got {q.shape} and {lse.shape}")
    if (k.shape[0], k.shape[2], len(k.shape)) != (shape[0], keys, 4) or not k.shape[1] or shape[1] % k.shape[1]:
        raise ValueError(f"the keys of a layer must be {keys}, got {k.shape}")
    if q.dtype != k.dtype or q.dtype.kind != ("u" if about["brain"] else "f") or lse.dtype != np.float64:
        raise ValueError(f"queries, keys and log-sum-exps cannot be of type {q.dtype}, {k.dtype} and {lse.dtype}")
    if "v" in held:
        _check_values(held["v"], (shape[0], shape[1], keys), q.dtype)
    end = 0
    for one in about["segments"]:
        places = [operator.index(one[name]) for name in ("first", "rows", "shift", "keys")]
        if min(places) < 0 or places[0] != end:
            raise ValueError(f"the calls of a layer do not follow each other at row {end}")
        end += places[1]
        Segment(**one)
    if end != shape[2]:
        raise ValueError(f"the calls of a layer have {end} rows of {shape[2]}")
