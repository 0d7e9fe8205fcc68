"""The activations by transformers' names, and the feed-forward layers of regard.nn that compute them."""

from typing import Literal, get_args

from regard.errors import InputError
from regard.nn.feed_forward import Activation

__all__ = ["HiddenAct", "check_hidden_act", "feed_forward_activation", "hidden_act_of"]

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
