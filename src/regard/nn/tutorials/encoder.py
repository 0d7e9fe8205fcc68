"""The lesson on the encoder of a Transformer, from the formula to the whole model and a picture of its weights."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.checks import check_probability, check_size
from regard.errors import InputError
from regard.nn.checks import check_width
from regard.nn.tutorials.attention_heatmap import visualize_attention
from regard.nn.tutorials.masked_attention import LessonMask, attend, check_tokens, head_width, merge_heads, split_heads
from regard.positions import sinusoidal
from regard.torch_private import is_exporting

__all__ = [
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "TransformerEncoder",
    "scaled_dot_product_attention",
    "visualize_attention",
]


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*batch keys d_k"],
    value: Float[Tensor, "*batch keys d_v"],
    mask: LessonMask = None,
) -> tuple[Tensor, Tensor]:
    """Give softmax(q kᵀ / √d_k) v and the weights (Vaswani et al. 2017, 3.2.1, arXiv:1706.03762).

    Args:
        query, key, value: (n, d), (batch, n, d) or (batch, heads, n, d).
        mask: Ones (seen) and zeros (hidden) that broadcast over the scores.

    Raises:
        InputError: Shapes do not fit, or the mask does not broadcast over the scores.

    >>> import torch
    >>> x = torch.zeros(1, 3, 4)
    >>> scaled_dot_product_attention(x, x, x, mask=torch.tril(torch.ones(3, 3)))[1]
    tensor([[[1.0000, 0.0000, 0.0000],
             [0.5000, 0.5000, 0.0000],
             [0.3333, 0.3333, 0.3333]]])
    """
    return attend(query, key, value, mask)


class MultiHeadAttention(nn.Module):
    """Project by `W_q`, `W_k`, `W_v`, attend in several heads, project by `W_o`; none has a bias, nothing is dropped.

    After a call, `attention_weights` has its weights (batch, num_heads, queries, keys), through which gradients flow;
    in copies and files of the module they are plain numbers. An exported module does not keep them.

    Args:
        d_model: Width of a token.
        num_heads: Number of heads, a divisor of `d_model`.

    >>> import torch
    >>> layer = MultiHeadAttention(8, 2)
    >>> x, memory = torch.zeros(3, 5, 8), torch.zeros(3, 7, 8)
    >>> layer(query=x, key=memory, value=memory).shape, layer.attention_weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 7]))
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.d_k = head_width("d_model", d_model, "num_heads", num_heads)
        self.d_model, self.num_heads = d_model, num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.attention_weights: Tensor | None = None

    def split_heads(self, x: Float[Tensor, "batch n d_model"], batch_size: int) -> Float[Tensor, "batch heads n d_k"]:
        """Give each head its part of the width: (batch_size, num_heads, n, d_k)."""
        return split_heads(x.reshape(batch_size, -1, self.d_model), self.num_heads)

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        value: Float[Tensor, "batch keys d_model"],
        mask: LessonMask = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Give (batch, queries, d_model).

        Raises:
            InputError: A width is not `d_model`, or the mask does not broadcast over the scores.
        """
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_tokens(name, x, self.d_model, "d_model")
        q, k, v = (
            self.split_heads(project(x), x.shape[0])
            for project, x in ((self.W_q, query), (self.W_k, key), (self.W_v, value))
        )
        heads, weights = scaled_dot_product_attention(q, k, v, mask)
        if not is_exporting():  # which refuses a tensor that is set on a module
            self.attention_weights = weights
        output: Tensor = self.W_o(merge_heads(heads))
        return output

    def __getstate__(self) -> dict[str, Any]:
        """Hand copies and files plain weights: PyTorch copies no tensor that gradients flow through."""
        weights = self.attention_weights
        return self.__dict__ | {"attention_weights": None if weights is None else weights.detach()}


class PositionalEncoding(nn.Module):
    """Add a fixed table of sines and cosines, the buffer `pe` (1, max_seq_len, d_model), and drop.

    Formula: dropout(x_p + [sin(p ω_i), cos(p ω_i)]), ω_i = 10000^(−2i/d_model), interleaved (Vaswani et al. 2017, 3.5,
    arXiv:1706.03762). With an odd width the last cosine is missing.

    Args:
        d_model: Width of a token; it may be odd.
        max_seq_len: How many positions the table has.
        dropout: The probability with which a number of the sum is dropped, in training mode only.

    >>> import torch
    >>> PositionalEncoding(3, max_seq_len=2, dropout=0)(torch.zeros(1, 2, 3))
    tensor([[[0.0000, 1.0000, 0.0000],
             [0.8415, 0.5403, 0.0022]]])
    """

    pe: Tensor

    def __init__(self, d_model: int, max_seq_len: int = 5000, dropout: float = 0.1) -> None:
        super().__init__()
        check_size("d_model", d_model, "is the width of a token")
        self.dropout = nn.Dropout(check_probability("dropout", dropout))
        table = sinusoidal(check_size("max_seq_len", max_seq_len, "counts positions"), d_model)
        self.register_buffer("pe", table.unsqueeze(0))

    def forward(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_model"]:
        """Add the first n rows of the table.

        Raises:
            InputError: `x` has another width, or is longer than the table.
        """
        check_tokens("x", x, self.pe.shape[2], "d_model")
        if x.shape[1] > self.pe.shape[1]:
            raise InputError(
                f"`x` has {x.shape[1]} positions and the table {self.pe.shape[1]}: build it with "
                f"max_seq_len={x.shape[1]} at least"
            )
        dropped: Tensor = self.dropout(x + self.pe[:, : x.shape[1]].to(x.dtype))
        return dropped


class FeedForward(nn.Module):
    """Map every position by `linear1`, a ReLU, dropout and `linear2` (Vaswani et al. 2017, 3.3, arXiv:1706.03762).

    Args:
        d_model: Width of a token.
        d_ff: Width of the hidden layer.
        dropout: The probability with which a number of the hidden layer is dropped, in training mode only.

    >>> import torch
    >>> FeedForward(4, 16)(torch.zeros(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_size("d_model", d_model, "is the width of a token")
        self.linear1 = nn.Linear(d_model, check_size("d_ff", d_ff, "is the width of the hidden layer"))
        self.linear2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(check_probability("dropout", dropout))

    def forward(self, x: Float[Tensor, "*batch n d_model"]) -> Float[Tensor, "*batch n d_model"]:
        """Map every position."""
        check_width("x", x, self.linear1.in_features, "d_model")
        mapped: Tensor = self.linear2(self.dropout(torch.relu(self.linear1(x))))
        return mapped


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward layer, each dropped, added and normalized (post-norm).

    Formula: x = norm1(x + dropout(self_attn(x, x, x))); x = norm2(x + dropout(feed_forward(x)))

    Args:
        d_model: Width of a token.
        num_heads: Number of heads, a divisor of `d_model`.
        d_ff: Width of the hidden layer.
        dropout: The probability of dropping, in training mode only.

    >>> import torch
    >>> layer = EncoderLayer(8, 2, 32)
    >>> layer(torch.zeros(3, 5, 8)).shape, layer.self_attn.attention_weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]))
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(check_probability("dropout", dropout))

    def forward(self, x: Float[Tensor, "batch n d_model"], mask: LessonMask = None) -> Float[Tensor, "batch n d_model"]:
        """Give x after the layer."""
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, mask)))
        after: Tensor = self.norm2(x + self.dropout(self.feed_forward(x)))
        return after


class TransformerEncoder(nn.Module):
    """Embed tokens × √d_model, add sinusoids, run `layers` and a last `norm`.

    The weights of a call are in `layers[i].self_attn.attention_weights`.

    Args:
        vocab_size: Number of different tokens.
        d_model, num_heads, d_ff: Of each layer.
        num_layers: Number of layers.
        max_seq_len: The longest text.
        dropout: The probability of dropping, in training mode only.

    >>> import torch
    >>> model = TransformerEncoder(vocab_size=1000, d_model=128, num_heads=4, d_ff=512, num_layers=2)
    >>> sum(one.numel() for one in model.parameters())
    523776
    >>> model(torch.ones(2, 10, dtype=torch.int64), mask=torch.ones(2, 1, 1, 10)).shape
    torch.Size([2, 10, 128])
    >>> model.layers[0].self_attn.attention_weights.shape
    torch.Size([2, 4, 10, 10])
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
        check_size("vocab_size", vocab_size, "counts words")
        self.d_model = check_size("d_model", d_model, "is the width of a token")
        check_size("num_layers", num_layers, "counts layers")
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.pos_encoding = PositionalEncoding(d_model, max_seq_len, dropout)
        self.layers = nn.ModuleList(EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Int[Tensor, "batch n"], mask: LessonMask = None) -> Float[Tensor, "batch n d_model"]:
        """Give (batch, n, d_model); `mask` of flags of tokens (batch, n) is mask[:, None, None]."""
        hidden: Tensor = self.pos_encoding(self.embedding(x) * math.sqrt(self.d_model))
        for layer in self.layers:
            hidden = layer(hidden, mask)
        normalized: Tensor = self.norm(hidden)
        return normalized
