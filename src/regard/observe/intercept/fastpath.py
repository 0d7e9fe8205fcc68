"""The three modules of PyTorch with a fast path, which any torch-function mode would switch off.

Without its fast path a padded encoder gives another output (by 3.3), so while anything is watched these modules run
without the modes that watch, all of them, whoever owns the module; and what they attended to is read from their inputs.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

__all__ = ["FastPathMode", "has_fast_path", "is_watching", "patch", "unpatch"]

_CLASSES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class FastPathMode(TorchFunctionMode):
    """A mode that steps aside for modules with a fast path."""

    def calls_inside(self, module: nn.Module) -> bool:
        """Whether the mode must stay while the module runs, as a subclass in it computes something of its own."""
        raise NotImplementedError

    def before_module(self) -> Any:
        """What `after_module` wants to know of the time before the call."""
        raise NotImplementedError

    def after_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], before: Any) -> None:
        """Read a call that ran without the modes."""
        raise NotImplementedError


class _Aside(threading.local):
    """The modes of this thread that have stepped aside."""

    modes: tuple[FastPathMode, ...] = ()


_aside = _Aside()
_lock = threading.Lock()
_originals: dict[type[nn.Module], tuple[Callable[..., Any], Callable[..., Any]]] = {}
_watching = 0


def patch() -> None:
    """Let the three classes step around the modes, until `unpatch` was called as often."""
    global _watching
    with _lock:
        _watching += 1
        if _watching == 1:
            for kind in _CLASSES:
                # The class and not its instances: parts of other models must step around the modes as well.
                _originals[kind] = kind.forward, _stepping_aside(kind.forward)
                kind.forward = _originals[kind][1]  # type: ignore[method-assign]


def unpatch() -> None:
    """Give the classes back as they were."""
    global _watching
    with _lock:
        _watching -= 1
        if _watching == 0:
            for kind, (original, wrapper) in _originals.items():
                if kind.forward is wrapper:
                    kind.forward = original
            _originals.clear()


def is_watching() -> bool:
    """Whether any model is being watched now."""
    return _watching > 0


def has_fast_path(module: nn.Module) -> bool:
    """Whether it is one of the three, and no subclass that computes something of its own."""
    if isinstance(module, nn.MultiheadAttention):
        return type(module).forward is nn.MultiheadAttention.forward
    if isinstance(module, nn.TransformerEncoderLayer):
        own = type(module)
        base = nn.TransformerEncoderLayer
        return own.forward is base.forward and own._sa_block is base._sa_block
    if isinstance(module, nn.TransformerEncoder):
        return type(module).forward is nn.TransformerEncoder.forward and all(map(has_fast_path, module.layers))
    return False


def _stepping_aside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        modes = (*_aside.modes, *(one for one in _get_current_function_mode_stack() if isinstance(one, FastPathMode)))
        if not modes or any(one.calls_inside(self) for one in modes):
            return original(self, *args, **kwargs)
        before = [one.before_module() for one in modes]
        with _stepped_aside(modes):
            result = original(self, *args, **kwargs)
            for one, then in zip(modes, before, strict=True):
                one.after_module(self, args, kwargs, then)
        return result

    return forward


@contextlib.contextmanager
def _stepped_aside(modes: tuple[FastPathMode, ...]) -> Iterator[None]:
    """Take all modes that watch off this thread's stack, and no others."""
    before, stack = _aside.modes, _get_current_function_mode_stack()
    others = [one for one in stack if not isinstance(one, FastPathMode)]
    watching = len(others) < len(stack)
    if watching:
        _restack(others)
    _aside.modes = modes
    try:
        yield
    finally:
        _aside.modes = before
        if watching:
            _restack(stack)


def _restack(modes: list[Any]) -> None:
    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
