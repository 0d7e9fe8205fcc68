// A call of attention as numbers and addresses: the record that Python fills, field by field in this order
// (src/regard/backends/native/record.py). Sizes are in elements, strides and anything called bytes in bytes; an address
// of 0 stands for what a call does not have. The threads of a region share a record, and change its first three numbers.
//
// Python owes: rows of q, k, v and grad_output that can be read to their padded width (`depth`, `value_vectors`), with
// zeros there; workspaces and buffers as large as the loops need (calls.py computes them beside the names used here);
// 0 in `visible` for keys beyond the last; a finite peak, 0 for rows that see no key, where gradients are computed.
#pragma once
#include "vectors.h"

namespace regard {

constexpr Index BLOCK = 64;  // queries, or keys, of a tile
constexpr Index STRIP = 16;  // queries, or keys, of a tile that are skipped together where a mask hides them
constexpr Index STRIPS = BLOCK / STRIP;

struct Tensor {  // (batch, heads, rows, width), whose rows are contiguous and otherwise have any strides
    Address data;
    Index batch, head, row;
    Address at(Index b, Index h, Index r) const { return data + (b * batch + h * head + r * row); }
};

struct Range {
    Index begin, end;
};

struct Call {
    // Threads take the next task, a workspace, and count the blocks that are packed.
    Index next_task, next_workspace, packed;
    Index tasks;
    Address workspace;
    Index workspace_bytes;  // of each thread

    Tensor q, k, v, grad_output;
    Address output;         // (batch, heads, queries, value_vectors · 16), of floats or of bfloat16
    float *peaks, *totals;  // Σ e^s of each row is total · e^peak; gradients read the peak alone
    Index packs;            // blocks of keys that are rearranged before they are used; the first tasks
    Address packed_keys, packed_values;

    Index batch, heads, kv_heads, queries, keys;
    Index depth;  // floats, or pairs of bfloat16, of a key; a multiple of 16 in decoding and for gradients
    Index value_vectors;
    Index bf16;

    // The mask (mask_tables.py). Each tile of queries has runs of blocks of keys; a run is wholly visible, or one block
    // whose pairs are (64 × 64) bytes of `visible`. Of such a block each strip of 16 rows is computed with a range of
    // strips of columns, and each strip of columns with a range of strips of rows: (masks, 2, 4, begin and end). The two
    // agree: what one of them holds, the other holds too.
    Index *tile_runs, *run_starts, *run_lengths, *run_masks;  // a mask of −1: every pair is visible
    uint8_t *visible;
    Index *strip_ranges;
    uint8_t *last_block;  // (64) bytes: 1 for the keys that the last block has
    Index mask_batch, mask_heads;

    Tensor bias;  // of floats
    Address
        diagonal_sums;  // (batch, heads, parts, distances): the gradient of a bias of i − j, from the largest down, to add to
    Index diagonal_sums_bytes;  // of a part

    Index parts;  // tasks of a side: of the keys and values of one head of one sequence
    Index *finished_parts;
    float *part_peaks, *part_totals;
    Address part_sums;

    float *delta;        // Σ grad_output · output of each row
    Address dq, dk, dv;  // of floats; dk and dv have whole blocks of keys

    Index drops, seed, least_bits;  // whether weights are dropped; the numbers of regard.dropout

    Index is_sigmoid;

    float scale_for_cap, cap, scale_for_bias;  // cap · tanh(scale_for_cap · q kᵀ); scale_for_bias · q kᵀ + bias
    float scale;                               // of what is normalized: 1 after a cap or a bias
    float shift;                               // of a sigmoid
    float hidden;                              // the score of a hidden pair: ∓∞ for a positive, negative scale
    float gradient_scale;                      // of dq and dk
    float kept_scale;                          // 1 / (1 − p) of dropout

    Index group() const { return heads / kv_heads; }
    Index blocks() const { return divide_up(keys, BLOCK); }
    Index tiles() const { return divide_up(queries, BLOCK); }
    Index key_bytes() const { return depth * 4; }               // of a query or a key
    Index sum_bytes() const { return value_vectors * VECTOR; }  // of a row of sums of values, which are floats

    Index claim_task() { return __atomic_fetch_add(&next_task, 1, __ATOMIC_RELAXED); }
    Address claim_workspace() {
        return workspace + __atomic_fetch_add(&next_workspace, 1, __ATOMIC_RELAXED) * workspace_bytes;
    }
    void count_packed() { __atomic_fetch_add(&packed, 1, __ATOMIC_RELEASE); }
    void wait_for_packs() const {  // tasks are taken in order: what is missing, another thread has begun
        while (__atomic_load_n(&packed, __ATOMIC_ACQUIRE) < packs) {}
    }

    // The place of a tile of queries in `tile_runs`; its runs end where those of the next one begin.
    Index table(Index b, Index h, Index tile) const {
        Index sequence = mask_batch > 1 ? b * mask_heads : 0, head = mask_heads > 1 ? h : 0;
        return (sequence + head) * tiles() + tile;
    }

    // The columns of a block (rows, if `of_columns`) that a strip of its rows (columns) is computed with.
    Range strip_range(Index mask, bool of_columns, Index strip) const {
        if (mask < 0) return {0, BLOCK};
        const Index *ends = strip_ranges + ((mask * 2 + of_columns) * STRIPS + strip) * 2;
        return {ends[0] * STRIP, ends[1] * STRIP};
    }
};

// Rows that are computed together: all of a block where every pair is visible.
INLINE Index strip_rows(Index mask) { return mask < 0 ? BLOCK : STRIP; }

}  // namespace regard
