// A prompt, then steps of decoding with a cache of pages: on the CPU, or with `--device 0` on a GPU. Fails if a result differs from that
// of a plain loop in double precision.
#include <math.h>

#include "memory.h"

enum { HEADS = 8, KV_HEADS = 2, HEAD_SIZE = 64, PROMPT = 50, STEPS = 6, PAGE_ROWS = 16, PAGES = 9, COLUMNS = 4 };

// bfloat16: the upper half of a float.
static float widened(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Numbers from -1 to 1 that bfloat16 has exactly: 64ths.
static void fill(uint16_t *values, size_t count) {
    static uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        float value = (float)((int)((state = state * 1664525u + 1013904223u) >> 25) - 64) / 64;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
}

// The largest difference of `out` from attention of `queries` rows to the `keys` keys, of which the last is aligned with the last query.
// All tensors are [length, heads, head size].
static double compare(const uint16_t *out, const uint16_t *q, const uint16_t *k, const uint16_t *v, int queries, int keys) {
    double worst = 0, *weights = malloc(sizeof(double) * (size_t)keys);
    if (!weights) fail("malloc", "out of memory");
    for (int i = 0; i < queries; i++) {
        for (int h = 0; h < HEADS; h++) {
            int kv = h / (HEADS / KV_HEADS), seen = i + keys - queries + 1;
            double sum = 0;
            for (int j = 0; j < seen; j++) {
                double dot = 0;
                for (int d = 0; d < HEAD_SIZE; d++) {
                    dot += (double)widened(q[(i * HEADS + h) * HEAD_SIZE + d]) * widened(k[(j * KV_HEADS + kv) * HEAD_SIZE + d]);
                }
                weights[j] = exp(dot / sqrt(HEAD_SIZE));
                sum += weights[j];
            }
            for (int d = 0; d < HEAD_SIZE; d++) {
                double expected = 0, difference;
                for (int j = 0; j < seen; j++) expected += weights[j] / sum * widened(v[(j * KV_HEADS + kv) * HEAD_SIZE + d]);
                difference = fabs(widened(out[(i * HEADS + h) * HEAD_SIZE + d]) - expected);
                // Not a number is no result.
                worst = difference >= worst || isnan(difference) ? difference : worst;
            }
        }
    }
    free(weights);
    return worst;
}

static void report(const char *what, double difference) {
    printf("%-24s largest difference from float64 %.1e\n", what, difference);
    if (!(difference < 5e-3)) fail(what, "the result is wrong");
}

static warptile_layout layout(int64_t batch, int64_t length, int64_t heads) {
    warptile_layout dense = {{batch, length, heads, HEAD_SIZE}, {0, 0, 0, 0}};
    return dense;
}

// Device memory that launches need beside their tensors, with zeros.
static void add_workspace(const warptile_attention *attention, warptile_attention_memory *memory) {
    memory->workspace_bytes = warptile_attention_workspace(attention);
    memory->workspace = allocate(memory->workspace_bytes);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--device") == 0) {
        open_device(atoi(argv[2]));
    } else if (argc != 1) {
        fprintf(stderr, "usage: %s [--device NUMBER]\n", argv[0]);
        return 2;
    }
    printf("warptile %s on %s\n", warptile_version(), memory_device == WARPTILE_CPU ? "the CPU" : "a GPU");

    enum { ROW = HEADS * HEAD_SIZE, KV_ROW = KV_HEADS * HEAD_SIZE, LENGTH = PROMPT + STEPS };
    static uint16_t q[LENGTH * ROW], k[LENGTH * KV_ROW], v[LENGTH * KV_ROW], out[LENGTH * ROW];
    fill(q, LENGTH * ROW);
    fill(k, LENGTH * KV_ROW);
    fill(v, LENGTH * KV_ROW);
    void *q_memory = uploaded(q, sizeof q), *out_memory = allocate(sizeof out);
    void *k_memory = uploaded(k, sizeof k), *v_memory = uploaded(v, sizeof v);

    // The prompt. What is not set is zero, which is the default.
    warptile_attention_desc prompt = {0};
    prompt.size = sizeof prompt;
    prompt.element = WARPTILE_BF16;
    prompt.mask = WARPTILE_MASK_CAUSAL;
    prompt.q = layout(1, PROMPT, HEADS);
    prompt.k = prompt.v = layout(1, PROMPT, KV_HEADS);

    char text[4000];
    check(warptile_explain(memory_device, NULL, &prompt, text, sizeof text, NULL), "warptile_explain");
    printf("%.*s\n", (int)strcspn(text, "\n"), text);

    warptile_attention *attention;
    check(warptile_attention_prepare(memory_device, &prompt, &attention), "warptile_attention_prepare");
    warptile_attention_memory memory = {0};
    memory.size = sizeof memory;
    memory.q = q_memory;
    memory.k = k_memory;
    memory.v = v_memory;
    memory.out = out_memory;
    add_workspace(attention, &memory);
    check(warptile_attention_run(attention, &memory, NULL), "warptile_attention_run");
    download(out, out_memory, sizeof *out * PROMPT * ROW);
    report("prompt of 50 rows", compare(out, q, k, v, PROMPT, PROMPT));
    release(memory.workspace);
    warptile_attention_free(attention);

    // A cache of pages, with those of our sequence in any order, and what says how many rows it has.
    void *k_pages = allocate(sizeof *k * PAGES * PAGE_ROWS * KV_ROW);
    void *v_pages = allocate(sizeof *k * PAGES * PAGE_ROWS * KV_ROW);
    const int32_t table[COLUMNS] = {7, 0, 4, 2}, before = 0;
    void *table_memory = uploaded(table, sizeof table), *lengths = uploaded(&before, sizeof before);

    warptile_append_desc writing = {0};
    writing.size = sizeof writing;
    writing.element = WARPTILE_BF16;
    writing.k = writing.v = layout(1, PROMPT, KV_HEADS);
    writing.k_pages = writing.v_pages = layout(PAGES, PAGE_ROWS, KV_HEADS);
    writing.table_columns = COLUMNS;
    warptile_append *append;
    check(warptile_append_prepare(memory_device, &writing, &append), "warptile_append_prepare");
    warptile_append_memory rows = {0};
    rows.size = sizeof rows;
    rows.k = k_memory;
    rows.v = v_memory;
    rows.k_pages = k_pages;
    rows.v_pages = v_pages;
    rows.block_table = table_memory;
    rows.key_lengths = lengths;
    check(warptile_append_run(append, &rows, NULL), "warptile_append_run");
    warptile_append_free(append);

    // Steps of one row each. Handles are prepared once: only addresses, and numbers in memory, change from step to step.
    writing.k = writing.v = layout(1, 1, KV_HEADS);
    check(warptile_append_prepare(memory_device, &writing, &append), "warptile_append_prepare");
    warptile_attention_desc step = {0};
    step.size = sizeof step;
    step.element = WARPTILE_BF16;
    step.mask = WARPTILE_MASK_CAUSAL;
    step.q = layout(1, 1, HEADS);
    step.k = step.v = layout(PAGES, PAGE_ROWS, KV_HEADS);
    step.table_columns = COLUMNS;
    step.key_lengths = 1;
    check(warptile_attention_prepare(memory_device, &step, &attention), "warptile_attention_prepare");
    memory = (warptile_attention_memory){0};
    memory.size = sizeof memory;
    memory.k = k_pages;
    memory.v = v_pages;
    memory.block_table = table_memory;
    memory.key_lengths = lengths;
    add_workspace(attention, &memory);
    for (int at = PROMPT; at < LENGTH; at++) {
        int32_t length = at;
        upload(lengths, &length, sizeof length);
        rows.k = (uint16_t *)k_memory + at * KV_ROW;
        rows.v = (uint16_t *)v_memory + at * KV_ROW;
        check(warptile_append_run(append, &rows, NULL), "warptile_append_run");
        length = at + 1;
        upload(lengths, &length, sizeof length);
        memory.q = (uint16_t *)q_memory + at * ROW;
        memory.out = (uint16_t *)out_memory + at * ROW;
        check(warptile_attention_run(attention, &memory, NULL), "warptile_attention_run");
    }
    download(out, out_memory, sizeof out);
    report("steps with pages", compare(out + PROMPT * ROW, q + PROMPT * ROW, k, v, STEPS, LENGTH));
    warptile_attention_free(attention);
    warptile_append_free(append);

    // What is wrong is said in words.
    step.q.shape[3] = 59;
    int status = warptile_attention_prepare(memory_device, &step, &attention);
    printf("a head size of 59: %s\n", warptile_last_error());
    void *all[] = {q_memory, out_memory, k_memory, v_memory, k_pages, v_pages, table_memory, lengths, memory.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
    return status == WARPTILE_INVALID ? 0 : 1;
}
