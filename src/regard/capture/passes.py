"""Which forward pass, or which generation, each call of a watched model belongs to.

A model with a cache calls a site again with new queries over old and new keys, and the rows of such calls continue the
record of their text. A run of the model (one outermost call of it) belongs to one text, so its first call whose keys
are those of an earlier call decides for all its calls; several texts may take turns. Without such a call, the run is a
forward pass of its own, once it calls a site or a module that ran before.

The running modules are read from this thread's stack of calls. No hook is registered: hooks on all modules would affect
other threads and their compilers, and hooks on one module disable PyTorch's fast paths.
"""

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor, nn

from regard.capture.call_site import Site
from regard.capture.records import Layer
from regard.capture.statistics import Statistic
from regard.capture.streams import Place
from regard.capture.watched_call import WatchedCall
from regard.errors import ObservationError

__all__ = [
    "FinishedSite",
    "Forward",
    "ForwardPasses",
    "Key",
    "Running",
    "given_cache",
    "length_of",
    "reference_to",
    "running",
]

_CACHES = ("past_key_values", "past_key_value", "cache_params", "past", "layer_past")
_CALL = nn.Module._call_impl.__code__
_MARK = "the mark of this call of a module"

Key = tuple[str, int]  # a site: its module's name, and the number of earlier calls of that module in the same run


@dataclass(frozen=True)
class Running:
    """The innermost module that counts, if one runs; `begun` differs from one outermost call of such a module to the
    next; `outside`: only modules that do not count are running; `calls`: every module that counts, with a mark of its
    call; `cache`: the innermost one that was passed to such a module.
    """

    module: nn.Module | None
    begun: object | None
    outside: bool
    calls: tuple[tuple[nn.Module, object], ...] = ()
    cache: object | None = None


def running(counts: Callable[[nn.Module], bool]) -> Running:
    """Inspect the running module calls, from the innermost one on."""
    calls: list[tuple[nn.Module, object]] = []
    some, cache = False, None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            some = True
            found = frame.f_locals["self"]
            if counts(found):
                # A mark with the lifetime of the call, which does not keep its frame and local variables alive.
                calls.append((found, frame.f_locals.setdefault(_MARK, object())))
                cache = given_cache(frame.f_locals["kwargs"]) if cache is None else cache
        frame = frame.f_back
    innermost, outermost = (calls[0][0], calls[-1][1]) if calls else (None, None)
    return Running(innermost, outermost, some and not calls, tuple(calls), cache)


@dataclass(frozen=True, eq=False)
class FinishedSite:
    """A site that will receive no further calls."""

    place: Place
    name: str
    layer: Layer
    crosses: bool = False
    fallback_reason: str | None = None

    def continues(self, call: WatchedCall, *, is_certain: bool = False) -> bool:
        """Return that no second call belongs to it."""
        raise ObservationError(
            f"{self.name or 'this call'} was called twice, and layers that are taken as they are finished need one "
            "pass over the whole text: watch it without `on_layer_end=`"
        )

    def finish(self) -> Layer:
        """Return the layer."""
        return self.layer


@dataclass(eq=False)
class Forward:
    """One forward pass, or the passes of one generation: its sites, and the runs of the model that it consists of."""

    across: dict[int, Statistic]  # statistics over all its layers
    sites: dict[Key, Site | FinishedSite] = field(default_factory=dict)
    runs: set[int] = field(default_factory=set)
    outermost: set[nn.Module] = field(default_factory=set)  # modules whose calls these runs are
    stacks: set[str] = field(default_factory=set)  # modules of layers that its sites are in
    cache: Callable[[], Any] = field(default_factory=lambda: reference_to(None))  # of its last run


@dataclass(eq=False)
class _Run:
    """What is known of the running run."""

    number: int
    outermost: nn.Module | None
    cache: Callable[[], Any] = field(default_factory=lambda: reference_to(None))
    began: list[Key] = field(default_factory=list)  # the sites that were first called in it
    continues: Site | FinishedSite | None = None  # the site that decided which text goes on
    is_ambiguous: bool = False  # whether several texts could go on in it
    is_marked: bool = False  # whether one of its sites keeps all keys


class ForwardPasses:
    """The forward passes so far."""

    def __init__(self, across: Callable[[], dict[int, Statistic]]) -> None:
        self._across = across
        self.all: list[Forward] = []
        self._now: Forward | None = None
        self._run = _Run(-1, None)
        self.strangers: set[Site | FinishedSite] = set()  # sites whose keys do not go on where those of others do

    @property
    def now(self) -> Forward:
        """The one that the last call belongs to."""
        assert self._now is not None
        return self._now

    @property
    def index(self) -> int:
        """Its index; −1 before the first call."""
        return -1 if self._now is None else self.all.index(self._now)

    def find(self, key: Key, call: WatchedCall, number: int, running: Running) -> Site | FinishedSite | None:
        """Return the site that a call belongs to; None for a new site of `now`.

        A site in `strangers` is returned if the call does not continue it, although other calls of the run have
        continued its text.

        Raises:
            ObservationError: Beam search has reordered the rows, or texts took turns that cannot be told apart.
        """
        # Attention outside of all modules has no run, and each call is one of its own.
        if number != self._run.number or running.module is None:
            outermost = running.calls[-1][0] if running.calls else None
            self._run = _Run(number, outermost)
        run = self._run
        if run.cache() is None:
            run.cache = reference_to(running.cache)
        if run.continues is not None:
            return self._site_of_known_text(key, call)
        if key in run.began:  # a loop inside of the run
            return self.now.sites[key]
        if (site := self._continued(key, call)) is not None:
            return site
        if not run.began:
            self._now = self.all[-1] if self.all else self._begin()
        known = self.now.sites.get(key)
        if isinstance(known, Site):
            known.refuse_reordered(call)
        if known is not None or (not run.began and run.outermost in self.now.outermost):
            self._move(self._begin())
        return None

    def add(self, key: Key, site: Site | FinishedSite) -> None:
        """Add a new site to `now`."""
        if isinstance(site, Site) and not (self._run.is_marked and site.place.stack in self.now.stacks):
            site.tell_texts_apart()
            self._run.is_marked = True
        self.now.stacks.add(site.place.stack)
        self.now.sites[key] = site
        self._run.began.append(key)

    def ran(self, number: int) -> None:
        """Note that `now` has a recorded call of this run of the model."""
        self.now.runs.add(number)
        if self._run.outermost is not None:
            self.now.outermost.add(self._run.outermost)
        cache = self._run.cache()
        if cache is not None and self.now.cache() is not cache:
            for one in self.all:
                if one.cache() is cache:  # used again, for another text
                    one.cache = reference_to(None)
            self.now.cache = self._run.cache

    def _begin(self) -> Forward:
        self.all.append(Forward(self._across()))
        return self.all[-1]

    def _continued(self, key: Key, call: WatchedCall) -> Site | FinishedSite | None:
        """Return the site of the latest text that the call continues, and let the run belong to this text."""
        run = self._run
        known = [(one, one.sites[key]) for one in reversed(self.all) if key in one.sites]
        # All passes over one source have the same keys of cross-attention: only the last of them can be meant.
        found = [(one, site) for one, site in known if not site.crosses or one is self.all[-1]]
        found = [(one, site) for one, site in found if site.continues(call)]
        if not found:
            return None
        if len(found) > 1 and (cache := run.cache()) is not None:
            found = [(one, site) for one, site in found if one.cache() is cache] or found
        forward, site = found[0]
        if forward is not self._now and forward.sites.keys() & set(run.began):
            return None  # a layer before this one has shown that the run is another pass
        self._move(forward)
        run.continues, run.is_ambiguous = site, len(found) > 1
        return site

    def _site_of_known_text(self, key: Key, call: WatchedCall) -> Site | FinishedSite | None:
        """Return the site of a call in a run that continues the text of `now`."""
        run, site = self._run, self.now.sites.get(key)
        if site is None or (site not in self.strangers and site.continues(call, is_certain=True)):
            return site
        if isinstance(site, Site):
            site.refuse_reordered(call)
        assert run.continues is not None
        if run.is_ambiguous or site.crosses or run.continues.crosses:
            raise ObservationError(
                f"the keys of {site.name or 'this model'} do not go on, but those of "
                f"{run.continues.name or 'this model'} do, so texts with the same beginning seem to take turns in this "
                "watch: watch each text in a `with` block of its own"
            )
        self.strangers.add(site)
        return site

    def _move(self, forward: Forward) -> None:
        """Let the run belong to another pass than it seemed, with the sites that began in it."""
        before, run = self._now, self._run
        self._now = forward
        if before is None or before is forward or not run.began:
            return
        if before.across:
            raise ObservationError(
                "a statistic over all layers, such as a rollout, cannot tell which pass "
                f"{run.began[0][0] or 'this model'} belongs to: watch each pass in a `with` block of its own"
            )
        forward.sites |= {key: before.sites.pop(key) for key in run.began}
        before.runs.discard(run.number)
        forward.runs.add(run.number)
        if not before.sites:
            self.all.remove(before)


def given_cache(kwargs: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a call, by the names that transformers has for it."""
    return next((kwargs[name] for name in _CACHES if kwargs.get(name) is not None), None)


def reference_to(cache: Any) -> Callable[[], Any]:
    """Return a function that returns the cache while it exists, and does not keep it alive."""
    try:
        return _nothing if cache is None else weakref.ref(cache)
    except TypeError:  # a tuple of older versions, a new one in each step
        return _nothing


def _nothing() -> None:
    return None


def length_of(cache: Any) -> int:
    """Return the number of positions that a cache holds; 0 if there is none."""
    if cache is None:
        return 0
    if callable(getattr(cache, "get_seq_length", None)):
        return int(cache.get_seq_length())
    length = getattr(cache, "length", None)
    if isinstance(length, int):
        return length
    if isinstance(cache, tuple | list) and cache and isinstance(cache[0], tuple | list) and cache[0]:
        first = cache[0][0]
        return int(first.shape[-2]) if isinstance(first, Tensor) else 0
    return 0
