"""The claims, in the order in which they are listed; each file is one (see regard.lab.experiment)."""

from regard.lab.claims import (
    approximations,
    causal_mask,
    costs,
    heads,
    order,
    recurrence,
    scaling,
    sinks,
    small_claims,
    worked_example,
)
from regard.lab.experiment import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = (
    worked_example,
    scaling,
    order,
    causal_mask,
    costs,
    approximations,
    heads,
    sinks,
    recurrence,
    small_claims,
)
