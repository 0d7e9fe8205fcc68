"""Errors for models that cannot be watched, and for attention that was not recorded, each with a way out."""

import contextlib
import functools
import os
import re
import sys
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from regard.capture.intercept.exchanged_functions import is_patched, patched, with_globals
from regard.capture.intercept.watching_mode import CALL, modes_here
from regard.capture.missing_attention import Missing, missing_lines
from regard.errors import ObservationError

__all__ = ["refuse_compiled", "refuse_missing", "refusing_compiled_code", "why_nothing"]

_ATTENTION = re.compile("att(entio)?n|transformer|bert|gpt", re.IGNORECASE)  # part of the name of a module's class
_SHOWN = 6  # maximum number of module classes listed in an error


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
    """Raise an error for compiled functions inside a model, which would be compiled again together with the watching.

    This applies only to the thread that watches: a compiler stance is global, and would affect what other threads
    compile.
    """
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
        refused = modes_here() and dynamo._stance.stance == "default"
        return (refuse if refused else original)(callback)

    return choose


_EAGERLY = 'put `with torch.compiler.set_stance("force_eager"):` around regard.watch'
_NO_FLEX = (
    "flex_attention, whose kernel gives no weights: let the model call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)


def _why_compiled(error: BaseException) -> str:
    """Return which compiled code was called, and the way out; FlexAttention without a compiler is refused too."""
    way = (
        f"calls {_NO_FLEX}"
        if "flex_attention" in str(error)
        else f"is compiled; {_EAGERLY}, unless it calls {_NO_FLEX}"
    )
    return (
        f"this model cannot be watched as it is: compiled code shows no calls, and {_compiled_function(error)}, {way}"
    )


def _compiled_function(error: BaseException) -> str:
    """Return the innermost function outside PyTorch that called something compiled."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if f"{os.sep}torch{os.sep}" not in one.filename]
    return f"a compiled function, called at {frames[-1].filename}:{frames[-1].lineno}" if frames else "something inside"


def refuse_missing(model: nn.Module, missing: Sequence[Missing]) -> None:
    """Raise an error if layers are missing from a record, unless the caller accepts a partial record."""
    if missing:
        raise ObservationError(
            f"not all attention of this {type(model).__name__} could be seen: {'; '.join(missing_lines(missing))}; "
            "strict=False (--no-strict) keeps what was seen, and lists the rest in `seen.missing`"
        )


def why_nothing(model: nn.Module, calls_elsewhere: int = 0, missing: Sequence[Missing] = ()) -> str:
    """Return why no call was recorded, as far as it can be determined, and the way out."""
    if missing:
        return (
            f"no attention call of this {type(model).__name__} was seen inside the `with` block, as none that ran can "
            f"be: {'; '.join(missing_lines(missing))}. Where that is your code, let it call "
            "F.scaled_dot_product_attention or regard.attention instead"
        )
    if calls_elsewhere:
        return (
            f"no attention call was seen: this {type(model).__name__} was called in other threads only "
            f"({calls_elsewhere} times), and a watch sees the thread that opened it: call the model there, or open the "
            "watch in the thread that calls it"
        )
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
    if "flash" in implementation or "flex" in implementation or "/" in implementation:
        return (
            f"no attention call was seen: this model runs {implementation!r}, which calls its kernel directly; load it "
            'with attn_implementation="sdpa" (or "regard") to watch it'
        )
    if any(one.is_meta for one in model.parameters()):
        return (
            "no attention was seen: this model is on the meta device, which has shapes and no numbers; load its weights"
        )
    unseen = f"no attention call of this {type(model).__name__} was seen inside the `with` block: call the model there"
    if not any(_ATTENTION.search(type(one).__name__) for one in model.modules()):
        return (
            f"{unseen}; if it was called, it seems to have no attention to see: it is made of {_parts(model)}. Where "
            "one of these is your own attention, let it call F.scaled_dot_product_attention or regard.attention"
        )
    return (
        f"{unseen}; if it was called, it computes attention where PyTorch shows no calls (flash-attn called directly, "
        "a function under torch.compile, TorchScript, a kernel of its own): let it call "
        "F.scaled_dot_product_attention or regard.attention instead"
    )


def _parts(model: nn.Module) -> str:
    """Return the classes of a model's innermost modules, the most frequent first."""
    kinds = Counter(type(one).__name__ for one in model.modules() if not any(one.children()))
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_SHOWN))
    return shown + (f" and {len(kinds) - _SHOWN} other kinds" if len(kinds) > _SHOWN else "")
