"""Llama, Mistral and Qwen2 (and SmolLM2, which is a Llama)."""

from types import SimpleNamespace
from typing import Any

from regard.models.config import TransformerConfig
from regard.models.families.base import Family, Raw, choose, label_count, need, refuse, tokens
from regard.models.output_heads import LanguageModel, SequenceClassification, TokenClassification
from regard.positions import RoPE

__all__ = ["LLAMA", "MISTRAL", "QWEN2"]

_PART = r"\.(weight|bias)"
_RULES = (
    (r"embed_tokens\.weight", "embedding.weight"),
    (rf"layers\.(\d+)\.self_attn\.(q|k|v)_proj{_PART}", r"decoder.layers.\1.attention.\2_proj.\3"),
    (rf"layers\.(\d+)\.self_attn\.o_proj{_PART}", r"decoder.layers.\1.attention.out_proj.\2"),
    (rf"layers\.(\d+)\.mlp\.(up|gate|down)_proj{_PART}", r"decoder.layers.\1.feed_forward.\2_proj.\3"),
    (r"layers\.(\d+)\.input_layernorm\.weight", r"decoder.layers.\1.norms.0.weight"),
    (r"layers\.(\d+)\.post_attention_layernorm\.weight", r"decoder.layers.\1.norms.1.weight"),
    (r"norm\.weight", "decoder.norm.weight"),
    (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", ""),
    (r"lm_head\.weight", "output_head.weight"),
    (rf"score{_PART}", r"output_head.classify.\1"),
)


def _config(
    raw: Raw, qkv_bias: bool, out_bias: bool, window: int | None, layers: tuple[Any, ...] | None
) -> TransformerConfig:
    refuse(raw, hidden_act="silu", mlp_bias=False, partial_rotary_factor=1.0)
    refuse(raw.get("rope_parameters") or {}, partial_rotary_factor=1.0)  # transformers turns the whole head regardless
    refuse(raw, is_causal=True)
    if raw.get("rope_scaling") and raw.get("rope_parameters"):
        refuse(raw, rope_scaling=raw["rope_parameters"])  # transformers takes the first, and not the second
    heads = {
        "ForCausalLM": LanguageModel(tie_word_embeddings=raw.get("tie_word_embeddings", False)),
        "ForSequenceClassification": SequenceClassification(
            label_count(raw), pooling="last", use_tanh_layer=False, bias=False
        ),
        "ForTokenClassification": TokenClassification(label_count(raw)),
    }
    return TransformerConfig(
        vocab_size=need(raw, "vocab_size"),
        hidden_size=need(raw, "hidden_size"),
        num_attention_heads=need(raw, "num_attention_heads"),
        num_key_value_heads=raw.get("num_key_value_heads"),
        head_dim=raw.get("head_dim"),
        intermediate_size=need(raw, "intermediate_size"),
        decoder_layers=need(raw, "num_hidden_layers"),
        norm="rms",
        norm_first=True,
        layer_norm_eps=raw.get("rms_norm_eps", 1e-6),
        hidden_act="silu",
        is_gated_act=True,
        positions=_rope(raw),
        scale_embedding=False,
        bias=False,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        sliding_window=window,
        layer_types=layers,
        dropout=0.0,
        attention_dropout=raw.get("attention_dropout", 0.0),
        output_head=choose(raw, heads),
        special_tokens=tokens(raw),
    )


def _rope(raw: Raw) -> RoPE:
    said = {"rope_theta": None if raw.get("rope_parameters") else 10000.0} | dict(raw)
    return RoPE.from_transformers(SimpleNamespace(**said), interleaved=False)


def _llama(raw: Raw) -> TransformerConfig:
    bias = raw.get("attention_bias", False)
    return _config(raw, bias, bias, None, None)


def _mistral(raw: Raw) -> TransformerConfig:
    return _config(raw, False, False, raw.get("sliding_window"), None)


def _qwen2(raw: Raw) -> TransformerConfig:
    window = raw.get("sliding_window") if raw.get("use_sliding_window", False) else None
    count = need(raw, "num_hidden_layers")
    kinds = raw.get("layer_types") or [
        "sliding_attention" if layer >= raw.get("max_window_layers", 28) else "full_attention" for layer in range(count)
    ]
    sliding = window is not None and "sliding_attention" in kinds
    return _config(raw, True, False, window if sliding else None, tuple(kinds) if sliding else None)


LLAMA = Family(
    types=("llama",),
    changed="RMSNorm, rotary positions, SwiGLU, grouped queries, no biases",
    paper="Touvron et al. 2023, arXiv:2302.13971",
    config=_llama,
    trunk="model.",
    rules=_RULES,
)
MISTRAL = Family(
    types=("mistral",),
    changed="Llama with a sliding window",
    paper="Jiang et al. 2023, arXiv:2310.06825",
    config=_mistral,
    trunk="model.",
    rules=_RULES,
)
QWEN2 = Family(
    types=("qwen2",),
    changed="Llama with biases on queries, keys and values",
    paper="Yang et al. 2024, arXiv:2407.10671",
    config=_qwen2,
    trunk="model.",
    rules=_RULES,
)
