"""Numbers of a record as small blobs: quantized, split into byte planes and compressed.

Byte budgets determine what is included: a page stays below about 12 MB, so that it opens quickly.
"""

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.capture.records import Layer, Record
from regard.errors import InputError
from regard.render.heatmap_data import pool_max

__all__ = ["Packed", "PackedLayer", "pack", "thumbnails"]

_EXACT_WEIGHTS = 600_000  # maximum number of weights that a page stores in full
_LARGEST = 8_400_000  # maximum bytes of all blobs; base64 adds a third
_MAP_CELLS = 18_000_000  # all 270 heads of SmolLM2 at 256 × 256
# For long texts: number of strongest keys over all layers, and side of a map; the first that fits is used.
_PARTS = ((2_300_000, 256), (1_200_000, 256), (1_200_000, 128), (600_000, 96))
_FINE_CELLS = (
    6_000_000  # up to this number, roots have 256 levels and weights 4 decimals; beyond, 52 levels and 3 decimals
)
_SHORT = 2048  # up to this number of tokens maps are 96 × 96, which still shows single words
_THUMB_SIDE = 24
_LEVEL = 6  # level 9 takes twice the time and saves less than 1 %
_MOST_TOKENS = 65_535  # keys are stored in two bytes


@dataclass(frozen=True)
class PackedLayer:
    """One layer: `unit` is the integer for a weight of 1, `top` the number of keys per query (0: every weight)."""

    blob: bytes
    exact: bool
    unit: int
    top: int
    rows: int
    columns: int
    query_bin: int
    key_bin: int


@dataclass(frozen=True)
class Packed:
    """All layers, and the small maps of all heads in one blob, so that the grid of heads needs no layer."""

    layers: tuple[PackedLayer, ...]
    thumbs: bytes


def pack(record: Record, batch_index: int) -> Packed:
    """Quantize and compress one sequence of a record: in full if it is short, else within the budgets."""
    for layer in record:
        _check(layer)
    pairs = sum(layer.heads * layer.queries * layer.keys for layer in record)
    if pairs <= _EXACT_WEIGHTS and all(layer.exact is not None for layer in record):
        return _packed(record, batch_index, lambda layer: _in_full(layer, batch_index))
    queries = sum(layer.heads * layer.queries for layer in record)
    heads = sum(layer.heads for layer in record)
    longest = max(max(layer.queries, layer.keys) for layer in record)
    for weights, most in _PARTS:
        top = max(1, weights // max(queries, 1))
        finest = most if longest > _SHORT else _PARTS[-1][1]
        side = max(16, min(finest, math.isqrt(_MAP_CELLS // max(heads, 1))))
        fine = sum(layer.heads * min(side, layer.queries) * min(side, layer.keys) for layer in record) <= _FINE_CELLS
        part = functools.partial(_in_part, batch_index=batch_index, top=top, side=side, fine=fine)
        packed = _packed(record, batch_index, part)
        if len(packed.thumbs) + sum(len(layer.blob) for layer in packed.layers) <= _LARGEST:
            break
    return packed


def _packed(record: Record, batch_index: int, one: Callable[[Layer], PackedLayer]) -> Packed:
    thumbs = b"".join(thumbnails(layer, batch_index) for layer in record)
    return Packed(tuple(map(one, record)), zlib.compress(thumbs, _LEVEL))


def thumbnails(layer: Layer, batch_index: int) -> bytes:
    """Return a small map of each head, after their numbers of rows and columns: the root of each cell in a byte."""
    stored = np.asarray(layer.max[batch_index])
    down, across = (-(-side // _THUMB_SIDE) for side in stored.shape[1:])
    cells = np.nan_to_num(pool_max(stored, down, across))
    return bytes(cells.shape[1:]) + _roots(cells).tobytes()


def _check(layer: Layer) -> None:
    if max(layer.queries, layer.keys) > _MOST_TOKENS:
        raise InputError(
            f"a page holds up to {_MOST_TOKENS} tokens, layer {layer.name} has {layer.queries} × {layer.keys}: "
            "save an atlas instead (.atlas) and open it with `regard open`"
        )
    for name, values in (("max", layer.max), ("top_weights", layer.top_weights)):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InputError(f"weights of a page must be finite and not negative, got others in {layer.name}.{name}")


def _in_full(layer: Layer, batch_index: int) -> PackedLayer:
    exact = layer.exact
    assert exact is not None  # checked by pack
    blob = zlib.compress(_planes(_quantized(exact[batch_index], 65_535)), _LEVEL)
    return PackedLayer(blob, True, 65_535, 0, layer.queries, layer.keys, 1, 1)


def _in_part(layer: Layer, *, batch_index: int, top: int, side: int, fine: bool) -> PackedLayer:
    unit, top = 10_000 if fine else 1000, min(top, layer.top_keys.shape[-1])
    keys = np.where(layer.top_keys[batch_index][..., :top] < 0, 0, layer.top_keys[batch_index][..., :top]).astype(
        np.uint16
    )
    weights = _quantized(layer.top_weights[batch_index][..., :top], unit)
    cells, down, across = _map(layer, batch_index, side)
    blob = zlib.compress(_planes(keys) + _planes(weights) + _roots(cells, 255 if fine else 51).tobytes(), _LEVEL)
    rows, columns = cells.shape[1:]
    return PackedLayer(blob, False, unit, top, rows, columns, down, across)


def _map(layer: Layer, batch_index: int, side: int) -> tuple[npt.NDArray[np.float32], int, int]:
    """Return the maps of all heads in at most `side` × `side` cells, and what a cell spans: powers of two."""
    stored = np.asarray(layer.max[batch_index])
    down, across = (1 << max(0, math.ceil(math.log2(count / side))) for count in stored.shape[1:])
    if layer.kind == "self":
        down = across = max(down, across)
    return pool_max(stored, down, across), layer.query_bin * down, layer.key_bin * across


def _quantized(weights: npt.NDArray[np.float32], unit: int) -> npt.NDArray[np.uint16]:
    return np.asarray(np.rint(np.minimum(weights, 1.0) * unit), dtype=np.uint16)


def _roots(cells: npt.NDArray[np.float32], levels: int = 255) -> npt.NDArray[np.uint8]:
    """Return the square root of each weight in one byte, so that small weights keep precision; `levels` divides 255."""
    return np.asarray(np.rint(np.sqrt(np.clip(cells, 0, 1)) * levels) * (255 // levels), dtype=np.uint8)


def _planes(values: npt.NDArray[np.uint16]) -> bytes:
    """Return the high bytes, then the low bytes: high bytes are similar and compress well together."""
    return (values >> 8).astype(np.uint8).tobytes() + (values & 255).astype(np.uint8).tobytes()
