"""Document: texts packed into one sequence do not see each other."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from regard.checks import are_integers, check_tensor
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.padding_and_global import covered, entry, prefix_counts
from regard.masks.rectangles import EMPTY, PARTIAL, Rectangles
from regard.torch_private import is_exporting

__all__ = ["Document", "Ranges", "places_in_documents", "ranges"]


@dataclass(frozen=True, eq=False)
class Ranges:
    """Bounds of the documents in any range of positions, exact where documents are contiguous."""

    after: Int[Tensor, "batch n"]  # the least document from here on
    before: Int[Tensor, "batch n"]  # the greatest up to here
    counts: Int[Tensor, "batch edges"]  # of positions that belong to a document

    def between(
        self, first: Int[Tensor, "*ranges"], end: Int[Tensor, "*ranges"]
    ) -> tuple[Int[Tensor, "batch 1 *ranges"], Int[Tensor, "batch 1 *ranges"], Int[Tensor, "batch 1 *ranges"]]:
        """Bounds of the documents in [first, end), and how many positions belong to one."""
        last = self.after.shape[1] - 1
        low, high = self.after[:, first.clamp(0, last)], self.before[:, (end - 1).clamp(0, last)]
        return low[:, None], high[:, None], covered(self.counts, first, end)


def ranges(queries: Int[Tensor, "#batch queries"], keys: Int[Tensor, "#batch keys"]) -> tuple[Ranges, Ranges]:
    """Name each document by its first key, so that contiguous ones are in order whatever their ids."""
    batch, nowhere = max(len(queries), len(keys)), keys.shape[1]
    both = torch.cat([keys.expand(batch, -1), queries.expand(batch, -1)], 1)
    ids, documents = both.unique(return_inverse=True)
    first = torch.full((batch, len(ids)), nowhere, device="cpu")
    first.scatter_reduce_(1, documents[:, :nowhere], torch.arange(nowhere, device="cpu").expand(batch, -1), "amin")
    first[:, ids < 0] = nowhere
    labels = first.gather(1, documents)
    return _bounds(labels[:, nowhere:], nowhere), _bounds(labels[:, :nowhere], nowhere)


def _bounds(labels: Int[Tensor, "batch n"], nowhere: int) -> Ranges:
    labels = labels if labels.shape[1] else labels.new_full((len(labels), 1), nowhere)
    real = labels < nowhere
    after = labels.flip(1).cummin(1).values.flip(1)
    before = torch.where(real, labels, -1).cummax(1).values
    return Ranges(after, before, prefix_counts(real))


@dataclass(frozen=True, eq=False)
class Document(Mask):
    """ids[i] = ids[j]: query and key belong to the same document; a negative id is padding, seen by none, seeing none.

    `ids` (keys,) or (batch, keys) gives the document of each position. If the queries are not positions among the keys,
    as in cross-attention, `query_ids` (queries,) or (batch, queries) gives the document of each query. If documents are
    contiguous, work is skipped; their ids may come in any order.

    Cost: O(Σ length² · dim) time for contiguous documents, O(n² · dim) for scattered ones; one id a position
    (8 bytes in int64), copied from the tensor.

    >>> import torch
    >>> Document(torch.tensor([7, 7, 3, -1])).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """

    ids: Int[Tensor, "*batch keys"]
    query_ids: Int[Tensor, "*batch queries"] | None = None
    q_offset: int = field(default=0, init=False)  # position of the first query, set when a mask is bound

    def __post_init__(self) -> None:
        for name, ids in (("ids", self.ids), ("query_ids", self.query_ids)):
            if ids is not None or name == "ids":
                check_tensor(name, ids, "an integer tensor, (n,) or (batch, n)")
            if ids is not None and (ids.ndim not in (1, 2) or not are_integers(ids)):
                got = f"{ids.dtype} of shape {tuple(ids.shape)}"
                raise InputError(f"`{name}` must be an integer tensor, (n,) or (batch, n), got {got}")
        batch, queries = self._of_keys.shape[0], self._of_queries.shape[0]  # `len` would fix them in a program
        if 1 != batch != queries != 1:
            raise InputError(f"`query_ids` must be for the same batch as `ids` ({batch}), got {queries}")
        super().__post_init__()

    @classmethod
    def from_lengths(
        cls,
        lengths: Int[Tensor, " documents"],
        query_lengths: Int[Tensor, " documents"] | None = None,
        within: Mask | None = None,
    ) -> Mask:
        """Pack documents of these lengths one after the other; `query_lengths` where the queries are not the keys.

        `within` is a mask inside each document, over positions local to it: key j of n, and query i of m at position
        i + n − m, so that queries are the last positions of their document (as in flash-attention's varlen). A function
        of one's own gets the number of the document as `batch`.

        >>> from regard.masks import Causal, Window
        >>> lengths, query_lengths = torch.tensor([3, 2]), torch.tensor([2, 1])
        >>> within = Causal() & Window(2)
        >>> Document.from_lengths(lengths, query_lengths, within=within).bind(3, 5).dense()[0, 0].int()
        tensor([[1, 1, 0, 0, 0],
                [0, 1, 1, 0, 0],
                [0, 0, 0, 1, 1]], dtype=torch.int32)
        """
        _check_not_exported("lengths")
        for name, given in (("lengths", lengths), ("query_lengths", query_lengths)):
            if given is not None or name == "lengths":
                check_tensor(name, given, "an integer tensor (documents,)")
            if given is not None and (given.ndim != 1 or not are_integers(given) or bool((given < 0).any())):
                raise InputError(
                    f"`{name}` must be an integer tensor (documents,) of 0 or more, got {given.dtype} of shape "
                    f"{tuple(given.shape)}, {given.tolist()}"
                )
        if query_lengths is not None and query_lengths.shape != lengths.shape:
            raise InputError(
                f"`query_lengths` must give one length for each of {len(lengths)} documents, got {len(query_lengths)}"
            )
        documents = cls(_ids(lengths), None if query_lengths is None else _ids(query_lengths))
        return documents if within is None else Inside(documents, within, lengths, query_lengths)

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens_k: Int[Tensor, " edges"],
        cu_seqlens_q: Int[Tensor, " edges"] | None = None,
        within: Mask | None = None,
    ) -> Mask:
        """Pack documents that begin and end at these edges, [0, …, keys], as flash-attention's varlen calls take them.

        >>> Document.from_cu_seqlens(torch.tensor([0, 2, 3])).ids
        tensor([0, 0, 1])
        """
        _check_not_exported("cu_seqlens_k")
        for name, given in (("cu_seqlens_k", cu_seqlens_k), ("cu_seqlens_q", cu_seqlens_q)):
            if given is not None or name == "cu_seqlens_k":
                check_tensor(name, given, "an integer tensor (documents + 1,)")
            if given is not None and not _are_edges(given):
                raise InputError(f"`{name}` must rise from 0 to the number of positions, got {given.tolist()}")
        return cls.from_lengths(cu_seqlens_k.diff(), None if cu_seqlens_q is None else cu_seqlens_q.diff(), within)

    @property
    def _of_keys(self) -> Tensor:
        return self.ids[None].flatten(0, -2)

    @property
    def _of_queries(self) -> Tensor:
        return self._of_keys if self.query_ids is None else self.query_ids[None].flatten(0, -2)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Both ids are the same and no padding."""
        row, last = i - self.q_offset, self._of_queries.shape[1] - 1
        query = entry(self._of_queries, batch, row.clamp(0, last))
        return (query == entry(self._of_keys, batch, j)) & (query >= 0) & (row >= 0) & (row <= last)

    @cached_property
    def _ranges(self) -> tuple[Ranges, Ranges]:
        return ranges(self._of_queries.cpu().long(), self._of_keys.cpu().long())

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Bound the documents of both ranges: exact where documents are contiguous."""
        queries, keys = self._ranges
        top, bottom = rectangles.top - self.q_offset, rectangles.bottom - self.q_offset
        first, last, rows = queries.between(top, bottom)
        least, greatest, columns = keys.between(rectangles.left, rectangles.right)
        alone = (first == last) & (least == greatest) & (first == least)
        return rectangles.answer(
            empty=(rows == 0) | (columns == 0) | (first > greatest) | (least > last),
            full=alone & (rows == bottom - top) & (columns == rectangles.right - rectangles.left),
        )

    @property
    def leading(self) -> tuple[int, int]:
        """One packing a sequence, or one for all."""
        batch = self._of_keys.shape[0]
        return self._of_queries.shape[0] if batch == 1 else batch, 1

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Remember where the queries start; check that every key, and every query, has an id."""
        if self._of_keys.shape[1] != kv_len:
            raise InputError(f"`ids` must have one id for each of {kv_len} keys, got {self._of_keys.shape[1]}")
        if self.query_ids is None:
            return self
        if self._of_queries.shape[1] != q_len:
            given = self._of_queries.shape[1]
            raise InputError(f"`query_ids` must have one id for each of {q_len} queries, got {given}")
        return self.with_place(q_offset=q_offset)


def _check_not_exported(name: str) -> None:
    if is_exporting():
        raise InputError(
            f"`{name}` are read as numbers when the mask is made, and an exported program has none: pass the document "
            "of each position, masks.Document(ids)"
        )


def _ids(lengths: Int[Tensor, " documents"]) -> Int[Tensor, " positions"]:
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


def _are_edges(cu: Tensor) -> bool:
    rising = cu.ndim == 1 and len(cu) > 0 and are_integers(cu) and int(cu[0]) == 0
    return rising and not bool((cu.diff() < 0).any())


def places_in_documents(documents: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
    """Return the place of each token in its document, of documents that are contiguous.

    >>> places_in_documents(torch.tensor([[4, 4, 4, 2, 2, -1]]))
    tensor([[0, 1, 2, 0, 1, 0]])
    """
    at = torch.arange(documents.shape[1], device=documents.device).expand(documents.shape)
    begins = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return at - torch.where(begins, at, 0).cummax(1).values


# The first query and key of each document, and the ends of all; the different sizes (queries, keys) of documents.
_Lengths = tuple[Int[Tensor, " edges"], Int[Tensor, " edges"], frozenset[tuple[int, int]]]


@dataclass(frozen=True, eq=False)
class Inside(Mask):
    """documents(i, j) and within(i − a, j − b): the mask that `Document.from_lengths(…, within=…)` gives.

    a and b are where the document begins: b its first key; a such that its queries are its last positions.
    """

    documents: Document
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
        row = (i - self.start).clamp(0, queries.shape[0] - 1)
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
