"""Ask a score about some sequences and heads of a call, so that it gives what it gives of all of them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.frozen import tensors
from regard.scores.base import Score

__all__ = ["score_tile", "value_term_tile"]


def score_tile(
    score: Score,
    q: Float[Tensor, "batch heads rows dim"],
    k: Float[Tensor, "batch heads columns key_dim"],
    batch: slice,
    heads: slice,
    i: Int[Tensor, " rows"],
    j: Int[Tensor, " columns"],
    sizes: tuple[int, int],
) -> Float[Tensor, "batch heads rows columns"]:
    """Score the q and k of these sequences and heads of a call, which has `sizes` (batch, heads) in all.

    Raises:
        InputError: What the score gives is no (batch, heads, rows, columns).
    """
    found = _of_part(score, "tile", (q, k), batch, heads, i, j, sizes)
    return _expanded(score, "tile", "(batch, heads, rows, columns)", found, (*q.shape[:3], k.shape[2]))


def value_term_tile(
    score: Score,
    weights: Float[Tensor, "batch heads rows columns"],
    batch: slice,
    heads: slice,
    i: Int[Tensor, " rows"],
    j: Int[Tensor, " columns"],
    sizes: tuple[int, int],
    value_dim: int,
) -> Float[Tensor, "batch heads rows value_dim"] | None:
    """Give the score's term of the values for these sequences and heads, None where it adds none.

    Raises:
        InputError: What the score gives is no (batch, heads, rows, value_dim).
    """
    if type(score).value_term is Score.value_term:
        return None
    term: Tensor | None = _of_part(score, "value_term", (weights,), batch, heads, i, j, sizes)
    if term is None:
        return None
    return _expanded(score, "value_term", "(batch, heads, rows, value_dim)", term, (*weights.shape[:3], value_dim))


def _expanded(score: Score, method: str, words: str, found: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What the score gives, in the shape that it must have."""
    if found.shape == shape:
        return found
    try:
        return found.expand(shape)
    except RuntimeError:
        raise InputError(
            f"{type(score).__name__}.{method} must give {words}, here {shape}, got {tuple(found.shape)}: take `batch` "
            "and `head` after j, the indices of the tile's sequences and heads, and look up by them what the score "
            "holds for each, such as self.gain[head]"
        ) from None


def _of_part(
    score: Score,
    method: str,
    parts: tuple[Tensor, ...],
    batch: slice,
    heads: slice,
    i: Tensor,
    j: Tensor,
    sizes: tuple[int, int],
) -> Any:
    hears = _hears.__wrapped__ if torch.compiler.is_compiling() else _hears  # a compiler cannot look into its cache
    if hears(getattr(type(score), method)):
        where = (torch.arange(one.start, one.stop, device=i.device) for one in (batch, heads))
        return getattr(score, method)(*parts, i, j, *where)
    part = score.of_heads(heads)
    cuts_heads = type(score).of_heads is not Score.of_heads
    own = not type(score).__module__.startswith("regard.")
    held = tensors(score) if own else []
    whole = [
        _covers(one, size) or not any(size in tensor.shape for tensor in held) or (cuts_heads and at == 1)
        for at, (one, size) in enumerate(zip((batch, heads), sizes, strict=True))
    ]
    if all(whole):
        return getattr(part, method)(*parts, i, j)
    # A score of one's own may hold something by sequence or head, and cannot be told which are these: it is asked about
    # all, the others being copies of these, whose numbers are finite as theirs are, and whose results are cut off.
    wanted = [None if done else one for done, one in zip(whole, (batch, heads), strict=True)]
    filled = tuple(_filled(one, wanted, sizes) for one in parts)
    found = getattr(part, method)(*filled, i, j)
    for dim, one in enumerate(wanted):
        if found is not None and one is not None and found.shape[dim] > 1:
            found = found.narrow(dim, one.start, one.stop - one.start)
    return found


def _covers(part: slice, size: int) -> bool:
    return bool(part.start == 0 and part.stop >= size)


def _filled(x: Tensor, wanted: list[slice | None], sizes: tuple[int, int]) -> Tensor:
    """These sequences or heads in their places among all."""
    for dim, (one, size) in enumerate(zip(wanted, sizes, strict=True)):
        if one is not None:
            x = x.index_select(dim, (torch.arange(size, device=x.device) - one.start) % x.shape[dim])
    return x


@functools.cache
def _hears(method: Callable[..., Any]) -> bool:
    """Whether a method takes `batch` and `head` after j."""
    names = list(inspect.signature(method).parameters)
    return names[-2:] == ["batch", "head"]
