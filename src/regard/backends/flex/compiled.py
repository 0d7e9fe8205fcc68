"""FlexAttention's function, compiled: once for each kind of call, as TorchDynamo's guards tell kinds apart.

Dynamo's own cache is the only one. Three of its settings do not suit a function that all calls share:

- It compiles a function eight times at most. There is no such limit here: there are as many codes as kinds of masks.
- Floats that differ between calls become symbols. Here scale and softcap stay numbers, as in calls by hand.
- The second length makes lengths symbols. The first shapes of a process get code with lengths as numbers, by which
  kernels on CUDA need check no bounds; decoding and further shapes share code, in which what has changed is a symbol.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.problem import Problem
from regard.torch_private import dynamo_settings

__all__ = ["SHORT", "Attend", "compiled", "uncompiled"]

SHORT = 128  # fewer queries than this are decoding, for which PyTorch has another kernel
_SHAPES = 4  # whose lengths are numbers

Attend = Callable[..., tuple[Tensor, Tensor | None]]

_shapes: set[tuple[torch.Size, ...]] = set()


def compiled(problem: Problem) -> Attend:
    """The compiled function for a problem; what it compiles it compiles when it is called."""
    shapes = problem.q.shape, problem.k.shape, problem.v.shape
    if problem.queries >= SHORT and len(_shapes) < _SHAPES:
        _shapes.add(shapes)
    # Around the call there may be compiled code whose lengths are symbols: dynamic=False keeps them out.
    if shapes in _shapes:
        return _compiled(False)
    return _on_cpu if problem.q.device.type == "cpu" else _compiled(None)


def _on_cpu(*inputs: Any) -> tuple[Tensor, Tensor | None]:
    """Code with symbols, or code of this length alone where PyTorch writes C++ that is none.

    It puts the tile's size for a symbol wherever that name begins (`ks3` in `ks36`), so it depends on the mask's names.
    """
    from torch._inductor.exc import InductorError

    try:
        return _compiled(None)(*inputs)
    except InductorError:
        return _compiled(False)(*inputs)


@cache
def _compiled(dynamic: bool | None) -> Attend:
    return _with_settings(torch.compile(_attend(), fullgraph=True, dynamic=dynamic))


@cache
def uncompiled() -> Attend:
    """FlexAttention's own formula: without a compiler it fails where lengths become symbols."""
    return _with_settings(_attend(), automatic_dynamic_shapes=False)


def _with_settings(attend: Attend, **settings: bool) -> Attend:
    change = dynamo_settings(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize, specialize_float=True, **settings
    )

    def run(*inputs: Any) -> tuple[Tensor, Tensor | None]:
        restore = change()
        try:
            return attend(*inputs)
        finally:
            restore()

    return run


@cache
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
        options: dict[str, Any] | None,
        with_lse: bool,
    ) -> tuple[Tensor, Tensor | None]:
        given: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1], "kernel_options": options}
        if with_lse:
            given["return_aux"] = AuxRequest(lse=True)
        result: Any = flex_attention(q, k, v, score_mod, block_mask, **given)
        return (result[0], result[1].lse) if with_lse else (result, None)

    return attend
