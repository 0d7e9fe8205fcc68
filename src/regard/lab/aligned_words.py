"""Which words of a sentence the words of its translation look at, and whether those are the ones they translate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.data import to_script
from regard.lab.cat_and_mat import LEXICON, content_words
from regard.render.word_weights import Alignment, Rows, align, chosen_heads
from regard.train.translator import Translator

__all__ = ["Look", "Reading", "looks_of", "read", "share"]


@dataclass(frozen=True)
class Look:
    """A content word, what it is in the translation, the word looked at most, and the weight on the word itself."""

    english: str
    chinese: str
    most: str
    weight: float
    rows: tuple[int, ...]  # of its characters in the translation

    @property
    def right(self) -> bool:
        """Whether the word looked at most is the one that is translated."""
        return self.most == self.english


@dataclass(frozen=True, eq=False)
class Reading:
    """One sentence: its translation, and of each decoder layer, from 0, the weights and where its words look."""

    text: str
    said: str
    weights: dict[int, Alignment]
    looks: dict[int, tuple[Look, ...]]

    @property
    def in_order(self) -> list[bool]:
        """Of each content word that is said, whether it has the same rank among them in both languages."""
        looks = next(iter(self.looks.values()))
        written = sorted(looks, key=lambda one: one.rows)
        return [one.english == other.english for one, other in zip(looks, written, strict=True)]


def read(translator: Translator, text: str, rows: Rows = "written") -> Reading:
    """Translate a sentence and look at the mean of each layer's heads.

    Args:
        translator: From English to Chinese.
        text: A sentence of words of the lexicon.
        rows: Whether a weight belongs to the word that is "written" from there or to the one that is "read" there.
    """
    record = translator.align(text, num_beams=1)
    heads = chosen_heads(record, "mean")
    weights = {
        rank: align(record, [(record.layers[at], head) for at, head in heads if at == layer], rows=rows)
        for rank, layer in enumerate(sorted({layer for layer, _ in heads}))
    }
    tokens = [token.text for token in record.stream("target") if not token.special]
    traditional = translator.chinese_script == "hant"
    looks = {layer: looks_of(one, text, traditional=traditional) for layer, one in weights.items()}
    return Reading(text, "".join(tokens).replace("␣", " "), weights, looks)


def looks_of(found: Alignment, text: str, *, traditional: bool = False) -> tuple[Look, ...]:
    """Where the Chinese of each content word looks: the mean of its characters' rows, over all words of the source.

    Words that the translation does not have are left out.
    """
    owners = [row for row, word in enumerate(found.target) if not word.special for _ in word.text]
    said = "".join(word.text for word in found.target if not word.special)
    taken: set[int] = set()
    looks = {}
    wanted = [(chinese, word) for word in content_words(text) for chinese in LEXICON[word]]
    for chinese, english in sorted(wanted, key=lambda one: -len(one[0])):  # 老师 before 老
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
        looks[english] = Look(english, spelled, sources[int(row.argmax())], sum(on), rows)
    return tuple(looks[word] for word in content_words(text) if word in looks)


def share(readings: Sequence[Reading], layer: int) -> float:
    """The share of content words that look at their translation most, in one layer.

    >>> share([], 0)
    0.0
    """
    return float(np.mean([look.right for one in readings for look in one.looks[layer]] or [False]))
