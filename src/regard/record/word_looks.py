"""Find the largest weights from word to word, in every head, among the pairs of words that are worth showing.

`reach` selects these pairs. A mean over heads shows mainly [CLS], and the head with the largest weight mostly attends
to the previous token. Therefore content words that are not adjacent are preferred; if there are none, as in short
texts, adjacent words count too, then function words, and finally symbols such as an emoji. Among these, weights that
are findings (`findings`) come before those that a head gives from every word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.errors import ObservationError
from regard.record.findings import Habits
from regard.record.layers import Stream, at_index, in_stream, stream_of, with_words
from regard.record.names import head_name, visible
from regard.record.places import Name, Place, find_place, words_with
from regard.record.records import Layer, Record
from regard.record.tokens import Word, content_words, is_sign, is_word, pronoun_in, words_of
from regard.record.visible import MOST, Visible, padding_of
from regard.record.weights_on import rows_with_weight, weights_on

__all__ = ["REACHES", "Look", "Reach", "WordLooks"]

Reach = Literal["apart", "beside", "words", "signs"]
REACHES: tuple[Reach, ...] = ("apart", "beside", "words", "signs")  # the first one with a result is used

_LONG = 512  # up to this number of words; for longer texts only the strongest keys of each query are used
_CELLS = 2**22  # number of weights between words compared in one step
_NEARLY = 0.75  # share of a pronoun's largest weight above which an earlier word is preferred
_SHARP, _TIMES_EVEN = 0.1, 2.0


@dataclass(frozen=True)
class Look:
    """One head with the chosen word and the word on which it has the largest weight."""

    layer: int
    head: int
    target: int  # index into the words of the layer's key stream
    weight: float


@dataclass(frozen=True, eq=False)
class _Strongest:
    """The largest weight of each head (heads of all layers) in each row; `weights` are −1 if there is none, and `sharp`
    says whether a finding of the head is sharp, the largest or another.
    """

    places: tuple[tuple[int, int], ...]  # layer and head
    targets: npt.NDArray[np.intp]
    weights: npt.NDArray[np.float64]
    sharp: npt.NDArray[np.bool_]

    def look(self, place: int, row: int) -> Look:
        """Return one of them as a Look."""
        return Look(*self.places[place], int(self.targets[place, row]), float(self.weights[place, row]))


@dataclass(frozen=True, eq=False)
class WordLooks:
    """The layers whose queries and keys are the same two streams of words, and these words."""

    record: Record
    layers: tuple[int, ...]
    queries: tuple[Word, ...]
    keys: tuple[Word, ...]
    batch_index: int
    among: frozenset[str] | None = None  # lower-case words; other key words are ignored

    @classmethod
    def of(
        cls,
        record: Record,
        layer: int | str | None,
        batch_index: int,
        stream: Stream | None,
        among: frozenset[str] | None = None,
    ) -> "tuple[WordLooks, Layer]":
        """Return the layers to choose from, and the layer given by the caller, or else the first of these.

        If a model has cross-attention, its layers are used, because they show the alignment of two texts.
        """
        if not record.layers:
            raise ObservationError("the record holds no attention layer, so there is nothing to choose from")
        inside = in_stream(record.layers, stream) if stream is not None else record.layers
        candidates = with_words(inside, record.tokens)
        lead = next((one for one in candidates if one.kind == "cross"), None)
        lead = lead or next((one for one in candidates if one.query_tokens == "text"), candidates[0])
        if layer is not None:
            chosen = record.layer(layer, None if isinstance(layer, str) else stream_of(lead))
            lead = with_words([chosen], record.tokens)[0]
        batch_index = at_index("batch_index", batch_index, lead.batch, "batch")
        streams = lead.query_tokens, lead.key_tokens
        sides = *streams, lead.queries, lead.keys
        same = tuple(
            i for i, one in enumerate(record.layers)
            if (one.query_tokens, one.key_tokens, one.queries, one.keys) == sides
        )  # fmt: skip
        queries, keys = (words_of(record.stream(name, batch_index)) for name in streams)
        return cls(record, same, queries, keys, batch_index, among), lead

    @property
    def one_text(self) -> bool:
        """Whether queries and keys are the same words."""
        return self.queries == self.keys

    def find(self, token: Name) -> "tuple[WordLooks, int, Place]":
        """Return the requested place as a word, with its index; its tokens become one word where they are none."""
        stream = self.record.stream(self.record.layers[self.layers[0]].query_tokens, self.batch_index)
        place = find_place(stream, token)
        queries = words_with(stream, self.queries, place)
        looks = replace(self, queries=queries, keys=queries if self.one_text else self.keys)
        return looks, next(at for at, word in enumerate(queries) if word.pieces == place.positions), place

    def habits(self, layer: int) -> Habits:
        """Return what the heads of one of the layers give to each word from all words together."""
        return self._habits[self.layers.index(layer)]

    @cached_property
    def _habits(self) -> tuple[Habits, ...]:
        layers = [self.record.layers[index] for index in self.layers]
        at, tokens = self.batch_index, self.record.tokens
        return tuple(Habits(layer, at, Visible.of(tokens, layer, at), self.keys, self.one_text) for layer in layers)

    def habit(self, row: int, look: Look) -> str | None:
        """Return a clause that says what a weight is which is no finding, or None for one that may be a finding."""
        head, key, habits = (
            head_name(self.record, look.layer, look.head),
            self.keys[look.target],
            self.habits(look.layer),
        )
        name = f"{visible(key.text)}, the first token," if habits.visible.first in key.pieces else visible(key.text)
        if key.special:
            return f"{head} gives it to {visible(key.text)}, a special token: a resting place"
        if self.one_text and look.target == row:
            return f"{head} looks at the word itself: a habit of many heads"
        mean, clear = self._elsewhere(row, look)
        if not clear and mean > MOST:
            return f"{head} gives its weight to {name} from every word ({mean:.2f} on average): a resting place"
        if self.one_text and look.target == row - 1:
            return f"{head} looks at the word before it: a neighbour"
        if clear:
            return None
        if np.isnan(mean):
            return f"{head} gives it to {name} with no other word to compare: where such heads rest"
        return f"{head} gives {name} {mean:.2f} from the other words too: a habit"

    def unshown(self, row: int, look: Look) -> str:
        """Return a clause that says on which word a weight is that is no habit, and yet is not shown."""
        key, query = self.keys[look.target].text, self.queries[row].text
        if not is_sign(key):
            what = "punctuation"
        elif self.one_text and key.casefold() == query.casefold():
            what = "the same word elsewhere"
        elif self.one_text and look.target == row + 1:
            what = "the word after it"
        elif not self._content[look.target]:
            what = "not a content word"
        else:
            what = f"not sharp for its {len(self.keys[look.target].pieces)} tokens"
        return f"{head_name(self.record, look.layer, look.head)} gives it to {visible(key)}: {what}"

    @property
    def is_long(self) -> bool:
        """Whether only a few words are compared, as the text has very many."""
        return sum(not word.special and is_word(word.text) for word in self.queries) > _LONG

    def is_compared(self, row: int, look: Look) -> bool:
        """Return whether another word can see the word that is looked at, so that its weight tells a head's habit."""
        return not np.isnan(self._elsewhere(row, look)[0])

    def _elsewhere(self, row: int, look: Look) -> tuple[float, bool]:
        """Return the mean weight of a head on a word from the other words, and whether a weight is a finding."""
        weights, habits = self.weights(self.record.layers[look.layer], [row]), self.habits(look.layer)
        words, at = [self.queries[row]], (look.head, 0, look.target)
        return float(habits.elsewhere(weights, words)[at]), bool(
            habits.are_findings(weights, words, uncompared=True)[at]
        )

    def pronoun(self, row: int) -> str | None:
        """Return the pronoun that a word is or contains, or None."""
        return pronoun_in(self.queries[row].text)

    def is_sharp(self, look: Look) -> bool:
        """Return whether a weight is at least a tenth, and twice the weight under uniform attention."""
        return look.weight >= float(self._least_sharp(look.layer)[look.target])

    def _least_sharp(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the weight from which a look at each word is sharp, (words,)."""
        _, padding = padding_of(self.record.layers[layer], self.batch_index)
        pieces = np.array([len(word.pieces) for word in self.keys])
        return np.asarray(np.maximum(_SHARP, _TIMES_EVEN * pieces / max(1, int((~padding).sum()))))

    def is_known(self, row: int, look: Look) -> bool:
        """Return whether a word's weight is known: a pooled map has the strongest keys of each query only."""
        seen = self.record.layers[look.layer]
        keys = [piece for piece in self.keys[look.target].pieces if piece < seen.keys]
        return not np.isnan(weights_on(seen, self.batch_index, [look.head], self.queries[row].pieces, keys)).any()

    def readable(self, reach: Reach = "apart") -> list[int]:
        """Return candidate query words: no special tokens, no punctuation; in a long text, those with the largest
        weights.
        """
        shown = is_sign if reach == "signs" else is_word
        rows = [i for i, word in enumerate(self.queries) if not word.special and shown(word.text)]
        if len(rows) <= _LONG:
            return rows
        at = _Gathered.of([self.queries[row].pieces for row in rows])
        firsts = np.repeat(at.pieces[at.starts], at.counts)[:, None]
        sharp = np.zeros(len(self.queries))
        for index in self.layers:
            seen, least = self.record.layers[index], self._least_of_pieces(index)
            for head in self._heads(index):
                keys, weights = (
                    seen.top_keys[self.batch_index, head][at.pieces],
                    seen.top_weights[self.batch_index, head][at.pieces],
                )
                far = (np.abs(keys - firsts) > 2) & (weights >= least[head, keys])
                each = np.maximum.reduceat((weights * far).max(-1), at.starts)
                sharp[rows] = np.maximum(sharp[rows], each)
        return [int(row) for row in np.argsort(-sharp)[:8] if sharp[row] > 0] or rows[:8]

    def _heads(self, index: int) -> tuple[int, ...]:
        return self.record.layers[index].recorded_heads

    def _least_of_pieces(self, index: int) -> npt.NDArray[np.float64]:
        """Return the weight from which each piece of a content word is a finding of each head (heads, pieces + 1):
        infinity for other pieces, and in the last place for key −1.
        """
        counts = [len(word.pieces) for word in self.keys]
        least = np.where(self._content, self.habits(index).least, np.inf).repeat(counts, axis=-1)
        return np.append(least, np.full((len(least), 1), np.inf), axis=-1)

    @cached_property
    def _content(self) -> npt.NDArray[np.bool_]:
        """Which words of the keys are content words."""
        return self._of_keys(content_words([word.text for word in self.keys]))

    def _of_keys(self, worth: Sequence[bool]) -> npt.NDArray[np.bool_]:
        """Return which of the words worth showing are text and among the requested words."""
        kept = [not word.special and (self.among is None or word.text.casefold() in self.among) for word in self.keys]
        return np.array(worth, dtype=np.bool_) & np.array(kept, dtype=np.bool_)

    def pairs(
        self,
        rows: Sequence[int],
        pinned: tuple[int, int | None] | None,
        reach: Reach = "apart",
        *,
        findings: bool = False,
    ) -> list[tuple[tuple[Look, ...], bool]]:
        """Return for each word its largest weight that is a finding, and the largest finding of another head on another
        word; without `findings` its largest weight alone. The second value is whether one of its findings is sharp.
        """
        looks = self._looks(rows, reach, findings=findings)
        firsts = [pinned is None or (layer == pinned[0] and pinned[1] in (None, head)) for layer, head in looks.places]
        candidates = np.where(np.array(firsts)[:, None], looks.weights, -1)
        found: list[tuple[tuple[Look, ...], bool]] = []
        for number, row in enumerate(rows):
            is_sharp = bool(looks.sharp[firsts, number].any())
            place = int(candidates[:, number].argmax())
            place = self._first(row, looks.targets[:, number], candidates[:, number]) if is_sharp else place
            if candidates[place, number] <= 0:
                found.append(((), False))
                continue
            first = looks.look(place, number)
            found.append((self._with_second(first, looks, number) if findings else (first,), is_sharp))
        return found

    def pair(self, row: int, first: Look) -> tuple[Look, ...]:
        """Return a look of a word, and the largest finding of another head on another word, if there is one."""
        for reach in REACHES:
            pair = self._with_second(first, self._looks([row], reach, findings=True), 0)
            if len(pair) > 1:
                return pair
        return (first,)

    def _with_second(self, first: Look, looks: _Strongest, number: int) -> tuple[Look, ...]:
        spelled = np.array(
            [self.keys[target].text != self.keys[first.target].text for target in looks.targets[:, number]]
        )
        others = np.where(spelled, looks.weights[:, number], -1)
        others[looks.places.index((first.layer, first.head))] = -1
        second = int(others.argmax())
        return (first, looks.look(second, number)) if others[second] > 0 else (first,)

    def _first(self, row: int, targets: npt.NDArray[np.intp], weights: npt.NDArray[np.float64]) -> int:
        """Return the largest of a word's weights; for a pronoun, that on the earliest word before it with nearly the
        same weight.

        The antecedent of a pronoun precedes it, and is often the subject at the beginning.
        """
        sharpest = int(weights.argmax())
        if not self.one_text or self.pronoun(row) is None:
            return sharpest
        nearly = (weights >= _NEARLY * weights[sharpest]) & (weights > 0) & (targets < row)
        if not nearly.any():
            return sharpest
        earliest = nearly & (targets == targets[nearly].min())
        return int(np.where(earliest, weights, -1).argmax())

    def _looks(self, rows: Sequence[int], reach: Reach, *, findings: bool) -> _Strongest:
        """Return the largest weight of words on content words, for every head."""
        layers = [self.record.layers[index] for index in self.layers]
        places = tuple((index, head) for index in self.layers for head in self._heads(index))
        targets, weights = np.zeros((len(places), len(rows)), np.intp), np.full((len(places), len(rows)), -1.0)
        are_sharp = np.zeros(weights.shape, np.bool_)
        step = max(1, _CELLS // (max(seen.heads for seen in layers) * len(self.keys)))
        for start in range(0, len(rows), step):
            some, top = rows[start : start + step], 0
            worth = self._worth_showing(some, reach, findings=findings)
            words = [self.queries[row] for row in some]
            for index, seen in zip(self.layers, layers, strict=True):
                heads = seen.recorded_heads
                here = slice(top, top + len(heads)), slice(start, start + step)
                weights_of_all = self.weights(seen, some)
                shown = worth
                if findings:  # neighbours that nothing can be compared with are left to what is no finding
                    uncompared = reach == "apart"
                    shown = worth & self.habits(index).are_findings(weights_of_all, words, uncompared=uncompared)
                found = np.where(shown, weights_of_all, -1)[list(heads)]
                targets[here] = at = found.argmax(-1)
                are_sharp[here] = (found >= self._least_sharp(index)).any(-1) & findings
                best = np.take_along_axis(found, at[..., None], -1)[..., 0]
                weights[here] = np.where(best > 0, best, -1)
                top += len(heads)
        return _Strongest(places, targets, weights, are_sharp)

    def _worth_showing(self, rows: Sequence[int], reach: Reach, *, findings: bool) -> npt.NDArray[np.bool_]:
        """Return which words may be shown as the target of which words, of shape (rows, words)."""
        content = reach in ("apart", "beside")
        shown = is_sign if reach == "signs" else is_word
        keys = self._content if content else self._of_keys([shown(word.text) for word in self.keys])
        worth = np.broadcast_to(keys, (len(rows), len(self.keys)))
        if not self.one_text:
            return worth
        chosen = np.array(rows)[:, None]
        near = np.abs(chosen - np.arange(len(self.keys))) <= (1 if reach == "apart" else 0)
        near |= findings & (chosen - 1 == np.arange(len(self.keys)))  # the previous word
        if content:
            folded = _numbered([word.text.casefold() for word in self.keys])
            near |= folded[chosen] == folded
        return np.asarray(worth & ~near)

    def strongest(self, row: int, pinned: tuple[int, int | None] | None = None) -> Look:
        """Return the largest weight of a word on any word, special tokens and itself included: of a requested layer or
        head, or of all.
        """
        looks = []
        for index in self.layers if pinned is None else [pinned[0]]:
            weights = self.weights(self.record.layers[index], [row])[:, 0]
            heads = list(self._heads(index)) if pinned is None or pinned[1] is None else [pinned[1]]
            head, target = np.unravel_index(weights[heads].argmax(), weights[heads].shape)
            looks.append(Look(index, heads[head], int(target), float(weights[heads[head], target])))
        return max(looks, key=lambda look: look.weight)

    def weights(self, seen: Layer, rows: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return weights from some words to every word (heads, rows, words): the mean over their pieces, of the sum
        over the others'. What a pooled map does not have counts 0, and so do words of which not all was recorded.
        """
        at = _Gathered.of([self.queries[row].pieces for row in rows])
        recorded = np.logical_and.reduceat(rows_with_weight(seen, self.batch_index)[at.pieces], at.starts)
        each = np.nan_to_num(weights_on(seen, self.batch_index, range(seen.heads), at.pieces.tolist()))
        mean = np.add.reduceat(each, at.starts, axis=1) / at.counts[:, None].astype(each.dtype) * recorded[:, None]
        count = seen.keys
        starts = [word.pieces[0] for word in self.keys if word.pieces[0] < count]
        known = min(count, self.keys[-1].pieces[-1] + 1)
        total = np.zeros((seen.heads, len(rows), len(self.keys)))
        total[..., : len(starts)] = np.add.reduceat(mean[..., :known], starts, axis=-1, dtype=np.float64)
        return total


@dataclass(frozen=True, eq=False)
class _Gathered:
    """The concatenated pieces of some words: where each begins, and how many it has."""

    pieces: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    counts: npt.NDArray[np.intp]

    @classmethod
    def of(cls, words: Sequence[Sequence[int]]) -> "_Gathered":
        counts = np.array([len(pieces) for pieces in words], dtype=np.intp)
        return cls(
            np.array([piece for pieces in words for piece in pieces], dtype=np.intp), counts.cumsum() - counts, counts
        )


def _numbered(texts: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return a number for each text, the same for equal texts."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] for text in texts], dtype=np.intp)
