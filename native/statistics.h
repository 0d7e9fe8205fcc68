// What regard.watch keeps of the weights of some rows of one head, in one pass from q and k: the strongest keys of each
// row, the sums of its entropy and distance, and sums and maxima of bins of weights. Weights exist for the rows of a group
// alone, in the core's cache; keys outside of the band around the diagonal are skipped.
//
//     w = e^(s − peak), p = w / Σ w        of a row: Σ w, Σ p (s − peak), Σ p |i − j|, peak        of a key: Σ p
//
// The entropy of a row is ln Σ w − Σ p (s − peak). Rows that see no key, and what they have, stay as Python made them.
#pragma once
#include "tiles.h"

namespace regard {

// The record of src/regard/observe/native_pass.py, each of one thread. Keys are numbered from the first one of `packed`,
// which has 64 columns a row, not panels.
struct Rows {
    Address q;       // (rows + 3, depth) floats, scaled
    Address packed;  // (blocks, depth, 64): the keys, an element of 64 of them contiguous
    Index depth, rows, columns;
    Index diagonal;  // row r is at key diagonal + r, and sees those from `before` before it to `after` after it …
    Index before, after;
    Index keys;   // … of so many
    Index first;  // distances are counted from key first + r

    Index group;      // rows whose weights are held together
    Address weights;  // of the group
    Index weights_row;
    Address workspace;  // 2 · columns + 64 floats

    Index height, width;            // of a bin: rows and keys
    Index row_shift, column_shift;  // of row 0 and of key 0 in the first bin
    Index bin_columns;

    Index count;       // strongest keys
    float *strongest;  // (rows, count)
    Index *strongest_keys;
    float *row_sums;       // (rows, 4)
    double *received;      // (columns)
    float *sums, *maxima;  // (bins, bin_columns)

    // The blocks of keys that a row may see.
    Index left(Index row) const { return minimum(maximum(Index(0), diagonal + row - before), columns) / BLOCK * BLOCK; }
    Index right(Index row) const {
        return divide_up(maximum(Index(0), minimum(keys, diagonal + row + after + 1)), BLOCK) * BLOCK;
    }
};

constexpr float HIDDEN = -0x1p126f;  // the score of a key that a row does not see

struct RowStatistics {
    const Rows &job;
    float *received, *maxima;  // of a run of rows in one bin, by key
    Address lane_maxima;       // of a row: the maximum of each 64th weight

    explicit RowStatistics(const Rows &job) : job(job) {
        received = (float *)job.workspace, maxima = received + job.columns,
        lane_maxima = (Address)(maxima + job.columns);
    }

    void sweep() {
        for (Index top = 0; top < job.rows; top += job.group) {
            Index bottom = minimum(job.rows, top + job.group), left = job.left(top);
            score(top, bottom, left, job.right(bottom - 1));
            for (Index row = top; row < bottom; row++) {
                Index bin = (row + job.row_shift) / job.height;
                Index begin = maximum(Index(0), bin * job.height - job.row_shift);
                Index end = minimum(job.rows, (bin + 1) * job.height - job.row_shift);
                if (row == begin) clear(job.left(row), job.right(end - 1));
                Index here = job.diagonal + row;
                bool sees_keys = maximum(Index(0), here - job.before) < minimum(job.keys, here + job.after + 1);
                if (sees_keys) add_row(row, job.weights + (row - top) * job.weights_row - left * 4);
                if (row == end - 1) add_to_bin(bin, job.left(begin), job.right(row));
            }
        }
    }

    void clear(Index left, Index right) {
        if (left >= right) return;
        memset(received + left, 0, (right - left) * 4);
        memset(maxima + left, 0, (right - left) * 4);
    }

    void score(Index top, Index bottom, Index left, Index right) {
        Index rows = divide_up(bottom - top, ROWS) * ROWS, q_row = job.depth * 4;
        for (Index column = left; column < right; column += BLOCK)
            for (Index panel = 0; panel < BLOCK_VECTORS; panel += PANEL)
                multiply<false>(job.q + top * q_row, q_row, job.packed + column * q_row + panel * VECTOR, BLOCK_BYTES,
                                job.weights + (column - left) * 4 + panel * VECTOR, job.weights_row, rows, job.depth,
                                PANEL, true);
    }

    // Makes weights of the scores of a row, whose score with key 0 would be at `scores`, and adds them up.
    void add_row(Index row, Address scores) {
        Index left = job.left(row), right = job.right(row), here = job.diagonal + row;
        for (Index key = left; key < maximum(left, here - job.before); key++) store(scores + key * 4, HIDDEN);
        for (Index key = minimum(job.keys, here + job.after + 1); key < right; key++) store(scores + key * 4, HIDDEN);
        Address weights = scores + left * 4;
        Index vectors = (right - left) / LANES;
        float *sums = job.row_sums + row * 4, *strongest = job.strongest + row * job.count;
        weigh(weights, vectors, float(job.first + row - left), sums);
        divide(weights, vectors, 1 / sums[0], received + left, maxima + left);
        find_strongest(weights, right - left, strongest, job.strongest_keys + row * job.count);
        for (Index n = 0; n < job.count; n++) job.strongest_keys[row * job.count + n] += left;
    }

    void weigh(Address row, Index vectors, float here, float *sums) {
        Floats largest = broadcast(-INFINITE), total{}, dot{}, moment{}, distance = broadcast(here);
        for (Index n = 0; n < vectors; n++) largest = maximum(load<Floats>(row + n * VECTOR), largest);
        for (int lane = 0; lane < LANES; lane++) distance[lane] -= float(lane);
        float peak = largest_of(largest);
        for (Index n = 0; n < vectors; n++, distance -= float(LANES)) {
            Floats x = load<Floats>(row + n * VECTOR) - peak, weight = exp(x);
            store(row + n * VECTOR, weight);
            total += weight;
            dot = multiply_add(weight, x, dot);
            moment = multiply_add(weight, distance < 0.0f ? -distance : distance, moment);
        }
        sums[0] = sum_of(total);
        sums[1] = sum_of(dot) / sums[0], sums[2] = sum_of(moment) / sums[0], sums[3] = peak;
    }

    // Divides a row by its sum, adds it to what keys receive, and writes the maxima of 64 parts of it.
    void divide(Address row, Index vectors, float share, float *added, float *most) {
        Floats largest[BLOCK_VECTORS] = {};
        for (Index n = 0; n < vectors; n += BLOCK_VECTORS)
            for (Index of = 0; of < BLOCK_VECTORS; of++) {
                Index at = (n + of) * VECTOR;
                Floats weight = load<Floats>(row + at) * share;
                store(row + at, weight);
                store((Address)added + at, load<Floats>((Address)added + at) + weight);
                store((Address)most + at, maximum(weight, load<Floats>((Address)most + at)));
                largest[of] = maximum(weight, largest[of]);
            }
        memcpy(lane_maxima, largest, sizeof largest);
    }

    // The largest weights of a row in decreasing order, the first of equal ones first. Of 64 parts of the row, the
    // smallest of the `count` largest maxima is a lower bound of what is looked for.
    void find_strongest(Address row, Index width, float *strongest, Index *keys) {
        for (Index n = 0; n < job.count; n++) strongest[n] = -1;
        if (job.count <= BLOCK) {
            insert(lane_maxima, 0, strongest, keys);
            float least = strongest[job.count - 1];
            float below =
                least > 0 ? __builtin_bit_cast(float, __builtin_bit_cast(int32_t, least) - 1) : -1;  // the next float
            for (Index n = 0; n < job.count; n++) strongest[n] = below;
        }
        for (Index left = 0; left < width; left += BLOCK) insert(row + left * 4, left, strongest, keys);
        for (Index n = 0; n < job.count; n++) strongest[n] = maximum(strongest[n], 0.0f);
    }

    // Inserts those of 64 weights that are larger than the last one of the strongest.
    void insert(Address weights, Index first, float *strongest, Index *keys) {
        Index last = job.count - 1;
        for (Index vector = 0; vector < BLOCK_VECTORS; vector++) {
            Floats row = load<Floats>(weights + vector * VECTOR);
            for (Index bits = larger_lanes(row, strongest[last]); bits; bits &= bits - 1) {
                Index lane = __builtin_ctzll(bits), place = last;
                float weight = row[lane];
                if (!(weight > strongest[last])) continue;
                for (; place > 0 && strongest[place - 1] < weight; place--)
                    strongest[place] = strongest[place - 1], keys[place] = keys[place - 1];
                strongest[place] = weight, keys[place] = first + vector * LANES + lane;
            }
        }
    }

    INLINE Index larger_lanes(Floats x, float least) {
        Ints larger = x > least;
        Index bits = 0;
        for (int lane = 0; lane < LANES; lane++) bits |= Index(larger[lane] & 1) << lane;
        return bits;
    }

    // Adds a run of rows to what keys received, and to its row of bins.
    void add_to_bin(Index bin, Index left, Index right) {
        for (Index key = left; key < right; key++) job.received[key] += received[key];
        float *sums = job.sums + bin * job.bin_columns, *most = job.maxima + bin * job.bin_columns;
        for (Index key = left; key < right;) {
            Index place = (key + job.column_shift) / job.width;
            Index end = minimum(right, (place + 1) * job.width - job.column_shift);
            for (; key < end; key++) {
                sums[place] += received[key];
                most[place] = maximum(most[place], maxima[key]);
            }
        }
    }
};

}  // namespace regard
