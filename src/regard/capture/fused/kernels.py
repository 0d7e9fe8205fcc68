"""Two Triton kernels for the fused pass: one iterates over the keys of some queries, one over the queries of some
keys.

Scores are in base 2, s = scale · log₂e · q·k, so that an exponential is one instruction. Both kernels compute a tile
of scores, use it and discard it. Every output is written by a single program, so there are no atomics and two runs are
bitwise equal.

    over_keys      lse_i = log₂ Σ_j 2^s_ij;  entropy_i = log₂ l − t / l with l = Σ_j 2^(s_ij − m), t = Σ_j 2^(s_ij − m)
                   (s_ij − m) and the running maximum m (Milakov & Gimelshein 2018, arXiv:1805.02867); the greatest s_ij
    over_queries   p_ij = 2^(s_ij − lse_i);  Σ_i p_ij of each key;  Σ and max of p_ij in each bin of the heat map

A query at position i sees the keys i − before … i + after. Tiles that all of their queries see are not masked.
"""

# Parameters have no types: Triton reads annotations, and would treat `Any` as a variable.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations  # `tl.constexpr` is not read where there is no Triton; no shapes stand here

import contextlib

from regard.backends.kernel_compilers import kernel

with contextlib.suppress(
    ImportError
):  # the module can be imported without Triton; `refuses` reports that it is missing
    import triton.language as tl

__all__ = ["over_keys", "over_queries"]


@kernel
def over_keys(
    q,
    k,
    lse,
    entropy,
    top_scores,
    top_keys,
    q_batch,
    q_head,
    q_row,
    q_dim,
    k_batch,
    k_head,
    k_row,
    k_dim,
    heads,
    group,
    queries,
    keys,
    offset,
    before,
    after,
    scale,
    dim: tl.constexpr,
    padded: tl.constexpr,
    count: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
    hidden: tl.constexpr,
):
    """Compute log-sum-exp, entropy and the `count` largest scores of `block_q` queries of one head."""
    which = tl.program_id(1)
    q += (which // heads).to(tl.int64) * q_batch + (which % heads).to(tl.int64) * q_head
    k += (which // heads).to(tl.int64) * k_batch + (which % heads // group).to(tl.int64) * k_head
    top = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_q  # the longest rows of a causal call are processed first
    rows = top + tl.arange(0, block_q)
    width = tl.arange(0, padded)
    here = tl.load(
        q + rows.to(tl.int64)[:, None] * q_row + width[None, :] * q_dim,
        mask=(rows[:, None] < queries) & (width[None, :] < dim),
        other=0.0,
    )
    positions = rows + offset
    first = top + offset
    last = tl.minimum(top + block_q, queries) - 1 + offset
    # Tiles [low, high) hold a visible key, of which all queries here see all of [full_low, full_high).
    low = tl.maximum(first - before, 0) // block_k * block_k
    high = tl.maximum(tl.minimum(last + after + 1, keys), 0)
    full_low = tl.minimum((tl.maximum(last - before, 0) + block_k - 1) // block_k * block_k, high)
    full_high = tl.maximum(tl.maximum(tl.minimum(first + after + 1, keys), 0) // block_k * block_k, full_low)

    peak = tl.full((block_q,), hidden, tl.float32)
    total = tl.zeros((block_q,), tl.float32)
    spread = tl.zeros((block_q,), tl.float32)
    best_scores = tl.full((block_q, count), hidden, tl.float32)
    best_keys = tl.full((block_q, count), -1, tl.int32)
    slots = tl.arange(0, count)
    for part in tl.static_range(3):
        if part == 0:
            begin, end = low, full_low
        elif part == 1:
            begin, end = full_low, full_high
        else:
            begin, end = full_high, high
        for start in range(begin, end, block_k):
            columns = start + tl.arange(0, block_k)
            there = tl.load(
                k + columns.to(tl.int64)[None, :] * k_row + width[:, None] * k_dim,
                mask=(columns[None, :] < keys) & (width[:, None] < dim),
                other=0.0,
            )
            scores = tl.dot(here, there, input_precision="ieee") * scale
            if part != 1:
                near = (columns[None, :] <= positions[:, None] + after) & (columns[None, :] < keys)
                scores = tl.where(near & (columns[None, :] >= positions[:, None] - before), scores, hidden)
            highest = tl.max(scores, 1)
            higher = tl.maximum(peak, highest)
            shrink = tl.exp2(peak - higher)
            below = scores - higher[:, None]
            powers = tl.exp2(below)
            spread = shrink * (spread + total * (peak - higher)) + tl.sum(powers * below, 1)
            total = shrink * total + tl.sum(powers, 1)
            peak = higher
            least = tl.min(best_scores, 1)
            more = tl.max((highest > least).to(tl.int32), 0)
            if more > 0:
                while (
                    more > 0
                ):  # each row replaces its smallest stored score by its largest new one, until none is larger
                    best, at = tl.max(scores, 1, return_indices=True)
                    better = best > least
                    into = better[:, None] & (slots[None, :] == tl.argmin(best_scores, 1)[:, None])
                    best_scores = tl.where(into, best[:, None], best_scores)
                    best_keys = tl.where(into, (start + at)[:, None], best_keys)
                    least = tl.min(best_scores, 1)
                    scores = tl.where(better[:, None] & (columns[None, :] == (start + at)[:, None]), hidden, scores)
                    more = tl.max((tl.max(scores, 1) > least).to(tl.int32), 0)

    seen = peak > hidden
    inside = rows < queries
    place = which.to(tl.int64) * queries + rows
    tl.store(lse + place, tl.where(seen, peak + tl.log2(total), float("inf")), mask=inside)
    bits = tl.where(seen, tl.log2(total) - spread / total, 0.0)
    tl.store(entropy + place, tl.maximum(bits, 0.0) * 0.6931471805599453, mask=inside)
    best_place = place[:, None] * count + slots[None, :]
    tl.store(top_scores + best_place, best_scores, mask=inside[:, None])
    tl.store(top_keys + best_place, best_keys, mask=inside[:, None])


@kernel
def over_queries(
    q,
    k,
    lse,
    received,
    sums,
    maxima,
    q_batch,
    q_head,
    q_row,
    q_dim,
    k_batch,
    k_head,
    k_row,
    k_dim,
    heads,
    group,
    queries,
    keys,
    offset,
    before,
    after,
    scale,
    row_shift,
    column_shift,
    bin_rows,
    bin_columns,
    dim: tl.constexpr,
    padded: tl.constexpr,
    tall: tl.constexpr,
    broad: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """Compute the attention that `block_k` keys of one head receive, and the bins of the heat map in their columns.

    Blocks begin at bins: the first rows and columns of a call may be `row_shift` and `column_shift` after the start of
    their bin. Bins are at most as wide as a block here, and the caller merges them.
    """
    which = tl.program_id(1)
    block = tl.program_id(0)
    q += (which // heads).to(tl.int64) * q_batch + (which % heads).to(tl.int64) * q_head
    k += (which // heads).to(tl.int64) * k_batch + (which % heads // group).to(tl.int64) * k_head
    lse += which.to(tl.int64) * queries
    left = block * block_k - column_shift
    columns = left + tl.arange(0, block_k)
    real = (columns >= 0) & (columns < keys)
    width = tl.arange(0, padded)
    there = tl.load(
        k + columns.to(tl.int64)[:, None] * k_row + width[None, :] * k_dim,
        mask=real[:, None] & (width[None, :] < dim),
        other=0.0,
    )
    first = tl.maximum(left, 0)
    last = tl.minimum(left + block_k, keys) - 1
    # Rows count from the beginning of the first bin. All queries of [full_low, full_high) see all keys of the tile.
    low = (tl.maximum(first - after - offset, 0) + row_shift) // block_q * block_q
    high = tl.maximum(tl.minimum(last + before - offset + 1, queries), 0) + row_shift
    full_low = (tl.maximum(last - after - offset, 0) + row_shift + block_q - 1) // block_q * block_q
    full_low = tl.minimum(full_low, high)
    full_high = (tl.maximum(tl.minimum(first + before - offset + 1, queries), 0) + row_shift) // block_q * block_q
    whole = (left >= 0) & (left + block_k <= keys)
    full_high = tl.where(whole, tl.maximum(full_high, full_low), full_low)

    fine: tl.constexpr = (
        tall if tall < block_q else block_q
    )  # rows of a bin that are in one block, of which there are `runs`
    runs: tl.constexpr = block_q // fine
    narrow: tl.constexpr = broad if broad < block_k else block_k
    strips: tl.constexpr = block_k // narrow
    bins = which.to(tl.int64) * bin_rows * bin_columns + block * strips + tl.arange(0, strips)[:, None]
    taken = tl.zeros((block_k,), tl.float64)
    added = tl.zeros((block_k, runs), tl.float32)
    most = tl.zeros((block_k, runs), tl.float32)
    for part in tl.static_range(3):
        if part == 0:
            begin, end = low, full_low
        elif part == 1:
            begin, end = full_low, full_high
        else:
            begin, end = full_high, high
        for start in range(begin, end, block_q):
            rows = start - row_shift + tl.arange(0, block_q)
            inside = (rows >= 0) & (rows < queries)
            here = tl.load(
                q + rows.to(tl.int64)[None, :] * q_row + width[:, None] * q_dim,
                mask=inside[None, :] & (width[:, None] < dim),
                other=0.0,
            )
            norm = tl.load(lse + rows, mask=inside, other=float("inf"))
            weights = tl.exp2(tl.dot(there, here, input_precision="ieee") * scale - norm[None, :])
            if part != 1:
                positions = (rows + offset)[None, :]
                near = (columns[:, None] <= positions + after) & (columns[:, None] >= positions - before)
                weights = tl.where(near & real[:, None] & inside[None, :], weights, 0.0)
            pieces = tl.reshape(weights, (block_k, runs, fine))
            sum_here = tl.sum(pieces, 2)
            max_here = tl.max(pieces, 2)
            taken += tl.sum(sum_here, 1).to(tl.float64)
            fresh = start % tall == 0
            added = tl.where(fresh, sum_here, added + sum_here)
            most = tl.where(fresh, max_here, tl.maximum(most, max_here))
            # A bin that goes on in the next block is written again there.
            at = bins + (start // tall + tl.arange(0, runs)[None, :]).to(tl.int64) * bin_columns
            tl.store(sums + at, tl.sum(tl.reshape(added, (strips, narrow, runs)), 1))
            tl.store(maxima + at, tl.max(tl.reshape(most, (strips, narrow, runs)), 1))
    tl.store(received + which.to(tl.int64) * keys + columns, taken, mask=real)
