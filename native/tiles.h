// A tile of scores: 64 queries against up to 8 blocks of 64 keys, and the steps of the formula that all loops share.
//
//     s = q kᵀ        s = cap · tanh(scale · s)        s = scale · s + bias        s = hidden where the mask says so
//     w = e^(s − peak), total = Σ w; or w = σ(s + shift)        w = 0 where dropout says so        output = Σ w v / total
#pragma once
#include "call.h"
#include "products.h"

namespace regard {

constexpr Index GROUP = 8;  // blocks of keys whose scores are held together: a group
constexpr Index BLOCK_VECTORS = BLOCK / LANES;
constexpr Index BLOCK_BYTES = BLOCK * 4;         // of a row of scores with a block
constexpr Index TILE_ROW = GROUP * BLOCK_BYTES;  // bytes of a row of a tile

struct Group {  // of blocks of keys, each with its mask, or −1
    Index block[GROUP], mask[GROUP], count;
};

// Calls `visit` with the blocks of keys that a tile of queries sees, those from place `begin` to `end` among them, in
// groups of at most `most`.
template <class Visit>
INLINE void for_each_group(const Call &call, Index table, Range places, Index most, Visit visit) {
    Group group;
    group.count = 0;
    Index place = 0;
    for (Index run = call.tile_runs[table]; run < call.tile_runs[table + 1]; run++) {
        Index begin = maximum(places.begin - place, Index(0)), end = minimum(places.end - place, call.run_lengths[run]);
        for (Index n = begin; n < end; n++) {
            group.block[group.count] = call.run_starts[run] + n;
            group.mask[group.count++] = call.run_masks[run];
            if (group.count == most) {
                visit(group);
                group.count = 0;
            }
        }
        place += call.run_lengths[run];
    }
    if (group.count) visit(group);
}

// Writes a block of keys (or values) in columns: an element of all 64 rows is contiguous, in panels as wide as those of a
// product; zeros after the last key.
static void pack_columns(const Call &call, Index task, const Tensor &x, Address into, Index depth) {
    Index side = task / call.blocks(), first = task % call.blocks() * BLOCK;
    Address rows = x.at(side / call.kv_heads, side % call.kv_heads, first);
    into += task * depth * BLOCK_BYTES;
    for (Index vector = 0; vector < BLOCK_VECTORS; vector++) {
        Address target = into + vector / PANEL * depth * PANEL_BYTES + vector % PANEL * VECTOR;
        for (Index e = 0; e < depth; e++) {
            Ints column{};
            for (Index lane = 0; lane < LANES; lane++) {
                Index row = vector * LANES + lane;
                if (first + row < call.keys) column[lane] = load<int32_t>(rows + row * x.row + e * 4);
            }
            store(target + e * PANEL_BYTES, column);
        }
    }
}

// Some columns of c (rows × 64) = a (rows × depth) · a packed block.
template <bool bf16>
INLINE void multiply_packed(Address a, Index a_row, Address packed, Address c, Index c_row, Index rows, Index depth,
                            Range columns) {
    Index last = columns.end / LANES;
    for (Index vector = columns.begin / LANES, vectors; vector < last; vector += vectors) {
        Index within = vector % PANEL;
        vectors = minimum(PANEL - within, last - vector);
        Address b = packed + vector / PANEL * depth * PANEL_BYTES + within * VECTOR;
        multiply<bf16>(a, a_row, b, PANEL_BYTES, c + vector * VECTOR, c_row, rows, depth, vectors, true);
    }
}

INLINE void apply_cap(const Call &call, Address scores, Index vectors) {
    for (Index n = 0; n < vectors; n++)
        store(scores + n * VECTOR, call.cap * tanh(load<Floats>(scores + n * VECTOR) * call.scale_for_cap));
}

// Adds the bias to the scores of a query with a block of keys, and hides what its mask hides, and keys beyond the last.
INLINE void add_bias_and_hide(const Call &call, Address scores, Index b, Index h, Index query, Index block,
                              Index mask) {
    Index keys = minimum(call.keys - block * BLOCK, BLOCK);
    if (call.bias.data) {
        Address bias = call.bias.at(b, h, query) + block * BLOCK_BYTES;
        for (Index n = 0; n < keys; n++)
            store(scores + n * 4, load<float>(scores + n * 4) * call.scale_for_bias + load<float>(bias + n * 4));
    }
    const uint8_t *visible = keys < BLOCK ? call.last_block : nullptr;
    if (mask >= 0) visible = call.visible + (mask * BLOCK + query % BLOCK) * BLOCK;
    for (Index n = 0; visible && n < BLOCK_VECTORS; n++) {
        Ints is_visible = __builtin_convertvector(load<Bytes>(visible + n * LANES), Ints);
        Floats score = load<Floats>(scores + n * VECTOR);
        store(scores + n * VECTOR, is_visible != 0 ? score : broadcast(call.hidden));
    }
}

// Whether the scores of a block stay as the product is.
INLINE bool is_plain(const Call &call, Index block, Index mask) {
    return mask < 0 && !call.bias.data && call.cap <= 0 && (block + 1) * BLOCK <= call.keys;
}

INLINE void rescale(Address row, Index vectors, float factor) {
    for (Index n = 0; n < vectors; n++) store(row + n * VECTOR, load<Floats>(row + n * VECTOR) * factor);
}

template <bool bf16> INLINE void store_weights(Address row, Index n, Floats weights) {
    if constexpr (bf16)
        store(row + n * HALF, __builtin_convertvector(weights, BFloats));
    else
        store(row + n * VECTOR, weights);
}

// Replaces a row of scores by weights, in place, those of bfloat16 in the first half of the row; sums of earlier blocks are scaled to the new peak (Milakov & Gimelshein
// 2018, arXiv:1805.02867).
template <bool bf16>
INLINE void weigh(const Call &call, Address scores, Index blocks, Address sums, float &peak, float &total,
                  bool is_first) {
    Index vectors = blocks * BLOCK_VECTORS;
    if (call.is_sigmoid) {
        for (Index n = 0; n < vectors; n++)
            store_weights<bf16>(scores, n, sigmoid(load<Floats>(scores + n * VECTOR) * call.scale + call.shift));
        return;
    }
    Floats largest = broadcast(-INFINITE), added{};
    for (Index n = 0; n < vectors; n++) largest = maximum(load<Floats>(scores + n * VECTOR) * call.scale, largest);
    float before = peak, base;
    peak = maximum(largest_of(largest), before);
    base = peak != -INFINITE ? peak : 0;
    for (Index n = 0; n < vectors; n++) {
        // Rounded as above (-ffp-contract=off: nothing is fused), so that no number exceeds the peak.
        Floats weights = exp(load<Floats>(scores + n * VECTOR) * call.scale - base);
        added += weights;
        store_weights<bf16>(scores, n, weights);
    }
    if (!is_first && peak > before) {
        float share = expf(before - peak);
        rescale(sums, call.value_vectors, share);
        total *= share;
    }
    total += sum_of(added);
}

// Dropout keeps a weight where a hash of its row and its column, a function of the seed and the place alone, is at least
// some number (src/regard/dropout.py): both are hashed apart (SplitMix64), and mixed (MurmurHash3).
INLINE uint32_t hash(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return uint32_t((x ^ (x >> 31)) >> 32);
}

INLINE Words hash_row(const Call &call, Index b, Index h, Index query) {
    return broadcast(hash((((uint64_t(b) << 16) + h) << 28) + query + call.seed));
}

struct ColumnHashes {  // of the keys of some blocks
    alignas(VECTOR) uint32_t column[GROUP * BLOCK];

    ColumnHashes(const Call &call, const Group &group) {
        for (Index n = 0; call.drops && n < group.count; n++)
            for (Index key = 0; key < BLOCK; key++)
                column[n * BLOCK + key] = hash(group.block[n] * BLOCK + key + (call.seed >> 17));
    }
};

INLINE Ints kept_columns(const Call &call, Words row, const uint32_t *columns) {
    Words bits = (row ^ load<Words>(columns)) * 0x85EBCA6Bu;
    return (Ints)((bits ^ (Words)((Ints)bits >> 15)) * 0xC2B2AE35u) >= broadcast((int32_t)call.least_bits);
}

// Replaces the weights of a row with some blocks that dropout does not keep by 0; the others stay as they are.
template <bool bf16>
INLINE void drop(const Call &call, Address weights, Index blocks, Words row, const ColumnHashes &hashes) {
    for (Index n = 0; n < blocks * BLOCK_VECTORS; n++) {
        Ints kept = kept_columns(call, row, hashes.column + n * LANES);
        Address at = weights + n * (bf16 ? HALF : VECTOR);
        if constexpr (bf16)
            store(at, load<Shorts>(at) & __builtin_convertvector(kept, Shorts));
        else
            store(at, kept ? load<Floats>(at) : Floats{});
    }
}

// Writes a row of output, sums / total, and its peak and total: all 0 for a row that sees no key.
template <bool bf16> INLINE void finish_row(const Call &call, Index row, Address sums, float peak, float total) {
    float share = call.is_sigmoid ? call.kept_scale : total != 0 ? call.kept_scale / total : 0;
    Address output = call.output + row * call.value_vectors * (bf16 ? HALF : VECTOR);
    for (Index n = 0; n < call.value_vectors; n++)
        store_weights<bf16>(output, n, load<Floats>(sums + n * VECTOR) * share);
    if (!call.peaks) return;
    bool has_sum = !call.is_sigmoid && total != 0;
    call.peaks[row] = has_sum ? peak : 0;
    call.totals[row] = has_sum ? total : 0;
}

}  // namespace regard
