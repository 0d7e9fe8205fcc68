"""Subword pieces of a text, before they are grouped into words: the text of each, and whether a space precedes it.

They are found either from the offsets of the pieces in the text, or from their spellings, which for byte-level and
SentencePiece vocabularies reproduce the text byte by byte.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Piece", "from_bytes", "from_spans", "from_wordpieces", "is_cjk"]


# Radicals, iteration marks, kana, Bopomofo and Han with its extensions. Hangul is left out: Korean has spaces.
_CJK = (
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303C),
    (0x3040, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)


def is_cjk(mark: str) -> bool:
    """Return whether this character is Han, kana or Bopomofo.

    >>> is_cjk("貓"), is_cjk("カ"), is_cjk("한"), is_cjk("a"), is_cjk("")
    (True, True, False, False, False)
    """
    return len(mark) == 1 and any(first <= ord(mark) <= last for first, last in _CJK)


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

# Control characters are shown as control pictures (␀ … ␟, ␡), so that no text can control a terminal or be invisible;
# line ends and tabs as arrows, because few fonts have ␊ and ␉.
_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_PICTURES |= {ord("\n"): ord("↵"), ord("\t"): ord("⇥")}
_SENTENCE_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CJK_MARKS = set("、。，！？；：（）【】「」『』《》")
_NO_SPACE_BEFORE = set(".,!?;:)]}%”…") | _CJK_MARKS
_NO_SPACE_AFTER = set("([{“") | _CJK_MARKS
_APOSTROPHES = {"'", "’"}
_ELISIONS = {"s", "t", "d", "m", "re", "ve", "ll"}


@dataclass(frozen=True)
class Piece:
    """A piece of text: its displayed form, its characters, and whether white space precedes it.

    `glued` pieces hold further bytes of a character that begins in an earlier piece.
    """

    shown: str
    bare: str
    space: bool = False
    glued: bool = False


def from_spans(text: str, spans: Sequence[tuple[int, int]], spellings: Sequence[str], *, after: int = 0) -> list[Piece]:
    """Return the pieces for spans (start, end) of the text; `after` is the end of the piece before them.

    Pieces that share a character show it with a number.

    >>> [piece.shown for piece in from_spans("a 貓", [(0, 1), (2, 3), (2, 3)], ["a", "è²", "ĵ"])]
    ['a', '貓¹', '貓²']
    """
    covered = [_covered(text, span, spelling) for span, spelling in zip(spans, spellings, strict=True)]
    pieces: list[Piece] = []
    blank = False
    for (start, end), spelling, number in zip(covered, spellings, _shared(covered), strict=True):
        raw = text[start:end] or spelling.replace(_SENTENCE_SPACE, " ")
        between = any(mark.isspace() for mark in text[after:start])
        pieces.append(_piece(raw, space=blank or between, number=number))
        blank = text[start:end][-1:].isspace()
        after = max(after, end)
    return pieces


def _covered(text: str, span: tuple[int, int], spelling: str) -> tuple[int, int]:
    # SentencePiece adds a ▁ before the text and reports it at the first character: it covers none of the text.
    start, end = span
    lone = spelling.strip(_SENTENCE_SPACE) == ""
    return (start, start) if lone and text[start:end].strip() else (start, end)


def from_wordpieces(spellings: Sequence[str], *, prefix: str = "##") -> list[Piece]:
    """Return the pieces of a WordPiece vocabulary if the text is unknown; white space is guessed by the rules of
    typesetting.

    >>> [(piece.shown, piece.space) for piece in from_wordpieces(["token", "##izer", "cat", "."])]
    [('token', False), ('izer', False), ('cat', True), ('.', False)]
    """
    pieces: list[Piece] = []
    endings = [*spellings[1:], ""]
    for spelling, following in zip(spellings, endings, strict=True):
        goes_on = bool(pieces) and spelling.startswith(prefix) and len(spelling) > len(prefix)
        bare = spelling[len(prefix) :] if goes_on else spelling
        last = pieces[-1] if pieces else Piece("", "")
        elided = bare in _APOSTROPHES and following in _ELISIONS and last.bare[-1:].isalpha()
        closes = last.bare in _APOSTROPHES and not last.space and bare in _ELISIONS
        touches = bare[:1] in _NO_SPACE_BEFORE or last.bare[-1:] in _NO_SPACE_AFTER
        chinese = (is_cjk(last.bare[-1:]) or last.bare in _CJK_MARKS) and (is_cjk(bare[:1]) or bare in _CJK_MARKS)
        space = bool(pieces) and not (goes_on or elided or closes or touches or chinese)
        pieces.append(_piece(bare, space=space))
    return pieces


def from_bytes(spellings: Sequence[str], *, byte_level: bool) -> list[Piece]:
    """Return pieces that spell the text byte by byte: byte-level BPE (Ġ is a space), else SentencePiece (▁, <0xE8>).

    >>> [piece.shown for piece in from_bytes(["The", "Ġcat", "è²", "ĵ"], byte_level=True)]
    ['The', 'cat', '貓¹', '貓²']
    """
    held = [_byte_level(spelling) if byte_level else _sentence_piece(spelling) for spelling in spellings]
    text, starts = _decode(b"".join(held))
    spans: list[tuple[int, int]] = []
    at = 0
    for data in held:
        first, last = at, max(at, at + len(data) - 1)
        at += len(data)
        spans.append((starts[first], starts[last] + 1) if data else (0, 0))
    pieces: list[Piece] = []
    blank = False
    for (start, end), number in zip(spans, _shared(spans), strict=True):
        raw = text[start:end]
        # The space before the first SentencePiece is added by the tokenizer.
        added = not byte_level and not pieces and raw[:1] == " "
        pieces.append(_piece(raw.removeprefix(" ") or " " if added else raw, space=blank, number=number))
        blank = raw[-1:].isspace() and not (added and raw == " ")
    return pieces


def _shared(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of each piece among those that share a character (1, 2, 3), or 0 if it holds whole
    characters.
    """
    numbers = [0] * len(spans)
    for index in range(1, len(spans)):
        (_, end_before), (start, end) = spans[index - 1], spans[index]
        if start < end_before and start < end:
            numbers[index - 1] = numbers[index - 1] or 1
            numbers[index] = numbers[index - 1] + 1
    return numbers


def _piece(raw: str, *, space: bool, number: int = 0) -> Piece:
    """Return a piece for the text that it covers; leading white space counts as preceding it, unless the piece has
    nothing else.
    """
    bare = raw.strip()
    follows = number > 1
    if not bare:
        shown = "".join("␣" if mark == " " else chr(_PICTURES.get(ord(mark), 0x2423)) for mark in raw) or "␣"
        return Piece(shown, raw[:1] or " ", space=space and not follows, glued=follows)
    shown = bare.translate(_PICTURES) + (str(number).translate(_SUPERSCRIPTS) if number else "")
    return Piece(shown, bare, space=not follows and (space or raw[0].isspace()), glued=follows)


def _byte_level(spelling: str) -> bytes:
    # An added token is spelled literally, with characters that are no byte of the alphabet.
    if all(mark in _BYTE_OF for mark in spelling):
        return bytes(_BYTE_OF[mark] for mark in spelling)
    return spelling.encode("utf-8", "replace")


def _sentence_piece(spelling: str) -> bytes:
    if found := _BYTE.fullmatch(spelling):
        return bytes([int(found[1], 16)])
    return spelling.replace(_SENTENCE_SPACE, " ").encode("utf-8", "replace")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes are their own characters, the others follow from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _decode(data: bytes) -> tuple[str, list[int]]:
    """Return the text that the bytes spell, and for each byte the index of its character; an invalid byte becomes �."""
    text: list[str] = []
    characters: list[int] = []
    at = 0
    while at < len(data):
        length = next((n for n in (1, 2, 3, 4) if _is_character(data[at : at + n])), 0)
        text.append(data[at : at + length].decode() if length else "�")
        characters += [len(text) - 1] * (length or 1)
        at += length or 1
    return "".join(text), characters


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False
