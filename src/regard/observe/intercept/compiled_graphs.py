"""Compiled code of a tap or a watch: its graphs are left as they are, and their attention is heard as they run.

While the block is open, compiled functions of its thread get another compiler. It reads the graph that Dynamo has
captured, hands it unchanged to the compiler that was chosen for the model, which finds what it has made of it before,
and listens around what that returns: after its guards, which would else depend on who listens. Dynamo keeps what it
compiles for each compiler apart, so the model's own compiled code is neither used nor replaced inside the block, and is
there again after it. Compilers are kept for each model: another block of the same kind compiles nothing.
"""

import copy
import itertools
import re
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch._dynamo import eval_frame, pgo
from torch._dynamo.convert_frame import CatchErrorsWrapper, compile_lock, output_codes
from torch._dynamo.exc import Unsupported
from torch.fx import GraphModule

from regard.backends.call_form import read
from regard.errors import ObservationError
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept.graph_reading import MATH, GraphAttention, read_graph
from regard.observe.intercept.torch_attention_calls import Groups, read_sdpa
from regard.observe.listening import ATTENTION, FUSED, REGARD, can_listen, listen, unlisten
from regard.torch_private import DisableTorchFunction, OpOverload, isolate_compiled_code

__all__ = ["AROUND", "CompiledBlock", "FrameCompiler", "GraphCompiler", "read_heard"]

AROUND = "around"  # the kind of functions around the model, of which nothing is heard
_NO_COMPILER = (
    "this compiled code cannot be tapped or watched, since its compiler ({}) cannot be put together with another: "
    "compile the model with torch.compile"
)
_EAGERLY = 'put `with torch.compiler.set_stance("force_eager"):` around the block'
_UNHEARD = "this compiled model cannot be tapped or watched, since {}: {}"
_CPP = "its kernels are called from C++ (`cpp_wrapper`), which reports none"
_CUDA_GRAPHS = "it replays CUDA graphs, which call no kernel again"
_NO_KEY = "this PyTorch has no dispatcher key that could report its kernels"
_NO_GRAPHS = f'compile it with mode="default", or {_EAGERLY}'
_LOST = f"compiled code did not report its attention as its graph has it ({{}}): {_EAGERLY}"
_BESIDE = f"attends beside an equal call, and compiled code does not show which of them is which: {_EAGERLY}"

_regions = getattr(eval_frame, "_next_isolate_recompiles_id", None) or itertools.count()


Refuse = Callable[[str], Exception]  # why a graph breaks


class _Current(threading.local):
    block: Callable[[], Any] = staticmethod(lambda: None)


@dataclass(eq=False)
class GraphCompiler:
    """What compiles graphs inside blocks of one `kind`: `inner` does, and the block that is open hears them run."""

    inner: Callable[..., Any]
    kind: str
    current: _Current = field(default_factory=_Current)
    states: dict[Any, dict[str, Any]] = field(default_factory=dict)  # what Dynamo keeps of each frame
    lengths: Any = field(default_factory=lambda: defaultdict(pgo.CodeState))  # which it has seen
    region: int = field(default_factory=lambda: next(_regions))
    is_whole: bool = True  # whether only PyTorch runs around the frame that is compiled now

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph, which is heard by the block that is open when it runs."""
        block: CompiledBlock | None = self.current.block()
        assert block is not None
        sites = read_graph(graph, inputs)
        parameters = [at for at, one in enumerate(inputs) if isinstance(one, nn.Parameter)]
        is_whole, kind, current = self.is_whole, self.kind, self.current
        compiled = self.inner(graph, inputs)

        def run(*args: Any) -> Any:
            block: CompiledBlock | None = current.block()
            if block is None:
                return compiled(*args)
            if not block.begins_graph(kind, [args[at] for at in parameters], is_whole=is_whole):
                return compiled(*args)
            heard = _Listener(sites, block)
            listen(heard)
            try:
                result = compiled(*args)
            finally:
                unlisten(heard)
            heard.end()
            return result

        return run


_KERNELS = {ATTENTION, *FUSED, *REGARD}
_NAMES = {"attn_bias": "attn_mask", "q": "query", "k": "key", "v": "value"}


class _Listener:
    """Matches the kernels that a graph calls with its attention, in order."""

    def __init__(self, sites: Sequence[GraphAttention], block: "CompiledBlock") -> None:
        self._sites, self._block, self._at = sites, block, 0
        self._unheard: list[GraphAttention] = []

    def hear(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Pass a call to the block, with its arguments by name, while its tensors are still its own."""
        if operator not in _KERNELS:
            return
        given = dict(zip((one.name for one in operator._schema.arguments), args, strict=False)) | kwargs
        given = {_NAMES.get(name, name): one for name, one in given.items()}
        site = self._next(operator, given)
        if site is not None:
            with DisableTorchFunction(), torch.no_grad():
                self._block.hear(site, given)

    def _next(self, operator: OpOverload, given: dict[str, Any]) -> GraphAttention | None:
        """Return the site of a call; a compiler takes apart those without a fused kernel before it."""
        for site in itertools.islice(self._sites, self._at, None):
            self._at += 1
            if site.reason is None and (site.is_fused or operator is ATTENTION):
                if site.operator is not (operator if operator in REGARD else None) or not _fits(site, given):
                    raise ObservationError(_LOST.format("another call than the next one"))
                if site.is_ordered or operator is ATTENTION:
                    return site
                self._unheard.append(replace(site, reason=_BESIDE))
                return None
            self._unheard.append(site)
        if all(site.reason is not None for site in self._sites):
            return None  # of a compiler's own making, as where it replaces a softmax between two products
        raise ObservationError(_LOST.format("more calls than there are"))

    def end(self) -> None:
        """Pass on what was not heard.

        Raises:
            ObservationError: A kernel that the compiler keeps was not called.
        """
        for site in (*self._unheard, *self._sites[self._at :]):
            if site.reason is None and site.is_fused:
                raise ObservationError(_LOST.format("fewer calls than there are"))
            self._block.miss(site, site.reason or MATH)


def read_heard(site: GraphAttention, groups: Groups, call: dict[str, Any]) -> CallFromQK:
    """Return a call of a kernel at a site, in a module with these groups of heads, as a watched call."""
    q, mask = call["query"], call.get("attn_mask")
    if site.operator is not None:
        problem = read(q, call["key"], call["value"], *(call[name] for name in ("held", "form", "ints", "floats")))
        return CallFromQK(replace(problem, dropout=None), v=problem.v)
    if site.has_blind_rows and mask is not None:
        blind = (q == 0).all(-1, keepdim=True) & q[..., :1].signbit()
        mask = mask & ~blind if mask.dtype == torch.bool else mask.masked_fill(blind, -torch.inf)
    return read_sdpa(groups, {**call, "attn_mask": mask})


def _fits(site: GraphAttention, given: dict[str, Any]) -> bool:
    """Return whether a call may be one of a site: widths may be padded, and heads of keys repeated."""
    if site.flags and site.flags != (bool(given.get("is_causal")), given.get("attn_mask") is not None):
        return False
    for size, name, free in zip(site.sizes, ("query", "key"), (1, 2), strict=True):
        tensor = given[name]
        if tensor.is_nested or tensor.ndim != len(size):
            return False
        numbers = [*zip(size, tensor.shape, strict=True)][:-1]
        if free == 2 and len(numbers) == 3:
            del numbers[1]
        if any(number is not None and number != actual for number, actual in numbers):
            return False
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
        """Compile a frame as it was compiled outside the block, or would be there: with the same lengths as symbols."""
        with compile_lock:
            self.compiler.is_whole = self._is_whole(frame.f_code)
            self._take_lengths(frame)
            lengths, pgo._CODE_STATE = pgo._CODE_STATE, self.compiler.lengths
            try:
                return self._convert(frame, entry, self.compiler.states.setdefault(frame.f_code, {}))
            except Unsupported as error:
                if self._refuse is None:
                    raise
                raise self._refuse(str(error).strip()) from error
            finally:
                pgo._CODE_STATE = lengths

    def _take_lengths(self, frame: Any) -> None:
        """Take the lengths that the model's own code has met; those of the code that would run now, if there is any."""
        code, inner = frame.f_code, eval_frame.innermost_backend(self.compiler.inner)
        entries = eval_frame._debug_get_cache_entry_list(code)
        mine = (one.guard_manager for one in entries if one.backend is inner or one.backend == inner)
        parts: Any = next((one.code_parts for one in mine if one.check(frame.f_locals)), None)
        for place, known in pgo.get_code_state().items():
            if (place.filename, place.firstlineno, place.name) != (code.co_filename, code.co_firstlineno, code.co_name):
                continue
            lengths = self.compiler.lengths[place].automatic_dynamic
            for name, one in known.automatic_dynamic.items():
                if parts is None:
                    lengths[name] |= copy.copy(one)
                else:
                    lengths[name] = _as_guarded(one, name, parts)

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


def _as_guarded(known: Any, name: str, guards: Sequence[str]) -> Any:
    """Return the lengths of an argument that code with these guards takes: those that are no numbers are symbols."""
    tensor, scalar = re.escape(f"check_tensor({name}, ") + r".*\bsize=\[(.*?)\]", re.escape(name) + r" == (-?\d+)$"
    for guard in guards:
        if (found := re.match(tensor, guard)) is not None:
            excluded = getattr(known, "excluded_sizes", None) or itertools.repeat(None)  # lengths of other code
            numbers = [None if one == "None" else int(one) for one in found[1].split(", ") if one]
            sizes = [other if one is None else one for one, other in zip(numbers, excluded, strict=False)]
            symbols = tuple(pgo.auto_dynamic if one is None else one for one in sizes)
            return replace(known, size=symbols, stride=pgo.auto_unset)
        if (found := re.match(scalar, guard)) is not None:
            return replace(known, scalar=int(found[1]))
    return copy.copy(known)


_CALL = nn.Module._call_impl.__code__
_TORCH = str(Path(torch.__file__).parent)


# Compilers by the model whose calls they read.
_compilers: "weakref.WeakKeyDictionary[nn.Module, list[GraphCompiler]]" = weakref.WeakKeyDictionary()


class CompiledBlock:
    """The compiled calls of one tap or watch: it hands them their compiler, and hears them."""

    def __init__(self, model: nn.Module, refuse: Refuse | None = None) -> None:
        self._model, self._refuse = model, refuse
        self._names = {str(id(module)): name for name, module in model.named_modules()}
        self._frames: dict[tuple[int, str], tuple[Any, FrameCompiler]] = {}

    def begins_graph(self, kind: str, parameters: Sequence[Any], *, is_whole: bool) -> bool:
        """Return whether to hear a graph that begins to run, with these parameters among its inputs."""
        raise NotImplementedError

    def hear(self, site: GraphAttention, call: dict[str, Any]) -> None:
        """Process a call of a kernel, its arguments by name."""
        raise NotImplementedError

    def miss(self, site: GraphAttention, reason: str) -> None:
        """Process attention that was not heard."""
        raise NotImplementedError

    def modules_of(self, site: GraphAttention) -> list[tuple[str, str]]:
        """Return the model's modules that are running at a site, outermost first: key and name."""
        stack = [(key, self._names.get(key.partition("@")[0])) for key in site.modules]
        return [(key, name) for key, name in stack if name is not None]

    def compile_with(self, original: Any, kind: str) -> Any:
        """Return what compiles the frames of a compiled function, whose own compiler of frames is `original`.

        Raises:
            ObservationError: What it compiles shows no kernels.
        """
        if not isinstance(original, CatchErrorsWrapper | FrameCompiler):
            # A stance of torch.compiler stands before it, as `module(...)` has begun inside the compiled function.
            by_stance: Any = eval_frame._callback_from_stance
            return by_stance.__wrapped__(self._frame_compiler(_inside(original), kind))
        return self._frame_compiler(original, kind)

    def _frame_compiler(self, original: Any, kind: str) -> Any:
        place = id(original), kind
        if place not in self._frames:
            if not hasattr(getattr(original, "_torchdynamo_orig_backend", None), "_clone_with_backend"):
                raise ObservationError(_NO_COMPILER.format(type(original).__name__))
            compiler = self._compiler(eval_frame.innermost_backend(original), kind)
            self._frames[place] = original, FrameCompiler(original, compiler, self._model, self._refuse)
        known = self._frames[place][1]
        known.compiler.current.block = weakref.ref(self)
        isolate_compiled_code(known.compiler.region)
        return known

    def _compiler(self, inner: Any, kind: str) -> GraphCompiler:
        if kind != AROUND and (why := _why_unheard(inner, self._model)) is not None:
            raise ObservationError(why)
        kept = _compilers.setdefault(self._model, [])
        for one in kept:
            if one.kind == kind and (one.inner is inner or one.inner == inner):
                return one
        kept.append(GraphCompiler(inner, kind))
        return kept[-1]


def _inside(original: Any) -> Any:
    return getattr(original, "_torchdynamo_orig_backend", original)


def _why_unheard(inner: Any, model: nn.Module) -> str | None:
    """Return why nothing would be heard of what a compiler makes of a model."""
    if not can_listen():
        return _UNHEARD.format(_NO_KEY, _EAGERLY)
    inductor: Any = sys.modules.get("torch._inductor.config")
    chosen = getattr(inner, "config", {})
    if chosen.get("cpp_wrapper", inductor is not None and inductor.cpp_wrapper):
        return _UNHEARD.format(_CPP, f"compile it without, or {_EAGERLY}")
    replays = chosen.get("triton.cudagraphs", inductor is not None and inductor.triton.cudagraphs)
    replays = replays or getattr(inner, "compiler_name", None) == "cudagraphs"
    if replays and any(one.is_cuda for one in model.parameters()):
        return _UNHEARD.format(_CUDA_GRAPHS, _NO_GRAPHS)
    return None
