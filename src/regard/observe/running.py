"""Which module of a watched model is running, read from this thread's stack of calls.

No hook is registered: hooks on all modules would affect other threads and their compilers, and hooks on one module
disable PyTorch's fast paths. The outermost running call of the model, or of a part of it, is one run: its end is told
by a mark that lives in its frame.
"""

import itertools
import sys
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from torch import Tensor, nn

from regard.observe.cached_text import given_cache
from regard.observe.learned import learned_of
from regard.record.missing_attention import Caller

__all__ = ["Locator", "Running", "arguments_of", "at_end", "running"]

_CALL = nn.Module._call_impl.__code__
_MARK = "the mark of this call of a module"


class Mark:
    """One call of a module; it lives as long as the call's frame, and keeps neither frame nor local variables alive."""

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number = next(_numbers)


_numbers = itertools.count()


@dataclass(frozen=True)
class Running:
    """The innermost module that counts, if one runs; `begun` differs from one outermost call of such a module to the
    next; `outside`: only modules that do not count are running; `calls`: every module that counts, with what tells its
    call from others, the innermost first; `cache`: the innermost one that was passed to such a module.
    """

    module: nn.Module | None
    begun: Hashable | None
    outside: bool
    calls: tuple[tuple[nn.Module, Hashable], ...] = ()
    cache: object | None = None


def running(counts: Callable[[nn.Module], bool]) -> tuple[Running, list[FrameType]]:
    """Inspect the running module calls, from the innermost one on; return those that count, and their frames."""
    calls: list[tuple[nn.Module, Hashable]] = []
    frames: list[FrameType] = []
    some, cache = False, None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            some = True
            here = frame.f_locals
            found = here["self"]
            if counts(found):
                if (mark := here.get(_MARK)) is None:
                    mark = here[_MARK] = Mark()
                calls.append((found, mark.number))
                frames.append(frame)
                if cache is None:
                    cache = given_cache(here["kwargs"])
        frame = frame.f_back
    if not calls:
        return Running(None, None, some), frames
    return Running(calls[0][0], calls[-1][1], False, tuple(calls), cache), frames


def arguments_of(frame: FrameType) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return the module, the positional and the named arguments of a running call."""
    here = frame.f_locals
    return here["self"], here["args"], here["kwargs"]


def at_end(frame: FrameType, call: Callable[[object], None]) -> object:
    """Call a function when a module's call has ended, as long as what is returned is kept."""
    return weakref.ref(frame.f_locals[_MARK], call)


class Locator:
    """Names the running module of one model, and counts the model's runs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.now = Running(None, None, outside=False)
        self.run = 0  # number of runs of the model
        self.on_run: Callable[[list[FrameType]], None] | None = None  # called with the frames of a run that begins
        self.learned = learned_of(model)
        self._names: dict[int, str] = self.learned.names
        self._begun: Hashable | None = None
        self._calls: dict[nn.Module, set[Hashable]] = {}  # of each module in this run

    @property
    def module(self) -> nn.Module | None:
        """The innermost running module at the last lookup."""
        return self.now.module

    @property
    def name(self) -> str:
        """Its name in the model; empty for the model itself, and outside of all modules."""
        return "" if self.now.module is None else self._names[id(self.now.module)]

    def name_of(self, module: nn.Module) -> str:
        """Return the name of the model or of a part of it."""
        return self._names[id(module)]

    @property
    def caller(self) -> Caller:
        """The module that was located last, and the run it belongs to."""
        return Caller(self.name, type(self.now.module or self.model).__name__, self.run)

    def entries(self) -> dict[int, int]:
        """Return the number of calls of each module in this run so far, by id."""
        return {id(module): len(calls) for module, calls in self._calls.items()}

    def owns(self, module: nn.Module) -> bool:
        """Return whether it is the model or a part of it."""
        return id(module) in self._names

    def locate(self, weight: Tensor | None = None) -> bool:
        """Locate the module that is running in this thread; return False if it belongs to another model.

        A kernel that computes a whole nn.TransformerEncoderLayer does not call its attention module, so the module
        with this weight is used instead.
        """
        now, frames = running(self.owns)
        if weight is not None and (found := self._with_weight(now.module, weight)) is not None:
            now = replace(now, module=found, outside=False, begun=Mark() if now.begun is None else now.begun)
        if self.place(now) and frames and self.on_run is not None:
            self.on_run(frames)
        return not now.outside

    def find_caller(self) -> Caller | None:
        """Return the module that is running in this thread, or None if it belongs to another model."""
        return self.caller if self.locate() else None

    def place(self, now: Running) -> bool:
        """Take the modules that are running, where they are known otherwise than by this thread's stack of calls;
        return whether a run has begun.
        """
        self.now, begins = now, now.begun is not None and now.begun != self._begun
        if begins:
            self._begun, self._calls = now.begun, {}
            self.run += 1
        for module, call in now.calls:
            self._calls.setdefault(module, set()).add(call)
        return begins

    def _with_weight(self, layer: nn.Module | None, weight: Tensor) -> nn.Module | None:
        inside = getattr(layer, "self_attn", None)
        if isinstance(inside, nn.MultiheadAttention) and self.owns(inside):
            return inside
        found = (one for one in self.model.modules() if isinstance(one, nn.MultiheadAttention))
        return next((one for one in found if one.in_proj_weight is weight), None)
