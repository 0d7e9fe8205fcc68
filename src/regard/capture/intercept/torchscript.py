"""TorchScript, of whose inside PyTorch shows no calls: its functions are seen as one call each, by their graph.

A scripted helper between scores and softmax is followed like any other function; a softmax inside of one makes weights
whose layout is not known; one that computes attention in whole is missing.
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
    """The graph of a scripted or traced function or module, with all that it calls."""
    return str(getattr(script, "inlined_graph", None) or getattr(script, "graph", ""))


def has_softmax(graph: str) -> bool:
    """Whether a softmax runs inside."""
    return _SOFTMAX.search(graph) is not None


def attends(graph: str) -> bool:
    """Whether attention is computed inside: PyTorch's kernel, or a softmax between two products."""
    return "aten::scaled_dot_product_attention" in graph or (has_softmax(graph) and len(_PRODUCT.findall(graph)) > 1)


@contextlib.contextmanager
def showing_scripts(show: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> Iterator[None]:
    """Have `show` take each call of a scripted function or module: script, arguments and result.

    The functions are exchanged for all threads, once for however many watches, of which each shows its own.
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
