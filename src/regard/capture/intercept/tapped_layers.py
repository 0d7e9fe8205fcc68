"""Which modules a tap looks into: the chosen layers, by their number in the model or by the name of a module."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from regard.capture.layers import Stream
from regard.capture.selection import HeadsChosen
from regard.capture.streams import TOWERS, Place, Places
from regard.capture.tap_steps import Site
from regard.errors import InputError

__all__ = ["TappedLayer", "name_in", "tapped_layers"]


@dataclass(eq=False)
class TappedLayer:
    """A module whose calls are looked into, and what its last complete call has shown."""

    module: nn.Module
    sites: tuple[Site, ...] = ()
    is_light: bool = False  # whether only PyTorch's kernel needs to be looked at
    seen: list[Site] = field(default_factory=list)  # in the running call
    misses: int = 0
    others: bool = False  # whether it has attention besides PyTorch's kernel


def name_in(model: nn.Module, module: nn.Module) -> str:
    """Return the name of a module in its model, for messages."""
    return next((name for name, one in model.named_modules() if one is module and name), "the model")


def tapped_layers(
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
        found[id(modules[name])] = TappedLayer(modules[name])
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
    found |= {id(modules[path]): TappedLayer(modules[path]) for path in here}
    return found, False


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
