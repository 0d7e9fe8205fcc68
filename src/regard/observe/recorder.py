"""Assign intercepted calls to forward passes and call sites."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn

from regard.errors import ObservationError, RegardError
from regard.observe.cached_text import drops_keys, length_of
from regard.observe.call_site import Site
from regard.observe.enclosing import Enclosing
from regard.observe.padding import HeardMasks, SitePadding
from regard.observe.passes import FinishedSite, Forward, ForwardPasses, Key
from regard.observe.requested_statistics import Asked, Keep
from regard.observe.run_statistics import conclude, fold_together
from regard.observe.sink import Sink, entries
from regard.observe.statistics import Statistic
from regard.observe.statistics.value_norm import output_projection
from regard.observe.streams import Places, name_streams
from regard.observe.token_ids import Listener
from regard.observe.watched_call import WatchedCall
from regard.record.missing_attention import BLOCKED, BLOCKS, OTHER_KEYS, Caller, Missing
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


class Recorder(Sink):
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
        super().__init__(model)
        self._on_layer_end = on_layer_end
        self._asked = asked or Asked(keep, max_bytes=max_bytes)
        if on_layer_end is not None:
            self._asked.check_alone()
        self.masks = HeardMasks(model)
        self._ids = listener
        self._peeks = not self._asked.needs("tokens")  # whether statistics do without ids, which one may use
        self._listener = listener if not self._peeks or self._asked.may_use_tokens else None
        self._keep: Keep = keep
        self._max_bytes = self._left = max_bytes
        self._passes = ForwardPasses(self._asked.of_pass, self._reorder)
        self._withdrawn: set[Site | FinishedSite] = set()  # sites that are no attention between tokens
        self._turns, self._of_run = dict[str, int](), 0
        self._enclosing = Enclosing() if self._asked.needs("layers") else None
        self._every_layer: list[tuple[Layer, ...]] = []  # of each pass, with those that are not watched
        self._places = Places(model, self.learned.places)

    @property
    def index(self) -> int:
        """The index of the record that the last call belongs to; −1 before the first call."""
        return self._passes.index

    @property
    def needs_output(self) -> bool:  # type: ignore[override]
        """Whether a statistic needs the output of attention besides the weights."""
        return self._asked.needs("gradient")

    def _reorder(self, index: int, rows: Tensor) -> None:
        if self._ids is not None:
            self._ids.reorder(index, rows)

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
        if self._of_run != self.run:
            self._turns, self._of_run = {}, self.run
        turn = self._turns.get(name, 0)
        if turn and self._loops(name, turn - 1, call):
            turn -= 1
        self._turns[name] = turn + 1
        self.calls += 1
        key = name, turn
        site = self._passes.find(key, call, self.run, self.now)
        if site is not None and site in self._passes.unrelated:
            self._leave_out(site, caller)
            return None
        if site is None:
            site = self._new(key, call)
            self._passes.add(key, site)
        self._passes.ran(caller.run)
        if self._enclosing is not None:
            call = call.having(apart=self._enclosing.apart(self, call))
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
        assert self.masks is not None
        forward, module = self._passes.now, self.module
        name = _named(key)
        place = self._places.of(key[0], self.entries())
        number = place.number if place.number is not None and not key[1] else len(forward.sites)
        cache = self.now.cache
        return Site(
            name,
            place,
            self._asked.of_site(forward.across, number, name),
            watched=self._asked.watches(number, name),
            heads=self._asked.heads_of(number, name, call.heads),
            queries=self._asked.queries,
            read=length_of(cache),
            drops_keys=drops_keys(cache, place.number),
            shared=forward.across.values(),
            listener=self._listener,
            peeks=self._peeks,
            padding=SitePadding(place, self.masks),
            find_projection=lambda width: output_projection(module, self._parent_of(module), width, name),
        )

    def _parent_of(self, module: nn.Module | None) -> nn.Module | None:
        return next((one for one in self.model.modules() if any(child is module for child in one.children())), None)

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
        seen = [[site for site in one.sites.values() if site not in self._withdrawn] for one in self._passes.all]
        for sites in seen:
            fold_together([one.waiting for one in sites if isinstance(one, Site) and one.watched])
        pairs = list(map(_record, seen, self._shared_out()))
        self._every_layer = [layers for _, layers in pairs]
        return tuple(record for record, _ in pairs)

    def with_shared(self, index: int, record: Record) -> tuple[Record, list[RegardError]]:
        """Return the finished record of a pass with the statistics over all its layers, and what refused the others."""
        forward, refusals = self._passes.all[index], list[RegardError]()
        for statistic in forward.across.values():
            try:
                record = self._with_shared(statistic, forward, record, self._every_layer[index])
            except RegardError as refusal:
                refusals.append(refusal)
        return record, refusals

    def _with_shared(
        self, statistic: Statistic, forward: Forward, record: Record, every_layer: tuple[Layer, ...]
    ) -> Record:
        if forward.refusal is not None:
            raise ObservationError(forward.refusal(statistic.name))
        sites = [one for one in forward.sites.values() if isinstance(one, Site) and one not in self._withdrawn]
        conclude(statistic, replace(record, layers=every_layer), sites[0].waiting[1].device)
        pairs = zip((one for one in sites if one.watched), record.layers, strict=True)
        return replace(record, layers=tuple(site.with_shared(layer, statistic) for site, layer in pairs))

    def close(self) -> None:
        """Drop what was stored, which cycles of references would keep until Python's garbage collector runs."""
        self._every_layer = []
        self._passes.close()

    def _shared_out(self) -> list[tuple[Missing, ...]]:
        """Return the missing attention of each pass, by the run of the model in which it was missed."""
        passes = self._passes.all
        counts: list[Counter[tuple[Caller, str]]] = [Counter() for _ in passes]
        kept = [at for at, one in enumerate(passes) if set(one.sites.values()) - self._withdrawn]
        for (caller, reason), calls in self.missed.items() if kept else ():
            begun = [at for at in kept if min(passes[at].runs) <= caller.run]
            own = [at for at in begun if caller.run in passes[at].runs]
            counts[(own or begun or kept[:1])[-1]][caller, reason] += calls
        return [entries(one) for one in counts]


def _record(sites: Sequence[Site | FinishedSite], missing: tuple[Missing, ...]) -> tuple[Record, tuple[Layer, ...]]:
    """Return the record of one pass, and all its layers, also those that are not watched; for a generation,
    `notes["prompt"]` is the number of rows of the prompt.
    """
    layers = tuple(site.finish() for site in sites)
    pairs = [(one, layer) for one, layer in zip(sites, layers, strict=True) if isinstance(one, Site)]
    read = {one.read for one, layer in pairs if layer.kind == "self" and one.read < layer.queries}
    notes = {"prompt": read.pop()} if len(read) == 1 and 0 not in read else {}
    named = name_streams(layers, [site.place for site in sites])  # of all layers: they depend on each other
    watched = (
        layer for site, layer in zip(sites, named, strict=True) if isinstance(site, FinishedSite) or site.watched
    )
    return Record(tuple(watched), notes=notes, missing=missing), named


def _named(key: Key) -> str:
    """Return the name of a site: the module's, with a number if the module was called before in the same pass."""
    return key[0] if key[1] == 0 else f"{key[0]}#{key[1] + 1}"
