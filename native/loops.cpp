// Attention on a CPU, as one library for each instruction set.
//
// Plan. A tile is 64 queries of one head; it meets keys in blocks of 64, those that its mask leaves. Scores of a tile
// with up to eight blocks (of the backward: with one) are held in the core's second cache, 64 rows × 512 floats:
//
//     pack      a block of keys is written in columns, so that a product reads vectors of 16 keys     tiles.h
//     score     tile · block, 4 rows × 4 vectors of sums in registers                                 products.h
//     weigh     a row of scores: cap, bias, mask, e^(s − peak), dropout                               tiles.h
//     add       weights · values, added to the tile's sums                                            products.h
//     finish    sums / total, and the peak and total                                                   tiles.h
//
// A mask of a block has strips of 16 rows, of which each is computed from the first to the last strip of keys it sees. bfloat16 is
// multiplied in pairs, an instruction that adds two products to a float, where the processor has it.
//
// `prefill.h` is this for many queries; `decode.h` for few, which read keys where they are; `backward.h` the gradients;
// `statistics.h` what regard.watch keeps of weights; `peak.h` the machine's limit. `call.h` is the record that Python
// fills. The functions that take a Call are called by all threads of a region with the same record: they take tasks by
// its counter, in their order, until there are none, so that a thread waits for no task that nobody has begun. Nothing
// is allocated or thrown, and nothing is called but memcpy, memset and expf.
#include "backward.h"
#include "decode.h"
#include "peak.h"
#include "prefill.h"
#include "statistics.h"

using namespace regard;

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

#ifdef __AVX512BF16__
constexpr bool HAS_BF16 = true;
#else
constexpr bool HAS_BF16 = false;
#endif

EXPORT void regard_attend(Call *call) { call->bf16 ? attend_all<HAS_BF16>(*call) : attend_all<false>(*call); }
EXPORT void regard_read(Call *call) { call->bf16 ? read_all<HAS_BF16>(*call) : read_all<false>(*call); }
EXPORT void regard_differentiate(Call *call) { differentiate_all(*call); }
EXPORT void regard_add_parts(Call *call) { add_all_parts(*call); }
EXPORT void regard_summarize_rows(Rows *rows) { RowStatistics(*rows).sweep(); }
EXPORT void regard_add_products(PeakJob *job) { add_products<false>(*job); }
EXPORT void regard_add_products_of_pairs(PeakJob *job) { add_products<HAS_BF16>(*job); }

// What Python asks before the first call: whether its records are these, and what the loops can do.
EXPORT const char *regard_sources() { return REGARD_SOURCES; }
EXPORT int64_t regard_call_bytes() { return sizeof(Call); }
EXPORT int64_t regard_rows_bytes() { return sizeof(Rows); }
EXPORT int64_t regard_has_bf16() { return HAS_BF16; }
EXPORT int64_t regard_accumulators() { return ACCUMULATORS; }
