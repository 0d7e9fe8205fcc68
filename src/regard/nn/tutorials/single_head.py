"""The lesson on one head: scaled dot-product attention of Q, K and V that are projected outside."""

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_size
from regard.errors import InputError
from regard.functional import attention
from regard.nn.tutorials.masked_attention import LessonMask, mask_over_scores

__all__ = ["DotProductAttention"]


class DotProductAttention(nn.Module):
    """Give softmax(Q Kᵀ / √d_k) V, without parameters (Vaswani et al. 2017, 3.2.1, arXiv:1706.03762).

    Args:
        d_k: Width of queries and keys.

    >>> import torch
    >>> x = torch.randn(2, 5, 64)
    >>> Q, K, V = (nn.Linear(64, 32)(x) for _ in range(3))
    >>> DotProductAttention(32)(Q, K, V).shape
    torch.Size([2, 5, 32])
    """

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = check_size("d_k", d_k, "is the width of a key")

    def forward(
        self,
        Q: Float[Tensor, "*batch queries d_k"],
        K: Float[Tensor, "*batch keys d_k"],
        V: Float[Tensor, "*batch keys d_v"],
        mask: LessonMask = None,
    ) -> Float[Tensor, "*batch queries d_v"]:
        """Give (batch, queries, d_v); `mask` holds ones (seen) and zeros (hidden).

        Raises:
            InputError: Q is not `d_k` wide, shapes do not fit, or the mask does not broadcast over the scores.
        """
        if Q.shape[-1] != self.d_k:
            raise InputError(
                f"`Q` must have the width {self.d_k}, got {Q.shape[-1]}: DotProductAttention({Q.shape[-1]})"
            )
        return attention(Q, K, V, mask=mask_over_scores(mask, Q, K))
