"""Conversion of PyTorch's nn.MultiheadAttention and of its encoder and decoder layers, both ways."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.feed_forward import FeedForward

__all__ = ["copy_tensors", "read_block", "read_multihead", "refuse_more", "write_block", "write_multihead"]

_PARTS = ("q_proj", "k_proj", "v_proj")


def read_multihead(module: nn.MultiheadAttention) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Give the arguments and the state dict of a MultiHeadAttention that computes the same.

    Raises:
        InputError: It is no nn.MultiheadAttention, or it appends keys (bias_k, bias_v, add_zero_attn).
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise InputError(f"`module` must be an nn.MultiheadAttention, got {type(module).__name__}")
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        raise InputError(
            "`module` appends keys of its own (add_bias_kv or add_zero_attn), which has no place here: a learned sink, "
            "normalizer=normalizers.Softmax(sink), takes weight without being a key"
        )
    options = {
        "embed_dim": module.embed_dim,
        "num_heads": module.num_heads,
        "kdim": module.kdim,
        "vdim": module.vdim,
        "bias": module.in_proj_bias is not None,
        "dropout": module.dropout,
        "dtype": module.out_proj.weight.dtype,
        "device": module.out_proj.weight.device,
    }
    if module._qkv_same_embed_dim:
        weights = tuple(module.in_proj_weight.chunk(3))
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    state = {f"{part}.weight": weight for part, weight in zip(_PARTS, weights, strict=True)}
    state["out_proj.weight"] = module.out_proj.weight
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(3)
        state |= {f"{part}.bias": bias for part, bias in zip(_PARTS, biases, strict=True)}
        state["out_proj.bias"] = module.out_proj.bias
    return options, state


def refuse_more(names: list[str]) -> None:
    """Raise where arguments were given that nn.MultiheadAttention cannot say."""
    if names:
        raise InputError(
            f"nn.MultiheadAttention has no {', '.join(f'`{name}`' for name in names)} as given here: keep this module, "
            "or pass the mask at each call"
        )


def write_multihead(state: Mapping[str, Tensor], num_heads: int, dropout: float) -> nn.MultiheadAttention:
    """Make an nn.MultiheadAttention (batch first) of the tensors of four projections."""
    queries, keys, values = (state[f"{part}.weight"] for part in _PARTS)
    embed_dim, biased = queries.shape[0], "q_proj.bias" in state
    module = nn.MultiheadAttention(
        embed_dim,
        num_heads,
        dropout=dropout,
        bias=biased,
        kdim=keys.shape[1],
        vdim=values.shape[1],
        batch_first=True,
        device=queries.device,
        dtype=queries.dtype,
    )
    theirs = {"out_proj.weight": state["out_proj.weight"]}
    if module._qkv_same_embed_dim:
        theirs["in_proj_weight"] = torch.cat([queries, keys, values])
    else:
        theirs |= {"q_proj_weight": queries, "k_proj_weight": keys, "v_proj_weight": values}
    if biased:
        theirs["in_proj_bias"] = torch.cat([state[f"{part}.bias"] for part in _PARTS])
        theirs["out_proj.bias"] = state["out_proj.bias"]
    module.load_state_dict(theirs)
    return module


Block = TypeVar("Block", bound=nn.Module)


def read_block(layer: Any, kind: type[nn.Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Give the arguments and the state dict of a block that computes the same as a layer of this kind.

    Raises:
        InputError: It is of another kind, has another activation than ReLU and the exact GELU, or several dropouts.
    """
    if not isinstance(layer, kind):
        raise InputError(f"`layer` must be an nn.{kind.__name__}, got {type(layer).__name__}")
    theirs: Any = layer
    dropouts = {one.p for one in theirs.modules() if isinstance(one, nn.Dropout)} | {theirs.self_attn.dropout}
    if len(dropouts) > 1:
        raise InputError(f"`layer` must drop with one probability everywhere, got {sorted(dropouts)}: set them alike")
    options = {
        "embed_dim": theirs.self_attn.embed_dim,
        "num_heads": theirs.self_attn.num_heads,
        "dim_feedforward": theirs.linear1.out_features,
        "norm_first": theirs.norm_first,
        "layer_norm_eps": theirs.norm1.eps,
        "activation": _activation(theirs.activation),
        "dropout": dropouts.pop(),
        "bias": theirs.linear1.bias is not None,
    }
    attentions = {"attention": theirs.self_attn}
    if hasattr(theirs, "multihead_attn"):
        attentions["cross_attention"] = theirs.multihead_attn
    state = {f"{name}.{key}": one for name, part in attentions.items() for key, one in read_multihead(part)[1].items()}
    others = {"linear1": "feed_forward.up_proj", "linear2": "feed_forward.down_proj"}
    others |= {f"norm{index + 1}": f"norms.{index}" for index in range(len(attentions) + 1)}
    for its, ours in others.items():
        state |= {f"{ours}.{key}": one for key, one in getattr(theirs, its).state_dict().items()}
    return options, state


def copy_tensors(block: Block, layer: nn.Module, state: dict[str, Tensor]) -> Block:
    """Fill a block with a layer's tensors, in their type, on their device, and in the layer's mode."""
    one = next(layer.parameters())
    block.to(device=one.device, dtype=one.dtype).load_state_dict(state)
    return block.train(layer.training)


def write_block(block: Any, kind: type[nn.Module], attention_kind: type[nn.Module]) -> Any:
    """Make a layer of this kind, batch first, of the tensors of a block whose attentions are of `attention_kind`.

    Raises:
        InputError: The block has what PyTorch's layer cannot have.
    """
    attentions = {"attention": "self_attn", "cross_attention": "multihead_attn"}
    parts = {ours: getattr(block, ours) for ours in attentions if hasattr(block, ours)}
    feed, norms = block.feed_forward, list(block.norms)
    refused = [
        name
        for name, wrong in {
            "attention": not all(isinstance(one, attention_kind) for one in parts.values()),
            "feed_forward": not isinstance(feed, FeedForward),
            "norm": not all(isinstance(one, nn.LayerNorm) for one in norms),
        }.items()
        if wrong
    ]
    if not refused:
        dropouts = {block.dropout, feed.dropout} | {one.dropout for one in parts.values()}
        biases = {one.q_proj.bias is None for one in parts.values()}
        biases |= {one.bias is None for one in (feed.up_proj, *norms)}
        refused = [
            name
            for name, wrong in {
                "activation": feed.activation not in ("relu", "gelu"),
                "dropout": len(dropouts) > 1,
                "bias": len(biases) > 1,
                "layer_norm_eps": len({one.eps for one in norms}) > 1,
                "memory_dim": any(one.kdim != one.embed_dim or one.vdim != one.embed_dim for one in parts.values()),
            }.items()
            if wrong
        ]
    if refused:
        raise InputError(
            f"nn.{kind.__name__} has no {', '.join(f'`{name}`' for name in refused)} as given here: keep this module"
        )
    attention = block.attention
    layer: Any = kind(
        attention.embed_dim,
        attention.num_heads,
        feed.up_proj.out_features,
        dropout=block.dropout,
        activation=feed.activation,
        layer_norm_eps=norms[0].eps,
        batch_first=True,
        norm_first=block.norm_first,
        bias=feed.up_proj.bias is not None,
    )
    for ours, its in attentions.items():
        if ours in parts:
            setattr(layer, its, parts[ours].to_torch())
    pairs = {"linear1": feed.up_proj, "linear2": feed.down_proj}
    pairs |= {f"norm{index + 1}": one for index, one in enumerate(norms)}
    one = feed.up_proj.weight
    layer.to(device=one.device, dtype=one.dtype)
    for its, ours in pairs.items():
        getattr(layer, its).load_state_dict(ours.state_dict())
    return layer.train(block.training)


def _activation(function: Any) -> str:
    if function is functional.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is functional.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    name = getattr(function, "__name__", repr(function))
    raise InputError(f"`layer` must have ReLU or the exact GELU, got {name}: build an EncoderBlock and copy its parts")
