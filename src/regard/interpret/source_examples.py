"""Examples of the job `sources`: documents with facts about people, a question, and an answer that one document has."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import InputError
from regard.hub import Loaded
from regard.interpret.head_examples import HeadExample, Keys, call_of, json_lines
from regard.interpret.source_prompt import Prompt, encode, joined, prompt_of, read_tokens, token_ranges

__all__ = ["DocumentQuestion", "SourceExample", "draw_question", "make_source_examples", "read_source_examples"]

_DOCUMENTS = 8
_PEOPLE = "Anna Boris Clara David Elena Frank Greta Henry Irene James Karen Louis Maria Oscar Paula Robert".split()
# A fact, a question, answers, and what V may be.
_FACTS = (
    ("N lives in V with two cats.", "Where does N live?", ("N lives in V.", "In V."),
     "Paris London Berlin Madrid Rome Vienna"),
    ("The favourite colour of N is V.", "What is the favourite colour of N?", ("The favourite colour of N is V.", "V."),
     "red blue green yellow purple orange black white"),
    ("N works as a V near the station.", "What does N work as?", ("N works as a V.", "As a V."),
     "baker doctor pilot farmer lawyer painter sailor teacher"),
    ("Every evening N plays the V.", "Which instrument does N play?", ("N plays the V.", "It is the V."),
     "piano violin guitar flute drum cello trumpet harp"),
    ("N bought a V last week.", "What did N buy?", ("N bought a V.", "A V."),
     "table lamp chair mirror carpet bicycle kettle clock"),
    ("The code of N is V.", "What is the code of N?", ("The code of N is V.", "It is V."),
     "1234 1965 2696 3427 4158 5620 7082 8544"),
)  # fmt: skip
_SAME = 4  # documents with the same kind of fact, at most
_MORE = (
    "It rained for most of the day.",
    "Nobody was surprised.",
    "The neighbours talked about it.",
    "This was in the newspaper.",
    "It took a long time.",
)


@dataclass(frozen=True)
class DocumentQuestion:
    """Documents, a question, an answer, and which document has it, counted from 0; None if none has."""

    documents: tuple[str, ...]
    question: str
    answer: str
    source: int | None


def draw_question(draw: np.random.Generator, documents: int = _DOCUMENTS) -> tuple[DocumentQuestion, DocumentQuestion]:
    """Return a question with its documents, and the same with another sentence in place of the fact asked for."""
    people = draw.permutation(_PEOPLE)[:documents].tolist()
    kinds = draw.permutation(np.repeat(np.arange(len(_FACTS)), _SAME))[:documents].tolist()
    facts = [_FACTS[kind] for kind in kinds]
    free = [draw.permutation(fact[3].split()).tolist() for fact in _FACTS]
    values = [free[kind].pop() for kind in kinds]  # no document has another's value, so that one alone has the answer
    source = int(draw.integers(documents))
    texts, without = [], ""
    for at, (person, fact, value) in enumerate(zip(people, facts, values, strict=True)):
        said = [_filled(fact[0], person, value)]
        instead = [str(draw.choice(_MORE))]
        if draw.random() < 0.7:
            more = str(draw.choice([one for one in _MORE if one != instead[0]]))
            first = bool(draw.random() < 0.5)
            said, instead = ([more, *said], [more, *instead]) if first else ([*said, more], [*instead, more])
        texts.append(" ".join(said))
        without = " ".join(instead) if at == source else without
    _, question, answers, _ = facts[source]
    wording = answers[int(draw.integers(len(answers)))]
    question, answer = (_filled(one, people[source], values[source]) for one in (question, wording))
    missing = tuple(without if at == source else text for at, text in enumerate(texts))
    asked = DocumentQuestion(tuple(texts), question, answer, source)
    return asked, DocumentQuestion(missing, question, answer, None)


def _filled(text: str, person: str, value: str) -> str:
    return " ".join(
        {"N": person, "V": value, "V.": f"{value}.", "N?": f"{person}?"}.get(one, one) for one in text.split()
    )


@dataclass(frozen=True, eq=False)
class SourceExample:
    """The prompt of a question, its answer, and the call of both, where each document is a candidate.

    `source` is the document that has the answer, if it is known; `absent` is the same call without the answer in it.
    """

    prompt: Prompt
    answer: str
    call: HeadExample
    source: int | None
    absent: HeadExample | None = None


def source_example(loaded: Loaded, asked: DocumentQuestion) -> SourceExample:
    """Return a question as `regard.sources` asks it.

    Raises:
        InputError: A text is empty, or the tokenizer does not return offsets.
    """
    prompt = prompt_of(
        loaded.tokenizer, prompt=None, documents=asked.documents, question=asked.question, messages=None,
        parts="document",
    )  # fmt: skip
    own, before = encode(loaded.tokenizer, prompt.text, typed=prompt.typed)
    ranges = token_ranges(prompt.text, before, prompt.places)
    keys: list[Keys] = [tuple(one) for one in read_tokens(loaded.tokenizer, own, ranges)]
    ids, _, first = joined(loaded.tokenizer, prompt.text, asked.answer.strip(), typed=prompt.typed)
    rows = tuple(range(first - 1, len(ids) - 1))
    label = asked.source or 0
    candidates = tuple((one,) * len(rows) for one in keys)
    call = HeadExample(call_of(ids), rows, candidates[label], candidates, label)
    return SourceExample(prompt, asked.answer.strip(), call, asked.source)


def make_source_examples(loaded: Loaded, count: int, *, seed: int) -> list[SourceExample]:
    """Make examples, each with the one in which no document has the answer; the same seed makes the same."""
    draw, made = np.random.default_rng(seed), []
    for _ in range(count):
        asked, absent = draw_question(draw)
        made.append(replace(source_example(loaded, asked), absent=source_example(loaded, absent).call))
    return made


def read_source_examples(path: str | os.PathLike[str], loaded: Loaded) -> list[SourceExample]:
    """Read examples from a file of JSON Lines: `documents`, `question`, `answer`, and, where it is known, `source`, the
    number of the document that has the answer, from 1.

    Raises:
        InputError: The file is missing, too large or not such; the line is named.
    """
    made = []
    for number, found in json_lines(Path(path)):
        try:
            made.append(source_example(loaded, _question_of(found)))
        except InputError as problem:
            raise InputError(f"line {number} of {path} is no example of sources: {problem}") from problem
    return made


def _question_of(found: Mapping[str, Any]) -> DocumentQuestion:
    documents, number = found.get("documents"), found.get("source")
    if not isinstance(documents, list) or len(documents) < 2 or not all(isinstance(one, str) for one in documents):
        raise InputError(f"it needs `documents`, a list of at least 2 texts, got {str(documents)[:40]!r}")
    if number is not None and (type(number) is not int or not 1 <= number <= len(documents)):
        raise InputError(f"`source` must be the number of a document from 1, got {str(number)[:40]!r}")
    for name in ("question", "answer"):
        if not isinstance(found.get(name), str) or not found[name].strip():
            raise InputError(f"it needs `{name}`, a text, got {str(found.get(name))[:40]!r}")
    return DocumentQuestion(tuple(documents), found["question"], found["answer"], number and number - 1)
