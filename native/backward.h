// The gradients: weights are computed again from the peak of each row, tile by tile, and all five products of a tile in one
// pass (Dao et al. 2022, arXiv:2205.14135, algorithm 4).
//
//     w = e^(s − peak)    g = grad_output · vᵀ    δ = Σ grad_output · output    ds = w (g − δ)
//     dq = ds · k        dk = dsᵀ · q            dv = wᵀ · grad_output
//
// Where dropout keeps a weight, g and the w of dv are divided by 1 − p; where it does not, they are 0. Of a sigmoid,
// ds = w (1 − w) g. The gradient of a bias of i − j is the sum of ds along each diagonal.
//
// A task has some tiles of queries of one key–value head, and sums of its own of that head's dk and dv; these are added
// in the order of the tasks, so that results do not depend on which thread is first.
#pragma once
#include "tiles.h"

namespace regard {

struct KeyGradients {
    Address keys, values;
};

// Where a task adds up dk and dv of a key–value head: the first one in the results.
INLINE KeyGradients key_gradients(const Call &call, Index side, Index part) {
    Index rows = call.blocks() * BLOCK, keys = rows * call.key_bytes(), values = rows * call.sum_bytes();
    if (part == 0) return {call.dk + side * keys, call.dv + side * values};
    Address sums = call.part_sums + (side * (call.parts - 1) + part - 1) * (keys + values);
    return {sums, sums + keys};
}

// dk or dv of a block: into (keys × width) += x (queries × keys)ᵀ · y (queries × width).
INLINE void add_transposed(const Call &call, Address x, Address y, Index y_row, Address into, Index keys, Index queries,
                           Index mask) {
    for (Index panel = 0; panel < y_row / VECTOR; panel += PANEL)
        for (Index key = 0; key < keys; key += ROWS) {
            Range rows = call.strip_range(mask, true, key / strip_rows(mask));
            rows.end = minimum(rows.end, queries);
            if (rows.begin >= rows.end) continue;
            product<false, true, ROWS>(x + rows.begin * BLOCK_BYTES + key * 4, BLOCK_BYTES,
                                       y + rows.begin * y_row + panel * VECTOR, y_row,
                                       into + key * y_row + panel * VECTOR, y_row, rows.end - rows.begin,
                                       minimum(PANEL, y_row / VECTOR - panel), false);
        }
}

struct GradientTile {
    const Call &call;
    Index b, h, kv, first, height, padded;
    Index row;  // of the first query among all rows
    Address queries, up, dq, scores, gradients, capped, diagonals;
    Address diagonal_sums;  // of this task; 0 where no bias learns
    KeyGradients into;

    GradientTile(const Call &call, Index side, Index part, Index item, KeyGradients into, Address workspace)
        : call(call), b(side / call.kv_heads), kv(side % call.kv_heads), into(into) {
        h = kv * call.group() + item / call.tiles(), first = item % call.tiles() * BLOCK;
        height = minimum(BLOCK, call.queries - first), padded = divide_up(height, ROWS) * ROWS;
        row = (b * call.heads + h) * call.queries + first;
        queries = workspace, up = queries + BLOCK * call.key_bytes(), dq = up + BLOCK * call.sum_bytes();
        scores = dq + BLOCK * call.key_bytes(), gradients = scores + BLOCK * BLOCK_BYTES;
        capped = gradients + BLOCK * BLOCK_BYTES, diagonals = capped + BLOCK * BLOCK_BYTES;
        diagonal_sums = nullptr;
        if (call.diagonal_sums)
            diagonal_sums = call.diagonal_sums + ((b * call.heads + h) * call.parts + part) * call.diagonal_sums_bytes;
        for (Index r = 0; r < height; r++) {
            memcpy(queries + r * call.key_bytes(), call.q.at(b, h, first + r), call.key_bytes());
            memcpy(up + r * call.sum_bytes(), call.grad_output.at(b, h, first + r), call.sum_bytes());
        }
        memset(dq, 0, padded * call.key_bytes());
    }

    void differentiate() {
        Range all{0, INT64_MAX};
        for_each_group(call, call.table(b, h, first / BLOCK), all, 1, [&](const Group &group) {
            Index block = group.block[0], mask = group.mask[0];
            Index strips = diagonal_sums ? -1 : mask;  // sums along diagonals are of whole blocks
            score(block, strips);
            weigh(group, strips);
            Index keys = minimum(call.keys - block * BLOCK, BLOCK);
            Address dv = into.values + block * BLOCK * call.sum_bytes(),
                    dk = into.keys + block * BLOCK * call.key_bytes();
            add_transposed(call, scores, up, call.sum_bytes(), dv, keys, height, strips);
            add_transposed(call, gradients, queries, call.key_bytes(), dk, keys, height, strips);
            add_to_dq(block, keys, strips);
        });
        memcpy(call.dq + row * call.key_bytes(), dq, height * call.key_bytes());
    }

    // Scores q kᵀ, and gradients of weights up · vᵀ.
    void score(Index block, Index strips) {
        Index at = (b * call.kv_heads + kv) * call.blocks() + block;
        Address keys = call.packed_keys + at * BLOCK * call.key_bytes();
        Address values = call.packed_values + at * BLOCK * call.sum_bytes();
        for (Index r = 0, rows = strip_rows(strips); r < padded; r += rows) {
            Range columns = call.strip_range(strips, false, r / rows);
            Index count = minimum(rows, padded - r);
            multiply_packed<false>(queries + r * call.key_bytes(), call.key_bytes(), keys, scores + r * BLOCK_BYTES,
                                   BLOCK_BYTES, count, call.depth, columns);
            multiply_packed<false>(up + r * call.sum_bytes(), call.sum_bytes(), values, gradients + r * BLOCK_BYTES,
                                   BLOCK_BYTES, count, call.value_vectors * LANES, columns);
        }
    }

    // Replaces scores by weights, and gradients of weights by those of the products.
    void weigh(const Group &group, Index strips) {
        Index block = group.block[0];
        ColumnHashes hashes(call, group);
        if (diagonal_sums) memset(diagonals, 0, 2 * BLOCK_BYTES);  // of the tile: long sums of floats are less exact
        for (Index r = 0, rows = strip_rows(strips); r < height; r++) {
            Range columns = call.strip_range(strips, false, r / rows);
            Index at = r * BLOCK_BYTES + columns.begin * 4, vectors = (columns.end - columns.begin) / LANES;
            if (call.cap > 0) {
                apply_cap(call, scores + at, vectors);
                memcpy(capped + at, scores + at, vectors * VECTOR);
            }
            add_bias_and_hide(call, scores + r * BLOCK_BYTES, b, h, first + r, block, group.mask[0]);
            weigh_row(scores + at, gradients + at, vectors, r, hashes.column + columns.begin);
            if (diagonal_sums) add(diagonals + (height - 1 - r) * 4, gradients + at, BLOCK);
            for (Index n = 0; call.cap > 0 && n < vectors; n++) {  // the slope of the cap, 1 − tanh²
                Floats ratio = load<Floats>(capped + at + n * VECTOR) * (1 / call.cap);
                Floats gradient = load<Floats>(gradients + at + n * VECTOR);
                store(gradients + at + n * VECTOR, gradient * (1.0f - ratio * ratio));
            }
        }
        // Row r of the tile has its distance to key 0 at `height − 1 − r`; the tile's last row is at its place in all.
        if (diagonal_sums)
            add(diagonal_sums + (call.queries - first - height) * 4 + block * BLOCK_BYTES, diagonals,
                BLOCK + height - 1);
    }

    void weigh_row(Address score, Address gradient, Index vectors, Index r, const uint32_t *columns) {
        Words row_hash = call.drops ? hash_row(call, b, h, first + r) : Words{};
        float peak = call.peaks[row + r], delta = call.delta[row + r];
        for (Index n = 0; n < vectors; n++) {
            Floats x = load<Floats>(score + n * VECTOR) * call.scale, g = load<Floats>(gradient + n * VECTOR);
            Floats weight = call.is_sigmoid ? sigmoid(x + call.shift) : exp(x - peak), dropped = weight;
            if (call.drops) {
                Floats factor =
                    kept_columns(call, row_hash, columns + n * LANES) ? broadcast(call.kept_scale) : Floats{};
                g *= factor, dropped *= factor;
            }
            store(score + n * VECTOR, dropped);
            Floats slope = call.is_sigmoid ? g * (1.0f - weight) : g - delta;
            store(gradient + n * VECTOR, slope * weight * call.gradient_scale);
        }
    }

    void add_to_dq(Index block, Index keys, Index strips) {
        Index key_bytes = call.key_bytes();
        Address k = call.k.at(b, kv, block * BLOCK);
        for (Index panel = 0; panel < call.depth / LANES; panel += PANEL)
            for (Index r = 0, rows = strip_rows(strips); r < padded; r += rows) {
                Range columns = call.strip_range(strips, false, r / rows);
                columns.end = minimum(columns.end, keys);
                if (columns.begin >= columns.end) continue;
                multiply<false>(gradients + r * BLOCK_BYTES + columns.begin * 4, BLOCK_BYTES,
                                k + columns.begin * call.k.row + panel * VECTOR, call.k.row,
                                dq + r * key_bytes + panel * VECTOR, key_bytes, minimum(rows, padded - r),
                                columns.end - columns.begin, minimum(PANEL, call.depth / LANES - panel), false);
            }
    }
};

static void differentiate_all(Call &call) {
    Address workspace = call.claim_workspace();
    for (Index task; (task = call.claim_task()) < call.tasks;) {
        if (task < call.packs) {
            pack_columns(call, task, call.k, call.packed_keys, call.depth);
            pack_columns(call, task, call.v, call.packed_values, call.value_vectors * LANES);
            call.count_packed();
            continue;
        }
        call.wait_for_packs();
        Index side = (task - call.packs) / call.parts, part = (task - call.packs) % call.parts;
        KeyGradients into = key_gradients(call, side, part);
        memset(into.keys, 0, call.blocks() * BLOCK * call.key_bytes());
        memset(into.values, 0, call.blocks() * BLOCK * call.sum_bytes());
        // Every so many tiles: under a causal mask they are about as much work.
        for (Index item = part; item < call.group() * call.tiles(); item += call.parts)
            GradientTile(call, side, part, item, into, workspace).differentiate();
    }
}

// Adds the sums of the other tasks of each key–value head to those of its first one, a block a task.
static void add_all_parts(Call &call) {
    Index keys = BLOCK * call.key_bytes(), values = BLOCK * call.sum_bytes();
    for (Index task; (task = call.claim_task()) < call.tasks;) {
        Index side = task / call.blocks(), block = task % call.blocks();
        KeyGradients into = key_gradients(call, side, 0);
        for (Index part = 1; part < call.parts; part++) {
            KeyGradients from = key_gradients(call, side, part);
            add(into.keys + block * keys, from.keys + block * keys, keys / 4);
            add(into.values + block * values, from.values + block * values, values / 4);
        }
    }
}

}  // namespace regard
