"""BigBird: near, global and random blocks."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.masks import bigbird
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.padding_rows import attend_padded
from regard.nn.standard_names import standard_names

__all__ = ["BigBirdAttention"]


@standard_names()
class BigBirdAttention(nn.Module):
    """Multi-head self-attention over near, global and random blocks (Zaheer et al. 2020, arXiv:2007.14062, ITC).

    masks.bigbird with a plan of random blocks for each head, drawn from `seed` when the length is known: the same seed
    and length give the same plan. Each pair counts once; transformers in eval mode draws nothing and counts block 0
    once more for each random block, so that checkpoints run there with other weights than here.

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
