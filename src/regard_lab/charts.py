"""Charts of an experiment as plain values: lines over a range, groups of bars, matrices with their numbers.

A chart holds numbers and text, no tensors; `regard_lab.drawing` makes a figure of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from regard.errors import InputError

__all__ = ["Bars", "Chart", "LabeledMatrix", "Line", "Lines", "Matrices"]

_COLOURS = 7  # maximum number of distinguishable lines


@dataclass(frozen=True)
class Line:
    """One line of a chart; `low` and `high` bound a band around it (the spread of repetitions)."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dashed: bool = False  # an expected line, not a measured one

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y), len(self.low) or len(self.x), len(self.high) or len(self.x)}
        if len(lengths) != 1:
            raise InputError(f"`x`, `y`, `low` and `high` of {self.name!r} must have as many numbers as each other")


@dataclass(frozen=True)
class Lines:
    """Lines over one range. `caption` describes the result in a sentence, also for readers who cannot see the chart."""

    title: str
    caption: str
    across: str
    up: str
    lines: tuple[Line, ...]
    log_across: bool = False
    log_up: bool = False
    level: float | None = None  # a threshold, drawn across

    def __post_init__(self) -> None:
        if not 0 < sum(not line.dashed for line in self.lines) <= _COLOURS:
            raise InputError(f"`lines` must be 1 to {_COLOURS} besides dashed ones, got {len(self.lines)}")

    @property
    def texts(self) -> Iterator[str]:
        """All texts of the chart."""
        yield from (self.title, self.across, self.up, *(line.name for line in self.lines))


@dataclass(frozen=True)
class Bars:
    """Groups of bars: `values[series][group]`, one colour per series."""

    title: str
    caption: str
    across: str
    groups: tuple[str, ...]
    series: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    log_across: bool = False
    level: float | None = None

    def __post_init__(self) -> None:
        if len(self.values) != len(self.series) or any(len(row) != len(self.groups) for row in self.values):
            raise InputError("`values` must have a row for each of `series`, each with a number for each of `groups`")

    @property
    def texts(self) -> Iterator[str]:
        """All texts of the chart."""
        yield from (self.title, self.across, *self.groups, *self.series)


@dataclass(frozen=True)
class LabeledMatrix:
    """Numbers with the names of their rows and columns; `digits` is the number of decimals in each cell, None for no
    numbers.

    `marked` lists cells (row, column) that get a frame.
    """

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    digits: int | None = 2
    marked: tuple[tuple[int, int], ...] = ()
    most: float | None = None  # the number with the darkest colour; by default the largest

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise InputError(f"`values` of {self.name!r} must have a number for each of its rows and columns")


@dataclass(frozen=True)
class Matrices:
    """Several matrices in one row."""

    title: str
    caption: str
    matrices: tuple[LabeledMatrix, ...]

    @property
    def texts(self) -> Iterator[str]:
        """All texts of the chart."""
        yield self.title
        for one in self.matrices:
            yield from (one.name, *one.rows, *one.columns)


Chart = Lines | Bars | Matrices
