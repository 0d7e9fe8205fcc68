"""Graphs of compiled code that a tap or a watch has compiled once more, with operators beside the attention calls.

While the block is open, compiled functions of its thread get another compiler, which puts operators into the graph that
Dynamo has captured and hands it to the compiler that was chosen for the model. Dynamo keeps what it compiles for each
compiler apart, so the model's own compiled code is neither used nor replaced inside the block, and is there again after
it. Compilers are kept for each model: another block of the same kind compiles nothing.
"""

import itertools
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame, pgo
from torch._dynamo.convert_frame import CatchErrorsWrapper, compile_lock, output_codes
from torch._dynamo.exc import Unsupported
from torch._dynamo.source import ConstantSource
from torch.fx import GraphModule, Node

from regard.errors import ObservationError
from regard.observe.intercept.torch_attention_calls import KERNEL, sdpa_arguments
from regard.torch_private import OpOverload, isolate_compiled_code

__all__ = ["FORM", "Behind", "CompiledBlock", "FrameCompiler", "GraphCompiler", "call_of", "example"]

FORM = ("form", "ints", "floats")  # arguments of regard's operators
_NO_COMPILER = (
    "this compiled code cannot be tapped or watched, since its compiler ({}) cannot be put together with another: "
    "compile the model with torch.compile"
)

_regions = getattr(eval_frame, "_next_isolate_recompiles_id", None) or itertools.count()


Refuse = Callable[[str], Exception]  # why a graph breaks


class _Current(threading.local):
    block: Callable[[], Any] = staticmethod(lambda: None)


@dataclass(eq=False)
class GraphCompiler:
    """What compiles graphs inside a block: `inner` does, after the operators were put in; `key` says which."""

    inner: Callable[..., Any]
    key: object
    current: _Current = field(default_factory=_Current)
    states: dict[Any, dict[str, Any]] = field(default_factory=dict)  # what Dynamo keeps of each frame
    lengths: Any = field(default_factory=lambda: defaultdict(pgo.CodeState))  # which it has seen
    region: int = field(default_factory=lambda: next(_regions))
    is_whole: bool = True  # whether only PyTorch runs around the frame that is compiled now

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph."""
        raise NotImplementedError

    @property
    def is_current(self) -> bool:
        """Whether what it has compiled is still what would be compiled now."""
        return True


class FrameCompiler:
    """What Dynamo calls for each frame without compiled code; its chain of compilers ends in `compiler`.

    With `refuse`, a graph of the model that breaks raises the error that it returns.
    """

    def __init__(self, original: Any, compiler: GraphCompiler, model: nn.Module, refuse: Refuse | None) -> None:
        self.compiler, self._model, self._refuse = compiler, model, refuse
        convert = original._torchdynamo_orig_backend._clone_with_backend(compiler)
        if refuse is not None:
            convert = getattr(convert, "_inner_convert", convert)
            convert._one_graph = True
        self._torchdynamo_orig_backend = convert
        self._convert = CatchErrorsWrapper(convert, original.hooks)
        self.hooks = original.hooks

    def __call__(self, frame: Any, entry: Any, _: Any) -> Any:
        """Compile a frame as if it had never been compiled outside the block, so that the same lengths are symbols."""
        with compile_lock:
            self.compiler.is_whole = self._is_whole(frame.f_code)
            lengths, pgo._CODE_STATE = pgo._CODE_STATE, self.compiler.lengths
            try:
                return self._convert(frame, entry, self.compiler.states.setdefault(frame.f_code, {}))
            except Unsupported as error:
                if self._refuse is None:
                    raise
                raise self._refuse(str(error).strip()) from error
            finally:
                pgo._CODE_STATE = lengths

    def _is_whole(self, code: CodeType) -> bool:
        """Return whether only PyTorch runs between the model's call and a frame: Dynamo has not left one out before."""
        one: FrameType | None = sys._getframe(2)
        while one is not None:
            if one.f_code is _CALL and one.f_locals.get("self") is self._model:
                return True
            from_torch = one.f_code.co_filename.startswith(_TORCH)
            if one.f_code is not code and not from_torch and one.f_code not in output_codes:  # those Dynamo has made
                return False
            one = one.f_back
        return True


_CALL = nn.Module._call_impl.__code__
_TORCH = str(Path(torch.__file__).parent)


# Compilers by the model whose calls they read.
_compilers: "weakref.WeakKeyDictionary[nn.Module, list[GraphCompiler]]" = weakref.WeakKeyDictionary()


class CompiledBlock:
    """The compiled calls of one tap or watch: it hands them their compiler."""

    def __init__(self, model: nn.Module, refuse: Refuse | None = None) -> None:
        self._model, self._refuse = model, refuse
        self._names = {str(id(module)): name for name, module in model.named_modules()}
        self._frames: dict[tuple[int, object], tuple[Any, FrameCompiler]] = {}

    def names_of(self, node: Node) -> list[tuple[str, str]]:
        """Return the model's modules that are running in a node, outermost first: key and name.

        Keys of the node's stack are ids of modules, `@` counts their calls.
        """
        stack = [(key, self._names.get(key.partition("@")[0])) for key in node.meta.get("nn_module_stack", {})]
        return [(key, name) for key, name in stack if name is not None]

    def compile_with(self, original: Any, key: object, kind: type[GraphCompiler]) -> Any:
        """Return what compiles the frames of a compiled function, whose own compiler of frames is `original`."""
        if not isinstance(original, CatchErrorsWrapper | FrameCompiler):
            # A stance of torch.compiler stands before it, as `module(...)` has begun inside the compiled function.
            by_stance: Any = eval_frame._callback_from_stance
            return by_stance.__wrapped__(self._frame_compiler(_inside(original), key, kind))
        return self._frame_compiler(original, key, kind)

    def _frame_compiler(self, original: Any, key: object, kind: type[GraphCompiler]) -> Any:
        place = id(original), key
        if place not in self._frames:
            if not hasattr(getattr(original, "_torchdynamo_orig_backend", None), "_clone_with_backend"):
                raise ObservationError(_NO_COMPILER.format(type(original).__name__))
            compiler = self._compiler(eval_frame.innermost_backend(original), key, kind)
            self._frames[place] = original, FrameCompiler(original, compiler, self._model, self._refuse)
        known = self._frames[place][1]
        known.compiler.current.block = weakref.ref(self)
        isolate_compiled_code(known.compiler.region)
        return known

    def _compiler(self, inner: Any, key: object, kind: type[GraphCompiler]) -> GraphCompiler:
        kept = _compilers.setdefault(self._model, [])
        for one in [*kept]:
            if type(one) is kind and one.key == key and (one.inner is inner or one.inner == inner):
                if one.is_current:
                    return one
                kept.remove(one)
        kept.append(kind(inner, key))
        return kept[-1]


def _inside(original: Any) -> Any:
    return getattr(original, "_torchdynamo_orig_backend", original)


def call_of(node: Node) -> dict[str, Any] | None:
    """Return the arguments of an attention call by name, or None for another function."""
    if node.target is KERNEL:
        return sdpa_arguments(node.args, node.kwargs)
    target = node.target
    if isinstance(target, OpOverload) and target.namespace == "regard" and len(target._schema.arguments) == 7:
        names = ("query", "key", "value", "held", *FORM)
        return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return None


def example(node: Any) -> Any:
    """Return what a compiler knows of the result of a node: a tensor without numbers."""
    return node.meta["example_value"]


class Behind:
    """Nodes that are put behind another, one after the other."""

    def __init__(self, graph: GraphModule, node: Node, prefix: str) -> None:
        self._graph, self._last, self._prefix = graph, node, prefix

    def add(self, op: str, target: Any, args: tuple[Any, ...] = (), value: Any = None) -> Node:
        """Add a node and return it."""
        with self._graph.graph.inserting_after(self._last):
            self._last = self._graph.graph.create_node(op, target, args)
        self._last.meta["example_value"] = value
        return self._last

    def detached(self, one: Any) -> Any:
        """Return a tensor without its gradient; anything else as it is."""
        return self.add("call_method", "detach", (one,), example(one)) if isinstance(one, Node) else one

    def held(self, name: object, tensor: Tensor) -> Node:
        """Return a tensor that the graph keeps under this name, as Dynamo keeps parameters."""
        name = f"{self._prefix}_{name}"
        if not hasattr(self._graph, name):
            self._graph.register_buffer(name, tensor, persistent=False)
            if (sources := getattr(self._graph, "_param_name_to_source", None)) is not None:
                sources[name] = ConstantSource(name)
        return self.add("get_attr", name, value=self._graph.get_buffer(name))
