"""Soft attention: one query over a bag of vectors, which makes one vector of them."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.functional import attention
from regard.masks import Padding
from regard.nn.checks import check_size, check_width
from regard.scores import Additive

__all__ = ["SoftAttention"]


class SoftAttention(nn.Module):
    """Σ_j a_j x_j with a = softmax(v·tanh(U x_j + b)): a bag as one vector.

    Without a query this is the pooling of Yang et al. 2016 (hierarchical attention networks, v their context vector
    u_w) and, but for b, of Ilse et al. 2018 (arXiv:1802.04712). With `query_width` the score is v·tanh(U x_j + W q +
    b): Xu et al. 2015 (arXiv:1502.03044, 4.2), an image's regions and the state of the decoder.

    Args:
        width: Width of the vectors in the bag.
        hidden: Width of the layer between; `width` by default.
        query_width: Width of a query that is passed with each bag; None for none.

    Raises:
        InputError: Sizes do not fit, or a query is passed where none was announced, or lacks.

    >>> pool = SoftAttention(8)
    >>> output, weights = pool(torch.zeros(2, 5, 8), weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 8]), torch.Size([2, 5]))
    """

    def __init__(self, width: int, *, hidden: int | None = None, query_width: int | None = None) -> None:
        super().__init__()
        self.width = check_size("width", width, "is that of the vectors in the bag")
        hidden = check_size("hidden", width if hidden is None else hidden, "is that of the layer between")
        self.key_proj = nn.Linear(width, hidden)
        self.query_proj = None
        if query_width is not None:
            self.query_proj = nn.Linear(
                check_size("query_width", query_width, "is that of the query"), hidden, bias=False
            )
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def forward(
        self,
        bag: Float[Tensor, "batch items width"],
        query: Float[Tensor, "batch query_width"] | None = None,
        *,
        real: Bool[Tensor, "batch items"] | None = None,
        weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, width), and with `weights` the weights (batch, items); `real` is False for padding."""
        check_width("bag", bag, self.width, "width")
        if bag.ndim != 3:
            raise InputError(f"`bag` must be (batch, items, {self.width}), got {tuple(bag.shape)}: write bag[None]")
        if (query is None) != (self.query_proj is None):
            raise InputError(
                "this module learns its one query and takes none: build it with `query_width=`"
                if query is not None
                else f"`query` is missing: pass (batch, {self.query_proj.in_features})"  # type: ignore[union-attr]
            )
        at = bag.new_zeros(bag.shape[0], self.vector.shape[0]) if query is None else query
        found: Any = attention(
            at[:, None],
            bag,
            bag,
            score=Additive(
                None if self.query_proj is None else self.query_proj.weight,
                self.key_proj.weight,
                self.vector,
                bias=self.key_proj.bias,
            ),
            mask=None if real is None else Padding(real),
            return_weights=weights,
        )
        return tuple(one.squeeze(1) for one in found) if weights else found.squeeze(1)
