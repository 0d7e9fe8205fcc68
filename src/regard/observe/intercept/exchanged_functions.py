"""Functions of PyTorch that are replaced while any watch is active, and restored after the last one.

The inner calls of TorchScript are not shown by PyTorch: each scripted function is treated as one call, according to its
graph. A scripted helper between scores and softmax is followed like any other function. A softmax inside a script gives
weights with an unknown layout, and a script that computes the whole attention is reported as missing.
"""

import contextlib
import re
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from regard.torch_private import ScriptMethod

__all__ = [
    "Namespace",
    "attends",
    "graph_of",
    "has_softmax",
    "is_patched",
    "patched",
    "showing_scripts",
    "with_globals",
]


@dataclass(eq=False)
class _Patch:
    owner: Any
    before: Any  # the attribute of `owner` itself; None if it is inherited
    wrapper: Any
    users: int = 1


_lock = threading.Lock()
_patches: dict[tuple[int, str], _Patch] = {}


@contextlib.contextmanager
def patched(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by `wrap(attribute)`, once for any number of watches."""
    key = id(owner), name
    with _lock:
        if key in _patches:
            _patches[key].users += 1
        else:
            _patches[key] = _Patch(owner, vars(owner).get(name), wrap(getattr(owner, name)))
            setattr(owner, name, _patches[key].wrapper)
    try:
        yield
    finally:
        with _lock:
            patch = _patches[key]
            patch.users -= 1
            if not patch.users:
                del _patches[key]
                _restore(name, patch)


def _restore(name: str, patch: _Patch) -> None:
    if vars(patch.owner).get(name) is not patch.wrapper:
        return  # other code has replaced our function, and will restore it itself
    if patch.before is None:
        delattr(patch.owner, name)
    else:
        setattr(patch.owner, name, patch.before)


def is_patched(owner: Any, name: str) -> bool:
    """Return whether the attribute was set by `patched`."""
    return (id(owner), name) in _patches


class Namespace:
    """A module in which some names are replaced."""

    def __init__(self, module: Any, **exchanged: Any) -> None:
        self.__dict__.update(exchanged, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def with_globals(function: types.FunctionType, **exchanged: Any) -> Callable[..., Any]:
    """Return a function with the same code, for which some global names are replaced, without effect on other code.

    >>> def area(radius):
    ...     return pi * radius**2
    >>> with_globals(area, pi=3)(2)
    12
    """
    code, known = function.__code__, function.__globals__ | exchanged
    copy = types.FunctionType(code, known, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_PRODUCT = re.compile(r"aten::(matmul|bmm|baddbmm|einsum)\b")
# PyTorch's kernels, and those of the fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer.
_KERNEL = re.compile(r"aten::\w*(scaled_dot_product|multi_head_attention|transformer_encoder_layer|flash_attention)")
_SOFTMAX = re.compile(r"aten::_?(safe_)?softmax\b")
_shows: list[Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]] = []


def graph_of(script: Any) -> str:
    """Return the graph of a scripted or traced function or module, including all functions that it calls."""
    return str(getattr(script, "inlined_graph", None) or getattr(script, "graph", ""))


def has_softmax(graph: str) -> bool:
    """Return whether the graph contains a softmax."""
    return _SOFTMAX.search(graph) is not None


def attends(graph: str) -> bool:
    """Return whether the graph computes attention: PyTorch's kernel, or a softmax between two products."""
    return _KERNEL.search(graph) is not None or (has_softmax(graph) and len(_PRODUCT.findall(graph)) > 1)


@contextlib.contextmanager
def showing_scripts(show: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> Iterator[None]:
    """Pass each call of a scripted function or module to `show`: script, arguments and result.

    The functions are replaced for all threads, once for any number of watches, and each watch receives only its own
    calls.
    """
    with contextlib.ExitStack() as stack:
        for kind in (torch.jit.ScriptFunction, ScriptMethod):
            stack.enter_context(patched(kind, "__call__", _showing))
        _shows.append(show)
        stack.callback(_shows.remove, show)
        yield


def _showing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        for show in tuple(_shows):
            show(self, args, kwargs, result)
        return result

    return call
