// Many queries: keys are packed once, then each tile of queries visits the blocks that it sees, in one region of threads.
// Scores, weights and sums of a tile stay in the core's cache (Dao 2023, arXiv:2307.08691).
#pragma once
#include "tiles.h"

namespace regard {

// Writes a block of values in pairs of rows, whose elements are in turn; zeros after the last key.
static void pack_pairs(const Call &call, Index task, Address zeros) {
    Index side = task / call.blocks(), first = task % call.blocks() * BLOCK;
    memset(zeros, 0, call.sum_bytes() / 2);
    for (Index pair = 0; pair < BLOCK / 2; pair++) {
        Index row = first + 2 * pair;
        Address values = call.v.at(side / call.kv_heads, side % call.kv_heads, row);
        interleave(row < call.keys ? values : zeros, row + 1 < call.keys ? values + call.v.row : zeros,
                   call.packed_values + (task * BLOCK / 2 + pair) * call.sum_bytes(), call.value_vectors);
    }
}

template <bool bf16> struct QueryTile {
    static constexpr Index WEIGHT_BYTES = bf16 ? 2 : 4;
    const Call &call;
    Index b, h, kv, first, height, padded;  // padded: a multiple of ROWS
    Index row, side;                        // of the first query among all rows; of the keys among all key–value heads
    Address queries, scores, sums;
    float *peaks, *totals;
    bool is_first = true;  // no block was added yet

    QueryTile(const Call &call, Index task, Address workspace) : call(call) {
        Index of = task / call.tiles(), tile = call.tiles() - 1 - task % call.tiles();  // causal: the longest first
        b = of / call.heads, h = of % call.heads, kv = h / call.group(), side = b * call.kv_heads + kv;
        first = tile * BLOCK, height = minimum(BLOCK, call.queries - first), padded = divide_up(height, ROWS) * ROWS;
        row = of * call.queries + first;
        queries = workspace, scores = queries + BLOCK * call.key_bytes(), sums = scores + BLOCK * TILE_ROW;
        peaks = (float *)(sums + BLOCK * call.sum_bytes()), totals = peaks + BLOCK;
        for (Index r = 0; r < height; r++) {
            memcpy(queries + r * call.key_bytes(), call.q.at(b, h, first + r), call.key_bytes());
            peaks[r] = -INFINITE, totals[r] = 0;
        }
    }

    void attend() {
        Range all{0, INT64_MAX};
        for_each_group(call, call.table(b, h, first / BLOCK), all, GROUP, [&](const Group &group) {
            for (Index n = 0; n < group.count; n++) score(scores + n * BLOCK_BYTES, group.block[n], group.mask[n]);
            ColumnHashes hashes(call, group);
            for (Index r = 0; r < height; r++) {
                Address weights = scores + r * TILE_ROW;
                weigh<bf16>(call, weights, group.count, sums + r * call.sum_bytes(), peaks[r], totals[r], is_first);
                if (call.drops) drop<bf16>(call, weights, group.count, hash_row(call, b, h, first + r), hashes);
            }
            for (Index n = 0; n < group.count; n++) {
                add_values(scores + n * BLOCK * WEIGHT_BYTES, group.block[n], group.mask[n]);
                is_first = false;
            }
        });
        if (is_first) memset(sums, 0, height * call.sum_bytes());
        for (Index r = 0; r < height; r++)
            finish_row<bf16>(call, row + r, sums + r * call.sum_bytes(), peaks[r], totals[r]);
    }

    void score(Address into, Index block, Index mask) {
        Address packed = call.packed_keys + (side * call.blocks() + block) * call.depth * BLOCK_BYTES;
        for (Index r = 0, rows = strip_rows(mask); r < padded; r += rows)
            multiply_packed<bf16>(queries + r * call.key_bytes(), call.key_bytes(), packed, into + r * TILE_ROW,
                                  TILE_ROW, minimum(rows, padded - r), call.depth,
                                  call.strip_range(mask, false, r / rows));
        if (is_plain(call, block, mask)) return;
        for (Index r = 0; r < height; r++) {
            if (call.cap > 0) apply_cap(call, into + r * TILE_ROW, BLOCK_VECTORS);
            add_bias_and_hide(call, into + r * TILE_ROW, b, h, first + r, block, mask);
        }
    }

    void add_values(Address weights, Index block, Index mask) {
        Index keys = minimum(call.keys - block * BLOCK, BLOCK), sum_bytes = call.sum_bytes();
        Index value_row = bf16 ? sum_bytes : call.v.row;
        Address values = call.v.at(b, kv, block * BLOCK);
        if (bf16) values = call.packed_values + (side * call.blocks() + block) * BLOCK / 2 * sum_bytes;
        bool overwrite = is_first && mask < 0;
        if (is_first && mask >= 0) memset(sums, 0, padded * sum_bytes);  // some strips may see nothing of the block
        for (Index panel = 0; panel < call.value_vectors; panel += PANEL)
            for (Index r = 0, rows = strip_rows(mask); r < padded; r += rows) {
                Range columns = call.strip_range(mask, false, r / rows);
                columns.end = minimum(columns.end, keys);
                if (columns.begin >= columns.end) continue;
                Index top = bf16 ? columns.begin / 2 : columns.begin, depth = columns.end - columns.begin;  // of pairs
                if (bf16) depth = divide_up(depth, 2);
                multiply<bf16>(weights + r * TILE_ROW + top * 4, TILE_ROW, values + top * value_row + panel * VECTOR,
                               value_row, sums + r * sum_bytes + panel * VECTOR, sum_bytes, minimum(rows, padded - r),
                               depth, minimum(PANEL, call.value_vectors - panel), overwrite);
            }
    }
};

template <bool bf16> static void attend_all(Call &call) {
    Address workspace = call.claim_workspace();
    for (Index task; (task = call.claim_task()) < call.tasks;) {
        if (task < call.packs) {
            pack_columns(call, task, call.k, call.packed_keys, call.depth);
            if (bf16) pack_pairs(call, task, workspace);
            call.count_packed();
        } else {
            call.wait_for_packs();
            QueryTile<bf16>(call, task - call.packs, workspace).attend();
        }
    }
}

}  // namespace regard
