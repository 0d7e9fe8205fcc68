"""The gradients of queries, keys and values: weights are computed again from the log-sum-exp, tile by tile.

    w = exp(s − lse)    g = up · vᵀ    δ = Σ up · output    ds = w ⊙ (g − δ)
    dq = ds · k         dk = dsᵀ · q   dv = wᵀ · up

Where dropout keeps a weight, g and the w of dv are divided by 1 − p; where it does not, they are 0. The gradient of a
bias of i − j is the sum of ds along each diagonal, without the factor of the scores.

(Dao et al. 2022, arXiv:2205.14135, algorithm 4). One pass computes all five products of a tile. A task has some tiles
of queries of one key–value head, whose gradients of keys and values it adds up by itself; where tasks share a head,
their sums are added in the order of the tasks. So results do not depend on which thread is first.
"""

from typing import Any

import numba
import numpy as np

from regard.backends.numba_loops import simd_dropout as dropping
from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops import simd_products as products
from regard.backends.numba_loops.llvm_builder import compiled
from regard.backends.numba_loops.sizes import BLOCK, ROWS
from regard.backends.numba_loops.tiles import (
    add_bias_and_hide,
    bits_of,
    first_run,
    floats,
    multiply,
    multiply_columns,
    pack,
    seat,
    span_of,
    strip_rows,
)

__all__ = ["add_parts", "differentiate"]

_SIDE = BLOCK * 4  # bytes of a row of scores


def differentiate(address: Any) -> None:
    """Rearrange all keys and values in columns, then compute the gradients of all tasks.

    Tasks are numbered through as in `prefill.attend`.
    """
    job = numba.carray(address, 1)[0]
    queries = seat(address, job)
    up = queries + BLOCK * job.depth * 4
    while True:
        task = on.claim(address)
        if task >= job.tasks:
            break
        if task < job.packs:
            pack(job, task, job.k, job.k_batch, job.k_head, job.k_row, job.packed_keys, job.depth, queries)
            wide = job.value_vectors * on.LANES
            pack(job, task, job.v, job.v_batch, job.v_head, job.v_row, job.packed_values, wide, up)
            on.finish_pack(address)
        else:
            while on.count_packed(address) < job.packs:
                pass
            _differentiate(job, task - job.packs, queries, up)


def add_parts(address: Any) -> None:
    """Add the sums of the other tasks of each key–value head to those of its first."""
    job = numba.carray(address, 1)[0]
    blocks = (job.keys + BLOCK - 1) // BLOCK
    keys, values = BLOCK * job.depth, BLOCK * job.value_vectors * on.LANES  # floats of a block
    while True:
        task = on.claim(address)
        if task >= job.tasks:
            break
        side, block = task // blocks, task % blocks
        to_keys, to_values = _sums_of(job, side, 0)
        for part in range(1, job.parts):
            of_keys, of_values = _sums_of(job, side, part)
            on.add(to_keys + block * keys * 4, of_keys + block * keys * 4, keys, np.float32(1))
            on.add(to_values + block * values * 4, of_values + block * values * 4, values, np.float32(1))


@compiled
def _sums_of(job: Any, side: int, part: int) -> Any:
    """Return where a task adds up the gradients of keys and of values; the first of a head does so in the results."""
    rows = (job.keys + BLOCK - 1) // BLOCK * BLOCK
    keys, values = rows * job.depth * 4, rows * job.value_vectors * on.LANES * 4
    if part == 0:
        return job.dk + side * keys, job.dv + side * values
    start = job.part_sums + (side * (job.parts - 1) + part - 1) * (keys + values)
    return start, start + keys


@compiled
def _differentiate(job: Any, task: int, queries: int, up: int) -> None:
    """Compute the gradients of every so many tiles of queries, which under a causal mask are about as much work."""
    side, part = task // job.parts, task % job.parts
    sequence, kv_head = side // job.kv_heads, side % job.kv_heads
    rows, tiles = (job.keys + BLOCK - 1) // BLOCK * BLOCK, (job.queries + BLOCK - 1) // BLOCK
    dk, dv = _sums_of(job, side, part)
    on.zero(dk, rows * job.depth * 4)
    on.zero(dv, rows * job.value_vectors * on.LANES * 4)
    group = job.heads // job.kv_heads
    for item in range(part, group * tiles, job.parts):
        _visit(job, sequence, kv_head, kv_head * group + item // tiles, item % tiles, part, queries, up, dk, dv)


@compiled
def _visit(
    job: Any, sequence: int, kv_head: int, head: int, tile: int, part: int, queries: int, up: int, dk: int, dv: int
) -> None:
    """Compute the gradient of a tile of queries, and add its share to those of the keys and values that it sees."""
    first = tile * BLOCK
    height = min(BLOCK, job.queries - first)
    far, wide = job.depth * 4, job.value_vectors * on.LANES * 4
    source = job.q + sequence * job.q_batch + head * job.q_head + first * job.q_row
    above = job.up + sequence * job.up_batch + head * job.up_head + first * job.up_row
    for row in range(height):
        on.copy(queries + row * far, source + row * job.q_row, far)
        on.copy(up + row * wide, above + row * job.up_row, wide)
    sums = up + BLOCK * wide
    scores = sums + BLOCK * far
    diagonals = 0  # each task has sums of its own for each head
    if job.bias_sums:
        diagonals = job.bias_sums + ((sequence * job.heads + head) * job.parts + part) * job.bias_sums_bytes
    table = first_run(job, sequence, head, tile)
    rows = numba.carray(on.pointer(job.rows), table + 2, np.int64)
    starts, lengths, marks = (
        numba.carray(on.pointer(job.starts), rows[table + 1], np.int64),
        numba.carray(on.pointer(job.lengths), rows[table + 1], np.int64),
        numba.carray(on.pointer(job.tiles), rows[table + 1], np.int64),
    )
    on.zero(sums, height * far)
    for run in range(rows[table], rows[table + 1]):
        for block in range(starts[run], starts[run] + lengths[run]):
            _weigh(job, sequence, head, kv_head, first, height, block, marks[run], queries, up, scores, diagonals)
            spans = -1 if diagonals else marks[run]  # the sums along diagonals are of whole blocks
            _add(job, sequence, kv_head, block, spans, height, queries, up, scores, sums, dk, dv)
    on.copy(job.dq + ((sequence * job.heads + head) * job.queries + first) * far, sums, height * far)


@compiled
def _weigh(
    job: Any, sequence: int, head: int, kv_head: int, first: int, height: int, block: int, tile: int,
    queries: int, up: int, scores: int, diagonals: int,
) -> None:  # fmt: skip
    """Compute the weights of a block, and the gradients of its scores behind them; add these up along diagonals."""
    padded = (height + ROWS - 1) // ROWS * ROWS
    far, wide = job.depth * 4, job.value_vectors * on.LANES * 4
    gradients, capped = scores + BLOCK * _SIDE, scores + 2 * BLOCK * _SIDE
    along = scores + 3 * BLOCK * _SIDE  # the tile's own sums, because long sums of float32 are less exact
    at = (sequence * job.kv_heads + kv_head) * ((job.keys + BLOCK - 1) // BLOCK) + block
    keys, values = job.packed_keys + at * BLOCK * far, job.packed_values + at * BLOCK * wide
    depth, spans = job.value_vectors * on.LANES, -1 if diagonals else tile
    some = strip_rows(spans)
    for row in range(0, padded, some):
        begin, end = span_of(job, spans, 0, row // some)
        rows, into = min(some, padded - row), row * _SIDE
        multiply_columns(0, queries + row * far, far, keys, scores + into, _SIDE, rows, job.depth, begin, end)
        multiply_columns(0, up + row * wide, wide, values, gradients + into, _SIDE, rows, depth, begin, end)
    where = (sequence * job.heads + head) * job.queries + first
    sums, deltas = floats(job.lse, where + height), floats(job.delta, where + height)
    if diagonals:
        on.zero(along, 2 * _SIDE)
    for row in range(height):
        begin, end = span_of(job, spans, 0, row // some)
        at, vectors = row * _SIDE + begin * 4, (end - begin) // on.LANES
        here, other = scores + at, gradients + at
        if job.cap > 0:
            on.cap(here, vectors, job.scale, job.cap)
            on.copy(capped + at, here, vectors * on.LANES * 4)
        add_bias_and_hide(job, scores + row * _SIDE, sequence, head, first + row, block, tile)
        if job.row_bits:
            dropping.weigh_back_dropped(
                here, other, vectors, job.soft, sums[where + row], deltas[where + row], job.factor, job.kept,
                job.column_bits + (block * BLOCK + begin) * 4, bits_of(job, where + row), job.least_bits,
            )  # fmt: skip
        else:
            dropping.weigh_back(here, other, vectors, job.soft, sums[where + row], deltas[where + row], job.factor)
        if diagonals:
            on.add(along + (height - 1 - row) * 4, other, BLOCK, np.float32(1))
        if job.cap > 0:
            on.cap_slope(other, capped + at, vectors, job.cap)
    if diagonals:
        into = diagonals + (job.queries - first - height) * 4 + block * _SIDE
        on.add(into, along, BLOCK + height - 1, np.float32(1))


@compiled
def _add(
    job: Any, sequence: int, kv_head: int, block: int, spans: int, height: int, queries: int, up: int, scores: int,
    sums: int, dk: int, dv: int,
) -> None:  # fmt: skip
    """Add a block's share of all three gradients."""
    padded = (height + ROWS - 1) // ROWS * ROWS
    far, wide = job.depth * 4, job.value_vectors * on.LANES * 4
    gradients = scores + BLOCK * _SIDE
    count, some = min(BLOCK, job.keys - block * BLOCK), strip_rows(spans)
    keys = job.k + sequence * job.k_batch + kv_head * job.k_head + block * BLOCK * job.k_row
    for left in range(0, job.value_vectors, on.PANEL):
        offset, vectors = left * on.LANES * 4, min(on.PANEL, job.value_vectors - left)
        into = dv + block * BLOCK * wide + offset
        for row in range(0, count, ROWS):
            begin, end = span_of(job, spans, 1, row // some)
            products.multiply_transposed(
                scores + begin * _SIDE + row * 4, _SIDE, up + begin * wide + offset, wide, into + row * wide, wide,
                max(0, min(end, height) - begin), vectors, 0,
            )  # fmt: skip
    for left in range(0, job.depth // on.LANES, on.PANEL):
        offset, vectors = left * on.LANES * 4, min(on.PANEL, job.depth // on.LANES - left)
        into = dk + block * BLOCK * far + offset
        for row in range(0, count, ROWS):
            begin, end = span_of(job, spans, 1, row // some)
            products.multiply_transposed(
                gradients + begin * _SIDE + row * 4, _SIDE, queries + begin * far + offset, far, into + row * far, far,
                max(0, min(end, height) - begin), vectors, 0,
            )  # fmt: skip
        for row in range(0, padded, some):
            begin, end = span_of(job, spans, 0, row // some)
            multiply(
                0, gradients + row * _SIDE + begin * 4, _SIDE, keys + begin * job.k_row + offset, job.k_row,
                sums + row * far + offset, far, min(some, padded - row), max(0, min(end, count) - begin), vectors, 0,
            )  # fmt: skip
