"""Numbers of a record as small blobs: quantized, split into byte planes and deflated.

What fits is decided by budgets, not by flags: a page should open at once, so it stays below about 12 MB.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.observe.records import Layer, Record
from regard.render.maps import HeadMap, head_map

__all__ = ["Packed", "PackedLayer", "pack"]

_EXACT_WEIGHTS = 600_000  # weights a page carries in full
_TOP_WEIGHTS = 2_300_000  # strongest keys of long texts, over all layers
_MAP_CELLS = 600_000
_MAP_SIDE = 96
_THUMB_SIDE = 24
_LEVEL = 6  # 9 takes twice the time for less than one in a hundred bytes
_MOST_TOKENS = 65_535  # keys are numbered in two bytes


@dataclass(frozen=True)
class PackedLayer:
    """One layer: `unit` is the integer that stands for a weight of 1, `top` the keys a query (0: every weight)."""

    blob: bytes
    exact: bool
    unit: int
    top: int
    rows: int
    columns: int
    query_bin: int
    key_bin: int
    thumb_rows: int
    thumb_columns: int


@dataclass(frozen=True)
class Packed:
    """All layers, and the small maps of all heads in one blob, so that the grid of heads needs no layer."""

    layers: tuple[PackedLayer, ...]
    thumbs: bytes


def pack(record: Record, sequence: int) -> Packed:
    """Quantize and deflate one sequence of a record."""
    pairs = sum(layer.heads * layer.queries * layer.keys for layer in record)
    in_full = pairs <= _EXACT_WEIGHTS and all(layer.exact is not None for layer in record)
    queries = sum(layer.heads * layer.queries for layer in record)
    heads = sum(layer.heads for layer in record)
    side = max(16, min(_MAP_SIDE, math.isqrt(_MAP_CELLS // max(heads, 1))))
    layers, thumbs = [], []
    for layer in record:
        _check(layer)
        small = _maps(layer, sequence, _THUMB_SIDE)
        thumbs.append(_roots(small).tobytes())
        shape = small[0].values.shape
        top = min(layer.top_keys.shape[-1], max(1, _TOP_WEIGHTS // max(queries, 1)))
        layers.append(_in_full(layer, sequence, shape) if in_full else _in_part(layer, sequence, top, side, shape))
    return Packed(tuple(layers), zlib.compress(b"".join(thumbs), _LEVEL))


def _check(layer: Layer) -> None:
    if max(layer.queries, layer.keys) > _MOST_TOKENS:
        raise InputError(
            f"a page holds up to {_MOST_TOKENS} tokens, layer {layer.name} has {layer.queries} × {layer.keys}: "
            "save an atlas instead (.atlas) and open it with `regard open`"
        )
    for name, values in (("max", layer.max), ("top_weights", layer.top_weights)):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InputError(f"weights of a page must be finite and not negative, got others in {layer.name}.{name}")


def _in_full(layer: Layer, sequence: int, thumb: tuple[int, ...]) -> PackedLayer:
    exact = layer.exact
    assert exact is not None  # pack asked
    blob = zlib.compress(_planes(_quantized(exact[sequence], 65_535)), _LEVEL)
    return PackedLayer(blob, True, 65_535, 0, layer.queries, layer.keys, 1, 1, *thumb)


def _in_part(layer: Layer, sequence: int, top: int, side: int, thumb: tuple[int, ...]) -> PackedLayer:
    keys = np.where(layer.top_keys[sequence][..., :top] < 0, 0, layer.top_keys[sequence][..., :top]).astype(np.uint16)
    weights = _quantized(layer.top_weights[sequence][..., :top], 10_000)
    maps = _maps(layer, sequence, side)
    blob = zlib.compress(_planes(keys) + _planes(weights) + _roots(maps).tobytes(), _LEVEL)
    rows, columns = maps[0].values.shape
    return PackedLayer(blob, False, 10_000, top, rows, columns, maps[0].query_bin, maps[0].key_bin, *thumb)


def _maps(layer: Layer, sequence: int, side: int) -> list[HeadMap]:
    return [head_map(layer, head, sequence, rows=side, columns=side) for head in range(layer.heads)]


def _quantized(weights: npt.NDArray[np.float32], unit: int) -> npt.NDArray[np.uint16]:
    return np.asarray(np.rint(np.minimum(weights, 1.0) * unit), dtype=np.uint16)


def _roots(maps: list[HeadMap]) -> npt.NDArray[np.uint8]:
    """One byte a cell, the root of its weight, so that small weights keep their digits."""
    values = np.stack([each.values for each in maps])
    return np.asarray(np.rint(np.sqrt(np.minimum(values, 1.0)) * 255), dtype=np.uint8)


def _planes(values: npt.NDArray[np.uint16]) -> bytes:
    """High bytes, then low bytes: the high ones are alike, and deflate well together."""
    return (values >> 8).astype(np.uint8).tobytes() + (values & 255).astype(np.uint8).tobytes()
