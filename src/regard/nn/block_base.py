"""What encoder and decoder blocks share: residuals, norms, and how their attentions are asked for."""

from typing import Any, Literal

from torch import Tensor, nn

from regard.errors import InputError
from regard.nn.attention_dropout import dropped
from regard.nn.checks import check_flag, check_probability
from regard.nn.feed_forward import Activation, FeedForward
from regard.nn.multi_head import MultiHeadAttention

__all__ = ["Block", "Norm", "attention_of", "feed_forward_of", "parts_of"]

Norm = Literal["layer", "rms"]


class Block(nn.Module):
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
