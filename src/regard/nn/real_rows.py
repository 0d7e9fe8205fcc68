"""Self-attention in padded batches: padding is seen by no token, and its rows give 0."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import InputError
from regard.masks import Mask, Padding
from regard.nn.multi_head import MultiHeadAttention

__all__ = ["attend_real", "check_real"]


def attend_real(
    attention: MultiHeadAttention,
    x: Float[Tensor, "batch tokens width"],
    real: Bool[Tensor, "batch tokens"] | None,
    weights: bool,
    mask: Mask | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Let the tokens look at one another through the module's mask or the given one; rows of padding give 0."""
    if real is None:
        return attention(x, mask=mask, weights=weights)  # type: ignore[no-any-return]
    check_real(x, real)
    padding = Padding(real)
    found: Any = attention(x, mask=padding if mask is None else mask & padding, weights=weights)
    if not weights:
        return found.masked_fill(~real[..., None], 0.0)  # type: ignore[no-any-return]
    output, seen = found
    return output.masked_fill(~real[..., None], 0.0), seen.masked_fill(~real[:, None, :, None], 0.0)


def check_real(x: Float[Tensor, "batch tokens width"], real: Tensor) -> None:
    """Raise unless there is a flag for each token of each sequence."""
    if real.dtype != torch.bool or x.ndim != 3 or real.shape != x.shape[:2]:
        raise InputError(
            f"`real` must be boolean (batch, tokens), True for tokens, for x (batch, tokens, width), got {real.dtype} "
            f"of shape {tuple(real.shape)} for x {tuple(x.shape)}: write real.bool(), and x[None] for one sequence"
        )
