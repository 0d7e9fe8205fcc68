"""The bottleneck: accuracy over text length for a context vector of fixed size, and for attention."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regard.data import Copy, Reverse
from regard.models import RecurrentConfig
from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, Verdict, within
from regard_lab.measuring import one_thread
from regard_lab.seq2seq import ByLength, Lesson, bleu, by_length, config_of, learned, without

__all__ = ["CLAIM", "cliff", "judge", "run"]

CLAIM = Claim(
    number=5,
    name="bottleneck",
    title="The bottleneck",
    statement="An encoder–decoder that squeezes a text into one vector of fixed size gets worse as texts grow, within "
    "the lengths that it was trained on already; with attention it does not. More training or a wider vector only move "
    "the length at which it breaks.",
    source="Bahdanau et al. 2015, section 1 and figure 2, arXiv:1409.0473; Cho et al. 2014, arXiv:1409.1259",
)
ATTENTION, FIXED = "attention", "fixed vector"
LONGER, WIDER = "fixed vector, three times the steps", "fixed vector, twice the width"
RIGHT = 0.9  # share of right tokens (or BLEU / 100) above which a length counts as solved
LOST = 0.5  # share up to which a length counts as failed
LEAD = 2.0  # ratio to the fixed vector's share that counts as better where attention itself is below RIGHT


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Training settings for models of one size, and the lengths at which they are measured; `beyond` is one of them.

    `more` selects whether the fixed vector is also trained with more steps and with a larger width.
    """

    lesson: Lesson
    hidden: int
    lengths: tuple[int, ...]
    beyond: int
    more: bool = False


COPY = Trial(
    lesson=Lesson(task=Copy(), shortest=3, longest=20, steps=900),
    hidden=64,
    lengths=(*range(4, 21, 2), 25, 30, 40),
    beyond=30,
)
REVERSE = Trial(
    lesson=Lesson(task=Reverse(), shortest=1, longest=25, steps=500),
    hidden=128,
    lengths=(*range(5, 26, 2), 30, 40, 50),
    beyond=40,
    more=True,
)
TRIALS = {True: {"copy": COPY}, False: {"copy": COPY, "reverse": REVERSE}}
TEXTS = {True: 100, False: 200}  # number of test texts per length


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts for each task: within the trained lengths, in tokens and BLEU, and beyond; then with more steps
    and width.
    """
    parts: list[Part] = []
    for task, accuracy in numbers["accuracy"].items():
        parts += _within(task, numbers)
        parts.append(_beyond(task, numbers))
        cliffs = numbers["cliff"][task]
        parts += [_moved(task, name, cliffs) for name in (LONGER, WIDER) if name in accuracy]
    return tuple(parts)


def _within(task: str, numbers: Numbers) -> list[Part]:
    attention, fixed = (numbers["accuracy"][task][name] for name in (ATTENTION, FIXED))
    first, longest = next(iter(fixed)), str(numbers["trained on lengths"][task][1])
    seen, squeezed = (numbers["BLEU"][task][name][longest] for name in (ATTENTION, FIXED))
    return [
        Part(
            f"{task}: with a fixed vector {fixed[first]:.0%} of the tokens are right at length {first} and "
            f"{fixed[longest]:.0%} at {longest}, the longest in training",
            within(fixed[first] >= RIGHT and fixed[longest] <= LOST),
        ),
        Part(f"{task}: with attention {attention[longest]:.0%} are at {longest}", within(attention[longest] >= RIGHT)),
        Part(
            f"{task}: BLEU at {longest} is {squeezed:.0f} with a fixed vector, {seen:.0f} with attention",
            within(squeezed <= 100 * LOST and seen >= 100 * RIGHT),
        ),
    ]


def _beyond(task: str, numbers: Numbers) -> Part:
    length = str(numbers["beyond"][task])
    attention, fixed = (numbers["accuracy"][task][name][length] for name in (ATTENTION, FIXED))
    text = f"{task}: beyond the trained lengths, at {length}, attention has {attention:.0%} right, the fixed vector "
    leads = attention >= LEAD * fixed
    if attention >= RIGHT and leads:
        return Part(f"{text}{fixed:.0%}", Verdict.HOLDS)
    return Part(f"{text}{fixed:.0%}", Verdict.WITHIN if leads else Verdict.FAILS)


def _moved(task: str, name: str, cliffs: Mapping[str, int]) -> Part:
    before, after, other = cliffs[FIXED], cliffs[name], cliffs[ATTENTION]
    text = f"{task}: with {name.partition(', ')[2]} half are right up to length {after} instead of {before}"
    return Part(f"{text}; attention's come to {other}", within(after < other))


def cliff(accuracy: Mapping[int, float]) -> int:
    """The longest length measured up to which at least half of the tokens are right; 0 where there is none.

    >>> cliff({5: 1.0, 10: 0.6, 15: 0.4, 20: 0.5})
    10
    """
    found = 0
    for length, share in sorted(accuracy.items()):
        if share < LOST:
            break
        found = length
    return found


def run(setting: Setting) -> Finding:
    """Train and measure the models of each task; the full run has a second one, with more steps and more width too."""
    bleu([[5]], [[5]])  # says now, not behind the training, that sacrebleu is missing
    trials = TRIALS[setting.quick]
    found = {task: _models(setting, task, trial) for task, trial in trials.items()}
    cliffs = {task: {name: cliff(one.accuracy) for name, one in models.items()} for task, models in found.items()}
    numbers: dict[str, Any] = {
        "trained on lengths": {task: [one.lesson.shortest, one.lesson.longest] for task, one in trials.items()},
        "beyond": {task: one.beyond for task, one in trials.items()},
        "parameters": {task: {name: one.parameters for name, one in models.items()} for task, models in found.items()},
        "accuracy": _table(found, "accuracy"),
        "BLEU": _table(found, "bleu"),
        "cliff": cliffs,
    }
    charts = [
        _chart(task, trials[task], models, kind) for kind in ("accuracy", "bleu") for task, models in found.items()
    ]
    tried = any(trial.more for trial in trials.values())
    limits = (
        "One run of each model; symbols drawn at random, which no vector can shorten as it might a sentence; greedy "
        "decoding, and a token counts only in its own place: one too many shifts all behind it."
    )
    limits += "" if tried else " More steps and more width are tried in the full run alone."
    return Finding(judge(numbers), numbers, _key(numbers, trials), _text(cliffs, trials), limits, tuple(charts))


def _models(setting: Setting, task: str, trial: Trial) -> dict[str, ByLength]:
    """What each model of a task can do, by name."""
    config = config_of(trial.lesson.task, trial.hidden)
    plain, longer = without(config), replace(trial.lesson, steps=3 * trial.lesson.steps)
    wide = replace(plain, hidden_size=2 * plain.hidden_size)
    asked: dict[str, tuple[RecurrentConfig, Lesson]] = {
        ATTENTION: (config, trial.lesson), FIXED: (plain, trial.lesson),
    }  # fmt: skip
    if trial.more:
        asked |= {LONGER: (plain, longer), WIDER: (wide, trial.lesson)}
    found = {}
    for name, (chosen, lesson) in asked.items():
        setting.progress(f"{task}, {name}: {lesson.steps:,} steps")
        with one_thread():
            model = learned(chosen, lesson, setting.seed)
            found[name] = by_length(model, lesson.task, trial.lengths, TEXTS[setting.quick], setting.seed)
    return found


def _table(found: Mapping[str, Mapping[str, ByLength]], which: str) -> dict[str, dict[str, dict[str, float]]]:
    return {
        task: {name: {str(length): it for length, it in getattr(one, which).items()} for name, one in models.items()}
        for task, models in found.items()
    }


def _key(numbers: Numbers, trials: Mapping[str, Trial]) -> str:
    told = []
    for task, trial in trials.items():
        at = [str(trial.lesson.longest), str(trial.beyond)]
        fixed, seen = (numbers["accuracy"][task][name] for name in (FIXED, ATTENTION))
        told.append(f"{task} " + ", ".join(f"at {one}: {fixed[one]:.2f} against {seen[one]:.2f}" for one in at))
    return "; ".join(told)


def _text(cliffs: Mapping[str, Mapping[str, int]], trials: Mapping[str, Trial]) -> str:
    told = [
        f"{task}, trained on up to {trials[task].lesson.longest} tokens: with a fixed vector at least half are right "
        f"up to length {one[FIXED]}, with attention up to {one[ATTENTION]}"
        for task, one in cliffs.items()
    ]
    return "; ".join(told) + "."


def _chart(task: str, trial: Trial, models: Mapping[str, ByLength], which: str) -> Lines:
    longest = float(trial.lesson.longest)
    most, up = (1.0, "share of tokens right") if which == "accuracy" else (100.0, "BLEU")
    lines = [
        Line(name, tuple(map(float, getattr(one, which))), tuple(getattr(one, which).values()))
        for name, one in models.items()
    ]
    edge = Line("longest in training", (longest, longest), (0.0, most), dashed=True)
    return Lines(
        f"{task.capitalize()}: {up} by length",
        f"Trained on lengths {trial.lesson.shortest} to {trial.lesson.longest}, up to the dashed line; no text of a "
        "length right of it was seen.", "tokens", up, (*lines, edge),
    )  # fmt: skip
