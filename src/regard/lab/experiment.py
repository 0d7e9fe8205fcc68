"""Experiments: a claim, a run that measures, and a verdict that the measured numbers decide.

A file of `regard.lab.claims` is one experiment. It holds three names:

    CLAIM                      the claim and its source
    judge(numbers) -> parts    a verdict on each part of the claim, from plain numbers and thresholds named in the file
    run(setting) -> Finding    measure, judge, draw
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from regard.lab.charts import Chart

__all__ = ["Claim", "Experiment", "Finding", "Numbers", "Part", "Setting", "Verdict", "overall", "within"]

Numbers = Mapping[str, Any]  # names to plain numbers, texts, and lists and mappings of them


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    WITHIN = "holds within limits"
    FAILS = "does not hold"
    GPU = "needs a GPU"


@dataclass(frozen=True)
class Claim:
    """A claim about attention.

    `number` is its place in the list, `name` what it is called on the command line, `title` a few words, `statement`
    the claim in one or two plain sentences, `source` the text it is from, with its arXiv number where it has one.
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
    """What was found.

    `numbers` holds everything measured; `key` is the most important of them in a few words, for a table; `text`
    describes the result in one or two sentences, `limits` what this experiment does not show.
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
    """Say nothing."""


@dataclass(frozen=True)
class Setting:
    """How to run.

    `quick` is for minutes instead of an hour, over fewer sizes, steps or repetitions, never with other thresholds.
    `seed` is that of every random number; a fresh `generator` is made of it for each use. `progress` hears what is
    going on, in a few words.
    """

    quick: bool = False
    seed: int = 0
    threads: int = 2
    progress: Callable[[str], None] = _silent


class Experiment(Protocol):
    """A file of `regard.lab.claims`."""

    CLAIM: Claim

    def judge(self, numbers: Numbers, /) -> tuple[Part, ...]:
        """Return the verdict on each part of the claim, from the numbers."""
        ...

    def run(self, setting: Setting, /) -> Finding:
        """Measure, judge and draw."""
        ...


def within(claim: bool) -> Verdict:
    """A verdict on a part that holds or does not."""
    return Verdict.HOLDS if claim else Verdict.FAILS


def overall(parts: Sequence[Part]) -> Verdict:
    """The verdict on a whole: what all parts agree on, else that it holds within limits.

    Parts that need a GPU count only where there is nothing else.

    >>> str(overall([Part("a", Verdict.HOLDS), Part("b", Verdict.FAILS)]))
    'holds within limits'
    >>> str(overall([Part("a", Verdict.FAILS), Part("b", Verdict.GPU)]))
    'does not hold'
    """
    verdicts = {part.verdict for part in parts} - {Verdict.GPU}
    if not verdicts:
        return Verdict.GPU
    return verdicts.pop() if len(verdicts) == 1 else Verdict.WITHIN
