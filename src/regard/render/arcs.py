"""A sentence in a terminal, with lines of box-drawing characters from the query word to the words that it attends to.

Everything is drawn on a grid of cells. A line stores for each cell the directions in which it leaves the cell. Where
lines meet, the union of directions selects the character (╭ ┼ ┤ …), so crossings need no special case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["LOOK_STYLES", "MARKS", "Arc", "LinePart", "draw_sentences"]

MARKS = "①②③④⑤⑥⑦⑧⑨"
LOOK_STYLES = ("bold #2f8fd8", "bold #d5700e", "bold #2a9d74", "bold #b0609c")
_CHOSEN_STYLE = "bold reverse"
_FAINT = "dim"
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_BOXES = {
    1: "╵", 2: "╷", 4: "╴", 8: "╶", 3: "│", 12: "─", 5: "╯", 6: "╮", 9: "╰", 10: "╭",
    7: "┤", 11: "├", 13: "┴", 14: "┬", 15: "┼",
}  # fmt: skip


@dataclass(frozen=True)
class LinePart:
    """A part of the text on one line; `word` is the word it belongs to, None for white space and ellipses."""

    text: str
    word: tuple[str, int] | None  # stream and index
    line: int
    start: int
    width: int


@dataclass(frozen=True)
class Arc:
    """One line to draw, from the query word to a target, with the positions of both."""

    number: int
    source: LinePart
    target: LinePart

    @property
    def same_line(self) -> bool:
        """Whether both ends are on one line of text."""
        return self.source.line == self.target.line

    @property
    def middle(self) -> int:
        """The cell under the middle of the target."""
        return self.target.start + (self.target.width - 1) // 2

    @property
    def length(self) -> int:
        """The distance of the target; one that needs the margin is longer than any on the same line."""
        return abs(self.middle - self.source.start) if self.same_line else 10_000 + self.number


@dataclass
class _Grid:
    """The directions, characters and styles of cells, by row and column."""

    bits: dict[tuple[int, int], int] = field(default_factory=dict)
    characters: dict[tuple[int, int], str] = field(default_factory=dict)
    styles: dict[tuple[int, int], str] = field(default_factory=dict)

    def line(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        """Draw along one row or one column."""
        (row, column), (last_row, last_column) = min(start, end), max(start, end)
        while (row, column) != (last_row, last_column):
            down = row < last_row
            self._mark((row, column), _DOWN if down else _RIGHT, style)
            row, column = (row + 1, column) if down else (row, column + 1)
            self._mark((row, column), _UP if down else _LEFT, style)

    def _mark(self, cell: tuple[int, int], bit: int, style: str) -> None:
        self.bits[cell] = self.bits.get(cell, 0) | bit
        self.styles[cell] = style

    def write(self, cell: tuple[int, int], text: str, style: str) -> None:
        """Write narrow characters over the existing ones."""
        for offset, character in enumerate(text):
            self.characters[cell[0], cell[1] + offset] = character
            self.styles[cell[0], cell[1] + offset] = style

    def at(self, cell: tuple[int, int]) -> tuple[str, str]:
        """Return the character of a cell and its style."""
        return self.characters.get(cell) or _BOXES.get(self.bits.get(cell, 0), " "), self.styles.get(cell, "")

    def plain(self, row: int, start: int, stop: int) -> bool:
        """Return whether there is room for a label, that is, only a horizontal line."""
        return all(
            self.bits.get((row, column)) == _LEFT | _RIGHT and (row, column) not in self.characters
            for column in range(start, stop)
        )


def draw_sentences(lines: Sequence[Sequence[LinePart]], arcs: Sequence[Arc], margin: int) -> list["Text"]:
    """Return the lines of text, each followed by the rows of its arcs; column 0 is the left edge of the figure.

    `margin` is the column where text starts: arcs between different lines of text run in the margin on its left.
    """
    under = [
        sorted((arc for arc in arcs if line in _ends(arc)), key=lambda arc: arc.length) for line in range(len(lines))
    ]
    rows, height = [], 0
    for touching in under:
        rows.append(height)
        height += 1 + (1 + len(touching) if touching else 0)
    grid = _Grid()
    stems = _stems(arcs)
    for arc in sorted(arcs, key=lambda arc: -arc.length):
        _draw(grid, arc, stems[arc.number], rows, under)
    for arc in arcs:
        _head(grid, arc, rows, under, margin)
    _underline(grid, arcs, stems, rows)
    width = 1 + max((column for _, column in (*grid.bits, *grid.characters)), default=0)
    starts = dict(zip(rows, lines, strict=True))
    return [_row(grid, row, starts.get(row), arcs, margin, width) for row in range(height)]


def _ends(arc: Arc) -> tuple[int, int]:
    return arc.source.line, arc.target.line


def _stems(arcs: Sequence[Arc]) -> dict[int, int]:
    """Return the column where each arc leaves the query word, ordered so that arcs on one side are nested."""
    leftward = sorted(
        (arc for arc in arcs if not arc.same_line or arc.middle < arc.source.start), key=lambda a: a.length
    )
    rightward = sorted((arc for arc in arcs if arc not in leftward), key=lambda arc: -arc.length)
    stems = {}
    for order, arc in enumerate((*leftward, *rightward)):
        spare = arc.source.width - len(arcs)
        stems[arc.number] = arc.source.start + (min(order, arc.source.width - 1) if spare < 0 else spare // 2 + order)
    return stems


def _track(arc: Arc, line: int, rows: Sequence[int], under: Sequence[Sequence[Arc]]) -> int:
    return rows[line] + 2 + under[line].index(arc)


def _gutter(arc: Arc) -> int:
    return 2 * arc.number


def _draw(grid: _Grid, arc: Arc, stem: int, rows: Sequence[int], under: Sequence[Sequence[Arc]]) -> None:
    style = LOOK_STYLES[arc.number % len(LOOK_STYLES)]
    below, above = (_track(arc, line, rows, under) for line in _ends(arc))
    turn, back = (stem, arc.middle) if arc.same_line else (_gutter(arc), _gutter(arc))
    grid.line((rows[arc.source.line] + 1, stem), (below, stem), style)
    if arc.same_line:
        grid.line((below, stem), (below, arc.middle), style)
    else:
        grid.line((below, turn), (below, stem), style)
        grid.line((below, turn), (above, back), style)
        grid.line((above, back), (above, arc.middle), style)
    grid.line((rows[arc.target.line] + 1, arc.middle), (above, arc.middle), style)


def _head(grid: _Grid, arc: Arc, rows: Sequence[int], under: Sequence[Sequence[Arc]], margin: int) -> None:
    """Draw the arrow head under the target, and the number of the arc on its line or instead of the arrow head."""
    style = LOOK_STYLES[arc.number % len(LOOK_STYLES)]
    mark = MARKS[arc.number % len(MARKS)]
    tip = (rows[arc.target.line] + 1, arc.middle)
    row = _track(arc, arc.target.line, rows, under)
    other = arc.source.start if arc.same_line else margin
    middle = (arc.middle + other) // 2 if arc.same_line else max(arc.middle - 4, (arc.middle + other) // 2)
    if grid.plain(row, middle - 2, middle + 3):
        grid.write((row, middle - 1), f" {mark} ", style)
        grid.write(tip, "▲", style)
    else:
        grid.write(tip, mark, style)


def _underline(grid: _Grid, arcs: Sequence[Arc], stems: dict[int, int], rows: Sequence[int]) -> None:
    for source in {arc.source for arc in arcs}:
        row = rows[source.line] + 1
        leaving = {stems[arc.number] for arc in arcs}
        for column in range(source.start, source.start + source.width):
            grid.write((row, column), "┯" if column in leaving else "━", "bold")


def _row(
    grid: _Grid, row: int, pieces: Sequence[LinePart] | None, arcs: Sequence[Arc], margin: int, width: int
) -> "Text":
    from rich.text import Text

    text = Text(no_wrap=True, end="\n")
    for column in range(margin if pieces is not None else width):
        text.append(*grid.at((row, column)))
    for piece in pieces or ():
        text.append(piece.text, _style(piece, arcs))
    text.rstrip()
    return text


def _style(piece: LinePart, arcs: Sequence[Arc]) -> str:
    if piece.word is None:
        return _FAINT
    if any(arc.source == piece for arc in arcs):
        return _CHOSEN_STYLE
    looks = [arc.number for arc in arcs if arc.target == piece]
    return LOOK_STYLES[looks[0] % len(LOOK_STYLES)] if looks else ""
