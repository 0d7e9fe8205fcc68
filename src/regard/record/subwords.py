"""The text that tokens of a vocabulary spell, and the pieces of a text, before they are grouped into words.

A vocabulary spells a text either byte by byte (byte-level BPE, SentencePiece), by words whose spaces are left out
(WordPiece), or only as a whole, by decoding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Piece", "Span", "Spelling", "is_cjk", "is_unspaced", "pieces_of", "spell_bytes", "spell_decoded",
           "spell_words"]  # fmt: skip

Span = tuple[int, int]

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
# Scripts of South-East Asia and Tibet that are written without spaces between words: Thai, Lao, Tibetan, Burmese and
# its extensions, Khmer, Tai Le, New Tai Lue, Tai Tham, Balinese, Javanese, Tai Viet.
_UNSPACED = (
    (0x0E00, 0x0E7F),
    (0x0E80, 0x0EFF),
    (0x0F00, 0x0FFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x1950, 0x19FF),
    (0x1A20, 0x1AAF),
    (0x1B00, 0x1B7F),
    (0xA980, 0xA9FF),
    (0xAA60, 0xAADF),
)


def is_cjk(mark: str) -> bool:
    """Return whether this character is Han, kana or Bopomofo.

    >>> is_cjk("貓"), is_cjk("カ"), is_cjk("한"), is_cjk("a"), is_cjk("")
    (True, True, False, False, False)
    """
    return len(mark) == 1 and any(first <= ord(mark) <= last for first, last in _CJK)


def is_unspaced(mark: str) -> bool:
    """Return whether this character is of a script without spaces between words.

    >>> is_unspaced("貓"), is_unspaced("ม"), is_unspaced("ក"), is_unspaced("한"), is_unspaced("a")
    (True, True, True, False, False)
    """
    return is_cjk(mark) or (len(mark) == 1 and any(first <= ord(mark) <= last for first, last in _UNSPACED))


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

# Control characters are shown as control pictures (␀ … ␟, ␡), so that no text can control a terminal or be invisible;
# line ends and tabs as arrows, because few fonts have ␊ and ␉; those without a picture by their number.
_PICTURES: dict[int, str] = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡", 0x0A: "↵", 0x09: "⇥"}
_PICTURES |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
_BROKEN = "�"
_CJK_MARKS = set("、。，！？；：（）【】「」『』《》")
_NO_SPACE_BEFORE = set(".,!?;:)]}%”…") | _CJK_MARKS
_NO_SPACE_AFTER = set("([{“") | _CJK_MARKS
_APOSTROPHES = {"'", "’"}
_ELISIONS = {"s", "t", "d", "m", "re", "ve", "ll"}
_INCOMPLETE = 4  # tokens that may be parts of one character, which has at most 4 bytes
_CONTEXT = 4  # tokens decoded before a new one, for the space between them


@dataclass(frozen=True)
class Spelling:
    """The text that tokens spell, and the span (start, end) of each in it; tokens of one character share it.

    The span of a token without text is empty. The text of an `unknown` token is its name.
    """

    text: str
    spans: tuple[Span, ...]
    unknown: tuple[bool, ...]

    @property
    def parts(self) -> list[str]:
        """The text of each token."""
        return [self.text[start:end] for start, end in self.spans]

    def without_space(self) -> "Spelling":
        """Return it without a space at the beginning."""
        size = len(self.text) - len(self.text.removeprefix(" "))
        spans = tuple((max(0, start - size), max(0, end - size)) for start, end in self.spans)
        return Spelling(self.text[size:], spans, self.unknown)


@dataclass(frozen=True)
class Piece:
    """A piece of text: its displayed form, its characters, and whether white space precedes it.

    `glued` pieces hold further bytes of a character that begins in an earlier piece.
    """

    shown: str
    bare: str
    space: bool = False
    glued: bool = False


def pieces_of(text: str, spans: Sequence[Span], spellings: Sequence[str], *, after: int = 0) -> list[Piece]:
    """Return the pieces for spans (start, end) of the text; `after` is the end of the piece before them.

    Pieces that share a character show it with a number. A piece with an empty span shows its spelling.

    >>> [piece.shown for piece in pieces_of("a 貓", [(0, 1), (2, 3), (2, 3)], ["a", "", ""])]
    ['a', '貓¹', '貓²']
    """
    pieces: list[Piece] = []
    blank = False
    for (start, end), spelling, number in zip(spans, spellings, _shared(spans), strict=True):
        raw = text[start:end] or spelling
        between = any(mark.isspace() for mark in text[after:start])
        pieces.append(_piece(raw, space=blank or between, number=number))
        blank = text[start:end][-1:].isspace()
        after = max(after, end)
    return pieces


def spell_bytes(data: Sequence[bytes], unknown: Sequence[bool]) -> Spelling:
    """Return the text whose bytes are those of the tokens.

    >>> spell_bytes(["貓".encode()[:2], "貓".encode()[2:]], [False, False])
    Spelling(text='貓', spans=((0, 1), (0, 1)), unknown=(False, False))
    """
    text, spans = _decode(data)
    return Spelling(text, tuple(spans), tuple(unknown))


def spell_words(data: Sequence[bytes], continues: Sequence[bool], unknown: Sequence[bool]) -> Spelling:
    """Return the text of tokens without spaces, of which some continue the word before them; white space between words
    is guessed by the rules of typesetting.

    >>> spell_words([b"token", b"izer", b"cat", b"."], [False, True, False, False], [False] * 4).text
    'tokenizer cat.'
    """
    words: list[tuple[int, int]] = []
    for index in range(len(data)):
        if index and continues[index]:
            words[-1] = (words[-1][0], index + 1)
        else:
            words.append((index, index + 1))
    text = ""
    spans: list[Span] = []
    last = ""  # the last token
    touched = True  # whether no space was before it
    for number, (first, end) in enumerate(words):
        word, own = _decode(data[first:end])
        bare = word[slice(*own[0])]
        following = data[words[number + 1][0]].decode(errors="replace") if number + 1 < len(words) else ""
        elided = word in _APOSTROPHES and following in _ELISIONS and last[-1:].isalpha()
        closes = last in _APOSTROPHES and touched and bare in _ELISIONS
        touches = bare[:1] in _NO_SPACE_BEFORE or last[-1:] in _NO_SPACE_AFTER
        chinese = (is_cjk(last[-1:]) or last in _CJK_MARKS) and (is_cjk(bare[:1]) or bare in _CJK_MARKS)
        touched = number == 0 or elided or closes or touches or chinese
        text += "" if touched else " "
        spans += [(len(text) + start, len(text) + stop) for start, stop in own]
        text += word
        last = word[slice(*own[-1])]
        touched = touched if end - first == 1 else True
    return Spelling(text, tuple(spans), tuple(unknown))


def spell_decoded(decode: Callable[[list[int]], str], ids: Sequence[int]) -> Spelling:
    """Return the text of tokens of which only the text of several is known, by what each adds to those before it.

    A token after which the text ends within a character shares it with those that complete it, or with those of which
    it is cut off too.
    """
    text = ""
    spans: list[Span] = []
    before = 0  # the first token whose text is not known
    beginnings: list[str] = []  # the text with each token that waits for the rest of its character
    complete = stalled = 0  # characters of it that are complete, and tokens since there were more
    for index in range(len(ids)):
        context = list(ids[max(0, before - _CONTEXT) : before])
        known = decode(context) if context else ""
        whole = decode([*context, *ids[before : index + 1]])
        if not whole.startswith(known):  # it is spelled otherwise together: as " n't" after "do"
            known, whole = "", decode(list(ids[before : index + 1]))
        beginnings.append(whole[len(known) :])
        known_characters = len(beginnings[-1].rstrip(_BROKEN))
        stalled = stalled + 1 if known_characters <= complete and len(beginnings) > 1 else 0
        complete = known_characters
        if whole.endswith(_BROKEN) and index + 1 < len(ids) and stalled < _INCOMPLETE:
            continue
        new, start = beginnings[-1], 0
        for beginning in beginnings:
            same = _common(beginning, new)
            end = min(len(new), same + (len(beginning) > same))
            # A further byte of a character that is cut off changes nothing: it shares what stands for the character.
            shares = start == end > 0 and beginning.endswith(_BROKEN) and new[end - 1] == _BROKEN
            spans.append((len(text) + start - shares, len(text) + end))
            start = same
        spans[-1] = (spans[-1][0], len(text) + len(new))
        text += new
        before, beginnings = index + 1, []
    return Spelling(text, tuple(spans), (False,) * len(ids))


def _common(text: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    size = min(len(text), len(other))
    return next((index for index in range(size) if text[index] != other[index]), size)


def _shared(spans: Sequence[Span]) -> list[int]:
    """Return the number of each piece among those that share a character (1, 2, 3), or 0 if it holds whole
    characters.
    """
    numbers = [0] * len(spans)
    last = 0  # the last piece with characters
    for index in range(1, len(spans)):
        (_, end_before), (start, end) = spans[last], spans[index]
        if start == end:
            continue
        if start < end_before:
            numbers[last] = numbers[last] or 1
            numbers[index] = numbers[last] + 1
        last = index
    return numbers


def _piece(raw: str, *, space: bool, number: int = 0) -> Piece:
    """Return a piece for the text that it covers; leading white space counts as preceding it, unless the piece has
    nothing else.
    """
    bare = raw.strip()
    follows = number > 1
    if not bare:
        shown = "".join("␣" if mark == " " else _PICTURES.get(ord(mark), "␣") for mark in raw) or "␣"
        return Piece(shown, raw[:1] or " ", space=space and not follows, glued=follows)
    shown = bare.translate(_PICTURES) + (str(number).translate(_SUPERSCRIPTS) if number else "")
    return Piece(shown, bare, space=not follows and (space or raw[0].isspace()), glued=follows)


def _decode(data: Sequence[bytes]) -> tuple[str, list[Span]]:
    """Return the text that the bytes of tokens spell, and the characters of each; an invalid byte becomes �."""
    text, characters = _characters(b"".join(data))
    spans: list[Span] = []
    at = 0
    for part in data:
        first, last = at, max(at, at + len(part) - 1)
        at += len(part)
        here = characters[first] if first < len(characters) else len(text)
        spans.append((here, characters[last] + 1) if part else (here, here))
    return text, spans


def _characters(data: bytes) -> tuple[str, list[int]]:
    """Return the text that the bytes spell, and for each byte the index of its character."""
    text: list[str] = []
    characters: list[int] = []
    at = 0
    while at < len(data):
        length = next((n for n in (1, 2, 3, 4) if _is_character(data[at : at + n])), 0)
        text.append(data[at : at + length].decode() if length else _BROKEN)
        characters += [len(text) - 1] * (length or 1)
        at += length or 1
    return "".join(text), characters


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False
