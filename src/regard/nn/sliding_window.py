"""Self-attention in a window that slides along."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.masks import Window
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.padding_rows import attend_real
from regard.problem import DEFAULT_MAX_BYTES

__all__ = ["SlidingWindowAttention"]


class SlidingWindowAttention(nn.Module):
    """Multi-head self-attention in which a token sees those near it (masks.Window; Mistral 7B, arXiv:2310.06825).

    `SlidingWindowAttention(width, heads, 512)` is causal: a token sees itself and the 511 before it. `before=` and
    `after=` count the tokens on either side, besides itself; Longformer's window w is before=w/2, after=w/2.

    Args:
        width: Width of the tokens.
        heads: Number of heads.
        size: How many tokens one sees, the last of which is itself.
        before, after: How many it sees on either side, instead of `size`.
        options: As in MultiHeadAttention (kv_heads, bias, rotary, dropout, …).

    Cost: O(n · window) time.

    Raises:
        InputError: Widths and heads do not divide, or the window is given twice or not at all.

    >>> import torch
    >>> attend = SlidingWindowAttention(8, heads=2, size=2)
    >>> _, weights = attend(torch.zeros(1, 4, 8), weights=True)
    >>> weights[0, 0].detach()
    tensor([[1.0000, 0.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        size: int | None = None,
        *,
        before: int | None = None,
        after: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, mask=Window(size, before=before, after=after), **options)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        *,
        real: Bool[Tensor, "batch tokens"] | None = None,
        weights: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, tokens, width), 0 for padding, which is False in `real`; on request the weights of the heads.

        These are (batch, heads, tokens, tokens), refused beyond `max_bytes`.
        """
        return attend_real(self.attention, x, real, weights, max_bytes)
