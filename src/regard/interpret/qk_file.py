"""Queries and keys of chosen heads from another engine, in one file, as a record: `regard open` shows it.

The file is a safetensors file, which a program in C++ can write: 8 bytes with the length of a JSON header, the header,
and the numbers. For each layer L it has the tensors

    L.q (heads, queries, head_dim)    L.k (key heads, keys, head_dim)    L.sinks (heads,), only with learned sinks

as they enter the product: normalized, and rotary embeddings applied. `__metadata__` has only texts: `format` is
"regard q and k", `version` "1", `heads` the JSON of {"L": [head, ...]}, the model's numbers of the heads, and
`kv_heads` of {"L": [row of L.k, ...]}, one for each head, by default as grouped-query attention shares them; `scale`
a number (1/√head_dim by default), `causal` "true" or "false" (the queries are the last positions; true by default),
`window` the number of keys that a query sees, `softcap` a number, `tokens` the JSON of a list of texts, one for each
key, and `model` a name.
"""

import dataclasses
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.files import open_file, printable
from regard.functional import attention
from regard.interpret.watch import watch
from regard.masks import Causal, Mask, Window
from regard.normalizers import Softmax
from regard.record.atlas_compression import numbers_of
from regard.record.records import Record
from regard.scores import ScaledDot
from regard.strict_json import parse_json

__all__ = ["is_qk_file", "read_qk_file"]

_FORMAT, _VERSION = "regard q and k", "1"
_LARGEST_HEADER = 100_000_000  # the limit of the safetensors library
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def is_qk_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file says that it is one of queries and keys."""
    try:
        header, _ = _header(Path(path))
    except (InputError, OSError):
        return False
    about = header.get("__metadata__")
    return isinstance(about, dict) and about.get("format") == _FORMAT


def read_qk_file(path: str | os.PathLike[str]) -> Record:
    """Return a record of the heads in a file of queries and keys, from which any of their weights is computed.

    Heads have the numbers 0, 1, … in their layer; its name has the model's numbers.

    Raises:
        InputError: The file is missing, cut off, of another format or version, or its tensors do not fit together.
    """
    try:
        return _record(Path(path))
    except OSError as problem:
        raise InputError(f"cannot read {printable(path)}: {problem.strerror or problem}") from None
    except InputError as problem:
        raise InputError(f"cannot read the queries and keys in {printable(path)}: {problem}") from None


@dataclass(frozen=True, eq=False)
class _Heads:
    """The heads of one layer: q (1, heads, queries, d), k (1, heads, keys, d), and what their weights depend on."""

    q: Tensor
    k: Tensor
    numbers: tuple[int, ...]
    scale: float
    mask: Mask | None
    score: ScaledDot
    normalizer: Softmax


class _Layer(nn.Module):
    """Attention of the heads of one layer, without values."""

    def forward(self, heads: _Heads) -> None:
        values = heads.k.new_zeros((*heads.k.shape[:3], 1))
        attention(
            heads.q,
            heads.k,
            values,
            score=heads.score,
            mask=heads.mask,
            scale=heads.scale,
            normalizer=heads.normalizer,
        )


class _Layers(nn.Module):
    """The layers of a file, with the model's numbers."""

    def __init__(self, layers: Mapping[str, _Heads]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({number: _Layer() for number in layers})
        self.heads = layers

    def forward(self) -> None:
        for number, layer in self.layers.items():
            layer(self.heads[number])


def _record(path: Path) -> Record:
    header, data = _header(path)
    about = header.pop("__metadata__", None)
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise InputError(f'its metadata must have the format "{_FORMAT}"')
    if about.get("version") != _VERSION:
        raise InputError(f"it has version {about.get('version')!r}, and this regard reads version {_VERSION!r}")
    tensors = {name: _tensor(name, entry, data) for name, entry in header.items()}
    heads = _json(about, "heads", dict)
    if not heads:
        raise InputError("`heads` must name the heads of a layer")
    layers = {number: _heads(number, tensors, about) for number in sorted(heads, key=_number)}
    tokens = _json(about, "tokens", list) if "tokens" in about else None
    keys = {one.k.shape[2] for one in layers.values()}
    if tokens is not None and (keys != {len(tokens)} or not all(isinstance(one, str) for one in tokens)):
        raise InputError(f"`tokens` must be a text for each key, {sorted(keys)} of them, got {len(tokens)}")
    model = _Layers(layers)
    with torch.no_grad(), watch(model, keep="qk", tokens=tokens) as seen:
        model()
    named = tuple(
        dataclasses.replace(layer, name=f"layer {number}, heads {', '.join(map(str, one.numbers))}")
        for layer, (number, one) in zip(seen.record.layers, layers.items(), strict=True)
    )
    return dataclasses.replace(seen.record, layers=named, model=str(about.get("model", "") or path.stem))


def _header(path: Path) -> tuple[dict[str, Any], memoryview]:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise InputError(f"{size} bytes without a whole header of a safetensors file")
        try:
            header = parse_json(file.read(length).decode())
        except (ValueError, RecursionError):
            raise InputError("its header must be JSON") from None
        rest = size - 8 - length
        data = np.memmap(file, np.uint8, "r", 8 + length, (rest,)) if rest else np.zeros(0, np.uint8)
    if not isinstance(header, dict):
        raise InputError("its header must be an object")
    return header, numbers_of(data)


def _tensor(name: str, entry: Any, data: memoryview) -> Tensor:
    try:
        kind, shape, (start, stop) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, stop]
        if not all(type(one) is int and one >= 0 for one in numbers) or not start <= stop <= len(data):
            raise ValueError
        if math.prod(shape) * kind.itemsize != stop - start or start == stop:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InputError(f"the tensor {name[:40]!r} must be F64, F32, F16 or BF16 numbers within the file") from None
    found = torch.frombuffer(bytearray(data[start:stop]), dtype=kind).reshape(shape)
    if not bool(found.isfinite().all()):
        raise InputError(f"the tensor {name[:40]!r} must be finite")
    return found if kind is torch.float64 else found.float()


def _heads(number: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> _Heads:
    numbers = _numbers("heads", _json(about, "heads", dict)[number])
    q, k, sinks = (tensors.get(f"{number}.{name}") for name in ("q", "k", "sinks"))
    if q is None or k is None or q.ndim != 3 or k.ndim != 3 or q.shape[2] != k.shape[2] or len(numbers) != len(q):
        shapes = [None if one is None else tuple(one.shape) for one in (q, k)]
        raise InputError(
            f"layer {number} must have {number}.q (heads, queries, d), for {len(numbers)} heads, and {number}.k "
            f"(key heads, keys, d), got {shapes[0]} and {shapes[1]}"
        )
    shared = _json(about, "kv_heads", dict).get(number) if "kv_heads" in about else None
    rows = _numbers("kv_heads", shared) if shared is not None else [at * len(k) // len(q) for at in range(len(q))]
    if len(rows) != len(q) or max(rows) >= len(k) or (shared is None and len(q) % len(k)):
        raise InputError(f"`kv_heads` of layer {number} must be a row of {number}.k for each head, got {rows}")
    causal = about.get("causal", "true")
    if causal not in ("true", "false"):
        raise InputError(f'`causal` must be "true" or "false", got {causal!r}')
    mask: Mask | None = Causal() if causal == "true" else None
    if "window" in about:
        if mask is None:
            raise InputError(
                "`window` counts the keys up to a query's own, so it needs `causal` true: leave one of both out"
            )
        mask &= Window(max(1, int(_positive(about, "window"))))
    if sinks is not None and sinks.shape != (len(q),):
        raise InputError(f"{number}.sinks must be ({len(q)},), got {tuple(sinks.shape)}")
    scale = _positive(about, "scale") if "scale" in about else q.shape[2] ** -0.5
    softcap = _positive(about, "softcap") if "softcap" in about else None
    return _Heads(q[None], k[rows][None], tuple(numbers), scale, mask, ScaledDot(softcap=softcap), Softmax(sinks))


def _json(about: Mapping[str, Any], name: str, kind: type) -> Any:
    try:
        found = parse_json(about[name])
    except (KeyError, TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise InputError(f"`{name}` of its metadata must be the JSON of a {kind.__name__}, got {about.get(name)!r:.60}")
    return found


def _numbers(name: str, given: Any) -> list[int]:
    if not isinstance(given, list) or not given or not all(type(one) is int and one >= 0 for one in given):
        raise InputError(f"`{name}` must be lists of numbers from 0, got {json.dumps(given)[:60]}")
    return given


def _number(layer: str) -> int:
    if not layer.isascii() or not layer.isdigit() or len(layer) > 6:
        raise InputError(f"`heads` must have the numbers of layers as keys, got {layer[:40]!r}")
    return int(layer)


def _positive(about: Mapping[str, Any], name: str) -> float:
    try:
        found = float(about[name])
    except (TypeError, ValueError):
        found = math.nan
    if not 0 < found < math.inf:
        raise InputError(f"`{name}` must be a positive number, got {about[name]!r:.60}")
    return found
