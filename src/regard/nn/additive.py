"""Additive attention with its three weights (Bahdanau)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import attention
from regard.masks import BoundMask, Mask
from regard.nn.checks import check_probability, check_size, check_width, mask_of
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Additive

__all__ = ["AdditiveAttention"]


class AdditiveAttention(nn.Module):
    """softmax(v·tanh(W q + U k)) over the keys (Bahdanau et al. 2015, A.1.2, arXiv:1409.0473).

    The keys are their own values unless others are given. In the paper the query is the decoder's previous state and
    the keys are the encoder's. `query_proj` holds W, `key_proj` U, both without bias, and `vector` v.

    Args:
        query_width: Width of the queries.
        key_width: Width of the keys; `query_width` by default.
        hidden: Width of the layer between; `key_width` by default.
        dropout: The probability with which a weight is dropped, in training mode only.

    Raises:
        InputError: Sizes are no positive integers, or widths do not fit.

    >>> attend = AdditiveAttention(8, 6, hidden=4)
    >>> output, weights = attend(torch.zeros(2, 3, 8), torch.zeros(2, 5, 6), weights=True)
    >>> output.shape, weights[0, 0]
    (torch.Size([2, 3, 6]), tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000], grad_fn=<SelectBackward0>))
    """

    def __init__(
        self, query_width: int, key_width: int | None = None, *, hidden: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.query_width = check_size("query_width", query_width, "is that of the queries")
        self.key_width = check_size("key_width", query_width if key_width is None else key_width, "is that of the keys")
        hidden = check_size("hidden", self.key_width if hidden is None else hidden, "is that of the layer between")
        self.dropout = check_probability("dropout", dropout)
        self.query_proj = nn.Linear(self.query_width, hidden, bias=False)
        self.key_proj = nn.Linear(self.key_width, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

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
            score=Additive(self.query_proj.weight, self.key_proj.weight, self.vector),
            mask=mask_of(mask),
            dropout=self.dropout if self.training else 0.0,
            return_weights=weights,
            max_bytes=max_bytes,
        )
        return found  # type: ignore[no-any-return]
