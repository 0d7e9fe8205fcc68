"""The interception: what processes each attention call of one thread after it has returned.

Calls of PyTorch's kernels, of its encoders' fast paths and of regard.attention are heard (`listening.py`). What tensors
are made of, and attention by hand, is followed by a dispatch mode (`following`).
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.observe.following.follower import Follower
from regard.observe.following.origins import Origin, crosses
from regard.observe.following.roles import Output
from regard.observe.intercept.compiled_code import runs_compiled
from regard.observe.intercept.torch_attention_calls import (
    groups_of,
    read_encoder_layer,
    read_functional_softmax,
    read_native,
    read_sdpa,
    sdpa_arguments,
)
from regard.observe.intercept.watching_mode import (
    Hears,
    WatchingMode,
    in_backward,
    modes_above_watches,
)
from regard.observe.listening import ATTENTION, FAST_PATHS, FUSED, listen, unheard, unlisten
from regard.observe.passes import Running
from regard.observe.recorder import Recorder
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import DEPTH, KERNEL_REASON, TRANSFORMED, Caller
from regard.torch_private import (
    DisableTorchFunction,
    TorchDispatchModeKey,
    get_dispatch_mode,
    is_tracing,
    maybe_current_level,
)

if TYPE_CHECKING:
    from regard.observe.intercept.compiled_watch import CompiledWatch

__all__ = ["Interception", "Reader", "is_traced"]


_COLOURS = (1, 3, 4)  # channels of an image
_FAKE = TorchDispatchModeKey.FAKE
_WHOLE_LAYER = "_transformer_encoder_layer_fwd"
Reader = Callable[..., WatchedCall]


@dataclass(eq=False)
class _Pending:
    """A call whose output autograd does not know yet."""

    call: WatchedCall
    queries: Origin
    running: Running
    noted: Callable[[Any], None]
    output: Tensor


class Interception(WatchingMode):
    """While it is active, every attention call of the model is passed to the recorder after it has returned.

    The call itself runs unchanged. Further computations on its inputs run without gradients and without random
    numbers, so the output is bitwise the same. Other threads are not observed.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, readers: Mapping[Callable[..., Any], Reader]) -> None:
        super().__init__(model, _encoder_of(model))
        self._recorder = recorder
        self.follower = Follower(self)
        with DisableTorchFunction():
            self.follower.knows([*model.parameters(), *model.buffers()])
        self._readers = dict(readers)
        self._is_listening = self._runs_compiled = False
        self.pending: _Pending | None = None
        self._other_input: set[int] = set()  # roots of what the running call embeds or is given besides its own ids
        self._own_input: set[int] = set()  # those of its ids where they were embedded
        self.image_grids: set[tuple[int, int]] = set()  # rows and columns that convolutions made of images

    @property
    def is_listening(self) -> bool:
        """Whether it hears the attention of its thread now."""
        return self._is_listening

    def start(self, *, follows: bool = True) -> None:
        """Hear this thread from now on, and follow it."""
        if not self._is_listening:
            self._is_listening = True
            listen(self)
            if follows:
                self.follower.start()

    def stop(self) -> None:
        """Stop to hear and follow it, until `start`."""
        if self._is_listening:
            self._is_listening = False
            self.follower.stop()
            unlisten(self)
            self.flush()

    def watches(self, module: nn.Module) -> bool:
        """Return whether the module is the watched model or a part of it."""
        return self._recorder.owns(module)

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        super().__exit__(*raised)
        self.follower.rules.finish()

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
                given = [one for one in _tensors_in((args, tuple(kwargs.values()))) if one.is_floating_point()]
            self._own_input = set()
            if modes_above_watches():  # a rank embeds its own positions
                self.hears.look_away()
            self._other_input = {root for one in given for root in self.follower.rules.origin_of(one).roots}
        if here and self._recorder.wants_output:
            hears = _Waiting(self, hears)
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
        return _EncoderCall(self.follower, self.hears if alone else None)

    # --- what is heard

    def hear(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Process a call that has returned."""
        if in_backward() or is_traced():
            return
        self.flush()
        with DisableTorchFunction(), torch.no_grad():
            if operator is ATTENTION:
                given = sdpa_arguments(args, kwargs)
                self._see_pair(lambda: read_sdpa(groups_of(self._recorder.module), given), *_ends(given), result)
            elif operator in FAST_PATHS:
                self._hear_fast_path(operator, args, kwargs, result)
            elif operator in FUSED:
                self._hear_fused(operator, result)
            elif operator in self._readers:
                given = dict(zip(("q", "k"), args, strict=False)) | kwargs
                self._see_pair(lambda: self._readers[operator](*args, **kwargs), given["q"], given["k"], result)
            elif self.follower.is_active:
                if operator.name() == "aten::conv2d" and args[0].ndim > 2 and args[0].shape[-3] in _COLOURS:
                    self.image_grids.add((result.shape[-2], result.shape[-1]))
                self.follower.hear(operator, args, kwargs, result)

    def _hear_fused(self, operator: Any, result: Any) -> None:
        """Process a fused kernel, which is called for jagged tensors, or by its name, which gives no weights."""
        frame = _frame_of("jagged_scaled_dot_product_attention", _JAGGED)
        if frame is None:
            self._miss_here(KERNEL_REASON.format(f"torch.{operator._schema.name.partition('::')[2]}"))
            return
        given = {name: frame.f_locals[name] for name in ("query", "key", "value", "attn_mask", "is_causal", "scale")}
        self._see_pair(lambda: read_sdpa(groups_of(self._recorder.module), given), *_ends(given), result)

    def _hear_fast_path(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        rules = self.follower.rules
        origin = rules.origin_of(args[0])
        if operator.name() == f"aten::{_WHOLE_LAYER}":
            self._see(lambda: read_encoder_layer(args, kwargs), origin, weight=args[3])
            rules.give(result, origin)
        else:
            self._see(lambda: read_native(args, kwargs), origin)
            rules.give(result[0], origin)

    def _see_pair(self, read: Callable[[], WatchedCall], queries: Tensor, keys: Tensor, result: Any) -> None:
        """Process a call with queries and keys as arguments: its result has the positions of its queries."""
        rules = self.follower.rules
        q, k = rules.origin_of(queries), rules.origin_of(keys)
        axes = rules.memory.view(keys).axes
        ticket = None
        if axes is not None and len(axes) > 1 and any(one[0] == "l" and one[1] > 1 for one in axes[-2]):
            self._miss_here(DEPTH)
        else:

            def known() -> WatchedCall:
                call, cross = read(), crosses(q, k)
                return call if cross is None else call.having(cross=cross)

            ticket = self._see(known, q, output=result)
        output = result[0] if isinstance(result, tuple) else result
        if isinstance(output, Tensor):
            rules.give(output, q, None if ticket is None else Output(frozenset([ticket])))

    def _see(
        self, read: Callable[[], WatchedCall], queries: Origin, *, output: Any = None, weight: Tensor | None = None
    ) -> Any:
        """Convert a call and pass it to the recorder, unless it has no queries or no keys, and return its ticket."""
        if not self._recorder.locate(weight):
            return None
        if maybe_current_level() is not None:
            self._recorder.miss(self._recorder.caller, TRANSFORMED)
            return None
        call = read()
        if self._recorder.wants_output and (given := _heads(call, output)) is not None:
            call = call.having(output=given)
        return self._pass_on(call, queries)

    def _pass_on(self, call: WatchedCall, queries: Origin) -> Any:
        if not (call.batch and call.heads and call.queries and call.keys):
            self._recorder.calls += 1
            return None
        if self.hears is not None:
            latents = self.follower.rules.latents
            alike = {one for one, size in latents.items() if size == call.queries} - self._own_input
            other = queries.roots <= self._other_input | alike
            self.hears.note_input(self._recorder.caller.module, is_other=other)
        return self._recorder.see(call)

    def _miss_here(self, reason: str) -> None:
        if self._recorder.locate():
            self._recorder.miss(self._recorder.caller, reason)

    # --- what is followed

    def find_caller(self) -> Caller | None:
        """Return the running module, or None if it belongs to another model."""
        return self._recorder.find_caller()

    def miss(self, caller: Caller, reason: str) -> None:
        """Count attention that cannot be recorded."""
        self._recorder.miss(caller, reason)

    def withdraw(self, ticket: Any, reason: str) -> None:
        """Remove a recorded call that is no attention between tokens."""
        self._recorder.withdraw(ticket, reason)

    def record(self, call: WatchedCall, queries: Origin, output: Tensor | None, noted: Callable[[Any], None]) -> None:
        """Record a call whose weights the model has computed; one whose gradients are wanted when autograd knows its
        output, which is at the next operator.
        """
        if not self._recorder.locate():
            return
        if self._recorder.wants_output and output is not None:
            running = self._recorder.running
            self.pending = _Pending(call, queries, running, noted, output)
            return
        with DisableTorchFunction(), torch.no_grad():
            noted(self._pass_on(call, queries))

    def flush(self) -> None:
        """Record the call that waits for its output."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        call, output = pending.call, pending.output
        self._recorder.place(pending.running)
        sizes = (call.batch, call.heads, call.queries)
        with unheard(), DisableTorchFunction(), torch.no_grad():
            call = call.having(output=output) if output.ndim == 4 and output.shape[:3] == sizes else call
            pending.noted(self._pass_on(call, pending.queries))

    def functional_call(self, ends: tuple[Origin, Origin]) -> WatchedCall | None:
        """Return the call of F.multi_head_attention_forward whose softmax has run, if it is one."""
        frame = _frame_of(functional.multi_head_attention_forward.__name__, functional.__file__)
        if frame is None or not {"q_scaled", "k", "v"} <= frame.f_locals.keys():
            return None
        with torch.no_grad():
            call = read_functional_softmax(frame.f_locals)
        cross = crosses(*ends)
        return call if cross is None else call.having(cross=cross)

    def look_up(self, ids: Tensor, table: Tensor, roots: frozenset[int], *, embeds: bool) -> None:
        """Process an embedding: other ids than those of the model's call make another input."""
        if self.hears is None or maybe_current_level() is not None or ids.is_nested or table.ndim != 2:
            return
        if self.hears.look_up(ids, table):
            self._own_input |= roots
        elif embeds:
            self._other_input |= roots


_CALL = nn.Module._call_impl.__code__
_JAGGED = "torch/nested/_internal/sdpa.py"


def _frame_of(name: str, file: str) -> FrameType | None:
    """Return the running call of a function of PyTorch that calls no modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        code = frame.f_code
        if code.co_name == name and code.co_filename.replace("\\", "/").endswith(file):
            return frame
        frame = frame.f_back
    return None


def is_traced() -> bool:
    """Return whether this thread computes with tensors without values, or records a TorchScript function; a compiler
    may run in another thread.
    """
    return torch.compiler.is_dynamo_compiling() or is_tracing() or get_dispatch_mode(_FAKE) is not None


def _ends(given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    return given["query"], given["key"]


def _heads(call: WatchedCall, output: Any) -> Tensor | None:
    """Return the output of a call if it is (batch, heads, queries, width) itself, since a view has no gradient of its
    own.
    """
    output = output[0] if isinstance(output, tuple) else output
    return output if isinstance(output, Tensor) and output.ndim == 4 and not output.is_nested else call.output


def _tensors_in(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and not value.is_nested:
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(tuple(value))


class _Waiting:
    """A call of the model, at whose end the last attention call does not wait any longer."""

    def __init__(self, interception: Interception, hears: Hears | None) -> None:
        self._interception, self._hears = interception, hears

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Process the start of the call."""

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of the call."""
        self._interception.flush()
        if self._hears is not None:
            self._hears.leave(module, args, output)


class _EncoderCall:
    """A call of an encoder, whose output is a memory: what a decoder makes of the same tensor is another text."""

    def __init__(self, follower: Follower, hears: Any) -> None:
        self._follower, self._hears = follower, hears

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Process the start of the call."""

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of the call."""
        memory = getattr(output, "last_hidden_state", output[0] if isinstance(output, tuple) and output else None)
        if isinstance(memory, Tensor):
            self._follower.rules.begin(memory)
        if self._hears is not None:
            self._hears.leave(module, args, output)


def _encoder_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the encoder of an encoder–decoder of transformers."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or not hasattr(model, "get_encoder"):
        return ()
    encoder: Any = model.get_encoder()  # type: ignore[operator]
    return (encoder,) if isinstance(encoder, nn.Module) and encoder is not model else ()
