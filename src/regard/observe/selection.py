"""Which heads, queries and keys a watch or a tap is limited to, checked at the door."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.record.kept_qk import NUMBERS

__all__ = ["Heads", "HeadsChosen", "KeySpans", "Keys", "Queries", "QueriesChosen", "in_place"]

Heads = Any  # "17.3", 17, (17, 3), ("model.layers.17.self_attn", 3), or an object whose `heads` are such pairs
Queries = Literal["last", "new"] | Sequence[int] | range
Keys = Mapping[str, tuple[int, int | None] | Sequence[int] | range]

_HEAD = re.compile(r"(\d+)(?:\.(\d+))?")
_HEADS_RULE = (
    '`heads` must be a list of heads: "17.3", (17, 3), a layer such as 17 for all of its heads, or an object with '
    "`heads` of such pairs (a HeadSet)"
)


@dataclass(frozen=True)
class HeadsChosen:
    """Heads by layer, in the order given: the layer's number or its module's name, and the head; None for all of its
    heads.
    """

    pairs: tuple[tuple[int | str, int | None], ...]

    @classmethod
    def of(cls, heads: Heads) -> "HeadsChosen":
        """Return the heads that `heads=` names.

        Raises:
            InputError: It is no list of heads, it is empty, or it names a head twice.

        >>> HeadsChosen.of(["17.3", (4, 1), 5]).pairs
        ((17, 3), (4, 1), (5, None))
        """
        given = getattr(heads, "heads", heads)
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InputError(f"{_HEADS_RULE}, got {heads!r}: put it in [ ]")
        pairs = tuple(_pair(one) for one in given)
        if not pairs:
            raise InputError(f"{_HEADS_RULE}, got none")
        for at, (layer, head) in enumerate(pairs):
            if any(layer == other and (head == own or None in (head, own)) for other, own in pairs[:at]):
                raise InputError(f"`heads` must differ, got {layer if head is None else f'{layer}.{head}'} twice")
        return cls(pairs)

    @property
    def layers(self) -> tuple[int | str, ...]:
        """The layers, each once."""
        return tuple(dict.fromkeys(layer for layer, _ in self.pairs))

    def of_layer(self, number: int | None, name: str, count: int) -> tuple[int, ...]:
        """Return the chosen heads of a layer with `count` heads, in the order given.

        Raises:
            InputError: The layer has no such head.
        """
        found: list[int] = []
        for layer, head in self.pairs:
            if layer not in (number, name):
                continue
            if head is not None and head >= count:
                raise InputError(f"`head` must be from 0 to {count - 1} in layer {layer}, got {layer}.{head}")
            found += range(count) if head is None else [head]
        return tuple(found)


def _pair(one: Any) -> tuple[int | str, int | None]:
    if isinstance(one, str) and (match := _HEAD.fullmatch(one.strip())):
        return int(match[1]), None if match[2] is None else int(match[2])
    if _is_index(one):
        return int(one), None
    if isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 2 and _is_index(one[1]):
        layer, head = one
        if _is_index(layer) or (isinstance(layer, str) and layer):
            return (layer if isinstance(layer, str) else int(layer)), int(head)
    raise InputError(f"{_HEADS_RULE}, counted from 0, got {one!r} in it")


def _is_index(one: Any) -> bool:
    return not isinstance(one, bool) and hasattr(one, "__index__") and not isinstance(one, Tensor) and int(one) >= 0


@dataclass(frozen=True)
class QueriesChosen:
    """Which queries have rows: those of a rule, or some positions."""

    rule: Literal["last", "new"] | None = None
    positions: frozenset[int] = frozenset()
    span: tuple[int, int] | None = None

    @classmethod
    def of(cls, queries: Queries) -> "QueriesChosen":
        """Return the queries that `queries=` names.

        Raises:
            InputError: It is neither "last", "new", a list of positions nor a range; or a pair, which `keys=` would
                take for a span.

        >>> QueriesChosen.of(range(2, 5)).span, sorted(QueriesChosen.of([7, 3]).positions)
        ((2, 5), [3, 7])
        >>> sorted(QueriesChosen.of(range(0, 6, 2)).positions)
        [0, 2, 4]
        """
        if queries == "last" or queries == "new":
            return cls(rule=queries)
        if isinstance(queries, range) and queries.step == 1 and queries.start >= 0 and len(queries):
            return cls(span=(queries.start, queries.stop))
        if isinstance(queries, tuple) and len(queries) == 2 and all(_is_index(one) for one in queries):
            first, last = map(int, queries)
            raise InputError(
                f"`queries` {queries} may be two positions or a span, as it is in `keys=`: write [{first}, {last}] or "
                f"range({first}, {last})"
            )
        known = isinstance(queries, Sequence) and not isinstance(queries, str)
        if known and queries and all(_is_index(one) for one in queries):
            return cls(positions=frozenset(int(one) for one in queries))
        raise InputError(
            '`queries` must be "last", "new", a list of positions such as [5, 9], or range(5, 9), counted from 0, got '
            f"{queries!r}"
        )

    def rows(self, first: int, count: int, last: int) -> slice | list[int]:
        """Return the rows of a call whose `count` queries begin at position `first`; `last` are those of the end."""
        if self.rule == "new":
            return slice(0, count)
        if self.rule == "last":
            return slice(max(0, count - last), count)
        if self.span is not None:
            top, bottom = (min(max(at - first, 0), count) for at in self.span)
            return slice(top, bottom)
        return sorted(at - first for at in self.positions if 0 <= at - first < count)


@dataclass(frozen=True)
class _Span:
    """Positions [start, stop), or to the newest key; or a list of positions."""

    start: int = 0
    stop: int | None = None
    positions: tuple[int, ...] | None = None

    def tensor(self, shift: int, count: int, device: torch.device) -> Int[Tensor, " keys"]:
        at = torch.tensor([one - shift for one in self.positions or () if 0 <= one - shift < count], device=device)
        return at.long()


@dataclass(frozen=True, eq=False)
class KeySpans:
    """Named spans of key positions, over which weights are summed.

    >>> spans = KeySpans.of({"first": (0, 1), "rest": (1, None), "ends": [0, 2], "even": range(0, 9, 2)})
    >>> spans.sum(torch.tensor([[0.5, 0.25, 0.25]]))
    tensor([[0.5000, 0.5000, 0.7500, 0.7500]])
    """

    names: tuple[str, ...]
    spans: tuple[_Span, ...]

    @classmethod
    def of(cls, keys: Keys) -> "KeySpans":
        """Return the spans that `keys=` names.

        Raises:
            InputError: It is no dictionary of names and spans, or a span is empty or reversed.
        """
        if not isinstance(keys, Mapping) or not keys or not all(isinstance(name, str) for name in keys):
            raise InputError(
                '`keys` must be a dictionary of named spans of key positions, such as {"document 1": (0, 120), '
                f'"document 2": (120, 300)}}, got {keys!r}'
            )
        return cls(tuple(keys), tuple(_span(name, one) for name, one in keys.items()))

    def sum(self, weights: Float[Tensor, "*rows keys"], shift: int = 0) -> Float[Tensor, "*rows spans"]:
        """Return the sum of the weights over each span; column j is key position j + `shift`."""
        count = weights.shape[-1]
        parts = []
        for one in self.spans:
            if one.positions is None:
                stop = count if one.stop is None else min(max(one.stop - shift, 0), count)
                part = weights[..., min(max(one.start - shift, 0), stop) : stop]
            else:
                part = weights.index_select(-1, one.tensor(shift, count, weights.device))
            parts.append(part.sum(-1))
        return torch.stack(parts, -1)

    def mask(self, count: int) -> Bool[Tensor, "spans keys"]:
        """Return which of `count` keys belong to each span."""
        return self.sum(torch.eye(count, dtype=torch.float32, device="cpu")).T > 0


def _span(name: str, one: Any) -> _Span:
    if isinstance(one, range) and one.step == 1:
        one = (one.start, one.stop)
    if isinstance(one, tuple) and len(one) == 2 and _is_index(one[0]) and (one[1] is None or _is_index(one[1])):
        if one[1] is not None and one[0] >= one[1]:
            raise InputError(f"the span {name!r} of `keys` must be (start, stop) with start before stop, got {one}")
        return _Span(int(one[0]), None if one[1] is None else int(one[1]))
    if isinstance(one, list | range) and one and all(_is_index(at) for at in one):
        return _Span(positions=tuple(sorted({int(at) for at in one})))
    raise InputError(
        f"the span {name!r} of `keys` must be (start, stop), (start, None) up to the newest key, a range or a list of "
        f"positions, got {one!r}"
    )


def in_place(fields: Mapping[str, Any], heads: tuple[int, ...], count: int) -> dict[str, Any]:
    """Return arrays of the chosen heads as arrays of all, with each head at its own number.

    The rest is 0 and never written, so that it takes no memory.
    """

    def placed(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.ndim < 2 or array.shape[1] != len(heads):
            return array  # shared by all heads
        whole = np.zeros((array.shape[0], count, *array.shape[2:]), array.dtype)
        whole[:, list(heads)] = array
        return whole

    found = {name: placed(one) for name, one in fields.items()}
    found["statistics"] = {name: placed(one) for name, one in fields.get("statistics", {}).items()}
    if (kept := fields.get("qk")) is not None:
        arrays = {name: placed(one) if name in NUMBERS else one for name, one in kept.arrays.items()}
        found["qk"] = replace(kept, arrays=arrays)
    return found
