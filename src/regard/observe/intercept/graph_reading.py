"""The attention in a graph that a compiler has captured, in the order in which it runs, and what compilers take apart.

The graph is read and left as it is. A compiler keeps PyTorch's fused kernels and the operators of regard's backends. It
takes apart a softmax between two products, and PyTorch's kernel where it has no fused form; what runs inside another
operator is not looked into, except for checkpoints.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from regard.observe.intercept.call_names_and_products import OPERATORS, is_inexact, name_of, tensors_in
from regard.observe.intercept.compiled_code import EAGERLY
from regard.observe.intercept.operation_kinds import (
    ADDED,
    DROPOUTS,
    JOINS,
    LINEAR,
    NORMS,
    PRODUCTS,
    RECURRENT,
    SHAPES,
    SOFTMAXES,
    WRITES,
)
from regard.observe.intercept.torch_attention_calls import KERNEL, sdpa_arguments
from regard.observe.listening import FUSED, REGARD
from regard.record.missing_attention import BY_HAND, KERNEL_REASON
from regard.torch_private import OpOverload, OpOverloadPacket

__all__ = ["MATH", "GraphAttention", "read_graph"]

_SOFTMAX = (
    "computes its softmax itself, or is a short call of regard.attention with dropout, which a compiler takes apart: "
    "let it call F.scaled_dot_product_attention or "
    f'regard.attention (a transformers model: load it with attn_implementation="sdpa"), or {EAGERLY}'
)
MATH = (
    "calls F.scaled_dot_product_attention in a form without a fused kernel (dropout, a learned mask, other widths), "
    f"which a compiler takes apart: {EAGERLY}"
)
_EXPONENTIALS = f"{BY_HAND}; or {EAGERLY}"
_NESTED = f"attends in nested tensors, whose calls compiled code does not show: {EAGERLY}"
_INSIDE = f"attends inside {{}}, or beside it, which is not looked into in compiled code: {EAGERLY}"
_UNKNOWN = f"calls {{}}, which compiled code does not look into: {EAGERLY}"
_FAST = f"runs the fast path of PyTorch's encoders, of which compiled code shows no q and k: {EAGERLY}"
_FLEX = (
    "calls flex_attention, whose kernel gives no weights: let the model call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)
_FASTS = {"_native_multi_head_attention", "_transformer_encoder_layer_fwd", "multi_head_attention_forward"}
_ATTENDS = re.compile(r"flash|attention|sdpa|attn_(func|fwd|forward|varlen)|mha_(fwd|forward)", re.IGNORECASE)
_KNOWN = {"torch", "_operator", "operator", "builtins", "math", "einops"}  # libraries whose functions are seen whole
_CHECKPOINTS = {"tag_activation_checkpoint", "wrap_activation_checkpoint"}  # each runs its graph once
_ACTIVATES = DROPOUTS | LINEAR | PRODUCTS | {"__setitem__"}  # projections of parameters are activations
_CARRIES_LATENTS = (SHAPES | LINEAR | NORMS | DROPOUTS | {"repeat", "tile"}) - {"embedding", "__getitem__"}


@dataclass(frozen=True, eq=False)
class GraphAttention:
    """An attention call of a graph, and whether its keys have another source; or why it cannot be seen."""

    modules: Sequence[str]  # that are running, outermost first: ids and the number of their call, as in "123@1"
    operator: OpOverload | None = None  # one of regard's; None for PyTorch's kernel
    sizes: tuple[tuple[int | None, ...], ...] = ()  # of q and k; None for a symbol
    cross: bool | None = None
    has_blind_rows: bool = False  # whether regard has opened the mask of queries that see nothing
    is_fused: bool = True  # whether PyTorch has a fused kernel for it, which a compiler keeps
    is_ordered: bool = True  # whether no compiler may run an equal call in its place
    reason: str | None = None


def read_graph(graph: GraphModule, inputs: Sequence[Any]) -> list[GraphAttention]:
    """Return what attends in a graph, in order."""
    reading = _Reading()
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, given in zip(places, inputs, strict=False):
        if isinstance(given, nn.Parameter) or "_buffers_" in str(node.target):
            reading.learned.add(node)
    found = list(reading.read(graph))
    inside = next((one.reason for one in found if one.reason is not None and one.reason == reading.inside), None)
    return found if inside is None else [replace(one, reason=inside) for one in found]


@dataclass(frozen=True)
class _Source:
    """What a tensor was made of: activations that the graph does not compute from others, and single learned vectors
    among its positions, such as a class token; whether parameters contributed to it.
    """

    roots: frozenset[Node]
    is_learned: bool = False
    vectors: frozenset[Node] = frozenset()


@dataclass(eq=False)
class _Reading:
    """What became of the tensors of a graph so far."""

    learned: set[Node] = field(default_factory=set)  # parameters, and what is computed of them without a projection
    inside: str | None = None  # why calls of the graph cannot be told from those inside another operator
    _constants: set[Node] = field(default_factory=set)  # what is computed of parameters alone
    _sources: dict[Node, _Source] = field(default_factory=dict)
    _scores: set[Node] = field(default_factory=set)
    _exponentials: set[Node] = field(default_factory=set)
    _before: dict[Node, int] = field(default_factory=dict)  # the attention that a node depends on, as bits
    _calls: list[tuple[Any, ...]] = field(default_factory=list)

    def read(self, graph: GraphModule) -> Iterator[GraphAttention]:
        """Follow the nodes of a graph, and yield those that attend."""
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                self.learned.add(node)
            if node.op in ("call_function", "call_method"):
                self._before[node] = 0
                for one in node.all_input_nodes:
                    self._before[node] |= self._before.get(one, 0)
                yield from self._read(graph, node)

    def _read(self, graph: GraphModule, node: Node) -> Iterator[GraphAttention]:
        if node.op == "call_function" and (call := _call_of(node)) is not None:
            yield self._attention(node, call)
            return
        if _name(node) in _CHECKPOINTS and isinstance(node.args[0], Node):
            yield from self._checkpoint(graph.get_submodule(str(node.args[0].target)), node)
            return
        if (reason := self._unseen(graph, node)) is not None:
            yield GraphAttention(_modules(node), reason=reason)
        self._follow(node)

    def _checkpoint(self, part: Any, node: Node) -> Iterator[GraphAttention]:
        """Read the graph of a checkpoint, whose result has the source of its first output."""
        places = [one for one in part.graph.nodes if one.op == "placeholder"]
        for place, given in zip(places, node.args[1:], strict=False):
            if isinstance(given, Node):
                self._before[place] = self._before.get(given, 0)
                self._sources[place] = self._source(given)
                for known in (self.learned, self._constants):
                    known |= {place} if given in known else set()
        for one in self.read(part):
            yield one if one.modules else replace(one, modules=_modules(node))
        output = next(one for one in part.graph.nodes if one.op == "output").all_input_nodes
        for one in output:
            self._before[node] |= self._before.get(one, 0)
        if output:
            self._sources[node] = self._source(output[0])

    def _attention(self, node: Node, call: dict[str, Any]) -> GraphAttention:
        q, k = call["query"], call["key"]
        ends = self._sources[node], _ = self._source(q), self._source(k)
        if _example(q).is_nested:
            return GraphAttention(_modules(node), reason=_NESTED)
        operator = node.target if node.target in REGARD else None
        sizes = tuple(tuple(n if isinstance(n, int) else None for n in _example(one).shape) for one in (q, k))
        alike, before = (operator, sizes), self._before[node]
        is_ordered = all(other != alike or before >> at & 1 for at, other in enumerate(self._calls))
        self._before[node] |= 1 << len(self._calls)
        self._calls.append(alike)
        return GraphAttention(
            _modules(node),
            operator,
            sizes,
            cross=_crosses(*ends),
            has_blind_rows=operator is None and _is_opened(q),
            is_fused=len(call) == 2 or _is_fused(call),
            is_ordered=is_ordered,
        )

    def _source(self, node: Node) -> _Source:
        """Return the source of a tensor; one of which nothing is known is a root itself."""
        return self._sources.setdefault(node, _Source(frozenset([node]), node in self.learned))

    def _follow(self, node: Node) -> None:
        """Find the source of a result, and whether it is made of scores."""
        name, inputs = _name(node), [one for one in node.all_input_nodes if _tensors(one)]
        floating = [one for one in inputs if any(map(is_inexact, _tensors(one)))]
        made = [node, *self._written(node)] if name.endswith("_") or name == "__setitem__" else [node]
        if inputs and all(one in self._constants or one in self.learned for one in inputs):
            self._constants.add(node)
            if name not in _ACTIVATES and all(one in self.learned for one in inputs):
                self.learned.add(node)
        if origins := self._origins(name, floating):
            roots, vectors = (
                frozenset().union(*(getattr(self._source(one), part) for one in origins))
                for part in ("roots", "vectors")
            )
            if name in JOINS:
                vectors |= frozenset().union(
                    *(self._source(one).roots for one in floating if one in self.learned and _vectors(one) == 1)
                )
            is_learned = any(one in self.learned or self._source(one).is_learned for one in (*origins, *floating))
            for one in made:
                own = self._source(one).roots if one is not node else frozenset[Node]()
                self._sources[one] = _Source(roots | own, is_learned, vectors)
        active = [one for one in floating if one not in self._constants and one not in self.learned]
        if name in PRODUCTS and len(active) > 1:
            self._scores.add(node)
        elif name not in LINEAR | PRODUCTS | SOFTMAXES and any(one in self._scores for one in inputs):
            self._scores.add(node)
            if name.startswith("exp") or any(one in self._exponentials for one in inputs):
                self._exponentials.add(node)

    def _origins(self, name: str, floating: list[Node]) -> list[Node]:
        """Return the arguments whose source the result of a function has."""
        if name in SHAPES:
            floating = floating[:1]
        active = [one for one in floating if one not in self.learned]
        if not active:
            return floating[:1] if name in _CARRIES_LATENTS else []
        if name in RECURRENT:
            return active[:1]
        if name in PRODUCTS or name in LINEAR:
            return active[1:2] if name in ADDED and len(active) > 2 else active[:1]
        if name in JOINS:  # the keys of a resampler are those of an image and its own latents
            return [one for one in floating if one not in self.learned or _vectors(one) > 1]
        if name in WRITES:
            return active
        most = max(_count(one) for one in active)
        return [one for one in active if _count(one) == most]  # not what is broadcast over them

    def _written(self, node: Node) -> list[Node]:
        """Return the tensors that a function writes: its first argument, and those of which that is a view."""
        found, one = list[Node](), node.args[0] if node.args else None
        while isinstance(one, Node) and one not in found:
            found.append(one)
            one = one.args[0] if one.args and _name(one) in SHAPES else None
        return found

    def _unseen(self, graph: GraphModule, node: Node) -> str | None:
        """Return why the attention that a node computes cannot be seen, or None if it computes none."""
        name, target, inputs = _name(node), node.target, node.all_input_nodes
        if name in SOFTMAXES and any(one in self._scores for one in inputs):
            return _SOFTMAX
        if name in PRODUCTS and any(one in self._exponentials for one in inputs):
            return _EXPONENTIALS
        if name in _FASTS:
            return _FAST
        if "flex_attention" in name:
            return _FLEX
        if isinstance(target, OpOverload | OpOverloadPacket):
            return KERNEL_REASON.format(target) if _ATTENDS.search(str(target)) else None
        if any(one.op == "get_attr" and _attends(getattr(graph, str(one.target), None)) for one in inputs):
            self.inside = _INSIDE.format(f"torch.ops.higher_order.{name}")
            return self.inside
        library = str(getattr(target, "__module__", None) or "torch").partition(".")[0]
        if callable(target) and library not in _KNOWN:
            return _UNKNOWN.format(f"{target.__module__}.{name}")
        return None


def _crosses(queries: _Source, keys: _Source) -> bool | None:
    """Return whether keys and queries have different sources; None if a function received both and computed neither."""
    if not queries.roots.isdisjoint(keys.roots | keys.vectors):  # a class token attends to itself and to patches
        return False
    return True if queries.is_learned or keys.is_learned else None


def _attends(part: Any) -> bool:
    """Return whether a graph that a node holds attends."""
    return isinstance(part, GraphModule) and any(
        _call_of(node) is not None or _name(node) in SOFTMAXES | _FASTS or _ATTENDS.search(_name(node))
        for one in part.modules()
        if isinstance(one, GraphModule)
        for node in one.graph.nodes
        if node.op in ("call_function", "call_method")
    )


def _call_of(node: Node) -> dict[str, Any] | None:
    """Return the arguments of an attention call by name, or None for another function."""
    target: Any = node.target
    if target is KERNEL or (isinstance(target, OPERATORS) and name_of(target) == "scaled_dot_product_attention"):
        return sdpa_arguments(node.args, node.kwargs)
    return {"query": node.args[0], "key": node.args[1]} if target in FUSED | REGARD else None


def _modules(node: Node) -> list[str]:
    return list(node.meta.get("nn_module_stack", {}))


def _tensors(node: Node) -> list[Tensor]:
    return list(tensors_in((node.meta.get("example_value"),)))


def _example(node: Any) -> Any:
    """Return what a compiler knows of the result of a node: a tensor without numbers."""
    return node.meta["example_value"]


_SIGNS = {"getitem": "__getitem__", "setitem": "__setitem__", "sub": "__sub__", "add": "__add__"}


def _name(node: Node) -> str:
    """Return the name of a node's function, of an operator of Python as a tensor has it."""
    if isinstance(node.target, str):
        return node.target
    name = name_of(node.target)
    return _SIGNS.get(name, name) if getattr(node.target, "__module__", "") == "_operator" else name


def _sizes(value: Tensor) -> list[int]:
    """Return sizes, of symbols those that the compiler has met: what is asked of these becomes no condition of code."""
    return [one if isinstance(one, int) else int(one.node.hint or 1) for one in value.shape]


def _count(node: Node) -> int:
    return max(math.prod(_sizes(one)) for one in _tensors(node))


def _vectors(node: Node) -> int:
    """Return the number of vectors that a tensor has, before one is broadcast."""
    sizes = [_sizes(one) for one in _tensors(node)]
    while _name(node) in ("expand", "repeat", "tile", "expand_as", "view", "reshape") and isinstance(
        node.args[0], Node
    ):
        node = node.args[0]
        sizes = [_sizes(one) for one in _tensors(node)]
    return math.prod(sizes[0][:-1]) if sizes and len(sizes[0]) > 1 else 0


def _is_opened(q: Node) -> bool:
    """Return whether regard's backend has filled the queries that see nothing with −0, and let the mask show them all."""
    return _name(q) == "masked_fill" and q.args[2] == 0.0 and math.copysign(1.0, q.args[2]) < 0  # type: ignore[arg-type]


def _is_fused(call: dict[str, Any]) -> bool:
    """Return whether PyTorch has a fused kernel for a call, by what decides it when the call runs."""
    names = ("query", "key", "value", "attn_mask")
    given: list[Any] = [None if call.get(name) is None else _in_memory(_example(call[name])) for name in names]
    given += [call.get("dropout_p", 0.0), call.get("is_causal", False)]
    rest = {name: call[name] for name in ("scale", "enable_gqa") if name in call}
    if isinstance(rest.get("scale"), Node):  # computed from a width that the compiler takes for any
        rest["scale"] = 1.0  # which decides nothing
    return bool(torch._fused_sdp_choice(*given, **rest))  # 0 is what PyTorch calls "math"


def _in_memory(value: Tensor) -> Tensor:
    """Return a tensor of the same sizes and type, of which all rows are one, for who decides by these."""
    sizes = _sizes(value)
    last = int(value.stride(-1)) if value.ndim else 1
    row = torch.zeros(max(1, (sizes[-1] - 1) * last + 1) if sizes else 1, dtype=value.dtype, device=value.device)
    steps = [0] * max(0, len(sizes) - 1) + [last] * bool(sizes)
    return row.as_strided(sizes, steps).requires_grad_(value.requires_grad)
