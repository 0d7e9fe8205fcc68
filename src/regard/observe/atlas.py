"""A record in one file: safetensors, with everything that is not an array as JSON in its header.

Arrays are memory-mapped on reading, so that opening a large atlas reads only what is looked at. Writing goes to a
temporary file that replaces the old one at the end: a failed save leaves what was there.
"""

import contextlib
import json
import operator
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import AtlasError, InputError, MissingExtraError
from regard.observe.records import Layer, Record
from regard.observe.tokens import Token

__all__ = ["VERSION", "load_atlas", "save_atlas"]

VERSION = 2
_READS = (1, 2)  # version 1 had no statistics beside those of the maps
_ARRAYS = ("mean", "max", "top_keys", "top_weights", "entropy", "received", "weights")
_DTYPES: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
# Whatever reading a header of the wrong shape may raise.
_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_LARGEST_HEADER = 100_000_000  # as the safetensors library has it


def save_atlas(records: tuple[Record, ...], path: str | os.PathLike[str]) -> None:
    """Write records to one file; it appears whole or not at all."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as missing:
        raise MissingExtraError("safetensors", "atlas") from missing
    arrays: dict[str, npt.NDArray[Any]] = {}
    about: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        layers = []
        for index, layer in enumerate(record.layers):
            layers.append({f.name: getattr(layer, f.name) for f in fields(layer) if f.name not in _ARRAYS})
            layers[-1]["statistics"] = list(layer.statistics)
            arrays |= {f"{number}.{index}.{name}": array for name, array in _arrays(layer)}
        tokens = {stream: [[asdict(token) for token in one] for one in many] for stream, many in record.tokens.items()}
        about.append({"model": record.model, "notes": dict(record.notes), "layers": layers, "tokens": tokens})
    text = json.dumps({"version": VERSION, "records": about}, ensure_ascii=False)
    # Half a surrogate pair, of which a byte piece may consist, is no UTF-8: its escape is JSON.
    header = {"regard": text.encode("utf-8", "backslashreplace").decode()}
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        os.close(handle)
    except OSError as problem:
        raise InputError(f"cannot write {target}: {problem.strerror or problem}") from problem
    try:
        save_file(arrays, temporary, metadata=header)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except (OSError, SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"cannot write {target}: {reason}") from problem
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _arrays(layer: Layer) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """What a layer holds in numbers, each array once."""
    for name in _ARRAYS:
        array = getattr(layer, name)
        if array is not None and not (name == "max" and array is layer.mean):
            yield name, np.ascontiguousarray(array)
    for name, array in layer.statistics.items():
        if array.dtype not in _DTYPES.values():
            raise InputError(
                f"the statistic {name!r} is of type {array.dtype}, which an atlas cannot hold: give it as float64, "
                "float32, float16, a signed integer, uint8 or bool"
            )
        yield f"statistics.{name}", np.ascontiguousarray(array)


def load_atlas(path: str | os.PathLike[str]) -> tuple[Record, ...]:
    """Read the records of an atlas; its arrays stay in the file until they are looked at."""
    target = Path(path)
    try:
        header, start = _read_header(target)
    except OSError as problem:
        raise AtlasError(f"cannot read {target}: {problem.strerror or problem}") from problem
    try:
        about = json.loads(header.pop("__metadata__", {})["regard"])
        version = about["version"]
    except _BROKEN as foreign:
        raise AtlasError(f"{target} is a safetensors file, but not an atlas of regard") from foreign
    if version not in _READS:
        known = " and ".join(map(str, _READS))
        raise AtlasError(f"{target} is an atlas of version {version}, and this regard reads versions {known}")
    try:
        arrays = {name: _map(target, start, entry) for name, entry in header.items()}
        return tuple(_record(number, one, arrays) for number, one in enumerate(about["records"]))
    except _BROKEN as broken:
        raise AtlasError(f"{target} is damaged: {broken}") from broken


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and where its data begin, checked against the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise AtlasError(f"{path} is not an atlas, or it was cut off: {size} bytes without a whole header")
        try:
            header = json.loads(file.read(length))
        except (RecursionError, ValueError) as broken:
            raise AtlasError(f"{path} is not an atlas: its header is not JSON") from broken
    if not isinstance(header, dict):
        raise AtlasError(f"{path} is not an atlas: its header is not an object")
    try:
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        whole = not ends or max(ends) == size - 8 - length
    except _BROKEN as broken:
        raise AtlasError(f"{path} is damaged: {broken}") from broken
    if not whole:
        raise AtlasError(f"{path} was cut off or added to: its header tells of another size")
    return header, 8 + length


def _map(path: Path, start: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """One array of the file, memory-mapped."""
    first, last = map(operator.index, entry["data_offsets"])
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if (
        first < 0
        or any(side < 0 for side in shape)
        or last - first != dtype.itemsize * int(np.prod(shape, dtype=object))
    ):
        raise ValueError(f"an array of shape {shape} does not fit its place in the file")
    if last == first:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start + first, shape)


def _record(number: int, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Record:
    layers = []
    for index, one in enumerate(about["layers"]):
        found = {name: arrays[key] for name in _ARRAYS if (key := f"{number}.{index}.{name}") in arrays}
        found.setdefault("max", found["mean"])
        _check(one, found)
        prefix = f"{number}.{index}.statistics."
        statistics = {name: arrays[prefix + name] for name in one.get("statistics", [])}
        _check_statistics(statistics, found["entropy"].shape[:2])
        about_layer: dict[str, Any] = {**one, **found, "statistics": statistics}
        layers.append(Layer(**about_layer))
    tokens = {
        stream: tuple(tuple(Token(**token) for token in sequence) for sequence in many)
        for stream, many in about["tokens"].items()
    }
    return Record(tuple(layers), tokens, about["model"], about["notes"])


def _check(about: Mapping[str, Any], found: Mapping[str, npt.NDArray[Any]]) -> None:
    """The arrays of one layer agree with each other."""
    batch, heads, queries = found["entropy"].shape
    keys = found["received"].shape[2]
    tall, broad = operator.index(about["query_bin"]), operator.index(about["key_bin"])
    bins = -(-queries // tall), -(-keys // broad)
    expected = {
        "mean": (batch, heads, *bins),
        "max": (batch, heads, *bins),
        "top_keys": (batch, heads, queries, found["top_keys"].shape[-1]),
        "top_weights": found["top_keys"].shape,
        "received": (batch, heads, keys),
        "weights": (batch, heads, queries, keys),
    }
    for name, array in found.items():
        if array.dtype.kind != ("i" if name == "top_keys" else "f"):
            raise ValueError(f"{name} of {about['name']} cannot be of type {array.dtype}")
    for name, shape in expected.items():
        if name in found and found[name].shape != shape:
            raise ValueError(f"{name} of {about['name']} must have shape {shape}, got {found[name].shape}")


def _check_statistics(found: Mapping[str, npt.NDArray[Any]], leading: tuple[int, ...]) -> None:
    """Each statistic is of all sequences, and of all heads or of one that stands for them."""
    for name, array in found.items():
        if array.shape[:2] not in (leading, (leading[0], 1)):
            raise ValueError(f"the statistic {name} must begin with (batch, heads) {leading}, got {array.shape}")


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
