"""Compare one head on two texts that differ in one or two words: its weights from the same word.

The query word and the two words to compare are found by their position: words that both texts have in the same order
correspond, and a moved word is found by its text.

Heads flip between the two texts if they have more weight on one word in the first, and on the other in the second. A
head is counted if its two weights together are at least 0.1 in each text, because the order of two small weights is
noise. A counted head *flips* if the word with the larger weight differs between the texts. Its *lead* is the smaller of
its two differences; a flip with a lead of 0.01 is weak.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from regard.errors import InputError
from regard.record.highlight import Focus, choose_focus
from regard.record.places import Name, find_place, spell
from regard.record.records import Record
from regard.record.tokens import Word, content_words
from regard.record.word_looks import Look, WordLooks

__all__ = ["CLEAR", "Flip", "HeadFlips", "MinimalPair", "Moved", "choose_pair"]


CLEAR = 0.1  # minimum weight on both words together, in each text, for a head to be counted


@dataclass(frozen=True)
class Flip:
    """A head that flips: its weights on the two words, in the first text and in the second."""

    layer: int
    head: int
    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def lead(self) -> float:
        """The smaller of the two differences."""
        return min(abs(one - other) for one, other in (self.before, self.after))

    @property
    def to_second(self) -> bool:
        """Whether it changes from the first word to the second."""
        return self.before[0] > self.before[1]


@dataclass(frozen=True, eq=False)
class HeadFlips:
    """Weights from one word to two others in two texts; NaN where a layer has fewer heads.

    >>> tired_then_wide = np.array([[[[0.3, 0.02]], [[0.1, 0.01]]], [[[0.1, 0.01]], [[0.2, 0.02]]]])
    >>> flips = HeadFlips(tired_then_wide)
    >>> flips.counted, flips.flips
    (1, (Flip(layer=0, head=0, before=(0.3, 0.1), after=(0.1, 0.2)),))
    """

    weights: Float[np.ndarray, "2 2 layers heads"]  # texts, words, layers, heads

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int(np.isfinite(self.weights[0, 0]).sum())

    @property
    def counted(self) -> int:
        """The number of heads that give both words together a tenth of their weight in each text."""
        return int(self._clear().sum())

    def prefer(self, word: int) -> int:
        """Return how many counted heads give one of the words (0 or 1) more weight in both texts."""
        more = self.weights[:, word] > self.weights[:, 1 - word]
        return int((self._clear() & more.all(0)).sum())

    @property
    def flips(self) -> tuple[Flip, ...]:
        """The counted heads that flip, those with the largest lead first."""
        first, second = self.weights[:, 0] > self.weights[:, 1], self.weights[:, 0] < self.weights[:, 1]
        turned = self._clear() & ((first[0] & second[1]) | (second[0] & first[1]))
        found = [self._flip(int(layer), int(head)) for layer, head in np.argwhere(turned)]
        return tuple(sorted(found, key=lambda flip: -flip.lead))

    def _clear(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self.weights.sum(1) >= CLEAR).all(0))

    def _flip(self, layer: int, head: int) -> Flip:
        before, after = self.weights[:, :, layer, head].tolist()
        return Flip(layer, head, tuple(before), tuple(after))


Weights = npt.NDArray[np.float64]
Places = tuple[
    tuple[int, int], tuple[int, int]
]  # positions of the two compared words, in the first text and in the second
Texts = tuple[tuple[Word, ...], tuple[Word, ...]]


@dataclass(frozen=True)
class Moved:
    """A word of both texts, or a word and its replacement, and the weights on it from the query word."""

    before_word: str
    after_word: str
    before: float
    after: float
    compared: int | None = None  # 0 or 1 for one of the two words that are compared

    @property
    def change(self) -> float:
        """The difference of the weights, second text minus first."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """One head over two texts. Each focus shows this head twice: for the first and for the second compared word."""

    records: tuple[Record, Record]
    highlights: tuple[Focus, Focus]
    flips: HeadFlips

    @property
    def head(self) -> tuple[int, int]:
        """Layer and head."""
        look = self.highlights[0].looks[0]
        return look.layer, look.head

    @property
    def words(self) -> tuple[str, str]:
        """The two compared words."""
        first, second = (self.highlights[0].keys[look.target].text for look in self.highlights[0].looks)
        return first, second

    @cached_property
    def moved(self) -> tuple[Moved, ...]:
        """The head's weights from the query word to every word, in the order of the first text.

        Words that occur in only one of the texts and have no counterpart are left out.
        """
        rows = [_row(record, focus) for record, focus in zip(self.records, self.highlights, strict=True)]
        queries = [focus.keys for focus in self.highlights]
        places = {look.target: number for number, look in enumerate(self.highlights[0].looks)}
        looks = zip(*(focus.looks for focus in self.highlights), strict=True)
        moved = {at: to for at in range(len(queries[0])) if (to := _same(at, *queries)) is not None}
        partners = moved | _partners(*queries) | {one.target: other.target for one, other in looks}
        return tuple(
            Moved(queries[0][at].text, queries[1][to].text, float(rows[0][at]), float(rows[1][to]), places.get(at))
            for at, to in sorted(partners.items())
        )

    @property
    def elsewhere(self) -> tuple[float, float]:
        """The mean weight of the other words on the first compared word, in each text, for this head."""
        layer, head = self.head
        one, two = (
            _elsewhere(record, layer, head, focus) for record, focus in zip(self.records, self.highlights, strict=True)
        )
        return one, two

    @property
    def is_untouched(self) -> bool:
        """Whether the query word has the same weights in every head, because the texts do not differ in the tokens it
        sees.
        """
        before, after = self.flips.weights
        return bool(np.allclose(before, after, rtol=0, atol=1e-6, equal_nan=True))


def choose_pair(
    before: Record,
    after: Record,
    *,
    token: Name | None = None,
    layer: int | None = None,
    head: int | None = None,
    words: tuple[str, str] | None = None,
) -> MinimalPair:
    """Choose the query word, the two words to compare, and the head.

    Args:
        before: The record of the first text, with self-attention and every weight.
        after: The record of the second text, from the same model.
        token: The query word; by default chosen by `choose_focus` among the words of both texts.
        layer: The layer of the head.
        head: The head; by default the first head in the figure of the first text.
        words: The two words to compare. By default the word with this head's largest weight and, of the other content
            words of both texts (first those before the query word), the one with the largest weight over all heads.

    Raises:
        InputError: A text lacks a word, the texts share no two words that the query word can attend to, or other heads
            of the two were recorded.
    """
    if [one.recorded_heads for one in before.layers] != [one.recorded_heads for one in after.layers]:
        raise InputError("the two records hold other heads: record both with the same `layers=` and `heads=`, or all")
    texts = before.words(), after.words()
    partners = _partners(*texts)
    focus = choose_focus(
        before, token=token, layer=layer, head=head, among=_shared(*texts), sources=frozenset(partners)
    )
    if focus.queries != texts[0]:
        raise InputError(f"`token` must be one word of both texts, got {focus.queries[focus.word].text!r}")
    if focus.word not in partners:
        name = texts[0][focus.word].text
        raise InputError(f"{name!r} has no place in the second text: name a word of both with `token`")
    sources = focus.word, partners[focus.word]
    weights = [_weights(record, row) for record, row in zip((before, after), sources, strict=True)]
    targets = _targets(focus, texts, weights) if words is None else _given(words, (before, after))
    of_words = np.stack([each[..., list(at)].transpose(2, 0, 1) for each, at in zip(weights, targets, strict=True)])
    if head is not None or words is None:
        chosen = focus.looks[0].layer, focus.looks[0].head
    else:
        chosen = _strongest(of_words[0, 0], layer, before)
    one, two = (
        _focus(focus, text, source, [Look(*chosen, to, float(each[(*chosen, to)])) for to in at])
        for text, source, at, each in zip(texts, sources, targets, weights, strict=True)
    )
    return MinimalPair((before, after), (one, two), HeadFlips(of_words))


def _partners(before: Sequence[Word], after: Sequence[Word]) -> dict[int, int]:
    """Return for each word of the first text its counterpart in the second: the same word, or its replacement."""
    one, two = ([f"{word.text.casefold()}{' special' * word.special}" for word in text] for text in (before, after))
    found: dict[int, int] = {}
    for kind, start, stop, other, end in SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and stop - start == end - other):
            found |= dict(zip(range(start, stop), range(other, end), strict=True))
    return found


def _shared(before: Sequence[Word], after: Sequence[Word]) -> frozenset[str]:
    """Return the words of both texts, in lower case."""
    one, other = ({word.text.casefold() for word in text if not word.special} for text in (before, after))
    if not one & other:
        raise InputError("the two texts share no word: a minimal pair is one text twice, with a word or two changed")
    return frozenset(one & other)


def _weights(record: Record, row: int) -> Weights:
    """Return the weights from one word to every word, for every head; NaN where a layer has fewer heads, or recorded
    fewer.
    """
    looks = WordLooks.of(record, None, 0, None)[0]
    found = np.full((len(record.layers), max(seen.heads for seen in record.layers), len(looks.keys)), np.nan)
    for number in looks.layers:
        seen = record.layers[number]
        heads = list(seen.recorded_heads)
        found[number, heads] = looks.weights(seen, [row])[heads, 0]
    return found


def _targets(focus: Focus, texts: Texts, weights: Sequence[Weights]) -> Places:
    """Return the word with the head's largest weight, and the other content word with the largest weight over all
    heads.
    """
    before, after = texts
    mean = [np.nanmean(each, axis=(0, 1)) for each in weights]
    first, taken = focus.looks[0].target, {focus.queries[focus.word].text.casefold()}
    pairs = {
        at: to
        for at, word in enumerate(before)
        if not word.special and (to := _same(at, before, after)) is not None and word.text.casefold() not in taken
    }
    name = before[first].text
    if first not in pairs:
        raise InputError(f"this head looks at {name!r}, which the second text does not have: name another, or `words`")
    content = content_words([word.text for word in before])
    others = [at for at in pairs if content[at] and before[at].text.casefold() != name.casefold()]
    others = [at for at in others if at < focus.word] or others  # the antecedent of a pronoun mostly precedes it
    if not others:
        raise InputError(f"the texts share no second content word to compare {name!r} with: name two with `words`")
    second = max(others, key=lambda at: mean[0][at] + mean[1][pairs[at]])
    return (first, second), (pairs[first], pairs[second])


def _same(at: int, before: Sequence[Word], after: Sequence[Word]) -> int | None:
    """Return the position of the same word in the second text: its counterpart, or the first word with this
    spelling.
    """
    text = before[at].text.casefold()
    spelled = [word.text.casefold() if not word.special else None for word in after]
    partner = _partners(before, after).get(at)
    if partner is not None and spelled[partner] == text:
        return partner
    return spelled.index(text) if text in spelled else None


def _given(words: tuple[str, str], records: tuple[Record, Record]) -> Places:
    """Return the positions of the words given by the caller."""
    (one, two), (three, four) = ([_find(record, word) for word in words] for record in records)
    return (one, two), (three, four)


def _find(record: Record, wanted: str) -> int:
    """Return the position of a word given by the caller."""
    try:
        place = find_place(record.stream("text"), wanted, what="words")
    except InputError as problem:
        text = spell(record.stream("text"))
        raise InputError(f"`words` must be two words of both texts, and {wanted!r} is not in {text!r}") from problem
    found = [at for at, word in enumerate(record.words()) if set(place.positions) & set(word.pieces)]
    if len(found) > 1:
        raise InputError(f"`words` must be two words of both texts, and {wanted!r} is several")
    return found[0]


def _strongest(weights: Weights, layer: int | None, record: Record) -> tuple[int, int]:
    """Return the head with the largest weight on the first word, of one layer or of all."""
    if layer is not None:
        number = record.layers.index(record.layer(layer))
        return number, int(np.nanargmax(weights[number]))
    number, head = divmod(int(np.nanargmax(weights)), weights.shape[-1])
    return number, head


def _focus(focus: Focus, text: tuple[Word, ...], source: int, looks: Sequence[Look]) -> Focus:
    """Return the focus for the figure of one text."""
    word = text[source].text
    part = focus.part if focus.part and focus.part in word and focus.part != word else ""
    return Focus(text, text, source, tuple(looks), 0, part)


def _elsewhere(record: Record, layer: int, head: int, focus: Focus) -> float:
    """Return the mean over the words of a text, without the query word, special tokens and the word itself."""
    to = focus.looks[0].target
    rows = [at for at, word in enumerate(focus.queries) if not word.special and at not in (focus.word, to)]
    if not rows:
        return 0.0
    return float(WordLooks.of(record, None, 0, None)[0].weights(record.layers[layer], rows)[head, :, to].mean())


def _row(record: Record, focus: Focus) -> Weights:
    """Return the head's weights from the query word to every word."""
    look = focus.looks[0]
    return np.asarray(_weights(record, focus.word)[look.layer, look.head])
