"""Keys and values of the tokens that a model has run on, as state that is passed in.

Every attention has an entry of its own. A `KVCache` grows with the text; with a window it keeps only the last keys. A
`CrossAttentionCache` holds the keys and values of the encoder's states, projected once. `Cache` is the state of a whole
model: transformers' `past_key_values`.
"""

import copy
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Cache", "CrossAttentionCache", "Entry", "KVCache"]

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
    whole text. Keys and values before the window are overwritten. If gradients are enabled, each call makes new
    tensors.

    Args:
        window: How many positions a query sees, itself included: `masks.Window(window)` in the attention. None keeps
            all.

    Raises:
        InputError: The window is no positive integer, or what is added has another shape.

    >>> entry = KVCache(window=2)
    >>> one = torch.arange(3.0).reshape(1, 1, 3, 1)
    >>> keys, values = entry.update(one, one)
    >>> keys, values = entry.update(one[:, :, :1] + 3, one[:, :, :1] + 3)
    >>> keys.flatten(), entry.length, entry.first
    (tensor([2., 3.]), 4, 2)
    """

    def __init__(self, window: int | None = None) -> None:
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise InputError(
                f"`window` counts positions, the query's own included, and must be at least 1, got {window!r}"
            )
        self.window = window
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._start = self._end = 0  # where in the buffers the kept positions stand

    @property
    def first(self) -> int:
        """The position of the first key that is kept."""
        return self.length - (self._end - self._start)

    @property
    def held(self) -> Pair | None:
        """The keys and values that are kept, None before the first ones."""
        return self._kept()

    def update(self, k: KeysOrValues, v: KeysOrValues) -> Pair:
        """Add keys and values; return those that the new queries may attend to."""
        new = k.shape[-2]
        self._check(k, v)
        if self.window is not None:  # the first new query sees window − 1 positions before it
            self._start = max(self._start, self._end - (self.window - 1))
        kept = self._end - self._start
        if torch.is_grad_enabled():  # what a gradient may need must not be written over
            old = self._kept()
            if old is not None:
                k, v = (torch.cat([past, now], -2) for past, now in zip(old, (k, v), strict=True))
            self._keys, self._values, self._start, self._end = k, v, 0, kept + new
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
        kept = self._end - self._start
        return q_len + (kept if self.window is None else min(kept, self.window - 1))

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these sequences of the batch, as transformers' `reorder_cache` does."""
        kept = self._kept()
        if kept is None:
            return
        if torch.is_grad_enabled():
            self._keys, self._values = (one.index_select(0, rows) for one in kept)
        else:
            length = kept[0].shape[-2]
            buffers = [one.new_empty(len(rows), *one.shape[1:-2], length + _ROOM, one.shape[-1]) for one in kept]
            for buffer, past in zip(buffers, kept, strict=True):
                torch.index_select(past.detach(), 0, rows, out=buffer[..., :length, :])
            self._keys, self._values = buffers
        self._start, self._end = 0, self._end - self._start

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVCache":
        """Another cache of the same text; gradients flow through both."""
        other = copy.copy(self)
        other._keys, other._values = (None if one is None else one.clone() for one in (self._keys, self._values))
        return other

    def _kept(self) -> Pair | None:
        if self._keys is None or self._values is None:
            return None
        kept = self._end - self._start
        return self._keys.narrow(-2, self._start, kept), self._values.narrow(-2, self._start, kept)

    def _make_room(self, k: Tensor, v: Tensor, kept: int, new: int) -> Pair:
        """Give buffers that have `new` places behind the kept ones."""
        held = self._keys, self._values
        if (
            held[0] is not None
            and held[1] is not None
            and self._end + new <= held[0].shape[-2]
            and _may_be_written(held[0])
        ):
            return held[0], held[1]
        old = self._kept()
        room = max(_ROOM, 2 * (kept + new))
        keys, values = (one.new_empty(*one.shape[:-2], room, one.shape[-1]) for one in (k, v))
        if old is not None:
            keys.narrow(-2, 0, kept).copy_(old[0])
            values.narrow(-2, 0, kept).copy_(old[1])
        self._keys, self._values, self._start, self._end = keys, values, 0, kept
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
    each call updates it. A cache belongs to one batch. To try two continuations of a text, use copy.deepcopy.

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
        if self.attention_mask is not None and len(self.attention_mask) != batch:
            raise InputError(
                f"the cache holds {len(self.attention_mask)} texts, and {batch} are continued: cache.reorder(rows) "
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


def _may_be_written(buffer: Tensor) -> bool:
    """Not what a gradient hangs on, nor what inference mode has made, outside of it; compiled code cannot ask that."""
    if buffer.requires_grad:
        return False
    return torch.compiler.is_compiling() or not buffer.is_inference() or torch.is_inference_mode_enabled()


def _bytes(entry: KVCache | CrossAttentionCache) -> int:
    held = (entry._keys, entry._values) if isinstance(entry, KVCache) else entry._pair or ()
    return sum(one.numel() * one.element_size() for one in held if one is not None)


def _outside(x: Tensor) -> tuple[int, ...]:
    return (*x.shape[:-2], x.shape[-1])
