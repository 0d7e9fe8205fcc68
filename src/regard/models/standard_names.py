"""Names that people bring from transformers and PyTorch, and what a model here has in their place."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from regard.errors import InputError

__all__ = ["CONFIG", "refuse_unknown"]

_F = TypeVar("_F", bound=Callable[..., Any])

_SIZES = dict.fromkeys(("d_model", "n_embd", "dim", "width", "embed_dim"), "hidden_size")
_HEADS = ("num_heads", "n_head", "nhead", "heads", "encoder_attention_heads", "decoder_attention_heads")
_HIDDEN = ("d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "dim_feedforward", "hidden")
_LAYERS = "encoder_layers or decoder_layers, by the stack that is meant"
_POSITIONS = "positions=Learned(max_position_embeddings) or Sinusoidal(max_position_embeddings)"
_ROPE = "positions=regard.positions.RoPE(head_dim, base=..., scaling=...)"
_HEAD = "output_head=output_heads.{}"
_TOKENS = "special_tokens=SpecialTokens({}=...)"
_SPECIAL = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "mask_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens"),
)

CONFIG: dict[str, str] = {
    **_SIZES,
    **dict.fromkeys(_HEADS, "num_attention_heads"),
    **dict.fromkeys(_HIDDEN, "intermediate_size"),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "layers"), _LAYERS),
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "d_kv": "head_dim",
    "kv_heads": "num_key_value_heads",
    "num_kv_heads": "num_key_value_heads",
    "vocabulary": "vocab_size",
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_length"), _POSITIONS),
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters", "rotary"), _ROPE),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "eps"), "layer_norm_eps, which norm='rms' has too"),
    **dict.fromkeys(("activation", "activation_function", "feed_forward_proj"), "hidden_act and is_gated_act"),
    **dict.fromkeys(("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "embd_pdrop"), "dropout"),
    **dict.fromkeys(("attention_probs_dropout_prob", "attn_pdrop"), "attention_dropout"),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), "bias, and qkv_bias and out_bias of the attention"),
    **dict.fromkeys(("use_sliding_window",), "sliding_window=None for no window"),
    **dict.fromkeys(("position_embedding_type", "relative_attention"), 'positions or position_bias="t5"'),
    **dict.fromkeys(("is_decoder", "is_encoder_decoder", "add_cross_attention"), _LAYERS),
    "normalize_before": "norm_first",
    "do_layer_norm_before": "norm_first",
    "tie_word_embeddings": _HEAD.format("LanguageModel(tie_word_embeddings=...)"),
    "head": "output_head",
    "num_labels": _HEAD.format("SequenceClassification(num_labels=...)"),
    "tokens": "special_tokens",
    **{name: _TOKENS.format(name) for name in _SPECIAL},
}


def refuse_unknown(what: str, hints: Mapping[str, str]) -> Callable[[_F], _F]:
    """Make a function or a class refuse a keyword of these names, which it lacks, by a sentence that has its own.

    Raises:
        InputError: A name of `hints` is given.
    """

    def decorate(given: _F) -> _F:
        function: Any = given.__init__ if isinstance(given, type) else given  # type: ignore[misc]
        known = frozenset(inspect.signature(function).parameters)
        assert not known & hints.keys(), (what, known & hints.keys())

        @functools.wraps(function)
        def checked(*args: Any, **named: Any) -> Any:
            if not named.keys() <= known:
                for name in named:
                    if name in hints:
                        raise InputError(f"{what} has no argument `{name}`: {hints[name]} is meant")
            return function(*args, **named)

        if isinstance(given, type):
            given.__init__ = checked  # type: ignore[misc]
            return given
        return checked  # type: ignore[return-value]

    return decorate
