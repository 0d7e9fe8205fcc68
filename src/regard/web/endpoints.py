"""The responses to the page's requests: numbers as raw float32, everything else as JSON."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.heads.patterns import head_patterns
from regard.record.records import Layer
from regard.record.tiles import Pool
from regard.render.page.record_data import record_json, sinks_json, statistics_json, thumbnails, tokens_json
from regard.web.head_tiles import HeadTiles
from regard.web.record_store import Shelf

__all__ = ["ANSWERS", "Answer", "answer", "books"]

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

    def head_tiles(self, shelf: Shelf) -> HeadTiles:
        return shelf.head_tiles(*map(self.number, ("record", "layer", "head", "batch_index")))

    def layer(self, shelf: Shelf) -> tuple[Layer, int]:
        layer, batch_index = shelf.layer(self.number("record"), self.number("layer")), self.number("batch_index")
        return layer, _below("batch_index", batch_index, layer.batch)


def _below(name: str, value: int, count: int) -> int:
    if value >= count:
        raise InputError(f"`{name}` must be from 0 to {count - 1}, got {value}")
    return value


def books(shelf: Shelf, model: str | None) -> dict[str, Any]:
    """Return all records with their layers, and the name of the model for typed sentences."""
    records = [record_json(book.record, number=book.number, title=book.title) for book in shelf.books]
    return {"name": shelf.name, "model": model, "records": records}


def _tokens(shelf: Shelf, asked: _Asked) -> Answer:
    """Return the tokens of both sides of a layer, in visible text."""
    layer, batch_index = asked.layer(shelf)
    return tokens_json(shelf.book(asked.number("record")).record, layer, batch_index)


def _thumbs(shelf: Shelf, asked: _Asked) -> Answer:
    """Return a small map of each head of a layer."""
    return thumbnails(*asked.layer(shelf))


def _head(shelf: Shelf, asked: _Asked) -> Answer:
    """Return the data of one head: its sinks, the finest cell, and the largest cell at each step."""
    sheet = asked.head_tiles(shelf)
    record = shelf.book(asked.number("record")).record
    return {
        "finest": sheet.matrix.finest,
        "pattern": head_patterns(record, sheet.layer, batch_index=sheet.batch_index)[sheet.head],
        "sinks": sinks_json(sheet.layer, sheet.batch_index),
        "statistics": statistics_json(record, sheet.layer, sheet.head, sheet.batch_index),
        "tops": sheet.tops(sinks=True),
        "without": sheet.tops(sinks=False) if len(sheet.sinks) else None,
    }


def _tile(shelf: Shelf, asked: _Asked) -> Answer:
    """Return as many cells per side as `HeadTiles.side` specifies, fewer at the edges, row by row."""
    sheet, step = asked.head_tiles(shelf), asked.step()
    pool: Pool = "max" if asked.one_of("pool", "mean", "max") == "max" else "mean"
    side = sheet.side(step) * step
    rows, columns = (
        slice(at * side, min((at + 1) * side, count))
        for at, count in ((asked.number("row"), sheet.matrix.queries), (asked.number("column"), sheet.matrix.keys))
    )
    return _bytes(sheet.tile(rows, columns, step, pool, sinks=asked.sinks))


def _line(shelf: Shelf, asked: _Asked) -> Answer:
    """Return one row or column."""
    sheet, axis, at = asked.head_tiles(shelf), asked.one_of("axis", "row", "column"), asked.number("at")
    _below("at", at, sheet.matrix.queries if axis == "row" else sheet.matrix.keys)
    return _bytes(sheet.line(axis, at, sinks=asked.sinks))


def _bytes(values: npt.NDArray[np.floating[Any]]) -> bytes:
    return bytes(np.ascontiguousarray(values, dtype="<f4").data)


def _weight(shelf: Shelf, asked: _Asked) -> Answer:
    """Return one weight, or its upper bound where it is not known."""
    sheet = asked.head_tiles(shelf)
    query = _below("query", asked.number("query"), sheet.matrix.queries)
    return sheet.weight(query, _below("key", asked.number("key"), sheet.matrix.keys))


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
