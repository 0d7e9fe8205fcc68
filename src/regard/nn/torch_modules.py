"""Conversion of PyTorch's nn.MultiheadAttention and of its encoder and decoder layers, both ways.

A copy has what decides its results and its training: the tensors in their types and on their devices, which of them
are trained, and the mode of each part. What it could not have is refused (`regard.nn.convertible`).
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.convertible import check_convertible, check_untied, copied_parameter, copy_training, fill
from regard.nn.feed_forward import FeedForward
from regard.nn.projections import in_features, out_features

__all__ = ["fill_block", "fill_multihead", "read_block", "read_multihead", "write_block", "write_multihead"]

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_ATTENTIONS = {"attention": "self_attn", "cross_attention": "multihead_attn"}  # of a block, and of PyTorch's layer


def read_multihead(module: object, name: str = "module") -> dict[str, Any]:
    """Give the arguments of a MultiHeadAttention that computes the same.

    Raises:
        InputError: It is no nn.MultiheadAttention, appends keys (bias_k, bias_v, add_zero_attn), or has what a copy
            could not have.
    """
    check_convertible(name, module, nn.MultiheadAttention)
    assert isinstance(module, nn.MultiheadAttention)
    check_convertible(f"{name}.out_proj", module.out_proj, nn.Linear)
    check_untied({name: module})
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        raise InputError(
            f"`{name}` appends keys of its own (add_bias_kv or add_zero_attn), which has no place here: a learned "
            "sink, normalizer=normalizers.Softmax(sink), takes weight without being a key"
        )
    return {
        "embed_dim": module.embed_dim,
        "num_heads": module.num_heads,
        "kdim": module.kdim,
        "vdim": module.vdim,
        "bias": module.in_proj_bias is not None,
        "out_bias": module.out_proj.bias is not None,
        "dropout": module.dropout,
        "device": module.out_proj.weight.device,
        "dtype": module.out_proj.weight.dtype,
    }


def fill_multihead(attention: nn.Module, module: nn.MultiheadAttention, name: str = "module") -> None:
    """Give a MultiHeadAttention copies of the parameters of PyTorch's, in the mode that they have."""
    parameters = {"out_proj.weight": copied_parameter(module.out_proj.weight)}
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    for projection, weight in zip(_PROJECTIONS, weights, strict=True):
        parameters[f"{projection}.weight"] = copied_parameter(weight)
    if module.in_proj_bias is not None:
        for projection, bias in zip(_PROJECTIONS, module.in_proj_bias.chunk(3), strict=True):
            parameters[f"{projection}.bias"] = copied_parameter(bias)
    if module.out_proj.bias is not None:
        parameters["out_proj.bias"] = copied_parameter(module.out_proj.bias)
    fill(name, attention, parameters)
    attention.train(module.training)
    copy_training([(module.out_proj, attention.get_submodule("out_proj"))])


def write_multihead(attention: Any, kind: type[nn.Module], name: str = "self") -> nn.MultiheadAttention:
    """Make an nn.MultiheadAttention (batch first) that computes the same as a MultiHeadAttention, which is `kind`.

    Raises:
        InputError: That has what nn.MultiheadAttention cannot say, or what a copy could not have.
    """
    check_convertible(name, attention, kind)
    layers = {layer: getattr(attention, layer) for layer in (*_PROJECTIONS, "out_proj")}
    for layer_name, layer in layers.items():
        check_convertible(f"{name}.{layer_name}", layer, nn.Linear)
    check_untied({name: attention})
    q_proj, k_proj, v_proj, out_proj = layers.values()
    embed_dim = in_features(q_proj)
    parts = ("score", "mask", "attn_bias", "rotary", "normalizer", "scale", "q_norm", "k_norm")
    widths = {
        "num_kv_heads": attention.num_kv_heads != attention.num_heads,
        "head_dim": not attention.head_dim * attention.num_heads == out_features(q_proj) == embed_dim,
        "v_head_dim": attention.v_head_dim != attention.head_dim,
        "out_dim": out_features(out_proj) != embed_dim,
        "bias": len({layer.bias is None for layer in (q_proj, k_proj, v_proj)}) > 1,
        "out_bias": (out_proj.bias is None) != (q_proj.bias is None),
    }
    lacking = [part for part in parts if getattr(attention, part) is not None]
    lacking += [width for width, differs in widths.items() if differs]
    if lacking:
        raise InputError(
            f"nn.MultiheadAttention has no {', '.join(f'`{part}`' for part in lacking)} as given here: keep this "
            "module, or pass the mask at each call"
        )
    module = nn.MultiheadAttention(
        embed_dim,
        attention.num_heads,
        dropout=attention.dropout,
        bias=q_proj.bias is not None,
        kdim=in_features(k_proj),
        vdim=in_features(v_proj),
        batch_first=True,
        device="meta",
    )
    parameters = {f"out_proj.{key}": copied_parameter(one) for key, one in out_proj.named_parameters()}
    if module._qkv_same_embed_dim:
        parameters["in_proj_weight"] = _fused(name, "weight", q_proj, k_proj, v_proj)
    else:
        for layer_name in _PROJECTIONS:
            parameters[f"{layer_name}_weight"] = copied_parameter(layers[layer_name].weight)
    if q_proj.bias is not None:
        parameters["in_proj_bias"] = _fused(name, "bias", q_proj, k_proj, v_proj)
    fill(name, module, parameters)
    module.train(attention.training)
    copy_training([(out_proj, module.out_proj)])
    return module


def _fused(name: str, key: str, *layers: nn.Module) -> nn.Parameter:
    """One parameter of three, below one another.

    Raises:
        InputError: They are not of one type, on one device, or all trained or all frozen.
    """
    parameters: list[nn.Parameter] = [getattr(layer, key) for layer in layers]
    kinds = [f"{'trained' if one.requires_grad else 'frozen'} {one.dtype} on {one.device}" for one in parameters]
    if len(set(kinds)) > 1:
        raise InputError(
            f"`{name}` must have q_proj.{key}, k_proj.{key} and v_proj.{key} all trained or all frozen, of one type on "
            f"one device, as nn.MultiheadAttention has them in one in_proj_{key}, got {', '.join(kinds)}: call "
            "requires_grad_() or .to() on all three"
        )
    return nn.Parameter(torch.cat([one.detach() for one in parameters]), requires_grad=parameters[0].requires_grad)


def read_block(layer: Any, kind: type[nn.Module]) -> dict[str, Any]:
    """Give the arguments of a block that computes the same as a layer of this kind.

    Raises:
        InputError: It is of another kind, has another activation than ReLU and the exact GELU, several dropouts, or
            what a copy could not have.
    """
    check_convertible("layer", layer, kind)
    attentions = [name for name in _ATTENTIONS.values() if hasattr(layer, name)]
    norms = [f"norm{index + 1}" for index in range(len(attentions) + 1)]
    dropouts = ["dropout", *(f"dropout{index + 1}" for index in range(len(norms)))]
    for names, part_kind in (
        (("linear1", "linear2"), nn.Linear),
        (norms, nn.LayerNorm),
        (dropouts, nn.Dropout),
    ):
        for name in names:
            check_convertible(f"layer.{name}", getattr(layer, name), part_kind)
    options = [read_multihead(getattr(layer, name), f"layer.{name}") for name in attentions]
    check_untied({"layer": layer})
    probabilities = {getattr(layer, name).p for name in dropouts} | {option["dropout"] for option in options}
    eps = {getattr(layer, name).eps for name in norms}
    heads = {option["num_heads"] for option in options}
    for what, values in (
        ("drop with one probability", probabilities),
        ("have one `eps`", eps),
        ("have one `num_heads`", heads),
    ):
        if len(values) > 1:
            raise InputError(f"`layer` must {what} everywhere, got {sorted(values)}: set them alike")
    residual = {getattr(layer, name).training for name in dropouts[1:]}
    if probabilities != {0.0} and len(residual) > 1:
        raise InputError(
            f"`layer` must have {', '.join(dropouts[1:])} in one mode, as a block has one for all: call "
            "layer.train() or layer.eval()"
        )
    return {
        "embed_dim": layer.self_attn.embed_dim,
        "num_heads": layer.self_attn.num_heads,
        "dim_feedforward": out_features(layer.linear1),
        "norm_first": layer.norm_first,
        "layer_norm_eps": eps.pop(),
        "activation": _activation(layer.activation),
        "dropout": probabilities.pop(),
        "bias": layer.linear1.bias is not None,
    }


def fill_block(block: Any, layer: Any) -> None:
    """Give a block copies of a layer's parameters, each part in the mode that it has."""
    block.train(layer.dropout1.training)
    for ours, theirs in _ATTENTIONS.items():
        if hasattr(layer, theirs):
            fill_multihead(getattr(block, ours), getattr(layer, theirs), f"layer.{theirs}")
    copy_training([(layer.dropout, block.feed_forward)])
    for own, source in _leaves(block, layer):
        fill("layer", own, {key: copied_parameter(one) for key, one in source.named_parameters()})
        copy_training([(source, own)])


def write_block(block: Any, own_kind: type[nn.Module], kind: type[nn.Module], attention_kind: type[nn.Module]) -> Any:
    """Make a layer of a kind of PyTorch's, batch first, that computes the same as a block.

    Raises:
        InputError: The block has what PyTorch's layer cannot have, or what a copy could not have.
    """
    check_convertible("self", block, own_kind)
    attentions = {name: getattr(block, name) for name in _ATTENTIONS if hasattr(block, name)}
    feed_forward, norms = block.feed_forward, list(block.norms)
    _refuse(
        kind,
        {
            "attention": not all(isinstance(one, attention_kind) for one in attentions.values()),
            "feed_forward": not isinstance(feed_forward, FeedForward),
            "norm": not all(isinstance(one, nn.LayerNorm) for one in norms),
        },
    )
    check_convertible("self.feed_forward", feed_forward, FeedForward)
    for name, one in {"up_proj": feed_forward.up_proj, "down_proj": feed_forward.down_proj}.items():
        check_convertible(f"self.feed_forward.{name}", one, nn.Linear)
    for index, one in enumerate(norms):
        check_convertible(f"self.norms.{index}", one, nn.LayerNorm)
    check_untied({"self": block})
    biases = {one.q_proj.bias is None for one in attentions.values() if hasattr(one.q_proj, "bias")}
    biases |= {one.bias is None for one in (feed_forward.up_proj, feed_forward.down_proj, *norms)}
    _refuse(
        kind,
        {
            "activation": feed_forward.activation not in ("relu", "gelu"),
            "dropout": len({block.dropout, feed_forward.dropout, *(one.dropout for one in attentions.values())}) > 1,
            "bias": len(biases) > 1,
            "layer_norm_eps": len({one.eps for one in norms}) > 1,
            "memory_dim": any(one.kdim != one.embed_dim or one.vdim != one.embed_dim for one in attentions.values()),
        },
    )
    layer: Any = kind(
        block.attention.embed_dim,
        block.attention.num_heads,
        out_features(feed_forward.up_proj),
        dropout=block.dropout,
        activation=feed_forward.activation,
        layer_norm_eps=norms[0].eps,
        batch_first=True,
        norm_first=block.norm_first,
        bias=feed_forward.up_proj.bias is not None,
        device="meta",
    )
    layer.train(block.training)
    for ours, theirs in _ATTENTIONS.items():
        if ours in attentions:
            setattr(layer, theirs, write_multihead(attentions[ours], attention_kind, f"self.{ours}"))
    copy_training([(feed_forward, layer.dropout)])
    for source, copy in _leaves(block, layer):
        fill("self", copy, {key: copied_parameter(one) for key, one in source.named_parameters()})
        copy_training([(source, copy)])
    return layer


def _leaves(block: Any, layer: Any) -> list[tuple[nn.Module, nn.Module]]:
    """The layers of a block and of PyTorch's that hold the same parameters under the same names."""
    feed_forward = [(block.feed_forward.up_proj, layer.linear1), (block.feed_forward.down_proj, layer.linear2)]
    return feed_forward + [(norm, getattr(layer, f"norm{index + 1}")) for index, norm in enumerate(block.norms)]


def _refuse(kind: type[nn.Module], differing: dict[str, bool]) -> None:
    """Raise where arguments were given that PyTorch's layer cannot say."""
    if any(differing.values()):
        names = ", ".join(f"`{name}`" for name, differs in differing.items() if differs)
        raise InputError(f"nn.{kind.__name__} has no {names} as given here: keep this module")


def _activation(function: Any) -> str:
    if function in (functional.relu, torch.relu) or type(function) is nn.ReLU:
        return "relu"
    if function is functional.gelu or (type(function) is nn.GELU and function.approximate == "none"):
        return "gelu"
    name = getattr(function, "__name__", repr(function))
    raise InputError(f"`layer` must have ReLU or the exact GELU, got {name}: build an EncoderBlock and copy its parts")
