"""What FlexAttention is told besides q, k and v: block masks, made once for all layers that share a mask, and what is
done to scores.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.masks import BoundMask
from regard.masks.block_tables import block_tables, bytes_of_tables
from regard.masks.convert_blocks import mask_mod_of
from regard.masks.plan_cache import PLANS
from regard.positions import ALiBi, Bias, Relative, alibi_slopes
from regard.positions.evaluated import evaluate
from regard.problem import Problem
from regard.problem_checks import learns
from regard.values import flatten, tensors, unflatten

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["Blocks", "blocks_for", "score_mod_of"]

_BLOCKS = (128, 256, 512, 1024)  # rows and columns; larger ones where a table would have too many
_SMALL, _MOST = 16 * 2**20, 256 * 2**20  # bytes of tables that may be as wide as there are blocks, and of any
_WHOLE = 2**30  # the size of block for which FlexAttention compares no lengths


@dataclass(frozen=True, eq=False)
class Blocks:
    """A block mask, and the bytes of its tables and of what its rule reads."""

    block_mask: "BlockMask"
    nbytes: int


def blocks_for(problem: Problem) -> Blocks:
    """The block mask of a problem on its device, planned once for all calls that share the mask."""
    bound, device = problem.mask, problem.q.device
    if bound is None:
        return _one_block(device)
    return PLANS.of(bound, ("flex", device), lambda: _planned(problem, bound, device))


@cache
def _one_block(device: torch.device) -> Blocks:
    """What FlexAttention takes where it is given no block mask: made here, because it makes it under vmap, which fails
    within an operator that compiled code calls.
    """
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    with torch.inference_mode(False):  # a later call may train with it
        count = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
        index = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
    by_rows, by_columns = (count, index, None, None), (count, index, None, None)
    return Blocks(BlockMask((1, 1), *by_rows, *by_columns, BLOCK_SIZE=(_WHOLE, _WHOLE), mask_mod=noop_mask), 8)


def _planned(problem: Problem, bound: BoundMask, device: torch.device) -> Blocks:
    for block in _BLOCKS:
        plan = problem.plan(block)
        # The compiled CPU kernel wants tables as wide as there are blocks; elsewhere one width suits all batches.
        narrow = device.type != "cpu" and bytes_of_tables(plan, narrow=False) > _SMALL
        if (nbytes := bytes_of_tables(plan, narrow=narrow)) <= _MOST:
            break
    tables = block_tables(plan, narrow=narrow).to(device)
    block_mask = tables.block_mask((bound.q_len, bound.kv_len), block, mask_mod_of(bound, device))
    return Blocks(block_mask, nbytes + sum(tensor.nbytes for tensor in tensors(bound.mask)))


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
    start, device, learned = problem.q_offset, problem.q.device, learns(bias)
    wide = torch.promote_types(problem.q.dtype, torch.float32)
    if isinstance(bias, Relative) and (learned or not isinstance(bias, ALiBi)):
        # A number for each distance: little is computed for each pair, and gradients of fewer pairs meet in one place.
        table = evaluate(bias, problem.queries, problem.keys, start, device)
        values, last, per_head = table.values.to(wide), problem.queries - 1, table.leading[1] > 1

        def along_diagonals(_: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return values[head if per_head else torch.zeros_like(head), last - query + key]

        return along_diagonals
    computed = isinstance(bias, ALiBi)
    if isinstance(bias, ALiBi) and bias.slopes is None:
        bias = replace(bias, slopes=alibi_slopes(bias.num_heads, device))
    leaves, form = flatten(bias)
    if learned or computed:  # gradients of pairs are added up in the type of the tensor
        leaves = [leaf.to(wide) if leaf.is_floating_point() else leaf for leaf in leaves]
    pairs = unflatten(form, leaves)

    def at_positions(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number: Tensor = pairs(batch, head, query + start, key)
        return number

    return at_positions
