"""The panels of a figure: the heat map of one head, and the grid of all heads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from regard.record.layers import several_streams
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from regard.render.heatmap_data import HeadMap, head_map
from regard.render.labels import key_labels, layer_name, prompt_rows, query_labels
from regard.render.sentence_figure import COLOURS, Brush

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

__all__ = ["NAMED", "axis_names", "draw_heads", "draw_heatmap", "label_room", "label_size", "panel_map"]

NAMED = 48  # maximum number of labelled tokens along an axis
_CELLS = 256
_THUMB = 48  # pixels per head in the grid
_LONGEST = 16


def ink() -> "Colormap":
    """Return a colour map from white over the colour of the first head to near black; lightness decreases with the
    weight.
    """
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", ["#ffffff", "#9ecae9", COLOURS[0], "#00203f"])


def panel_map(layer: Layer, head: int, batch_index: int) -> HeadMap:
    """Return the map of one head at the resolution of a panel."""
    return head_map(layer, head, batch_index, rows=_CELLS, columns=_CELLS)


def axis_names(tokens: Sequence[Token]) -> list[str]:
    """Return the labels of the tokens along an axis, or none if there is no room."""
    if len(tokens) > NAMED:
        return []
    return [token.text if len(token.text) <= _LONGEST else token.text[: _LONGEST - 1] + "…" for token in tokens]


def label_size(count: int) -> float:
    """Return the font size in points for this number of labels on an axis of about six inches."""
    return float(min(11.0, max(5.0, 270.0 / max(count, 1))))


def label_room(brush: Brush, record: Record, seen: Layer, batch_index: int) -> tuple[float, float]:
    """Return the inches that the labels of the rows and of the columns need."""
    rooms = []
    for tokens in (query_labels(record, seen, batch_index), key_labels(record, seen, batch_index)):
        widths = [brush.width(name, label_size(len(tokens)), bold=True) for name in axis_names(tokens)]
        rooms.append(max(widths, default=0.3) + 0.25)
    return rooms[0] + 0.1, rooms[1] + 0.15


def draw_heatmap(
    brush: Brush,
    axes: "Axes",
    record: Record,
    seen: Layer,
    head: int,
    batch_index: int,
    marked: Sequence[int] = (),
    top: float = 0.0,
) -> None:
    """Draw queries as rows and keys as columns, labelled by tokens; the labels of the rows in `marked` are bold.

    `top` is the weight that is drawn darkest; two maps side by side share it.
    """
    from matplotlib.ticker import MaxNLocator

    picture = panel_map(seen, head, batch_index)
    extent = (0, seen.keys, seen.queries, 0)
    image = axes.imshow(
        picture.values, cmap=ink(), vmin=0, vmax=float(picture.values.max(initial=top)) or 1.0, aspect="auto",
        interpolation="nearest", extent=extent,
    )  # fmt: skip
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3)
    for axis, tokens in (
        (axes.yaxis, query_labels(record, seen, batch_index)),
        (axes.xaxis, key_labels(record, seen, batch_index)),
    ):
        names = axis_names(tokens)
        font = brush.font(label_size(len(tokens)) if names else 9)
        if names:
            axis.set_ticks(np.arange(len(tokens)) + 0.5, [brush.fonts.spell(name) for name in names])
        else:
            axis.set_major_locator(MaxNLocator(8, integer=True))
        for tick in axis.get_major_ticks():
            for label in (tick.label1, tick.label2):
                label.set(parse_math=False, family=font["fontfamily"], size=font["fontsize"])
    if axis_names(key_labels(record, seen, batch_index)):
        axes.tick_params(axis="x", rotation=90)
    _mark_rows(axes, seen.keys, marked)
    if (rows := prompt_rows(record, seen)) is not None:  # generated text is below it and to the right of it
        axes.axhline(rows, color=COLOURS[1], linewidth=1.2)
        axes.axvline(rows, color=COLOURS[1], linewidth=1.2, alpha=1.0 if seen.kind == "self" else 0.0)
    for spine in axes.spines.values():
        spine.set(color="#cccccc", linewidth=0.8)
    _bar(brush, axes, image, picture.caption)


def _mark_rows(axes: "Axes", keys: int, marked: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    for row in marked:
        axes.add_patch(Rectangle((0, row), keys, 1, fill=False, edgecolor="#c9a400", linewidth=1.4))
    labels = axes.get_yticklabels()
    for row in marked:
        if row < len(labels) and labels[row].get_text():
            labels[row].set_fontweight("bold")


def _bar(brush: Brush, axes: "Axes", image: "AxesImage", caption: str) -> None:
    """Draw the colour bar, with the description of a cell below it."""
    beside = axes.inset_axes((1.02, 0.0, 0.022, 1.0))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8, length=2, color="#888888")
    axes.set_xlabel(caption, color="#555555", labelpad=6, **brush.font(9))
    axes.xaxis.set_label_position("bottom")


def draw_heads(
    brush: Brush, axes: "Axes", record: Record, batch_index: int, marked: Sequence[tuple[int, int]] = ()
) -> None:
    """Draw every head as a small map, with layers as rows and heads as columns; `marked` heads get frames in their
    arcs' colours.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    mosaic = head_mosaic(record, batch_index)
    layers, heads = len(record), max(seen.heads for seen in record)
    image = axes.imshow(
        mosaic, cmap=ink(), norm=PowerNorm(0.5, vmin=0, vmax=1), interpolation="nearest", aspect="auto",
        extent=(0, heads, layers, 0),
    )  # fmt: skip
    axes.set_xticks(np.arange(heads) + 0.5, [str(head) for head in range(heads)])
    axes.set_yticks(np.arange(layers) + 0.5, _layer_ticks(record))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelsize=label_size(max(heads, layers)) - 1)
    axes.set_xlabel("head", **brush.font(9.5))
    axes.set_ylabel("layer", **brush.font(9.5))
    axes.spines[:].set_visible(False)
    edge = 1.5 / (_THUMB + 3)
    for number, (layer, head) in enumerate(marked):
        colour = COLOURS[number % len(COLOURS)]
        axes.add_patch(
            Rectangle(
                (head + edge / 2, layer + edge / 2), 1 - edge, 1 - edge, fill=False, edgecolor=colour, linewidth=2
            )
        )
    _heads_bar(axes, image)


def _layer_ticks(record: Record) -> list[str]:
    """Return the numbers of the layers; with several streams, the first of each also has the stream's name."""
    if not several_streams(record.layers):
        return [str(record.number(layer)) for layer in record]
    names = [layer_name(record, index).rpartition(" layer ") for index in range(len(record))]
    before = ["", *(stream for stream, _, _ in names)]
    return [number if stream == last else f"{stream} {number}" for (stream, _, number), last in zip(names, before)]  # noqa: B905


def _heads_bar(axes: "Axes", image: "AxesImage") -> None:
    beside = axes.inset_axes((1.02, 0.0, 0.022, 1.0))
    bar = axes.figure.colorbar(image, cax=beside, ticks=[0, 0.1, 0.25, 0.5, 1])
    bar.ax.set_yticklabels(["0", "0.1", "0.25", "0.5", "1"])
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8, length=2, color="#888888")


def head_mosaic(record: Record, batch_index: int) -> npt.NDArray[np.float32]:
    """Return all heads in one image, a grid of equal sizes with gaps of NaN, also where a head was not recorded."""
    layers, heads = len(record), max(seen.heads for seen in record)
    mosaic = np.full((layers * (_THUMB + 3), heads * (_THUMB + 3)), np.nan, dtype=np.float32)
    for row, seen in enumerate(record):
        for head in seen.recorded_heads:
            small = head_map(seen, head, batch_index, rows=_THUMB, columns=_THUMB).values
            top, left = row * (_THUMB + 3) + 2, head * (_THUMB + 3) + 2
            mosaic[top : top + _THUMB, left : left + _THUMB] = _stretch(small, _THUMB)
    return mosaic


def _stretch(values: npt.NDArray[np.float32], side: int) -> npt.NDArray[np.float32]:
    """Repeat rows and columns until the map is `side` × `side`."""
    rows = np.arange(side) * values.shape[0] // side
    columns = np.arange(side) * values.shape[1] // side
    stretched: npt.NDArray[np.float32] = values[rows][:, columns]
    return stretched
