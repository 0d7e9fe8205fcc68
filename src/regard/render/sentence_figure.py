"""The introduction's picture as a figure: a sentence, and coloured arcs from one word to the words that two heads
attend to.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from regard.record.headline import HeadLine, head_lines
from regard.record.highlight import Focus
from regard.record.records import Record
from regard.record.tokens import Word
from regard.render.fonts import Fonts
from regard.render.labels import key_labels, query_labels, shown_words
from regard.render.line_breaking import excerpt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "Brush", "Sketch", "draw_sketch", "plan_sketch"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito: distinguishable for colour-blind readers
_INK, _GREY = "#1a1a1a", "#8a8a8a"
_SIZE = 17.0
_LINE, _FOOT = 0.7, 0.75  # inches: a line of text; the legend below the last one
_GAP, _BOX = 0.095, 0.07  # white space between words; around the chosen one
_HIGHEST, _BETWEEN = 1.25, 0.32  # how far an arc rises over the first line, and over one with text above it


@dataclass(frozen=True)
class Brush:
    """The fonts of one figure, and its canvas to measure text with."""

    figure: "Figure"
    canvas: "FigureCanvasAgg"
    fonts: Fonts

    def width(self, text: str, size: float, *, bold: bool = False) -> float:
        """Return the width of a text in inches."""
        from matplotlib.text import Text

        drawn = Text(0, 0, self.fonts.spell(text), figure=self.figure, **self.font(size, bold=bold))
        return float(drawn.get_window_extent(self.canvas.get_renderer()).width / self.figure.dpi)

    def font(self, size: float, *, bold: bool = False) -> dict[str, Any]:
        """Return keyword arguments of every text, so that `$` and `_` are drawn literally."""
        return {
            "fontfamily": list(self.fonts.families),
            "fontsize": size,
            "fontweight": "bold" if bold else "normal",
            "parse_math": False,
        }


@dataclass(frozen=True)
class _Spot:
    """A word placed on a line: its left and right edge and the line, counted from the top."""

    text: str
    word: tuple[str, int] | None
    left: float
    right: float
    line: int

    @property
    def centre(self) -> float:
        return (self.left + self.right) / 2


def _lines(brush: Brush, record: Record, focus: Focus, room: float) -> list[list[_Spot]]:
    layer = record.layers[focus.looks[0].layer]
    targets = {look.target for look in focus.looks}
    queries = shown_words(query_labels(record, layer, focus.batch_index), focus.queries)
    if layer.query_tokens == layer.key_tokens:
        return _wrap(brush, queries, "queries", {focus.word, *targets}, focus.word, room, 0)
    above = _wrap(brush, queries, "queries", {focus.word}, focus.word, room, 0)
    keys = shown_words(key_labels(record, layer, focus.batch_index), focus.keys)
    return [*above, [], *_wrap(brush, keys, "keys", targets, -1, room, len(above) + 1)]


def _wrap(
    brush: Brush,
    words: Sequence[tuple[Word, bool]],
    name: str,
    anchors: Collection[int],
    chosen: int,
    room: float,
    first: int,
) -> list[list[_Spot]]:
    lines: list[list[_Spot]] = [[]]
    column = 0.0

    def put(text: str, word: tuple[str, int] | None, *, spaced: bool) -> None:
        nonlocal column
        width = brush.width(text, _SIZE, bold=word is not None and word[1] in anchors)
        boxed = name == "queries" and word == (name, chosen)
        column += _BOX if boxed else 0.0
        start = column + (_GAP if spaced and lines[-1] else 0.02)
        if lines[-1] and start + width > room:
            lines.append([])
            start = 0.0
        lines[-1].append(_Spot(text, word, start, start + width, first + len(lines) - 1))
        column = start + width + (_BOX if boxed else 0.0)

    for shown in excerpt(len(words), anchors):
        if shown.start:
            put("…", None, spaced=True)
        for index in shown:
            word, spaced = words[index]
            if not word.special or index in anchors:
                put(_cut(word.text), (name, index), spaced=spaced or word.special)
        trailing = shown.stop < len(words)
    if trailing:
        put("…", None, spaced=True)
    return lines


def _cut(text: str, limit: int = 28) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


@dataclass(frozen=True)
class Sketch:
    """The positions of the words, in inches; `height` includes the arcs above and the legend below."""

    lines: list[list[_Spot]]
    chosen: _Spot
    targets: list[_Spot]
    height: float
    shift: float
    top: float
    legend: tuple[HeadLine, ...]

    def base(self, spot: _Spot) -> float:
        """Return the height of a word's baseline."""
        return self.height - self.top - _LINE * (spot.line + 0.55)

    def rise(self, number: int) -> float:
        """Return the height of an arc on one line, which increases with the distance of its target."""
        reach = abs(self.chosen.centre - self.targets[number].centre)
        return min(0.3 + 0.14 * reach, _BETWEEN if self.chosen.line else _HIGHEST)

    def start(self, number: int) -> float:
        """Return where an arc leaves the query word, so that arcs on one side are nested."""
        way = [target.centre - self.chosen.centre for target in self.targets]
        leftward = sorted((each for each in range(len(way)) if way[each] < 0), key=lambda each: -way[each])
        rightward = sorted((each for each in range(len(way)) if way[each] >= 0), key=lambda each: -way[each])
        order = [*leftward, *rightward].index(number)
        return self.chosen.centre + self.shift + (order - (len(way) - 1) / 2) * 0.11


def plan_sketch(brush: Brush, record: Record, focus: Focus, room: float) -> Sketch:
    """Place the sentence in a width of `room` inches."""
    lines = _lines(brush, record, focus, room)
    spots = {spot.word: spot for line in lines for spot in line}
    name = "keys" if any(word and word[0] == "keys" for word in spots) else "queries"
    chosen, targets = spots["queries", focus.word], [spots[name, look.target] for look in focus.looks]
    shift = (room - max(line[-1].right for line in lines if line)) / 2
    legend = head_lines(record, focus)
    flat = Sketch(lines, chosen, targets, 0.0, shift, 0.0, legend)
    rises = [flat.rise(number) for number, target in enumerate(targets) if target.line == chosen.line == 0]
    top = max(rises, default=0.0) * 0.8 + 0.15
    return Sketch(lines, chosen, targets, top + _LINE * len(lines) + _FOOT, shift, top, legend)


def draw_sketch(brush: Brush, axes: "Axes", sketch: Sketch, focus: Focus) -> None:
    """Draw the sketch into axes of the planned width and of height `sketch.height`."""
    width, height = brush.figure.get_size_inches() * axes.get_position().size
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    for line in sketch.lines:
        for spot in line:
            _write(brush, axes, spot, sketch)
    for number, look in enumerate(focus.looks):
        _arc(axes, number, look.weight, sketch)
    _legend(brush, axes, sketch.legend, width)


def _write(brush: Brush, axes: "Axes", spot: _Spot, sketch: Sketch) -> None:
    colour, bold, box = _INK if spot.word else _GREY, False, None
    if spot in sketch.targets:
        colour, bold = COLOURS[sketch.targets.index(spot) % len(COLOURS)], True
    if spot is sketch.chosen:
        bold, box = True, {"boxstyle": "round,pad=0.18", "facecolor": "#fff3c4", "edgecolor": "#c9a400", "linewidth": 1}
    axes.text(
        spot.left + sketch.shift, sketch.base(spot), brush.fonts.spell(spot.text), color=colour, bbox=box,
        va="baseline", ha="left", **brush.font(_SIZE, bold=bold),
    )  # fmt: skip


def _arc(axes: "Axes", number: int, weight: float, sketch: Sketch) -> None:
    """Draw an arrow above the line or between two lines; its width increases with the weight."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    chosen, target = sketch.chosen, sketch.targets[number]
    over, under = 0.31, -0.14
    start = (sketch.start(number), sketch.base(chosen) + (under if target.line > chosen.line else over))
    end = (target.centre + sketch.shift, sketch.base(target) + (over if target.line >= chosen.line else under))
    if target.line == chosen.line:
        heights = [start[1] + sketch.rise(number), end[1] + sketch.rise(number)]
    else:
        heights = [(start[1] + end[1]) / 2] * 2
    path = Path(
        [start, (start[0], heights[0]), (end[0], heights[1]), end], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    )
    axes.add_patch(
        FancyArrowPatch(
            path=path, arrowstyle="-|>", mutation_scale=14, color=COLOURS[number % len(COLOURS)],
            linewidth=1.2 + 3.5 * weight, capstyle="round", shrinkA=0, shrinkB=0, zorder=1, clip_on=False,
        )
    )  # fmt: skip


def _legend(brush: Brush, axes: "Axes", lines: Sequence[HeadLine], room: float) -> None:
    """Draw the legend below the sentence, in the colours of the arcs: each head with its target and weight."""
    entries = [str(replace(line, query=_cut(line.query), key=_cut(line.key))) for line in lines]
    widths = [brush.width(entry, 11.5) for entry in entries]
    left = (room - sum(widths) - 0.6 * (len(entries) - 1)) / 2
    for number, (entry, width) in enumerate(zip(entries, widths, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        axes.text(left, 0.3, brush.fonts.spell(entry), color=colour, ha="left", va="center", **brush.font(11.5))
        left += width + 0.6
