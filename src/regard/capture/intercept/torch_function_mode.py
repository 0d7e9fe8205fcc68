"""The interception: a torch-function mode that reads each attention call of one thread after it has returned."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.capture.call_site import Seen
from regard.capture.intercept.call_names import OPERATORS, TorchCall, name_of, tensors_in
from regard.capture.intercept.eager_softmax import Eager
from regard.capture.intercept.fastpath import WatchingMode, in_backward, modes_here
from regard.capture.intercept.follow_outputs import Outputs
from regard.capture.intercept.key_origins import Origins, crosses
from regard.capture.intercept.learned_tensors import Learned
from regard.capture.intercept.multihead import read_encoder_layer, read_functional, read_native
from regard.capture.intercept.torch_attention_calls import TRANSFORMED, is_transformed, read_sdpa
from regard.capture.intercept.torchscript import attends, graph_of, has_softmax, showing_scripts
from regard.capture.missing_attention import Caller
from regard.capture.recorder import Recorder

__all__ = ["Interception"]

# The function itself, whoever puts another in its place (as SageAttention does, to call its own kernel).
_KERNEL = torch._C._nn.scaled_dot_product_attention
# What a torch-function mode is told of the kernel: its builtin has no signature of its own.
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

_ATTENDS = re.compile(r"flash|attention|sdpa|attn_(func|fwd|forward|varlen)|mha_(fwd|forward)", re.IGNORECASE)

_FAKE = torch._C._TorchDispatchModeKey.FAKE

_KERNEL_REASON = (
    "calls the kernel {} directly, which gives no weights: let it call F.scaled_dot_product_attention or "
    'regard.attention instead (a transformers model: load it with attn_implementation="sdpa")'
)
_SCRIPT_REASON = "computes attention in TorchScript, where PyTorch shows no calls: watch it as it was before torch.jit"

Reader = Callable[..., Seen]


class Interception(WatchingMode):
    """While entered, every attention call of the model is handed to the recorder, after it has returned.

    The call itself runs untouched, and whatever is computed from its inputs is computed beside it, without gradients
    and without drawing random numbers: the output is the same to the bit. Other threads run unobserved.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, readers: Mapping[Callable[..., Any], Reader]) -> None:
        super().__init__(model)
        self._recorder = recorder
        with torch._C.DisableTorchFunction():
            self._parameters = {_storage(one) for one in (*model.parameters(), *model.buffers())}
        learned = Learned(self._is_parameter)
        self._origins = Origins(learned.holds)
        self._outputs = Outputs(recorder.withdraw)
        self._eager = Eager(learned, self._origins, self._outputs, recorder.miss)
        self._readers = dict(readers)
        self._scripts = contextlib.ExitStack()

    def watches(self, module: nn.Module) -> bool:
        """Whether the module is the watched model or a part of it."""
        return self._recorder.owns(module)

    def __enter__(self) -> Self:
        """Look on from now on, in this thread, at scripts too."""
        self._scripts.enter_context(showing_scripts(self._scripted))
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        """Leave nothing, also after an error."""
        with self._scripts:
            super().__exit__(*raised)
        self._eager.finish()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the call, then look at it."""
        kwargs = kwargs or {}
        looking = not in_backward() and not _is_traced()
        call = TorchCall(func, name_of(func), args, kwargs)
        if looking:
            with torch._C.DisableTorchFunction():
                self._eager.before(call)
        result = func(*args, **kwargs)
        if looking:
            # What is computed from here on is no other mode's business, be it a second watch or one of the caller's.
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._look(call, args[0] if call.name == "__setitem__" else result)
        return result

    def _look(self, call: TorchCall, result: Any) -> None:
        """Read a call that has returned, and follow what it gave."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if isinstance(func, OPERATORS) and _ATTENDS.search(str(func)):
            self._notice(call, result)
        elif func is _KERNEL:
            self._see_pair(lambda: read_sdpa(self._recorder.module, _named(args, kwargs)), call, result)
        elif func is functional.multi_head_attention_forward:
            self._see_pair(lambda: read_functional(args, kwargs), call, result)
        elif func is torch._native_multi_head_attention:
            self._see(lambda: read_native(args, kwargs))
        elif func is torch._transformer_encoder_layer_fwd:
            self._see(lambda: read_encoder_layer(args, kwargs), weight=args[3])
        elif func in self._readers:
            self._see_pair(lambda: self._readers[func](*args, **kwargs), call, result)
        else:
            self._follow(call, result)

    def _follow(self, call: TorchCall, result: Any) -> None:
        """Follow what any other function made of scores, of weights, and of what attention gave."""
        results = [one for one in tensors_in((result,)) if one.is_floating_point()]
        self._origins.carry(call, results)
        self._outputs.carry(call, results)
        seen = self._eager.after(call, results, self._find_caller)
        if seen is not None:
            self._eager.keep(self._see(lambda: seen, output=result))

    def _see_pair(self, read: Callable[[], Seen], call: TorchCall, result: Any) -> None:
        """Read a call that was handed queries and keys: what it gives has the positions of its queries."""
        q, k = (self._origins.of(one) for one in _queries_and_keys(call))

        def known() -> Seen:
            seen, cross = read(), crosses(q, k)
            return seen if cross is None else dataclasses.replace(seen, cross=cross)

        self._see(known, output=result)
        output = result[0] if isinstance(result, tuple) else result
        if isinstance(output, Tensor):
            self._origins.give(output, q)

    def _see(self, read: Callable[[], Seen], *, output: Any = None, weight: Tensor | None = None) -> Any:
        """Read a call and hand it to the recorder, unless there is nothing to attend from or to; give its ticket."""
        if not self._recorder.locate(weight):
            return None
        if is_transformed():
            self._recorder.miss(self._recorder.caller, TRANSFORMED)
            return None
        seen = read()
        call = seen.call
        if self._recorder.wants_output and (given := _heads(seen, output)) is not None:
            seen = dataclasses.replace(seen, output=given)
        if not (call.batch and call.heads and call.queries and call.keys):
            self._recorder.calls += 1
            return None
        ticket = self._recorder.see(seen)
        self._outputs.give(output, ticket)
        return ticket

    def _notice(self, call: TorchCall, result: Any) -> None:
        """An operator called by its name: PyTorch's kernel is read, any other with an attention's name is missing."""
        name = str(call.func)
        if name.startswith("aten.scaled_dot_product_attention"):
            self._see_pair(lambda: read_sdpa(self._recorder.module, _named(call.args, call.kwargs)), call, result)
        elif self._recorder.locate():
            self._recorder.miss(self._recorder.caller, _KERNEL_REASON.format(name))

    def _scripted(self, script: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call of TorchScript: followed by what it takes and gives, or missing where attention is inside."""
        if self not in modes_here() or in_backward() or _is_traced():
            return
        call = TorchCall(script, "script", args, kwargs)
        graph, results = graph_of(script), [one for one in tensors_in((result,)) if one.is_floating_point()]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if attends(graph):
                if (caller := self._find_caller()) is not None:
                    self._recorder.miss(caller, _SCRIPT_REASON)
            elif has_softmax(graph):
                self._eager.scripted(call.tensors, results, self._find_caller)
            else:
                self._eager.after(call, results, self._find_caller)
            self._origins.carry(call, results)

    def _find_caller(self) -> Caller | None:
        """The module that runs; None where it is of another model."""
        return self._recorder.caller if self._recorder.locate() else None

    def _is_parameter(self, one: Tensor) -> bool:
        return _storage(one) in self._parameters


def _is_traced() -> bool:
    """Whether this thread computes with tensors that have no values; a compiler may run in another one."""
    return torch.compiler.is_dynamo_compiling() or torch._C._get_dispatch_mode(_FAKE) is not None


def _queries_and_keys(call: TorchCall) -> tuple[Tensor, Tensor]:
    """What a call attends from and to, by name or by place."""
    given = dict(zip(("query", "key"), call.args, strict=False)) | call.kwargs
    return given["query" if "query" in given else "q"], given["key" if "key" in given else "k"]


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of PyTorch's kernel by name."""
    return dict(zip(_SDPA, args, strict=False)) | kwargs


def _heads(seen: Seen, output: Any) -> Tensor | None:
    """What a call gave, if it is (batch, heads, queries, width) itself: of a view, no gradient would be told."""
    output = output[0] if isinstance(output, tuple) else output
    return output if isinstance(output, Tensor) and output.ndim == 4 else seen.output


def _storage(tensor: Tensor) -> int:
    """Views of a parameter (its transpose, a slice) share its storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse and nested tensors have no storage of their own
        return -1
