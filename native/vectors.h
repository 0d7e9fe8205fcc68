// Sixteen floats at a time, in as many registers as the processor needs for them. Addresses and strides are in bytes.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define SHUFFLE __builtin_shufflevector

namespace regard {

using Index = int64_t;
using Address = char *;

constexpr Index LANES = 16, VECTOR = 64;  // floats, and bytes, of a vector
constexpr Index HALF = VECTOR / 2;        // bytes of a vector of bfloat16
constexpr float INFINITE = __builtin_inff();
constexpr float LOG2_E = 1.4426950408889634f;

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Words = uint32_t __attribute__((vector_size(64)));
using BFloats = __bf16 __attribute__((vector_size(32)));
using Shorts = int16_t __attribute__((vector_size(32)));
using Bytes = uint8_t __attribute__((vector_size(16)));

template <class T> INLINE T load(const void *from) {
    T x;
    memcpy(&x, from, sizeof x);
    return x;
}
template <class T> INLINE void store(void *to, T x) { memcpy(to, &x, sizeof x); }

INLINE Floats broadcast(float x) {
    Floats v{x};
    return SHUFFLE(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}
INLINE Ints broadcast(int32_t x) { return Ints{} + x; }
INLINE Words broadcast(uint32_t x) { return Words{} + x; }
INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return __builtin_elementwise_fma(a, b, c); }
INLINE Floats maximum(Floats a, Floats b) { return a > b ? a : b; }  // b where either is NaN
INLINE float maximum(float a, float b) { return a > b ? a : b; }
INLINE Index minimum(Index a, Index b) { return a < b ? a : b; }
INLINE Index maximum(Index a, Index b) { return a > b ? a : b; }
INLINE Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

// sum + a · b, of floats, or of pairs of bfloat16 that lie in place of each float.
template <bool bf16> INLINE Floats add_product(Floats sum, Floats a, Floats b) {
#ifdef __AVX512BF16__
    if constexpr (bf16) return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    return multiply_add(a, b, sum);
}

// 2ˣ, exact but for the last bit (Cephes, exp2f); 0 where that is not a normal number, NaN for NaN. x must be below 127.5.
INLINE Floats exp2(Floats x) {
    constexpr float SHIFT = 0x1.8p23f;  // added to a float below 2²², it leaves the nearest integer in the lowest bits
    Floats whole = x + SHIFT, rest = x - (whole - SHIFT), series = broadcast(1.535336188319500e-4f);
    constexpr float COEFFICIENTS[] = {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f,
                                      2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f};
    for (float coefficient : COEFFICIENTS) series = multiply_add(series, rest, broadcast(coefficient));
    Words exponent = ((Words)whole << 23) + (127u << 23);
    return x < -126.0f ? Floats{} : series * (Floats)exponent;
}

// eˣ, for x below 88; its error grows with |x|, of which the multiplication rounds the last bits away.
INLINE Floats exp(Floats x) { return exp2(x * LOG2_E); }

// 1 / (1 + e⁻ˣ), exactly 0 for −∞; NaN stays.
INLINE Floats sigmoid(Floats x) {
    Floats below = x < 0.0f ? x : -x, power = exp(below);
    return (x < 0.0f ? power : broadcast(1.0f)) / (power + 1.0f);
}

// tanh x = x + x³ · a polynomial of x² near 0 (Cephes, tanhf), 1 − 2 / (e²ˣ + 1) beyond; NaN stays.
INLINE Floats tanh(Floats x) {
    x = x > 30.0f ? broadcast(30.0f) : x;
    x = x < -30.0f ? broadcast(-30.0f) : x;
    Floats square = x * x, series = broadcast(-5.70498872745e-3f);
    constexpr float COEFFICIENTS[] = {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
    for (float coefficient : COEFFICIENTS) series = multiply_add(series, square, broadcast(coefficient));
    Floats near = multiply_add(series * square, x, x), far = 1.0f - 2.0f / (exp2(x * (2 * LOG2_E)) + 1.0f);
    return square < 0.625f * 0.625f ? near : far;
}

INLINE float sum_of(Floats x) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

INLINE float largest_of(Floats x) {
    float most = -INFINITE;
    for (int lane = 0; lane < LANES; lane++) most = maximum(x[lane], most);
    return most;
}

// The sums of sixteen vectors as one vector: neighbouring elements are added while two vectors become one, four times.
INLINE Floats sums_of(Floats *x) {
    for (int count = 8; count > 2; count /= 2)
        for (int n = 0; n < count; n++) {
            Floats a = x[2 * n], b = x[2 * n + 1];
            x[n] = SHUFFLE(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
                   SHUFFLE(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
        }
    for (int count = 2; count > 0; count /= 2)
        for (int n = 0; n < count; n++) {
            Floats a = x[2 * n], b = x[2 * n + 1];
            x[n] = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                   SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        }
    return x[0];
}

// Writes the elements of two rows of bfloat16 in turn, as products of pairs need them.
INLINE void interleave(Address even, Address odd, Address into, Index vectors) {
    for (Index n = 0; n < vectors; n++) {
        Shorts a = load<Shorts>(even + n * HALF), b = load<Shorts>(odd + n * HALF);
        store(into + n * VECTOR, SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,  //
                                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
    }
}

INLINE void add(Address into, Address from, Index floats) {
    Index n = 0;
    for (; n + LANES <= floats; n += LANES)
        store(into + n * 4, load<Floats>(into + n * 4) + load<Floats>(from + n * 4));
    for (; n < floats; n++) store(into + n * 4, load<float>(into + n * 4) + load<float>(from + n * 4));
}

}  // namespace regard
