"""What observes one model in one thread: its calls are announced to it, and its attention is heard.

Nothing of PyTorch is replaced, so fast paths stay as they are, and other threads run PyTorch's own code.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import nn

from regard.errors import ObservationError
from regard.observe.intercept.exchanged_functions import patched
from regard.observe.token_ids import Heard
from regard.torch_private import current_graph_task_id, get_current_function_mode_stack, set_eval_frame

__all__ = [
    "CALL",
    "HERE",
    "WatchingMode",
    "announced",
    "in_backward",
    "is_compiled",
    "is_watching",
    "modes_above_watches",
    "modes_here",
    "modes_of_all_threads",
]

CALL = "_compiled_call_impl"  # the attribute in which `module.compile()` stores the compiled call


class Ends(Protocol):
    """An object that is notified of the end of a call of the model."""

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of a call; `output` is None after an exception."""


class WatchingMode:
    """What observes one model in one thread, and changes nothing.

    `hears` takes the token ids of its runs; `calls_elsewhere` counts calls in other threads, which are not recorded.
    """

    hears: Heard | None = None

    def __init__(self, model: nn.Module, parts: Sequence[nn.Module] = ()) -> None:
        """Make a mode to which the calls of the model, and of these parts of it, are announced."""
        self._model, self._parts, self.calls_elsewhere = model, parts, 0
        self._lock, self._thread = threading.Lock(), 0
        self._patches = contextlib.ExitStack()

    @property
    def is_listening(self) -> bool:
        """Whether it hears the attention of its thread now."""
        raise NotImplementedError

    def start(self) -> None:
        """Hear the attention of this thread from now on."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop to hear it, until `start`."""
        raise NotImplementedError

    def watches(self, module: nn.Module) -> bool:
        """Return whether the module is the watched model or a part of it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start to observe this thread."""
        self._patches = self._announce_to_me([self._model, *self._parts])
        self.start()
        return self

    def _announce_to_me(self, modules: Iterable[nn.Module]) -> contextlib.ExitStack:
        """Let the calls of these modules be announced to this mode, and return what restores everything."""
        self._thread = threading.get_ident()
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(patched(module, CALL, functools.partial(announced, module)))
            _open.append(self)
            stack.callback(_open.remove, self)
            return stack.pop_all()

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        with self._patches:
            if threading.get_ident() != self._thread:
                raise ObservationError(
                    "a watch ends in the thread that opened it, whose calls it sees, and another one left its `with` "
                    "block: enter and leave it in one thread"
                )
            self.stop()

    def compiles(self, callback: Any, function: Any) -> Any:
        """Return what the compiler calls instead of `callback`, in this thread, for the frames of a compiled function.

        `function` is what was compiled; None if a compiled function is running already.
        """
        return callback

    def expects(self, function: Any) -> bool:
        """Return whether a compiled function only leads to a call of the model, which is announced."""
        return getattr(function, "__self__", None) is self._model and function.__name__ == "_wrapped_call_impl"

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ends | None:
        """Process the start of a call, and return what to notify of its end; the backward pass only repeats calls."""
        if module is not self._model or in_backward():
            return None
        if threading.get_ident() != self._thread:
            with self._lock:
                self.calls_elsewhere += 1
            return None
        return None


_open: list[WatchingMode] = []  # modes of all threads


def modes_here() -> list[WatchingMode]:
    """Return the modes that hear the attention of this thread."""
    thread = threading.get_ident()
    return [one for one in _open if one._thread == thread and one.is_listening]


def modes_above_watches() -> list[Any]:
    """Return this thread's modes that make other calls of attention, which a watch is to see (`sequence_parallel`)."""
    return [one for one in get_current_function_mode_stack() if getattr(one, "is_above_watches", False)]


def modes_of_all_threads() -> tuple[WatchingMode, ...]:
    """Return the watching modes that are open in any thread."""
    return tuple(_open)


def is_watching(module: nn.Module) -> bool:
    """Return whether this thread watches the module."""
    return any(one.watches(module) for one in modes_here())


def in_backward() -> bool:
    """Return whether a backward pass is running, in which gradient checkpointing repeats forward code."""
    return current_graph_task_id() != -1


def is_compiled(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called, also while its calls are announced."""
    found = vars(module).get(CALL)
    return found is not None and getattr(found, "of_compiled", True)


def announced(model: nn.Module, compiled: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what `module(...)` calls first, which notifies the open modes; compiled code and copies do without it.

    `compiled` is what `module.compile()` has stored. A compiler that follows the frames of this thread pauses while
    modes are notified, so that it compiles nothing of theirs.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return model._call_impl(*args, **kwargs)
        before = compiler = set_eval_frame(None)
        told: list[Ends] = []
        output = None
        try:
            HERE.compiler = compiler
            told.extend(end for one in tuple(_open) if (end := one.begins(model, args, kwargs)) is not None)
            if compiler is not None:
                for one in tuple(_open):
                    compiler = one.compiles(compiler, None)
                set_eval_frame(compiler)
            run: Callable[..., Any] = model._call_impl if compiled is None else compiled
            output = run(*args, **kwargs)
            return output
        finally:
            set_eval_frame(None)
            HERE.compiler = None
            try:
                _leave_all(told, model, args, output)
            finally:
                set_eval_frame(before)

    call.of_compiled = compiled is not None  # type: ignore[attr-defined]
    _skip(call)
    return call


class _Here(threading.local):
    compiler: Any = None  # what follows the frames of this thread where a call has begun


HERE = _Here()


def _leave_all(told: Sequence[Ends], model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Notify all of them of the end of a call, also if one raises."""
    for at, one in enumerate(told):
        try:
            one.leave(model, args, output)
        except BaseException:
            _leave_all(told[at + 1 :], model, args, None)
            raise


def _skip(function: Any) -> None:
    """Make compilers of other threads skip this function and compile the functions that it calls."""
    if (dynamo := sys.modules.get("torch._dynamo.eval_frame")) is not None:
        dynamo.skip_code(function.__code__)
