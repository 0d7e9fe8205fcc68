"""The lesson on queries and keys of different lengths, whose layer gives the output alone."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_probability
from regard.functional import attention
from regard.nn.tutorials.masked_attention import (
    LessonMask,
    check_tokens,
    drop_rate,
    head_width,
    mask_over_scores,
    merge_heads,
    split_heads,
)

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Project by `w_q`, `w_k`, `w_v`, attend in several heads, project by `fc`; all four have biases.

    `do` drops weights in training mode, and `scale` is √(hid_dim / n_heads).

    Args:
        hid_dim: Width of a token.
        n_heads: Number of heads, a divisor of `hid_dim`.
        dropout: The probability with which a weight is dropped.

    >>> import torch
    >>> query, memory = torch.rand(64, 12, 300), torch.rand(64, 10, 300)
    >>> MultiHeadAttention(hid_dim=300, n_heads=6, dropout=0.1)(query, memory, memory).shape
    torch.Size([64, 12, 300])
    """

    def __init__(self, hid_dim: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.scale = math.sqrt(head_width("hid_dim", hid_dim, "n_heads", n_heads))
        self.hid_dim, self.n_heads = hid_dim, n_heads
        self.w_q = nn.Linear(hid_dim, hid_dim)
        self.w_k = nn.Linear(hid_dim, hid_dim)
        self.w_v = nn.Linear(hid_dim, hid_dim)
        self.fc = nn.Linear(hid_dim, hid_dim)
        self.do = nn.Dropout(check_probability("dropout", dropout))

    def forward(
        self,
        query: Float[Tensor, "batch queries hid_dim"],
        key: Float[Tensor, "batch keys hid_dim"],
        value: Float[Tensor, "batch keys hid_dim"],
        mask: LessonMask = None,
    ) -> Float[Tensor, "batch queries hid_dim"]:
        """Give (batch, queries, hid_dim).

        Raises:
            InputError: A width is not `hid_dim`, or the mask does not broadcast over the scores.
        """
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_tokens(name, x, self.hid_dim, "hid_dim")
        q, k, v = (
            split_heads(project(x), self.n_heads)
            for project, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        )
        heads = attention(q, k, v, mask=mask_over_scores(mask, q, k), dropout=drop_rate(self.do))
        output: Tensor = self.fc(merge_heads(heads))
        return output
