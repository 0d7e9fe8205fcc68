"""The interception of chosen layers only, for a model that generates.

The layers' calls are announced (`watching_mode.py`). In its first call, the first layer of each kind is read as a watch
reads it, by a dispatch mode that follows it while it runs, which finds its attention however it is computed. If that
was PyTorch's kernel alone, other calls run without a mode: the dispatcher reports the kernel (`listening.py`).
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from regard.errors import ObservationError
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept.compiled_code import following_compiled_code, runs_compiled
from regard.observe.intercept.exchanged_functions import patched
from regard.observe.intercept.interception import Interception, Reader, is_traced
from regard.observe.intercept.tapped_layers import TappedLayer, TappedSites, name_in
from regard.observe.intercept.torch_attention_calls import (
    is_plain,
    read_sdpa,
    sdpa_arguments,
    unpack_groups,
)
from regard.observe.intercept.watching_mode import (
    CALL,
    announced,
    in_backward,
    modes_here,
    modes_of_all_threads,
)
from regard.observe.listening import ATTENTION
from regard.observe.selection import HeadsChosen
from regard.observe.sink import Sink
from regard.observe.tap_steps import TapSite, TapSteps
from regard.observe.watched_call import Rows, WatchedCall
from regard.observe.weigh import plain_mode
from regard.record.layers import Stream
from regard.record.missing_attention import BLOCKED, BLOCKS, Caller
from regard.torch_private import DisableTorchFunction, maybe_current_level

if TYPE_CHECKING:
    from regard.observe.intercept.compiled_tap import CompiledTap

__all__ = ["TapMode"]

_CHANGED = (
    "{} no longer computes its attention as in the first call inside the tap of it, or of a layer of its kind: open "
    "another tap after a change of the model (`set_attn_implementation`), or a tap for each layer"
)


_PART = (
    "a part of this model is compiled, whose calls a tap does not see: compile the whole model instead, "
    "`model.forward = torch.compile(model.forward)`"
)
_UNSEEN = (
    "the tapped layers were not seen in a call of the compiled model: run it once outside the tap with the stance "
    '"default" of torch.compiler, or put `with torch.compiler.set_stance("force_eager"):` around regard.tap'
)


def _has(owner: nn.Module, part: nn.Module) -> bool:
    return any(one is part for one in owner.modules())


@dataclass(eq=False)
class _Ticket:
    caller: Caller
    site: TapSite
    withdrawn: bool = False


class _TapSink(Sink):
    """Locates the calls of tapped layers, and passes them to the mode."""

    def __init__(self, model: nn.Module, see: Callable[[WatchedCall], Any], withdraw: Callable[[Any], None]) -> None:
        super().__init__(model)
        self._see, self._withdraw = see, withdraw

    def see(self, call: WatchedCall) -> Any:
        """Pass a call to the mode."""
        return self._see(call)

    def withdraw(self, ticket: Any, reason: str) -> None:
        """Remove a captured call."""
        if not ticket.withdrawn:
            ticket.withdrawn = True
            super().withdraw(ticket, reason)
            self._withdraw(ticket)


class TapMode(Interception):
    """While it is open, the rows of chosen heads are passed to `steps`, for the calls of one thread."""

    learns = False  # but by itself, of the tapped layers

    def __init__(
        self,
        model: nn.Module,
        heads: HeadsChosen,
        stream: Stream | None,
        steps: TapSteps,
        readers: Mapping[Callable[..., Any], Reader],
    ) -> None:
        super().__init__(model, _TapSink(model, self._capture, self._drop), readers)
        self.steps = steps
        self._sites = TappedSites(model, heads, stream)
        self._layers = self._sites.layers
        self._current: TappedLayer | None = None
        self._followed: set[type] = set()  # kinds of caches
        self._by_kernel = False
        self._outside, self._inside = _End((self._end_step,)), _End((self._leave_layer,))
        self._follows = False  # whether compiled code asks this mode
        self._announcing = contextlib.ExitStack()  # of the layers' calls
        self._is_compiled = False

    @property
    def heads(self) -> tuple[tuple[int | str, int], ...]:
        """The chosen heads, known after the first step."""
        return self._sites.heads

    def __enter__(self) -> Self:
        """Begin to announce the calls of the layers; the mode itself is active in their first calls only."""
        self._patches = self._announce_to_me([self._model])
        self._patches.callback(self._announce, ())
        self._follow_compiled_code()
        self._announce(self._layers.values())
        return self

    def _follow_compiled_code(self) -> None:
        if not self._follows and "torch._dynamo.eval_frame" in sys.modules:
            self._follows = True
            self._patches.enter_context(following_compiled_code())

    def _announce(self, layers: Iterable[TappedLayer]) -> None:
        """Announce the calls of these layers from now on, and of no others.

        In compiled code none are: what is set on a module would be a condition of the code.
        """
        self._announcing.close()
        for module in {id(one.module): one.module for one in layers}.values():
            self._announcing.enter_context(patched(module, CALL, functools.partial(announced, module)))

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        with self._patches:
            self.stop()
        self.follower.rules.finish()

    @functools.cached_property
    def _compiled(self) -> "CompiledTap":
        from regard.observe.intercept.compiled_tap import CompiledTap  # imports PyTorch's compiler

        return CompiledTap(self._model, self._sites, self.steps, self._take)

    def compiles(self, callback: Any, function: Any) -> Any:
        """Return what compiles the model's calls with the tapped rows; other functions are left as they are."""
        if threading.get_ident() != self._thread or in_backward() or self._is_watched:
            return callback
        if self.steps.running:
            if not self._is_compiled and self._is_part(function):
                raise ObservationError(_PART)
            return self._compiled.callback(callback) if self._is_compiled else callback
        owner = getattr(function, "__self__", None)
        if function is None or self.expects(function):
            return callback
        if isinstance(owner, nn.Module) and not self._recorder.owns(owner) and not _has(owner, self._model):
            return callback
        return self._compiled.checking(callback)

    @property
    def _is_watched(self) -> bool:
        """Whether a watch hears this thread, or this tap follows a layer."""
        return self.follower.is_active or any(one is not self for one in modes_here())

    def expects(self, function: Any) -> bool:
        """Return whether a compiled function only leads to a call of the model, which is announced."""
        return self._current is None and super().expects(function)

    def _is_part(self, function: Any) -> bool:
        """Return whether what was compiled is a module around tapped layers."""
        owner = getattr(function, "__self__", None)
        return isinstance(owner, nn.Module) and any(_has(owner, layer.module) for layer in self._layers.values())

    def listen(self, thread: int) -> None:
        """Observe another thread from now on."""
        self._thread = thread

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Process the start of a call of the model, or of a tapped layer."""
        layer = self._layers.get(id(module))
        if (layer is None and module is not self._model) or in_backward() or is_traced():
            return None
        if threading.get_ident() != self._thread:
            if module is self._model:
                with self._lock:
                    self.calls_elsewhere += 1
            return None
        begun = module is self._model and not self.steps.running
        if begun:
            self._begin_step(args, kwargs)
        if layer is None or self._current is not None:
            return self._outside if begun else None
        self._enter_layer(layer)
        return _End((self._leave_layer, self._end_step)) if begun else self._inside

    def hear(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take the weights of a call; of a layer that is known only PyTorch's kernel is looked at."""
        layer = self._current
        if layer is None or in_backward() or is_traced():
            return
        given = sdpa_arguments(args, kwargs) if operator is ATTENTION else None
        if layer.is_light:
            if given is not None:
                self._see_kernel(layer, given)
            return
        layer.heard += given is not None
        self._by_kernel = given is not None and is_plain(given)
        super().hear(operator, args, kwargs, result)
        self._by_kernel = False

    def _begin_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._follow_compiled_code()
        if runs_compiled(self._model) != self._is_compiled:
            self._is_compiled = not self._is_compiled
            if self._is_compiled:
                self._sites.refuse_compiled(self._model)
            self._announce(() if self._is_compiled else self._layers.values())
        self._sites.begin()
        self.steps.begin(args, kwargs)
        cache = self.steps.cache
        if cache is not None and type(cache) not in self._followed:
            self._followed.add(type(cache))
            for name in ("reorder_cache", "reorder", "batch_select_indices", "batch_repeat_interleave"):
                if callable(getattr(type(cache), name, None)):
                    self._patches.enter_context(patched(type(cache), name, _noting))

    def _end_step(self, ok: bool) -> None:
        if not ok or not self.steps.is_begun:
            seen = any(layer.seen for layer in self._layers.values())
            self.steps.drop()
            if ok and (seen or self._is_compiled) and not self._sites.order:
                self._settle()  # raises the reason
            if ok and self._is_compiled:
                raise ObservationError(_UNSEEN)
            return
        if not self._sites.order:
            self._settle()
        if not self.steps.is_complete(self._sites.order):
            gone = next(one for one in self._sites.order if one not in self.steps.captured)
            self.steps.drop()
            raise ObservationError(
                f"layer {gone.number} did not attend in this call, while other tapped layers did: a model that leaves "
                "out layers (an early exit) is tapped in those that it always runs"
            )
        self.steps.end(self._sites.order, self._sites.permutation)

    def _enter_layer(self, layer: TappedLayer) -> None:
        self._sites.begin_layer(layer)
        self._current = layer
        self.start(follows=not layer.is_light)

    def _leave_layer(self, ok: bool) -> None:
        layer, self._current = self._current, None
        self.stop()
        assert layer is not None
        if not ok:
            if not self.steps.running:
                self.steps.drop()
            return
        if layer.is_light and len(layer.seen) != len(layer.sites):
            raise ObservationError(_CHANGED.format(name_in(self._model, layer.module)))
        layer.end()
        if not self.steps.running and self.steps.is_begun and self._sites.are_within(self.steps.captured):
            self._end_step(ok=True)

    def _see_kernel(self, layer: TappedLayer, given: dict[str, Any]) -> None:
        """Take the weights of a call of PyTorch's kernel in a layer that has no other attention."""
        at = len(layer.seen)
        if at >= len(layer.sites):
            raise ObservationError(_CHANGED.format(name_in(self._model, layer.module)))
        site = layer.sites[at]
        layer.seen.append(site)
        if not site.heads and (site.cross or self.steps.is_placed):
            return
        with DisableTorchFunction():
            q, k = given["query"], given["key"]
            plain = is_plain(given) and maybe_current_level() is None
            if plain:
                q, _ = unpack_groups(site.groups, q, k, None)
            if not plain or q.shape[1] != site.count or q.shape[1] % k.shape[1]:
                raise ObservationError(_CHANGED.format(site.name))

            def call() -> CallFromQK:
                return read_sdpa(site.groups, given)

            sizes = q.shape[2], k.shape[2]
            self._take(site, *sizes, lambda: call().newest, lambda rows: call().weights_of(rows, site.heads))

    def _take(
        self, site: TapSite, queries: int, keys: int, newest: Callable[[], int], weigh: Callable[[Rows], Tensor]
    ) -> None:
        if site.heads:
            self.steps.capture(site, (queries, keys), newest, weigh)
        elif not site.cross:
            self.steps.place(site, queries, newest)

    def _capture(self, call: WatchedCall) -> _Ticket | None:
        """Take the weights of a call that was read as a watch reads it."""
        layer, caller = self._current, self._recorder.caller
        if layer is None:
            return None
        if caller.kind in BLOCKS:
            self._recorder.miss(caller, f"{BLOCKED}: {BLOCKS[caller.kind]}")
            layer.misses += 1
            return None
        at = len(layer.seen)
        site = layer.sites[at] if at < len(layer.sites) else None
        if site is None or (site.name, site.count) != (caller.module, call.heads):
            if self._sites.order and (layer.is_read or layer.sites):
                raise ObservationError(_CHANGED.format(caller.module or "the model"))
            known = self._sites.known(caller.module)
            site = known or self._sites.site(caller.module, self._recorder.module, call)
        layer.seen.append(site)
        layer.others = (layer.others if at else False) or not self._by_kernel
        with plain_mode(call.device):
            self._take(
                site, call.queries, call.keys, lambda: call.newest, lambda rows: call.weights_of(rows, site.heads)
            )
        return _Ticket(caller, site)

    def _drop(self, ticket: _Ticket) -> None:
        """Remove a captured call that turned out to be no attention between tokens."""
        self.steps.withdraw(ticket.site)
        if self._current is not None:
            self._current.misses += 1
            if ticket.site in self._current.seen:
                self._current.seen.remove(ticket.site)

    def _settle(self) -> None:
        """Determine the order of the heads after the first step, and announce only the modules that have them."""
        self.follower.rules.finish()  # reports softmaxes that were not used otherwise
        try:
            self._sites.settle(self._recorder.missing, compiled=self._is_compiled)
        except BaseException:
            self.steps.drop()
            raise
        if not self._is_compiled:
            self._layers = self._sites.narrowed()
            self._announce(self._layers.values())


class _End:
    """What is called at the end of an announced call."""

    def __init__(self, ends: Sequence[Callable[[bool], None]]) -> None:
        self._ends = ends

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of a call."""
        for end in self._ends:
            end(output is not None)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that reorders a cache and notes it in the taps of this thread."""

    @functools.wraps(original)
    def reorder(self: Any, rows: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, rows, *args, **kwargs)
        for mode in modes_of_all_threads():
            if isinstance(mode, TapMode) and mode._thread == threading.get_ident():
                mode.steps.reordered(self, rows)
        return result

    return reorder
