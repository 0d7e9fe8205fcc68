"""Read matrices that people wrote down: JSON, CSV or .npy; in JSON, queries apart from keys, and names of the rows."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.lessons.limits import LARGEST_NUMBER
from regard.strict_json import DuplicateKeyError, parse_json

__all__ = ["Inputs", "Matrix", "Projections", "read_inputs", "read_projections"]

LARGEST = 64 * 2**20  # bytes; a file of another kind given by mistake is not read into memory
PARTS = ("query", "key", "value")
OUTPUT = "output"
NAMES = ("tokens", "query_tokens")

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Projections:
    """W_Q, W_K and W_V of each head (heads, rows, columns), and W_O if given."""

    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix | None = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """What queries, keys and values are made of: one matrix, or three, and the names of their rows if given."""

    query: Matrix
    key: Matrix | None = None
    value: Matrix | None = None
    tokens: list[str] | None = None
    query_tokens: list[str] | None = None


def read_inputs(path: Path) -> Inputs:
    """Read X, a row a token; or a JSON object with "query", "key" and "value", "tokens" naming the keys if it likes.

    Raises:
        InputError: no such file, another format, entries that are no finite numbers or too large, rows of several
            lengths.
    """
    loaded = _load(path, "--x")
    if not isinstance(loaded, dict):
        return Inputs(_matrix(loaded, path, "--x"))
    if not set(PARTS) <= set(loaded) <= {*PARTS, *NAMES}:
        raise InputError(
            '`--x` must be one matrix or an object with "query", "key" and "value", and if you like "tokens" and '
            f'"query_tokens", got {path} with {", ".join(map(repr, loaded)) or "nothing in it"}'
        )
    query, key, value = (_matrix(loaded[part], path, f"--x {part}") for part in PARTS)
    if len(key) != len(value):
        raise InputError(
            f'"key" and "value" of `--x` must have as many rows as each other, got {len(key)} and {len(value)} in '
            f"{path}"
        )
    return Inputs(query, key, value, _names(loaded, "tokens", key, path), _names(loaded, "query_tokens", query, path))


def read_projections(path: Path) -> Projections:
    """Read W_Q, W_K and W_V: one matrix for all three, or a JSON object with "query", "key" and "value", each a matrix
    or a list with one for each head, and "output" if it likes.
    """
    loaded = _load(path, "--w")
    if not isinstance(loaded, dict):
        shared = _matrix(loaded, path, "--w")[None]
        return Projections(shared, shared, shared)
    if not set(PARTS) <= set(loaded) <= {*PARTS, OUTPUT}:
        raise InputError(
            f'`--w` must be one matrix or an object with "query", "key" and "value", and if you like "output", got '
            f"{path} with {', '.join(map(repr, loaded)) or 'nothing in it'}"
        )
    query, key, value = (_stack(loaded[part], path, f"--w {part}") for part in PARTS)
    if not len(query) == len(key) == len(value):
        raise InputError(
            f'"query", "key" and "value" of `--w` must have a matrix for each head, got {len(query)}, {len(key)} and '
            f"{len(value)} of them in {path}"
        )
    output = loaded.get(OUTPUT)
    return Projections(query, key, value, None if output is None else _matrix(output, path, f"--w {OUTPUT}"))


def _stack(loaded: Any, path: Path, option: str) -> Matrix:
    """Return the matrices of the heads, from one matrix or a list of them."""
    if not _is_nested(loaded):
        return _matrix(loaded, path, option)[None]
    matrices = [_matrix(matrix, path, f"{option}, head {head}") for head, matrix in enumerate(loaded)]
    if shapes := sorted({matrix.shape for matrix in matrices[1:]} - {matrices[0].shape}):
        raise InputError(
            f"`{option}` must have matrices of one shape for all heads, got {matrices[0].shape} and {shapes[0]} in "
            f"{path}"
        )
    return np.stack(matrices)


def _is_nested(loaded: Any) -> bool:
    """Whether it is a list of matrices: its first row has a row for its first entry."""
    for _ in range(2):
        if not isinstance(loaded, list) or not loaded:
            return False
        loaded = loaded[0]
    return isinstance(loaded, list)


def _names(loaded: dict[str, Any], what: str, rows: Matrix, path: Path) -> list[str] | None:
    names = loaded.get(what)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) != len(rows):
        raise InputError(f'"{what}" of `--x` must be a list of {len(rows)} names, one a row, got {names} in {path}')
    return names


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
        return parse_json(path.read_text(encoding="utf-8-sig"))
    except DuplicateKeyError as error:
        raise InputError(f"`{option}` must name {error.key!r} once, {path} does twice: keep one of them") from None
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
            way = ": separate the numbers by commas" if len(line) == 1 else ""
            raise InputError(
                f"`{option}` must hold numbers only, without a header, got {','.join(line)[:60]!r} in line {number} "
                f"of {path}{way}"
            ) from None
    return rows


def _npy(path: Path, option: str) -> npt.NDArray[Any]:
    try:  # mapped, so that a header with a made-up shape allocates nothing; it refuses pickled objects and archives
        loaded: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"`{option}` must be a .npy file without pickled objects, {path} is not: {error}") from None
    return loaded


def _matrix(loaded: Any, path: Path, option: str) -> Matrix:
    for row, line in enumerate(loaded if isinstance(loaded, list) else (), 1):
        for column, cell in enumerate(line if isinstance(line, list) else (), 1):
            if isinstance(cell, bool):  # NumPy takes them for 0 and 1
                raise InputError(
                    f"`{option}` must be a matrix of numbers, got {str(cell).lower()} in row {row}, column {column} of "
                    f"{path}"
                )
    try:
        raw = np.asarray(loaded)
    except ValueError:
        raise InputError(f"`{option}` must have rows of one length, those in {path} differ") from None
    if raw.dtype.kind not in "iuf" or raw.ndim != 2 or 0 in raw.shape:
        kinds = {"c": "complex numbers", "b": "truth values", "O": "objects"}
        entries = f"shape {raw.shape}" if raw.dtype.kind in "iuf" else kinds.get(raw.dtype.kind, "other entries")
        raise InputError(f"`{option}` must be a matrix of numbers such as [[1, 0], [0, 1]], got {entries} in {path}")
    with np.errstate(over="ignore"):  # of a wider type
        matrix = raw.astype(np.float64)
    if not (fits := np.abs(matrix) <= LARGEST_NUMBER).all():  # nor is a NaN
        row, column = np.argwhere(~fits)[0].tolist()
        entry = matrix[row, column]
        way = "scale it down" if np.isfinite(entry) else "replace it"
        raise InputError(
            f"`{option}` must hold finite numbers up to {LARGEST_NUMBER:.0e}, got {entry} in row {row + 1}, column "
            f"{column + 1} of {path}: {way}"
        )
    return matrix
