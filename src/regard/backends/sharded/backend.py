"""The backend for sequences that lie over the ranks of a process group: what one rank computes of a call."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from regard.backends.base import DERIVATIVES, Answer, Backend
from regard.backends.sharded.autograd_function import AttendInRounds, Relayout, ShardedCall, merged
from regard.backends.sharded.exchange import Exchange
from regard.backends.sharded.rectangles import PlacedMask, Slab
from regard.backends.sharded.sequence_layout import SequenceLayout, contiguous
from regard.backends.sharded.shard_plan import ShardPlan, plan_replicated, plan_shards
from regard.errors import InputError
from regard.masks import BoundMask
from regard.normalizers.softmax import Sums
from regard.positions import Rotary
from regard.problem import Problem, held_by, parts_of, with_parts
from regard.tensors import run_eagerly
from regard.values import flatten, unflatten

__all__ = ["Shard", "Sharded", "attend_replicated", "attend_shards", "lay_out", "plan_of_shards"]

_QUERIES, _OUTPUT, _LSE = range(2**16, 2**16 + 12, 4)  # tags of what is moved to another rank, two each


class Sharded(Backend):
    """Sequences that are sharded over processes: each rank computes its rows with the keys of one rank after another.

    q, k and v are DTensors with Shard along the sequence on one axis of a DeviceMesh (Liu et al. 2023, Ring Attention,
    arXiv:2310.01889). Blocks that the mask leaves empty are neither computed nor sent; parts of rows are merged by
    their sums, and each rank computes its part in strips, as the backend strips does.
    """

    name = "sharded"
    experimental = "on GPUs and over a network: it was run with gloo, on the CPUs of one machine"
    lacks: ClassVar = DERIVATIVES | {
        "weights": "no rank has all weights of a row",
        "normalizer of whole rows": "it does not know how to merge {}",
        "mapped mask": "it cannot plan for a mask that torch.func.vmap maps over",
        "torch.func": "it does not run inside torch.func",
        "compiling": "it does not run in compiled code",
    }

    def limits(self, problem: Problem) -> str | None:
        """A problem of plain tensors has no shards (see `attend_shards`)."""
        return "q, k and v are no DTensors that are sharded along the sequence"

    def cost(self, problem: Problem) -> float:
        """Never less than that of one process."""
        return float("inf")

    def bytes(self, problem: Problem) -> int:
        """As it refuses whole tensors, nothing."""
        return 0

    def refuses_shards(self, problem: Problem) -> str | None:
        """Say why it cannot compute a call whose tensors are sharded, or None."""
        return None if (said := self.refuses(problem)) == self.limits(problem) else said


@dataclass(frozen=True, eq=False)
class Shard:
    """What this rank has of a call, besides the call itself.

    Args:
        q: The queries of this rank (batch, heads, rows, dim), in the order of `queries`.
        k: Its keys (batch, kv_heads, columns, key_dim), in the order of `keys`.
        v: Its values.
        queries: Which rows of the sequence each rank has.
        keys: Which keys each rank has.
        slab: The sequences and heads that this rank has.
        exchange: The ranks that share the sequence.
        summed: Over which groups the gradients of what score, biases and normalizer hold are summed.
        moves_rows: Whether rows may be computed on another rank where that evens the work.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    queries: SequenceLayout
    keys: SequenceLayout
    slab: Slab
    exchange: Exchange
    summed: tuple[Exchange, ...]
    moves_rows: bool = True

    def with_own_queries(self) -> "Shard":
        """The same where each rank takes a span of the queries, of which every rank has all."""
        own = contiguous(self.q.shape[2], self.exchange.ranks)
        return replace(self, q=self.q[:, :, own.positions(self.exchange.rank).to(self.q.device)], queries=own)


@run_eagerly
def attend_shards(whole: Problem, shard: Shard, rotary: Rotary | None) -> Answer:
    """Compute this rank's rows of a call.

    Args:
        whole: The call over the whole sequence, checked; its q, k and v are never read.
        shard: What this rank has of it.
        rotary: What turns q and k first.

    Raises:
        InputError: The backend `sharded` cannot run this call.
    """
    call, q, k = lay_out(whole, shard, rotary)
    plan = call.plan
    with torch.autocast(q.device.type, enabled=False):
        output, *sums = AttendInRounds.apply(call, q, k, shard.v, *held_by(whole))  # type: ignore[no-untyped-call]
    output = _relaid(output.to(whole.q.dtype), plan.queries, plan.stored, shard.exchange, _OUTPUT)
    if not whole.wants_lse:
        return Answer(output)
    return Answer(output, None, _relaid(Sums(*sums).logarithm, plan.queries, plan.stored, shard.exchange, _LSE))


def lay_out(whole: Problem, shard: Shard, rotary: Rotary | None) -> tuple[ShardedCall, Tensor, Tensor]:
    """Plan a call, and give the queries that this rank computes, in the order of the plan, and its keys, both turned.

    Raises:
        InputError: The backend `sharded` cannot run this call.
    """
    q, k = _checked(whole, shard, rotary)
    plan = plan_of_shards(whole, shard)
    q = _relaid(q, plan.stored, plan.queries, shard.exchange, _QUERIES)
    return ShardedCall(_hollow(whole), shard.slab, plan, shard.exchange, shard.summed), q, k


@run_eagerly
def attend_replicated(whole: Problem, shard: Shard, rotary: Rotary | None) -> Answer:
    """Compute a call of which every rank has all queries, as in decoding: ranks attend to their own keys and merge.

    Args:
        whole: The call over the whole sequence, checked; its q, k and v are never read.
        shard: What this rank has of it: all rows, which `queries` lists for each rank.
        rotary: What turns q and k first.

    Raises:
        InputError: The backend `sharded` cannot run this call, or gradients are wanted.
    """
    q, k = _checked(whole, shard, rotary)
    parts = q, k, shard.v, *held_by(whole)
    if torch.is_grad_enabled() and any(one.requires_grad for one in parts):
        raise InputError(
            "queries that every rank has whole are for decoding, without gradients: shard q along its sequence too, or "
            "use torch.no_grad()"
        )
    plan = plan_replicated(_mask_of(whole, shard.slab), shard.queries, shard.keys)
    call = ShardedCall(_hollow(whole), shard.slab, plan, shard.exchange, ())
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        wide = call.over(held_by(whole))
        rows = merged(*call.partial(wide, q, k, shard.v), shard.exchange, whole.normalizer)
        output, sums = call.with_sink(wide, *rows)
    return Answer(output.to(whole.q.dtype), None, sums.logarithm if whole.wants_lse else None)


def _checked(whole: Problem, shard: Shard, rotary: Rotary | None) -> tuple[Tensor, Tensor]:
    """The queries and keys of this rank, turned by `rotary`."""
    if (reason := Sharded().refuses_shards(whole)) is not None:
        raise InputError(f"the backend 'sharded' cannot run this call: {reason}")
    if rotary is None:
        return shard.q, shard.k
    rotary = _of_sequences(rotary.resolve(whole.queries, whole.keys, whole.q_offset), shard.slab)
    rank, device = shard.exchange.rank, shard.q.device
    q = rotary.rotate(shard.q, shard.queries.positions(rank).to(device) + whole.q_offset)
    return q, rotary.rotate(shard.k, shard.keys.positions(rank).to(device))


def plan_of_shards(whole: Problem, shard: Shard) -> ShardPlan:
    """Plan a call for the sequences and heads of this rank."""
    return plan_shards(_mask_of(whole, shard.slab), shard.queries, shard.keys, moves_rows=shard.moves_rows)


def _relaid(x: Tensor, source: SequenceLayout, target: SequenceLayout, exchange: Exchange, tag: int) -> Tensor:
    if source == target:
        return x
    moved: Tensor = Relayout.apply(x, source, target, exchange, tag)  # type: ignore[no-untyped-call]
    return moved


def _mask_of(whole: Problem, slab: Slab) -> BoundMask | None:
    """The mask for the sequences and heads of this rank."""
    if whole.mask is None or (slab.batches == whole.batch and slab.heads == whole.heads):
        return whole.mask
    mask = PlacedMask(whole.mask.mask, slab.batch, slab.batches, slab.head, slab.heads, 0)
    return replace(whole.mask, mask=mask, given=mask)


def _of_sequences(rotary: Rotary, slab: Slab) -> Rotary:
    """A rotary embedding with positions for each sequence, for those of this rank."""
    ids = getattr(rotary, "position_ids", None)
    if not isinstance(ids, Tensor) or ids.shape[0] == 1:
        return rotary
    cut: Rotary = replace(rotary, position_ids=ids[slab.batch : slab.batch + slab.batches])  # type: ignore[type-var]
    return cut


def _hollow(whole: Problem) -> Problem:
    """The same without the memory and the graphs of what its parts hold."""
    leaves, form = flatten(parts_of(whole))
    return with_parts(whole, unflatten(form, [leaf.new_empty(()).expand(leaf.shape) for leaf in leaves]))
