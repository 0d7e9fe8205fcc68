"""Measure which source words the words of a translation attend to, and whether these are the words they translate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.data import to_script
from regard.render.word_alignment import Alignment, Rows, align, chosen_heads
from regard.train.translator import Translator
from regard_lab.cat_and_mat import LEXICON, content_words

__all__ = ["Reading", "WordLook", "looks_of", "read", "share"]


@dataclass(frozen=True)
class WordLook:
    """A content word, its translation, the word with the largest weight, and the weight on the word itself."""

    english: str
    chinese: str
    most: str
    weight: float
    rows: tuple[int, ...]  # positions of its characters in the translation

    @property
    def right(self) -> bool:
        """Whether the largest weight is on the word that is translated."""
        return self.most == self.english


@dataclass(frozen=True, eq=False)
class Reading:
    """One sentence: its translation, and for each decoder layer, from 0, the weights and the WordLook of each content
    word.
    """

    text: str
    said: str
    weights: dict[int, Alignment]
    looks: dict[int, tuple[WordLook, ...]]

    @property
    def in_order(self) -> list[bool]:
        """For each translated content word, whether it has the same rank among them in both languages."""
        looks = next(iter(self.looks.values()))
        written = sorted(looks, key=lambda one: one.rows)
        return [one.english == other.english for one, other in zip(looks, written, strict=True)]


def read(translator: Translator, text: str, rows: Rows = "written") -> Reading:
    """Translate a sentence and return the weights, averaged over each layer's heads.

    Args:
        translator: From English to Chinese.
        text: A sentence of words from the lexicon.
        rows: Whether a row of weights belongs to the word predicted from it ("written") or to its input word ("read").
    """
    record = translator.align(text, num_beams=1)
    heads = chosen_heads(record, "mean")
    weights = {
        rank: align(record, [(record.layers[at], head) for at, head in heads if at == layer], rows=rows)
        for rank, layer in enumerate(sorted({layer for layer, _ in heads}))
    }
    tokens = [token.text for token in record.stream("target") if not token.special]
    traditional = translator.script == "hant"
    looks = {layer: looks_of(one, text, traditional=traditional) for layer, one in weights.items()}
    return Reading(text, "".join(tokens).replace("␣", " "), weights, looks)


def looks_of(found: Alignment, text: str, *, traditional: bool = False) -> tuple[WordLook, ...]:
    """Return the WordLook of each content word: the mean of its characters' rows, over all words of the source.

    Words that are missing from the translation are left out.
    """
    owners = [row for row, word in enumerate(found.target) if not word.special for _ in word.text]
    said = "".join(word.text for word in found.target if not word.special)
    taken: set[int] = set()
    looks = {}
    wanted = [(chinese, word) for word in content_words(text) for chinese in LEXICON[word]]
    for chinese, english in sorted(wanted, key=lambda one: -len(one[0])):  # match 老师 before 老
        spelled = to_script(chinese, "hant") if traditional else chinese
        start = said.find(spelled)
        places = set(range(start, start + len(spelled)))
        if start < 0 or english in looks or places & taken:
            continue
        taken |= places
        rows = tuple(sorted({owners[place] for place in places}))
        row = found.weights[list(rows)].mean(0)
        sources = [word.text.casefold() for word in found.source]
        on = [weight for word, weight in zip(sources, row.tolist(), strict=True) if word == english]
        looks[english] = WordLook(english, spelled, sources[int(row.argmax())], sum(on), rows)
    return tuple(looks[word] for word in content_words(text) if word in looks)


def share(readings: Sequence[Reading], layer: int) -> float:
    """Return the share of content words whose largest weight is on their translation, in one layer.

    >>> share([], 0)
    0.0
    """
    return float(np.mean([look.right for one in readings for look in one.looks[layer]] or [False]))
