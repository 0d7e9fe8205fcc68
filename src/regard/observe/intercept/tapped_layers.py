"""Which modules a tap looks into, and which of their attention calls have chosen heads.

Layers are chosen by their number in the model, or by the name of a module. Until the first step has shown which modules
attend, whole layers are looked into; after it, their attention modules. Of several layers of one kind, the first is
read as a watch reads it, and the others are looked at as that one has shown; one that attends otherwise is refused.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

from regard.errors import InputError, ObservationError
from regard.observe.intercept.torch_attention_calls import groups_of
from regard.observe.intercept.watching_mode import modes_above_watches
from regard.observe.selection import HeadsChosen
from regard.observe.streams import TOWERS, Place, Places
from regard.observe.tap_steps import TapSite
from regard.observe.watched_call import SHARDED, WatchedCall
from regard.record.layers import Stream
from regard.record.missing_attention import Missing, missing_lines

__all__ = ["TappedLayer", "TappedSites", "name_in"]

_CROSSES = re.compile("cross|encoder_?att|enc_?dec", re.IGNORECASE)
_EAGERLY = 'put `with torch.compiler.set_stance("force_eager"):` around regard.tap'
_DECOMPOSED = (
    "layer {} cannot be tapped in compiled code: its attention is no call of F.scaled_dot_product_attention or "
    'regard.attention in its graph; load a transformers model with attn_implementation="sdpa", compile it with '
    "fullgraph=True, which says where a graph breaks, or " + _EAGERLY
)
_COMPILED = "this model cannot be tapped in compiled code, since {}: {}"


@dataclass(eq=False)
class TappedLayer:
    """A module whose calls are looked into, and what its last complete call has shown."""

    module: nn.Module
    path: str = ""
    number: int | None = None
    sites: tuple[TapSite, ...] = ()
    is_read: bool = False  # whether a complete call has shown its sites
    is_light: bool = False  # whether only PyTorch's kernel needs to be looked at
    seen: list[TapSite] = field(default_factory=list)  # in the running call
    heard: int = 0  # calls of PyTorch's kernel in it
    misses: int = 0
    others: bool = False  # whether it has attention besides PyTorch's kernel

    def begin(self) -> None:
        """Forget the last call."""
        self.seen, self.heard, self.misses = [], 0, 0

    def end(self) -> None:
        """Conclude from a complete call whether further ones may be looked at less."""
        self.is_read = True
        if not self.is_light:
            self.sites = tuple(self.seen)
            by_kernel = not self.misses and not self.others and self.heard == len(self.seen)
            self.is_light = bool(self.sites) and by_kernel


def name_in(model: nn.Module, module: nn.Module) -> str:
    """Return the name of a module in its model, for messages."""
    return next((name for name, one in model.named_modules() if one is module and name), "the model")


class TappedSites:
    """The layers to look into, by the id of their module, and the calls in them that have chosen heads."""

    def __init__(self, model: nn.Module, chosen: HeadsChosen, stream: Stream | None) -> None:
        self._chosen, self._stream, self._places = chosen, stream, Places(model)
        self.layers, self._by_order = _layers_of(model, chosen, self._places, stream)
        self.order: tuple[TapSite, ...] = ()  # the chosen sites, known after the first step
        self.permutation: list[int] | None = None  # of the heads in this order to the order given
        self.heads: tuple[tuple[int | str, int], ...] = ()
        self._turns: dict[str, int] = {}
        self._compiled: dict[str, TapSite] = {}  # calls in compiled code, by their module's name

    def begin_layer(self, layer: TappedLayer) -> None:
        """Begin a call of a layer; in its first one, take the sites of a layer of the same kind, if one was read."""
        layer.begin()
        if layer.is_read:
            return
        alike = (one for one in self.layers.values() if one.is_read and one.is_light and _are_alike(one, layer))
        if (other := next(alike, None)) is not None and all(one.name.startswith(other.path) for one in other.sites):
            layer.sites, layer.is_light = tuple(self._moved(one, other, layer) for one in other.sites), True

    def _moved(self, site: TapSite, layer: TappedLayer, other: TappedLayer) -> TapSite:
        """Return the place in another layer that a site has in its own."""
        inner = site.name.removeprefix(layer.path)
        module = other.module.get_submodule(inner.removeprefix("."))
        name = other.path + inner
        return self.known(name) or self._site(name, module, cross=site.cross, count=site.count)

    def are_within(self, captured: Collection[TapSite]) -> bool:
        """Return whether all chosen layers are among these sites."""
        if self.order:
            return all(one in captured for one in self.order)
        return set(self._chosen.layers) <= {site.number for site in captured}

    def begin(self) -> None:
        """Count layers from 0 again, in a new step.

        Raises:
            ObservationError: The sequence is sharded over ranks.
        """
        if modes_above_watches():
            raise ObservationError(SHARDED)
        self._turns = {}

    def site(self, name: str, module: nn.Module | None, call: WatchedCall) -> TapSite:
        """Return the place of a call that a module of this name has made."""
        return self._site(name, module, cross=call.crosses, count=call.heads)

    def of_compiled(self, name: str, module: nn.Module, count: int) -> TapSite:
        """Return the place of a call in compiled code, which is the same for all calls of its module."""
        if (site := next((one for one in self.order if one.name == name), None)) is not None:
            return site
        if name not in self._compiled:
            self._compiled[name] = self._site(name, module, cross=False, count=count)
        return self._compiled[name]

    def known(self, name: str) -> TapSite | None:
        """Return the place of the chosen call of a module, if compiled code has shown it."""
        return next((one for one in self.order if one.name == name and self._compiled.get(name) is one), None)

    def refuse_compiled(self, model: nn.Module) -> None:
        """Refuse models of which compiled code does not show what each attention call is.

        Raises:
            ObservationError: Layers have no numbers, or queries may look at another text or image.
        """
        kinds = {f"{name.rpartition('.')[2]} {type(one).__name__}" for name, one in model.named_modules()}
        crosses = sorted(kind.partition(" ")[2] for kind in kinds if _CROSSES.search(kind))
        both = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        if self._by_order:
            raise ObservationError(_COMPILED.format("it has no numbered layers", 'name them, ("blocks.attention", 0)'))
        if both or crosses or isinstance(self._stream, tuple):
            what = f"it has cross-attention ({crosses[0]})" if crosses else "it is an encoder–decoder"
            raise ObservationError(_COMPILED.format(what, _EAGERLY))

    def _site(self, name: str, module: nn.Module | None, *, cross: bool, count: int) -> TapSite:
        place = self._places.of(name, {})
        number = place.number
        if self._by_order:
            kind = "cross" if cross else "self"
            number = self._turns.get(kind, 0)
            self._turns[kind] = number + 1
        own = self._stream if isinstance(self._stream, str) or self._stream is None else self._stream[0]
        of_kind = cross == (isinstance(self._stream, tuple))
        matches = of_kind and (own is None or own in place.own_streams)
        heads = self._chosen.of_layer(number, name, count) if matches else ()
        label = name if name in self._chosen.layers else -1 if number is None else number
        return TapSite(label, name, module, heads, cross, count, groups_of(module))

    def settle(self, missing: Sequence[Missing], *, compiled: bool = False) -> None:
        """Determine the order of the heads after the first step, and refuse what is ambiguous or was not seen.

        Raises:
            InputError: A chosen layer has several attention modules, or cross-attention only.
            ObservationError: A chosen layer did not attend, or what it computes cannot be read.
        """
        by_label: dict[int | str, list[TapSite]] = {}
        seen = [site for layer in self.layers.values() for site in layer.seen]
        seen = list(self._compiled.values()) if compiled else seen
        for site in (site for site in seen if site.heads):
            by_label.setdefault(site.number, []).append(site)
        for label in self._chosen.layers:
            found = by_label.get(label, [])
            if len(found) > 1:
                raise InputError(_several(label, [one.name for one in found]))
            if not found:
                raise ObservationError(_DECOMPOSED.format(label)) if compiled else self._unseen(label, missing)
        self.order = tuple(by_label[label][0] for label in self._chosen.layers)
        flat = [(site.number, head) for site in self.order for head in site.heads]
        given = [
            (layer, one)
            for layer, head in self._chosen.pairs
            for one in (by_label[layer][0].heads if head is None else [head])
        ]
        self.heads = tuple(given)
        self.permutation = None if flat == given else [flat.index(one) for one in given]

    def narrowed(self) -> dict[int, TappedLayer]:
        """Return the modules that attend, where each of a layer's does so once by PyTorch's kernel, else the layers."""
        found: dict[int, TappedLayer] = {}
        for key, layer in self.layers.items():
            chosen = [site for site in layer.seen if site in self.order]
            kept = [site for site in layer.seen if site in chosen or any(one.cross for one in chosen)]
            inner = {id(site.module): site.module for site in layer.seen}
            if not chosen:
                continue
            if not layer.is_light or self._by_order or len(inner) < len(layer.seen) or id(layer.module) in inner:
                found[key] = layer
                continue
            for site in kept:
                found[id(site.module)] = TappedLayer(site.module, sites=(site,), is_read=True, is_light=True)
        self.layers = found
        return found

    def _unseen(self, label: int | str, missing: Sequence[Missing]) -> Exception:
        """Return why a chosen layer has no attention that was seen."""
        if missing:
            return ObservationError(f"layer {label} cannot be tapped: {'; '.join(missing_lines(missing))}")
        seen = [site for layer in self.layers.values() for site in layer.seen]
        if self._stream is None and any(site.cross for site in seen):
            return InputError(
                f"layer {label} has no self-attention that was seen: for its cross-attention give a `stream`, such as "
                '("target", "source")'
            )
        there = ", ".join(dict.fromkeys(str(site.name) for site in seen)) or "none"
        stream = "" if self._stream is None else f", or not in the stream {self._stream!r}"
        return ObservationError(f"layer {label} did not attend in this call{stream}; seen: {there}")


def _several(label: int | str, names: Sequence[str]) -> str:
    """Return the sentence about a layer of which several calls have chosen heads."""
    if len(set(names)) == 1:
        return (
            f"layer {label} of `heads` attends {len(names)} times in a step, always in {names[0]!r}, and a tap reads "
            "one attention of a layer: regard.watch records all of them"
        )
    return (
        f"layer {label} of `heads` has {len(names)} attention modules: name one of {', '.join(map(repr, names))}, as "
        f"in ({names[0]!r}, 0), or its `stream`"
    )


def _layers_of(
    model: nn.Module, chosen: HeadsChosen, places: Places, stream: Stream | None
) -> tuple[dict[int, TappedLayer], bool]:
    """Return the modules to look into, by id, and whether layers are counted in the order of their calls.

    Raises:
        InputError: There is no such layer, or the numbers of several streams are meant.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[int, TappedLayer] = {}
    for name in (one for one in chosen.layers if isinstance(one, str)):
        if name not in modules:
            raise InputError(f"`heads` names the layer {name!r}, and this {type(model).__name__} has no such module")
        found[id(modules[name])] = TappedLayer(modules[name], name, places.of(name, {}).number)
    wanted = {one for one in chosen.layers if isinstance(one, int)}
    numbered = {path: places.of(path, {}) for path in modules if path.rpartition(".")[2].isdigit()}
    numbered = {path: place for path, place in numbered.items() if place.number is not None}
    numbers = {place.number for place in numbered.values()}
    if not wanted <= numbers:
        depth = max((place.depth or 0 for place in numbered.values()), default=0)
        last = max(max((place.count for place in numbered.values()), default=0), depth) - 1
        if numbered and max(wanted) > last:
            raise InputError(f"`layer` must be from 0 to {last}, got {max(wanted)} in `heads`")
        return {id(model): TappedLayer(model)}, True
    here = {path: place for path, place in numbered.items() if place.number in wanted}
    _check_streams(model, here.values(), stream)
    found |= {id(modules[path]): TappedLayer(modules[path], path, place.number) for path, place in here.items()}
    return found, False


def _are_alike(one: TappedLayer, other: TappedLayer) -> bool:
    """Return whether two layers have modules of the same classes and settings, except for their numbers."""
    numbers = one.number, other.number
    parts, theirs = (list(layer.module.named_modules()) for layer in (one, other))
    if one is other or len(parts) != len(theirs):
        return False
    for (name, part), (its_name, its) in zip(parts, theirs, strict=True):
        settings, its_settings = (
            {key: value for key, value in vars(module).items() if _is_setting(value)} for module in (part, its)
        )
        if name != its_name or type(part) is not type(its) or settings.keys() != its_settings.keys():
            return False
        if any(value != its_settings[key] and (value, its_settings[key]) != numbers for key, value in settings.items()):
            return False
    return True


def _is_setting(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, bool | int | float | str)


def _check_streams(model: nn.Module, places: Iterable[Place], stream: Stream | None) -> None:
    """Refuse numbers that an encoder and a decoder, or several towers, have."""
    places = list(places)
    roles = {place.role for place in places}
    towers = {place.tower if place.tower in TOWERS else "text" for place in places}
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False) and roles >= {"encoder", "decoder"}
    if both and (stream is None or "text" in (stream if isinstance(stream, tuple) else (stream,))):
        got = "" if stream is None else f", got {stream!r}"
        raise InputError(
            '`heads` needs a `stream` too, as layers are numbered within it: "source", "target", or '
            f'("target", "source") for the cross-attention{got}'
        )
    if stream is None and len(towers) > 1:
        listed = ", ".join(sorted(f'"{one}"' for one in towers))
        raise InputError(f"`heads` needs a `stream` too, as layers are numbered within it: one of {listed}")
