"""Which token is meant by a word or a number that a person typed."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.capture.tokens import Token, find_word, words_of
from regard.errors import InputError

__all__ = ["TokenRow", "token_row"]

NAMED = 12  # so many words are named where none of them is the one that was asked for


@dataclass(frozen=True)
class TokenRow:
    """A token that was asked for: its row, the word it belongs to, and how many pieces that word has."""

    row: int
    word: str
    pieces: int = 1


def token_row(tokens: Sequence[Token], wanted: str | None, *, first: int = 0) -> TokenRow:
    """Find a token by the text of its word, or by its number, counted from 1 as in q₁, where no word is called so.

    Of a word with several pieces it is the first one. `first` is the position of the first token in its text.

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
