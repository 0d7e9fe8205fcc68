"""What happens to a score between scaling and the mask, as FlexAttention asks for it: softcap, then bias."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.diagonals import distances
from regard.frozen import replace_tensors, tensors
from regard.positions import ALiBi, Bias, Relative, alibi_slopes
from regard.problem import Problem

__all__ = ["score_mod_of"]

Added = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def score_mod_of(problem: Problem) -> ScoreMod | None:
    """Give cap(score) + bias(i, j) for single pairs, counted from the first query; None where there is neither.

    FlexAttention scales before and masks behind it. Tensors that it reads get gradients.
    """
    cap = problem.score.softcap
    added = None if problem.bias is None else _added(problem.bias, problem)
    if cap is None and added is None:
        return None

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        return score if added is None else score + added(batch, head, query, key)

    return score_mod


def _added(bias: Bias, problem: Problem) -> Added:
    """The bias of single pairs, read from tensors or computed: a kernel makes none."""
    learned = torch.is_grad_enabled() and any(one.requires_grad for one in tensors(bias))
    wide = torch.promote_types(problem.q.dtype, torch.float32)
    if isinstance(bias, ALiBi) and not learned:
        slopes = alibi_slopes(bias.num_heads, problem.q.device) if bias.slopes is None else bias.slopes.detach()
        return _asked(replace(bias, slopes=slopes.to(wide)), problem.q_offset)
    if isinstance(bias, Relative):
        # A number for each distance: little is computed for each pair, and gradients of fewer pairs meet in one place.
        return _along_diagonals(bias.diagonals(distances(problem.i(), problem.j())).to(wide), problem.queries)
    # Gradients of pairs are added up in the type of the tensor.
    held = (one.to(wide) if learned and one.is_floating_point() else one for one in tensors(bias))
    return _asked(replace_tensors(bias, held), problem.q_offset)


def _asked(bias: Bias, start: int) -> Added:
    def added(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return bias(batch, head, query + start, key)

    return added


def _along_diagonals(values: Tensor, queries: int) -> Added:
    """Look up the diagonal on which a pair lies: they are ordered as in `regard.diagonals`."""
    many = values.shape[0] > 1

    def added(_: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return values[head if many else torch.zeros_like(head), key - query + (queries - 1)]

    return added
