"""An alignment as a figure: source words as columns, target words as rows, one cell for each pair of words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

import numpy as np

from regard.errors import InputError
from regard.record.records import Layer, Record
from regard.record.tokens import Word
from regard.render.figure_panels import ink
from regard.render.labels import head_name, layer_name, visible
from regard.render.mpl_figure import colour_bar, note, place, sheet, title
from regard.render.sentence_figure import Brush
from regard.render.word_alignment import Alignment, Heads, Rows, align, chosen_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["alignment_figure", "draw_alignment", "name_room"]

_MOST = 60  # maximum number of readable words along an axis
_MAPS = 144  # maximum number of heads in one figure
_WIDEST, _GAP, _TITLE, _FOOT = 18.0, 0.3, 0.45, 0.75  # size in inches of a grid of maps, and of the gaps in it
_NAMED = 0.12  # size in inches from which on a cell gets a label


def alignment_figure(
    record: Record,
    heads: Heads = "mean",
    *,
    rows: Rows = "read",
    source: range | None = None,
    target: range | None = None,
    batch_index: int = 0,
) -> "Figure":
    """Draw the weights of the target's words on the source's words, with subwords merged into words.

    Args:
        record: The record of an encoder–decoder.
        heads: "mean" over all heads of all cross-attention, "each" head as a small map, or pairs of layer and head
            to average, such as [(5, 3)] for one.
        rows: The name of a row: the decoder's input word ("read"), or the word predicted from it ("written").
        source, target: The words to show, counted from 0; required for texts of more than 60 words.
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.

    Raises:
        InputError: The head does not exist, a text of more than 60 words has no range, or a range is outside of the
            text.
        ObservationError: There is no cross-attention, or only maps of it were recorded.
    """
    pairs = chosen_heads(record, heads)
    if heads == "each":
        return _grid(record, pairs, rows, source, target, batch_index)
    found = align(record, _layers(record, pairs), rows=rows, batch_index=batch_index)
    down, across = _shown("target", target, found.target), _shown("source", source, found.source)
    part = _cut(found, down, across)
    with sheet([*_texts(part), record.model]) as brush:
        cell = min(0.45, max(0.17, 8.0 / max(part.weights.shape)))
        left, top = name_room(brush, part, cell)
        wide, high = cell * len(part.source), cell * len(part.target)
        heading, foot = _heading(record, pairs), _foot(found, down, across)
        full = left + max(wide + 0.9, brush.width(heading, 12.5, bold=True), 4.2) + 0.3
        brush.figure.set_size_inches(full, top + high + 1.25)
        axes = place(brush, (left, 0.85, wide, high))
        image = draw_alignment(brush, axes, part, cell, float(part.weights.max(initial=0.0)) or 1.0)
        colour_bar(brush, axes, image, wide)
        title(brush, axes, heading, top)
        note(brush, axes, foot, room=full - left - 0.2)
    return brush.figure


def _grid(
    record: Record,
    pairs: Sequence[tuple[int, int]],
    rows: Rows,
    source: range | None,
    target: range | None,
    batch_index: int,
) -> "Figure":
    """Draw every head as a small map, with layers as rows, all on one scale."""
    if len(pairs) > _MAPS:
        raise InputError(
            f'`heads="each"` draws up to {_MAPS} heads, there are {len(pairs)}: name some, [(layer, head)]'
        )
    found = [align(record, [pair], rows=rows, batch_index=batch_index) for pair in _layers(record, pairs)]
    down, across = _shown("target", target, found[0].target), _shown("source", source, found[0].source)
    maps = [_cut(each, down, across) for each in found]
    highest = max(float(each.weights.max(initial=0.0)) for each in maps) or 1.0
    with sheet([*_texts(maps[0]), record.model]) as brush:
        width, height = _draw_maps(brush, record, maps, highest)
        brush.figure.text(
            0.15 / width, 1 - 0.15 / height, brush.fonts.spell(_heading(record, pairs, "each")), va="top",
            **brush.font(12.5, bold=True),
        )  # fmt: skip
        corner = place(brush, (0.15, 0.62, 0.01, 0.01))
        corner.set_axis_off()
        says = f"White is 0, the darkest cell {highest:.2f}. {_foot(found[0], down, across)}"
        note(brush, corner, says, room=width - 0.4, below=0)
    return brush.figure


def _draw_maps(brush: Brush, record: Record, maps: Sequence[Alignment], highest: float) -> tuple[float, float]:
    """Draw the small maps, with labels where there is room, and return the size of the whole in inches."""
    layers = sorted({layer for each in maps for layer, _ in each.heads})
    heads = 1 + max(head for each in maps for _, head in each.heads)
    high, wide = maps[0].weights.shape
    cell = min(0.2, min(2.6, _WIDEST / heads) / max(high, wide))
    named = cell >= _NAMED
    left, top = name_room(brush, maps[0], cell) if named else (0.3, 0.1)
    across, down = cell * wide, cell * high
    width = max(6.0, left + heads * (across + _GAP) + 0.1)
    height = _TITLE + top + len(layers) * (down + _GAP) + _FOOT
    brush.figure.set_size_inches(width, height)
    for each in maps:
        layer, head = each.heads[0]
        row = layers.index(layer)
        at = left + head * (across + _GAP), height - _TITLE - top - (row + 1) * down - row * _GAP
        axes = place(brush, (*at, across, down))
        draw_alignment(brush, axes, each, cell, highest, beside=named and head == 0, above=named and row == 0)
        axes.set_xlabel(head_name(record, layer, head), labelpad=2, color="#555555", **brush.font(8))
        axes.xaxis.set_label_position("bottom")
    return width, height


def _shown(name: str, asked: range | None, words: Sequence[Word]) -> range:
    """Return the words to draw; a long text is shortened only on request."""
    count = len(words)
    if asked is None and count > _MOST:
        raise InputError(
            f"an alignment names up to {_MOST} words a side, the {name} has {count}: choose some with "
            f"{name}=range(0, {_MOST})"
        )
    part = range(count) if asked is None else asked
    if not isinstance(part, range) or part.step != 1 or not 0 <= part.start < part.stop <= count:
        raise InputError(f"`{name}` must be a range of words within range(0, {count}), got {asked!r}")
    if len(part) > _MOST:
        raise InputError(f"`{name}` must be a range of at most {_MOST} words, got {len(part)}")
    return part


def _layers(record: Record, pairs: Sequence[tuple[int, int]]) -> list[tuple[Layer, int]]:
    return [(record.layers[index], head) for index, head in pairs]


def _cut(found: Alignment, down: range, across: range) -> Alignment:
    rows, columns = slice(down.start, down.stop), slice(across.start, across.stop)
    return replace(found, target=found.target[rows], source=found.source[columns], weights=found.weights[rows, columns])


def _heading(record: Record, pairs: Sequence[tuple[int, int]], how: str = "") -> str:
    layers = len({layer for layer, _ in pairs})
    many = f"{len(pairs)} heads" + (f" in {layers} layers" if layers > 1 else f" of {layer_name(record, pairs[0][0])}")
    what = head_name(record, *pairs[0]) if len(pairs) == 1 else f"each of {many}" if how else f"mean of {many}"
    return f"{visible(record.model)}: {what}" if record.model else what[0].upper() + what[1:]


def _foot(found: Alignment, down: range, across: range) -> str:
    """Return the description of a cell, and of what is not shown."""
    does = "has read" if found.rows == "read" else "writes next"
    says = [f"Rows: the word that the decoder {does}. Columns: the source. Each cell is the weight from word to word."]
    for name, part, words in (("target", down, found.target), ("source", across, found.source)):
        if len(part) < len(words):
            says.append(f"Only words {part.start + 1} to {part.stop} of the {len(words)} of the {name} are shown.")
    if len(across) < len(found.source):
        rows = found.weights[down.start : down.stop]
        hidden = 1 - rows[:, across.start : across.stop].sum() / max(float(rows.sum()), 1e-12)
        says.append(f"{hidden:.0%} of the weight of these rows falls on words that are not.")
    return " ".join(says)


def _texts(found: Alignment) -> list[str]:
    return [word.text for word in (*found.target, *found.source)]


_LONGEST = 16


def _size(cell: float) -> float:
    """Return the font size in points for a label of a cell of this size in inches."""
    return min(11.5, cell * 72 * 0.72)


@dataclass(frozen=True)
class _Name:
    """The label of a column: Chinese is set vertically, character by character, and other text is rotated."""

    text: str
    turned: bool

    @classmethod
    def of(cls, word: Word) -> "_Name":
        text = _short(word)
        upright = len(text) == 1 or all(east_asian_width(sign) in "WF" for sign in text)
        return cls("\n".join(text) if upright else text, not upright)


def _short(word: Word) -> str:
    return word.text if len(word.text) <= _LONGEST else word.text[: _LONGEST - 1] + "…"


def name_room(brush: Brush, found: Alignment, cell: float) -> tuple[float, float]:
    """Return the inches that the labels of the rows and of the columns need, for cells of this size in inches."""
    size = _size(cell)
    left = max(brush.width(_short(word), size, bold=True) for word in found.target)
    names = [_Name.of(word) for word in found.source]
    line = size * 1.45 / 72
    tall = [brush.width(name.text, size) if name.turned else line * (1 + name.text.count("\n")) for name in names]
    return left + 0.25, max(tall) + 0.25


def draw_alignment(
    brush: Brush, axes: "Axes", found: Alignment, cell: float, highest: float, *, beside: bool = True,
    above: bool = True,
) -> "AxesImage":  # fmt: skip
    """Draw the weights, from white for 0 to near black for `highest`, with row labels on the left and column labels on
    top.
    """
    image = axes.imshow(
        found.weights, cmap=ink(), vmin=0, vmax=highest, aspect="auto", interpolation="nearest",
        extent=(0, len(found.source), len(found.target), 0),
    )  # fmt: skip
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3)
    names = [_Name.of(word) for word in found.source]
    axes.set_xticks(np.arange(len(names)) + 0.5, [brush.fonts.spell(name.text) if above else "" for name in names])
    rows = [brush.fonts.spell(_short(word)) if beside else "" for word in found.target]
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    font = brush.font(_size(cell))
    for label, turned in zip(axes.get_xticklabels(), [name.turned for name in names], strict=True):
        label.set(rotation=90 if turned else 0, va="bottom", ha="center", linespacing=1.0)
    for labels, words in ((axes.get_xticklabels(), found.source), (axes.get_yticklabels(), found.target)):
        for label, word in zip(labels, words, strict=True):
            label.set(parse_math=False, family=font["fontfamily"], size=font["fontsize"])
            label.set_color("#767676" if word.special else "#1a1a1a")
    for spine in axes.spines.values():
        spine.set(color="#cccccc", linewidth=0.8)
    return image
