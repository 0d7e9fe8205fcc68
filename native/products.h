// Products of small matrices, whose sums stay in registers.
//
// Where bf16 is true an element is a pair of bfloat16, and a product adds both of its products to a float.
#pragma once
#include "vectors.h"

namespace regard {

#ifdef __AVX512F__
constexpr Index PANEL = 4;  // vectors of a row of sums that registers hold
#else
constexpr Index PANEL = 1;
#endif
constexpr Index ROWS = 4;  // rows of sums that registers hold
constexpr Index PANEL_BYTES = PANEL * VECTOR;

// c (rows × vectors) = a (rows × depth) · b (depth × vectors), or aᵀ · b if `transposed`; added to c unless c is to be overwritten.
template <bool bf16, bool transposed, int rows, int vectors>
static void product(Address a, Index a_row, Address b, Index b_row, Address c, Index c_row, Index depth,
                    bool overwrite) {
    Floats sums[rows][vectors];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) sums[r][n] = overwrite ? Floats{} : load<Floats>(c + r * c_row + n * VECTOR);
    for (Index e = 0; e < depth; e++) {
        Floats right[vectors];
        for (int n = 0; n < vectors; n++) right[n] = load<Floats>(b + e * b_row + n * VECTOR);
        for (int r = 0; r < rows; r++) {
            Floats left = broadcast(load<float>(transposed ? a + e * a_row + r * 4 : a + r * a_row + e * 4));
            for (int n = 0; n < vectors; n++) sums[r][n] = add_product<bf16>(sums[r][n], left, right[n]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) store(c + r * c_row + n * VECTOR, sums[r][n]);
}

// The same for 1 … PANEL vectors.
template <bool bf16, bool transposed, int rows>
INLINE void product(Address a, Index a_row, Address b, Index b_row, Address c, Index c_row, Index depth, Index vectors,
                    bool overwrite) {
    if constexpr (PANEL == 1) return product<bf16, transposed, rows, 1>(a, a_row, b, b_row, c, c_row, depth, overwrite);
    switch (vectors) {
        case 1: return product<bf16, transposed, rows, 1>(a, a_row, b, b_row, c, c_row, depth, overwrite);
        case 2: return product<bf16, transposed, rows, 2>(a, a_row, b, b_row, c, c_row, depth, overwrite);
        case 3: return product<bf16, transposed, rows, 3>(a, a_row, b, b_row, c, c_row, depth, overwrite);
        default: return product<bf16, transposed, rows, 4>(a, a_row, b, b_row, c, c_row, depth, overwrite);
    }
}

// c (rows × vectors) = a (rows × depth) · b (depth × vectors), for any number of rows and 1 … PANEL vectors.
template <bool bf16>
INLINE void multiply(Address a, Index a_row, Address b, Index b_row, Address c, Index c_row, Index rows, Index depth,
                     Index vectors, bool overwrite) {
    for (Index r = 0; r < rows; r += ROWS) {
        Address x = a + r * a_row, y = c + r * c_row;
        switch (rows - r) {
            case 1: product<bf16, false, 1>(x, a_row, b, b_row, y, c_row, depth, vectors, overwrite); break;
            case 2: product<bf16, false, 2>(x, a_row, b, b_row, y, c_row, depth, vectors, overwrite); break;
            case 3: product<bf16, false, 3>(x, a_row, b, b_row, y, c_row, depth, vectors, overwrite); break;
            default: product<bf16, false, ROWS>(x, a_row, b, b_row, y, c_row, depth, vectors, overwrite);
        }
    }
}

// c (rows × keys) = a (rows × vectors) · b (keys × vectors)ᵀ: sixteen scores have a vector of sums each, whose elements are
// added up in the end. `keys` is a multiple of 16; a width known to the compiler is unrolled.
template <bool bf16, int rows, int known_vectors>
static void dot_products(Address a, Address b, Index b_row, Address c, Index c_row, Index keys, Index width) {
    constexpr int step = LANES / rows;  // keys of one vector of results
    const Index vectors = known_vectors ? known_vectors : width;
    for (Index first = 0; first < keys; first += step) {
        Floats sums[LANES] = {};
        for (int four = 0; four < step; four += 4)
            for (Index n = 0; n < vectors; n++)
                for (int key = four; key < four + 4; key++) {
                    Floats right = load<Floats>(b + (first + key) * b_row + n * VECTOR);
                    for (int r = 0; r < rows; r++) {
                        Floats left = load<Floats>(a + (r * vectors + n) * VECTOR);
                        sums[r * step + key] = add_product<bf16>(sums[r * step + key], left, right);
                    }
                }
        Floats scores = sums_of(sums);
        for (int r = 0; r < rows; r++) memcpy(c + r * c_row + first * 4, (Address)&scores + r * step * 4, step * 4);
    }
}

template <bool bf16, int rows>
INLINE void dot_products(Address a, Address b, Index b_row, Address c, Index c_row, Index keys, Index width) {
    switch (width) {
        case 2: return dot_products<bf16, rows, 2>(a, b, b_row, c, c_row, keys, width);
        case 4: return dot_products<bf16, rows, 4>(a, b, b_row, c, c_row, keys, width);
        case 8: return dot_products<bf16, rows, 8>(a, b, b_row, c, c_row, keys, width);
        default: return dot_products<bf16, rows, 0>(a, b, b_row, c, c_row, keys, width);
    }
}

// The same for any number of rows, whose vectors follow one another.
template <bool bf16>
INLINE void dot_products(Address a, Address b, Index b_row, Address c, Index c_row, Index rows, Index keys,
                         Index width) {
    for (Index r = 0, step; r < rows; r += step) {
        Address x = a + r * width * VECTOR, y = c + r * c_row;
        step = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
        if (step == 4) dot_products<bf16, 4>(x, b, b_row, y, c_row, keys, width);
        if (step == 2) dot_products<bf16, 2>(x, b, b_row, y, c_row, keys, width);
        if (step == 1) dot_products<bf16, 1>(x, b, b_row, y, c_row, keys, width);
    }
}

}  // namespace regard
