"""Determine which modules are running in this thread from its call stack.

No hook is registered: hooks on all modules affect other threads and their compilers, and hooks on one module disable
PyTorch's fast paths.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from torch import nn

__all__ = ["Running", "running"]

_CALL = nn.Module._call_impl.__code__
_MARK = "the mark of this call of a module"


@dataclass(frozen=True)
class Running:
    """The innermost module that counts, if one runs; `begun` differs from one outermost call of such a module to the
    next; `outside`: only modules that do not count are running; `calls`: every module that counts, with a mark of its
    call.
    """

    module: nn.Module | None
    begun: object | None
    outside: bool
    calls: tuple[tuple[nn.Module, object], ...] = ()


def running(counts: Callable[[nn.Module], bool]) -> Running:
    """Inspect the running module calls, from the innermost one on."""
    calls: list[tuple[nn.Module, object]] = []
    some = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            some = True
            found = frame.f_locals["self"]
            if counts(found):
                # A mark with the lifetime of the call, which does not keep its frame and local variables alive.
                calls.append((found, frame.f_locals.setdefault(_MARK, object())))
        frame = frame.f_back
    innermost, outermost = (calls[0][0], calls[-1][1]) if calls else (None, None)
    return Running(innermost, outermost, some and not calls, tuple(calls))
