"""Tables as CSV for spreadsheets: UTF-8 with a byte-order mark, and tokens that are never read as formulas or line
ends.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError

__all__ = ["Table", "harmless", "matrix_table", "table_csv"]

_MOST_COLUMNS, _MOST_ROWS = 16_384, 1_048_576  # the limits of Excel and LibreOffice
_MOST_CELLS = 16_000_000
_FORMULA = re.compile(r"(^\s*|[;,|\t\"]\s*)(?=[=+\-@＝＋－＠])")


@dataclass(frozen=True, eq=False)
class Table:
    """The names of the columns, the number of rows, and the rows of strings and numbers."""

    header: Sequence[str]
    count: int
    rows: Iterable[Sequence[Any]]


def matrix_table(corner: str, rows: Sequence[str], columns: Sequence[str], values: npt.NDArray[np.floating]) -> Table:
    """Return a matrix as a table with names of its rows and columns; `corner` describes both."""
    named = ([name, *line] for name, line in zip(rows, values, strict=True))
    return Table([corner, *columns], len(rows), named)


def table_csv(table: Table) -> bytes:
    """Return the table as UTF-8 with a byte-order mark for Excel, with strings in quotes and numbers with all digits.

    Raises:
        InputError: The table has more columns or rows than a spreadsheet can open.
    """
    columns = len(table.header)
    if columns > _MOST_COLUMNS or table.count >= _MOST_ROWS or columns * table.count > _MOST_CELLS:
        raise InputError(
            f"a CSV file holds up to {_MOST_COLUMNS:,} columns, {_MOST_ROWS:,} rows and {_MOST_CELLS:,} cells, got "
            f"{columns:,} × {table.count:,}: write .npy or .npz, or choose one layer and head"
        )
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow([harmless(name) for name in table.header])
    for row in table.rows:
        writer.writerow([harmless(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue().encode("utf-8-sig")


def harmless(text: str) -> str:
    """Prefix an apostrophe to text that a spreadsheet would run as a formula, at its start or after a separator.

    >>> harmless("=1+1"), harmless("cat"), harmless("a;@b")
    ("'=1+1", 'cat', "a;'@b")
    """
    return _FORMULA.sub(r"\1'", text)
