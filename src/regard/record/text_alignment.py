"""Where in a text its tokens are, found from what they spell.

A tokenizer may change a text before it cuts it: drop capitals, accents and control characters, compose or decompose
characters, add a space. A token's characters are therefore compared as they are, then in Unicode's normal form KD
without case, then also without marks; white space is not compared.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.record.subwords import Span, Spelling

__all__ = ["align", "spelled_exactly", "with_marks"]

_BROKEN = "�"  # what stands for bytes that are no character


def align(spelling: Spelling, text: str, *, whole: bool = True) -> list[Span] | None:
    """Return the characters of the text that each token covers, or None if they do not spell the text, or where they
    need not be all of it (`whole`), its beginning.

    An unknown token covers what is between its neighbours, if only one part of the text can be meant.

    >>> align(Spelling("the cafe", ((0, 3), (3, 8)), (False, False)), "The  Café")
    [(0, 3), (5, 9)]
    """
    spans = spelled_exactly(spelling, text, whole=whole)
    if spans is not None:
        return spans
    text = _without_marks_of_spaces(spelling, text)
    for fold in (_same, _folded, _bare):
        known, spelled = _units(text, fold), _units(spelling.text, fold)
        starts = _starts(known, spelled, spelling, whole=whole)
        if starts is not None:
            is_cut = not any(spelling.unknown) and len(spelled.text) < len(known.text)
            end = known.origins[len(spelled.text)] if is_cut else len(text)
            return _spans(starts, known, text[:end], spelling)
    return None


def spelled_exactly(spelling: Spelling, text: str, *, whole: bool = True) -> list[Span] | None:
    """Return the characters that each token covers if together they spell just the text, or its beginning, perhaps with
    a space before it that the tokenizer adds; else None.
    """
    text = _without_marks_of_spaces(spelling, text)
    for added in (0, 1):
        spelled = spelling.text.removeprefix(" ") if added else spelling.text
        if any(spelling.unknown) or len(spelled) + added != len(spelling.text):
            continue
        if not (spelled == text if whole else text.startswith(spelled)):
            continue
        return [(max(0, start - added), max(0, end - added)) for start, end in spelling.spans]
    return None


def _without_marks_of_spaces(spelling: Spelling, text: str) -> str:
    """Return the text with spaces for ▁, if the tokenizer reads it as the space for which it has this mark."""
    return text if "▁" in spelling.text else text.replace("▁", " ")


@dataclass(frozen=True)
class _Units:
    """Characters in the form in which they are compared, and the index of the character that each comes from."""

    text: str
    origins: list[int]


def _units(text: str, fold: Callable[[str], str]) -> _Units:
    pairs = [(unit, index) for index, mark in enumerate(text) if not mark.isspace() for unit in fold(mark)]
    return _Units("".join(unit for unit, _ in pairs), [index for _, index in pairs])


def _same(mark: str) -> str:
    return mark


def _folded(mark: str) -> str:
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", mark).casefold())


def _bare(mark: str) -> str:
    return "".join(unit for unit in _folded(mark) if unicodedata.category(unit)[0] not in "MC" and not unit.isspace())


def _starts(known: _Units, spelled: _Units, spelling: Spelling, *, whole: bool) -> dict[int, int] | None:
    """Return for each character of the spelling the unit of the text that it begins with."""
    holes = {
        index
        for (start, end), unknown in zip(spelling.spans, spelling.unknown, strict=True)
        if unknown
        for index in range(start, end)
    }
    runs: list[list[int]] = [[]]  # units of the spelling between unknown tokens
    within = False
    for unit, origin in enumerate(spelled.origins):
        if origin in holes:
            runs += [] if within else [[]]
            within = True
        else:
            runs[-1].append(unit)
            within = False
    texts = ["".join(spelled.text[unit] for unit in run) for run in runs]
    places = _places(known.text, texts, whole=whole)
    if places is None:
        return None
    starts: dict[int, int] = {}
    for run, place in zip(runs, places, strict=True):
        for offset, unit in enumerate(run):
            starts.setdefault(spelled.origins[unit], place + offset)
            starts[-1 - spelled.origins[unit]] = place + offset  # the last unit of the same character
    return starts


def _places(text: str, runs: list[str], *, whole: bool) -> list[int] | None:
    """Return where each run is in the text: the first at its beginning, the last at its end, and those between where
    nothing else is possible.
    """
    if len(runs) == 1:
        fits = len(runs[0]) == len(text) if whole else len(runs[0]) <= len(text)
        is_start = fits and all(
            mark in (other, _BROKEN) for mark, other in zip(runs[0], text[: len(runs[0])], strict=True)
        )
        return [0] if is_start else None
    if not text.startswith(runs[0]) or not text.endswith(runs[-1]) or not all(runs[1:-1]):
        return None
    end = len(text) - len(runs[-1])
    earliest, latest = [len(runs[0])], [end]
    for run in runs[1:-1]:
        earliest.append(text.find(run, earliest[-1] + 1) + len(run))
        if earliest[-1] < len(run):
            return None
    for run in runs[-2:0:-1]:
        latest.append(text.rfind(run, 0, latest[-1] - 1))
    middle = [stop - len(run) for run, stop in zip(runs[1:-1], earliest[1:], strict=True)]
    if middle != latest[:0:-1] or earliest[-1] >= end:
        return None
    return [0, *middle, end]


def _spans(starts: dict[int, int], known: _Units, text: str, spelling: Spelling) -> list[Span] | None:
    spans: list[Span | None] = []
    for start, end in spelling.spans:
        inside = [index for index in range(start, end) if index in starts]
        if not inside:
            spans.append(None)
            continue
        spans.append((known.origins[starts[inside[0]]], known.origins[starts[-1 - inside[-1]]] + 1))
    filled = _filled(spans, text, spelling)
    return None if filled is None else with_marks(filled, text, read=known.origins)


def with_marks(spans: Sequence[Span], text: str, *, read: Sequence[int] = ()) -> list[Span]:
    """Return spans with the combining marks and control characters after them that the tokenizer drops: they belong to
    the character before them. Those whose indices are in `read` are not dropped.
    """
    covered = {*read, *(index for start, end in spans for index in range(start, end))}
    ends = {end: end for start, end in spans if start < end}
    for end in ends:
        last = end
        while last < len(text) and last not in covered and unicodedata.category(text[last])[0] in "MC":
            if text[last].isspace():
                break
            last += 1
        ends[end] = last
    return [(start, ends[end]) if start < end else (start, end) for start, end in spans]


def _filled(spans: list[Span | None], text: str, spelling: Spelling) -> list[Span] | None:
    """Return the spans with those of unknown tokens, and of tokens of white space, between their neighbours; None if
    several unknown tokens are not as many words.
    """
    filled: list[Span] = []
    end = 0
    for index, span in enumerate(spans):
        if span is not None:
            filled.append(span)
        elif index == len(filled):
            stop = next((at for at in range(index, len(spans)) if spans[at] is not None), len(spans))
            until = (spans[stop] or (len(text),))[0] if stop < len(spans) else len(text)
            unknown = [at for at in range(index, stop) if spelling.unknown[at]]
            if unknown:
                words = _words(text, end, until)
                if len(unknown) == 1 and words:
                    words = [(words[0][0], words[-1][1])]
                if len(words) != len(unknown):
                    return None
                own = dict(zip(unknown, words, strict=True))
                filled += [own.get(at, (end, end)) for at in range(index, stop)]
            else:
                for at in range(index, stop):
                    size = spelling.spans[at][1] - spelling.spans[at][0]
                    last = min(until, end + size) if not text[end:until].strip() else end
                    filled.append((end, last))
                    end = last
        end = max(end, filled[index][1])
    return filled


def _words(text: str, start: int, end: int) -> list[Span]:
    """Return the spans between white space within a part of the text."""
    return [(start + match.start(), start + match.end()) for match in re.finditer(r"\S+", text[start:end])]
