// Few queries: keys and values are read once, where they are, for all heads that share them. The blocks of a key–value
// head are divided into parts; whoever finishes the last one adds them up in their order (Dao et al. 2023,
// flash-decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
#pragma once
#include "tiles.h"

namespace regard {

// The rows of a side, at most 16, with a part of its keys; all heads have the same mask.
template <bool bf16> struct KeyPart {
    static constexpr Index WEIGHT_BYTES = bf16 ? 2 : 4;
    const Call &call;
    Index b, kv, rows;  // rows: the queries of all heads that share these keys
    Address queries, scores, copy, sums;
    float *peaks, *totals;

    KeyPart(const Call &call, Index task, Address workspace) : call(call), rows(call.group() * call.queries) {
        Index side = task / call.parts;
        b = side / call.kv_heads, kv = side % call.kv_heads;
        queries = workspace, scores = queries + rows * call.key_bytes(), copy = scores + rows * TILE_ROW;
        sums = call.part_sums + task * rows * call.sum_bytes();
        peaks = call.part_peaks + task * rows, totals = call.part_totals + task * rows;
        for (Index r = 0; r < rows; r++) {
            memcpy(queries + r * call.key_bytes(), call.q.at(b, head(r), r % call.queries), call.key_bytes());
            peaks[r] = -INFINITE, totals[r] = 0;
        }
        memset(sums, 0, rows * call.sum_bytes());
    }

    Index head(Index r) const { return kv * call.group() + r / call.queries; }

    void attend(Index part) {
        Index table = call.table(b, 0, 0), blocks = 0;
        for (Index run = call.tile_runs[table]; run < call.tile_runs[table + 1]; run++) blocks += call.run_lengths[run];
        Range places{part * blocks / call.parts, (part + 1) * blocks / call.parts};
        for_each_group(call, table, places, GROUP, [&](const Group &group) {
            for (Index n = 0; n < group.count; n++) score(scores + n * BLOCK_BYTES, group.block[n], group.mask[n]);
            ColumnHashes hashes(call, group);
            for (Index r = 0; r < rows; r++) {
                Address weights = scores + r * TILE_ROW;
                weigh<bf16>(call, weights, group.count, sums + r * call.sum_bytes(), peaks[r], totals[r], false);
                if (!call.drops) continue;
                drop<bf16>(call, weights, group.count, hash_row(call, b, head(r), r % call.queries), hashes);
            }
            for (Index n = 0; n < group.count; n++) add_values(scores + n * BLOCK * WEIGHT_BYTES, group.block[n]);
        });
    }

    void score(Address into, Index block, Index mask) {
        Index count = minimum(call.keys - block * BLOCK, BLOCK), whole = divide_up(count, LANES) * LANES;
        Address keys = call.k.at(b, kv, block * BLOCK);
        Index key_row = call.k.row;
        if (whole > count) {  // keys are read sixteen at a time: the last of them from a copy with zeros after them
            for (Index r = 0; r < count; r++) memcpy(copy + r * call.key_bytes(), keys + r * key_row, call.key_bytes());
            memset(copy + count * call.key_bytes(), 0, (whole - count) * call.key_bytes());
            keys = copy, key_row = call.key_bytes();
        }
        dot_products<bf16>(queries, keys, key_row, into, TILE_ROW, rows, whole, call.depth / LANES);
        if (is_plain(call, block, mask)) return;
        for (Index r = 0; r < rows; r++) {
            if (call.cap > 0) apply_cap(call, into + r * TILE_ROW, BLOCK_VECTORS);
            add_bias_and_hide(call, into + r * TILE_ROW, b, head(r), r % call.queries, block, mask);
        }
    }

    void add_values(Address weights, Index block) {
        Index count = minimum(call.keys - block * BLOCK, BLOCK), sum_bytes = call.sum_bytes();
        Address values = call.v.at(b, kv, block * BLOCK);
        Index value_row = call.v.row;
        if (bf16) {
            for (Index r = 0; r < count; r += 2) {
                Address even = values + r * call.v.row, odd = r + 1 < count ? even + call.v.row : even;
                interleave(even, odd, copy + r / 2 * sum_bytes, call.value_vectors);
            }
            for (Index n = 0; count % 2 && n < sum_bytes; n += VECTOR) {  // the last one alone: its neighbour is 0
                Address pairs = copy + count / 2 * sum_bytes + n;
                store(pairs, load<Words>(pairs) & 0xFFFFu);
            }
            values = copy, value_row = sum_bytes, count = divide_up(count, 2);
        }
        for (Index panel = 0, vectors; panel < call.value_vectors; panel += vectors) {
            vectors = minimum(PANEL, call.value_vectors - panel);
            multiply<bf16>(weights, TILE_ROW, values + panel * VECTOR, value_row, sums + panel * VECTOR, sum_bytes,
                           rows, count, vectors, false);
        }
    }
};

// Adds the parts of a row, scaled to the largest of their peaks; those of a sigmoid have none.
template <bool bf16> static void merge_parts(const Call &call, Index side, Index r, Index rows, Address into) {
    auto place = [&](Index part) { return (side * call.parts + part) * rows + r; };
    float peak = -INFINITE, total = 0;
    for (Index part = 0; part < call.parts; part++) peak = maximum(call.part_peaks[place(part)], peak);
    memset(into, 0, call.sum_bytes());
    for (Index part = 0; part < call.parts; part++) {
        if (!call.is_sigmoid && call.part_totals[place(part)] == 0) continue;
        float share = call.is_sigmoid ? 1 : expf(call.part_peaks[place(part)] - peak);
        total += share * call.part_totals[place(part)];
        Address sums = call.part_sums + place(part) * call.sum_bytes();
        for (Index n = 0; n < call.sum_bytes(); n += VECTOR)
            store(into + n, multiply_add(broadcast(share), load<Floats>(sums + n), load<Floats>(into + n)));
    }
    finish_row<bf16>(call, side * rows + r, into, peak, total);
}

template <bool bf16> static void read_all(Call &call) {
    Address workspace = call.claim_workspace();
    Index rows = call.group() * call.queries;
    for (Index task; (task = call.claim_task()) < call.tasks;) {
        Index side = task / call.parts;
        KeyPart<bf16>(call, task, workspace).attend(task % call.parts);
        if (__atomic_fetch_add(call.finished_parts + side, 1, __ATOMIC_ACQ_REL) == call.parts - 1)
            for (Index r = 0; r < rows; r++) merge_parts<bf16>(call, side, r, rows, workspace);
    }
}

}  // namespace regard
