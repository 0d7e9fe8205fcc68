"""The statistics of weights from q and k in one pass: weights exist only for the rows of a group, in the core's cache.

Scores of a few queries are computed with the keys that any of them sees, keys being rearranged in blocks beforehand.
Then each row becomes its softmax in place, is added to the sums of its run of rows, and is searched for its strongest
keys (`weight_statistics.py`). Keys outside the band around the diagonal are skipped.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops.llvm_builder import FLOATS, I32, I64, WIDTH, Code, F, compiled, instruction
from regard.backends.numba_loops.sizes import BLOCK, LANES, ROWS
from regard.backends.numba_loops.tiles import PANEL_BYTES, PANELS, VECTORS, floats, multiply
from regard.backends.numba_loops.weight_statistics import bin_run

__all__ = ["sweep_qk"]

_HIDDEN = np.float32(np.finfo(np.float32).min / 4)  # the score of a key that a row does not see
_ROW_BYTES = BLOCK * 4  # of an element of all keys of a block
_zeros, _at, _float = ir.Constant(FLOATS, [0.0] * LANES), types.int64, types.float32


@instruction(types.void, _at, _at, _float, _float, _at)
def _weigh(code: Code, row: Any, vectors: Any, most: Any, here: Any, found: Any) -> None:
    """Replace scores s by w = e ** (s − most), and write Σ w, Σ w (s − most) and Σ w |here − j| to `found`."""
    do = code.do
    mass, dot, moment = code.variables(3, _zeros)
    places = ir.Constant(FLOATS, [float(lane) for lane in range(LANES)])
    (ahead,) = code.variables(1, do.fsub(code.everywhere(here), places))
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, WIDTH))
        x = do.fsub(code.load(at, FLOATS), code.everywhere(most))
        weight = on.power(code, do.fmul(x, ir.Constant(FLOATS, [on.LOG2_E] * LANES)))
        code.store(weight, at)
        away = code.call("llvm.fabs.v16f32", FLOATS, do.load(ahead))
        do.store(do.fadd(do.load(mass), weight), mass)
        do.store(code.fma(weight, x, do.load(dot)), dot)
        do.store(code.fma(weight, away, do.load(moment)), moment)
        do.store(do.fsub(do.load(ahead), ir.Constant(FLOATS, [float(LANES)] * LANES)), ahead)
    for place, one in enumerate((mass, dot, moment)):
        code.store(code.total(do.load(one)), code.at(found, 4 * place))


@instruction(types.void, _at, _at, _float, _at, _at, _at)
def _gather(code: Code, row: Any, blocks: Any, share: Any, added: Any, most: Any, parts: Any) -> None:
    """Multiply a row by its share, add it to the sums of its run and to their maxima, and write the maximum of each of
    64 parts of the row.
    """
    do = code.do
    largest = code.variables(VECTORS, _zeros)
    with code.loop(blocks) as loop:
        for at in range(VECTORS):
            offset = code.at(code.times(loop.index, VECTORS * WIDTH), at * WIDTH)
            here, sums, maxima = (do.add(address, offset) for address in (row, added, most))
            weight = do.fmul(code.load(here, FLOATS), code.everywhere(share))
            code.store(weight, here)
            code.store(do.fadd(code.load(sums, FLOATS), weight), sums)
            code.store(code.larger(weight, code.load(maxima, FLOATS)), maxima)
            do.store(code.larger(weight, do.load(largest[at])), largest[at])
    for at in range(VECTORS):
        code.store(do.load(largest[at]), do.add(parts, ir.Constant(I64, at * WIDTH)))


@instruction(_at, _at, _float)
def _larger(code: Code, row: Any, least: Any) -> Any:
    """Return which of 64 floats are larger than a number, one bit for each."""
    do, bits = code.do, ir.Constant(I64, 0)
    for at in range(VECTORS):
        above = do.fcmp_ordered(">", code.load(code.at(row, at * WIDTH), FLOATS), code.everywhere(least))
        part = do.zext(do.bitcast(above, ir.IntType(LANES)), I64)
        bits = do.or_(bits, do.shl(part, ir.Constant(I64, at * LANES)))
    return bits


@instruction(_at, _at)
def _lowest(code: Code, bits: Any) -> Any:
    """Return the number of the lowest bit that is set."""
    return code.do.cttz(bits, ir.Constant(ir.IntType(1), 1))


@instruction(_float, _float)
def _below(code: Code, x: Any) -> Any:
    """Return the next smaller float of one that is not negative; −1 for 0."""
    do = code.do
    smaller = do.bitcast(do.sub(do.bitcast(x, I32), ir.Constant(I32, 1)), F)
    return do.select(do.fcmp_ordered(">", x, ir.Constant(F, 0.0)), smaller, ir.Constant(F, -1.0))


def sweep_qk(address: Any) -> None:
    """Compute the statistics of some rows of one head."""
    job = numba.carray(address, 1)[0]
    for top in range(0, job.rows, job.group):
        bottom = min(job.rows, top + job.group)
        left = _first(job, top)
        _score(job, top, bottom, left, _end(job, bottom - 1))
        for row in range(top, bottom):
            run = (row + job.row_shift) // job.tall
            begin, end = max(0, run * job.tall - job.row_shift), min(job.rows, (run + 1) * job.tall - job.row_shift)
            if row == begin:
                _zero(job, _first(job, row), _end(job, end - 1))
            if max(0, job.diagonal + row - job.before) < min(job.seen, job.diagonal + row + job.after + 1):
                _row(job, row, job.weights + (row - top) * job.weights_row - left * 4)
            if row == end - 1:
                bin_run(job, 0, run, _first(job, begin), _end(job, row), np.float32, np.int32)


@compiled
def _first(job: Any, row: int) -> Any:
    """Return the first key of the first block that a row may see."""
    return min(max(0, job.diagonal + row - job.before), job.columns) // BLOCK * BLOCK


@compiled
def _end(job: Any, row: int) -> Any:
    """Return the end of the last block that a row may see."""
    return (max(0, min(job.seen, job.diagonal + row + job.after + 1)) + BLOCK - 1) // BLOCK * BLOCK


@compiled
def _zero(job: Any, left: int, right: int) -> None:
    """Begin a run of rows."""
    if left < right:
        on.zero(job.room + left * 4, (right - left) * 4)
        on.zero(job.room + (job.columns + left) * 4, (right - left) * 4)


@compiled
def _score(job: Any, top: int, bottom: int, left: int, right: int) -> None:
    """Compute the scores of a group of rows with some blocks of keys."""
    padded = (bottom - top + ROWS - 1) // ROWS * ROWS
    wide = job.depth * 4
    for column in range(left, right, BLOCK):
        for panel in range(PANELS):
            multiply(
                0, job.q + top * wide, wide, job.packed + column * wide + panel * PANEL_BYTES, _ROW_BYTES,
                job.weights + (column - left) * 4 + panel * PANEL_BYTES, job.weights_row, padded, job.depth, on.PANEL,
                1,
            )  # fmt: skip


@compiled
def _row(job: Any, row: int, source: int) -> None:
    """Turn the scores of a row, of which that of key 0 would be at `source`, into weights, and add them up."""
    left, right, place = _first(job, row), _end(job, row), job.diagonal + row
    scores = floats(source, job.columns)
    for j in range(left, max(left, place - job.before)):
        scores[j] = _HIDDEN
    for j in range(min(job.seen, place + job.after + 1), right):
        scores[j] = _HIDDEN
    width, parts = right - left, job.room + 3 * job.columns * 4
    found = floats(job.per_row + row * 16, 4)
    most = on.largest(source + left * 4, width // on.LANES, np.float32(1))
    _weigh(source + left * 4, width // on.LANES, most, np.float32(job.first + row - left), job.per_row + row * 16)
    share = np.float32(1) / found[0]
    found[1] *= share
    found[2] *= share
    found[3] = most
    above, maxima = job.room + left * 4, job.room + (job.columns + left) * 4
    _gather(source + left * 4, width // BLOCK, share, above, maxima, parts)
    _search(job, row, source + left * 4, width, parts)
    keys = numba.carray(on.pointer(job.keys + row * job.count * 8), job.count, np.int64)
    for at in range(job.count):
        keys[at] += left


@compiled
def _search(job: Any, row: int, source: int, width: int, parts: int) -> None:
    """Find the largest weights of a row in decreasing order, the first of equal ones first, and their keys.

    Of k parts of the row, the smallest maximum is a lower bound of the row's k-th largest weight.
    """
    best = floats(job.top + row * job.count * 4, job.count)
    best[:] = -1
    if job.count <= BLOCK:
        _insert(job, row, parts, 0)
        best[:] = _below(best[job.count - 1])
    for left in range(0, width, BLOCK):
        _insert(job, row, source + left * 4, left)
    for at in range(job.count):
        best[at] = max(best[at], np.float32(0))


@compiled
def _insert(job: Any, row: int, source: int, left: int) -> None:
    """Insert those of 64 weights into the best of a row that are larger than the last of these."""
    last = job.count - 1
    weights, best = floats(source, BLOCK), floats(job.top + row * job.count * 4, job.count)
    keys = numba.carray(on.pointer(job.keys + row * job.count * 8), job.count, np.int64)
    larger = _larger(source, best[last])
    while larger:
        j = _lowest(larger)
        larger &= larger - 1
        weight = weights[j]
        if weight > best[last]:
            place = last
            while place > 0 and best[place - 1] < weight:
                best[place], keys[place] = best[place - 1], keys[place - 1]
                place -= 1
            best[place], keys[place] = weight, left + j
