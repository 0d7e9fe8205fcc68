"""The interception of chosen layers only, for a model that generates.

The layers' calls are announced (`watching_mode.py`), and the torch-function mode is active only while one of them runs:
the rest of the model runs without any mode. In its first call a layer is read as a watch reads it, which finds its
attention however it is computed. If that was PyTorch's kernel alone, further calls look at the kernel only.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from regard.capture.intercept.call_names_and_products import TorchCall
from regard.capture.intercept.exchanged_functions import patched, showing_scripts
from regard.capture.intercept.interception import KERNEL, Interception, Reader, is_traced, sdpa_arguments
from regard.capture.intercept.tapped_layers import TappedLayer, name_in, tapped_layers
from regard.capture.intercept.torch_attention_calls import is_transformed, read_sdpa, unpack_groups
from regard.capture.intercept.watching_mode import CALL, announced, in_backward, modes_of_all_threads, restack
from regard.capture.layers import Stream
from regard.capture.missing_attention import BLOCKED, BLOCKS, Caller, missing_lines
from regard.capture.recorder import Recorder
from regard.capture.row_weights import Rows, plain_mode, weights_of_rows, weights_of_sdpa
from regard.capture.selection import HeadsChosen
from regard.capture.streams import Places
from regard.capture.tap_steps import Site, Steps
from regard.capture.watched_call import WatchedCall
from regard.errors import InputError, ObservationError
from regard.torch_private import DisableTorchFunction, get_current_function_mode_stack, pop_mode, push_mode

__all__ = ["TapMode"]

_CHANGED = (
    "{} no longer computes its attention as in its first call inside the tap: open another tap after a change of the "
    "model (`set_attn_implementation`)"
)


@dataclass(eq=False)
class _Ticket:
    """One captured call, to be able to remove it."""

    caller: Caller
    site: Site
    withdrawn: bool = False


class _TapRecorder(Recorder):
    """Locates the calls of tapped layers, and passes them to the mode."""

    def __init__(self, model: nn.Module, see: Callable[[WatchedCall], Any], withdraw: Callable[[Any], None]) -> None:
        super().__init__(model, "maps", 0)
        self._see, self._withdraw = see, withdraw

    def see(self, call: WatchedCall) -> Any:
        """Pass a call to the mode."""
        return self._see(call)

    def withdraw(self, ticket: Any, reason: str) -> None:
        """Remove a captured call."""
        if not ticket.withdrawn:
            ticket.withdrawn = True
            self.miss(ticket.caller, reason)
            self._withdraw(ticket)


class TapMode(Interception):
    """While it is open, the rows of chosen heads are passed to `steps`, for the calls of one thread."""

    def __init__(
        self,
        model: nn.Module,
        heads: HeadsChosen,
        stream: Stream | None,
        steps: Steps,
        readers: Mapping[Callable[..., Any], Reader],
    ) -> None:
        super().__init__(model, _TapRecorder(model, self._capture, self._drop), readers)
        self.steps = steps
        self._chosen, self._stream = heads, stream
        self._places = Places(model)
        self._layers, self._by_order = tapped_layers(model, heads, self._places, stream)
        self._current: TappedLayer | None = None
        self._followed: set[type] = set()  # kinds of caches
        self._order: tuple[Site, ...] = ()  # the chosen sites, known after the first step
        self._permutation: list[int] | None = None
        self.heads: tuple[tuple[int | str, int], ...] = ()
        self._turns: dict[str, int] = {}
        self._by_kernel = False
        self._outside, self._inside = _End((self._end_step,)), _End((self._leave_layer,))

    def __enter__(self) -> Self:
        """Begin to announce the calls of the layers; the mode itself is active inside of them only."""
        self._scripts.enter_context(showing_scripts(self._scripted))
        modules = {id(one): one for one in (self._model, *(layer.module for layer in self._layers.values()))}
        self._patches = self._exchange(modules.values())
        return self

    def __exit__(self, *raised: Any) -> None:
        """Restore everything, also after an error."""
        with self._scripts, self._patches:
            self._leave_stack()
        self._eager.finish()

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

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the call, then process it."""
        layer = self._current
        if layer is None or not layer.is_light:
            return super().__torch_function__(func, types, args, kwargs)
        result = func(*args, **(kwargs or {}))
        if func is KERNEL:
            self._see_kernel(layer, sdpa_arguments(args, kwargs or {}))
        return result

    def _look(self, call: TorchCall, result: Any) -> None:
        self._by_kernel = call.func is KERNEL and _is_plain(sdpa_arguments(call.args, call.kwargs))
        super()._look(call, result)

    def _begin_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._turns = {}
        self.steps.begin(args, kwargs)
        cache = self.steps.cache
        if cache is not None and type(cache) not in self._followed:
            self._followed.add(type(cache))
            for name in ("reorder_cache", "reorder"):
                if callable(getattr(type(cache), name, None)):
                    self._patches.enter_context(patched(type(cache), name, _noting))

    def _end_step(self, ok: bool) -> None:
        if not ok or not self.steps.is_begun:
            seen = any(layer.seen for layer in self._layers.values())
            self.steps.drop()
            if ok and seen and not self._order:
                self._settle()  # raises the reason
            return
        if not self._order:
            self._settle()
        if not self.steps.is_complete(self._order):
            gone = next(one for one in self._order if one not in self.steps.captured)
            self.steps.drop()
            raise ObservationError(
                f"layer {gone.number} did not attend in this call, while other tapped layers did: a model that leaves "
                "out layers (an early exit) is tapped in those that it always runs"
            )
        self.steps.end(self._order, self._permutation)

    def _enter_layer(self, layer: TappedLayer) -> None:
        layer.seen, layer.misses, self._current = [], 0, layer
        push_mode(self)

    def _leave_layer(self, ok: bool) -> None:
        layer, self._current = self._current, None
        self._leave_stack()
        assert layer is not None
        if not ok:
            if not self.steps.running:
                self.steps.drop()
            return
        if layer.is_light and len(layer.seen) != len(layer.sites):
            raise ObservationError(_CHANGED.format(name_in(self._model, layer.module)))
        if not layer.is_light:
            layer.sites = tuple(layer.seen)
            layer.is_light = bool(layer.sites) and not layer.misses and not layer.others
        if not self.steps.running and self.steps.is_begun and self._is_covered():
            self._end_step(ok=True)

    def _leave_stack(self) -> None:
        """Remove the mode from this thread's stack, if it is there."""
        stack = get_current_function_mode_stack()
        if stack and stack[-1] is self:
            pop_mode()
        elif self in stack:
            restack([one for one in stack if one is not self])

    def _is_covered(self) -> bool:
        if self._order:
            return self.steps.is_complete(self._order)
        return set(self._chosen.layers) <= {site.number for site in self.steps.captured}

    def _see_kernel(self, layer: TappedLayer, given: dict[str, Any]) -> None:
        """Take the weights of a call of PyTorch's kernel in a layer that has no other attention."""
        at = len(layer.seen)
        if at >= len(layer.sites):
            raise ObservationError(_CHANGED.format(name_in(self._model, layer.module)))
        site = layer.sites[at]
        layer.seen.append(site)
        if not site.heads and (site.cross or self.steps.is_placed):
            return
        with DisableTorchFunction(), plain_mode(given["query"].device):
            q, k, mask = given["query"], given["key"], given.get("attn_mask")
            plain = _is_plain(given) and not is_transformed()
            if plain:
                q, mask = unpack_groups(site.module, q, k, mask)
            if not plain or q.shape[1] != site.count or q.shape[1] % k.shape[1]:
                raise ObservationError(_CHANGED.format(site.name))

            def weigh(rows: Rows) -> Tensor:
                if not isinstance(rows, slice):
                    return weights_of_rows(read_sdpa(site.module, given), rows, site.heads)
                causal, scale = given.get("is_causal", False), given.get("scale")
                return weights_of_sdpa(q, k, rows, site.heads, mask=mask, is_causal=causal, scale=scale)

            self._take(site, q.shape[2], k.shape[2], lambda: read_sdpa(site.module, given).newest, weigh)

    def _take(
        self, site: Site, queries: int, keys: int, newest: Callable[[], int], weigh: Callable[[Rows], Tensor]
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
            if self._order:
                raise ObservationError(_CHANGED.format(caller.module or "the model"))
            site = self._site(caller.module, call)
        layer.seen.append(site)
        layer.others = (layer.others if at else False) or not self._by_kernel
        with plain_mode(call.device):
            self._take(
                site, call.queries, call.keys, lambda: call.newest, lambda rows: weights_of_rows(call, rows, site.heads)
            )
        return _Ticket(caller, site)

    def _site(self, name: str, call: WatchedCall) -> Site:
        cross = bool(call.cross)
        place = self._places.of(name, {})
        number = place.number
        if self._by_order:
            kind = "cross" if cross else "self"
            number = self._turns.get(kind, 0)
            self._turns[kind] = number + 1
        own = self._stream if isinstance(self._stream, str) or self._stream is None else self._stream[0]
        of_kind = cross == (isinstance(self._stream, tuple))
        matches = of_kind and (own is None or own in place.own_streams)
        heads = self._chosen.of_layer(number, name, call.heads) if matches else ()
        label = name if name in self._chosen.layers else -1 if number is None else number
        return Site(label, name, self._recorder.module, heads, cross, call.heads)

    def _drop(self, ticket: _Ticket) -> None:
        """Remove a captured call that turned out to be no attention between tokens."""
        self.steps.withdraw(ticket.site)
        if self._current is not None:
            self._current.misses += 1
            if ticket.site in self._current.seen:
                self._current.seen.remove(ticket.site)

    def _settle(self) -> None:
        """Determine the order of the heads after the first step, and refuse what is ambiguous or was not seen."""
        sites = [site for layer in self._layers.values() for site in layer.seen if site.heads]
        by_label: dict[int | str, list[Site]] = {}
        for site in sites:
            by_label.setdefault(site.number, []).append(site)
        for label in self._chosen.layers:
            found = by_label.get(label, [])
            if len(found) > 1:
                names = ", ".join(repr(one.name) for one in found)
                self.steps.drop()
                raise InputError(
                    f"layer {label} of `heads` has {len(found)} attention modules: name one of {names}, as in "
                    f"({found[0].name!r}, 0), or its `stream`"
                )
            if not found:
                self.steps.drop()
                raise self._unseen(label)
        self._order = tuple(by_label[label][0] for label in self._chosen.layers)
        flat = [(site.number, head) for site in self._order for head in site.heads]
        given = [
            (layer, one)
            for layer, head in self._chosen.pairs
            for one in (by_label[layer][0].heads if head is None else [head])
        ]
        self.heads = tuple(given)
        self._permutation = None if flat == given else [flat.index(one) for one in given]
        self._narrow()

    def _narrow(self) -> None:
        """Look only into the modules that attend, where each of a layer's does so once by PyTorch's kernel."""
        found: dict[int, TappedLayer] = {}
        for key, layer in self._layers.items():
            chosen = [site for site in layer.seen if site in self._order]
            kept = [site for site in layer.seen if site in chosen or any(one.cross for one in chosen)]
            inner = {id(site.module): site.module for site in layer.seen}
            if not chosen:
                continue
            if not layer.is_light or self._by_order or len(inner) < len(layer.seen) or id(layer.module) in inner:
                found[key] = layer
                continue
            for site in kept:
                found[id(site.module)] = TappedLayer(site.module, (site,), is_light=True)
                announce = functools.partial(announced, site.module)
                self._patches.enter_context(patched(site.module, CALL, announce))
        self._layers = found

    def _unseen(self, label: int | str) -> Exception:
        """Return why a chosen layer has no attention that was seen."""
        missing = self._recorder.missing
        if missing:
            return ObservationError(f"layer {label} cannot be tapped: {'; '.join(missing_lines(missing))}")
        seen = [site for layer in self._layers.values() for site in layer.seen]
        if self._stream is None and any(site.cross for site in seen):
            return InputError(
                f"layer {label} has no self-attention that was seen: for its cross-attention give a `stream`, such as "
                '("target", "source")'
            )
        there = ", ".join(dict.fromkeys(str(site.name) for site in seen)) or "none"
        return ObservationError(
            f"layer {label} did not attend in this call, or not in the stream {self._stream!r}; seen: {there}"
        )


class _End:
    """What is called at the end of an announced call."""

    def __init__(self, ends: Sequence[Callable[[bool], None]]) -> None:
        self._ends = ends

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Process the start of a call."""

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Process the end of a call."""
        for end in self._ends:
            end(output is not None)


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Return whether a kernel's call has four dimensions, and as many sequences of keys as of queries."""
    q, k = given["query"], given["key"]
    return not q.is_nested and q.ndim == k.ndim == 4 and len(q) == len(k) and k.shape[1] > 0


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
