"""The formulas that tests compare with: dense, in float64 numpy, written without regard or PyTorch's autograd."""

from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Dense(NamedTuple):
    """Everything about one call; with a cotangent also the gradients of sum(output · cotangent)."""

    output: np.ndarray
    weights: np.ndarray
    lse: np.ndarray
    q: np.ndarray | None = None
    k: np.ndarray | None = None
    v: np.ndarray | None = None
    bias: np.ndarray | None = None
    sink: np.ndarray | None = None


def f64(x) -> np.ndarray:
    """Any tensor or array in float64."""
    return x.detach().to(torch.float64).cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)


def dense(q, k, v, *, visible=None, bias=None, scale=None, softcap=None, sink=None, cotangent=None) -> Dense:
    """Attend over (batch, heads, n, d) with all weights at hand, and differentiate by hand if there is a cotangent."""
    q, k, v = f64(q), f64(k), f64(v)
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * np.einsum("bhid,bhjd->bhij", q, wide_k)
    slope = 1.0
    if softcap is not None:
        slope = 1 - np.tanh(scores / softcap) ** 2
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + f64(bias)
    if visible is not None:
        scores = np.where(np.asarray(visible), scores, -np.inf)
    weights, lse, to_sink = softmax(scores, sink)
    output = np.einsum("bhij,bhjd->bhid", weights, wide_v)

    if cotangent is None:
        return Dense(output, weights, lse)
    up = f64(cotangent)
    d_weights = np.einsum("bhid,bhjd->bhij", up, wide_v)
    mean = (weights * d_weights).sum(-1, keepdims=True)
    d_scores = weights * (d_weights - mean)
    d_products = d_scores * slope * scale
    return Dense(
        output,
        weights,
        lse,
        q=np.einsum("bhij,bhjd->bhid", d_products, wide_k),
        k=_ungroup(np.einsum("bhij,bhid->bhjd", d_products, q), group),
        v=_ungroup(np.einsum("bhij,bhid->bhjd", weights, up), group),
        bias=None if bias is None else _unbroadcast(d_scores, bias.shape),
        sink=None if sink is None else -(to_sink * mean[..., 0]).sum((0, 2)),
    )


def softmax(scores, sink=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, log-sum-exp and the sink's share of each row; a row of −inf alone has weights 0."""
    extra = np.full((*scores.shape[:-1], 1), -np.inf)
    if sink is not None:
        extra[:] = f64(sink)[:, None, None]
    whole = np.concatenate([scores, extra], -1)
    peak = whole.max(-1, keepdims=True)
    exp = np.exp(whole - np.where(np.isneginf(peak), 0, peak))
    total = exp.sum(-1, keepdims=True)
    nothing = total[..., 0] == 0
    share = exp / np.where(total == 0, 1, total)
    lse = np.where(nothing, -np.inf, peak[..., 0] + np.log(np.where(nothing, 1, total[..., 0])))
    return share[..., :-1], lse, share[..., -1]


def entropy(weights) -> np.ndarray:
    """−Σ p ln p of each row."""
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)


def pooled(weights, tall: int, broad: int, how) -> np.ndarray:
    """Pool (..., queries, keys) bin by bin; the last bins are as small as they are."""
    add = np.add if how is np.mean else np.maximum
    rows, columns = weights.shape[-2:]
    tops, lefts = np.arange(0, rows, tall), np.arange(0, columns, broad)
    whole = add.reduceat(add.reduceat(weights, tops, axis=-2), lefts, axis=-1)
    pairs = np.diff([*tops, rows])[:, None] * np.diff([*lefts, columns])
    return whole / pairs if how is np.mean else whole


def causal(queries: int, keys: int) -> np.ndarray:
    """Row i of the queries, which are the last positions, sees keys 0 to i + keys − queries."""
    return np.tri(queries, keys, keys - queries, dtype=bool)


def window(queries: int, keys: int, before: int, after: int) -> np.ndarray:
    """The keys from `before` before the query to `after` after it."""
    distance = (np.arange(queries) + keys - queries)[:, None] - np.arange(keys)
    return (distance <= before) & (-distance <= after)


def _ungroup(x, group: int) -> np.ndarray:
    batch, heads, *rest = x.shape
    return x.reshape(batch, heads // group, group, *rest).sum(2)


def _unbroadcast(x, shape) -> np.ndarray:
    shape = (1,) * (x.ndim - len(shape)) + tuple(shape)
    return x.sum(tuple(d for d, size in enumerate(shape) if size == 1 and x.shape[d] > 1), keepdims=True)


class Largest(TorchDispatchMode):
    """Remembers the bytes of the largest tensor that any operation gives while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return result


def set_attention(model, implementation: str) -> None:
    """Let transformers compute attention so in every stack; its own call leaves out those of T5 before 5.20."""
    for stack in model.modules():
        if hasattr(stack, "set_attn_implementation"):
            stack.set_attn_implementation(implementation)
