"""TorchScript, whose inner calls PyTorch does not show: each function is treated as one call, according to its graph.

A scripted helper between scores and softmax is followed like any other function. A softmax inside a script gives
weights with an unknown layout, and a script that computes the whole attention is reported as missing.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from regard.capture.intercept.patching import patched

__all__ = ["attends", "graph_of", "has_softmax", "showing_scripts"]

_PRODUCT = re.compile(r"aten::(matmul|bmm|baddbmm|einsum)\b")
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
    return "aten::scaled_dot_product_attention" in graph or (has_softmax(graph) and len(_PRODUCT.findall(graph)) > 1)


@contextlib.contextmanager
def showing_scripts(show: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> Iterator[None]:
    """Pass each call of a scripted function or module to `show`: script, arguments and result.

    The functions are replaced for all threads, once for any number of watches, and each watch receives only its own
    calls.
    """
    with contextlib.ExitStack() as stack:
        for kind in (torch.jit.ScriptFunction, torch._C.ScriptMethod):
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
