"""Tokens of any tokenizer, grouped into words.

Pieces without white space between them belong to one word if letters or digits are on both sides of the boundary. A
piece of a script without spaces (Chinese, Japanese, Thai, Burmese and others) is a word of its own, and so is each
piece of a sequence such as DNA or a protein, which has no words. Punctuation is a word of its own, except for an
apostrophe within a word.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from regard.errors import InputError
from regard.record.subwords import Piece, Span, Spelling, is_unspaced, pieces_of
from regard.record.text_alignment import align, spelled_exactly, with_marks
from regard.record.tokenizer_adapter import TokenizedText, TokenizerAdapter, adapt, adapt_names
from regard.record.tokens import Token

__all__ = ["characters_of", "text_between", "tokens_of", "tokens_of_names", "unknown_share"]

_PADDING = "[PAD]"  # what positions without a name are called
_APOSTROPHES = "'’ʼ＇"
_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)  # two are a flag
_TAGS = range(0xE0020, 0xE0080)  # they spell the flags of regions, as Scotland's
# Marks that put the next letter below the one before: in Burmese, Khmer, Tai Tham, Balinese and Javanese.
_STACKING = "\u1039\u17d2\u1a60\u1b44\ua9c0"

# Longer ones are no words. The longest of running text have about 40 letters (German and Finnish compounds), while the
# lines of a FASTA file have 60 to 80. Alone in its text, a sequence is shorter (a peptide, a primer), and there is no
# other word that could be looked at instead.
_LONGEST_WORD = 48
_LONGEST_LONE_WORD = 8


def tokens_of(tokenizer: Any, ids: Sequence[int], text: str | None = None) -> tuple[Token, ...]:
    """Return one Token for each id, with its text in readable form.

    With the text that the ids were made from, tokens show the text itself (capitals that the tokenizer dropped, the
    characters that an unknown token covers), and have the `span` of their characters in it. Without it they are spelled
    from the vocabulary. Special tokens are marked (also a typed "[CLS]", which the model cannot distinguish), as are
    tokens without any text.

    Args:
        tokenizer: One of transformers (also those in Python, without offsets), tokenizers, tiktoken, SentencePiece or
            regard, or any object with `decode(ids)`.
        ids: Ids of one sequence.
        text: The text that they were made from; it may be truncated or padded in them.

    Raises:
        InputError: `tokenizer` is none, it has no such id, or the ids were made from another text.
    """
    adapter = adapt(tokenizer)
    numbers = [int(number) for number in ids]
    names = adapter.name(numbers)
    special = [number in adapter.special for number in numbers]
    spans = None if text is None or not numbers else _spans(adapter, numbers, names, text, special)
    tokens: list[Token] = []
    word = 0
    after = 0
    for start, end in _runs(special):
        own = None if spans is None else spans[start:end]
        if special[start]:
            covered = None if own is None or text is None else _visible(text, own[0])
            tokens.append(Token(names[start], special=True, span=covered))
            after = after if own is None else max(after, own[0][1])
            continue
        spelling = adapter.text_of(numbers[start:end])
        plain = spelling.without_space() if adapter.adds_space else spelling
        parts = spelling.parts
        if own is not None and text is not None:
            pieces = pieces_of(text, own, parts, after=after)
            after = max(after, *(last for _, last in own))
        else:
            pieces = pieces_of(plain.text, plain.spans, plain.parts)
        joined = _joined(pieces)
        for index, (piece, joins) in enumerate(zip(pieces, joined, strict=True)):
            covered = None if own is None or text is None else _visible(text, own[index])
            # The space that a tokenizer adds before the first word is no text where it is a token of its own. One
            # within the text is, with the text as without it: as that which stands for the joiner of an emoji.
            added = not plain.parts[index] or (own is not None and index == 0 and not parts[0].strip())
            if covered is None and added:
                name = "" if plain.parts[index] else names[start + index].strip("▁ ")
                tokens.append(Token(name or piece.shown, special=True))
                continue
            word += not joins
            tokens.append(Token(piece.shown, word=word - 1, space=piece.space, span=covered))
    return tuple(tokens)


def tokens_of_names(names: Sequence[Sequence[str | None]]) -> tuple[tuple[Token, ...], ...]:
    """Return the tokens that a caller named, for each sequence of a batch; None or "" is padding.

    Names that were copied from a vocabulary (`adapt_names`) are read as what they spell, others are text as they are.

    >>> [token.text for token in tokens_of_names([["The", "Ġcat", "Ġsat"]])[0]]
    ['The', 'cat', 'sat']
    """
    adapter = adapt_names(names)
    if adapter is None:
        return tuple(
            tuple(Token(name) if name else Token(_PADDING, special=True) for name in sequence) for sequence in names
        )
    ids = {name: index for index, name in enumerate(adapter.name([*range(adapter.size or 0)]))}
    return tuple(tokens_of(adapter, [ids[name or _PADDING] for name in sequence]) for sequence in names)


def text_between(tokenizer: Any, text: str, first: int, last: int) -> str:
    """Return the part of a text that the tokens `first` to `last` cover, both included and counted from 1.

    Raises:
        InputError: The text has no such tokens, or their characters are not known.
    """
    _, spans = characters_of(tokenizer, text)
    if not 1 <= first <= last <= len(spans):
        raise InputError(
            f"`tokens` must be FIRST:LAST within the {len(spans):,} tokens of the text, counted from 1, got "
            f"{first}:{last}"
        )
    return text[spans[first - 1][0] : spans[last - 1][1]]


def characters_of(tokenizer: Any, text: str, *, special: bool = False) -> tuple[list[int], list[Span]]:
    """Return the ids of a text, with special tokens around it or without, and the characters (start, end) of each.

    Raises:
        InputError: The tokenizer returns no offsets, and changes the text so that they are not known.
    """
    adapter = adapt(tokenizer)
    tokenized = adapter.tokenize(text, special=special)
    spans = tokenized.spans
    if spans is None:
        plain = adapter.tokenize(text) if special else tokenized
        names = adapter.name(plain.ids)
        around = (
            _around(tokenized.ids, plain.ids, [index in adapter.special for index in tokenized.ids]) if special else 0
        )
        found = align(_whole_spelling(adapter, plain.ids, names), text)
        if found is None or around is None:
            raise InputError(
                f"the characters of tokens are needed, and {adapter.kind} does not return offsets: cut the text "
                "yourself, or use its fast version (AutoTokenizer.from_pretrained)"
            )
        spans = [(0, 0)] * around + found
        spans += [(0, 0)] * (len(tokenized.ids) - len(spans))
    return tokenized.ids, spans


def unknown_share(tokenizer: Any, text: str) -> float:
    """Return the share of a text's pieces that are not in the vocabulary, from 0 to 1 (special tokens not counted)."""
    adapter = adapt(tokenizer)
    ids = [number for number in adapter.tokenize(text).ids if number not in adapter.special]
    return sum(number == adapter.unknown for number in ids) / len(ids) if ids else 0.0


def _visible(text: str, span: Span) -> Span | None:
    """Return a span without the white space around it, unless there is nothing else; None if it is empty."""
    start, end = span
    part = text[start:end]
    if part.strip():
        start, end = start + len(part) - len(part.lstrip()), start + len(part.rstrip())
    return (start, end) if start < end else None


def _spans(
    adapter: TokenizerAdapter, ids: list[int], names: list[str], text: str, special: list[bool]
) -> list[Span] | None:
    """Return the span of each id in the text, (0, 0) for special tokens around it; None if it is not known."""
    if adapter.encode is None:
        return _spelled_spans(adapter, ids, names, text, special)
    tokenized = adapter.tokenize(text)
    place = _placed(ids, tokenized.ids, special)
    if place is None:
        # Typed special tokens are text to some calls of a tokenizer, and tokens to others.
        own = _spelled_spans(adapter, ids, names, text, special) if tokenized.spans is None else None
        if own is not None and any(end > first for first, end in own):
            return own
        raise InputError(
            f"`text` must be the text that the {len(ids)} ids were made from, got {text[:40]!r}: pass text=None to "
            "spell the tokens from the vocabulary"
        )
    spans = _known_spans(adapter, tokenized, text)
    if spans is None:
        return None
    start, first, count = place
    return [(0, 0)] * start + spans[first : first + count] + [(0, 0)] * (len(ids) - start - count)


def _spelled_spans(
    adapter: TokenizerAdapter, ids: list[int], names: list[str], text: str, special: list[bool]
) -> list[Span] | None:
    """Return the spans of ids that spell the beginning of a text, (0, 0) for special tokens around it; None if they do
    not.
    """
    own = [index for index, is_special in enumerate(special) if not is_special]
    first, end = (own[0], own[-1] + 1) if own else (0, 0)
    spans = align(_whole_spelling(adapter, ids[first:end], names[first:end]), text, whole=False)
    return None if spans is None else [(0, 0)] * first + spans + [(0, 0)] * (len(ids) - end)


def _known_spans(adapter: TokenizerAdapter, tokenized: TokenizedText, text: str) -> list[Span] | None:
    """Return the spans of a text's tokens: those that they spell if they spell the text, else those reported."""
    spelling = _whole_spelling(adapter, tokenized.ids, adapter.name(tokenized.ids))
    exact = spelled_exactly(spelling, text)
    if exact is not None or tokenized.spans is None:
        return exact or align(spelling, text)
    # The space that a tokenizer adds before the text is reported at the first character: it covers none of the text.
    spans = [
        (start, start) if not part.strip() and text[start:end].strip(" ▁") else (start, end)
        for (start, end), part in zip(tokenized.spans, spelling.parts, strict=True)
    ]
    if len(spans) > 1 and not spelling.parts[0].strip() and spans[0][0] == spans[1][0] < spans[1][1]:
        spans[0] = (spans[0][0], spans[0][0])
    return with_marks(spans, text)


def _whole_spelling(adapter: TokenizerAdapter, ids: list[int], names: list[str]) -> Spelling:
    """Return the text of ids, with that of special tokens as they may have been typed."""
    text = ""
    spans: list[Span] = []
    unknown: list[bool] = []
    special = [index in adapter.special for index in ids]
    for start, end in _runs(special):
        if special[start]:
            spelling = Spelling(names[start], ((0, len(names[start])),), (False,))
        else:
            spelling = adapter.text_of(ids[start:end])
        spans += [(len(text) + first, len(text) + last) for first, last in spelling.spans]
        unknown += spelling.unknown
        text += spelling.text
    return Spelling(text, tuple(spans), tuple(unknown))


def _placed(ids: list[int], known: list[int], special: list[bool]) -> tuple[int, int, int] | None:
    """Return where the ids of a text are among those with special tokens around them: the first of either, and how
    many. Those at the end or at the beginning may be cut off, or both if only one part of the text can be meant. None
    if the ids are of another text.
    """
    first = _around(ids, known, special)
    if first is not None:
        matched = min(len(known), len(ids) - first)
        while ids[first : first + matched] != known[:matched]:
            matched -= 1
        return first, 0, matched
    own = [index for index, is_special in enumerate(special) if not is_special]
    if not own:
        return len(ids), 0, 0
    body = ids[own[0] : own[-1] + 1]
    places = [at for at in range(len(known) - len(body) + 1) if known[at : at + len(body)] == body]
    end = len(known) - len(body)
    if end in places or len(places) == 1:
        return own[0], end if end in places else places[0], len(body)
    return None


def _around(ids: list[int], known: list[int], special: list[bool]) -> int | None:
    """Return the number of special tokens before a text's ids, of which the last may be cut off; None if the ids do
    not begin with those of the text.
    """
    for start in range(len(ids) + 1):
        matched = 0
        while matched < min(len(known), len(ids) - start) and ids[start + matched] == known[matched]:
            matched += 1
        whole = matched == len(known) or start + matched == len(ids) or special[start + matched]
        if whole and all(special[start + matched :]) and (matched or not known):
            return start
        if start < len(ids) and not special[start]:
            return None
    return None


def _runs(special: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield spans of ids: each special id separately, other ids as runs."""
    start = 0
    while start < len(special):
        end = start + 1
        while not special[start] and end < len(special) and not special[end]:
            end += 1
        yield start, end
        start = end


def _joined(pieces: Sequence[Piece]) -> list[bool]:
    """Return for each piece whether it belongs to the same word as the piece before it."""
    joined = [False] * len(pieces)
    for index in range(1, len(pieces)):
        piece = pieces[index]
        left = pieces[index - 1].bare
        if piece.glued:
            joined[index] = True
        elif not piece.space and left and piece.bare.strip():
            joined[index] = _meets(_before(pieces, index), _after(pieces, index)) or _is_flag(pieces, index)
    return _without_sequences(pieces, joined)


def _without_sequences(pieces: Sequence[Piece], joined: Sequence[bool]) -> list[bool]:
    """Return what joins pieces, without what would join the pieces of a sequence of letters that is no word."""
    starts = [index for index, joins in enumerate(joined) if not joins]
    words = list(zip(starts, [*starts[1:], len(joined)], strict=True))
    lettered = [any(map(_is_letter, _text(pieces[start:end]))) for start, end in words]
    is_lone = sum(lettered) == 1
    kept = list(joined)
    for (start, end), has_letters in zip(words, lettered, strict=True):
        length = max(map(len, _text(pieces[start:end]).split()), default=0)
        alone = is_lone and has_letters and end - start > 2 and length > _LONGEST_LONE_WORD
        if length > _LONGEST_WORD or alone:
            for index in range(start + 1, end):
                kept[index] = pieces[index].glued or _is_mark(pieces[index].bare[0])
    return kept


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.bare for piece in pieces if not piece.glued)


def _is_flag(pieces: Sequence[Piece], index: int) -> bool:
    """Return whether the first character of a piece is the second letter of a flag."""
    if ord(pieces[index].bare[0]) not in _FLAG_LETTERS:
        return False
    before = 0
    for piece in reversed(pieces[:index]):
        letters = len(piece.bare) - len(piece.bare.rstrip("".join(map(chr, _FLAG_LETTERS))))
        before += 0 if piece.glued else letters
        if letters < len(piece.bare) or piece.space:
            break
    return before % 2 == 1


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
    if _is_mark(there) or here == _JOINER or (here and here in _STACKING):
        return not here.isspace()
    if here in _APOSTROPHES:
        return _is_letter(left[-2:-1]) and _is_letter(there)
    if there in _APOSTROPHES:
        return _is_letter(here) and _is_letter(right[1:2])
    return _is_letter(here) and _is_letter(there)


def _is_mark(mark: str) -> bool:
    """Return whether this character changes the one before it, instead of standing for itself."""
    return unicodedata.category(mark)[0] == "M" or mark == _JOINER or ord(mark) in _SKIN_TONES or ord(mark) in _TAGS


def _is_letter(mark: str) -> bool:
    """Return whether this is a letter, a digit or a combining mark, of a script with spaces between words."""
    if not mark or unicodedata.category(mark)[0] not in "LNM":
        return False
    return not is_unspaced(mark)
