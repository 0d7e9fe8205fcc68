"""A tap in compiled code: graphs are compiled once more, with an operator that writes rows beside each tapped call.

`compiled_graphs.py` has what compiles them; the operators are those of `tap_operators.py`. Compilers are kept for each
choice of heads: another tap of the same heads compiles nothing.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from regard.errors import ObservationError
from regard.observe.intercept.compiled_graphs import FORM, Behind, CompiledBlock, GraphCompiler, call_of, example
from regard.observe.intercept.tapped_layers import TappedSites
from regard.observe.intercept.torch_attention_calls import is_plain
from regard.observe.tap_operators import TAP_CALL_ROWS, TAP_ROWS
from regard.observe.tap_steps import TapSite, TapSteps
from regard.observe.watched_call import Rows
from regard.observe.weigh import plain_mode
from regard.torch_private import DisableTorchFunction

__all__ = ["CompiledTap"]

_AROUND = (
    "this model ran inside a function that was compiled around it, of which a tap does not see the steps: compile the "
    "model itself, `model.forward = torch.compile(model.forward)`, and call it from a function that is not compiled"
)
_ROOM = 4  # where a length is a symbol, how often its first value a buffer has room for
_LEAST = 4096  # keys for which there is room at least


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


class _TapCompiler(GraphCompiler):
    """Its key: the chosen heads, and the number of rows, None for all queries.

    Without chosen heads it refuses graphs with the model's parameters.
    """

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph, which notifies the tap that is open when it runs."""
        tap: CompiledTap | None = self.current.block()
        key: Any = self.key
        chosen, count = key
        if chosen is None:
            return self._checked(self.inner(graph, inputs), inputs)
        assert tap is not None
        prefix = f"_regard_tap_{len(list(graph.buffers()))}"  # another tap may have been here
        found = tap.put_in(graph, prefix, count)
        if not found:
            untouched: Callable[..., Any] = self.inner(graph, inputs)
            return untouched
        graph.recompile()
        rows: Tensor | None = getattr(graph, f"{prefix}_rows", None)
        compiled, current = self.inner(graph, inputs), self.current

        def run(*args: Any) -> Any:
            tap: CompiledTap | None = current.block()
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
            tap: CompiledTap | None = current.block()
            if tap is not None and any(id(args[index]) in tap.parameters for index in at):
                raise ObservationError(_AROUND)
            return compiled(*args)

        return run


class CompiledTap(CompiledBlock):
    """The compiled calls of one tap: it hands them their compiler, and takes the rows that they have written."""

    def __init__(self, model: nn.Module, chosen: object, sites: TappedSites, steps: TapSteps) -> None:
        super().__init__(model)
        self._chosen, self._sites, self._steps = chosen, sites, steps
        self.parameters: Collection[int] = {id(one) for one in model.parameters()}
        self._asked: list[int] | None = None
        self.rows = torch.empty(0, dtype=torch.int64, device="cpu")  # of the running call

    def callback(self, original: Any) -> Any:
        """Return what compiles the frames of the model's running call."""
        self._asked = asked = self._steps.rows_ahead()
        if asked is not None:
            self.rows = torch.tensor(asked, device="cpu")
        return self.compile_with(original, (self._chosen, None if asked is None else len(asked)), _TapCompiler)

    def checking(self, original: Any) -> Any:
        """Return what compiles other functions, and refuses those that run the tapped model."""
        return self.compile_with(original, (None, None), _TapCompiler)

    def put_in(self, graph: GraphModule, prefix: str, count: int | None) -> list[_Tapped]:
        """Put an operator behind each call with chosen heads, and return these calls.

        Their buffers get names that begin with `prefix`; `count` is the number of rows, None for all.
        """
        found: list[_Tapped] = []
        for node in list(graph.graph.nodes):
            if node.op != "call_function" or (call := call_of(node)) is None:
                continue
            q, k = example(call["query"]), example(call["key"])
            name = self._name(node)
            if name is None or not is_plain({"query": q, "key": k}) or q.shape[1] % k.shape[1]:
                continue
            site = self._site(name, int(q.shape[1]))
            if site.heads:
                found.append(_put_in(Behind(graph, node, prefix), call, site, count, len(found)))
        return found

    def _site(self, name: str, count: int) -> TapSite:
        return self._sites.of_compiled(name, self._model.get_submodule(name), count)

    def _name(self, node: Node) -> str | None:
        """Return the module that makes a call, None if it is not the model's."""
        stack = list(node.meta.get("nn_module_stack", {}))
        known = self.names_of(node)
        if not stack:
            return ""
        return known[-1][1] if known and known[-1][0] == stack[-1] else None

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


def _put_in(behind: Behind, call: dict[str, Any], site: TapSite, count: int | None, at: int) -> _Tapped:
    """Put the operator behind a call."""
    q, k = example(call["query"]), example(call["key"])
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
        behind.add("call_function", TAP_CALL_ROWS, (*pair, held, *buffers, *(call[one] for one in FORM), heads))
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
