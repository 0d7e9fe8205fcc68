"""Bilinear attention with its matrix (Luong's "general")."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import attention
from regard.masks import BoundMask, Mask
from regard.nn.checks import check_probability, check_size, check_width, mask_of
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Bilinear

__all__ = ["BilinearAttention"]


class BilinearAttention(nn.Module):
    """softmax(q·W·k) over the keys (Luong et al. 2015, 3.1, "general", arXiv:1508.04025).

    The keys are their own values unless others are given. In the paper the query is the decoder's current state.

    Args:
        query_width: Width of the queries.
        key_width: Width of the keys; `query_width` by default.
        dropout: The probability with which a weight is dropped, in training mode only.

    Raises:
        InputError: Sizes are no positive integers, or widths do not fit.

    >>> attend = BilinearAttention(8, 6)
    >>> attend(torch.zeros(2, 3, 8), torch.zeros(2, 5, 6)).shape, attend.weight.shape
    (torch.Size([2, 3, 6]), torch.Size([8, 6]))
    """

    def __init__(self, query_width: int, key_width: int | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.query_width = check_size("query_width", query_width, "is that of the queries")
        self.key_width = check_size("key_width", query_width if key_width is None else key_width, "is that of the keys")
        self.dropout = check_probability("dropout", dropout)
        # q·W·k of independent standard normal q and k has variance 1.
        self.weight = nn.Parameter(
            torch.randn(self.query_width, self.key_width) * (query_width * self.key_width) ** -0.5
        )

    def forward(
        self,
        query: Float[Tensor, "*batch queries query_width"],
        keys: Float[Tensor, "*batch keys key_width"],
        values: Float[Tensor, "*batch keys value_width"] | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        weights: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (..., queries, value_width), and with `weights` those before dropout (..., queries, keys).

        Weights of more than `max_bytes` are refused.
        """
        check_width("query", query, self.query_width, "query_width")
        check_width("keys", keys, self.key_width, "key_width")
        found: Any = attention(
            query,
            keys,
            keys if values is None else values,
            score=Bilinear(self.weight),
            mask=mask_of(mask),
            dropout=self.dropout if self.training else 0.0,
            return_weights=weights,
            max_bytes=max_bytes,
        )
        return found  # type: ignore[no-any-return]
