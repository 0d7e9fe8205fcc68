"""Rows of a benchmark: what is measured, its target, and whether the target was reached."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from enum import StrEnum

from regard_bench.shares import Work
from regard_bench.timing import Ratio

__all__ = ["Case", "Effort", "Outcome", "Row", "Target", "at_least", "at_most"]


class Outcome(StrEnum):
    """The outcome of a row."""

    REACHED = "reached"
    MISSED = "missed"
    UNSURE = "inconclusive"  # the spread is larger than the distance to the target
    SEEN = "measured"  # nothing was to be reached


@dataclass(frozen=True)
class Target:
    """A target: a number, and whether more or less is better."""

    number: float
    least: bool

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.number:.3g}"

    def outcome(self, ratio: Ratio) -> Outcome:
        """Return whether a ratio reaches the target; inconclusive while the target is within the median's interval.

        >>> at_most(1.02).outcome(Ratio(1.0, 0.99, 1.01, 30)).value, at_most(1.02).outcome(Ratio(1, 0.9, 1.1, 5)).value
        ('reached', 'inconclusive')
        """
        if ratio.low <= self.number <= ratio.high and ratio.low < ratio.high:
            return Outcome.UNSURE
        good = ratio.median >= self.number if self.least else ratio.median <= self.number
        return Outcome.REACHED if good else Outcome.MISSED


def at_most(number: float) -> Target:
    """Return a target of which smaller is better."""
    return Target(number, least=False)


def at_least(number: float) -> Target:
    """Return a target of which larger is better."""
    return Target(number, least=True)


@dataclass(frozen=True)
class Row:
    """One measurement.

    `what` names the quotient in words; `unit` is "×" for ratios. `seconds` are the medians of the sides. A row that
    could not be measured has no ratio, and `why` is the reason. `work` is what the call of regard has to do at least,
    and `rate` how much of it is done per second; most rows have neither.
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
    work: Work | None = None
    rate: Ratio | None = None

    @property
    def key(self) -> str:
        """The name of the row, which no other row has."""
        return " | ".join((self.case, self.at, self.what))

    @property
    def outcome(self) -> Outcome | None:
        """The outcome; None if it was not measured."""
        if self.ratio is None:
            return None
        return Outcome.SEEN if self.target is None else self.target.outcome(self.ratio)


@dataclass(frozen=True)
class Effort:
    """How long to measure: `max_seconds` for a comparison, sizes up to `max_tokens`; `progress` is called with a line.

    Where `only` is given, rows of other keys need not be measured: `compare` returns them without a ratio.
    """

    max_seconds: float = 6.0
    max_tokens: int = 65_536
    progress: Callable[[str], None] = lambda _: None
    only: Container[str] | None = None

    def wants(self, row: Row) -> bool:
        """Whether this row is to be measured."""
        return self.only is None or row.key in self.only


@dataclass(frozen=True)
class Case:
    """A case by name: `rows` measures, and yields each row as soon as it is measured."""

    name: str
    title: str
    rows: Callable[[Effort], Iterator[Row]]
