"""What the lessons share: heads split and merged, and attention under a mask that broadcasts over the scores."""

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from regard.checks import check_size
from regard.errors import InputError
from regard.functional import attention
from regard.masks import Mask
from regard.nn.checks import check_width

__all__ = [
    "LessonMask",
    "attend",
    "check_tokens",
    "drop_rate",
    "head_width",
    "mask_over_scores",
    "merge_heads",
    "split_heads",
]

LessonMask = Num[Tensor, "..."] | Bool[Tensor, "..."] | Mask | None


def attend(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch keys dim"],
    v: Float[Tensor, "*batch keys value_dim"],
    mask: LessonMask = None,
    dropout: nn.Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Give softmax(q kᵀ / √dim) v and the weights (..., queries, keys), those before dropout."""
    rate = 0.0 if dropout is None else drop_rate(dropout)
    output, weights = attention(q, k, v, mask=mask_over_scores(mask, q, k), dropout=rate, return_weights=True)
    return output, weights


def drop_rate(dropout: nn.Dropout) -> float:
    """The probability with which a lesson's dropout of weights drops now: 0 outside of training."""
    return float(dropout.p) if dropout.training else 0.0


def mask_over_scores(mask: LessonMask, q: Tensor, k: Tensor) -> Mask | Tensor | None:
    """Read ones and zeros that broadcast over the scores (..., queries, keys) as booleans that regard.attention takes.

    Raises:
        InputError: It does not broadcast, holds other numbers, or is (batch, queries, keys) over the scores of heads.
    """
    if not isinstance(mask, Tensor):
        return mask
    scores = (*q.shape[:-1], k.shape[-2])
    if len(scores) == 4 and mask.ndim == 3 and mask.shape[0] != 1:
        raise InputError(
            f"`mask` of shape {tuple(mask.shape)} would broadcast its batch over the heads: write mask[:, None] for "
            "one a sequence, mask[None] for one a head"
        )
    shape = (1,) * (len(scores) - mask.ndim) + tuple(mask.shape)
    if len(shape) > len(scores) or any(one not in (1, whole) for one, whole in zip(shape, scores, strict=True)):
        flags = "mask[:, None, None]" if len(scores) == 4 else "mask[:, None]"
        raise InputError(
            f"`mask` of shape {tuple(mask.shape)} must broadcast over the scores {scores}: a matrix is (queries, "
            f"keys), and flags of tokens (batch, keys) are {flags}"
        )
    seen = _seen(mask).reshape(shape)
    return seen.unsqueeze(-3) if len(scores) == 3 else seen


def _seen(mask: Tensor) -> Tensor:
    """True where a mask of ones and zeros shows a key."""
    # Compiled code cannot branch on numbers.
    if mask.dtype != torch.bool and not torch.compiler.is_compiling():
        odd = mask[(mask != 0) & (mask != 1)]
        if odd.numel():
            raise InputError(
                f"`mask` must hold ones (seen) and zeros (hidden) alone, got {odd[0].item()}: of a mask of 0 and −inf, "
                "which is added to the scores, write mask == 0"
            )
    return mask != 0


def head_width(width: str, d_model: int, heads: str, num_heads: int) -> int:
    """Give the width of a head, d_model / num_heads, which are called `width` and `heads` in the lesson."""
    check_size(width, d_model, "is the width of a token")
    check_size(heads, num_heads, "counts heads")
    if d_model % num_heads:
        raise InputError(f"`{width}` must be a multiple of `{heads}`, got {d_model} and {num_heads}")
    return d_model // num_heads


def check_tokens(name: str, x: Tensor, width: int, made_by: str) -> None:
    """Raise unless `x` is (batch, n, width); `made_by` is the argument of the constructor that says the width."""
    check_width(name, x, width, made_by)
    if x.ndim != 3:
        raise InputError(
            f"`{name}` must be (batch, n, {made_by}), got shape {tuple(x.shape)}: write {name}[None] for one sequence"
        )


def split_heads(x: Float[Tensor, "batch n width"], heads: int) -> Float[Tensor, "batch heads n dim"]:
    """Give each head its part of the width."""
    split: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return split


def merge_heads(x: Float[Tensor, "batch heads n dim"]) -> Float[Tensor, "batch n width"]:
    """Put the heads beside one another again."""
    merged: Tensor = x.transpose(1, 2).flatten(-2)
    return merged
