"""Generation: prompts as a batch, a model as what decoding drives, and transformers' `generate` on top."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.checks import check_count, check_size
from regard.errors import InputError
from regard.models.continuation import Prompts
from regard.models.decoding import (
    BadWords,
    BeamSearch,
    Continuation,
    Decoding,
    GeneratedSequence,
    GenerationLimits,
    Greedy,
    NoRepeatNGram,
    RepetitionPenalty,
    Sampling,
    TokenRule,
)
from regard.models.decoding.base import of_rows
from regard.models.generation_config import GenerationConfig, UnsupportedGenerationWarning
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
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        min_new_tokens: int | None = None,
        min_length: int | None = None,
        num_beams: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | Literal["never"] | None = None,
        num_return_sequences: int | None = None,
        repetition_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        bad_words_ids: Sequence[Sequence[int]] | None = None,
        suppress_tokens: Sequence[int] | None = None,
        begin_suppress_tokens: Sequence[int] | None = None,
        forced_bos_token_id: int | None = None,
        forced_eos_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        decoder_start_token_id: int | None = None,
        use_cache: bool = True,
        generator: torch.Generator | None = None,
        search_strategy: Decoding | None = None,
        return_dict_in_generate: bool = False,
    ) -> Any:
        """Continue texts, or translate sources; the arguments and what is returned are those of transformers' models.

        What is not given is what the model's `config.generation_config` and `config.special_tokens` say (of a
        checkpoint its generation_config.json), then transformers' default. Limits and rules hold for each text by
        itself, without its padding.

        Args:
            input_ids: Tokens of each text, as a tensor or as lists that may differ in length; of an encoder–decoder, of
                each source.
            attention_mask: Of a tensor, 1 for tokens and 0 for padding; by default 0 at `pad_token_id`.
            max_new_tokens: New tokens at most, 20 by default; fewer where the model has no more positions.
            max_length: In its place, tokens at most with the prompt's (of an encoder–decoder with the start token).
            min_new_tokens, min_length: Tokens before a text may end, counted in the same two ways.
            num_beams: Above 1, search with so many beams.
            do_sample: Draw each token, from the `top_k` likeliest (50 by default, 0 for all).
            temperature, top_p, min_p: Of drawing; 1, 1 and none by default.
            length_penalty, early_stopping: Of beams; 1.0 and False by default.
            num_return_sequences: Of beams or drawing: sequences returned for each text.
            repetition_penalty: Above 1, tokens of the text, the prompt included, become less likely.
            no_repeat_ngram_size: So many tokens in a row come once in a text, the prompt included; 0 for no such rule.
            bad_words_ids: Sequences of tokens that do not come; [] for none.
            suppress_tokens, begin_suppress_tokens: Tokens that do not come, or do not come first; [] for none.
            forced_bos_token_id: Token that comes first after a prompt, or a start token, that is alone.
            forced_eos_token_id: Token that comes at the limit.
            eos_token_id: Token or tokens that end a text, [] for none; the model's own by default.
            pad_token_id: What fills up shorter texts; the model's own by default, else its end token.
            decoder_start_token_id: First token of an encoder–decoder's sequences; the model's own by default.
            use_cache: Keep keys and values; without, the model runs on everything again for each token.
            generator: Where drawing takes its numbers from; PyTorch's own by default.
            search_strategy: In place of the options of beams and drawing, a value such as decoding.BeamSearch(3).
            return_dict_in_generate: Return a GenerateOutput: the sequences, their scores, the new tokens as lists.

        Returns:
            A LongTensor (texts · num_return_sequences, length): a decoder's prompts and new tokens, or an
            encoder–decoder's tokens from the start token on, filled up with `pad_token_id` on the right. Prompts of
            different lengths are padded on the left.

        Raises:
            InputError: A prompt is empty or too long, options do not go together, the model does not generate, or it is
                in training mode.

        Warns:
            UnsupportedGenerationWarning: Once a model, if its generation_config.json has rules that are not here.
        """
        given = {
            "max_new_tokens": max_new_tokens, "max_length": max_length, "min_new_tokens": min_new_tokens,
            "min_length": min_length, "num_beams": num_beams, "do_sample": do_sample, "temperature": temperature,
            "top_k": top_k, "top_p": top_p, "min_p": min_p, "length_penalty": length_penalty,
            "early_stopping": early_stopping, "num_return_sequences": num_return_sequences,
            "repetition_penalty": repetition_penalty, "no_repeat_ngram_size": no_repeat_ngram_size,
            "bad_words_ids": bad_words_ids, "begin_suppress_tokens": begin_suppress_tokens,
        }  # fmt: skip
        settings = self._settings(given)
        chosen = _decoding(search_strategy, settings, given, generator)
        text, prompt, mask, limits = self._begin(
            input_ids, attention_mask, settings, given, use_cache,
            {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id, "suppress_tokens": suppress_tokens,
             "forced_bos_token_id": forced_bos_token_id, "forced_eos_token_id": forced_eos_token_id},
            decoder_start_token_id,
        )  # fmt: skip
        self._warn(settings, chosen)
        copies = (settings.num_return_sequences or 1) if search_strategy is None and settings.do_sample else 1
        if copies > 1:  # each drawn by itself, as transformers repeats them
            prompt, mask = _repeat(prompt, copies), None if mask is None else _repeat(mask, copies)
            text.reorder(_repeat(torch.arange(len(prompt) // copies, device=prompt.device), copies))
            limits = _repeat_limits(limits, copies)
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
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        min_new_tokens: int | None = None,
        min_length: int | None = None,
        num_beams: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        bad_words_ids: Sequence[Sequence[int]] | None = None,
        suppress_tokens: Sequence[int] | None = None,
        begin_suppress_tokens: Sequence[int] | None = None,
        forced_bos_token_id: int | None = None,
        forced_eos_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        use_cache: bool = True,
        generator: torch.Generator | None = None,
        search_strategy: Greedy | Sampling | None = None,
    ) -> Iterator[int]:
        """Continue one text and yield each token as soon as it is known; the arguments are those of `generate`.

        Raises:
            InputError: As `generate`; or there are beams, as the model's generation_config may ask for them.
        """
        given = {
            "max_new_tokens": max_new_tokens, "max_length": max_length, "min_new_tokens": min_new_tokens,
            "min_length": min_length, "num_beams": num_beams, "do_sample": do_sample, "temperature": temperature,
            "top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size, "bad_words_ids": bad_words_ids,
            "begin_suppress_tokens": begin_suppress_tokens,
        }  # fmt: skip
        settings = self._settings(given)
        chosen: Any = _decoding(search_strategy, replace(settings, num_return_sequences=None), given, generator)
        begun = self._begin(
            [input_ids], None, settings, given, use_cache,
            {"eos_token_id": eos_token_id, "suppress_tokens": suppress_tokens,
             "forced_bos_token_id": forced_bos_token_id, "forced_eos_token_id": forced_eos_token_id},
        )  # fmt: skip
        if not hasattr(chosen, "stream"):
            raise InputError(
                f"{type(chosen).__name__} knows its text when it has ended: stream Greedy() or Sampling(), or give "
                "num_beams=1 where the model's generation_config asks for beams"
            )
        self._warn(settings, chosen)
        text, first, mask, limits = begun
        return (int(step) for step in chosen.stream(text, first, limits, mask))

    @torch.inference_mode()
    def search(
        self, prompts: Prompts, strategy: Decoding, max_new_tokens: Sequence[int]
    ) -> list[tuple[list[int], list[GeneratedSequence]]]:
        """Continue prompts, each up to a limit of its own: its tokens, and the sequences that follow, best first.

        Of the model's configuration the rules about tokens hold; its search and its lengths do not.
        """
        settings = replace(
            self._settings({}),
            max_new_tokens=max(max_new_tokens),
            max_length=None,
            min_new_tokens=None,
            min_length=None,
        )
        text, prompt, mask, limits = self._begin(prompts, None, settings, {}, True, {})
        self._warn(settings, strategy)
        own = tuple(map(min, of_rows(limits.max_new_tokens, len(prompt)), max_new_tokens))
        found = strategy.search(text, prompt, replace(limits, max_new_tokens=own), mask)
        each = len(found) // len(prompt)
        kept = [[one for one in found[row * each : (row + 1) * each] if one.score > -inf] for row in range(len(prompt))]
        return list(zip(prompt.tolist(), kept, strict=True))

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

    def _settings(self, given: dict[str, Any]) -> GenerationConfig:
        """What holds for a call: what its caller gives, then what the model's configuration says."""
        own: GenerationConfig = getattr(getattr(self, "config", None), "generation_config", GenerationConfig())
        for ours, other in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            if given.get(ours) is not None and (number := given[other] or getattr(own, other)) is not None:
                whose = "" if given[other] is not None else "the model's generation_config has "
                raise InputError(f"`{ours}` and `{other}` are one limit, and {whose}{other}={number}: give `{other}`")
        return own.with_arguments(**given)

    def _warn(self, settings: GenerationConfig, chosen: Decoding) -> None:
        """Name the rules that are not obeyed, once for a model."""
        ignored = settings.ignored(do_sample=isinstance(chosen, Sampling))
        if ignored and not getattr(self, "_has_warned", False):
            self._has_warned = True
            rules = ", ".join(f"`{rule}`" for rule in ignored)
            warnings.warn(
                f"generation_config.json asks for {rules}, which regard does not obey: its texts differ from those of "
                "transformers",
                UnsupportedGenerationWarning,
                stacklevel=4,  # whoever calls `generate`, behind the check of its names
            )

    def _begin(
        self,
        prompts: Any,
        attention_mask: Tensor | None,
        settings: GenerationConfig,
        given: dict[str, Any],
        use_cache: bool,
        given_tokens: dict[str, Any],
        decoder_start_token_id: int | None = None,
    ) -> tuple[Continuation, Tensor, Tensor | None, GenerationLimits]:
        if getattr(self, "training", False):
            raise InputError(
                "the model is in training mode, where dropout changes what it generates: model.eval() first"
            )
        known, tokens = self._tokens(), {name: one for name, one in given_tokens.items() if one is not None}
        ends = _ends(tokens["eos_token_id"]) if "eos_token_id" in tokens else known.eos_token_ids
        pad = tokens.get("pad_token_id", known.pad_token_id)
        with torch.inference_mode():  # nothing but tokens comes out
            text, first, mask = self.continuation(
                prompts,
                attention_mask=attention_mask,
                use_cache=use_cache,
                decoder_start_token_id=decoder_start_token_id,
                pad_token_id=pad,
                eos_token_id=ends,
            )
        lengths = [first.shape[1]] * len(first) if mask is None else mask.sum(1).tolist()
        most = [self._most(length, settings, given) for length in lengths]
        limits = GenerationLimits(
            max_new_tokens=_as_one(most),
            eos_token_id=ends,
            pad_token_id=pad if pad is not None else ends[0] if ends else 0,
            min_new_tokens=_as_one([_least(*one, settings, given) for one in zip(lengths, most, strict=True)]),
            forced_bos_token_id=tokens.get("forced_bos_token_id", known.forced_bos_token_id),
            forced_eos_token_id=tokens.get("forced_eos_token_id", known.forced_eos_token_id),
            suppress_tokens=tuple(tokens.get("suppress_tokens", known.suppress_tokens)),
            begin_suppress_tokens=settings.begin_suppress_tokens or (),
            rules=_rules(settings, ends),
        )
        return text, first, mask, limits

    def _most(self, length: int, settings: GenerationConfig, given: dict[str, Any]) -> int:
        """How many new tokens a prompt of this length may have at most."""
        room = self._room(length)
        if room is not None and room < 1:
            raise InputError(
                f"the prompt has {length} tokens and this model has positions for {length + room}, which leaves none "
                "to generate: shorten it"
            )
        most = 20 if settings.max_new_tokens is None else settings.max_new_tokens
        if settings.max_length is not None and settings.max_new_tokens is None:
            check_size("max_length", settings.max_length, "counts the tokens of a text, its prompt included,")
            most = settings.max_length - length
            if most < 1:
                whose = "" if given.get("max_length") is not None else " (by the model's generation_config)"
                raise InputError(
                    f"`max_length` is {settings.max_length}{whose} and the prompt has {length} tokens, which leaves "
                    "none to generate: give max_new_tokens="
                )
        check_size("max_new_tokens", most, "counts new tokens")
        return most if room is None else min(most, room)


def _least(length: int, most: int, settings: GenerationConfig, given: dict[str, Any]) -> int:
    """How many new tokens a prompt of this length has before its text may end; the limit comes before the model's."""
    if settings.min_new_tokens is not None:
        check_count("min_new_tokens", settings.min_new_tokens, 0, "counts new tokens before the end", None)
        if given.get("min_new_tokens") is not None and settings.min_new_tokens > (settings.max_new_tokens or inf):
            return settings.min_new_tokens  # which the limits refuse
        return min(settings.min_new_tokens, most)
    if settings.min_length is None:
        return 0
    check_count("min_length", settings.min_length, 0, "counts the tokens of a text before its end", None)
    return min(max(settings.min_length - length, 0), most)


def _as_one(numbers: list[int]) -> int | tuple[int, ...]:
    """A number for each row, or one for all."""
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _rules(settings: GenerationConfig, ends: Sequence[int]) -> tuple[TokenRule, ...]:
    """The rules of tokens, in the order of transformers."""
    rules: list[TokenRule] = []
    if settings.repetition_penalty not in (None, 1):
        rules.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram_size not in (None, 0):
        rules.append(NoRepeatNGram(settings.no_repeat_ngram_size))
    words = BadWords(settings.bad_words_ids or ()).words
    if words := tuple(word for word in words if len(word) > 1 or word[0] not in ends):  # texts may end
        rules.append(BadWords(words))
    return tuple(rules)


_DRAWING, _BEAMS = ("temperature", "top_k", "top_p", "min_p"), ("length_penalty", "early_stopping")


def _decoding(
    search_strategy: Decoding | None,
    settings: GenerationConfig,
    given: dict[str, Any],
    generator: torch.Generator | None,
) -> Decoding:
    """The decoding that transformers' options name; one that is given without effect is refused."""
    arguments = {name: value for name, value in given.items() if value is not None}
    if generator is not None:
        arguments["generator"] = generator
    do_sample, num_beams, count = settings.do_sample, settings.num_beams, settings.num_return_sequences
    num_beams, count = 1 if num_beams is None else num_beams, 1 if count is None else count
    if do_sample not in (None, True, False) or isinstance(do_sample, int) != isinstance(do_sample, bool):
        raise InputError(f"`do_sample` must be True or False, got {do_sample!r}")
    drawing = [name for name in (*_DRAWING, "generator") if name in arguments]
    beams = [name for name in _BEAMS if name in arguments]
    if search_strategy is not None:
        return _given(search_strategy, [*drawing, *beams], arguments)
    if drawing and not do_sample:
        raise InputError(f"`{drawing[0]}` is for drawn tokens: give do_sample=True too, or leave it out")
    if beams and num_beams == 1:
        raise InputError(f"`{beams[0]}` is for beams: give num_beams= of at least 2 too, or leave it out")
    if do_sample and num_beams != 1:
        whose = "" if {"do_sample", "num_beams"} <= arguments.keys() else " (the model's generation_config has one)"
        raise InputError(
            f"`do_sample` with num_beams={num_beams}{whose} is not here: draw without beams by num_beams=1, or search "
            "with them by do_sample=False"
        )
    if do_sample:
        options = {name: value for name in _DRAWING if (value := getattr(settings, name)) is not None}
        options["top_k"] = options.get("top_k", 50) or None  # transformers' default, and its 0 for all
        return Sampling(**options, generator=generator)
    if num_beams != 1:
        options = {name: value for name in _BEAMS if (value := getattr(settings, name)) is not None}
        return BeamSearch(num_beams, num_return_sequences=count, **options)
    if count != 1:
        raise InputError(
            f"`num_return_sequences` of {count} would be the same text each time: give do_sample=True or num_beams="
        )
    return Greedy()


def _given(search_strategy: Decoding, named: list[str], arguments: dict[str, Any]) -> Decoding:
    if not hasattr(search_strategy, "search"):
        raise InputError(f"`search_strategy` must be a value such as decoding.Greedy(), got {search_strategy!r}")
    neutral = {"num_beams": 1, "do_sample": False, "num_return_sequences": 1}
    if named := [*named, *(name for name, value in neutral.items() if arguments.get(name, value) != value)]:
        kind = type(search_strategy).__name__
        raise InputError(f"`{named[0]}` beside `search_strategy` has no effect: give it to {kind}")
    return search_strategy


def _ends(eos_token_id: Any) -> tuple[int, ...]:
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.tolist()
    return tuple(eos_token_id) if isinstance(eos_token_id, Sequence | set | frozenset) else (eos_token_id,)


def _repeat(rows: Tensor, times: int) -> Tensor:
    return rows.repeat_interleave(times, 0)


def _repeat_limits(limits: GenerationLimits, times: int) -> GenerationLimits:
    """The limits of rows of which each comes so many times."""
    most, least = (
        tuple(one for one in value for _ in range(times)) if isinstance(value, tuple) else value
        for value in (limits.max_new_tokens, limits.min_new_tokens)
    )
    return replace(limits, max_new_tokens=most, min_new_tokens=least)


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
