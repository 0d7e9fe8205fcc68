"""Experiments: a claim, a run that measures it, and a verdict computed from the measured numbers.

Each file of `regard_lab.claims` is one experiment with three names:

    CLAIM                      the claim and its source
    judge(numbers) -> parts    a verdict on each part of the claim, from plain numbers and thresholds named in the file
    run(setting) -> Finding    measure, judge, draw
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from regard_lab.charts import Chart

__all__ = ["Claim", "Experiment", "Finding", "Numbers", "Part", "Setting", "Verdict", "overall", "within"]

Numbers = Mapping[str, Any]  # maps names to numbers, strings, and lists and mappings of these


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    WITHIN = "holds within limits"
    FAILS = "does not hold"
    GPU = "needs a GPU"


@dataclass(frozen=True)
class Claim:
    """A claim about attention.

    `number` is its position in the list, `name` its name on the command line, `title` a short title, `statement` the
    claim in one or two plain sentences, and `source` its source, with the arXiv number if there is one.
    """

    number: int
    name: str
    title: str
    statement: str
    source: str


@dataclass(frozen=True)
class Part:
    """One part of a claim, with the number that decides it, and the verdict on it."""

    text: str
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of an experiment.

    `numbers` holds all measurements; `key` is the most important one in a few words, for a table; `text` describes the
    result in one or two sentences, and `limits` what the experiment does not show.
    """

    parts: tuple[Part, ...]
    numbers: Numbers
    key: str
    text: str
    limits: str
    charts: tuple[Chart, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim as a whole."""
        return overall(self.parts)


def _silent(_: str) -> None:
    """Ignore the message."""


@dataclass(frozen=True)
class Setting:
    """The settings of a run.

    `quick` selects a run of minutes instead of an hour, with fewer sizes, steps or repetitions and the same
    thresholds. `seed` determines every random number; each use gets a new `generator` with this seed. `progress` is
    called with short messages.
    """

    quick: bool = False
    seed: int = 0
    threads: int = 2
    progress: Callable[[str], None] = _silent


class Experiment(Protocol):
    """A file of `regard_lab.claims`."""

    CLAIM: Claim

    def judge(self, numbers: Numbers, /) -> tuple[Part, ...]:
        """Return the verdict on each part of the claim, from the numbers."""
        ...

    def run(self, setting: Setting, /) -> Finding:
        """Measure, judge and draw."""
        ...


def within(claim: bool) -> Verdict:
    """Return the verdict on a part that either holds or does not."""
    return Verdict.HOLDS if claim else Verdict.FAILS


def overall(parts: Sequence[Part]) -> Verdict:
    """Return the overall verdict: that of all parts if they agree, else "holds within limits".

    Parts that need a GPU count only if there are no others.

    >>> str(overall([Part("a", Verdict.HOLDS), Part("b", Verdict.FAILS)]))
    'holds within limits'
    >>> str(overall([Part("a", Verdict.FAILS), Part("b", Verdict.GPU)]))
    'does not hold'
    """
    verdicts = {part.verdict for part in parts} - {Verdict.GPU}
    if not verdicts:
        return Verdict.GPU
    return verdicts.pop() if len(verdicts) == 1 else Verdict.WITHIN
