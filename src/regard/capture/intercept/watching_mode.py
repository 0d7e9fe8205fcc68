"""Torch-function modes that observe one thread, without effect on PyTorch's fast paths or on other threads.

`nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerEncoder` have fast paths, which any
torch-function mode disables, and without which a padded encoder has another output (by 3.3). In a watching thread
these modules get the result of PyTorch's `has_torch_function` without the watching modes. Other threads, and code
compiled there, run PyTorch's own code.
"""

import contextlib
import functools
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, has_torch_function

from regard.capture.intercept.exchanged_functions import Namespace, is_patched, patched, with_globals
from regard.capture.intercept.kernel_calls import is_heard
from regard.errors import ObservationError
from regard.torch_private import current_graph_task_id, get_current_function_mode_stack, pop_mode, push_mode

__all__ = [
    "CALL",
    "WatchingMode",
    "announced",
    "in_backward",
    "is_watching",
    "modes_above_watches",
    "modes_here",
    "modes_of_all_threads",
    "refuse_compiled",
    "refusing_compiled_code",
    "restack",
]

_CLASSES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
CALL = "_compiled_call_impl"  # the attribute in which `module.compile()` stores the compiled call


class Hears(Protocol):
    """An object that is notified of each call of the model, and of its end."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Process the start of a call."""

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of a call; `output` is None after an exception."""


class WatchingMode(TorchFunctionMode):
    """A mode that observes one model in one thread, and changes nothing.

    `hears` is notified of the model's calls in this thread; `calls_elsewhere` counts those in other threads, which are
    not recorded.
    """

    hears: Hears | None = None

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model, self.calls_elsewhere = model, 0
        self._lock, self._thread = threading.Lock(), 0
        self._patches = contextlib.ExitStack()

    def watches(self, module: nn.Module) -> bool:
        """Return whether the module is the watched model or a part of it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start to observe this thread."""
        self._patches = self._exchange([self._model])
        super().__enter__()  # type: ignore[no-untyped-call]
        if above := modes_above_watches():
            restack([one for one in get_current_function_mode_stack() if one not in above] + above)
        return self

    def _exchange(self, modules: Iterable[nn.Module]) -> contextlib.ExitStack:
        """Let the calls of these modules be announced to this mode, and return what restores everything."""
        self._thread = threading.get_ident()
        with contextlib.ExitStack() as stack:
            # Classes instead of instances: parts of other models that run here must take the same decision.
            for kind in _CLASSES:
                stack.enter_context(patched(kind, "forward", functools.partial(_deciding_alike, kind)))
            for module in modules:
                stack.enter_context(patched(module, CALL, functools.partial(announced, module)))
            _open.append(self)
            stack.callback(_open.remove, self)
            return stack.pop_all()

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        with self._patches:
            stack = get_current_function_mode_stack()
            if self not in stack:
                raise ObservationError(
                    "a watch ends in the thread that opened it, whose calls it sees, and another one left its `with` "
                    "block: enter and leave it in one thread"
                )
            # Not always the last one: generators with a watch may end in any order.
            restack([one for one in stack if one is not self])

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hears | None:
        """Process the start of a call, and return what to notify of its end; the backward pass only repeats calls."""
        if module is not self._model or in_backward():
            return None
        if threading.get_ident() != self._thread:
            with self._lock:
                self.calls_elsewhere += 1
            return None
        if self.hears is not None:
            self.hears(module, args, kwargs)
        return self.hears


_open: list[WatchingMode] = []  # modes of all threads


def modes_here() -> list[WatchingMode]:
    """Return the watching modes of this thread."""
    return [one for one in get_current_function_mode_stack() if isinstance(one, WatchingMode)]


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


def _deciding_alike(kind: type[nn.Module], original: Any) -> Callable[..., Any]:
    """Return a `forward` that takes the same decisions in a watching thread as without watching.

    Compilers depend on defaults and closures of the functions they compile, and would compile again if these changed.
    Therefore the function has the defaults of the original, and no closure.
    """
    own = isinstance(original, types.FunctionType)
    _forwards[kind] = original, with_globals(original, torch=_TORCH) if own else original
    forward = types.FunctionType(_forward.__code__, globals(), "forward", getattr(original, "__defaults__", None))
    forward.__kwdefaults__ = getattr(original, "__kwdefaults__", None)
    _skip(forward)
    return functools.update_wrapper(forward, original)


# The original functions and their replacements.
_forwards: dict[type[nn.Module], tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _forward(*args: Any, **kwargs: Any) -> Any:
    for kind in _CLASSES:
        if isinstance(args[0], kind):
            break
    original, alike = _forwards[kind]
    return (alike if not torch.compiler.is_dynamo_compiling() and modes_here() else original)(*args, **kwargs)


def announced(model: nn.Module, _: None) -> Callable[..., Any]:
    """Return what `module(...)` calls first, which notifies the open modes; compiled code and copies do without it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return model._call_impl(*args, **kwargs)
        told: list[Hears] = []
        output = None
        try:
            told.extend(hears for one in tuple(_open) if (hears := one.begins(model, args, kwargs)) is not None)
            output = model._call_impl(*args, **kwargs)
            return output
        finally:
            _leave_all(told, model, args, output)

    _skip(call)
    return call


def _leave_all(told: Sequence[Hears], model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
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


def _has_torch_function(tensors: Iterable[Tensor]) -> bool:
    """Return the result of PyTorch's function without the watching modes: the tensors may be of a subclass."""
    stack = get_current_function_mode_stack()
    restack([one for one in stack if not isinstance(one, WatchingMode)])
    try:
        return bool(has_torch_function(tensors))
    finally:
        restack(stack)


def restack(modes: list[Any]) -> None:
    """Replace this thread's torch-function modes."""
    for _ in get_current_function_mode_stack():
        pop_mode()
    for mode in modes:
        push_mode(mode)


_TORCH = Namespace(torch, overrides=Namespace(torch.overrides, has_torch_function=_has_torch_function))


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a compiled module, whose calls are not visible, unless the caller has disabled its compiled code."""
    if _stance() == "force_eager":
        return
    for name, module in model.named_modules():
        compiled = getattr(module, CALL, None) is not None and not is_patched(module, CALL)
        if compiled or hasattr(module, "_orig_mod"):
            which = f"its module {name!r} is" if name else "it is"
            before = "watch model._orig_mod, whose weights are the same" if hasattr(model, "_orig_mod") else _EAGERLY
            raise ObservationError(
                f"this model cannot be watched: {which} compiled, and compiled code shows no calls; {before}"
            )


def _stance() -> str:
    """Return the compiler stance that the caller has set."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return "default" if dynamo is None else str(dynamo._stance.stance)


@contextlib.contextmanager
def refusing_compiled_code() -> Iterator[None]:
    """Raise for compiled functions inside a model, in this thread alone: a stance would be that of all threads."""
    if (dynamo := sys.modules.get("torch._dynamo.eval_frame")) is None:
        yield  # no compiler is available
        return
    with patched(dynamo, "_callback_from_stance", _refusing_here):
        try:
            yield
        except RuntimeError as error:
            if "'fail_on_recompile'" not in str(error):
                raise
            raise ObservationError(_why_compiled(error)) from error


def _refusing_here(original: types.FunctionType) -> Callable[..., Any]:
    """Return a compiler hook that refuses in the thread that watches if no stance is set, and else calls `original`."""
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    refuse = with_globals(original, _stance=dynamo.DynamoStance("fail_on_recompile"))

    @functools.wraps(original)
    def choose(callback: Any) -> Any:
        refused = (modes_here() or is_heard()) and dynamo._stance.stance == "default"
        return (refuse if refused else original)(callback)

    return choose


_EAGERLY = 'put `with torch.compiler.set_stance("force_eager"):` around regard.watch'
_NO_FLEX = (
    "flex_attention, whose kernel gives no weights: let the model call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)


def _why_compiled(error: BaseException) -> str:
    """Return which compiled code was called, and the way out; FlexAttention without a compiler is refused too."""
    way = f"calls {_NO_FLEX}"
    if "flex_attention" not in str(error):
        way = f"is compiled; {_EAGERLY}, unless it {way}"
    return (
        f"this model cannot be watched as it is: compiled code shows no calls, and {_compiled_function(error)}, {way}"
    )


def _compiled_function(error: BaseException) -> str:
    """Return the innermost function outside PyTorch that called something compiled."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if f"{os.sep}torch{os.sep}" not in one.filename]
    return f"a compiled function, called at {frames[-1].filename}:{frames[-1].lineno}" if frames else "something inside"
