"""The lesson on several heads, whose layer gives a pair: the output and the weights."""

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_probability
from regard.nn.tutorials.masked_attention import (
    LessonMask,
    attend,
    check_tokens,
    head_width,
    merge_heads,
    split_heads,
)

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Project by `W_q`, `W_k`, `W_v`, attend in several heads, project by `W_o`; all four have biases.

    Args:
        d_model: Width of a token.
        num_heads: Number of heads, a divisor of `d_model`.
        dropout: The probability with which a weight is dropped, in training mode only.

    >>> import torch
    >>> x, memory = torch.zeros(4, 12, 512), torch.zeros(4, 10, 512)
    >>> output, weights = MultiHeadAttention(512, 8)(query=x, key=memory, value=memory)
    >>> output.shape, weights.shape
    (torch.Size([4, 12, 512]), torch.Size([4, 8, 12, 10]))
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_k = head_width("d_model", d_model, "num_heads", num_heads)
        self.d_model, self.num_heads = d_model, num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(check_probability("dropout", dropout))

    def scaled_dot_product_attention(
        self,
        Q: Float[Tensor, "*batch queries d_k"],
        K: Float[Tensor, "*batch keys d_k"],
        V: Float[Tensor, "*batch keys d_v"],
        mask: LessonMask = None,
    ) -> tuple[Tensor, Tensor]:
        """Give dropout(softmax(Q Kᵀ / √d_k)) V and the weights before dropout."""
        return attend(Q, K, V, mask, self.dropout)

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        value: Float[Tensor, "batch keys d_model"],
        mask: LessonMask = None,
    ) -> tuple[Tensor, Tensor]:
        """Give (batch, queries, d_model) and the weights (batch, num_heads, queries, keys).

        Raises:
            InputError: A width is not `d_model`, or the mask does not broadcast over the scores.
        """
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_tokens(name, x, self.d_model, "d_model")
        Q, K, V = (
            split_heads(project(x), self.num_heads)
            for project, x in ((self.W_q, query), (self.W_k, key), (self.W_v, value))
        )
        output, weights = self.scaled_dot_product_attention(Q, K, V, mask)
        return self.W_o(merge_heads(output)), weights
