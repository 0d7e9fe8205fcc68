"""Many queries: keys are rearranged once in columns, then each tile of queries visits the blocks that it sees.

Both steps are tasks that threads take one after the other, in one region. Sums, maxima and weights of a tile stay in
the core's cache (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao 2023, arXiv:2307.08691).
"""

from typing import Any

import numba
import numpy as np

from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops.llvm_builder import compiled
from regard.backends.numba_loops.sizes import BLOCK, GROUP, ROWS
from regard.backends.numba_loops.tiles import (
    FAR,
    adjust,
    drop,
    first_run,
    floats,
    multiply,
    multiply_columns,
    pack,
    pairs_of_blocks,
    seat,
    span_of,
    strip_rows,
    weigh,
    write_log_sum,
)

__all__ = ["attend"]


def attend(address: Any) -> None:
    """Rearrange all keys, and values if they are multiplied in pairs, then compute all tiles of queries.

    Tasks are numbered through, so a tile waits only for blocks that other threads have begun to rearrange: a thread
    that the system does not run yet holds nobody up.
    """
    job = numba.carray(address, 1)[0]
    queries = seat(address, job)
    scores = queries + BLOCK * job.depth * 4
    sums = scores + BLOCK * GROUP * BLOCK * 4
    rest = sums + BLOCK * job.value_vectors * on.LANES * 4
    while True:
        task = on.claim(address)
        if task >= job.tasks:
            break
        if task < job.packs:
            pack(job, task, job.k, job.k_batch, job.k_head, job.k_row, job.packed_keys, job.depth, queries)
            if job.pairs:
                _pack_values(job, task, queries)
            on.finish_pack(address)
        else:
            while on.count_packed(address) < job.packs:
                pass
            _attend(job, task - job.packs, queries, scores, sums, rest)


@compiled
def _pack_values(job: Any, task: int, nothing: int) -> None:
    """Rearrange a block of values, with the elements of two rows interleaved; after the last row there are zeros."""
    blocks = (job.keys + BLOCK - 1) // BLOCK
    of, first = task // blocks, task % blocks * BLOCK
    wide = job.value_vectors * on.LANES * 4
    source = job.v + of // job.kv_heads * job.v_batch + of % job.kv_heads * job.v_head
    into = job.packed_values + task * BLOCK // 2 * wide
    on.zero(nothing, job.value_vectors * on.LANES * 2)
    for pair in range(BLOCK // 2):
        row = first + 2 * pair
        one = source + row * job.v_row if row < job.keys else nothing
        other = source + (row + 1) * job.v_row if row + 1 < job.keys else nothing
        on.interleave(one, other, into + pair * wide, job.value_vectors)


@compiled
def _attend(job: Any, task: int, queries: int, scores: int, sums: int, rest: int) -> None:
    """Compute one tile of queries; the last tiles are first, because under a causal mask they have the most work."""
    tiles = (job.queries + BLOCK - 1) // BLOCK
    of, tile = task // tiles, tiles - 1 - task % tiles
    sequence, head = of // job.heads, of % job.heads
    first = tile * BLOCK
    height = min(BLOCK, job.queries - first)
    source = job.q + sequence * job.q_batch + head * job.q_head + first * job.q_row
    for row in range(height):
        on.copy(queries + row * job.depth * 4, source + row * job.q_row, job.depth * 4)
    most, mass = floats(rest, BLOCK), floats(rest + BLOCK * 4, BLOCK)
    most[:], mass[:] = -np.inf, 0

    table = first_run(job, sequence, head, tile)
    rows = numba.carray(on.pointer(job.rows), table + 2, np.int64)
    starts, lengths, marks = (
        numba.carray(on.pointer(job.starts), rows[table + 1], np.int64),
        numba.carray(on.pointer(job.lengths), rows[table + 1], np.int64),
        numba.carray(on.pointer(job.tiles), rows[table + 1], np.int64),
    )
    blocks, held, fresh = pairs_of_blocks(rest + BLOCK * 8), 0, 1
    for run in range(rows[table], rows[table + 1]):
        for at in range(lengths[run]):
            blocks[0, held], blocks[1, held] = starts[run] + at, marks[run]
            held += 1
            last = run + 1 == rows[table + 1] and at + 1 == lengths[run]
            if held == GROUP or last:
                _visit(job, sequence, head, first, height, held, queries, scores, sums, rest, fresh)
                held, fresh = 0, 0
    wide = job.value_vectors * on.LANES * 4
    if fresh:  # no key is visible
        on.zero(sums, height * wide)
    _write(job, of * job.queries + first, height, sums, rest)


@compiled
def _visit(
    job: Any, sequence: int, head: int, first: int, height: int, held: int,
    queries: int, scores: int, sums: int, rest: int, fresh: int,
) -> None:  # fmt: skip
    """Compute scores and weights of some blocks of keys, and add the weighted values to the sums."""
    kv_head = head // (job.heads // job.kv_heads)
    of = (sequence * job.kv_heads + kv_head) * ((job.keys + BLOCK - 1) // BLOCK)
    padded = (height + ROWS - 1) // ROWS * ROWS
    wide = job.value_vectors * on.LANES * 4
    blocks = pairs_of_blocks(rest + BLOCK * 8)
    for at in range(held):
        block, tile = blocks[0, at], blocks[1, at]
        packed, here = job.packed_keys + (of + block) * job.depth * BLOCK * 4, scores + at * BLOCK * 4
        some = strip_rows(tile)
        for row in range(0, padded, some):
            begin, end = span_of(job, tile, 0, row // some)
            multiply_columns(
                job.pairs, queries + row * job.depth * 4, job.depth * 4, packed, here + row * FAR, FAR,
                min(some, padded - row), job.depth, begin, end,
            )  # fmt: skip
        if tile >= 0 or job.bias or job.cap > 0 or (block + 1) * BLOCK > job.keys:
            for row in range(height):
                adjust(job, here + row * FAR, sequence, head, first + row, block, tile)
    for row in range(height):
        weigh(job, scores + row * FAR, held, sums + row * wide, rest, rest + BLOCK * 4, row, fresh)
        if job.row_bits:
            where = (sequence * job.heads + head) * job.queries + first + row
            for at in range(held):
                drop(job, scores + row * FAR + at * BLOCK * (2 if job.pairs else 4), where, blocks[0, at])
    _add_values(job, sequence, kv_head, held, padded, scores, sums, rest, fresh)


@compiled
def _add_values(
    job: Any, sequence: int, kv_head: int, held: int, padded: int, scores: int, sums: int, rest: int, fresh: int
) -> None:
    """Add the values of some blocks, times the weights that have replaced the scores."""
    wide = job.value_vectors * on.LANES * 4
    values, row_bytes, block_bytes, width = (
        job.v + sequence * job.v_batch + kv_head * job.v_head, job.v_row, BLOCK * job.v_row, 4,
    )  # fmt: skip
    if job.pairs:
        of = (sequence * job.kv_heads + kv_head) * ((job.keys + BLOCK - 1) // BLOCK)
        row_bytes, block_bytes, width = wide, BLOCK // 2 * wide, 2
        values = job.packed_values + of * block_bytes
    blocks = pairs_of_blocks(rest + BLOCK * 8)
    for at in range(held):
        block, tile = blocks[0, at], blocks[1, at]
        count, some = min(BLOCK, job.keys - block * BLOCK), strip_rows(tile)
        first = 1 if fresh and at == 0 else 0
        if first and tile >= 0:  # some rows may see nothing in it
            on.zero(sums, padded * wide)
            first = 0
        for left in range(0, job.value_vectors, on.PANEL):
            offset = left * on.LANES * 4
            for row in range(0, padded, some):
                begin, end = span_of(job, tile, 0, row // some)
                end = min(end, count)
                if begin >= end:
                    continue
                top, depth = begin, end - begin
                if job.pairs:
                    top, depth = begin // 2, (depth + 1) // 2
                multiply(
                    job.pairs, scores + row * FAR + at * BLOCK * width + top * 4, FAR,
                    values + block * block_bytes + top * row_bytes + offset, row_bytes, sums + row * wide + offset,
                    wide, min(some, padded - row), depth, min(on.PANEL, job.value_vectors - left), first,
                )  # fmt: skip


@compiled
def _write(job: Any, where: int, height: int, sums: int, rest: int) -> None:
    """Divide by the sum of the weights, and write 0 for rows that see no key."""
    most, mass = floats(rest, height), floats(rest + BLOCK * 4, height)
    wide = job.value_vectors * on.LANES * 4
    for row in range(height):
        share = job.kept / mass[row] if mass[row] != 0 else np.float32(0)
        if job.pairs:
            on.write_bf16(sums + row * wide, job.output + (where + row) * wide // 2, job.value_vectors, share)
        else:
            on.write_f32(sums + row * wide, job.output + (where + row) * wide, job.value_vectors, share)
        write_log_sum(job, where + row, most[row], mass[row])
