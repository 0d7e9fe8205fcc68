"""Self-attention in padded batches: padding is seen by no token, and its rows give 0."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from regard.masks import Padding
from regard.nn.checks import check_padding
from regard.nn.multi_head import MultiHeadAttention
from regard.problem import DEFAULT_MAX_BYTES

__all__ = ["attend_padded"]


def attend_padded(
    attention: MultiHeadAttention,
    x: Float[Tensor, "batch tokens embed_dim"],
    key_padding_mask: Bool[Tensor, "batch tokens"] | None,
    need_weights: bool,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Tensor | tuple[Tensor, Tensor]:
    """Let the tokens look at one another through the module's mask; rows of padding give 0."""
    if key_padding_mask is None:
        return attention(x, need_weights=need_weights, max_bytes=max_bytes)  # type: ignore[no-any-return]
    padding = check_padding(x, key_padding_mask)
    found: Any = attention(x, mask=Padding(~padding), need_weights=need_weights, max_bytes=max_bytes)
    if not need_weights:
        return found.masked_fill(padding[..., None], 0.0)  # type: ignore[no-any-return]
    output, seen = found
    return output.masked_fill(padding[..., None], 0.0), seen.masked_fill(padding[:, None, :, None], 0.0)
