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

__all__ = ["bin_run", "insert_above", "scan", "sweep_float32", "sweep_float64"]


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
            bin_run(job, head, head * job.bin_rows + bin_row, 0, columns, real, whole)
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
        insert_above(job, row, chunk, 0, whole)
        best[:] = best[count - 1] - 1
    scan(job, row, source, 0, columns, whole)


@compiled_sums
def scan(job: Any, row: int, source: int, first: int, count: int, whole: Any) -> None:
    """Insert those of some elements, from column `first` on, that are larger than the last of the row's best."""
    best = _array(job.top + row * job.count * job.size, job.count, whole)
    for left in range(0, count, CHUNK):
        bits = _array(source + left * job.size, CHUNK, whole)  # indices that may be negative prevent vectorization
        least, above = best[job.count - 1], np.int32(0)
        for j in range(CHUNK):  # a loop with a counter, because a maximum over so few elements is not vectorized
            above += np.int32(bits[j] > least)
        if above:
            insert_above(job, row, source + left * job.size, first + left, whole)


@compiled_sums
def insert_above(job: Any, row: int, source: int, left: int, whole: Any) -> None:
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
def bin_run(job: Any, head: int, bins: int, left: int, right: int, real: Any, whole: Any) -> None:
    """Add a run of rows to its keys from `left` to `right`, and to its row of bins."""
    count, size, wide = job.bin_columns, job.size, right - left
    added, received = job.room + left * size, job.received + (head * job.columns + left) * 8
    _widen(_array(added, wide, real), _array(received, wide, np.float64))
    sums = _array(job.sums + bins * count * size, count, real)
    maxima = _array(job.maxima + bins * count * size, count, whole)
    at = left
    while at < right:
        place = (at + job.column_shift) // job.broad
        end = min(right, (place + 1) * job.broad - job.column_shift)
        above = _array(job.room + at * size, end - at, real)
        most = _array(job.room + (job.columns + at) * size, end - at, whole)
        for j in range(end - at):
            sums[place] += above[j]
            maxima[place] = max(maxima[place], most[j])
        at = end


@compiled_sums
def _widen(added: Any, received: Any) -> None:
    for j in range(len(added)):
        received[j] += added[j]
