"""Synthetic tasks with known answers: copy, reverse, sort and recall.

Ids 0 to 4 are the special tokens of every tokenizer trained here (padding, begin, end, unknown, mask); symbols come
after them. Rows have no begin and end tokens: add them where a model needs them, as `Tokenizer.encode` does.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator

from regard.data.train_tokenizer import BOS, EOS, PAD, SPECIAL
from regard.errors import InputError

__all__ = ["AssociativeRecall", "Copy", "Reverse", "Sort", "Synthetic"]

Rows = list[list[int]]


@dataclass(frozen=True)
class Synthetic:
    """A task over `num_symbols` symbols, the ids from 5 on; a subclass defines the target of a source."""

    num_symbols: int = 20

    pad_token_id: ClassVar[int] = PAD
    bos_token_id: ClassVar[int] = BOS
    eos_token_id: ClassVar[int] = EOS
    first_symbol: ClassVar[int] = len(SPECIAL)

    def __post_init__(self) -> None:
        if self.num_symbols < 2:
            raise InputError(f"`num_symbols` must be at least 2, got {self.num_symbols}")

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return self.first_symbol + self.num_symbols

    def target(self, source: list[int]) -> list[int]:
        """Return the target of one source."""
        raise NotImplementedError  # each task defines it

    def sample(
        self, num_samples: int, *, length_range: tuple[int, int] | None = None, generator: Generator
    ) -> tuple[Rows, Rows]:
        """Return `num_samples` random sources and their targets; the result depends only on the arguments.

        Args:
            num_samples: Number of sources.
            length_range: Shortest and longest source, both included, each length as likely; (1, 20) by default.
            generator: The random generator.

        Raises:
            InputError: `num_samples` or `length_range` are not positive, or the longest is below the shortest.
        """
        low, high = _range(num_samples, length_range or (1, 20))
        drawn = torch.randint(low, high + 1, (num_samples,), generator=generator)
        symbols = torch.randint(self.first_symbol, self.vocab_size, (num_samples, high), generator=generator)
        sources = [row[:length] for row, length in zip(symbols.tolist(), drawn.tolist(), strict=True)]
        return sources, [self.target(source) for source in sources]


@dataclass(frozen=True)
class Copy(Synthetic):
    """The target is the source.

    >>> Copy().sample(2, length_range=(2, 3), generator=torch.Generator().manual_seed(0))
    ([[18, 5], [24, 12, 8]], [[18, 5], [24, 12, 8]])
    """

    def target(self, source: list[int]) -> list[int]:
        """Return the target of one source."""
        return list(source)


@dataclass(frozen=True)
class Reverse(Synthetic):
    """The target is the source backwards.

    >>> Reverse().target([5, 9, 7])
    [7, 9, 5]
    """

    def target(self, source: list[int]) -> list[int]:
        """Return the target of one source."""
        return source[::-1]


@dataclass(frozen=True)
class Sort(Synthetic):
    """The target is the source in rising order, every symbol as often as it occurs.

    >>> Sort().target([9, 5, 9, 7])
    [5, 7, 9, 9]
    """

    def target(self, source: list[int]) -> list[int]:
        """Return the target of one source."""
        return sorted(source)


@dataclass(frozen=True)
class AssociativeRecall(Synthetic):
    """Keys each followed by its value, then one of the keys: the target is its value (Ba et al. 2016).

    The first half of the symbols are keys, and the other half are values. All keys of one source are different. A
    source has `num_kv_pairs` pairs, or as many as `length_range` allows.

    Source: https://arxiv.org/abs/1610.06258

    >>> task = AssociativeRecall(num_symbols=8, num_kv_pairs=2)  # keys 5 6 7 8, values 9 10 11 12
    >>> task.sample(2, generator=torch.Generator().manual_seed(0))
    ([[7, 10, 8, 12, 7], [5, 10, 7, 11, 7]], [[10], [11]])
    >>> task.target([6, 9, 8, 12, 8])
    [12]
    """

    num_kv_pairs: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fits("num_kv_pairs", self.num_kv_pairs)

    def target(self, source: list[int]) -> list[int]:
        """Return the target of one source."""
        return [source[source.index(source[-1]) + 1]]

    def sample(
        self, num_samples: int, *, length_range: tuple[int, int] | None = None, generator: Generator
    ) -> tuple[Rows, Rows]:
        """Return random sources and their targets; `length_range` counts pairs, `num_kv_pairs` by default.

        Raises:
            InputError: `num_samples` or `length_range` are not positive, or there are more pairs than keys.
        """
        low, high = _range(num_samples, length_range or (self.num_kv_pairs, self.num_kv_pairs))
        self._fits("length_range", high)
        keys = (
            torch.rand(num_samples, self.num_symbols // 2, generator=generator).argsort(1)[:, :high] + self.first_symbol
        )
        values = torch.randint(
            self.first_symbol + self.num_symbols // 2, self.vocab_size, (num_samples, high), generator=generator
        )
        drawn = torch.randint(low, high + 1, (num_samples,), generator=generator)
        chosen = (torch.rand(num_samples, generator=generator) * drawn).long()
        table = torch.stack((keys, values), -1).flatten(1).tolist()
        sources = [
            [*row[: 2 * pairs], row[2 * place]]
            for row, pairs, place in zip(table, drawn.tolist(), chosen.tolist(), strict=True)
        ]
        return sources, [self.target(source) for source in sources]

    def _fits(self, name: str, pairs: int) -> None:
        if not 1 <= pairs <= self.num_symbols // 2:
            raise InputError(
                f"`{name}` must be from 1 to {self.num_symbols // 2} pairs, half of `num_symbols` ({self.num_symbols}) "
                f"being keys, got {pairs}"
            )


def _range(num_samples: int, length_range: tuple[int, int]) -> tuple[int, int]:
    low, high = length_range
    if num_samples < 1 or not 1 <= low <= high:
        raise InputError(
            f"`num_samples` must be at least 1 and `length_range` 1 ≤ low ≤ high, got {num_samples} and {length_range}"
        )
    return low, high
