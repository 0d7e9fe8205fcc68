"""Scores of every head as JSON or CSV, for other programs."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.files import write_atomically
from regard.render.head_loss import Lost
from regard.render.head_scores import PerHead, head_number

__all__ = ["head_rows", "loss_rows", "write_csv", "write_json"]

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
