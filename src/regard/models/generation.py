"""Generation: prompts as a batch, a model as what decoding drives, and transformers' `generate` on top."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.models.continuation import Prompts
from regard.models.decoding import (
    BeamSearch,
    Continuation,
    Decoding,
    GeneratedSequence,
    GenerationLimits,
    Greedy,
    Sampling,
)
from regard.models.inputs_outputs import SpecialTokens
from regard.models.standard_names import GENERATE
from regard.nn.checks import refuse_unknown

__all__ = ["GenerateOutput", "GenerationMixin"]


@dataclass(frozen=True, eq=False)
class GenerateOutput:
    """What `generate` returns with `return_dict_in_generate=True`, by transformers' names.

    Args:
        sequences: As without: the prompts (of an encoder–decoder the start token) and the new tokens, padded.
        sequences_scores: Of beams the score of each sequence; else None.
        new_tokens: The new tokens of each sequence, the end token included, without padding. (Not in transformers.)
    """

    sequences: Int[Tensor, "sequences length"]
    sequences_scores: Float[Tensor, " sequences"] | None
    new_tokens: list[list[int]]


class GenerationMixin:
    """What a model that generates has: `generate` for a batch, `stream` for one text, token by token."""

    @refuse_unknown("generate", GENERATE)
    def generate(
        self,
        input_ids: Prompts,
        *,
        attention_mask: Shaped[Tensor, "batch n"] | None = None,
        max_new_tokens: int = 20,
        min_new_tokens: int = 0,
        num_beams: int = 1,
        do_sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | Literal["never"] | None = None,
        num_return_sequences: int = 1,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        decoder_start_token_id: int | None = None,
        use_cache: bool = True,
        generator: torch.Generator | None = None,
        search_strategy: Decoding | None = None,
        return_dict_in_generate: bool = False,
    ) -> Any:
        """Continue texts, or translate sources; the arguments and what is returned are those of transformers' models.

        Args:
            input_ids: Tokens of each text, as a tensor or as lists that may differ in length; of an encoder–decoder, of
                each source.
            attention_mask: Of a tensor, 1 for tokens and 0 for padding; by default 0 at `pad_token_id`.
            max_new_tokens: New tokens at most; fewer where the model has no more positions.
            min_new_tokens: New tokens before a text may end.
            num_beams: Above 1, search with so many beams.
            do_sample: Draw each token, from the `top_k` likeliest (50 by default, 0 for all).
            temperature, top_p: Of drawing; both 1 by default.
            length_penalty, early_stopping: Of beams; 1.0 and False by default.
            num_return_sequences: Of beams or drawing: sequences returned for each text.
            eos_token_id: Token or tokens that end a text, [] for none; the model's own by default.
            pad_token_id: What fills up shorter texts; the model's own by default, else its end token.
            decoder_start_token_id: First token of an encoder–decoder's sequences; the model's own by default.
            use_cache: Keep keys and values; without, the model runs on everything again for each token.
            generator: Where drawing takes its numbers from; PyTorch's own by default.
            search_strategy: In place of the options above, a value such as decoding.BeamSearch(3).
            return_dict_in_generate: Return a GenerateOutput: the sequences, their scores, the new tokens as lists.

        Returns:
            A LongTensor (texts · num_return_sequences, length): a decoder's prompts and new tokens, or an
            encoder–decoder's tokens from the start token on, filled up with `pad_token_id` on the right. Prompts of
            different lengths are padded on the left.

        Raises:
            InputError: A prompt is empty or too long, options do not go together, the model does not generate, or it is
                in training mode.
        """
        chosen = _decoding(
            search_strategy, num_beams, do_sample, num_return_sequences,
            {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator},
            {"length_penalty": length_penalty, "early_stopping": early_stopping},
        )  # fmt: skip
        text, prompt, mask, limits = self._begin(
            input_ids, attention_mask, max_new_tokens, min_new_tokens, eos_token_id, pad_token_id, use_cache,
            decoder_start_token_id,
        )  # fmt: skip
        copies = num_return_sequences if do_sample else 1
        if copies > 1:  # each drawn by itself, as transformers repeats them
            prompt, mask = _repeat(prompt, copies), None if mask is None else _repeat(mask, copies)
            text.reorder(_repeat(torch.arange(len(prompt) // copies, device=prompt.device), copies))
        found = chosen.search(text, prompt, limits, mask)
        per_text = len(found) // len(prompt)
        if getattr(getattr(self, "config", None), "kind", None) == "decoder":
            prompt = _prompts_as_given(input_ids, prompt, mask, copies, limits.pad_token_id)
        sequences = _sequences(prompt, per_text, found, limits)
        if not return_dict_in_generate:
            return sequences
        scores = torch.tensor([one.score for one in found], device=prompt.device)
        lists = [list(one.tokens) for one in found]
        return GenerateOutput(sequences, scores if isinstance(chosen, BeamSearch) else None, lists)

    @refuse_unknown("stream", GENERATE)
    def stream(
        self,
        input_ids: Sequence[int] | Int[Tensor, " n"],
        *,
        max_new_tokens: int = 20,
        do_sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        use_cache: bool = True,
        generator: torch.Generator | None = None,
        search_strategy: Greedy | Sampling | None = None,
    ) -> Iterator[int]:
        """Continue one text and yield each token as soon as it is known; the arguments are those of `generate`."""
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator}
        begun = self._begin([input_ids], None, max_new_tokens, 0, eos_token_id, None, use_cache)
        chosen: Any = _decoding(search_strategy, 1, do_sample, 1, options, {})
        if not hasattr(chosen, "stream"):
            raise InputError(f"{type(chosen).__name__} knows its text when it has ended: stream Greedy() or Sampling()")
        text, first, mask, limits = begun
        return (int(step) for step in chosen.stream(text, first, limits, mask))

    def continuation(
        self,
        input_ids: Prompts,
        *,
        attention_mask: Tensor | None = None,
        use_cache: bool = True,
        decoder_start_token_id: int | None = None,
        pad_token_id: int | None = None,
        eos_token_id: Sequence[int] | None = None,
    ) -> tuple[Continuation, Tensor, Tensor | None]:
        """Prompts as decoding needs them: the text to continue, its first tokens, and which of them are no padding.

        Without a mask `pad_token_id` is padding in a tensor, if it is none of `eos_token_id`; both are by default the
        model's own.
        """
        raise NotImplementedError  # each model defines it

    def _room(self, first: int) -> int | None:
        """How many tokens may follow the first ones."""
        return None

    def _tokens(self) -> SpecialTokens:
        raise NotImplementedError  # each model defines it

    def _begin(
        self,
        prompts: Any,
        attention_mask: Tensor | None,
        max_new_tokens: int,
        min_new_tokens: int,
        eos_token_id: int | Sequence[int] | None,
        pad_token_id: int | None,
        use_cache: bool,
        decoder_start_token_id: int | None = None,
    ) -> tuple[Continuation, Tensor, Tensor | None, GenerationLimits]:
        if getattr(self, "training", False):
            raise InputError(
                "the model is in training mode, where dropout changes what it generates: model.eval() first"
            )
        known = self._tokens()
        ends = known.eos_token_ids if eos_token_id is None else _ends(eos_token_id)
        own = known.pad_token_id if pad_token_id is None else pad_token_id
        with torch.inference_mode():  # nothing but tokens comes out
            text, first, mask = self.continuation(
                prompts,
                attention_mask=attention_mask,
                use_cache=use_cache,
                decoder_start_token_id=decoder_start_token_id,
                pad_token_id=own,
                eos_token_id=ends,
            )
        room = self._room(first.shape[1])
        if room is not None and room < 1:
            limit = first.shape[1] + room
            raise InputError(
                f"the prompt has {first.shape[1]} tokens and this model has positions for {limit}, which leaves none "
                "to generate: shorten it"
            )
        limits = GenerationLimits(
            max_new_tokens=max_new_tokens if room is None else min(max_new_tokens, room),
            eos_token_id=ends,
            pad_token_id=own if own is not None else ends[0] if ends else 0,
            min_new_tokens=min_new_tokens if room is None else min(min_new_tokens, room),
            forced_bos_token_id=known.forced_bos_token_id if first.shape[1] == 1 else None,  # as in transformers
            forced_eos_token_id=known.forced_eos_token_id,
            suppress_tokens=tuple(known.suppress_tokens),
        )
        return text, first, mask, limits


def _decoding(
    given: Decoding | None,
    num_beams: int,
    do_sample: bool,
    num_return_sequences: int,
    drawing: dict[str, Any],
    beams: dict[str, Any],
) -> Decoding:
    """The decoding that transformers' options name; an option without effect is refused."""
    drawing = {name: value for name, value in drawing.items() if value is not None}
    beams = {name: value for name, value in beams.items() if value is not None}
    if not isinstance(do_sample, bool):
        raise InputError(f"`do_sample` must be True or False, got {do_sample!r}")
    if given is not None:
        return _given(given, [*drawing, *beams], num_beams, do_sample, num_return_sequences)
    if drawing and not do_sample:
        raise InputError(f"`{next(iter(drawing))}` is for drawn tokens: give do_sample=True too, or leave it out")
    if beams and num_beams == 1:
        raise InputError(f"`{next(iter(beams))}` is for beams: give num_beams= of at least 2 too, or leave it out")
    if do_sample and num_beams != 1:
        raise InputError(f"`do_sample` with num_beams={num_beams} is not here: draw without beams, or search with them")
    if do_sample:
        drawing["top_k"] = drawing.get("top_k", 50) or None  # transformers' default, and its 0 for all
        return Sampling(**drawing)
    if num_beams != 1:
        return BeamSearch(num_beams, num_return_sequences=num_return_sequences, **beams)
    if num_return_sequences != 1:
        raise InputError(
            f"`num_return_sequences` of {num_return_sequences} would be the same text each time: give do_sample=True "
            "or num_beams="
        )
    return Greedy()


def _given(given: Decoding, named: list[str], num_beams: int, do_sample: bool, num_return_sequences: int) -> Decoding:
    if not hasattr(given, "search"):
        raise InputError(f"`search_strategy` must be a value such as decoding.Greedy(), got {given!r}")
    others = {"num_beams": num_beams != 1, "do_sample": do_sample, "num_return_sequences": num_return_sequences != 1}
    if named := [*named, *(name for name, is_given in others.items() if is_given)]:
        raise InputError(f"`{named[0]}` beside `search_strategy` has no effect: give it to {type(given).__name__}")
    return given


def _ends(eos_token_id: Any) -> tuple[int, ...]:
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.tolist()
    return tuple(eos_token_id) if isinstance(eos_token_id, Sequence | set | frozenset) else (eos_token_id,)


def _repeat(rows: Tensor, times: int) -> Tensor:
    return rows.repeat_interleave(times, 0)


def _prompts_as_given(given: Any, prompt: Tensor, mask: Tensor | None, copies: int, pad_token_id: int) -> Tensor:
    """A prompt that is a tensor padded on the left as it is (decoding has cut what all rows pad), others filled up."""
    if isinstance(given, Tensor):
        rows = _repeat(given.to(prompt), copies)
        if rows.shape[1] > prompt.shape[1] or mask is None or torch.equal(rows[mask], prompt[mask]):
            return rows
    return prompt if mask is None else prompt.masked_fill(~mask, pad_token_id)


def _sequences(
    prompt: Tensor, per_text: int, found: list[GeneratedSequence], limits: GenerationLimits
) -> Int[Tensor, "sequences length"]:
    longest = max((len(one.tokens) for one in found), default=0)
    new = [[*one.tokens, *[limits.pad_token_id] * (longest - len(one.tokens))] for one in found]
    made = torch.tensor(new, dtype=prompt.dtype, device=prompt.device).view(len(found), longest)
    return torch.cat([_repeat(prompt, per_text), made], 1)
