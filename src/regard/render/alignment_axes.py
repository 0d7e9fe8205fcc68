"""Draw one map of an alignment, with words as labels of both axes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

import numpy as np

from regard.capture.tokens import Word
from regard.render.figure_panels import ink
from regard.render.sentence_figure import Brush
from regard.render.word_weights import Alignment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["draw_alignment", "name_room"]

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
