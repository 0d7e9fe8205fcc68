"""Block masks as FlexAttention takes them, made once for all layers that share a mask."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.backends.plan_cache import Remembered, covered
from regard.frozen import tensors
from regard.masks import BoundMask
from regard.masks.block_tables import BlockTables, block_tables, bytes_of_tables
from regard.masks.convert_blocks import mask_mod_of
from regard.masks.shared_binding import SharedMask
from regard.masks.tensor_holders import holders
from regard.problem import Problem

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["block_mask_for"]

_BLOCKS = (128, 256, 512, 1024)  # rows and columns; larger ones where a table would have too many
_SMALL, _MOST = 16 * 2**20, 256 * 2**20  # bytes of tables that may be as wide as there are blocks, and of any
_KEPT = 16


@dataclass(frozen=True, eq=False)
class _Plan:
    block: int
    tables: BlockTables
    whole: "BlockMask | None"  # with the rule in it, unless that would keep tensors alive

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return sum(one.nbytes for one in tensors(self.tables))


_plans: Remembered[_Plan] = Remembered(_KEPT, most_bytes=2 * _MOST, bytes_of=lambda plan: plan.nbytes)


def block_mask_for(problem: Problem) -> "BlockMask | None":
    """The block mask of a problem on its device, None where all is seen.

    Tables are remembered for the mask as it was given, as plans of blocks are (see `backends.remembered`).
    """
    if problem.mask is None:
        return None
    bound, device = problem.mask, problem.q.device
    # What is shared does not change, so that all of it can be kept, on the mask itself.
    own: dict[torch.device, BlockMask] = (
        bound.__dict__.setdefault("_block_masks", {}) if isinstance(bound, SharedMask) else {}
    )
    if device not in own:
        found = _plans.of(bound, device, lambda: _plan(problem, bound, device))
        own[device] = found.whole or _whole(bound, found.tables, found.block, device)
    return own[device]


def _plan(problem: Problem, bound: BoundMask, device: torch.device) -> _Plan:
    for block in _BLOCKS:
        found = covered(problem, block)
        # The compiled CPU kernel wants tables as wide as there are blocks; elsewhere one width suits all batches.
        narrow = device.type != "cpu" and bytes_of_tables(found, narrow=False) > _SMALL
        if bytes_of_tables(found, narrow=narrow) <= _MOST:
            break
    tables = block_tables(found, narrow=narrow).to(device)
    return _Plan(block, tables, _whole(bound, tables, block, device) if holders(bound.given) == [] else None)


def _whole(bound: BoundMask, tables: BlockTables, block: int, device: torch.device) -> "BlockMask":
    return tables.block_mask((bound.q_len, bound.kv_len), block, mask_mod_of(bound, device))
