"""The records of the server, from the atlas and from typed sentences, and the open heads."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from regard.errors import InputError
from regard.record.atlas_layer import StoredLayer
from regard.record.layers import at_index
from regard.record.records import Layer, Record
from regard.web.head_tiles import HeadTiles

__all__ = ["Book", "Shelf"]

_TYPED = 8  # maximum number of records of typed sentences
_LONG = 1  # maximum number of long texts among them, whose queries and keys take hundreds of megabytes
_SHEETS = 48


@dataclass(frozen=True, eq=False)
class Book:
    """One record with its number, which is never used for another record."""

    number: int
    title: str
    record: Record
    typed: bool = False


class Shelf:
    """The records by number. Pages store their own view, so any number of them can share a store; it is thread-safe.

    Args:
        records: The records of the atlas, which are never removed.
        name: The name of the atlas.
    """

    def __init__(self, records: tuple[Record, ...] = (), name: str = "") -> None:
        self.name = name
        self._books: OrderedDict[int, Book] = OrderedDict()
        self._sheets: OrderedDict[tuple[int, int, int, int], HeadTiles] = OrderedDict()
        self._lock = threading.Lock()
        self._next = 0
        for record in records:
            self.add(record, typed=False)

    def add(self, record: Record, title: str = "", *, typed: bool = True) -> Book:
        """Add a record; of the typed ones, the oldest is removed if there are too many."""
        with self._lock:
            book = Book(self._next, title or _title(record), record, typed)
            self._next += 1
            self._books[book.number] = book
            sentences = [one for one in self._books.values() if one.typed]
            long = [one for one in sentences if any(layer.exact is None for layer in one.record)]
            old = {one.number for one in (*sentences[:-_TYPED], *long[:-_LONG])}
            for number in old:
                del self._books[number]
            for key in [key for key in self._sheets if key[0] in old]:
                del self._sheets[key]
        return book

    @property
    def books(self) -> tuple[Book, ...]:
        """All records, the oldest first."""
        with self._lock:
            return tuple(self._books.values())

    def book(self, number: int) -> Book:
        """Return the record with this number."""
        with self._lock:
            found = self._books.get(number)
        if found is None:
            raise InputError(f"`record` {number} is not here, or no longer: choose one of the list, or type it again")
        return found

    def layer(self, number: int, layer: int) -> Layer:
        """Return one layer of a record.

        Raises:
            AtlasError: The file that it is mapped from was cut off.
        """
        layers = self.book(number).record.layers
        found = layers[at_index("layer", layer, len(layers), "seen layers")]
        if isinstance(found, StoredLayer):
            found.check_file()
        return found

    def head_tiles(self, number: int, layer: int, head: int, batch_index: int) -> HeadTiles:
        """Return one head of one sequence; the most recently used ones stay open."""
        key, of = (number, layer, head, batch_index), self.layer(number, layer)
        with self._lock:
            found = self._sheets.get(key)
            if found is not None:
                self._sheets.move_to_end(key)
                return found
        sheet = HeadTiles(of, head, batch_index)
        with self._lock:
            sheet = self._sheets.setdefault(key, sheet)
            while len(self._sheets) > _SHEETS:
                self._sheets.popitem(last=False)
        return sheet


def _title(record: Record) -> str:
    """Return the first words of a record's first text."""
    for sequences in record.tokens.values():
        first = sequences[0] if sequences else ()
        words = [(" " if token.space else "") + token.text for token in first[:40] if not token.special]
        text = "".join(words).strip()
        return text if len(text) <= 60 else text[:59] + "…"
    return ""
