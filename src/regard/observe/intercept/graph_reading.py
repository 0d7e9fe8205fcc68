"""Find the attention in a graph that a compiler has captured: calls that stay opaque kernels, and what does not.

A compiler leaves PyTorch's fused kernels and the operators of regard's backends as they are. A softmax between two
products it takes apart, PyTorch's kernel without a fused form too, and what runs inside another operator is not looked
into. Origins of tensors are followed as `Interception` follows those of a running model, by sizes alone.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional

from regard.observe.intercept.call_names_and_products import TorchCall, name_of, tensors_in
from regard.observe.intercept.compiled_code import EAGERLY
from regard.observe.intercept.compiled_graphs import call_of, example
from regard.observe.intercept.operation_kinds import LINEAR, PRODUCTS, SOFTMAXES
from regard.observe.intercept.tensor_origins import LearnedTensors, Origins, crosses
from regard.record.missing_attention import BY_HAND, KERNEL_REASON
from regard.torch_private import OpOverload, OpOverloadPacket

__all__ = ["Attending", "read_graph"]

_SOFTMAX = (
    "computes its softmax itself, or is a short call of regard.attention with dropout, which a compiler takes apart: "
    "let it call F.scaled_dot_product_attention or "
    f'regard.attention (a transformers model: load it with attn_implementation="sdpa"), or {EAGERLY}'
)
_MATH = (
    "calls F.scaled_dot_product_attention in a form without a fused kernel (dropout, a learned mask, other widths), "
    f"which a compiler takes apart: {EAGERLY}"
)
_EXPONENTIALS = f"{BY_HAND}; or {EAGERLY}"
_NESTED = f"attends in nested tensors, whose calls compiled code does not show: {EAGERLY}"
_INSIDE = f"attends inside {{}}, which is not looked into in compiled code: {EAGERLY}"
_UNKNOWN = f"calls {{}}, which compiled code does not look into: {EAGERLY}"
_FAST = f"runs the fast path of PyTorch's encoders, of which compiled code shows no q and k: {EAGERLY}"
_FLEX = (
    "calls flex_attention, whose kernel gives no weights: let the model call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)
_FASTS = {"_native_multi_head_attention", "_transformer_encoder_layer_fwd", "multi_head_attention_forward"}
_ATTENDS = re.compile(r"flash|attention|sdpa|attn_(func|fwd|forward|varlen)|mha_(fwd|forward)", re.IGNORECASE)
_KNOWN = {"torch", "_operator", "operator", "builtins", "math", "einops"}  # libraries whose functions are seen whole


@dataclass(frozen=True, eq=False)
class Attending:
    """A node that attends: its call by name, and whether its keys have another source; or why it cannot be seen."""

    node: Node
    call: dict[str, Any] | None = None
    cross: bool | None = None
    blind: Node | None = None  # which queries see nothing, though the mask shows them all
    reason: str | None = None


def read_graph(graph: GraphModule, inputs: Sequence[Any]) -> list[Attending]:
    """Return what attends in a graph, in order."""
    reading = _Reading(graph, inputs)
    return [found for node in graph.graph.nodes for found in reading.read(node)]


class _Reading:
    """Tensors of a graph, as stand-ins that have sizes and no numbers, and what became of them so far."""

    def __init__(self, graph: GraphModule, inputs: Sequence[Any]) -> None:
        self._graph, self._values = graph, dict[Node, Any]()
        self._parameters: set[int] = set()
        self._learned = LearnedTensors(lambda one: id(one) in self._parameters)
        self._origins = Origins(self._learned.holds)
        self._scores: set[Node] = set()
        self._exponentials: set[Node] = set()
        places = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._given = dict(zip(places, inputs, strict=False))

    def read(self, node: Node) -> Iterator[Attending]:
        """Follow one node, and yield it if it attends."""
        value = self._values[node] = _stand_in(node.meta.get("example_value"))
        if node.op in ("placeholder", "get_attr"):
            if isinstance(value, Tensor) and self._is_learned(node):
                self._parameters.add(id(value))
            return
        if node.op not in ("call_function", "call_method"):
            return
        call = None if node.op == "call_method" else call_of(node)
        if call is not None:
            yield self._attending(node, call)
            return
        if (reason := self._unseen(node)) is not None:
            yield Attending(node, reason=reason)
        self._follow(node, value)

    def _is_learned(self, node: Node) -> bool:
        if node.op == "get_attr":
            return True
        return isinstance(self._given.get(node), nn.Parameter) or "_buffers_" in str(node.target)

    def _attending(self, node: Node, call: dict[str, Any]) -> Attending:
        q, k = (self._values[call[name]] for name in ("query", "key"))
        if not isinstance(q, Tensor) or not isinstance(k, Tensor) or example(call["query"]).is_nested:
            return Attending(node, reason=_NESTED)
        ends = self._origins.of(q), self._origins.of(k)
        for output in tensors_in((self._values[node],)):
            self._origins.give(output, ends[0])
        if "form" not in call and not _is_fused(call):
            return Attending(node, reason=_MATH)
        return Attending(node, call, crosses(*ends), None if "form" in call else _blind_rows(node))

    def _follow(self, node: Node, value: Any) -> None:
        """Find the origin of a result, and whether it is made of scores."""
        name = _name(node)
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), self._values.get)
        call = TorchCall(_function(node), name, tuple(args), dict(kwargs))
        results = [one for one in tensors_in((value,)) if one.is_floating_point()]
        if (name.endswith("_") or name == "__setitem__") and call.tensors:
            results.append(call.tensors[0])  # it is written
        self._origins.carry(call, results)
        self._learned.carry(call, results)
        if name in LINEAR or name in PRODUCTS:
            if name in PRODUCTS and len(self._learned.activations(call)) > 1:
                self._scores.add(node)
        elif name not in SOFTMAXES and any(one in self._scores for one in node.all_input_nodes):
            self._scores.add(node)
            if name.startswith("exp") or any(one in self._exponentials for one in node.all_input_nodes):
                self._exponentials.add(node)

    def _unseen(self, node: Node) -> str | None:
        """Return why the attention that a node computes cannot be seen, or None if it computes none."""
        name, target = _name(node), node.target
        inputs = node.all_input_nodes
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
        inner = [one for one in inputs if one.op == "get_attr" and self._attends_in(str(one.target))]
        if inner:
            return _INSIDE.format(f"torch.ops.higher_order.{name}")
        library = str(getattr(target, "__module__", None) or "torch").partition(".")[0]
        if callable(target) and library not in _KNOWN:
            return _UNKNOWN.format(f"{target.__module__}.{name}")
        return None

    def _attends_in(self, name: str) -> bool:
        """Return whether a graph that a node holds attends."""
        try:
            part = self._graph.get_submodule(name)
        except AttributeError:
            return False
        graphs = [one for one in part.modules() if isinstance(one, GraphModule)]
        return any(
            call_of(node) is not None or _name(node) in SOFTMAXES | _FASTS or _ATTENDS.search(_name(node))
            for one in graphs
            for node in one.graph.nodes
            if node.op in ("call_function", "call_method")
        )


def _stand_in(value: Any) -> Any:
    """Return tensors of the same sizes on the meta device: what is asked of them becomes no condition of the code."""
    if isinstance(value, Tensor):
        if value.is_nested or value.layout is not torch.strided:
            return None
        return torch.empty(_sizes(value), dtype=value.dtype, device="meta")
    if isinstance(value, tuple | list):
        return [_stand_in(one) for one in value]
    return None


_SIGNS = {"getitem": "__getitem__", "setitem": "__setitem__", "sub": "__sub__", "add": "__add__"}


def _name(node: Node) -> str:
    """Return the name of a node's function, of an operator of Python as a tensor has it."""
    if isinstance(node.target, str):
        return node.target
    name = name_of(node.target)
    return _SIGNS.get(name, name) if getattr(node.target, "__module__", "") == "_operator" else name


def _function(node: Node) -> Callable[..., Any]:
    return getattr(Tensor, node.target, functional.softmax) if isinstance(node.target, str) else node.target


def _is_fused(call: dict[str, Any]) -> bool:
    """Return whether PyTorch has a fused kernel for a call, by what decides it when the call runs."""
    names = ("query", "key", "value", "attn_mask")
    given: list[Any] = [None if call.get(name) is None else _stand_in_memory(example(call[name])) for name in names]
    given += [call.get("dropout_p", 0.0), call.get("is_causal", False)]
    rest = {name: call[name] for name in ("scale", "enable_gqa") if name in call}
    if isinstance(rest.get("scale"), Node):  # computed from a width that the compiler takes for any
        rest["scale"] = 1.0  # which decides nothing
    return bool(torch._fused_sdp_choice(*given, **rest))  # 0 is what PyTorch calls "math"


def _stand_in_memory(value: Tensor) -> Tensor:
    """Return a tensor of the same sizes and type, of which all rows are one, for who decides by these."""
    sizes = _sizes(value)
    last = int(value.stride(-1)) if value.ndim else 1
    row = torch.zeros(max(1, (sizes[-1] - 1) * last + 1) if sizes else 1, dtype=value.dtype, device=value.device)
    steps = [0] * max(0, len(sizes) - 1) + [last] * bool(sizes)
    return row.as_strided(sizes, steps).requires_grad_(value.requires_grad)


def _sizes(value: Tensor) -> list[int]:
    """Return sizes, of symbols those that the compiler has met."""
    return [one if isinstance(one, int) else int(one.node.hint or 1) for one in value.shape]


def _blind_rows(node: Node) -> Node | None:
    """Return the rows that regard's backend takes out of the kernel's output, for which the mask was opened."""
    for user in node.users:
        if _name(user) in ("__getitem__", "to") and (found := _blind_rows(user)) is not None:
            return found
        if _name(user) == "masked_fill" and user.args[0] is node and user.args[2] == 0.0:
            rows = user.args[1]
            shown = rows.args[0] if isinstance(rows, Node) and _name(rows) in ("invert", "__invert__") else None
            if isinstance(shown, Node) and _name(shown) == "any":
                return rows  # type: ignore[return-value]
    return None
