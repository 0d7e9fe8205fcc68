"""Whether attention goes on from layer to layer in the same texts, read from the modules that its calls run in."""

from collections import Counter
from collections.abc import Hashable
from types import FrameType

from torch import Tensor

from regard.observe.running import Locator, arguments_of, running
from regard.observe.watched_call import WatchedCall

__all__ = ["Enclosing"]


class Enclosing:
    """The modules around the calls of one model so far.

    Between two layers stands the input of the modules that run around the second and not around the first. A call with
    more sequences than that input has regrouped its positions: into windows (Swin, SAM), along axes, over frames.
    """

    def __init__(self) -> None:
        self._marks: frozenset[Hashable] = frozenset()  # of the module calls around the call before
        self._counts: Counter[Hashable] = Counter()  # attention calls within each call of a module
        self._modules: set[str] = set()
        self._several: str | None = None  # the first module that attends several times in one call of it
        self._run = -1

    def apart(self, locator: Locator, call: WatchedCall) -> str | None:
        """Return why the rows of a call do not lead from the layer before to the next, or None as far as is known."""
        calls = locator.now.calls
        if not calls:
            return None
        if self._run != locator.run:
            self._run = locator.run
            self._marks, self._counts, self._modules, self._several = frozenset(), Counter(), set(), None
        before, self._marks = self._marks, frozenset(mark for _, mark in calls)
        innermost = calls[0][1]
        self._counts[innermost] += 1
        self._modules.add(locator.name)
        if self._counts[innermost] > 1:
            self._several = self._several or locator.name
        if self._several is not None and len(self._modules) > 1:  # alone, it may have all layers in it
            return f"{self._several or 'the model'} attends several times in one call of it, to parts or side by side"
        if before & self._marks and any(_regroups(frame, call) for frame in self._frames_since(before, locator)):
            here = locator.name or "the model"
            return f"{here} attends within windows or groups, {call.batch} of them with {call.keys} positions"
        return None

    def _frames_since(self, before: frozenset[Hashable], locator: Locator) -> list[FrameType]:
        """Return the module calls that run around this call of attention and not around the one before; of compiled
        code, which has no such frames, those around it.
        """
        around, frames = running(locator.owns)
        marks = [mark for _, mark in around.calls]
        if not self._marks & set(marks):
            return frames
        return [frame for mark, frame in zip(marks, frames, strict=True) if mark in self._marks - before]


def _regroups(frame: FrameType, call: WatchedCall) -> bool:
    """Return whether a module was called with fewer sequences than a call of attention inside of it has."""
    _, args, kwargs = arguments_of(frame)
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.is_floating_point()]
    shapes = [tuple(one.shape) for one in tensors if not one.is_nested and one.ndim > 2]
    along = {shape[0] for shape in shapes} | {shape[1] for shape in shapes if len(shape) == 3}  # the sequence may lead
    return bool(shapes) and call.batch not in along and min(shape[0] for shape in shapes) < call.batch
