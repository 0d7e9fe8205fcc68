"""What PyTorch does around a call: autocast, tracing, compiling, transforms; where the numbers of tensors are."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.errors import InputError
from regard.torch_private import (
    TorchDispatchModeKey,
    assume_constant_result,
    get_dispatch_mode,
    get_unwrapped,
    is_functorch_wrapped_tensor,
)

__all__ = [
    "AUTOCAST_TYPES",
    "are_in_memory",
    "autocast_dtype",
    "check_max_bytes",
    "has_numbers",
    "human_bytes",
    "in_forward_mode",
    "is_autocast",
    "is_traced",
    "run_eagerly",
    "unwrapped",
    "without_autocast",
]

AUTOCAST_TYPES = {torch.float32, torch.bfloat16, torch.float16}  # those that it leaves side by side
_KINDS = ("cpu", "cuda", "mps", "xpu")


def autocast_dtype(q: Tensor) -> torch.dtype:
    """Give the type of the output for these queries: autocast's own where it is on, as of SDPA; float64 stays.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype(torch.zeros(2)), autocast_dtype(torch.zeros(2, dtype=torch.float64))
    (torch.bfloat16, torch.float64)
    """
    return torch.get_autocast_dtype(q.device.type) if q.dtype != torch.float64 and is_autocast(q.device) else q.dtype


def is_autocast(device: torch.device) -> bool:
    """Return whether autocast is on for a device."""
    return device.type in _KINDS and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off, where it is on: products of float32 would have the digits of bfloat16."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


def has_numbers(*tensors: Tensor) -> bool:
    """Whether these tensors hold numbers; those on the device "meta" and those of `FakeTensorMode` have only shapes."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return get_dispatch_mode(TorchDispatchModeKey.FAKE) is None and not any(
        one.device.type == "meta" or type(one).__name__ == "FakeTensor" for one in tensors
    )


def human_bytes(count: float) -> str:
    """Bytes as people read them.

    >>> human_bytes(3 * 2**30), human_bytes(1536), human_bytes(7)
    ('3.0 GiB', '1.5 KiB', '7 B')
    """
    if torch.compiler.is_compiling():
        return "some bytes"  # lengths may be symbols: a number of their digits would fix them
    units: Sequence[str] = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    size, unit = float(count), 0
    while size >= 1024 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {units[unit]}"


_TRACING = (
    TorchDispatchModeKey.FAKE,
    TorchDispatchModeKey.PROXY,
    TorchDispatchModeKey.FUNCTIONAL,
)


def check_max_bytes(limit: Any) -> None:
    """Raise InputError unless a limit is a number of bytes."""
    if isinstance(limit, bool) or not (isinstance(limit, float) or hasattr(limit, "__index__")) or not limit >= 0:
        raise InputError(f"`max_bytes` is a number of bytes, got {limit!r}: 2 GiB is 2 * 2**30")


def are_in_memory(*tensors: Tensor) -> bool:
    """Whether these are plain tensors on a device with memory, and nobody traces what is done with them.

    Fake tensors (`FakeTensorMode`, `torch.export`) have none, `make_fx` sees operations alone, and a tensor inside
    `forward_ad.dual_level` may carry a tangent.
    """
    for one in tensors:  # a loop is faster than `all` over a generator, in a call of 10 µs
        if (type(one) is not Tensor and type(one) is not Parameter) or one.is_meta:
            return False
    if forward_ad._current_level >= 0:
        return False
    for key in _TRACING:  # noqa: SIM110
        if get_dispatch_mode(key) is not None:
            return False
    return True


def is_traced(tensor: Tensor) -> bool:
    """Return whether what is done with a tensor becomes a graph, or only gives shapes, instead of numbers."""
    return (
        torch.compiler.is_compiling()
        or get_dispatch_mode(TorchDispatchModeKey.FAKE) is not None
        or get_dispatch_mode(TorchDispatchModeKey.PROXY) is not None
        or get_dispatch_mode(TorchDispatchModeKey.FUNCTIONAL) is not None
        or not has_numbers(tensor)
    )


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor that transforms of `torch.func` wrap, whose numbers can be looked at: of a whole vmap batch.

    >>> seen = []
    >>> _ = torch.func.vmap(lambda row: seen.append(int(unwrapped(row).max())) or row)(torch.tensor([[1, 2], [5, 0]]))
    >>> seen
    [5]
    """
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def in_forward_mode() -> bool:
    """Return whether a tensor may carry a tangent here (`torch.func.jvp`, `forward_ad.dual_level`)."""
    return int(forward_ad._current_level) >= 0


_Call = TypeVar("_Call", bound=Callable[..., Any])
_IN_PYTHON = (
    "a mask, bias or score of this call is written in Python (such as MaskMod), and a graph holds values of regard "
    'alone: make it of regard.masks, or take backend="reference", which compilers follow'
)


def run_eagerly(call: _Call) -> _Call:
    """Keep compilers out of a backend's call that its operator cannot take, as `torch.compiler.disable` does.

    That imports PyTorch's compiler where it decorates, which doubles the time of `import regard`: so it is put off
    until somebody else has imported the compiler, without which nothing is compiled.
    """
    disabled: list[Callable[..., Any]] = []

    @assume_constant_result  # compilers call it instead of following it
    def disable() -> bool:
        if not disabled:
            disabled.append(torch.compiler.disable(call, reason=_IN_PYTHON))
        return True

    @wraps(call)
    def run(*given: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return call(*given)
        disable()
        return disabled[0](*given)

    return cast("_Call", run)
