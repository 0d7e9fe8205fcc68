"""A watched call of a sequence that is sharded over ranks: each rank computes the whole rows of some heads.

First the ranks exchange parts of the sequence for heads: each sends its queries and keys of another's heads, and gets
those of its own heads, of all tokens (all-to-all, as in Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509). So
statistics meet the rows that they meet in one process. Afterwards `joined` puts the results of all heads together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ObservationError
from regard.observe.call_kinds import CallFromQK, rows_of
from regard.observe.watched_call import SHARDED, Rows, WatchedCall
from regard.observe.weigh import hiding, weigh_heads
from regard.observe.weight_rows import Plan, RowBlock
from regard.parallel.attend import turned
from regard.parallel.dtensors import Local
from regard.parallel.exchange import Exchange
from regard.parallel.sequence_layout import SequenceLayout
from regard.parallel.sharded_call import ShardedCall
from regard.problem import Problem
from regard.record.kept_qk import Kept

__all__ = ["CallFromShards"]

_QUERIES, _KEYS = 2**17, 2**17 + 1  # tags of what is sent


@dataclass(eq=False, kw_only=True)
class CallFromShards(CallFromQK):
    """A call of a sharded sequence: its sizes are those of the whole, its rows those of this rank's heads.

    `problem` is the whole call, whose q, k and v have no memory; `q`, `k` and `local_v` are those of this rank's tokens
    in the order of `call.queries` and `call.keys`. `groups` are the ranks that have other parts of the call.
    """

    is_sharded = True

    call: ShardedCall
    q: Float[Tensor, "own_batch own_heads own_queries dim"]
    k: Float[Tensor, "own_batch own_kv_heads own_keys key_dim"]
    local_v: Float[Tensor, "own_batch own_kv_heads own_keys value_dim"]
    groups: tuple[Exchange, ...] = field(default=())
    _own: Problem | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        problem = self.problem = hiding(self.problem.with_wide_parts())
        # NaN is no key's mark: a sharded call does not go on where another ended.
        self.marks = self.k.new_full((), torch.nan).expand(problem.batch, problem.heads, problem.keys, 1)
        self.batch, self.heads, self.queries, self.keys = problem.batch, problem.heads, problem.queries, problem.keys
        self.project = partial(self._gathered, self.local_v, self.call.keys, problem.kv_heads)

    @classmethod
    def of(cls, local: Local, *, is_bound: bool) -> Self:
        """Return what this rank has of a call, which all ranks of the sequence make together."""
        exchanges = (local.call.exchange, *local.call.summed)
        groups = {exchange.group: exchange for exchange in exchanges if exchange.ranks > 1}
        _, q, k = turned(local.call, local.q, local.k, local.rotary)
        return cls(
            problem=local.call.whole,
            call=local.call,
            q=q,
            k=k,
            local_v=local.v,
            groups=tuple(groups.values()),
            is_bound=is_bound,
        )

    @property
    def own(self) -> Problem:
        """The call with the queries and keys of this rank's heads, which `with_rows` gives."""
        assert self._own is not None
        return self._own

    @property
    def places(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Which sequence and head of the record each sequence and head of `own` is."""
        batch = self.call.area.batch
        return {
            (batch_index - batch.start, head): (batch_index, recorded)
            for batch_index in range(batch.start, batch.stop)
            for head, (recorded, _) in enumerate(self._heads_of(self.call.rank))
        }

    def with_rows(self, *, by_head: bool) -> CallFromQK:
        """Return the call with whole rows: those of this rank's heads, or those of all heads on every rank."""
        if not by_head:
            return self._whole()
        problem, group, rank = self.problem, self.problem.heads // self.problem.kv_heads, self.call.rank
        first = self.call.area.heads.start
        heads = [[head for _, head in self._heads_of(peer)] for peer in range(self.call.exchange.ranks)]
        kv_heads = [sorted({head // group for head in some}) for some in heads]
        q = self._sent([[head - first for head in some] for some in heads], self.q, self.call.queries, _QUERIES)
        k = self._sent([[head - first // group for head in some] for some in kv_heads], self.k, self.call.keys, _KEYS)
        if len(heads[rank]) != group * len(kv_heads[rank]):  # not all heads of a group
            k = k[:, [kv_heads[rank].index(head // group) for head in heads[rank]]]
        return self.having(_own=replace(problem, q=q, k=k, v=k))

    def _heads_of(self, rank: int) -> list[tuple[int, int]]:
        """Return the heads whose rows a rank computes, each after its number in the record."""
        area, ranks = self.call.area.heads, self.call.exchange.ranks
        numbers = range(self.problem.heads) if self.head_numbers is None else self.head_numbers
        here = [(recorded, head) for recorded, head in enumerate(numbers) if area.start <= head < area.stop]
        return here[len(here) * rank // ranks : len(here) * (rank + 1) // ranks]

    def _sent(self, heads: Sequence[list[int]], x: Tensor, layout: SequenceLayout, tag: int) -> Tensor:
        """Send each rank this rank's part of its heads, and return all parts of this rank's heads."""
        exchange, own = self.call.exchange, heads[self.call.rank]
        others = [peer for peer in range(exchange.ranks) if peer != exchange.rank]
        arriving = {peer: x.new_empty(len(x), len(own), layout.sizes[peer], x.shape[-1]) for peer in others}
        pending = exchange.post({peer: x[:, heads[peer]].contiguous() for peer in others}, arriving, tag)
        whole = x.new_empty(len(x), len(own), layout.length, x.shape[-1])
        whole[:, :, layout.positions(exchange.rank).to(x.device)] = x[:, own]
        pending.wait()
        for peer in others:
            whole[:, :, layout.positions(peer).to(x.device)] = arriving.pop(peer)
        return whole

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return the rows of each sequence and head of this rank."""
        problem, own = replace(self.problem, wants_lse=self.wants_lse), self.own
        plan = Plan.of(problem.mask, problem.queries, problem.keys, start, align, self.chosen_rows)
        portions: list[Callable[[], Iterator[RowBlock]]] = []
        for (at, head), (batch_index, recorded) in self.places.items():
            kv_head = head // (own.heads // own.kv_heads)
            q, k = own.q[at : at + 1, head : head + 1], own.k[at : at + 1, kv_head : kv_head + 1]
            number = recorded if self.head_numbers is None else self.head_numbers[recorded]
            heads = slice(number, number + 1), slice(recorded, recorded + 1)
            portions.append(
                partial(rows_of, problem, plan, partial(weigh_heads, problem, q, k), batch_index, *heads, start)
            )
        return portions

    def joined(self, results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the results of statistics with those of the heads that other ranks have.

        Raises:
            ObservationError: A result has no axis of heads.
        """
        return [{name: self._joined(name, result) for name, result in named.items()} for named in results]

    def _joined(self, name: str, result: Any) -> Any:
        if isinstance(result, Kept):  # q and k are those of all heads
            return replace(result, arrays={**result.arrays, "lse": self._joined(name, result.arrays["lse"])})
        array = np.asarray(result)
        if not array.ndim:  # such as the width of bins
            return result
        if array.shape[:2] != (self.batch, self.heads):
            raise ObservationError(
                f"the statistic {name!r} must give (batch, heads, ...), here ({self.batch}, {self.heads}, ...), got "
                f"shape {array.shape}: with `by_head = True` each rank of a sharded sequence has the rows of other "
                "heads; leave it out where a result is not of one head"
            )
        own: npt.NDArray[Any] = np.zeros_like(array, order="C")
        here = self.call.area.batch, [recorded for recorded, _ in self._heads_of(self.call.rank)]
        own[here] = array[here]
        raw = torch.from_numpy(own.reshape(-1).view(np.uint8)).to(self.device)
        self._join_bytes(raw)
        joined: npt.NDArray[Any] = raw.cpu().numpy().view(array.dtype).reshape(array.shape)
        return joined

    def _join_bytes(self, raw: Tensor) -> None:
        """Join bytes that are 0 on all ranks but one, whose numbers come out bit by bit."""
        for exchange in self.groups:
            exchange.sum_over(raw)

    def _whole(self) -> CallFromQK:
        """Return the call with the queries and keys of all ranks."""
        q = self._gathered(self.q, self.call.queries, self.problem.heads)
        k = self._gathered(self.k, self.call.keys, self.problem.kv_heads)
        options = {option.name: getattr(self, option.name) for option in fields(WatchedCall) if option.init}
        call = CallFromQK(replace(self.call.whole, q=q, k=k, v=k), is_bound=self.is_bound, **options)
        return call.having(heads=self.heads)

    def gathered(self) -> Problem:
        """Return the whole call with the queries and keys of all ranks."""
        return self._whole().problem

    def _gathered(self, x: Tensor, layout: SequenceLayout, heads: int) -> Float[Tensor, "batch heads length width"]:
        """Return what all ranks have of all heads and tokens."""
        area = self.call.area
        first = area.heads.start * heads // self.problem.heads
        whole = x.new_zeros(self.batch, heads, layout.length, x.shape[-1])
        here = whole[area.batch, first : first + x.shape[1]]
        here[:, :, layout.positions(self.call.rank).to(x.device)] = x
        self._join_bytes(whole.view(-1).view(torch.uint8))
        return whole

    @property
    def device(self) -> torch.device:
        """Where q and k are."""
        return self.q.device

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's q and k."""
        return self.q.nbytes + self.k.nbytes

    def weights_of(self, rows: Rows, heads: Sequence[int]) -> Float[Tensor, "batch heads rows keys"]:
        """Refuse: this rank has the rows of its own heads.

        Raises:
            ObservationError: Always.
        """
        raise ObservationError(SHARDED)
