"""A watched call of a sequence that is sharded over ranks: this rank's rows, over the keys of one rank after another.

Keys travel twice, in the rounds of the forward (`backends.sharded`). The first time gives the log-sum-exp of each row,
the second the weights of each part of a row: p_ij = softmax(s_i over the part)_j · exp(lse of the part − lse of the
row). Statistics add up what they find in parts of rows, and `all_reduce` joins what the ranks found.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.backends.sharded.autograd_function import ShardedCall
from regard.backends.sharded.backend import Shard, lay_out
from regard.backends.sharded.exchange import Exchange
from regard.backends.sharded.rectangles import problem_of
from regard.backends.sharded.sequence_layout import SequenceLayout
from regard.backends.sharded.shard_plan import ShardRectangle
from regard.capture.watched_call import WatchedCall
from regard.capture.weight_rows import RowBlock
from regard.capture.weights_from_qk import CallFromQK, visible_pairs
from regard.errors import ObservationError
from regard.normalizers import Softmax
from regard.positions import Rotary
from regard.problem import Problem

__all__ = ["CallFromShards"]

_EMPTY_ROWS = 1024  # rows that see nothing, in one block


@dataclass(eq=False)
class CallFromShards(WatchedCall):
    """A call of a sharded sequence: its sizes are those of the whole, its rows those that the plan puts on this rank.

    `problem` is the whole call, whose q, k and v have no memory; `q` are the queries of this rank in the order of the
    plan, `k` and `v` its keys and values. `groups` are the ranks that have other parts of the call.
    """

    is_sharded = True

    problem: Problem
    call: ShardedCall
    q: Float[Tensor, "own_batch own_heads rows dim"]
    k: Float[Tensor, "own_batch own_kv_heads columns key_dim"]
    groups: tuple[Exchange, ...] = field(default=())

    def __post_init__(self) -> None:
        problem = self.problem
        # NaN is no key's mark: a sharded call does not go on where another ended.
        self.marks = self.k.new_full((), torch.nan).expand(problem.batch, problem.heads, problem.keys, 1)
        self.batch, self.heads, self.queries, self.keys = problem.batch, problem.heads, problem.queries, problem.keys

    @classmethod
    def of(cls, whole: Problem, shard: Shard, rotary: Rotary | None) -> Self:
        """Return what this rank has of a call, which all ranks of the sequence make together."""
        groups = {one.group: one for one in (shard.exchange, *shard.summed) if one.ranks > 1}
        call, q, k = lay_out(whole, shard, rotary)
        return cls(problem=whole, call=call, q=q, k=k, v=shard.v, groups=tuple(groups.values()))

    def all_reduce(self, x: Tensor, how: Literal["sum", "max"]) -> None:
        """Join the numbers that the ranks found, in place."""
        for one in self.groups:
            (one.sum_over if how == "sum" else one.max_over)(x)

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return which pairs mask and bias leave visible."""
        return visible_pairs(self.problem, rows, columns)

    @property
    def device(self) -> torch.device:
        """Where q and k are."""
        return self.q.device

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's q and k."""
        return self.q.nbytes + self.k.nbytes

    def gathered(self) -> Problem:
        """Return the whole call with the queries and keys of all ranks."""
        heads, slab, plan = self.problem.heads, self.call.slab, self.call.plan
        group = heads // self.problem.kv_heads
        q = self._whole(self.q, heads, slab.head, plan.queries)
        k = self._whole(self.k, heads // group, slab.head // group, plan.keys)
        return replace(self.problem, q=q, k=k, v=k).prepared()

    def _whole(self, part: Tensor, heads: int, head: int, layout: SequenceLayout) -> Tensor:
        wide = torch.promote_types(part.dtype, torch.float32)  # no rank adds to another's numbers, so none is rounded
        whole = part.new_zeros(self.batch, heads, layout.length, part.shape[-1], dtype=wide)
        first = self.call.slab.batch
        here = whole[first : first + part.shape[0], head : head + part.shape[1]]
        here[:, :, layout.positions(self.call.rank).to(part.device)] = part.to(wide)
        self.all_reduce(whole, "sum")
        return whole.to(part.dtype)

    def of_values(
        self, statistic: str, compute: Callable[[Tensor], Float[Tensor, "own_batch heads columns"]]
    ) -> Float[Tensor, "batch heads keys"]:
        """Return what `compute` gives for the values of each rank, for all keys."""
        if self.call.slab.heads != self.problem.heads:
            raise ObservationError(
                f"{statistic!r} needs all heads on one rank, and those of {self._here} are sharded as its sequence is: "
                "leave it out, or shard the sequence only"
            )
        assert self.v is not None
        found = compute(self.v.detach())
        return self._whole(found.unsqueeze(-1), found.shape[1], 0, self.call.plan.keys).squeeze(-1)

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return all rows as one portion, since all ranks go through the rounds together."""
        return [partial(self._rows, start, align)]

    def _rows(self, start: int, align: int) -> Iterator[RowBlock]:
        """Yield the weights of all parts of this rank's rows."""
        totals = self._log_sum_exps(align)
        blind = torch.ones(self.queries, dtype=torch.bool, device="cpu")
        for at, rows in self._parts(align):
            blind[rows.rows] = False
            here, lse, weights = self._index(rows), rows.lse, rows.weights
            if totals is not None and lse is not None:
                weights.mul_(torch.where(lse.isposinf(), 0.0, (lse - totals[here]).exp()).unsqueeze(-1))
            inside = weights[..., : at.columns.stop - rows.key_start]
            yield self._block(rows, start + rows.start, inside, None if totals is None else totals[here])
        for rows in self._empty_rows(blind):
            lse = None if totals is None else totals[self._index(rows)]
            yield self._block(rows, start + rows.start, rows.weights, lse)

    def _log_sum_exps(self, align: int) -> Float[Tensor, "batch heads queries"] | None:
        """Return the log-sum-exp of each row of this rank, with the sink; +inf where a row sees nothing."""
        if not isinstance(self.problem.normalizer, Softmax):
            return None
        shape = self.batch, self.heads, self.queries
        totals = torch.full(shape, -torch.inf, dtype=torch.float64, device=self.device)
        for _, rows in self._parts(align):
            assert rows.lse is not None  # of a softmax
            here = self._index(rows)
            totals[here] = torch.logaddexp(totals[here], rows.lse.masked_fill(rows.lse.isposinf(), -torch.inf))
        blind = totals.isneginf()
        if (sink := self.problem.sink) is not None:
            chosen = sink if self.head_numbers is None else sink[list(self.head_numbers)]
            totals = torch.logaddexp(totals, chosen.to(totals.dtype)[:, None])
        return totals.masked_fill(blind, torch.inf)

    def _parts(self, align: int) -> Iterator[tuple[ShardRectangle, RowBlock]]:
        """Yield blocks of weights with a softmax over each rectangle alone, numbered as in the whole call."""
        first, chosen = self._heads_here
        for now in self.call.rounds(self.k, self.k[..., :0]):
            for at in self.call.plan.rectangles(self.call.rank, now.owner):
                if not len(chosen):
                    continue
                here, columns = self.call.places_of(now, at)
                k = now.k[:, :, columns]
                part = CallFromQK(problem_of(self.problem, self.call.slab, at, self.q[:, :, here], k, k))
                if self.chosen_rows is not None:
                    part.chosen_rows = frozenset(row - at.rows.start for row in self.chosen_rows if row in at.rows)
                if self.head_numbers is not None:
                    part = part.of_heads(chosen)
                for rows in part.blocks(at.rows.start, align):
                    rows.batch_index += self.call.slab.batch
                    rows.heads = slice(rows.heads.start + first, rows.heads.stop + first)
                    rows.key_start += at.columns.start
                    yield at, rows

    @property
    def _heads_here(self) -> tuple[int, tuple[int, ...]]:
        """The heads of this rank, counted from its own first one, and the index of the first among those recorded."""
        slab = self.call.slab
        recorded = self.head_numbers or tuple(range(self.problem.heads))
        here = [at for at, head in enumerate(recorded) if slab.head <= head < slab.head + slab.heads]
        return (here[0] if here else 0), tuple(recorded[at] - slab.head for at in here)

    def _empty_rows(self, blind: Bool[Tensor, " queries"]) -> Iterator[RowBlock]:
        """Yield the rows of this rank of which no key was ever computed."""
        first, chosen = self._heads_here
        heads, slab = slice(first, first + len(chosen)), self.call.slab
        own = self.call.plan.queries.positions(self.call.rank)
        rows = [row for row in own[blind[own]].tolist() if self.chosen_rows is None or row in self.chosen_rows]
        for run in _runs(rows):
            for batch_index in range(slab.batch, slab.batch + slab.batches):
                weights = torch.zeros(len(chosen), len(run), 1, dtype=self._wide, device=self.device)
                yield RowBlock(batch_index, heads, run.start, 0, weights)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, torch.float32)

    def _index(self, rows: RowBlock) -> tuple[int, slice, slice]:
        return rows.batch_index, rows.heads, rows.rows

    def _block(self, rows: RowBlock, start: int, weights: Tensor, lse: Tensor | None) -> RowBlock:
        where = rows.batch_index, rows.heads, start, rows.key_start
        return RowBlock(*where, weights, leaks=True, before_factor=lse, is_part=True)


def _runs(rows: list[int]) -> Iterator[range]:
    """Yield rows as runs of neighbours, none of them long."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1 or end - start == _EMPTY_ROWS:
            yield range(rows[start], rows[end - 1] + 1)
            start = end
