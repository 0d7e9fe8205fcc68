"""Prompts as a batch, and a Transformer as what decoding drives."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.cache import Cache
from regard.checks import check_flag
from regard.errors import InputError
from regard.models.inputs_outputs import token_mask
from regard.observe.intercept import is_watching

__all__ = ["Prompts", "TransformerContinuation", "batch_of", "check_start_token", "continue_texts"]

Prompts = Sequence[Sequence[int]] | Int[Tensor, "batch n"]


def check_start_token(token: Any, vocab_size: int) -> int:
    """Return `decoder_start_token_id`; raise unless it is a token of the vocabulary."""
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise InputError(f"`decoder_start_token_id` must be a token from 0 to {vocab_size - 1}, got {token!r}")
    return token


def batch_of(
    prompts: Prompts,
    pad: int | None,
    *,
    left: bool,
    device: torch.device,
    mask: Tensor | None = None,
    ends: Sequence[int] = (),
) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"] | None]:
    """Texts of different lengths as one tensor, padded on one side, and which of it are tokens (None if all are).

    Raises:
        InputError: They are no lists of tokens, one is empty, or a tensor holds padding that may be an end token.
    """
    rows = _rows(prompts, pad, mask, ends)
    if not all(rows):
        raise InputError(
            f"`input_ids` has an empty text at {rows.index([])}: begin it with a token, such as the start token"
        )
    longest, fill = max(map(len, rows)), 0 if pad is None else pad
    missing = [[fill] * (longest - len(one)) for one in rows]
    ids = torch.tensor([f + one if left else one + f for f, one in zip(missing, rows, strict=True)], device=device)
    if all(len(one) == longest for one in rows):
        return ids, None
    at, lengths = torch.arange(longest, device=device), torch.tensor([[len(one)] for one in rows], device=device)
    return ids, (at >= longest - lengths if left else at < lengths)


def _rows(prompts: Any, pad: int | None, mask: Tensor | None, ends: Sequence[int]) -> list[list[int]]:
    """The tokens of each text, without padding."""
    if isinstance(prompts, Tensor):
        if prompts.ndim != 2 or prompts.is_floating_point() or prompts.dtype == torch.bool:
            raise InputError(
                f"`input_ids` must be integers (batch, n) or a list of lists, got shape {tuple(prompts.shape)}"
            )
        seen = token_mask("attention_mask", mask, prompts.shape)
        if seen is None and pad is not None and bool((prompts == pad).any()):
            if pad in ends:
                raise InputError(
                    f"`input_ids` holds {pad}, which is padding and an end token: give attention_mask= (1 for tokens), "
                    "or a list of lists"
                )
            seen = prompts != pad  # as transformers takes it
        kept = torch.ones_like(prompts, dtype=torch.bool) if seen is None else seen
        return [one[here].tolist() for one, here in zip(prompts, kept, strict=True)]
    if mask is not None:
        raise InputError("`attention_mask` is for input_ids that are one tensor: a list of lists has no padding")
    texts = isinstance(prompts, list | tuple) and all(isinstance(one, list | tuple | Tensor) for one in prompts)
    if not texts or not prompts:
        raise InputError("`input_ids` must be a list of texts, each a list of tokens, such as [[1, 2, 3]]")
    rows = [one.tolist() if isinstance(one, Tensor) else list(one) for one in prompts]
    for row in rows:
        if any(isinstance(one, bool) or not isinstance(one, int) for one in row):
            raise InputError(f"`input_ids` must be lists of tokens, which are integers, got {row!r}")
    return rows


class TransformerContinuation:
    """A Transformer that continues texts: with a cache, or running on everything again for each token."""

    def __init__(
        self, model: Any, cache: Cache | None, memory: Tensor | None = None, attention_mask: Tensor | None = None
    ):
        self._model, self._cache = model, cache
        self._encoder_states, self._encoder_attention_mask = memory, attention_mask
        self._ids: Tensor | None = None
        self._attention_mask: Tensor | None = None

    @property
    def together(self) -> bool:
        """Whether rows that have ended stay: regard.watch knows a text by its row."""
        return is_watching(self._model)

    def step(
        self, tokens: Int[Tensor, "rows n"], attention_mask: Bool[Tensor, "rows n"] | None = None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Run on tokens after those before; return the logits of the next token of each row."""
        if self._cache is None:
            tokens, attention_mask = self._again(tokens, attention_mask)
        elif attention_mask is not None:
            attention_mask = self._cache.extend_mask(attention_mask, *tokens.shape, device=tokens.device)
        given: dict[str, Any] = {"past_key_values": self._cache, "logits_to_keep": 1}
        if self._encoder_states is None:
            output = self._model(tokens, attention_mask=attention_mask, **given)
        else:
            given |= {"encoder_attention_mask": self._encoder_attention_mask, "decoder_attention_mask": attention_mask}
            output = self._model.decode(tokens, self._encoder_states, **given)
        if output.logits is None:
            raise InputError(
                "this model has no output head that generates: load it with output_head=output_heads.LanguageModel()"
            )
        logits: Tensor = output.logits
        return logits[:, -1]

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these rows."""
        if self._cache is not None:
            self._cache.reorder(rows)
        for name in ("_encoder_states", "_encoder_attention_mask", "_ids", "_attention_mask"):
            if (one := getattr(self, name)) is not None:
                setattr(self, name, one.index_select(0, rows))

    def _again(self, tokens: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """All tokens so far."""
        if self._ids is None:
            self._ids, self._attention_mask = tokens, attention_mask
        else:
            if self._attention_mask is not None or attention_mask is not None:
                before = (
                    torch.ones_like(self._ids, dtype=torch.bool)
                    if self._attention_mask is None
                    else self._attention_mask
                )
                now = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask
                self._attention_mask = torch.cat([before, now], 1)
            self._ids = torch.cat([self._ids, tokens], 1)
        return self._ids, self._attention_mask


def continue_texts(
    model: Any,
    input_ids: Prompts,
    attention_mask: Tensor | None,
    use_cache: bool,
    decoder_start_token_id: int | None = None,
    pad_token_id: int | None = None,
    eos_token_id: Sequence[int] | None = None,
) -> tuple[TransformerContinuation, Tensor, Tensor | None]:
    """Return the text that a Transformer continues, its first tokens, and which of them are no padding."""
    if model.decoder is None:
        raise InputError("this model is an encoder, which generates nothing: take a decoder or an encoder–decoder")
    tokens = model.config.special_tokens
    cache = model.cache() if check_flag("use_cache", use_cache) else None
    device, pad = model.embedding.weight.device, tokens.pad_token_id if pad_token_id is None else pad_token_id
    ends = tokens.eos_token_ids if eos_token_id is None else eos_token_id
    given: dict[str, Any] = {"device": device, "mask": attention_mask, "ends": ends}
    if model.encoder is None:
        if decoder_start_token_id is not None:
            raise InputError(
                "`decoder_start_token_id` is for encoder–decoders, this model is a decoder: begin input_ids with it"
            )
        ids, mask = batch_of(input_ids, pad, left=True, **given)
        return TransformerContinuation(model, cache), ids, mask
    start = model.config.start_token_id if decoder_start_token_id is None else decoder_start_token_id
    if start is None:
        raise InputError(
            "the configuration has no start token: give it special_tokens=SpecialTokens(decoder_start_token_id=...)"
            ", or give generate decoder_start_token_id=..."
        )
    check_start_token(start, model.config.decoder_vocab_size or model.config.vocab_size)
    ids, mask = batch_of(input_ids, pad, left=False, **given)
    with torch.no_grad():
        memory = model.encode(ids, attention_mask=mask)
    return TransformerContinuation(model, cache, memory, mask), ids.new_full((len(ids), 1), start), None
