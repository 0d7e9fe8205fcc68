"""PyTorch's fused kernel on CPU with a bias that learns: PyTorch leaves its kernel for that, and keeps all weights.

    P = softmax(scale · q kᵀ + bias)     dS = P ∘ (dP − rowsum(P ∘ dP)),  dP = dO vᵀ
    d bias = Σ dS     dq = scale · dS k     dk = scale · dSᵀ q     dv = Pᵀ dO

The forward is the fused kernel. The backward computes the weights again, for some sequences, heads and rows at a time.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.tensors import without_autocast
from regard.torch_private import softmax_backward

__all__ = ["attend_with_bias_gradient"]

_WEIGHTS = 2**20  # of a part: smaller ones stay in the cache of a core, larger ones need fewer operations

Gradients = tuple[Tensor | None, ...]


def attend_with_bias_gradient(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys dim"],
    bias: Float[Tensor, "#batch #heads #queries keys"],
    scale: float,
) -> Float[Tensor, "batch heads queries dim"]:
    """Return softmax(scale · q kᵀ + bias) · v, whose gradients reach all four; sums are in the bias's type."""
    output: Tensor = _WithBiasGradient.apply(q, k, v, bias, scale)  # type: ignore[no-untyped-call]
    return output


class _WithBiasGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        # PyTorch leaves the kernel for a bias that might learn, without gradients too.
        output = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.detach(), scale=scale)
        ctx.save_for_backward(q, k, v, bias)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *ups: Any) -> Any:
        q, k, v, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:4]
        with without_autocast(q.device):  # as in the forward, whatever is on around the backward
            return *_backward(ups[0], q, k, v, bias, ctx.scale, wanted), None


def _backward(
    up: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, wanted: tuple[bool, ...]
) -> Gradients:
    if torch.is_grad_enabled():  # derivatives of the gradients are wanted: the formula as PyTorch computes it
        tensors = [x if want else x.detach() for x, want in zip((q, k, v, bias), wanted, strict=True)]
        q, k, v, bias = tensors
        again = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
        inputs = [x for x, want in zip(tensors, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(again, inputs, up, create_graph=True))
        return tuple(next(found) if want else None for want in wanted)
    return _gradients(up, q, k, v, bias, scale, wanted)


def _gradients(
    up: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, wanted: tuple[bool, ...]
) -> Gradients:
    wide = bias.dtype
    tensors = q, k, v, bias
    made = [torch.zeros_like(x, dtype=wide) if want else None for x, want in zip(tensors, wanted, strict=True)]
    dq, dk, dv, dbias = made
    up, q, k, v = (x.to(wide) for x in (up, q, k, v))
    q = q * scale
    hidden = (bias == -torch.inf).all(-1, keepdim=True)  # rows whose softmax is NaN; the kernel gives them zeros
    hides = bool(hidden.any())
    # Few operations, each over much: where other work has the cores, threads wait for each other at every one.
    for batch, heads, rows in _parts(q.shape[0], q.shape[1], q.shape[2], k.shape[2]):
        keys, part = (batch, heads), (batch, heads, rows)
        weights = (q[part] @ k[keys].mT).add_(_part(bias, part)).softmax(-1)
        if hides:
            weights.masked_fill_(_part(hidden, part), 0.0)
        if dv is not None:
            dv[keys].add_(weights.mT @ up[part])
        scores = softmax_backward(up[part] @ v[keys].mT, weights)
        if dbias is not None:
            into = _part(dbias, part)
            into += scores.sum_to_size(into.shape)
        if dq is not None:
            dq[part] = scores @ k[keys]
        if dk is not None:
            dk[keys].add_(scores.mT @ q[part])
    if dq is not None:
        dq *= scale
    return tuple(None if x is None else x.to(like.dtype) for x, like in zip(made, tensors, strict=True))


def _parts(batch: int, heads: int, queries: int, keys: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut rows, then heads, then sequences, so that a part has at most `_WEIGHTS` weights, and a row at least."""
    rows = max(1, min(queries, _WEIGHTS // max(1, keys)))
    some = max(1, min(heads, _WEIGHTS // max(1, rows * keys)))
    sequences = max(1, min(batch, _WEIGHTS // max(1, some * rows * keys)))
    for b in range(0, batch, sequences):
        for h in range(0, heads, some):
            for top in range(0, queries, rows):
                yield slice(b, b + sequences), slice(h, h + some), slice(top, top + rows)


def _part(bias: Tensor, part: tuple[slice, slice, slice]) -> Tensor:
    """The part of a tensor whose dimensions may be 1; a view."""
    return bias[tuple(where if size > 1 else slice(None) for where, size in zip(part, bias.shape[:3], strict=True))]
