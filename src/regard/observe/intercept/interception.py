"""The interception: a torch-function mode that processes each attention call of one thread after it has returned."""

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.observe.intercept.call_names_and_products import (
    OPERATORS,
    TorchCall,
    is_inexact,
    name_of,
    read_lookup,
    tensors_in,
)
from regard.observe.intercept.compiled_code import runs_compiled
from regard.observe.intercept.eager_softmax import Eager
from regard.observe.intercept.exchanged_functions import attends, graph_of, has_softmax, showing_scripts
from regard.observe.intercept.layouts import is_transformed
from regard.observe.intercept.operation_kinds import LOOKUPS
from regard.observe.intercept.tensor_origins import (
    EncoderCall,
    LearnedTensors,
    Origin,
    Origins,
    Outputs,
    crosses,
    encoder_of,
    storage_of,
)
from regard.observe.intercept.torch_attention_calls import (
    KERNEL,
    groups_of,
    read_encoder_layer,
    read_functional,
    read_native,
    read_sdpa,
    sdpa_arguments,
)
from regard.observe.intercept.watching_mode import (
    Hears,
    HearsIds,
    WatchingMode,
    in_backward,
    modes_above_watches,
    modes_here,
)
from regard.observe.sink import Sink
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import KERNEL_REASON, SCRIPT_REASON, TRANSFORMED
from regard.torch_private import (
    DisableTorchFunction,
    TorchDispatchModeKey,
    get_dispatch_mode,
    is_tracing,
    native_multi_head_attention,
    transformer_encoder_layer_fwd,
)

if TYPE_CHECKING:
    from regard.observe.intercept.compiled_watch import CompiledWatch

__all__ = ["Interception", "Reader", "is_traced"]


_ATTENDS = re.compile(r"flash|attention|sdpa|attn_(func|fwd|forward|varlen)|mha_(fwd|forward)", re.IGNORECASE)
_PRIVATE = "_scaled_dot_product"  # PyTorch's functions below F.scaled_dot_product_attention
_COLOURS = (1, 3, 4)  # channels of an image
_FAKE = TorchDispatchModeKey.FAKE
Reader = Callable[..., WatchedCall]


class Interception(WatchingMode):
    """While it is active, every attention call of the model is passed to the recorder after it has returned.

    The call itself runs unchanged. Further computations on its inputs run without gradients and without random
    numbers, so the output is bitwise the same. Other threads are not observed.
    """

    def __init__(self, model: nn.Module, recorder: Sink, readers: Mapping[Callable[..., Any], Reader]) -> None:
        super().__init__(model, encoder_of(model))
        self._recorder = recorder
        with DisableTorchFunction():
            self._parameters = {storage_of(one) for one in (*model.parameters(), *model.buffers())}
        learned = LearnedTensors(self._is_parameter)
        self._origins = Origins(learned.holds)
        self._outputs = Outputs(recorder.withdraw)
        self._eager = Eager(learned, self._origins, self._outputs, recorder.miss, recorder.find_caller)
        self._readers = dict(readers)
        self._scripts = contextlib.ExitStack()
        self._runs_compiled = False
        self._other_input: set[int] = set()  # roots of what the running call embeds or is given besides its own ids
        self._own_input: set[int] = set()  # those of its ids where they were embedded
        self.image_grids: set[tuple[int, int]] = set()  # rows and columns that convolutions made of images

    def watches(self, module: nn.Module) -> bool:
        """Return whether the module is the watched model or a part of it."""
        return self._recorder.owns(module)

    def __enter__(self) -> Self:
        """Start to observe this thread, including TorchScript."""
        self._scripts.enter_context(showing_scripts(self._scripted))
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        with self._scripts:
            super().__exit__(*raised)
        self._eager.finish()

    @functools.cached_property
    def _compiled_watch(self) -> "CompiledWatch":
        from regard.observe.intercept.compiled_watch import CompiledWatch  # imports PyTorch's compiler

        return CompiledWatch(self._model, self._recorder)

    def compiles(self, callback: Any, function: Any) -> Any:
        """Return what compiles the model's running call with operators beside its attention."""
        if not self._runs_compiled or threading.get_ident() != self._thread or in_backward():
            return callback
        return self._compiled_watch.callback(callback)

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hears | None:
        """Process the start of a call; compiled code runs without this mode, which would be compiled into it."""
        hears = super().begins(module, args, kwargs)
        here = threading.get_ident() == self._thread and not in_backward()
        if here and module in self._parts:
            return self._begin_encoder(args, kwargs)
        here = here and module is self._model
        if here and self.hears is not None:
            with DisableTorchFunction():
                given = [one for one in tensors_in((args, tuple(kwargs.values()))) if one.is_floating_point()]
            self._own_input = set()
            if modes_above_watches():  # a rank embeds its own positions
                self.hears.look_away()
            self._other_input = {root for one in given for root in self._origins.of(one).roots}
        if not here or self._runs_compiled or not runs_compiled(module):
            return hears
        end = self._compiled_watch.begin(self, hears, functools.partial(setattr, self, "_runs_compiled", False))
        self._runs_compiled = True
        if self.hears is not None:
            self.hears.look_away()
        return end

    def _begin_encoder(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hears:
        """Process a call of the encoder, which `generate` makes outside of the model's: its ids are the source's."""
        alone = self.hears is not None and not self.hears.is_in_call
        if self.hears is not None and alone:
            self.hears(self._model, args, kwargs)
        return EncoderCall(self._origins, self.hears if alone else None)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the call, then process it."""
        kwargs = kwargs or {}
        looking = not in_backward() and not is_traced()
        call = TorchCall(func, name_of(func), args, kwargs)
        if looking:
            with DisableTorchFunction():
                self._eager.before(call)
        result = func(*args, **kwargs)
        if looking:
            # The following computations must not reach other modes, such as a second watch or a mode of the caller.
            with DisableTorchFunction(), torch.no_grad():
                self._look(call, args[0] if call.name == "__setitem__" else result)
        return result

    def _look(self, call: TorchCall, result: Any) -> None:
        """Process a call that has returned, and follow its result."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if call.name.startswith(_PRIVATE) or (isinstance(func, OPERATORS) and _ATTENDS.search(str(func))):
            self._notice(call, result)
        elif func is KERNEL:
            self._see_pair(lambda: self._read_sdpa(args, kwargs), call, result)
        elif func is functional.multi_head_attention_forward:
            self._see_pair(lambda: read_functional(args, kwargs), call, result)
        elif func is native_multi_head_attention:
            self._see(lambda: read_native(args, kwargs), self._origins.of(args[0]))
        elif func is transformer_encoder_layer_fwd:
            self._see(lambda: read_encoder_layer(args, kwargs), self._origins.of(args[0]), weight=args[3])
            self._origins.give(result, self._origins.of(args[0]))
        elif func in self._readers:
            self._see_pair(lambda: self._readers[func](*args, **kwargs), call, result)
        else:
            self._follow(call, result)

    def _follow(self, call: TorchCall, result: Any) -> None:
        """Follow the result of any other function on scores, weights or attention outputs."""
        results = list(filter(is_inexact, tensors_in((result,))))
        if self.hears is not None and call.name in LOOKUPS and not is_transformed():
            self._hear(self.hears, call, result)
        if call.func is functional.conv2d and call.tensors[0].shape[-3] in _COLOURS:
            self.image_grids |= {(one.shape[-2], one.shape[-1]) for one in results}
        self._origins.carry(call, filter(is_inexact, tensors_in((result,), nested=True)))
        self._outputs.carry(call, results)
        seen = self._eager.after(call, results)
        if seen is not None:
            self._eager.keep(self._see(lambda: seen, self._origins.of(result), output=result))

    def _hear(self, hears: HearsIds, call: TorchCall, result: Any) -> None:
        """Process an embedding: other ids than those of the model's call make another input."""
        found = read_lookup(call, result)
        if found is not None and hears.look_up(*found):
            self._own_input |= self._origins.of(result).roots if result.is_floating_point() else set()
        elif found is not None and call.name == "embedding":
            self._other_input |= self._origins.of(result).roots

    def _read_sdpa(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WatchedCall:
        return read_sdpa(groups_of(self._recorder.module), sdpa_arguments(args, kwargs))

    def _see_pair(self, read: Callable[[], WatchedCall], call: TorchCall, result: Any) -> None:
        """Process a call with queries and keys as arguments: its result has the positions of its queries."""
        q, k = (self._origins.of(one) for one in _queries_and_keys(call))

        def known() -> WatchedCall:
            seen, cross = read(), crosses(q, k)
            return seen if cross is None else seen.having(cross=cross)

        self._see(known, q, output=result)
        output = result[0] if isinstance(result, tuple) else result
        if isinstance(output, Tensor):
            self._origins.give(output, q)

    def _see(
        self, read: Callable[[], WatchedCall], queries: Origin, *, output: Any = None, weight: Tensor | None = None
    ) -> Any:
        """Convert a call and pass it to the recorder, unless it has no queries or no keys, and return its ticket."""
        if not self._recorder.locate(weight):
            return None
        if is_transformed():
            self._recorder.miss(self._recorder.caller, TRANSFORMED)
            return None
        call = read()
        if self._recorder.needs_output and (given := _heads(call, output)) is not None:
            call = call.having(output=given)
        if not (call.batch and call.heads and call.queries and call.keys):
            self._recorder.calls += 1
            return None
        if self.hears is not None:
            latents = {one for one, size in self._origins.latents.items() if size == call.queries} - self._own_input
            other = queries.roots <= self._other_input | latents
            self.hears.note_input(self._recorder.caller.module, is_other=other)
        ticket = self._recorder.see(call)
        self._outputs.give(output, ticket)
        return ticket

    def _notice(self, call: TorchCall, result: Any) -> None:
        """Process an operator called by its name: PyTorch's kernel is recorded, any other with an attention's name is
        missing.
        """
        name = str(call.func) if isinstance(call.func, OPERATORS) else f"torch.{call.name}"
        if name.startswith("aten.scaled_dot_product_attention"):
            self._see_pair(lambda: self._read_sdpa(call.args, call.kwargs), call, result)
        elif self._recorder.locate():
            self._recorder.miss(self._recorder.caller, KERNEL_REASON.format(name))

    def _scripted(self, script: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Process a call of TorchScript by its arguments and results; it is missing if attention is computed inside."""
        if self not in modes_here() or in_backward() or is_traced():
            return
        call = TorchCall(script, "script", args, kwargs)
        graph, results = graph_of(script), [one for one in tensors_in((result,)) if one.is_floating_point()]
        with DisableTorchFunction(), torch.no_grad():
            if attends(graph):
                if (caller := self._recorder.find_caller()) is not None:
                    self._recorder.miss(caller, SCRIPT_REASON)
            elif has_softmax(graph):
                self._eager.scripted(call.tensors, results)
            else:
                self._eager.after(call, results)
            self._origins.carry(call, results)

    def _is_parameter(self, one: Tensor) -> bool:
        return storage_of(one) in self._parameters


def is_traced() -> bool:
    """Return whether this thread computes with tensors without values, or records a TorchScript function; a compiler
    may run in another thread.
    """
    return torch.compiler.is_dynamo_compiling() or is_tracing() or get_dispatch_mode(_FAKE) is not None


def _queries_and_keys(call: TorchCall) -> tuple[Tensor, Tensor]:
    """Return the queries and keys of a call, by name or by position."""
    given = dict(zip(("query", "key"), call.args, strict=False)) | call.kwargs
    return given["query" if "query" in given else "q"], given["key" if "key" in given else "k"]


def _heads(seen: WatchedCall, output: Any) -> Tensor | None:
    """Return the output of a call if it is (batch, heads, queries, width) itself, since a view has no gradient of its
    own.
    """
    output = output[0] if isinstance(output, tuple) else output
    return output if isinstance(output, Tensor) and output.ndim == 4 and not output.is_nested else seen.output
