"""One watched call: sizes, rows of weights, values, output, gradient and token ids, from interception to statistics.

`call_kinds` has its two kinds, for calls with known q and k and for weights that a model has computed itself.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ObservationError
from regard.observe.weight_rows import RowBlock
from regard.problem import Problem

__all__ = ["SHARDED", "Ids", "Rows", "WatchedCall"]

Rows = slice | list[int]  # a list is in ascending order

SHARDED = (
    "the sequence of a call is sharded over ranks, and a tap reads rows of whole sequences: run it in one process, or "
    "record it with regard.watch"
)


_PAIRS = 2**24  # of a mask that are evaluated at a time


@dataclass(frozen=True, eq=False)
class Ids:
    """The token ids of all rows and columns so far; equal ids are equal tokens."""

    queries: Int[Tensor, "batch queries"]
    keys: Int[Tensor, "batch keys"]
    separating: Callable[[Tensor], Tensor | None]
    resting: Callable[[Tensor], Tensor | None] = lambda _: None

    @property
    def special(self) -> Bool[Tensor, "batch keys"] | None:
        """Which keys are special tokens; None if no tokenizer names them."""
        return self.resting(self.keys)

    @property
    def separators(self) -> Bool[Tensor, "batch keys"] | None:
        """Which keys are separators; None if their text is unknown."""
        return self.separating(self.keys)

    def to(self, device: torch.device) -> "Ids":
        """Return the ids on another device; what they are is determined on the CPU, where the ids were recorded."""

        def moved(found: Tensor | None) -> Tensor | None:
            return None if found is None else found.to(device)

        return Ids(
            self.queries.to(device),
            self.keys.to(device),
            lambda _: moved(self.separators),
            lambda _: moved(self.special),
        )


@dataclass(eq=False, kw_only=True)
class WatchedCall:
    """One attention call. The interception knows what it was called with; its call site adds where it belongs.

    `marks` (batch, heads, keys, width), its keys or values, identify its keys. `v` is its values; `project` computes
    them if the call does not show them and a statistic needs them. `output` is the output of the call by heads, and
    `gradient` that of the loss with respect to it, known during backward.

    Column j of the call's own keys is column j + `shift` of the record: a sliding cache has dropped `shift` keys.

    `head_numbers` are the heads whose rows are computed, if these were chosen; `heads` is then their number, and `v`
    has values for each of them. `chosen_rows` are the rows that are computed, if these were chosen.
    """

    batch: int = field(init=False)
    heads: int = field(init=False)
    queries: int = field(init=False)
    keys: int = field(init=False)
    marks: Float[Tensor, "batch heads keys width"] = None  # type: ignore[assignment]  # each kind has its own
    cross: bool | None = None  # whether keys have another source than queries; None if unknown
    v: Float[Tensor, "batch heads keys value_width"] | None = None
    project: Callable[[], Tensor] | None = None
    output: Float[Tensor, "batch heads queries value_dim"] | None = None
    gradient: Float[Tensor, "batch heads queries value_dim"] | None = None
    site: str = ""
    shift: int = 0
    ids: Ids | None = None
    find_projection: Callable[[int], Tensor] | None = None
    head_numbers: tuple[int, ...] | None = None
    chosen_rows: frozenset[int] | None = None
    wants_lse: bool = False  # whether its rows are to have the log-sum-exps
    apart: str | None = None  # a clause why its rows do not lead from layer to layer, if it is known that they do not
    may_hide_keys: ClassVar[bool] = True  # whether a mask may hide a key from every query
    is_sharded: ClassVar[bool] = False  # whether each rank has the rows of some heads, and `joined` those of all

    def with_rows(self, *, by_head: bool) -> "WatchedCall":
        """Return the call with whole rows: of a sharded sequence those of some heads with `by_head`, else of all."""
        return self

    def joined(self, results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the results of statistics with those of the heads that other ranks have."""
        return list(results)

    def gathered(self) -> Problem | None:
        """Return the call with the queries and keys of all ranks; None where the model showed its weights alone."""
        return None

    def of_heads(self, chosen: tuple[int, ...]) -> Self:
        """Return the call with the rows of some heads only."""
        every, project, find = self.heads, self.project, self.find_projection

        def values(v: Tensor) -> Tensor:
            if v.ndim != 4 or not v.shape[1] or every % v.shape[1]:
                return v  # refused where it is needed
            return v[:, [head // (every // v.shape[1]) for head in chosen]]

        def projection(width: int) -> Tensor:
            assert find is not None
            whole = find(width // len(chosen) * every)
            part: Tensor = whole.unflatten(0, (every, -1))[list(chosen)]
            return part.flatten(0, 1)

        return self.having(
            heads=len(chosen),
            head_numbers=chosen,
            v=None if self.v is None else values(self.v),
            project=None if project is None else lambda: values(project()),
            find_projection=None if find is None else projection,
        )

    def portions(self, start: int, align: int) -> list[Callable[[], Iterator[RowBlock]]]:
        """Return the rows of each sequence and of some heads, to be processed one after the other or in parallel.

        The first row is row `start` of the record, and blocks end at multiples of `align` rows.
        """
        raise NotImplementedError  # by kind

    def weights_of(self, rows: Rows, heads: Sequence[int]) -> Float[Tensor, "batch heads rows keys"]:
        """Return the weights of some rows and heads, in float32 or the wider type of the model."""
        raise NotImplementedError  # by kind

    def owned(self) -> "WatchedCall":
        """Return a small call in memory of its own, which the model does not write."""
        raise NotImplementedError  # by kind

    def copied(self) -> Self:
        """Return the call with nothing but its rows, in memory of its own, to be computed later."""
        raise NotImplementedError  # by kind

    def as_heads(self, calls: Sequence["WatchedCall | None"]) -> "WatchedCall | None":
        """Return several owned calls of the same sizes as one, with the heads of all; None if they differ in more."""

    def every_weight(self) -> Float[Tensor, "batch heads queries keys"]:
        """Return all weights of a small call, in memory of their own."""
        raise NotImplementedError  # by kind

    def visible(self, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads #rows columns"]:
        """Return which keys the queries of a rectangle see."""
        raise NotImplementedError  # by kind

    @property
    def device(self) -> torch.device:
        """Where its rows are computed."""
        raise NotImplementedError  # by kind

    @property
    def nbytes(self) -> int:
        """The bytes that its rows are computed from."""
        raise NotImplementedError  # by kind

    def blocks(self, start: int, align: int) -> Iterator[RowBlock]:
        """Yield all rows."""
        return (rows for portion in self.portions(start, align) for rows in portion())

    def row(self, at: int) -> Bool[Tensor, "#batch #heads keys"]:
        """Return which keys one query sees."""
        return self.visible(slice(at, at + 1), slice(0, self.keys))[:, :, 0]

    def having(self, **known: Any) -> Self:
        """Return the call with some attributes changed."""
        one = copy.copy(self)
        vars(one).update(known)
        return one

    @property
    def crosses(self) -> bool:
        """Whether keys have another source than queries; where that is unknown, whether there are more queries: of a
        text, each position has a key.
        """
        return self.queries > self.keys and self.place is None if self.cross is None else self.cross

    @cached_property
    def newest(self) -> int:
        """The column of the newest key. A static cache has unused columns after it, which the last query does
        not see.
        """
        if self.place is not None:
            return min(self.place, self.keys - 1)
        return self.keys - 1 if self.queries == self.keys else self._last_seen(self.queries - 1)

    @property
    def place(self) -> int | None:
        """The position of the last query, which may be beyond the keys, if its mask is bound to one."""
        return None

    @property
    def begins_a_cache(self) -> bool:
        """Whether this is a prompt written to a static cache: each query sees the positions before it, and columns are
        left unused. The first query sees itself, or nothing where it is padding.
        """
        alone = self.queries == self.newest + 1 < self.keys
        return alone and (self.queries == 1 or not bool(self.row(0)[:, :, 1:].any()))

    @property
    def end(self) -> int:
        """The position after that of the last query."""
        return (self.newest if self.place is None else self.place) + 1

    @property
    def reach(self) -> int:
        """The number of keys up to the last one that a query sees, at least up to the newest key."""
        after = self.newest + 1
        if after >= self.keys:
            return after
        seen = torch.zeros(self.keys - after, dtype=torch.bool, device=self.device)
        some = max(1, _PAIRS // max(1, len(seen)))
        for top in range(0, self.queries if len(seen) else 0, some):
            rows = slice(top, min(top + some, self.queries))
            seen |= self.visible(rows, slice(after, self.keys)).any(2).any(1).any(0)
        at = seen.nonzero()
        return after + int(at[-1]) + 1 if len(at) else after

    def _last_seen(self, row: int) -> int:
        """Return the last column that a query of any sequence sees; for one that sees none (it is padding), the last
        that holds a key: those of a static cache are 0 until they are written.
        """
        seen = self.row(row).any(0).any(0).nonzero()
        if not len(seen) and self.marks is not None:
            seen = self.marks.ne(0).any(-1).any(0).any(0).nonzero()
        return int(seen[-1]) if len(seen) else self.keys - 1

    @cached_property
    def first(self) -> Int[Tensor, " batch"]:
        """The first column that any query of each sequence sees, after padding on the left; −1 if there is none."""
        own = self._first_seen()
        return torch.where(own < 0, own, own + self.shift)

    def _first_seen(self) -> Int[Tensor, " batch"]:
        """Return the first own key that any query of each sequence sees, searching 128 columns at a time."""
        found = torch.full((self.batch,), -1, device="cpu")
        for left in range(0, self.keys, 128):
            some = self._seen_columns(slice(left, min(left + 128, self.keys))).cpu()
            fresh = (found < 0) & some.any(1)
            found = torch.where(fresh, some.int().argmax(1) + left, found)
            if bool((found >= 0).all()):
                break
        return found.to(self.device)

    def _seen_columns(self, columns: slice) -> Bool[Tensor, "batch columns"]:
        """Return which of some keys any query of each sequence sees."""
        seen = torch.zeros(self.batch, columns.stop - columns.start, dtype=torch.bool, device=self.device)
        for top in range(0, self.queries, 1024):
            rows = slice(top, min(top + 1024, self.queries))
            seen |= self.visible(rows, columns).any(1).any(1)
            if bool(seen[:, 0].all()):
                break  # nothing precedes the first
        return seen

    def tokens(self, statistic: str) -> Ids:
        """Return the token ids, or raise an error with the way to provide them."""
        if self.ids is None:
            raise ObservationError(
                f"{statistic!r} needs to know the tokens, and {self._here} did not show them: call the model itself "
                f"with `input_ids`, pass `tokens=` to regard.watch, or use Mass({statistic!r}, input_ids=...)"
            )
        return self.ids

    def values(self, statistic: str) -> Float[Tensor, "batch kv_heads keys value_dim"]:
        """Return the values of the call, with as many heads as the keys."""
        values = self.v if self.project is None else self.project()
        fits = values is not None and values.ndim == 4 and (values.shape[0], values.shape[2]) == (self.batch, self.keys)
        if values is None or not fits or self.heads % values.shape[1]:
            raise ObservationError(
                f"{statistic!r} needs the values, and {self._here} does not show them as (batch, heads, keys, width): "
                "let it call F.scaled_dot_product_attention or regard.attention"
            )
        return values.detach()

    def projection(self, width: int) -> Float[Tensor, "in_width out_width"]:
        """Return the weight of the output projection whose input has `width` numbers, the concatenated heads."""
        if self.find_projection is None:
            raise ObservationError(f"the output projection of {self._here} is not known: pass `projection=`")
        return self.find_projection(width)

    @property
    def _here(self) -> str:
        return self.site or "this call"
