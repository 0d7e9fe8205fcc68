"""What is measured, what was to be reached, and whether the one tells anything about the other."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from regard.bench.timing import Ratio

__all__ = ["Case", "Effort", "Outcome", "Row", "Target", "at_least", "at_most"]


class Outcome(StrEnum):
    """What a row says."""

    REACHED = "reached"
    MISSED = "missed"
    UNSURE = "not told apart"  # the spread is larger than the distance to the target
    SEEN = "measured"  # nothing was to be reached


@dataclass(frozen=True)
class Target:
    """What was to be reached: a number, and on which side of it is better."""

    number: float
    least: bool

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.number:.3g}"

    def outcome(self, ratio: Ratio) -> Outcome:
        """Whether a ratio reaches it; unsure while the target lies within what the median may be.

        >>> at_most(1.02).outcome(Ratio(1.0, 0.99, 1.01, 30)).value, at_most(1.02).outcome(Ratio(1, 0.9, 1.1, 5)).value
        ('reached', 'not told apart')
        """
        if ratio.low <= self.number <= ratio.high and ratio.low < ratio.high:
            return Outcome.UNSURE
        good = ratio.median >= self.number if self.least else ratio.median <= self.number
        return Outcome.REACHED if good else Outcome.MISSED


def at_most(number: float) -> Target:
    """Smaller is better."""
    return Target(number, least=False)


def at_least(number: float) -> Target:
    """Larger is better."""
    return Target(number, least=True)


@dataclass(frozen=True)
class Row:
    """One figure.

    `what` says what is divided by what, in words; `unit` is "×" for ratios. `seconds` are the medians of the sides. A
    row that could not be measured has no ratio, and `why` says why not.
    """

    case: str
    at: str  # "4,096 tokens"
    what: str
    ratio: Ratio | None = None
    target: Target | None = None
    unit: str = "×"
    seconds: tuple[tuple[str, float], ...] = ()
    size: int | None = None  # what a figure is drawn over
    why: str = ""
    origin: str = ""  # the case that gave it

    @property
    def key(self) -> str:
        """What tells it from the other rows."""
        return " | ".join((self.case, self.at, self.what))

    @property
    def outcome(self) -> Outcome | None:
        """What it says; None if it was not measured."""
        if self.ratio is None:
            return None
        return Outcome.SEEN if self.target is None else self.target.outcome(self.ratio)


@dataclass(frozen=True)
class Effort:
    """How long to look: `seconds` a comparison at most, sizes up to `longest` tokens; `say` is told what goes on.

    Where `only` is given, the rows of other keys need not be measured: `compare` gives them without a ratio.
    """

    seconds: float = 6.0
    longest: int = 65_536
    progress: Callable[[str], None] = lambda _: None
    only: Container[str] | None = None

    def wants(self, row: Row) -> bool:
        """Whether this row is to be measured."""
        return self.only is None or row.key in self.only


class Case(Protocol):
    """A file of `regard.bench.cases`: NAME, TITLE, and a function that measures."""

    NAME: str
    TITLE: str

    def rows(self, effort: Effort, /) -> Iterator[Row]:
        """Measure, and give each row as soon as it is there."""
        ...
