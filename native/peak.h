// The most that a core can do: fused multiply–adds in registers, for `regard bench`. A thread stores what it has added
// up, which depends on what it was given, so that no instruction can be left out and the sums can be checked.
#pragma once
#include "products.h"

namespace regard {

// Sums that are added to in turn: more than an instruction's cycles times those that begin in one cycle, and no more than
// there are registers for (32 of AVX-512, 16 of AVX2, 32 of NEON; a vector here is 1, 2, 4 of them).
#ifdef __AVX512F__
constexpr Index ACCUMULATORS = 12;
#else
constexpr Index ACCUMULATORS = 6;
#endif

struct PeakJob {
    Index next_thread, times;
    Address factors;  // two vectors
    Address sums;     // (threads, ACCUMULATORS) vectors
};

template <bool bf16> static void add_products(PeakJob &job) {
    Address own = job.sums + __atomic_fetch_add(&job.next_thread, 1, __ATOMIC_RELAXED) * ACCUMULATORS * VECTOR;
    Floats a = load<Floats>(job.factors), b = load<Floats>(job.factors + VECTOR), sums[ACCUMULATORS];
    memcpy(sums, own, sizeof sums);
    for (Index n = 0; n < job.times; n++)
        for (Index of = 0; of < ACCUMULATORS; of++) sums[of] = add_product<bf16>(sums[of], a, b);
    memcpy(own, sums, sizeof sums);
}

}  // namespace regard
