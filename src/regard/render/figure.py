"""Figures of a record for papers and slides: a sentence with its arcs, maps, a statistic, and one head over two texts.

Only matplotlib's objects are used: no pyplot, no global state, no window.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import HeadChange
from regard.record.highlight import Focus
from regard.record.layers import Stream, at_index, head_at
from regard.record.minimal_pair import MinimalPair
from regard.record.records import Layer, Record
from regard.render.figure_panels import NAMED, draw_heads, draw_heatmap, ink, label_room, label_size, panel_map
from regard.render.labels import (
    all_heads,
    check_focus,
    describe,
    head_name,
    key_labels,
    query_labels,
    says_written,
    visible,
)
from regard.render.mpl_figure import colour_bar, note, note_lines, place, sheet, title, write_figure
from regard.render.pair_text import CAUTION, change_sentence, flip_sentence, flip_text, head_sentence
from regard.render.sentence_figure import Brush, draw_sketch, plan_sketch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "focus_figure",
    "heads_figure",
    "heatmap_figure",
    "pair_figure",
    "save_figure",
    "save_pair_figure",
    "statistic_figure",
]

_SIDE = 5.2


def heatmap_figure(
    record: Record, *, layer: int | str | Layer, head: int, batch_index: int = 0, stream: Stream | None = None
) -> "Figure":
    """Draw the heat map of one head, with tokens along both axes."""
    layer = record.layer(layer, stream)
    head = head_at(layer, head)
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
        under = 0.35 + _LINE * len(note_lines(brush, says, max(wide, 3.5), 10))  # the sentences are under the grid
        foot = max(0.5, under - (_SIDE - high))
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
    return f"{all_heads(record)} of {visible(record.model)}" if record.model else all_heads(record)


def _grid_size(record: Record, room: float) -> tuple[float, float]:
    """Return the size in inches of the grid of heads: square cells, within `room` × `room`."""
    layers, heads = len(record), max(seen.heads for seen in record)
    cell = min(room / layers, room / heads, 1.2)
    return heads * cell, layers * cell


_LONGEST = 16
_CELLS = 1024  # maximum number of distinguishable columns


def statistic_figure(
    heading: str, rows: Sequence[str], columns: Sequence[str], values: npt.NDArray[np.floating]
) -> "Figure":
    """Draw numbers (rows, columns) with labels where there is room, for at most as many columns as are
    distinguishable.
    """
    if values.shape[1] > _CELLS:
        raise InputError(
            f"a figure shows up to {_CELLS} positions side by side, got {values.shape[1]}: export .csv or .npz"
        )
    from matplotlib.ticker import MaxNLocator

    names = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in columns]
    named = len(columns) <= NAMED
    with sheet([heading, *rows, *names]) as brush:
        size = label_size(len(columns))
        left = max(brush.width(name, 9) for name in rows) + 0.3
        top = (max(brush.width(name, size) for name in names) if named else 0.15) + 0.2
        wide, high = max(3.0, min(9.0, 0.3 * len(columns))), max(0.4, min(6.0, 0.3 * len(rows)))
        brush.figure.set_size_inches(
            left + max(wide + 0.9, brush.width(heading, 12.5, bold=True) + 0.3), top + high + 0.9
        )
        axes = place(brush, (left, 0.3, wide, high))
        top_value, low = float(np.nanmax(values, initial=0.0)), min(float(np.nanmin(values, initial=0.0)), 0.0)
        image = axes.imshow(values, cmap=ink(), vmin=low, vmax=top_value or 1.0, aspect="auto", interpolation="nearest",
                            extent=(0, len(columns), len(rows), 0))  # fmt: skip
        axes.xaxis.tick_top()
        axes.tick_params(length=0, pad=3)
        if named:
            axes.set_xticks(np.arange(len(names)) + 0.5, [brush.fonts.spell(name) for name in names], rotation=90)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_yticks(np.arange(len(rows)) + 0.5, [brush.fonts.spell(name) for name in rows])
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set(parse_math=False, family=list(brush.fonts.families))
            label.set_fontsize(9 if label in axes.get_yticklabels() else size)
        axes.spines[:].set(color="#cccccc", linewidth=0.8)
        colour_bar(brush, axes, image, wide)
        title(brush, axes, heading, top)
    return brush.figure


_PAIR_SIDE = 4.6
_BAR = 1.1  # width in inches of a map's colour bar
_FOOT, _LINE = 0.75, 0.19  # inches under the maps, and of a line of text there
_UNDER = 0.42  # from the maps to the first of them
_FLIPS = 6  # maximum number of flips listed


def pair_figure(pair: MinimalPair, change: HeadChange) -> "Figure":
    """Draw one head over two texts: the sentences one below the other, the maps side by side."""
    texts = tuple(zip(pair.records, pair.highlights, strict=True))
    for record, focus in texts:
        check_focus(record, focus)
    layer, head = pair.head
    layers = [record.layers[layer] for record in pair.records]
    says = _says(pair, change)
    with sheet([*_tokens(pair), *says]) as brush:
        rooms = [label_room(brush, record, seen, 0) for record, seen in zip(pair.records, layers, strict=True)]
        left, top = (max(room) for room in zip(*rooms, strict=True))
        across = left + _PAIR_SIDE + _BAR
        full = 2 * across + 0.2
        sketches = [plan_sketch(brush, record, focus, full - 0.8) for record, focus in texts]
        lines = [1 + int(brush.width(one, 10) / (full - 1.0)) for one in says]
        foot = _FOOT + _LINE * sum(lines)
        below = foot + top + _PAIR_SIDE + 0.45
        brush.figure.set_size_inches(full, below + sum(sketch.height for sketch in sketches))
        scale = max(float(panel_map(seen, head, 0).values.max(initial=0.0)) for seen in layers)
        bottom = below
        for sketch, focus in zip(reversed(sketches), reversed(pair.highlights), strict=True):
            draw_sketch(brush, place(brush, (0.4, bottom, full - 0.8, sketch.height)), sketch, focus)
            bottom += sketch.height
        maps = [place(brush, (number * across + left, foot, _PAIR_SIDE, _PAIR_SIDE)) for number in range(2)]
        for number, ((record, focus), axes, seen) in enumerate(zip(texts, maps, layers, strict=True), 1):
            draw_heatmap(brush, axes, record, seen, head, 0, focus.queries[focus.word].pieces, scale)
            title(brush, axes, f"text {number}: {head_name(record, layer, head)}", top)
        for number, one in enumerate(says):
            note(brush, maps[0], one, room=full - 1.0, below=_UNDER + _LINE * sum(lines[:number]), size=10)
    return brush.figure


def save_pair_figure(pair: MinimalPair, change: HeadChange, path: str | Path) -> None:
    """Save `pair_figure` as PNG or SVG, atomically."""
    write_figure(pair_figure(pair, change), path)


def _tokens(pair: MinimalPair) -> list[str]:
    """Return the tokens of both texts, for which fonts are needed."""
    seen = [(record, record.layers[pair.head[0]]) for record in pair.records]
    return [token.text for one in seen for label in (query_labels, key_labels) for token in label(*one, 0)]


def _says(pair: MinimalPair, change: HeadChange) -> list[str]:
    """Return the sentences under the maps."""
    found = pair.flips.flips if not pair.is_untouched else ()
    named = [f"{flip_text(flip, pair.words)}" for flip in found[:_FLIPS]]
    more = [f"and {len(found) - _FLIPS} weaker ones"] if len(found) > _FLIPS else []
    flips = "; ".join(named + more)
    return [one for one in (head_sentence(pair), flip_sentence(pair), flips, change_sentence(change), CAUTION) if one]
