// Runs the kernels over invocations that records.py has saved, and compares what they write with what they wrote then.
//
//     driver FILE [TOLERANCE]      0: equal bits; NaN equals NaN
//     driver FILE short|huge       makes a fault that a sanitizer must find: a workspace that lacks a vector, or a stride
//                                  whose multiples no number holds
//
// Each buffer is an allocation of its own and exactly as large as in the record, so that the address sanitizer finds what
// lies beyond it. Buffers that a kernel must not read before it has written them are full of NaN. Each record runs twice:
// its threads one after the other, so that the first does all, and at once.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define REGARD_SOURCES ""
#include "../../native/loops.cpp"

namespace {

enum Kind : int64_t { RAW, FLOAT, BFLOAT, DOUBLE };

struct Header {
    char label[96], kernel[32];
    int64_t threads, bytes, buffers;
};

struct BufferHeader {
    char name[24];
    int64_t field, inside;  // the byte of the record where the address is, and how far behind the first byte that is
    int64_t bytes, kind, is_read, is_changed, is_compared;
    // Its contents before, if they are read, and after, if they are changed, follow.
};

struct Buffer {
    const BufferHeader *header;
    const char *before, *after;
    char *memory;
    int64_t bytes;
};

using Run = void (*)(void *);

struct Kernel {
    const char *name;
    Run run;
    size_t bytes;  // of its record
    bool has_pairs;
};

template <class Record, void (*kernel)(Record *)> void run(void *record) { kernel((Record *)record); }

const Kernel KERNELS[] = {
    {"attend", run<Call, regard_attend>, sizeof(Call), false},
    {"read", run<Call, regard_read>, sizeof(Call), false},
    {"differentiate", run<Call, regard_differentiate>, sizeof(Call), false},
    {"add_parts", run<Call, regard_add_parts>, sizeof(Call), false},
    {"summarize_rows", run<Rows, regard_summarize_rows>, sizeof(Rows), false},
    {"add_products", run<PeakJob, regard_add_products>, sizeof(PeakJob), false},
    {"add_products_of_pairs", run<PeakJob, regard_add_products_of_pairs>, sizeof(PeakJob), true},
};
constexpr int MOST_BUFFERS = 32, MOST_THREADS = 8;

[[noreturn]] void fail(const char *label, const char *reason) {
    printf("%s: %s\n", label, reason);
    exit(1);
}

// The parts of a file of records, in their order.
struct Reader {
    const char *at, *end;

    const char *take(int64_t bytes) {
        if (bytes < 0 || bytes > end - at) fail("the file", "it is too short");
        const char *start = at;
        at += bytes;
        return start;
    }
    template <class T> T number() { return load<T>(take(sizeof(T))); }
};

struct Invocation {
    Header header;
    const Kernel *kernel = nullptr;
    const char *content;
    Buffer buffers[MOST_BUFFERS];
    BufferHeader headers[MOST_BUFFERS];

    explicit Invocation(Reader &file) : header(file.number<Header>()) {
        for (const Kernel &known : KERNELS)
            if (!strcmp(known.name, header.kernel)) kernel = &known;
        if (!kernel || int64_t(kernel->bytes) != header.bytes) fail(header.label, "it is a record of other kernels");
        if (header.buffers > MOST_BUFFERS || header.threads > MOST_THREADS) fail(header.label, "it has too many parts");
        content = file.take(header.bytes);
        for (int64_t n = 0; n < header.buffers; n++) {
            headers[n] = file.number<BufferHeader>();
            const BufferHeader &of = headers[n];
            const char *before = of.is_read ? file.take(of.bytes) : nullptr;
            const char *after = of.is_changed ? file.take(of.bytes) : before;
            buffers[n] = {&of, before, after, nullptr, of.bytes};
        }
    }

    bool is_attention() const { return kernel->bytes == sizeof(Call); }
    bool is_peak() const { return kernel->bytes == sizeof(PeakJob); }
    bool has_pairs() const { return kernel->has_pairs || (is_attention() && load<Call>(content).bf16); }

    // Returns whether all that is compared is equal.
    bool run(bool at_once, double tolerance, const char *fault) {
        char *record = (char *)malloc(header.bytes);
        memcpy(record, content, header.bytes);
        for (int64_t n = 0; n < header.buffers; n++) {
            Buffer &buffer = buffers[n];
            allocate(buffer, at_once, fault);
            store(record + buffer.header->field, buffer.memory + buffer.header->inside);
        }
        if (is_attention() && !strcmp(fault, "huge")) ((Call *)record)->q.row = INT64_MAX;
        if (at_once)
            call_at_once(record);
        else
            call_in_turn(record);
        bool is_equal = true;
        for (int64_t n = 0; n < header.buffers; n++) {
            is_equal = is_equal && (!buffers[n].header->is_compared || compare(buffers[n], tolerance));
            free(buffers[n].memory);
        }
        free(record);
        return is_equal;
    }

    void allocate(Buffer &buffer, bool at_once, const char *fault) {
        buffer.bytes = buffer.header->bytes;
        bool is_workspace = is_attention() && !strcmp(buffer.header->name, "workspace");
        if (is_workspace && !at_once) buffer.bytes /= header.threads;  // one is enough
        if (is_workspace && !strcmp(fault, "short")) buffer.bytes -= VECTOR;
        // Instruction sets with fewer registers have fewer sums of products.
        if (is_peak() && !strcmp(buffer.header->name, "sums")) {
            buffer.bytes = header.threads * ACCUMULATORS * VECTOR;
            if (buffer.bytes > buffer.header->bytes) fail(header.label, "it was recorded with fewer sums");
        }
        buffer.memory = (char *)malloc(buffer.bytes);
        if (buffer.before)
            memcpy(buffer.memory, buffer.before, buffer.bytes);
        else
            memset(buffer.memory, 0xFF, buffer.bytes);
    }

    void call_in_turn(char *record) const {
        for (int64_t thread = 0; thread < header.threads; thread++) {
            if (is_attention()) ((Call *)record)->next_workspace = 0;
            kernel->run(record);
        }
    }

    // The threads wait for one another, lest the first has done all before the next one begins.
    void call_at_once(char *record) const {
        struct Job {
            Run run;
            char *record;
            int64_t waiting;
        } job{kernel->run, record, header.threads};
        auto call = [](void *data) -> void * {
            Job &job = *(Job *)data;
            __atomic_fetch_sub(&job.waiting, 1, __ATOMIC_RELAXED);
            while (__atomic_load_n(&job.waiting, __ATOMIC_RELAXED) > 0) sched_yield();
            job.run(job.record);
            return nullptr;
        };
        pthread_t threads[MOST_THREADS];
        for (int64_t n = 0; n < header.threads; n++)
            if (pthread_create(threads + n, nullptr, call, &job)) fail(header.label, "a thread cannot be started");
        for (int64_t n = 0; n < header.threads; n++) pthread_join(threads[n], nullptr);
    }

    bool compare(const Buffer &buffer, double tolerance) const {
        int64_t kind = buffer.header->kind, step = kind == DOUBLE ? 8 : kind == FLOAT ? 4 : kind == BFLOAT ? 2 : 1;
        for (int64_t at = 0; at < buffer.bytes; at += step) {
            const char *ours = buffer.memory + at, *recorded = buffer.after + at;
            if (!memcmp(ours, recorded, step)) continue;
            double x = number(ours, kind), y = number(recorded, kind), most = tolerance * (1 + __builtin_fabs(y));
            if (kind == BFLOAT && tolerance > 0) most += __builtin_fabs(y) / 128;  // it may be rounded to a neighbour
            if (kind != RAW && ((x != x && y != y) || __builtin_fabs(x - y) <= most)) continue;
            printf("%s: %s: %s, element %lld: %.9g, recorded %.9g\n", header.label, header.kernel, buffer.header->name,
                   (long long)(at / step), x, y);
            return false;
        }
        return true;
    }

    static double number(const char *at, int64_t kind) {
        if (kind == DOUBLE) return load<double>(at);
        if (kind == FLOAT) return load<float>(at);
        if (kind == BFLOAT) return __builtin_bit_cast(float, uint32_t(load<uint16_t>(at)) << 16);
        return *at;
    }
};

char *contents_of(const char *path, int64_t &bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path, "it cannot be read");
    bytes = ftell(file);
    rewind(file);
    char *contents = (char *)malloc(bytes);
    if (!contents || fread(contents, 1, bytes, file) != size_t(bytes)) fail(path, "it cannot be read");
    fclose(file);
    return contents;
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 2) fail("driver FILE [TOLERANCE|short|huge]", "it needs a file of records");
    const char *option = count > 2 ? arguments[2] : "0";
    double tolerance = strtod(option, nullptr);
    int64_t bytes, different = 0, skipped = 0;
    char *contents = contents_of(arguments[1], bytes);
    Reader file{contents, contents + bytes};
    int64_t records = file.number<int64_t>();
    for (int64_t n = 0; n < records; n++) {
        Invocation invocation(file);
        if (invocation.has_pairs() && !HAS_BF16) {
            skipped++;
            continue;
        }
        bool is_equal = invocation.run(false, tolerance, option) && invocation.run(true, tolerance, option);
        different += !is_equal;
    }
    printf("%lld records, each in turn and at once: %lld differ; %lld of pairs of bfloat16 skipped\n",
           (long long)(records - skipped), (long long)different, (long long)skipped);
    free(contents);
    return different != 0;
}
