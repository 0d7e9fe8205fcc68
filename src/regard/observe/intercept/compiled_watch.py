"""A watch of compiled code: the kernels that its graphs call are recorded as they are heard (`compiled_graphs.py`)."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from regard.errors import ObservationError
from regard.observe.intercept.compiled_code import EAGERLY
from regard.observe.intercept.compiled_graphs import CompiledBlock, read_heard
from regard.observe.intercept.graph_reading import GraphAttention
from regard.observe.intercept.torch_attention_calls import groups_of
from regard.observe.intercept.watching_mode import Ends
from regard.observe.running import Running
from regard.observe.sink import Sink
from regard.observe.token_ids import Heard
from regard.observe.weigh import plain_mode

__all__ = ["CompiledWatch"]

_BREAKS = (
    "this compiled model cannot be watched as it is, since its graph breaks, and what runs between two graphs is not "
    f"seen: compile it with fullgraph=True, which says where, or {EAGERLY}; {{}}"
)
_GRADIENTS = (
    'the statistics "gradient_x_attention" and "importance" need the gradients of attention\'s output, which compiled '
    f"code does not show: {EAGERLY}"
)
_UNSEEN = (
    "no compiled code ran in this call of the compiled model: run it once outside the watch with the stance "
    f'"default" of torch.compiler, or {EAGERLY}'
)


class Pausing(Protocol):
    """What observes the model otherwise."""

    def pause(self) -> None:
        """Hear and follow nothing."""

    def resume(self) -> None:
        """Go on."""


class CompiledWatch(CompiledBlock):
    """The compiled calls of one watch: it hands them their compiler, and passes attention to the recorder."""

    def __init__(self, model: nn.Module, recorder: Sink) -> None:
        super().__init__(model, lambda why: ObservationError(_BREAKS.format(why)))
        self._modules = dict(model.named_modules())
        self._recorder = recorder
        self._begun: object | None = None
        self._marks: dict[str, object] = {}
        self._has_run = self._is_apart = False

    def begin(self, mode: Pausing, hears: Heard | None, ends: Callable[[], None]) -> Ends:
        """Process the start of a call of the model, and return what to notify of its end.

        Raises:
            ObservationError: A statistic needs gradients.
        """
        if self._recorder.needs_output:
            raise ObservationError(_GRADIENTS)
        self._begun, self._marks, self._has_run, self._is_apart = object(), {}, False, False
        return _CompiledCall(self, mode, hears, ends)

    def end(self) -> None:
        """Process the end of a call of the model.

        Raises:
            ObservationError: It did not run in compiled code, or in parts.
        """
        if not self._has_run:
            raise ObservationError(_UNSEEN)
        if self._is_apart:
            raise ObservationError(_BREAKS.format("parts of it were compiled apart"))

    def callback(self, original: Any) -> Any:
        """Return what compiles the frames of the model's running call."""
        if isinstance(original, bool):  # a stance lets nothing be compiled: `end` finds that nothing has run
            return original
        return self.compile_with(original, "watch")

    def begins_graph(self, kind: str, parameters: Sequence[Any], *, is_whole: bool) -> bool:
        """Return whether only PyTorch runs around a graph; otherwise the call is refused at its end."""
        self._has_run = True
        self._is_apart |= not is_whole
        return is_whole

    def hear(self, site: GraphAttention, call: dict[str, Any]) -> None:
        """Record a call."""
        self._place(site)
        own = {name: _own(one) for name, one in call.items()}
        with plain_mode(call["query"].device):
            seen = read_heard(site, groups_of(self._recorder.module), own)
            if not (seen.batch and seen.heads and seen.queries and seen.keys):
                self._recorder.calls += 1
                return
            self._recorder.see(seen if site.cross is None else seen.having(cross=site.cross))

    def miss(self, site: GraphAttention, reason: str) -> None:
        """Count attention that was not heard."""
        self._place(site)
        self._recorder.miss(self._recorder.caller, reason)

    def _place(self, site: GraphAttention) -> None:
        """Tell the recorder which modules are running."""
        stack = [("", ""), *(pair for pair in self.modules_of(site) if pair[1])]
        calls = [(self._modules[name], self._marks.setdefault(key, object())) for key, name in stack]
        self._recorder.place(Running(calls[-1][0], self._begun, outside=False, calls=tuple(calls[::-1])))


def _own(one: Any) -> Any:
    """Return an argument that stays as it is when compiled code uses its memory again."""
    if isinstance(one, Tensor):
        return one.detach().clone()
    return [*map(_own, one)] if isinstance(one, list | tuple) else one


class _CompiledCall:
    """A call of the model in compiled code, during which the watch hears and follows nothing."""

    def __init__(self, watch: CompiledWatch, mode: Pausing, hears: Heard | None, ends: Callable[[], None]) -> None:
        self._watch, self._mode, self._hears, self._ends = watch, mode, hears, ends
        mode.pause()

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of the call."""
        self._mode.resume()
        self._ends()
        if self._hears is not None:
            self._hears.end()
        if output is not None:
            self._watch.end()
