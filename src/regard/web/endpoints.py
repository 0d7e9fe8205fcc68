"""The responses to the page's requests: numbers as raw float32, everything else as JSON."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.capture.layer_selection import several_streams, stream_of
from regard.capture.matrix_pyramid import Matrix, Pool
from regard.capture.missing_attention import missing_lines
from regard.capture.records import Layer, Record
from regard.capture.tokens import Token
from regard.errors import InputError
from regard.render.heatmap_data import pool_max
from regard.render.labels import key_labels, query_labels, visible
from regard.web.head_tiles import Sheet
from regard.web.record_store import Book, Shelf
from regard.web.sink_keys import is_causal

__all__ = ["ANSWERS", "Answer", "answer", "books"]

_THUMB = 24  # cells per side
_AROUND = 4  # number of tokens shown before and after one
_LONGEST = 80  # maximum number of characters of each
Answer = dict[str, Any] | bytes


class _Asked:
    """The parameters of a request, each checked when it is read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def number(self, name: str) -> int:
        text = self._given.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise InputError(f"`{name}` must be a whole number from 0 to 999999999, got {text[:20]!r}")
        return int(text)

    def step(self) -> int:
        step = self.number("step")
        if step < 1 or step & (step - 1):
            raise InputError(f"`step` must be a power of two, got {step}")
        return step

    def one_of(self, name: str, *choices: str) -> str:
        text = self._given.get(name, choices[0])
        if text not in choices:
            raise InputError(f"`{name}` must be one of {', '.join(choices)}, got {text[:20]!r}")
        return text

    @property
    def sinks(self) -> bool:
        """Whether sinks are shown."""
        return self.one_of("sinks", "1", "0") == "1"

    def sheet(self, shelf: Shelf) -> Sheet:
        return shelf.sheet(*map(self.number, ("record", "layer", "head", "batch_index")))

    def layer(self, shelf: Shelf) -> tuple[Layer, int]:
        layer, batch_index = shelf.layer(self.number("record"), self.number("layer")), self.number("batch_index")
        return layer, _below("batch_index", batch_index, layer.batch)


def _below(name: str, value: int, count: int) -> int:
    if value >= count:
        raise InputError(f"`{name}` must be from 0 to {count - 1}, got {value}")
    return value


def books(shelf: Shelf, model: str | None) -> dict[str, Any]:
    """Return all records with their layers, and the name of the model for typed sentences."""
    return {"name": shelf.name, "model": model, "records": [_book(book) for book in shelf.books]}


def _book(book: Book) -> dict[str, Any]:
    return {
        "number": book.number,
        "title": visible(book.title) if book.title else "",
        "model": visible(book.record.model) if book.record.model else "",
        "typed": book.typed,
        "missing": [visible(line) for line in missing_lines(book.record.missing)],
        "layers": [_layer(book.record, index) for index in range(len(book.record))],
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


def _tokens(shelf: Shelf, asked: _Asked) -> Answer:
    """Return the tokens of both sides of a layer, in visible text."""
    layer, batch_index = asked.layer(shelf)
    record = shelf.book(asked.number("record")).record
    sides = query_labels(record, layer, batch_index), key_labels(record, layer, batch_index)
    same = layer.kind == "self" and layer.query_tokens == layer.key_tokens and layer.queries == layer.keys
    return {"same": same, "queries": _stream(sides[0]), "keys": None if same else _stream(sides[1])}


def _stream(tokens: tuple[Token, ...]) -> dict[str, Any]:
    """Return the texts, and one digit for each: 1 if white space precedes it, 2 if it is special, 3 for both."""
    marks = "".join(str(token.space + 2 * token.special) for token in tokens)
    return {"texts": [token.text for token in tokens], "marks": marks}


def _thumbs(shelf: Shelf, asked: _Asked) -> Answer:
    """Return a small map of each head of a layer, preceded by the sizes: one byte per cell, the root of its largest
    weight.
    """
    layer, batch_index = asked.layer(shelf)
    stored = np.asarray(layer.max[batch_index])
    down, across = (-(-side // _THUMB) for side in stored.shape[1:])
    cells = np.nan_to_num(pool_max(stored, down, across))
    rows, columns = cells.shape[1:]
    levels = np.rint(np.sqrt(np.clip(cells, 0, 1)) * 255).astype(np.uint8)
    return bytes((rows, columns, *levels.ravel().tolist()))


def _head(shelf: Shelf, asked: _Asked) -> Answer:
    """Return the data of one head: its sinks, the finest cell, and the largest cell at each step."""
    sheet = asked.sheet(shelf)
    return {
        "finest": sheet.matrix.finest,
        "causal": is_causal(sheet.layer, sheet.batch_index),
        "sinks": [{"key": sink.key, "share": sink.share} for sink in sheet.found],
        "tops": sheet.tops(sinks=True),
        "without": sheet.tops(sinks=False) if sheet.found else None,
    }


def _tile(shelf: Shelf, asked: _Asked) -> Answer:
    """Return as many cells per side as `Sheet.side` specifies, fewer at the edges, row by row."""
    sheet, step = asked.sheet(shelf), asked.step()
    pool: Pool = "max" if asked.one_of("pool", "mean", "max") == "max" else "mean"
    side = sheet.side(step) * step
    rows, columns = (
        slice(at * side, min((at + 1) * side, count))
        for at, count in ((asked.number("row"), sheet.matrix.queries), (asked.number("column"), sheet.matrix.keys))
    )
    return _bytes(sheet.tile(rows, columns, step, pool, sinks=asked.sinks))


def _line(shelf: Shelf, asked: _Asked) -> Answer:
    """Return one row or column."""
    sheet, axis, at = asked.sheet(shelf), asked.one_of("axis", "row", "column"), asked.number("at")
    _below("at", at, sheet.matrix.queries if axis == "row" else sheet.matrix.keys)
    return _bytes(sheet.line(axis, at, sinks=asked.sinks))


def _bytes(values: npt.NDArray[np.floating[Any]]) -> bytes:
    return bytes(np.ascontiguousarray(values, dtype="<f4").data)


def _weight(shelf: Shelf, asked: _Asked) -> Answer:
    """Return one exact weight, with its two tokens and their neighbours."""
    sheet = asked.sheet(shelf)
    query = _below("query", asked.number("query"), sheet.matrix.queries)
    key = _below("key", asked.number("key"), sheet.matrix.keys)
    record = shelf.book(asked.number("record")).record
    return sheet.weight(query, key) | {
        "query": _around(query_labels(record, sheet.layer, sheet.batch_index), query),
        "key": _around(key_labels(record, sheet.layer, sheet.batch_index), key),
    }


def _around(tokens: tuple[Token, ...], at: int) -> dict[str, Any]:
    """Return a token, its neighbours, and its position."""

    def text(part: tuple[Token, ...]) -> str:
        return "".join((" " if token.space else "") + _short(token.text) for token in part).strip()

    before, after = tokens[max(at - _AROUND, 0) : at], tokens[at + 1 : at + 1 + _AROUND]
    return {"at": at, "token": _short(tokens[at].text), "before": text(before), "after": text(after)}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


ANSWERS: Mapping[str, Callable[[Shelf, _Asked], Answer]] = {
    "/tokens": _tokens,
    "/thumbs": _thumbs,
    "/head": _head,
    "/tile": _tile,
    "/line": _line,
    "/weight": _weight,
}


def answer(path: str, shelf: Shelf, given: Mapping[str, str]) -> Answer:
    """Return the response to one request of the page.

    Raises:
        InputError: A parameter is missing or out of range.
        ObservationError: The requested data were not recorded.
    """
    return ANSWERS[path](shelf, _Asked(given))
