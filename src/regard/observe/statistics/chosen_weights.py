"""Single weights: chosen rows, chosen columns, a rectangle of both, or all of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.observe.selection import Keys, KeySpans
from regard.observe.statistics.base import Extent, PerQuery
from regard.observe.weight_rows import RowBlock
from regard.record.statistic_axes import Axis

__all__ = ["Columns", "KeySpanSums", "Rectangle", "Rows", "Weights"]


class Columns(PerQuery):
    """p_ij of selected keys j for every query; (batch, heads, queries, number of keys), NaN for keys that do not
    exist.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Columns([1]), [[1.0, 0.0], [0.25, 0.75]])["columns"]
    array([[0.  ],
           [0.75]], dtype=float32)
    """

    by_head = True

    def __init__(self, keys: Iterable[int], *, name: str = "columns") -> None:
        super().__init__()
        self.name, self.keys = name, _places("keys", keys)
        self.width = len(self.keys)
        self.axes = (("queries", None), ("keys", self.keys))

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows chosen"]:
        """Return the selected columns of some rows; columns outside the block have weight 0."""
        at = torch.tensor(self.keys, device=rows.weights.device) - rows.key_start
        inside = (at >= 0) & (at < rows.weights.shape[2])
        return rows.weights[..., at.clamp(0, rows.weights.shape[2] - 1)] * inside

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return all rows, with NaN for keys that do not exist."""
        (found,) = super().finish(extent).values()
        found[..., [at for at, key in enumerate(self.keys) if key >= extent.keys]] = float("nan")
        return {self.name: found}


class Rectangle:
    """p_ij of the queries in one range and the keys in another; (batch, heads, rows, columns), NaN outside the matrix.

    `rows` and `columns` are slices or ranges of indices with an end.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Rectangle(slice(1, 2), slice(0, 2)), [[1.0, 0.0], [0.25, 0.75]])["rectangle"]
    array([[0.25, 0.75]], dtype=float32)
    """

    by_head = True

    def __init__(self, rows: slice | range, columns: slice | range, *, name: str = "rectangle") -> None:
        self.name = name
        self.rows, self.columns = _range("rows", rows), _range("columns", columns)
        self.axes: tuple[Axis, ...] = (("queries", tuple(self.rows)), ("keys", tuple(self.columns)))
        self._found: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Allocate memory for the whole rectangle."""
        if self._found is None:
            shape = extent.batch, extent.heads, len(self.rows), len(self.columns)
            self._found = torch.zeros(shape, dtype=extent.dtype, device=extent.device)

    def fold(self, rows: RowBlock) -> None:
        """Copy the weights inside the rectangle."""
        assert self._found is not None  # start comes first
        top, bottom = max(self.rows.start, rows.rows.start), min(self.rows.stop, rows.rows.stop)
        left, right = max(self.columns.start, rows.columns.start), min(self.columns.stop, rows.columns.stop)
        if top < bottom and left < right:
            part = rows.weights[
                :, top - rows.start : bottom - rows.start, left - rows.key_start : right - rows.key_start
            ]
            to = slice(top - self.rows.start, bottom - self.rows.start)
            self._found[rows.batch_index, rows.heads, to, left - self.columns.start : right - self.columns.start] = part

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the weights of another."""
        self._found = None if self._found is None else self._found[rows]

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the rectangle, with NaN outside the matrix."""
        assert self._found is not None
        found = self._found.cpu().numpy()
        found[:, :, max(0, extent.queries - self.rows.start) :] = float("nan")
        found[..., max(0, extent.keys - self.columns.start) :] = float("nan")
        return {self.name: found}


class Rows:
    """p_ij of selected queries i for every key; (batch, heads, number of queries, keys), NaN for queries that do not
    exist.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Rows([1]), [[1.0, 0.0], [0.25, 0.75]])["rows"]
    array([[0.25, 0.75]], dtype=float32)
    """

    by_head = True

    def __init__(self, queries: Iterable[int], *, name: str = "rows") -> None:
        self.name, self.queries = name, _places("queries", queries)
        self.axes: tuple[Axis, ...] = (("queries", self.queries), ("keys", None))
        self._found: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Allocate memory for new keys."""
        if self._found is None:
            shape = extent.batch, extent.heads, len(self.queries), extent.keys
            self._found = torch.zeros(shape, dtype=extent.dtype, device=extent.device)
        elif (more := extent.keys - self._found.shape[3]) > 0:
            self._found = functional.pad(self._found, (0, max(more, extent.keys // 4)))

    def fold(self, rows: RowBlock) -> None:
        """Copy the selected rows in this block."""
        assert self._found is not None  # start comes first
        for at, query in enumerate(self.queries):
            if rows.rows.start <= query < rows.rows.stop:
                target = self._found[rows.batch_index, rows.heads, at, rows.columns]
                target.copy_(rows.weights[:, query - rows.start, : target.shape[1]])

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the rows of another."""
        self._found = None if self._found is None else self._found[rows]

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the rows, with NaN for queries that do not exist."""
        assert self._found is not None
        found = self._found[..., : extent.keys].cpu().numpy()
        found[:, :, [at for at, query in enumerate(self.queries) if query >= extent.queries]] = float("nan")
        return {self.name: found}


def _places(name: str, chosen: Iterable[int]) -> tuple[int, ...]:
    places = tuple(chosen)
    if not places or any(isinstance(one, bool) or not hasattr(one, "__index__") or one < 0 for one in places):
        raise InputError(f"`{name}` must be indices from 0 on, at least one, got {places}: count from the beginning")
    return tuple(int(one) for one in places)


def _range(name: str, chosen: slice | range) -> range:
    if chosen.stop is None or chosen.step not in (None, 1) or not 0 <= (chosen.start or 0) < chosen.stop:
        raise InputError(f"`{name}` must be a slice with an end behind its start, counted from 0, got {chosen}")
    return range(chosen.start or 0, chosen.stop)


class Weights:
    """p_ij itself (batch, heads, queries, keys): n × n numbers per head, stored only on request and within
    `max_bytes`.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Weights(), [[1.0, 0.0], [0.25, 0.75]])["weights"]
    array([[1.  , 0.  ],
           [0.25, 0.75]], dtype=float32)
    """

    name = "weights"
    by_head = True
    reads_rows_alone = True

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent, /) -> None:
        """Allocate one tensor for the rows of the call; `finish` joins them."""
        self._first = sum(part.shape[2] for part in self._parts)
        shape = extent.batch, extent.heads, extent.queries - self._first, extent.keys
        self._parts.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: RowBlock) -> None:
        """Copy some rows."""
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        part = self._parts[-1][rows.batch_index, rows.heads, here, rows.columns]
        part.copy_(rows.weights[..., : part.shape[-1]])

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the rows of another."""
        self._parts = [part[rows] for part in self._parts]

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return all rows; earlier rows have weight 0 for later keys."""
        if len(self._parts) == 1:
            return {"weights": self._parts[0].cpu().numpy()}
        whole = self._parts[0].new_zeros(extent.batch, extent.heads, extent.queries, extent.keys)
        row = 0
        for part in self._parts:
            whole[:, :, row : row + part.shape[2], : part.shape[3]] = part
            row += part.shape[2]
        return {"weights": whole.cpu().numpy()}


class KeySpanSums(PerQuery):
    """Σ_{j in span} p_ij for each named span of keys; (batch, heads, queries, spans), in the order of `keys`.

    Spans are named as in `regard.watch(keys=)`: (start, stop), (start, None) up to the last key, a range, or a list of
    positions. Lookback Lens (Chuang et al. 2024, https://arxiv.org/abs/2407.07071, section 2) reads such sums over the
    context and over the generated text.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(KeySpanSums({"context": (0, 2), "new": (2, None)}), [[0.5, 0.25, 0.25]])["key_spans"]
    array([[0.75, 0.25]], dtype=float32)
    """

    name = "key_spans"
    by_head = True

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.spans = KeySpans.of(keys)
        self.width = len(self.spans.names)
        self.axes = (("queries", None), ("names", self.spans.names))

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows spans"]:
        """The sums of some rows."""
        return self.spans.sum(rows.weights, rows.key_start)
