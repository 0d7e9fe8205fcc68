"""A record without its weights, as JSON for the page: layers, tokens, words, patterns of heads, sinks."""

from collections.abc import Sequence
from typing import Any

from regard.capture.highlight import Focus
from regard.capture.layer_selection import several_streams, stream_of
from regard.capture.matrix_pyramid import Matrix
from regard.capture.missing_attention import missing_lines
from regard.capture.records import Layer, Record
from regard.capture.tokens import Token
from regard.heads.sinks import find_sinks
from regard.render.generated_rows import prompt_rows
from regard.render.head_patterns import head_habits
from regard.render.labels import key_labels, query_labels, shown_words, visible
from regard.render.page.pack import Packed, PackedLayer

__all__ = ["inline_json", "record_json", "sinks_json", "tokens_json"]


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
        "finest": Matrix(layer, 0).finest,
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


def _stream(tokens: Sequence[Token], prompt: int | None) -> dict[str, Any]:
    """Return the texts, a digit for each (1: white space before it, 2: special), and words of several pieces.

    `prompt` is the number of tokens that the model was given, null where it has generated none.
    """
    words = [word for word, _ in shown_words(tokens)]
    special = {piece for word in words if word.special for piece in word.pieces}
    return {
        "texts": [token.text for token in tokens],
        "marks": "".join(str(token.space + 2 * (at in special)) for at, token in enumerate(tokens)),
        "words": [[word.pieces[0], word.pieces[-1] + 1, word.text] for word in words if len(word.pieces) > 1],
        "prompt": prompt,
    }


def sinks_json(layer: Layer, batch_index: int) -> list[dict[str, float]]:
    """Return the sinks of a layer with their shares."""
    return [{"key": sink.key, "share": sink.share} for sink in find_sinks(layer, batch_index)]


def inline_json(record: Record, focus: Focus, packed: Packed) -> dict[str, Any]:
    """Return everything but the blobs for a page that is a file; it opens with the heads of `focus`."""
    found = record_json(record)
    for number, described in enumerate(found["layers"]):
        described |= _inline_layer(record, record.layers[number], focus.batch_index, packed.layers[number])
    looks = [(look.layer % len(record), look.head) for look in focus.looks]
    second = looks[1] if len(looks) > 1 else (None, None)
    return found | {
        "streams": _streams(record, focus.batch_index),
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
        "patterns": list(head_habits(record, layer, batch_index=batch_index)),
    }


def _streams(record: Record, batch_index: int) -> dict[str, Any]:
    """Return the tokens of each stream from its longest layer, since a layer may see only a part of it."""
    longest: dict[str, tuple[int, Layer, bool]] = {}
    for layer in record:
        for name, count, keys in ((layer.query_tokens, layer.queries, False), (layer.key_tokens, layer.keys, True)):
            if count > longest.get(name, (0,))[0]:
                longest[name] = count, layer, keys
    prompts = {layer.query_tokens: prompt_rows(record, layer) for layer in record}
    return {
        name: _stream((key_labels if keys else query_labels)(record, layer, batch_index), prompts.get(name))
        for name, (_, layer, keys) in longest.items()
    }
