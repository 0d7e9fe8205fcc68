"""What was checked and chosen for a call is kept, for later calls of the same sizes, types, mask and bias.

A small call takes some 20 µs in PyTorch's kernel, and the checks and the choice of a backend take several times that.
So the key of a call is computed as cheaply as Python allows: it has everything that the checks and the choice look at.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.backends.base import PREFERRED, Backend
from regard.masks import BoundMask, Causal, Mask
from regard.positions import ALiBi
from regard.problem import DEFAULTS, Options, Problem
from regard.tensors import are_in_memory, autocast_dtype
from regard.torch_private import (
    count_dispatch_modes,
    is_torch_function_mode_enabled,
    peek_interpreter_stack,
)

__all__ = ["Compute", "KnownCall", "describe", "find", "keep"]

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]
_KEPT: dict[tuple[Any, ...], tuple[tuple[weakref.ref[Mask], ...], Compute]] = {}
_MOST = 1024  # sizes; a model that generates meets a new one with each token
_MISSING = object()


# Everything that the checks and the choice look at, and the masks that hold tensors, whose addresses are in it.
KnownCall = tuple[tuple[Any, ...], tuple[Mask, ...]]


def describe(q: object, k: object, v: object, backend: object, options: Options) -> KnownCall | None:
    """Describe a call, or give None where the checks look at more than sizes, types, a scale, a mask, a bias and a
    probability of dropout.

    For calls with no other option than these, on tensors in memory whose work nobody traces. A mask that may change
    without a trace (a tensor, a mask of one's own that does not copy its tensors) cannot be known by a key, and
    neither can a bias that holds tensors: of biases, ALiBi with its own slopes can.
    """
    # Called once for each call of `attention`: written out, since every name and every call costs a part of a µs.
    if not (
        (type(q) is Tensor or type(q) is Parameter)
        and (type(k) is Tensor or type(k) is Parameter)
        and (type(v) is Tensor or type(v) is Parameter)
    ):
        return None
    mask: Any = None
    bias = scale = None
    dropout = 0.0
    if options:
        if (found := _values_of(options)) is None:
            return None
        mask, bias, scale, dropout = found
    if q.is_cpu and k.is_cpu and v.is_cpu:
        kind, device = "cpu", None
    elif q.is_cuda and k.is_cuda and v.is_cuda:
        kind, device = "cuda", (q.device, k.device, v.device)
    else:  # of others autocast may not be asked
        return None
    if (
        type(backend) is not str
        or not (q.layout is k.layout is v.layout is torch.strided)
        or not (q.dtype is k.dtype is v.dtype)
        or not (q.ndim == k.ndim == v.ndim == 4)
        or q.is_nested
        or k.is_nested
        or v.is_nested
        or not (q.stride()[3] == k.stride()[3] == v.stride()[3] == 1)
        or is_torch_function_mode_enabled()
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or (count_dispatch_modes() and not are_in_memory(q, k, v))
    ):
        return None
    seen: Any = None
    holders: tuple[Mask, ...] = ()
    if type(mask) is Causal:
        seen = mask.align, mask.shift
    elif mask is not None:
        if (known := _identity_of(mask)) is None:
            return None
        seen, holders = known
    added = bias and (bias.num_heads, bias.bidirectional)
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    key = (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, device, seen, added, scale, dropout, learns, backend,
        backend == "auto" and PREFERRED.get(),
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return key, holders


def _values_of(options: Options) -> tuple[Any, ALiBi | None, float | None, float] | None:
    """The mask, a bias that holds no tensor, the scale and dropout; None where anything else is not its default."""
    mask: Any = None
    bias = scale = None
    dropout = 0.0
    for name, value in options.items():
        if value is DEFAULTS.get(name, _MISSING):
            continue
        if name == "mask":
            mask = value
        elif name == "bias" and type(value) is ALiBi and value.slopes is None:
            bias = value
        elif name == "scale" and type(value) is float:
            scale = value
        elif name == "dropout" and type(value) is float:
            dropout = value
        else:
            return None
    return mask, bias, scale, dropout


def _identity_of(mask: object) -> tuple[Any, tuple[Mask, ...]] | None:
    """A key of a mask and its place, and the masks in it that hold tensors."""
    place: tuple[int, ...] = ()
    if isinstance(mask, BoundMask):
        place, mask = (mask.q_len, mask.kv_len, mask.q_offset), mask.given
    if not isinstance(mask, Mask) or (found := mask.identity()) is None:
        return None
    return (found[0], place), tuple(found[1])


def find(call: KnownCall) -> Compute | None:
    """Give what computes such a call, if one was made before."""
    kept = _KEPT.get(call[0])
    if kept is None:
        return None
    holders, compute = kept
    # A dead mask's address may be another's by now.
    return compute if not holders or all(one() is not None for one in holders) else None


def keep(call: KnownCall, backend: Backend, problem: Problem, keys: Any = None) -> Compute | None:
    """Keep what computes such calls and return it, if the backend has a function of q, k and v alone for them.

    `keys` are those that some query sees (`narrowed`), None where they are all. What computes calls with dropout is not
    returned: it draws a seed for each, and that of the first was drawn.
    """
    if (compute := backend.plain(problem)) is None:
        return None
    if isinstance(keys, slice) and keys.stop - keys.start == call[0][1][-2]:
        keys = None
    if keys is not None:
        compute = partial(_of_keys, keys, compute)
    if len(_KEPT) >= _MOST:
        _KEPT.clear()
    if (narrow := autocast_dtype(problem.q)) != problem.q.dtype:
        compute = partial(_in_type, narrow, compute)
    key, holders = call
    _KEPT[key] = tuple(weakref.ref(one) for one in holders), compute
    return compute if problem.dropout is None else None


def _of_keys(keys: Any, compute: Compute, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return compute(q, k[:, :, keys], v[:, :, keys])


def _in_type(dtype: torch.dtype, compute: Compute, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return compute(q, k, v).to(dtype)
