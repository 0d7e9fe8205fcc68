"""Twelve ways to name a place, by tokenizers of every kind, in texts of many scripts.

What is right is found by characters alone: where a name stands in the text, and which tokens have these characters by
the tokenizer's own report (tokenizer_table.py).
"""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from regard.errors import InputError
from regard.record.places import Characters, Place, find_place
from regard.record.tokens import Token
from regard.record.tokens_from_tokenizer import tokens_of
from sweeps import sweep
from tokenizer_table import TEXTS, TOKENIZERS, Made, trimmed

Span = tuple[int, int]
# Words with spaces or marks around them, in scripts that write spaces between words.
NAMES = {
    "English": ["animal", "it", "was", "the street", "too tired", "tire"],
    "a word three times": ["cat", "the", "other cat", "saw the cat", "ther"],
    "spaces around": ["cat", "sat", "Cat sat".lower()],
    "tabs and lines": ["cat", "sat down", "here"],
    "emoji": ["like", "😀", "cats"],
    "composed accents": ["Café", "são", "Übung"],
    "decomposed accents": ["Café", "são", "Übung"],
    "Arabic": ["جلس", "على", "متعب"],
    "mixed scripts": ["cat", "Иван", "γάτα"],
    "Korean": ["매트", "앉았다"],
    "code": ["def", "return", "2"],
    "compounds": ["tokenization", "unbelievably"],
    "Thai": ["มัน", "แมว"],
    "Chinese": ["它", "老鼠"],
    "Japanese": ["ネズミ", "が"],
    "Hindi": ["चटाई", "थकी"],
    "Hebrew with points": ["יָשַׁב"],
    "DNA": ["TTGCA", "CATTA"],
    "protein": ["KTAY", "SHFSR"],
}
FAST = ("WordPiece, uncased", "bytes", "Unigram, NFKC", "ESM, in Python", "tiktoken", "decodes characters")


def is_letter(mark: str) -> bool:
    return unicodedata.category(mark)[0] in "LNM"


@functools.cache
def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@functools.cache
def stands(text: str, name: str, *, whole: bool) -> list[Span]:
    """Where a name stands in a text, in any case and normal form, by trying all spans of characters."""
    wanted, found = folded(name), []
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + 2 * len(name) + 4) + 1):
            part = text[start:end]
            if part.strip() != part or folded(re.sub(r"\s+", " ", part)) != wanted:
                continue
            if end < len(text) and unicodedata.category(text[end])[0] == "M":
                continue
            letters = (start and is_letter(text[start - 1]) and is_letter(text[start])) or (
                end < len(text) and is_letter(text[end]) and is_letter(text[end - 1])
            )
            if not (whole and letters):
                found.append((start, end))
    return found


class Cut:
    """A text and its tokens, and which of them have some characters by the tokenizer's own report."""

    def __init__(self, made: Made, text: str, *, is_padded: str = "", keeps: int | None = None) -> None:
        ids, spans = made.cut(text)
        ids, spans = ids[:keeps], spans[:keeps]
        before, after = made.around
        pad = [made.pad] * 3 if made.pad is not None else []
        left, right = (pad if is_padded == side else [] for side in ("left", "right"))
        self.text = text if keeps is None else text[: max((end for _, end in spans), default=0)]
        self.tokens = tokens_of(made.tokenizer, [*left, *before, *ids, *after, *right], text)
        self.shift = len(left) + len(before)
        self.spans = [trimmed(text, span, spans) for span in spans]
        self.unknown = [index == made.unknown for index in ids]

    def at(self, start: int, end: int) -> tuple[int, ...]:
        """The tokens that have a part of some characters."""
        inside = (at for at, span in enumerate(self.spans, self.shift) if span and span[0] < end and start < span[1])
        return tuple(inside)


def check(tokens: Sequence[Token], name: Any, right: tuple[int, ...]) -> Place:
    place = find_place(tokens, name)
    assert place.positions == right, (name, place, right)
    return place


def ways(cut: Cut, name: str, places: list[Span]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Names of a word that stands at `places`, with the tokens that they mean."""
    of = [cut.at(*place) for place in places]
    for called in (name, unicodedata.normalize("NFD", name), f"  {name} ", name.upper(), name.casefold()):
        yield called, of[0]
    for number, tokens in enumerate(of, 1):
        yield (name, number), tokens
        yield f"{name}#{number}", tokens
        yield (name, number - len(of) - 1), tokens
    yield Characters(*places[-1]), of[-1]
    yield f"characters {places[-1][0] + 1}:{places[-1][1]}", of[-1]
    yield range(of[-1][0], of[-1][-1] + 1), of[-1]
    yield f"{of[-1][0] + 1}:{of[-1][-1] + 1}", of[-1]
    yield of[-1][0], of[-1][:1]
    yield of[-1][0] - len(cut.tokens), of[-1][:1]


def check_text(cut: Cut, names: Sequence[str]) -> int:
    checked = 0
    for name in names:
        places = stands(cut.text, name, whole=True) or stands(cut.text, name, whole=False)
        if any(cut.unknown[at - cut.shift] for place in places for at in cut.at(*place)):
            continue  # of an unknown token only the whole text that it stands for is known
        if not places:
            continue
        for called, right in ways(cut, name, places):
            check(cut.tokens, called, right)
            checked += 1
        with pytest.raises(InputError, match=r"occurs (once|.* times)"):
            find_place(cut.tokens, (name, len(places) + 7))
    with pytest.raises(InputError, match="must be a word of the text"):
        find_place(cut.tokens, "qqqq")
    return checked


@pytest.mark.parametrize(
    "tokenizer", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TOKENIZERS]
)
def test_a_place_has_the_tokens_of_its_characters(tokenizer: str) -> None:
    made = TOKENIZERS[tokenizer]()
    checked = 0
    for case in sweep([key for key in NAMES if key in made.texts]):
        with case as key:
            checked += check_text(Cut(made, TEXTS[key]), NAMES[key])
            if made.pad is not None:
                for side in ("left", "right"):
                    check_text(Cut(made, TEXTS[key], is_padded=side), NAMES[key])
            check_text(Cut(made, TEXTS[key], keeps=6), NAMES[key][:3])
    assert checked > 20
