"""Which forward pass, or which generation, each call of a watched model belongs to.

A model with a cache calls a site again with new queries over old and new keys, and the rows of such calls continue the
record of their text. A run of the model (one outermost call of it) belongs to one text, so the first call with the keys
of an earlier one determines the text of the whole run; several texts may alternate. A run without such a call is a
forward pass of its own if it calls a site or a module that ran before. Otherwise it continues the last pass: the runs
of an encoder and its decoder are one, unless several encoders wait for a decoder.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.errors import ObservationError
from regard.observe.cached_text import reference_to
from regard.observe.call_site import Site
from regard.observe.run_statistics import cannot_reorder, reorder
from regard.observe.running import Running
from regard.observe.statistics import Statistic
from regard.observe.streams import Place
from regard.observe.watched_call import WatchedCall
from regard.record.records import Layer

__all__ = [
    "FinishedSite",
    "Forward",
    "ForwardPasses",
    "Key",
]

Key = tuple[str, int]  # a site: its module's name, and the number of earlier calls of that module in the same run


@dataclass(frozen=True, eq=False)
class FinishedSite:
    """A site that will receive no further calls."""

    place: Place
    name: str
    layer: Layer
    crosses: bool = False
    fallback_reason: str | None = None

    def continues(
        self, call: WatchedCall, *, is_certain: bool = False, cache: Any = None, same_cache: bool = False
    ) -> bool:
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
    refusal: Callable[[str], str] | None = None  # why a statistic of `across`, by its name, has no result


@dataclass(eq=False)
class _Run:
    """What is known of the running run."""

    number: int
    outermost: nn.Module | None
    cache: Callable[[], Any] = field(default_factory=lambda: reference_to(None))
    new_sites: list[Key] = field(default_factory=list)  # the sites that were first called in it
    continues: Site | FinishedSite | None = None  # the site that determined which text it continues
    first: tuple[Key, WatchedCall] | None = None  # the call by which it did
    has_kept_keys: bool = False  # whether one of its sites keeps all keys


class ForwardPasses:
    """The forward passes so far."""

    def __init__(self, across: Callable[[], dict[int, Statistic]], on_reorder: Callable[[int, Tensor], None]) -> None:
        self._across, self._on_reorder = across, on_reorder
        self.all: list[Forward] = []
        self._now: Forward | None = None
        self._run = _Run(-1, None)
        self.unrelated: set[Site | FinishedSite] = set()  # sites that do not continue where others do

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

        If it is in `unrelated`, the call does not continue it, although other calls of the run have continued its text.

        Raises:
            ObservationError: Alternating texts cannot be distinguished, or a statistic does not follow beam search.
        """
        # Attention outside of all modules has no run, and each call is one of its own.
        if number != self._run.number or running.module is None:
            outermost = running.calls[-1][0] if running.calls else None
            self._run = _Run(number, outermost)
        run = self._run
        if run.cache() is None:
            run.cache = reference_to(running.cache)
        if run.continues is not None:
            return self._site_in_continued_text(key, call)
        if key in run.new_sites:  # a loop inside of the run
            return self.now.sites[key]
        if (site := self._continued(key, call)) is not None:
            return site
        if not run.new_sites:
            self._now = self.all[-1] if self.all else self._begin()
        known = self.now.sites.get(key)
        if isinstance(known, Site) and not run.new_sites and self._reorders(known, call):
            return self._continued(key, call)
        if known is not None or not (run.new_sites or self._may_join()):
            self._move(self._begin())
        return None

    def add(self, key: Key, site: Site | FinishedSite) -> None:
        """Add a new site to `now`."""
        if isinstance(site, Site) and not (self._run.has_kept_keys and site.place.stack in self.now.stacks):
            site.keep_all_keys()
            self._run.has_kept_keys = True
        self.now.stacks.add(site.place.stack)
        self.now.sites[key] = site
        self._run.new_sites.append(key)

    def ran(self, number: int) -> None:
        """Note that `now` has a recorded call of this run of the model."""
        self.now.runs.add(number)
        if self._run.outermost is not None:
            self.now.outermost.add(self._run.outermost)
        if self._run.cache() is not None:
            self.now.cache = self._run.cache

    def close(self) -> None:
        """Drop what was stored."""
        self._run = _Run(-1, None)
        for one in self.all:
            one.sites.clear()
            one.across.clear()

    def _may_join(self) -> bool:
        """Return whether a run of other modules belongs to the last pass: a decoder's to that of the only encoder."""
        now, run = self.now, self._run
        if any(run.outermost is part for one in now.outermost for part in one.modules()):
            return False  # a part of a model that has run: an image for the next text
        alike = (one for one in self.all if one is not now and one.outermost == now.outermost)
        return run.outermost is None or not any(one.sites.keys() == now.sites.keys() for one in alike)

    def _begin(self) -> Forward:
        self.all.append(Forward(self._across()))
        return self.all[-1]

    def _continued(self, key: Key, call: WatchedCall) -> Site | FinishedSite | None:
        """Return the site of the latest text that the call continues, and let the run belong to this text."""
        run, cache = self._run, self._run.cache()
        passes = self.all[::-1] if call.newest >= call.queries else self.all[-1:]  # there is no key to compare
        if cache is not None:
            passes = [one for one in passes if one.cache() is cache] or passes
        found = next((one for one in passes if self._may_continue(one, key, call)), None)
        # A layer before this one may have shown that the run is another pass.
        if found is None or (found is not self._now and found.sites.keys() & set(run.new_sites)):
            return None
        self._move(found)
        site = run.continues = found.sites[key]
        run.first = key, call
        if cache is None or found.cache() is not cache:
            # Texts that differ before a window may agree in all that it has: no later layer need show that.
            dropped = isinstance(site, Site) and site.has_dropped(call)
            if dropped and self._is_ambiguous():
                self._refuse_alternating(site)
        return site

    def _may_continue(self, one: Forward, key: Key, call: WatchedCall) -> bool:
        """Return whether a call continues a pass, as far as its keys show.

        All passes over one source have the same keys of cross-attention: only the last of them can be meant.
        """
        site, cache = one.sites.get(key), self._run.cache()
        if site is None or (site.crosses and one is not self.all[-1]):
            return False
        return site.continues(call, cache=cache, same_cache=cache is not None and one.cache() is cache)

    def _site_in_continued_text(self, key: Key, call: WatchedCall) -> Site | FinishedSite | None:
        """Return the site of a call in a run that continues the text of `now`."""
        run, site = self._run, self.now.sites.get(key)
        cache = run.cache()
        same = cache is not None and self.now.cache() is cache
        if site is None:
            return None
        if site not in self.unrelated and site.continues(call, is_certain=True, cache=cache, same_cache=same):
            return site
        assert run.continues is not None
        if self._is_ambiguous() or site.crosses or run.continues.crosses:
            self._refuse_alternating(site)
        self.unrelated.add(site)
        return site

    def _reorders(self, site: Site, call: WatchedCall) -> bool:
        """Let the sequences of `now` go on as beam search has reordered them, and return whether it has."""
        cache = self._run.cache()
        rows = site.reordered(call, cache, same_cache=self.now.cache() is cache)
        if rows is None:
            return False
        for one in self.now.sites.values():
            if isinstance(one, Site):
                one.reorder(rows)
        for statistic in self.now.across.values():
            if not reorder(statistic, rows, rows.device):
                self.now.refusal = partial(cannot_reorder, site=site.name or "this model")
        self._on_reorder(self.index, rows)
        return True

    def _is_ambiguous(self) -> bool:
        """Return whether the run might continue another text, as far as its first keys show."""
        first, others = self._run.first, (one for one in self.all if one is not self.now)
        return first is not None and any(self._may_continue(one, *first) for one in others)

    def _refuse_alternating(self, site: Site | FinishedSite) -> None:
        raise ObservationError(
            f"a step of {site.name or 'this model'} may belong to several texts: texts with the same beginning or end "
            "alternate in this watch, and their keys do not show which is meant; watch each text in a `with` block of "
            "its own"
        )

    def _move(self, forward: Forward) -> None:
        """Let the run belong to another pass than it seemed, with the sites that began in it."""
        before, run = self._now, self._run
        self._now = forward
        if before is None or before is forward or not run.new_sites:
            return
        before.refusal = forward.refusal = partial(_belongs_nowhere, site=run.new_sites[0][0] or "this model")
        forward.sites |= {key: before.sites.pop(key) for key in run.new_sites}
        before.runs.discard(run.number)
        forward.runs.add(run.number)
        if not before.sites:
            self.all.remove(before)


def _belongs_nowhere(statistic: str, site: str) -> str:
    return (
        f"{statistic!r}, a statistic over all layers, does not know which pass {site} belongs to: watch each pass in a "
        "`with` block of its own"
    )
