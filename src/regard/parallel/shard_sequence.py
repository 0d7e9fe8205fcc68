"""Sharding a sequence so that every rank has the same work: in zig-zag or in blocks, as the mask needs it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.masks import BoundMask, Mask
from regard.parallel.dtensors import strides_of, whole_of
from regard.parallel.sequence_layout import OrderedMask, SequenceLayout, balanced, contiguous, dealt_blocks, zigzag
from regard.parallel.shard_plan import work_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = ["ShardedSequence", "shard_sequence"]


@dataclass(frozen=True, eq=False)
class ShardedSequence:
    """A sequence over the ranks of a mesh, in the order that makes the work even.

    Args:
        tensor: The sequence as a DTensor, permuted, with Shard along `dim`.
        position_ids: The positions of this rank's tokens in the sequence as it was.
        mask: What attention() takes as `mask=` for q, k and v that are made of `tensor`: it carries the order.
        layout: Which positions each rank has.
        dim: The dimension of the sequence.
    """

    tensor: "DTensor"
    position_ids: Int[Tensor, " tokens"]
    mask: OrderedMask
    layout: SequenceLayout
    dim: int

    def restore(self, x: "DTensor", dim: int | None = None) -> Shaped[Tensor, "..."]:
        """Give a tensor with this order, such as the output of attention(), whole and in the order of the sequence."""
        at = self.dim if dim is None else dim
        whole = whole_of(x)
        return whole.index_select(at, self.layout.order.argsort().to(whole.device))


def shard_sequence(
    x: Shaped[Tensor, "..."], mesh: "DeviceMesh", mask: Mask | None = None, *, dim: int = 1
) -> ShardedSequence:
    """Shard a sequence over the ranks of a mesh so that each has as much to compute with this mask.

    The tokens stay in order where that is even (no mask, a window), are dealt in zig-zag where that is (causal), and in
    blocks otherwise (documents of different lengths). Every rank gives the whole sequence; tensors of the same length
    and mask get the same order.

    Args:
        x: The whole sequence, the same on every rank: token ids (batch, tokens), states (batch, tokens, hidden_size),
            or q, k and v (batch, heads, tokens, dim) with `dim=2`.
        mesh: A mesh of one axis, such as mesh["sequence"].
        mask: The mask of the attention calls that follow; None where all tokens see all.
        dim: The dimension of the tokens.

    Raises:
        InputError: The mesh has several axes, the mask is bound or no mask, there is no such dimension, or x requires
            gradients.
    """
    if mesh.ndim != 1:
        raise InputError(f'`mesh` must have one axis, got {mesh.ndim}: take the one of the sequence, mesh["sequence"]')
    if isinstance(mask, BoundMask) or not isinstance(mask, Mask | None):
        raise InputError(f"`mask` must be a mask of regard.masks that is not bound, or None, got {type(mask).__name__}")
    if not -x.ndim <= dim < x.ndim:
        raise InputError(f"`dim` must be a dimension of x, which has {x.ndim}, got {dim}")
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "`x` must not require gradients, which would have to come from all ranks: shard what it is computed from, "
            "such as token ids, or pass x.detach() and take the gradients of `tensor`"
        )
    from torch.distributed.tensor import DTensor, Shard

    dim %= x.ndim
    layout = _layout(mask, x.shape[dim], mesh.size())
    positions = layout.positions(mesh.get_local_rank()).to(x.device)
    mine = x.index_select(dim, positions)  # nothing is sent: every rank has all
    tensor = DTensor.from_local(mine, mesh, [Shard(dim)], run_check=False, shape=x.shape, stride=strides_of(x.shape))
    return ShardedSequence(tensor, positions, OrderedMask(mask, layout), layout, dim)


def _layout(mask: Mask | None, length: int, ranks: int) -> SequenceLayout:
    usual = contiguous(length, ranks)
    if mask is None:
        return usual
    work = work_of(mask.bind(length, length), usual)
    return balanced(work, (usual, zigzag(length, ranks), dealt_blocks(length, ranks, work)))
