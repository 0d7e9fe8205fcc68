"""Which modules run in this thread, read off its stack of calls.

No hook is registered: hooks of all modules would be seen by other threads and by their compilers, and those of one
module switch PyTorch's fast paths off.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from torch import nn

__all__ = ["Running", "running"]

_CALL = nn.Module._call_impl.__code__
_PASS = "the pass that this call of a module begins"


@dataclass(frozen=True)
class Running:
    """The innermost module that counts, if one runs; `begun` differs from one outermost call of such a module to the
    next; `outside`: only modules that do not count are running.
    """

    module: nn.Module | None
    begun: object | None
    outside: bool


def running(counts: Callable[[nn.Module], bool]) -> Running:
    """Go through the calls of modules that run now, from the innermost one on."""
    module: nn.Module | None = None
    outermost: FrameType | None = None
    some = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            some = True
            found = frame.f_locals["self"]
            if counts(found):
                module, outermost = found if module is None else module, frame
        frame = frame.f_back
    # A mark that lives exactly as long as the call itself, without keeping its frame and all that is in it.
    begun = None if outermost is None else outermost.f_locals.setdefault(_PASS, object())
    return Running(module, begun, some and module is None)
