"""Examples of the jobs of heads: a call of the model, the rows that count, and candidates of which one is right.

The program makes them from a seed, or a file of JSON Lines brings them (see `read_examples`). In an example of
`retrieval` a document among several holds what the model is to copy; in one of `alignment` a word of the target has
one source word; in the others a row has one right key or range of keys.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import InputError
from regard.files import printable, read_text
from regard.heads.jobs import LOCAL_WINDOW
from regard.hub import Loaded
from regard.interpret.head_scores import Probe, plain_tokens, repeated_tokens, tokens_around
from regard.interpret.look import prepare
from regard.interpret.model_loading import positions
from regard.record.places import find_places
from regard.record.tokenizer_adapter import adapt
from regard.record.tokens import words_of
from regard.record.tokens_from_tokenizer import unknown_share
from regard.strict_json import parse_json

__all__ = ["CANDIDATES", "HeadExample", "Keys", "call_of", "json_lines", "make_examples", "read_examples"]

Keys = tuple[int, ...]
CANDIDATES = 8
_DOCUMENTS, _CODE, _AWAY = 8, 4, 64  # documents, tokens to be copied, tokens between them and the question
_LARGEST = 2**24  # bytes of a file
_PEOPLE = "Anna Boris Clara David Elena Frank Greta Henry Irene James Karen Louis".split()
_VERBS = "found sold painted lost watched carried repaired drew washed bought".split()
_THINGS = "a chair,an old boat,the blue door,two letters,a small house,the map,his bicycle,a red coat,the clock".split(
    ","
)
_PLACES = "in the garden,near the river,behind the school,on the hill,at the station,before winter,in May".split(",")


@dataclass(frozen=True, eq=False)
class HeadExample:
    """One example: the arguments of a call, and for each of its `rows` the `right` keys and those of each candidate.

    `candidates[c][r]` are the keys of candidate c in row r, and `label` is the right candidate. `absent` is the same
    example without what makes it right.
    """

    inputs: Mapping[str, Tensor]
    rows: Keys
    right: tuple[Keys, ...]
    candidates: tuple[tuple[Keys, ...], ...]
    label: int
    absent: "HeadExample | None" = None


def make_examples(job: str, loaded: Loaded, count: int, *, seed: int, causal: bool) -> list[HeadExample]:
    """Make examples of a job; the same seed makes the same.

    Raises:
        InputError: The model's vocabulary or positions are too few for the job.
    """
    draw = np.random.default_rng(seed)
    if job == "induction":
        probe = Probe(length=24, sequences=count, seed=seed + 1)  # other tokens than those that `head_scores` uses
        return _of_copies(loaded, probe, draw)
    if job == "retrieval":
        return [_haystack(loaded, draw) for _ in range(count)]
    if job == "alignment":
        return [_numbers(loaded, draw) for _ in range(count)]
    sentences = 10 if job == "local" and not causal else 6  # where both sides are near, windows are longer
    texts = [" ".join(_sentence(draw) for _ in range(sentences)) for _ in range(count)]
    return [_of_row(job, loaded, text, draw, causal=causal) for text in texts]


def read_examples(
    job: str, path: str | os.PathLike[str], loaded: Loaded, *, seed: int, causal: bool
) -> list[HeadExample]:
    """Read examples from a file of JSON Lines, one object a line, with these keys by job:

    - retrieval: `documents` (texts), `question`, and `answer`, which stands in one document and follows the question;
    - alignment: `source`, `target`, and `pairs`, such as "cat>貓, mat>墊子", words of each side;
    - the others: `text`.

    Raises:
        InputError: The file is missing, too large or not such; the line is named.
    """
    draw = np.random.default_rng(seed)
    examples: list[HeadExample] = []
    for number, found in json_lines(Path(path)):
        try:
            examples += _examples_of(job, found, loaded, draw, causal=causal)
        except InputError as problem:
            raise InputError(f"line {number} of {path} is no example of {job}: {problem}") from problem
    return examples


def _examples_of(
    job: str, found: Mapping[str, Any], loaded: Loaded, draw: np.random.Generator, *, causal: bool
) -> list[HeadExample]:
    if job == "retrieval":
        documents, (question, answer) = _texts(found, "documents"), _text(found, "question", "answer")
        return [_of_documents(loaded, documents, question, answer)]
    if job == "alignment":
        source, target, pairs = _text(found, "source", "target", "pairs")
        return _of_pairs(loaded, source, target, _pairs_of(pairs), draw)
    (text,) = _text(found, "text")
    if job == "induction":
        return [_of_copied_text(loaded, text, draw)]
    return [_of_row(job, loaded, text, draw, causal=causal)]


def json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the object of each line of a file that is not blank.

    Raises:
        InputError: The file is missing, too large or not such.
    """
    try:
        lines = read_text(path, "utf-8-sig", largest=_LARGEST).splitlines()
    except InputError as problem:
        raise InputError(f"cannot read `examples` {printable(path)}: {problem}; 50 lines are enough") from None
    except (OSError, ValueError) as problem:
        raise InputError(
            f"`examples` must be a file in UTF-8, cannot read {printable(path)}: "
            f"{getattr(problem, 'strerror', None) or problem}"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found = parse_json(line)
            except (ValueError, RecursionError) as problem:
                raise InputError(f"line {number} of {path} must be a JSON object: {problem}") from None
            if not isinstance(found, dict):
                raise InputError(f"line {number} of {path} must be a JSON object, got {line[:40]!r}")
            yield number, found


def _text(found: Mapping[str, Any], *names: str) -> list[str]:
    if wrong := [one for one in names if not isinstance(found.get(one), str) or not found[one].strip()]:
        raise InputError(
            f"it needs {', '.join(names)} as texts, got {str(found.get(wrong[0]))[:40]!r} for `{wrong[0]}`"
        )
    return [found[one] for one in names]


def _texts(found: Mapping[str, Any], name: str) -> list[str]:
    given = found.get(name)
    if not isinstance(given, list) or len(given) < 2 or not all(isinstance(one, str) and one.strip() for one in given):
        raise InputError(f"it needs `{name}`, a list of at least 2 texts, got {str(given)[:40]!r}")
    return given


def _sentence(draw: np.random.Generator) -> str:
    parts = (draw.choice(one) for one in (_PEOPLE, _VERBS, _THINGS, _PLACES))
    return " ".join(parts) + "."


def call_of(ids: Sequence[int]) -> dict[str, Tensor]:
    """Return the arguments of a call with these ids."""
    given = torch.tensor([list(ids)], device="cpu")
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


def _chosen(
    right: Keys, others: Sequence[Keys], draw: np.random.Generator, row: int, inputs: Mapping[str, Tensor], needs: str
) -> HeadExample:
    """Return an example of one row, with the right keys among some others, in random order."""
    if len(others) < 3:
        raise InputError(f"it is too short: {needs}")
    drawn = draw.permutation(len(others))[: CANDIDATES - 1]
    every = [right, *(others[at] for at in drawn)]
    order = draw.permutation(len(every))
    candidates = tuple((every[at],) for at in order)
    return HeadExample(inputs, (row,), (right,), candidates, order.tolist().index(0))


def _of_row(job: str, loaded: Loaded, text: str, draw: np.random.Generator, *, causal: bool) -> HeadExample:
    """Return an example of a job that follows positions: previous, sink or local."""
    prepared = prepare(text, model=loaded)
    special = [token.special for token in prepared.tokens["text"][0]]
    n, reach = len(special), LOCAL_WINDOW
    rows = [i for i in range(4 * reach, n) if not special[i]] or [i for i in range(n // 2, n) if not special[i]]
    row = int(draw.choice(rows or [n - 1]))
    keys = range(row + 1 if causal else n)
    if job == "local":
        near = tuple(j for j in keys if abs(row - j) < reach)
        outside = [range(at, at + len(near)) for at in range(0, len(keys) - len(near) + 1, len(near))]
        others = [tuple(one) for one in outside if not set(one) & set(near)]
        return _chosen(near, others, draw, row, prepared.inputs, f"it needs some {5 * len(near)} tokens, got {n}")
    right = (row - 1,) if job == "previous" else (0,)
    others = [(j,) for j in keys if (j,) != right]
    return _chosen(right, others, draw, row, prepared.inputs, f"it needs 5 tokens, got {n}")


def _of_copies(loaded: Loaded, probe: Probe, draw: np.random.Generator) -> list[HeadExample]:
    """Return examples of sequences of random tokens that are repeated once."""
    repeated = repeated_tokens(loaded, probe)
    return [_of_copy(ids.tolist(), repeated.second, draw) for ids in repeated.ids]


def _of_copied_text(loaded: Loaded, text: str, draw: np.random.Generator) -> HeadExample:
    before, after = tokens_around(loaded)
    ids = adapt(loaded.tokenizer).tokenize(text).ids
    start = len(before) + len(ids)
    return _of_copy([*before, *ids, *ids, *after], slice(start, start + len(ids)), draw)


def _of_copy(ids: list[int], second: slice, draw: np.random.Generator) -> HeadExample:
    """Return an example of one row of the second copy: the right key is after the same token in the first."""
    length = second.stop - second.start
    if length < 5:
        raise InputError(f"it needs 5 tokens, got {length}")
    row = int(draw.integers(second.start + 1, second.stop - 1))
    right = row - length + 1
    others = [(j,) for j in range(second.start - length, second.start) if j != right]
    return _chosen((right,), others, draw, row, call_of(ids), "it needs 5 tokens")


def _haystack(loaded: Loaded, draw: np.random.Generator) -> HeadExample:
    """Return an example in which several names have a code of random tokens each, and one is asked for far below."""
    tokens, plain = loaded.tokenizer, plain_tokens(loaded)
    needed = _DOCUMENTS * (1 + _CODE)
    if len(plain) < needed:
        raise InputError(
            f"`retrieval` needs {needed} different tokens, and {loaded.name} has {len(plain)}: bring a file"
        )

    def ids(text: str) -> list[int]:
        return list(tokens(text, add_special_tokens=False, verbose=False)["input_ids"])

    drawn = draw.choice(plain, needed, replace=False).reshape(_DOCUMENTS, -1).tolist()
    documents = [[*ids("The code of"), name, *ids(" is"), *code, *ids(".\n")] for name, *code in drawn]
    away: list[int] = []
    while len(away) < _AWAY:
        away += ids(" " + _sentence(draw))
    label = int(draw.integers(_DOCUMENTS))
    name, *code = drawn[label]
    question = [*ids("\nThe code of"), name, *ids(" is")]
    return _asked(loaded, ids("Remember these codes.\n"), documents, away + question, code, label)


def _of_documents(loaded: Loaded, documents: list[str], question: str, answer: str) -> HeadExample:
    """Return an example of documents that a file brings."""
    holding = [at for at, text in enumerate(documents) if answer in text]
    if len(holding) != 1:
        raise InputError(f"its `answer` must stand in one of the `documents`, {answer[:40]!r} stands in {len(holding)}")

    def ids(text: str) -> list[int]:
        return adapt(loaded.tokenizer).tokenize(text).ids

    spaced = next(
        (one for one in (ids(" " + answer), ids(answer)) if _find(ids(documents[holding[0]]), one) is not None), None
    )
    if spaced is None:
        raise InputError(
            f"the tokens of its `answer` {answer[:40]!r} must be those in the document: choose whole words"
        )
    return _asked(loaded, ids("\n"), [ids(one + "\n") for one in documents], ids("\n" + question), spaced, holding[0])


def _asked(
    loaded: Loaded, start: list[int], documents: list[list[int]], question: list[int], code: list[int], label: int
) -> HeadExample:
    """Return the example whose rows predict the tokens of a code from the document that has it."""
    before, _ = tokens_around(loaded)
    ids, spans = [*before, *start], list[range]()
    for one in documents:
        spans.append(range(len(ids), len(ids) + len(one)))
        ids += one
    ids += question
    rows = tuple(range(len(ids) - 1, len(ids) - 1 + len(code)))
    ids += code[:-1]
    limit = positions(loaded)
    if limit is not None and len(ids) > limit:
        raise InputError(f"it takes {len(ids)} positions, and {loaded.name} has {limit}: bring shorter documents")
    at = _find(documents[label], code)
    assert at is not None
    first = spans[label].start + at
    right = tuple((first + step,) for step in range(len(code)))
    candidates = tuple((tuple(span),) * len(code) for span in spans)
    return HeadExample(call_of(ids), rows, right, candidates, label)


def _find(ids: list[int], part: list[int]) -> int | None:
    """Return where a part begins in a list, or None."""
    return next((at for at in range(len(ids) - len(part) + 1) if ids[at : at + len(part)] == part), None)


def _numbers(loaded: Loaded, draw: np.random.Generator) -> HeadExample:
    """Return an example of a sentence of numbers, which every language writes alike."""
    words = [str(one) for one in draw.choice(np.arange(10, 100), CANDIDATES, replace=False)]
    chosen = words[int(draw.integers(len(words)))]
    text = " ".join(words)
    for tokenizer in (loaded.tokenizer, loaded.target_tokenizer or loaded.tokenizer):
        if unknown_share(tokenizer, text) > 0:
            raise InputError(
                f"{loaded.name} does not know numbers, of which the program makes its examples of alignment: bring "
                "sentences with `examples` (--examples)"
            )
    return _of_pairs(loaded, text, text, [(chosen, chosen)], draw)[0]


def _pairs_of(text: str) -> list[tuple[str, str]]:
    """Return the words of "cat>貓, mat>墊子"; names may be the same on both sides."""
    found = [tuple(word.strip() for word in part.split(">")) for part in text.split(",") if part.strip()]
    if not found or not all(len(one) == 2 and all(one) for one in found):
        raise InputError(f'`pairs` must be words with > between them, such as "cat>貓, mat>墊子", got {text[:40]!r}')
    return [(one[0], one[1]) for one in found]


def _of_pairs(
    loaded: Loaded, source: str, target: str, pairs: Sequence[tuple[str, str]], draw: np.random.Generator
) -> list[HeadExample]:
    """Return an example for each pair of words: the row that predicts the target's word, and its source word."""
    prepared = prepare(source, model=loaded, target=target)
    read, written = (prepared.tokens[name][0] for name in ("source", "target"))
    sources = words_of(read)
    found = []
    for from_word, to_word in pairs:
        right, rows = find_places(read, from_word), find_places(written, to_word)
        if len(right) != 1 or len(rows) != 1:
            raise InputError(f"each word of `pairs` must stand once in its sentence, got {from_word!r} and {to_word!r}")
        others = [word.pieces for word in sources if not word.special and word.pieces != right[0].positions]
        # A token is predicted in the row before it; tokens of the decoder begin with its start token.
        row = rows[0].first - 1
        if row < 0:
            raise InputError(f"{to_word!r} is the start of the target, which nothing predicts")
        found.append(_chosen(right[0].positions, others, draw, row, prepared.inputs, "its source needs 4 words"))
    return found
