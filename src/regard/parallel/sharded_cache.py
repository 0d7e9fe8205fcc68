"""A KV cache that lies over the ranks of a mesh, for decoding against more keys than fit one process."""

from typing import TYPE_CHECKING, Unpack

from jaxtyping import Float, Int
from torch import Tensor

from regard.cache import KVCache
from regard.errors import InputError
from regard.parallel.attend import attend
from regard.parallel.dtensors import hollow_like
from regard.parallel.exchange import Exchange
from regard.parallel.sequence_layout import SequenceLayout, contiguous, replicated
from regard.parallel.sharded_call import ShardedCall
from regard.problem import InputOptions, Problem
from regard.tensors import autocast_dtype

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ShardedKVCache"]


class ShardedKVCache:
    """The keys and values of one attention over the ranks of a mesh; each rank keeps some positions.

    Every rank calls with the same new tokens. A prompt is cut into one span for each rank, and single tokens go to the
    rank that has the fewest keys. A query attends to the keys of each rank where they are; only outputs and
    log-sum-exps are exchanged, so a step sends as many bytes as the output has, whatever the length.

    Args:
        mesh: A mesh of one axis, such as mesh["sequence"].

    Raises:
        InputError: The mesh has several axes, or what is added has another shape.
    """

    def __init__(self, mesh: "DeviceMesh") -> None:
        if mesh.ndim != 1:
            raise InputError(
                f'`mesh` must have one axis, got {mesh.ndim}: take the one of the sequence, mesh["sequence"]'
            )
        self._exchange = Exchange.of(mesh.get_group())
        self._kept = KVCache()
        self._spans: list[tuple[range, ...]] = [() for _ in range(self._exchange.ranks)]
        self.length = 0

    @property
    def layout(self) -> SequenceLayout:
        """Which positions each rank has."""
        return SequenceLayout(tuple(self._spans))

    def update(
        self, k: Float[Tensor, "batch kv_heads new dim"], v: Float[Tensor, "batch kv_heads new value_dim"]
    ) -> None:
        """Add the keys and values of new tokens, which every rank gives whole."""
        new, ranks = k.shape[-2], self._exchange.ranks
        if new >= ranks:
            added = contiguous(new, ranks).spans
        else:
            sizes = self.layout.sizes
            fewest = sizes.index(min(sizes))
            added = tuple((range(new),) if rank == fewest else () for rank in range(ranks))
        mine = added[self._exchange.rank]
        part = slice(mine[0].start, mine[0].stop) if mine else slice(0, 0)
        self._kept.update(k[..., part, :], v[..., part, :])
        for rank, spans in enumerate(added):
            for one in spans:
                self._spans[rank] = _extended(self._spans[rank], range(self.length + one.start, self.length + one.stop))
        self.length += new

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these sequences of the batch, as transformers' `reorder_cache` does."""
        self._kept.reorder(rows)

    def attend(
        self, q: Float[Tensor, "batch heads queries dim"], **options: Unpack[InputOptions]
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute attention() of queries that every rank has whole, at the last positions; without gradients.

        Args:
            q: The queries.
            **options: Those of attention(): mask, bias, score, normalizer and so on.

        Raises:
            InputError: The cache is empty, gradients are wanted, or the options do not fit.
        """
        for name in options:
            if name not in InputOptions.__annotations__:
                raise TypeError(f"attend() got an unexpected keyword argument {name!r}")
        held = self._kept.held
        if held is None:
            raise InputError("the cache is empty: call update(k, v) first")
        k, v = held
        hollow = (hollow_like(x.detach(), (*x.shape[:2], self.length, x.shape[3])) for x in (k, v))
        whole = Problem.of(q, *hollow, turn=False, **options)
        if whole.dropout is not None:
            self._exchange.share(whole.dropout.seed)
        rows = replicated(q.shape[2], self._exchange.ranks)
        call = ShardedCall(whole, whole.everything, rows, self.layout, self._exchange, is_replicated=True)
        return attend(call, q, k, v, options.get("rotary")).output.to(autocast_dtype(q))


def _extended(spans: tuple[range, ...], new: range) -> tuple[range, ...]:
    """Spans with one more, joined to the last where it follows."""
    if not len(new):
        return spans
    if spans and spans[-1].stop == new.start:
        return (*spans[:-1], range(spans[-1].start, new.stop))
    return (*spans, new)
