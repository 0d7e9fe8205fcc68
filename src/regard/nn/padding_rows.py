"""Self-attention in padded batches: padding is seen by no token, and its rows give 0."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import InputError
from regard.masks import Padding
from regard.nn.multi_head import MultiHeadAttention
from regard.problem import DEFAULT_MAX_BYTES

__all__ = ["attend_real", "check_real"]


def attend_real(
    attention: MultiHeadAttention,
    x: Float[Tensor, "batch tokens width"],
    real: Bool[Tensor, "batch tokens"] | None,
    weights: bool,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Tensor | tuple[Tensor, Tensor]:
    """Let the tokens look at one another through the module's mask; rows of padding give 0."""
    if real is None:
        return attention(x, weights=weights, max_bytes=max_bytes)  # type: ignore[no-any-return]
    check_real(x, real)
    found: Any = attention(x, mask=Padding(real), weights=weights, max_bytes=max_bytes)
    if not weights:
        return found.masked_fill(~real[..., None], 0.0)  # type: ignore[no-any-return]
    output, seen = found
    return output.masked_fill(~real[..., None], 0.0), seen.masked_fill(~real[:, None, :, None], 0.0)


def check_real(x: Float[Tensor, "batch tokens width"], real: Tensor, name: str = "real") -> None:
    """Raise unless there is a flag for each token of each sequence; `name` is that of the flags."""
    if not isinstance(real, Tensor) or real.dtype != torch.bool or x.ndim != 3 or real.shape != x.shape[:2]:
        got = f"{real.dtype} of shape {tuple(real.shape)}" if isinstance(real, Tensor) else type(real).__name__
        raise InputError(
            f"`{name}` must be boolean (batch, tokens) for x (batch, tokens, width), got {got} for x {tuple(x.shape)}: "
            f"write {name}.bool(), {name}.expand(...) where sequences share it, and x[None] for one sequence"
        )
