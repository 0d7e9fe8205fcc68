"""What the numbers of a statistic stand for: the axes of its arrays behind (batch, heads, ...)."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

__all__ = ["PER_KEY", "Axis", "axes_of", "read_axes"]

# Results without axes that have a number for each key; all others have one for each query.
PER_KEY = ("received", "sink", "value_norm", "value_norm.keys", "gradient_x_attention.keys")

# Of what the axis is, and which: chosen positions, or names; None for all of them.
Axis = tuple[Literal["queries", "keys", "names"], tuple[int, ...] | tuple[str, ...] | None]

_KINDS: dict[str, type | None] = {"queries": int, "keys": int, "names": str}


def axes_of(statistics: Iterable[Any], results: Mapping[str, Any]) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of the results, arrays by name, whose statistics tell them by an attribute `axes`.

    Axes that are none of the array are left out: a class of your own may inherit them and give something else.
    """
    found = {}
    for one in statistics:
        axes, array = getattr(one, "axes", None), results.get(one.name)
        if axes is None or array is None:
            continue
        try:
            stored = [[of, which if which is None else list(map(_plain, which))] for of, which in axes]
            found[one.name] = read_axes({one.name: stored}, {one.name: array.shape})[one.name]
        except (TypeError, ValueError):
            continue
    return found


def _plain(place: Any) -> int | str:
    """Return a place as JSON has it; what is no text in a name (half a surrogate pair) is spelled out."""
    if isinstance(place, str):
        return place.encode("utf-8", "backslashreplace").decode()
    return operator.index(place)


def read_axes(stored: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of an atlas' header, for arrays of these shapes.

    Raises:
        ValueError: They are not axes of these arrays.
    """
    if not isinstance(stored, dict) or not all(isinstance(axes, list) for axes in stored.values()):
        raise ValueError(f"the axes of statistics must be lists by name, got {stored!r}")
    found: dict[str, tuple[Axis, ...]] = {}
    for name, axes in stored.items():
        sizes = shapes.get(name, ())[2:]
        if len(axes) != len(sizes):
            raise ValueError(f"the statistic {name!r} has {len(sizes)} axes behind its heads, got {axes!r}")
        found[name] = tuple(_axis(one, size) for one, size in zip(axes, sizes, strict=True))
    return found


def _axis(stored: Any, size: int) -> Axis:
    of, which = stored if isinstance(stored, list) and len(stored) == 2 else (None, None)
    if of not in _KINDS or (which is None and of == "names"):
        raise ValueError(f"an axis must be of queries, keys or names, got {stored!r}")
    if which is None:
        return of, None
    if not isinstance(which, list) or len(which) != size or not all(type(one) is _KINDS[of] for one in which):
        raise ValueError(f"an axis of {size} must have so many places, got {which!r}")
    if of == "names":
        "".join(which).encode()  # half a surrogate pair is no text
    elif min(which, default=0) < 0:
        raise ValueError(f"places must be counted from 0, got {which!r}")
    return of, tuple(which)
