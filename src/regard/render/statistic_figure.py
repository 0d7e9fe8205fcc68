"""A statistic as a figure: heads as rows, positions as columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.render.figure_panels import NAMED, ink, label_size
from regard.render.mpl_figure import colour_bar, place, sheet, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["statistic_figure"]

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
