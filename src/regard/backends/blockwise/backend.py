"""The backend: lays a problem out in blocks, visits those that the mask leaves, and never holds all weights."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.base import Answer, run_eagerly
from regard.backends.blockwise.autograd_function import Attend, Blocks, Forward, held_by, parts_of, with_parts
from regard.backends.blockwise.bias_tiles import diagonals_of
from regard.backends.blockwise.block_layout import Sheet
from regard.backends.blockwise.plan import plan
from regard.backends.blockwise.unfused import General
from regard.backends.plan_cache import BLOCK, covered
from regard.frozen import replace_tensors, tensors
from regard.masks.block_runs import Cover
from regard.normalizers import Sigmoid, Softmax
from regard.positions import Bias, Relative
from regard.problem import Problem
from regard.shapes import has_numbers
from regard.torch_private import is_batchedtensor

__all__ = ["Blockwise", "attend_in_blocks"]

_SMALL = 2**18  # pairs for which planning would take longer than it saves
_OVERHEAD = 2**18  # pairs that could be computed while Python plans and visits
_OVERHEAD_EACH = 2**19  # and again for each sequence or head with blocks of its own


class Blockwise:
    """Any score, mask, bias, normalizer, factor and dropout in O(n) memory, forward and backward, in plain PyTorch.

    This backend visits only the blocks of queries and keys that the mask leaves. Full blocks are computed without the
    mask, and partial blocks with it. Rows of the same shape are computed in one batched call and merged by log-sum-exp
    (Rabe & Staats 2021; Dao et al. 2022). The backward computes the weights again. Results do not depend on the order
    of threads.
    """

    name = "blockwise"

    def refuses(self, problem: Problem) -> str | None:
        """Only what needs all weights at once."""
        if problem.wants_weights:
            return "it never holds all weights"
        if not isinstance(problem.normalizer, Softmax | Sigmoid):
            return f"it does not know how to merge {type(problem.normalizer).__name__}"
        if problem.mask is not None and any(is_batchedtensor(one) for one in tensors(problem.mask.mask)):
            return "it cannot plan for a mask that torch.func.vmap maps over"
        return None

    def bytes(self, problem: Problem) -> int:
        """Working copies of q, k, v, output and log-sum-exp, and the tiles."""
        wide = torch.promote_types(problem.q.dtype, torch.float32).itemsize
        rows = problem.q.numel() + problem.batch * problem.heads * problem.queries * (2 * problem.v.shape[-1] + 3)
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        return (rows + problem.k.numel() + problem.v.numel() + 6 * min(pairs, General.elements)) * wide

    def plain(self, problem: Problem) -> None:
        """None: every problem is laid out by itself."""

    def work(self, problem: Problem) -> float:
        """The pairs of the blocks that the mask leaves, and what Python needs to visit them."""
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        share, asked = 1.0, 0.0
        if pairs > _SMALL and problem.mask is not None:
            found = covered(problem)
            share, asked = found.share, 0.0 if problem.mask.mask.relative else found.share_partial
        sheets = 1 if problem.mask is None else math.prod(problem.mask.mask.leading)
        each = 1.2 if _can_fuse(problem) else 2.5 * problem.score.floats_per_pair
        return (each * share + 0.6 * asked) * pairs + _OVERHEAD + _OVERHEAD_EACH * (sheets - 1)

    @run_eagerly
    def __call__(self, problem: Problem) -> Answer:
        """Compute, in float32 at least, whatever autocast would have; of tensors without numbers, their shapes."""
        if not has_numbers(problem.q):
            shape = problem.q.shape[:3]
            nothing = 0 * (problem.q.sum() + problem.k.sum() + problem.v.sum())  # what autograd may follow
            lse = problem.q.new_empty(shape, dtype=torch.promote_types(problem.q.dtype, torch.float32))
            return Answer(problem.q.new_empty(*shape, problem.v.shape[-1]) + nothing, None, lse)
        return attend_in_blocks(problem)


def attend_in_blocks(problem: Problem, forward: Forward | None = None) -> Answer:
    """Compute a problem with its gradients.

    Args:
        problem: Any that `Blockwise` does not refuse.
        forward: What computes output and log-sum-exp of the problem in float32, and what rounding took from that,
            without its sink, instead of plain PyTorch; the backward, which needs no more than these, stays as it is.
    """
    narrow = problem.q.dtype
    with torch.autocast(problem.q.device.type, enabled=False):
        ready = _prepared(problem)
        fused = _can_fuse(ready)
        learns = torch.is_grad_enabled() and any(one.requires_grad for one in tensors(ready.bias))
        ready = _evened(ready) if fused else ready
        hollow = _hollow(ready)
        blocks = Blocks(hollow, _sheets(hollow), fused, fused and not learns, forward)
        result: tuple[Tensor, ...] = Attend.apply(blocks, ready.q, ready.k, ready.v, *held_by(ready))  # type: ignore[no-untyped-call]
    return Answer(result[0][..., : problem.v.shape[-1]].to(narrow), None, result[1])


def _sheets(problem: Problem) -> tuple[Sheet, ...]:
    terms = [term for term in (problem.bias, problem.weight_factor) if term is not None]
    found = _cover_for(problem)
    block = found.block
    relative = problem.mask is None or problem.mask.mask.relative
    return tuple(
        Sheet(
            problem,
            slice(b, b + 1) if found.leading[0] > 1 else slice(0, problem.batch),
            slice(h, h + 1) if found.leading[1] > 1 else slice(0, problem.heads),
            block,
            tuple(
                plan(
                    runs,
                    (problem.keys - 1) // block,
                    short=problem.keys % block > 0,
                    relative=relative,
                    gathers=problem.score.product and not terms,
                )
            ),
        )
        for b, h, runs in found.slices()
    )


def _cover_for(problem: Problem) -> Cover:
    """The blocks that a mask leaves, in the size that leaves least to do."""
    if problem.queries <= BLOCK // 2:
        return covered(problem, max(16, 1 << (problem.queries - 1).bit_length()))
    found = covered(problem, BLOCK)
    if problem.mask is None or found.share_partial == 0:
        return found
    # Pairs of a partial block are asked for one by one, unless they are alike everywhere; small products run slower.
    asked = 0.0 if problem.mask.mask.relative else 1.0
    finer = covered(problem, BLOCK // 2)
    costs = [times * one.share + asked * one.share_partial for times, one in ((1.0, found), (1.1, finer))]
    return finer if costs[1] < costs[0] else found


def _prepared(problem: Problem) -> Problem:
    """Scores prepared, relative biases asked for once, everything in float32 at least."""
    problem = problem.widened().prepared()
    wide = problem.q.dtype
    problem = replace(
        problem,
        bias=_asked(problem.bias, problem),
        weight_factor=_asked(problem.weight_factor, problem),
    )
    parts = parts_of(problem)
    widened = (one.to(wide) if one.is_floating_point() else one for one in tensors(parts))
    return with_parts(problem, replace_tensors(parts, widened))


def _asked(term: Bias | None, problem: Problem) -> Bias | None:
    return diagonals_of(term, problem) if isinstance(term, Relative) else term


def _evened(problem: Problem) -> Problem:
    """The fused kernel wants keys and values of one width: zeros change no product, and their columns are cut off."""
    widest = max(problem.k.shape[-1], problem.v.shape[-1])
    all_three = problem.q, problem.k, problem.v
    q, k, v = (pad(x, (0, widest - x.shape[-1])) if x.shape[-1] < widest else x for x in all_three)
    return replace(problem, q=q, k=k, v=v)


def _hollow(problem: Problem) -> Problem:
    """The same without any memory: what autograd keeps by the side must not keep tensors alive, nor their graphs."""
    q, k, v = (x.new_empty(()).expand(x.shape) for x in (problem.q, problem.k, problem.v))
    parts = parts_of(problem)
    hollow = (one.new_empty(()).expand(one.shape) for one in tensors(parts))
    return with_parts(replace(problem, q=q, k=k, v=v), replace_tensors(parts, hollow))


def _can_fuse(problem: Problem) -> bool:
    """Whether the pieces can run on PyTorch's fused CPU kernel; it has no gradient for a bias."""
    return (
        problem.q.device.type == "cpu"
        and problem.score.product
        and problem.score.softcap is None
        and isinstance(problem.normalizer, Softmax)
        and problem.dropout is None
        and problem.weight_factor is None
    )
