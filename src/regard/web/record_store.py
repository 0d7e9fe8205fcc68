"""What the server holds: the records of the atlas, those of sentences typed in a page, and the sheets in use."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from regard.capture.records import Layer, Record
from regard.capture.selectors import at_index
from regard.errors import InputError
from regard.web.head_tiles import Sheet

__all__ = ["Book", "Shelf"]

_TYPED = 8  # sentences typed in a page that are kept
_LONG = 1  # long texts among them: queries and keys of a long text take hundreds of megabytes
_SHEETS = 48


@dataclass(frozen=True, eq=False)
class Book:
    """One record under its number, which no other record ever gets."""

    number: int
    title: str
    record: Record
    typed: bool = False


class Shelf:
    """Books by number. Pages hold their view themselves, so that any number of them share a shelf; it is thread-safe.

    Args:
        records: Those of the atlas, which stay.
        name: What the atlas is called.
    """

    def __init__(self, records: tuple[Record, ...] = (), name: str = "") -> None:
        self.name = name
        self._books: OrderedDict[int, Book] = OrderedDict()
        self._sheets: OrderedDict[tuple[int, int, int, int], Sheet] = OrderedDict()
        self._lock = threading.Lock()
        self._next = 0
        for record in records:
            self.add(record, typed=False)

    def add(self, record: Record, title: str = "", *, typed: bool = True) -> Book:
        """Take a record in; of those typed in a page the oldest leaves."""
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
        """All of them, the oldest first."""
        with self._lock:
            return tuple(self._books.values())

    def book(self, number: int) -> Book:
        """The book with this number."""
        with self._lock:
            found = self._books.get(number)
        if found is None:
            raise InputError(f"`record` {number} is not here, or no longer: choose one of the list, or type it again")
        return found

    def layer(self, number: int, layer: int) -> Layer:
        """One layer of a book."""
        layers = self.book(number).record.layers
        return layers[at_index("layer", layer, len(layers), "seen layers")]

    def sheet(self, number: int, layer: int, head: int, batch_index: int) -> Sheet:
        """One head of one sequence; those used last stay open."""
        key = (number, layer, head, batch_index)
        with self._lock:
            found = self._sheets.get(key)
            if found is not None:
                self._sheets.move_to_end(key)
                return found
        sheet = Sheet(self.layer(number, layer), head, batch_index)
        with self._lock:
            sheet = self._sheets.setdefault(key, sheet)
            while len(self._sheets) > _SHEETS:
                self._sheets.popitem(last=False)
        return sheet


def _title(record: Record) -> str:
    """The first words of a record's first text."""
    for sequences in record.tokens.values():
        first = sequences[0] if sequences else ()
        words = [(" " if token.space else "") + token.text for token in first[:40] if not token.special]
        text = "".join(words).strip()
        return text if len(text) <= 60 else text[:59] + "…"
    return ""
