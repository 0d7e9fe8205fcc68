"""The heat map of one head in shade characters, readable without colour."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.capture.tokens import Token
from regard.render.heatmap_data import HeadMap
from regard.render.line_breaking import fit

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["MAX_ROWS", "draw_map", "map_columns", "share_bar"]

MAX_ROWS = 40
_SHADES = " ░▒▓█"
_STEPS = (0.08, 0.25, 0.5, 0.75)  # of the largest cell
_LABEL = 12
_GUTTER = 2  # for the mark of the chosen rows


def _label_width(count: int) -> int:
    return _GUTTER + len(str(count)) + 1 + _LABEL + 1


def map_columns(keys: int, queries: int, width: int) -> int:
    """Return how many columns of at least two cells fit next to the row labels."""
    return max(1, min(keys, (width - _label_width(queries)) // 2))


def draw_map(
    picture: HeadMap, queries: Sequence[Token], chosen: Collection[int], *, width: int, style: str
) -> list["Text"]:
    """Return a header of column numbers, a row for each query and the legend; the query positions in `chosen` are
    marked.
    """
    from rich.text import Text

    values, left = picture.values, _label_width(len(queries))
    cell = 3 if values.shape[1] * 3 + left <= width else 2
    header = Text(" " * left + _numbers(values.shape[1], picture.key_bin, cell, width - left), "dim", no_wrap=True)
    header.rstrip()
    top = float(values.max(initial=0.0)) or 1.0
    levels = np.digitize(values, [step * top for step in _STEPS])
    rows = [header]
    for row, shades in enumerate(levels):
        start = row * picture.query_bin
        marked = any(start <= position < start + picture.query_bin for position in chosen)
        text = Text(no_wrap=True)
        text.append(_row_label(start, queries, marked=marked), "bold" if marked else "")
        text.append("".join(_SHADES[level] * cell for level in shades), style)
        text.rstrip()
        rows.append(text)
    return [*rows, _legend(top)]


def _row_label(start: int, queries: Sequence[Token], *, marked: bool) -> str:
    from rich.cells import set_cell_size

    number = str(start + 1).rjust(len(str(len(queries))))
    return f"{'▶ ' if marked else '  '}{number} {set_cell_size(fit(queries[start].text, _LABEL), _LABEL)} "


def _numbers(columns: int, size: int, cell: int, room: int) -> str:
    """Return the column numbers, counted from 1 as in `--token`, as many as fit without touching."""
    widest = len(str((columns - 1) * size + 1)) + 1
    every = next((step for step in (1, 2, 5, 10, 20, 50) if step * cell >= widest), columns)
    line = ""
    for column in range(0, columns, every):
        line = line.ljust(column * cell) + str(column * size + 1)
    return line if len(line) <= room else line[:room].rsplit(" ", 1)[0]


def _legend(top: float) -> "Text":
    from rich.text import Text

    parts = [f"{shade} from {step * top:.2f}" for shade, step in zip(_SHADES[1:], _STEPS, strict=True)]
    return Text(f"  blank below {_STEPS[0] * top:.2f}   {'   '.join(parts)}", "dim", no_wrap=True)


def share_bar(weight: float, cells: int) -> str:
    """Return a bar for a weight between 0 and 1, with a resolution of an eighth of a cell.

    >>> share_bar(0.5, 4)
    '██  '
    """
    eighths = round(min(max(weight, 0.0), 1.0) * cells * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(cells)
