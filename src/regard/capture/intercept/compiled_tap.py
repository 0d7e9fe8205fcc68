"""A tap in compiled code: graphs are compiled once more, with an operator beside each tapped attention call.

While the block is open, compiled functions of its thread get another compiler, which puts the operators of
`tap_operators.py` into the graph that Dynamo has captured and hands it to the compiler that was chosen for the model.
Dynamo keeps what it compiles for each compiler apart, so the model's own compiled code is neither used nor replaced
inside the block, and is there again after it. Compilers are kept for each model and choice of heads: another tap of
the same heads compiles nothing.
"""

import functools
import itertools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame, pgo
from torch._dynamo.convert_frame import CatchErrorsWrapper, compile_lock
from torch._dynamo.source import ConstantSource
from torch.fx import GraphModule, Node

from regard.capture.intercept.interception import KERNEL, sdpa_arguments
from regard.capture.intercept.tapped_layers import TappedSites
from regard.capture.row_weights import Rows, is_plain, plain_mode
from regard.capture.tap_operators import TAP_CALL_ROWS, TAP_ROWS
from regard.capture.tap_steps import TapSite, TapSteps
from regard.errors import ObservationError
from regard.torch_private import DisableTorchFunction, OpOverload, isolate_compiled_code

__all__ = ["CompiledTap"]

_AROUND = (
    "this model ran inside a function that was compiled around it, of which a tap does not see the steps: compile the "
    "model itself, `model.forward = torch.compile(model.forward)`, and call it from a function that is not compiled"
)
_NO_COMPILER = (
    "this compiled code cannot be tapped, since its compiler ({}) cannot be put together with another: compile the "
    "model with torch.compile"
)
_FORM = ("form", "ints", "floats")
_ROOM = 4  # where a length is a symbol, how often its first value a buffer has room for
_LEAST = 4096  # keys for which there is room at least

_regions = getattr(eval_frame, "_next_isolate_recompiles_id", None) or itertools.count()


@dataclass(eq=False)
class _Tapped:
    """One attention call in a graph, and the buffer that its rows are written to."""

    name: str  # the module's
    count: int  # of all heads
    heads: tuple[int, ...]
    sizes: tuple[int | None, int | None, int | None, int | None]  # batch, queries, rows, keys; None for a symbol
    buffer: Tensor
    filled: Tensor | None

    def known(self) -> tuple[int, int, int, int]:
        """Return the sizes of the call that has just run."""
        found: Any = self.sizes if self.filled is None else self.filled.tolist()
        batch, queries, rows, keys = found
        return batch, queries, rows, keys

    def newest(self) -> int:
        """Return the column of the newest key, where no cache has shown it.

        Raises:
            ObservationError: There are more keys than queries.
        """
        _, queries, _, keys = self.known()
        if queries != keys:
            raise ObservationError(
                "the positions of this call are not known in compiled code: give the cache to the model as "
                "`past_key_values`"
            )
        return keys - 1

    def weights(self) -> Tensor:
        """Return the weights of the call that has just run, (batch, heads, rows, keys), in memory of their own."""
        batch, _, rows, keys = self.known()
        shape = batch, len(self.heads), rows, keys
        return self.buffer[: batch * len(self.heads) * rows * keys].view(shape).clone()


class _Current(threading.local):
    tap: Callable[[], "CompiledTap | None"] = staticmethod(lambda: None)


@dataclass(eq=False)
class _Compiler:
    """What compiles graphs inside a tap: `inner` does, after the operators were put in.

    `chosen` are the heads, `count` the number of rows; None for all queries. Without `chosen` it refuses graphs with
    the model's parameters.
    """

    inner: Callable[..., Any]
    chosen: object
    count: int | None
    current: _Current = field(default_factory=_Current)
    states: dict[Any, dict[str, Any]] = field(default_factory=dict)  # what Dynamo keeps of each frame
    lengths: Any = field(default_factory=lambda: defaultdict(pgo.CodeState))  # which it has seen
    region: int = field(default_factory=lambda: next(_regions))

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph, which notifies the tap that is open when it runs."""
        tap = self.current.tap()
        if self.chosen is None:
            return self._checked(self.inner(graph, inputs), inputs)
        assert tap is not None
        prefix = f"_regard_tap_{len(list(graph.buffers()))}"  # another tap may have been here
        found = tap.put_in(graph, prefix, self.count)
        if not found:
            untouched: Callable[..., Any] = self.inner(graph, inputs)
            return untouched
        graph.recompile()
        rows: Tensor | None = getattr(graph, f"{prefix}_rows", None)
        compiled, current = self.inner(graph, inputs), self.current

        def run(*args: Any) -> Any:
            tap = current.tap()
            if rows is not None and tap is not None:
                rows.copy_(tap.rows)
            result = compiled(*args)
            if tap is not None:
                tap.hear(found)
            return result

        return run

    def _checked(self, compiled: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a graph of other code, which raises if it runs the tapped model."""
        at = [index for index, one in enumerate(inputs) if isinstance(one, nn.Parameter)]
        if not at:
            return compiled
        current = self.current

        def run(*args: Any) -> Any:
            tap = current.tap()
            if tap is not None and any(id(args[index]) in tap.parameters for index in at):
                raise ObservationError(_AROUND)
            return compiled(*args)

        return run


class _Callback:
    """What Dynamo calls for each frame without compiled code; its chain of compilers ends in `compiler`."""

    def __init__(self, original: Any, compiler: _Compiler) -> None:
        self._compiler = compiler
        convert = original._torchdynamo_orig_backend._clone_with_backend(compiler)
        self._torchdynamo_orig_backend = convert
        self._convert = CatchErrorsWrapper(convert, original.hooks)
        self.hooks = original.hooks

    def __call__(self, frame: Any, entry: Any, _: Any) -> Any:
        """Compile a frame as if it had never been compiled outside the block, so that the same lengths are symbols."""
        with compile_lock:
            lengths, pgo._CODE_STATE = pgo._CODE_STATE, self._compiler.lengths
            try:
                return self._convert(frame, entry, self._compiler.states.setdefault(frame.f_code, {}))
            finally:
                pgo._CODE_STATE = lengths


# Compilers by the model whose calls they tap.
_compilers: "weakref.WeakKeyDictionary[nn.Module, list[_Compiler]]" = weakref.WeakKeyDictionary()


class CompiledTap:
    """The compiled calls of one tap: it hands them their compiler, and takes the rows that they have written."""

    def __init__(self, model: nn.Module, chosen: object, sites: TappedSites, steps: TapSteps) -> None:
        self._model, self._chosen, self._sites, self._steps = model, chosen, sites, steps
        self._names = {str(id(module)): name for name, module in model.named_modules()}
        self.parameters: Collection[int] = {id(one) for one in model.parameters()}
        self._callbacks: dict[tuple[int, int | None, bool], tuple[Any, _Callback]] = {}
        self._asked: list[int] | None = None
        self.rows = torch.empty(0, dtype=torch.int64)  # of the running call

    def callback(self, original: Any) -> Any:
        """Return what compiles the frames of the model's running call."""
        if isinstance(original, CatchErrorsWrapper | _Callback):
            return self._tapping(original)
        # A stance of torch.compiler stands before it, as `module(...)` has begun inside the compiled function.
        inner = getattr(original, "_torchdynamo_orig_backend", original)
        by_stance: Any = eval_frame._callback_from_stance
        return by_stance.__wrapped__(self._tapping(inner))

    def _tapping(self, original: Any) -> Any:
        self._asked = asked = self._steps.rows_ahead()
        if asked is not None:
            self.rows = torch.tensor(asked)
        return self._callback(original, None if asked is None else len(asked), taps=True)

    def checking(self, original: Any) -> Any:
        """Return what compiles other functions, and refuses those that run the tapped model."""
        return self._callback(original, None, taps=False)

    def _callback(self, original: Any, count: int | None, *, taps: bool) -> Any:
        key = id(original), count, taps
        if key not in self._callbacks:
            if not hasattr(getattr(original, "_torchdynamo_orig_backend", None), "_clone_with_backend"):
                raise ObservationError(_NO_COMPILER.format(type(original).__name__))
            self._callbacks[key] = original, _Callback(original, self._compiler(original, count, taps))
        known = self._callbacks[key][1]
        known._compiler.current.tap = weakref.ref(self)
        isolate_compiled_code(known._compiler.region)
        return known

    def _compiler(self, original: Any, count: int | None, taps: bool) -> _Compiler:
        inner = eval_frame.innermost_backend(original)
        chosen = self._chosen if taps else None
        kept = _compilers.setdefault(self._model, [])
        for one in kept:
            if (one.chosen, one.count) == (chosen, count) and (one.inner is inner or one.inner == inner):
                return one
        kept.append(_Compiler(inner, chosen, count))
        return kept[-1]

    def put_in(self, graph: GraphModule, prefix: str, count: int | None) -> list[_Tapped]:
        """Put an operator behind each call with chosen heads, and return these calls.

        Their buffers get names that begin with `prefix`; `count` is the number of rows, None for all.
        """
        found: list[_Tapped] = []
        for node in list(graph.graph.nodes):
            if node.op != "call_function" or (call := _call_of(node)) is None:
                continue
            q, k = _example(call["query"]), _example(call["key"])
            name = self._name(node)
            if name is None or not is_plain({"query": q, "key": k}) or q.shape[1] % k.shape[1]:
                continue
            site = self._site(name, int(q.shape[1]))
            if site.heads:
                found.append(_put_in(_Behind(graph, node, prefix), call, site, count, len(found)))
        return found

    def _site(self, name: str, count: int) -> TapSite:
        return self._sites.of_compiled(name, self._model.get_submodule(name), count)

    def _name(self, node: Node) -> str | None:
        """Return the module that makes a call: keys of the node's stack are ids of modules, `@` counts their calls."""
        stack = list(node.meta.get("nn_module_stack", {}))
        return self._names.get(stack[-1].partition("@")[0]) if stack else ""

    def hear(self, found: Sequence[_Tapped]) -> None:
        """Take the rows of a graph that has just run."""
        steps = self._steps
        with DisableTorchFunction():
            for one in found:
                _, queries, _, keys = one.known()
                with plain_mode(one.buffer.device):
                    weigh = functools.partial(self._weights, one)
                    steps.capture(self._site(one.name, one.count), (queries, keys), one.newest, weigh)

    def _weights(self, one: _Tapped, rows: Rows) -> Tensor:
        weights = one.weights()
        if self._asked is None:
            return weights[:, :, rows]
        queries = one.known()[1]
        given = list(range(*rows.indices(queries))) if isinstance(rows, slice) else rows
        if given != [at % queries for at in self._asked]:
            raise ObservationError(
                "the rows of this call were not known before it ran: give the model `input_ids` and `past_key_values`"
            )
        return weights


def _call_of(node: Node) -> dict[str, Any] | None:
    """Return the arguments of an attention call by name, or None for another function."""
    if node.target is KERNEL:
        return sdpa_arguments(node.args, node.kwargs)
    target = node.target
    if isinstance(target, OpOverload) and target.namespace == "regard" and len(target._schema.arguments) == 7:
        names = ("query", "key", "value", "held", *_FORM)
        return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return None


def _example(node: Any) -> Any:
    return node.meta["example_value"]


class _Behind:
    """Nodes that are put behind another, one after the other."""

    def __init__(self, graph: GraphModule, node: Node, prefix: str) -> None:
        self._graph, self._last, self._prefix = graph, node, prefix

    def add(self, op: str, target: Any, args: tuple[Any, ...] = (), example: Any = None) -> Node:
        """Add a node and return it."""
        with self._graph.graph.inserting_after(self._last):
            self._last = self._graph.graph.create_node(op, target, args)
        self._last.meta["example_value"] = example
        return self._last

    def detached(self, one: Any) -> Any:
        """Return a tensor without its gradient; anything else as it is."""
        return self.add("call_method", "detach", (one,), _example(one)) if isinstance(one, Node) else one

    def held(self, name: object, tensor: Tensor) -> Node:
        """Return a tensor that the graph keeps under this name, as Dynamo keeps parameters."""
        name = f"{self._prefix}_{name}"
        if not hasattr(self._graph, name):
            self._graph.register_buffer(name, tensor, persistent=False)
            if (sources := getattr(self._graph, "_param_name_to_source", None)) is not None:
                sources[name] = ConstantSource(name)
        return self.add("get_attr", name, example=self._graph.get_buffer(name))


def _put_in(behind: _Behind, call: dict[str, Any], site: TapSite, count: int | None, at: int) -> _Tapped:
    """Put the operator behind a call."""
    q, k = _example(call["query"]), _example(call["key"])
    rows = None if count is None or q.shape[2] == 1 else torch.zeros(count, dtype=torch.int64, device=q.device)
    shape = q.shape[0], q.shape[2], q.shape[2] if rows is None else count, k.shape[2]
    sizes = tuple(one if isinstance(one, int) else None for one in shape)
    room = len(site.heads) * _room(shape[0]) * _room(shape[2]) * _room(shape[3], _LEAST)
    wide = torch.promote_types(q.dtype, torch.float32)
    with torch.inference_mode(False), torch.no_grad():
        buffer = torch.zeros(room, dtype=wide, device=q.device)
        filled = torch.zeros(4, dtype=torch.int64, device=q.device) if None in sizes else None
    which = None if rows is None else behind.held("rows", rows)
    sized = None if filled is None else behind.held(f"{at}_sizes", filled)
    buffers = which, behind.held(at, buffer), sized
    pair, heads = (behind.detached(call["query"]), behind.detached(call["key"])), list(site.heads)
    if "form" in call:
        held = [behind.detached(one) for one in call["held"]]
        behind.add("call_function", TAP_CALL_ROWS, (*pair, held, *buffers, *(call[one] for one in _FORM), heads))
    else:
        mask = behind.detached(call.get("attn_mask"))
        given = (*pair, mask, *buffers, heads, call.get("is_causal", False), call.get("scale"))
        behind.add("call_function", TAP_ROWS, given)
    return _Tapped(site.name, site.count, site.heads, sizes, buffer, filled)  # type: ignore[arg-type]


def _room(size: Any, least: int = 1) -> int:
    """Return how many of a size there is room for."""
    if isinstance(size, int):
        return size
    return max(_ROOM * int(size.node.hint or 1), least)
