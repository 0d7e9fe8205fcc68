// Which instruction sets this processor and its system have: compiled for every processor of the platform.
#include <stdint.h>

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Bits of the answer, by the names of library.py.
enum : int64_t { V3 = 1, V4 = 2, BF16 = 4, AMX = 8 };

#ifdef __x86_64__
#include <cpuid.h>

namespace {

struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
    Leaf(unsigned leaf, unsigned part) { __get_cpuid_count(leaf, part, &a, &b, &c, &d); }
};

bool has(unsigned register_, unsigned bits) { return (register_ & bits) == bits; }

// The registers that the system saves when it switches threads.
unsigned saved_registers() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

}  // namespace

EXPORT int64_t regard_instruction_sets() {
    constexpr unsigned YMM = 0x6, ZMM = 0xE6;
    Leaf basic(1, 0), extended(7, 0), more(7, 1), amd(0x80000001, 0);
    int64_t sets = 0;
    if (!has(basic.c, bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C)) return sets;
    if (!has(extended.b, bit_AVX2 | bit_BMI | bit_BMI2) || !has(amd.c, bit_LZCNT)) return sets;
    if (!has(saved_registers(), YMM)) return sets;
    sets |= V3;
    constexpr unsigned AVX512 = bit_AVX512F | bit_AVX512CD | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (!has(extended.b, AVX512) || !has(saved_registers(), ZMM)) return sets;
    sets |= V4;
    if (has(more.a, 1u << 5)) sets |= BF16;      // AVX512_BF16
    if (has(extended.d, 1u << 24)) sets |= AMX;  // AMX-TILE
    return sets;
}
#else
EXPORT int64_t regard_instruction_sets() { return 0; }
#endif

EXPORT const char *regard_sources() { return REGARD_SOURCES; }
