"""One attention call site of a watched model: its statistics, and whether a call continues the previous one.

With a cache, a model calls the same site again with new queries over old and new keys, and such calls append rows to
the same record. Whether a call continues the previous one is determined from the keys: the newest key of the previous
call must directly precede the new ones. This holds for dynamic, static and sliding caches of any library.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.capture.call_context import Around
from regard.capture.records import Layer
from regard.capture.requested_statistics import Asked, Keep
from regard.capture.run_statistics import Folding
from regard.capture.statistics import Extent, Statistic
from regard.capture.streams import Place
from regard.capture.token_ids import Hearing, Listener
from regard.capture.weights_from_qk import Call
from regard.errors import ObservationError

__all__ = ["Keep", "Seen", "Site"]


@dataclass(frozen=True, eq=False)
class Seen:
    """An intercepted call; `marks` (batch, heads, keys, width), its keys or values, identify its keys.

    `project` computes the values, if a statistic needs them and the call does not show them; `output` is the output of
    the call.
    """

    call: Call
    marks: Float[Tensor, "batch heads keys width"]
    cross: bool | None = None  # whether keys have another source than queries; None if unknown
    values: Float[Tensor, "batch heads keys value_width"] | None = None
    project: Callable[[], Tensor] | None = None
    output: Tensor | None = None

    @property
    def newest(self) -> int:
        """The column of the newest key. A static cache has unused columns after it, which the last query does
        not see.
        """
        call = self.call
        return call.keys - 1 if call.queries == call.keys else _last_seen(call, call.queries - 1)

    @property
    def begins_a_cache(self) -> bool:
        """Whether this is a prompt written to a static cache: each query sees the positions before it, and columns are
        left unused.
        """
        call = self.call
        return call.queries == self.newest + 1 < call.keys and (call.queries == 1 or _last_seen(call, 0) == 0)


def _last_seen(call: Call, row: int) -> int:
    """Return the last column that a query of any sequence sees."""
    seen = call.row(row).any(0).any(0).nonzero()
    return int(seen[-1]) if len(seen) else call.keys - 1


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
    ) -> None:
        self.name, self.place = name, place
        self.watched = watched  # False if `layers=` excludes it: only its location and lengths are recorded
        self._folding = Folding(name, Asked().of_site({}) if statistics is None else tuple(statistics))
        self._hearing = Hearing(place, listener)
        self._find_projection = find_projection
        self.read = 0  # rows of the first call; later rows were generated, one step at a time
        self._extent: Extent | None = None
        self._newest: Tensor | None = None  # mark of the newest key
        self._marks: Tensor | None = None  # all marks of a cross-attention, whose keys do not change
        self._cross = False
        self._filled = 0  # keys up to the newest one

    def continues(self, seen: Seen) -> bool:
        """Return whether the call adds rows to this site; raise if beam search has reordered the rows."""
        if self._extent is None or self._newest is None:
            return False
        if seen.call.batch != self._extent.batch or seen.call.heads != self._extent.heads:
            return False
        if self._cross:
            return self._same_keys(seen)
        before = seen.newest - seen.call.queries
        if before < 0:
            return False
        found, newest = _as_many_heads(seen.marks[:, :, before], self._newest)
        if torch.equal(found, newest):
            return True
        _refuse_reordered(found, newest, self.name)
        return False

    def _same_keys(self, seen: Seen) -> bool:
        """Return whether the keys of a cross-attention are unchanged: the cached tensor itself, or an equal one with
        one query.
        """
        assert self._marks is not None
        now, before = _as_many_heads(seen.marks, self._marks)
        if now.shape != before.shape:
            return False
        same = now.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        return same or (seen.call.queries == 1 and torch.equal(now, before))

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

    def needed_bytes(self, seen: Seen) -> int:
        """Return the bytes needed to store this call's weights in full."""
        call = seen.call
        return call.batch * call.heads * call.queries * call.keys * 4

    def see(self, seen: Seen) -> None:
        """Process one call; its rows are appended if it continues the previous one."""
        call, first = seen.call, self._extent is None
        marked = seen.newest + 1
        if first:
            self.read = call.queries
            self._cross = bool(seen.cross)
            if self._hearing.is_of_others(cross=self._cross):
                self._folding.leave_out("tokens")
            alone = not self._cross and (seen.begins_a_cache or (call.queries == 1 and marked < call.keys))
            self._filled = marked
            queries, keys = call.queries, marked if alone else call.keys
        else:
            assert self._extent is not None
            self._filled += 0 if self._cross else call.queries
            queries, keys = self._extent.queries + call.queries, max(self._extent.keys, self._filled)
        start = queries - call.queries
        shift = 0 if self._cross else self._filled - marked  # number of keys that a sliding cache has dropped
        dtype = torch.promote_types(seen.marks.dtype, torch.float32)
        extent = Extent(
            *(call.batch, call.heads, queries, keys),
            dtype=dtype,
            device=seen.marks.device,
            offset=0 if self._cross else self._filled - queries,
            cross=self._cross,
            site=self.name,
            around=self._around(seen, queries, shift),
        )
        self._folding.fold(extent, start, seen.output)
        self._extent = extent.alone
        self._newest = seen.marks[:, :, seen.newest].clone()
        self._marks = seen.marks if self._cross else None

    def _around(self, seen: Seen, queries: int, shift: int) -> Around:
        ids = self._hearing.hear(seen.call, queries, self._filled, cross=self._cross)

        kind, known, project = seen.marks.device.type, seen.values, seen.project  # not `seen`, which holds the output
        casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        narrow = torch.get_autocast_dtype(kind) if casts else None

        def values() -> Tensor | None:
            if project is None:
                return known
            # Under the model's autocast, if enabled, since otherwise inputs and weights may differ in dtype.
            with torch.autocast(kind, dtype=narrow) if casts else contextlib.nullcontext():
                return project()

        return Around(self.name, seen.call, shift, ids, values, self._find_projection, seen.output)

    def finish(self) -> Layer:
        """Return the layer of the record."""
        assert self._extent is not None
        if not self.watched:
            return self._unwatched(self._extent)
        return Layer(
            name=self.name,
            kind="cross" if self._cross else "self",
            query_tokens="text",
            key_tokens="text",
            **self._folding.finish(self._extent),
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


def _as_many_heads(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marks of two calls with equal numbers of heads: one may have repeated its key heads for grouped
    queries.
    """
    heads = one.shape[1], other.shape[1]
    few = min(heads)
    if max(heads) % few:
        return one, other
    return one[:, :: heads[0] // few], other[:, :: heads[1] // few]


def _refuse_reordered(found: Tensor, newest: Tensor, name: str) -> None:
    """Raise if beam search has reordered the rows of the cache, so that each newest key is in the row of
    another beam.
    """
    if len(found) < 2:
        return
    here = torch.equal(found, newest)
    elsewhere = all(any(torch.equal(row, other) for other in newest) for row in found)
    if not here and elsewhere:
        raise ObservationError(
            f"the cache of {name or 'this model'} was reordered between two steps, as beam search does, so its rows no "
            "longer belong to one text: watch greedy decoding or sampling (num_beams=1), or run the finished text "
            "through the model once under watch"
        )
