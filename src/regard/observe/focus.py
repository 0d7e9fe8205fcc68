"""What a picture shows: one word, two heads that look from it to different words, and one head's heat map.

A plain mean over heads shows little but [CLS], and the sharpest head of all is mostly one that looks at the previous
token. So the choice is among looks at content words, with special tokens, the word itself and its neighbours left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.observe.content import is_content, is_word
from regard.observe.records import Layer, Record
from regard.observe.token_row import token_row
from regard.observe.tokens import Word, words_of

__all__ = ["Focus", "Look", "choose_focus"]

_LONG = 512  # words: of longer texts the strongest keys of each query stand in for all of them


@dataclass(frozen=True)
class Look:
    """One head looking from the chosen word to the word it weighs most."""

    layer: int
    head: int
    target: int  # index into the words of the layer's key stream
    weight: float


@dataclass(frozen=True)
class Focus:
    """The chosen word (index into `queries`) and the heads that look from it, the one whose map is drawn first.

    `queries` and `keys` are the words of the query and the key stream: the same ones except in cross-attention.
    """

    queries: tuple[Word, ...]
    keys: tuple[Word, ...]
    word: int
    looks: tuple[Look, ...]
    sequence: int = 0


def choose_focus(
    record: Record, *, token: str | None = None, layer: int | None = None, head: int | None = None, sequence: int = 0
) -> Focus:
    """Choose the word and the two heads whose weights on two content words are the sharpest, within what is asked for.

    Args:
        record: What was seen, with its tokens.
        token: The word to look from; by default the one with the sharpest pair of looks.
        layer: The layer of the first head; by default any.
        head: The first head, in that layer; by default any.
        sequence: Which sequence of the batch.

    Raises:
        InputError: No such word, layer, head or sequence, or a head without its layer.
        ObservationError: The record holds no layer, or its tokens are not known.
    """
    if head is not None and layer is None:
        raise InputError(f"`head` {head} needs a `layer` too: heads are counted within their layer")
    if layer is not None and head is not None and not 0 <= head < record.layer(layer).heads:
        raise InputError(f"`head` must be from 0 to {record.layer(layer).heads - 1} in layer {layer}, got {head}")
    stage = _Stage.of(record, layer, sequence)
    rows = [stage.find(token)] if token is not None else stage.readable()
    pinned = None if layer is None else (range(len(record.layers))[layer], head)
    best: tuple[float, int, tuple[Look, ...]] | None = None
    for row in rows:
        looks = stage.pair(row, pinned)
        sharpness = sum(look.weight for look in looks)
        if looks and (best is None or sharpness > best[0]):
            best = sharpness, row, looks
    if best is None:
        raise InputError("the text has no word that looks at another one: give it a few more words")
    return Focus(stage.queries, stage.keys, best[1], best[2], sequence)


@dataclass(frozen=True, eq=False)
class _Stage:
    """The layers whose queries and keys are the same two streams of words, and these words."""

    record: Record
    layers: tuple[int, ...]
    queries: tuple[Word, ...]
    keys: tuple[Word, ...]
    sequence: int

    @classmethod
    def of(cls, record: Record, layer: int | None, sequence: int) -> "_Stage":
        """Where a model has cross-attention that is what to see first: the alignment of two texts."""
        if not record.layers:
            raise ObservationError("the record holds no attention layer, so there is nothing to choose from")
        crossing = next((one for one in record.layers if one.kind == "cross"), None)
        lead = record.layer(layer) if layer is not None else crossing or record.layers[0]
        if not 0 <= sequence < lead.batch:
            raise InputError(f"`sequence` must be from 0 to {lead.batch - 1} (batch: {lead.batch}), got {sequence}")
        streams = lead.query_tokens, lead.key_tokens
        same = tuple(i for i, one in enumerate(record.layers) if (one.query_tokens, one.key_tokens) == streams)
        queries, keys = (words_of(record.stream(name, sequence)) for name in streams)
        return cls(record, same, queries, keys, sequence)

    @property
    def one_text(self) -> bool:
        """Queries and keys are the same words."""
        return self.queries == self.keys

    def find(self, token: str) -> int:
        """The word that was asked for."""
        name = self.record.layers[self.layers[0]].query_tokens
        row = token_row(self.record.stream(name, self.sequence), token).row
        return next(index for index, word in enumerate(self.queries) if row in word.pieces)

    def readable(self) -> list[int]:
        """Words to look from: no special tokens, no punctuation; of a long text those with the sharpest looks."""
        rows = [i for i, word in enumerate(self.queries) if not word.special and is_word(word.text)]
        if len(rows) <= _LONG:
            return rows
        allowed = self._allowed_pieces()
        sharp = np.zeros(len(self.queries))
        for index in self.layers:
            seen = self.record.layers[index]
            for row in rows:
                pieces = list(self.queries[row].pieces)
                keys, weights = seen.top_keys[self.sequence][:, pieces], seen.top_weights[self.sequence][:, pieces]
                far = (np.abs(keys - pieces[0]) > 2) & allowed[keys]
                sharp[row] = max(sharp[row], float((weights * far).max(initial=0.0)))
        return [int(row) for row in np.argsort(-sharp)[:8] if sharp[row] > 0] or rows[:8]

    def _allowed_pieces(self) -> npt.NDArray[np.bool_]:
        """Pieces of content words; one more entry that is False, for key −1."""
        pieces = sum(len(word.pieces) for word in self.keys)
        allowed = np.zeros(pieces + 1, dtype=np.bool_)
        for word in self.keys:
            allowed[list(word.pieces)] = is_content(word.text) and not word.special
        return allowed

    def pair(self, row: int, pinned: tuple[int, int | None] | None) -> tuple[Look, ...]:
        """The sharpest look of one word, and the sharpest of another head at another word."""
        looks = sorted(self._looks(row), key=lambda look: -look.weight)
        firsts = [look for look in looks if pinned is None or look.layer == pinned[0]]
        if pinned is not None and pinned[1] is not None:
            # A head that was asked for is shown whatever it looks at, content word or not.
            firsts = [look for look in firsts if look.head == pinned[1]] or [self._anywhere(row, pinned[0], pinned[1])]
        if not firsts:
            return ()
        first = firsts[0]
        second = next(
            (
                look
                for look in looks
                if self.keys[look.target].text != self.keys[first.target].text
                and (look.layer, look.head) != (first.layer, first.head)
            ),
            None,
        )
        return (first,) if second is None else (first, second)

    def _looks(self, row: int) -> Iterator[Look]:
        """The looks of one word at content words, of every head at each."""
        targets = [index for index in range(len(self.keys)) if self._worth_showing(row, index)]
        if not targets:
            return
        for index in self.layers:
            weights = self._weights(self.record.layers[index], row)[:, targets]
            best = weights.argmax(1)
            for head, at in enumerate(best):
                if weights[head, at] > 0:
                    yield Look(index, head, targets[at], float(weights[head, at]))

    def _worth_showing(self, row: int, target: int) -> bool:
        word = self.keys[target]
        if word.special or not is_content(word.text):
            return False
        near = abs(row - target) <= 1 or word.text.casefold() == self.queries[row].text.casefold()
        return not (self.one_text and near)

    def _anywhere(self, row: int, layer: int, head: int) -> Look:
        """The strongest look of one head, wherever it goes."""
        weights = self._weights(self.record.layers[layer], row)[head]
        return Look(layer, head, int(weights.argmax()), float(weights.max()))

    def _weights(self, seen: Layer, row: int) -> npt.NDArray[np.float64]:
        """Weights from one word to every word (heads, words): mean over its pieces, sum over theirs."""
        pieces = list(self.queries[row].pieces)
        owner = np.zeros(seen.keys + 1, dtype=np.intp)
        for index, word in enumerate(self.keys):
            owner[[piece for piece in word.pieces if piece < seen.keys]] = index
        total = np.zeros((seen.heads, len(self.keys)))
        if seen.exact is not None:
            each = seen.exact[self.sequence][:, pieces].mean(1)
            np.add.at(total.T, owner[: seen.keys], each.T)
            return total
        keys, weights = seen.top_keys[self.sequence][:, pieces], seen.top_weights[self.sequence][:, pieces]
        for head in range(seen.heads):
            np.add.at(total[head], owner[keys[head]], np.where(keys[head] >= 0, weights[head], 0) / len(pieces))
        return total
