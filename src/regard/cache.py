"""Keys and values of the tokens that a model has run on, as state that is passed in.

Every attention has an entry of its own. A `KVCache` grows with the text; with a window it keeps only the last keys, and
with sinks the first ones too. A `CrossAttentionCache` holds the keys and values of the encoder's states, projected
once. `Cache` is the state of a whole model: transformers' `past_key_values`.
"""

import copy
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.checks import check_count
from regard.errors import InputError
from regard.torch_private import is_exporting

__all__ = ["Cache", "CrossAttentionCache", "Entry", "KVCache", "length_after_crop"]

KeysOrValues = Float[Tensor, "*batch kv_heads keys dim"]
Pair = tuple[KeysOrValues, KeysOrValues]

_ROOM = 64  # positions that a buffer begins with


class Entry(Protocol):
    """The keys and values of one attention."""

    @property
    def length(self) -> int:
        """How many keys were added."""
        ...

    def update(self, k: KeysOrValues, v: KeysOrValues) -> Pair:
        """Add the keys and values of new tokens; return those to attend to."""
        ...

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these sequences of the batch, as transformers' `reorder_cache` does."""
        ...


class KVCache:
    """The keys and values of what was read, in order; of the last `window` positions alone, if there is one.

    Under torch.no_grad the buffers have spare room and double when it is used up, so adding a token does not copy the
    whole text. Keys and values before the window, and those that `crop` removes, are overwritten. If gradients are
    enabled, and in exported programs, each call makes new tensors.

    With `sinks` the first positions of the text are kept beside the window (StreamingLLM: Xiao et al. 2024,
    arXiv:2309.17453), for an attention with the mask `Causal() & (Window(window) | Sinks(sinks))`: outputs are those of
    this mask without a cache. Therefore rotary embeddings turn each key by its position in the text, and a bias that
    depends on distances has the distances in the text. The paper counts positions inside the cache instead, so that
    no distance exceeds sinks + window; a model that cannot attend to longer distances than it was trained on needs
    that, and this cache does not offer it.

    Args:
        window: How many positions a query sees, itself included: `masks.Window(window)` in the attention. None keeps
            all.
        sinks: How many of the first positions it sees as well: `masks.Sinks(sinks)`. Only beside a window.

    Raises:
        InputError: The window is no positive integer, `sinks` count nothing or have no window, or what is added has
            another shape.

    >>> entry = KVCache(window=2)
    >>> x = torch.arange(3.0).reshape(1, 1, 3, 1)
    >>> keys, values = entry.update(x, x)
    >>> keys, values = entry.update(x[:, :, :1] + 3, x[:, :, :1] + 3)
    >>> keys.flatten(), entry.length, entry.first
    (tensor([2., 3.]), 4, 2)
    """

    def __init__(self, window: int | None = None, *, sinks: int = 0) -> None:
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise InputError(
                f"`window` counts positions, the query's own included, and must be at least 1, got {window!r}"
            )
        check_count("sinks", sinks, 0, "counts the first positions")
        if sinks and window is None:
            raise InputError(f"`sinks` are kept beside a window, got {sinks}: give window= too, or leave them out")
        self.window = window
        self.sinks = sinks
        self.length = 0
        self.dropped = 0  # positions between the sinks and the window that are kept no more
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._start = self._end = 0  # where in the buffers the kept positions stand
        self._owned = False  # whether nobody else has the buffers, so that they may be written to

    @property
    def first(self) -> int:
        """The position of the first key that is kept, sinks apart."""
        return self.dropped + self.sinks if self.dropped else 0

    @property
    def held(self) -> Pair | None:
        """The keys and values that are kept, None before the first ones."""
        return self._kept()

    def update(self, k: KeysOrValues, v: KeysOrValues) -> Pair:
        """Add keys and values; return those that the new queries may attend to: sinks, window and new ones."""
        new = k.shape[-2]
        self._check(k, v)
        self._drop()
        kept = self._end - self._start
        if _is_kept_by_others():
            old = self._kept()
            if old is not None:
                k, v = (torch.cat([past, now], -2) for past, now in zip(old, (k, v), strict=True))
            self._set(k, v, owned=False)
        else:
            keys, values = self._make_room(k, v, kept, new)
            keys.narrow(-2, self._end, new).copy_(k)
            values.narrow(-2, self._end, new).copy_(v)
            self._end += new
        self.length += new
        pair = self._kept()
        assert pair is not None
        return pair

    def reach(self, q_len: int) -> int:
        """How many keys `update` will return when `q_len` ones are added."""
        return self.length - self._dropped_next() + q_len

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these sequences of the batch, as transformers' `reorder_cache` does."""
        kept = self._kept()
        if kept is None:
            return
        if _is_kept_by_others():
            self._set(*(tensor.index_select(0, rows) for tensor in kept), owned=False)
            return
        length = kept[0].shape[-2]
        buffers = [x.new_empty(rows.shape[0], *x.shape[1:-2], length + _ROOM, x.shape[-1]) for x in kept]
        for buffer, past in zip(buffers, kept, strict=True):
            torch.index_select(past.detach(), 0, rows, out=buffer[..., :length, :])
        self._set(*buffers, owned=True, kept=length)

    def crop(self, length: int) -> None:
        """Remove the last positions, so that `length` remain, as if the others had never been added.

        For speculative decoding: add the drafted tokens, and remove those that are rejected. The arguments are those of
        transformers' `DynamicCache.crop`; both its counts are understood.

        Args:
            length: How many positions remain, above 0 (transformers 4; all, if there are no more); or below 0, the
                number that is removed (transformers 5). 0 is refused unless the cache is empty: it means the one in
                transformers 4, and the other in transformers 5.

        Raises:
            InputError: There are fewer positions than are to be removed, or the window at `length` is kept no more: a
                window can lose at most what the last `update` has added.

        >>> entry, x = KVCache(), torch.arange(3.0).reshape(1, 1, 3, 1)
        >>> keys, values = entry.update(x, x)
        >>> entry.crop(2)
        >>> entry.length, entry.held[0].flatten()
        (2, tensor([0., 1.]))
        >>> entry.crop(-1)
        >>> entry.length
        1
        """
        remaining = length_after_crop(length, self.length)
        if remaining == self.length:
            return
        self.check_crop(remaining)
        in_window = max(0, remaining - self.first)
        kept = in_window + (min(self.sinks, remaining) if self.dropped else 0)
        self._end, self.length, self.dropped = self._start + kept, remaining, remaining - kept
        if not remaining:
            self._keys = self._values = None
            self._start = self._end = 0

    def check_crop(self, remaining: int) -> None:
        """Raise an InputError where a query at position `remaining` sees a position that is kept no more."""
        if self.window is None or not self.dropped:
            return
        sees = max(remaining - self.window + 1, self.sinks)
        if sees < min(self.first, remaining):
            raise InputError(
                f"`length` of crop must be at least {self.first + self.window - 1}, got {remaining}: this cache keeps "
                f"the positions from {self.first} on, and a query at position {remaining} sees those from {sees} on; "
                "add fewer tokens in one call, take a copy.deepcopy before, or a KVCache() without a window"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVCache":
        """Another cache of the same text; gradients flow through both."""
        other = copy.copy(self)
        other._keys, other._values = (None if x is None else x.clone() for x in (self._keys, self._values))
        return other

    def _kept(self) -> Pair | None:
        if self._keys is None or self._values is None:
            return None
        kept = self._end - self._start
        return self._keys.narrow(-2, self._start, kept), self._values.narrow(-2, self._start, kept)

    def _set(self, keys: Tensor, values: Tensor, *, owned: bool, kept: int | None = None) -> None:
        """Take buffers whose first `kept` places (all by default) are the kept positions."""
        self._keys, self._values, self._owned = keys, values, owned
        self._start, self._end = 0, keys.shape[-2] if kept is None else kept

    def _dropped_next(self) -> int:
        """How many positions the next query does not see: it sees window − 1 positions before it, and the sinks."""
        if self.window is None:
            return 0
        return max(self.dropped, self.length - (self.window - 1) - self.sinks)

    def _drop(self) -> None:
        """Drop what the next query does not see."""
        more = self._dropped_next() - self.dropped
        kept = self._kept()
        if more <= 0 or kept is None:
            return
        self.dropped += more
        if not self.sinks:
            self._start += more
        elif _is_kept_by_others() or not self._is_writable():
            keys, values = (torch.cat([x[..., : self.sinks, :], x[..., self.sinks + more :, :]], -2) for x in kept)
            self._set(keys, values, owned=False)
        else:  # the sinks move up to the window, over what is dropped
            for x in kept:
                x.narrow(-2, more, self.sinks).copy_(x.narrow(-2, 0, self.sinks).clone())
            self._start += more

    def _is_writable(self) -> bool:
        return self._owned and self._keys is not None and _may_be_written(self._keys)

    def _make_room(self, k: Tensor, v: Tensor, kept: int, new: int) -> Pair:
        """Give buffers that have `new` places behind the kept ones."""
        buffers = self._keys, self._values
        if (
            buffers[0] is not None
            and buffers[1] is not None
            and self._end + new <= buffers[0].shape[-2]
            and self._is_writable()
        ):
            return buffers[0], buffers[1]
        old = self._kept()
        room = max(_ROOM, 2 * (kept + new))
        keys, values = (x.new_empty(*x.shape[:-2], room, x.shape[-1]) for x in (k, v))
        if old is not None:
            keys.narrow(-2, 0, kept).copy_(old[0])
            values.narrow(-2, 0, kept).copy_(old[1])
        self._set(keys, values, owned=True, kept=kept)
        return keys, values

    def _check(self, k: Tensor, v: Tensor) -> None:
        if self._keys is None or self._values is None:
            return
        if self._keys.shape[:-2] == k.shape[:-2] and self._values.shape[-1] == v.shape[-1]:
            return
        raise InputError(
            f"the cache holds keys of shape {_outside(self._keys)}, and those to be added have {_outside(k)}: go on "
            "with the batch that it was begun with, cache.reorder(rows) chooses from it"
        )


class CrossAttentionCache:
    """Keys and values of cross-attention: those of the first call, whatever is passed later.

    >>> entry = CrossAttentionCache()
    >>> one = torch.ones(1, 1, 3, 2)
    >>> entry.update(one, one)[0] is entry.update(one + 1, one)[0]
    True
    """

    def __init__(self) -> None:
        self._pair: Pair | None = None

    @property
    def length(self) -> int:
        """How many keys it has."""
        return 0 if self._pair is None else self._pair[0].shape[-2]

    @property
    def keys_and_values(self) -> Pair | None:
        """What the first call has brought; None before, when they are still to be projected."""
        return self._pair

    def update(self, k: KeysOrValues, v: KeysOrValues) -> Pair:
        """Keep the keys and values of the first call, and return them at every call."""
        if self._pair is None:
            self._pair = k, v
        return self._pair

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these sequences of the batch, as transformers' `reorder_cache` does."""
        if self._pair is not None:
            k, v = self._pair
            self._pair = k.index_select(0, rows), v.index_select(0, rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CrossAttentionCache":
        """Another cache of the same text; gradients flow through both."""
        other = CrossAttentionCache()
        other._pair = None if self._pair is None else (self._pair[0].clone(), self._pair[1].clone())
        return other


class Cache:
    """The keys and values of a decoder: one entry for each attention of each layer, and which tokens are no padding.

    A cache is made by `Transformer.cache()` or `use_cache=True`. It is passed to each call as `past_key_values`, and
    each call updates it. A cache belongs to one batch. To try two continuations of a text, use copy.deepcopy. To take
    back the last tokens, as speculative decoding does, use `crop`.

    Args:
        layers: For each layer the entry of its self-attention, and that of its cross-attention if it has one.
    """

    def __init__(self, layers: tuple[tuple[KVCache, CrossAttentionCache | None], ...]) -> None:
        self.layers = layers
        self.attention_mask: Bool[Tensor, "batch length"] | None = None

    @property
    def length(self) -> int:
        """How many tokens were read, padding included."""
        return self.layers[0][0].length if self.layers else 0

    @property
    def bytes(self) -> int:
        """What the keys and values take, with the room to spare."""
        return sum(_bytes(entry) for layer in self.layers for entry in layer if entry is not None)

    def extend_mask(
        self, mask: Bool[Tensor, "batch q_len"] | None, batch: int, q_len: int, *, device: torch.device
    ) -> Bool[Tensor, "batch all"] | None:
        """Return which of all tokens, those run on before and `q_len` ones, are no padding; None where all are.

        It is kept as `attention_mask` by who runs on them.

        Raises:
            InputError: The cache is another batch's.
        """
        if self.attention_mask is not None and self.attention_mask.shape[0] != batch:
            raise InputError(
                f"the cache holds {self.attention_mask.shape[0]} texts, and {batch} are continued: cache.reorder(rows) "
                "chooses from them"
            )
        if mask is None and self.attention_mask is None:
            return None
        before = self.attention_mask
        if before is None:
            before = torch.ones(batch, self.length, dtype=torch.bool, device=device)
        now = torch.ones(batch, q_len, dtype=torch.bool, device=device) if mask is None else mask
        return torch.cat([before, now], 1)

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these sequences of the batch, repeated, reordered or left out, as beam search needs it."""
        for layer in self.layers:
            for entry in layer:
                if entry is not None:
                    entry.reorder(rows)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask.index_select(0, rows)

    def crop(self, length: int) -> None:
        """Remove the last tokens of all texts, so that `length` remain, as if the others had never been read.

        Cross-attention stays as it is: its keys are those of the source.

        Args:
            length: As in `KVCache.crop`: above 0 the number that remains, padding included; below 0 the number that is
                removed.

        Raises:
            InputError: As `KVCache.crop`; then no layer has lost a token.
        """
        remaining = length_after_crop(length, self.length)
        if remaining == self.length:
            return
        for entry, _ in self.layers:
            entry.check_crop(remaining)
        removed = self.length - remaining
        for entry, _ in self.layers:
            entry.crop(-removed)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[:, :remaining] if remaining else None


def length_after_crop(length: int, current: int) -> int:
    """How many of `current` positions remain where a cache is cropped to `length`, or by −`length`.

    Raises:
        InputError: The length is no integer, or 0, or more are to be removed than there are.
    """
    if isinstance(length, bool) or not isinstance(length, int):
        raise InputError(f"`length` of crop counts positions and must be an integer, got {length!r}")
    if length == 0 and current:
        raise InputError(
            "`length` of crop must not be 0, which empties a cache in transformers 4 and does nothing in "
            "transformers 5: make a new cache for the one, and do not call crop for the other"
        )
    if current + length < 0:
        raise InputError(f"`length` of crop must be at least −{current}, as many positions as there are, got {length}")
    return min(length, current) if length > 0 else current + length


def _is_kept_by_others() -> bool:
    """Whether what was read must not be written over: a gradient may need it, and a program's inputs are its caller's,
    whose lengths are no number by which room could be measured.
    """
    return torch.is_grad_enabled() or is_exporting()


def _may_be_written(buffer: Tensor) -> bool:
    """Not what a gradient hangs on, nor what inference mode has made, outside of it; compiled code cannot ask that."""
    if buffer.requires_grad:
        return False
    return torch.compiler.is_compiling() or not buffer.is_inference() or torch.is_inference_mode_enabled()


def _bytes(entry: KVCache | CrossAttentionCache) -> int:
    tensors = (entry._keys, entry._values) if isinstance(entry, KVCache) else entry._pair or ()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _outside(x: Tensor) -> tuple[int, ...]:
    return (*x.shape[:-2], x.shape[-1])
