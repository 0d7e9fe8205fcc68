"""Inside: a mask that holds inside each of several documents packed into one sequence, on positions local to it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.block_plan import EMPTY, PARTIAL, Rectangles
from regard.masks.padding_and_global import entry

if TYPE_CHECKING:
    from regard.masks.document import Document

__all__ = ["Inside"]


# The first query and key of each document, and the ends of all; the different sizes (queries, keys) of documents.
_Lengths = tuple[Int[Tensor, " edges"], Int[Tensor, " edges"], frozenset[tuple[int, int]]]


@dataclass(frozen=True, eq=False)
class Inside(Mask):
    """documents(i, j) and within(i − a, j − b): the mask that `Document.from_lengths(…, within=…)` gives.

    a and b are where the document begins: b its first key; a such that its queries are its last positions.
    """

    documents: "Document"
    within: Mask
    lengths: Int[Tensor, " documents"]
    query_lengths: Int[Tensor, " documents"] | None
    start: int = 0  # position of the first query if there are query_lengths, set when the mask is bound

    def __post_init__(self) -> None:
        """Copy the lengths, and read them: no compiler can."""
        super().__post_init__()
        _ = self._read

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Both are in the same document, inside of which the mask lets see."""
        keys = self.documents.ids
        queries = keys if self.documents.query_ids is None else self.documents.query_ids
        row = (i - self.start).clamp(0, len(queries) - 1)
        one = torch.zeros_like(batch)  # the same in every sequence
        of_row, of_key = entry(queries[None], one, row), entry(keys[None], one, j)
        rows, columns = (one[None] for one in self._shifts)
        row, column = row + entry(rows, one, of_row), j + entry(columns, one, of_key)
        # Inside, a sequence is a document: a rule of one's own is told which.
        inner = self.within(of_key if self.within.leading[0] == 1 else batch, head, row, column)
        return self.documents(batch, head, i, j) & inner

    @property  # kept by hand: compilers cannot enter the lock of `cached_property` before Python 3.12
    def _read(self) -> _Lengths:
        kept: _Lengths | None = getattr(self, "_lengths", None)
        if kept is None:
            lengths = self.lengths.cpu().long()
            queries = lengths if self.query_lengths is None else self.query_lengths.cpu().long()
            sizes = frozenset(zip(queries.tolist(), lengths.tolist(), strict=True))
            kept = _sums(queries), _sums(lengths), sizes
            object.__setattr__(self, "_lengths", kept)
        return kept

    @property
    def _shifts(self) -> tuple[Tensor, Tensor]:
        """What takes rows and keys of each document to local positions."""
        rows, keys, _ = self._read
        return keys.diff() - rows.diff() - rows[:-1], -keys[:-1]

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Cut each rectangle to the document that both its sides share, and ask the inner mask; PARTIAL for several."""
        top, bottom = rectangles.top - self.start, rectangles.bottom - self.start
        left, right = rectangles.left, rectangles.right
        rows, keys, _ = self._read
        one = torch.maximum(_document(rows, top), _document(keys, left))
        last = torch.minimum(_document(rows, bottom - 1), _document(keys, right - 1))
        cut_top, cut_bottom = torch.maximum(top, rows[one]), torch.minimum(bottom, rows[one + 1])
        cut_left, cut_right = torch.maximum(left, keys[one]), torch.minimum(right, keys[one + 1])
        some = (cut_top < cut_bottom) & (cut_left < cut_right)
        to_row, to_key = self._shifts[0][one], self._shifts[1][one]
        inner = self.within.blocks(
            Rectangles(
                torch.where(some, cut_top + to_row, 0),
                torch.where(some, cut_bottom + to_row, 1),
                torch.where(some, cut_left + to_key, 0),
                torch.where(some, cut_right + to_key, 1),
            )
        )
        nothing = (one == last) & ~some
        kinds = torch.where(nothing, EMPTY, torch.where(one < last, PARTIAL, inner)).to(torch.int8)
        # What was cut off makes the documents' own answer less than FULL.
        return torch.minimum(self.documents.blocks(rectangles), kinds)

    @property
    def leading(self) -> tuple[int, int]:
        """Those of the inner mask."""
        return self.within.leading

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Resolve both; the inner mask must be the same one in every document that has queries and keys."""
        documents = self.documents.resolve(q_len, kv_len, q_offset)
        # A document without queries or without keys has no pair: whatever the inner mask is there, it hides nothing.
        sizes = sorted((size, m) for m, size in self._read[2] if m > 0 and size > 0)
        if not sizes:
            return documents  # in which nobody sees anything
        resolved = [self.within.resolve(m, size, size - m) for size, m in sizes]
        if any(mask != resolved[-1] for mask in resolved):
            raise InputError(
                "`within` must be the same in documents of every length, as Causal() and Window(…) are, got "
                f"{self.within!r}"
            )
        within = resolved[-1]  # of the longest, so that no global token of it is left out
        start = 0 if self.query_lengths is None else q_offset
        return self.with_place(documents=documents, within=within, start=start, _lengths=self._read)


def _sums(lengths: Int[Tensor, " documents"]) -> Int[Tensor, " edges"]:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _document(edges: Int[Tensor, " edges"], position: Int[Tensor, "*at"]) -> Int[Tensor, "*at"]:
    """The document at each position, passing over those without any."""
    return (torch.searchsorted(edges, position, right=True) - 1).clamp(0, len(edges) - 2)
