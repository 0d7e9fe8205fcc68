"""Attention and explanation: how far a trained classifier's predictions move if its weights are permuted."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from regard_lab.charts import LabeledMatrix, Line, Lines, Matrices
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.measuring import one_thread
from regard_lab.sentence_classifier import (
    Classifier,
    Encoder,
    Permuted,
    Sentences,
    accuracy,
    numbered,
    permuted,
    sentences,
    trained,
)

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=12,
    name="explanation",
    title="Attention and explanation",
    statement="The words that a classifier attends to do not explain its prediction: with the weights permuted, the "
    "prediction of most sentences moves by less than .1. It moves further where no recurrence mixes the words; and "
    "where equal weights would do as well, attention was not needed, and its weights could not have explained "
    "anything.",
    source="Jain & Wallace 2019, arXiv:1902.10186; Wiegreffe & Pinter 2019, arXiv:1908.04626",
)
STILL = 0.1  # change below which a prediction counts as unchanged: total variation, here |p − p'|
MOST = 0.5  # share of sentences above which the claim holds
FURTHER = 0.1  # minimum difference of that share for the model of words without recurrence
EQUAL = 0.02  # difference of accuracy that counts as equal
LEARNED = 0.75  # accuracy above which a classifier counts as trained; chance is about a half
MIXED, ALONE, UNIFORM = "recurrence and attention", "words and attention", "recurrence, equal weights"
MODELS: dict[str, tuple[Encoder, bool]] = {MIXED: ("gru", False), ALONE: ("none", False), UNIFORM: ("gru", True)}
PERMUTATIONS, HELD_OUT, EPOCHS = 100, 300, 8
RUNS = {True: 2, False: 10}
SHORT = 9  # maximum number of words of the sentence shown
SHARE, MEDIAN = f"share of sentences that move by less than {STILL}", "median move"
TURNED, LARGEST = "share of permutations that turn the class", "median of the largest weight"
ACCURACY = "accuracy"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: accuracy, the effect of permuting, the difference without recurrence, and equal weights."""
    accuracies = {name: float(np.mean(each)) for name, each in numbers[ACCURACY].items()}
    shares = {name: float(np.mean(each)) for name, each in numbers[SHARE].items()}
    loss = accuracies[MIXED] - accuracies[UNIFORM]
    return (
        Part(
            f"the classifiers are trained: {accuracies[MIXED]:.0%} and {accuracies[ALONE]:.0%} of held-out sentences "
            "are put where they belong",
            within(min(accuracies[MIXED], accuracies[ALONE]) >= LEARNED),
        ),
        Part(
            f"{MIXED}: with permuted weights {shares[MIXED]:.0%} of sentences move by less than {STILL}",
            within(shares[MIXED] >= MOST),
        ),
        Part(
            f"{ALONE}: of those {shares[ALONE]:.0%}",
            within(shares[MIXED] - shares[ALONE] >= FURTHER),
        ),
        Part(
            f"with equal weights {accuracies[UNIFORM]:.1%} are right, with learned ones {accuracies[MIXED]:.1%}",
            within(loss <= EQUAL),
        ),
    )


def run(setting: Setting) -> Finding:
    """Train three classifiers on the same sentences, several times each, and permute the weights of two of them."""
    runs = RUNS[setting.quick]
    every = sentences()
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in MODELS}
    for at in range(runs):
        seed = setting.seed + at
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed)).tolist()
        data, held = numbered([every[row] for row in order[HELD_OUT:]], [every[row] for row in order[:HELD_OUT]])
        for name, (encoder, uniform) in MODELS.items():
            setting.progress(f"{name}, run {at + 1} of {runs}")
            with torch.random.fork_rng(devices=[]), one_thread():
                model = trained(data, encoder, EPOCHS, seed, uniform=uniform)
            measured = {ACCURACY: accuracy(model, held)} | ({} if uniform else _permuted(model, held, seed))
            for what, one in measured.items():
                found[name].setdefault(what, []).append(one)
    numbers: dict[str, Any] = {
        "sentences trained on": len(data),
        "sentences held out": HELD_OUT,
        "share of class 1": sum(data.classes) / len(data),
        "permutations of a sentence": PERMUTATIONS,
        **{what: {name: found[name][what] for name in (MIXED, ALONE)} for what in (SHARE, MEDIAN, TURNED, LARGEST)},
        ACCURACY: {name: found[name][ACCURACY] for name in MODELS},
    }
    shares, turned, right = (
        {name: float(np.mean(each)) for name, each in numbers[what].items()} for what in (SHARE, TURNED, ACCURACY)
    )
    text = (
        f"The prediction moves by less than {STILL} in {shares[MIXED]:.0%} of sentences behind a recurrence, and in "
        f"{shares[ALONE]:.0%} without one; {turned[MIXED]:.0%} and {turned[ALONE]:.0%} of permutations turn the class. "
        f"Accuracy: {right[MIXED]:.1%} with attention, {right[UNIFORM]:.1%} with equal weights, {right[ALONE]:.1%} for "
        "words alone."
    )
    return Finding(
        judge(numbers), numbers,
        f"{shares[MIXED]:.0%} of sentences move by less than {STILL}; words alone: {shares[ALONE]:.0%}", text,
        "One task, in which many words of a sentence tell its class: where one word decides, permuting moves more "
        "(Jain & Wallace, their diagnoses of diabetes). Permuted weights are none that a model would have learned "
        "(Wiegreffe & Pinter). Small models, their words' vectors learned from a thousand sentences.",
        (_course(found), _example({name: found[name]["seen"][-1] for name in (MIXED, ALONE)}, held)),
    )  # fmt: skip


def _permuted(model: Classifier, held: Sentences, seed: int) -> dict[str, Any]:
    """Return the effect of permuting: the median change of each sentence over its permutations (Jain & Wallace,
    4.2.1).
    """
    seen = permuted(model, held, PERMUTATIONS, seed)
    median = seen.moves.median(1).values
    return {
        SHARE: float((median < STILL).double().mean()),
        MEDIAN: float(median.median()),
        TURNED: float(seen.turns.double().mean()),
        LARGEST: float(np.median([float(one.max()) for one in seen.weights])),
        "moves": sorted(median.tolist()),
        "seen": seen,
    }


def _course(found: Mapping[str, Mapping[str, Any]]) -> Lines:
    """Return a chart of the share of sentences that move by less than a given change."""
    lines = []
    for name in (MIXED, ALONE):
        far = np.linspace(0, 1, 101)
        shares = np.array([np.searchsorted(one, far, side="left") / len(one) for one in found[name]["moves"]])
        low, mean, high = (tuple(one.tolist()) for one in (shares.min(0), shares.mean(0), shares.max(0)))
        lines.append(Line(name, tuple(far.tolist()), mean, low, high))
    return Lines(
        "How far predictions move when the weights are permuted",
        f"The share of held-out sentences whose median permutation moves p by less; read at {STILL}. The mean of the "
        "runs, with a band from the least to the most; dashes are half of the sentences.",
        "|p − p'|", "share of sentences", tuple(lines), level=MOST,
    )  # fmt: skip


def _example(seen: Mapping[str, Permuted], held: Sentences) -> Matrices:
    """Return a chart of both models' weights in the first short sentence."""
    row = next(at for at, words in enumerate(held.words) if len(words) <= SHORT)
    names = tuple(f"{name}, p {float(one.before[row]):.2f}" for name, one in seen.items())
    values = tuple(tuple(one.weights[row].tolist()) for one in seen.values())
    spans = (f"{float(one.after[row].min()):.2f} to {float(one.after[row].max()):.2f}" for one in seen.values())
    return Matrices(
        "Weights of one held-out sentence",
        "p is the probability that the sentence stands in the library reference; permuted it is " + ", ".join(spans)
        + f". It stands in the {('language', 'library')[held.classes[row]]} reference.",
        (LabeledMatrix("", names, held.words[row], values),),
    )  # fmt: skip
