"""The parts of a text that an answer can come from: documents, paragraphs, sentences or lines, by their characters."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from regard.errors import InputError, MissingExtraError

__all__ = ["PartKind", "Parts", "Span", "find_parts", "sentences"]

PartKind = Literal["auto", "document", "paragraph", "sentence", "line"]
Span = tuple[int, int]
Parts = PartKind | Sequence[Span]
_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
# A line of code or of a table: cells, an opening or closing bracket, a statement's end, a comment.
_STRUCTURED = re.compile(
    r".*(\||\t|[{};]\s*$|[\[(,]\s*$)|\s*(#|//|/\*|@|def |class |import |from \S+ import|return\b|[-*•] )"
)
_MARKUP = re.compile(r"<\|[^|<>\n]*\|>")  # a chat's special tokens: their bars separate no cells
_LINES = (
    ".py",
    ".js",
    ".ts",
    ".c",
    ".h",
    ".cpp",
    ".rs",
    ".go",
    ".java",
    ".csv",
    ".tsv",
    ".json",
    ".toml",
    ".yaml",
    ".sql",
)


def find_parts(text: str, kind: Parts, name: str = "") -> list[Span]:
    """Return the parts of a text as characters [start, end), without the white space around them.

    With "auto", files of code and tables (by their name, or by most of their lines) have lines as parts, and other
    texts sentences. A list of spans is checked and returned.

    Raises:
        InputError: The kind does not exist, or a span is empty, reversed, beyond the text, or overlaps another.
        MissingExtraError: Sentences need the package `sentencex`.

    >>> text = "It rained. We stayed.\\n\\nThen the sun came."
    >>> [text[start:end] for start, end in find_parts(text, "paragraph")]
    ['It rained. We stayed.', 'Then the sun came.']
    """
    if not isinstance(kind, str):
        return _given(kind, len(text))
    if kind not in get_args(PartKind):
        raise InputError(f"`parts` must be one of {', '.join(get_args(PartKind))}, or a list of spans, got {kind!r}")
    if kind == "auto":
        kind = "line" if _is_structured(text, name) else "sentence"
    return _FINDERS[kind](text)


def sentences(text: str) -> list[Span]:
    """Return the sentences of a text in any language, by the rules of the package `sentencex` (Wikimedia)."""
    try:
        from sentencex import get_sentence_boundaries
    except ImportError as error:
        raise MissingExtraError("sentencex", "models") from error
    found = cast("list[Mapping[str, Any]]", get_sentence_boundaries("en", text))
    return _trimmed(text, [(one["start_index"], one["end_index"]) for one in found])


def _paragraphs(text: str) -> list[Span]:
    return _between(text, [match.span() for match in _BLANK.finditer(text)])


def _lines(text: str) -> list[Span]:
    return _between(text, [match.span() for match in re.finditer(r"\n", text)])


def _whole(text: str) -> list[Span]:
    return _trimmed(text, [(0, len(text))])


_FINDERS: Mapping[str, Callable[[str], list[Span]]] = {
    "document": _whole,
    "paragraph": _paragraphs,
    "sentence": sentences,
    "line": _lines,
}


def _between(text: str, gaps: Sequence[Span]) -> list[Span]:
    """Return what is left of a text between gaps."""
    starts = [0, *(end for _, end in gaps)]
    ends = [*(start for start, _ in gaps), len(text)]
    return _trimmed(text, list(zip(starts, ends, strict=True)))


def _trimmed(text: str, spans: Sequence[Span]) -> list[Span]:
    found = []
    for start, end in spans:
        inner = text[start:end]
        if kept := inner.strip():
            first = start + len(inner) - len(inner.lstrip())
            found.append((first, first + len(kept)))
    return found


def _is_structured(text: str, name: str) -> bool:
    lines = [line for line in _MARKUP.sub("", text).splitlines() if line.strip()]
    return name.lower().endswith(_LINES) or (
        len(lines) > 2 and sum(bool(_STRUCTURED.match(line)) for line in lines) > len(lines) / 2
    )


def _given(spans: Any, length: int) -> list[Span]:
    rule = "`parts` must be a list of spans (start, end) of characters, in order and without overlap"
    if not isinstance(spans, Sequence) or not spans:
        raise InputError(f"{rule}, got {spans!r}")
    found, last = [], 0
    for one in spans:
        whole = isinstance(one, Sequence) and len(one) == 2 and all(type(end) is int for end in one)
        if not whole or not last <= one[0] < one[1] <= length:
            raise InputError(f"{rule}, within the {length:,} characters of the text, got {one!r}")
        found.append((one[0], one[1]))
        last = one[1]
    return found
