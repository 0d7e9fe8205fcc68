"""One cache of what was checked and chosen for calls, by their sizes, types and the forms of mask and bias.

A small call takes some 10 µs in PyTorch's kernel, and the checks and the choice of a backend take several times that.
So the key of a call is computed as cheaply as Python allows: it has everything that the checks and the choice look at.

What computes a call is prepared for a mask with its tensors, once that is seen a second time; before that, for all
masks of its form with tensors of these sizes, where the choice does not depend on their numbers: of a new padding mask
for each batch nothing is checked and planned again.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.backends.base import PREFERRED, Backend
from regard.backends.selection import is_chosen_by_sizes
from regard.masks import BoundMask, Causal, Mask
from regard.positions import ALiBi
from regard.problem import DEFAULTS, Options, Problem
from regard.tensors import are_in_memory, autocast_dtype
from regard.torch_private import (
    count_dispatch_modes,
    is_torch_function_mode_enabled,
    peek_interpreter_stack,
)
from regard.values import flatten, kinds_in

__all__ = ["Compute", "KnownCall", "describe", "find", "keep"]

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]
_KEPT: dict[tuple[Any, ...], "_Prepared"] = {}
_MOST = 1024  # sizes; a model that generates meets a new one with each token
_SMALL = 2**16  # pairs of a mask that are kept
_MISSING = object()
_NO_MASK: tuple[Any, Any, tuple[Tensor, ...]] = (None, None, ())


class _Prepared(NamedTuple):
    """What computes calls: for one mask, as long as its tensors live, or with whatever mask it is given (`last`)."""

    compute: Callable[..., Tensor]
    tensors: tuple[weakref.ref[Tensor], ...] = ()
    last: list[weakref.ref[Tensor]] | None = None  # the first tensor of the last mask, where it takes masks


# Everything that the checks and the choice look at, with the tensors of the mask, by address, or None where that is a
# tensor; these tensors; the same with their sizes alone, None where there are none; the mask. A class takes time.
KnownCall = tuple[tuple[Any, ...] | None, tuple[Tensor, ...], tuple[Any, ...] | None, Any]


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
    identity = _NO_MASK if mask is None else _identity_of(mask)
    if identity is None:
        return None
    seen, sizes, tensors = identity
    added = bias and (bias.num_heads, bias.bidirectional, torch.get_default_dtype())
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    call = (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, device, added, scale, dropout, learns, backend,
        backend == "auto" and PREFERRED.get(),
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    if sizes is None:
        return (*call, seen), tensors, None, mask
    return None if type(mask) is Tensor else (*call, seen), tensors, (*call, "sizes", sizes), mask


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


def _identity_of(mask: object) -> tuple[Any, Any, tuple[Tensor, ...]] | None:
    """A key of a mask and its place, a key of all with tensors of these sizes if it has any, and the tensors."""
    if type(mask) is Causal:
        return (mask.align, mask.shift), None, ()
    if type(mask) is Tensor:
        usual = mask.layout is torch.strided and mask.dtype is torch.bool
        return (None, (mask.shape, mask.device), ()) if usual else None
    place: tuple[int, ...] = ()
    if isinstance(mask, BoundMask):
        place, mask = (mask.q_len, mask.kv_len, mask.q_offset), mask.given
    if not isinstance(mask, Mask) or (identity := mask.identity()) is None:
        return None
    leaves, form = identity
    if not leaves:
        return (form, place), None, ()
    sizes = None if place else (form, tuple([(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]))
    return (form, tuple([id(leaf) for leaf in leaves]), place), sizes, tuple(leaves)


def find(call: KnownCall) -> Compute | None:
    """Give what computes such a call, if one was made before."""
    key, tensors, sizes, mask = call
    prepared = None if key is None else _KEPT.get(key)
    # The address of a tensor that is gone may be another's by now.
    if prepared is not None and (not prepared.tensors or all(tensor() is not None for tensor in prepared.tensors)):
        return prepared.compute
    if sizes is None or (prepared := _KEPT.get(sizes)) is None:
        return None
    if key is not None:
        assert prepared.last is not None
        if prepared.last and prepared.last[0]() is tensors[0]:
            return _evaluated(key, tensors, mask, prepared.compute)
        prepared.last[:] = [weakref.ref(tensors[0])]
    return partial(prepared.compute, mask)


def _evaluated(
    key: tuple[Any, ...], tensors: tuple[Tensor, ...], mask: Mask, compute: Callable[..., Tensor]
) -> Compute:
    """What computes calls with a mask that is seen a second time, whose pairs are kept where they are few."""
    (batch, heads, queries, _), (_, _, keys, _) = key[:2]
    visible = mask.bind(queries, keys).broadcast(batch, heads, tensors[0].device)
    known = partial(compute, visible)
    if visible.numel() <= _SMALL:
        known = partial(compute, visible.clone())  # a view would keep the mask
        _store(key, _Prepared(known, tuple([weakref.ref(tensor) for tensor in tensors])))
    return known


def keep(call: KnownCall, backend: Backend, problem: Problem) -> Compute | None:
    """Keep what computes such calls and return it, if the backend has a function of q, k and v alone for them.

    What computes calls with dropout is not returned: it draws a seed for each, and that of the first was drawn.
    """
    key, tensors, sizes, _ = call
    if sizes is not None and sizes not in _KEPT and _is_by_sizes(problem, backend):
        attend = backend.plain_of(problem)
        if attend is not None:
            _store(sizes, _Prepared(_typed(problem, partial(_of_mask, attend)), last=[]))
            return find(call)
    if key is None or (compute := backend.plain(problem)) is None:
        return None
    compute = _typed(problem, compute)
    _store(key, _Prepared(compute, tuple(weakref.ref(tensor) for tensor in tensors)))
    return compute if problem.dropout is None else None


def _store(key: tuple[Any, ...], prepared: _Prepared) -> None:
    if len(_KEPT) >= _MOST:
        _KEPT.clear()
    _KEPT[key] = prepared


def _is_by_sizes(problem: Problem, backend: Backend) -> bool:
    """Whether the same backend computes all calls of these sizes in the same way, whatever a mask of regard hides."""
    mask = problem.mask
    return (
        mask is not None
        and problem.bias is None
        and problem.dropout is None
        and not problem.leaves_keys_out
        and all(
            kind.__module__.split(".")[0] in ("regard", "torch", "builtins")
            for kind, _ in kinds_in(flatten(mask.given)[1])
        )
        and is_chosen_by_sizes(problem, backend)
    )


def _of_mask(attend: Callable[..., Tensor], mask: Mask | Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A call with another mask of the same sizes."""
    if isinstance(mask, Tensor):
        return attend(mask if mask.ndim == 4 else mask[None, None], q, k, v)
    bound = mask.bind(q.shape[2], k.shape[2])
    return attend(bound.broadcast(q.shape[0], q.shape[1], q.device), q, k, v)


def _typed(problem: Problem, compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What computes a call, with the output in the type of autocast."""
    narrow = autocast_dtype(problem.q)
    return compute if narrow == problem.q.dtype else partial(_in_type, narrow, compute)


def _in_type(dtype: torch.dtype, compute: Callable[..., Tensor], *given: Any) -> Tensor:
    return compute(*given).to(dtype)
