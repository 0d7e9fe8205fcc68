"""A watch of compiled code: graphs are compiled once more, with an operator beside each attention call that reports it.

`compiled_graphs.py` has what compiles them, `graph_reading.py` finds what attends, and the operators are those of
`watch_operators.py`. What stays an opaque kernel has q and k in memory anyway, so nothing else of a graph changes.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._dynamo import pgo
from torch.fx import GraphModule

from regard.errors import ObservationError
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept.compiled_code import EAGERLY
from regard.observe.intercept.compiled_graphs import FORM, Behind, CompiledBlock, GraphCompiler, example
from regard.observe.intercept.graph_reading import Attending, read_graph
from regard.observe.intercept.watch_operators import WATCH_CALL, WATCH_OPERATOR_CALL, reporting_to
from regard.observe.intercept.watching_mode import Ends, WatchingMode
from regard.observe.recorder import Recorder
from regard.observe.running import Running
from regard.observe.token_ids import Heard

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
_LOST = f"compiled code did not report all of its attention: {EAGERLY}"

_Stack = list[tuple[str, str]]  # running modules, outermost first: key and name


@dataclass(frozen=True)
class _Watched:
    """One attention call of a graph, or the reason why it cannot be seen."""

    stack: _Stack
    cross: bool | None
    reason: str | None


@dataclass(eq=False)
class _WatchCompiler(GraphCompiler):
    """Puts the operators of a watch into graphs; it knows the lengths that the model's own code has seen."""

    lengths: Any = field(default_factory=lambda: copy.deepcopy(pgo.get_code_state()))

    def __post_init__(self) -> None:
        self._outside = copy.deepcopy(self.lengths)

    @property
    def is_current(self) -> bool:
        """Whether the model's own code has met no other lengths since, of which it may have made symbols."""
        now = pgo.get_code_state()
        return all(now.get(code) == self._outside.get(code) for code in self.lengths)

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph, which reports to the watch that is open when it runs."""
        watch: CompiledWatch | None = self.current.block()
        assert watch is not None
        at = len(list(graph.buffers()))  # another watch may have been here
        is_whole = self.is_whole
        found = watch.put_in(graph, inputs, at) if is_whole else []
        graph.recompile()
        compiled, current = self.inner(graph, inputs), self.current

        def run(*args: Any) -> Any:
            watch: CompiledWatch | None = current.block()
            return compiled(*args) if watch is None else watch.run(compiled, args, found, at, is_whole=is_whole)

        return run


class CompiledWatch(CompiledBlock):
    """The compiled calls of one watch: it hands them their compiler, and passes attention to the recorder."""

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        super().__init__(model, lambda why: ObservationError(_BREAKS.format(why)))
        self._modules = dict(model.named_modules())
        self._recorder = recorder
        self._begun: object | None = None
        self._marks: dict[str, object] = {}
        self._has_run = self._is_apart = False

    def begin(self, mode: WatchingMode, hears: Heard | None, ends: Callable[[], None]) -> Ends:
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
        return self.compile_with(original, None, _WatchCompiler)

    def put_in(self, graph: GraphModule, inputs: Sequence[Any], at: int) -> list[_Watched]:
        """Put an operator for watch number `at` behind each call that stays a kernel; return what attends, in order."""
        found = []
        for number, one in enumerate(read_graph(graph, inputs)):
            found.append(_Watched(self.names_of(one.node), one.cross, one.reason))
            if one.reason is None:
                _put_in(Behind(graph, one.node, f"_regard_watch_{at}"), one, (at, number))
        return found

    def run(
        self, compiled: Callable[..., Any], args: Sequence[Any], found: Sequence[_Watched], at: int, *, is_whole: bool
    ) -> Any:
        """Run a graph, and record its attention.

        Raises:
            ObservationError: Not all of it was reported.
        """
        self._has_run = True
        self._is_apart |= not is_whole
        heard: list[int] = []

        def report(number: int, read: Callable[[nn.Module | None], CallFromQK]) -> None:
            one = found[number]
            heard.append(number)
            self._place(one)
            call = read(self._recorder.module)
            if not (call.batch and call.heads and call.queries and call.keys):
                self._recorder.calls += 1
                return
            self._recorder.see(call if one.cross is None else call.having(cross=one.cross))

        with reporting_to(at, report):
            result = compiled(*args)
        if heard != [number for number, one in enumerate(found) if one.reason is None]:
            raise ObservationError(_LOST)
        for one in found:
            if one.reason is not None:
                self._place(one)
                self._recorder.miss(self._recorder.caller, one.reason)
        return result

    def _place(self, one: _Watched) -> None:
        """Tell the recorder which modules are running."""
        stack = [("", ""), *(pair for pair in one.stack if pair[1])]
        calls = [(self._modules[name], self._marks.setdefault(key, object())) for key, name in stack]
        self._recorder.place(Running(calls[-1][0], self._begun, outside=False, calls=tuple(calls[::-1])))


class _CompiledCall:
    """A call of the model in compiled code, during which the watch hears and follows nothing."""

    def __init__(self, watch: CompiledWatch, mode: WatchingMode, hears: Heard | None, ends: Callable[[], None]) -> None:
        self._watch, self._mode, self._hears, self._ends = watch, mode, hears, ends
        mode.stop()

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of the call."""
        self._mode.start()
        self._ends()
        if self._hears is not None:
            self._hears.end()
        if output is not None:
            self._watch.end()


def _put_in(behind: Behind, one: Attending, numbers: tuple[int, int]) -> None:
    """Put the operator behind a call."""
    call = one.call
    assert call is not None
    with torch.inference_mode(False):
        order = behind.held("order", torch.zeros(1, dtype=torch.int64, device=example(call["query"]).device))
    operands = [behind.detached(call[name]) for name in ("query", "key", "value")]
    if "form" in call:
        held = [behind.detached(tensor) for tensor in call["held"]]
        given = (*operands, held, order, *numbers, *(call[name] for name in FORM))
        behind.add("call_function", WATCH_OPERATOR_CALL, given)
        return
    mask = behind.detached(call.get("attn_mask"))
    flags = call.get("is_causal", False), call.get("scale")
    behind.add("call_function", WATCH_CALL, (*operands, mask, one.blind, order, *numbers, *flags))
