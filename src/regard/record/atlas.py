"""Save records to a file and load them: safetensors, with everything that is not an array as JSON in its header.

Arrays are memory-mapped, so that opening a large atlas loads only the data in use. Each array has a checksum, which is
verified at its first access. An atlas is written to a temporary file that replaces the old file at the end, so a
failed save leaves the old file unchanged.
"""

import json
import operator
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from regard.errors import AtlasError, InputError, RegardError
from regard.files import checksum_of_text, open_file, printable, whole_file
from regard.record.atlas_compression import DTYPES, Stored, numbers_of
from regard.record.atlas_layer import LIGHT, PADDING, StoredLayer, spans_of, stored_arrays, stored_kept
from regard.record.missing_attention import Missing
from regard.record.records import Record
from regard.record.tokens import Token
from regard.strict_json import is_version

__all__ = ["VERSION", "read_atlas", "save_atlas"]

VERSION = 7
# A file has the oldest version whose readers know all that is in it: 6 has padding, and the characters of tokens; 7 has
# values beside queries and keys.
_WITHOUT_VALUES = 6
_WITHOUT_PADDING = 5
_READ = (_WITHOUT_PADDING, _WITHOUT_VALUES, VERSION)
# The exceptions that reading a malformed header may raise.
_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_LARGEST_HEADER = 100_000_000  # the limit of the safetensors library
_AT_ONCE = 2**24  # bytes per write

Header = dict[str, Any]


def save_atlas(records: tuple[Record, ...], path: str | os.PathLike[str]) -> None:
    """Save records to one file, atomically."""
    for record in records:
        try:
            _check_tokens(record)
        except ValueError as wrong:
            raise InputError(f"{path} was not written: {wrong}") from wrong
    arrays: dict[str, Stored] = {}
    about = [_about(number, record, arrays) for number, record in enumerate(records)]
    known = {name: one.about for name, one in arrays.items()}
    version = max(map(_version_of, about), default=_WITHOUT_PADDING)
    said = json.dumps({"version": version, "records": about, "arrays": known}, ensure_ascii=False)
    # A byte piece may be an unpaired surrogate, which is not valid UTF-8: JSON escapes it.
    text = said.encode("utf-8", "backslashreplace").decode()
    header: Header = {"__metadata__": {"regard": text, "crc": str(checksum_of_text(text))}}
    order = sorted(arrays, key=lambda name: -arrays[name].raw.dtype.itemsize)  # aligns each array
    end = 0
    for name in order:
        raw = arrays[name].raw
        header[name] = {"dtype": arrays[name].code, "shape": list(raw.shape), "data_offsets": [end, end + raw.nbytes]}
        end += raw.nbytes
    _write(Path(path), header, [arrays[name].raw for name in order])


def _version_of(about: Mapping[str, Any]) -> int:
    """Return the oldest version whose readers know all that a record as JSON has."""
    if any("v" in layer["qk"]["arrays"] for layer in about["layers"] if "qk" in layer):
        return VERSION
    tokens = (token for many in about["tokens"].values() for one in many for token in one)
    padded = any(name in layer for layer in about["layers"] for name in PADDING)
    return _WITHOUT_VALUES if padded or any("span" in one for one in tokens) else _WITHOUT_PADDING


def _about(number: int, record: Record, arrays: dict[str, Stored]) -> dict[str, Any]:
    """Return a record as JSON; its arrays are added to the others."""
    layers: list[dict[str, Any]] = []
    shared: dict[int, str] = {}  # arrays shared by several layers
    for index, layer in enumerate(record.layers):
        one = {name: getattr(layer, name) for name in LIGHT}
        one |= {} if layer.head_numbers is None else {"head_numbers": list(layer.head_numbers)}
        one |= {"axes": dict(layer.axes)} if layer.axes else {}
        one |= {name: spans_of(flags) for name in PADDING if (flags := getattr(layer, name)) is not None}
        stored = stored_arrays(layer)
        arrays |= {f"{number}.{index}.{name}": array for name, array in stored.items()}
        prefix = "statistics."
        one["statistics"] = [name.removeprefix(prefix) for name in stored if name.startswith(prefix)]
        kept, held = stored_kept(layer)
        if kept is not None:
            places = {}
            for name, (same, array) in held.items():
                places[name] = shared.setdefault(same, f"{number}.{index}.qk.{name}")
                arrays.setdefault(places[name], array)
            one["qk"] = kept | {"arrays": places}
        layers.append(one)
    tokens = {
        stream: [[_about_token(token) for token in one] for one in many] for stream, many in record.tokens.items()
    }
    missing = [asdict(one) for one in record.missing]
    return {
        "model": record.model, "notes": dict(record.notes), "layers": layers, "tokens": tokens, "missing": missing
    }  # fmt: skip


def _write(target: Path, header: Header, arrays: list[npt.NDArray[Any]]) -> None:
    """Write a safetensors file to a temporary file, and replace the old file when it is complete."""
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(target) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays:
            data = numbers_of(array)
            for first in range(0, len(data), _AT_ONCE):
                file.write(data[first : first + _AT_ONCE])


def read_atlas(path: str | os.PathLike[str]) -> tuple[Record, ...]:
    """Load the records of an atlas; its arrays are loaded at first access."""
    target = Path(path)
    try:
        with open_file(target) as file:  # once: another process may replace the file meanwhile
            header, start = _read_header(target, file)
            size = os.fstat(file.fileno()).st_size - start
            data = np.memmap(file, np.uint8, "r", start, (size,)) if size else np.zeros(0, np.uint8)
    except OSError as problem:
        raise AtlasError(f"cannot read {printable(target)}: {problem.strerror or problem}") from problem
    try:
        said = header.pop("__metadata__", {})
        about = json.loads(said["regard"])
        version = about["version"]
    except _BROKEN as foreign:
        raise AtlasError(f"{target} is a safetensors file, but not an atlas of regard") from foreign
    if not any(is_version(version, known) for known in _READ):
        raise AtlasError(
            f"{target} is an atlas of version {version}, and this regard reads versions {_READ[0]} to {VERSION}: make "
            "it anew with `regard look --out`, or open it with the release that wrote it"
        )
    try:
        if said["crc"] != str(checksum_of_text(said["regard"])):
            raise ValueError("the checksum of its header does not hold")
        table = about["arrays"]
        if set(table) != set(header):  # an array that is not there would be taken for one that was never kept
            raise ValueError(f"its header names other arrays: {min(set(table) ^ set(header))!r} appears once")
        check = partial(_check_file, target, data, start + size)
        arrays = {name: _stored(target, name, data, entry, table[name], check) for name, entry in header.items()}
        return tuple(_record(number, each, arrays) for number, each in enumerate(about["records"]))
    except _BROKEN as broken:
        damaged = f"{target} is damaged: "
        raise AtlasError(damaged + _reason(broken).removeprefix(damaged)) from broken


def _reason(broken: Exception) -> str:
    """Say what is wrong with a header; what Python says of wrong types helps nobody."""
    if type(broken) is KeyError:
        return f"its header lacks {broken.args[0]!r}"
    if type(broken) is ValueError or isinstance(broken, RegardError):
        return " ".join(str(broken).split())
    return "an entry of its header is not of the kind that it must be"


def _read_header(path: Path, file: IO[bytes]) -> tuple[Header, int]:
    """Return the header of a safetensors file and the offset of its data, checked against the file's size."""
    size = os.fstat(file.fileno()).st_size
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
        raise AtlasError(f"{path} is damaged: {_reason(broken)}") from broken
    if not whole:
        raise AtlasError(f"{path} was cut off or added to: its header tells of another size")
    return header, 8 + length


def _check_file(path: Path, data: npt.NDArray[np.uint8], size: int) -> None:
    """Check that the mapped file is as long as when it was opened: what lies beyond its end would end the process.

    The file is asked that is mapped, which another may have replaced under its name.
    """
    if isinstance(data, np.memmap) and (now := data._mmap.size()) < size:  # type: ignore[attr-defined]
        raise AtlasError(f"{path} was cut off while it was open, from {size:,} to {now:,} bytes: write it again")


def _stored(
    path: Path,
    name: str,
    data: npt.NDArray[np.uint8],
    entry: Mapping[str, Any],
    about: Mapping[str, Any],
    check: Callable[[], None],
) -> Stored:
    """Return one array of the file, memory-mapped."""
    first, last = map(operator.index, entry["data_offsets"])
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(map(operator.index, entry["shape"]))
    if (
        not 0 <= first <= last <= len(data)
        or any(side < 0 for side in shape)
        or last - first != dtype.itemsize * int(np.prod(shape, dtype=object))
    ):
        raise ValueError(f"an array of shape {shape} does not fit its place in the file")
    raw = data[first:last].view(dtype).reshape(shape)
    return Stored(name, raw, operator.index(about["crc"]), about.get("packed"), str(path), check)


def _record(number: int, about: Mapping[str, Any], arrays: Mapping[str, Stored]) -> Record:
    layers = []
    for index, one in enumerate(about["layers"]):
        prefix = f"{number}.{index}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        held = {name: own.pop(name) for name in list(own) if name.startswith("qk.")}
        light = {name: value for name, value in one.items() if name not in ("statistics", "qk")}
        named = [f"statistics.{name}" for name in one["statistics"]]
        if {name for name in own if name.startswith("statistics.")} != set(named):
            raise ValueError(f"the statistics of layer {index} are others than its header says")
        own |= {name: own.pop(name) for name in named}  # in their order
        kept = one.get("qk")
        held = {} if kept is None else {name: arrays[at] for name, at in kept["arrays"].items()}
        layers.append(StoredLayer.of(light, own, kept, held))
    tokens = {
        stream: tuple(tuple(_token(token) for token in sequence) for sequence in many)
        for stream, many in about["tokens"].items()
    }
    if not isinstance(about["model"], str) or not isinstance(about["notes"], dict):
        raise ValueError("a record's model must be a text and its notes an object")
    if not isinstance(about["missing"], list):
        raise ValueError("what is missing of a record must be a list")
    missing = tuple(map(Missing.of, about["missing"]))
    record = Record(tuple(layers), tokens, about["model"], about["notes"], missing)
    _check_tokens(record)
    return record


def _check_tokens(record: Record) -> None:
    """Check that each position of a stream with known tokens has a token: a missing one would shift all names."""
    lengths = record.streams
    for layer in record.layers:
        for stream in {layer.query_tokens, layer.key_tokens} & set(record.tokens):
            counts = [len(sequence) for sequence in record.tokens[stream]]
            if counts != [lengths[stream]] * layer.batch:
                raise ValueError(
                    f"the stream {stream!r} has {layer.batch} sequences of {lengths[stream]} positions, and tokens for "
                    f"{len(counts)} of {', '.join(map(str, sorted(set(counts))))}"
                )


def _about_token(token: Token) -> dict[str, Any]:
    about = asdict(token)
    if about["span"] is None:
        del about["span"]
    return about


def _token(about: Mapping[str, Any]) -> Token:
    span = about.get("span")
    if span is not None:
        start, end = span
        if type(start) is not int or type(end) is not int or not 0 <= start < end < 2**31:
            raise ValueError(f"the characters of a token are not as they should be: {span}")
        span = (start, end)
    token = Token(**{**about, "span": span})
    kinds = type(token.text), type(token.special), type(token.word), type(token.space)
    if kinds not in ((str, bool, int, bool), (str, bool, type(None), bool)) or not 0 <= (token.word or 0) < 2**31:
        raise ValueError(f"a token is not as it should be: {token}")
    return token
