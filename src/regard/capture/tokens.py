"""Tokens in readable form: the text of each piece, whether it is special, and which pieces form one word."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Token", "Word", "find_word", "words_of"]


@dataclass(frozen=True)
class Token:
    """One position of a sequence, in readable form.

    `text` is the text of the piece without white space around it ("ly", not "##ly" or "▁ly"); a piece with only some
    bytes of a character shows that character with a superscript number ("貓¹", "貓²"). `special` marks pieces without
    text ([CLS], </s>, padding). Pieces with the same `word` number form one word; special tokens have no word. `space`
    is True if white space precedes the piece.
    """

    text: str
    special: bool = False
    word: int | None = None
    space: bool = False


@dataclass(frozen=True)
class Word:
    """A word and the positions of its pieces."""

    text: str
    pieces: tuple[int, ...]
    special: bool = False


_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def words_of(tokens: Sequence[Token]) -> tuple[Word, ...]:
    """Return the words, merged from their pieces; a special token is a word of its own.

    >>> pieces = [Token("[CLS]", special=True), Token("token", word=0), Token("izer", word=0)]
    >>> [word.text for word in words_of(pieces)]
    ['[CLS]', 'tokenizer']
    """
    groups: list[list[int]] = []
    for position, token in enumerate(tokens):
        joins = position > 0 and token.word is not None and token.word == tokens[position - 1].word
        if joins:
            groups[-1].append(position)
        else:
            groups.append([position])
    return tuple(Word(_spell(tokens, group), tuple(group), tokens[group[0]].special) for group in groups)


def _spell(tokens: Sequence[Token], group: Sequence[int]) -> str:
    """Return the text of one word; the byte pieces 貓¹ 貓² 貓³ of a character give it once, while m² is unchanged."""
    spelled, number = "", 0
    for position in group:
        text = tokens[position].text
        whole = text.rstrip(_SUPERSCRIPTS)
        number = number + 1 if number and text == f"{whole}{_superscript(number + 1)}" else 0
        if number:
            continue  # a further piece of the same character
        if text == f"{whole}¹" and whole and _goes_on(tokens, group, position, whole):
            spelled, number = spelled + whole, 1
        else:
            spelled += text
    return spelled


def _goes_on(tokens: Sequence[Token], group: Sequence[int], position: int, whole: str) -> bool:
    """Return whether the next piece is the second of the same character; it may also begin the next character
    (貓²鼠¹).
    """
    return position + 1 in group and tokens[position + 1].text.startswith(f"{whole[-1]}²")


def _superscript(number: int) -> str:
    return "".join(_SUPERSCRIPTS[int(digit)] for digit in str(number))


def find_word(words: Sequence[Word], wanted: str) -> int | None:
    """Return the index of the first word equal to `wanted`, else of the first that contains it, such as 因为它 for 它.

    >>> find_word([Word("The", (0,)), Word("cat", (1,))], "the")
    0
    """
    folded = wanted.strip().casefold()
    named = [word.text.casefold() for word in words]
    for index, text in enumerate(named):
        if text == folded and not words[index].special:
            return index
    for index, text in enumerate(named):
        if text == folded:
            return index
    for index, text in enumerate(named):
        if folded and folded in text and not words[index].special:
            return index
    return None
