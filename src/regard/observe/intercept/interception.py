"""The interception: what processes each attention call of one thread after it has returned.

Calls of PyTorch's kernels, of its encoders' fast paths and of regard.attention are heard (`listening.py`). What tensors
are made of, and attention by hand, is followed by a dispatch mode (`following`).
"""

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
    Ends,
    WatchingMode,
    in_backward,
    modes_above_watches,
)
from regard.observe.learned import Attends, Script, signature_of
from regard.observe.listening import (
    ATTENTION,
    CONVOLUTION,
    EMBEDDING,
    FAST_PATHS,
    FUSED,
    READS,
    SOFTMAXES,
    listen,
    unheard,
    unlisten,
)
from regard.observe.running import Running, arguments_of, at_end
from regard.observe.sink import Sink
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import DEPTH, KERNEL_REASON, OTHERWISE, TRANSFORMED, Caller
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

    learns = True  # whether later calls of a known kind are only listened to

    def __init__(self, model: nn.Module, recorder: Sink, readers: Mapping[Callable[..., Any], Reader]) -> None:
        super().__init__(model, _encoder_of(model))
        self._recorder = recorder
        self._readers = dict(readers)
        self._is_listening = self._runs_compiled = False
        self.pending: _Pending | None = None
        self._other_input: set[int] = set()  # roots of what the running call embeds or is given besides its own ids
        self._own_input: set[int] = set()  # those of its ids where they were embedded
        self.image_grids: set[tuple[int, int]] = set()  # rows and columns that convolutions made of images
        self._learned = recorder.learned
        self._state = self._learned.state_of(model)
        self._key: Hashable = None  # of the running call's kind
        self._script: Script | None = None  # what is known of it, or learned now; None between runs
        self.given: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # to the running call of the model
        self._is_of_rank = False  # whether that is inside sequence_parallel
        self._has_gradients = False  # whether the model's code has gradients enabled
        self._is_reading = False  # whether the operator that is heard reads ids or an image
        self._is_lost = False  # whether the run attends otherwise than its kind of call
        self._turns = Counter[str]()  # heard calls of each module in the run
        self._end: object = None
        if self.learns:
            recorder.on_run = self._begin_run

    @functools.cached_property
    def follower(self) -> Follower:
        """What follows the operators of calls that are not known yet."""
        follower = Follower(self)
        with DisableTorchFunction():
            follower.knows([*self._model.parameters(), *self._model.buffers()])
        return follower

    @property
    def follows(self) -> bool:
        """Whether the operators of this thread are followed now."""
        return "follower" in vars(self) and self.follower.is_active

    def follow(self, on: bool) -> None:
        """Follow the operators of this thread, or do not."""
        if on:
            self.follower.start()
        elif "follower" in vars(self):
            self.follower.stop()

    @property
    def is_listening(self) -> bool:
        """Whether it hears the attention of its thread now."""
        return self._is_listening

    def start(self, *, follows: bool = True) -> None:
        """Hear this thread from now on, and follow it."""
        if not self._is_listening:
            self._is_listening = True
            listen(self)
            self.follow(follows and not (self.learns and self._learned.is_read_first))

    def stop(self) -> None:
        """Stop to hear and follow it, until `start`."""
        if self._is_listening:
            self._is_listening = False
            if "follower" in vars(self):
                self.follower.end()
            unlisten(self)
            self.flush()
            self._end_run()

    def pause(self) -> None:
        """Stop for a call of compiled code, until `resume` at its end."""
        if "follower" in vars(self):
            self.follower.step_aside()
        self.stop()

    def resume(self) -> None:
        """Go on after a call of compiled code."""
        if "follower" in vars(self):
            self.follower.step_back()
        self.start()

    def watches(self, module: nn.Module) -> bool:
        """Return whether the module is the watched model or a part of it."""
        return self._recorder.owns(module)

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        super().__exit__(*raised)
        if "follower" in vars(self):
            self.follower.end()
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

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ends | None:
        """Process the start of a call; compiled code runs without this mode, which would be compiled into it."""
        super().begins(module, args, kwargs)
        if threading.get_ident() != self._thread or in_backward():
            return None
        if module in self._parts:
            return _EncoderCall(self.follower)
        if module is not self._model or self._runs_compiled:
            return None
        if not runs_compiled(module):
            self.given, self._is_of_rank = (args, kwargs), bool(modes_above_watches())
            return _Run(self)
        if self.hears is not None:
            self.hears.begin([(module, args, kwargs)])
            self.hears.look_away()
        if self._recorder.masks is not None:
            self._recorder.masks.begin([(module, args, kwargs)])
        end = self._compiled_watch.begin(self, self.hears, functools.partial(setattr, self, "_runs_compiled", False))
        self._runs_compiled = True
        return end

    # --- runs of the model

    def _begin_run(self, frames: Sequence[FrameType]) -> None:
        """Begin a run, of which the calls with these frames are running, the innermost first: a kind of call that is
        known is only listened to, any other is followed.
        """
        self._end_run()
        calls = [arguments_of(frame) for frame in reversed(frames)]
        module, args, kwargs = calls[0]
        if module is self._model and self.given is not None:  # hooks may have changed them
            args, kwargs = self.given
            calls[0] = module, args, kwargs
        kind = signature_of(self._recorder.name_of(module), module, args, kwargs)
        self._key = self._state, self._learned.settings(), self._has_gradients or torch.is_grad_enabled(), kind
        known = self._learned.known(self._key)
        self._script, self._turns = known or Script(), Counter()
        self._end = at_end(frames[-1], self._ended)
        self.follow(known is None or not known.is_heard)
        if self.follows:
            self._script = Script(is_read_first=self._is_reading)
            if self.hears is not None:
                given = (one for one in _tensors_in((args, tuple(kwargs.values()))) if one.is_floating_point())
                self._other_input = {root for one in given for root in self.follower.rules.origin_of(one).roots}
                self._other_input -= self._own_input
                self._own_input = set()
        if self._recorder.masks is not None:
            self._recorder.masks.begin(calls)
        if self.hears is not None:
            self.hears.begin(calls)
            if self._is_of_rank:  # which embeds its own positions
                self.hears.look_away()

    def _ended(self, _: object) -> None:
        """Process the end of a run: what comes next is followed until it is known."""
        if threading.get_ident() == self._thread and self._is_listening:
            self.flush()
            self._end_run()
            self.follow(not self._learned.is_read_first)

    def _end_run(self) -> None:
        script, self._script, self._end, self._is_lost = self._script, None, None, False
        if script is not None:
            self._learned.keep(self._key, script)
            if self._recorder.masks is not None:
                self._recorder.masks.end()
            if self.hears is not None:
                self.hears.end()

    @property
    def _is_known(self) -> bool:
        """Whether a run of a known kind is only listened to."""
        return self._script is not None and not self.follows

    def forget_run(self) -> None:
        """Learn nothing of the running call."""
        if not self._is_known:
            self._script = None

    def _unlearn(self) -> None:
        """Process attention that the known kind of the running call does not have."""
        self._learned.scripts.pop(self._key, None)
        self._script, self._is_lost = None, True
        self._recorder.miss(self._recorder.caller, OTHERWISE)
        self.follow(True)

    # --- what is heard

    def hear(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Process a call that has returned."""
        if in_backward() or is_traced():
            return
        self.flush()
        if "follower" in vars(self):
            self.follower.settle()
        self._has_gradients = torch.is_grad_enabled()
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
            else:
                self._hear_other(operator, args, kwargs, result)

    def _hear_other(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Process an operator that begins a text or an image, or a softmax."""
        self._is_reading = operator in READS
        here = self._recorder.locate()
        self._is_reading = False
        if operator is CONVOLUTION and args[0].ndim > 2 and args[0].shape[-3] in _COLOURS:
            self.image_grids.add((result.shape[-2], result.shape[-1]))
        if operator in SOFTMAXES and here and self._script is not None:
            name = self._recorder.name
            if self.follows:
                self._script.softmaxes.add(name)
            elif not self._script.has_softmax(name):
                self._unlearn()
        if self.follows:
            self.follower.hear(operator, args, kwargs, result)
        elif operator is EMBEDDING and self.hears is not None:
            self.hears.look_up(args[1], args[0])

    def _hear_fused(self, operator: Any, result: Any) -> None:
        """Process a fused kernel, which is called for jagged tensors, or by its name, which gives no weights."""
        frame = _frame_of("jagged_scaled_dot_product_attention", _JAGGED)
        if frame is None:
            self._miss_here(KERNEL_REASON.format(f"torch.{operator._schema.name.partition('::')[2]}"))
            return
        given = {name: frame.f_locals[name] for name in ("query", "key", "value", "attn_mask", "is_causal", "scale")}
        self._see_pair(lambda: read_sdpa(groups_of(self._recorder.module), given), *_ends(given), result)

    def _hear_fast_path(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        is_whole = operator.name() == f"aten::{_WHOLE_LAYER}"
        if not self._recorder.locate(args[3] if is_whole else None):
            return
        if self._is_known:
            self._see_known(lambda: (read_encoder_layer if is_whole else read_native)(args, kwargs), None)
            return
        rules = self.follower.rules
        origin = rules.origin_of(args[0])
        if is_whole:
            self._see(lambda: read_encoder_layer(args, kwargs), origin)
            rules.give(result, origin)
        else:
            self._see(lambda: read_native(args, kwargs), origin)
            rules.give(result[0], origin)

    def _see_pair(self, read: Callable[[], WatchedCall], queries: Tensor, keys: Tensor, result: Any) -> None:
        """Process a call with queries and keys as arguments: its result has the positions of its queries."""
        if not self._recorder.locate():  # which may begin a run
            return
        if self._is_known:
            self._see_known(read, result)
            return
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

    def _see_known(self, read: Callable[[], WatchedCall], output: Any) -> None:
        """Pass a call of a run that is only listened to, to the recorder."""
        if maybe_current_level() is not None:
            self._recorder.miss(self._recorder.caller, TRANSFORMED)
            return
        assert self._script is not None
        call, name = read(), self._recorder.name
        known = self._script.find(name, self._turns[name], call.heads)
        self._turns[name] += 1
        if known is None:
            self._unlearn()
            return
        more: dict[str, Any] = {} if known.cross is None else {"cross": known.cross}
        if self._recorder.needs_output and (given := _heads(call, output)) is not None:
            more["output"] = given
        self._give(call.having(**more) if more else call, is_other=known.is_other)

    def _see(self, read: Callable[[], WatchedCall], queries: Origin, *, output: Any = None) -> Any:
        """Convert a call and pass it to the recorder, unless it has no queries or no keys, and return its ticket."""
        if maybe_current_level() is not None:
            self.miss(self._recorder.caller, TRANSFORMED)
            return None
        call = read()
        if self._recorder.needs_output and (given := _heads(call, output)) is not None:
            call = call.having(output=given)
        return self._pass_on(call, queries)

    def _pass_on(self, call: WatchedCall, queries: Origin) -> Any:
        if self._is_lost:  # this run was not followed from its beginning
            self._recorder.miss(self._recorder.caller, OTHERWISE)
            return None
        latents = self.follower.rules.latents
        alike = {one for one, size in latents.items() if size == call.queries} - self._own_input if latents else set()
        is_other = queries.roots <= self._other_input | alike
        if self._script is not None:
            self._script.calls[self._recorder.name].append(Attends(call.heads, call.cross, is_other))
        return self._give(call, is_other=is_other)

    def _give(self, call: WatchedCall, *, is_other: bool) -> Any:
        if not (call.batch and call.heads and call.queries and call.keys):
            self._recorder.calls += 1
            return None
        if self.hears is not None:
            self.hears.note_input(self._recorder.name, is_other=is_other)
        return self._recorder.see(call)

    def _miss_here(self, reason: str) -> None:
        if self._recorder.locate():
            self.miss(self._recorder.caller, reason)

    # --- what is followed

    def find_caller(self) -> Caller | None:
        """Return the running module, or None if it belongs to another model, where a softmax over scores has run."""
        if not self._recorder.locate():
            return None
        self._is_by_hand()
        return self._recorder.caller

    def miss(self, caller: Caller, reason: str) -> None:
        """Count attention that cannot be recorded."""
        self._is_by_hand()
        self._recorder.miss(caller, reason)

    def _is_by_hand(self) -> None:
        """Note that not all attention of the running kind of call is heard."""
        if self._script is not None:
            self._script.is_heard = False

    def withdraw(self, ticket: Any, reason: str) -> None:
        """Remove a recorded call that is no attention between tokens."""
        self._is_by_hand()
        self._recorder.withdraw(ticket, reason)

    def record(self, call: WatchedCall, queries: Origin, output: Tensor | None, noted: Callable[[Any], None]) -> None:
        """Record a call whose weights the model has computed; one whose gradients are wanted when autograd knows its
        output, which is at the next operator.
        """
        if not self._recorder.locate():
            return
        self._is_by_hand()
        if self._recorder.needs_output and output is not None:
            running = self._recorder.now
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

    def note_nothing(self) -> None:
        """Count a softmax over scores of no queries or no keys, of which there is nothing to record."""
        if self._recorder.locate():
            self._is_by_hand()
            self._recorder.calls += 1

    def look_up(self, ids: Tensor, table: Tensor, roots: frozenset[int], *, embeds: bool) -> None:
        """Process an embedding: other ids than those of the model's call make another input."""
        self._recorder.locate()  # a run may begin with it
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


class _Run:
    """A call of the model, at whose end no attention waits for its output any longer; what is seen of one that ends in
    an exception is not all.
    """

    def __init__(self, interception: Interception) -> None:
        self._interception = interception

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of the call."""
        self._interception.flush()
        self._interception.given = None
        if output is None:
            self._interception.forget_run()


class _EncoderCall:
    """A call of an encoder, whose output is a memory: what a decoder makes of the same tensor is another text."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of the call."""
        memory = getattr(output, "last_hidden_state", output[0] if isinstance(output, tuple) and output else None)
        if isinstance(memory, Tensor):
            self._follower.rules.begin(memory)


def _encoder_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the encoder of an encoder–decoder of transformers."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or not hasattr(model, "get_encoder"):
        return ()
    encoder: Any = model.get_encoder()  # type: ignore[operator]
    return (encoder,) if isinstance(encoder, nn.Module) and encoder is not model else ()
