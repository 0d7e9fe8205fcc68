"""PyTorch's Transformer layers, read under the names of our blocks."""

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.torch_multi_head import read_multihead

__all__ = ["copy_tensors", "read_block"]

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


def _activation(function: Any) -> str:
    if function is functional.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is functional.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    name = getattr(function, "__name__", repr(function))
    raise InputError(f"`layer` must have ReLU or the exact GELU, got {name}: build an EncoderBlock and copy its parts")
