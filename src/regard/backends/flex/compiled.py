"""FlexAttention's function, compiled for each kind of call by itself.

What TorchDynamo compiled belongs to a function's code: after eight recompilations the ninth kind of call would run
uncompiled, with all scores at once and a line in a log, and a second length would make lengths symbols for all. Here
each kind of mask and score has code of its own, and so has each of its first lengths, whose kernels know them as
numbers. Further lengths, and the growing ones of decoding, share code in which they are symbols; but a mask whose own
numbers change with each step (align="start", a tensor that is bound, Prefix(n − 1)) compiles anew for each. Where even
that does not suffice, the limit raises.
"""

import threading
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from regard.problem import Problem
from regard.values import flatten, kinds_in

__all__ = ["SHORT", "Attend", "compiled", "uncompiled"]

SHORT = 128  # fewer queries than this are decoding, for which PyTorch has another kernel
_LENGTHS = 4  # for which code is compiled by itself
_MOST = 256  # functions that are kept

Attend = Callable[..., tuple[Tensor, Tensor | None]]

_known: dict[Hashable, Attend] = {}
_lengths: dict[Hashable, int] = {}
_lock = threading.Lock()


def uncompiled() -> Attend:
    """FlexAttention's own formula, with numbers as numbers: without a compiler it fails where they become symbols."""
    from torch._dynamo import config

    run: Attend = config.patch(automatic_dynamic_shapes=False, specialize_float=True)(_attend())
    return run


def _attend() -> Attend:
    """Give the function to be compiled; FlexAttention is imported here, when it is needed."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        score_mod: Any,
        block_mask: Any,
        scale: float,
        *,
        with_lse: bool,
        options: dict[str, Any] | None,
    ) -> tuple[Tensor, Tensor | None]:
        grouped = q.shape[1] != k.shape[1]
        given: dict[str, Any] = {"scale": scale, "enable_gqa": grouped, "kernel_options": options}
        if not with_lse:
            output: Tensor = flex_attention(q, k, v, score_mod, block_mask, **given)
            return output, None
        output, more = flex_attention(q, k, v, score_mod, block_mask, **given, return_aux=AuxRequest(lse=True))
        return output, more.lse

    return attend


def compiled(problem: Problem) -> Attend:
    """The compiled function for a problem of this kind; what it compiles it compiles when it is called."""
    kind = _kind_of(problem)
    sizes: Hashable = problem.q.shape, problem.k.shape, problem.v.shape
    with _lock:
        if problem.queries < SHORT or ((kind, sizes) not in _known and _lengths.get(kind, 0) >= _LENGTHS):
            sizes = None
        if (kind, sizes) not in _known:
            if len(_known) >= _MOST:
                _known.clear()
                _lengths.clear()
            # Around it there may be compiled code whose lengths are symbols, for which this would be compiled too.
            dynamic = None if sizes is None else False
            function = _copied(_attend(), f"attend_{len(_known)}")
            _known[kind, sizes] = torch.compile(function, fullgraph=True, dynamic=dynamic)
            _lengths[kind] = _lengths.get(kind, 0) + (sizes is not None)
        return _known[kind, sizes]


def _kind_of(problem: Problem) -> Hashable:
    """What a kernel is compiled for, besides sizes: types and numbers, whatever the values of tensors."""
    mask = None if problem.mask is None else _kind(problem.mask.mask)
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in (problem.q, problem.k, problem.v))
    kinds = _kind((problem.score.softcap, problem.bias))
    with_lse = problem.wants_lse or problem.sink is not None
    return mask, kinds, problem.scale, with_lse, learns, problem.q.dtype, problem.q.device


def _kind(value: Any) -> Hashable:
    """The form of a value, with the code of functions, and the kinds of its tensors."""
    leaves, form = flatten(value)
    kinds = [(kind, getattr(constant, "__code__", constant)) for kind, constant in kinds_in(form)]
    hashable = [(kind, constant if isinstance(constant, Hashable) else None) for kind, constant in kinds]
    return tuple(hashable), tuple((leaf.dtype, leaf.ndim) for leaf in leaves)


def _copied(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function with code of its own: what was compiled, and which sizes changed, is remembered by code and name."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=name)
    copy = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
