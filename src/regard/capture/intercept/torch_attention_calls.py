"""Convert calls of PyTorch's attention functions to problems, without checks, since the model's call is valid."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.capture.call_site import Seen
from regard.capture.weights_from_qk import Computed
from regard.masks import Causal, Dense
from regard.positions import DenseBias
from regard.problem import Problem

__all__ = ["TRANSFORMED", "is_transformed", "padded", "problem_of_sdpa", "read_sdpa"]

TRANSFORMED = (
    "computes attention under torch.func (vmap, grad), where single calls have no values to be seen: watch it without "
    "the transform"
)


def is_transformed() -> bool:
    """Return whether the code runs under torch.func, whose tensors have no values of their own."""
    return torch._C._functorch.maybe_current_level() is not None


def read_sdpa(module: nn.Module | None, arguments: dict[str, Any]) -> Seen:
    """Return a call of `F.scaled_dot_product_attention` as a Seen."""
    q, k, v, mask = *(arguments[name] for name in ("query", "key", "value")), arguments.get("attn_mask")
    if q.is_nested:
        (q, _), (k, hidden), (v, _) = map(padded, (q, k, v))
        mask = ~hidden.reshape(
            len(hidden), *(1,) * (k.ndim - 2), -1
        )  # PyTorch does not support masks with nested tensors
    q, mask = _unpack_groups(module, q, k, mask)
    problem = problem_of_sdpa(q, k, mask, is_causal=arguments.get("is_causal", False), scale=arguments.get("scale"))
    return Seen(Computed(problem), problem.k, values=_values(problem, v.detach()))


def padded(nested: Tensor) -> tuple[Tensor, Tensor]:
    """Return a nested batch (batch, ..., length, width) as a padded one, with flags (batch, length) that are True for
    padding.
    """
    lengths = torch.tensor([one.shape[-2] for one in nested.unbind()], device=nested.device)
    whole = torch.nested.to_padded_tensor(nested, 0.0)
    return whole, torch.arange(whole.shape[-2], device=nested.device) >= lengths[:, None]


def _values(problem: Problem, v: Tensor) -> Tensor:
    """Return the values with four dimensions, in the layout of the keys."""
    if v.ndim == 3 and problem.heads == 1:
        v = v[:, None]  # (batch, length, width)
    v = v if v.ndim > 2 else v[None]
    leading = v.shape[:-3] if v.ndim > 4 else (problem.batch,)
    return v.expand(*leading, *v.shape[-3:]).reshape(math.prod(leading), *v.shape[-3:])


def problem_of_sdpa(
    q: Tensor, k: Tensor, attend: Tensor | None, *, is_causal: bool = False, scale: float | None = None
) -> Problem:
    """Convert q, k and a mask of PyTorch's (True or a finite number = visible) to a problem with four dimensions.

    Weights do not depend on values, so the keys are used in their place.
    """
    q, k = q.detach(), k.detach()
    leading = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3]) if q.ndim > 3 else ()
    if q.ndim == 3:
        # Three dimensions are (batch, length, width): each batch entry has one head.
        leading = torch.broadcast_shapes(q.shape[:1], k.shape[:1])
        q, k = q[:, None], k[:, None]
        attend = attend[:, None] if attend is not None and attend.ndim == 3 else attend
    elif q.ndim == 2:
        q, k = q[None], k[None]
    q = q.expand(*leading, *q.shape[-3:]).reshape(math.prod(leading), *q.shape[-3:])
    k = k.expand(*leading, *k.shape[-3:]).reshape(math.prod(leading), *k.shape[-3:])
    if attend is not None:
        attend = attend.detach()
        attend = attend.reshape((1,) * max(0, 4 - attend.ndim) + tuple(attend.shape))
        if attend.ndim > 4:
            attend = attend.expand(*leading, *attend.shape[-3:]).reshape(math.prod(leading), *attend.shape[-3:])
    mask, bias = _mask_and_bias(q, k, attend, is_causal)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    queries, keys = q.shape[2], k.shape[2]
    placed = None if bias is None else DenseBias(bias).resolve(queries, keys, keys - queries)
    return Problem(q, k, k, scale=scale, mask=mask, bias=placed)


def _mask_and_bias(q: Tensor, k: Tensor, attend: Tensor | None, is_causal: bool) -> tuple[Any, Tensor | None]:
    queries, keys = q.shape[2], k.shape[2]
    mask = Causal(align="start").bind(queries, keys) if is_causal else None
    if attend is None:
        return mask, None
    if attend.dtype == torch.bool:
        dense = Dense(attend)
        return (dense if mask is None else dense & Causal(align="start")).bind(queries, keys), None
    return mask, attend


def _unpack_groups(module: nn.Module | None, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Undo transformers' packing, which passes the heads of a group as queries if there is one query of grouped
    heads.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    kv_heads = getattr(getattr(module, "config", None), "num_key_value_heads", None)
    packed = groups > 1 and q.ndim == 4 and q.shape[1] == k.shape[1] == kv_heads and q.shape[2] == groups
    if not packed:
        return q, mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], -1, 1, mask.shape[-1])
    return q.reshape(q.shape[0], -1, 1, q.shape[-1]), mask
