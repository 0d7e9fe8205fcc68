"""The page's data besides numbers: tokens, words, layers, the focus."""

from collections.abc import Sequence
from typing import Any

from regard.capture.highlight import Focus
from regard.capture.missing_attention import missing_lines
from regard.capture.records import Record
from regard.capture.tokens import Token
from regard.render.generated_rows import prompt_rows, says_written
from regard.render.head_patterns import describe, head_habits
from regard.render.labels import key_labels, layer_name, query_labels, shown_words, visible
from regard.render.page.pack import Packed

__all__ = ["description"]


def description(record: Record, focus: Focus, packed: Packed) -> dict[str, Any]:
    """Return everything for the page's JSON element, with tokens in visible text."""
    return {
        "streams": _streams(record, focus.batch_index),
        "layers": [_layer(record, number, focus.batch_index, packed) for number in range(len(record))],
        "focus": {
            "piece": focus.queries[focus.word].pieces[0],
            "looks": [{"layer": look.layer % len(record), "head": look.head} for look in focus.looks],
        },
        "habits": describe(record, batch_index=focus.batch_index),
        "written": says_written(record),
        "missing": [visible(line) for line in missing_lines(record.missing)],
    }


def _streams(record: Record, batch_index: int) -> dict[str, Any]:
    """Return the tokens of each stream from its longest layer, since a layer may see only a part of it."""
    streams: dict[str, Sequence[Token]] = {}
    for layer in record:
        for name, tokens in (
            (layer.query_tokens, query_labels(record, layer, batch_index)),
            (layer.key_tokens, key_labels(record, layer, batch_index)),
        ):
            if len(tokens) > len(streams.get(name, ())):
                streams[name] = tokens
    prompts = {layer.query_tokens: prompt_rows(record, layer) for layer in record}
    return {name: {**_stream(tokens), "prompt": prompts.get(name)} for name, tokens in streams.items()}


def _stream(tokens: Sequence[Token]) -> dict[str, Any]:
    words = shown_words(tokens)
    apart = {piece for word, _ in words if word.special for piece in word.pieces}
    return {
        "texts": [token.text for token in tokens],
        "special": [int(piece in apart) for piece in range(len(tokens))],
        "space": [int(token.space) for token in tokens],
        "words": [[word.text, word.pieces[0], word.pieces[-1] + 1] for word, _ in words],
    }


def _layer(record: Record, number: int, batch_index: int, packed: Packed) -> dict[str, Any]:
    seen, blob = record.layers[number], packed.layers[number]
    return {
        "name": seen.name,
        "title": layer_name(record, number),
        "queries": seen.query_tokens,
        "keys": seen.key_tokens,
        "size": [seen.heads, seen.queries, seen.keys],
        "exact": blob.exact,
        "unit": blob.unit,
        "top": blob.top,
        "map": [blob.rows, blob.columns],
        "bins": [blob.query_bin, blob.key_bin],
        "thumb": [blob.thumb_rows, blob.thumb_columns],
        "habits": list(head_habits(record, seen, batch_index=batch_index)),
    }
