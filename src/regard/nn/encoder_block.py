"""The encoder's block: attention and feed-forward, each with a residual and a norm."""

from typing import Any, Self

from jaxtyping import Float
from torch import Tensor, nn

from regard.masks import BoundMask, Mask
from regard.nn.block_base import Block, Norm, attention_of, feed_forward_of, parts_of
from regard.nn.feed_forward import Activation
from regard.nn.standard_names import standard_names
from regard.nn.torch_blocks import copy_tensors, read_block, write_block

__all__ = ["EncoderBlock"]


@standard_names()
class EncoderBlock(Block):
    """Let every position look at all, then map it (Vaswani et al. 2017, 3.1, arXiv:1706.03762).

    Formula, post-norm (the paper): x = norm₀(x + attention(x)); x = norm₁(x + feed_forward(x));
    pre-norm (Xiong et al. 2020, arXiv:2002.04745): x = x + attention(norm₀(x)); x = x + feed_forward(norm₁(x))

    Dropout is that of the paper: on what is added to the residual, on the weights and on the hidden layer, in training
    mode only. After the last of several pre-norm blocks a model needs one more norm.

    Args:
        embed_dim: Width of x.
        num_heads: Number of heads.
        dim_feedforward: Width of the hidden layer of the feed-forward network.
        norm: "layer" (nn.LayerNorm) or "rms" (nn.RMSNorm).
        norm_first: Whether the norm comes before attention and feed-forward (pre-norm) or after the sum (post-norm).
        layer_norm_eps: What is added to the variance.
        activation: One of FeedForward's: "relu", "gelu", "swiglu", ...
        dropout: The probability of dropping, in all places.
        bias: Whether projections, layers and LayerNorms add a vector.
        attention: Further arguments of MultiHeadAttention (num_kv_heads, rotary, mask, ...), or a module in its place.
        feed_forward: Further arguments of FeedForward, or a module in its place.

    >>> import torch
    >>> block = EncoderBlock(8, 2, 32)
    >>> output, weights = block(torch.zeros(3, 5, 8), need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dim_feedforward: int,
        *,
        norm: Norm = "layer",
        norm_first: bool = False,
        layer_norm_eps: float = 1e-5,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        attention: dict[str, Any] | nn.Module | None = None,
        feed_forward: dict[str, Any] | nn.Module | None = None,
    ) -> None:
        super().__init__(embed_dim, norm, norm_first, layer_norm_eps, bias, dropout, 2)
        self.attention = attention_of(embed_dim, num_heads, bias, dropout, attention)
        self.feed_forward = feed_forward_of(embed_dim, dim_feedforward, bias, dropout, activation, feed_forward)

    def forward(
        self,
        x: Float[Tensor, "*batch n embed_dim"],
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        need_weights: bool = False,
        **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give x after the block and, on request, the weights (..., heads, n, n) before dropout.

        `mask` and the other `options` (key_padding_mask, is_causal, attn_bias, cache, backend, ...) are those of the
        attention's call.
        """
        options |= {} if mask is None else {"mask": mask}  # a module in the attention's place need not take masks
        added, *seen = parts_of(self.attention(self._norm_before(x, 0), need_weights=need_weights, **options))
        x = self._add_and_norm(x, added, 0)
        x = self._add_and_norm(x, self.feed_forward(self._norm_before(x, 1)), 1)
        return (x, seen[0]) if need_weights else x

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> Self:
        """Copy an nn.TransformerEncoderLayer; ours is batch first, whatever theirs was."""
        options, state = read_block(layer, nn.TransformerEncoderLayer)
        return copy_tensors(cls(**options), layer, state)

    def to_torch(self) -> nn.TransformerEncoderLayer:
        """Copy into an nn.TransformerEncoderLayer, batch first; refused where that could not compute the same."""
        layer: nn.TransformerEncoderLayer = write_block(self, nn.TransformerEncoderLayer)
        return layer
