"""The claims, in the order in which they are listed; each file is one claim (see regard_lab.experiment)."""

from regard_lab.claims import (
    alignment,
    approximations,
    bottleneck,
    causal_mask,
    costs,
    explanation,
    heads,
    induction,
    kv_heads,
    length,
    order,
    recurrence,
    scaling,
    sinks,
    small_claims,
    sources,
    worked_example,
)
from regard_lab.experiment import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = (
    worked_example,
    scaling,
    order,
    causal_mask,
    bottleneck,
    costs,
    approximations,
    length,
    heads,
    sinks,
    induction,
    explanation,
    kv_heads,
    recurrence,
    small_claims,
    alignment,
    sources,
)
