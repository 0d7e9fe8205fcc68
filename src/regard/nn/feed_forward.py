"""The layer between the attentions: each position for itself, wider and back."""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.nn.attention_dropout import dropped
from regard.nn.checks import check_flag, check_probability, check_size, check_width
from regard.nn.standard_names import standard_names

__all__ = ["FUNCTIONS", "Activation", "FeedForward"]

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"]

_gelu_tanh = partial(functional.gelu, approximate="tanh")
# What is applied to the hidden layer, or to its gate.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": functional.silu,
    "swiglu": functional.silu,
    "geglu": functional.gelu,
    "geglu_tanh": _gelu_tanh,
    "reglu": functional.relu,
}


@standard_names()
class FeedForward(nn.Module):
    """Map every position by a network with one hidden layer (Vaswani et al. 2017, 3.3, arXiv:1706.03762).

    Formula: W_down dropout(φ(W_up x + b_up)) + b_down, φ being "relu", "gelu" (the exact one, arXiv:1606.08415),
    "gelu_tanh" (GPT-2's approximation of it) or "silu" (swish, arXiv:1710.05941); gated, with biases where there are
    any: W_down dropout(φ(W_gate x) ∘ W_up x), φ being SiLU in "swiglu", GELU in "geglu" and "geglu_tanh", ReLU in
    "reglu" (Shazeer 2020, arXiv:2002.05202)

    Layers: `up_proj`, `down_proj` and, if it is gated, `gate_proj`. Gated layers have three matrices in place of two:
    with a hidden layer of two thirds the parameters stay the same.

    Args:
        embed_dim: Width of what comes in and goes out.
        hidden_features: Width of the hidden layer.
        activation: One of the names above.
        dropout: The probability with which a number of the hidden layer is dropped, in training mode only.
        bias: Whether the layers add a vector.
        device, dtype: Of the parameters.

    Raises:
        InputError: A width is not positive, the activation does not exist, or the input has another width.

    >>> FeedForward(4, 16)(torch.zeros(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    >>> sum(one.numel() for one in FeedForward(4, 16, activation="swiglu", bias=False).parameters())
    192
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_features: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if activation not in get_args(Activation):
            choices = ", ".join(map(repr, get_args(Activation)))
            raise InputError(f"`activation` must be one of {choices}, got {activation!r}")
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of x")
        hidden = check_size("hidden_features", hidden_features, "is that of the hidden layer")
        self.activation, self.dropout = activation, check_probability("dropout", dropout)
        bias = check_flag("bias", bias)
        self.up_proj = nn.Linear(embed_dim, hidden, bias=bias, device=device, dtype=dtype)
        self.down_proj = nn.Linear(hidden, embed_dim, bias=bias, device=device, dtype=dtype)
        gated = activation.endswith("glu") or "glu_" in activation
        self.gate_proj = nn.Linear(embed_dim, hidden, bias=bias, device=device, dtype=dtype) if gated else None

    def forward(self, x: Float[Tensor, "*batch n embed_dim"]) -> Float[Tensor, "*batch n embed_dim"]:
        """Map every position."""
        check_width("x", x, self.embed_dim, "embed_dim")
        function = FUNCTIONS[self.activation]
        if self.gate_proj is not None:
            hidden = function(self.gate_proj(x)) * self.up_proj(x)
        else:
            hidden = function(self.up_proj(x))
        if self.training and self.dropout:
            hidden = dropped(hidden, self.dropout)
        mapped: Tensor = self.down_proj(hidden)
        return mapped

    def extra_repr(self) -> str:
        """Name what the layers do not show."""
        return f"activation={self.activation!r}, dropout={self.dropout}"
