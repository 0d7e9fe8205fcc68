"""What FlexAttention is given: block masks, made once for all layers that share a mask, and softcap and bias."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.masks import BoundMask
from regard.masks.block_tables import BlockTables, block_tables, bytes_of_tables
from regard.masks.convert_blocks import mask_mod_of
from regard.masks.plan_cache import PLANS
from regard.problem import Problem
from regard.values import flatten, tensors, unflatten

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from regard.diagonals import distances
from regard.positions import ALiBi, Bias, Relative, alibi_slopes

__all__ = ["block_mask_for", "score_mod_of"]

_BLOCKS = (128, 256, 512, 1024)  # rows and columns; larger ones where a table would have too many
_SMALL, _MOST = 16 * 2**20, 256 * 2**20  # bytes of tables that may be as wide as there are blocks, and of any
_WHOLE = 2**30  # the size of block for which FlexAttention compares no lengths


@dataclass(frozen=True, eq=False)
class _Plan:
    block: int
    tables: BlockTables
    whole: "BlockMask | None"  # with the rule in it, unless that would keep tensors alive

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return sum(one.nbytes for one in tensors(self.tables))


def block_mask_for(problem: Problem) -> "BlockMask":
    """The block mask of a problem on its device.

    Tables are kept for the mask as it was given, as plans of blocks are (`masks.plan_cache`).
    """
    bound, device = problem.mask, problem.q.device
    if bound is None:
        return _of_one_block(device)
    found = PLANS.of(bound, ("flex", device), lambda: _plan(problem, bound, device))
    if found.whole is not None:
        return found.whole
    if bound.given.identity() is None:  # it may be another in the next call
        return _whole(bound, found.tables, found.block, device)
    # On the mask itself, with whose tensors it goes.
    own: dict[tuple[torch.device, int, int, int], BlockMask] = vars(bound.given).setdefault("_block_masks", {})
    place = device, bound.q_len, bound.kv_len, bound.q_offset
    if place not in own:
        own[place] = _whole(bound, found.tables, found.block, device)
    return own[place]


def _of_one_block(device: torch.device) -> "BlockMask":
    """The block mask that FlexAttention takes where it is given none: made here, because it makes it under vmap, which
    fails within an operator that compiled code calls.
    """
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    count = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
    index = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
    by_rows, by_columns = (count, index, None, None), (count, index, None, None)
    return BlockMask((1, 1), *by_rows, *by_columns, BLOCK_SIZE=(_WHOLE, _WHOLE), mask_mod=noop_mask)


def _plan(problem: Problem, bound: BoundMask, device: torch.device) -> _Plan:
    for block in _BLOCKS:
        found = problem.plan(block)
        # The compiled CPU kernel wants tables as wide as there are blocks; elsewhere one width suits all batches.
        narrow = device.type != "cpu" and bytes_of_tables(found, narrow=False) > _SMALL
        if bytes_of_tables(found, narrow=narrow) <= _MOST:
            break
    tables, identity = block_tables(found, narrow=narrow).to(device), bound.given.identity()
    return _Plan(
        block, tables, _whole(bound, tables, block, device) if identity is not None and not identity[0] else None
    )


def _whole(bound: BoundMask, tables: BlockTables, block: int, device: torch.device) -> "BlockMask":
    return tables.block_mask((bound.q_len, bound.kv_len), block, mask_mod_of(bound, device))


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
    leaves, form = flatten(bias)
    leaves = [leaf.to(wide) if learned and leaf.is_floating_point() else leaf for leaf in leaves]
    return _asked(unflatten(form, leaves), problem.q_offset)


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
