"""Weights of rows of a call, from its queries and keys, for the second pass of a watch and for a tap.

The formula is that of `backends/formula.py`; here are the type and the modes in which it is asked outside of a call.
Ranks and records, whose queries and keys lie elsewhere, ask it themselves, in the same modes.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends import formula
from regard.masks import BoundMask, Dense, Mask
from regard.normalizers.softmax import Sums
from regard.part import Part
from regard.positions import DenseBias
from regard.problem import Problem

__all__ = ["HIDDEN", "groups_of", "hiding", "plain_mode", "weigh", "weigh_heads"]


# A number of a bias that hides its key, for any that models write for minus infinity (−1e9, finfo.min, −10,000).
HIDDEN = -9000.0


def weigh(problem: Problem, part: Part) -> tuple[Float[Tensor, "batch heads rows columns"], Sums | None]:
    """Compute the weights of some rows of a call, before dropout, in float32 or the wider type of q, and the sums of
    the rows if the call wants them.
    """
    heads = problem.q[part.batch, part.heads], problem.k[part.batch, groups_of(problem, part.heads)]
    return weigh_heads(problem, *heads, part)


def weigh_heads(
    problem: Problem,
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys key_dim"],
    part: Part,
) -> tuple[Float[Tensor, "batch heads rows columns"], Sums | None]:
    """Compute the same from all queries and keys of the part's heads; of those of `problem` only the sizes are read."""
    wide = torch.promote_types(q.dtype, torch.float32)
    with plain_mode(q.device):
        return formula.weigh(problem, part, q[:, :, part.rows].to(wide), part.cut(k).to(wide))


def hiding(problem: Problem) -> Problem:
    """Return a call whose mask hides what the numbers of its bias hide: what a model adds to its scores is its mask."""
    if type(problem.bias) is not DenseBias:
        return problem
    hidden = problem.bias.four.detach() <= HIDDEN  # NaN hides nothing, as in the model
    if hidden.is_cpu and not bool(hidden.any()):  # as in most steps of decoding
        return problem
    shown: Mask = Dense.over(~hidden).with_place(q_offset=problem.q_offset)
    shown = shown if problem.mask is None else problem.mask.mask & shown
    bound = BoundMask(shown, problem.queries, problem.keys, problem.q_offset, given=shown)
    return replace(problem, mask=bound)


def groups_of(problem: Problem, heads: slice) -> slice:
    """Return the key heads that some query heads read."""
    group = problem.heads // problem.kv_heads
    return slice(heads.start // group, -(-heads.stop // group))


_UNCHANGED = contextlib.nullcontext()


def plain_mode(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context for further computations: no gradients, and the precision of the tensors themselves."""
    kind = device.type
    if _has_autocast(kind) and torch.is_autocast_enabled(kind):
        return _without_autocast(kind)
    return torch.no_grad() if torch.is_grad_enabled() else _UNCHANGED


_has_autocast = functools.cache(torch.amp.is_autocast_available)


@contextlib.contextmanager
def _without_autocast(kind: str) -> Iterator[None]:
    with torch.autocast(kind, enabled=False), torch.no_grad():
        yield
