"""Encoder and decoder blocks: attentions and feed-forward, each with a residual and a norm."""

from typing import Any, Literal, Self

from jaxtyping import Float
from torch import Tensor, nn

from regard.cache import Entry
from regard.checks import check_flag, check_probability
from regard.errors import InputError
from regard.masks import BoundMask, Causal, Mask
from regard.nn.checks import public_module
from regard.nn.feed_forward import Activation, FeedForward, dropped
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.torch_modules import fill_block, read_block, write_block

__all__ = ["DecoderBlock", "EncoderBlock", "Norm", "ResidualBlock", "attention_of", "feed_forward_of", "parts_of"]

Norm = Literal["layer", "rms"]


class ResidualBlock(nn.Module):
    """What both blocks share: the place of the norm, and dropout of what is added to the residual."""

    def __init__(
        self,
        embed_dim: int,
        norm: Norm,
        norm_first: bool,
        layer_norm_eps: float,
        bias: bool,
        dropout: float,
        count: int,
    ):
        super().__init__()
        if norm not in ("layer", "rms"):
            raise InputError(f'`norm` must be "layer" or "rms", got {norm!r}')
        kinds: dict[str, Any] = {
            "layer": lambda: nn.LayerNorm(embed_dim, layer_norm_eps, bias=check_flag("bias", bias)),
            "rms": lambda: nn.RMSNorm(embed_dim, layer_norm_eps),
        }
        self.norm_first, self.dropout = check_flag("norm_first", norm_first), check_probability("dropout", dropout)
        self.norms = nn.ModuleList(kinds[norm]() for _ in range(count))

    def _norm_before(self, x: Tensor, index: int) -> Tensor:
        """Norm what goes into a layer, if the norm comes first."""
        return self.norms[index](x) if self.norm_first else x

    def _add_and_norm(self, x: Tensor, added: Tensor, index: int) -> Tensor:
        """Add what a layer gave, and norm the sum if the norm comes last."""
        x = x + (dropped(added, self.dropout) if self.training and self.dropout else added)
        return x if self.norm_first else self.norms[index](x)


def attention_of(
    embed_dim: int, num_heads: int, bias: bool, dropout: float, asked: dict[str, Any] | nn.Module | None
) -> nn.Module:
    """Build an attention of further arguments, or take the module that was given."""
    if isinstance(asked, nn.Module):
        return asked
    return MultiHeadAttention(embed_dim, num_heads, **{"bias": bias, "dropout": dropout, **(asked or {})})


def feed_forward_of(
    embed_dim: int,
    dim_feedforward: int,
    bias: bool,
    dropout: float,
    activation: Activation,
    asked: dict[str, Any] | nn.Module | None,
) -> nn.Module:
    """Build a feed-forward layer of further arguments, or take the module that was given."""
    if isinstance(asked, nn.Module):
        return asked
    return FeedForward(
        embed_dim, dim_feedforward, **{"activation": activation, "bias": bias, "dropout": dropout, **(asked or {})}
    )


def parts_of(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Output, and weights if there are any."""
    return found if isinstance(found, tuple) else (found,)


@public_module()
class EncoderBlock(ResidualBlock):
    """Let every position look at all, then map it (Vaswani et al. 2017, 3.1, arXiv:1706.03762).

    Formula, post-norm (the paper): x = norm₀(x + attention(x)); x = norm₁(x + feed_forward(x));
    pre-norm (Xiong et al. 2020, arXiv:2002.04745): x = x + attention(norm₀(x)); x = x + feed_forward(norm₁(x))

    Dropout is applied as in the paper, in training mode only: to the two branches before they are added to the
    residual, to the attention weights, and to the hidden layer. If a model consists of pre-norm blocks, add one more
    norm after the last block.

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
        block = cls(**read_block(layer, nn.TransformerEncoderLayer))
        fill_block(block, layer)
        return block

    def to_torch(self) -> nn.TransformerEncoderLayer:
        """Copy into an nn.TransformerEncoderLayer, batch first; refused where that could not compute the same."""
        layer: nn.TransformerEncoderLayer = write_block(
            self, EncoderBlock, nn.TransformerEncoderLayer, MultiHeadAttention
        )
        return layer


@public_module()
class DecoderBlock(ResidualBlock):
    """Compute causal self-attention, cross-attention and a feed-forward network (Vaswani et al. 2017, 3.1,
    arXiv:1706.03762).

    Formula, post-norm: x = norm₀(x + attention(x)); x = norm₁(x + cross_attention(x, memory)); x = norm₂(x +
    feed_forward(x)); pre-norm with the norms inside, as in EncoderBlock

    No position sees later positions: the self-attention has mask=masks.Causal(), unless the arguments in `attention`
    specify another mask. DecoderBlock.from_torch(layer) has no mask, because nn.TransformerDecoderLayer has none. It is
    causal only if forward gets is_causal=True or a mask.

    Args:
        embed_dim: Width of x.
        num_heads: Number of heads.
        dim_feedforward: Width of the hidden layer of the feed-forward network.
        memory_dim: Width of the memory; `embed_dim` by default.
        attention: Further arguments of the first MultiHeadAttention (mask=None shows later positions), or a module.
        cross_attention: The same for the second, which looks at the memory.
        feed_forward: Further arguments of FeedForward, or a module in its place.
        norm, norm_first, layer_norm_eps, activation, dropout, bias: As in EncoderBlock.

    >>> import torch
    >>> block = DecoderBlock(8, 2, 32)
    >>> output, own, cross = block(torch.zeros(3, 5, 8), torch.zeros(3, 7, 8), need_weights=True)
    >>> own.shape, cross.shape
    (torch.Size([3, 2, 5, 5]), torch.Size([3, 2, 5, 7]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dim_feedforward: int,
        *,
        memory_dim: int | None = None,
        norm: Norm = "layer",
        norm_first: bool = False,
        layer_norm_eps: float = 1e-5,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        attention: dict[str, Any] | nn.Module | None = None,
        cross_attention: dict[str, Any] | nn.Module | None = None,
        feed_forward: dict[str, Any] | nn.Module | None = None,
    ) -> None:
        super().__init__(embed_dim, norm, norm_first, layer_norm_eps, bias, dropout, 3)
        attention = attention if isinstance(attention, nn.Module) else {"mask": Causal(), **(attention or {})}
        self.attention = attention_of(embed_dim, num_heads, bias, dropout, attention)
        if not isinstance(cross_attention, nn.Module):
            cross_attention = {"kdim": memory_dim, "vdim": memory_dim, **(cross_attention or {})}
        self.cross_attention = attention_of(embed_dim, num_heads, bias, dropout, cross_attention)
        self.feed_forward = feed_forward_of(embed_dim, dim_feedforward, bias, dropout, activation, feed_forward)

    def forward(
        self,
        x: Float[Tensor, "*batch queries embed_dim"],
        memory: Float[Tensor, "*batch keys memory_dim"],
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        cross_attn_mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
        position_ids: Tensor | None = None,
        need_weights: bool = False,
        attn_bias: Any = None,
        cross_attn_bias: Any = None,
        cache: tuple[Entry | None, Entry | None] = (None, None),
        **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return the block's output and, on request, the weights of both attentions before dropout.

        `mask`, `key_padding_mask`, `is_causal`, `position_ids` and `attn_bias` apply to the self-attention;
        `cross_attn_mask`, `memory_key_padding_mask` and `cross_attn_bias` apply to the cross-attention. `cache` holds
        the previous keys and values of the self-attention, and a `CrossAttentionCache` for the cross-attention. With a
        cache, `position_ids` are those of the tokens of this call only. The other `options` (backend, max_bytes, ...)
        are passed to both attentions.
        """
        own_options = _given(
            key_padding_mask=key_padding_mask, is_causal=is_causal, position_ids=position_ids, cache=cache[0]
        )
        added, *own = parts_of(
            self.attention(
                self._norm_before(x, 0),
                mask=mask,
                attn_bias=attn_bias,
                need_weights=need_weights,
                **own_options,
                **options,
            )
        )
        x = self._add_and_norm(x, added, 0)
        added, *cross = parts_of(
            self.cross_attention(
                self._norm_before(x, 1),
                memory,
                mask=cross_attn_mask,
                attn_bias=cross_attn_bias,
                need_weights=need_weights,
                **_given(key_padding_mask=memory_key_padding_mask, cache=cache[1]),
                **options,
            )
        )
        x = self._add_and_norm(x, added, 1)
        x = self._add_and_norm(x, self.feed_forward(self._norm_before(x, 2)), 2)
        return (x, own[0], cross[0]) if need_weights else x

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer) -> Self:
        """Copy an nn.TransformerDecoderLayer; like theirs, and unlike a new DecoderBlock, it sees later positions.

        Call it with is_causal=True or mask=masks.Causal() where they give `tgt_mask`.
        """
        block = cls(**read_block(layer, nn.TransformerDecoderLayer), attention={"mask": None})
        fill_block(block, layer)
        return block

    def to_torch(self) -> nn.TransformerDecoderLayer:
        """Copy into an nn.TransformerDecoderLayer, batch first; refused where that could not compute the same."""
        layer: nn.TransformerDecoderLayer = write_block(
            self, DecoderBlock, nn.TransformerDecoderLayer, MultiHeadAttention
        )
        return layer


def _given(**options: Any) -> dict[str, Any]:
    """Attentions of another kind need not know caches and padding."""
    return {name: value for name, value in options.items() if value is not None}
