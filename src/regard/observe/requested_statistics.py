"""The statistics of a watch: those of the maps, and those requested by name or by value."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal

from regard.errors import InputError
from regard.extensions import extension, extension_names
from regard.observe.before_attention import BeforeAttention
from regard.observe.keep_qk import Purse, QueriesKeys
from regard.observe.selection import Heads, HeadsChosen, Queries, QueriesChosen
from regard.observe.statistics import (
    Confidence,
    Distance,
    Entropy,
    GradientTimesAttention,
    HeadImportance,
    HeatMap,
    Mass,
    Received,
    Sink,
    Statistic,
    Top,
    ValueNorm,
    Weights,
)
from regard.observe.statistics.base import Need
from regard.observe.statistics.mass import MASSES
from regard.problem import DEFAULT_MAX_BYTES
from regard.record.records import Layer
from regard.tensors import check_max_bytes

__all__ = ["NAMED", "RESERVED", "Asked", "Keep", "needs_of"]

Keep = Literal["maps", "qk", "qkv", "weights"]

_KEPT = (HeatMap, Top, Entropy, Received)
RESERVED = {field.name for field in fields(Layer)} | {kind.name for kind in _KEPT}  # names used by the record itself
NAMED: Mapping[str, Any] = {
    **{kind.name: kind for kind in (*_KEPT, Confidence, Distance, Sink)},
    **{name: partial(Mass, name) for name in MASSES},
    **{kind.name: kind for kind in (ValueNorm, GradientTimesAttention, HeadImportance)},
}


def needs_of(statistic: Statistic) -> frozenset[Need]:
    """Return the prerequisites of a statistic; a class without this attribute has none."""
    return getattr(statistic, "needs", frozenset())


class Asked:
    """The requested statistics, before any row was processed.

    Raises:
        InputError: A name is unknown, a value is not a statistic, two have the same name, or a name is one that the
            record uses itself.
    """

    def __init__(
        self,
        keep: Keep = "maps",
        statistics: Sequence[str | Statistic] = (),
        *,
        layers: Sequence[int | str] | None = None,
        heads: Heads | None = None,
        queries: Queries | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        before: BeforeAttention | None = None,
    ) -> None:
        if isinstance(statistics, str) or not isinstance(statistics, Sequence):
            raise InputError(f"`statistics` must be a list of names and statistics, got {statistics!r}: put it in [ ]")
        if type(max_bytes) is not int or max_bytes < 0:  # a plain number needs no call
            check_max_bytes(max_bytes)
        asked = [_statistic(one) for one in statistics]
        if any(isinstance(one, Weights) for one in asked):
            raise InputError('`statistics` cannot hold every weight: pass keep="weights", which minds `max_bytes`')
        own = [one for one in asked if type(one) not in _KEPT]
        self.extra = tuple(own)
        _check_names(asked)
        chosen: dict[type, Statistic] = {type(one): one for one in asked if type(one) in _KEPT}
        self._kept: list[Statistic] = [chosen.get(kind) or kind() for kind in _KEPT]
        self._full: list[Statistic] = [Weights()] if keep == "weights" else []
        if keep in ("qk", "qkv"):
            self._full.append(QueriesKeys(Purse(max_bytes, keep), values=keep == "qkv", before=before))
        self.heads = None if heads is None else HeadsChosen.of(heads)
        self.queries = None if queries is None else QueriesChosen.of(queries)
        if self.heads is not None and layers is not None:
            raise InputError(
                "`heads` names its layers: leave out `layers`, or name a layer in `heads` for all its heads"
            )
        chosen_parts = [name for name, one in (("heads", heads), ("queries", queries)) if one is not None]
        if chosen_parts and self.needs("layers"):
            raise InputError(
                f"a statistic over all layers, such as a rollout, needs every row: leave out `{chosen_parts[0]}`"
            )
        self._layers = _check_layers(layers) if self.heads is None else frozenset(self.heads.layers)
        self._found: set[int | str] = set()
        self._seen: dict[int, str] = {}

    def needs(self, what: Need) -> bool:
        """Return whether any of them has this prerequisite."""
        return any(what in needs_of(one) for one in self.extra)

    @property
    def may_use_tokens(self) -> bool:
        """Whether one looks at the tokens where they are known."""
        return any(getattr(one, "may_use_tokens", False) for one in self.extra)

    def check_alone(self) -> None:
        """Raise if a statistic needs several layers or a backward pass although each layer is finished separately."""
        for one in self.extra:
            if needs_of(one) & {"layers", "gradient"}:
                raise InputError(
                    f"the statistic {one.name!r} needs all layers, or a backward pass, and here each layer is finished "
                    "as soon as it was seen: ask for it with regard.watch, without `on_layer_end=`"
                )

    def of_pass(self) -> dict[int, Statistic]:
        """Return copies for one forward pass of the statistics over all layers, by their index in the list."""
        across = {at: one for at, one in enumerate(self.extra) if "layers" in needs_of(one)}
        return {at: copy.deepcopy(one) for at, one in across.items()}

    def heads_of(self, number: int, name: str, count: int) -> tuple[int, ...] | None:
        """Return the chosen heads of a layer with `count` heads; None for all of them.

        Raises:
            InputError: The layer has no such head.
        """
        found = None if self.heads is None else tuple(sorted(self.heads.of_layer(number, name, count)))
        return None if found is None or len(found) == count else found

    def watches(self, number: int, name: str) -> bool:
        """Return whether the layer with this number and name is to be recorded; without a selection, all are."""
        if self._layers is None:
            return True
        self._seen[number] = name
        found = self._layers & {number, name}
        self._found |= found
        return bool(found)

    def of_site(self, across: Mapping[int, Statistic], number: int = 0, name: str = "") -> tuple[Statistic, ...]:
        """Return those of one call site, which copies them, and the shared ones of its pass; for a layer that is not
        recorded only the latter.
        """
        if not self.watches(number, name):
            return tuple(across.values())
        own = (across.get(at, one) for at, one in enumerate(self.extra))
        return (*self._kept, *self._full, *own)

    def check_layers(self) -> None:
        """Raise if a selected layer was not called."""
        if self._layers is not None and (missing := sorted(map(repr, self._layers - self._found))):
            name = "layers" if self.heads is None else "heads"
            numbers = sorted(self._seen)
            whole = numbers == list(range(len(numbers)))
            there = f"from 0 to {numbers[-1]}" if whole else ", ".join(map(str, numbers))
            names = ", ".join(self._seen[number] for number in numbers)
            raise InputError(
                f"`{name}` must name layers that are seen, {there} or one of {names}, got {' and '.join(missing)}"
            )


def _check_layers(layers: Sequence[int | str] | None) -> frozenset[int | str] | None:
    if layers is None:
        return None
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not layers:
        raise InputError(f"`layers` must be a list of numbers or names of layers, got {layers!r}: such as [3, 4]")
    for one in layers:
        if isinstance(one, bool) or not isinstance(one, int | str) or (isinstance(one, int) and one < 0):
            raise InputError(f"`layers` holds numbers from 0 on and names, in the order of the calls, got {one!r}")
    return frozenset(layers)


def _statistic(asked: Any) -> Statistic:
    if isinstance(asked, str):
        named = NAMED[asked] if asked in NAMED else extension("regard.statistics", asked)
        if named is None:
            names = ", ".join((*NAMED, *extension_names("regard.statistics")))
            raise InputError(f"`statistics` knows the names {names}, got {asked!r}")
        asked = named()
    if isinstance(asked, type) or not all(callable(getattr(asked, name, None)) for name in ("start", "fold", "finish")):
        raise InputError(
            "`statistics` takes names and values with start, fold and finish, such as statistics.Mass('previous'), "
            f"got {asked!r}"
        )
    return asked  # type: ignore[no-any-return]


def _check_names(statistics: Sequence[Statistic]) -> None:
    names = [getattr(one, "name", None) for one in statistics]
    for name, one in zip(names, statistics, strict=True):
        if not isinstance(name, str) or not name:
            raise InputError(f"a statistic must have a `name` under which its result is kept, got {one!r} without one")
        if name in RESERVED and type(one) not in _KEPT:
            raise InputError(f"`name` of a statistic cannot be {name!r}, which the record uses itself: choose another")
        if names.count(name) > 1:
            raise InputError(
                f"`statistics` must differ in name, got {name!r} twice: leave one out, or give it a name of its own"
            )
