"""nn.MultiheadAttention's arguments and tensors, read and written under the names of our MultiHeadAttention."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError

__all__ = ["read_multihead", "refuse_more", "write_multihead"]

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
