"""Self-attention in a window that slides along."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.masks import Window
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.padding_rows import attend_padded
from regard.nn.standard_names import standard_names

__all__ = ["SlidingWindowAttention"]


@standard_names()
class SlidingWindowAttention(nn.Module):
    """Multi-head self-attention in which a token sees those near it (masks.Window; Mistral 7B, arXiv:2310.06825).

    `SlidingWindowAttention(embed_dim, num_heads, 512)` is causal: a token sees itself and the 511 before it. `left=`
    and `right=` count the tokens on either side, besides itself; Longformer's window w is left=w/2, right=w/2.

    Args:
        embed_dim: Width of the tokens.
        num_heads: Number of heads.
        sliding_window: How many tokens one sees, the last of which is itself (transformers' sliding_window).
        left, right: How many it sees on either side, instead of `sliding_window`.
        options: As in MultiHeadAttention (num_kv_heads, bias, rotary, dropout, …).

    Cost: O(n · window) time.

    Raises:
        InputError: Widths and heads do not divide, or the window is given twice or not at all.

    >>> import torch
    >>> attend = SlidingWindowAttention(8, num_heads=2, sliding_window=2)
    >>> _, weights = attend(torch.zeros(1, 4, 8), need_weights=True)
    >>> weights[0, 0].detach()
    tensor([[1.0000, 0.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        sliding_window: int | None = None,
        *,
        left: int | None = None,
        right: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, mask=Window(sliding_window, left=left, right=right), **options
        )

    def forward(
        self,
        x: Float[Tensor, "batch tokens embed_dim"],
        *,
        key_padding_mask: Bool[Tensor, "batch tokens"] | None = None,
        need_weights: bool = False,
        **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, tokens, embed_dim), 0 where `key_padding_mask` is True (padding), and on request the weights.

        These are (batch, heads, tokens, tokens). `options` are those of MultiHeadAttention's call: `mask` (the module's
        own holds as well), `attn_bias`, `position_ids`, `cache`, `backend`, `max_bytes`, …
        """
        return attend_padded(self.attention, x, key_padding_mask, need_weights=need_weights, **options)
