"""What backends that know the softmax of products alone refuse in the same words."""

from regard.normalizers import Softmax
from regard.problem import Problem

__all__ = ["refuses_other_parts"]


def refuses_other_parts(problem: Problem) -> str | None:
    """Say which part of a problem is more than masked, biased and capped products and their softmax; None if none."""
    if problem.wants_weights:
        return "it never holds all weights"
    if not problem.score.product:
        return f"it knows the dot product alone, not {type(problem.score).__name__}"
    if not isinstance(problem.normalizer, Softmax):
        return f"it has no {type(problem.normalizer).__name__}, only the softmax"
    if problem.weight_factor is not None:
        return "it has no factor on the weights"
    if problem.dropout is not None:
        return "it has no dropout"
    return None
