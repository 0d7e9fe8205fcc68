"""Attention call sites of a watched model: the statistics of a site, and whether a call continues it.

With a cache, a model calls the same site again with new queries over old and new keys, and such calls append rows to
the same record. Such calls are recognized by the values of the keys alone, whatever library stores them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.observe.cached_text import CrossKeys, SelfKeys, length_of
from regard.observe.padding import SitePadding
from regard.observe.requested_statistics import Asked
from regard.observe.run_statistics import Folding
from regard.observe.selection import QueriesChosen, in_place
from regard.observe.statistics import Extent, Statistic
from regard.observe.streams import Place
from regard.observe.token_ids import Hearing, Listener
from regard.observe.watched_call import WatchedCall
from regard.record.records import Layer

__all__ = ["Site"]


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
        peeks: bool = False,
        padding: SitePadding | None = None,
        find_projection: Callable[[int], Tensor] | None = None,
        heads: tuple[int, ...] | None = None,
        queries: QueriesChosen | None = None,
        read: int = 0,
        drops_keys: bool = False,
        shared: Collection[Statistic] = (),
    ) -> None:
        """Make a site at its first call; its cache has read `read` positions, the call's included (0: unknown), and may
        have dropped the oldest keys.
        """
        self.name, self.place = name, place
        self._read, self._drops_keys = read, drops_keys
        self._start = 0  # the position of the first row
        self.watched = watched  # False if `layers=` excludes it: only its location and lengths are recorded
        self._folding = Folding(name, Asked().of_site({}) if statistics is None else statistics, shared)
        self._hearing = None if listener is None else Hearing(place, listener, peeks=peeks)
        self._padding = padding
        self._find_projection = find_projection
        self._heads, self._queries = heads, queries  # the chosen ones; None for all
        self._count = 0  # of all heads
        self.read = 0  # rows of the prompt, if all later ones were generated one at a time; else 0
        self._extent: Extent | None = None
        self._keys, self._cross_keys = SelfKeys(), CrossKeys()
        self._cross = False
        self._filled = 0  # keys up to the newest one
        self._beyond = 0  # positions from there to the query that follows, of queries that stand beyond the keys

    def continues(
        self, call: WatchedCall, *, is_certain: bool = False, cache: Any = None, same_cache: bool = False
    ) -> bool:
        """Return whether the call adds rows to this site; `is_certain`: other sites of the run have shown that its
        text continues; `cache`: that of the call, if it is known; `same_cache`: it is the one of this text.
        """
        if not self._is_as_large(call):
            return False
        if self._cross:
            return call.cross is not False and self._cross_keys.are_keys_of(call, any_queries=is_certain)
        # The cache of this text, as long as it was left, has the keys of its one sequence.
        by_length = same_cache and call.batch == 1 and call.newest + 1 - call.queries == self._filled
        if by_length and length_of(cache) == self._filled + call.queries:
            return is_certain or self._keys.precede(call)
        if is_certain:
            return self._keys.precede(call)
        return self._keys.are_old_keys_of(call, cache, self._filled + call.queries, same_cache=same_cache)

    def has_dropped(self, call: WatchedCall) -> bool:
        """Return whether the call's old keys are not all those of its text."""
        return not self._cross and call.newest - call.queries + 1 < self._filled

    def reordered(self, call: WatchedCall, cache: Any, *, same_cache: bool) -> Int[Tensor, " batch"] | None:
        """Return the sequence that each one of a call continues, if beam search has reordered them. It keeps their
        cache and its length: in a copy, or where the newest keys were cut off, rows may have each other's tokens by
        chance.
        """
        reorders = cache is None or (same_cache and length_of(cache) == self._filled + call.queries)
        return self._keys.reordered(call) if reorders and self._is_as_large(call) and not self._cross else None

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let each sequence go on from another one's rows, unless there are more or fewer (those of an encoder)."""
        if self._extent is None or self._extent.batch != len(rows):
            return
        if self.watched:
            self._folding.reorder(rows, self._extent)
        if self._hearing is not None:
            self._hearing.reorder(rows)
        if self._padding is not None:
            self._padding.reorder(rows)
        if not self._cross:
            self._keys.reorder(rows)

    def keep_all_keys(self) -> None:
        """Keep all keys from the next call on, since this site determines which text a run continues."""
        self._keys.whole = True

    def _is_as_large(self, call: WatchedCall) -> bool:
        return self._extent is not None and (call.batch, call.heads) == (self._extent.batch, self._count)

    @property
    def fallback_reason(self) -> str | None:
        """Why the kernel that regard.use_backend names has not processed all calls; None if it has, or if none was
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
        marked = call.newest + 1
        if self._extent is None:
            queries, keys = self._begin(call, marked)
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
        heard, position = self._hearing, self._filled + self._beyond - queries
        pooled = position < 0 and not self._cross  # fewer keys than queries, which have positions of their own
        ids = None if heard is None or pooled else heard.hear(call, queries, self._filled, cross=self._cross)
        around = call.having(site=self.name, shift=shift, ids=ids, find_projection=self._find_projection)
        around = self._chosen(around, start)
        padding = None
        if self._padding is not None and not pooled and not self._beyond:
            padding = self._padding.see(call, queries, keys, self._filled, shift, cross=self._cross)
        extent = Extent(
            *(call.batch, around.heads, queries, keys),
            dtype=dtype,
            device=call.marks.device,
            offset=0 if self._cross or pooled else position,
            cross=self._cross or pooled,
            site=self.name,
            around=around,
            padding=padding,
        )
        self._folding.fold(extent, start)
        self._extent = extent.alone
        (self._cross_keys if self._cross else self._keys).remember(call)

    def _begin(self, call: WatchedCall, marked: int) -> tuple[int, int]:
        """Find where the first call stands in its text, with `marked` keys up to the newest; return the sizes of the
        record.
        """
        self.read = call.queries
        self._cross = call.crosses
        if self._hearing is not None and self._hearing.is_of_others(cross=self._cross):
            self._folding.leave_out("tokens")
        dropped, keys = 0, call.keys
        if not self._cross:
            unused = call.begins_a_cache or (call.queries == 1 and marked < call.keys) or self._read == marked
            if unused:
                keys = call.reach
            if self._drops_keys and marked == call.keys:
                dropped = max(0, self._read - marked)
            if self._keys.whole:
                self._keys.first = int(call.first.clamp_min(0).min())
        self._filled, self._beyond = marked + dropped, call.end - marked
        end = self._read if self._cross else self._filled + self._beyond
        self._start = max(0, end - call.queries)
        if self._start > 0:  # the watch was opened after the prompt
            self.read = 0
        return call.queries, keys + dropped

    def _chosen(self, call: WatchedCall, start: int) -> WatchedCall:
        """Return the call with the rows of the chosen heads and queries only."""
        if self._queries is not None:
            rows = self._queries.rows(self._start + start, call.queries, 1 if start == 0 else call.queries)
            chosen = range(*rows.indices(call.queries)) if isinstance(rows, slice) else rows
            call = call.having(chosen_rows=frozenset(chosen))
        return call if self._heads is None else call.of_heads(self._heads)

    @property
    def waiting(self) -> tuple[Folding, Extent]:
        """Its statistics and their sizes, for rows that wait to be processed."""
        assert self._extent is not None
        return self._folding, self._extent

    def finish(self) -> Layer:
        """Return the layer of the record."""
        assert self._extent is not None
        if not self.watched:
            return self._unwatched(self._extent)
        fields = self._folding.finish(self._extent)
        padding = self._extent.padding
        if self._heads is not None:
            fields = in_place(fields, self._heads, self._count) | {"head_numbers": self._heads}
        return Layer(
            name=self.name,
            kind="cross" if self._cross else "self",
            query_tokens="text",
            key_tokens="text",
            query_padding=None if padding is None else padding.queries,
            key_padding=None if padding is None else padding.keys,
            **fields,
        )

    def with_shared(self, layer: Layer, statistic: Statistic) -> Layer:
        """Return its layer with the results of a statistic that it shares with the other sites of its pass."""
        assert self._extent is not None
        found, axes = self._folding.finish_shared(statistic, self._extent)
        return replace(layer, statistics={**layer.statistics, **found}, axes={**layer.axes, **axes})

    def _unwatched(self, extent: Extent) -> Layer:
        """Return a layer without data, which is needed for streams and numbers of the other layers."""
        nothing = np.zeros((extent.batch, extent.heads, 0, 0), np.float32)
        rows = np.broadcast_to(np.float32(0), (extent.batch, extent.heads, extent.queries))
        columns = np.broadcast_to(np.float32(0), (extent.batch, extent.heads, extent.keys))
        return Layer(
            *(self.name, "cross" if self._cross else "self", "text", "text", 1, 1),
            *(nothing, nothing, nothing.astype(np.int32), nothing, rows, columns),
        )
