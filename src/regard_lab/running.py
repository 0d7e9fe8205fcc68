"""Run experiments one after another; one that fails is reported, and the others continue."""

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from regard.errors import InputError, RegardError
from regard_lab.experiment import Claim, Experiment, Finding, Setting

__all__ = ["Result", "choose", "run_all", "run_one"]


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of one experiment: a finding, or an error (`problem`, with its `trace` if it is a bug)."""

    claim: Claim
    seconds: float
    finding: Finding | None = None
    problem: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        """Whether there is no finding."""
        return self.finding is None


def choose(experiments: Sequence[Experiment], names: Sequence[str]) -> list[Experiment]:
    """Return the experiments with these names or numbers, in the order of the list; without names, all of them.

    Raises:
        InputError: A claim does not exist.
    """
    known = {key: one for one in experiments for key in (str(one.CLAIM.number), one.CLAIM.name)}
    for name in names:
        if name not in known:
            names = ", ".join(f"{one.CLAIM.number} {one.CLAIM.name}" for one in experiments)
            raise InputError(f"there is no claim {name!r}; there are {names}")
    wanted = {known[name].CLAIM.number for name in names} or {one.CLAIM.number for one in experiments}
    return [one for one in experiments if one.CLAIM.number in wanted]


def run_all(experiments: Sequence[Experiment], setting: Setting) -> Iterator[Result]:
    """Run the experiments one after the other, and yield each result when it is available."""
    for experiment in experiments:
        yield run_one(experiment, setting)


def run_one(experiment: Experiment, setting: Setting) -> Result:
    """Run one experiment with its own random numbers and threads, and restore the caller's afterwards.

    An exception becomes a result without a finding; only an interruption is raised.
    """
    start = time.perf_counter()
    try:
        with _apart(setting):
            finding = experiment.run(setting)
    except RegardError as problem:
        return Result(experiment.CLAIM, time.perf_counter() - start, problem=str(problem))
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}"
        return Result(experiment.CLAIM, time.perf_counter() - start, problem=text, trace=traceback.format_exc())
    return Result(experiment.CLAIM, time.perf_counter() - start, finding)


@contextmanager
def _apart(setting: Setting) -> Iterator[None]:
    """Seed PyTorch's generator and set its threads inside the block, so that no result depends on earlier runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            yield
    finally:
        torch.set_num_threads(threads)
