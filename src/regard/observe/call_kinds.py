"""The second pass: compute whole rows of weights in blocks, from q and k or from weights that a model has computed.

Rows exist only while statistics process them. Blocks are small enough for the cache, because each is passed over about
a dozen times.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.masks.causal_and_window import band_of
from regard.normalizers.softmax import Sums
from regard.observe.watched_call import Rows, WatchedCall
from regard.observe.weigh import hiding, plain_mode, weigh
from regard.observe.weight_rows import BLOCK_ELEMENTS, Plan, RowBlock, runs_of
from regard.part import Part
from regard.problem import Problem
from regard.torch_private import DisableTorchFunction

_TOGETHER = 8  # heads of a long call
_NOTHING_ELSE = dict.fromkeys(("marks", "v", "project", "output", "ids", "find_projection"))

__all__ = ["CallFromQK", "CallFromWeights", "rows_of"]


@dataclass(eq=False)
class CallFromQK(WatchedCall):
    """A call with known q and k: weights are computed from these in blocks, and not stored.

    `is_bound`: the caller has bound the mask to a place, at which its queries stand.
    """

    problem: Problem = field(kw_only=False)
    is_bound: bool = False

    def __post_init__(self) -> None:
        self.marks = self.problem.k if self.marks is None else self.marks
        self.problem = hiding(self.problem.with_wide_parts().prepared())
        self.batch, self.heads = self.problem.batch, self.problem.heads
        self.queries, self.keys = self.problem.queries, self.problem.keys

    @property
    def may_hide_keys(self) -> bool:  # type: ignore[override]
        """Whether there is a mask other than a band, in which each key is seen."""
        mask = self.problem.mask
        return mask is not None and band_of(mask.mask) is None

    @property
    def own(self) -> Problem:
        """The call with the queries and keys that this process computes rows of: all of them."""
        return self.problem

    @property
    def places(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Which sequence and head of the record each sequence and head of `own` is."""
        return {place: place for place in itertools.product(range(self.batch), range(self.heads))}

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return the rows of each sequence and of some heads, whose blocks the mask is asked about once."""
        problem = replace(self.problem, wants_lse=self.wants_lse)
        plan = Plan.of(problem.mask, problem.queries, problem.keys, start, align, self.chosen_rows)
        if self.head_numbers is None:
            step = _heads_together(problem, plan)
            heads = [(some, some) for some in (slice(at, at + step) for at in range(0, problem.heads, step))]
        else:
            heads = [(slice(head, head + 1), slice(at, at + 1)) for at, head in enumerate(self.head_numbers)]
        return [
            partial(rows_of, problem, plan, partial(weigh, problem), batch_index, some, recorded, start)
            for batch_index in range(problem.batch)
            for some, recorded in heads
        ]

    def weights_of(self, rows: Rows, heads: Sequence[int]) -> Float[Tensor, "batch heads rows keys"]:
        """Return the weights of some rows and heads."""
        problem = self.problem
        runs = runs_of(rows) if isinstance(rows, list) else [rows] if rows.start < rows.stop else []
        parts = [
            [weigh(problem, replace(problem.everything, heads=some, rows=run))[0] for some in self._heads(heads)]
            for run in runs
        ]
        if not parts:
            return problem.q.new_zeros(problem.batch, len(heads), 0, problem.keys)
        return torch.cat([torch.cat(run, 1) for run in parts], 2)

    def owned(self) -> WatchedCall:
        """Return its weights."""
        with DisableTorchFunction(), plain_mode(self.device):
            return CallFromWeights(self.every_weight(), shift=self.shift)

    def copied(self) -> Self:
        """Return the call with copies of q and k."""
        k = self.problem.k.clone()
        return self.having(problem=replace(self.problem, q=self.problem.q.clone(), k=k, v=k), **_NOTHING_ELSE)

    def every_weight(self) -> Float[Tensor, "batch heads queries keys"]:
        """Return all weights."""
        return weigh(self.problem, self.problem.everything)[0]

    def _heads(self, heads: Sequence[int]) -> list[slice]:
        """Return heads as slices of neighbours, in the order given: whole groups that share their keys, or parts of
        one.
        """
        group, found = self.problem.heads // self.problem.kv_heads, list[slice]()
        for run in runs_of(heads):
            first, last = -(-run.start // group) * group, run.stop // group * group  # of the whole groups in it
            parts = (run.start, first), (first, last), (last, run.stop)
            found += [slice(*part) for part in parts if part[0] < part[1]] if first <= last else [run]
        return found

    def gathered(self) -> Problem:
        """Return the call."""
        return self.problem

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return which pairs the mask leaves visible."""
        problem, device = self.problem, self.device
        part = replace(problem.everything, rows=rows, spans=(columns,))
        visible = part.visible(problem.mask, device)
        return torch.ones(1, 1, 1, part.columns, dtype=torch.bool, device=device) if visible is None else visible

    @property
    def place(self) -> int | None:
        """Where the last query stands, if the caller bound its mask to a place."""
        start, keys, queries = self.problem.q_offset, self.problem.keys, self.problem.queries
        last = start + queries - 1
        return last if last >= 0 and (self.is_bound or start != keys - queries) else None

    @property
    def device(self) -> torch.device:
        """Where q and k are."""
        return self.problem.q.device

    @property
    def nbytes(self) -> int:
        """The bytes of q and k."""
        return self.problem.q.nbytes + self.problem.k.nbytes


def rows_of(
    problem: Problem,
    plan: Plan,
    compute: Callable[[Part], tuple[Tensor, Sums | None]],
    batch_index: int,
    heads: slice,
    recorded: slice,
    start: int,
) -> Iterator[RowBlock]:
    """Yield the rows of some heads of one sequence, which are `recorded` as those of these numbers; `compute` gives the
    weights of a part of the call.
    """
    batch, whole = slice(batch_index, batch_index + 1), (problem.batch, problem.heads)
    for block in plan.blocks(batch_index, heads):
        rows, keys = slice(block.top, block.bottom), (slice(block.left, block.right),)
        part = Part(batch, heads, rows, keys, problem.q_offset, whole, block.is_masked)
        weights, sums = compute(part)
        found = None if sums is None else Sums(*(one[0] for one in sums))
        yield RowBlock(batch_index, recorded, start + block.top, block.left, weights[0], found)


@dataclass(eq=False)
class CallFromWeights(WatchedCall):
    """A call whose weights were computed by the model itself."""

    weights: Float[Tensor, "batch heads queries keys"] = field(kw_only=False)

    def __post_init__(self) -> None:
        self.batch, self.heads, self.queries, self.keys = self.weights.shape

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return the pairs with nonzero weight; hidden keys have none."""
        return self.weights[:, :, rows, columns] > 0

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.device

    @property
    def nbytes(self) -> int:
        """The bytes of the weights."""
        return self.weights.nbytes

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return the rows of each sequence and of some heads."""
        plan = Plan.of(None, self.queries, self.keys, start, align, self.chosen_rows)
        if self.head_numbers is None:
            step = _heads_in_block(plan, self.queries, self.keys, self.heads) or 1
            heads = [(slice(at, at + step), slice(at, at + step)) for at in range(0, self.heads, step)]
        else:
            heads = [(slice(head, head + 1), slice(at, at + 1)) for at, head in enumerate(self.head_numbers)]
        return [
            partial(self._rows, plan, batch_index, some, recorded, start)
            for batch_index in range(self.batch)
            for some, recorded in heads
        ]

    def _rows(self, plan: Plan, batch_index: int, heads: slice, recorded: slice, start: int) -> Iterator[RowBlock]:
        wide = torch.promote_types(self.weights.dtype, torch.float32)
        some = self.weights[batch_index, heads]
        recorded = slice(recorded.start, recorded.start + len(some))
        for block in plan.blocks(0, slice(0, len(some))):
            yield RowBlock(batch_index, recorded, start + block.top, 0, some[:, block.top : block.bottom].to(wide))

    def weights_of(self, rows: Rows, heads: Sequence[int]) -> Float[Tensor, "batch heads rows keys"]:
        """Return the weights of some rows and heads."""
        found = self.weights.detach()[:, list(heads)][:, :, rows]
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def owned(self) -> WatchedCall:
        """Return a copy."""
        wide = torch.promote_types(self.weights.dtype, torch.float32)
        with torch.no_grad():
            return CallFromWeights(self.weights.detach().to(wide, copy=True), shift=self.shift)

    def copied(self) -> Self:
        """Return the call with a copy of its weights."""
        return self.having(weights=self.weights.detach().clone(), **_NOTHING_ELSE)

    def every_weight(self) -> Float[Tensor, "batch heads queries keys"]:
        """Return all weights."""
        return self.weights


def _heads_together(problem: Problem, plan: Plan) -> int:
    """Return how many heads are computed together: all where they fit into one block, else as many whole groups that
    share their keys as leave all threads equal parts.
    """
    group, keys = problem.heads // problem.kv_heads, max(1, problem.keys)
    if _heads_in_block(plan, problem.queries, keys, problem.heads):
        return problem.heads
    most = min(_TOGETHER, BLOCK_ELEMENTS // (plan.unit * keys)) // group
    threads = torch.get_num_threads()
    return group * next((count for count in range(most, 1, -1) if problem.kv_heads % (count * threads) == 0), 1)


def _heads_in_block(plan: Plan, queries: int, keys: int, heads: int) -> int | None:
    """Return the number of all heads if they fit into one block."""
    return heads if heads * max(plan.unit, queries) * max(1, keys) <= BLOCK_ELEMENTS else None
