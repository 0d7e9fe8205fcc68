"""The modules that tutorials write, by their names and arguments, on the modules of this library.

They are thin: what they hold is `regard.nn`'s. Masks are as tutorials have them, ones (seen) and zeros (hidden) that
broadcast over (batch, heads, queries, keys), two dimensions being (queries, keys). Where tutorials break, these do not:
keys may be longer than queries, a width may be odd, a row that sees nothing has weights 0, half types work, and weights
are those before dropout, so that rows sum to 1 (a tutorial's own, returned after dropout, sum to .55 or 1.1).
"""

import math

from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from regard.errors import InputError
from regard.functional import attention
from regard.masks import Mask, from_zeros_and_ones
from regard.nn import embedded_positions, encoder_block, feed_forward, multi_head
from regard.nn.checks import check_probability, check_size
from regard.nn.dropping import dropped

__all__ = [
    "DotProductAttention",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "TransformerEncoder",
]


class DotProductAttention(nn.Module):
    """softmax(q kᵀ / √d_k) v, without parameters; with weights=True a tuple of output and weights.

    >>> import torch
    >>> x = torch.randn(2, 5, 64)
    >>> queries, keys, values = (nn.Linear(64, 32)(x) for _ in range(3))
    >>> DotProductAttention(32)(queries, keys, values).shape
    torch.Size([2, 5, 32])
    """

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = check_size("d_k", d_k, "is the width of a key")

    def forward(
        self,
        query: Float[Tensor, "*batch queries d_k"],
        key: Float[Tensor, "*batch keys d_k"],
        value: Float[Tensor, "*batch keys d_v"],
        mask: Num[Tensor, "..."] | Bool[Tensor, "..."] | None = None,
        *,
        weights: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        """Give (..., queries, d_v) and, on request, the weights (..., queries, keys)."""
        if query.shape[-1] != self.d_k:
            raise InputError(
                f"`query` must have the width {self.d_k}, got {query.shape[-1]}: DotProductAttention({query.shape[-1]})"
            )
        return attention(query, key, value, mask=_seen(mask), scale=1 / math.sqrt(self.d_k), weights=weights)


class MultiHeadAttention(nn.Module):
    """regard.nn.MultiHeadAttention (as `.attention`) that always gives (output, weights); MultiHeadAttention(512, 8).

    >>> import torch
    >>> output, weights = MultiHeadAttention(300, 6, 0.1)(*[torch.zeros(4, n, 300) for n in (12, 10, 10)])
    >>> output.shape, weights.shape
    (torch.Size([4, 12, 300]), torch.Size([4, 6, 12, 10]))
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1, *, bias: bool = True) -> None:
        super().__init__()
        self.attention = multi_head.MultiHeadAttention(d_model, num_heads, dropout=dropout, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "*batch queries d_model"],
        key: Float[Tensor, "*batch keys d_model"] | None = None,
        value: Float[Tensor, "*batch keys d_model"] | None = None,
        mask: Num[Tensor, "..."] | Bool[Tensor, "..."] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Give (batch, queries, d_model) and the weights (batch, num_heads, queries, keys)."""
        output, weights = self.attention(query, key, value, _seen(mask), weights=True)
        return output, weights


class PositionalEncoding(embedded_positions.PositionalEncoding):
    """regard.nn.PositionalEncoding with the arguments of tutorials."""

    def __init__(self, d_model: int, max_seq_len: int = 5000, dropout: float = 0.1) -> None:
        super().__init__(d_model, max_seq_len, dropout=dropout)


class FeedForward(feed_forward.FeedForward):
    """regard.nn.FeedForward (ReLU, with biases) with the arguments of tutorials."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__(d_model, d_ff, dropout=dropout)


class EncoderLayer(nn.Module):
    """regard.nn.EncoderBlock (as `.block`), post-norm, no biases in the attention, that gives (output, weights).

    >>> import torch
    >>> output, weights = EncoderLayer(8, 2, 32)(torch.zeros(3, 5, 8))
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]))
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.block = encoder_block.EncoderBlock(d_model, num_heads, d_ff, dropout=dropout, attention={"bias": False})

    def forward(
        self,
        x: Float[Tensor, "batch n d_model"],
        mask: Num[Tensor, "..."] | Bool[Tensor, "..."] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Give x after the layer, and the weights (batch, num_heads, n, n)."""
        output, weights = self.block(x, _seen(mask), weights=True)
        return output, weights


class TransformerEncoder(nn.Module):
    """Embed tokens × √d_model, add sinusoids, and run post-norm layers and a final norm.

    >>> import torch
    >>> model = TransformerEncoder(1000, 128, 4, 512, num_layers=2)
    >>> sum(one.numel() for one in model.parameters())
    523776
    >>> output, weights = model(torch.ones(2, 10, dtype=torch.int64), mask=torch.ones(2, 1, 1, 10))
    >>> output.shape, [one.shape for one in weights]
    (torch.Size([2, 10, 128]), [torch.Size([2, 4, 10, 10]), torch.Size([2, 4, 10, 10])])
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_layers: int = 6,
        max_seq_len: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.dropout = check_probability("dropout", dropout)
        check_size("num_layers", num_layers, "counts layers")
        self.embedding = nn.Embedding(
            check_size("vocab_size", vocab_size, "counts words"), check_size("d_model", d_model, "is the width")
        )
        self.positions = embedded_positions.PositionalEncoding(d_model, max_seq_len)
        self.layers = nn.ModuleList(EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(
        self,
        x: Int[Tensor, "batch n"],
        mask: Num[Tensor, "..."] | Bool[Tensor, "..."] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Give (batch, n, d_model), and of each layer the weights (batch, num_heads, n, n)."""
        embedded = self.embedding(x) * math.sqrt(self.embedding.embedding_dim)
        hidden = dropped(self.positions(embedded), self.dropout, self.training)
        weights = []
        for layer in self.layers:
            hidden, seen = layer(hidden, mask)
            weights.append(seen)
        return self.norm(hidden), weights


def _seen(mask: Tensor | None) -> Mask | None:
    """Ones and zeros as they broadcast over the scores of all heads."""
    if mask is None or not isinstance(mask, Tensor):
        return mask
    if mask.ndim == 3:
        raise InputError(
            f"`mask` of shape {tuple(mask.shape)} would broadcast its batch over the heads: write mask[:, None]"
        )
    return from_zeros_and_ones(mask[None, None] if mask.ndim == 2 else mask)
