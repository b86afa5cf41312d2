// Random numbers, tensors of them in every element type, and the command line of tests that compare with loops in double precision.
#ifndef RANDOM_H
#define RANDOM_H

#include <math.h>
#include <stdarg.h>

#include "../examples/memory.h"

enum { MOST_SEQUENCES = 3, MOST_BLOCKS = 2 };

static uint64_t state;

static inline unsigned draw(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % below);
}

static inline float draw_float(void) { return (float)draw(1 << 16) / (1 << 15) - 1; }

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// To the nearest, ties to even. No number here is too large for half precision.
static inline uint16_t to_f16(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits < 0x38800000) return (uint16_t)(sign | (bits_of(float_of(bits) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}

static inline float from_f16(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, magnitude = value & 0x7fff;
    float wide = magnitude < 0x400 ? (float)magnitude / (1 << 24) : float_of((magnitude << 13) + 0x38000000);
    return float_of(bits_of(wide) | sign);
}

static inline uint16_t to_bf16(float value) {
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// 4 bits of exponent and 3 of fraction.
static inline float from_e4m3(uint8_t value) {
    int exponent = value >> 3 & 15, fraction = value & 7;
    float size = exponent ? ldexpf(8 + (float)fraction, exponent - 10) : ldexpf((float)fraction, -9);
    return value & 0x80 ? -size : size;
}

// One of the nearest numbers.
static inline uint8_t to_e4m3(float value) {
    uint8_t best = 0;
    for (int i = 0; i < 0x7f; i++) {
        if (fabsf(from_e4m3((uint8_t)i) - fabsf(value)) < fabsf(from_e4m3(best) - fabsf(value))) best = (uint8_t)i;
    }
    return value < 0 ? best | 0x80 : best;
}

static inline size_t size_of(uint32_t element) { return element == WARPTILE_F32 ? 4 : element == WARPTILE_E4M3 ? 1 : 2; }

static inline void put(void *to, uint32_t element, int64_t at, float value) {
    if (element == WARPTILE_F32) ((float *)to)[at] = value;
    else if (element == WARPTILE_E4M3) ((uint8_t *)to)[at] = to_e4m3(value);
    else ((uint16_t *)to)[at] = element == WARPTILE_F16 ? to_f16(value) : to_bf16(value);
}

static inline float get(const void *from, uint32_t element, int64_t at) {
    if (element == WARPTILE_F32) return ((const float *)from)[at];
    if (element == WARPTILE_E4M3) return from_e4m3(((const uint8_t *)from)[at]);
    uint16_t value = ((const uint16_t *)from)[at];
    return element == WARPTILE_F16 ? from_f16(value) : float_of((uint32_t)value << 16);
}

// A tensor on the host with a copy where the calls are computed.
typedef struct {
    warptile_layout layout;
    uint32_t element;
    int64_t reach;
    void *host, *memory;
} tensor;

static inline int64_t offset(const tensor *tensor, int64_t b, int64_t i, int64_t h, int64_t d) {
    const int64_t *s = tensor->layout.strides;
    return b * s[0] + i * s[1] + h * s[2] + d * s[3];
}

static inline float at(const tensor *tensor, int64_t b, int64_t i, int64_t h, int64_t d) {
    return get(tensor->host, tensor->element, offset(tensor, b, i, h, d));
}

// Random values, in one of two orders, with or without gaps. Strides are multiples of 16 bytes unless the problem is unaligned.
static inline tensor make(uint32_t element, int64_t batch, int64_t rows, int64_t heads, int64_t size, int step) {
    tensor made = {{{batch, rows, heads, size}, {0, 0, 0, 1}}, element, 0, NULL, NULL};
    int64_t *s = made.layout.strides, gap = draw(2) ? step : 0;
    if (draw(2)) {
        s[2] = size + gap;
        s[1] = heads * s[2] + gap;
        s[0] = rows * s[1];
    } else {
        s[1] = size + gap;
        s[2] = rows * s[1] + gap;
        s[0] = heads * s[2];
    }
    made.reach = batch * s[0] + 1;
    made.host = malloc((size_t)made.reach * size_of(element));
    if (!made.host) fail("malloc", "out of memory");
    for (int64_t i = 0; i < made.reach; i++) put(made.host, element, i, draw_float());
    made.memory = uploaded(made.host, (size_t)made.reach * size_of(element));
    return made;
}

static inline void drop(tensor *tensor) {
    free(tensor->host);
    if (tensor->memory) release(tensor->memory);
}

static inline void wrong(uint64_t seed, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "problem %llu: ", (unsigned long long)seed);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

// Runs the problems that the command line asks for; fails if the device has a kernel for less than half of them.
static inline int run_all(const char *name, int (*run)(uint64_t), int argc, char **argv) {
    int first = 1, computed = 0;
    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        open_device(atoi(argv[2]));
        first = 3;
    }
    int problems = argc > first ? atoi(argv[first]) : 200, from = argc > first + 1 ? atoi(argv[first + 1]) : 0;
    for (int seed = from; seed < from + problems; seed++) computed += run((uint64_t)seed);
    printf("%s: %d problems, %d without a kernel\n", name, computed, problems - computed);
    return computed * 2 < problems;
}

// A mask and a scale, with the fields that belong to them and no others.
static inline void draw_mask_and_scale(warptile_attention_desc *desc) {
    desc->mask = draw(3);
    // Without a mask it hides nothing.
    desc->diagonal = draw(3);
    if (desc->diagonal == WARPTILE_DIAGONAL_AT) desc->diagonal_offset = (int)draw(120) - 60;
    if (desc->mask == WARPTILE_MASK_WINDOW) {
        desc->window_left = (int64_t)draw(50) - 1;
        desc->window_right = (int64_t)draw(20) - 1;
    }
    desc->scale_given = draw(2);
    if (desc->scale_given) desc->scale = 0.3f * draw_float();
}

// A list of blocks of 64 keys for each query head and each of its blocks of 64 queries.
typedef struct {
    int rows, indices;
    int32_t offsets[6 * MOST_BLOCKS + 1], blocks[6 * MOST_BLOCKS * MOST_BLOCKS];
    uint8_t listed[6 * MOST_BLOCKS][MOST_BLOCKS];
} block_lists;

// For every fourth problem: `block_queries` tells.
static inline void draw_lists(block_lists *lists, warptile_attention_desc *desc, int64_t heads, int64_t queries, int64_t keys) {
    int columns = (int)(keys + 63) / 64;
    memset(lists, 0, sizeof *lists);
    lists->rows = (int)(queries + 63) / 64;
    if (lists->rows > MOST_BLOCKS || columns > MOST_BLOCKS) fail("lists of blocks", "MOST_BLOCKS is too small");
    if (draw(4) != 0) return;
    for (int row = 0; row < heads * lists->rows; row++) {
        for (int block = 0; block < columns; block++)
            if ((lists->listed[row][block] = draw(3) != 0)) lists->blocks[lists->indices++] = block;
        lists->offsets[row + 1] = lists->indices;
    }
    // Without a bound lists would need rows for a sequence of all packed queries.
    if (desc->packed_queries) desc->longest_query = queries;
    desc->block_queries = desc->block_keys = 64;
    desc->blocks_per_head = 1;
    desc->block_offset_count = heads * lists->rows + 1;
    desc->block_index_count = lists->indices;
}

static inline int is_listed(const block_lists *lists, int64_t head, int64_t query, int64_t key) {
    return lists->listed[head * lists->rows + query / 64][key / 64];
}

static inline void give_lists(warptile_attention_memory *memory, const block_lists *lists, const warptile_attention_desc *desc) {
    if (!desc->block_queries) return;
    memory->block_offsets = (int32_t *)uploaded(lists->offsets, sizeof lists->offsets);
    memory->block_indices = (int32_t *)uploaded(lists->blocks, sizeof lists->blocks);
}

#endif
