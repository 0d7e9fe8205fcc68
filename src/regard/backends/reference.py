"""The formula over everything at once."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from regard.backends.base import TRACED, Answer, Backend
from regard.backends.formula import formula
from regard.part import repeated
from regard.problem import Problem, held_by
from regard.tensors import human_bytes, without_autocast
from regard.torch_private import holds

__all__ = ["Reference"]


class Reference(Backend):
    """weights = weight_factor · normalize(cap(scale · score(q, k)) + bias where mask); output = dropout(weights) · v.

    Computes in float32 for narrower types and in the inputs' type otherwise, under autocast too; holds all n × n
    weights.
    """

    name = "reference"

    lacks: ClassVar[Mapping[str, str]] = {}
    lacks_in_graphs = TRACED

    def limits(self, problem: Problem) -> str | None:
        """Only what would not fit into `max_bytes`."""
        if holds(self.bytes(problem) > problem.max_bytes):
            return (
                f"it holds all weights, {human_bytes(self.bytes(problem))} of them, more than the limit of "
                f"{human_bytes(problem.max_bytes)}"
            )
        return None

    def bytes(self, problem: Problem) -> int:
        """One tensor of all weights, or of what the score needs for each; copies live shorter."""
        return problem.weights_bytes * problem.score.floats_per_pair

    def cost(self, problem: Problem) -> float:
        """A dozen passes over all pairs."""
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        return 6.0 * pairs * problem.score.floats_per_pair

    least_cost = cost

    def __call__(self, problem: Problem) -> Answer:
        """Compute the formula, whatever autocast would have."""
        if problem.is_empty:
            return _without_pairs(problem)
        narrow = problem.q.dtype
        with without_autocast(problem.q.device):
            wide = problem.widened()
            rows = formula(wide, wide.everything, wide.q, wide.k, wide.v)
        weights = rows.weights.to(narrow) if problem.wants_weights else None
        lse = None if rows.sums is None else rows.sums.logarithm
        return Answer(rows.output.to(narrow), weights, lse)


def _without_pairs(problem: Problem) -> Answer:
    """Zeros for queries that have no key, and whatever is empty; gradients are zeros."""
    q, k, v = problem.q, problem.k, problem.v
    if problem.kv_heads:
        k, v = repeated(k, problem.heads), repeated(v, problem.heads)
    weights = q.sum(-1, keepdim=True) * k.sum(-1)[:, :, None]  # (batch, heads, queries, keys), of which one is 0
    for leaf in held_by(problem):
        weights = weights + leaf.flatten()[:0].sum().to(weights.dtype)  # it has a gradient of zeros
    lse = weights.new_full(weights.shape[:3], -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    if problem.sink is not None:
        lse = torch.maximum(lse, problem.sink.to(lse.dtype)[:, None])
    return Answer(weights @ v, weights if problem.wants_weights else None, lse)
