"""Self-attention in a window that slides along, and BigBird's: near, global and random blocks."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.masks import Window, bigbird
from regard.nn.checks import check_padding, public_module
from regard.nn.multi_head import MultiHeadAttention

__all__ = ["BigBirdAttention", "SlidingWindowAttention", "attend_padded"]


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


class _PaddedAttention(nn.Module):
    attention: MultiHeadAttention

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


@public_module()
class SlidingWindowAttention(_PaddedAttention):
    """Multi-head self-attention in which a token sees those near it (masks.Window; Mistral 7B, arXiv:2310.06825).

    `SlidingWindowAttention(embed_dim, num_heads, 512)` is causal: a token sees itself and the 511 tokens before it.
    `left=` and `right=` are the numbers of tokens on either side, not counting the token itself. Longformer's window w
    is left=w/2, right=w/2.

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


@public_module()
class BigBirdAttention(_PaddedAttention):
    """Multi-head self-attention over near, global and random blocks (Zaheer et al. 2020, arXiv:2007.14062, ITC).

    The mask is masks.bigbird with a separate draw of random blocks for each head. The blocks are drawn from `seed` when
    the length is known, so the same seed and length give the same blocks. A key that belongs to several of the three
    kinds is counted once. In eval mode, transformers draws no random blocks; instead it counts block 0 once more for
    each random block. The same checkpoint therefore has different attention weights in transformers.

    Args:
        embed_dim: Width of the tokens.
        num_heads: Number of heads.
        block: Tokens in a block.
        num_window_blocks, num_global_blocks, num_random_blocks: Blocks around a token (odd), global blocks at each end,
            random blocks of each row.
        seed: Where the plan is drawn from.
        options: As in MultiHeadAttention (num_kv_heads, bias, dropout, …).

    Cost: O(n · (w + 4 · g + r) · block) time.

    Raises:
        InputError: Widths and heads do not divide, or the window is even.

    >>> import torch
    >>> attend = BigBirdAttention(8, num_heads=2, block=1, num_random_blocks=0)
    >>> _, weights = attend(torch.zeros(1, 6, 8), need_weights=True)
    >>> (weights[0, 0] > 0).int()
    tensor([[1, 1, 1, 1, 1, 1],
            [1, 1, 1, 0, 0, 1],
            [1, 1, 1, 1, 0, 1],
            [1, 0, 1, 1, 1, 1],
            [1, 0, 0, 1, 1, 1],
            [1, 1, 1, 1, 1, 1]], dtype=torch.int32)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        block: int = 64,
        num_window_blocks: int = 3,
        num_global_blocks: int = 1,
        num_random_blocks: int = 3,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        counts = num_window_blocks, num_global_blocks, num_random_blocks
        seen = bigbird(*counts, seed=seed, block=block, heads=num_heads)
        self.attention = MultiHeadAttention(embed_dim, num_heads, mask=seen, **options)
