"""Masks, biases, scores and normalizers as JSON, the text of files and of graphs: known dataclasses by name, with their
fields.

    Causal() & Document(ids)  →  {"kind": "And", "fields": {"left": {"kind": "Causal", …}, "right": …}}

It is the text of a form (`regard.values`). Nothing is unpickled or imported by name: only the classes in KINDS are
created, and their own checks run on the fields.
"""

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard import masks, normalizers, positions, scores
from regard.dropout import Dropout
from regard.values import Form, field_names, flatten, is_leaf, unflatten

__all__ = ["KINDS", "UnwritableError", "array_of", "form_of", "read", "tensor_of", "text_of", "unwritable", "write"]

_ROLES = (masks.Mask, positions.Bias, scores.Score, normalizers.Normalizer)


def _kinds(role: type) -> Iterator[type]:
    """Yield the dataclasses of regard that are of a role, private ones too, such as what a mask is resolved to."""
    kind: type
    for kind in role.__subclasses__():
        if kind.__module__.startswith("regard.") and is_dataclass(kind) and kind is not masks.MaskMod:
            yield kind
        yield from _kinds(kind)


KINDS: Mapping[str, type] = {kind.__name__: kind for role in _ROLES for kind in _kinds(role)} | {"Dropout": Dropout}

# Compilers do not follow dataclasses.fields of a class.
_FIELDS: Mapping[str, list[str]] = {name: field_names(kind) for name, kind in KINDS.items()}

Array = npt.NDArray[Any]


class UnwritableError(Exception):
    """Raised for a value that cannot be serialized; its text names the value."""


def write(value: Any, put: Callable[[Array], str]) -> Any:
    """Return the JSON of a value; `put` stores each array in it and returns its name.

    >>> write(masks.Causal() & masks.Window(2), lambda array: "")["fields"]["right"]
    {'kind': 'Window', 'fields': {'left': 1, 'right': 0}}

    Raises:
        UnwritableError: It is or contains an object defined by the user, such as a function or a class.
    """
    leaves, form = flatten(value)
    if (kind := unwritable(form)) is not None:
        raise UnwritableError(kind)
    return json.loads(text_of(form, iter([json.dumps(_write_tensor(tensor, put)) for tensor in leaves])))


def read(written: Any, get: Callable[[str], Array]) -> Any:
    """Return the value for the JSON that `write` returned.

    Raises:
        ValueError, KeyError, TypeError: The JSON is not an output of `write`.
    """
    form, leaves = form_of(written)
    return unflatten(form, [_read_tensor(leaf, get) for leaf in leaves], checked=(object,))


def unwritable(form: Form) -> str | None:
    """Return the name of the first type in a form that has no JSON, because a user wrote it; None if there is none."""
    kind, *parts = form
    if is_leaf(form) or kind in (type(None), bool, int, float, str, range):
        return None
    if kind is not tuple and kind is not list and KINDS.get(kind.__name__) is not kind:
        return str(kind.__name__)
    for part in parts:
        if (name := unwritable(part)) is not None:
            return name
    return None


def text_of(form: Form, leaves: Iterator[str]) -> str:
    """Return the JSON of a form that is not `unwritable`, with these texts in the place of its leaves.

    Compilers follow it, which is why it builds text of text.
    """
    kind, *parts = form
    if is_leaf(form):
        return next(leaves)
    if kind is type(None):
        return "null"
    if kind is bool:
        return "true" if parts[0] else "false"
    if kind is str:
        return '"' + parts[0] + '"' if parts[0].isidentifier() else json.dumps(parts[0])
    if kind is int or kind is float:
        return json.dumps(parts[0])
    if kind is range:
        return json.dumps(list(parts[0]))
    texts = [text_of(part, leaves) for part in parts]
    if kind is tuple or kind is list:
        return "[" + ", ".join(texts) + "]"
    named = [f'"{name}": {text}' for name, text in zip(_FIELDS[kind.__name__], texts, strict=True)]
    return f'{{"kind": "{kind.__name__}", "fields": {{{", ".join(named)}}}}}'


def form_of(written: Any) -> tuple[Form, list[dict[str, Any]]]:
    """Return the form of JSON, and its leaves: objects that are of no kind.

    Raises:
        ValueError, KeyError, TypeError: A kind or its fields are not known.
    """
    leaves: list[dict[str, Any]] = []
    return _form_of(written, leaves), leaves


def _form_of(written: Any, leaves: list[dict[str, Any]]) -> Form:
    if written is None or isinstance(written, bool | int | float | str):
        return type(written), written
    if isinstance(written, list):
        return tuple, *[_form_of(item, leaves) for item in written]
    if "kind" not in written:
        leaves.append(written)
        return (int if "int" in written else float if "float" in written else Tensor,)
    kind, known, parts = KINDS[written["kind"]], _FIELDS[written["kind"]], written["fields"]
    if parts.keys() != set(known):
        raise ValueError(f"{written['kind']} has other fields than {', '.join(parts)}")
    return kind, *[_form_of(parts[name], leaves) for name in known]


def _write_tensor(tensor: Tensor, put: Callable[[Array], str]) -> dict[str, Any]:
    array = array_of(tensor)
    if tensor.dtype == torch.bool:
        return {"bits": put(np.packbits(array)), "shape": list(array.shape)}
    return {"tensor": put(array)} | ({"type": "bfloat16"} if tensor.dtype == torch.bfloat16 else {})


def _read_tensor(written: Mapping[str, Any], get: Callable[[str], Array]) -> Tensor:
    if "bits" not in written:
        return tensor_of(get(written["tensor"]), brain=written.get("type") == "bfloat16")
    shape, packed = tuple(map(operator.index, written["shape"])), get(written["bits"])
    count = math.prod(shape)
    if min(shape, default=0) < 0 or packed.dtype != np.uint8 or packed.shape != (-(-count // 8),):
        raise ValueError(f"{packed.size} bytes are no bits of shape {shape}")
    return torch.from_numpy(np.unpackbits(packed, count=count).astype(np.bool_).reshape(shape))


def array_of(tensor: Tensor) -> Array:
    """Return the numbers of a tensor as a copy; bfloat16, which NumPy lacks, as bits."""
    plain = tensor.detach().cpu().contiguous()
    plain = plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain
    return np.array(plain.numpy())


def tensor_of(array: Array, *, brain: bool = False) -> Tensor:
    """Return a tensor with these numbers as a copy; `brain` if they are the bits of bfloat16."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.view(torch.bfloat16) if brain else tensor
