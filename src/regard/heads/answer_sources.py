"""Where an answer came from: scores of the parts of a prompt, what happened without them, and a JSON file of both."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.files import printable
from regard.heads.head_set import HeadSet
from regard.heads.json_file import json_number, json_text, json_whole, read_json_file, write_json_file

__all__ = ["Removal", "SourceDocument", "SourcePart", "Sources", "mean_by_reading"]

_FORMAT, _VERSION = "regard sources", 1
_LARGEST = 2**28  # bytes of a file
_MOST = 2**26  # scores, which are parts · tokens of the answer
Scores = npt.NDArray[np.float64]


def mean_by_reading(token_scores: Scores) -> Scores:
    """Return the mean over tokens of the scores of parts, (parts,), where a token counts by the sum of its scores.

    The scores of a token that reads little show what its heads do when they find nothing.

    >>> mean_by_reading(np.array([[0.25, 0.5], [0.25, 0.0]])).tolist()
    [0.25, 0.375]
    """
    reads = np.maximum(token_scores.sum(1), 0)
    return np.asarray(reads @ token_scores / reads.sum() if reads.any() else token_scores.mean(0))


@dataclass(frozen=True)
class SourceDocument:
    """A text of the prompt, by its name."""

    name: str
    text: str


@dataclass(frozen=True)
class SourcePart:
    """The characters [start, end) of a document, whose number counts from 0.

    `id` is "DOCUMENT.PART", both counted from 1. It depends only on the documents and the kind of parts.
    """

    id: str
    document: int
    start: int
    end: int


@dataclass(frozen=True)
class Removal:
    """What the answer lost without a part, in nats of its log-probability, and without another part for comparison.

    Args:
        part: The id of the part.
        drop: log p(answer | prompt) − log p(answer | prompt without the part), where the shorter prompt is tokenized
            again.
        hidden: The same drop where the part stays and its keys are hidden by a mask, so no position changes.
        control: The id of the other part, drawn at random among those that are about as long; None if there is none.
        control_drop: The drop without it.
    """

    part: str
    drop: float
    hidden: float
    control: str | None
    control_drop: float | None


@dataclass(frozen=True, eq=False)
class Sources:
    """The scores of all parts of a prompt for an answer.

    `token_scores[t, p]` is Σ_h w_h · Σ_{j in p} weight_h(i, j), where i is the position that predicts token t of the
    answer, j the tokens of a part except the first of the prompt and special ones, h are `heads.heads` and w their
    `heads.weights`. The score of a part for the answer, or for a sentence of
    it, is the mean over its tokens; the score of a document is the sum over its parts. By a readout of the job
    "sources" a token counts in this mean by what it reads, Σ_p token_scores[t, p]; by any other, as AT2's, all tokens
    count alike.

    Args:
        model: The model's name.
        documents: The texts of the prompt that have parts.
        parts: Their parts, in the order of the prompt.
        answer: The answer.
        token_spans: The characters [start, end) of the answer that each token covers.
        sentence_spans: Its sentences.
        log_probs: The log-probability of each token of the answer, (tokens,).
        token_scores: (tokens, parts).
        heads: The heads and their readout.
        removals: What was verified.
        threshold: The strength below which an answer counts as from nowhere in the parts, if it was calibrated.
        error_rate: The error rate that this threshold had on pairs that did not choose it.
        strength: The mean over the answer's tokens of the largest sum over the heads of a part's weights, times the
            heads' `strength_weights`; by default the mean of the largest of `token_scores`.
    """

    model: str
    documents: tuple[SourceDocument, ...]
    parts: tuple[SourcePart, ...]
    answer: str
    token_spans: tuple[tuple[int, int], ...]
    sentence_spans: tuple[tuple[int, int], ...]
    log_probs: Scores
    token_scores: Scores
    heads: HeadSet
    removals: tuple[Removal, ...] = ()
    threshold: float | None = None
    error_rate: float | None = None
    strength: float | None = None

    def __post_init__(self) -> None:
        """Check that all of it belongs together."""
        _check(self)
        if self.strength is None:
            object.__setattr__(self, "strength", float(self.token_scores.max(1).mean()))

    @property
    def scores(self) -> Scores:
        """The score of each part for the whole answer, (parts,)."""
        return self._mean(self.token_scores)

    @property
    def document_scores(self) -> Scores:
        """The score of each document for the whole answer, (documents,)."""
        found = np.zeros(len(self.documents))
        np.add.at(found, [one.document for one in self.parts], self.scores)
        return found

    @property
    def sentence_scores(self) -> Scores:
        """The score of each part for each sentence of the answer, (sentences, parts); 0 for one without tokens."""
        found = np.zeros((len(self.sentence_spans), len(self.parts)))
        for row, (start, end) in enumerate(self.sentence_spans):
            tokens = [at for at, (first, last) in enumerate(self.token_spans) if first < end and last > start]
            if tokens:
                found[row] = self._mean(self.token_scores[tokens])
        return found

    def _mean(self, token_scores: Scores) -> Scores:
        return mean_by_reading(token_scores) if self.heads.job == "sources" else np.asarray(token_scores.mean(0))

    @property
    def from_nowhere(self) -> bool | None:
        """Whether the answer seems to come from nowhere in the parts; None without a calibrated threshold."""
        return None if self.threshold is None or self.strength is None else self.strength < self.threshold

    def text(self, part: SourcePart) -> str:
        """Return the text of a part."""
        return self.documents[part.document].text[part.start : part.end]

    def ranked(self) -> list[tuple[SourcePart, float]]:
        """Return all parts with their scores for the answer, the largest first."""
        scores = self.scores
        order = np.argsort(-scores, kind="stable")
        return [(self.parts[at], float(scores[at])) for at in order.tolist()]

    def part(self, id: str) -> SourcePart:  # noqa: A002
        """Return the part with this id.

        Raises:
            InputError: There is none.
        """
        for one in self.parts:
            if one.id == id:
                return one
        raise InputError(f"`id` must be that of a part, {self.parts[0].id} to {self.parts[-1].id}, got {id!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return everything as the object that `save` writes, without its checksum."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "model": self.model,
            "answer": self.answer,
            "from_nowhere": self.from_nowhere,
            "strength": self.strength,
            "threshold": self.threshold,
            "error_rate": self.error_rate,
            "documents": [asdict(one) for one in self.documents],
            "parts": [
                {**asdict(one), "score": score} for one, score in zip(self.parts, self.scores.tolist(), strict=True)
            ],
            "sentences": [list(span) for span in self.sentence_spans],
            "tokens": [list(span) for span in self.token_spans],
            "log_probs": self.log_probs.tolist(),
            "token_scores": self.token_scores.tolist(),
            "removals": [asdict(one) for one in self.removals],
            "heads": asdict(self.heads),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save everything as one JSON file, whole or not at all.

        Raises:
            InputError: It cannot be written.
        """
        write_json_file(Path(path), self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Sources":
        """Return what `save` has saved.

        Raises:
            InputError: There is no such file, it is not of this format and version, or it is damaged.
        """
        try:
            return _of(read_json_file(Path(path), _FORMAT, _VERSION, largest=_LARGEST, saved_by="Sources.save"))
        except InputError as problem:
            raise InputError(f"cannot read the sources {printable(path)}: {problem}") from None


def _check(found: Sources) -> None:
    tokens, parts = len(found.token_spans), len(found.parts)
    if found.token_scores.shape != (tokens, parts) or found.log_probs.shape != (tokens,) or not tokens * parts:
        raise InputError(
            f"`token_scores` and `log_probs` must have {tokens} tokens and {parts} parts, at least one of each, got "
            f"{found.token_scores.shape} and {found.log_probs.shape}"
        )
    if not (np.isfinite(found.token_scores).all() and np.isfinite(found.log_probs).all()):
        raise InputError("`token_scores` and `log_probs` must be finite numbers")
    _check_parts(found)
    for start, end in (*found.token_spans, *found.sentence_spans):
        if not 0 <= start <= end <= len(found.answer):
            raise InputError(f"spans must be characters of the answer, 0 to {len(found.answer)}, got {(start, end)}")
    known = {one.id for one in found.parts}
    for removal in found.removals:
        if {removal.part, removal.control} - known - {None}:
            raise InputError(f"`removals` must be of parts, got {removal}")


def _check_parts(found: Sources) -> None:
    for one in found.parts:
        if not (0 <= one.document < len(found.documents) and 0 <= one.start < one.end):
            raise InputError(f"the part {one.id} must be characters of a document, got {one}")
        if one.end > len(found.documents[one.document].text):
            raise InputError(f"the part {one.id} must end within its document, got {one}")
    if len({one.id for one in found.parts}) != len(found.parts):
        raise InputError("the ids of `parts` must differ")


def _of(found: Mapping[str, Any]) -> Sources:
    try:
        return Sources(
            model=json_text(found["model"]),
            documents=tuple(
                SourceDocument(json_text(one["name"]), json_text(one["text"])) for one in found["documents"]
            ),
            parts=tuple(
                SourcePart(json_text(one["id"]), *(json_whole(one[name]) for name in ("document", "start", "end")))
                for one in found["parts"]
            ),
            answer=json_text(found["answer"]),
            token_spans=_spans(found["tokens"]),
            sentence_spans=_spans(found["sentences"]),
            log_probs=_array(found["log_probs"], 1),
            token_scores=_array(found["token_scores"], 2),
            heads=HeadSet.from_dict(found["heads"]),
            removals=tuple(_removal(one) for one in found["removals"]),
            threshold=json_number(found["threshold"]),
            error_rate=json_number(found["error_rate"]),
            strength=json_number(found["strength"]),
        )
    except KeyError as missing:
        raise InputError(f"it lacks {missing}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise InputError(f"it is damaged ({' '.join(str(problem).split())[:100]})") from None


def _removal(one: Mapping[str, Any]) -> Removal:
    numbers = [json_number(one[name]) for name in ("drop", "hidden", "control_drop")]
    control = None if one["control"] is None else json_text(one["control"])
    if None in numbers[:2]:
        raise InputError(f"`removals` must have numbers, got {one}")
    return Removal(json_text(one["part"]), numbers[0] or 0.0, numbers[1] or 0.0, control, numbers[2])


def _spans(found: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(found, list) or not all(isinstance(one, list) and len(one) == 2 for one in found):
        raise InputError("its spans must be pairs [start, end]")
    return tuple((json_whole(start), json_whole(end)) for start, end in found)


def _array(found: Any, dimensions: int) -> Scores:
    rows: Sequence[Any] = found if dimensions == 2 else [found]
    if not isinstance(found, list) or not all(isinstance(row, list) for row in rows):
        raise InputError("its scores must be lists of numbers")
    if sum(map(len, rows)) > _MOST or any(type(one) not in (int, float) for row in rows for one in row):
        raise InputError(f"its scores must be at most {_MOST:,} numbers")
    array = np.array(found, dtype=np.float64)
    if array.ndim != dimensions:
        raise InputError("its scores must have a row for each token, all of one length")
    return array
