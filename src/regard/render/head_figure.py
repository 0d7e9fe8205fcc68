"""Scores of every head as a figure: one panel per score, with layers as rows and heads as columns."""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import InputError, MissingExtraError
from regard.files import write_atomically
from regard.heads.scores import MEASURES, RULES, HeadScores, PerHead, head_number, ranked
from regard.render.figure_panels import ink
from regard.render.fonts import fonts_for
from regard.render.labels import visible
from regard.render.sentence_figure import COLOURS, Brush

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "head_figure", "save_head_figure", "score_panels"]

_DPI, _FORMATS = 150, (".png", ".svg")
_NUMBERED = 12  # maximum number of numbered rows or columns
_ACROSS = 5  # panels side by side
_WIDE, _HIGH = 2.2, 5.2  # maximum size of a panel in inches
_LEFT, _TOP, _BETWEEN, _BELOW = 0.55, 0.75, 0.95, 0.62


@dataclass(frozen=True, eq=False)
class Panel:
    """One number per head, its name, and the number drawn darkest: 1 for shares, or None for the largest number."""

    title: str
    values: PerHead
    top: float | None = 1.0


def score_panels(scores: HeadScores) -> list[Panel]:
    """Return a panel for each score; scores that no head has are left out."""
    panels = []
    for name, test in {**RULES, **MEASURES}.items():
        if name in scores.scores and np.isfinite(scores.scores[name]).any():
            share = name in RULES or name in ("confidence", "sink")
            panels.append(Panel(test.label, scores.scores[name], 1.0 if share else None))
    return panels


def head_figure(panels: Sequence[Panel], *, title: str) -> "Figure":
    """Draw scores of every head; the largest of each panel is framed and labelled."""
    if not panels:
        raise InputError("`panels` must hold at least one score to draw, got none")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures") from error
    layers, heads = panels[0].values.shape
    cell = min(_WIDE / heads, _HIGH / layers, 0.3)
    wide, high = max(heads * cell, 1.7), layers * cell
    across = min(_ACROSS, len(panels))
    down = -(-len(panels) // across)
    width = _LEFT + across * wide + (across - 1) * _BETWEEN + _BETWEEN * 0.8
    height = _TOP + down * (high + _BELOW + 0.35)
    with _settings():
        figure = Figure(dpi=_DPI, facecolor="white")
        texts = map(visible, (title, *(panel.title for panel in panels)))
        brush = Brush(figure, FigureCanvasAgg(figure), fonts_for(texts))
        width = max(width, 2 * _LEFT + brush.width(visible(title), 13, bold=True))
        figure.set_size_inches(width, height)
        figure.text(
            _LEFT / width, 1 - 0.2 / height, brush.fonts.spell(visible(title)), va="top", **brush.font(13, bold=True)
        )
        for at, panel in enumerate(panels):
            row, column = divmod(at, across)
            left, top = _LEFT + column * (wide + _BETWEEN), _TOP + 0.35 + row * (high + _BELOW + 0.35)
            inches = left, height - top - high, heads * cell, high
            axes = figure.add_axes((inches[0] / width, inches[1] / height, inches[2] / width, inches[3] / height))
            _draw(brush, axes, panel)
    return figure


def save_head_figure(panels: Sequence[Panel], path: str | Path, *, title: str) -> None:
    """Write `head_figure` as PNG or SVG, whole or not at all; text in an SVG is drawn, so that it needs no font."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in _FORMATS:
        raise InputError(f"`path` must end in {' or '.join(_FORMATS)}, got {path.name}")
    figure = head_figure(panels, title=title)
    buffer = io.BytesIO()
    with _settings():
        figure.savefig(buffer, format=kind[1:], dpi=_DPI, metadata={"Date": None} if kind == ".svg" else None)
    write_atomically(path, buffer.getvalue())


@contextmanager
def _settings() -> Iterator[None]:
    """What could change the drawing, whatever the caller has set; theirs comes back afterwards."""
    import matplotlib

    with matplotlib.rc_context({"text.usetex": False, "svg.fonttype": "path", "svg.hashsalt": "regard"}):
        yield


def _draw(brush: Brush, axes: "Axes", panel: Panel) -> None:
    from matplotlib.patches import Rectangle

    layers, heads = panel.values.shape
    most = ranked(panel.values, 1)
    largest = max(most[0][2], 0.0) if most else 1.0
    top = panel.top if panel.top is not None else largest or 1.0
    colours = ink().with_extremes(bad="#e4e4e4")
    image = axes.imshow(panel.values, cmap=colours, vmin=0, vmax=top, interpolation="nearest", aspect="equal")
    for count, set_ticks in ((heads, axes.set_xticks), (layers, axes.set_yticks)):
        step = next((one for one in (1, 2, 5, 10, 20) if count / one <= _NUMBERED), 50)
        set_ticks(range(0, count, step), [str(one) for one in range(0, count, step)])
    axes.tick_params(length=0, labelsize=7, pad=2)
    axes.spines[:].set_color("#bbbbbb")
    axes.set_xlabel("head", labelpad=1, **brush.font(8))
    axes.set_ylabel("layer", labelpad=2, **brush.font(8))
    _write(brush, axes, panel.title, 17, bold=True, size=10)
    if most:
        layer, head, value = most[0]
        axes.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=1.4))
        digits = 2 if value < 10 else 1
        _write(brush, axes, f"largest {value:.{digits}f} at {head_number(layer, head)}", 5, size=8)
    inches = axes.get_position().width * brush.figure.get_size_inches()[0]
    beside = axes.inset_axes((1 + 0.09 / inches, 0.0, 0.09 / inches, 1.0))
    bar = axes.figure.colorbar(image, cax=beside, ticks=[0, top / 2, top])
    bar.ax.set_yticklabels([_tick(one) for one in (0, top / 2, top)])
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=7, length=2, color="#888888")


def _tick(value: float) -> str:
    """Return a number in few characters, and not as 0 where it is small.

    >>> _tick(3), _tick(12.5), _tick(0.0571)
    ('3', '12.5', '0.057')
    """
    return f"{value:.2g}" if 0 < value < 1 else f"{value:.{0 if math.isclose(value, round(value)) else 1}f}"


def _write(brush: Brush, axes: "Axes", text: str, above: float, *, size: float, bold: bool = False) -> None:
    axes.annotate(
        brush.fonts.spell(visible(text)), (0, 1), xytext=(0, above), xycoords="axes fraction", va="bottom", ha="left",
        textcoords="offset points", annotation_clip=False, **brush.font(size, bold=bold),
    )  # fmt: skip
