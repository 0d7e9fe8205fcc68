"""Assign intercepted calls to forward passes and call sites."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn

from regard.errors import ObservationError
from regard.observe.cached_text import drops_keys, length_of
from regard.observe.call_site import Site
from regard.observe.passes import FinishedSite, ForwardPasses, Key, Running, running
from regard.observe.requested_statistics import Asked, Keep
from regard.observe.statistics.value_norm import output_projection
from regard.observe.streams import Places, name_streams
from regard.observe.token_ids import Listener
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import BLOCKED, BLOCKS, OTHER_KEYS, Caller, Missing, sum_missing
from regard.record.records import Layer, Record
from regard.tensors import human_bytes

__all__ = ["OnLayerEnd", "Recorder"]


class OnLayerEnd(Protocol):
    """A function that is called with each finished layer of one pass over a whole text."""

    def __call__(self, number: int, layer: Layer) -> Layer | None:
        """Process a finished layer; return the layer for the record, or None for the layer itself."""
        ...


@dataclass(eq=False)
class _Ticket:
    """One recorded call, to be able to remove it."""

    caller: Caller
    site: Site | FinishedSite
    withdrawn: bool = False


class Recorder:
    """Stores recorded calls, one record per forward pass; the passes of one generation with a cache form one record."""

    def __init__(
        self,
        model: nn.Module,
        keep: Keep,
        max_bytes: int,
        *,
        asked: Asked | None = None,
        listener: Listener | None = None,
        on_layer_end: OnLayerEnd | None = None,
    ) -> None:
        self._on_layer_end = on_layer_end
        self._asked = asked or Asked(keep, max_bytes=max_bytes)
        if on_layer_end is not None:
            self._asked.check_alone()
        self._listener = listener if self._asked.needs("tokens") else None
        self._names = {id(module): name for name, module in model.named_modules()}
        self._parents = {id(child): parent for parent in model.modules() for child in parent.children()}
        self._keep: Keep = keep
        self._max_bytes = self._left = max_bytes
        self._model = model
        self.module: nn.Module | None = None  # the innermost running module of the model at the last lookup
        self._begun: object | None = None  # the last outermost call of the model, or of a part of it
        self._running = Running(None, None, outside=False)
        self._passes = ForwardPasses(self._asked.of_pass)
        self._withdrawn: set[Site | FinishedSite] = set()  # sites that are no attention between tokens
        self._turns: dict[str, int] = {}
        self._places = Places(model)
        self._marks: dict[int, dict[int, object]] = {}  # of each module's calls in this pass; kept, so they differ
        self._run = 0  # number of runs of the model
        self._missed: Counter[tuple[Caller, str]] = Counter()
        self.calls = 0  # total number of attention calls

    @property
    def index(self) -> int:
        """The index of the record that the last call belongs to; −1 before the first call."""
        return self._passes.index

    @property
    def caller(self) -> Caller:
        """The module that was located last, and the run it belongs to."""
        name = "" if self.module is None else self._names[id(self.module)]
        return Caller(name, type(self.module or self._model).__name__, self._run)

    @property
    def running(self) -> Running:
        """The modules that were running at the last lookup."""
        return self._running

    @property
    def wants_output(self) -> bool:
        """Whether a statistic needs the output of attention besides the weights."""
        return self._asked.needs("gradient")

    def owns(self, module: nn.Module) -> bool:
        """Return whether it is the model or a part of it."""
        return id(module) in self._names

    def locate(self, weight: Tensor | None = None) -> bool:
        """Locate the module that is running in this thread; return False if it belongs to another model.

        A kernel that computes a whole nn.TransformerEncoderLayer does not call its attention module, so the module
        with this weight is used instead.
        """
        now = running(self.owns)
        if weight is not None and (found := self._with_weight(now.module, weight)) is not None:
            now = replace(now, module=found, outside=False, begun=object() if now.begun is None else now.begun)
        self.place(now)
        return not now.outside

    def find_caller(self) -> Caller | None:
        """Return the module that is running in this thread, or None if it belongs to another model."""
        return self.caller if self.locate() else None

    def place(self, now: Running) -> None:
        """Take the modules that are running, where they are known otherwise than by this thread's stack of calls."""
        self.module, self._running = now.module, now
        if now.begun is not None and now.begun is not self._begun:
            self._begun, self._turns, self._marks = now.begun, {}, {}
            self._run += 1
        for module, mark in now.calls:
            self._marks.setdefault(id(module), {})[id(mark)] = mark

    def _with_weight(self, layer: nn.Module | None, weight: Tensor) -> nn.Module | None:
        inside = getattr(layer, "self_attn", None)
        if isinstance(inside, nn.MultiheadAttention) and self.owns(inside):
            return inside
        found = (one for one in self._model.modules() if isinstance(one, nn.MultiheadAttention))
        return next((one for one in found if one.in_proj_weight is weight), None)

    def miss(self, caller: Caller, reason: str) -> None:
        """Count attention that cannot be recorded."""
        self._missed[caller, reason] += 1

    def withdraw(self, ticket: _Ticket, reason: str) -> None:
        """Remove a recorded call, because a later call shows that it is not attention between tokens."""
        if not ticket.withdrawn:
            ticket.withdrawn = True
            self._withdrawn.add(ticket.site)
            self.miss(ticket.caller, reason)

    def see(self, call: WatchedCall) -> _Ticket | None:
        """Process a call at the site it belongs to."""
        caller = self.caller
        if caller.kind in BLOCKS:
            self.miss(caller, f"{BLOCKED}: {BLOCKS[caller.kind]}")
            return None
        name = caller.module
        turn = self._turns.get(name, 0)
        if turn and self._loops(name, turn - 1, call):
            turn -= 1
        self._turns[name] = turn + 1
        self.calls += 1
        key = name, turn
        site = self._passes.find(key, call, self._run, self._running)
        if site is not None and site in self._passes.unrelated:
            self._leave_out(site, caller)
            return None
        if site is None:
            site = self._new(key, call)
            self._passes.add(key, site)
        self._passes.ran(caller.run)
        if isinstance(site, Site):
            site = self._add_rows(site, call)
            self._passes.now.sites[key] = site
        return _Ticket(caller, site)

    def _add_rows(self, site: Site, call: WatchedCall) -> Site | FinishedSite:
        """Process the rows of a call; return the site, or what it is now if no further call is expected."""
        if self._keep == "weights" and site.watched:
            self._spend(site, call)
        site.see(call)
        if self._on_layer_end is None or not site.watched:
            return site
        finished = site.finish()
        layer = self._on_layer_end(len(self._passes.now.sites) - 1, finished) or finished
        return FinishedSite(site.place, site.name, layer, fallback_reason=site.fallback_reason)

    def _leave_out(self, site: Site | FinishedSite, caller: Caller) -> None:
        """Count as missing a call that does not continue its site although other layers do, and the call before it."""
        if site not in self._withdrawn:
            self._withdrawn.add(site)
            self.miss(caller, OTHER_KEYS)
        self.miss(caller, OTHER_KEYS)

    def _loops(self, name: str, turn: int, call: WatchedCall) -> bool:
        """Return whether it is the next step of a recurrent decoder: one query over the keys of the previous call."""
        known = self._passes.now.sites.get((name, turn))
        return known is not None and call.queries == 1 and known.crosses and known.continues(call)

    def _new(self, key: Key, call: WatchedCall) -> Site:
        """Return a new site of the forward pass."""
        forward, module = self._passes.now, self.module
        parent = self._parents.get(id(module)) if module is not None else None
        name = _named(key)
        place = self._places.of(key[0], {module: len(marks) for module, marks in self._marks.items()})
        number = place.number if place.number is not None and not key[1] else len(forward.sites)
        cache = self._running.cache
        return Site(
            name,
            place,
            self._asked.of_site(forward.across, number, name),
            watched=self._asked.watches(number, name),
            heads=self._asked.heads_of(number, name, call.heads),
            queries=self._asked.queries,
            read=length_of(cache),
            drops_keys=drops_keys(cache, place.number),
            listener=self._listener,
            find_projection=lambda width: output_projection(module, parent, width, name),
        )

    def _spend(self, site: Site, call: WatchedCall) -> None:
        needed = site.needed_bytes(call)
        if needed > self._left:
            raise ObservationError(
                f'keep="weights" needs {human_bytes(needed)} more at {site.name or "this call"}, and '
                f"{human_bytes(self._left)} of the limit of {human_bytes(self._max_bytes)} are left: "
                'raise `max_bytes`, pass a shorter text, or keep="maps", which answers most questions'
            )
        self._left -= needed

    @property
    def fallback_reasons(self) -> dict[str, str]:
        """The sites that the kernel of regard.use_backend has not processed, with the reasons."""
        sites = (site for forward in self._passes.all for site in forward.sites.values())
        return {one.name: one.fallback_reason for one in sites if one.fallback_reason is not None}

    def finish(self) -> tuple[Record, ...]:
        """Return the records, in the order of the passes; a record whose calls were all removed has no layers."""
        if self._passes.all:
            self._asked.check_layers()
        seen = ([site for site in one.sites.values() if site not in self._withdrawn] for one in self._passes.all)
        return tuple(map(_record, seen, self._shared_out()))

    def close(self) -> None:
        """Drop what was stored, which cycles of references would keep until Python's garbage collector runs."""
        self._passes.close()

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The attention that could not be recorded, over all passes."""
        return _entries(self._missed)

    def _shared_out(self) -> list[tuple[Missing, ...]]:
        """Return the missing attention of each pass, by the run of the model in which it was missed."""
        passes = self._passes.all
        counts: list[Counter[tuple[Caller, str]]] = [Counter() for _ in passes]
        kept = [at for at, one in enumerate(passes) if set(one.sites.values()) - self._withdrawn]
        for (caller, reason), calls in self._missed.items() if kept else ():
            begun = [at for at in kept if min(passes[at].runs) <= caller.run]
            own = [at for at in begun if caller.run in passes[at].runs]
            counts[(own or begun or kept[:1])[-1]][caller, reason] += calls
        return [_entries(one) for one in counts]


def _entries(missed: Counter[tuple[Caller, str]]) -> tuple[Missing, ...]:
    return sum_missing(Missing(one.module, f"{one.kind} {reason}", calls) for (one, reason), calls in missed.items())


def _record(sites: Sequence[Site | FinishedSite], missing: tuple[Missing, ...]) -> Record:
    """Return the record of one pass; for a generation, `notes["prompt"]` is the number of rows of the prompt."""
    layers = tuple(site.finish() for site in sites)
    pairs = [(one, layer) for one, layer in zip(sites, layers, strict=True) if isinstance(one, Site)]
    read = {one.read for one, layer in pairs if layer.kind == "self" and one.read < layer.queries}
    notes = {"prompt": read.pop()} if len(read) == 1 and 0 not in read else {}
    named = name_streams(layers, [site.place for site in sites])  # of all layers: they depend on each other
    watched = (
        layer for site, layer in zip(sites, named, strict=True) if isinstance(site, FinishedSite) or site.watched
    )
    return Record(tuple(watched), notes=notes, missing=missing)


def _named(key: Key) -> str:
    """Return the name of a site: the module's, with a number if the module was called before in the same pass."""
    return key[0] if key[1] == 0 else f"{key[0]}#{key[1] + 1}"
