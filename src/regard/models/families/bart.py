"""BART and Marian."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from regard.models.config import Learned, Sinusoidal, TransformerConfig
from regard.models.families.base import Family, Raw, activation, choose, label_count, need, refuse, tokens
from regard.models.output_heads import LanguageModel, SequenceClassification

__all__ = ["BART", "MARIAN"]

_PART = r"\.(weight|bias)"


def _config(raw: Raw, **more: Any) -> TransformerConfig:
    refuse(raw, is_decoder=False, normalize_before=False, add_final_layer_norm=False)
    for part in ("attention_heads", "ffn_dim"):
        refuse(raw, **{f"decoder_{part}": need(raw, f"encoder_{part}")})
    return TransformerConfig(
        vocab_size=need(raw, "vocab_size"),
        hidden_size=need(raw, "d_model"),
        num_attention_heads=need(raw, "encoder_attention_heads"),
        intermediate_size=need(raw, "encoder_ffn_dim"),
        encoder_layers=need(raw, "encoder_layers"),
        decoder_layers=need(raw, "decoder_layers"),
        hidden_act=activation(raw.get("activation_function", "gelu")),
        scale_embedding=raw.get("scale_embedding", False),
        dropout=raw.get("dropout", 0.1),
        attention_dropout=raw.get("attention_dropout", 0.0),
        activation_dropout=raw.get("activation_dropout", 0.0),
        special_tokens=tokens(raw),
        **more,
    )


def _bart(raw: Raw) -> TransformerConfig:
    heads = {
        "ForConditionalGeneration": LanguageModel(tie_word_embeddings=raw.get("tie_word_embeddings", True), bias=True),
        "ForSequenceClassification": SequenceClassification(label_count(raw), pooling="last"),
    }
    refuse(raw, normalize_embedding=True)
    length = need(raw, "max_position_embeddings")
    return _config(raw, positions=Learned(length), normalize_embedding=True, output_head=choose(raw, heads))


def _marian(raw: Raw) -> TransformerConfig:
    refuse(raw, normalize_embedding=False)
    shared = raw.get("share_encoder_decoder_embeddings", True)
    own = None if shared else raw.get("decoder_vocab_size") or need(raw, "vocab_size")
    heads = {"MTModel": LanguageModel(tie_word_embeddings=raw.get("tie_word_embeddings", True), bias=True)}
    positions = Sinusoidal(need(raw, "max_position_embeddings"), "marian")
    return _config(raw, positions=positions, decoder_vocab_size=own, output_head=choose(raw, heads))


def _layers(side: str, norms: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The rules of one stack's blocks, whose norms come in this order."""
    theirs, ours = rf"{side}\.layers\.(\d+)", rf"{side}.layers.\1"
    rules = [(rf"{theirs}\.{name}{_PART}", rf"{ours}.norms.{index}.\2") for index, name in enumerate(norms)]
    for attention, name in (("self_attn", "attention"), ("encoder_attn", "cross_attention")):
        rules.append((rf"{theirs}\.{attention}\.(q|k|v|out)_proj{_PART}", rf"{ours}.{name}.\2_proj.\3"))
    rules.append((rf"{theirs}\.fc1{_PART}", rf"{ours}.feed_forward.up_proj.\2"))
    rules.append((rf"{theirs}\.fc2{_PART}", rf"{ours}.feed_forward.down_proj.\2"))
    return tuple(rules)


_BLOCKS = (
    *_layers("encoder", ("self_attn_layer_norm", "final_layer_norm")),
    *_layers("decoder", ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")),
    (r"final_logits_bias", "output_head.bias"),
    (r"lm_head\.weight", "output_head.weight"),
)


def _reshape(name: str, one: Tensor, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """Positions begin with the third row, and the bias of the logits has a dimension more."""
    if name.endswith("inputs.positions.weight") and config.max_position_embeddings is not None:
        one = one[-config.max_position_embeddings :].contiguous()
    yield name, one[0] if name == "output_head.bias" else one


BART = Family(
    types=("bart",),
    changed="learned positions, a norm on the embeddings, GELU; trained to repair texts",
    paper="Lewis et al. 2020, arXiv:1910.13461",
    config=_bart,
    trunk="model.",
    reshape=_reshape,
    rules=(
        (r"shared\.weight", "embedding.weight"),
        (r"(?:encoder|decoder)\.embed_tokens\.weight", "=embedding.weight"),
        (r"(encoder|decoder)\.embed_positions\.weight", r"\1.inputs.positions.weight"),
        (rf"(encoder|decoder)\.layernorm_embedding{_PART}", r"\1.inputs.norm.\2"),
        *_BLOCKS,
        (rf"classification_head\.dense{_PART}", r"output_head.tanh_layer.\1"),
        (rf"classification_head\.out_proj{_PART}", r"output_head.classify.\1"),
    ),
)
MARIAN = Family(
    types=("marian",),
    changed="sines first, then cosines; SiLU; trained to translate",
    paper="Junczys-Dowmunt et al. 2018, arXiv:1804.00344",
    config=_marian,
    trunk="model.",
    reshape=_reshape,
    rules=(
        (r"shared\.weight", "embedding.weight"),
        (r"encoder\.embed_tokens\.weight", "?embedding.weight"),
        (r"decoder\.embed_tokens\.weight", "decoder_embedding.weight"),
        (r"(?:encoder|decoder)\.embed_positions\.weight", ""),
        *_BLOCKS,
    ),
)
