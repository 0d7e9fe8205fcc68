"""Attention call sites of a watched model: which module runs, the statistics of a site, and whether a call continues.

The running modules are read from this thread's stack of calls. No hook is registered: hooks on all modules would affect
other threads and their compilers, and hooks on one module disable PyTorch's fast paths.

With a cache, a model calls the same site again with new queries over old and new keys, and such calls append rows to
the same record. Whether a call continues the previous one is determined from the keys: the newest key of the previous
call must directly precede the new ones. This holds for dynamic, static and sliding caches of any library, and for
compressed ones, whose keys are computed anew in each step.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

import numpy as np
import torch
from torch import Tensor, nn

from regard.capture.records import Layer
from regard.capture.requested_statistics import Asked
from regard.capture.run_statistics import Folding
from regard.capture.selection import QueriesChosen, in_place
from regard.capture.statistics import Extent, Statistic
from regard.capture.streams import Place
from regard.capture.token_ids import Hearing, Listener
from regard.capture.watched_call import WatchedCall
from regard.errors import ObservationError

__all__ = ["FinishedSite", "Running", "Site", "running"]


_CALL = nn.Module._call_impl.__code__
_MARK = "the mark of this call of a module"


@dataclass(frozen=True)
class Running:
    """The innermost module that counts, if one runs; `begun` differs from one outermost call of such a module to the
    next; `outside`: only modules that do not count are running; `calls`: every module that counts, with a mark of its
    call.
    """

    module: nn.Module | None
    begun: object | None
    outside: bool
    calls: tuple[tuple[nn.Module, object], ...] = ()


def running(counts: Callable[[nn.Module], bool]) -> Running:
    """Inspect the running module calls, from the innermost one on."""
    calls: list[tuple[nn.Module, object]] = []
    some = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            some = True
            found = frame.f_locals["self"]
            if counts(found):
                # A mark with the lifetime of the call, which does not keep its frame and local variables alive.
                calls.append((found, frame.f_locals.setdefault(_MARK, object())))
        frame = frame.f_back
    innermost, outermost = (calls[0][0], calls[-1][1]) if calls else (None, None)
    return Running(innermost, outermost, some and not calls, tuple(calls))


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
        self._newest: Tensor | None = None  # mark of the newest key
        self._marks: Tensor | None = None  # all marks of a cross-attention, whose keys do not change
        self._cross = False
        self._filled = 0  # keys up to the newest one
        self._beyond = 0  # positions from there to the query that follows, of queries that stand beyond the keys

    def continues(self, call: WatchedCall) -> bool:
        """Return whether the call adds rows to this site; raise if beam search has reordered the rows."""
        if self._extent is None or self._newest is None:
            return False
        if call.batch != self._extent.batch or call.heads != self._count:
            return False
        if self._cross:
            return self._same_keys(call)
        before = call.newest - call.queries
        if before < 0:
            return False
        found, newest = _as_many_heads(call.marks[:, :, before], self._newest)
        if _same(found, newest):
            return True
        _refuse_reordered(found, newest, self.name)
        return False

    def _same_keys(self, call: WatchedCall) -> bool:
        """Return whether the keys of a cross-attention are unchanged: the cached tensor itself, or an equal one with
        one query.
        """
        assert self._marks is not None
        now, before = _as_many_heads(call.marks, self._marks)
        if now.shape != before.shape:
            return False
        same = now.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        return same or (call.queries == 1 and torch.equal(now, before))

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
        self._newest = call.marks[:, :, call.newest].clone()
        self._marks = call.marks if self._cross else None

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


def _as_many_heads(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marks of two calls with equal numbers of heads: one may have repeated its key heads for grouped
    queries.
    """
    heads = one.shape[1], other.shape[1]
    few = min(heads)
    if max(heads) % few:
        return one, other
    return one[:, :: heads[0] // few], other[:, :: heads[1] // few]


def _same(found: Tensor, newest: Tensor) -> bool:
    """Return whether marks are those of the same keys, but for what rounding changes in keys that each step computes
    anew from a compressed cache (multi-head latent attention).
    """
    if found.shape != newest.shape or torch.equal(found, newest):
        return found.shape == newest.shape
    info = torch.finfo(newest.dtype)
    tolerance = max(2 * info.eps, 64 * torch.finfo(torch.float32).eps if info.bits < 64 else 64 * info.eps)
    change, size = (torch.linalg.vector_norm(one.double(), dim=-1) for one in (found - newest, newest))
    return bool((change <= tolerance * size).all())


def _refuse_reordered(found: Tensor, newest: Tensor, name: str) -> None:
    """Raise if beam search has reordered the rows of the cache, so that each newest key is in the row of
    another beam.
    """
    if len(found) < 2:
        return
    if not _same(found, newest) and all(any(_same(row, other) for other in newest) for row in found):
        raise ObservationError(
            f"the cache of {name or 'this model'} was reordered between two steps, as beam search does, so its rows no "
            "longer belong to one text: watch greedy decoding or sampling (num_beams=1), or run the finished text "
            "through the model once under watch"
        )


@dataclass(frozen=True, eq=False)
class FinishedSite:
    """A site that will receive no further calls."""

    place: Place
    name: str
    layer: Layer
    crosses: bool = False
    fallback_reason: str | None = None

    def continues(self, call: WatchedCall) -> bool:
        """Return that no second call belongs to it."""
        raise ObservationError(
            f"{self.name or 'this call'} was called twice, and layers that are taken as they are finished need one "
            "pass over the whole text: watch it without `on_layer_end=`"
        )

    def finish(self) -> Layer:
        """Return the layer."""
        return self.layer
