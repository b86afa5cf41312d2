// On a GPU: captures of a step of decoding, replayed with other lengths and values; one handle on several threads; memory of the host. Results
// are compared with those of the CPU, which `numeric` compares with float64. `gpu [DEVICE]`
#include <math.h>
#include <pthread.h>

#include "../examples/memory.h"

enum { SEQUENCES = 3, HEADS = 8, KV_HEADS = 2, SIZE = 128, ROWS = 16, COLUMNS = 40, PAGES = SEQUENCES * COLUMNS };
enum { Q = SEQUENCES * HEADS * SIZE, CACHE = PAGES * ROWS * KV_HEADS * SIZE };

static uint16_t q[Q], k[CACHE], v[CACHE];
static int32_t table[PAGES];

static void fill(uint16_t *values, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        float value = (float)((int)((seed = seed * 1664525u + 1013904223u) >> 25) - 64) / 64;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
}

static float widened(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static warptile_attention_desc step(uint32_t unchecked) {
    warptile_attention_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = WARPTILE_BF16;
    desc.mask = WARPTILE_MASK_CAUSAL;
    desc.q = (warptile_layout){{SEQUENCES, 1, HEADS, SIZE}, {0, 0, 0, 0}};
    desc.k = desc.v = (warptile_layout){{PAGES, ROWS, KV_HEADS, SIZE}, {0, 0, 0, 0}};
    desc.table_columns = COLUMNS;
    desc.key_lengths = 1;
    desc.unchecked = unchecked;
    return desc;
}

static void compare(const char *what, const uint16_t *found, const int32_t *lengths) {
    static uint16_t expected[Q];
    warptile_attention_desc desc = step(0);
    warptile_attention *attention;
    warptile_attention_memory memory = {0};
    check(warptile_attention_prepare(WARPTILE_CPU, &desc, &attention), "on the CPU");
    memory.size = sizeof memory;
    memory.q = q;
    memory.k = k;
    memory.v = v;
    memory.out = expected;
    memory.block_table = table;
    memory.key_lengths = lengths;
    check(warptile_attention_run(attention, &memory, NULL), "on the CPU");
    warptile_attention_free(attention);
    for (int i = 0; i < Q; i++) {
        if (!(fabsf(widened(found[i]) - widened(expected[i])) <= 1e-2f)) fail(what, "another result than the CPU's");
    }
}

typedef struct {
    warptile_attention *attention;
    warptile_attention_memory memory;
    void *stream;
} launch;

static launch prepare(int device, uint32_t unchecked) {
    warptile_attention_desc desc = step(unchecked);
    launch made;
    check(warptile_attention_prepare(device, &desc, &made.attention), "prepare");
    made.memory = (warptile_attention_memory){0};
    made.memory.size = sizeof made.memory;
    made.memory.q = uploaded(q, sizeof q);
    made.memory.k = uploaded(k, sizeof k);
    made.memory.v = uploaded(v, sizeof v);
    made.memory.out = allocate(sizeof q);
    made.memory.block_table = (int32_t *)uploaded(table, sizeof table);
    made.memory.key_lengths = (int32_t *)allocate(SEQUENCES * 4);
    made.memory.workspace_bytes = warptile_attention_workspace(made.attention);
    made.memory.workspace = allocate(made.memory.workspace_bytes);
    check_cuda(cuda.cuStreamCreateWithPriority(&made.stream, 1, 0), "cuStreamCreateWithPriority");
    return made;
}

static void captured(int device) {
    static const int32_t lengths[][SEQUENCES] = {{1, 2, 3}, {17, 0, 640}, {600, 333, 48}};
    static uint16_t out[Q];
    for (int mode = 0; mode < 3; mode++) {
        for (uint32_t unchecked = 0; unchecked < 2; unchecked++) {
            launch launch = prepare(device, unchecked);
            void *graph, *executable;
            check_cuda(cuda.cuStreamBeginCapture_v2(launch.stream, mode), "cuStreamBeginCapture");
            check(warptile_attention_run(launch.attention, &launch.memory, launch.stream), "run in a capture");
            check_cuda(cuda.cuStreamEndCapture(launch.stream, &graph), "cuStreamEndCapture");
            check_cuda(cuda.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
            warptile_attention_free(launch.attention);
            for (int i = 0; i < 3; i++) {
                fill(q, Q, (uint32_t)i + 7);
                upload((void *)(uintptr_t)launch.memory.q, q, sizeof q);
                upload((void *)(uintptr_t)launch.memory.key_lengths, lengths[i], sizeof lengths[i]);
                // Copies from pageable memory go by the default stream, which ours does not wait for.
                check_cuda(cuda.cuStreamSynchronize(NULL), "cuStreamSynchronize");
                check_cuda(cuda.cuGraphLaunch(executable, launch.stream), "cuGraphLaunch");
                check_cuda(cuda.cuStreamSynchronize(launch.stream), "cuStreamSynchronize");
                download(out, launch.memory.out, sizeof out);
                compare("a replay", out, lengths[i]);
            }
            check_cuda(cuda.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
            check_cuda(cuda.cuGraphDestroy(graph), "cuGraphDestroy");
        }
    }
}

// One handle on several threads, each with a stream, a workspace and an output of its own.
static launch shared;

static void *in_thread(void *argument) {
    static const int32_t lengths[SEQUENCES] = {640, 1, 100};
    uint16_t *out = malloc(sizeof q);
    launch own = shared;
    void *context = argument;
    if (!out) fail("malloc", "out of memory");
    check_cuda(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    own.memory.out = allocate(sizeof q);
    own.memory.key_lengths = (int32_t *)uploaded(lengths, sizeof lengths);
    own.memory.workspace = allocate(own.memory.workspace_bytes);
    check_cuda(cuda.cuStreamSynchronize(NULL), "cuStreamSynchronize");
    check_cuda(cuda.cuStreamCreateWithPriority(&own.stream, 1, 0), "cuStreamCreateWithPriority");
    // The library makes the context current itself.
    check_cuda(cuda.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    for (int i = 0; i < 100; i++) check(warptile_attention_run(own.attention, &own.memory, own.stream), "run in a thread");
    check_cuda(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check_cuda(cuda.cuStreamSynchronize(own.stream), "cuStreamSynchronize");
    download(out, own.memory.out, sizeof q);
    return out;
}

int main(int argc, char **argv) {
    int device = argc > 1 ? atoi(argv[1]) : 0;
    void *context;
    open_device(device);
    check_cuda(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    fill(q, Q, 1);
    fill(k, CACHE, 2);
    fill(v, CACHE, 3);
    for (int i = 0; i < PAGES; i++) table[i] = PAGES - 1 - i;
    captured(device);

    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    static const int32_t lengths[SEQUENCES] = {640, 1, 100};
    shared = prepare(device, 0);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, in_thread, context)) fail("pthread_create", "no thread");
    }
    for (int i = 0; i < THREADS; i++) {
        void *out;
        pthread_join(threads[i], &out);
        compare("a thread", out, lengths);
        free(out);
    }

    // Memory of the host: an error here, and a lost context if it were not looked at.
    launch wrong = shared;
    wrong.memory.k = k;
    int status = warptile_attention_run(wrong.attention, &wrong.memory, wrong.stream);
    if (status != WARPTILE_INVALID) fail("memory of the host", "was taken: does this GPU read all of it?");
    printf("gpu: ok\n");
    return 0;
}
