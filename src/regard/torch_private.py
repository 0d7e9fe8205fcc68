"""The private names of PyTorch that regard uses, in one place: what to compare when PyTorch is updated."""

import contextlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import _assert_async as assert_async
from torch._C import DisableTorchFunction
from torch._C import _current_graph_task_id as current_graph_task_id
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._C import _dispatch_keyset_full_after as dispatch_keys_below
from torch._C import _dispatch_tls_set_dispatch_key_included as include_dispatch_key
from torch._C import _get_dispatch_mode as get_dispatch_mode
from torch._C import _is_torch_function_all_disabled as is_torch_function_disabled
from torch._C import _is_torch_function_mode_enabled as is_torch_function_mode_enabled
from torch._C import _is_tracing as is_tracing
from torch._C import _len_torch_dispatch_stack as count_dispatch_modes
from torch._C import _TorchDispatchModeKey as TorchDispatchModeKey
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    peek_interpreter_stack,
)
from torch._C._nn import scaled_dot_product_attention
from torch._library import opaque_object
from torch._opaque_base import OpaqueBase
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import _get_current_function_mode_stack as get_current_function_mode_stack
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as push_dispatch_mode


def get_default_store() -> object:
    """The store of the default process group, which builds of PyTorch without torch.distributed do not have."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def dispatch_key(name: str) -> Any:
    """Return the dispatcher key of a name, or None if there is none."""
    try:
        return torch._C._dispatch_key_parse(name)
    except RuntimeError:
        return None


_falls_through: set[str] = set()


def let_higher_order_operators_fall_through(key: Any) -> None:
    """Let operators that take functions (cond, checkpoints) ignore a dispatcher key: its fallback is not theirs."""
    known = torch._ops._higher_order_ops
    for name in known.keys() - _falls_through if len(known) != len(_falls_through) else ():
        operator: Any = known[name]
        operator.non_fallthrough_keys = operator.non_fallthrough_keys.remove(key)
        _falls_through.add(name)


def isolate_compiled_code(region: int) -> None:
    """Let what this thread compiles until the running compiled function returns count for itself, not for the function.

    Each function may be compiled a few times; before PyTorch 2.13 this counts for all compilers together.
    """
    from torch._C._dynamo import eval_frame

    isolate = getattr(eval_frame, "set_eval_frame_isolate_recompiles_id", None)
    if isolate is not None:
        isolate(region)


def dynamo_settings(**settings: Any) -> Callable[[], Callable[[], None]]:
    """Make what changes settings of `torch._dynamo.config` for this thread, and gives what restores them.

    It is `torch._dynamo.config.patch` in a fraction of its time, for what is called often.
    """
    from torch._dynamo import config

    change: Callable[[], Callable[[], None]] = config._make_closure_patcher(**settings)
    return change


def outside_transforms() -> contextlib.AbstractContextManager[Any]:
    """What is done inside belongs to no transform of torch.func, though the caller may be inside some."""
    if peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


def holds(condition: Any) -> bool:
    """Return whether a condition on sizes holds; where a program is exported, for all sizes that are left free.

    There a comparison would become a guard, and the program would refuse other sizes than those of its example.
    """
    if not is_exporting():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def learns_outside(tensor: torch.Tensor) -> bool:
    """Return whether a tensor gets a gradient outside `torch.func.vmap` alone, of which PyTorch does not know inside.

    >>> table = torch.zeros(3, 2, requires_grad=True)
    >>> inside = []
    >>> _ = torch.func.vmap(lambda row: inside.append((row.requires_grad, learns_outside(row))) or row)(table)
    >>> inside
    [(False, True)]
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if peek_interpreter_stack() is None or tensor.requires_grad:
        return False
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
        if tensor.requires_grad:
            return True
    return False


class Ambient(OpaqueBase):
    """A context variable that compiled code may read, of a string: what was compiled for one value serves no other.

    Compilers guard neither a `ContextVar` nor a `threading.local`; an opaque object is asked for what its guard is on
    before each compiled call, in the thread and the context of that call.
    """

    def __init__(self, variable: ContextVar[str]) -> None:
        self.variable = variable

    def get(self) -> str:
        """Return the value in this context."""
        return self.variable.get()


_register = getattr(opaque_object, "register_custom_class", None) or opaque_object.register_opaque_type
_register(
    Ambient,
    typ="reference",
    guard_fn=lambda ambient: [ambient.get()],
    members={"get": opaque_object.MemberType.USE_REAL},
)


__all__ = [
    "Ambient",
    "DisableTorchFunction",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchModeKey",
    "TransformType",
    "assert_async",
    "assume_constant_result",
    "count_dispatch_modes",
    "current_graph_task_id",
    "dispatch_key",
    "dispatch_keys_below",
    "dynamo_settings",
    "get_current_function_mode_stack",
    "get_default_store",
    "get_dispatch_mode",
    "get_interpreter_stack",
    "get_unwrapped",
    "has_kernel",
    "holds",
    "include_dispatch_key",
    "is_batchedtensor",
    "is_exporting",
    "is_functorch_wrapped_tensor",
    "is_onnx_export",
    "is_torch_function_disabled",
    "is_torch_function_mode_enabled",
    "is_tracing",
    "isolate_compiled_code",
    "learns_outside",
    "let_higher_order_operators_fall_through",
    "maybe_current_level",
    "outside_transforms",
    "peek_interpreter_stack",
    "pop_dispatch_mode",
    "push_dispatch_mode",
    "scaled_dot_product_attention",
    "set_eval_frame",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def assume_constant_result(function: _Function) -> _Function:
    """Have compilers call a function once, as `torch.compiler.assume_constant_result` does, which imports them."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@assume_constant_result
def is_exporting() -> bool:
    """Whether the call is part of an export: PyTorch 2.11 answers yes for all compiled code."""
    return torch.compiler.is_exporting()


@assume_constant_result
def is_onnx_export() -> bool:
    """Whether the call is part of an export to ONNX, whose module PyTorch imports when somebody asks for it."""
    return "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()
