"""`nn.MultiheadAttention` and the fast path of `nn.TransformerEncoderLayer`: q and k recomputed from their inputs.

A torch-function mode switches these modules' fast paths off and so changes their output (by 3.3 on padded input), so
they run with the mode out of the way, and what they attended to is computed from what went in.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.observe.intercept.calls import problem_of_sdpa
from regard.observe.second_pass import Computed
from regard.observe.site import Seen

__all__ = ["read_encoder_layer", "read_functional", "read_multihead"]

_MULTIHEAD = inspect.signature(nn.MultiheadAttention.forward)
_FUNCTIONAL = inspect.signature(functional.multi_head_attention_forward)
_ENCODER = inspect.signature(nn.TransformerEncoderLayer.forward)


def read_multihead(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Read a call of the module."""
    given = _bind(_MULTIHEAD, (module, *args), kwargs)
    q, k = given["query"], given["key"]
    cross = q is not k
    if q.is_nested:
        q, given["key_padding_mask"] = _padded(q)
        k = q
    elif q.ndim == 3 and not module.batch_first:
        q, k = q.transpose(0, 1), k.transpose(0, 1)
    q, k = (x if x.ndim == 3 else x[None] for x in (q, k))
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    return _seen(module, given, (q, k), weights, cross=cross)


def read_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Read a call of `F.multi_head_attention_forward`, whose tensors are (length, batch, width)."""
    given = _bind(_FUNCTIONAL, args, kwargs)
    cross = given["query"] is not given["key"]
    q, k = (x.transpose(0, 1) if x.ndim == 3 else x[None] for x in (given["query"], given["key"]))
    if given["use_separate_proj_weight"]:
        weights = (given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"])
    else:
        weights = given["in_proj_weight"].chunk(3)

    class Holder:
        """The attributes of the module that this function was given as arguments."""

        num_heads = given["num_heads"]
        in_proj_bias, bias_k, bias_v = given["in_proj_bias"], given["bias_k"], given["bias_v"]
        add_zero_attn = given["add_zero_attn"]

    return _seen(Holder, given, (q, k), weights, cross=cross)


def read_encoder_layer(layer: nn.TransformerEncoderLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Read a call of an encoder layer that took its fast path, in which no inner module is called."""
    given = _bind(_ENCODER, (layer, *args), kwargs)
    x, hidden = given["src"], given["src_key_padding_mask"]
    if x.is_nested:
        x, hidden = _padded(x)
    x = layer.norm1(x) if layer.norm_first else x
    passed = {"attn_mask": given["src_mask"], "key_padding_mask": hidden, "is_causal": given["is_causal"]}
    return read_multihead(layer.self_attn, (x, x, x), passed)


def _bind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _seen(module: Any, given: dict[str, Any], inputs: tuple[Tensor, Tensor], weights: Any, *, cross: bool) -> Seen:
    """Project, split into heads, and merge the masks, of which True hides."""
    heads, bias = module.num_heads, module.in_proj_bias
    biases = bias.chunk(3) if bias is not None else (None, None, None)
    q = functional.linear(inputs[0], weights[0], biases[0])
    k = functional.linear(inputs[1], weights[1], biases[1])
    if module.bias_k is not None:
        k = torch.cat([k, module.bias_k.transpose(0, 1).expand(len(k), -1, -1)], 1)
    if module.add_zero_attn:
        k = torch.cat([k, k.new_zeros(len(k), 1, k.shape[-1])], 1)
    split = [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k)]
    attend = _attend(given, batch=len(q), heads=heads, queries=q.shape[1], keys=k.shape[1])
    problem = problem_of_sdpa(split[0], split[1], attend)

    def project() -> Tensor:
        return _values(module, given, inputs[1], (weights[2], biases[2]))

    return Seen(Computed(problem), problem.k, cross=cross, project=project)


def _values(module: Any, given: dict[str, Any], keys: Tensor, projection: tuple[Tensor, Tensor | None]) -> Tensor:
    """The values, projected as the keys are: from the keys' own input where values are those, in the same layout."""
    value = given["value"]
    if value is given["key"]:
        value = keys
    elif value.is_nested:
        value = _padded(value)[0]
    elif value.ndim == 2:
        value = value[None]
    elif not getattr(module, "batch_first", False):
        value = value.transpose(0, 1)
    v = functional.linear(value, *projection)
    if (bias := module.bias_v) is not None:
        v = torch.cat([v, bias.transpose(0, 1).expand(len(v), -1, -1)], 1)
    if module.add_zero_attn:
        v = torch.cat([v, v.new_zeros(len(v), 1, v.shape[-1])], 1)
    split: Tensor = v.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
    return split


def _attend(given: dict[str, Any], *, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    """Both masks as one that SDPA would take; the columns that bias_k and add_zero_attn append are seen by all."""
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    parts = []
    if mask is not None:
        parts.append(mask.view(batch, heads, queries, -1) if mask.ndim == 3 else mask[None, None])
    if padding is not None:
        parts.append((padding if padding.ndim == 2 else padding[None])[:, None, None])
    total: Tensor | None = None
    for part in parts:
        sees = False if part.dtype == torch.bool else 0.0
        total = _add(total, functional.pad(part, (0, keys - part.shape[-1]), value=sees))
    return ~total if total is not None and total.dtype == torch.bool else total


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    """Join two masks: booleans by or, else as numbers that are added to the scores."""
    if total is None:
        return part
    if total.dtype == part.dtype == torch.bool:
        return total | part
    numbers = [
        torch.zeros_like(x, dtype=torch.float32).masked_fill(x, -torch.inf) if x.dtype == torch.bool else x
        for x in (total, part)
    ]
    return numbers[0] + numbers[1]


def _padded(nested: Tensor) -> tuple[Tensor, Tensor]:
    """A nested batch as a padded one, with True where it is padding."""
    lengths = torch.tensor([len(sequence) for sequence in nested.unbind()], device=nested.device)
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    return padded, torch.arange(padded.shape[1], device=nested.device) >= lengths[:, None]
