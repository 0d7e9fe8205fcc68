"""Train what the lab's claims train, and compare verdicts and numbers with what they were.

    .venv/bin/python benchmarks/lab_verdicts.py

Of `regard lab --quick` these are the claims whose verdict hangs on a training run; tests/lab/test_whole.py runs them
with a few steps, which say nothing about the claim. Here they have as many as the verdict needs and fewer than a quick
run, on one thread. Results are kept in benchmarks/results/lab_verdicts.json after each claim: a run that was stopped
resumes, one that had ended begins anew, and so does `--again`. Exits with 1 if a claim has turned.

The bounds are wide enough for another machine's rounding and another version's random numbers, and too narrow for a
claim that has turned.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.files import write_atomically
from regard_lab.claims import EXPERIMENTS, alignment, bottleneck, explanation, induction, kv_heads, length
from regard_lab.claims.bottleneck import COPY
from regard_lab.experiment import Experiment, Setting, overall

RESULTS = Path(__file__).resolve().parent / "results" / "lab_verdicts.json"
SHORTER = replace(COPY, lesson=replace(COPY.lesson, steps=600), lengths=(4, 20, 30))
# What a quick run has more of, and what it has here.
LESS: tuple[tuple[Any, str, Any], ...] = (
    (alignment, "EPOCHS", 8),
    (bottleneck, "TEXTS", {True: 40}),
    (bottleneck, "TRIALS", {True: {"copy": SHORTER}}),
    (explanation, "RUNS", {True: 1}),
    (induction, "RUNS", {True: 1}),
    (induction, "STEPS", {True: 600}),
    (kv_heads, "REPEATS", {True: 3}),
    (kv_heads, "STEPS", {True: 150}),
    (length, "OF_CLIPS", {True: 100}),
    (length, "STEPS", {True: 300}),
)
WITHIN, SOME = {"holds within limits"}, {"holds", "holds within limits"}  # the last percent of a training run decides
VERDICTS = {
    "bottleneck": WITHIN,
    "length": WITHIN,
    "induction": {"holds"},
    "explanation": SOME,
    "kv-heads": SOME,
    "alignment": SOME,
}
Numbers = Mapping[str, Any]


def a_fixed_vector_loses_what_attention_keeps(numbers: Numbers) -> bool:
    """Copies of 20 symbols."""
    right = numbers["accuracy"]["copy"]
    return bool(right["fixed vector"]["20"] < 0.5 < 0.9 < right["attention"]["20"])


def positions_go_beyond_the_trained_length_with_alibi(numbers: Numbers) -> bool:
    """The rise of the loss there."""
    (rise,) = numbers["rise beyond the trained length"].values()
    return max(rise["ALiBi"]) < 0.05 and min(rise["sinusoidal"]) > 0.5


def two_layers_learn_what_one_does_not(numbers: Numbers) -> bool:
    """The accuracy of recall."""
    accuracy = numbers["accuracy"]
    return min(accuracy["two layers"]) > 0.95 and max(accuracy["one layer"]) < 0.6


def permuted_weights_move_less_behind_a_recurrence(numbers: Numbers) -> bool:
    """The share of sentences that hardly move."""
    shares = numbers["share of sentences that move by less than 0.1"]
    return min(shares["recurrence and attention"]) > 0.5 > max(shares["words and attention"])


def a_translator_looks_at_the_words_that_it_translates(numbers: Numbers) -> bool:
    """The share of content words, and one of them."""
    found = numbers["translators"].values()
    return all(one["share"] > 0.8 and one["where its words look"]["cat"]["most"] == "cat" for one in found)


CHECKS: dict[str, Callable[[Numbers], bool]] = {
    "bottleneck": a_fixed_vector_loses_what_attention_keeps,
    "length": positions_go_beyond_the_trained_length_with_alibi,
    "induction": two_layers_learn_what_one_does_not,
    "explanation": permuted_weights_move_less_behind_a_recurrence,
    "alignment": a_translator_looks_at_the_words_that_it_translates,
}


def main() -> None:
    """Run what is missing, print a line for each claim, and exit with 1 if one has turned."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="begin anew")
    again = parser.parse_args().again
    for claim, what, less in LESS:
        setattr(claim, what, less)
    kept: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    results = {} if again or kept.keys() == VERDICTS.keys() else kept
    torch.set_num_threads(1)
    for experiment in EXPERIMENTS:
        name = experiment.CLAIM.name
        if name in VERDICTS and name not in results:
            results[name] = measured(experiment)
            write_atomically(RESULTS, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())
    turned = [name for name, one in results.items() if one["turned"]]
    for name, one in results.items():
        print(f"{name:12} {one['verdict']:20} {one['seconds']:4.0f} s  {one['turned'] or 'as it was'}")
    raise SystemExit(bool(turned))


def measured(experiment: Experiment) -> dict[str, Any]:
    """Return the verdict on one claim, and what has turned."""
    begun, name = time.process_time(), experiment.CLAIM.name
    finding = experiment.run(Setting(quick=True, threads=1))
    verdict, check = str(overall(finding.parts)), CHECKS.get(name)
    turned = "" if verdict in VERDICTS[name] else f"was {' or '.join(sorted(VERDICTS[name]))}"
    if check is not None and not check(finding.numbers):
        turned += f"; not so: {check.__name__.replace('_', ' ')}"
    return {"verdict": verdict, "turned": turned, "key": finding.key, "seconds": time.process_time() - begun}


if __name__ == "__main__":
    main()
