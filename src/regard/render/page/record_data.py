"""What the page holds of a record: names, tokens, patterns and sinks as JSON, and numbers as small blobs.

Numbers are quantized, split into byte planes and compressed. Byte budgets determine what is included: a page stays
below about 12 MB, so that it opens quickly.
"""

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.heads.patterns import find_sinks, head_patterns
from regard.record.highlight import Focus
from regard.record.layers import several_streams, stream_of
from regard.record.missing_attention import missing_lines
from regard.record.places import are_apart
from regard.record.records import Layer, Record
from regard.record.tiles import Matrix, pooled
from regard.record.tokens import Token, Word
from regard.render.labels import key_labels, prompt_rows, query_labels, shown_words, statistic_means, visible

__all__ = [
    "Packed",
    "PackedLayer",
    "inline_json",
    "pack",
    "record_json",
    "sinks_json",
    "statistics_json",
    "thumbnails",
    "tokens_json",
]

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
    cells = np.nan_to_num(pooled(stored, down, across, "max"))
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


def _map(layer: Layer, batch_index: int, side: int) -> tuple[npt.NDArray[np.floating], int, int]:
    """Return the maps of all heads in at most `side` × `side` cells, and what a cell spans: powers of two."""
    stored = np.asarray(layer.max[batch_index])
    down, across = (1 << max(0, math.ceil(math.log2(count / side))) for count in stored.shape[1:])
    if layer.kind == "self":
        down = across = max(down, across)
    return pooled(stored, down, across, "max"), layer.query_bin * down, layer.key_bin * across


def _quantized(weights: npt.NDArray[np.float32], unit: int) -> npt.NDArray[np.uint16]:
    return np.asarray(np.rint(np.minimum(weights, 1.0) * unit), dtype=np.uint16)


def _roots(cells: npt.NDArray[np.floating], levels: int = 255) -> npt.NDArray[np.uint8]:
    """Return the square root of each weight in one byte, so that small weights keep precision; `levels` divides 255."""
    return np.asarray(np.rint(np.sqrt(np.clip(cells, 0, 1)) * levels) * (255 // levels), dtype=np.uint8)


def _planes(values: npt.NDArray[np.uint16]) -> bytes:
    """Return the high bytes, then the low bytes: high bytes are similar and compress well together."""
    return (values >> 8).astype(np.uint8).tobytes() + (values & 255).astype(np.uint8).tobytes()


def record_json(record: Record, *, number: int = 0, title: str = "") -> dict[str, Any]:
    """Return what the page lists of a record: its names and its layers."""
    return {
        "number": number,
        "title": visible(title) if title else "",
        "model": visible(record.model) if record.model else "",
        "missing": [visible(line) for line in missing_lines(record.missing)],
        "layers": [_layer(record, index) for index in range(len(record))],
    }


def _layer(record: Record, index: int) -> dict[str, Any]:
    layer = record.layers[index]
    stream = stream_of(layer)
    return {
        "name": layer.name,
        "number": record.number(layer),
        "stream": (stream if isinstance(stream, str) else " → ".join(stream)) if several_streams(record.layers) else "",
        "kind": layer.kind,
        "streams": [layer.query_tokens, layer.key_tokens],
        "size": [layer.batch, layer.heads, layer.queries, layer.keys],
        "heads": layer.recorded_heads,
        "finest": Matrix(layer, layer.recorded_heads[0]).finest,
        "stored": 1 if layer.exact is not None else max(layer.query_bin, layer.key_bin),
    }


def tokens_json(record: Record, layer: Layer, batch_index: int) -> dict[str, Any]:
    """Return the tokens of both sides of a layer in visible text; those of the keys only where they are others."""
    same = layer.kind == "self" and layer.query_tokens == layer.key_tokens and layer.queries == layer.keys
    prompt = prompt_rows(record, layer)
    queries = _stream(query_labels(record, layer, batch_index), prompt)
    return {"same": same, "queries": queries, "keys": None if same else _key_stream(record, layer, batch_index, prompt)}


def _key_stream(record: Record, layer: Layer, batch_index: int, prompt: int | None) -> dict[str, Any]:
    tokens = key_labels(record, layer, batch_index)
    return _stream(tokens, prompt if layer.query_tokens == layer.key_tokens else None)


def _stream(tokens: Sequence[Token], prompt: int | None, words_shown: Sequence[Word] | None = None) -> dict[str, Any]:
    """Return the texts, a digit for each (1: white space before it, 2: special, 4: a word that a space would precede),
    and words of several pieces.

    `prompt` is the number of tokens that the model was given, null where it has generated none.
    """
    words = [word for word, _ in shown_words(tokens, words_shown)]
    special = {piece for word in words if word.special for piece in word.pieces}
    return {
        "texts": [token.text for token in tokens],
        "marks": "".join(
            str(token.space + 2 * (at in special) + 4 * are_apart(tokens, at)) for at, token in enumerate(tokens)
        ),
        "words": [[word.pieces[0], word.pieces[-1] + 1, word.text] for word in words if len(word.pieces) > 1],
        "prompt": prompt,
    }


def sinks_json(layer: Layer, batch_index: int) -> list[dict[str, float]]:
    """Return the sinks of a layer with their shares."""
    return [{"key": sink.key, "share": sink.share} for sink in find_sinks(layer, batch_index)]


def statistics_json(record: Record, layer: Layer, head: int, batch_index: int) -> list[list[str | float]]:
    """Return the requested statistics of a head as names and means, none of one that was not recorded."""
    if head not in layer.recorded_heads:
        return []
    return [[visible(name), mean] for name, mean in statistic_means(record, layer, head, batch_index).items()]


def inline_json(record: Record, focus: Focus, packed: Packed) -> dict[str, Any]:
    """Return everything but the blobs for a page that is a file; it opens with the heads of `focus`."""
    found = record_json(record)
    for number, described in enumerate(found["layers"]):
        described |= _inline_layer(record, record.layers[number], focus.batch_index, packed.layers[number])
    looks = [(look.layer % len(record), look.head) for look in focus.looks]
    second = looks[1] if len(looks) > 1 else (None, None)
    return found | {
        "streams": _streams(record, focus),
        "focus": {
            "query": focus.queries[focus.word].pieces[0],
            "key": focus.keys[focus.looks[0].target].pieces[0],
            "layer": looks[0][0],
            "head": looks[0][1],
            "layer2": second[0],
            "head2": second[1],
        },
    }


def _inline_layer(record: Record, layer: Layer, batch_index: int, blob: PackedLayer) -> dict[str, Any]:
    return {
        "size": [1, layer.heads, layer.queries, layer.keys],
        "finest": min(blob.query_bin, blob.key_bin),
        "stored": min(blob.query_bin, blob.key_bin),
        "exact": blob.exact,
        "unit": blob.unit,
        "top": blob.top,
        "map": [blob.rows, blob.columns],
        "bins": [blob.query_bin, blob.key_bin],
        "sinks": sinks_json(layer, batch_index),
        "patterns": list(head_patterns(record, layer, batch_index=batch_index)),
        "statistics": [statistics_json(record, layer, head, batch_index) for head in range(layer.heads)],
    }


def _streams(record: Record, focus: Focus) -> dict[str, Any]:
    """Return the tokens of each stream from its longest layer, since a layer may see only a part of it, in the words of
    the focus.
    """
    batch_index, shown = focus.batch_index, record.layers[focus.looks[0].layer]
    words = {shown.key_tokens: focus.keys, shown.query_tokens: focus.queries}
    longest: dict[str, tuple[int, Layer, bool]] = {}
    for layer in record:
        for name, count, keys in ((layer.query_tokens, layer.queries, False), (layer.key_tokens, layer.keys, True)):
            if count > longest.get(name, (0,))[0]:
                longest[name] = count, layer, keys
    prompts = {layer.query_tokens: prompt_rows(record, layer) for layer in record}
    return {
        name: _stream(
            (key_labels if keys else query_labels)(record, layer, batch_index), prompts.get(name), words.get(name)
        )
        for name, (_, layer, keys) in longest.items()
    }
