"""Draw charts as figures, with colours that are distinguishable for colour-blind readers and fonts for all scripts.

Only matplotlib's objects are used: no pyplot, no global state, no window.
"""

import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.render.mpl_figure import sheet
from regard.render.sentence_figure import Brush
from regard_lab.charts import Bars, Chart, LabeledMatrix, Line, Lines, Matrices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["INK", "PAPER", "RULE", "SERIES", "SOFT", "figure_of", "png_of", "svg_of"]

# Okabe and Ito's colours. The page replaces each by a variable with another value in dark mode.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b5478b", "#e69f00", "#56b4e9", "#6b6b6b")
INK, SOFT, RULE, PAPER = "#1a1a1a", "#5c5c5c", "#dcdcdc", "#ffffff"
_MARKERS = "osD^vPX"  # marker shapes, for print without colour
_SIZE = 10.0
_WIDE, _HIGH = 7.2, 3.9  # size of a chart in inches
_CELL = 0.62


def figure_of(chart: Chart) -> "Figure":
    """Return the chart as a matplotlib Figure."""
    with sheet(chart.texts) as brush:
        brush.figure.set_facecolor("none")
        if isinstance(chart, Lines):
            _draw_lines(brush, chart)
        elif isinstance(chart, Bars):
            _draw_bars(brush, chart)
        else:
            _draw_matrices(brush, chart)
    return brush.figure


def svg_of(chart: Chart, name: str) -> str:
    """Return a chart as SVG for an HTML page; text is drawn as paths and needs no font. `name` makes its ids unique."""
    text = _written(figure_of(chart), "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("xlink:href", "href")


def png_of(chart: Chart) -> bytes:
    """Return a chart as PNG, on white."""
    figure = figure_of(chart)
    figure.set_facecolor(PAPER)
    return _written(figure, "png")


def _written(figure: "Figure", kind: str) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"text.usetex": False, "svg.fonttype": "path", "svg.hashsalt": "regard"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _draw_lines(brush: Brush, chart: Lines) -> None:
    names = [line.name for line in chart.lines]
    axes = _axes(brush, chart.title, names)
    plain = iter(zip(SERIES, _MARKERS, strict=True))
    for line in chart.lines:
        colour, marker = (SOFT, "") if line.dashed else next(plain)
        _draw_line(axes, line, colour, marker)
    if chart.level is not None:
        axes.axhline(chart.level, color=SOFT, linewidth=1.0, linestyle=(0, (1, 2)))
    for wanted, axis, set_scale in (
        (chart.log_across, axes.xaxis, axes.set_xscale), (chart.log_up, axes.yaxis, axes.set_yscale)
    ):  # fmt: skip
        if wanted:
            set_scale("log")
            _powers(axis)
    axes.set_xlabel(brush.fonts.spell(chart.across), color=INK, **brush.font(_SIZE))
    axes.set_ylabel(brush.fonts.spell(chart.up), color=INK, **brush.font(_SIZE))
    if chart.log_across:
        places = sorted({x for line in chart.lines for x in line.x})
        if len(places) <= 12:
            axes.set_xticks(places, [f"{x:,.10g}" for x in places])
            axes.minorticks_off()
    axes.grid(color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    _legend(brush, axes, names)
    _finish(brush, axes)


def _draw_line(axes: "Axes", line: Line, colour: str, marker: str) -> None:
    few = len(line.x) <= 24
    axes.plot(
        line.x, line.y, color=colour, label=line.name, linewidth=1.2 if line.dashed else 2.0,
        linestyle="--" if line.dashed else "-", marker=marker if few else "", markersize=5,
        markeredgecolor=PAPER, markeredgewidth=0.6,
    )  # fmt: skip
    if line.low and line.high:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)


def _powers(axis: Any) -> None:
    """Set readable ticks on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def shown(value: float, _: int) -> str:
        return (
            f"{value:,.10g}"
            if 1e-4 < value < 1e6
            else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        )

    low, high = axis.get_view_interval()
    short = high < 40 * low  # if the axis contains a single power of ten, more ticks are labelled
    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if short else (1.0,), numticks=8))
    axis.set_major_formatter(FuncFormatter(shown))
    axis.set_minor_formatter(NullFormatter())


def _draw_bars(brush: Brush, chart: Bars) -> None:
    axes = _axes(brush, chart.title, chart.series if len(chart.series) > 1 else ())
    rows, series = len(chart.groups), len(chart.series)
    thick = 0.8 / series
    finite = [value for row in chart.values for value in row if math.isfinite(value)]
    for at, (name, values) in enumerate(zip(chart.series, chart.values, strict=True)):
        places = [row - 0.4 + thick * (at + 0.5) for row in range(rows)]
        axes.barh(places, values, height=thick * 0.92, color=SERIES[at], label=name)
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                _short(value), (value, place), xytext=(4, 0),
                textcoords="offset points", va="center", color=INK, **brush.font(8.5),
            )  # fmt: skip
    if chart.log_across:
        axes.set_xscale("log")
        _powers(axes.xaxis)
    else:
        axes.set_xlim(right=max(finite, default=1.0) * 1.12)
    if chart.level is not None:
        axes.axvline(chart.level, color=SOFT, linewidth=1.0, linestyle=(0, (1, 2)))
    axes.set_yticks(range(rows), [brush.fonts.spell(name) for name in chart.groups])
    axes.invert_yaxis()
    axes.set_xlabel(brush.fonts.spell(chart.across), color=INK, **brush.font(_SIZE))
    axes.grid(axis="x", color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    brush.figure.set_size_inches(brush.figure.get_figwidth(), 1.3 + 0.24 * rows * max(series, 1.6))
    if series > 1:
        _legend(brush, axes, chart.series)
    _finish(brush, axes)


def _short(value: float) -> str:
    """Format the number next to a bar.

    >>> [_short(one) for one in (0.0148, 0.5, 21.54, 1234.5, 3e-16)]
    ['0.015', '0.5', '21.5', '1,234', '3e-16']
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def _draw_matrices(brush: Brush, chart: Matrices) -> None:
    wide = [len(one.columns) * _cell(one) for one in chart.matrices]
    high = max(len(one.rows) * _cell(one) for one in chart.matrices)
    lefts = [max(brush.width(name, _SIZE) for name in one.rows) + 0.2 for one in chart.matrices]
    tops = [_names_above(brush, one) for one in chart.matrices]
    titles = [brush.width(one.name, _SIZE, bold=True) for one in chart.matrices]
    rooms = [left + max(one, title) + 0.3 for left, one, title in zip(lefts, wide, titles, strict=True)]
    width = max(sum(rooms), brush.width(chart.title, 12, bold=True) + 0.4)
    height = high + max(tops) + 0.95
    brush.figure.set_size_inches(width, height)
    brush.figure.text(
        0.12 / width, 1 - 0.12 / height, brush.fonts.spell(chart.title), va="top", color=INK,
        **brush.font(12, bold=True),
    )  # fmt: skip
    start = 0.0
    for one, left, across, room in zip(chart.matrices, lefts, wide, rooms, strict=True):
        tall = len(one.rows) * _cell(one)
        inches = (start + left) / width, (0.15 + high - tall) / height, across / width, tall / height
        _draw_matrix(brush, brush.figure.add_axes(inches), one, max(tops))
        start += room


def _cell(one: LabeledMatrix) -> float:
    return _CELL if one.digits is not None else min(_CELL, 3.4 / max(len(one.columns), len(one.rows)))


def _names_above(brush: Brush, one: LabeledMatrix) -> float:
    widest = max((brush.width(name, _SIZE) for name in one.columns), default=0.0)
    return 0.3 if widest < _cell(one) else widest + 0.15


def _draw_matrix(brush: Brush, axes: "Axes", one: LabeledMatrix, above: float) -> None:
    from matplotlib.patches import Rectangle

    finite = [value for row in one.values for value in row if math.isfinite(value)]
    most = one.most if one.most is not None else max(finite, default=1.0) or 1.0
    axes.set_xlim(0, len(one.columns))
    axes.set_ylim(len(one.rows), 0)
    for row, values in enumerate(one.values):
        for column, value in enumerate(values):
            share = min(max(value / most, 0.0), 1.0) if math.isfinite(value) else 0.0
            darkest = (
                0.94 if one.digits is None else 0.5
            )  # digits must be readable on every cell, in light and dark mode
            shade = 0.04 + darkest * share
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=SERIES[0], alpha=shade, linewidth=0))
            if one.digits is not None:
                axes.text(
                    column + 0.5, row + 0.5, f"{value:.{one.digits}f}", ha="center", va="center",
                    color=INK, **brush.font(9.5),
                )  # fmt: skip
    for row, column in one.marked:
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=SERIES[1], linewidth=1.8))
    turned = _names_above(brush, one) > 0.3
    _ticks(brush, axes, one, turned)
    axes.annotate(
        brush.fonts.spell(one.name), (0, 1), xytext=(0, above * 72 + 4), xycoords="axes fraction",
        textcoords="offset points", va="bottom", ha="left", color=INK, annotation_clip=False,
        **brush.font(_SIZE, bold=True),
    )  # fmt: skip


def _ticks(brush: Brush, axes: "Axes", one: LabeledMatrix, turned: bool) -> None:
    cell = _cell(one)
    every_column = 1 if turned or cell > 0.25 else max(1, math.ceil(0.3 / cell))
    every_row = 1 if cell > 0.16 else math.ceil(0.2 / cell)
    columns = range(0, len(one.columns), every_column)
    rows = range(0, len(one.rows), every_row)
    axes.xaxis.tick_top()
    axes.set_xticks(
        [at + 0.5 for at in columns], [brush.fonts.spell(one.columns[at]) for at in columns],
        rotation=90 if turned else 0,
    )  # fmt: skip
    axes.set_yticks([at + 0.5 for at in rows], [brush.fonts.spell(one.rows[at]) for at in rows])
    axes.spines[:].set_visible(False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set(color=INK, **brush.font(_SIZE))
    axes.tick_params(length=0, pad=3)


def _axes(brush: Brush, title: str, names: Sequence[str]) -> "Axes":
    beside = max((brush.width(name, 9) for name in names), default=0.0)
    width = max(_WIDE + max(beside - 1.2, 0.0), brush.width(title, 12, bold=True) + 0.3)
    brush.figure.set_size_inches(width, _HIGH)
    brush.figure.set_layout_engine("constrained")
    brush.figure.suptitle(brush.fonts.spell(title), x=0.1 / width, ha="left", color=INK, **brush.font(12, bold=True))
    axes = brush.figure.add_subplot()
    axes.set_facecolor("none")
    return axes


def _legend(brush: Brush, axes: "Axes", names: Sequence[str]) -> None:
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, handlelength=1.8)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=brush.fonts.spell(name), color=INK, **brush.font(9))


def _finish(brush: Brush, axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(which="both", color=SOFT, length=3)
    axes.tick_params(which="minor", length=0)
    for _ in range(2):  # some ticks are made only when the figure is drawn, and drawing needs the fonts of the others
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(color=INK, **brush.font(9))
        brush.figure.canvas.draw()
