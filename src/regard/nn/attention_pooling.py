"""Attention pooling: one query over a set of vectors, which makes one vector of them."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.checks import check_size
from regard.errors import InputError
from regard.functional import attention
from regard.masks import Padding
from regard.nn.checks import check_padding, check_width, public_module
from regard.nn.projections import weight_of
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Additive

__all__ = ["AttentionPooling"]


@public_module(takes_jagged=False, mask="one query sees the whole set: key_padding_mask= hides vectors of it")
class AttentionPooling(nn.Module):
    """Σ_j a_j x_j with a = softmax(v·tanh(U x_j + b)): a set of vectors as one.

    Without a query this is the pooling of Yang et al. 2016 (hierarchical attention networks), where v is the context
    vector u_w. Except for b it is also the pooling of Ilse et al. 2018 (arXiv:1802.04712). With `query_dim` the score
    is v·tanh(U x_j + W q + b). This is the attention of Xu et al. 2015 (arXiv:1502.03044, 4.2), where x are the regions
    of an image and q is the state of the decoder.

    Args:
        embed_dim: Width of the vectors in x.
        hidden_features: Width of the layer between; `embed_dim` by default.
        query_dim: Width of a query that is passed with each x; None for none.

    Raises:
        InputError: Sizes do not fit, or a query is passed where none was announced, or lacks.

    >>> pool = AttentionPooling(8)
    >>> output, weights = pool(torch.zeros(2, 5, 8), need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 8]), torch.Size([2, 5]))
    """

    def __init__(self, embed_dim: int, *, hidden_features: int | None = None, query_dim: int | None = None) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the vectors in x")
        hidden = check_size(
            "hidden_features", embed_dim if hidden_features is None else hidden_features, "is that of the layer between"
        )
        self.key_proj = nn.Linear(embed_dim, hidden)
        self.query_proj = None
        if query_dim is not None:
            self.query_proj = nn.Linear(check_size("query_dim", query_dim, "is that of the query"), hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def forward(
        self,
        x: Float[Tensor, "batch items embed_dim"],
        query: Float[Tensor, "batch query_dim"] | None = None,
        *,
        key_padding_mask: Bool[Tensor, "batch items"] | None = None,
        need_weights: bool = False,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, embed_dim), and with `need_weights` the weights (batch, items).

        `key_padding_mask` is True for padding; `backend` and `max_bytes` are as in regard.attention.
        """
        check_width("x", x, self.embed_dim, "embed_dim")
        if x.ndim != 3:
            raise InputError(f"`x` must be (batch, items, {self.embed_dim}), got {tuple(x.shape)}: write x[None]")
        if (query is None) != (self.query_proj is None):
            raise InputError(
                "this module learns its one query and takes none: build it with `query_dim=`"
                if query is not None
                else f"`query` is missing: pass (batch, {self.query_proj.in_features})"  # type: ignore[union-attr]
            )
        at = x.new_zeros(x.shape[0], self.vector.shape[0]) if query is None else query
        found: Any = attention(
            at[:, None],
            x,
            x,
            score=Additive(
                None if self.query_proj is None else weight_of("query_proj", self.query_proj),
                weight_of("key_proj", self.key_proj),
                self.vector,
                bias=self.key_proj.bias,
            ),
            mask=None if key_padding_mask is None else Padding(~check_padding(x, key_padding_mask)),
            return_weights=need_weights,
            backend=backend,
            max_bytes=max_bytes,
        )
        return tuple(one.squeeze(1) for one in found) if need_weights else found.squeeze(1)
