"""Weights of an attention from a state dict, under the names that transformers, PyTorch and timm give them."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.nn.longformer import LongformerAttention
from regard.nn.multi_head import MultiHeadAttention

__all__ = ["LoadedKeys", "load_attention_state_dict"]

_QUERY = r"(?:query|q|q_proj|q_lin|to_q|query_proj|wq|w_q|linear_q)"
_KEY = _QUERY.replace("query", "key").replace("q", "k")
_VALUE = _QUERY.replace("query", "value").replace("q", "v")
_OUT = r"(?:dense|o|o_proj|out_proj|out_lin|to_out|to_out\.0|c_proj|wo|w_o|proj|output|linear_out|out)"
_FUSED = r"(?:c_attn|in_proj|Wqkv|wqkv|qkv|qkv_proj|to_qkv|W_pack|query_key_value)"
_INSIDE = r"(?:self|attention|attn|attention\.self|self_attn|output)\."

_ROLES = {
    _QUERY: "q_proj",
    _KEY: "k_proj",
    _VALUE: "v_proj",
    _OUT: "out_proj",
    **{f"{name}_global": f"{part}_global" for name, part in (("query", "q"), ("key", "k"), ("value", "v"))},
    **{f"{part}_global": f"{part}_global" for part in "qkv"},
    **{f"{part}_norm": f"{part}_norm" for part in "qk"},
    "relative_attention_bias": "attn_bias",
}
# Computed or constant in transformers, and not part of what an attention has learned.
_BUFFERS = re.compile(r"(?:.*\.)?(?:masked_bias|inv_freq|position_ids)")


class LoadedKeys(NamedTuple):
    """The result of load_attention_state_dict: the module's tensors without a value, and names that could not be
    placed.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_attention_state_dict(
    module: MultiHeadAttention | LongformerAttention,
    state_dict: Mapping[str, Tensor],
    prefix: str = "",
    *,
    strict: bool = True,
) -> LoadedKeys:
    """Load the tensors of another library's attention into a module, and return the names that could not be placed.

    The following names of projections are known. Each may be preceded by `self.`, `attention.` or `output.`:

    - separate projections: query, key, value and dense (BERT); q, k, v and o (T5); q_proj, k_proj, v_proj and o_proj or
      out_proj (Llama, BART); q_lin … (DistilBERT); to_q … (diffusers);
    - fused projections: c_attn (GPT-2, transposed); in_proj (PyTorch); qkv, qkv_proj and Wqkv (query, key and value
      concatenated); query_key_value (GPT-NeoX, interleaved by head);
    - others: query_global … (Longformer); q_norm and k_norm (Qwen 3); relative_attention_bias, if `module` has a
      positions.T5Bias.

    The module's sizes, `bias`, `scale` (1.0 for T5) and `rotary` must be set in its constructor, because a state dict
    does not contain them.

    Args:
        module: The module, which is changed in place; its dtype and device are preserved.
        state_dict: Tensors by name; names that do not begin with `prefix` are ignored.
        prefix: The prefix of one attention layer, such as "encoder.layer.0.attention.".
        strict: Whether missing and unexpected names raise an error, as in nn.Module.load_state_dict.

    Returns:
        The missing and the unexpected names, the latter as in `state_dict`.

    Raises:
        InputError: A tensor has another shape than the module's, or strict is True and something could not be placed;
            the module is then unchanged.

    >>> layer = MultiHeadAttention(4, 2)
    >>> names = ("query", "key", "value", "dense")
    >>> theirs = {f"self.{name}.weight": torch.ones(4, 4) for name in names} | {"LayerNorm.weight": torch.ones(4)}
    >>> load_attention_state_dict(layer, theirs, strict=False).unexpected_keys
    ['LayerNorm.weight']
    >>> bool((layer.v_proj.weight == 1).all())
    True
    """
    if not isinstance(module, MultiHeadAttention | LongformerAttention):
        raise InputError(
            f"`module` must be a MultiHeadAttention or a LongformerAttention, got {type(module).__name__}: of a block "
            "give block.attention"
        )
    given = {name: one for name, one in state_dict.items() if name.startswith(prefix)}
    if not given:
        raise InputError(
            f"no name of `state_dict` begins with `prefix` {prefix!r}: they are such as "
            f"{', '.join(list(state_dict)[:3])}"
        )
    wanted = module.state_dict()
    placed: dict[str, Tensor] = {}
    unexpected = []
    conv1d = any(_is_conv1d(name, one, module) for name, one in given.items())
    for name, tensor in given.items():
        ours = dict(_ours(name.removeprefix(prefix), tensor, module, conv1d))
        if not ours and (_BUFFERS.fullmatch(name) or (name.endswith("bias") and tensor.ndim == 4)):
            continue  # GPT-2's `bias` is a causal mask (1, 1, n, n)
        if not ours or not ours.keys() <= wanted.keys() or ours.keys() & placed.keys():
            unexpected.append(name)
        else:
            placed |= ours
    for name, tensor in placed.items():
        if tensor.shape != wanted[name].shape:
            raise InputError(
                f"`{name}` must have shape {tuple(wanted[name].shape)} in this module, got {tuple(tensor.shape)} from "
                "`state_dict`: build the module with the sizes of the checkpoint (embed_dim, num_heads, num_kv_heads, "
                "head_dim)"
            )
    missing = [name for name in wanted if name not in placed]
    if strict and (missing or unexpected):
        raise InputError(
            f"`state_dict` lacks {', '.join(missing) or 'nothing'}, and has no place for "
            f"{', '.join(unexpected) or 'nothing'}: build the module with what the checkpoint has (bias=, out_bias=), "
            "or take strict=False, which lists them"
        )
    module.load_state_dict(placed, strict=False)
    return LoadedKeys(missing, unexpected)


def _ours(name: str, tensor: Tensor, module: nn.Module, conv1d: bool) -> Iterator[tuple[str, Tensor]]:
    """The tensors of ours that one of theirs is; none if its name says nothing."""
    # PyTorch writes in_proj_weight and q_proj_weight, all others a dot.
    found = re.fullmatch(r"(?P<layer>.+?)[._](?P<kind>weight|bias)", name)
    if not found:
        return
    layer, kind = re.sub(rf"^(?:{_INSIDE})+", "", found["layer"]), found["kind"]
    if re.fullmatch(_FUSED, layer):
        yield from _split(layer, kind, tensor, module, conv1d)
        return
    for pattern, role in _ROLES.items():
        if re.fullmatch(pattern, layer):
            if role == "attn_bias":
                yield "attn_bias.table", tensor
                return
            turned = conv1d and kind == "weight" and layer == "c_proj"
            yield f"{role}.{kind}", tensor.T if turned else tensor
            return


def _rows(module: nn.Module) -> list[int]:
    layers = [getattr(module, f"{part}_proj") for part in "qkv"]
    return [one.out_features for one in layers]


def _split(layer: str, kind: str, tensor: Tensor, module: nn.Module, conv1d: bool) -> Iterator[tuple[str, Tensor]]:
    rows = _rows(module)
    tensor = tensor.T if kind == "weight" and conv1d and layer == "c_attn" else tensor
    if tensor.shape[0] != sum(rows):
        raise InputError(
            f"`{layer}.{kind}` must hold {rows[0]} rows of queries, {rows[1]} of keys and {rows[2]} of values, got "
            f"shape {tuple(tensor.shape)}: build the module with the sizes of the checkpoint (embed_dim, num_heads, "
            "num_kv_heads)"
        )
    if layer == "query_key_value":  # head by head: its queries, its keys, its values
        if len(set(rows)) > 1:
            return
        heads: int = module.num_heads  # type: ignore[assignment]
        parts = tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(1, 2).unbind()
    else:
        parts = tensor.split(rows)
    for part, one in zip("qkv", parts, strict=True):
        yield f"{part}_proj.{kind}", one


def _is_conv1d(name: str, tensor: Tensor, module: nn.Module) -> bool:
    """Whether this is GPT-2's fused layer, whose weight is (in, out) where nn.Linear's is (out, in)."""
    rows = sum(_rows(module))
    own: torch.Size = module.q_proj.weight.shape  # type: ignore[union-attr,assignment]
    return name.endswith("c_attn.weight") and tensor.shape == (own[1], rows) != (rows, own[1])
