"""Writing: prompts made a batch, a model made a continuation that decoding can drive."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.cache import Cache
from regard.capture.intercept import is_watching
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.models.decoding import Continuation, Decoding, Greedy, Limits, Sampling

__all__ = ["Prompts", "Reading", "Writes", "batch_of"]

Prompts = Sequence[Sequence[int]] | Int[Tensor, "batch n"]


class Writes:
    """What a model that writes can do: `generate` for a batch, `stream` for one text, token by token."""

    def generate(
        self,
        prompts: Prompts,
        *,
        real: Bool[Tensor, "batch n"] | None = None,
        decoding: Decoding | None = None,
        most: int = 64,
        least: int = 0,
        stop: Sequence[int] | None = None,
        cached: bool = True,
    ) -> list[list[int]]:
        """Go on with texts, or translate sources; give the new tokens of each, the stop token included.

        Args:
            prompts: Tokens of each text, which may differ in length; of an encoder–decoder, of each source.
            real: Of prompts that are one tensor, what is no padding.
            decoding: decoding.Greedy() by default, Sampling(...) or Beam(...).
            most: New tokens at most; fewer where the model has no more positions.
            least: New tokens before a stop token may come.
            stop: Tokens that end a text; the model's own by default.
            cached: Keep keys and values of what was read; without, everything is read again for each token.

        Raises:
            InputError: A prompt is empty or too long, the model does not write, or it is in training mode.
        """
        chosen = Greedy() if decoding is None else decoding
        if not hasattr(chosen, "write"):
            raise InputError(f"`decoding` must be a value such as decoding.Greedy(), got {decoding!r}")
        text, prompt, real, limits = self._begin(prompts, real, most, least, stop, cached)
        written = chosen.write(text, prompt, limits, real)
        return [list(one.tokens) for one in written]

    def stream(
        self,
        prompt: Sequence[int] | Int[Tensor, " n"],
        *,
        decoding: Greedy | Sampling | None = None,
        most: int = 64,
        stop: Sequence[int] | None = None,
        cached: bool = True,
    ) -> Iterator[int]:
        """Go on with one text and yield each token as soon as it is known; the arguments are those of `generate`."""
        begun = self._begin([prompt], None, most, 0, stop, cached)
        chosen = Greedy() if decoding is None else decoding
        if not hasattr(chosen, "stream"):
            raise InputError(f"{type(chosen).__name__} knows its text when it has ended: stream Greedy() or Sampling()")
        text, first, real, limits = begun
        return (int(step) for step in chosen.stream(text, first, limits, real))

    def continuation(
        self, prompts: Prompts, *, real: Tensor | None = None, cached: bool = True
    ) -> tuple[Continuation, Tensor, Tensor | None]:
        """Prompts as decoding wants them: the text that goes on, what it reads first, and what of that is real."""
        raise NotImplementedError  # each model defines it

    def _room(self, first: int) -> int | None:
        """How many tokens may be written behind the first ones read."""
        return None

    def _tokens(self) -> SpecialTokens:
        raise NotImplementedError  # each model defines it

    def _begin(
        self,
        prompts: Any,
        real: Tensor | None,
        most: int,
        least: int,
        stop: Sequence[int] | None,
        cached: bool,
    ) -> tuple[Continuation, Tensor, Tensor | None, Limits]:
        if getattr(self, "training", False):
            raise InputError("the model is in training mode, where dropout changes what it writes: model.eval() first")
        if stop is not None and not isinstance(stop, Sequence | set | frozenset):
            raise InputError(f"`stop` must be a list of tokens, got {stop!r}: write [{stop!r}]")
        with torch.inference_mode():  # nothing but tokens comes out
            text, first, real = self.continuation(prompts, real=real, cached=cached)
        known, room = self._tokens(), self._room(first.shape[1])
        if room is not None and room < 1:
            limit = first.shape[1] + room
            raise InputError(
                f"the prompt has {first.shape[1]} tokens and this model has positions for {limit}, which leaves none "
                "to write: shorten it"
            )
        limits = Limits(
            most=most if room is None else min(most, room),
            stop=tuple(known.eos_token_ids if stop is None else stop),
            pad=known.pad_token_id or 0,
            least=least if room is None else min(least, room),
            forced_first=known.forced_bos_token_id,
            forced_last=known.forced_eos_token_id,
            banned=tuple(known.suppress_tokens),
        )
        return text, first, real, limits


def batch_of(
    prompts: Prompts, pad: int | None, *, left: bool, device: torch.device, real: Tensor | None = None
) -> tuple[Int[Tensor, "batch n"], Bool[Tensor, "batch n"] | None]:
    """Texts of different lengths as one tensor, padded on one side, and which of it is real (None if all is).

    Raises:
        InputError: They are no lists of tokens, one is empty, or a tensor holds padding of which nothing is said.
    """
    rows = _rows(prompts, pad, real)
    if not all(rows):
        raise InputError(
            f"`prompts` has an empty text at {rows.index([])}: begin it with a token, such as the start token"
        )
    longest, fill = max(map(len, rows)), 0 if pad is None else pad
    missing = [[fill] * (longest - len(one)) for one in rows]
    ids = torch.tensor([f + one if left else one + f for f, one in zip(missing, rows, strict=True)], device=device)
    if all(len(one) == longest for one in rows):
        return ids, None
    at, lengths = torch.arange(longest, device=device), torch.tensor([[len(one)] for one in rows], device=device)
    return ids, (at >= longest - lengths if left else at < lengths)


def _rows(prompts: Any, pad: int | None, real: Tensor | None) -> list[list[int]]:
    """The tokens of each text, without padding."""
    if isinstance(prompts, Tensor):
        if prompts.ndim != 2 or prompts.is_floating_point() or prompts.dtype == torch.bool:
            raise InputError(
                f"`prompts` must be integers (batch, n) or a list of lists, got shape {tuple(prompts.shape)}"
            )
        if real is None and pad is not None and bool((prompts == pad).any()):
            raise InputError(
                f"`prompts` holds the padding token {pad}: say with real= which tokens are real (True), or give a list "
                "of lists"
            )
        if real is not None and (real.shape != prompts.shape or real.dtype != torch.bool):
            raise InputError(f"`real` must be a boolean tensor of the shape of `prompts`, {tuple(prompts.shape)}")
        kept = torch.ones_like(prompts, dtype=torch.bool) if real is None else real
        return [one[here].tolist() for one, here in zip(prompts, kept, strict=True)]
    if real is not None:
        raise InputError("`real` is for prompts that are one tensor: a list of lists has no padding")
    texts = isinstance(prompts, list | tuple) and all(isinstance(one, list | tuple | Tensor) for one in prompts)
    if not texts or not prompts:
        raise InputError("`prompts` must be a list of texts, each a list of tokens, such as [[1, 2, 3]]")
    rows = [one.tolist() if isinstance(one, Tensor) else list(one) for one in prompts]
    for row in rows:
        if any(isinstance(one, bool) or not isinstance(one, int) for one in row):
            raise InputError(f"`prompts` must be lists of tokens, which are integers, got {row!r}")
    return rows


class Reading:
    """A Transformer that goes on writing: with a cache, or reading everything again for each token."""

    def __init__(self, model: Any, cache: Cache | None, memory: Tensor | None = None, real: Tensor | None = None):
        self._model, self._cache = model, cache
        self._memory, self._memory_real = memory, real
        self._ids: Tensor | None = None
        self._real: Tensor | None = None

    @property
    def together(self) -> bool:
        """Whether rows that have ended stay: regard.watch knows a text by its row."""
        return is_watching(self._model)

    def read(
        self, tokens: Int[Tensor, "rows n"], real: Bool[Tensor, "rows n"] | None = None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Read tokens behind those read before; give the logits of the next token of each row."""
        if self._cache is None:
            tokens, real = self._again(tokens, real)
        elif real is not None:
            real = self._cache.extend_mask(real, *tokens.shape, device=tokens.device)
        given: dict[str, Any] = {"past_key_values": self._cache, "logits_to_keep": 1}
        if self._memory is None:
            output = self._model(tokens, attention_mask=real, **given)
        else:
            given |= {"encoder_attention_mask": self._memory_real, "decoder_attention_mask": real}
            output = self._model.decode(tokens, self._memory, **given)
        if output.logits is None:
            raise InputError(
                "this model has no output head that generates: load it with output_head=output_heads.LanguageModel()"
            )
        logits: Tensor = output.logits
        return logits[:, -1]

    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Go on with these rows."""
        if self._cache is not None:
            self._cache.reorder(rows)
        for name in ("_memory", "_memory_real", "_ids", "_real"):
            if (one := getattr(self, name)) is not None:
                setattr(self, name, one.index_select(0, rows))

    def _again(self, tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """All tokens read so far."""
        if self._ids is None:
            self._ids, self._real = tokens, real
        else:
            if self._real is not None or real is not None:
                before = torch.ones_like(self._ids, dtype=torch.bool) if self._real is None else self._real
                now = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
                self._real = torch.cat([before, now], 1)
            self._ids = torch.cat([self._ids, tokens], 1)
        return self._ids, self._real
