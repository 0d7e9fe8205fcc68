"""The feed-forward layer, its activations by PyTorch's and transformers' names, and dropout of activations."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import check_flag, check_probability, check_size
from regard.dropout import Dropout
from regard.errors import InputError
from regard.nn.checks import check_width, public_module
from regard.parallel.sequence_part import SEQUENCE_PART
from regard.torch_private import maybe_current_level

__all__ = [
    "FUNCTIONS",
    "Activation",
    "FeedForward",
    "HiddenAct",
    "check_hidden_act",
    "dropped",
    "feed_forward_activation",
    "hidden_act_of",
]

_FEW = 2**14  # numbers of which PyTorch's own is as fast


def dropped(x: Float[Tensor, "*batch width"], p: float, training: bool = True) -> Float[Tensor, "*batch width"]:
    """Put 0 in the place of each number with probability p, and divide the others by 1 − p (Srivastava et al. 2014).

    PyTorch draws one number after the other, in one thread, except in single precision on Intel's processors: 9 ns
    each, a third of a step of a small Transformer. Here a seed is drawn from PyTorch's generator and places are hashed,
    as for weights (`regard.dropout`), in all threads; a compiler repeats this in the backward. On a GPU it is PyTorch's
    own. Of a sequence that is sharded over ranks, a rank drops what one process drops of its tokens.

    >>> _ = torch.manual_seed(0)
    >>> x = dropped(torch.ones(1000, 100), 0.25)
    >>> x.unique().tolist(), round(float((x == 0).float().mean()), 2)
    ([0.0, 1.3333333730697632], 0.25)
    """
    if not training or p == 0:
        return x
    compiled = torch.compiler.is_compiling()
    part = None if compiled else SEQUENCE_PART.get()
    shape = x.shape if part is None else part.whole_shape(x)
    plain = x.device.type != "cpu" or p == 1
    if not compiled:  # a compiler would make a guard of the size; and eager vmap has randomness of its own
        plain = plain or math.prod(shape) < _FEW or maybe_current_level() is not None
    if plain:
        return functional.dropout(x, p)
    chosen = Dropout.of(p, None, x.device)
    assert chosen is not None
    rows = torch.arange(math.prod(shape[:-1]), device="cpu")
    if part is not None:
        rows = rows.view(shape[:-1])[:, part.places].flatten()
    one = slice(0, 1)
    kept = chosen.keep(one, one, rows, torch.arange(x.shape[-1], device="cpu")).view(x.shape)
    return x * (kept.to(x.dtype) / (1 - p))


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


@public_module()
class FeedForward(nn.Module):
    """Map every position by a network with one hidden layer (Vaswani et al. 2017, 3.3, arXiv:1706.03762).

    Formula: W_down dropout(φ(W_up x + b_up)) + b_down, φ being "relu", "gelu" (the exact one, arXiv:1606.08415),
    "gelu_tanh" (GPT-2's approximation of it) or "silu" (swish, arXiv:1710.05941); gated, with biases where there are
    any: W_down dropout(φ(W_gate x) ∘ W_up x), φ being SiLU in "swiglu", GELU in "geglu" and "geglu_tanh", ReLU in
    "reglu" (Shazeer 2020, arXiv:2002.05202)

    The layers are `up_proj` and `down_proj`, and in a gated network also `gate_proj`. A gated network has three
    matrices instead of two. If its hidden layer has two thirds of the width, the number of parameters is the same.

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
        if self.activation == "relu" and x.device.type == "cpu" and torch.compiler.is_compiling():
            return self._map_in_matrix(x.flatten(0, -2)).view(x.shape)
        function = FUNCTIONS[self.activation]
        if self.gate_proj is not None:
            hidden = function(self.gate_proj(x)) * self.up_proj(x)
        else:
            hidden = function(self.up_proj(x))
        if self.training and self.dropout:
            hidden = dropped(hidden, self.dropout)
        mapped: Tensor = self.down_proj(hidden)
        return mapped

    def _map_in_matrix(self, x: Float[Tensor, "n embed_dim"]) -> Float[Tensor, "n embed_dim"]:
        """Map with ReLU as Inductor does fastest on CPU: its backward needs only what is kept for that of `down_proj`.

        Behind a view, or before dropout, Inductor keeps the sign in a byte for each number too, which it stores slowly.
        """
        hidden = dropped(self.up_proj(x), self.dropout, self.training)
        mapped: Tensor = self.down_proj(functional.relu(hidden))
        return mapped

    def extra_repr(self) -> str:
        """Name what the layers do not show."""
        return f"activation={self.activation!r}, dropout={self.dropout}"


HiddenAct = Literal["relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "silu", "swish"]

# transformers computes the three approximations of GELU by the same formula, apart from the order of its products.
_PLAIN: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_GATED: dict[str, Activation] = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
_OF_FEED_FORWARD: dict[str, tuple[HiddenAct, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_tanh": ("gelu_new", False),
    "silu": ("silu", False),
    "reglu": ("relu", True),
    "geglu": ("gelu", True),
    "geglu_tanh": ("gelu_new", True),
    "swiglu": ("silu", True),
}


def check_hidden_act(name: object) -> HiddenAct:
    """Return the name if it is one of transformers' activations that a Transformer has."""
    if isinstance(name, str) and name in _PLAIN:
        return name  # type: ignore[return-value]
    hint = ""
    if isinstance(name, str) and name in _OF_FEED_FORWARD:
        plain, gated = _OF_FEED_FORWARD[name]
        hint = f": write hidden_act={plain!r}" + (", is_gated_act=True" if gated else "")
    raise InputError(f"`hidden_act` must be one of {', '.join(map(repr, get_args(HiddenAct)))}, got {name!r}{hint}")


def feed_forward_activation(hidden_act: HiddenAct, is_gated_act: bool = False) -> Activation:
    """Return the `activation` of nn.FeedForward.

    >>> feed_forward_activation("silu", is_gated_act=True)
    'swiglu'
    """
    plain = _PLAIN[hidden_act]
    return _GATED[plain] if is_gated_act else plain


def hidden_act_of(activation: Activation) -> tuple[HiddenAct, bool]:
    """Return `hidden_act` and `is_gated_act` of an activation of nn.FeedForward.

    >>> hidden_act_of("swiglu")
    ('silu', True)
    """
    return _OF_FEED_FORWARD[activation]
