"""T5, its versions 1.0 and 1.1 (and mT5, Flan-T5)."""

from regard.errors import InputError
from regard.models.config import TransformerConfig
from regard.models.families.base import Family, Raw, choose, need, refuse, saved_class, tokens
from regard.models.output_heads import LanguageModel
from regard.nn.feed_forward import HiddenAct

__all__ = ["T5"]

_FEED_FORWARD: dict[str, tuple[HiddenAct, bool]] = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_new", True),  # which T5Config reads in the place of "gelu"
    "gated-relu": ("relu", True),
    "gated-silu": ("silu", True),
    "gelu": ("gelu", False),
    "silu": ("silu", False),
}
_PARTS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


def _config(raw: Raw) -> TransformerConfig:
    refuse(raw, is_decoder=False)
    width = need(raw, "d_model")
    feed_forward = raw.get("feed_forward_proj", "relu")
    if feed_forward not in _FEED_FORWARD:
        raise InputError(
            f"the checkpoint's feed_forward_proj must be one of {', '.join(_FEED_FORWARD)}, got {feed_forward!r}"
        )
    hidden_act, is_gated = _FEED_FORWARD[feed_forward]
    refuse(raw, dense_act_fn=hidden_act, is_gated_act=is_gated)
    # Version 1.1 has an output layer of its own, and so no factor; that is what its config.json says by not tying.
    scaled = raw.get("scale_decoder_outputs", raw.get("tie_word_embeddings", True)) is not False
    scaled = scaled and raw.get("model_type") != "mt5"  # which never had it
    tied = raw.get("tie_word_embeddings", True)
    heads = {"ForConditionalGeneration": LanguageModel(tie_word_embeddings=tied, scale=width**-0.5 if scaled else 1.0)}
    layers = need(raw, "num_layers")
    alone = saved_class(raw).endswith("EncoderModel")
    return TransformerConfig(
        vocab_size=need(raw, "vocab_size"),
        hidden_size=width,
        num_attention_heads=need(raw, "num_heads"),
        head_dim=need(raw, "d_kv"),
        intermediate_size=need(raw, "d_ff"),
        encoder_layers=layers,
        decoder_layers=0 if alone else raw.get("num_decoder_layers") or layers,
        norm="rms",
        norm_first=True,
        layer_norm_eps=raw.get("layer_norm_epsilon", 1e-6),
        hidden_act=hidden_act,
        is_gated_act=is_gated,
        position_bias="t5",
        relative_attention_num_buckets=raw.get("relative_attention_num_buckets", 32),
        relative_attention_max_distance=raw.get("relative_attention_max_distance", 128),
        scale_embedding=False,
        bias=False,
        scale=1.0,
        dropout=raw.get("dropout_rate", 0.1),
        output_head=choose(raw, heads),
        special_tokens=tokens(raw if raw.get("decoder_start_token_id") is not None else _started_by_padding(raw)),
    )


def _started_by_padding(raw: Raw) -> Raw:
    return {**raw, "decoder_start_token_id": raw.get("pad_token_id")}


def _stack(side: str, layers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The rules of one stack, whose blocks have these layers, each with a norm."""
    rules = [(rf"{side}\.final_layer_norm\.weight", f"{side}.norm.weight")]
    for index, name in enumerate(layers):
        block, ours = rf"{side}\.block\.(\d+)\.layer\.{index}", rf"{side}.layers.\1"
        rules.append((rf"{block}\.layer_norm\.weight", rf"{ours}.norms.{index}.weight"))
        if name == "feed_forward":
            for theirs, part in (("wi", "up"), ("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")):
                rules.append(
                    (rf"{block}\.DenseReluDense\.{theirs}\.weight", rf"{ours}.feed_forward.{part}_proj.weight")
                )
            continue
        kind = "EncDecAttention" if name == "cross_attention" else "SelfAttention"
        rules += [
            (rf"{block}\.{kind}\.{theirs}\.weight", rf"{ours}.{name}.{part}.weight") for theirs, part in _PARTS.items()
        ]
        # One table for all layers, kept in the first; some checkpoints have one in cross-attention, which is not used.
        bias = f"{side}.bias.table" if name == "attention" else ""
        first = rf"{side}\.block\.0\.layer\.{index}"
        rules.append((rf"{first}\.{kind}\.relative_attention_bias\.weight", bias))
    return tuple(rules)


T5 = Family(
    types=("t5", "mt5"),
    changed="the norm first and without a mean, a learned bias of distances in place of positions, scores not divided",
    paper="Raffel et al. 2020, arXiv:1910.10683",
    config=_config,
    trunk="",
    rules=(
        (r"shared\.weight", "embedding.weight"),
        (r"(?:encoder|decoder)\.embed_tokens\.weight", "=embedding.weight"),
        *_stack("encoder", ("attention", "feed_forward")),
        *_stack("decoder", ("attention", "cross_attention", "feed_forward")),
        (r"lm_head\.weight", "output_head.weight"),
    ),
)
