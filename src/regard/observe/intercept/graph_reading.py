"""The attention in a graph that a compiler has captured, in the order in which it runs, and what compilers take apart.

The graph is read and left as it is. A compiler keeps PyTorch's fused kernels and the operators of regard's backends. It
takes apart a softmax between two products, and PyTorch's kernel where it has no fused form; what runs inside another
operator is not looked into, except for checkpoints.
"""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from regard.observe.intercept.compiled_code import EAGERLY
from regard.observe.intercept.function_names import OPERATORS, is_inexact, name_of, tensors_in
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
    flags: tuple[bool, ...] = ()  # whether it is causal, and whether it has a mask, of PyTorch's kernel
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
    found = [replace(one, is_ordered=one not in reading.unordered) for one in found]
    return found if reading.inside is None else [replace(one, reason=reading.inside) for one in found]


@dataclass(eq=False)
class _Reading:
    """What became of the tensors of a graph so far.

    The roots of a tensor are the activations that it was made of and that the graph does not compute from others: an
    input, rows of a table, learned latents. An attention's output has those of its queries, whose positions it has.
    """

    learned: set[Node] = field(default_factory=set)  # parameters, and what is computed of them alone
    unordered: set[GraphAttention] = field(default_factory=set)  # calls that do not depend on an equal one
    inside: str | None = None  # why calls of the graph cannot be told from those inside another operator
    _roots: dict[Node, frozenset[Node]] = field(default_factory=dict)
    _projected: set[Node] = field(default_factory=set)  # what parameters contributed to
    _scores: set[Node] = field(default_factory=set)
    _exponentials: set[Node] = field(default_factory=set)
    _calls: list[GraphAttention] = field(default_factory=list)
    _before: dict[Node, int] = field(default_factory=dict)  # the calls that a node depends on, as bits

    def read(self, graph: GraphModule) -> Iterator[GraphAttention]:
        """Follow the nodes of a graph, and yield those that attend."""
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                self.learned.add(node)
            if node.op not in ("call_function", "call_method"):
                continue
            self._before[node] = functools.reduce(
                int.__or__, (self._before.get(one, 0) for one in node.all_input_nodes), 0
            )
            if node.op == "call_function" and (call := _call_of(node)) is not None:
                yield self._attention(node, call)
            elif _name(node) in _CHECKPOINTS and isinstance(node.args[0], Node):
                yield from self._checkpoint(graph.get_submodule(str(node.args[0].target)), node)
            else:
                if (reason := self._unseen(graph, node)) is not None:
                    yield GraphAttention(_modules(node), reason=reason)
                self._follow(node)

    def _checkpoint(self, part: Any, node: Node) -> Iterator[GraphAttention]:
        """Read the graph of a checkpoint, whose result has the roots of its first output."""
        places = [one for one in part.graph.nodes if one.op == "placeholder"]
        for place, given in zip(places, node.args[1:], strict=False):
            if isinstance(given, Node):
                self._copy(given, place)
        yield from self.read(part)
        for one in next(one for one in part.graph.nodes if one.op == "output").all_input_nodes[::-1]:
            self._copy(one, node)

    def _copy(self, one: Node, other: Node) -> None:
        """Let a tensor be the same as another."""
        self._before[other] = self._before.get(other, 0) | self._before.get(one, 0)
        self._roots[other] = self._roots_of(one)
        for known in (self.learned, self._projected):
            known |= {other} if one in known else set()

    def _attention(self, node: Node, call: dict[str, Any]) -> GraphAttention:
        q, k = call["query"], call["key"]
        roots, others = self._roots[node], _ = self._roots_of(q), self._roots_of(k)
        self._projected |= {node} if q in self._projected else set()
        if _example(q).is_nested:
            return GraphAttention(_modules(node), reason=_NESTED)
        own = node.target if node.target in REGARD else None
        learns = any(one in self._projected or one in self.learned for one in (q, k))
        found = GraphAttention(
            _modules(node),
            own,
            tuple(tuple(n if isinstance(n, int) else None for n in _example(one).shape) for one in (q, k)),
            flags=() if len(call) == 2 else (bool(call.get("is_causal")), call.get("attn_mask") is not None),
            cross=False if roots & others else True if learns else None,
            has_blind_rows=own is None and _is_opened(q),
            is_fused=len(call) == 2 or _is_fused(call),
        )
        for at, other in enumerate(self._calls):
            equal = (other.operator, other.sizes, other.flags) == (own, found.sizes, found.flags)
            self.unordered |= {other, found} if equal and not self._before[node] >> at & 1 else set()
        self._before[node] |= 1 << len(self._calls)
        self._calls.append(found)
        return found

    def _roots_of(self, node: Node) -> frozenset[Node]:
        """Return the roots of a tensor; one of which nothing is known is a root itself."""
        return self._roots.setdefault(node, frozenset([node]))

    def _follow(self, node: Node) -> None:
        """Find the roots of a result, and whether it is made of scores."""
        name, inputs = _name(node), [one for one in node.all_input_nodes if _tensors(one)]
        floating = [one for one in inputs if any(map(is_inexact, _tensors(one)))]
        if inputs and all(one in self.learned for one in inputs):
            self.learned.add(node)
        if any(one in self.learned or one in self._projected for one in floating):
            self._projected.add(node)
        if made_of := self._made_of(name, floating):
            self._roots[node] = frozenset[Node]().union(*map(self._roots_of, made_of))
            if (name.endswith("_") or name == "__setitem__") and isinstance(node.args[0], Node):  # it is written
                self._roots[node.args[0]] = self._roots_of(node.args[0]) | self._roots[node]
        if name in PRODUCTS and sum(one not in self.learned for one in floating) > 1:
            self._scores.add(node)
        elif name not in LINEAR | PRODUCTS | SOFTMAXES and any(one in self._scores for one in inputs):
            self._scores.add(node)
            if name.startswith("exp") or any(one in self._exponentials for one in inputs):
                self._exponentials.add(node)

    def _made_of(self, name: str, floating: list[Node]) -> list[Node]:
        """Return the arguments whose roots the result of a function has."""
        floating = floating[:1] if name in SHAPES else floating
        active = [one for one in floating if one not in self.learned]
        if not active:
            return floating[:1] if name in _CARRIES_LATENTS else []
        if name in PRODUCTS or name in LINEAR or name in RECURRENT:
            return active[1:2] if name in ADDED and len(active) > 2 else active[:1]
        if name in JOINS:  # the keys of a resampler are those of an image and its own latents
            return floating
        most = 0 if name in WRITES else max(map(_count, active))
        return [one for one in active if _count(one) >= most]  # not what is broadcast over them

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


def _is_opened(q: Node) -> bool:
    """Return whether regard's backend has filled queries that see nothing with −0, and opened the mask for them."""
    fill: Any = q.args[2] if _name(q) == "masked_fill" else None
    return fill == 0.0 and math.copysign(1.0, fill) < 0


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
