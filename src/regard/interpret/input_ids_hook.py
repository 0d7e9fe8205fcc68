"""Record the token ids of each call of a model, by forward pass, and the tokens that they stand for."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.capture.records import Record
from regard.capture.tokens import Token
from regard.interpret.tokens_from_tokenizer import tokens_of

__all__ = ["GivenTokens", "Heard", "Named", "Streams"]


Streams = dict[str, tuple[tuple[Token, ...], ...]]
Named = Sequence[str] | Mapping[str, Sequence[str]]  # in the form of `tokens=`
_Ids = dict[str, list[Tensor]]

# Separators besides the end-of-sequence token: marks that end a sentence or a clause.
_SEPARATORS = frozenset(".,;:!?…。，、；：！？")
_SEPARATING = frozenset({"[SEP]", "</s>", "<sep>", "<|endoftext|>"})


class Heard:
    """A hook that records the token ids in the calls of a model.

    The record of a call is known only after the call has run: `passes` returns the number of records at that time. The
    steps of one generation belong to one record, and their ids are concatenated.
    """

    whole = False

    def __init__(self, passes: Callable[[], int], tokenizer: Any = None) -> None:
        self._passes = passes
        self._tokenizer = tokenizer
        self._ids: dict[int, _Ids] = {}
        self._pending: dict[str, Tensor] = {}
        self._streams: dict[str, Tensor] = {}  # ids of the running call
        self._separates: dict[int, bool] = {}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the ids of one call of the model."""
        self._settle()
        first = args[0] if args and isinstance(args[0], Tensor) and not args[0].is_floating_point() else None
        for name in ("input_ids", "decoder_input_ids"):
            ids = kwargs.get(name, first if name == "input_ids" else None)
            if isinstance(ids, Tensor) and ids.ndim == 2:
                self._pending[name] = ids.detach().cpu()
        self._streams = _by_stream(module, self._pending)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Clear the ids of the call that has ended, since calls outside of it have other inputs."""
        self._streams = {}

    def streams(self) -> Mapping[str, Tensor]:
        """Return the ids of the running call, by stream."""
        return self._streams

    def separators(self, ids: Tensor) -> Tensor | None:
        """Return the mask of end-of-sequence tokens and of tokens that consist only of a mark between sentences or
        clauses.
        """
        if self._tokenizer is None:
            return None
        for one in set(ids.unique().tolist()) - self._separates.keys():
            ends = one in (getattr(self._tokenizer, name, None) for name in ("sep_token_id", "eos_token_id"))
            self._separates[one] = ends or _separates(tokens_of(self._tokenizer, [one])[0].text)
        return torch.isin(ids, torch.tensor([one for one, does in self._separates.items() if does], dtype=torch.long))

    def _settle(self) -> None:
        """Assign the ids of the finished call to its record."""
        if self._pending:
            heard = self._ids.setdefault(self._passes() - 1, {})
            for name, ids in self._pending.items():
                heard.setdefault(name, []).append(ids)
            self._pending = {}

    def tokens(self, tokenizer: Any, index: int, record: Record) -> Streams:
        """Return the tokens of one record, where their number equals that of its positions."""
        self._settle()
        if tokenizer is None:
            return {}
        heard = self._ids.get(index, {})
        lengths = record.streams
        found: Streams = {}
        for argument, steps in heard.items():
            if any(len(step) != len(steps[0]) for step in steps):
                continue
            ids = [[int(one) for step in steps for one in step[batch_index]] for batch_index in range(len(steps[0]))]
            stream = _stream_of(argument, len(ids[0]), record)
            if stream is not None:
                found[stream] = tuple(tokens_of(tokenizer, one[: lengths[stream]]) for one in ids)
        return found


class GivenTokens:
    """Tokens named by the caller, numbered so that equal texts are equal tokens."""

    whole = True

    def __init__(self, tokens: Named) -> None:
        named = tokens if isinstance(tokens, Mapping) else {"text": tokens}
        numbers = {text: number for number, text in enumerate(dict.fromkeys(itertools.chain(*named.values())))}
        self._ids = {name: torch.tensor([[numbers[text] for text in texts]]) for name, texts in named.items()}
        self._separating = torch.tensor([_separates(text) for text in numbers])

    def streams(self) -> Mapping[str, Tensor]:
        """Return the ids of the whole text of each stream."""
        return self._ids

    def separators(self, ids: Tensor) -> Tensor | None:
        """Return the mask of separators."""
        return self._separating[ids]


def _separates(text: str) -> bool:
    return text in _SEPARATING or (text != "" and set(text) <= _SEPARATORS)


def _by_stream(module: nn.Module, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Assign ids to streams; ids that an encoder–decoder makes for its decoder itself are not known."""
    crossed = "decoder_input_ids" in ids or getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    names = {"input_ids": "source" if crossed else "text", "decoder_input_ids": "target"}
    return {names[name]: one for name, one in ids.items()}


def _stream_of(argument: str, count: int, record: Record) -> str | None:
    """Return the stream whose tokens an argument of the model holds, or None if their number differs from its
    positions.
    """
    lengths = record.streams
    if argument == "decoder_input_ids":
        names = ["target"]
    else:  # a decoder watched without its encoder calls its target ids so, and no layer encodes the source
        encodes = any(layer.kind == "self" and layer.query_tokens == "source" for layer in record.layers)
        names = ["text", "source" if encodes else "target"]
    return next((name for name in names if name in lengths and count >= lengths[name]), None)
