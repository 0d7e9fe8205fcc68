"""A watched call of a sequence that is sharded over ranks: this rank's rows, over the keys of one rank after another.

Keys travel twice, in the rounds of the forward. The first time gives the sums of each row, the second the weights of
the parts of a row, by the formula with these sums. Statistics add up what they find in parts of rows, and `all_reduce`
joins what the ranks found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.backends.formula import weigh
from regard.errors import ObservationError
from regard.normalizers import Softmax
from regard.normalizers.softmax import Sums
from regard.observe.call_kinds import place_of, visible_pairs
from regard.observe.watched_call import SHARDED, Rows, WatchedCall
from regard.observe.weigh import hiding, plain_mode
from regard.observe.weight_rows import BLOCK_ELEMENTS, RowBlock
from regard.parallel.attend import lay_out
from regard.parallel.dtensors import Local
from regard.parallel.exchange import Exchange
from regard.parallel.rounds import Rounds, merge
from regard.parallel.sequence_layout import SequenceLayout
from regard.parallel.sharded_call import ShardedCall
from regard.part import Part
from regard.problem import Problem

__all__ = ["CallFromShards"]

_LONGEST = 1024  # rows of one block that see nothing, or are chosen

# A part of the call, its heads in the record, its place among this rank's rows, and its queries and keys.
_Block = tuple[Part, slice, tuple[slice, slice, slice], Tensor, Tensor]


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
    is_bound: bool = False  # whether the caller has bound the mask to a place, at which its queries stand

    def __post_init__(self) -> None:
        problem = self.problem
        # NaN is no key's mark: a sharded call does not go on where another ended.
        self.marks = self.k.new_full((), torch.nan).expand(problem.batch, problem.heads, problem.keys, 1)
        self.batch, self.heads, self.queries, self.keys = problem.batch, problem.heads, problem.queries, problem.keys

    @classmethod
    def of(cls, local: Local, *, is_bound: bool) -> Self:
        """Return what this rank has of a call, which all ranks of the sequence make together."""
        groups = {one.group: one for one in (local.call.exchange, *local.call.summed) if one.ranks > 1}
        call, q, k = lay_out(local.call, local.q, local.k, local.rotary)
        return cls(
            problem=hiding(local.call.whole),
            call=call,
            q=q,
            k=k,
            v=local.v,
            groups=tuple(groups.values()),
            is_bound=is_bound,
        )

    def all_reduce(self, x: Tensor, how: Literal["sum", "max"]) -> None:
        """Join the numbers that the ranks found, in place."""
        for one in self.groups:
            (one.sum_over if how == "sum" else one.max_over)(x)

    @property
    def place(self) -> int | None:
        """Where the last query stands, if the caller bound its mask to a place."""
        return place_of(self.problem, is_bound=self.is_bound)

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return which pairs the mask leaves visible."""
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
        heads, first, plan = self.problem.heads, self.call.area.heads.start, self.call.plan
        group = heads // self.problem.kv_heads
        q = self._whole(self.q, heads, first, plan.queries)
        k = self._whole(self.k, heads // group, first // group, plan.keys)
        return replace(self.problem, q=q, k=k, v=k).prepared()

    def _whole(self, part: Tensor, heads: int, head: int, layout: SequenceLayout) -> Tensor:
        wide = torch.promote_types(part.dtype, torch.float32)  # no rank adds to another's numbers, so none is rounded
        whole = part.new_zeros(self.batch, heads, layout.length, part.shape[-1], dtype=wide)
        first = self.call.area.batch.start
        here = whole[first : first + part.shape[0], head : head + part.shape[1]]
        here[:, :, layout.positions(self.call.rank).to(part.device)] = part.to(wide)
        self.all_reduce(whole, "sum")
        return whole.to(part.dtype)

    def of_values(
        self, statistic: str, keys: slice, compute: Callable[[Tensor], Float[Tensor, "own_batch heads columns"]]
    ) -> Float[Tensor, "batch heads keys"]:
        """Return what `compute` gives for the values of each rank, for some keys."""
        if not self.call.has_all_heads:
            raise ObservationError(
                f"{statistic!r} needs all heads on one rank, and those of {self._here} are sharded as its sequence is: "
                "leave it out, or shard the sequence only"
            )
        assert self.v is not None
        found = compute(self.v.detach())
        return self._whole(found.unsqueeze(-1), found.shape[1], 0, self.call.plan.keys).squeeze(-1)[..., keys]

    def weights_of(self, rows: Rows, heads: Sequence[int]) -> Float[Tensor, "batch heads rows keys"]:
        """Refuse: no rank has whole rows.

        Raises:
            ObservationError: Always.
        """
        raise ObservationError(SHARDED)

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return all rows as one portion, since all ranks go through the rounds together."""
        return [partial(self._rows, start, align)]

    def _rows(self, start: int, align: int) -> Iterator[RowBlock]:
        """Yield the weights of all parts of this rank's rows."""
        sums = self._sums(start, align)
        blind = torch.ones(self.queries, dtype=torch.bool, device="cpu")
        for one, heads, place, q, k in self._blocks(start, align):
            blind[one.rows] = False
            known = None if sums is None else Sums(*(x[place] for x in sums))
            with plain_mode(q.device):
                weights = weigh(self._call, one, q, k, known)[0][0]
            own = None if known is None else Sums(*(x[0] for x in known))
            yield self._block(one.batch.start, heads, start + one.rows.start, one.spans[0].start, weights, own)
        yield from self._empty_rows(start, blind)

    def _sums(self, start: int, align: int) -> Sums | None:
        """The sums of this rank's rows, with the sink, of rows that see nothing +inf; None without a softmax."""
        if not isinstance(self.problem.normalizer, Softmax):
            return None
        alone = replace(self._call, normalizer=Softmax(), wants_lse=True)
        output = self.q.new_zeros(*self.q.shape[:3], 0, dtype=self._wide)
        sums = Sums(*(torch.zeros_like(output.sum(-1)) for _ in range(2)))
        for one, _, place, q, k in self._blocks(start, align):
            with plain_mode(q.device):
                _, found = weigh(alone, one, q, k)
            merge(alone.normalizer, (output[place], found), (output[place], Sums(*(x[place] for x in sums))))
        blind = sums.total == 0
        _, peak, total = Rounds(self.call).with_sink(self._call, output, sums)
        return Sums(peak, total.masked_fill(blind, torch.inf))

    def _blocks(self, start: int, align: int) -> Iterator[_Block]:
        """Go through the rounds, and cut each part of this rank's rows that are recorded into blocks."""
        problem, area = self.problem, self.call.area
        group = problem.heads // problem.kv_heads
        for now in self.call.rounds(self.k, self.k[..., :0]):
            for part, rows, keys in self.call.rectangles(now):
                most = max(1, BLOCK_ELEMENTS // (part.columns * group))
                runs = list(_cut(part.rows, start, align, most, self.chosen_rows))
                for at, (first, heads), run in product(range(len(self.q)), self._recorded, runs):
                    batch = slice(at, at + 1)
                    here = slice(rows.start + run.start - part.rows.start, rows.start + run.stop - part.rows.start)
                    place = batch, _moved(heads, -area.heads.start), here
                    shared = slice(place[1].start // group, -(-place[1].stop // group))
                    one = replace(part, batch=_moved(batch, area.batch.start), heads=heads, rows=run, is_masked=True)
                    q, k = self.q[place].to(self._wide), now.k[batch, shared, keys].to(self._wide)
                    yield one, slice(first, first + heads.stop - heads.start), place, q, k

    @cached_property
    def _call(self) -> Problem:
        return self.problem.widened()

    @cached_property
    def _recorded(self) -> list[tuple[int, slice]]:
        """This rank's heads that are recorded, by shared keys, with the number of the first in the record."""
        own, group = self.call.area.heads, self.problem.heads // self.problem.kv_heads
        if self.head_numbers is None:
            return [(head, slice(head, min(head + group, own.stop))) for head in range(own.start, own.stop, group)]
        chosen = ((at, head) for at, head in enumerate(self.head_numbers) if own.start <= head < own.stop)
        return [(at, slice(head, head + 1)) for at, head in chosen]

    def _empty_rows(self, start: int, blind: Bool[Tensor, " queries"]) -> Iterator[RowBlock]:
        """Yield the rows of this rank of which no key was ever computed."""
        own = self.call.plan.queries.positions(self.call.rank)
        rows = [row for row in own[blind[own]].tolist() if self.chosen_rows is None or row in self.chosen_rows]
        has_sums = isinstance(self.problem.normalizer, Softmax)
        for run in _runs(rows):
            for batch in range(self.call.area.batch.start, self.call.area.batch.stop):
                for first, heads in self._recorded:
                    count = heads.stop - heads.start
                    weights = torch.zeros(count, len(run), 1, dtype=self._wide, device=self.device)
                    none = Sums(weights[..., 0], weights[..., 0]) if has_sums else None
                    yield self._block(batch, slice(first, first + count), start + run.start, 0, weights, none)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, torch.float32)

    def _block(self, batch: int, heads: slice, row: int, key: int, weights: Tensor, sums: Sums | None) -> RowBlock:
        return RowBlock(batch, heads, row, key, weights, sums, is_part=True)


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _cut(rows: slice, start: int, align: int, most: int, chosen: frozenset[int] | None) -> Iterator[slice]:
    """Cut rows, or the chosen ones, into runs of which none crosses a bin of `align` rows of the record, but whole."""
    step = most - most % align if most >= align else 1 << (most.bit_length() - 1)
    at = rows.start
    while at < rows.stop:
        end = min(((start + at) // step + 1) * step - start, rows.stop)
        if chosen is None:
            yield slice(at, end)
        else:
            yield from (slice(run.start, run.stop) for run in _runs([row for row in range(at, end) if row in chosen]))
        at = end


def _runs(rows: list[int]) -> Iterator[range]:
    """Yield rows as runs of neighbours, none of them long."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1 or end - start == _LONGEST:
            yield range(rows[start], rows[end - 1] + 1)
            start = end
