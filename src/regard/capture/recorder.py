"""Sorts the calls that were intercepted into forward passes and call sites."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from regard.capture.call_site import Keep, Seen, Site
from regard.capture.layer_location import Place, Places
from regard.capture.missing_attention import Caller, Missing, sum_missing
from regard.capture.output_projection import output_projection
from regard.capture.records import Layer, Record
from regard.capture.requested_statistics import Asked
from regard.capture.running_modules import running
from regard.capture.statistics import Statistic
from regard.capture.streams import name_streams
from regard.capture.token_ids import Listener
from regard.errors import ObservationError
from regard.shapes import human_bytes

__all__ = ["OnLayerEnd", "Recorder"]


class OnLayerEnd(Protocol):
    """A function of each finished layer of one pass over a whole text.

    An object may have a method `known(number, name)` too: it returns a layer that need not be observed again, or None.
    """

    def __call__(self, number: int, layer: Layer) -> Layer | None:
        """Take a finished layer; return what the record is to hold in its place, or None for the layer itself."""
        ...


@dataclass(frozen=True, eq=False)
class _Finished:
    """A site of which nothing more is to come."""

    place: Place
    name: str
    layer: Layer
    crosses: bool = False
    fallback_reason: str | None = None

    def continues(self, seen: Seen) -> bool:
        """No second call belongs to it."""
        raise ObservationError(
            f"{self.name or 'this call'} was called twice, and layers that are taken as they are finished need one "
            "pass over the whole text: watch it without `on_layer_end=`"
        )

    def finish(self) -> Layer:
        """The layer."""
        return self.layer


@dataclass(eq=False)
class _Forward:
    """One forward pass: its sites by module name and how often that module had been called."""

    across: dict[int, Statistic]  # statistics that go through all its layers
    sites: dict[tuple[str, int], Site | _Finished] = field(default_factory=dict)
    runs: set[int] = field(default_factory=set)  # of the model
    withdrawn: set[tuple[str, int]] = field(default_factory=set)  # sites that were no attention of tokens after all


@dataclass(eq=False)
class _Ticket:
    """One call that was seen, for taking it back."""

    caller: Caller
    forward: _Forward
    key: tuple[str, int]
    withdrawn: bool = False


class Recorder:
    """Keeps what is seen, one record a forward pass; the passes of one generation with a cache are one record."""

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
        self.module: nn.Module | None = None  # the innermost one of the model that ran when it was last looked for
        self._begun: object | None = None  # the outermost call of the model, or of a part of it, that was seen last
        self._forwards: list[_Forward] = []
        self._turns: dict[str, int] = {}
        self._places = Places(model)
        self._marks: dict[int, dict[int, object]] = {}  # of the calls of each module in this pass, kept so as to differ
        self._run = 0  # how often the model has begun
        self._missed: Counter[tuple[Caller, str]] = Counter()
        self.calls = 0  # attention calls seen in all

    @property
    def passes(self) -> int:
        """How many forward passes there are so far."""
        return len(self._forwards)

    @property
    def caller(self) -> Caller:
        """The module that was located last, and in which run."""
        name = "" if self.module is None else self._names[id(self.module)]
        return Caller(name, type(self.module or self._model).__name__, self._run)

    @property
    def wants_output(self) -> bool:
        """Whether a statistic asks what attention gave, and not only what it looked at."""
        return self._asked.needs("gradient")

    def owns(self, module: nn.Module) -> bool:
        """Whether it is the model or a part of it."""
        return id(module) in self._names

    def locate(self, weight: Tensor | None = None) -> bool:
        """Find the module that runs now in this thread; False where that is another model's.

        Inside a kernel that computes a whole nn.TransformerEncoderLayer no attention runs: the one that has this weight
        stands in for it, in whatever layer it is.
        """
        now = running(self.owns)
        self.module, begun, outside = now.module, now.begun, now.outside
        if weight is not None and (found := self._with_weight(now.module, weight)) is not None:
            self.module, outside = found, False
            begun = object() if begun is None else begun
        if begun is not None and begun is not self._begun:
            self._begun, self._turns, self._marks = begun, {}, {}
            self._run += 1
        for module, mark in now.calls:
            self._marks.setdefault(id(module), {})[id(mark)] = mark
        return not outside

    def _with_weight(self, layer: nn.Module | None, weight: Tensor) -> nn.Module | None:
        inside = getattr(layer, "self_attn", None)
        if isinstance(inside, nn.MultiheadAttention) and self.owns(inside):
            return inside
        found = (one for one in self._model.modules() if isinstance(one, nn.MultiheadAttention))
        return next((one for one in found if one.in_proj_weight is weight), None)

    def miss(self, caller: Caller, reason: str) -> None:
        """Count attention that cannot be seen."""
        self._missed[caller, reason] += 1

    def withdraw(self, ticket: _Ticket, reason: str) -> None:
        """Take back a call that was seen: what came of it shows that it is missing."""
        if not ticket.withdrawn:
            ticket.withdrawn = True
            ticket.forward.withdrawn.add(ticket.key)
            self.miss(ticket.caller, reason)

    def see(self, seen: Seen) -> _Ticket | None:
        """Fold a call into the site it belongs to."""
        caller = self.caller
        if caller.kind in _BLOCKS:
            self.miss(caller, f"{_BLOCKED}: {_BLOCKS[caller.kind]}")
            return None
        name = caller.module
        turn = self._turns.get(name, 0)
        if turn and self._loops(name, turn - 1, seen):
            turn -= 1
        self._turns[name] = turn + 1
        self.calls += 1
        if self._on_layer_end is not None and self._take_known(self._on_layer_end, (name, turn), seen):
            return self._ticket(caller, (name, turn))
        site = self._site((name, turn), seen)
        assert isinstance(site, Site)
        if self._keep == "weights" and site.watched:
            self._spend(site, seen)
        site.see(seen)
        if self._on_layer_end is not None and site.watched:
            sites = self._forwards[-1].sites
            finished = site.finish()
            layer = self._on_layer_end(len(sites) - 1, finished) or finished
            sites[name, turn] = _Finished(site.place, site.name, layer, fallback_reason=site.fallback_reason)
        return self._ticket(caller, (name, turn))

    def _ticket(self, caller: Caller, key: tuple[str, int]) -> _Ticket:
        forward = self._forwards[-1]
        forward.runs.add(caller.run)
        return _Ticket(caller, forward, key)

    def _take_known(self, on_layer_end: OnLayerEnd, key: tuple[str, int], seen: Seen) -> bool:
        """Whether the layer is known already, so that its rows need not be gone through."""
        if not self._forwards:
            self._forwards.append(_Forward(self._asked.of_pass()))
        sites = self._forwards[-1].sites
        if key in sites:
            sites[key].continues(seen)  # says what is wrong
        name = _named(key)
        known = getattr(on_layer_end, "known", None)
        layer = None if known is None else known(len(sites), name)
        if layer is None:
            return False
        if (layer.batch, layer.heads) != (seen.call.batch, seen.call.heads):
            return False
        self._asked.watches(len(sites), name)
        sites[key] = _Finished(self._place(key[0]), name, layer)
        return True

    def _place(self, path: str) -> Place:
        return self._places.of(path, {module: len(marks) for module, marks in self._marks.items()})

    def _loops(self, name: str, turn: int, seen: Seen) -> bool:
        """Whether it is the next step of a recurrent decoder: one query over the keys of the call just before."""
        known = self._forwards[-1].sites.get((name, turn)) if self._forwards else None
        return known is not None and seen.call.queries == 1 and known.crosses and known.continues(seen)

    def _site(self, key: tuple[str, int], seen: Seen) -> Site | _Finished:
        """The site itself where the call continues it; a new forward pass where it was seen and does not."""
        if not self._forwards:
            self._forwards.append(_Forward(self._asked.of_pass()))
        known = self._forwards[-1].sites.get(key)
        if known is not None and known.continues(seen):
            return known
        if known is not None:
            self._forwards.append(_Forward(self._asked.of_pass()))
        forward, module = self._forwards[-1], self.module
        parent = self._parents.get(id(module)) if module is not None else None
        name = _named(key)
        place = self._place(key[0])
        number = place.number if place.number is not None and not key[1] else len(forward.sites)
        site = Site(
            name,
            place,
            self._asked.of_site(forward.across, number, name),
            watched=self._asked.watches(number, name),
            listener=self._listener,
            find_projection=lambda width: output_projection(module, parent, width, name),
        )
        forward.sites[key] = site
        return site

    def _spend(self, site: Site, seen: Seen) -> None:
        needed = site.needed_bytes(seen)
        if needed > self._left:
            raise ObservationError(
                f'keep="weights" needs {human_bytes(needed)} more at {site.name or "this call"}, and '
                f"{human_bytes(self._left)} of the limit of {human_bytes(self._max_bytes)} are left: "
                'raise `max_bytes`, pass a shorter text, or keep="maps", which answers most questions'
            )
        self._left -= needed

    @property
    def fallback_reasons(self) -> dict[str, str]:
        """The sites that the kernel of regard.use_backend has not served, and why."""
        sites = (site for forward in self._forwards for site in forward.sites.values())
        return {one.name: one.fallback_reason for one in sites if one.fallback_reason is not None}

    def finish(self) -> tuple[Record, ...]:
        """The records, in the order of the passes; those of which all was taken back have no layers."""
        if self._forwards:
            longest = max((forward.sites.values() for forward in self._forwards), key=len)
            self._asked.check_layers([site.name for site in longest])
        return tuple(map(_record, self._forwards, self._shared_out()))

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What could not be seen, over all passes."""
        return _entries(self._missed)

    def _shared_out(self) -> list[tuple[Missing, ...]]:
        """What is missing of each pass: by the run of the model in which it was missed."""
        counts: list[Counter[tuple[Caller, str]]] = [Counter() for _ in self._forwards]
        kept = [at for at, one in enumerate(self._forwards) if one.sites.keys() - one.withdrawn]
        for (caller, reason), calls in self._missed.items() if kept else ():
            begun = [at for at in kept if min(self._forwards[at].runs) <= caller.run]
            own = [at for at in begun if caller.run in self._forwards[at].runs]
            counts[(own or begun or kept[:1])[-1]][caller, reason] += calls
        return [_entries(one) for one in counts]


def _entries(missed: Counter[tuple[Caller, str]]) -> tuple[Missing, ...]:
    return sum_missing(Missing(one.module, f"{one.kind} {reason}", calls) for (one, reason), calls in missed.items())


def _record(forward: _Forward, missing: tuple[Missing, ...]) -> Record:
    """The record of one pass; of a generation, `notes["prompt"]` says how many rows were read before it wrote."""
    sites = [site for key, site in forward.sites.items() if key not in forward.withdrawn]
    layers = tuple(site.finish() for site in sites)
    pairs = zip(sites, layers, strict=True)
    read = {
        one.read for one, layer in pairs if isinstance(one, Site) and layer.kind == "self" and one.read < layer.queries
    }
    notes = {"prompt": read.pop()} if len(read) == 1 else {}
    named = name_streams(layers, [site.place for site in sites])  # of all layers, as streams and numbers need the rest
    watched = (layer for site, layer in zip(sites, named, strict=True) if isinstance(site, _Finished) or site.watched)
    return Record(tuple(watched), notes=notes, missing=missing)


def _named(key: tuple[str, int]) -> str:
    """The name of a site: the module's, with a number where it was called before in the same pass."""
    return key[0] if key[1] == 0 else f"{key[0]}#{key[1] + 1}"


# Modules of transformers that attend from blocks of queries to gathered blocks of keys: a row of such weights does not
# say which keys they are for.
_BLOCKED = "computes its weights block by block over gathered keys, which cannot be shown as queries × keys"
_BLOCKS = {
    "BigBirdBlockSparseAttention": 'load it with attention_type="original_full"',
    "BigBirdPegasusBlockSparseAttention": 'load it with attention_type="original_full"',
    "LongT5LocalAttention": "watch a T5 instead",
    "LongT5TransientGlobalAttention": "watch a T5 instead",
}
