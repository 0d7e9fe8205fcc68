"""Self-attention in padded batches: padding is seen by no token, and its rows give 0."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from regard.nn.checks import check_padding
from regard.nn.multi_head import MultiHeadAttention

__all__ = ["attend_padded"]


def attend_padded(
    attention: MultiHeadAttention,
    x: Float[Tensor, "batch tokens embed_dim"],
    key_padding_mask: Bool[Tensor, "batch keys"] | None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Let the tokens look at one another through the module's mask; rows of padding give 0."""
    if key_padding_mask is None:
        return attention(x, **options)  # type: ignore[no-any-return]
    if options.get("cache") is None:
        check_padding(x, key_padding_mask)
    found: Any = attention(x, key_padding_mask=key_padding_mask, **options)
    output, *weights = found if isinstance(found, tuple) else (found,)
    rows = key_padding_mask[:, -x.shape[1] :, None]  # of a cache's keys, the last are those of x
    output = output.masked_fill(rows, 0.0)
    return (output, weights[0].masked_fill(rows if weights[0].ndim == 3 else rows[:, None], 0.0)) if weights else output
