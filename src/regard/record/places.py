"""A place in a text, named in the reader's own words: which tokens are meant, and which others could have been.

A name is looked for in the text that the tokens spell. Whole words are found first, then what letters end beside
(`it` in "it's"), then whole tokens, then special tokens by their own text, and what lies inside of tokens only if there
is nothing else. Texts are compared in Unicode's normal form NFKC, without case, as tokenizers that drop it would name
them else, and without accents if nothing is equal.
"""

import difflib
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from regard.errors import InputError
from regard.record.questions import asked_of
from regard.record.subwords import is_cjk, is_unspaced
from regard.record.tokens import Token, Word, own_texts, spell_word, words_of

__all__ = [
    "Characters",
    "Name",
    "Place",
    "are_apart",
    "find_place",
    "find_places",
    "numbered_name",
    "spell",
    "words_with",
]

Match = Literal["word", "letters", "token", "special", "part", "position"]

_LISTED = 12  # words that an error names
_ECHOED = 60  # characters of a name
_TAG = re.compile(r"(.*\S)#(-?\d{1,9})", re.DOTALL)
_SPAN = re.compile(r"(\d{1,9}):(\d{1,9})")
_CHARACTERS = re.compile(r"characters? (\d{1,9}):(\d{1,9})")
_BLANKS = "␣↵⇥"  # how pieces of white space are shown


@dataclass(frozen=True)
class Characters:
    """The characters `text[start:end]` of the text that the tokens were made from, as a name of the tokens there."""

    start: int
    end: int


@dataclass(frozen=True)
class Place:
    """Tokens that a name means.

    `positions` are their positions in the stream, in order; `text` is what was found there, as the text writes it.
    It is occurrence `number` of `count`, whose first positions are `others`. `match` tells what the name is: a word or
    several, letters beside an apostrophe or a mark, whole tokens, a special token, a part of a token, or positions.
    `within` is the text of all these tokens where the name is a part of it only, else empty.
    """

    positions: tuple[int, ...]
    text: str
    match: Match = "position"
    number: int = 1
    count: int = 1
    within: str = ""
    others: tuple[int, ...] = ()
    is_numbered: bool = False  # whether its number was asked for

    @property
    def first(self) -> int:
        """The position of the first token."""
        return self.positions[0]

    @property
    def note(self) -> str:
        """What a reader has to know of the choice, in a sentence or two; mostly empty."""
        notes = []
        if self.count > 1 and not self.is_numbered:
            notes.append(
                f"“{self.text}” occurs {self.count} times, and this is number {self.number}: "
                f"“{self.text}#{2 if self.number == 1 else 1}” names another."
            )
        if self.within:
            unit = "token" if len(self.positions) == 1 else "tokens"
            notes.append(
                f"“{self.text}” is a part of the {unit} “{self.within}”: the weights are those of the whole {unit}."
            )
        return " ".join(notes)


Name = str | int | range | slice | tuple[str, int] | Characters | Place


def find_place(tokens: Sequence[Token], name: Name, *, what: str = "token", first: int = 0) -> Place:
    """Return the tokens that a name means.

    Args:
        tokens: The tokens of one sequence.
        name: One of

            - a text: a word or several, a token, or a part of one; the first of several, "animal#2" for the second
              and "animal#-1" for the last. What the text does not have itself may be the number of a token, counted
              from 1 as on pages ("7", "-1" for the last), a span of tokens ("3:5", both included), or of characters
              ("characters 10:15", counted from 1, both included), or a question: "what does the second it look at";
            - ("animal", 2), the second occurrence, and ("animal", -1), the last;
            - an index from 0 on, or from the end (-1); a `range` or `slice` of indices;
            - `Characters(9, 15)`, the tokens that have a part of `text[9:15]`;
            - a Place, which is returned.
        what: The argument's name in errors.
        first: The position of the first token in its text, where only its last ones are given.

    Raises:
        InputError: Nothing in the text is named so.

    >>> pieces = [Token("[CLS]", special=True), Token("with", word=0), Token("it", word=1, space=True)]
    >>> find_place(pieces, "it").positions, find_place(pieces, "3").positions, find_place(pieces, -2).positions
    ((2,), (2,), (1,))
    >>> place = find_place([Token("the", word=0), Token("cat", word=1, space=True), Token("Cat", word=2)], ("cat", 2))
    >>> place.positions, place.text, place.number, place.count, place.others
    ((2,), 'Cat', 2, 2, (1,))
    """
    text = _Spelled.of(tokens)
    if isinstance(name, Place):
        return _at(text, name.positions, name, what)
    if isinstance(name, str):
        return _called(text, name, what, first)
    if isinstance(name, Characters):
        return _of_characters(text, name, what)
    if isinstance(name, range | slice):
        return _spanned(text, name, what)
    if isinstance(name, tuple) and len(name) == 2 and isinstance(name[0], str) and _is_index(name[1]):
        return _numbered(text, *name, what)
    if _is_index(name):
        at = int(name)  # type: ignore[arg-type]
        if -len(tokens) <= at < len(tokens):
            return text.place((at % len(tokens),))
        raise InputError(f"`{what}` must be an index from {-len(tokens)} to {len(tokens) - 1}, got {name}")
    raise InputError(
        f'`{what}` must be a word of the text, an occurrence such as ("animal", 2), an index, a range or slice of '
        f"indices, or Characters(start, end), got {name!r}"
    )


def find_places(tokens: Sequence[Token], name: str) -> list[Place]:
    """Return every place where a text has a word or several in a row, in any case: 老鼠, "New York".

    A Chinese or Japanese word is also found inside of a longer piece, as 它 in 因為它.

    >>> it = [Token("It", word=0), Token("with", word=1, space=True), Token("it", word=2, space=True)]
    >>> [place.positions for place in find_places(it, "it")]
    [(0,), (2,)]
    >>> [place.positions for place in find_places([Token("老", word=0), Token("鼠", word=1), Token("因為它")], "它")]
    [(2,)]
    """
    return _Spelled.of(tokens).matches(name, "part" if is_cjk(name.strip()[:1]) else "word")


def numbered_name(tokens: Sequence[Token], word: Word) -> str:
    """Return the text of a word, with the number that names it where the text has several: "cat#2".

    >>> tokens = [Token("cat", word=0), Token("Cat", word=1, space=True), Token("purrs", word=2, space=True)]
    >>> [numbered_name(tokens, word) for word in words_of(tokens)]
    ['cat#1', 'Cat#2', 'purrs']
    """
    named = [] if word.special else _Spelled.of(tokens).named(word.text, _WHOLE)
    place = next((one for one in named if one.positions == word.pieces), None)
    return f"{word.text}#{place.number}" if place is not None and place.count > 1 else word.text


def words_with(tokens: Sequence[Token], words: Sequence[Word], place: Place) -> tuple[Word, ...]:
    """Return the words of a text regrouped so that the tokens of a place are one of them.

    >>> tokens = [Token("in", word=0), Token("New", word=1, space=True), Token("York", word=2, space=True)]
    >>> [word.text for word in words_with(tokens, words_of(tokens), Place((1, 2), "New York"))]
    ['in', 'New York']
    """
    if any(word.pieces == place.positions for word in words):
        return tuple(words)
    found: list[Word] = []
    for word in words:
        for inside, group in itertools.groupby(word.pieces, lambda at: at in place.positions):
            pieces = tuple(group)
            if not inside:
                found.append(Word(spell_word(tokens, pieces), pieces, word.special))
            elif not found or found[-1].pieces != place.positions:
                found.append(Word(place.within or place.text, place.positions, word.special))
    return tuple(found)


def spell(tokens: Sequence[Token]) -> str:
    """Return the text that tokens spell, with one space for any white space.

    >>> spell([Token("[CLS]", special=True), Token("Cats", word=0), Token("purr", word=1, space=True)])
    'Cats purr'
    """
    return _Spelled.of(tokens).text.replace(_EDGE, "")


_WHOLE: tuple[Match, ...] = ("word", "letters", "token")
_EDGE = "\0"  # stands for a special token, between two texts


@dataclass(frozen=True, eq=False)
class _Spelled:
    """The text of tokens, and which of them have a part of each character."""

    tokens: Sequence[Token]
    text: str
    owners: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tokens: Sequence[Token]) -> "_Spelled":
        """Spell the tokens."""
        characters: list[str] = []
        owners: list[tuple[int, ...]] = []
        for position, (token, (text, shared)) in enumerate(zip(tokens, own_texts(tokens), strict=True)):
            if token.special and not token.text.strip(_BLANKS):
                continue  # a tokenizer's own mark, which is no text
            if token.special:
                characters.append(_EDGE)
                owners.append(())
                continue
            if shared and owners:  # it has further bytes of the last character
                owners[-1] = (*owners[-1], position)
            is_blank = bool(text) and not text.strip(_BLANKS)
            apart = not shared and (token.space or is_blank or are_apart(tokens, position))
            if apart and characters and characters[-1] not in (" ", _EDGE):
                characters.append(" ")
                owners.append((position,) if is_blank else ())
            elif is_blank and characters and characters[-1] == " ":
                owners[-1] = (*owners[-1], position)
            text = "" if is_blank else text
            characters += text
            owners += [(position,)] * len(text)
        return cls(tokens, "".join(characters), tuple(owners))

    @cached_property
    def word_edges(self) -> frozenset[int]:
        """Where words begin and end, as indices between characters."""
        number = {position: at for at, word in enumerate(words_of(self.tokens)) for position in word.pieces}
        return self._edges(lambda owners: number[owners[-1]], lambda owners: number[owners[0]])

    @cached_property
    def token_edges(self) -> frozenset[int]:
        """Where tokens begin and end."""
        return self._edges(lambda owners: owners[-1], lambda owners: owners[0])

    def _edges(self, last: Callable[[tuple[int, ...]], int], first: Callable[[tuple[int, ...]], int]) -> frozenset[int]:
        found = {0, len(self.text)}
        for at in range(1, len(self.text)):
            here, there = self.owners[at - 1], self.owners[at]
            if not here or not there or last(here) != first(there):
                found.add(at)
        return frozenset(found)

    @cached_property
    def folded(self) -> "_Normal":
        """The text as it is compared with a name."""
        return _Normal.of(self.text)

    @cached_property
    def unaccented(self) -> "_Normal":
        """The text without accents, as it is compared with a name that is not found else."""
        return _Normal.of(self.text, accents=False)

    def matches(self, name: str, kind: Match) -> list[Place]:
        """Return all occurrences of one kind, in order; those that differ in accents if there are no others."""
        if kind == "special":
            wanted = _Normal.of(name.strip()).text
            same = (at for at, one in enumerate(self.tokens) if one.special and _Normal.of(one.text).text == wanted)
            return _counted([self.place((at,), match="special") for at in same])
        return _counted(self._found(name, kind, accents=True) or self._found(name, kind, accents=False))

    def named(self, name: str, kinds: Sequence[Match]) -> list[Place]:
        """Return all occurrences of the first kind that there are; in scripts without spaces, where no one sees where
        tokens end, those of any kind.
        """
        if any(map(is_unspaced, name)):
            kinds = ("part", "special")
        return next(filter(None, (self.matches(name, kind) for kind in kinds)), [])

    def _found(self, name: str, kind: Match, *, accents: bool) -> list[Place]:
        normal = self.folded if accents else self.unaccented
        wanted = _Normal.of(" ".join(name.split()), accents=accents).text
        found: list[Place] = []
        after = 0
        for at in _indices(normal.text, wanted):
            last = at + len(wanted) - 1
            start, end = normal.starts[at], normal.ends[last]
            if (at and normal.starts[at - 1] == start) or (normal.starts[last + 1] < end):
                continue  # it begins or ends within a character
            positions = sorted({owner for owners in self.owners[start:end] for owner in owners})
            if start >= after and positions and self._is(kind, start, end):
                found.append(self.place(tuple(positions), self.text[start:end], kind))
                after = end
        return found

    def _is(self, kind: Match, start: int, end: int) -> bool:
        if kind == "word":
            return start in self.word_edges and end in self.word_edges
        if kind == "token":
            return start in self.token_edges and end in self.token_edges
        if kind == "letters":
            return not (_joins(self.text, start) or _joins(self.text, end))
        return True

    def place(self, positions: tuple[int, ...], text: str = "", match: Match = "position") -> Place:
        """Return tokens as a place."""
        if match == "position" and len(positions) == 1:
            return Place(positions, self.tokens[positions[0]].text, match)
        whole = self._text_of(positions)
        text = text.strip() or whole
        return Place(positions, text, match, within="" if len(text) == len(whole) else whole)

    @cached_property
    def _bounds(self) -> dict[int, list[int]]:
        """The first and the last character that each token has a part of, by its position."""
        found: dict[int, list[int]] = {}
        for at, owners in enumerate(self.owners):
            for position in owners:
                found.setdefault(position, [at, at])[1] = at
        return found

    def _text_of(self, positions: tuple[int, ...]) -> str:
        if all(self.tokens[at].special for at in positions):
            return " ".join(self.tokens[at].text for at in positions)
        at = [bound for position in positions for bound in self._bounds.get(position, ())]
        shown = self.text[min(at) : max(at) + 1].replace(_EDGE, "").strip() if at else ""
        return shown or "".join(self.tokens[one].text for one in positions)


def are_apart(tokens: Sequence[Token], position: int) -> bool:
    """Return whether a token and the one before were named by the caller, and their letters would meet."""
    named = position > 0 and all(one.word is None for one in tokens[position - 1 : position + 1])
    if not named or tokens[position].space:
        return False
    left, right = tokens[position - 1].text[-1:], tokens[position].text[:1]
    return left.isalnum() and right.isalnum() and not is_cjk(left) and not is_cjk(right)


@dataclass(frozen=True)
class _Normal:
    """A text in the form in which texts are compared: NFKC, without case, and without spaces beside marks, which many
    tokenizers do not tell; and where each of its characters begins and ends in the text itself.
    """

    text: str
    starts: tuple[int, ...]  # with one more, the end of the text
    ends: tuple[int, ...]

    @classmethod
    def of(cls, text: str, *, accents: bool = True) -> "_Normal":
        """Return the normal form; without accents, letters of European alphabets have none."""
        made: list[str] = []
        bounds: list[tuple[int, int]] = []
        for start, end in _clusters(text):
            part = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text[start:end]).casefold())
            part = part if accents else _without_accents(part)
            if len(part) == end - start:  # characters that stay one for one keep their own place in a cluster
                bounds += [(at, at + 1) for at in range(start, end)]
            else:
                bounds += [(start, end)] * len(part)
            made += part
        kept = [at for at in range(len(made)) if made[at] != " " or _is_between_letters(made, at)]
        starts = (*(bounds[at][0] for at in kept), len(text))
        return cls("".join(made[at] for at in kept), starts, tuple(bounds[at][1] for at in kept))


def _is_between_letters(text: Sequence[str], at: int) -> bool:
    return 0 < at < len(text) - 1 and _is_letter(text[at - 1]) and _is_letter(text[at + 1])


def _is_letter(mark: str) -> bool:
    return unicodedata.category(mark)[0] in "LNM"


def _without_accents(part: str) -> str:
    if not _ALPHABET.match(part):
        return part
    return "".join(mark for mark in unicodedata.normalize("NFKD", part) if unicodedata.category(mark) != "Mn")


_ALPHABET = re.compile("[a-z\u00df-\u024f\u0370-\u03ff\u0400-\u04ff\u1e00-\u1fff]")  # Latin, Greek, Cyrillic


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of characters with the marks that belong to them."""
    start = 0
    for at in range(1, len(text)):
        if not _belongs(text[at]):
            yield start, at
            start = at
    if text:
        yield start, len(text)


def _belongs(mark: str) -> bool:
    """Return whether it never stands alone: a combining mark, a vowel or final of a Korean syllable, ﾞ or ﾟ."""
    return unicodedata.category(mark)[0] == "M" or 0x1160 <= ord(mark) <= 0x11FF or mark in "\u200d\uff9e\uff9f"


def _joins(text: str, at: int) -> bool:
    """Return whether letters or digits meet at an index."""
    if not 0 < at < len(text):
        return False
    return _belongs(text[at]) or all(map(_is_letter, text[at - 1 : at + 1]))


def _indices(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted) if wanted else -1
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _counted(places: list[Place]) -> list[Place]:
    return [
        replace(
            one,
            number=number,
            count=len(places),
            others=tuple(other.first for other in places if other is not one),
        )
        for number, one in enumerate(places, 1)
    ]


def _is_index(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _called(text: _Spelled, name: str, what: str, first: int) -> Place:
    """Return what a text names: itself, an occurrence, a number or a span, a part of a token, or what it asks."""
    if found := text.named(name, (*_WHOLE, "special")):
        # Of characters that are whole tokens here and parts of tokens there, the first whole one is meant.
        whole = {place.positions for place in text.matches(name, "word")}
        return next((place for place in found if place.positions in whole), found[0])
    typed = unicodedata.normalize("NFKC", name).strip()
    if tagged := _TAG.fullmatch(typed):
        return _numbered(text, tagged[1], int(tagged[2]), what)
    if (place := _typed(text, typed, first, what)) is not None:
        return place
    if found := text.matches(name, "part"):
        return found[0]
    if (asked := asked_of(name, what)) is not None and asked[0] != name:
        word, number = asked
        return _called(text, word, what, first) if number is None else _numbered(text, word, number, what)
    raise InputError(_unknown(text, name, what, first))


def _typed(text: _Spelled, name: str, first: int, what: str) -> Place | None:
    """Return the token of a number, or of a span of tokens or characters, counted from 1."""
    count = len(text.tokens)
    if re.fullmatch(r"-?\d{1,9}", name):
        number = int(name)
        at = number - 1 - first if number > 0 else count + number
        return text.place((at,)) if number and 0 <= at < count else None
    if span := _SPAN.fullmatch(name):
        start, end = (int(one) - first for one in span.groups())
        return text.place(tuple(range(start - 1, end))) if 1 <= start <= end <= count else None
    if span := _CHARACTERS.fullmatch(name):
        start, end = int(span[1]) - 1, int(span[2])
        return _of_characters(text, Characters(start, end), what, f"{span[1]}:{span[2]}, counted from 1")
    return None


def _numbered(text: _Spelled, name: str, number: int, what: str) -> Place:
    """Return one occurrence of what is named."""
    found = text.named(name, (*_WHOLE, "special", "part"))
    if not found:
        raise InputError(_unknown(text, name, what, 0))
    if not number or not -len(found) <= number <= len(found):
        times = "once" if len(found) == 1 else f"{len(found)} times"
        raise InputError(
            f"`{what}`: “{found[0].text}” occurs {times} in the text, counted from 1, or from -1 at the end, "
            f"got {number}"
        )
    return replace(found[number - 1 if number > 0 else number], is_numbered=True)


def _spanned(text: _Spelled, name: range | slice, what: str) -> Place:
    count = len(text.tokens)
    if isinstance(name, slice):
        name = range(*name.indices(count))
    if not len(name) or name.step != 1 or name.start < 0 or name[-1] >= count:
        raise InputError(f"`{what}` must be a span within the {count} tokens, counted from 0, without gaps, got {name}")
    return text.place(tuple(name))


def _of_characters(text: _Spelled, name: Characters, what: str, called: str = "") -> Place:
    called = called or f"{name.start}:{name.end}"
    spans = [token.span for token in text.tokens]
    known = [span for span in spans if span is not None]
    if not known:
        raise InputError(
            f"`{what}` cannot be a span of characters here, as the tokens were named without their text: name a word, "
            "or a span of tokens"
        )
    end = max(span[1] for span in known)
    if not 0 <= name.start < name.end <= end:
        raise InputError(f"`{what}` must be characters within the {end} of the text, got {called}")
    at = [at for at, span in enumerate(spans) if span is not None and span[0] < name.end and name.start < span[1]]
    if not at:
        raise InputError(f"`{what}`: no token has the characters {called}, which are white space")
    return text.place(tuple(at))


def _at(text: _Spelled, positions: tuple[int, ...], name: Place, what: str) -> Place:
    if all(0 <= at < len(text.tokens) for at in positions):
        here = text.place(positions, match="position")
        if {here.text, here.within} & {name.text, name.within} - {""}:
            return name
    raise InputError(
        f"`{what}` is a place of another text, as {name.text!r} is not at the positions {list(positions)} of this one: "
        "name it again"
    )


def _unknown(text: _Spelled, name: str, what: str, first: int) -> str:
    words = [word.text for word in words_of(text.tokens) if not word.special] or [one.text for one in text.tokens]
    near = difflib.get_close_matches(name, words, 1)
    some = " ".join(words[:_LISTED]) + (" …" if len(words) > _LISTED else "")
    more = "; the second of several is named animal#2, a span 2:4" if "#" in name or ":" in name else ""
    numbers = f"{first + 1} to {first + len(text.tokens)}"
    return (
        f"`{what}` must be a word of the text ({some}) or a number from {numbers}{more}, got "
        f"{name if len(name) <= _ECHOED else name[:_ECHOED] + '…'!r}" + (f": did you mean {near[0]!r}?" if near else "")
    )
