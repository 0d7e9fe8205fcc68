"""PyTorch's Transformer layers, read under the names of our blocks."""

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.feed_forward import FeedForward
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.torch_multi_head import read_multihead

__all__ = ["copy_tensors", "read_block", "write_block"]

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


def write_block(block: Any, kind: type[nn.Module]) -> Any:
    """Make a layer of this kind, batch first, of a block's tensors.

    Raises:
        InputError: The block has what PyTorch's layer cannot have.
    """
    attentions = {"attention": "self_attn", "cross_attention": "multihead_attn"}
    parts = {ours: getattr(block, ours) for ours in attentions if hasattr(block, ours)}
    feed, norms = block.feed_forward, list(block.norms)
    refused = [
        name
        for name, wrong in {
            "attention": not all(isinstance(one, MultiHeadAttention) for one in parts.values()),
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
