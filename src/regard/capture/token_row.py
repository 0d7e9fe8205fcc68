"""Find the token that a word or a number given by the user refers to."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.capture.tokens import Token, find_word, words_of
from regard.errors import InputError

__all__ = ["TokenRow", "token_row"]

NAMED = 12  # number of words listed in the error if none matches


@dataclass(frozen=True)
class TokenRow:
    """The row of a requested token, its word, and the number of pieces of this word."""

    row: int
    word: str
    pieces: int = 1


def token_row(tokens: Sequence[Token], wanted: str | None, *, first: int = 0) -> TokenRow:
    """Return the token with this word, or with this number, counted from 1 as in q₁, if no word has this text.

    If a word has several pieces, the first one is returned. `first` is the position of the first token in its text.

    >>> pieces = [Token("[CLS]", special=True), Token("token", word=0), Token("izer", word=0)]
    >>> token_row(pieces, "tokenizer"), token_row(pieces, "3")
    (TokenRow(row=1, word='tokenizer', pieces=2), TokenRow(row=2, word='izer', pieces=1))

    Raises:
        InputError: no such word, and no such number.
    """
    words = words_of(tokens)
    if wanted is None:
        known = [row for row, token in enumerate(tokens) if not token.special]
        row = known[-1] if known else len(tokens) - 1
        return TokenRow(row, tokens[row].text)
    index = find_word(words, wanted)
    number = wanted.strip()
    named = index is not None and words[index].text.casefold() == number.casefold()
    if not named and number.isdecimal() and 0 <= int(number) - 1 - first < len(tokens):
        row = int(number) - 1 - first
        return TokenRow(row, tokens[row].text)
    if index is not None:
        return TokenRow(words[index].pieces[0], words[index].text, len(words[index].pieces))
    some = " ".join(word.text for word in words[:NAMED]) + (" …" if len(words) > NAMED else "")
    raise InputError(
        f"`token` must be a word of the text ({some}) or a number from {first + 1} to {first + len(tokens)}, "
        f"got {wanted!r}"
    )
