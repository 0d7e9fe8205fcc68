"""Few queries: keys that none of them sees are left out before a backend is chosen, as decoding with a window needs."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from regard.masks import BoundMask, Causal, Dense
from regard.masks.plan_cache import PLANS
from regard.normalizers import Sigmoid, Softmax
from regard.positions import Bias, DenseBias, Rotary
from regard.problem import Problem
from regard.tensors import are_in_memory
from regard.torch_private import peek_interpreter_stack
from regard.values import tensors

__all__ = ["FEW_QUERIES", "may_be_narrowed", "narrowed"]

FEW_QUERIES = 16  # for more, blocks are planned
_LONG = 256  # keys, and
_LEAST = 2**16  # numbers of keys and values, below which reading them costs less than finding those that are seen
_PAIRS = 2**22  # pairs that the mask is asked for, at most


Keys = slice | Int[Tensor, " kept"]


@dataclass(frozen=True, eq=False)
class _Kept:
    """The keys that some query sees, and what the mask hides of them; None where it hides nothing."""

    keys: Keys
    mask: BoundMask | None

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        own = [self.keys] if isinstance(self.keys, Tensor) else []
        return sum(leaf.nbytes for leaf in (*own, *tensors(None if self.mask is None else self.mask.mask)))


def narrowed(problem: Problem, rotary: Rotary | None = None) -> tuple[Problem, Keys | None]:
    """The same call over the keys that some query sees, turned by `rotary`; over all keys where that saves little.

    With it the keys that are left, None where they are all.

    The result is exact, because the removed keys have weight 0. If the remaining keys are one range, they are a view.
    If they are several ranges (a window and sinks), they are copied, provided that they are at most half of the keys
    between the first and the last one. The rotary embedding has not been applied to the vectors yet.
    """
    kept = _kept_by(problem) if may_be_narrowed(problem) else None
    keys = None if kept is None else kept.keys
    if rotary is None:
        return (problem if kept is None else _cut(problem, kept)), keys
    rotary = rotary.resolve(problem.queries, problem.keys, problem.q_offset)
    i, j = problem.i(), problem.j()
    if kept is not None:
        problem, j = _cut(problem, kept), j[kept.keys]
    return replace(problem, q=rotary.rotate(problem.q, i), k=rotary.rotate(problem.k, j)), keys


def may_be_narrowed(problem: Problem) -> bool:
    """Whether it is known what a part of the keys gives, and finding that part costs less than reading the rest."""
    return (
        not torch.compiler.is_compiling()
        and problem.mask is not None
        and problem.queries <= FEW_QUERIES
        and problem.keys >= _LONG
        and problem.k.numel() + problem.v.numel() >= _LEAST
        and problem.score.product
        and type(problem.normalizer) in (Softmax, Sigmoid)
        and problem.dropout is None  # its seed counts places among all keys
        and not problem.wants_weights
        and peek_interpreter_stack() is None
        and are_in_memory(problem.q, problem.k, problem.v)
    )


def _kept_by(problem: Problem) -> _Kept | None:
    bound = problem.mask
    assert bound is not None
    if type(bound.mask) is Causal:
        return _kept_by_causal(bound)
    batch, heads = problem.batch, problem.heads
    alike = 1 if bound.mask.relative else batch * heads
    if problem.q.device.type != "cpu" or alike * problem.queries * problem.keys > _PAIRS:
        return None
    return PLANS.of(bound, ("keys", batch, heads), lambda: _seen(bound, batch, heads))


def _kept_by_causal(bound: BoundMask) -> _Kept | None:
    """The keys up to the last query's diagonal."""
    assert isinstance(bound.mask, Causal)
    ahead = bound.q_offset - bound.mask.shift  # keys before the first query's diagonal
    end = min(bound.kv_len, ahead + bound.q_len)
    if end <= 0:
        return None
    if ahead + 1 >= end:
        return _Kept(slice(0, end), None)
    return None if end == bound.kv_len else _Kept(slice(0, end), replace(bound, kv_len=end))


def _seen(bound: BoundMask, batch: int, heads: int) -> _Kept | None:
    """Ask the mask for all pairs of the few queries, which a kernel would want as a tensor anyway."""
    visible = bound.dense(batch, heads, torch.device("cpu"))
    at = visible.flatten(0, 2).any(0).nonzero()[:, 0]
    if not len(at):
        return None
    first, end = int(at[0]), int(at[-1]) + 1
    keys: slice | Tensor = slice(first, end)
    if 2 * len(at) <= end - first:
        keys = at
    part = visible[..., keys]
    if part.shape[-1] == bound.kv_len and not bool(part.all()):
        return None
    if bool(part.all()):
        return _Kept(keys, None)
    return _Kept(keys, Dense(part).bind(bound.q_len, part.shape[-1]))


def _cut(problem: Problem, kept: _Kept) -> Problem:
    """The problem over some of its keys."""
    k, v = (x[:, :, kept.keys] for x in (problem.k, problem.v))
    fewer = replace(problem, k=k, v=v, mask=kept.mask)
    if problem.bias is None and problem.weight_factor is None:
        return fewer

    def of_keys(term: Bias | None) -> Bias | None:
        """Its numbers for the keys that are kept: a rule would count them from the first."""
        if term is None:
            return None
        rows = slice(0, problem.batch), slice(0, problem.heads), problem.i()
        if isinstance(kept.keys, slice):
            numbers = term.tile(*rows, problem.j(kept.keys))
        else:
            numbers = term.tile(*rows, problem.j())[..., kept.keys]
        return DenseBias(numbers).resolve(fewer.queries, fewer.keys, fewer.q_offset)

    return replace(fewer, bias=of_keys(problem.bias), weight_factor=of_keys(problem.weight_factor))
