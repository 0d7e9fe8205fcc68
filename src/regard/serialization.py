"""Serialize masks, biases, scores and normalizers as JSON and arrays: known frozen dataclasses by name, with their
fields.

Nothing is unpickled or imported by name: only the classes in KINDS are created, and their own checks run on the
fields.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard import masks, normalizers, positions, scores
from regard.masks.base import And, Not, Or
from regard.masks.compose import _Ends
from regard.masks.inside_documents import Inside
from regard.scores.transformer_xl import _Looked

__all__ = ["KINDS", "UnwritableError", "array_of", "read", "tensor_of", "write"]

_MASKS = (
    *(masks.Axial, masks.BlockLocal, masks.Causal, masks.Dense, masks.DilatedWindow, masks.Document, masks.Global),
    *(masks.LocalMonotonic, masks.LocalPredictive, masks.Neighborhood, masks.Padding, masks.Prefix, masks.RandomBlocks),
    *(masks.Sinks, masks.Strided, masks.Window, And, Or, Not, Inside, _Ends),
)
_BIASES = (
    *(
        positions.ALiBi,
        positions.DenseBias,
        positions.Gaussian,
        positions.RelativePositionBiasND,
        positions.RelativePositionBias,
    ),
    positions.T5Bias,
)
_SCORES = (
    *(scores.Additive, scores.Bilinear, scores.Concat, scores.Cosine, scores.DeBERTa, scores.Dot),
    *(scores.RelativeKeyQuery, scores.ScaledDot, scores.Shaw, scores.TransformerXL, _Looked),
)
_NORMALIZERS = (normalizers.Softmax, normalizers.Sigmoid)

KINDS: Mapping[str, type] = {kind.__name__: kind for kind in (*_MASKS, *_BIASES, *_SCORES, *_NORMALIZERS)}

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
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return _write_tensor(value, put)
    if isinstance(value, tuple | list | range):
        return [write(one, put) for one in value]
    kind = type(value)
    if KINDS.get(kind.__name__) is not kind or not is_dataclass(value):
        raise UnwritableError(kind.__name__)
    return {"kind": kind.__name__, "fields": {f.name: write(getattr(value, f.name), put) for f in fields(value)}}


def _write_tensor(tensor: Tensor, put: Callable[[Array], str]) -> dict[str, Any]:
    array = array_of(tensor)
    if tensor.dtype == torch.bool:
        return {"bits": put(np.packbits(array)), "shape": list(array.shape)}
    return {"tensor": put(array)} | ({"type": "bfloat16"} if tensor.dtype == torch.bfloat16 else {})


def array_of(tensor: Tensor) -> Array:
    """Return the numbers of a tensor as a copy; bfloat16, which NumPy lacks, as bits."""
    plain = tensor.detach().cpu().contiguous()
    plain = plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain
    return np.array(plain.numpy())


def tensor_of(array: Array, *, brain: bool = False) -> Tensor:
    """Return a tensor with these numbers as a copy; `brain` if they are the bits of bfloat16."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.view(torch.bfloat16) if brain else tensor


def read(form: Any, get: Callable[[str], Array]) -> Any:
    """Return the value for the JSON that `write` returned.

    Raises:
        ValueError, KeyError, TypeError: The JSON is not an output of `write`.
    """
    if form is None or isinstance(form, bool | int | float | str):
        return form
    if isinstance(form, list):
        return tuple(read(one, get) for one in form)
    if "bits" in form:
        shape, packed = tuple(map(operator.index, form["shape"])), get(form["bits"])
        count = math.prod(shape)
        if min(shape, default=0) < 0 or packed.dtype != np.uint8 or packed.shape != (-(-count // 8),):
            raise ValueError(f"{packed.size} bytes are no bits of shape {shape}")
        return torch.from_numpy(np.unpackbits(packed, count=count).astype(np.bool_).reshape(shape))
    if "tensor" in form:
        return tensor_of(get(form["tensor"]), brain=form.get("type") == "bfloat16")
    kind = KINDS[form["kind"]]
    held = {name: read(one, get) for name, one in form["fields"].items()}
    if held.keys() != {field.name for field in fields(kind)}:
        raise ValueError(f"{form['kind']} has other fields than {', '.join(held)}")
    # Without __init__, whose arguments may differ from the fields, but with its checks.
    value: Any = object.__new__(kind)
    for name, one in held.items():
        object.__setattr__(value, name, one)
    if check := getattr(value, "__post_init__", None):
        check()
    return value
