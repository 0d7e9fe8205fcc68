"""What a checkpoint says of generation, by transformers' names: its generation_config.json, tokens apart."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from regard.models.decoding.base import check_tokens
from regard.models.decoding.rules import BadWords

__all__ = ["GenerationConfig", "UnsupportedGenerationWarning", "read_generation_config"]


class UnsupportedGenerationWarning(UserWarning):
    """A checkpoint has a rule of generation that transformers obeys and regard does not."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How a model's checkpoint asks for texts to be generated; what is None is left to the defaults of `generate`.

    `generate` takes what its caller gives, then what is here, then transformers' defaults, as transformers does. The
    special tokens, forced and suppressed ones too, are in the configuration's `special_tokens`.

    Args:
        max_new_tokens, max_length, min_new_tokens, min_length, do_sample, num_beams, num_return_sequences, temperature,
            top_k, top_p, min_p, length_penalty, early_stopping, repetition_penalty, no_repeat_ngram_size,
            bad_words_ids, begin_suppress_tokens: As the arguments of `generate`.
        unsupported: The other rules of generation_config.json, each as "name=value", of which `generate` warns.

    Raises:
        InputError: Words or tokens are none.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int | None = None
    do_sample: bool | None = None
    num_beams: int | None = None
    num_return_sequences: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    unsupported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for one in fields(self):  # a value that can be compared and hashed, from lists too
            object.__setattr__(self, one.name, _as_tuples(getattr(self, one.name)))
        if self.bad_words_ids is not None:
            BadWords(self.bad_words_ids)  # which checks them
        if self.begin_suppress_tokens is not None:
            check_tokens("begin_suppress_tokens", self.begin_suppress_tokens)

    def with_arguments(self, **given: Any) -> Self:
        """Return what holds for a call with these arguments, of which None means that it is not given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def ignored(self, *, do_sample: bool) -> list[str]:
        """Return the unsupported rules that would change what is generated with or without drawing."""
        return [rule for rule in self.unsupported if do_sample or rule.partition("=")[0] not in _OF_DRAWING]


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


_READ = tuple(one.name for one in fields(GenerationConfig) if one.name != "unsupported")
# Rules that transformers obeys, or asks a repository of code for, and the values with which they change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("typical_p", "guidance_scale", "encoder_repetition_penalty", "num_beam_groups"), (1,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), (0,)),
    **dict.fromkeys(("renormalize_logits", "remove_invalid_values", "token_healing"), (False,)),
    **dict.fromkeys(("top_h", "sequence_bias", "exponential_decay_length_penalty", "watermarking_config"), ()),
    **dict.fromkeys(("stop_strings", "max_time", "constraints", "force_words_ids", "dola_layers"), ()),
}
_OF_DRAWING = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")


def read_generation_config(raw: Mapping[str, Any]) -> GenerationConfig:
    """Read a generation_config.json, or the same keys of an old config.json; keys that change nothing are left out.

    >>> read_generation_config({"num_beams": 4, "typical_p": 0.9, "max_time": None, "transformers_version": "5.0.0"})
    ... # doctest: +ELLIPSIS
    GenerationConfig(... num_beams=4, ... unsupported=('typical_p=0.9',))
    """
    others = {name: raw[name] for name in _UNSUPPORTED if raw.get(name) is not None}
    forced = raw.get("forced_eos_token_id")
    if isinstance(forced, list) and len(forced) > 1:  # one of them is a token of the model
        others["forced_eos_token_id"] = forced
    return GenerationConfig(
        **{name: raw[name] for name in _READ if raw.get(name) is not None},
        unsupported=tuple(
            f"{name}={value}" for name, value in others.items() if value not in _UNSUPPORTED.get(name, ())
        ),
    )
