"""Tokens of any tokenizer of transformers (byte-level BPE, WordPiece, SentencePiece), grouped into words.

Pieces without white space between them belong to one word if letters or digits are on both sides of the boundary. A
Chinese or Japanese piece is a word of its own, since these scripts have no spaces. Punctuation is a word of its own,
except for an apostrophe within a word.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard.errors import InputError
from regard.record.subwords import Piece, from_bytes, from_spans, from_wordpieces, is_cjk
from regard.record.tokens import Token

__all__ = ["text_between", "tokens_of", "unknown_share"]

_APOSTROPHES = "'’ʼ＇"
_JOINER = "\u200d"
_PREFIX = "▁"
_SKIN_TONES = range(0x1F3FB, 0x1F400)


@dataclass(frozen=True)
class _Vocabulary:
    """Properties of a tokenizer: its spelling scheme, the ids of special tokens, and the ids of unknown text."""

    spelling: Literal["byte-level", "wordpiece", "sentencepiece"]
    special: frozenset[int]
    unknown: int | None


def tokens_of(tokenizer: Any, ids: Sequence[int], text: str | None = None) -> tuple[Token, ...]:
    """Return one Token for each id, with its text in readable form.

    With the text that the ids were made from, tokens show the text itself: capitals that the tokenizer dropped, and
    the characters that an unknown token covers. Without it they are spelled from the vocabulary. Special tokens are
    marked (also a typed "[CLS]", which the model cannot distinguish). Raise InputError if the ids were made from
    another text.
    """
    numbers = [int(number) for number in ids]
    vocabulary = _vocabulary(tokenizer)
    spellings = [str(spelling) for spelling in tokenizer.convert_ids_to_tokens(numbers)]
    special = [number in vocabulary.special for number in numbers]
    spans: list[tuple[int, int]] | None = None
    if text is not None and vocabulary.spelling != "byte-level":
        spans = _spans(tokenizer, numbers, text, special)
    tokens: list[Token] = []
    word = 0
    for start, end in _runs(special):
        if special[start]:
            tokens.append(Token(spellings[start], special=True))
            continue
        if spans is not None and text is not None:
            after = spans[start - 1][1] if start else 0
            pieces = from_spans(text, spans[start:end], spellings[start:end], after=after)
        else:
            unknown = [number == vocabulary.unknown for number in numbers[start:end]]
            pieces = _spelled(vocabulary, tokenizer, spellings[start:end], unknown)
        joined = _joined(pieces)
        for index, (piece, joins) in enumerate(zip(pieces, joined, strict=True), start):
            if spellings[index] == _PREFIX and index == start:
                # SentencePiece's mark before the first word is a token of its own before Chinese, and covers no text.
                tokens.append(Token(piece.shown, special=True))
                continue
            word += not joins
            tokens.append(Token(piece.shown, word=word - 1, space=piece.space))
    return tuple(tokens)


def text_between(tokenizer: Any, text: str, first: int, last: int) -> str:
    """Return the part of a text that the tokens `first` to `last` cover, both included and counted from 1.

    Raises:
        InputError: The text has no such tokens, or the tokenizer does not return offsets.
    """
    try:
        spans = _encode(tokenizer, text, return_offsets_mapping=True)["offset_mapping"]
    except NotImplementedError as problem:
        raise InputError("the tokenizer of this model does not return offsets: cut the text itself") from problem
    if not 1 <= first <= last <= len(spans):
        raise InputError(
            f"`tokens` must be FIRST:LAST within the {len(spans):,} tokens of the text, counted from 1, got "
            f"{first}:{last}"
        )
    return text[spans[first - 1][0] : spans[last - 1][1]]


def unknown_share(tokenizer: Any, text: str) -> float:
    """Return the share of a text's pieces that are not in the vocabulary, from 0 to 1 (special tokens not counted)."""
    vocabulary = _vocabulary(tokenizer)
    ids = [number for number in _encode(tokenizer, text)["input_ids"] if number not in vocabulary.special]
    return sum(number == vocabulary.unknown for number in ids) / len(ids) if ids else 0.0


def _vocabulary(tokenizer: Any) -> _Vocabulary:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kind = type(getattr(backend, "model", None)).__name__
    spelling: Literal["byte-level", "wordpiece", "sentencepiece"] = "sentencepiece"
    if "ByteLevel" in str(getattr(backend, "decoder", "")) or hasattr(tokenizer, "byte_decoder"):
        spelling = "byte-level"
    elif kind in ("WordPiece", "WordLevel") or hasattr(tokenizer, "wordpiece_tokenizer"):
        spelling = "wordpiece"
    # Byte-level vocabularies cover every text, although many specify their end-of-text token as the unknown token.
    unknown = None if spelling == "byte-level" else tokenizer.unk_token_id
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {number for number, token in added.items() if getattr(token, "special", False)}
    special |= set(tokenizer.all_special_ids)
    return _Vocabulary(spelling, frozenset(special - {unknown}), unknown)


def _encode(tokenizer: Any, text: str, **options: Any) -> Any:
    return tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False, **options)


def _spans(tokenizer: Any, ids: list[int], text: str, special: list[bool]) -> list[tuple[int, int]] | None:
    """Return the span of each id in the text, (0, 0) for special tokens; None if the tokenizer does not return
    offsets.
    """
    try:
        encoded = _encode(tokenizer, text, return_offsets_mapping=True)
    except NotImplementedError:  # tokenizers written in Python do not return offsets
        return None
    known = encoded["input_ids"]
    for start in range(len(ids) + 1):
        matched = 0
        while matched < min(len(known), len(ids) - start) and ids[start + matched] == known[matched]:
            matched += 1
        whole = matched == len(known) or start + matched == len(ids) or special[start + matched]
        if whole and all(special[start + matched :]) and (matched or not known):
            offsets = [(int(first), int(last)) for first, last in encoded["offset_mapping"][:matched]]
            return [(0, 0)] * start + offsets + [(0, 0)] * (len(ids) - start - matched)
        if start < len(ids) and not special[start]:
            break
    raise InputError(
        f"`text` must be the text that the {len(ids)} ids were made from, got {text[:40]!r}: pass text=None to spell "
        "the tokens from the vocabulary"
    )


def _runs(special: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield spans of ids: each special id separately, other ids as runs."""
    start = 0
    while start < len(special):
        end = start + 1
        while not special[start] and end < len(special) and not special[end]:
            end += 1
        yield start, end
        start = end


def _spelled(vocabulary: _Vocabulary, tokenizer: Any, spellings: Sequence[str], unknown: Sequence[bool]) -> list[Piece]:
    if vocabulary.spelling == "wordpiece":
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        return from_wordpieces(spellings, prefix=getattr(model, "continuing_subword_prefix", "##"))
    pieces = from_bytes(spellings, byte_level=vocabulary.spelling == "byte-level")
    unspelled = zip(pieces, spellings, unknown, strict=True)
    return [Piece(spelling, "�", space=piece.space) if lost else piece for piece, spelling, lost in unspelled]


def _joined(pieces: Sequence[Piece]) -> list[bool]:
    """Return for each piece whether it belongs to the same word as the piece before it."""
    joined = [False] * len(pieces)
    for index in range(1, len(pieces)):
        piece = pieces[index]
        left = pieces[index - 1].bare
        if piece.glued:
            joined[index] = True
        elif not piece.space and left and piece.bare:
            joined[index] = _meets(_before(pieces, index), _after(pieces, index))
    return joined


def _before(pieces: Sequence[Piece], index: int) -> str:
    """Return the last characters before a boundary, back to the nearest white space."""
    left = pieces[index - 1].bare
    if len(left) == 1 and index > 1 and not pieces[index - 1].space:
        left = pieces[index - 2].bare[-1:] + left
    return left[-2:]


def _after(pieces: Sequence[Piece], index: int) -> str:
    """Return the first characters after a boundary, up to the nearest white space."""
    right = pieces[index].bare
    if len(right) == 1 and index + 1 < len(pieces) and not pieces[index + 1].space:
        right += pieces[index + 1].bare[:1]
    return right[:2]


def _meets(left: str, right: str) -> bool:
    """Return whether a word continues across this boundary.

    >>> _meets("n", "ly"), _meets("dn", "'t"), _meets("n'", "t"), _meets("t", "."), _meets("貓", "追")
    (True, True, True, False, False)
    """
    here, there = left[-1:], right[:1]
    if unicodedata.category(there)[0] == "M" or there == _JOINER or ord(there) in _SKIN_TONES or here == _JOINER:
        return not here.isspace()
    if here in _APOSTROPHES:
        return _is_letter(left[-2:-1]) and _is_letter(there)
    if there in _APOSTROPHES:
        return _is_letter(here) and _is_letter(right[1:2])
    return _is_letter(here) and _is_letter(there)


def _is_letter(mark: str) -> bool:
    """Return whether this is a letter, a digit or a combining mark, of a script with spaces between words."""
    if not mark or unicodedata.category(mark)[0] not in "LNM":
        return False
    return not is_cjk(mark)
