"""What an attention with a cache asks for: where its queries and keys stand, and what is left of its mask."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from regard.cache import CrossAttentionCache, Entry, KVCache
from regard.errors import InputError
from regard.masks import Causal, Mask, Sinks
from regard.masks.base import And, Not, Or
from regard.normalizers import Normalizer, Sigmoid
from regard.positions import Bias, RoPE, Rotary
from regard.scores import Additive, Bilinear, Concat, Cosine, ScaledDot, Score
from regard.torch_private import holds

__all__ = ["bias_of_kept_keys", "check_parts", "needed", "turning"]

_BEYOND = 4096  # positions before the window at which a mask is evaluated
_WITHOUT_POSITIONS = (ScaledDot, Cosine, Bilinear, Additive, Concat)


def check_parts(normalizer: Normalizer | None, score: Score | None, cache: Entry) -> None:
    """Raise where a cache would change what a normalizer or a score computes from the whole text."""
    if isinstance(cache, KVCache) and cache.sinks and not isinstance(score, (*_WITHOUT_POSITIONS, type(None))):
        raise InputError(
            f"`score` {type(score).__name__} may depend on positions, and with sinks={cache.sinks} the kept keys are "
            "not consecutive: use cache.KVCache() without a window"
        )
    if isinstance(normalizer, Sigmoid) and normalizer.shift is None and not isinstance(cache, CrossAttentionCache):
        raise InputError(
            "`normalizer` Sigmoid() is shifted by −ln(keys), and a cache has more keys in each step: fix "
            "Sigmoid(shift=...), such as minus the logarithm of the length in training, or go without a cache"
        )


def turning(
    rotary: Rotary, cache: Entry, queries: int, x: Tensor, position_ids: Tensor | None = None
) -> Callable[[Tensor], Tensor]:
    """What turns queries and new keys by their positions, by default those after all that is in the cache.

    Where angles depend on the length of a text (DynamicNTK, LongRoPE) it is the length with these tokens; the keys
    before stay as they were turned, as in transformers.

    Raises:
        InputError: Positions say nothing here.
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
    if position_ids is not None:
        if position_ids.shape[-1] != queries:
            raise InputError(
                f"`position_ids` must be (batch, {queries}), one for each token of this call, got "
                f"{tuple(position_ids.shape)}: the cache keeps earlier keys turned"
            )
        positioned, here = rotary.at(position_ids), torch.arange(queries, device=x.device)
        return lambda one: positioned.rotate(one, here)
    shared = _angles if torch.compiler.is_compiling() else _kept_angles
    cos, sin = shared(rotary, cache.length, queries, x.device, x.dtype)
    return lambda one: rotary.turn(one, cos, sin)


def _angles(rotary: RoPE, start: int, queries: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return rotary.doubled(*rotary.angles(torch.arange(start, start + queries, device=device), dtype))


@lru_cache(maxsize=4)
def _kept_angles(*place: Any) -> tuple[Tensor, Tensor]:
    """Angles that all layers of a model share: computed once for a token, not once a layer."""
    with torch.inference_mode(False), torch.no_grad():  # they may outlive the mode in which they are made
        return _angles(*place)


def needed(mask: Mask | None, queries: int, cache: Entry) -> Mask | None:
    """The mask of the module, or None where a single query sees all that the cache keeps.

    Raises:
        InputError: The mask shows a position that the cache drops, or counts positions from the text's beginning (other
            than the first ones), or shows sinks at some distances only.
    """
    window = cache.window if isinstance(cache, KVCache) else None
    if window is None:
        whole = isinstance(mask, Causal) and mask.align == "end" and isinstance(cache, KVCache)
        return None if whole and holds(queries == 1) else mask
    assert isinstance(cache, KVCache)
    visible = _Visible(kept=True, dropped=True) if mask is None else _visible(mask, window, cache.sinks)
    if visible.dropped or visible.from_beginning or visible.sinks_sometimes:
        _refuse(mask, visible, window, cache.sinks)
    return None if visible.kept and holds(queries == 1) else mask


def _refuse(mask: Mask | None, visible: "_Visible", window: int, sinks: int) -> NoReturn:
    kept = f"`cache` keeps the last {window} positions" + (f" and the first {sinks}" if sinks else "")
    if visible.from_beginning:
        raise InputError(
            f"{kept}, and the mask of this attention counts from the beginning of the text: use cache.KVCache() "
            "without a window"
        )
    if visible.sinks_sometimes:
        raise InputError(
            f"{kept}, and the mask of this attention shows the first {sinks} at some distances only: use "
            "cache.KVCache() without a window"
        )
    first = max(sinks, 0 if mask is None else _sinks_of(mask))
    wanted, own = f"masks.Causal() & masks.Window({window})", "cache.KVCache(window)"
    if first:
        wanted = f"masks.Causal() & (masks.Window({window}) | masks.Sinks({first}))"
        own = f"cache.KVCache(window, sinks={first})"
    raise InputError(
        f"{kept}, and the mask of this attention shows others: give the module mask={wanted}, and make {own} with the "
        "mask's window and sinks"
    )


def bias_of_kept_keys(bias: Bias | Tensor | None, cache: Entry | None) -> Bias | Tensor | None:
    """The bias for the keys that a cache keeps: distances to sinks are those in the text."""
    if not isinstance(cache, KVCache) or not (cache.sinks and cache.dropped):
        return bias
    return _BiasBesideSinks(bias, cache.sinks, cache.dropped) if isinstance(bias, Bias) and bias.relative else bias


@dataclass(frozen=True, eq=False)
class _BiasBesideSinks(Bias):
    """A bias of distances where `dropped` positions between the sinks and the other keys are not there."""

    bias: Bias
    sinks: int
    dropped: int

    @property
    def leading(self) -> tuple[int, int]:
        """Those of the bias."""
        return self.bias.leading

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The numbers of the bias, with sinks as far away as they are in the text."""
        return self.bias(batch, head, i, torch.where(j < self.sinks, j - self.dropped, j))


def _is_of_distances_and_sinks(mask: Mask) -> bool:
    """Whether a mask depends on distances, and on which keys are the first, alone."""
    if isinstance(mask, And | Or):
        return _is_of_distances_and_sinks(mask.left) and _is_of_distances_and_sinks(mask.right)
    if isinstance(mask, Not):
        return _is_of_distances_and_sinks(mask.hidden)
    return mask.relative or isinstance(mask, Sinks)


def _sinks_of(mask: Mask) -> int:
    """How many first keys a mask names."""
    if isinstance(mask, And | Or):
        return max(_sinks_of(mask.left), _sinks_of(mask.right))
    if isinstance(mask, Not):
        return _sinks_of(mask.hidden)
    return mask.num_sink_tokens if isinstance(mask, Sinks) else 0


class _Visible(NamedTuple):
    """What queries far from the beginning of a text see."""

    kept: bool = False  # all of the window and the sinks
    dropped: bool = False  # a position between them
    from_beginning: bool = False  # what depends on more than distances and the first keys
    sinks_sometimes: bool = False  # a sink from some queries, and not from others


@lru_cache(maxsize=64)
def _visible(mask: Mask, window: int, sinks: int) -> _Visible:
    if not _is_of_distances_and_sinks(mask):
        return _Visible(from_beginning=True)
    length = sinks + _BEYOND + window
    bound = mask.bind(length, length)
    batch, heads = bound.mask.leading
    evaluate = partial(bound.tile, batch=batch, heads=heads, device=torch.device("cpu"))
    row = evaluate(slice(length - 1, length), slice(0, length))
    columns = evaluate(slice(sinks + window - 1, length), slice(0, sinks))
    dropped = bool(row[..., sinks:-window].any())
    return _Visible(
        kept=bool(row[..., :sinks].all()) and bool(row[..., -window:].all()),
        dropped=dropped,
        sinks_sometimes=not dropped and bool((columns != columns[..., :1, :]).any()),
    )
