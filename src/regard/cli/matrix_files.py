"""Read matrices that people wrote down: JSON, CSV or .npy."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError

__all__ = ["read_matrix", "read_projections"]

LARGEST = 64 * 2**20  # bytes; a file of another kind given by mistake is not read into memory
PARTS = ("query", "key", "value")

Matrix = npt.NDArray[np.float64]


def read_matrix(path: Path, option: str) -> Matrix:
    """Read one matrix.

    Raises:
        InputError: no such file, another format, entries that are not finite numbers, rows of several lengths.
    """
    return _matrix(_load(path, option), path, option)


def read_projections(path: Path) -> tuple[Matrix, Matrix, Matrix]:
    """Read W_Q, W_K and W_V: one matrix for all three, or a JSON object with "query", "key" and "value"."""
    loaded = _load(path, "--w")
    if not isinstance(loaded, dict):
        one = _matrix(loaded, path, "--w")
        return one, one, one
    if set(loaded) != set(PARTS):
        raise InputError(
            f'`--w` must be one matrix or an object with "query", "key" and "value", got {path} with '
            f"{', '.join(map(repr, loaded)) or 'nothing in it'}"
        )
    query, key, value = (_matrix(loaded[part], path, f"--w {part}") for part in PARTS)
    return query, key, value


def _load(path: Path, option: str) -> Any:
    if not path.is_file():
        raise InputError(f"`{option}` must be a file with a matrix (.json, .csv or .npy), there is none at {path}")
    if path.stat().st_size > LARGEST:
        raise InputError(f"`{option}` must be at most {LARGEST // 2**20} MiB, {path} is larger: take fewer rows")
    readers = {".json": _json, ".csv": _csv, ".npy": _npy}
    if path.suffix.lower() not in readers:
        raise InputError(f"`{option}` must be a file .json, .csv or .npy, got {path}")
    return readers[path.suffix.lower()](path, option)


def _json(path: Path, option: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"`{option}` must be JSON such as [[1, 0], [0, 1]], {path} is not: {error}") from None


def _csv(path: Path, option: str) -> list[list[float]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), start=1) if any(line)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"`{option}` must be a CSV file in UTF-8, {path} is not: {error}") from None
    rows = []
    for number, line in lines:
        try:
            rows.append([float(cell) for cell in line])
        except ValueError:
            raise InputError(
                f"`{option}` must hold numbers only, without a header, got {','.join(line)[:60]!r} in line {number} "
                f"of {path}"
            ) from None
    return rows


def _npy(path: Path, option: str) -> npt.NDArray[Any]:
    try:  # mapped, so that a header with a made-up shape allocates nothing; it refuses pickled objects and archives
        loaded: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"`{option}` must be a .npy file without pickled objects, {path} is not: {error}") from None
    return loaded


def _matrix(loaded: Any, path: Path, option: str) -> Matrix:
    try:
        raw = np.asarray(loaded)
    except ValueError:
        raise InputError(f"`{option}` must have rows of one length, those in {path} differ") from None
    if raw.dtype.kind not in "iuf" or raw.ndim != 2 or 0 in raw.shape:
        found = f"shape {raw.shape}" if raw.dtype.kind in "iuf" else "other entries"
        raise InputError(f"`{option}` must be a matrix of numbers such as [[1, 0], [0, 1]], got {found} in {path}")
    matrix = raw.astype(np.float64)
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise InputError(
            f"`{option}` must hold finite numbers, got {matrix[row, column]} in row {row + 1}, column {column + 1} "
            f"of {path}"
        )
    return matrix
