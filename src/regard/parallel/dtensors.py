"""DTensors: where q, k and v are sharded, and the call of attention that takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from regard.backends import Explanation, Strips
from regard.checks import check_count
from regard.errors import InputError
from regard.hooks import are_sharded
from regard.parallel.attend import attend as attend_sharded
from regard.parallel.attend import reason_against
from regard.parallel.exchange import Exchange, together
from regard.parallel.sequence_layout import OrderedMask, SequenceLayout, contiguous, replicated
from regard.parallel.shard_plan import TensorSizes
from regard.parallel.sharded_call import ShardedCall
from regard.positions import Rotary
from regard.problem import Options, Problem
from regard.problem_checks import four_dimensional, learns
from regard.tensors import autocast_dtype
from regard.values import flatten, unflatten

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = ["Local", "attend", "check_backend", "explain", "hollow_like", "read", "strides_of", "whole_of"]

BACKENDS = ("auto", "strips")  # what computes the rows of each rank


@dataclass(frozen=True, eq=False)
class Local:
    """A call over ranks, and what this rank has of it: q (batch, heads, rows, dim), k, v, and what turns q and k."""

    call: ShardedCall
    q: Tensor
    k: Tensor
    v: Tensor
    rotary: Rotary | None

    def with_own_queries(self) -> "Local":
        """The same where each rank takes a span of the queries, of which every rank has all."""
        if not self.call.is_replicated:
            return self
        own = contiguous(self.q.shape[2], self.call.exchange.ranks)
        mine = own.positions(self.call.rank).to(self.q.device)
        return replace(self, call=replace(self.call, queries=own, is_replicated=False), q=self.q[:, :, mine])


def attend(q: Tensor, k: Tensor, v: Tensor, options: Options, backend: str) -> Tensor | tuple[Tensor, ...]:
    """Compute attention() of DTensors: the output, and the log-sum-exp if it is wanted, lie as q does.

    Raises:
        InputError: They are not sharded in a way that can be computed, or the call needs what ranks cannot compute.
    """
    given, local = _read(q, k, v, options, backend)
    whole = local.call.whole
    if whole.dropout is not None:
        for axis in range(given.q.device_mesh.ndim):
            _exchange(given.q.device_mesh, axis).share(whole.dropout.seed)
    answer = attend_sharded(local.call, local.q, local.k, local.v, local.rotary)
    output = given.restore(answer.output.to(autocast_dtype(q)), whole.v.shape[-1])
    return output if answer.lse is None else (output, given.restore(answer.lse))


def read(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Local:
    """Check a call of DTensors, and give what this rank has of it, with some of the queries for each."""
    return _read(q, k, v, options, "auto")[1].with_own_queries()


def explain(q: Tensor, k: Tensor, v: Tensor, options: Options, backend: str, ranks: int | None) -> Explanation:
    """Explain a call of DTensors, or of whole tensors whose sequence would be sharded over so many ranks, in order:
    why it is refused, or what the ranks compute and send.

    Raises:
        InputError: `ranks` is no number of processes, or q, k and v are sharded already.
    """
    if ranks is None:
        return _explained(_read(q, k, v, options, backend)[1].call, backend)
    if are_sharded(q, k, v) or any(isinstance(x, Tensor) and x.is_nested for x in (q, k, v)):
        raise InputError(
            "`ranks` is for whole tensors, which may be on the device meta: of DTensors leave it out, and of nested "
            "tensors give the packed sequence with masks.Document"
        )
    check_backend(backend, "over several ranks")
    check_count("ranks", ranks, 1, "is the number of processes that share the sequence")
    whole = Problem.of(q, k, v, turn=False, **_with_whole_parts(options))
    queries, keys = (contiguous(length, ranks) for length in (whole.queries, whole.keys))
    return _explained(ShardedCall(whole, whole.everything, queries, keys, Exchange.alone()), backend)


def check_backend(backend: str, where: str) -> None:
    """Raise an InputError unless this names what computes the rows of each rank."""
    if backend not in BACKENDS:
        raise InputError(f'`backend` must be "auto" or "strips" {where}, got {backend!r}')


def hollow_like(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of this shape without memory, which asks for gradients where x does."""
    return x.new_empty((), requires_grad=x.requires_grad).expand(*shape)


def _explained(call: ShardedCall, backend: str) -> Explanation:
    whole = call.whole
    if (reason := reason_against(whole)) is not None:
        return Explanation(None, (("strips", f"over several ranks, {reason}"),), (), 0, 0, 0.0, "strips")
    plan, sizes = call.plan, TensorSizes.of(whole, call.area)
    pairs = plan.work.of(range(whole.queries))
    flops = int(2 * pairs * whole.batch * whole.heads * (whole.q.shape[-1] + whole.v.shape[-1]))
    pairs_of_ranks = permutations(range(plan.ranks), 2)
    most = max((plan.keys_needed(rank, owner) for rank, owner in pairs_of_ranks), default=0)
    share = pairs / max(1, whole.queries * whole.keys)
    rows, keys = max(plan.queries.sizes, default=0), max(plan.keys.sizes, default=0)
    q, k, v = (
        hollow_like(x.detach(), (sizes.batch, heads, length, x.shape[3]))
        for x, heads, length in (
            (whole.q, sizes.heads, rows), (whole.k, sizes.kv_heads, keys), (whole.v, sizes.kv_heads, keys),
        )
    )  # fmt: skip
    needs = Strips().bytes(replace(whole, q=q, k=k, v=v)) + 2 * most * sizes.key_bytes
    lines = tuple(plan.summary(sizes))
    return Explanation("strips", (), (), flops, needs, share, backend, lines, block=plan.block)


def _read(q: Tensor, k: Tensor, v: Tensor, options: Options, backend: str) -> tuple["ShardedTensors", Local]:
    """Check a call of DTensors: where they lie, and what this rank has of it."""
    check_backend(backend, "where q, k and v are DTensors (q.full_tensor() is a whole tensor)")
    given = ShardedTensors.of(q, k, v, options)
    ordered: object = options["mask"]
    order = ordered.layout if isinstance(ordered, OrderedMask) else None
    options = _with_whole_parts({**options, "mask": ordered.mask} if isinstance(ordered, OrderedMask) else options)
    whole = Problem.of(*given.hollow(), turn=False, **options)
    return given, given.local(whole, order, options["rotary"])


@dataclass(frozen=True, eq=False)
class ShardedTensors:
    """q, k and v as DTensors, checked: where the sequence is sharded, and what this rank has."""

    q: "DTensor"
    k: "DTensor"
    v: "DTensor"
    axis: int | None  # of the mesh, along which the sequence is sharded

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, options: Options) -> "ShardedTensors":
        """Check three DTensors; raise an InputError that names the rule, the value and the way out."""
        from torch.distributed.tensor import DTensor

        for name, one in (("q", q), ("k", k), ("v", v)):
            if not isinstance(one, DTensor):
                raise InputError(
                    f"q, k and v must all be DTensors or none of them, got a {type(one).__name__} for `{name}`: "
                    "distribute it with torch.distributed.tensor.distribute_tensor"
                )
            if one.device_mesh != q.device_mesh:  # type: ignore[attr-defined]
                raise InputError(f"q, k and v must be on one mesh, got {one.device_mesh} for `{name}`")
            if one.ndim < 2:
                raise InputError(f"`{name}` must have at least two dimensions where it is a DTensor, got {one.ndim}")
            _check_placements(name, one)
        assert isinstance(q, DTensor)
        assert isinstance(k, DTensor)
        assert isinstance(v, DTensor)
        axes = [_axis_of(one, -2) for one in (q, k, v)]
        axis = next((one for one in axes if one is not None), None)
        if any(one not in (axis, None) for one in axes):
            raise InputError(
                f"the sequences of q, k and v must be sharded along one axis of the mesh, got axes {axes}: "
                "redistribute them alike"
            )
        for name, one in (("k", k), ("v", v)):
            if _leading(one) != _leading(q):
                raise InputError(
                    f"`{name}` must be sharded over sequences and heads as `q` is ({q.placements}), got "
                    f"{one.placements}: redistribute it"
                )
        if axis is None:
            return cls(q, k, v, axis)
        moves_q = axes[0] is None and learns(q, k, v, *options.values())
        moved = [
            name for name, one, moves in zip("qkv", axes, (moves_q, True, True), strict=True) if one is None and moves
        ]
        if moved and isinstance(options["mask"], OrderedMask):
            raise InputError(
                f"with a mask of shard_sequence, `{moved[0]}` must be sharded by shard_sequence too, got it whole on "
                "every rank, in an order that is not known"
            )
        return cls(_along(q, axis) if moves_q else q, _along(k, axis), _along(v, axis), axis)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has all queries, and some of the keys."""
        return self.axis is not None and _axis_of(self.q, -2) is None

    def hollow(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors of the whole shapes, without memory, that ask for gradients where the DTensors do."""
        q, k, v = (hollow_like(one.to_local(), one.shape) for one in (self.q, self.k, self.v))
        return q, k, v

    def local(self, whole: Problem, order: SequenceLayout | None, rotary: Rotary | None) -> Local:
        """What this rank has of the call; `order`: in which order the sequences lie, if not in their own."""
        mesh = self.q.device_mesh
        q, k, v = (four_dimensional(name, getattr(self, name).to_local()) for name in "qkv")
        exchange = _exchange(mesh, self.axis)
        layouts = [contiguous(one.shape[-2], exchange.ranks) for one in (self.q, self.k)]
        if order is not None:
            if any(one.sizes != order.sizes for one in layouts):
                raise InputError(
                    f"a mask of shard_sequence is for {order.length} tokens on {order.ranks} ranks, got "
                    f"{self.q.shape[-2]} queries and {self.k.shape[-2]} keys on {exchange.ranks}"
                )
            layouts = [order, order]
        if self.is_replicated:
            layouts[0] = replicated(self.q.shape[-2], exchange.ranks)
        for name, x, layout in (("q", q, layouts[0]), ("k", k, layouts[1]), ("v", v, layouts[1])):
            if x.shape[2] != layout.sizes[exchange.rank]:
                raise InputError(
                    f"`{name}` must be cut as torch.chunk cuts, into {layout.sizes} tokens, got {x.shape[2]} on rank "
                    f"{exchange.rank}: make it by distribute_tensor"
                )
        by_heads = [mesh.size(axis) for axis, one in enumerate(self.q.placements) if one.is_shard(self.q.ndim - 3)]
        by_heads = by_heads if self.q.ndim > 3 else []
        _check_groups(whole, by_heads)
        starts = _starts(self.q)
        batch = starts[0] * (whole.batch // max(1, self.q.shape[0])) if self.q.ndim > 2 else 0
        head = starts[-3] if self.q.ndim > 3 else 0
        own = slice(batch, batch + q.shape[0]), slice(head, head + q.shape[1])
        area = replace(whole.everything, batch=own[0], heads=own[1])
        summed = tuple(_exchange(mesh, axis) for axis, one in enumerate(self.q.placements) if one.is_shard())
        call = ShardedCall(whole, area, layouts[0], layouts[1], exchange, summed, self.is_replicated)
        return Local(call, q, k, v, rotary)

    def restore(self, rows: Tensor, *width: int) -> "DTensor":
        """Rows (batch, heads, rows, ...) of this rank as a DTensor that lies as q does."""
        from torch.distributed.tensor import DTensor

        local = rows.reshape(*self.q.to_local().shape[:-1], *width)
        shape = torch.Size((*self.q.shape[:-1], *width))
        stride = strides_of(shape)
        return DTensor.from_local(
            local, self.q.device_mesh, self.q.placements, run_check=False, shape=shape, stride=stride
        )


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a tensor of one piece."""
    return torch.empty(shape, device="meta").stride()


def _with_whole_parts(options: Options) -> Options:
    """The options of a call with plain tensors in the place of DTensors."""
    given: dict[str, Any] = dict(options)
    for name, one in given.items():
        leaves, form = flatten(one)
        if any(map(are_sharded, leaves)):
            whole = [whole_of(leaf) if are_sharded(leaf) else leaf for leaf in leaves]
            given[name] = unflatten(form, whole)
    return cast(Options, given)


def whole_of(x: "DTensor") -> Tensor:
    """The whole tensor, on every rank.

    Raises:
        RankError: A rank is gone.
    """
    return together(x.device_mesh.mesh.flatten().tolist(), x.full_tensor)


def _check_placements(name: str, x: "DTensor") -> None:
    from torch.distributed.tensor import Replicate, Shard

    places = {x.ndim - 2} | ({0} if x.ndim > 2 else set()) | ({x.ndim - 3} if x.ndim > 3 else set())
    for placement in x.placements:
        if type(placement) not in (Shard, Replicate):
            raise InputError(
                f"`{name}` must be Shard or Replicate on each axis of the mesh, got {placement}: redistribute it"
            )
        if placement.is_shard() and placement.dim % x.ndim not in places:  # type: ignore[attr-defined]
            raise InputError(
                f"`{name}` must be sharded along its sequence, its heads or its first dimension, got {placement} of "
                f"{x.ndim} dimensions: redistribute it"
            )
    if sum(one.is_shard(x.ndim - 2) for one in x.placements) > 1:
        raise InputError(f"the sequence of `{name}` must be sharded along one axis of the mesh, got {x.placements}")


def _axis_of(x: "DTensor", dim: int) -> int | None:
    return next((axis for axis, one in enumerate(x.placements) if one.is_shard(x.ndim + dim)), None)


def _leading(x: "DTensor") -> list[int | None]:
    """Which dimension each axis of the mesh shards, without the sequence."""
    return [one.dim if one.is_shard() and not one.is_shard(x.ndim - 2) else None for one in x.placements]  # type: ignore[attr-defined]


def _along(x: "DTensor", axis: int) -> "DTensor":
    """The same with its sequence sharded along this axis."""
    from torch.distributed.tensor import Shard as Along

    if x.placements[axis].is_shard(x.ndim - 2):
        return x
    placements = [Along(x.ndim - 2) if at == axis else one for at, one in enumerate(x.placements)]
    ranks = x.device_mesh.mesh.flatten().tolist()
    return cast("DTensor", together(ranks, lambda: x.redistribute(placements=placements)))


def _check_groups(whole: Problem, over: Sequence[int]) -> None:
    """Raise on all ranks where one has not the keys of its queries, with heads over axes of these sizes: no rank may
    wait for one that refused.
    """
    group = whole.heads // max(1, whole.kv_heads)
    shares = (_shares(range(count), over) for count in (whole.heads, whole.kv_heads))
    for rank, (own, shared) in enumerate(zip(*shares, strict=True)):
        if len(own) and (own.start, own.stop) != (shared.start * group, shared.stop * group):
            raise InputError(
                f"the {whole.heads} heads of q and the {whole.kv_heads} of k must be sharded so that each rank has the "
                f"keys of its queries, got {len(own)} and {len(shared)} on rank {rank} of these: take fewer ranks for "
                "heads"
            )


def _shares(whole: range, over: Sequence[int]) -> list[range]:
    """The part of each rank where something is sharded over axes of these sizes, one after the other."""
    if not over:
        return [whole]
    each = -(-len(whole) // over[0])
    parts = [whole[min(at * each, len(whole)) : (at + 1) * each] for at in range(over[0])]
    return [share for part in parts for share in _shares(part, over[1:])]


def _starts(x: "DTensor") -> list[int]:
    """The index of this rank's first number along each dimension."""
    starts, sizes = [0] * x.ndim, list(x.shape)
    coordinates = x.device_mesh.get_coordinate()
    assert coordinates is not None
    for axis, one in enumerate(x.placements):
        if one.is_shard():
            dim: int = one.dim  # type: ignore[attr-defined]
            each = -(-sizes[dim] // x.device_mesh.size(axis))
            start = min(coordinates[axis] * each, sizes[dim])
            starts[dim], sizes[dim] = starts[dim] + start, min(each, sizes[dim] - start)
    return starts


def _exchange(mesh: "DeviceMesh", axis: int | None) -> Exchange:
    return Exchange.alone() if axis is None else Exchange.of(mesh.get_group(axis))
