"""What an attention with a cache asks for: where its queries stand, and what is left of its mask."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from regard.cache import CrossAttentionCache, Entry, KVCache
from regard.errors import InputError
from regard.masks import Causal, Mask
from regard.normalizers import Normalizer, Sigmoid
from regard.positions import DynamicNTK, RoPE, Rotary

__all__ = ["check_normalizer", "needed", "turning"]


def check_normalizer(normalizer: Normalizer | None, cache: Entry) -> None:
    """Raise where the weights of earlier tokens would have been others, had the text been read at once."""
    if isinstance(normalizer, Sigmoid) and normalizer.shift is None and not isinstance(cache, CrossAttentionCache):
        raise InputError(
            "`normalizer` Sigmoid() is shifted by −ln(keys), and a cache has more keys in each step: fix "
            "Sigmoid(shift=...), such as minus the logarithm of the length in training, or go without a cache"
        )


def turning(
    rotary: Rotary, cache: Entry, queries: int, x: Tensor, position_ids: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """What turns queries and new keys by their positions, by default those after all that is in the cache.

    Raises:
        InputError: Positions say nothing here, or turn by an angle that changes as the text grows.
    """
    if isinstance(cache, CrossAttentionCache):
        raise InputError(
            "`rotary` turns queries and keys of one text, and a cache.CrossAttentionCache is another: leave one out"
        )
    if not isinstance(rotary, RoPE):
        if position_ids is not None:
            raise InputError(f"`position_ids` are taken by positions.RoPE, and this module has {type(rotary).__name__}")
        at = torch.arange(cache.length, cache.length + queries, device=x.device)
        return lambda one: rotary.rotate(one, at)
    if isinstance(rotary.scaling, DynamicNTK) and rotary.scaling.length is None:
        raise InputError(
            "`rotary` with DynamicNTK turns all keys anew as a text grows, and a cache keeps them turned: fix "
            "DynamicNTK(..., length=...), or go without a cache"
        )
    if position_ids is not None:
        if position_ids.shape[-1] != queries:
            raise InputError(
                f"`position_ids` must be (batch, {queries}), one for each token of this call, got "
                f"{tuple(position_ids.shape)}: the cache keeps earlier keys turned"
            )
        positioned, here = rotary.at(position_ids), torch.arange(queries, device=x.device)
        return lambda one: positioned.rotate(one, here)
    shared = _angles.__wrapped__ if torch.compiler.is_compiling() else _angles
    cos, sin = shared(rotary, cache.length, queries, x.device, x.dtype)
    return lambda one: rotary.turn(one, cos, sin)


@lru_cache(maxsize=4)
def _angles(rotary: RoPE, start: int, queries: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Angles that all layers of a model share: computed once for a token, not once a layer."""
    with torch.inference_mode(False), torch.no_grad():  # they may outlive the mode in which they are made
        return rotary.doubled(*rotary.angles(torch.arange(start, start + queries, device=device), dtype))


def needed(mask: Mask | None, queries: int, cache: Entry) -> Mask | None:
    """The mask of the module, or None where a single query sees all that the cache keeps.

    Raises:
        InputError: The mask shows a position that the cache has dropped, or counts positions from the text's beginning.
    """
    window = cache.window if isinstance(cache, KVCache) else None
    if window is None:
        whole = isinstance(mask, Causal) and mask.align == "end" and isinstance(cache, KVCache)
        return None if whole and queries == 1 else mask
    if mask is not None and not mask.relative:
        raise InputError(
            f"`cache` keeps {window} positions, and the mask of this attention counts from the beginning of the text: "
            "use cache.KVCache() without a window"
        )
    inside, beyond = (False, True) if mask is None else _row(mask, window)
    if beyond:
        raise InputError(
            f"`cache` keeps {window} positions, and the mask of this attention shows one {window} before the query: "
            f"give the module mask=masks.Causal() & masks.Window({window}), or make cache.KVCache() of a window as "
            "wide as the mask's"
        )
    return None if inside and queries == 1 else mask


@lru_cache(maxsize=64)
def _row(mask: Mask, window: int) -> tuple[bool, bool]:
    """Whether a query sees all of the last `window` positions, and whether it sees the one before them."""
    row = mask.bind(1, window + 1).dense()[..., 0, :]
    return bool(row[..., 1:].all()), bool(row[..., 0].any())
