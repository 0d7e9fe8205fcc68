"""Attention of recurrent networks over a memory: additive (Bahdanau) and bilinear (Luong's "general")."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.functional import attention
from regard.masks import BoundMask, Mask
from regard.nn.checks import check_probability, check_size, check_width, standard_names, visible_keys
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Additive, Bilinear

__all__ = ["AdditiveAttention", "BilinearAttention"]


@standard_names()
class AdditiveAttention(nn.Module):
    """softmax(v·tanh(W q + U k)) over the keys (Bahdanau et al. 2015, A.1.2, arXiv:1409.0473).

    If no values are given, the keys are also the values. In the paper the query is the decoder's previous state, and
    the keys are the encoder's states. `query_proj` holds W and `key_proj` holds U, both without bias; `vector` holds v.

    Args:
        embed_dim: Width of the queries.
        kdim: Width of the keys; `embed_dim` by default.
        hidden_features: Width of the layer between; `kdim` by default.
        dropout: The probability with which a weight is dropped, in training mode only.

    Raises:
        InputError: Sizes are no positive integers, or widths do not fit.

    >>> attend = AdditiveAttention(8, 6, hidden_features=4)
    >>> output, weights = attend(torch.zeros(2, 3, 8), torch.zeros(2, 5, 6), need_weights=True)
    >>> output.shape, weights[0, 0]
    (torch.Size([2, 3, 6]), tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000], grad_fn=<SelectBackward0>))
    """

    def __init__(
        self, embed_dim: int, kdim: int | None = None, *, hidden_features: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the queries")
        self.kdim = check_size("kdim", embed_dim if kdim is None else kdim, "is that of the keys")
        hidden = check_size(
            "hidden_features", self.kdim if hidden_features is None else hidden_features, "is that of the layer between"
        )
        self.dropout = check_probability("dropout", dropout)
        self.query_proj = nn.Linear(self.embed_dim, hidden, bias=False)
        self.key_proj = nn.Linear(self.kdim, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def forward(
        self,
        query: Float[Tensor, "*batch queries embed_dim"],
        key: Float[Tensor, "*batch keys kdim"],
        value: Float[Tensor, "*batch keys vdim"] | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (..., queries, vdim), and with `need_weights` those before dropout (..., queries, keys).

        `mask` and `key_padding_mask` (True hides) are as in MultiHeadAttention; `generator`, `backend` and `max_bytes`
        as in regard.attention.
        """
        check_width("query", query, self.embed_dim, "embed_dim")
        check_width("key", key, self.kdim, "kdim")
        found: Any = attention(
            query,
            key,
            key if value is None else value,
            score=Additive(self.query_proj.weight, self.key_proj.weight, self.vector),
            mask=visible_keys(None, mask, key_padding_mask, key),
            dropout=self.dropout if self.training else 0.0,
            return_weights=need_weights,
            generator=generator,
            backend=backend,
            max_bytes=max_bytes,
        )
        return found  # type: ignore[no-any-return]


@standard_names()
class BilinearAttention(nn.Module):
    """softmax(q·W·k) over the keys (Luong et al. 2015, 3.1, "general", arXiv:1508.04025).

    If no values are given, the keys are also the values. In the paper the query is the decoder's current state.

    Args:
        embed_dim: Width of the queries.
        kdim: Width of the keys; `embed_dim` by default.
        dropout: The probability with which a weight is dropped, in training mode only.

    Raises:
        InputError: Sizes are no positive integers, or widths do not fit.

    >>> attend = BilinearAttention(8, 6)
    >>> attend(torch.zeros(2, 3, 8), torch.zeros(2, 5, 6)).shape, attend.weight.shape
    (torch.Size([2, 3, 6]), torch.Size([8, 6]))
    """

    def __init__(self, embed_dim: int, kdim: int | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the queries")
        self.kdim = check_size("kdim", embed_dim if kdim is None else kdim, "is that of the keys")
        self.dropout = check_probability("dropout", dropout)
        # q·W·k of independent standard normal q and k has variance 1.
        self.weight = nn.Parameter(torch.randn(self.embed_dim, self.kdim) * (embed_dim * self.kdim) ** -0.5)

    def forward(
        self,
        query: Float[Tensor, "*batch queries embed_dim"],
        key: Float[Tensor, "*batch keys kdim"],
        value: Float[Tensor, "*batch keys vdim"] | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (..., queries, vdim), and with `need_weights` those before dropout (..., queries, keys).

        `mask` and `key_padding_mask` (True hides) are as in MultiHeadAttention; `generator`, `backend` and `max_bytes`
        as in regard.attention.
        """
        check_width("query", query, self.embed_dim, "embed_dim")
        check_width("key", key, self.kdim, "kdim")
        found: Any = attention(
            query,
            key,
            key if value is None else value,
            score=Bilinear(self.weight),
            mask=visible_keys(None, mask, key_padding_mask, key),
            dropout=self.dropout if self.training else 0.0,
            return_weights=need_weights,
            generator=generator,
            backend=backend,
            max_bytes=max_bytes,
        )
        return found  # type: ignore[no-any-return]
