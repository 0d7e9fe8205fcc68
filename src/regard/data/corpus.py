"""Corpus: columns of text from one file, and how many of its lines were not fit to be read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from regard.errors import InputError

__all__ = ["Corpus"]


@dataclass(frozen=True)
class Corpus:
    """Equally long columns of text, and what is known of the file they come from.

    `name` is the file's name, `sha256` that of its bytes on disk (compressed, for a .gz), `skipped` has for
    each reason the number of lines left out. `corpus["source"]` is a column.

    >>> corpus = Corpus({"source": ("Hi.", "Run!"), "target": ("嗨。", "跑！")}, name="tiny.tsv", skipped={"empty": 1})
    >>> print(corpus)
    tiny.tsv: 2 lines, 1 skipped (1 empty)
    >>> corpus.select([1]).map("source", str.upper)["source"]
    ('RUN!',)
    """

    columns: Mapping[str, tuple[str, ...]]
    name: str = "corpus"
    sha256: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = {name: tuple(values) for name, values in self.columns.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if not columns or len(set(lengths.values())) != 1:
            raise InputError(f"`columns` must be one or more columns of equal length, got {lengths or 'none'}")
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "skipped", MappingProxyType(dict(self.skipped)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary cannot be pickled, and worker processes are handed corpora.
        return Corpus, (dict(self.columns), self.name, self.sha256, dict(self.skipped))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> tuple[str, ...]:
        if column not in self.columns:
            raise InputError(f"`column` must be one of {', '.join(self.columns)} in {self.name}, got {column!r}")
        return self.columns[column]

    def __str__(self) -> str:
        lines = f"{self.name}: {len(self):,} line{'' if len(self) == 1 else 's'}"
        if not self.skipped:
            return lines
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.items())
        return f"{lines}, {sum(self.skipped.values()):,} skipped ({reasons})"

    def select(self, indices: Iterable[int]) -> "Corpus":
        """Take these lines, in this order; what is known of the file stays.

        Raises:
            InputError: An index is below 0 or not below the number of lines.
        """
        chosen = list(indices)
        if wrong := [index for index in chosen if not 0 <= index < len(self)]:
            raise InputError(f"`indices` must be from 0 to {len(self) - 1}, the lines of {self.name}, got {wrong[0]}")
        columns = {name: tuple(values[index] for index in chosen) for name, values in self.columns.items()}
        return replace(self, columns=columns)

    def map(self, column: str, function: Callable[[str], str]) -> "Corpus":
        """Put each text of a column through a function.

        Raises:
            InputError: There is no such column.
        """
        return replace(self, columns={**self.columns, column: tuple(function(text) for text in self[column])})
