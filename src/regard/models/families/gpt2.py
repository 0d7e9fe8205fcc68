"""GPT-2."""

from collections.abc import Iterator

from torch import Tensor

from regard.models.config import Learned, TransformerConfig
from regard.models.families.base import Family, Raw, activation, choose, label_count, need, refuse, tokens
from regard.models.output_heads import LanguageModel, SequenceClassification, TokenClassification

__all__ = ["GPT2"]

_PART = r"\.(weight|bias)"


def _config(raw: Raw) -> TransformerConfig:
    refuse(raw, add_cross_attention=False, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True)
    refuse(raw, is_causal=True)
    width = need(raw, "n_embd")
    heads = {
        "LMHeadModel": LanguageModel(tie_word_embeddings=raw.get("tie_word_embeddings", True)),
        "ForSequenceClassification": SequenceClassification(
            label_count(raw), pooling="last", use_tanh_layer=False, bias=False
        ),
        "ForTokenClassification": TokenClassification(label_count(raw)),
    }
    return TransformerConfig(
        vocab_size=need(raw, "vocab_size"),
        hidden_size=width,
        num_attention_heads=need(raw, "n_head"),
        intermediate_size=raw.get("n_inner") or 4 * width,
        decoder_layers=need(raw, "n_layer"),
        norm_first=True,
        layer_norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        hidden_act=activation(raw.get("activation_function", "gelu_new")),
        positions=Learned(need(raw, "n_positions")),
        scale_embedding=False,
        dropout=raw.get("resid_pdrop", 0.1),
        attention_dropout=raw.get("attn_pdrop", 0.1),
        activation_dropout=0.0,
        output_head=choose(raw, heads),
        special_tokens=tokens(raw),
    )


def _reshape(name: str, one: Tensor, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:  # noqa: ARG001
    """Its layers are written x W + b, and queries, keys and values are one of them: [Q | K | V] by columns."""
    block = name.startswith("decoder.layers.") and ".norms." not in name
    one = one.t() if block and name.endswith(".weight") else one
    if ".attention.qkv." in name:
        for part, chunk in zip("qkv", one.chunk(3), strict=True):
            yield name.replace(".qkv.", f".{part}_proj."), chunk.contiguous()
    else:
        yield name, one.contiguous()


GPT2 = Family(
    types=("gpt2",),
    changed="the decoder alone; the norm first, learned positions, GELU by tanh",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    config=_config,
    trunk="transformer.",
    reshape=_reshape,
    rules=(
        (r"wte\.weight", "embedding.weight"),
        (r"wpe\.weight", "decoder.inputs.positions.weight"),
        (rf"h\.(\d+)\.ln_1{_PART}", r"decoder.layers.\1.norms.0.\2"),
        (rf"h\.(\d+)\.ln_2{_PART}", r"decoder.layers.\1.norms.1.\2"),
        (rf"h\.(\d+)\.attn\.c_attn{_PART}", r"decoder.layers.\1.attention.qkv.\2"),
        (rf"h\.(\d+)\.attn\.c_proj{_PART}", r"decoder.layers.\1.attention.out_proj.\2"),
        (rf"h\.(\d+)\.mlp\.c_fc{_PART}", r"decoder.layers.\1.feed_forward.up_proj.\2"),
        (rf"h\.(\d+)\.mlp\.c_proj{_PART}", r"decoder.layers.\1.feed_forward.down_proj.\2"),
        (rf"ln_f{_PART}", r"decoder.norm.\1"),
        (r"h\.\d+\.attn\.(bias|masked_bias)", ""),
        (r"lm_head\.weight", "output_head.weight"),
        (rf"(?:score|classifier){_PART}", r"output_head.classify.\1"),
    ),
)
