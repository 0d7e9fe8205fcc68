"""Two texts that differ in a word or two, and one head in both: what its weights from the same word become.

The word that looks and the two words that are compared are found by where they stand: words that both texts have in the
same order are the same ones, and a word that has changed its place is found by its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np
import numpy.typing as npt

from regard.capture.head_flips import HeadFlips
from regard.capture.highlight import Focus, choose_focus
from regard.capture.records import Record
from regard.capture.stopwords import content_words
from regard.capture.tokens import Word, find_word
from regard.capture.word_looks import Look, WordLooks
from regard.errors import InputError

__all__ = ["MinimalPair", "Moved", "choose_pair"]

Weights = npt.NDArray[np.float64]
Places = tuple[tuple[int, int], tuple[int, int]]  # of the two compared words, in the first text and in the second
Texts = tuple[tuple[Word, ...], tuple[Word, ...]]


@dataclass(frozen=True)
class Moved:
    """A word of both texts, or one that stands in another's place, and the weights on it from the word that looks."""

    before_word: str
    after_word: str
    before: float
    after: float
    compared: int | None = None  # 0 or 1 where it is one of the two words that are compared

    @property
    def change(self) -> float:
        """How much more it has in the second text."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """One head over two texts. Both looks of each focus are of that head: at the first compared word, at the second."""

    records: tuple[Record, Record]
    focuses: tuple[Focus, Focus]
    flips: HeadFlips

    @property
    def head(self) -> tuple[int, int]:
        """Layer and head."""
        look = self.focuses[0].looks[0]
        return look.layer, look.head

    @property
    def words(self) -> tuple[str, str]:
        """The two words that are compared."""
        first, second = (self.focuses[0].keys[look.target].text for look in self.focuses[0].looks)
        return first, second

    @cached_property
    def moved(self) -> tuple[Moved, ...]:
        """The head's weights from the word that looks to every word, in the order of the first text.

        Words that only one of the texts has, and none of the other stands in their place, are left out.
        """
        rows = [_row(record, focus) for record, focus in zip(self.records, self.focuses, strict=True)]
        queries = [focus.keys for focus in self.focuses]
        places = {look.target: number for number, look in enumerate(self.focuses[0].looks)}
        looks = zip(*(focus.looks for focus in self.focuses), strict=True)
        moved = {at: to for at in range(len(queries[0])) if (to := _same(at, *queries)) is not None}
        partners = moved | _partners(*queries) | {one.target: other.target for one, other in looks}
        return tuple(
            Moved(queries[0][at].text, queries[1][to].text, float(rows[0][at]), float(rows[1][to]), places.get(at))
            for at, to in sorted(partners.items())
        )

    @property
    def elsewhere(self) -> tuple[float, float]:
        """What the other words give the first compared word on average, in either text, in this head."""
        layer, head = self.head
        one, two = (
            _elsewhere(record, layer, head, focus) for record, focus in zip(self.records, self.focuses, strict=True)
        )
        return one, two

    @property
    def is_untouched(self) -> bool:
        """Whether the word that looks has the same weights in every head: it has read nothing that differs."""
        before, after = self.flips.weights
        return bool(np.allclose(before, after, rtol=0, atol=1e-6, equal_nan=True))


def choose_pair(
    before: Record,
    after: Record,
    *,
    token: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    words: tuple[str, str] | None = None,
) -> MinimalPair:
    """Choose the word that looks, the two words that are compared, and the head.

    Args:
        before: The first text, of a model whose queries and keys are one text, with every weight.
        after: The second text, seen in the same model.
        token: The word that looks; by default as `choose_focus` chooses among the words of both texts.
        layer: The layer of the head.
        head: The head; by default the one that the picture of the first text would show first.
        words: The two words that are compared. By default the word that this head looks at and, of the other content
            words of both texts, those before the word that looks first, the one that all heads together weigh most.

    Raises:
        InputError: There is no such word in one of the texts, or they share no two words that it could look at.
    """
    texts = before.words(), after.words()
    partners = _partners(*texts)
    focus = choose_focus(
        before, token=token, layer=layer, head=head, among=_shared(*texts), sources=frozenset(partners)
    )
    if focus.word not in partners:
        name = texts[0][focus.word].text
        raise InputError(f"{name!r} has no place in the second text: name a word of both with `token`")
    sources = focus.word, partners[focus.word]
    weights = [_weights(record, row) for record, row in zip((before, after), sources, strict=True)]
    targets = _targets(focus, texts, weights) if words is None else _given(words, texts)
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
    """Which word of the second text stands for which of the first: the same one, or one that has taken its place."""
    one, two = ([f"{word.text.casefold()}{' special' * word.special}" for word in text] for text in (before, after))
    found: dict[int, int] = {}
    for kind, start, stop, other, end in SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and stop - start == end - other):
            found |= dict(zip(range(start, stop), range(other, end), strict=True))
    return found


def _shared(before: Sequence[Word], after: Sequence[Word]) -> frozenset[str]:
    """The words of both texts, in lower case."""
    one, other = ({word.text.casefold() for word in text if not word.special} for text in (before, after))
    if not one & other:
        raise InputError("the two texts share no word: a minimal pair is one text twice, with a word or two changed")
    return frozenset(one & other)


def _weights(record: Record, row: int) -> Weights:
    """Weights from one word to every word, in every head; NaN where a layer has fewer heads."""
    looks = WordLooks.of(record, None, 0, None)[0]
    found = np.full((len(record.layers), max(seen.heads for seen in record.layers), len(looks.keys)), np.nan)
    for number, seen in enumerate(record.layers):
        found[number, : seen.heads] = looks.weights(seen, [row])[:, 0]
    return found


def _targets(focus: Focus, texts: Texts, weights: Sequence[Weights]) -> Places:
    """What the head looks at, and the other content word of both texts that all heads together weigh most."""
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
    others = [at for at in others if at < focus.word] or others  # what a pronoun stands for mostly comes before it
    if not others:
        raise InputError(f"the texts share no second content word to compare {name!r} with: name two with `words`")
    second = max(others, key=lambda at: mean[0][at] + mean[1][pairs[at]])
    return (first, second), (pairs[first], pairs[second])


def _same(at: int, before: Sequence[Word], after: Sequence[Word]) -> int | None:
    """Where the same word stands in the second text: its partner, or the first that is spelled so."""
    text = before[at].text.casefold()
    spelled = [word.text.casefold() if not word.special else None for word in after]
    partner = _partners(before, after).get(at)
    if partner is not None and spelled[partner] == text:
        return partner
    return spelled.index(text) if text in spelled else None


def _given(words: tuple[str, str], texts: Texts) -> Places:
    """The words that were asked for."""
    (one, two), (three, four) = ([_find(text, word) for word in words] for text in texts)
    return (one, two), (three, four)


def _find(words: Sequence[Word], wanted: str) -> int:
    """A word that was asked for."""
    index = find_word(words, wanted)
    if index is None:
        text = " ".join(word.text for word in words if not word.special)
        raise InputError(f"`words` must be two words of both texts, and {wanted!r} is not in {text!r}")
    return index


def _strongest(weights: Weights, layer: int | None, record: Record) -> tuple[int, int]:
    """The head that looks most at the first word, of one layer or of all."""
    if layer is not None:
        number = record.layers.index(record.layer(layer))
        return number, int(np.nanargmax(weights[number]))
    number, head = divmod(int(np.nanargmax(weights)), weights.shape[-1])
    return number, head


def _focus(focus: Focus, text: tuple[Word, ...], source: int, looks: Sequence[Look]) -> Focus:
    """The picture of one of the texts."""
    word = text[source].text
    part = focus.part if focus.part and focus.part in word and focus.part != word else ""
    return Focus(text, text, source, tuple(looks), 0, part)


def _elsewhere(record: Record, layer: int, head: int, focus: Focus) -> float:
    """The mean over the words of a text, but for the one that looks, special tokens and the word itself."""
    to = focus.looks[0].target
    rows = [at for at, word in enumerate(focus.queries) if not word.special and at not in (focus.word, to)]
    if not rows:
        return 0.0
    return float(WordLooks.of(record, None, 0, None)[0].weights(record.layers[layer], rows)[head, :, to].mean())


def _row(record: Record, focus: Focus) -> Weights:
    """The weights of the head from the word that looks to every word."""
    look = focus.looks[0]
    return np.asarray(_weights(record, focus.word)[look.layer, look.head])
