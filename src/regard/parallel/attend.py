"""Attention over ranks: what one of them does for a call that all of them make together."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from regard.backends.attend import differentiably
from regard.backends.base import Answer
from regard.backends.strips import Strips
from regard.errors import InputError
from regard.normalizers.softmax import Sums
from regard.parallel.exchange import Exchange, redistribute
from regard.parallel.rounds import Rounds, merged
from regard.parallel.sequence_layout import SequenceLayout
from regard.parallel.sharded_call import ShardedCall
from regard.positions import Rotary
from regard.problem import Problem, held_by, parts_of, with_parts
from regard.tensors import run_eagerly
from regard.values import flatten, unflatten

__all__ = ["attend", "reason_against", "turned"]

_QUERIES, _OUTPUT, _LSE = range(2**16, 2**16 + 12, 4)  # tags of what is moved to another rank, two each


class _OfRanks(Strips):
    """What `strips` cannot do where each rank computes its rows by it with the keys of one rank after another."""

    lacks: ClassVar[dict[str, str]] = Strips.lacks | {
        "weights": "no rank has all weights of a row",
        "normalizer of whole rows": "it does not know how to merge {}",
    }


def reason_against(whole: Problem) -> str | None:
    """Say why ranks cannot compute a call together, or None."""
    return _OfRanks().refuses(whole)


@run_eagerly
def attend(call: ShardedCall, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary | None) -> Answer:
    """Compute this rank's rows of a call: those of the whole sequence where every rank has all queries, as in decoding.

    After Liu et al. 2023, Ring Attention, arXiv:2310.01889, with the rounds that the mask leaves.

    Args:
        call: The call.
        q: The queries of this rank (batch, heads, rows, dim), in the order of `call.queries`.
        k: Its keys (batch, kv_heads, columns, key_dim), in the order of `call.keys`.
        v: Its values (batch, kv_heads, columns, value_dim).
        rotary: What turns q and k first.

    Raises:
        InputError: Ranks cannot compute this call, or every rank has all queries and gradients are wanted.
    """
    whole, leaves = call.whole, held_by(call.whole)
    call, q, k = turned(call, q, k, rotary)
    q = _relaid(q, call.plan.stored, call.plan.queries, call.exchange, _QUERIES)
    plan, exchange = call.plan, call.exchange
    wide = unflatten(flatten(parts_of(whole))[1], [_wide(leaf) for leaf in leaves])
    local = with_parts(replace(call.whole, q=q, k=k, v=v), wide)
    with torch.autocast(q.device.type, enabled=False):
        if call.is_replicated:
            return _attend_replicated(call, local)
        output, peak, total = differentiably(local, Rounds(call))
    assert peak is not None
    assert total is not None
    output = _relaid(output.to(whole.q.dtype), plan.queries, plan.stored, exchange, _OUTPUT)
    lse = _relaid(Sums(peak, total).logarithm, plan.queries, plan.stored, exchange, _LSE) if whole.wants_lse else None
    return Answer(output, None, lse)


def turned(call: ShardedCall, q: Tensor, k: Tensor, rotary: Rotary | None) -> tuple[ShardedCall, Tensor, Tensor]:
    """Give a call without memory, and the queries and keys of this rank, turned.

    Raises:
        InputError: Ranks cannot compute this call.
    """
    whole, rank = call.whole, call.rank
    if (reason := reason_against(whole)) is not None:
        raise InputError(f"a call over several ranks cannot be computed: {reason}")
    if rotary is not None:
        rotary = _of_sequences(rotary.resolve(whole.queries, whole.keys, whole.q_offset), call.area.batch)
        q = rotary.rotate(q, call.queries.positions(rank).to(q.device) + whole.q_offset)
        k = rotary.rotate(k, call.keys.positions(rank).to(q.device))
    return call.hollow, q, k


def _attend_replicated(call: ShardedCall, local: Problem) -> Answer:
    """Attend to this rank's own keys, and merge what all ranks found."""
    if torch.is_grad_enabled() and any(one.requires_grad for one in (local.q, local.k, local.v, *held_by(local))):
        raise InputError(
            "queries that every rank has whole are for decoding, without gradients: shard q along its sequence too, or "
            "use torch.no_grad()"
        )
    with torch.no_grad():
        engine, whole = Rounds(call), with_parts(call.whole, parts_of(local))
        rows = engine.partial(whole, local.q, local.k, local.v)
        output, *sums = engine.with_sink(whole, *merged(whole.normalizer, *rows, call.exchange))
    return Answer(output.to(whole.q.dtype), None, Sums(*sums).logarithm if whole.wants_lse else None)


def _wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def _of_sequences(rotary: Rotary, batch: slice) -> Rotary:
    """A rotary embedding with positions for each sequence, for some of them."""
    ids = getattr(rotary, "position_ids", None)
    if not isinstance(ids, Tensor) or ids.shape[-2] == 1:
        return rotary
    cut: Rotary = replace(rotary, position_ids=ids[..., batch, :])  # type: ignore[type-var]
    return cut


def _relaid(x: Tensor, source: SequenceLayout, target: SequenceLayout, exchange: Exchange, tag: int) -> Tensor:
    if source == target:
        return x
    moved: Tensor = _Relayout.apply(x, source, target, exchange, tag)  # type: ignore[no-untyped-call]
    return moved


class _Relayout(torch.autograd.Function):
    """The part of a sequence that another layout puts on this rank; gradients go back to where they came from."""

    @staticmethod
    def forward(
        ctx: object, x: Tensor, source: SequenceLayout, target: SequenceLayout, exchange: Exchange, tag: int
    ) -> Tensor:
        ctx.way = target, source, exchange, tag + 1  # type: ignore[attr-defined]
        return redistribute(x, 2, source, target, exchange, tag)

    @staticmethod
    def backward(ctx: object, up: Tensor) -> tuple[Tensor | None, ...]:
        return _relaid(up, *ctx.way), None, None, None, None  # type: ignore[attr-defined]
