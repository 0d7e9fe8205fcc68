"""The prompt of `sources`: its text, the documents in it, their parts, and the tokens of each part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.checks import check_unicode
from regard.errors import InputError
from regard.heads.answer_sources import SourceDocument, SourcePart
from regard.record.subwords import is_cjk
from regard.record.text_parts import Parts, Span, find_parts
from regard.record.tokenizer_adapter import adapt
from regard.record.tokens_from_tokenizer import characters_of

__all__ = [
    "Prompt",
    "encode",
    "joined",
    "prompt_of",
    "read_tokens",
    "space_before",
    "token_ranges",
    "without_end",
]

_OPENING, _QUOTES, _CLOSING = "([{<“‘«-–—/\\_@#$", "\"'`", ")]}>”’»,.;:!?%"
_INSTRUCTION = "Answer the question from these documents.\n\n"


@dataclass(frozen=True)
class Prompt:
    """A text, the documents that stand in it, and their parts.

    `extents[d]` is where document d stands in the text, or what is left of it there: white space around it may be gone.
    `offsets[d]` is where its first character stands or would stand. `typed` says that special tokens are part of the
    text.
    """

    text: str
    documents: tuple[SourceDocument, ...]
    extents: tuple[Span, ...]
    parts: tuple[SourcePart, ...]
    typed: bool
    offsets: tuple[int, ...] = field(init=False)
    places: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find where each part stands in the text; what a document has lost around it is in no place."""
        offsets = tuple(
            start - self.documents[at].text.find(self.text[start:end]) for at, (start, end) in enumerate(self.extents)
        )
        places = []
        for one in self.parts:
            (low, high), offset = self.extents[one.document], offsets[one.document]
            places.append((min(max(low, offset + one.start), high), min(max(low, offset + one.end), high)))
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "places", tuple(places))

    def without(self, *parts: SourcePart) -> str:
        """Return the text without parts and the spaces after each; a line that held nothing else goes too."""
        text = self.text
        for start, end in sorted((self.places[self.parts.index(one)] for one in parts), reverse=True):
            if start < end:
                rest = text[end:].lstrip(" \t")
                alone = (start == 0 or text[start - 1] == "\n") and rest[:1] == "\n"
                text = text[:start] + rest[alone:]
        return text


def prompt_of(
    tokenizer: Any,
    *,
    prompt: str | None,
    documents: Mapping[str, str] | Sequence[str] | None,
    question: str | None,
    messages: Sequence[Mapping[str, str]] | None,
    parts: Parts,
) -> Prompt:
    """Return the prompt of a text, of documents and a question, or of the messages of a chat.

    Raises:
        InputError: It is not exactly one of the three, or one of them is empty or of another type.
    """
    given = [name for name, one in (("prompt", prompt), ("documents", documents), ("messages", messages)) if one]
    if len(given) != 1:
        raise InputError(
            "sources() reads one of `prompt`, `documents` with a `question`, and `messages`, and at least a word of "
            f"it, got {' and '.join(given) or 'none'}"
        )
    if (question is not None) != (given == ["documents"]):
        raise InputError("`question` belongs to `documents`: give both, or write it into the `prompt`")
    if given != ["prompt"] and not isinstance(parts, str) and len(documents or messages or ()) != 1:
        raise InputError("`parts` as a list of spans is for one text: give a `prompt`, or one document")
    if prompt is not None and prompt:
        return _prompt(
            prompt, [SourceDocument("prompt", _text("prompt", prompt))], [(0, len(prompt))], parts, typed=False
        )
    if messages:
        return _of_messages(tokenizer, messages, parts)
    assert documents is not None
    assert question is not None
    return _of_documents(tokenizer, _documents(documents), _text("question", question), parts)


def _text(name: str, one: Any) -> str:
    if not isinstance(one, str) or not one.strip():
        raise InputError(f"`{name}` must be a text with at least one word, got {one!r}")
    if "\0" in one:
        raise InputError(f"`{name}` contains a NUL byte: is it a binary file?")
    check_unicode(name, one)
    return one


def _documents(given: Mapping[str, str] | Sequence[str]) -> list[SourceDocument]:
    if isinstance(given, str):
        raise InputError("`documents` must be texts by name, or a list of texts, got one text: put it in [ ]")
    named = given if isinstance(given, Mapping) else {f"document {n}": one for n, one in enumerate(given, 1)}
    return [SourceDocument(_text("name", name), _text(f"documents[{name!r}]", one)) for name, one in named.items()]


def _of_documents(tokenizer: Any, documents: list[SourceDocument], question: str, parts: Parts) -> Prompt:
    text, extents = _INSTRUCTION, []
    for number, one in enumerate(documents, 1):
        text += f"[{number}] {one.name}\n"
        extents.append((len(text), len(text) + len(one.text.rstrip())))
        text += f"{one.text.rstrip()}\n\n"
    text += f"Question: {question.strip()}"
    if not getattr(tokenizer, "chat_template", None):
        return _prompt(text + "\nAnswer:", documents, extents, parts, typed=False)
    rendered, ((shift, _),) = _rendered(tokenizer, [{"role": "user", "content": text}])
    return _prompt(rendered, documents, [(shift + start, shift + end) for start, end in extents], parts, typed=True)


def _of_messages(tokenizer: Any, messages: Sequence[Mapping[str, str]], parts: Parts) -> Prompt:
    for one in messages:
        if not isinstance(one, Mapping) or not {"role", "content"} <= one.keys():
            raise InputError(f'`messages` must be a list of {{"role": ..., "content": ...}}, got {one!r}')
        _text("content", one["content"])
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("`messages` need a tokenizer with a chat template, and this one has none: give a `prompt`")
    if messages[-1]["role"] == "assistant":
        raise InputError("`messages` must end before the answer: give the assistant's last message as `answer`")
    rendered, extents = _rendered(tokenizer, messages)
    documents = [SourceDocument(f"{one['role']} {n}", one["content"]) for n, one in enumerate(messages, 1)]
    return _prompt(rendered, documents, extents, parts, typed=True)


def _rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> tuple[str, list[Span]]:
    """Return the text of a chat, and where the content of each message stands in it, perhaps stripped."""

    def render(given: Sequence[Mapping[str, str]]) -> str:
        text: str = tokenizer.apply_chat_template(list(given), tokenize=False, add_generation_prompt=True)
        return text

    text = render(messages)
    marks = [f"\ue000{n}\ue001" for n in range(len(messages))]
    frame = render([{**one, "content": mark} for one, mark in zip(messages, marks, strict=True)])
    given = [one["content"] for one in messages]
    stripped = [one.strip() for one in given]  # as many templates do
    found = _found_in_frame(text, given, frame, marks) or _found_in_frame(text, stripped, frame, marks)
    found = found or _found_by_search(text, stripped)
    if found is None:
        raise InputError(
            "the chat template changes the messages, so their parts have no certain place: render it yourself and give "
            "it as `prompt`"
        )
    return text, found


def _found_in_frame(text: str, contents: Sequence[str], frame: str, marks: Sequence[str]) -> list[Span] | None:
    """Return where contents stand in a text that is the frame with these in the places of the marks, else None.

    They are not searched for: the template's own words may be those of a message, such as "help" in a system prompt.
    """
    spans, at, rest = [], 0, frame
    for content, mark in zip(contents, marks, strict=True):
        before, found, rest = rest.partition(mark)
        if not found or not text.startswith(before + content, at):
            return None
        at += len(before)
        spans.append((at, at + len(content)))
        at += len(content)
    return spans if text[at:] == rest else None


def _found_by_search(text: str, contents: Sequence[str]) -> list[Span] | None:
    """Return where contents stand in a text that has each of them once and in this order, else None."""
    starts = [text.find(one) for one in contents]
    once = all(text.find(one, start + 1) < 0 <= start for one, start in zip(contents, starts, strict=True))
    spans = [(start, start + len(one)) for one, start in zip(contents, starts, strict=True)]
    return spans if once and starts == sorted(starts) else None


def _prompt(
    text: str, documents: Sequence[SourceDocument], extents: Sequence[Span], parts: Parts, *, typed: bool
) -> Prompt:
    found = tuple(
        SourcePart(f"{number + 1}.{at}", number, start, end)
        for number, one in enumerate(documents)
        for at, (start, end) in enumerate(find_parts(one.text, parts, one.name), 1)
    )
    return Prompt(text, tuple(documents), tuple(extents), found, typed)


def encode(tokenizer: Any, text: str, *, typed: bool) -> tuple[list[int], list[Span]]:
    """Return the ids of a text, and the characters that each covers.

    Raises:
        InputError: The tokenizer does not return offsets, and changes the text so that they are not known.
    """
    return characters_of(tokenizer, text, special=not typed)


def without_end(ids: Sequence[int], spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Return ids and spans without special tokens that the tokenizer adds at the end."""
    last = max(at for at, (start, end) in enumerate(spans) if end > start)
    return list(zip(ids, spans, strict=True))[: last + 1]


def space_before(text: str, answer: str, *, typed: bool) -> str:
    """Return the space between a prompt and its answer.

    There is none after white space, in a chat, beside Chinese, after an opening bracket or quote, a hyphen or a slash,
    and before a mark that closes or ends something.
    """
    joins = typed or text[-1:].isspace() or is_cjk(text[-1]) or is_cjk(answer[0])
    opened = text[-1] in _OPENING or (text[-1] in _QUOTES and text.count(text[-1]) % 2 == 1)
    return "" if joins or opened or answer[0] in _CLOSING else " "


def joined(tokenizer: Any, text: str, answer: str, *, typed: bool) -> tuple[list[int], list[Span], int]:
    """Return the ids of a prompt with an answer, the characters of each, and the number of the answer's first token."""
    before = text + space_before(text, answer, typed=typed)
    both = without_end(*encode(tokenizer, before + answer, typed=typed))
    first = next(at for at, (_, (_, end)) in enumerate(both) if end > len(before))
    return [one for one, _ in both], [one for _, one in both], first


def token_ranges(text: str, spans: Sequence[Span], places: Sequence[Span]) -> list[Span]:
    """Return the tokens [first, last) of each place: those whose first character other than white space is in it.

    >>> token_ranges("a b. c", [(0, 1), (1, 3), (3, 4), (4, 6)], [(0, 4), (5, 6)])
    [(0, 3), (3, 4)]
    """
    found, token = [], 0
    blanks = [len(text[start:end]) - len(text[start:end].lstrip()) for start, end in spans]
    firsts = [
        start + blank if start + blank < end else start for (start, end), blank in zip(spans, blanks, strict=True)
    ]
    for start, end in places:
        while token < len(spans) and (firsts[token] < start or spans[token][0] == spans[token][1]):
            token += 1
        first = token
        while token < len(spans) and firsts[token] < end:
            token += 1
        found.append((first, token))
    return found


def read_tokens(tokenizer: Any, ids: Sequence[int], ranges: Sequence[Span]) -> list[list[int]]:
    """Return the tokens of each range whose weights count: all but the first of the text and special ones.

    Heads rest on these when they find nothing (Xiao et al. 2024, arXiv:2309.17453), which shows nothing of a part.
    """
    resting = adapt(tokenizer).special
    return [[at for at in range(max(start, 1), end) if ids[at] not in resting] for start, end in ranges]
