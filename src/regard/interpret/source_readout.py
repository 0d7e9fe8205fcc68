"""The heads that show where an answer came from: a readout that predicts what the answer loses without documents.

It is the score of AT2 (Cohen-Wang et al. 2025, arXiv:2504.13752), fitted on a few examples: coefficients of heads that
are not negative, by a ridge regression, which leaves most heads of a model at 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.heads.answer_sources import mean_by_reading
from regard.heads.head_set import HeadSet, ReadoutScore
from regard.hub import Loaded
from regard.interpret.answer_log_probs import log_probs_of
from regard.interpret.head_measures import masses_of
from regard.interpret.source_examples import SourceExample
from regard.interpret.source_prompt import joined

__all__ = ["ABLATIONS", "find_source_heads", "nonnegative_ridge"]

ABLATIONS = 8  # prompts of each example that keep each document with probability 1/2
_RIDGE = 1.0  # times the mean square of what the regression is of
_LEAST = 0.01  # of the sum of all weights: heads below are left out
_SHUFFLES = 20
_SWEEPS, _ENOUGH = 10_000, 1e-9  # of the coordinate descent
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Ablated:
    """One example: each head's mass on each document (documents, heads), which documents were kept (ablations,
    documents), and the log-probability of the answer in each ablation.
    """

    features: Floats
    kept: npt.NDArray[np.bool_]
    log_probs: Floats
    source: int | None
    masses: Floats  # the mass in each row, (rows, documents, heads)
    absent: Floats | None  # the same of its counterpart without the answer


def find_source_heads(
    loaded: Loaded,
    examples: Sequence[SourceExample],
    *,
    num_heads: int | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return the fields of a `HeadSet`: heads and weights fitted on the first half of the examples, and how good they
    are on the second.

    Raises:
        InputError: There are fewer than 10 examples or more than 1,000.
        ObservationError: No head's weights predict what the answers lose.
    """
    if not 10 <= len(examples) <= 1000:
        raise InputError(f"`examples` must be from 10 to 1,000, got {len(examples)}: 10 to 50 are usual")
    heads: list[tuple[int, int]] = []
    found = []
    for number, one in enumerate(examples):
        say(f"{loaded.name} answers question {number + 1} of {len(examples)}, with and without documents")
        heads, made = _ablated(loaded, one, np.random.default_rng([seed, number]))
        found.append(made)
    half = len(found) // 2
    weights = _fitted(found[:half], num_heads)
    if not weights.any():
        raise ObservationError(
            f"no head of {loaded.name} reads documents: their weights do not predict what its answers lose without them"
        )
    order = [at for at in np.argsort(-weights, kind="stable").tolist() if weights[at] > 0]
    margins = [_margins(one) for one in found[:half] if one.source is not None]
    head_scores = np.mean(margins, axis=0)[order].tolist() if margins else ()
    chosen = HeadSet(tuple(heads[at] for at in order), tuple(weights[order].tolist()), head_scores=tuple(head_scores))
    strengths = np.zeros_like(weights)
    strengths[order] = chosen.strength_weights
    threshold, error_rate = _calibrated(found, strengths)
    return {
        "heads": chosen.heads,
        "weights": chosen.weights,
        "head_scores": chosen.head_scores,
        "correlation": float(np.mean([_correlation(one, weights) for one in found[half:]])),
        **_accuracies(found, half, weights, num_heads, np.random.default_rng(seed)),
        "threshold": threshold,
        "error_rate": error_rate,
    }


def nonnegative_ridge(x: Floats, y: Floats, ridge: float) -> Floats:
    """Return the w ≥ 0 with the smallest |x w − y|² + ridge · |w|², by coordinate descent.

    Args:
        x: (rows, columns).
        y: (rows,).
        ridge: Above 0, so that there is one solution.

    >>> nonnegative_ridge(np.eye(3), np.array([3.0, -1.0, 1.0]), 0.5).tolist()
    [2.0, 0.0, 0.6666666666666666]
    """
    gram = x.T @ x + ridge * np.eye(x.shape[1])
    right, diagonal = x.T @ y, np.diagonal(gram).copy()
    found = np.zeros(x.shape[1])
    left = right.copy()  # right − gram @ found
    for _ in range(_SWEEPS):
        most = 0.0
        for at in range(len(found)):
            step = max(left[at] / diagonal[at], -found[at])
            if step:
                found[at] += step
                left -= step * gram[at]
                most = max(most, abs(step))
        if most <= _ENOUGH * found.max():
            break
    return found


def _ablated(loaded: Loaded, one: SourceExample, draw: np.random.Generator) -> tuple[list[tuple[int, int]], _Ablated]:
    """Return the heads of the model, and what an example shows of them."""
    heads, masses = masses_of(loaded, one.call)
    kept = draw.random((ABLATIONS, len(one.prompt.parts))) < 0.5
    log_probs = []
    for row in kept.tolist():
        text = one.prompt.without(*(part for part, stays in zip(one.prompt.parts, row, strict=True) if not stays))
        ids, _, first = joined(loaded.tokenizer, text, one.answer, typed=one.prompt.typed)
        log_probs.append(float(log_probs_of(loaded.model, ids, first).sum()))
    absent = None if one.absent is None else masses_of(loaded, one.absent)[1]
    return heads, _Ablated(masses.mean(0), kept, np.array(log_probs), one.source, masses, absent)


def _fitted(examples: Sequence[_Ablated], num_heads: int | None) -> Floats:
    """Return a weight for each head, which sum to 1; all 0 if no head predicts anything.

    An example's log-probabilities are divided by their standard deviation, so that each example counts the same.
    """
    x, y = [], []
    for one in examples:
        spread = one.log_probs.std()
        if spread > 0:
            masses = one.kept.astype(float) @ one.features
            size = spread * np.sqrt(len(one.kept))
            x.append((masses - masses.mean(0)) / size)
            y.append((one.log_probs - one.log_probs.mean()) / size)
    if not x:
        return np.zeros(examples[0].features.shape[1])
    rows, right = np.concatenate(x), np.concatenate(y)
    ridge = _RIDGE * float((rows**2).mean()) * len(rows)
    weights = nonnegative_ridge(rows, right, ridge) if ridge > 0 else np.zeros(rows.shape[1])
    if not weights.any():
        return weights
    few = np.flatnonzero(weights >= _LEAST * weights.sum())
    if num_heads is not None:
        few = np.argsort(-weights, kind="stable")[:num_heads]
    found = np.zeros_like(weights)
    found[few] = nonnegative_ridge(rows[:, few], right, ridge)
    return np.asarray(found / found.sum())


def _correlation(one: _Ablated, weights: Floats) -> float:
    """Return the correlation of an example's log-probabilities with the scores of the documents that are kept."""
    scores, real = one.kept @ mean_by_reading(one.masses @ weights), one.log_probs
    spread = scores.std() * real.std()
    return float(((scores - scores.mean()) * (real - real.mean())).mean() / spread) if spread > 0 else 0.0


def _margins(one: _Ablated) -> Floats:
    """Return each head's mass on the document with the answer minus its largest mass on another, (heads,)."""
    assert one.source is not None
    return np.asarray(one.features[one.source] - np.delete(one.features, one.source, 0).max(0))


def _accuracies(
    found: Sequence[_Ablated], half: int, weights: Floats, num_heads: int | None, draw: np.random.Generator
) -> dict[str, Any]:
    """Return how often the document with the answer has the largest score, and the same where the documents have
    changed places, in the ablations and in the labels, before the readout was fitted; nothing without labels.
    """
    tested = [one for one in found[half:] if one.source is not None]
    if not tested:
        return {}

    def right(examples: Sequence[_Ablated], readout: Floats) -> int:
        return sum(int(mean_by_reading(one.masses @ readout).argmax()) == one.source for one in examples)

    shuffled = []
    for _ in range(_SHUFFLES):
        readout = _fitted([_mixed(one, draw) for one in found[:half]], num_heads)
        shuffled.append(right([_mixed(one, draw) for one in tested], readout) if readout.any() else 0)
    return {
        "held_out": ReadoutScore.of(right(tested, weights), len(tested)),
        "shuffled_labels": ReadoutScore.of(float(np.mean(shuffled)), len(tested)),
        "chance": float(np.mean([1 / len(one.features) for one in tested])),
    }


def _mixed(one: _Ablated, draw: np.random.Generator) -> _Ablated:
    """Return an example whose documents are taken for others."""
    order = draw.permutation(len(one.features))
    source = None if one.source is None else int(np.flatnonzero(order == one.source)[0])
    return _Ablated(one.features, one.kept[:, order], one.log_probs, source, one.masses, None)


def _strength(masses: Floats, weights: Floats) -> float:
    """Return the strength of `Sources`: the mean over rows of the largest weight of a document."""
    return float((masses @ weights).max(1).mean())


def _calibrated(found: Sequence[_Ablated], weights: Floats) -> tuple[float | None, float | None]:
    """Return the threshold of the strength that best tells examples from those without the answer, on the first half of
    the pairs, and its error rate on the second; None without such pairs.
    """
    pairs = [
        (_strength(one.masses, weights), _strength(one.absent, weights)) for one in found if one.absent is not None
    ]
    if len(pairs) < len(found):
        return None, None
    there, gone = np.array(pairs).T
    half = len(pairs) // 2
    ends = np.sort(np.concatenate([there[:half], gone[:half]]))
    middles = (ends[1:] + ends[:-1]) / 2
    errors = np.array([(there[:half] < one).mean() + (gone[:half] >= one).mean() for one in middles])
    best = np.flatnonzero(errors == errors.min())
    threshold = float(middles[best[len(best) // 2]])
    return threshold, float(((there[half:] < threshold).mean() + (gone[half:] >= threshold).mean()) / 2)
