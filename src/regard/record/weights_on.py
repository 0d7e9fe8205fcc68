"""The weights of some queries on some keys, from whatever a layer's record holds.

Words, kinds of heads, the page's lines and `weights()` ask here; rectangles and pooled cells are those of `tiles.py`.

Every weight is known of short texts, with keep="weights", and with keep="qk", of which any are computed. A pooled map
has the strongest keys of each query only; what it does not have is NaN, never a number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.record.layers import Layer

__all__ = ["rows_with_weight", "weights_of_pairs", "weights_on"]

_PAIRS = 2**21  # computed at a time
_BAND = 128  # neighbouring queries whose pairs are computed together, and of these those that were asked for are taken

Array = npt.NDArray[np.floating[Any]]


def weights_on(
    layer: Layer,
    batch_index: int,
    heads: Sequence[int],
    queries: Sequence[int],
    keys: Sequence[int] | None = None,
) -> Array:
    """Return the weights (heads, queries, keys) in the type of the record, on all keys unless some are named.

    They are 0 for queries that see nothing, and for queries and heads that were not chosen for recording; NaN where a
    pooled map does not have them. Where a query has all its keys in the map, the weight of any other is 0.
    """
    head, rows = list(heads), list(queries)
    columns = list(range(layer.keys)) if keys is None else list(keys)
    if layer.exact is not None:
        exact = layer.exact[batch_index]
        if keys is None:
            return np.asarray(exact[np.ix_(head, rows)])
        return np.asarray(exact[np.ix_(head, rows, columns)])
    if layer.qk is not None:
        return _computed(layer, batch_index, head, rows, columns)
    return _known(layer, batch_index, head, rows, columns)


def weights_of_pairs(
    layer: Layer, batch_index: int, heads: Sequence[int], queries: Sequence[int], keys: Sequence[int]
) -> Array:
    """Return the weight of each query on the key of the same place, (heads, pairs), as `weights_on` does."""
    head, rows, columns = list(heads), np.asarray(queries, np.intp), np.asarray(keys, np.intp)
    if layer.exact is not None:
        return np.asarray(layer.exact[batch_index][:, rows, columns][head])
    if layer.qk is None:
        hit = layer.top_keys[batch_index][:, rows] == columns[None, :, None]
        found = (layer.top_weights[batch_index][:, rows] * hit).sum(-1)
        unknown = ~hit.any(-1) & (layer.top_keys[batch_index][:, rows] >= 0).all(-1)
        found = np.where(unknown, np.nan, found)[head]
        return np.asarray(np.where(np.isin(head, layer.recorded_heads)[:, None], found, 0))
    weights = np.zeros((len(head), len(rows)), layer.entropy.dtype)
    for at in range(0, len(rows), _BAND):
        some = slice(at, at + _BAND)
        block = _computed(layer, batch_index, head, rows[some].tolist(), sorted({*columns[some].tolist()}))
        place = np.searchsorted(np.unique(columns[some]), columns[some])
        weights[:, some] = block[:, np.arange(len(place)), place]
    return weights


def rows_with_weight(layer: Layer, batch_index: int) -> npt.NDArray[np.bool_]:
    """Return which queries have weight in some head; others see nothing, or were not chosen for recording."""
    return np.asarray((layer.top_weights[batch_index] != 0).any((0, 2)))


def _computed(layer: Layer, batch_index: int, heads: list[int], rows: list[int], columns: list[int]) -> Array:
    """Compute weights from the queries and keys, those of neighbouring rows together."""
    found = np.zeros((len(heads), len(rows), len(columns)), layer.entropy.dtype)
    if not found.size:
        return found
    assert layer.qk is not None
    around = slice(min(columns), max(columns) + 1)
    whole = columns == list(range(around.start, around.stop))
    at: Any = slice(None) if whole else [column - around.start for column in columns]
    recorded = [(place, head) for place, head in enumerate(heads) if head in layer.recorded_heads]
    together = [head for _, head in recorded] == list(range(layer.heads))
    tall = max(1, _PAIRS // ((around.stop - around.start) * (layer.heads if together else 1)))
    for first, last in _runs(rows, tall):
        run = slice(rows[first], rows[last - 1] + 1)
        if together:
            found[:, first:last] = layer.qk.tiles(batch_index, slice(0, layer.heads), run, around)[..., at]
            continue
        for place, head in recorded:
            found[place, first:last] = layer.qk.tile(batch_index, head, run, around)[:, at]
    return found


def _runs(rows: list[int], most: int) -> list[tuple[int, int]]:
    """Return the bounds of runs of neighbouring rows in the list, none longer than `most`.

    >>> _runs([4, 5, 9], 8)
    [(0, 2), (2, 3)]
    """
    bounds = [0]
    for at in range(1, len(rows)):
        if rows[at] != rows[at - 1] + 1 or at - bounds[-1] == most:
            bounds.append(at)
    return list(zip(bounds, [*bounds[1:], len(rows)], strict=True))


def _known(layer: Layer, batch_index: int, heads: list[int], rows: list[int], columns: list[int]) -> Array:
    """Return the weights that a pooled map has."""
    kept = layer.top_keys[batch_index][np.ix_(heads, rows)]  # (heads, queries, strongest)
    weights = layer.top_weights[batch_index][np.ix_(heads, rows)]
    full = (kept >= 0).all(-1, keepdims=True) & np.isin(heads, layer.recorded_heads)[:, None, None]
    wanted, at = np.unique(np.array(columns, np.intp), return_inverse=True)
    place = np.full(layer.keys + 1, len(wanted))  # the last is that of key −1
    place[wanted] = range(len(wanted))
    found = np.zeros((*kept.shape[:2], len(wanted) + 1), weights.dtype)
    found[:] = np.where(full, np.nan, 0)
    np.put_along_axis(found, place[kept], weights, -1)
    return found[..., at]
