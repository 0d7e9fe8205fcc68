"""The jobs that heads do: the measure that chooses the heads, its threshold, and the models that can have them."""

from collections.abc import Mapping
from dataclasses import dataclass

from regard.errors import InputError
from regard.heads.scores import MEASURES, RULES, HeadTest
from regard.record.visible import HEAD_SINK, MOST

__all__ = ["JOBS", "LOCAL_WINDOW", "HeadJob", "check_job"]

LOCAL_WINDOW = 8  # keys that are near: a query's own and the seven before it, and as many after it where it sees these


@dataclass(frozen=True)
class HeadJob:
    """A job: its measure, a head's weight on the right keys; the least of it; the models that can have such heads."""

    test: HeadTest
    threshold: float
    kinds: tuple[str, ...]
    why: str  # why other models cannot have it


_TEXT = ("encoder", "decoder")
_ONE_TEXT = "an encoder–decoder has three kinds of attention, and this job is one of a text: watch it with regard.watch"
_CAUSAL = "it is how causal language models copy the next token, and an encoder predicts none"

JOBS: Mapping[str, HeadJob] = {
    "retrieval": HeadJob(
        HeadTest(
            "retrieval",
            "retr",
            "R",
            "mean over copied tokens of p(row that predicts it, its place in the document)",
            "Wu et al. 2024, arXiv:2404.15574",
        ),
        MOST / 2,
        ("decoder",),
        _CAUSAL,
    ),
    "sources": HeadJob(
        HeadTest(
            "sources",
            "srcs",
            "D",
            "mean over questions of the mass on the document with the answer, minus the largest mass on another",
            "docs/sources.md",
        ),
        0.0,
        ("decoder",),
        _CAUSAL,
    ),
    "induction": HeadJob(RULES["induction"], MOST, ("decoder",), _CAUSAL),
    "previous": HeadJob(RULES["previous"], MOST, _TEXT, _ONE_TEXT),
    "alignment": HeadJob(
        HeadTest(
            "alignment",
            "algn",
            "A",
            "mean over target words of the mass on its source word, in the row that predicts it",
            "Garg et al. 2019, arXiv:1909.02074",
        ),
        MOST,
        ("encoder-decoder",),
        "it is cross-attention from a target to a source, which only an encoder–decoder has",
    ),
    "sink": HeadJob(MEASURES["sink"], HEAD_SINK, _TEXT, _ONE_TEXT),
    "local": HeadJob(
        HeadTest(
            "local",
            "locl",
            "L",
            f"mean over rows from {4 * LOCAL_WINDOW} on of the mass on keys less than {LOCAL_WINDOW} away",
            "Xiao et al. 2024 (DuoAttention), arXiv:2410.10819",
        ),
        MOST,
        _TEXT,
        _ONE_TEXT,
    ),
}


def check_job(job: str, kind: str, name: str) -> HeadJob:
    """Return a job that a kind of model can have.

    Raises:
        InputError: There is no such job, or such a model cannot have it.
    """
    if job not in JOBS:
        raise InputError(f"`job` must be one of {', '.join(JOBS)}, got {job!r}")
    if kind not in JOBS[job].kinds:
        here = [other for other, one in JOBS.items() if kind in one.kinds]
        raise InputError(f"{name} can have no heads for {job}, as {JOBS[job].why}: its jobs are {', '.join(here)}")
    return JOBS[job]
