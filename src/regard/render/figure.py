"""Figures of a record for papers and slides: the sentence with its arcs, the map of one head, and a map of all heads.

Only matplotlib's objects are used: no pyplot, no global state, no window.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regard.capture.highlight import Focus
from regard.capture.layer_selection import Stream, at_index
from regard.capture.records import Layer, Record
from regard.errors import InputError
from regard.render.figure_panels import draw_heads, draw_heatmap, label_room
from regard.render.generated_rows import says_written
from regard.render.head_patterns import describe
from regard.render.labels import check_focus, head_name, key_labels, query_labels, visible
from regard.render.mpl_figure import note, place, sheet, title, write_figure
from regard.render.sentence_figure import Brush, draw_sketch, plan_sketch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["focus_figure", "heads_figure", "heatmap_figure", "save_figure"]

_SIDE = 5.2


def heatmap_figure(
    record: Record, *, layer: int | str | Layer, head: int, batch_index: int = 0, stream: Stream | None = None
) -> "Figure":
    """Draw the heat map of one head, with tokens along both axes."""
    layer = record.layer(layer, stream)
    head = at_index("head", head, layer.heads, "heads")
    batch_index = at_index("batch_index", batch_index, layer.batch, "batch")
    with _figure(record, batch_index) as brush:
        left, top = label_room(brush, record, layer, batch_index)
        width, height = left + _SIDE + 0.9, top + _SIDE + 0.9
        brush.figure.set_size_inches(width, height)
        axes = place(brush, (left, 0.5, _SIDE, _SIDE))
        draw_heatmap(brush, axes, record, layer, head, batch_index)
        written = says_written(record)
        title(
            brush, axes, head_name(record, record.layers.index(layer), head) + (f": {written}" if written else ""), top
        )
    return brush.figure


def heads_figure(record: Record, *, batch_index: int = 0) -> "Figure":
    """Draw every head of every layer as a small map, all on one scale."""
    with _figure(record, batch_index) as brush:
        wide, high = _grid_size(record, 9.0)
        brush.figure.set_size_inches(wide + 1.7, high + 1.3)
        axes = place(brush, (0.8, 0.25, wide, high))
        draw_heads(brush, axes, record, batch_index)
        title(brush, axes, _all_heads(record), 0.5)
    return brush.figure


def focus_figure(record: Record, focus: Focus) -> "Figure":
    """Draw the sentence with its arcs, and below it the first head's map and the grid of all heads."""
    check_focus(record, focus)
    look = focus.looks[0]
    habits = describe(record, batch_index=focus.batch_index)
    says = f"{visible(focus.note)} {habits}" if focus.note else habits
    with _figure(record, focus.batch_index, says) as brush:
        left, top = label_room(brush, record, record.layers[look.layer], focus.batch_index)
        wide, high = _grid_size(record, _SIDE)
        right, full = left + _SIDE + 1.75, left + _SIDE + 1.75 + max(wide, 3.5) + 0.8
        sketch = plan_sketch(brush, record, focus, full - 0.8)
        foot = 0.5 if high < _SIDE - 0.7 else 0.95  # the sentence on the heads' rules is under the grid
        below = foot + top + _SIDE + 0.45
        brush.figure.set_size_inches(full, below + sketch.height)
        draw_sketch(brush, place(brush, (0.4, below, full - 0.8, sketch.height)), sketch, focus)
        map_axes = place(brush, (left, foot, _SIDE, _SIDE))
        pieces = focus.queries[focus.word].pieces
        draw_heatmap(brush, map_axes, record, record.layers[look.layer], look.head, focus.batch_index, pieces)
        title(brush, map_axes, head_name(record, look.layer, look.head), top)
        grid_axes = place(brush, (right, foot + _SIDE - high, wide, high))
        draw_heads(brush, grid_axes, record, focus.batch_index, [(each.layer, each.head) for each in focus.looks])
        title(brush, grid_axes, _all_heads(record), 0.5)
        note(brush, grid_axes, says, room=max(wide, 3.5), below=10 / 72, size=10)
    return brush.figure


def save_figure(record: Record, focus: Focus, path: str | Path) -> None:
    """Save `focus_figure` as PNG or SVG, atomically; text in an SVG is drawn as paths and needs no font."""
    write_figure(focus_figure(record, focus), path)


@contextmanager
def _figure(record: Record, batch_index: int, *texts: str) -> Iterator[Brush]:
    if not len(record):
        raise InputError("`record` must hold at least one layer to draw, got none")
    labels = [label(record, seen, batch_index) for seen in record for label in (query_labels, key_labels)]
    tokens = {token.text for tokens in labels for token in tokens}
    with sheet([*tokens, *texts, visible(record.model)]) as brush:
        yield brush


def _all_heads(record: Record) -> str:
    return f"all heads of {visible(record.model)}" if record.model else "all heads"


def _grid_size(record: Record, room: float) -> tuple[float, float]:
    """Return the size in inches of the grid of heads: square cells, within `room` × `room`."""
    layers, heads = len(record), max(seen.heads for seen in record)
    cell = min(room / layers, room / heads, 1.2)
    return heads * cell, layers * cell
