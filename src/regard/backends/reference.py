"""The formula, line for line: slow, differentiable, and the definition of right."""

import torch

from regard.backends.base import Answer
from regard.problem import Problem
from regard.shapes import human_bytes

__all__ = ["Reference"]


class Reference:
    """weights = softmax(cap(scale · score(q, k)) + bias where mask); output = weights · v (Vaswani et al. 2017, eq. 1).

    Computes in float32 for narrower types and in the inputs' type otherwise; holds all n × n weights.
    """

    name = "reference"

    def refuses(self, problem: Problem) -> str | None:
        """Only what would not fit into the budget."""
        if self.bytes(problem) > problem.budget:
            return (
                f"it holds all weights, {human_bytes(self.bytes(problem))} of them, more than the budget of "
                f"{human_bytes(problem.budget)}"
            )
        return None

    def bytes(self, problem: Problem) -> int:
        """One tensor of all weights; its copies live shorter."""
        return problem.weights_bytes

    def __call__(self, problem: Problem) -> Answer:
        """Compute the formula."""
        wide = torch.promote_types(problem.q.dtype, torch.float32)
        group = problem.heads // problem.kv_heads
        q, k, v = problem.q.to(wide), problem.k.to(wide), problem.v.to(wide)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        start = problem.mask.query_start if problem.mask else problem.keys - problem.queries
        i = torch.arange(problem.queries, device=q.device) + start
        j = torch.arange(problem.keys, device=q.device)

        scores = problem.scale * problem.score.tile(q, k, i, j)
        if (cap := problem.score.softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        if problem.bias is not None:
            scores = scores + problem.bias
        weights, lse = problem.normalizer.weights(scores, problem.visible())
        output = weights @ v

        narrow = problem.q.dtype
        return Answer(output.to(narrow), weights.to(narrow) if problem.wants_weights else None, lse)
