"""Three Triton kernels for additive scores: the forward, the gradients of queries, and those of keys and values.

Scores are in base 2, s_ij = Σ_h strength_h half_ijh with strength_h = 2 log₂e · scale · vector_h and half_ijh half a
tanh (`tiles`).

    forward      lse_i = log₂ Σ_j 2^s_ij and Σ_j p_ij v_j, with a running maximum (Milakov & Gimelshein 2018,
                 arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135)
    to_queries   d_ij = p_ij (up_i · v_j − delta_i);  Σ_j d_ij (¼ − half_ijh²) strength_h;  Σ_j d_ij half_ijh
    to_keys      Σ_i p_ij up_i;  Σ_i d_ij (¼ − half_ijh²) strength_h, over all heads that share the key

A query at position i sees the keys i − before … i + after; tiles that none of their queries sees are left out. Every
number is added up by one program alone, in one order: no atomics, and two runs agree to the bit. Sums that have a row
and a hidden unit stand in memory, as registers cannot be asked for the h-th; a barrier lies between two additions.
Products of float32 are three of TF32 each, which have nearly as many digits.
"""

# Parameters have no types: Triton reads annotations, and would take `Any` for a variable.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations  # `tl.constexpr` is not read where there is no Triton; no shapes stand here

import contextlib

from regard.backends.kernel_compilers import kernel
from regard.backends.triton_additive.tiles import add, down_slopes, half_tanhs, score

with contextlib.suppress(ImportError):  # it can be read without; `refuses` says that it is missing
    import triton.language as tl

__all__ = ["forward", "to_keys", "to_queries"]


@kernel
def forward(
    a,
    b,
    v,
    strength,
    output,
    lse,
    v_batch,
    v_head,
    v_row,
    v_dim,
    heads,
    group,
    queries,
    keys,
    offset,
    before,
    after,
    strength_head,
    fits,
    hidden: tl.constexpr,
    product: tl.constexpr,
    value_dim: tl.constexpr,
    padded: tl.constexpr,
    floor: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """Output and log-sum-exp of `block_q` queries of one head."""
    if (tl.load(fits) != 0) != product:
        return
    blocks = tl.cdiv(queries, block_q)
    which = (tl.program_id(0) // blocks).to(tl.int64)  # sequence and head
    head = which % heads
    shared = which // group  # sequence and key–value head
    a += which * hidden * queries
    b += shared * hidden * keys
    v += which // heads * v_batch + head // group * v_head
    strength += head * strength_head
    top = (blocks - 1 - tl.program_id(0) % blocks) * block_q  # the longest rows of a causal call come first
    rows = top + tl.arange(0, block_q)
    width = tl.arange(0, padded)
    positions = rows + offset
    # Tiles [low, high) hold a visible key.
    low = tl.maximum(top + offset - before, 0) // block_k * block_k
    high = tl.maximum(tl.minimum(tl.minimum(top + block_q, queries) + offset + after, keys), 0)

    peak = tl.full((block_q,), floor, tl.float32)
    total = tl.zeros((block_q,), tl.float32)
    mixed = tl.zeros((block_q, padded), tl.float32)
    for start in range(low, high, block_k):
        columns = start + tl.arange(0, block_k)
        scores = score(a, b, strength, queries, keys, rows, columns, hidden, product)
        near = (columns[None, :] <= positions[:, None] + after) & (columns[None, :] < keys)
        scores = tl.where(near & (columns[None, :] >= positions[:, None] - before), scores, floor)
        values = tl.load(
            v + columns.to(tl.int64)[:, None] * v_row + width[None, :] * v_dim,
            mask=(columns[:, None] < keys) & (width[None, :] < value_dim),
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - higher)
        powers = tl.exp2(scores - higher[:, None])
        total = shrink * total + tl.sum(powers, 1)
        mixed = shrink[:, None] * mixed + tl.dot(powers.to(values.dtype), values, input_precision="tf32x3")
        peak = higher

    # By the band, not by the scores: a row of NaN must not pass for one that sees nothing.
    seen = tl.maximum(positions - before, 0) <= tl.minimum(positions + after, keys - 1)
    inside = rows < queries
    place = which * queries + rows
    tl.store(lse + place, tl.where(seen, peak + tl.log2(total), float("inf")), mask=inside)
    mixed = tl.where(seen[:, None], mixed / total[:, None], 0.0)
    tl.store(
        output + place[:, None] * value_dim + width[None, :],
        mixed.to(output.dtype.element_ty),
        mask=inside[:, None] & (width[None, :] < value_dim),
    )


@kernel
def to_queries(
    a,
    b,
    v,
    strength,
    up,
    lse,
    delta,
    a_slopes,
    half_sums,
    v_batch,
    v_head,
    v_row,
    v_dim,
    heads,
    group,
    queries,
    keys,
    offset,
    before,
    after,
    strength_head,
    fits,
    hidden: tl.constexpr,
    product: tl.constexpr,
    value_dim: tl.constexpr,
    padded: tl.constexpr,
    for_vector: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """What `block_q` queries of one head receive; tiles are keys by queries, so that sums run down the registers."""
    if (tl.load(fits) != 0) != product:
        return
    blocks = tl.cdiv(queries, block_q)
    which = (tl.program_id(0) // blocks).to(tl.int64)  # sequence and head
    head = which % heads
    shared = which // group  # sequence and key–value head
    a += which * hidden * queries
    a_slopes += which * hidden * queries
    half_sums += which * hidden * queries
    b += shared * hidden * keys
    v += which // heads * v_batch + head // group * v_head
    strength += head * strength_head
    top = (blocks - 1 - tl.program_id(0) % blocks) * block_q
    rows = top + tl.arange(0, block_q)
    inside = rows < queries
    width = tl.arange(0, padded)
    place = which * queries + rows
    rising = tl.load(
        up + place[None, :] * value_dim + width[:, None],
        mask=inside[None, :] & (width[:, None] < value_dim),
        other=0.0,
    )
    norm = tl.load(lse + place, mask=inside, other=float("inf"))
    mean = tl.load(delta + place, mask=inside, other=0.0)
    positions = rows + offset
    low = tl.maximum(top + offset - before, 0) // block_k * block_k
    high = tl.maximum(tl.minimum(tl.minimum(top + block_q, queries) + offset + after, keys), 0)

    for start in range(low, high, block_k):
        columns = start + tl.arange(0, block_k)
        values = tl.load(
            v + columns.to(tl.int64)[:, None] * v_row + width[None, :] * v_dim,
            mask=(columns[:, None] < keys) & (width[None, :] < value_dim),
            other=0.0,
        )
        scores = score(b, a, strength, keys, queries, columns, rows, hidden, product)
        near = (columns[:, None] <= positions[None, :] + after) & (columns[:, None] < keys)
        near = near & (columns[:, None] >= positions[None, :] - before)
        slopes = tl.dot(values, rising, input_precision="tf32x3") - mean[None, :]
        slopes = tl.where(near, tl.exp2(scores - norm[None, :]) * slopes, 0.0)
        for unit in range(0, hidden, 4):
            h0, h1, h2, h3 = half_tanhs(b, a, unit, keys, queries, columns, rows, product)
            at = a_slopes + tl.cast(unit, tl.int64) * queries + rows
            own = strength + unit
            add(at, tl.load(own) * down_slopes(slopes, h0), inside)
            add(at + queries, tl.load(own + 1) * down_slopes(slopes, h1), inside)
            add(at + 2 * queries, tl.load(own + 2) * down_slopes(slopes, h2), inside)
            add(at + 3 * queries, tl.load(own + 3) * down_slopes(slopes, h3), inside)
            if for_vector:
                at = half_sums + tl.cast(unit, tl.int64) * queries + rows
                add(at, tl.sum(slopes * h0, 0), inside)
                add(at + queries, tl.sum(slopes * h1, 0), inside)
                add(at + 2 * queries, tl.sum(slopes * h2, 0), inside)
                add(at + 3 * queries, tl.sum(slopes * h3, 0), inside)
        tl.debug_barrier()


@kernel
def to_keys(
    a,
    b,
    v,
    strength,
    up,
    lse,
    delta,
    b_slopes,
    v_slopes,
    v_batch,
    v_head,
    v_row,
    v_dim,
    heads,
    group,
    queries,
    keys,
    offset,
    before,
    after,
    strength_head,
    fits,
    hidden: tl.constexpr,
    product: tl.constexpr,
    value_dim: tl.constexpr,
    padded: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """What `block_k` keys and their values receive of all queries of the heads that share them."""
    if (tl.load(fits) != 0) != product:
        return
    blocks = tl.cdiv(keys, block_k)
    which = (tl.program_id(0) // blocks).to(tl.int64)  # sequence and key–value head
    kv_heads = heads // group
    b += which * hidden * keys
    b_slopes += which * hidden * keys
    v += which // kv_heads * v_batch + which % kv_heads * v_head
    left = tl.program_id(0) % blocks * block_k
    columns = left + tl.arange(0, block_k)
    within = columns < keys
    width = tl.arange(0, padded)
    values = tl.load(
        v + columns.to(tl.int64)[None, :] * v_row + width[:, None] * v_dim,
        mask=within[None, :] & (width[:, None] < value_dim),
        other=0.0,
    )
    low = tl.maximum(left - after - offset, 0) // block_q * block_q
    high = tl.maximum(tl.minimum(tl.minimum(left + block_k, keys) + before - offset, queries), 0)

    taken = tl.zeros((block_k, padded), tl.float32)
    for member in range(group):
        head = which * group + member  # of all sequences
        for start in range(low, high, block_q):
            rows = start + tl.arange(0, block_q)
            inside = rows < queries
            place = head * queries + rows
            rising = tl.load(
                up + place[:, None] * value_dim + width[None, :],
                mask=inside[:, None] & (width[None, :] < value_dim),
                other=0.0,
            )
            norm = tl.load(lse + place, mask=inside, other=float("inf"))
            mean = tl.load(delta + place, mask=inside, other=0.0)
            a_head = a + head * hidden * queries
            own = strength + head % heads * strength_head
            scores = score(a_head, b, own, queries, keys, rows, columns, hidden, product)
            positions = (rows + offset)[:, None]
            near = (columns[None, :] <= positions + after) & (columns[None, :] >= positions - before)
            weights = tl.where(near, tl.exp2(scores - norm[:, None]), 0.0)
            taken += tl.dot(tl.trans(weights.to(rising.dtype)), rising, input_precision="tf32x3")
            slopes = tl.dot(rising, values, input_precision="tf32x3") - mean[:, None]
            slopes = tl.where(near, weights * slopes, 0.0)
            for unit in range(0, hidden, 4):
                h0, h1, h2, h3 = half_tanhs(a_head, b, unit, queries, keys, rows, columns, product)
                at = b_slopes + tl.cast(unit, tl.int64) * keys + columns
                add(at, tl.load(own + unit) * down_slopes(slopes, h0), within)
                add(at + keys, tl.load(own + unit + 1) * down_slopes(slopes, h1), within)
                add(at + 2 * keys, tl.load(own + unit + 2) * down_slopes(slopes, h2), within)
                add(at + 3 * keys, tl.load(own + unit + 3) * down_slopes(slopes, h3), within)
            tl.debug_barrier()

    place = which * keys + columns
    tl.store(
        v_slopes + place[:, None] * value_dim + width[None, :],
        taken.to(v_slopes.dtype.element_ty),
        mask=within[:, None] & (width[None, :] < value_dim),
    )
