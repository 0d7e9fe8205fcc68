"""The backend: lays a problem out in blocks, visits those that the mask leaves, and never holds all weights."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.backends.base import DERIVATIVES, Answer, Backend
from regard.backends.blockwise.autograd_function import Attend, BlockedProblem, Passes
from regard.backends.blockwise.bias_tiles import diagonals_of
from regard.backends.blockwise.block_layout import BlockBand, Gathered, Piece, Sheet
from regard.backends.blockwise.fused_tiles import as_wide, can_fuse, evened
from regard.backends.blockwise.unfused import General
from regard.backends.call_form import unwritable
from regard.backends.operators import Operator
from regard.masks.block_plan import BLOCK, Cover, Indices, Runs
from regard.positions import Relative
from regard.problem import Problem, held_by, parts_of, with_parts
from regard.tensors import is_traced
from regard.values import flatten, tensors, unflatten

__all__ = ["Blockwise", "attend_in_blocks", "laid_out", "results_in_blocks"]

_SMALL = 2**18  # pairs for which planning would take longer than it saves
_OVERHEAD = 2**18  # pairs that could be computed while Python plans and visits
_OVERHEAD_EACH = 2**19  # and again for each sequence or head with blocks of its own
_HELD = 2**16  # bytes of a mask that are kept with a call
_LISTED = 2**14  # numbers of blocks that are kept with a call
_TALL = 4  # rows that share their shape are worth a call of their own
_WIDE = 8  # and so are blocks in one run


class Blockwise(Backend):
    """Any score, mask, bias, normalizer, factor and dropout in O(n) memory, forward and backward, in plain PyTorch.

    This backend visits only the blocks of queries and keys that the mask leaves. Full blocks are computed without the
    mask, and partial blocks with it. Rows of the same shape are computed in one batched call and merged by log-sum-exp
    (Rabe & Staats 2021; Dao et al. 2022). The backward computes the weights again. Results do not depend on the order
    of threads.
    """

    name = "blockwise"
    lacks = DERIVATIVES | {
        "weights": "it never holds all weights",
        "normalizer of whole rows": "it does not know how to merge {}",
        "mapped mask": "it cannot plan for a mask that torch.func.vmap maps over",
    }

    def bytes(self, problem: Problem) -> int:
        """Working copies of q, k, v, output and log-sum-exp, and the tiles."""
        wide = torch.promote_types(problem.q.dtype, torch.float32).itemsize
        rows = problem.q.numel() + problem.batch * problem.heads * problem.queries * (2 * problem.v.shape[-1] + 3)
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        return (rows + problem.k.numel() + problem.v.numel() + 6 * min(pairs, General.elements)) * wide

    def cost(self, problem: Problem) -> float:
        """The pairs of the blocks that the mask leaves, and what Python needs to visit them."""
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        share, asked = 1.0, 0.0
        each = 1.2 if can_fuse(problem) else 2.5 * problem.score.floats_per_pair
        if max(problem.queries, problem.keys) <= BLOCK:
            each *= 2.5  # a block a sequence: nothing is left out, and short rows are filled up
        elif pairs > _SMALL and problem.mask is not None:
            found = problem.plan()
            share, asked = found.share, 0.0 if problem.mask.mask.relative else found.share_partial
        return (each * share + 0.6 * asked) * pairs + self.least_cost(problem)

    def least_cost(self, problem: Problem) -> float:
        """What Python needs to plan and to visit blocks, for each sequence or head with blocks of its own."""
        sheets = 1 if problem.mask is None else math.prod(problem.mask.mask.leading)
        return _OVERHEAD + _OVERHEAD_EACH * (sheets - 1)

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """The call with its blocks laid out ready-made, unless these are long lists or have biases."""
        if problem.bias is not None or problem.dropout is not None:
            return None
        if problem.mask is not None and sum(leaf.nbytes for leaf in tensors(problem.mask.mask)) > _HELD:
            return None  # the layout holds the mask
        _, blocks = laid_out(problem)
        listed = (
            piece.columns.numel() for sheet in blocks.sheets for piece in sheet.pieces if isinstance(piece, Gathered)
        )
        return partial(_again, blocks, problem.v.shape[-1]) if sum(listed) <= _LISTED else None

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a value of the call is written in Python."""
        return unwritable(problem) is not None

    def __call__(self, problem: Problem) -> Answer:
        """Compute, in float32 at least, whatever autocast would have."""
        return OPERATOR(problem) if is_traced(problem.q) else attend_in_blocks(problem)


def attend_in_blocks(problem: Problem) -> Answer:
    """Compute a problem that `Blockwise` does not refuse, with its gradients."""
    output, lse, _ = results_in_blocks(problem)
    return Answer(output.to(problem.q.dtype), None, lse)


def results_in_blocks(
    problem: Problem, passes: Passes | None = None, known: tuple[Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute output, log-sum-exp and what rounding took from it, in float32 at least.

    With `passes`, these compute the problem instead of plain PyTorch. With `known`, these are the results of an earlier
    call, of which only the graph is made.
    """
    with torch.autocast(problem.q.device.type, enabled=False):
        ready, blocks = laid_out(problem, passes)
        if known is not None:
            output, lse, low = known
            blocks = replace(blocks, known=(as_wide(output, ready.v.shape[-1]), lse, low))
        output, lse, low = Attend.apply(blocks, ready.q, ready.k, ready.v, *held_by(ready))  # type: ignore[no-untyped-call]
    return output[..., : problem.v.shape[-1]], lse, low


OPERATOR = Operator(
    "blockwise",
    lambda problem, known, _: results_in_blocks(problem, None, known),
    output_dtype=lambda dtype, _: torch.promote_types(dtype, torch.float32),
    has_low=True,
)


def laid_out(problem: Problem, passes: Passes | None = None) -> tuple[Problem, BlockedProblem]:
    """The problem as it is computed, and its blocks, which hold no memory of it."""
    ready = _prepared(problem)
    fused = passes is None and can_fuse(ready)
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in tensors(ready.bias))
    ready = evened(ready) if fused else ready
    hollow = _hollow(ready)
    return ready, BlockedProblem(hollow, _sheets(hollow), fused, fused and not learns, passes)


def _again(blocks: BlockedProblem, value_dim: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A call of products and their softmax, laid out before."""
    with torch.autocast(q.device.type, enabled=False):
        hollow = blocks.problem.q, blocks.problem.k, blocks.problem.v
        whole = (as_wide(x.to(like.dtype), like.shape[-1]) for x, like in zip((q, k, v), hollow, strict=True))
        output: Tensor = Attend.apply(blocks, *whole)[0]  # type: ignore[no-untyped-call]
    return output[..., :value_dim].to(q.dtype)


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
        return problem.plan(max(16, 1 << (problem.queries - 1).bit_length()))
    found = problem.plan(BLOCK)
    if problem.mask is None or found.share_partial == 0:
        return found
    # Pairs of a partial block are asked for one by one, unless they are alike everywhere; small products run slower.
    asked = 0.0 if problem.mask.mask.relative else 1.0
    finer = problem.plan(BLOCK // 2)
    costs = [times * one.share + asked * one.share_partial for times, one in ((1.0, found), (1.1, finer))]
    return finer if costs[1] < costs[0] else found


def _prepared(problem: Problem) -> Problem:
    """Scores prepared, relative biases asked for once, everything in float32 at least."""
    problem = problem.widened().prepared()
    wide = problem.q.dtype
    terms = {name: getattr(problem, name) for name in ("bias", "weight_factor")}
    once: dict[str, Any] = {
        name: diagonals_of(term, problem) for name, term in terms.items() if isinstance(term, Relative)
    }
    problem = replace(problem, **once)
    leaves, form = flatten(parts_of(problem))
    return with_parts(
        problem, unflatten(form, [leaf.to(wide) if leaf.is_floating_point() else leaf for leaf in leaves])
    )


def _hollow(problem: Problem) -> Problem:
    """The same without any memory: what autograd keeps by the side must not keep tensors alive, nor their graphs."""
    q, k, v = (x.new_empty(()).expand(x.shape) for x in (problem.q, problem.k, problem.v))
    leaves, form = flatten(parts_of(problem))
    hollow = [leaf.new_empty(()).expand(leaf.shape) for leaf in leaves]
    return with_parts(replace(problem, q=q, k=k, v=v), unflatten(form, hollow))


def plan(runs: Runs, last: int, *, short: bool, relative: bool, gathers: bool) -> list[Piece]:
    """Put the runs of one mask together.

    `last` is the last column block, which has to be masked where it is `short` of keys. `relative`: the mask depends on
    i − j alone. `gathers`: rows may be computed together though their columns are not evenly spaced.
    """
    runs = _without_tail(runs, last) if short else runs
    tail = (runs.start + runs.length > last) & short
    pieces: list[Piece] = []
    if relative:
        # Full and partial blocks of a row in one call: a tile of the mask that all rows share costs little.
        whole, member = runs.merged()
        free = ~((whole.start + whole.length > last) & short)
        bands, taken = _bands(whole, free, step=1, tall=_TALL, wide=None)
        pieces += bands
        left = ~taken[member]
        runs, tail = runs.where(left), tail[left]
    for full in (True, False):
        some = runs.where(runs.full == full)
        free = ~tail[runs.full == full]
        if full:
            bands, taken = _bands(some, free, step=0, tall=2, wide=None)
            pieces += bands
            some, free = some.where(~taken), free[~taken]
        if full or relative:
            bands, taken = _bands(some, free, step=1, tall=_TALL, wide=_WIDE if gathers else 1)
            pieces += bands
            some = some.where(~taken)
        pieces += _gathered(some) if gathers and full else _singles_or_gathered(some, gathers)
    return pieces


def _without_tail(runs: Runs, last: int) -> Runs:
    """Cut the last column block off full runs, as one that must be masked."""
    ends = runs.full & (runs.start + runs.length > last)
    body = replace(runs, length=runs.length - ends)
    cut = Runs(
        runs.index[ends],
        runs.row[ends],
        np.full(int(ends.sum()), last),
        np.ones(int(ends.sum()), np.int64),
        ~runs.full[ends],
    )
    return Runs.together([body.where(body.length > 0), cut])


def _bands(
    runs: Runs, free: npt.NDArray[np.bool_], *, step: int, tall: int, wide: int | None
) -> tuple[list[BlockBand], npt.NDArray[np.bool_]]:
    """Rows that follow one another with runs of one length, `step` apart; and which of the runs they take."""
    taken = np.zeros(len(runs.row), np.bool_)
    at = np.flatnonzero(free)
    if not len(at):
        return [], taken
    row, origin, length = runs.row[at], (runs.start - step * runs.row)[at], runs.length[at]
    order = np.lexsort((row, length, origin))
    row, origin, length, at = row[order], origin[order], length[order], at[order]
    begins = np.ones(len(row), np.bool_)
    begins[1:] = (origin[1:] != origin[:-1]) | (length[1:] != length[:-1]) | (row[1:] != row[:-1] + 1)
    first = np.flatnonzero(begins)
    count = np.diff(np.append(first, len(row)))
    worth = count >= tall
    if wide is not None:
        worth |= length[first] >= wide
    taken[at[np.repeat(worth, count)]] = True
    full = np.logical_and.reduceat(runs.full[at], first)
    bands = [
        BlockBand(int(row[f]), int(n), int(runs.start[at[f]]), int(length[f]), step, not is_full)
        for f, n, is_full in zip(first[worth], count[worth], full[worth], strict=True)
    ]
    return bands, taken


def _singles_or_gathered(runs: Runs, gathers: bool) -> list[Piece]:
    """Long runs alone, so that nothing is copied; short ones gathered, if that may be."""
    alone = runs.length >= (_WIDE if gathers else 1)
    singles: list[Piece] = [
        BlockBand(int(row), 1, int(start), int(length), 1, not full)
        for _, row, start, length, full in zip(*(x[alone] for x in runs.columns), strict=True)
    ]
    return singles + _gathered(runs.where(~alone))


def _gathered(runs: Runs) -> list[Piece]:
    """All blocks of a row together, and rows with equally many blocks together."""
    if not len(runs.row):
        return []
    blocks = np.arange(int(runs.length.sum())) - np.repeat(np.cumsum(runs.length) - runs.length, runs.length)
    columns: Indices = np.repeat(runs.start, runs.length) + blocks
    rows, first, count = np.unique(np.repeat(runs.row, runs.length), return_index=True, return_counts=True)
    pieces: list[Piece] = []
    for many in np.unique(count):
        which = np.flatnonzero(count == many)
        table = columns[first[which, None] + np.arange(many)]
        if len(which) == 1 and table[0, -1] - table[0, 0] == many - 1:
            row = int(rows[which[0]])
            pieces.append(BlockBand(row, 1, int(table[0, 0]), int(many), 1, not bool(runs.full[0])))
            continue
        pieces.append(Gathered(torch.from_numpy(rows[which]), torch.from_numpy(table), not bool(runs.full[0])))
    return pieces
