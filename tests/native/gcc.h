// What native/ uses of clang and g++ lacks, so that g++'s address sanitizer can check it: included before everything.
#pragma once
#include <type_traits>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if __GNUC__ < 13
using __bf16 = short;
#endif

template <class Vector> static inline Vector __builtin_elementwise_fma(Vector a, Vector b, Vector c) {
    for (unsigned lane = 0; lane < sizeof a / sizeof a[0]; lane++) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
}

// g++'s own conversion knows no bfloat16.
template <class To, class From> static inline To converted(From x) {
#ifdef __AVX512BF16__
    constexpr bool is_float = std::is_same_v<std::remove_reference_t<decltype(x[0])>, float>;
    if constexpr (is_float && sizeof(To) * 2 == sizeof x) return (To)_mm512_cvtneps_pbh((__m512)x);
#endif
    return __builtin_convertvector(x, To);
}
#define __builtin_convertvector(x, To) converted<To>(x)
