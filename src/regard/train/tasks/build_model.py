"""Models for tasks: from scratch with the vocabularies of a run, or from a checkpoint with its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data import Tokenizer
from regard.errors import InputError
from regard.models import (
    Learned,
    RecurrentConfig,
    RecurrentSeq2Seq,
    Sinusoidal,
    SpecialTokens,
    TransformerConfig,
)
from regard.models import Transformer as TransformerModel
from regard.models.checkpoint_files import Checkpoint as Files
from regard.models.output_heads import OutputHead
from regard.models.pretrained_mixin import Saved
from regard.positions import RoPE
from regard.train.config import Checkpoint, Model, Recurrent, TokenizerConfig, Transformer

__all__ = ["pair_model", "text_model", "vocabulary"]

_POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"positions": Sinusoidal()},
    "t5": {"position_bias": "t5"},
    "alibi": {"position_bias": "alibi"},
    "shaw": {"position_bias": "shaw"},
    "none": {"positions": None},
}


def pair_model(chosen: Model, source: int, target: int, tokens: SpecialTokens, head: OutputHead, longest: int) -> Saved:
    """An encoder–decoder over vocabularies of these sizes."""
    if isinstance(chosen, Checkpoint):
        return _loaded(chosen, head)
    if isinstance(chosen, Recurrent):
        attention = None if chosen.attention == "none" else chosen.attention
        assert tokens.pad_token_id is not None
        assert tokens.bos_token_id is not None
        config = RecurrentConfig(
            src_vocab_size=source,
            tgt_vocab_size=target,
            embedding_dim=chosen.embedding_dim,
            hidden_size=chosen.hidden_size,
            num_layers=chosen.num_layers,
            cell=chosen.cell,
            bidirectional=chosen.bidirectional,
            attention=attention,
            dropout=chosen.dropout,
            pad_token_id=tokens.pad_token_id,
            bos_token_id=tokens.bos_token_id,
            eos_token_id=tokens.eos_token_ids[0],
        )
        return RecurrentSeq2Seq(config)
    return _transformer(chosen, source, tokens, head, longest, target=target, sides=("encoder", "decoder"))


def text_model(
    chosen: Model, vocabulary: int, tokens: SpecialTokens, head: OutputHead, longest: int, side: str
) -> Saved:
    """An encoder or a decoder over one vocabulary."""
    if isinstance(chosen, Checkpoint):
        return _loaded(chosen, head)
    if isinstance(chosen, Recurrent):
        raise InputError("`model.type` recurrent is an encoder–decoder, which reads pairs: take a transformer here")
    return _transformer(chosen, vocabulary, tokens, head, longest, sides=(side,))


def vocabulary(chosen: Model, path: Path, tokenizer: TokenizerConfig, texts: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of a checkpoint; from scratch the one at `path`, or one trained now.

    Raises:
        InputError: The checkpoint has none, or the new one cannot be written.
    """
    if isinstance(chosen, Checkpoint):
        return _brought(chosen, path.name)
    if path.is_file():
        return Tokenizer.load(path)
    made = Tokenizer.train(
        texts, model_type=tokenizer.model_type, vocab_size=tokenizer.vocab_size, lowercase=tokenizer.lowercase
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot make the folder {path.parent}: {problem.strerror}") from problem
    made.save(path)
    return made


def _brought(chosen: Checkpoint, name: str) -> Tokenizer:
    files = Files(chosen.model_name_or_path)
    for one in dict.fromkeys((name, "tokenizer.json")):
        if (found := files.file(one)) is not None:
            return Tokenizer.load(found)
    raise InputError(
        f"the checkpoint {chosen.model_name_or_path!r} has no {name}: "
        "only models with a fast tokenizer can be fine-tuned"
    )


def _loaded(chosen: Checkpoint, head: OutputHead) -> Saved:
    # In float32, whatever it was saved in: a step of 1e-5 is nothing to the eight bits of bfloat16.
    asked: dict[str, Any] = {"output_head": head, "dtype": torch.float32}
    if chosen.dropout is not None:
        asked |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), chosen.dropout)
    return TransformerModel.from_pretrained(chosen.model_name_or_path, **asked)


def _transformer(
    chosen: Transformer,
    vocabulary: int,
    tokens: SpecialTokens,
    head: OutputHead,
    longest: int,
    *,
    sides: tuple[str, ...],
    target: int | None = None,
) -> Saved:
    if chosen.positions == "learned":
        positions: dict[str, Any] = {"positions": Learned(longest)}
    elif chosen.positions == "rope":
        positions = {"positions": RoPE(chosen.hidden_size // chosen.num_attention_heads)}
    else:
        positions = _POSITIONS[chosen.positions]
    config = TransformerConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=target,
        hidden_size=chosen.hidden_size,
        num_attention_heads=chosen.num_attention_heads,
        intermediate_size=chosen.intermediate_size,
        num_key_value_heads=chosen.num_key_value_heads,
        encoder_layers=chosen.num_hidden_layers if "encoder" in sides else 0,
        decoder_layers=chosen.num_hidden_layers if "decoder" in sides else 0,
        **positions,
        norm=chosen.norm,
        norm_first=chosen.norm_first,
        hidden_act=chosen.hidden_act,
        is_gated_act=chosen.is_gated_act,
        dropout=chosen.dropout,
        output_head=head,
        special_tokens=tokens,
    )
    return TransformerModel(config)
