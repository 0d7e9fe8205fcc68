"""The statistics of a block of rows of weights in one pass, while a row is in cache: sums, maxima and strongest keys.

Weights are not negative, so their bits as integers have the same order. Sums over a row are vectorized in the weights'
type; what a key receives is summed in float64.
"""

from typing import Any

import numba
import numpy as np

from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops.kernel_args import CHUNK
from regard.backends.numba_loops.llvm_builder import compiled_sums

__all__ = ["sweep_float32", "sweep_float64"]


def sweep_float32(address: Any) -> None:
    """Compute sums, maxima and strongest keys of a block (heads, rows, columns) of weights."""
    _sweep(address, np.float32, np.int32)


def sweep_float64(address: Any) -> None:
    """Compute the same of weights in float64."""
    _sweep(address, np.float64, np.int64)


@compiled_sums
def _array(address: int, count: int, dtype: Any) -> Any:
    """Return the numbers at an address; arrays are no arguments, because these count references."""
    return numba.carray(on.pointer(address), count, dtype)


@compiled_sums
def _sweep(address: Any, real: Any, whole: Any) -> None:
    job = numba.carray(address, 1)[0]
    columns, size = job.columns, job.size
    width = columns * size
    numbers = _array(job.room + 2 * width, columns, real)  # behind a run's sums and maxima
    for j in range(columns):
        numbers[j] = j
    for head in range(job.heads):
        row = 0
        while row < job.rows:
            bin_row = (row + job.row_shift) // job.tall
            bottom = min(job.rows, (bin_row + 1) * job.tall - job.row_shift)
            on.zero(job.room, 2 * width)
            for i in range(row, bottom):
                at = head * job.rows + i
                _fold(job, at, job.first + i, real)
                _gather(job, at, real, whole)
                _search(job, at, whole)
            _bin(job, head, head * job.bin_rows + bin_row, real, whole)
            row = bottom


@compiled_sums
def _fold(job: Any, row: int, at: int, real: Any) -> None:
    """Add up one row, which is at column `at`."""
    columns, width = job.columns, job.columns * job.size
    weights, scores = _array(job.weights + row * width, columns, real), _array(job.scores + row * width, columns, real)
    places, here = _array(job.room + 2 * width, columns, real), real(at)
    dot, mass, moment = real(0), real(0), real(0)
    for j in range(columns):
        dot += weights[j] * scores[j]
        mass += weights[j]
        moment += weights[j] * abs(here - places[j])
    rows = job.heads * job.rows
    found = _array(job.per_row, 3 * rows, real)
    found[row], found[rows + row], found[2 * rows + row] = dot, mass, moment


@compiled_sums
def _gather(job: Any, row: int, real: Any, whole: Any) -> None:
    """Add a row to the sums of its run of rows, and to their maxima."""
    columns, width = job.columns, job.columns * job.size
    weights, bits = _array(job.weights + row * width, columns, real), _array(job.weights + row * width, columns, whole)
    added, most = _array(job.room, columns, real), _array(job.room + width, columns, whole)
    for j in range(columns):
        added[j] += weights[j]
    for j in range(columns):
        most[j] = max(most[j], bits[j])


@compiled_sums
def _search(job: Any, row: int, whole: Any) -> None:
    """Find the largest weights of a row in decreasing order, and their keys."""
    columns, width, count = job.columns, job.columns * job.size, job.count
    source = job.weights + row * width
    bits, best = _array(source, columns, whole), _array(job.top + row * count * job.size, count, whole)
    best[:] = -1
    if count <= CHUNK:
        # Of k parts of the row, the smallest maximum is a lower bound of the row's k-th largest element.
        chunk = job.room + 3 * width
        maxima = _array(chunk, CHUNK, whole)
        for j in range(CHUNK):
            maxima[j] = bits[j]
        for left in range(CHUNK, columns, CHUNK):
            for j in range(CHUNK):
                maxima[j] = max(maxima[j], bits[left + j])
        _insert(job, row, chunk, 0, whole)
        best[:] = best[count - 1] - 1
    for left in range(0, columns, CHUNK):
        least, above = best[count - 1], np.int32(0)
        for j in range(CHUNK):  # a loop with a counter, because a maximum over so few elements is not vectorized
            above += np.int32(bits[left + j] > least)
        if above:
            _insert(job, row, source + left * job.size, left, whole)


@compiled_sums
def _insert(job: Any, row: int, source: int, left: int, whole: Any) -> None:
    """Insert elements larger than the last of the best into their positions."""
    count, last = job.count, job.count - 1
    bits, best = _array(source, CHUNK, whole), _array(job.top + row * count * job.size, count, whole)
    keys = _array(job.keys + row * count * 8, count, np.int64)
    for j in range(CHUNK):
        if bits[j] > best[last]:
            place = last
            while place > 0 and best[place - 1] < bits[j]:
                best[place], keys[place] = best[place - 1], keys[place - 1]
                place -= 1
            best[place], keys[place] = bits[j], left + j


@compiled_sums
def _bin(job: Any, head: int, bins: int, real: Any, whole: Any) -> None:
    """Add a run of rows to its keys, and to its row of bins."""
    columns, count, width = job.columns, job.bin_columns, job.columns * job.size
    added, most = _array(job.room, columns, real), _array(job.room + width, columns, whole)
    received = _array(job.received + head * columns * 8, columns, np.float64)
    sums = _array(job.sums + bins * count * job.size, count, real)
    maxima = _array(job.maxima + bins * count * job.size, count, whole)
    for j in range(columns):
        received[j] += added[j]
    for at in range(count):
        first, end = max(0, at * job.broad - job.column_shift), min(columns, (at + 1) * job.broad - job.column_shift)
        for j in range(first, end):
            sums[at] += added[j]
            maxima[at] = max(maxima[at], most[j])
