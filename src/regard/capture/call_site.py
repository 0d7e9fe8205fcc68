"""Attention call sites of a watched model: the statistics of a site, and whether a call continues it.

With a cache, a model calls the same site again with new queries over old and new keys, and such calls append rows to
the same record. Such calls are recognized by the values of the keys alone, whatever library stores them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.capture.records import Layer
from regard.capture.requested_statistics import Asked
from regard.capture.run_statistics import Folding
from regard.capture.selection import QueriesChosen, in_place
from regard.capture.statistics import Extent, Statistic
from regard.capture.streams import Place
from regard.capture.token_ids import Hearing, Listener
from regard.capture.watched_call import WatchedCall
from regard.errors import ObservationError

__all__ = ["Site"]


class _SelfKeys:
    """The keys of a self-attention at its last call: the newest, and if `whole` is set those of all columns.
    `slides`: keys have been dropped.

    In the first layer, a key depends on its token and position only, so that texts with the same last token have the
    same newest key. Therefore, where a call determines which text continues, all columns are compared, in the first and
    the last key head (which are the same if a call repeats its key heads for grouped queries).
    """

    def __init__(self) -> None:
        self.whole = self.slides = False
        self._newest: Tensor | None = None
        self._columns: Tensor | None = None  # up to the newest

    def remember(self, call: WatchedCall) -> None:
        """Copy the keys of a call: a cache may be changed in place."""
        self._newest = call.marks[:, :, call.newest].clone()
        self._columns = _two_heads(call.marks[:, :, : call.newest + 1]) if self.whole else None

    def precede(self, call: WatchedCall) -> bool:
        """Return whether the newest of these keys comes directly before the new keys of a call."""
        before = call.newest - call.queries
        return before >= 0 and self._newest is not None and _same(*self._found(before, call))

    def are_old_keys_of(self, call: WatchedCall) -> bool:
        """Return whether all keys of a call before its new ones are these.

        A call with fewer keys has a cache that dropped the oldest, if the rest are at their new columns. If they are
        also at their old ones, the newest were cut off, of a text that has no positions in its keys; this cannot be
        where keys have been dropped before.
        """
        if not self.precede(call) or self._columns is None:
            return False
        old = _two_heads(call.marks[:, :, : call.newest - call.queries + 1])
        dropped = self._columns.shape[2] - old.shape[2]
        if dropped < 0 or not _same_columns(old, self._columns[:, :, dropped:]):
            return False
        return not dropped or self.slides or not _same_columns(old, self._columns[:, :, :-dropped])

    def refuse_reordered(self, call: WatchedCall, name: str) -> None:
        """Raise if beam search has reordered the rows of the cache, so that each row has the keys of another beam."""
        before = call.newest - call.queries
        if before < 0 or self._newest is None or call.batch < 2:
            return
        found, known = self._found(before, call)
        if _same(found, known) and self._columns is not None:  # beams that end with the same token
            found = _two_heads(call.marks[:, :, : before + 1])
            if found.shape != self._columns.shape:
                return
            known = self._columns
        if not _same(found, known) and all(any(_same(row, other) for other in known) for row in found):
            raise ObservationError(
                f"the cache of {name or 'this model'} was reordered between two steps, as beam search does, so its "
                "rows no longer belong to one text: watch greedy decoding or sampling (num_beams=1), or run the "
                "finished text through the model once under watch"
            )

    def _found(self, column: int, call: WatchedCall) -> tuple[Tensor, Tensor]:
        assert self._newest is not None
        return _as_many_heads(call.marks[:, :, column], self._newest)


class _CrossKeys:
    """The keys of a cross-attention, which do not change."""

    def __init__(self) -> None:
        self._marks: Tensor | None = None

    def remember(self, call: WatchedCall) -> None:
        """Take the keys of a call."""
        self._marks = call.marks

    def are_keys_of(self, call: WatchedCall, *, any_queries: bool) -> bool:
        """Return whether a call has these keys: the cached tensor itself, or an equal one with one query, or with any
        number of queries where the text is known to continue.
        """
        assert self._marks is not None
        now, before = _as_many_heads(call.marks, self._marks)
        if now.shape != before.shape:
            return False
        same = now.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        return same or ((any_queries or call.queries == 1) and torch.equal(now, before))


def _two_heads(marks: Tensor) -> Tensor:
    return torch.stack([marks[:, 0], marks[:, -1]], 1)


def _as_many_heads(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marks of two calls with equal numbers of heads: one may have repeated its key heads for grouped
    queries.
    """
    heads = one.shape[1], other.shape[1]
    few = min(heads)
    if max(heads) % few:
        return one, other
    return one[:, :: heads[0] // few], other[:, :: heads[1] // few]


def _same(found: Tensor, known: Tensor) -> bool:
    """Return whether marks are those of the same keys, but for what rounding changes in keys that each step computes
    anew from a compressed cache (multi-head latent attention): a little of each number in float32, and in a narrower
    dtype few of the numbers, since sums are rounded to it at the end.
    """
    if found.shape != known.shape or torch.equal(found, known):
        return found.shape == known.shape
    info = torch.finfo(known.dtype)
    tolerance = max(2 * info.eps, 64 * torch.finfo(torch.float32).eps if info.bits < 64 else 64 * info.eps)
    change, size = (torch.linalg.vector_norm(one.double(), dim=-1) for one in (found - known, known))
    few = info.bits >= 32 or bool(((found != known).double().mean(-1) <= 0.25).all())
    return few and bool((change <= tolerance * size).all())


def _same_columns(found: Tensor, known: Tensor) -> bool:
    """Return whether all keys are the same; those of padding may be NaN."""
    return _same(found, known) or (found.shape == known.shape and _same(found.nan_to_num(), known.nan_to_num()))


class Site:
    """One call site in one forward pass, or in the many passes of one generation."""

    def __init__(
        self,
        name: str,
        place: Place,
        statistics: Sequence[Statistic] | None = None,
        *,
        watched: bool = True,
        listener: Listener | None = None,
        find_projection: Callable[[int], Tensor] | None = None,
        heads: tuple[int, ...] | None = None,
        queries: QueriesChosen | None = None,
    ) -> None:
        self.name, self.place = name, place
        self.watched = watched  # False if `layers=` excludes it: only its location and lengths are recorded
        self._folding = Folding(name, Asked().of_site({}) if statistics is None else tuple(statistics))
        self._hearing = None if listener is None else Hearing(place, listener)
        self._find_projection = find_projection
        self._heads, self._queries = heads, queries  # the chosen ones; None for all
        self._count = 0  # of all heads
        self.read = 0  # rows of the prompt, if all later ones were generated one at a time; else 0
        self._extent: Extent | None = None
        self._keys, self._cross_keys = _SelfKeys(), _CrossKeys()
        self._cross = False
        self._filled = 0  # keys up to the newest one
        self._beyond = 0  # positions from there to the query that follows, of queries that stand beyond the keys

    def continues(self, call: WatchedCall, *, is_certain: bool = False) -> bool:
        """Return whether the call adds rows to this site; `is_certain`: other sites of the run have shown that its
        text continues.
        """
        if not self._is_as_large(call):
            return False
        if self._cross:
            return self._cross_keys.are_keys_of(call, any_queries=is_certain)
        return self._keys.precede(call) if is_certain else self._keys.are_old_keys_of(call)

    def has_dropped(self, call: WatchedCall) -> bool:
        """Return whether the call's old keys are not all those of its text."""
        return not self._cross and call.newest - call.queries + 1 < self._filled

    def refuse_reordered(self, call: WatchedCall) -> None:
        """Raise if beam search has reordered the rows."""
        if self._is_as_large(call) and not self._cross:
            self._keys.refuse_reordered(call, self.name)

    def keep_all_keys(self) -> None:
        """Keep all keys from the next call on, since this site determines which text a run continues."""
        self._keys.whole = True

    def _is_as_large(self, call: WatchedCall) -> bool:
        return self._extent is not None and (call.batch, call.heads) == (self._extent.batch, self._count)

    @property
    def fallback_reason(self) -> str | None:
        """Why the kernel of regard.use_backend has not processed all calls; None if it has, or if none was
        requested.
        """
        return self._folding.fallback_reason

    @property
    def crosses(self) -> bool:
        """Whether its queries attend to keys of another text."""
        return self._cross

    def needed_bytes(self, call: WatchedCall) -> int:
        """Return the bytes needed to store this call's weights in full."""
        heads = call.heads if self._heads is None else len(self._heads)
        return call.batch * heads * call.queries * call.keys * 4

    def see(self, call: WatchedCall) -> None:
        """Process one call; its rows are appended if it continues the previous one."""
        first = self._extent is None
        marked = call.newest + 1
        if first:
            self.read = call.queries
            self._cross = call.crosses
            if self._hearing is not None and self._hearing.is_of_others(cross=self._cross):
                self._folding.leave_out("tokens")
            alone = not self._cross and (call.begins_a_cache or (call.queries == 1 and marked < call.keys))
            self._filled, self._beyond = marked, call.end - marked
            queries, keys = call.queries, call.reach if alone else call.keys
        else:
            assert self._extent is not None
            if call.queries > 1:  # another part of the prompt, or tokens that an assistant has proposed
                self.read = 0
            self._filled += 0 if self._cross else call.queries
            last = self._filled if self._cross else self._filled + call.reach - marked
            queries, keys = self._extent.queries + call.queries, max(self._extent.keys, last)
        start = queries - call.queries
        self._count = call.heads
        shift = 0 if self._cross else self._filled - marked  # number of keys that a sliding cache has dropped
        dtype = torch.promote_types(call.marks.dtype, torch.float32)
        self._keys.slides |= shift > 0
        heard = self._hearing
        ids = None if heard is None else heard.hear(call, queries, self._filled, cross=self._cross)
        around = call.having(site=self.name, shift=shift, ids=ids, find_projection=self._find_projection)
        around = self._chosen(around, start)
        extent = Extent(
            *(call.batch, around.heads, queries, keys),
            dtype=dtype,
            device=call.marks.device,
            offset=0 if self._cross else self._filled + self._beyond - queries,
            cross=self._cross,
            site=self.name,
            around=around,
        )
        self._folding.fold(extent, start)
        self._extent = extent.alone
        (self._cross_keys if self._cross else self._keys).remember(call)

    def _chosen(self, call: WatchedCall, start: int) -> WatchedCall:
        """Return the call with the rows of the chosen heads and queries only."""
        if self._queries is not None:
            rows = self._queries.rows(start, call.queries, 1 if start == 0 else call.queries)
            chosen = range(*rows.indices(call.queries)) if isinstance(rows, slice) else rows
            call = call.having(chosen_rows=frozenset(chosen))
        return call if self._heads is None else call.of_heads(self._heads)

    def finish(self) -> Layer:
        """Return the layer of the record."""
        assert self._extent is not None
        if not self.watched:
            return self._unwatched(self._extent)
        fields = self._folding.finish(self._extent)
        if self._heads is not None:
            fields = in_place(fields, self._heads, self._count) | {"head_numbers": self._heads}
        return Layer(
            name=self.name,
            kind="cross" if self._cross else "self",
            query_tokens="text",
            key_tokens="text",
            **fields,
        )

    def _unwatched(self, extent: Extent) -> Layer:
        """Return a layer without data, which is needed for streams and numbers of the other layers."""
        nothing = np.zeros((extent.batch, extent.heads, 0, 0), np.float32)
        rows = np.broadcast_to(np.float32(0), (extent.batch, extent.heads, extent.queries))
        columns = np.broadcast_to(np.float32(0), (extent.batch, extent.heads, extent.keys))
        return Layer(
            *(self.name, "cross" if self._cross else "self", "text", "text", 1, 1),
            *(nothing, nothing, nothing.astype(np.int32), nothing, rows, columns),
        )
