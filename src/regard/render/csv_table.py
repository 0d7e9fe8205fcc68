"""Tables as CSV that every spreadsheet reads: Chinese whole, tokens never taken for formulas or for line ends."""

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

_MOST_COLUMNS, _MOST_ROWS = 16_384, 1_048_576  # what Excel and LibreOffice open
_MOST_CELLS = 16_000_000
_FORMULA = re.compile(r"(^\s*|[;,|\t\"]\s*)(?=[=+\-@＝＋－＠])")


@dataclass(frozen=True, eq=False)
class Table:
    """Names of the columns, how many rows there are, and the rows: texts and numbers."""

    header: Sequence[str]
    count: int
    rows: Iterable[Sequence[Any]]


def matrix_table(corner: str, rows: Sequence[str], columns: Sequence[str], values: npt.NDArray[np.floating]) -> Table:
    """A matrix, its rows and columns named; `corner` says what both are."""
    named = ([name, *line] for name, line in zip(rows, values, strict=True))
    return Table([corner, *columns], len(rows), named)


def table_csv(table: Table) -> bytes:
    """UTF-8 with the mark by which Excel knows it; texts in quotes, numbers with all their digits.

    Raises:
        InputError: More columns or rows than a spreadsheet opens.
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
    r"""An apostrophe before whatever a spreadsheet would run as a formula, at its start or behind a separator.

    >>> harmless("=1+1"), harmless("cat"), harmless("a;@b")
    ("'=1+1", 'cat', "a;'@b")
    """
    return _FORMULA.sub(r"\1'", text)
