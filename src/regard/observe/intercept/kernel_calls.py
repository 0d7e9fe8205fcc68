"""The calls of PyTorch's attention kernel in one thread, reported by its dispatcher.

A torch-function mode receives every operator of its thread, at about a microsecond each, and each attribute of a tensor
too. The dispatcher can take a way of its own for one operator: here one under a key that no tensor has, at which all
other operators fall through. The key is in effect only for threads in which somebody listens.
"""

import threading
from typing import Any, Protocol

import torch
from torch.library import Library, fallthrough_kernel

from regard.torch_private import dispatch_key, dispatch_keys_below, include_dispatch_key, is_torch_function_disabled

__all__ = ["KernelListener", "is_heard", "listen", "unlisten"]


class KernelListener(Protocol):
    """An object that is notified of each call of the kernel in a thread."""

    def hear_kernel(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Process a call that has returned."""
        ...


class _Listeners(threading.local):
    here: tuple[KernelListener, ...] = ()


_NAME = "TESTING_ONLY_GenericMode"  # above all keys of tensors and modes; PyTorch leaves it to tests
_KEY = dispatch_key(_NAME)
_BELOW = dispatch_keys_below(_KEY)
_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_listeners = _Listeners()
_registered: list[Library] = []  # once for the process, as long as it lives
_registering = threading.Lock()


def listen(listener: KernelListener) -> None:
    """Notify the listener of the kernel's calls in this thread from now on."""
    if not _registered:
        _register()
    _listeners.here = (*_listeners.here, listener)
    include_dispatch_key(_KEY, True)


def unlisten(listener: KernelListener) -> None:
    """Stop to notify the listener of this thread's calls, if it was."""
    if _listeners.here:
        _listeners.here = tuple(one for one in _listeners.here if one is not listener)
        include_dispatch_key(_KEY, bool(_listeners.here))


def is_heard() -> bool:
    """Return whether somebody is notified of this thread's calls."""
    return bool(_listeners.here)


def _register() -> None:
    with _registering:
        if not _registered:
            others, kernel = Library("_", "IMPL", _NAME), Library("aten", "IMPL", _NAME)
            others.fallback(fallthrough_kernel)
            kernel.impl(_OPERATOR, _reported, with_keyset=True)
            _registered.extend((others, kernel))


def _reported(keys: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the kernel below the key, then report the call, unless it is one of a reader's own computations."""
    result = _OPERATOR.redispatch(keys & _BELOW, *args, **kwargs)
    if not is_torch_function_disabled():
        for one in _listeners.here:
            one.hear_kernel(args, kwargs)
    return result
