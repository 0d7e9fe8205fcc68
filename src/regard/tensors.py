"""Tensors: those that frozen values hold, and what PyTorch does around a call (autocast, tracing, compiling)."""

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Generic, TypeVar, cast

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
    "Remembered",
    "are_in_memory",
    "are_sharded",
    "autocast_dtype",
    "check_max_bytes",
    "copied",
    "has_numbers",
    "human_bytes",
    "in_forward_mode",
    "is_autocast",
    "is_traced",
    "replace_tensors",
    "run_eagerly",
    "tensors",
    "unwrapped",
    "versions",
    "without_autocast",
]

Value = TypeVar("Value")


def tensors(value: object) -> list[Tensor]:
    """List the tensors in a frozen dataclass, in the order of its fields, and in what it holds in its turn.

    >>> import torch
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Line:
    ...     slope: torch.Tensor
    ...     name: str = "line"
    >>> tensors((Line(torch.tensor(2.0)), Line(torch.tensor(3.0))))
    [tensor(2.), tensor(3.)]
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [one for part in value for one in tensors(part)]
    if isinstance(value, dict):
        return [one for part in value.values() for one in tensors(part)]
    # Compilers of PyTorch 2.11 cannot follow is_dataclass(None).
    if value is not None and is_dataclass(value) and not isinstance(value, type):
        return [one for part in fields(value) for one in tensors(getattr(value, part.name))]
    return []


def replace_tensors(value: Value, new: Iterator[Tensor]) -> Value:
    """Copy a value with other tensors in the places, and in the order, of those that `tensors` lists."""
    return cast("Value", _replace(value, new))


def copied(value: Value) -> Value:
    """Copy a value with copies of its tensors, without their graphs."""
    return replace_tensors(value, iter([_copied(one) for one in tensors(value)]))


def versions(value: object) -> tuple[tuple[int, int], ...]:
    """Which tensors a value holds, and how often each was changed in place; −1 where that is not counted."""
    return tuple((id(one), -1 if one.is_inference() else one._version) for one in tensors(value))


def _copied(tensor: Tensor) -> Tensor:
    """A copy no larger than the memory that was given where one number stands for many."""
    alone = tensor.detach()
    if torch.compiler.is_compiling() or tensor.layout != torch.strided:  # lengths may be symbols there
        return alone.clone()
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        alone = alone.narrow(dim, 0, 1) if step == 0 and size > 1 else alone
    return alone.clone().expand(tensor.shape)


def _replace(value: Any, new: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(new)
    if not tensors(value):
        return value
    if isinstance(value, tuple | list):
        return type(value)(_replace(part, new) for part in value)
    if isinstance(value, dict):
        return {name: _replace(part, new) for name, part in value.items()}
    # Without __init__, which may check or convert; without what was cached for the old tensors.
    copy = object.__new__(type(value))
    for part in fields(value):
        object.__setattr__(copy, part.name, _replace(getattr(value, part.name), new))
    return copy


class Remembered(Generic[Value]):
    """What was made last for some frozen values, such as the plans of masks.

    Args:
        most: How many are kept.
        most_bytes: How many bytes they may have together, but for the latest.
        bytes_of: The bytes of one.
    """

    def __init__(
        self, most: int, *, most_bytes: int | None = None, bytes_of: Callable[[Value], int] | None = None
    ) -> None:
        self._most, self._most_bytes, self._bytes_of = most, most_bytes, bytes_of
        self._made: OrderedDict[Hashable, tuple[tuple[weakref.ref[Any], ...], Value]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, holders: Sequence[object], make: Callable[[], Value]) -> Value:
        """Give what was made for a key, or make it; `holders`, whose addresses are in the key, are not kept alive."""
        with self._lock:
            held, found = self._made.get(key, ((), None))
        if found is not None and all(one() is not None for one in held):
            return found  # a dead one's address may be another's by now
        made = make()
        with self._lock:
            self._made[key] = tuple(weakref.ref(one) for one in holders), made
            self._made.move_to_end(key)
            for old, (held, _) in list(self._made.items()):
                if any(one() is None for one in held):
                    del self._made[old]
            while len(self._made) > self._most or (len(self._made) > 1 and self._are_too_large()):
                self._made.popitem(last=False)
        return made

    def _are_too_large(self) -> bool:
        if self._most_bytes is None or self._bytes_of is None:
            return False
        return sum(self._bytes_of(one) for _, one in self._made.values()) > self._most_bytes

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._made.clear()


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


def are_sharded(*given: object) -> bool:
    """Return whether one of these is a DTensor, without importing what defines them."""
    return any(type(one).__name__ == "DTensor" for one in given)


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
