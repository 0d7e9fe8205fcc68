"""Few queries: keys and values are read once, without rearranging them, for all heads that share them.

The blocks of a key–value head are divided among tasks, whose sums are merged in their order by the one that finishes
last (Dao et al. 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

from typing import Any

import numba
import numpy as np

from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops import simd_products as products
from regard.backends.numba_loops.llvm_builder import compiled
from regard.backends.numba_loops.sizes import BLOCK, GROUP, ROWS
from regard.backends.numba_loops.tiles import (
    FAR,
    adjust,
    drop,
    first_run,
    floats,
    pairs_of_blocks,
    seat,
    weigh,
    write_log_sum,
)

__all__ = ["read"]


def read(address: Any) -> None:
    """Compute the sums of all parts, and merge them."""
    job = numba.carray(address, 1)[0]
    rows = job.heads // job.kv_heads * job.queries
    queries = seat(address, job)
    scores = queries + rows * job.depth * 4
    mixed = scores + rows * GROUP * BLOCK * 4
    rest = mixed + max(BLOCK * job.depth, BLOCK // 2 * job.value_vectors * on.LANES) * 4
    while True:
        task = on.claim(address)
        if task >= job.tasks:
            break
        _read(job, task, queries, scores, mixed, rest)
        of = task // job.parts
        if on.count_up(job.finished + of * 8) == job.parts - 1:
            for row in range(rows):
                _merge(job, of, row, mixed)


@compiled
def _read(job: Any, task: int, queries: int, scores: int, mixed: int, rest: int) -> None:
    of, part = task // job.parts, task % job.parts
    sequence, kv_head = of // job.kv_heads, of % job.kv_heads
    group = job.heads // job.kv_heads
    count = group * job.queries
    for row in range(count):
        head, query = kv_head * group + row // job.queries, row % job.queries
        source = job.q + sequence * job.q_batch + head * job.q_head + query * job.q_row
        on.copy(queries + row * job.depth * 4, source, job.depth * 4)
    most, mass = job.part_most + task * count * 4, job.part_mass + task * count * 4
    floats(most, count)[:], floats(mass, count)[:] = -np.inf, 0
    sums = job.part_sums + task * count * job.value_vectors * on.LANES * 4
    on.zero(sums, count * job.value_vectors * on.LANES * 4)

    table = first_run(job, sequence, 0, 0)
    rows = numba.carray(on.pointer(job.rows), table + 2, np.int64)
    starts, lengths, marks = (
        numba.carray(on.pointer(job.starts), rows[table + 1], np.int64),
        numba.carray(on.pointer(job.lengths), rows[table + 1], np.int64),
        numba.carray(on.pointer(job.tiles), rows[table + 1], np.int64),
    )
    total = 0
    for run in range(rows[table], rows[table + 1]):
        total += lengths[run]
    begin, end = part * total // job.parts, (part + 1) * total // job.parts
    blocks, held, place = pairs_of_blocks(rest), 0, 0
    for run in range(rows[table], rows[table + 1]):
        for at in range(max(0, begin - place), min(lengths[run], end - place)):
            blocks[0, held], blocks[1, held] = starts[run] + at, marks[run]
            held += 1
            if held == GROUP or place + at + 1 == end:
                _visit(job, sequence, kv_head, rest, held, queries, scores, sums, mixed, most, mass)
                held = 0
        place += lengths[run]


@compiled
def _visit(
    job: Any, sequence: int, kv_head: int, rest: int, held: int,
    queries: int, scores: int, sums: int, mixed: int, most: int, mass: int,
) -> None:  # fmt: skip
    """Compute scores and weights of some blocks of keys, and add the weighted values to the sums."""
    group = job.heads // job.kv_heads
    wide = job.value_vectors * on.LANES * 4
    keys = job.k + sequence * job.k_batch + kv_head * job.k_head
    blocks = pairs_of_blocks(rest)
    for at in range(held):
        block, tile = blocks[0, at], blocks[1, at]
        here = scores + at * BLOCK * 4
        count = min(BLOCK, job.keys - block * BLOCK)
        _score(job, keys + block * BLOCK * job.k_row, count, queries, here, mixed)
        if tile >= 0 or job.bias or job.cap > 0 or count < BLOCK:
            for row in range(group * job.queries):
                head, query = kv_head * group + row // job.queries, row % job.queries
                adjust(job, here + row * FAR, sequence, head, query, block, tile)
    for row in range(group * job.queries):
        weigh(job, scores + row * FAR, held, sums + row * wide, most, mass, row, 0)
        if job.row_bits:
            where = (sequence * job.heads + kv_head * group) * job.queries + row  # rows of a group lie side by side
            for at in range(held):
                drop(job, scores + row * FAR + at * BLOCK * (2 if job.pairs else 4), where, blocks[0, at])
    _add_values(job, sequence, kv_head, rest, held, scores, sums, mixed)


@compiled
def _score(job: Any, keys: int, count: int, queries: int, scores: int, copied: int) -> None:
    """Compute the scores of all rows with a block of keys, of which the last may have fewer."""
    row_bytes, whole = job.k_row, (count + on.LANES - 1) // on.LANES * on.LANES
    if whole > count:
        row_bytes = job.depth * 4
        on.zero(copied + count * row_bytes, (whole - count) * row_bytes)
        for row in range(count):
            on.copy(copied + row * row_bytes, keys + row * job.k_row, row_bytes)
        keys = copied
    rows, vectors = job.heads // job.kv_heads * job.queries, job.depth // on.LANES
    row = 0
    while row < rows:
        some = 4 if rows - row >= 4 else 2 if rows - row >= 2 else 1
        top, into = queries + row * job.depth * 4, scores + row * FAR
        if job.pairs:
            products.dots_pairs(top, keys, row_bytes, into, FAR, whole, vectors, some)
        else:
            products.dots_f32(top, keys, row_bytes, into, FAR, whole, vectors, some)
        row += some


@compiled
def _add_values(
    job: Any, sequence: int, kv_head: int, rest: int, held: int, scores: int, sums: int, mixed: int
) -> None:
    """Add the values of some blocks, times the weights that have replaced the scores."""
    wide, rows = job.value_vectors * on.LANES * 4, job.heads // job.kv_heads * job.queries
    blocks = pairs_of_blocks(rest)
    for at in range(held):
        first = blocks[0, at] * BLOCK
        count = min(BLOCK, job.keys - first)
        values = job.v + sequence * job.v_batch + kv_head * job.v_head + first * job.v_row
        row_bytes, weights = job.v_row, scores + at * BLOCK * 4
        if job.pairs:
            for pair in range(count // 2):
                one = values + 2 * pair * job.v_row
                on.interleave(one, one + job.v_row, mixed + pair * wide, job.value_vectors)
            if count % 2:
                one = values + (count - 1) * job.v_row  # the neighbour of its weight is 0
                on.interleave(one, one, mixed + count // 2 * wide, job.value_vectors)
            values, row_bytes, weights, count = mixed, wide, scores + at * BLOCK * 2, (count + 1) // 2
        left = 0
        while left < job.value_vectors:
            vectors = on.PANEL if job.value_vectors - left >= on.PANEL else 1
            offset = left * on.LANES * 4
            for row in range(0, rows, ROWS):
                top, into, some = weights + row * FAR, sums + row * wide + offset, min(ROWS, rows - row)
                if job.pairs:
                    products.add_few_pairs(top, FAR, values + offset, row_bytes, into, wide, count, vectors, some)
                else:
                    products.add_few_f32(top, FAR, values + offset, row_bytes, into, wide, count, vectors, some)
            left += vectors


@compiled
def _merge(job: Any, of: int, row: int, sums: int) -> None:
    """Add the parts of a row, scaled to the largest of their maxima."""
    rows, width = job.heads // job.kv_heads * job.queries, job.value_vectors * on.LANES
    count = (of + 1) * job.parts * rows
    most, mass = floats(job.part_most, count), floats(job.part_mass, count)
    above = np.float32(-np.inf)
    for part in range(job.parts):
        above = max(above, most[(of * job.parts + part) * rows + row])
    group = job.heads // job.kv_heads
    head = of % job.kv_heads * group + row // job.queries
    where = (of // job.kv_heads * job.heads + head) * job.queries + row % job.queries
    on.zero(sums, width * 4)
    whole, total = floats(sums, width), np.float32(0)
    for part in range(job.parts):
        at = (of * job.parts + part) * rows + row
        if mass[at] == 0:
            continue
        share = np.exp(most[at] - above)
        total += share * mass[at]
        own = floats(job.part_sums + at * width * 4, width)
        for column in range(width):
            whole[column] += share * own[column]
    share = job.kept / total if total != 0 else np.float32(0)
    if job.pairs:
        on.write_bf16(sums, job.output + where * width * 2, job.value_vectors, share)
    else:
        on.write_f32(sums, job.output + where * width * 4, job.value_vectors, share)
    write_log_sum(job, where, above, total)
