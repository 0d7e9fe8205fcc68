"""Projections as they are: with fewer heads than the constructor made where they are sharded or pruned, or replaced."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.functional import attention
from regard.hooks import are_sharded
from regard.masks import BoundMask, Mask
from regard.positions import Bias

__all__ = [
    "attend_heads",
    "check_groups",
    "check_local",
    "check_out_proj",
    "check_width_of",
    "in_features",
    "norm_heads",
    "out_features",
    "split_heads",
    "weight_of",
]

_LOCAL = "a plan of tensor parallelism must give outputs of the rank: ColwiseParallel() without use_local_output=False"


def _is_sharded(x: Tensor) -> bool:
    return type(x) is not Tensor and are_sharded(x)  # fast where it is a plain one


def split_heads(
    projection: str, x: Float[Tensor, "*batch n wide"], head_dim: int
) -> Float[Tensor, "*batch heads n head_dim"]:
    """View what a projection gives as heads of `head_dim`, as many as there are.

    Raises:
        InputError: The width is no multiple of `head_dim`.
    """
    width = x.shape[-1]
    part = x.to_local().shape[-1] if _is_sharded(x) else width  # type: ignore[attr-defined]
    if part % head_dim:
        raise InputError(
            f"`{projection}` must give whole heads of width {head_dim}, got a width of {part}: shard or prune its rows "
            f"by multiples of {head_dim}, with the number of ranks a divisor of that of the heads"
        )
    return x.reshape(*x.shape[:-1], width // head_dim, head_dim).transpose(-3, -2)


def norm_heads(
    name: str, norm: nn.Module | None, x: Float[Tensor, "*batch heads n head_dim"]
) -> Float[Tensor, "*batch heads n head_dim"]:
    """Apply `q_norm` or `k_norm`.

    Raises:
        InputError: It broadcasts, because it was made for another number of heads.
    """
    if norm is None:
        return x
    if _is_sharded(x) and not are_sharded(*norm.parameters()):
        raise InputError(f"`{name}` must have its parameters where x has its shards, got a DTensor: {_LOCAL}")
    normed: Tensor = norm(x)
    if normed.shape != x.shape:
        raise InputError(
            f"`{name}` must give the shape that it takes, {tuple(x.shape)}, got {tuple(normed.shape)}: shard or prune "
            "its heads as those of the projection"
        )
    return normed


def check_groups(heads: int, kv_heads: int, v_heads: int, num_heads: int, num_kv_heads: int) -> None:
    """Raise unless each query head has the key–value head that it had in a module of `num_heads` and `num_kv_heads`.

    A single key–value head serves all query heads, however many of them are left.

    Raises:
        InputError: Query heads and key–value heads were not sharded or pruned alike.
    """
    group = num_heads // num_kv_heads
    whole_groups = heads == kv_heads * group or kv_heads == num_kv_heads == 1
    if not whole_groups or v_heads != kv_heads:
        raise InputError(
            f"`q_proj`, `k_proj` and `v_proj` must keep {group} query heads for each key–value head, got {heads} heads "
            f"of queries, {kv_heads} of keys and {v_heads} of values in a module with num_heads={num_heads} and "
            f"num_kv_heads={num_kv_heads}: shard or prune all three alike, or set `num_heads` and `num_kv_heads` of "
            "the module to what is left"
        )


def attend_heads(
    num_heads: int,
    q: Float[Tensor, "*batch heads queries head_dim"],
    k: Float[Tensor, "*batch kv_heads keys head_dim"],
    v: Float[Tensor, "*batch kv_heads keys v_head_dim"],
    **options: Any,
) -> Any:
    """Call regard.attention in a module of `num_heads`, of which q may have a part.

    Raises:
        InputError: q has a part of the heads, and a value is for all of them.
    """
    heads = q.shape[-3]
    if heads == num_heads:
        return attention(q, k, v, **options)
    reason = (
        f"the module has {heads} of its num_heads={num_heads} heads, as its projections are sharded or pruned: give "
        "it values for these heads, such as the columns of T5Bias's table and the logits of a sink that are theirs"
    )
    for name, value in (("mask", options.get("mask")), ("attn_bias", options.get("bias"))):
        if _reads_head(value, q.shape[-2], k.shape[-2], q.device):
            raise InputError(
                f"`{name}` reads the number of a head, and {reason}, and define `leading`, the number of heads"
            )
    try:
        return attention(q, k, v, **options)
    except InputError as error:
        raise InputError(f"{error}; {reason}") from error


def _reads_head(value: object, queries: int, keys: int, device: torch.device) -> bool:
    """Whether a mask or bias, which does not say for how many heads it is, has a result for each head."""
    term = value.mask if isinstance(value, BoundMask) else value
    if not isinstance(term, Mask | Bias) or term.leading[1] != 1:
        return False  # attention compares numbers of heads
    if isinstance(term, Bias) and type(term).leading is not Bias.leading:
        return False  # one number for all heads
    one = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    return term.resolve(queries, keys, keys - queries)(one, one.expand(1, 2, 1, 1), one, one).shape[1] > 1


def check_out_proj(out_proj: nn.Module, x: Tensor) -> None:
    """Raise unless `out_proj` takes the heads that there are.

    A sharded weight is left to PyTorch's own plan, and a layer of another kind to itself.

    Raises:
        InputError: It was not sharded or pruned with the other projections.
    """
    if not isinstance(out_proj, nn.Linear):
        return
    if _is_sharded(x) and not are_sharded(out_proj.weight):
        raise InputError(
            "`out_proj` must be sharded as the other projections are, got a plain one: use RowwiseParallel"
        )
    if x.shape[-1] == out_proj.in_features:
        return
    if x.shape[-1] != in_features(out_proj) and not are_sharded(out_proj.weight):
        raise InputError(
            f"`out_proj` must take what the heads give, a width of {x.shape[-1]}, got in_features="
            f"{in_features(out_proj)}: shard it by RowwiseParallel, or prune its columns with the rows of `v_proj`"
        )


def check_local(argument: str, heads: Tensor) -> None:
    """Raise where an argument asks for what is not computed over DTensors.

    Raises:
        InputError: The heads are a DTensor.
    """
    if are_sharded(heads):
        raise InputError(f"`{argument}` must come with heads in plain tensors, got a DTensor of them: {_LOCAL}")


def check_width_of(projection: str, x: Tensor, width: int) -> None:
    """Raise unless a projection gives a width that the rest of the module was made for, in a plain tensor.

    Raises:
        InputError: It was sharded or pruned.
    """
    if _is_sharded(x) or x.shape[-1] != width:
        raise InputError(
            f"`{projection}` must give a plain tensor of width {width}, got {type(x).__name__} of width {x.shape[-1]}: "
            "it has no heads to shard or prune by, leave it whole"
        )


def weight_of(projection: str, layer: nn.Linear) -> Tensor:
    """Return the weight of a projection that a score computes with, in place of the layer.

    Raises:
        InputError: The layer was replaced by one that computes otherwise, such as an adapter, or is sharded.
    """
    if type(layer).forward is not nn.Linear.forward:
        raise InputError(
            f"`{projection}` must compute what nn.Linear does, as the score takes its weight only, got "
            f"{type(layer).__name__}: merge an adapter into the weight, or dequantize it"
        )
    if are_sharded(layer.weight):
        raise InputError(
            f"`{projection}` must be whole, as the score takes its weight, got a DTensor: leave it out of the plan of "
            "parallelize_module"
        )
    return layer.weight


def in_features(layer: nn.Linear) -> int:
    """Return the width that a layer's weight takes; the attribute may be of before its columns were pruned."""
    return layer.weight.shape[1]


def out_features(layer: nn.Linear) -> int:
    """Return the width that a layer's weight gives; the attribute may be of before its rows were pruned."""
    return layer.weight.shape[0]
