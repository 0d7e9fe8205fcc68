"""Synthetic tasks: copy, reverse, sort and recall, whose right answers are known.

Ids 0 to 4 are the special tokens of every vocabulary made here (padding, start, end, unknown, mask); symbols come
after them. Rows have no start and no end: who trains puts them in, as with `Vocabulary.encode`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from regard.data.special_tokens import END, PAD, SPECIAL, START
from regard.errors import InputError

__all__ = ["AssociativeRecall", "Copy", "Reverse", "Sort", "Synthetic"]

Rows = list[list[int]]


@dataclass(frozen=True)
class Synthetic:
    """A task over `symbols` symbols, the ids from 5 to 4 + symbols; each member says what the target of a source is."""

    symbols: int = 20

    pad: ClassVar[int] = PAD
    start: ClassVar[int] = START
    end: ClassVar[int] = END
    first: ClassVar[int] = len(SPECIAL)

    def __post_init__(self) -> None:
        if self.symbols < 2:
            raise InputError(f"`symbols` must be at least 2, got {self.symbols}")

    @property
    def vocabulary_size(self) -> int:
        """How many ids there are, the special ones counted."""
        return self.first + self.symbols

    def target(self, source: list[int]) -> list[int]:
        """Give the right answer to one source."""
        raise NotImplementedError  # each task defines it

    def sample(self, count: int, *, lengths: tuple[int, int] | None = None, generator: Generator) -> tuple[Rows, Rows]:
        """Draw `count` sources and give their targets; the result depends on the arguments alone.

        Args:
            count: How many.
            lengths: The shortest and the longest source, both included, each length as likely; (1, 20) if not given.
            generator: Where the randomness comes from.

        Raises:
            InputError: `count` or `lengths` are not positive, or the longest is below the shortest.
        """
        low, high = _range(count, lengths or (1, 20))
        drawn = torch.randint(low, high + 1, (count,), generator=generator)
        symbols = torch.randint(self.first, self.vocabulary_size, (count, high), generator=generator)
        sources = [row[:length] for row, length in zip(symbols.tolist(), drawn.tolist(), strict=True)]
        return sources, [self.target(source) for source in sources]


@dataclass(frozen=True)
class Copy(Synthetic):
    """The target is the source.

    >>> Copy().sample(2, lengths=(2, 3), generator=torch.Generator().manual_seed(0))
    ([[18, 5], [24, 12, 8]], [[18, 5], [24, 12, 8]])
    """

    def target(self, source: list[int]) -> list[int]:
        """Give the right answer to one source."""
        return list(source)


@dataclass(frozen=True)
class Reverse(Synthetic):
    """The target is the source backwards.

    >>> Reverse().target([5, 9, 7])
    [7, 9, 5]
    """

    def target(self, source: list[int]) -> list[int]:
        """Give the right answer to one source."""
        return source[::-1]


@dataclass(frozen=True)
class Sort(Synthetic):
    """The target is the source in rising order, every symbol as often as it occurs.

    >>> Sort().target([9, 5, 9, 7])
    [5, 7, 9, 9]
    """

    def target(self, source: list[int]) -> list[int]:
        """Give the right answer to one source."""
        return sorted(source)


@dataclass(frozen=True)
class AssociativeRecall(Synthetic):
    """Keys each followed by its value, then one of the keys: the target is its value (Ba et al. 2016).

    The first half of the symbols are keys, no two the same in one source, the others values. `pairs` is how many there
    are in a source, unless `lengths` says from how many to how many.

    Source: https://arxiv.org/abs/1610.06258

    >>> task = AssociativeRecall(symbols=8, pairs=2)  # keys 5 6 7 8, values 9 10 11 12
    >>> task.sample(2, generator=torch.Generator().manual_seed(0))
    ([[7, 10, 8, 12, 7], [5, 10, 7, 11, 7]], [[10], [11]])
    >>> task.target([6, 9, 8, 12, 8])
    [12]
    """

    pairs: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fits("pairs", self.pairs)

    def target(self, source: list[int]) -> list[int]:
        """Give the right answer to one source."""
        return [source[source.index(source[-1]) + 1]]

    def sample(self, count: int, *, lengths: tuple[int, int] | None = None, generator: Generator) -> tuple[Rows, Rows]:
        """Draw sources and give their targets; `lengths` counts pairs, and is (pairs, pairs) if not given.

        Raises:
            InputError: `count` or `lengths` are not positive, or there are more pairs than keys.
        """
        low, high = _range(count, lengths or (self.pairs, self.pairs))
        self._fits("lengths", high)
        keys = torch.rand(count, self.symbols // 2, generator=generator).argsort(1)[:, :high] + self.first
        values = torch.randint(self.first + self.symbols // 2, self.vocabulary_size, (count, high), generator=generator)
        drawn = torch.randint(low, high + 1, (count,), generator=generator)
        asked = (torch.rand(count, generator=generator) * drawn).long()
        table = torch.stack((keys, values), -1).flatten(1).tolist()
        sources = [
            [*row[: 2 * pairs], row[2 * place]]
            for row, pairs, place in zip(table, drawn.tolist(), asked.tolist(), strict=True)
        ]
        return sources, [self.target(source) for source in sources]

    def _fits(self, name: str, pairs: int) -> None:
        if not 1 <= pairs <= self.symbols // 2:
            raise InputError(
                f"`{name}` must be from 1 to {self.symbols // 2} pairs, half of `symbols` ({self.symbols}) being keys, "
                f"got {pairs}"
            )


def _range(count: int, lengths: tuple[int, int]) -> tuple[int, int]:
    low, high = lengths
    if count < 1 or not 1 <= low <= high:
        raise InputError(f"`count` must be at least 1 and `lengths` 1 ≤ low ≤ high, got {count} and {lengths}")
    return low, high
