"""The loops, compiled by numba at their first call and cached on disk for later processes."""

from typing import Any

import numba
import numpy as np

__all__ = ["sweep"]

_CHUNK = 64  # number of weights processed together; the columns of a block are a multiple of it

# Sums may be reordered, so that they can be vectorized; NaN is preserved.
_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


@_compiled
def sweep(
    weights: Any, bits: Any, scores: Any, row_shift: int, tall: int, column_shift: int, broad: int, first: int,
    top: Any, keys: Any, per_row: Any, received: Any, sums: Any, maxima: Any,
) -> None:  # fmt: skip
    """Compute sums and maxima of a block (heads, rows, columns) of weights.

    `bits`, `top` and `maxima` are floats viewed as integers, whose order is the same. Sums over a row are vectorized
    in the weights' dtype; received attention is summed in float64.
    """
    heads, height, columns = weights.shape
    added = np.zeros(columns, weights.dtype)
    most = np.zeros(columns, bits.dtype)
    places = np.arange(columns).astype(weights.dtype)
    for head in range(heads):
        row = 0
        while row < height:
            bin_row = (row + row_shift) // tall
            bottom = min(height, (bin_row + 1) * tall - row_shift)
            added[:] = 0
            most[:] = 0
            for i in range(row, bottom):
                _fold(
                    weights[head, i], bits[head, i], scores[head, i], weights.dtype.type(first + i), places,
                    top[head, i], keys[head, i], per_row[:, head, i], added, most,
                )  # fmt: skip
            _bin(added, most, column_shift, broad, received[head], sums[head, bin_row], maxima[head, bin_row])
            row = bottom


@_compiled
def _fold(
    weights: Any, bits: Any, scores: Any, at: Any, places: Any, best: Any, keys: Any, found: Any, added: Any, most: Any
) -> None:
    """Process one row, which is at column `at`."""
    zero, columns = weights.dtype.type(0), len(weights)
    dot, mass, moment = zero, zero, zero
    for j in range(columns):
        dot += weights[j] * scores[j]
        mass += weights[j]
        moment += weights[j] * abs(at - places[j])
    found[0], found[1], found[2] = dot, mass, moment
    for j in range(columns):
        added[j] += weights[j]
    for j in range(columns):
        most[j] = max(most[j], bits[j])
    _search(bits, best, keys)


@_compiled
def _search(bits: Any, best: Any, keys: Any) -> None:
    """Find the largest weights of a row in decreasing order, and their keys."""
    last = len(best) - 1
    best[:] = -1
    if len(best) <= _CHUNK:
        # Of k parts of the row, the smallest maximum is a lower bound of the row's k-th largest element.
        maxima = bits[:_CHUNK].copy()
        for left in range(_CHUNK, len(bits), _CHUNK):
            chunk = bits[left : left + _CHUNK]
            for j in range(_CHUNK):
                maxima[j] = max(maxima[j], chunk[j])
        _insert(maxima, 0, best, keys)
        best[:] = best[last] - 1
    for left in range(0, len(bits), _CHUNK):
        chunk, least, above = bits[left : left + _CHUNK], best[last], np.int32(0)
        for j in range(_CHUNK):  # a loop with a counter, because a maximum over so few elements is not vectorized
            above += np.int32(chunk[j] > least)
        if above:
            _insert(chunk, left, best, keys)


@_compiled
def _bin(added: Any, most: Any, shift: int, broad: int, received: Any, sums: Any, maxima: Any) -> None:
    """Add a run of rows to its keys, and to its row of bins."""
    for j in range(len(added)):
        received[j] += added[j]
    for at in range(len(sums)):
        for j in range(max(0, at * broad - shift), min(len(added), (at + 1) * broad - shift)):
            sums[at] += added[j]
            maxima[at] = max(maxima[at], most[j])


@_compiled
def _insert(bits: Any, left: int, best: Any, keys: Any) -> None:
    """Insert elements larger than the last of the best into their positions."""
    last = len(best) - 1
    for j in range(_CHUNK):
        if bits[j] > best[last]:
            place = last
            while place > 0 and best[place - 1] < bits[j]:
                best[place], keys[place] = best[place - 1], keys[place - 1]
                place -= 1
            best[place], keys[place] = bits[j], left + j
