"""The token ids that a model was called with, told apart by forward pass, and the tokens they stand for."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from regard.errors import InputError
from regard.observe.records import Record
from regard.observe.tokens import Token
from regard.seeing.tokens import tokens_of

__all__ = ["Heard", "Streams", "given_tokens"]

Streams = dict[str, tuple[tuple[Token, ...], ...]]
_Ids = dict[str, list[Tensor]]


class Heard:
    """A forward pre-hook that listens for token ids.

    Which record a call belongs to is known only once it has run: `passes` tells how many there are by then. The steps
    of one generation belong to one record, and their ids are joined.
    """

    def __init__(self, passes: Callable[[], int]) -> None:
        self._passes = passes
        self._ids: dict[int, _Ids] = {}
        self._pending: dict[str, Tensor] = {}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Listen to one call of the model."""
        self._settle()
        first = args[0] if args and isinstance(args[0], Tensor) and not args[0].is_floating_point() else None
        for name in ("input_ids", "decoder_input_ids"):
            ids = kwargs.get(name, first if name == "input_ids" else None)
            if isinstance(ids, Tensor) and ids.ndim == 2:
                self._pending[name] = ids.detach().cpu()

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
