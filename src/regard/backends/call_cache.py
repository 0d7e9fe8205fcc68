"""Usual calls that were made before: what was checked and chosen for one holds for all of the same sizes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.autocast import autocast_dtype
from regard.backends.base import Backend
from regard.backends.derivatives import in_forward_mode
from regard.backends.tensor_memory import are_in_memory
from regard.masks import BoundMask, Causal, Mask
from regard.problem import Problem
from regard.torch_private import peek_interpreter_stack

__all__ = ["Signature", "known", "remember", "signature"]

Signature = tuple[Any, ...]

_KNOWN: dict[Signature, Callable[[Tensor, Tensor, Tensor], Tensor]] = {}
_MOST = 1024  # sizes; a model that writes meets a new one with each token


def signature(
    q: object,
    k: object,
    v: object,
    mask: Mask | BoundMask | Tensor | None,
    scale: object,
    backend: tuple[str, str] = ("auto", "auto"),  # by name, and preferred
) -> Signature | None:
    """Everything that the checks and the choice look at, or None where that is more than sizes and types.

    For calls without score, bias, normalizer, factor, dropout or anything else to return, with no mask or a causal one.
    """
    if torch.compiler.is_compiling() or not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return None
    if backend != ("auto", "auto") and not are_in_memory(q, k, v):  # what others compute may be traced
        return None
    if q.device.type not in ("cpu", "cuda"):  # of others autocast may not be asked
        return None
    if (
        not q.ndim == k.ndim == v.ndim == 4
        or not (scale is None or type(scale) is float)
        or peek_interpreter_stack() is not None
        or in_forward_mode()
    ):
        return None
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        return None
    seen: Any = None
    if mask is not None:
        if type(mask) is Causal:
            seen = mask.align, mask.shift
        elif isinstance(mask, BoundMask) and type(mask.mask) is Causal:
            seen = mask.mask.align, mask.mask.shift, mask.q_len, mask.kv_len, mask.q_offset
        else:
            return None
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    device = q.device
    return (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, device, k.device, v.device, seen, scale, learns,
        torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type), backend,
    )  # fmt: skip


def known(asked: Signature) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """What computes such a call, if one was made before."""
    return _KNOWN.get(asked)


def remember(asked: Signature, backend: Backend, problem: Problem) -> None:
    """Keep what computes such calls, if the backend has a function of q, k and v alone for them."""
    plain = backend.plain(problem)
    if plain is not None:
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        narrow = autocast_dtype(problem.q)
        _KNOWN[asked] = plain if narrow == problem.q.dtype else partial(_in_type, narrow, plain)


def _in_type(
    dtype: torch.dtype, plain: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    return plain(q, k, v).to(dtype)
