"""The attention of one thread, reported by PyTorch's dispatcher: its kernels, its fast paths, and every softmax.

A mode of PyTorch receives every operator of its thread in Python. The dispatcher can take a way of its own for some:
here under a key that no tensor has, at which all other operators fall through, in eager code, in TorchScript and in
what a compiler has made. The key is in effect only for threads in which somebody listens; it lies above autograd, so
tensors are those that the model has. What a heard operator computes inside is not heard again. `regard.attention`
reports itself in the same way (`regard.hooks`), and in compiled code its operators are heard.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

from regard.backends.flex.backend import OPERATOR as FLEX
from regard.backends.native.backend import OPERATOR as NATIVE
from regard.backends.strips import OPERATOR as STRIPS
from regard.hooks import HEARING, Listener
from regard.torch_private import (
    OpOverload,
    dispatch_key,
    dispatch_keys_below,
    include_dispatch_key,
    is_torch_function_disabled,
    let_higher_order_operators_fall_through,
)

__all__ = [
    "ATTENTION",
    "CONVOLUTION",
    "EMBEDDING",
    "FAST_PATHS",
    "FUSED",
    "READS",
    "REGARD",
    "SOFTMAXES",
    "Listener",
    "can_listen",
    "is_heard",
    "listen",
    "unheard",
    "unlisten",
]


def _operators(*names: str) -> frozenset[OpOverload]:
    """Return the operators of these names that this PyTorch has."""
    parts = (name.partition(".") for name in names)
    packets = ((getattr(torch.ops.aten, packet, None), overload) for packet, _, overload in parts)
    return frozenset(getattr(packet, overload or "default") for packet, overload in packets if packet is not None)


ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
EMBEDDING, CONVOLUTION = torch.ops.aten.embedding.default, torch.ops.aten.conv2d.default
# What F.scaled_dot_product_attention calls, and what compiled code calls in its place.
FUSED = _operators(
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math"),
    *("_flash_attention_forward", "_efficient_attention_forward"),
)
# Those of nn.MultiheadAttention and nn.TransformerEncoderLayer, which project and attend in one operator.
FAST_PATHS = _operators("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
SOFTMAXES = _operators("softmax.int", "special_softmax", "_softmax", "_safe_softmax", "_masked_softmax")
# What regard.attention calls in compiled code.
REGARD: frozenset[OpOverload] = frozenset(one.op for one in (FLEX, NATIVE, STRIPS))
READS = _operators("embedding", "one_hot", "conv2d")  # of token ids and images: with them a text or an image begins
# Their states have no positions, which does not show in the operators that they consist of.
_RECURRENT = _operators(
    *("lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input"),
    *("rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)

_NAME = "TESTING_ONLY_GenericMode"  # above all keys of tensors and modes; PyTorch leaves it to tests
_KEY = dispatch_key(_NAME)  # None if this PyTorch has none of the name
_BELOW = None if _KEY is None else dispatch_keys_below(_KEY)
_registered: list[Library] = []  # once for the process, as long as it lives
_registering = threading.Lock()


def can_listen() -> bool:
    """Return whether this PyTorch has the key; where it has not, nothing is heard but `regard.attention`."""
    return _KEY is not None


def listen(listener: Listener) -> None:
    """Notify the listener of this thread's calls from now on."""
    if not _registered and can_listen():
        _register()
    HEARING.listeners = (*HEARING.listeners, listener)
    _include(is_heard=True)


def unlisten(listener: Listener) -> None:
    """Stop to notify the listener of this thread's calls, if it was."""
    if HEARING.listeners:
        HEARING.listeners = tuple(one for one in HEARING.listeners if one is not listener)
        _include(is_heard=bool(HEARING.listeners))


def _include(*, is_heard: bool) -> None:
    if _KEY is None:
        return
    if is_heard:
        let_higher_order_operators_fall_through(_KEY)
    include_dispatch_key(_KEY, is_heard)


def is_heard() -> bool:
    """Return whether somebody is notified of this thread's calls; of what a heard one computes inside, nobody is."""
    return bool(HEARING.listeners) and not HEARING.inside


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let nobody be notified of what is computed inside the block."""
    before, HEARING.inside = HEARING.inside, True
    try:
        yield
    finally:
        HEARING.inside = before


def _register() -> None:
    with _registering:
        if not _registered:
            others, aten, own = (Library(name, "IMPL", _NAME) for name in ("_", "aten", "regard"))
            others.fallback(fallthrough_kernel)
            for one in (ATTENTION, *FUSED, *FAST_PATHS, *SOFTMAXES, *READS, *_RECURRENT):
                aten.impl(one, _reporting(one), with_keyset=True)
            for one in REGARD:
                own.impl(one, _reporting(one), with_keyset=True)
            _registered.extend((others, aten, own))


def _reporting(operator: OpOverload) -> Callable[..., Any]:
    """Return a kernel that runs an operator below the key, then reports the call, unless it is part of another, or one
    of a listener's own computations.
    """

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        hearing = HEARING
        if hearing.inside or is_torch_function_disabled():
            return operator.redispatch(keys & _BELOW, *args, **kwargs)
        hearing.inside = True
        try:
            result = operator.redispatch(keys & _BELOW, *args, **kwargs)
            for one in hearing.listeners:
                one.hear(operator, args, kwargs, result)
        finally:
            hearing.inside = False
        return result

    return run
