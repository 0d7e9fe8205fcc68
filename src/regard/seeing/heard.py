"""The token ids that a model was called with, told apart by forward pass, and the tokens they stand for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.observe.records import Record
from regard.observe.tokens import Token
from regard.seeing.tokens import tokens_of

__all__ = ["Given", "Heard", "Streams", "given_tokens"]

Streams = dict[str, tuple[tuple[Token, ...], ...]]
_Ids = dict[str, list[Tensor]]
# Beside the end of a sequence, what ends a sentence or a part of it.
_SEPARATORS = frozenset(".,;:!?…。，、；：！？")
_SEPARATING = frozenset({"[SEP]", "</s>", "<sep>", "<|endoftext|>"})


class Heard:
    """A forward pre-hook that listens for token ids.

    Which record a call belongs to is known only once it has run: `passes` tells how many there are by then. The steps
    of one generation belong to one record, and their ids are joined.
    """

    whole = False

    def __init__(self, passes: Callable[[], int], tokenizer: Any = None) -> None:
        self._passes = passes
        self._tokenizer = tokenizer
        self._ids: dict[int, _Ids] = {}
        self._pending: dict[str, Tensor] = {}
        self._streams: dict[str, Tensor] = {}  # of the call that runs now
        self._separates: dict[int, bool] = {}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Listen to one call of the model."""
        self._settle()
        first = args[0] if args and isinstance(args[0], Tensor) and not args[0].is_floating_point() else None
        for name in ("input_ids", "decoder_input_ids"):
            ids = kwargs.get(name, first if name == "input_ids" else None)
            if isinstance(ids, Tensor) and ids.ndim == 2:
                self._pending[name] = ids.detach().cpu()
        self._streams = _by_stream(module, self._pending)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """The call has ended: whatever runs outside of it runs on something else."""
        self._streams = {}

    def streams(self) -> Mapping[str, Tensor]:
        """The ids of the call that runs now."""
        return self._streams

    def separators(self, ids: Tensor) -> Tensor | None:
        """Ends of sequence, and pieces that are nothing but a mark between sentences or their parts."""
        if self._tokenizer is None:
            return None
        for one in set(ids.unique().tolist()) - self._separates.keys():
            ends = one in (getattr(self._tokenizer, name, None) for name in ("sep_token_id", "eos_token_id"))
            self._separates[one] = ends or _separates(tokens_of(self._tokenizer, [one])[0].text)
        return torch.isin(ids, torch.tensor([one for one, does in self._separates.items() if does], dtype=torch.long))

    def _settle(self) -> None:
        """Give the ids of the call that has run to its record."""
        if self._pending:
            heard = self._ids.setdefault(self._passes() - 1, {})
            for name, ids in self._pending.items():
                heard.setdefault(name, []).append(ids)
            self._pending = {}

    def tokens(self, tokenizer: Any, index: int, record: Record) -> Streams:
        """The tokens of one record, as far as its ids were heard and are as many as its positions."""
        self._settle()
        if tokenizer is None:
            return {}
        heard = self._ids.get(index, {})
        source = "source" if "decoder_input_ids" in heard else "text"
        named = {source: heard.get("input_ids", []), "target": heard.get("decoder_input_ids", [])}
        lengths = _lengths(record)
        found: Streams = {}
        for stream, steps in named.items():
            if not steps or stream not in lengths or any(len(step) != len(steps[0]) for step in steps):
                continue
            ids = [[int(one) for step in steps for one in step[sequence]] for sequence in range(len(steps[0]))]
            if len(ids[0]) >= lengths[stream]:
                found[stream] = tuple(tokens_of(tokenizer, one[: lengths[stream]]) for one in ids)
        return found


class Given:
    """Tokens that the caller named, as numbers: equal texts are equal tokens."""

    whole = True

    def __init__(self, tokens: Sequence[str]) -> None:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(tokens))}
        self._ids = torch.tensor([[numbers[text] for text in tokens]])
        self._separating = torch.tensor([_separates(text) for text in numbers])

    def streams(self) -> Mapping[str, Tensor]:
        """The ids of the whole text."""
        return {"text": self._ids}

    def separators(self, ids: Tensor) -> Tensor | None:
        """Which of them are separators."""
        return self._separating[ids]


def _separates(text: str) -> bool:
    return text in _SEPARATING or (text != "" and set(text) <= _SEPARATORS)


def _by_stream(module: nn.Module, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whose ids they are; an encoder–decoder may make the ids of its decoder itself, which nobody hears."""
    crossed = "decoder_input_ids" in ids or getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    names = {"input_ids": "source" if crossed else "text", "decoder_input_ids": "target"}
    return {names[name]: one for name, one in ids.items()}


def given_tokens(tokens: Sequence[str], record: Record) -> Streams:
    """Tokens that the caller named himself, one for each position of a batch of one."""
    lengths = _lengths(record)
    if set(lengths) != {"text"} or lengths["text"] != len(tokens) or record.layers[0].batch != 1:
        needed = ", ".join(f"{length} ({stream})" for stream, length in lengths.items())
        raise InputError(
            f"`tokens` must name the positions of one sequence, {needed} of them in a batch of "
            f"{record.layers[0].batch}, got {len(tokens)}: leave it out, or pass `tokenizer=` for batches and "
            "for two texts"
        )
    return {"text": (tuple(Token(text) for text in tokens),)}


def _lengths(record: Record) -> dict[str, int]:
    """How many positions each stream has."""
    lengths: dict[str, int] = {}
    for layer in record.layers:
        for stream, length in ((layer.query_tokens, layer.queries), (layer.key_tokens, layer.keys)):
            lengths[stream] = max(length, lengths.get(stream, 0))
    return lengths
