"""Induction: two layers learn to recall the value after a key; one layer with as many weights does not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.recall import TASK, RecallRun, by_counting, course

__all__ = ["CLAIM", "first_above", "judge", "run"]

CLAIM = Claim(
    number=11,
    name="induction",
    title="Induction takes two layers",
    statement="A causal model of two layers learns associative recall (more than 95 % right), one of a single layer "
    "and as many weights does not (less than 60 %); a head that looks behind the earlier key appears as it is learned.",
    source="Elhage et al. 2021 (transformer-circuits.pub/2021/framework); Olsson et al. 2022, arXiv:2209.11895; Ba et "
    "al. 2016 (the task), arXiv:1610.06258",
)
LEARNED, NOT_LEARNED = 0.95, 0.60  # accuracy
LOOKS = 0.5  # a head follows a rule if the rule gets more than half of its weight, as in regard heads
STEPS, RUNS = {True: 1000, False: 2000}, {True: 2, False: 5}
MEASURED = {True: 20, False: 80}  # number of measurements per run
ONE, TWO = "one layer", "two layers"
ACCURACY, LOOKING = "accuracy", "induction score of the strongest head"
COUNTING = "right by naming the most frequent value"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: the accuracy of the worst run of two layers, that of the best run of one, and whether there is
    an induction head.
    """
    two, one = min(numbers[ACCURACY][TWO]), max(numbers[ACCURACY][ONE])
    looks = numbers[LOOKING]
    return (
        Part(f"two layers: {two:.1%} right in the worst run", within(two > LEARNED)),
        Part(f"one layer of as many weights: {one:.1%} in the best run", within(one < NOT_LEARNED)),
        Part(
            f"a head of the two layers puts {min(looks[TWO]):.2f} of its weight behind the earlier key",
            within(min(looks[TWO]) > LOOKS),
        ),
        Part(f"no head of the one layer does: {max(looks[ONE]):.2f}", within(max(looks[ONE]) <= LOOKS)),
    )


def run(setting: Setting) -> Finding:
    """Train both models, and measure every head during training."""
    steps, count = STEPS[setting.quick], RUNS[setting.quick]
    runs: dict[str, list[RecallRun]] = {}
    for at in range(count):
        for name, layers in ((TWO, 2), (ONE, 1)):
            setting.progress(f"{name}, run {at + 1} of {count}")
            runs.setdefault(name, []).append(course(layers, steps, setting.seed + at, looks=MEASURED[setting.quick]))
    two = runs[TWO]
    appears = [first_above(one.steps, [max(each) for each in one.induction], LOOKS) for one in two]
    learned = [first_above(one.steps, one.accuracy, LEARNED) for one in two]
    numbers: dict[str, Any] = {
        "pairs": TASK.num_kv_pairs,
        "keys, and as many values": TASK.num_symbols // 2,
        "steps": steps,
        COUNTING: by_counting(setting.seed),
        "parameters": {name: found[0].parameters for name, found in runs.items()},
        ACCURACY: {name: [one.accuracy[-1] for one in found] for name, found in runs.items()},
        LOOKING: {name: [max(one.induction[-1]) for one in found] for name, found in runs.items()},
        "previous-token score of the first layer": {
            name: [one.previous[-1][0] for one in found] for name, found in runs.items()
        },
        "the step at which the head appears": appears,
        "the step at which it is learned": learned,
    }
    one, more = max(numbers[ACCURACY][ONE]), min(numbers[ACCURACY][TWO])
    return Finding(
        judge(numbers), numbers, f"two layers {more:.1%}, one {one:.1%}; the head appears at step {_said(appears)}",
        f"Two layers are right in {more:.1%} in the worst run, one in {one:.1%} in the best: naming the value "
        f"that stands there most often gives {numbers[COUNTING]:.1%}. A head of the second layer that looks "
        f"behind the earlier key appears at step {_said(appears)}, and {LEARNED:.0%} are right from step "
        f"{_said(learned)} on (each run).",
        f"One task, of {TASK.num_kv_pairs} pairs, asked for once at the end of a source; one width; measured every "
        f"{steps // MEASURED[setting.quick]} steps. That one layer does not learn it in so many steps does not say "
        "that none ever could: one wide enough for a table of all pairs could. A weight says where a head looks, not "
        "what for.",
        tuple(_charts(runs)),
    )  # fmt: skip


def _said(steps: Sequence[int | None]) -> str:
    """Return the steps of all runs in order, separated by commas.

    >>> _said([450, None, 500])
    '450, never, 500'
    """
    return ", ".join("never" if one is None else f"{one:,}" for one in steps)


def first_above(steps: Sequence[int], values: Sequence[float], level: float) -> int | None:
    """Return the first measured step at which a value is above the level, or None.

    >>> first_above([10, 20, 30], [0.1, 0.6, 0.4], 0.5)
    20
    """
    return next((step for step, value in zip(steps, values, strict=True) if value > level), None)


def _charts(runs: Mapping[str, Sequence[RecallRun]]) -> Iterator[Lines]:
    yield Lines(
        "Associative recall: the share of right answers",
        "On sources that were not trained on, as training goes; the mean, with a band from the worst run to the best. "
        "Both models have as many weights.", "steps", "accuracy",
        tuple(_line(name, [one.accuracy for one in found], found[0].steps) for name, found in runs.items()),
        level=LEARNED,
    )  # fmt: skip
    first, steps = runs[TWO][0], runs[TWO][0].steps
    yield Lines(
        "How the induction head appears, first run of two layers",
        "The weight of the first layer's strongest head on the token before, that of the second layer's behind the "
        "earlier key, and the share of right answers.", "steps", "share",
        (
            _line("layer 0: token before", [[each[0] for each in first.previous]], steps),
            _line("layer 1: behind the earlier key", [[each[1] for each in first.induction]], steps),
            _line("right answers", [first.accuracy], steps),
        ),
    )  # fmt: skip


def _line(name: str, values: Sequence[Sequence[float]], steps: Sequence[int]) -> Line:
    each = np.array(values)
    low, mean, high = (tuple(one.tolist()) for one in (each.min(0), each.mean(0), each.max(0)))
    return Line(name, tuple(map(float, steps)), mean, low, high)
