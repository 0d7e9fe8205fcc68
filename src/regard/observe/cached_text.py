"""What shows which text a call continues: the keys of its earlier calls, and the cache that the model was given.

Caches are those of transformers and of regard, or tuples.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard.observe.watched_call import WatchedCall

__all__ = ["CrossKeys", "SelfKeys", "drops_keys", "given_cache", "length_of", "reference_to"]

_NAMES = ("past_key_values", "past_key_value", "cache_params", "past", "layer_past")


class SelfKeys:
    """The keys of a self-attention at its last call: the newest, and if `whole` is set those of all columns.
    `slides`: keys have been dropped. `first`: the first column that a query saw, after padding.

    In the first layer, a key depends on its token and position only, so that texts with the same last token have the
    same newest key. Therefore, where a call determines which text continues, all columns are compared, in the first and
    the last key head (which are the same if a call repeats its key heads for grouped queries).
    """

    def __init__(self) -> None:
        self.whole = self.slides = False
        self.first = 0
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

    def are_old_keys_of(self, call: WatchedCall, cache: Any, end: int, *, same_cache: bool) -> bool:
        """Return whether all keys of a call before its new ones are these; `cache` is that of the call, if it is known,
        and `same_cache` that of this text, which has read `end` positions if nothing was cut off.

        A call with fewer keys has a cache that dropped the oldest, if the rest are at their new columns. If they are
        also at their old ones, the newest were cut off, of a text that has no positions in its keys, unless the cache
        has read all positions; without a cache, unless keys have been dropped before. If only padding would have been
        dropped, it is the same text without padding, unless it has the same cache.
        """
        if not self.precede(call) or self._columns is None:
            return False
        old = _two_heads(call.marks[:, :, : call.newest - call.queries + 1])
        dropped = self._columns.shape[2] - old.shape[2]
        if dropped < 0 or not _same_columns(old, self._columns[:, :, dropped:]):
            return False
        if not dropped or (same_cache and length_of(cache) == end) or (cache is None and self.slides):
            return True
        if not same_cache and not self.slides and dropped <= self.first:
            return False
        return not _same_columns(old, self._columns[:, :, :-dropped])

    def reordered(self, call: WatchedCall) -> Int[Tensor, " batch"] | None:
        """Return the sequence that each one of a call continues, if beam search has reordered the rows of the cache, so
        that each row has the keys of another beam; None if they are none of these.
        """
        before = call.newest - call.queries
        if before < 0 or self._newest is None or call.batch < 2:
            return None
        found, known = self._found(before, call)
        if self._columns is not None:  # beams that end with the same token differ before it
            found, known = _two_heads(call.marks[:, :, : before + 1]), self._columns
        if found.shape != known.shape:
            return None
        rows = [
            next((at for at in (own, *range(len(known))) if _same(row, known[at])), None)
            for own, row in enumerate(found)
        ]
        return None if None in rows or rows == list(range(len(rows))) else torch.tensor(rows, device=found.device)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let each sequence go on from the keys of another."""
        self._newest = None if self._newest is None else self._newest[rows]
        self._columns = None if self._columns is None else self._columns[rows]

    def _found(self, column: int, call: WatchedCall) -> tuple[Tensor, Tensor]:
        assert self._newest is not None
        return _as_many_heads(call.marks[:, :, column], self._newest)


class CrossKeys:
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


def given_cache(kwargs: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a call, by the names that transformers has for it."""
    return next((kwargs[name] for name in _NAMES if kwargs.get(name) is not None), None)


def reference_to(cache: Any) -> Callable[[], Any]:
    """Return a function that returns the cache while it exists, and does not keep it alive."""
    try:
        return _nothing if cache is None else weakref.ref(cache)
    except TypeError:  # a tuple of older versions, a new one in each step
        return _nothing


def _nothing() -> None:
    return None


def length_of(cache: Any) -> int:
    """Return the number of positions that a cache has read; 0 if there is none.

    While a layer attends, those of its call are among them, since layers update a cache before they attend.
    """
    if cache is None:
        return 0
    if callable(getattr(cache, "get_seq_length", None)):
        # Where the first layer has another kind of memory (MiniMax), its number of keys stays 0.
        return int(cache.get_seq_length()) or max((_keys_of(one) for one in getattr(cache, "layers", ())), default=0)
    length = getattr(cache, "length", None)
    if isinstance(length, int):
        return length
    if isinstance(cache, tuple | list) and cache and isinstance(cache[0], tuple | list) and cache[0]:
        first = cache[0][0]
        return int(first.shape[-2]) if isinstance(first, Tensor) else 0
    return 0


def _keys_of(layer: Any) -> int:
    keys = getattr(layer, "keys", None)
    return int(layer.get_seq_length()) if isinstance(keys, Tensor) and keys.numel() else 0


def drops_keys(cache: Any, layer: int | None) -> bool:
    """Return whether a cache holds the last keys of a layer only."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    if layer is None or not isinstance(layers, list | tuple) or layer >= len(layers):
        return False
    one = layers[layer]
    one = one[0] if isinstance(one, tuple) else one
    return bool(getattr(one, "is_sliding", False)) or bool(getattr(one, "first", 0))
