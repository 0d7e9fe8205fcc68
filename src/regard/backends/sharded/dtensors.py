"""DTensors: where q, k and v are sharded, and the call of attention that takes them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from regard.backends.selection import Explanation
from regard.backends.sharded.backend import Shard, Sharded, attend_replicated, attend_shards, plan_of_shards
from regard.backends.sharded.exchange import Exchange
from regard.backends.sharded.ordered_mask import OrderedMask
from regard.backends.sharded.rectangles import Slab
from regard.backends.sharded.sequence_layout import SequenceLayout, contiguous
from regard.backends.sharded.shard_plan import TensorSizes
from regard.errors import InputError
from regard.positions import Rotary
from regard.problem import Options, Problem
from regard.problem_checks import four_dimensional
from regard.tensors import are_sharded, autocast_dtype
from regard.values import flatten, unflatten

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = ["attend_dtensors", "explain_dtensors", "read_dtensors"]


def attend_dtensors(q: Tensor, k: Tensor, v: Tensor, options: Options, backend: str) -> Tensor | tuple[Tensor, ...]:
    """Compute attention() of DTensors: the output, and the log-sum-exp if it is wanted, lie as q does.

    Raises:
        InputError: They are not sharded in a way that can be computed, or the call needs what the backend lacks.
    """
    given, whole, shard, options = _read(q, k, v, options, backend)
    given.share_seed(whole)
    attend = attend_replicated if given.is_replicated else attend_shards
    answer = attend(whole, shard, options["rotary"])
    output = given.restore(answer.output.to(autocast_dtype(q)), whole.v.shape[-1])
    return output if answer.lse is None else (output, given.restore(answer.lse))


def explain_dtensors(q: Tensor, k: Tensor, v: Tensor, options: Options, backend: str) -> Explanation:
    """Explain a call of DTensors: why it is refused, or what the ranks compute and send."""
    _, whole, shard, _ = _read(q, k, v, options, backend)
    if (reason := Sharded().refuses_shards(whole)) is not None:
        return Explanation(None, (("sharded", reason),), (), 0, 0, 0.0, "sharded")
    plan = plan_of_shards(whole, shard)
    b, h, _, d = shard.q.shape
    sizes = TensorSizes(b, h, shard.k.shape[1], d, shard.k.shape[3], shard.v.shape[3], shard.q.element_size())
    pairs = plan.work.of(range(whole.queries)) * whole.batch * whole.heads
    flops = int(2 * pairs * (whole.q.shape[-1] + whole.v.shape[-1]))
    share = plan.work.of(range(whole.queries)) / (whole.queries * whole.keys)
    most = max(max(plan.keys_needed(rank, owner) for owner in range(plan.ranks)) for rank in range(plan.ranks))
    return Explanation("sharded", (), (), flops, 2 * most * sizes.key_bytes, share, backend, tuple(plan.summary(sizes)))


def read_dtensors(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Problem, Shard, Rotary | None]:
    """Give the call over the whole sequence, what this rank has of it, with some queries for each, and its rotary."""
    given, whole, shard, options = _read(q, k, v, options, "auto")
    return whole, shard.with_own_queries() if given.is_replicated else shard, options["rotary"]


def _read(
    q: Tensor, k: Tensor, v: Tensor, options: Options, backend: str
) -> tuple["ShardedTensors", Problem, Shard, Options]:
    """Check a call of DTensors: where they lie, the call over the whole sequence, and what this rank has of it."""
    if backend not in ("auto", "sharded"):
        raise InputError(
            f'`backend` must be "auto" or "sharded" where q, k and v are DTensors, got {backend!r}: '
            "q.full_tensor() gives a whole tensor"
        )
    given = ShardedTensors.of(q, k, v)
    ordered: object = options["mask"]
    order = ordered.layout if isinstance(ordered, OrderedMask) else None
    options = _with_whole_parts({**options, "mask": ordered.mask} if isinstance(ordered, OrderedMask) else options)
    whole = Problem.of(*given.hollow(), turn=False, **options)
    return given, whole, given.shard(whole, order), options


@dataclass(frozen=True, eq=False)
class ShardedTensors:
    """q, k and v as DTensors, checked: where the sequence is sharded, and what this rank has."""

    q: "DTensor"
    k: "DTensor"
    v: "DTensor"
    axis: int | None  # of the mesh, along which the sequence is sharded

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> "ShardedTensors":
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
        learns = torch.is_grad_enabled() and any(one.requires_grad for one in (q, k, v))
        if axis is not None:
            k, v = _along(k, axis), _along(v, axis)
            q = _along(q, axis) if learns or axes[0] is not None else q
        return cls(q, k, v, axis)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has all queries, and some of the keys."""
        return self.axis is not None and _axis_of(self.q, -2) is None

    def hollow(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors of the whole shapes, without memory, that ask for gradients where the DTensors do."""
        q, k, v = (
            one.to_local().new_empty((), requires_grad=one.requires_grad).expand(one.shape)
            for one in (self.q, self.k, self.v)
        )
        return q, k, v

    def shard(self, whole: Problem, order: SequenceLayout | None) -> Shard:
        """What this rank has of the call; `order`: in which order the sequences lie, if not in their own."""
        mesh = self.q.device_mesh
        q, k, v = (four_dimensional("q", one.to_local()) for one in (self.q, self.k, self.v))
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
            layouts[0] = SequenceLayout(((range(self.q.shape[-2]),),) * exchange.ranks)
        starts = _starts(self.q)
        batch = starts[0] * (whole.batch // max(1, self.q.shape[0])) if self.q.ndim > 2 else 0
        head = starts[-3] if self.q.ndim > 3 else 0
        slab = Slab(batch, q.shape[0], head, q.shape[1])
        if q.shape[1] * whole.kv_heads != k.shape[1] * whole.heads:
            raise InputError(
                f"the {whole.heads} heads of q and the {whole.kv_heads} of k must be sharded so that each rank has the "
                f"keys of its queries, got {q.shape[1]} and {k.shape[1]} on this one: take fewer ranks for heads"
            )
        over = [axis for axis, one in enumerate(self.q.placements) if one.is_shard()]
        summed = tuple(_exchange(mesh, axis) for axis in over)
        return Shard(q, k, v, layouts[0], layouts[1], slab, exchange, summed)

    def share_seed(self, whole: Problem) -> None:
        """Give the dropout of all ranks the seed of the first one."""
        if whole.dropout is not None:
            for axis in range(self.q.device_mesh.ndim):
                _exchange(self.q.device_mesh, axis).share(whole.dropout.seed)

    def restore(self, rows: Tensor, *width: int) -> "DTensor":
        """Rows (batch, heads, rows, ...) of this rank as a DTensor that lies as q does."""
        from torch.distributed.tensor import DTensor

        local = rows.reshape(*self.q.to_local().shape[:-1], *width)
        shape = torch.Size((*self.q.shape[:-1], *width))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local, self.q.device_mesh, self.q.placements, run_check=False, shape=shape, stride=stride
        )


def _with_whole_parts(options: Options) -> Options:
    """The options of a call with plain tensors in the place of DTensors."""
    given: dict[str, Any] = dict(options)
    for name, one in given.items():
        leaves, form = flatten(one)
        if any(map(are_sharded, leaves)):
            given[name] = unflatten(form, [_whole(leaf) for leaf in leaves])
    return cast(Options, given)


def _whole(x: Tensor) -> Tensor:
    whole: Tensor = x.full_tensor() if are_sharded(x) else x  # type: ignore[attr-defined]
    return whole


def _check_placements(name: str, x: "DTensor") -> None:
    places = {x.ndim - 2} | ({0} if x.ndim > 2 else set()) | ({x.ndim - 3} if x.ndim > 3 else set())
    for placement in x.placements:
        if placement.is_partial():
            raise InputError(
                f"`{name}` must be Shard or Replicate on each axis of the mesh, got {placement}: reduce it"
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
    return x.redistribute(placements=placements)


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
