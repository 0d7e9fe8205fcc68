"""Determine the stream of positions of each attention layer, and its number in the model.

A stream is a sequence of positions that layers share: "text"; "source" and "target" of an encoder–decoder; a tower is
named after its modality ("image", "audio", "video"), which its module's name specifies. The location of a layer's
module in the model determines the stream. Lengths are only used to find the key positions of cross-attention, and to
separate different sequences: pooled or cropped positions are "image 2", as are those of a second run of a tower.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from torch import nn

from regard.observe.layer_numbers import children, number_in_lists
from regard.record.records import Layer

__all__ = ["TOWERS", "Place", "Places", "name_streams", "reads_two_texts"]


_WORDS = {
    **dict.fromkeys(("vision", "visual", "visn", "image", "img", "pixel", "vit"), "image"),
    **dict.fromkeys(("audio", "speech", "acoustic"), "audio"),
    "video": "video",
    "multimodal": "multimodal",
    **dict.fromkeys(("qformer", "resampler", "perceiver"), "queries"),
    **dict.fromkeys(("text", "txt", "language", "lang", "llm", "lm"), "text"),
}
TOWERS = ("image", "audio", "video")


@dataclass(frozen=True)
class Place:
    """The location of a call site, derived from its module's path and the modules around it."""

    path: str
    stack: str  # the module of its numbered layers; without one, the parent of the module
    layer: str  # its layer in the stack; without a stack, the module itself
    number: int | None = None  # number of this layer in the model
    count: int = 0  # number of layers in the stack
    tower: str | None = None  # "image", "text", ...: the encoded modality, if known
    named: bool = False  # whether the tower follows from a module's name instead of transformers' `input_modalities`
    role: str | None = None  # "encoder" or "decoder", the outermost of these
    run: int = 1  # number of runs of the stack in this pass so far
    depth: int | None = None  # number of layers according to the configuration

    @property
    def is_text(self) -> bool:
        """Whether no module's name assigns it to a tower other than a text's."""
        return not self.named or self.tower == "text"

    @property
    def own_streams(self) -> tuple[str, ...]:
        """The streams that its positions may belong to, before all layers are known, the likeliest first."""
        if not self.is_text:
            return (str(self.tower),)
        return ("source" if self.role == "encoder" else "target"), self.tower or "text"


class Places:
    """Finds the locations of modules in the tree of their model."""

    def __init__(self, model: nn.Module, known: dict[str, Place] | None = None) -> None:
        self._model, self._known = model, {} if known is None else known

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self._model.named_modules(remove_duplicate=False))

    def of(self, path: str, entries: Mapping[int, int]) -> Place:
        """Return the location of the module with this path; `entries` is the number of calls of each module, by id."""
        if (place := self._known.get(path)) is None:
            place = self._known[path] = self._find(path)
        above = place.stack.split(".") if place.stack else []
        if not above or max(entries.values(), default=0) < 2:
            return place
        runs = (entries.get(id(self._at(above[:end])), 0) for end in range(1, len(above) + 1))
        return replace(place, run=max(1, *runs))

    def _find(self, path: str) -> Place:
        parts = path.split(".") if path else []
        at = next((index for index, part in enumerate(parts) if part.isdigit()), None)
        above = parts[: max(len(parts) - 1, 0) if at is None else at]
        depths = [getattr(getattr(one, "config", None), "num_hidden_layers", None) for one in self._up(parts)]
        number, count = (None, 0) if at is None else number_in_lists(parts, at, self._at)
        tower, named = self._tower(above)
        return Place(
            path=path,
            stack=".".join(above),
            layer=path if at is None else ".".join(parts[: at + 1]),
            number=number,
            count=count,
            tower=tower,
            named=named,
            role=next((role for part in above if (role := _role(part))), None),
            depth=next((depth for depth in depths if isinstance(depth, int)), None),
        )

    def _at(self, parts: Sequence[str]) -> nn.Module | None:
        return self._modules.get(".".join(parts))

    def _up(self, parts: Sequence[str]) -> list[nn.Module]:
        """Return the modules that contain this one, the innermost first."""
        found = (self._at(parts[:end]) for end in range(len(parts), -1, -1))
        return [one for one in found if one is not None]

    def _tower(self, above: Sequence[str]) -> tuple[str | None, bool]:
        """Return the modality of the innermost module that specifies one, and whether its name does."""
        for end in range(len(above), -1, -1):
            found = {_WORDS[word] for word in _words(above[end - 1]) if word in _WORDS} if end else set()
            if len(found) == 1:
                return found.pop(), True
            inputs = getattr(self._at(above[:end]), "input_modalities", None)
            kinds = [inputs] if isinstance(inputs, str) else list(inputs or ())
            if len(kinds) == 1 and kinds[0] in TOWERS:
                return str(kinds[0]), False
        return None, False


def reads_two_texts(model: nn.Module) -> bool:
    """Return whether a model has an encoder, which reads its `input_ids`, and a decoder."""
    parts = {name.rpartition(".")[2] for name, one in model.named_modules() if children(one)}
    return {"encoder", "decoder"} <= parts


def _words(part: str) -> list[str]:
    """Return the words of a module's name, `vision_tower` or `visionTower`."""
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", part).lower())


def _role(part: str) -> str | None:
    found = {word for word in _words(part) if word in ("encoder", "decoder")}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class _Positions:
    """Positions that layers share: their name, the run of their stack, and their number."""

    name: str
    run: int
    length: int


@dataclass(frozen=True, eq=False)
class _Found:
    """A layer with its location."""

    layer: Layer
    place: Place

    @property
    def stack(self) -> tuple[str, int]:
        """The stack of layers that it belongs to, in one run."""
        return self.place.stack, self.place.run


@dataclass(frozen=True, eq=False)
class _Link:
    """The layers whose positions are the queries and the keys of a cross-attention, if they were recorded."""

    query: _Found | None
    key: _Found | None

    def translates(self, one: _Found, towers: set[str]) -> bool:
        """Return whether it belongs to an encoder–decoder, instead of a text that attends to a tower."""
        if not one.place.is_text:
            return False
        if self.key is None:
            return not towers
        if one.place.tower not in (None, "text") and one.place.tower == self.key.place.tower:
            return one.place.role == "decoder"  # not the pooling of an image model
        return self.key.place.is_text


def name_streams(layers: Sequence[Layer], places: Sequence[Place]) -> tuple[Layer, ...]:
    """Return the layers of one pass with their streams and numbers."""
    found = [_Found(layer, place) for layer, place in zip(layers, places, strict=True)]
    links = {at: _link(one, found, at) for at, one in enumerate(found) if one.layer.kind == "cross"}
    pairs = _pairs(found, links)
    names = _names([one for pair in pairs for one in pair])
    return tuple(
        replace(layer, query_tokens=names[query], key_tokens=names[key], number=number)
        for layer, (query, key), number in zip(layers, pairs, _numbers(pairs, places), strict=True)
    )


def _link(one: _Found, found: Sequence[_Found], at: int) -> _Link:
    selves = [(index, each) for index, each in enumerate(found) if each.layer.kind == "self"]
    rows = [each for _, each in selves if each.layer.queries == one.layer.queries and each.place.run == one.place.run]
    near = [each for each in rows if _common(each.place, one.place)]
    query = max(near, key=lambda each: _common(each.place, one.place), default=None)
    columns = [each for index, each in selves if index < at and each.layer.keys == one.layer.keys]
    others = [each for each in columns if query is None or each.stack != query.stack]
    # An encoder's output rather than any other of this length; of several, what ran last.
    key = max(enumerate(others), key=lambda each: (each[1].place.role == "encoder", each[0]), default=(0, None))[1]
    return _Link(query, key)


def _common(one: Place, other: Place) -> int:
    """Return how many modules contain both; a common stack counts as one more."""
    pairs = zip(one.path.split("."), other.path.split("."), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) + (one.stack == other.stack)


def _pairs(found: Sequence[_Found], links: dict[int, _Link]) -> list[tuple[_Positions, _Positions]]:
    """Return the positions of each layer's queries and keys."""
    towers = {str(one.place.tower) for one in found if one.place.named and not one.place.is_text}
    texts = any(one.place.named and one.place.is_text for one in found)
    ends = [link for at, link in links.items() if link.translates(found[at], towers)]
    roles = {link.key.stack: "source" for link in ends if link.key} | {
        link.query.stack: "target" for link in ends if link.query
    }

    def name(one: _Found) -> str:
        if ends and one.place.is_text:
            return roles.get(one.stack) or ("source" if one.place.role == "encoder" else "target")
        # Beside a text that is named, what is not named is something else: CLIPSeg's decoder.
        return one.place.tower or (one.place.stack.partition(".")[0] if texts else "") or "text"

    def pools(one: _Found, link: _Link) -> bool:
        return one.place.tower not in (None, "text") and not link.translates(one, towers)

    def crossing(one: _Found, link: _Link) -> tuple[_Positions, _Positions]:
        layer, place, query, key = one.layer, one.place, link.query, link.key
        if query is not None:
            mine = _Positions(name(query), place.run, query.layer.keys)
        else:
            mine = _Positions(f"{place.tower} queries" if pools(one, link) else name(one), place.run, layer.queries)
        if key is not None:
            return mine, _Positions(name(key), key.place.run, layer.keys)
        elsewhere = min(towers) if len(towers) == 1 else "source"
        return mine, _Positions(elsewhere if place.is_text else str(place.tower), place.run, layer.keys)

    def own(one: _Found) -> tuple[_Positions, _Positions]:
        theirs = _Positions(name(one), one.place.run, one.layer.keys)
        if one.layer.queries > one.layer.keys:  # pooled keys
            return _Positions(theirs.name, theirs.run, one.layer.queries), theirs
        return theirs, theirs

    return [crossing(one, links[at]) if at in links else own(one) for at, one in enumerate(found)]


def _names(every: Sequence[_Positions]) -> dict[_Positions, str]:
    """Return names for all positions; different positions with one name are numbered: "image", "image 2"."""
    counts: Counter[str] = Counter()
    names: dict[_Positions, str] = {}
    for one in dict.fromkeys(every):
        counts[one.name] += 1
        names[one] = one.name if counts[one.name] == 1 else f"{one.name} {counts[one.name]}"
    return names


def _numbers(pairs: Sequence[tuple[_Positions, _Positions]], places: Sequence[Place]) -> list[int]:
    """Return the model's numbers within each pair of streams; a further stack of the same pair continues the count."""
    stacks: dict[tuple[tuple[_Positions, _Positions], str, int], list[int]] = {}
    for index, (pair, place) in enumerate(zip(pairs, places, strict=True)):
        stacks.setdefault((pair, place.stack, place.run), []).append(index)
    starts: Counter[tuple[_Positions, _Positions]] = Counter()
    numbers = [0] * len(places)
    for (pair, *_), indices in stacks.items():
        own = _own_numbers([places[index] for index in indices])
        for index, number in zip(indices, own, strict=True):
            numbers[index] = starts[pair] + number
        starts[pair] += max(places[indices[0]].count, *(one + 1 for one in own))
    return numbers


def _own_numbers(places: Sequence[Place]) -> list[int]:
    """Return the numbers of the calls of one stack.

    A shared layer gets a number for each call if the configuration counts so many (ALBERT) or if the module is in no
    list; otherwise further calls are numbered after the model's last layer.
    """
    seen: Counter[str] = Counter()
    calls = []
    for one in places:
        calls.append((one.layer, seen[one.path]))
        seen[one.path] += 1
    order = list(dict.fromkeys(calls))
    again = [call for call in order if call[1]]
    if again and len(order) == places[0].depth:
        return [order.index(call) for call in calls]
    return [
        order.index(call) if one.number is None else one.count + again.index(call) if call[1] else one.number
        for one, call in zip(places, calls, strict=True)
    ]
