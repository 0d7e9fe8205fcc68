"""Which token ids a call of a model embeds: those that it was given, or others.

A name of `tokenizer=` is right only if the id at its position was embedded there as it was given. A model may reverse,
mask or replace ids first, read a second text, or embed nothing of them; so names need evidence, which is an embedding,
an index or a one-hot vector of exactly these ids.
"""

from collections.abc import Mapping, Set

import torch
from torch import Tensor

__all__ = ["EmbeddedIds"]


class EmbeddedIds:
    """The ids that one call of a model has embedded: its own, and others of the same length."""

    def __init__(self, special: Set[int] = frozenset()) -> None:
        self.read: set[str] = set()  # streams whose ids were embedded as given
        self._special = special
        self.tables: dict[int, int] = {}  # tables of the call's own ids, and their numbers of rows
        self._others: list[tuple[int, int, bool]] = []  # those of other ids, and whether they may be padded positions
        self._rises = False  # whether its own ids may be numbers of positions themselves
        self._is_mixed = False  # whether rows of a batch are in another order, or beside others
        self._upto: dict[str, int] = {}  # positions of a stream that were embedded part by part

    def add(self, streams: Mapping[str, Tensor], ids: Tensor, table: Tensor) -> bool:
        """Compare embedded ids with those of each stream, and return whether they are the same, or the next part of
        them.
        """
        same = [self._is_given(name, given, ids, table) for name, given in streams.items()]
        return any(same)

    def are_mixed(self) -> bool:
        """Return whether rows of the call's ids may be those of another text that was also embedded."""
        sizes = set(self.tables.values())
        if self._is_mixed or (self._rises and self._others):
            return True
        return any(table in self.tables or (size in sizes and not positions) for table, size, positions in self._others)

    def _is_given(self, name: str, given: Tensor, ids: Tensor, table: Tensor) -> bool:
        ids = _as_rows(ids, given)
        if ids.ndim != 2:
            return False
        length = given.shape[1]
        start = self._upto.get(name, 0) if ids.shape[1] < length else 0
        size = min(ids.shape[1], length)  # a model may pad a text
        part, rows = given[:, start : start + size], ids[:, :size]
        if len(part) in (1, len(rows)) and part.shape[1] == size and torch.equal(rows, part.expand_as(rows)):
            self._upto[name] = start + size
            if start + size == length:
                self.read.add(name)
                self.tables[_key(table)] = len(table)
                self._rises |= not bool(_jumps(given).any())
            return True
        if ids.shape[1] == length:
            self._compare(name, given, ids, table)
        return False

    def _compare(self, name: str, given: Tensor, ids: Tensor, table: Tensor) -> None:
        """Process other ids of the same length."""
        if ids.shape == given.shape:  # ids that stand for an image, say, which have no row in the table
            kept, replaced = (set(given[where].tolist()) - self._special for where in (ids == given, ids != given))
            if kept and all(one >= len(table) for one in replaced):
                self.read.add(name)
        jumps = _jumps(ids)
        if jumps.any():  # else they are numbers of positions or segments
            self._others.append((_key(table), len(table), bool((jumps <= 1).all())))
            self._is_mixed |= any(bool((ids == one).all(-1).any()) for one in given)


def _jumps(ids: Tensor) -> Tensor:
    """Return how often each row does not go up by 0 or 1; numbers of positions or segments always do."""
    return ((ids.diff() < 0) | (ids.diff() > 1)).sum(-1)


def _key(table: Tensor) -> int:
    return id(table) if table.shape[1] else 0  # one-hot vectors have no table of their own


def _as_rows(ids: Tensor, given: Tensor) -> Tensor:
    """Return ids as rows of texts: a table may be indexed by all ids in one row, by one position of each text, or by
    texts in columns.
    """
    if ids.ndim == 1 and ids.numel() == given.numel():
        return ids.reshape(given.shape)
    if ids.ndim == 1 and len(ids) == len(given):
        return ids[:, None]
    if ids.ndim == 2 and ids.shape == given.T.shape and torch.equal(ids.T, given):
        return ids.T
    return ids
