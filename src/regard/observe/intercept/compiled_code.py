"""Compiled code in a thread that is watched or tapped: left to the watch or the tap, or refused with a way out."""

import contextlib
import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from regard.errors import ObservationError
from regard.observe.intercept.exchanged_functions import patched, with_globals
from regard.observe.intercept.watching_mode import HERE, is_compiled, modes_here, modes_of_all_threads
from regard.observe.learned import parts_of

__all__ = [
    "EAGERLY",
    "following_compiled_code",
    "refuse_compiled",
    "refuse_packages",
    "refusing_compiled_code",
    "runs_compiled",
    "stance",
]


def refuse_compiled(model: nn.Module, *, whole: bool = True, to: str = "watch") -> None:
    """Refuse a module with compiled parts, whose calls are not visible, unless the caller has disabled compiled code.

    With `whole=False`, the module itself may be compiled.
    """
    if stance() == "force_eager":
        return
    parts = (one for one in parts_of(model) if is_compiled(one) or "_orig_mod" in one._modules)
    if not any(whole or one is not model for one in parts):
        return
    eagerly = EAGERLY.replace("watch", to)
    for name, module in model.named_modules():
        if not whole and not name:
            continue
        compiled = is_compiled(module)
        if compiled or hasattr(module, "_orig_mod"):
            which = f"its module {name!r} is" if name else "it is"
            before = "watch model._orig_mod, whose weights are the same" if hasattr(model, "_orig_mod") else eagerly
            if not whole:
                before = f"compile the whole model instead, or {eagerly}"
            raise ObservationError(
                f"this model cannot be {_DONE.get(to, to)}: {which} compiled, and compiled code shows no calls; "
                f"{before}"
            )


def refuse_packages(model: object, to: str = "watch") -> None:
    """Refuse packages of AOTInductor, and modules that hold one: their kernels are called from C++, which reports none.

    Raises:
        ObservationError: It is one, or holds one.
    """
    package = sys.modules.get("torch.export.pt2_archive._package")  # nobody can have made one before
    if package is None:
        return
    modules = model.modules() if isinstance(model, nn.Module) else ()
    parts = [model, *(one for module in modules for one in vars(module).values())]
    if any(isinstance(one, package.AOTICompiledModel) for one in parts):
        raise ObservationError(
            f"a package of AOTInductor cannot be {_DONE.get(to, to)}, since its kernels are called from C++, which "
            "reports none: give the model that it was made of"
        )


_DONE = {"watch": "watched", "tap": "tapped"}


def runs_compiled(model: nn.Module) -> bool:
    """Return whether the call of the model that begins runs compiled code."""
    if HERE.compiler is not None:
        return True
    compiled = is_compiled(model) or hasattr(model.forward, "_torchdynamo_orig_callable")
    return compiled and stance() != "force_eager"


def stance() -> str:
    """Return the compiler stance that the caller has set."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return "default" if dynamo is None else str(dynamo._stance.stance)


@contextlib.contextmanager
def refusing_compiled_code() -> Iterator[None]:
    """Raise for compiled functions inside a model, in this thread alone: a stance would be that of all threads."""
    with following_compiled_code():
        try:
            yield
        except RuntimeError as error:
            if "'fail_on_recompile'" not in str(error) or stance() != "default":
                raise
            raise ObservationError(_why_compiled(error)) from error


@contextlib.contextmanager
def following_compiled_code() -> Iterator[None]:
    """Let the open modes decide what compiled functions run as, once a compiler has been loaded."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    with contextlib.nullcontext() if dynamo is None else patched(dynamo, "_callback_from_stance", _deciding_here):
        yield


def _deciding_here(original: types.FunctionType) -> Callable[..., Any]:
    """Return a compiler hook that refuses in a thread that sees each call, else asks the modes, and calls `original`.

    It is what PyTorch calls as a compiled function begins, with what compiles its frames.
    """
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    refuse = with_globals(original, _stance=dynamo.DynamoStance("fail_on_recompile"))

    @functools.wraps(original)
    def choose(callback: Any) -> Any:
        if callback is None or callback is False or dynamo._stance.stance == "force_eager":
            return original(callback)
        modes = modes_of_all_threads()
        function = sys._getframe(1).f_locals.get("fn") if modes else None
        refused = not all(one.expects(function) for one in modes_here())
        if refused and dynamo._stance.stance == "default":
            return refuse(callback)
        for one in modes:
            callback = one.compiles(callback, function)
        return original(callback)

    return choose


EAGERLY = 'put `with torch.compiler.set_stance("force_eager"):` around regard.watch'
_NO_FLEX = (
    "flex_attention, whose kernel gives no weights: let the model call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)


def _why_compiled(error: BaseException) -> str:
    """Return which compiled code was called, and the way out; FlexAttention without a compiler is refused too."""
    way = f"calls {_NO_FLEX}"
    if "flex_attention" not in str(error):
        way = f"is compiled; {EAGERLY}, unless it {way}"
    return (
        f"this model cannot be watched as it is: compiled code shows no calls, and {_compiled_function(error)}, {way}"
    )


def _compiled_function(error: BaseException) -> str:
    """Return the innermost function outside PyTorch that called something compiled."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if f"{os.sep}torch{os.sep}" not in one.filename]
    return f"a compiled function, called at {frames[-1].filename}:{frames[-1].lineno}" if frames else "something inside"
