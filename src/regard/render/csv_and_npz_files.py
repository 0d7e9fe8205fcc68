"""Numbers as files for other programs: CSV, JSON, .npy and .npz.

CSV is UTF-8 with a byte-order mark, and its tokens are never read as formulas or line ends. Arrays are saved without
pickles, and equal numbers give equal bytes.
"""

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.files import write_atomically
from regard.heads.change_loss_and_pairs import Lost
from regard.heads.scores import PerHead, head_number
from regard.record.layers import several_streams
from regard.record.records import Record
from regard.render.labels import key_labels, query_labels

__all__ = [
    "Table",
    "harmless",
    "head_rows",
    "loss_rows",
    "matrix_table",
    "npy",
    "npz",
    "table_csv",
    "top_arrays",
    "top_table",
    "write_csv",
    "write_json",
]

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


_EPOCH = (1980, 1, 1, 0, 0, 0)


def npy(array: npt.NDArray[Any]) -> bytes:
    """Return one array as .npy."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def npz(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return several arrays by name as a compressed .npz; np.load loads it with allow_pickle=False, its default."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), npy(array), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def top_table(record: Record, layers: Sequence[int], head: int | None, batch_index: int) -> Table:
    """Return rows for the recorded heads of these layers, strongest key first: layer, head, query and key by position
    and by token, weight.
    """
    header = ["layer", "head", "query", "from", "rank", "key", "to", "weight"]
    parts = [record.layers[index] for index in layers]
    count = sum(
        (len(seen.recorded_heads) if head is None else 1) * seen.queries * seen.top_keys.shape[-1] for seen in parts
    )
    return Table(header, count, (row for index in layers for row in _rows(record, index, head, batch_index)))


def _rows(record: Record, index: int, head: int | None, batch_index: int) -> Iterator[Sequence[Any]]:
    seen = record.layers[index]
    queries, keys = query_labels(record, seen, batch_index), key_labels(record, seen, batch_index)
    name = _name(record, index)
    for one in seen.recorded_heads if head is None else [head]:
        for query in range(seen.queries):
            best = record.top(layer=seen, head=one, query=query, batch_index=batch_index)
            for rank, (key, weight) in enumerate(best, start=1):
                yield name, one, query, queries[query].text, rank, key, keys[key].text, weight


def top_arrays(
    record: Record, layers: Sequence[int], head: int | None, batch_index: int
) -> Mapping[str, npt.NDArray[Any]]:
    """Return keys and weights, strongest first, of shape (recorded heads, queries, k), or (queries, k) for one head;
    for several layers by number.
    """
    found: dict[str, npt.NDArray[Any]] = {}
    for index in layers:
        seen, ending = record.layers[index], f".{_name(record, index)}" if len(layers) > 1 else ""
        which = list(seen.recorded_heads) if head is None else head
        found[f"keys{ending}"] = seen.top_keys[batch_index, which]
        found[f"weights{ending}"] = seen.top_weights[batch_index, which]
    return found


def _name(record: Record, index: int) -> int | str:
    """Return the layer's number, or its module's name if several streams have this number."""
    layer = record.layers[index]
    return layer.name if several_streams(record.layers) else record.number(layer)


Row = Mapping[str, Any]


def head_rows(columns: Mapping[str, PerHead]) -> list[Row]:
    """Return a row for each head: its layer, its number, and each column, with None for missing values.

    >>> head_rows({"self": np.array([[0.5, np.nan]])})
    [{'layer': 0, 'head': 0, 'self': 0.5}, {'layer': 0, 'head': 1, 'self': None}]
    """
    layers, heads = next(iter(columns.values())).shape
    return [
        {"layer": layer, "head": head} | {name: _number(float(values[layer, head])) for name, values in columns.items()}
        for layer, head in np.ndindex(layers, heads)
    ]


def loss_rows(lost: Lost) -> list[Row]:
    """Return a row for each loss."""
    heads = " ".join(head_number(*one) for one in lost.heads)
    return [
        {"loss": one.name, "heads": heads, "whole": one.whole, "without": one.without, "random": list(one.random)}
        for one in lost.losses
    ]


def write_json(path: Path, rows: Sequence[Row], **about: Any) -> None:
    """Save `about` and the rows, as `table`, atomically."""
    text = json.dumps({**about, "table": list(rows)}, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Save the rows with a header; missing numbers are empty cells, and lists are separated by spaces."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: " ".join(map(str, one)) if isinstance(one, list) else one for name, one in row.items()})
    write_atomically(path, buffer.getvalue().encode())


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
