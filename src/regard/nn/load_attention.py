"""Weights of an attention from a state dict, under the names that transformers, PyTorch and timm give them."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.errors import InputError
from regard.nn.longformer import LongformerAttention
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.projections import in_features, out_features

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
FusedLayout = Literal["concatenated", "interleaved"]
# Names that models give to layers of several layouts, with the models; in PyTorch in_proj has an underscore after it.
_SEVERAL_LAYOUTS = {
    "c_attn": '"concatenated" in Qwen, "interleaved" in GPTBigCode without multi_query',
    "in_proj": '"interleaved" in DeBERTa',
    "qkv_proj": '"concatenated" in Phi-3, and in an order of its own in CodeGen, which you have to split yourself',
    "query_key_value": '"interleaved" in Falcon, "concatenated" in ChatGLM2',
    "wqkv": '"concatenated" in gpt-fast, "interleaved" in InternLM2',
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
    fused_layout: FusedLayout | None = None,
) -> LoadedKeys:
    """Load the tensors of another library's attention into a module, and return the names that could not be placed.

    The following names of projections are known. Each may be preceded by `self.`, `attention.` or `output.`:

    - separate projections: query, key, value and dense (BERT); q, k, v and o (T5); q_proj, k_proj, v_proj and o_proj or
      out_proj (Llama, BART); q_lin … (DistilBERT); to_q … (diffusers);
    - fused projections: c_attn (GPT-2, transposed), in_proj_weight (PyTorch), qkv, to_qkv, Wqkv and W_pack: query, key
      and value concatenated; query_key_value (GPT-NeoX, BLOOM): interleaved by head;
    - fused projections that models lay out differently, for which `fused_layout` is needed: qkv_proj, wqkv,
      in_proj.weight, c_attn that is not transposed, and query_key_value with fewer key–value heads;
    - others: query_global … (Longformer); q_norm and k_norm (Qwen 3); relative_attention_bias, if `module` has a
      positions.T5Bias.

    The module's sizes, `bias`, `scale` (1.0 for T5) and `rotary` must be set in its constructor, because a state dict
    does not contain them.

    Args:
        module: The module, which is changed in place; its dtype and device are preserved.
        state_dict: Tensors by name; names that do not begin with `prefix` are ignored.
        prefix: The prefix of one attention layer, such as "encoder.layer.0.attention.".
        strict: Whether missing and unexpected names raise an error, as in nn.Module.load_state_dict.
        fused_layout: How the rows of a fused projection are ordered: "concatenated" (all queries, all keys, all values)
            or "interleaved" (for each key–value head its queries, its key and its value); by its name if None.

    Returns:
        The missing and the unexpected names, the latter as in `state_dict`.

    Raises:
        InputError: A tensor has another shape than the module's, the layout of a fused one is not known, or strict is
            True and something could not be placed; the module is then unchanged.

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
    if fused_layout not in (None, "concatenated", "interleaved"):
        raise InputError(f'`fused_layout` must be "concatenated", "interleaved" or None, got {fused_layout!r}')
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
        ours = dict(_ours(name.removeprefix(prefix), tensor, module, conv1d, fused_layout))
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


def _ours(
    name: str,
    tensor: Tensor,
    module: MultiHeadAttention | LongformerAttention,
    conv1d: bool,
    fused_layout: FusedLayout | None,
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of ours that one of theirs is; none if its name says nothing."""
    # PyTorch writes in_proj_weight and q_proj_weight, all others a dot.
    match = re.fullmatch(r"(?P<layer>.+?)(?P<separator>[._])(?P<kind>weight|bias)", name)
    if not match:
        return
    layer, kind = re.sub(rf"^(?:{_INSIDE})+", "", match["layer"]), match["kind"]
    if re.fullmatch(_FUSED, layer):
        rows = _rows(module)
        known = conv1d if layer == "c_attn" else layer == "in_proj" and match["separator"] == "_"
        known = known or (layer == "query_key_value" and rows[0] == rows[1])
        if layer in _SEVERAL_LAYOUTS and not known and fused_layout is None:
            raise InputError(
                f"`fused_layout` must be specified for `{name}`, whose rows models order differently: it is "
                f"{_SEVERAL_LAYOUTS[layer]}"
            )
        by_name: FusedLayout = "interleaved" if layer == "query_key_value" else "concatenated"
        is_transposed = kind == "weight" and conv1d and layer == "c_attn"
        parts = _split(f"{layer}.{kind}", tensor.T if is_transposed else tensor, rows, module, fused_layout or by_name)
        yield from zip((f"{part}_proj.{kind}" for part in "qkv"), parts, strict=True)
        return
    for pattern, role in _ROLES.items():
        if re.fullmatch(pattern, layer):
            if role == "attn_bias":
                yield "attn_bias.table", tensor
                return
            is_transposed = conv1d and kind == "weight" and layer == "c_proj"
            yield f"{role}.{kind}", tensor.T if is_transposed else tensor
            return


def _rows(module: MultiHeadAttention | LongformerAttention) -> list[int]:
    return [out_features(layer) for layer in (module.q_proj, module.k_proj, module.v_proj)]


def _split(
    name: str,
    tensor: Tensor,
    rows: list[int],
    module: MultiHeadAttention | LongformerAttention,
    layout: FusedLayout,
) -> tuple[Tensor, ...]:
    """Split a fused projection into those of queries, keys and values."""
    if tensor.shape[0] != sum(rows):
        raise InputError(
            f"`{name}` must hold {rows[0]} rows of queries, {rows[1]} of keys and {rows[2]} of values, got shape "
            f"{tuple(tensor.shape)}: build the module with the sizes of the checkpoint (embed_dim, num_heads, "
            "num_kv_heads)"
        )
    if layout == "concatenated":
        return torch.split(tensor, rows)
    kv_heads = rows[1] // module.head_dim
    by_head = torch.split(tensor.unflatten(0, (kv_heads, -1)), [size // kv_heads for size in rows], 1)
    return tuple(part.flatten(0, 1) for part in by_head)


def _is_conv1d(name: str, tensor: Tensor, module: MultiHeadAttention | LongformerAttention) -> bool:
    """Whether this is GPT-2's fused layer, whose weight is (in, out) where nn.Linear's is (out, in)."""
    rows, width = sum(_rows(module)), in_features(module.q_proj)
    return name.endswith("c_attn.weight") and tensor.shape == (width, rows) != (rows, width)
