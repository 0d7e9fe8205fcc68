"""BERT and RoBERTa (and XLM-R, MiniLM, E5, which are one or the other)."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from regard.models.checkpoint_files import PADDING
from regard.models.config import Learned, TransformerConfig
from regard.models.families.base import Family, Raw, activation, choose, label_count, need, refuse, tokens
from regard.models.output_heads import MaskedLanguageModel, SequenceClassification, TokenClassification

__all__ = ["BERT", "ROBERTA"]

_PART = r"\.(weight|bias)"
_NORM = r"\.(weight|bias|gamma|beta)"
_LAYERS = tuple(
    (rf"encoder\.layer\.(\d+)\.{theirs}", rf"encoder.layers.\1.{ours}.\2")
    for theirs, ours in (
        (rf"attention\.self\.query{_PART}", "attention.q_proj"),
        (rf"attention\.self\.key{_PART}", "attention.k_proj"),
        (rf"attention\.self\.value{_PART}", "attention.v_proj"),
        (rf"attention\.output\.dense{_PART}", "attention.out_proj"),
        (rf"attention\.output\.LayerNorm{_NORM}", "norms.0"),
        (rf"intermediate\.dense{_PART}", "feed_forward.up_proj"),
        (rf"output\.dense{_PART}", "feed_forward.down_proj"),
        (rf"output\.LayerNorm{_NORM}", "norms.1"),
    )
)
_EMBEDDINGS = (
    (r"embeddings\.word_embeddings\.weight", "embedding.weight"),
    (r"embeddings\.position_embeddings\.weight", "encoder.inputs.positions.weight"),
    (r"embeddings\.token_type_embeddings\.weight", "encoder.inputs.types.weight"),
    (rf"embeddings\.LayerNorm{_NORM}", r"encoder.inputs.norm.\1"),
    (r"embeddings\.position_ids", ""),
)


def _config(raw: Raw, **more: Any) -> TransformerConfig:
    refuse(raw, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    return TransformerConfig(
        vocab_size=need(raw, "vocab_size"),
        hidden_size=need(raw, "hidden_size"),
        num_attention_heads=need(raw, "num_attention_heads"),
        intermediate_size=need(raw, "intermediate_size"),
        encoder_layers=need(raw, "num_hidden_layers"),
        normalize_embedding=True,
        layer_norm_eps=raw.get("layer_norm_eps", 1e-12),
        hidden_act=activation(raw.get("hidden_act", "gelu")),
        scale_embedding=False,
        type_vocab_size=raw.get("type_vocab_size", 2),
        dropout=raw.get("hidden_dropout_prob", 0.1),
        attention_dropout=raw.get("attention_probs_dropout_prob", 0.1),
        activation_dropout=0.0,
        special_tokens=tokens(raw),
        **more,
    )


def _bert(raw: Raw) -> TransformerConfig:
    tied, transform = raw.get("tie_word_embeddings", True), activation(raw.get("hidden_act", "gelu"))
    masked = MaskedLanguageModel(tied, transform)
    heads = {
        "ForMaskedLM": masked,
        "ForPreTraining": masked,
        "ForSequenceClassification": SequenceClassification(label_count(raw)),
        "ForTokenClassification": TokenClassification(label_count(raw)),
    }
    return _config(raw, positions=Learned(need(raw, "max_position_embeddings")), output_head=choose(raw, heads))


def _roberta(raw: Raw) -> TransformerConfig:
    # The first real token stands at padding_idx + 1; the rows before it are cut off, so that ours begin with 0.
    heads = {
        "ForMaskedLM": MaskedLanguageModel(tie_word_embeddings=raw.get("tie_word_embeddings", True)),
        "ForSequenceClassification": SequenceClassification(label_count(raw)),
        "ForTokenClassification": TokenClassification(label_count(raw)),
    }
    padding = raw.get(PADDING, raw.get("pad_token_id"))
    length = need(raw, "max_position_embeddings") - (1 if padding is None else padding) - 1
    return _config(raw, positions=Learned(length), output_head=choose(raw, heads))


def _reshape(name: str, one: Tensor, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """RoBERTa's first rows of positions are of no use; the oldest checkpoints call a norm's parts gamma and beta."""
    if name.startswith("output_head.tanh_layer.") and isinstance(
        config.output_head, MaskedLanguageModel | TokenClassification
    ):
        return  # BERT's pooler, which its other heads do not look at
    if name == "encoder.inputs.positions.weight" and config.max_position_embeddings is not None:
        one = one[-config.max_position_embeddings :].contiguous()
    yield name.replace(".gamma", ".weight").replace(".beta", ".bias"), one


BERT = Family(
    types=("bert",),
    changed="the encoder alone, trained to fill gaps; learned positions, segments, a norm on the embeddings, GELU",
    paper="Devlin et al. 2019, arXiv:1810.04805",
    config=_bert,
    trunk="bert.",
    reshape=_reshape,
    rules=(
        *_EMBEDDINGS,
        *_LAYERS,
        (rf"cls\.predictions\.transform\.dense{_PART}", r"output_head.transform.\1"),
        (rf"cls\.predictions\.transform\.LayerNorm{_NORM}", r"output_head.norm.\1"),
        (r"cls\.predictions\.decoder\.weight", "output_head.vocabulary.weight"),
        (r"cls\.predictions\.bias", "?output_head.vocabulary.bias"),
        (r"cls\.predictions\.decoder\.bias", "output_head.vocabulary.bias"),
        (rf"cls\.seq_relationship{_PART}", ""),
        (rf"pooler\.dense{_PART}", r"output_head.tanh_layer.\1"),
        (rf"classifier{_PART}", r"output_head.classify.\1"),
    ),
)


ROBERTA = Family(
    types=("roberta", "xlm-roberta"),
    changed="BERT, trained longer and without segments; positions begin at 2 in the checkpoint",
    paper="Liu et al. 2019, arXiv:1907.11692",
    config=_roberta,
    trunk="roberta.",
    reshape=_reshape,
    rules=(
        *_EMBEDDINGS,
        *_LAYERS,
        (rf"lm_head\.dense{_PART}", r"output_head.transform.\1"),
        (rf"lm_head\.layer_norm{_PART}", r"output_head.norm.\1"),
        (r"lm_head\.decoder\.weight", "output_head.vocabulary.weight"),
        (r"lm_head\.bias", "?output_head.vocabulary.bias"),
        (r"lm_head\.decoder\.bias", "output_head.vocabulary.bias"),
        (rf"classifier\.dense{_PART}", r"output_head.tanh_layer.\1"),
        (rf"classifier(?:\.out_proj)?{_PART}", r"output_head.classify.\1"),
        (rf"pooler\.dense{_PART}", ""),
    ),
)
