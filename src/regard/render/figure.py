"""Figures of a record for papers and slides: the sentence with its arcs, one head in full, all heads at a glance.

Drawn with matplotlib's objects only: no pyplot, no global state, no window.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import InputError, MissingExtraError
from regard.observe.focus import Focus
from regard.observe.records import Record
from regard.render.files import write_atomically
from regard.render.fonts import fonts_for
from regard.render.habits import describe
from regard.render.labels import check_focus, head_name, key_labels, query_labels, visible
from regard.render.panels import axis_names, draw_heads, draw_heatmap, label_size
from regard.render.sketch import Brush, draw_sketch, plan_sketch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["focus_figure", "heads_figure", "heatmap_figure", "save_figure"]

_SIDE, _DPI = 5.2, 150
_FORMATS = (".png", ".svg")


def heatmap_figure(record: Record, *, layer: int | str, head: int, sequence: int = 0) -> "Figure":
    """Draw the heat map of one head, its tokens along both axes."""
    record.heatmap(layer=layer, head=head)  # refuses a head that is not there
    with _figure(record, sequence) as brush:
        left, top = _label_room(brush, record, layer, sequence)
        width, height = left + _SIDE + 0.9, top + _SIDE + 0.9
        brush.figure.set_size_inches(width, height)
        axes = _place(brush, (left, 0.5, _SIDE, _SIDE))
        draw_heatmap(brush, axes, record, layer, head, sequence)
        _title(brush, axes, head_name(_index(record, layer), head), top)
    return brush.figure


def heads_figure(record: Record, *, sequence: int = 0) -> "Figure":
    """Draw every head of every layer as a small map, all on one scale."""
    with _figure(record, sequence) as brush:
        wide, high = _grid_size(record, 9.0)
        brush.figure.set_size_inches(wide + 1.7, high + 1.3)
        axes = _place(brush, (0.8, 0.25, wide, high))
        draw_heads(brush, axes, record, sequence)
        _title(brush, axes, _all_heads(record), 0.5)
    return brush.figure


def focus_figure(record: Record, focus: Focus) -> "Figure":
    """Draw the sentence with its arcs, under it the first head in full and the grid of all heads."""
    check_focus(record, focus)
    look = focus.looks[0]
    with _figure(record, focus.sequence, describe(record, sequence=focus.sequence)) as brush:
        left, top = _label_room(brush, record, look.layer, focus.sequence)
        wide, high = _grid_size(record, _SIDE)
        right, full = left + _SIDE + 1.75, left + _SIDE + 1.75 + max(wide, 3.5) + 0.8
        sketch = plan_sketch(brush, record, focus, full - 0.8)
        foot = 0.5 if high < _SIDE - 0.7 else 0.95  # the sentence on the habits stands under the grid
        below = foot + top + _SIDE + 0.45
        brush.figure.set_size_inches(full, below + sketch.height)
        draw_sketch(brush, _place(brush, (0.4, below, full - 0.8, sketch.height)), sketch, focus)
        map_axes = _place(brush, (left, foot, _SIDE, _SIDE))
        pieces = focus.queries[focus.word].pieces
        draw_heatmap(brush, map_axes, record, look.layer, look.head, focus.sequence, pieces)
        _title(brush, map_axes, head_name(look.layer, look.head), top)
        grid_axes = _place(brush, (right, foot + _SIDE - high, wide, high))
        draw_heads(brush, grid_axes, record, focus.sequence, [(each.layer, each.head) for each in focus.looks])
        _title(brush, grid_axes, _all_heads(record), 0.5)
        _note(brush, grid_axes, describe(record, sequence=focus.sequence), max(wide, 3.5))
    return brush.figure


def save_figure(record: Record, focus: Focus, path: str | Path) -> None:
    """Write `focus_figure` as PNG or SVG, whole or not at all; text in an SVG is drawn, so that it needs no font."""
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"`path` must end in {' or '.join(_FORMATS)}, got {path.name}")
    figure = focus_figure(record, focus)
    with _settings():
        buffer = io.BytesIO()
        kind = path.suffix.lower()[1:]
        dateless = {"Date": None} if kind == "svg" else None  # the same record gives the same file
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=dateless)
    write_atomically(path, buffer.getvalue())


@contextmanager
def _settings() -> Iterator[None]:
    """The few settings that could change what is drawn, whatever the caller has set; theirs come back afterwards."""
    import matplotlib

    fixed = {"text.usetex": False, "svg.fonttype": "path", "svg.hashsalt": "regard"}
    with matplotlib.rc_context(fixed):
        yield


@contextmanager
def _figure(record: Record, sequence: int, *texts: str) -> Iterator[Brush]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures") from error
    if not len(record):
        raise InputError("`record` must hold at least one layer to draw, got none")
    labels = [label(record, seen, sequence) for seen in record for label in (query_labels, key_labels)]
    tokens = {token.text for tokens in labels for token in tokens}
    with _settings():
        figure = Figure(dpi=_DPI, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        yield Brush(figure, canvas, fonts_for([*tokens, *texts, visible(record.model)]))


def _all_heads(record: Record) -> str:
    return f"all heads of {visible(record.model)}" if record.model else "all heads"


def _note(brush: Brush, axes: "Axes", text: str, room: float) -> None:
    """A sentence under axes, in lines of at most `room` inches."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if brush.width(longer, 10) <= room else [*lines, word]
    axes.annotate(
        brush.fonts.spell("\n".join(lines)), (0, 0), xytext=(0, -10), xycoords="axes fraction",
        textcoords="offset points", va="top", ha="left", annotation_clip=False, color="#555555", **brush.font(10),
    )  # fmt: skip


def _index(record: Record, layer: int | str) -> int:
    return record.layers.index(record.layer(layer))


def _label_room(brush: Brush, record: Record, layer: int | str, sequence: int) -> tuple[float, float]:
    """Inches that the names of the rows and of the columns need."""
    seen = record.layer(layer)
    rooms = []
    for tokens in (query_labels(record, seen, sequence), key_labels(record, seen, sequence)):
        widths = [brush.width(name, label_size(len(tokens)), bold=True) for name in axis_names(tokens)]
        rooms.append(max(widths, default=0.3) + 0.25)
    return rooms[0] + 0.1, rooms[1] + 0.15


def _grid_size(record: Record, room: float) -> tuple[float, float]:
    """Inches of the grid of heads: square cells, within `room` × `room`."""
    layers, heads = len(record), max(seen.heads for seen in record)
    cell = min(room / layers, room / heads, 1.2)
    return heads * cell, layers * cell


def _place(brush: Brush, inches: tuple[float, float, float, float]) -> "Axes":
    width, height = brush.figure.get_size_inches()
    left, bottom, across, up = inches
    return brush.figure.add_axes((left / width, bottom / height, across / width, up / height))


def _title(brush: Brush, axes: "Axes", text: str, above: float) -> None:
    """Left-aligned, `above` inches over the axes, where the names of the columns end."""
    axes.annotate(
        brush.fonts.spell(text), (0, 1), xytext=(0, above * 72 + 2), xycoords="axes fraction",
        textcoords="offset points", va="bottom", ha="left", annotation_clip=False, **brush.font(12.5, bold=True),
    )  # fmt: skip
