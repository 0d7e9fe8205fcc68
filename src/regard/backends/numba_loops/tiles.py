"""Operations on a tile of scores that several loops of the backend use, compiled by numba."""

from typing import Any

import numba
import numpy as np

from regard.backends.numba_loops import simd_dropout as dropping
from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops import simd_products as products
from regard.backends.numba_loops.llvm_builder import compiled
from regard.backends.numba_loops.sizes import BLOCK, GROUP, ROWS, STRIP, STRIPS

__all__ = [
    "FAR",
    "PANELS",
    "PANEL_BYTES",
    "VECTORS",
    "add_bias_and_hide",
    "adjust",
    "bits_of",
    "drop",
    "first_run",
    "floats",
    "multiply",
    "multiply_columns",
    "pack",
    "pairs_of_blocks",
    "seat",
    "span_of",
    "strip_rows",
    "weigh",
    "write_log_sum",
]

VECTORS = BLOCK // on.LANES
FAR = GROUP * BLOCK * 4  # bytes between rows of scores
PANELS = VECTORS // on.PANEL
PANEL_BYTES = on.PANEL * on.LANES * 4  # bytes of a row of a panel


@compiled
def multiply(
    pairs: int, a: int, lda: int, b: int, ldb: int, c: int, ldc: int, rows: int, depth: int, vectors: int, fresh: int
) -> None:
    """Compute c (rows × vectors) = a (rows × depth) · b (depth × vectors), added to c unless `fresh`.

    Rows are a multiple of ROWS; b is at most PANEL vectors wide.
    """
    for row in range(0, rows, ROWS):
        if pairs:
            products.multiply_pairs(a + row * lda, lda, b, ldb, c + row * ldc, ldc, depth, vectors, fresh)
        else:
            products.multiply_f32(a + row * lda, lda, b, ldb, c + row * ldc, ldc, depth, vectors, fresh)


@compiled
def span_of(job: Any, tile: int, of_columns: int, strip: int) -> Any:
    """Return the first row or column of a tile that a strip of columns or rows is computed with, and the end."""
    if tile < 0:
        return 0, BLOCK
    at = ((tile * 2 + of_columns) * STRIPS + strip) * 2
    ends = numba.carray(on.pointer(job.spans), at + 2, np.int64)
    return ends[at] * STRIP, ends[at + 1] * STRIP


@compiled
def strip_rows(tile: int) -> int:
    """Return the number of rows that are computed together: all where every pair is visible."""
    return BLOCK if tile < 0 else STRIP


@compiled
def multiply_columns(
    pairs: int, a: int, lda: int, columns: int, c: int, ldc: int, rows: int, depth: int, begin: int, end: int
) -> None:
    """Compute the columns from `begin` to `end` of c (rows × 64) = a (rows × depth) · a block that was rearranged in
    columns (depth × 64).
    """
    vector, last = begin // on.LANES, end // on.LANES
    while vector < last:
        panel, within = vector // on.PANEL, vector % on.PANEL
        vectors = min(on.PANEL - within, last - vector)
        below = columns + panel * depth * PANEL_BYTES + within * on.LANES * 4
        multiply(pairs, a, lda, below, PANEL_BYTES, c + vector * on.LANES * 4, ldc, rows, depth, vectors, 1)
        vector += vectors


@compiled
def adjust(job: Any, scores: int, sequence: int, head: int, query: int, block: int, tile: int) -> None:
    """Apply cap, bias and mask, in this order, to the scores of a query with a block of keys."""
    if job.cap > 0:
        on.cap(scores, VECTORS, job.scale, job.cap)
    add_bias_and_hide(job, scores, sequence, head, query, block, tile)


@compiled
def add_bias_and_hide(job: Any, scores: int, sequence: int, head: int, query: int, block: int, tile: int) -> None:
    """Apply bias and mask to the scores of a query with a block of keys."""
    beyond = (block + 1) * BLOCK - job.keys
    if job.bias:
        at = job.bias + sequence * job.bias_batch + head * job.bias_head + query * job.bias_row + block * BLOCK * 4
        on.add(scores, at, BLOCK - max(0, beyond), job.biased)
    if tile >= 0:
        on.hide(scores, job.seen + (tile * BLOCK + query % BLOCK) * BLOCK, VECTORS, job.hidden)
    elif beyond > 0:
        on.hide(scores, job.edge, VECTORS, job.hidden)


@compiled
def pack(job: Any, task: int, x: int, x_batch: int, x_head: int, x_row: int, into: int, depth: int, few: int) -> None:
    """Rearrange a block of keys (or values) in columns: element e of all 64 rows is contiguous, in panels of the width
    of a product.

    `few` has room for 16 rows.
    """
    blocks = (job.keys + BLOCK - 1) // BLOCK
    of, first = task // blocks, task % blocks * BLOCK
    source = x + of // job.kv_heads * x_batch + of % job.kv_heads * x_head
    into = into + task * depth * BLOCK * 4
    for vector in range(VECTORS):
        top = first + vector * on.LANES
        target = into + vector // on.PANEL * depth * PANEL_BYTES + vector % on.PANEL * on.LANES * 4
        if top + on.LANES <= job.keys:
            on.transpose(source + top * x_row, x_row, target, depth)
            continue
        on.zero(few, on.LANES * depth * 4)
        for row in range(top, job.keys):
            on.copy(few + (row - top) * depth * 4, source + row * x_row, depth * 4)
        on.transpose(few, depth * 4, target, depth)


@compiled
def weigh(job: Any, scores: int, count: int, sums: int, most_at: int, mass_at: int, row: int, fresh: int) -> None:
    """Convert the scores of a row with some blocks to weights, and scale the row's sums to the new maximum."""
    most, mass = floats(most_at, row + 1), floats(mass_at, row + 1)
    above = max(most[row], on.largest(scores, count * VECTORS, job.soft))
    base = above if above != -np.inf else np.float32(0)
    if job.pairs:
        total = on.exp_pairs(scores, scores, count * VECTORS, job.soft, base)
    else:
        total = on.exp_f32(scores, scores, count * VECTORS, job.soft, base)
    if not fresh and above > most[row]:
        shrunk = np.exp(most[row] - above)
        on.rescale(sums, job.value_vectors, shrunk)
        mass[row] *= shrunk
    most[row] = above
    mass[row] += total


@compiled
def drop(job: Any, weights: int, where: int, block: int) -> None:
    """Replace the weights of a row with a block of keys that dropout does not keep by 0; the others stay as they are.

    `where` counts the rows of all sequences and heads.
    """
    row, columns = bits_of(job, where), job.column_bits + block * BLOCK * 4
    if job.pairs:
        dropping.drop_bf16(weights, columns, VECTORS, row, job.least_bits)
    else:
        dropping.drop_f32(weights, columns, VECTORS, row, job.least_bits)


@compiled
def bits_of(job: Any, where: int) -> Any:
    """Return the hash of a row."""
    return numba.carray(on.pointer(job.row_bits), where + 1, np.int32)[where]


@compiled
def write_log_sum(job: Any, where: int, most: Any, mass: Any) -> None:
    """Write the logarithm of e ** most · mass, and its rounding error; −∞ and 0 for a row that sees no key. Where no
    place is given, write nothing.
    """
    if not job.lse:
        return
    lse, low = floats(job.lse, where + 1), floats(job.low, where + 1)
    lse[where], low[where] = -np.inf, 0
    if mass != 0:
        logarithm = np.log(mass)
        lse[where] = most + logarithm
        low[where] = (most - lse[where]) + logarithm


@compiled
def first_run(job: Any, sequence: int, head: int, tile: int) -> int:
    """Return the index of a tile of queries in the table of runs; its runs end at the next index."""
    tiles = (job.queries + BLOCK - 1) // BLOCK
    of = sequence * job.mask_heads if job.mask_batch > 1 else 0
    of += head if job.mask_heads > 1 else 0
    return of * tiles + tile


@compiled
def floats(address: int, count: int) -> Any:
    """Return the floats at an address; arrays are no arguments, because these count references."""
    return numba.carray(on.pointer(address), count, np.float32)


@compiled
def pairs_of_blocks(address: int) -> Any:
    """Return the blocks of a group, and their tiles in `seen`, at an address."""
    return numba.carray(on.pointer(address), (2, GROUP), np.int64)


@compiled
def seat(address: Any, job: Any) -> int:
    """Return the address of this thread's part of the room; each thread of a region gets another."""
    return job.room + on.sit(address) * job.room_bytes
