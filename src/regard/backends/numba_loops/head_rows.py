"""Rows of weights of a few heads, in one pass over their keys: what a tap reads while another kernel attends.

Scores are written where the weights are to be, a block of keys at a time for all heads, so that heads that share their
keys read them once from memory. Then each row becomes its softmax in place.
"""

from typing import Any

import numba
import numpy as np

from regard.backends.numba_loops import simd_exp_and_tanh as on
from regard.backends.numba_loops.llvm_builder import compiled, compiled_sums
from regard.backends.numba_loops.sizes import BLOCK
from regard.backends.numba_loops.tiles import floats

__all__ = ["weigh_rows"]


def weigh_rows(address: Any) -> None:
    """Compute the weights (batch, heads, rows, keys) of `rows` queries from query `first` on."""
    job = numba.carray(address, 1)[0]
    for sequence in range(job.batch):
        for left in range(0, job.keys, BLOCK):
            for place in range(job.heads):
                for row in range(job.rows):
                    count = min(left + BLOCK, _seen(job, row)) - left
                    _score(job, sequence, place, row, left, count)
        for place in range(job.heads):
            for row in range(job.rows):
                _normalize(job, _row_of(job, sequence, place, row), _seen(job, row))


@compiled
def _seen(job: Any, row: int) -> Any:
    """Return the number of keys up to the last that a row may see."""
    return min(job.keys, job.first + row + 1) if job.causal else job.keys


@compiled
def _row_of(job: Any, sequence: int, place: int, row: int) -> Any:
    """Return the address of a row of weights."""
    return job.weights + ((sequence * job.heads + place) * job.rows + row) * job.keys * 4


@compiled_sums
def _score(job: Any, sequence: int, place: int, row: int, left: int, count: int) -> None:
    """Write the scores of a row with `count` keys from key `left` on; −∞ is that of a hidden key."""
    head = numba.carray(on.pointer(job.numbers), job.heads, np.int64)[place]
    query = sequence * job.q_batch + head * job.q_head + (job.first + row) * job.q_row
    q = floats(job.q + query * 4, job.depth)
    keys = job.k + (sequence * job.k_batch + head // job.group * job.k_head + left * job.k_row) * 4
    scores = floats(_row_of(job, sequence, place, row) + left * 4, BLOCK)
    for j in range(count):
        k, product = floats(keys + j * job.k_row * 4, job.depth), np.float32(0)
        for element in range(job.depth):
            product += q[element] * k[element]
        scores[j] = product * job.scale
    if not job.mask:
        return
    at = sequence * job.mask_batch + head * job.mask_head + (job.first + row) * job.mask_row + left
    if job.hides:
        visible = numba.carray(on.pointer(job.mask + at), BLOCK, np.uint8)
        for j in range(count):
            scores[j] = scores[j] if visible[j] else np.float32(-np.inf)
    else:
        bias = floats(job.mask + at * 4, BLOCK)
        for j in range(count):
            scores[j] += bias[j]


@compiled
def _normalize(job: Any, row: int, count: int) -> None:
    """Replace the scores of a row with `count` keys by their weights: 0 where it sees none, NaN where a score is."""
    weights, whole = floats(row, job.keys), count // BLOCK * BLOCK
    most = on.largest(row, whole // on.LANES, np.float32(1))  # ignores NaN
    for j in range(whole, count):
        most = max(most, weights[j])
    share = np.float32(0)
    if not (job.mask and most <= job.hidden):
        total = on.exp_f32(row, row, whole // on.LANES, np.float32(1), most)
        for j in range(whole, count):
            weights[j] = np.exp(weights[j] - most)
            total += weights[j]
        share = np.float32(1) / total
    else:
        for j in range(count):
            share = share if weights[j] == weights[j] else np.float32(np.nan)
        on.zero(row, count * 4)
    on.zero(row + count * 4, (job.keys - count) * 4)
    for j in range(job.keys):
        weights[j] *= share
