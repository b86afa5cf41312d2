// Wrong inputs: each is a code and a text that names the argument and the rule.
#include <math.h>
#include <stdbool.h>

#include "expect.h"

// Two sequences of 3 queries and 5 keys, 2 heads of 8.
static float q[96], k[160], v[160], out[128], lse[12];
static int32_t list[4] = {0, 1, 2, 3};

static warptile_attention_desc good(void) {
    warptile_attention_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = WARPTILE_F32;
    desc.q = (warptile_layout){{2, 3, 2, 8}, {0, 0, 0, 0}};
    desc.k = desc.v = (warptile_layout){{2, 5, 2, 8}, {0, 0, 0, 0}};
    return desc;
}

static warptile_attention_memory good_memory(void) {
    warptile_attention_memory memory = {0};
    memory.size = sizeof memory;
    memory.q = q;
    memory.k = k;
    memory.v = v;
    memory.out = out;
    return memory;
}

static int prepare(warptile_attention_desc desc) {
    warptile_attention *attention = NULL;
    int status = warptile_attention_prepare(WARPTILE_CPU, &desc, &attention);
    // Nothing was written after an error.
    if ((status == WARPTILE_OK) != (attention != NULL)) fail("prepare", "a handle after an error, or none");
    warptile_attention_free(attention);
    return status;
}

static int run_on(warptile_attention_desc desc, warptile_attention_memory memory, void *stream) {
    warptile_attention *attention;
    check(warptile_attention_prepare(WARPTILE_CPU, &desc, &attention), "prepare");
    int status = warptile_attention_run(attention, &memory, stream);
    warptile_attention_free(attention);
    return status;
}

static int run(warptile_attention_desc desc, warptile_attention_memory memory) { return run_on(desc, memory, NULL); }

// With a change to the good description, or to it and the good memory.
#define DESC(...) ({ warptile_attention_desc d = good(); __VA_ARGS__; prepare(d); })
#define RUN(...) \
    ({ warptile_attention_desc d = good(); warptile_attention_memory m = good_memory(); __VA_ARGS__; run(d, m); })

static void descriptions(void) {
    WORKS(DESC());
    INVALID(warptile_attention_prepare(WARPTILE_CPU, NULL, &(warptile_attention *){NULL}), "desc is null");
    INVALID(warptile_attention_prepare(WARPTILE_CPU, &(warptile_attention_desc){0}, NULL), "attention is null");
    INVALID(warptile_attention_prepare(-5, &(warptile_attention_desc){.size = 8}, &(warptile_attention *){NULL}), "desc has size 8");
    warptile_attention_desc desc = good();
    INVALID(warptile_attention_prepare(-5, &desc, &(warptile_attention *){NULL}), "device is -5");
    INVALID(warptile_attention_prepare(-2, &desc, &(warptile_attention *){NULL}), "device is -2");
    _Alignas(8) char odd[sizeof desc + 4];
    memcpy(odd + 4, &desc, sizeof desc);
    warptile_attention *none = NULL;
    INVALID(warptile_attention_prepare(WARPTILE_CPU, (warptile_attention_desc *)(void *)(odd + 4), &none), "desc is 0x");

    INVALID(DESC(d.element = 0), "element is 0");
    INVALID(DESC(d.element = 77), "element is 77");
    INVALID(DESC(d.mask = 3), "mask is 3");
    INVALID(DESC(d.diagonal = 3), "diagonal is 3");
    INVALID(DESC(d.alibi = 3), "alibi is 3");
    INVALID(DESC(d.sinks = 2), "sinks is 2, but must be 0 or 1");
    INVALID(DESC(d.dropout = 1), "dropout is 1, but must be a probability from 0 to below 1");
    INVALID(DESC(d.dropout = 1.25), "dropout is 1.25, but must be a probability from 0 to below 1");
    INVALID(DESC(d.dropout = -1e-300), "dropout is -0.000");
    INVALID(DESC(d.dropout = NAN), "dropout is NaN");
    WORKS(DESC(d.dropout = 0.5));
    // Above 1 - 2^-25, and so 1 as a float.
    WORKS(DESC(d.dropout = 0.99999999));
    INVALID(RUN(d.dropout = 0.5), "dropout_state is null");
    INVALID(RUN(m.dropout_state = (int32_t[8]){0}), "dropout_state is given, but");
    WORKS(RUN(d.dropout = 0.5; m.dropout_state = (int32_t[8]){1, 2, 3}));
    INVALID(RUN(d.dropout = 0.5; m.dropout_state = (int32_t[8]){0, 0, 0, 0, 0, 0, 0, 8}), "dropout_state[7] is 8");
    INVALID(DESC(d.block_queries = d.block_keys = 3), "blocks is 3x3, but must be 64 or 128 queries and 64 or 128 keys a block");
    INVALID(DESC(d.block_keys = 64), "block_queries is 0, but other fields of lists of blocks are given");
    INVALID(DESC(d.block_index_count = -1), "block_index_count is -1");
#define LISTED(...) RUN(d.block_queries = d.block_keys = 64; d.block_offset_count = 2; d.block_index_count = 1; __VA_ARGS__)
    INVALID(LISTED(), "block_offsets is null");
    INVALID(LISTED(m.block_offsets = list), "block_indices is null");
    INVALID(LISTED(m.block_offsets = list; m.block_indices = list + 1), "block_indices[0] is 1");
    INVALID(LISTED(m.block_offsets = list + 1; m.block_indices = list), "block_offsets[1] is 2 after 1");
    WORKS(LISTED(m.block_offsets = list; m.block_indices = list));
    INVALID(RUN(m.block_offsets = list), "block_offsets is given, but");
    INVALID(DESC(d.bias_element = WARPTILE_F16), "bias_element is 1, but must be 0, for that of the other tensors, or WARPTILE_F32");
    INVALID(DESC(d.bias_element = WARPTILE_F32), "bias_element is given, but bias is not");
    INVALID(DESC(d.reserved = 1), "reserved must be 0");
    INVALID(DESC(d.cache_element = 1), "cache_element is 1, but must be 0");
    INVALID(DESC(d.v_scales = 1), "v_scales is given, but cache_element is not WARPTILE_E4M3");
    INVALID(DESC(d.cache_element = WARPTILE_E4M3; d.k_scales = 3), "k_scale has 3 numbers; it needs 1, or one for each of the 2");
    INVALID(DESC(d.element = WARPTILE_E4M3), "element is 4, but must be WARPTILE_F16 or WARPTILE_BF16 or WARPTILE_F32");
    WORKS(DESC(d.cache_element = WARPTILE_E4M3; d.v_scales = 2));
    INVALID(DESC(d.q.shape[1] = -3), "q.shape[1] is -3, but must be 0 or more");
    INVALID(DESC(d.k.strides[0] = -80; d.k.strides[3] = 1), "k.strides[0] is -80, but must be 0 or more");
    INVALID(DESC(d.q.strides[0] = 96; d.q.strides[1] = 32; d.q.strides[2] = 16; d.q.strides[3] = 2), "q has stride 2 in its last dimension");
    INVALID(DESC(d.q.shape[3] = d.k.shape[3] = d.v.shape[3] = 59), "q has head size 59");
    INVALID(DESC(d.q.shape[3] = d.k.shape[3] = d.v.shape[3] = 520), "q has head size 520");
    INVALID(DESC(d.q.shape[2] = 3), "q has 3 heads and k has 2");
    INVALID(DESC(d.k.shape[2] = 0), "q has 2 heads and k has 0");
    INVALID(DESC(d.v.shape[1] = 4), "v has length 4, but k has 5");
    INVALID(DESC(d.k.shape[0] = d.v.shape[0] = 1), "k has batch 1, but q has 2");
    INVALID(DESC(d.q.shape[1] = INT64_MAX), "q has length 9223372036854775807; the limit is 1073741824");
    INVALID(DESC(d.q.shape[0] = 1 << 30; d.q.shape[1] = 1 << 30; d.q.shape[2] = 1 << 30), "q has a shape and strides that reach beyond");
    INVALID(DESC(d.q.strides[0] = INT64_MAX; d.q.strides[3] = 1), "q has a shape and strides that reach beyond");
    INVALID(DESC(d.out = (warptile_layout){{2, 3, 2, 8}, {0, 16, 8, 1}}), "out overlaps itself");
    INVALID(DESC(d.out.shape[0] = 1), "out has batch 1, but q has 2");
    INVALID(DESC(d.scale_given = 1; d.scale = NAN), "scale is NaN");
    INVALID(DESC(d.scale = 0.5f), "scale is given, but scale_given is 0");
    INVALID(DESC(d.softcap = -1), "softcap is -1");
    INVALID(DESC(d.softcap = INFINITY), "softcap is inf");
    INVALID(DESC(d.mask = WARPTILE_MASK_WINDOW; d.window_left = INT64_MAX), "window_left is 9223372036854775807");
    INVALID(DESC(d.mask = WARPTILE_MASK_CAUSAL; d.window_left = 2), "window_left is given, but mask is not WARPTILE_MASK_WINDOW");
    INVALID(DESC(d.window_right = 2), "window_right is given, but mask is not WARPTILE_MASK_WINDOW");
    WORKS(DESC(d.mask = WARPTILE_MASK_CAUSAL; d.window_left = d.window_right = -1));
    WORKS(DESC(d.diagonal = WARPTILE_DIAGONAL_TOP_LEFT));
    WORKS(DESC(d.diagonal = WARPTILE_DIAGONAL_AT; d.diagonal_offset = -2));
    INVALID(DESC(d.mask = WARPTILE_MASK_CAUSAL; d.diagonal_offset = 2), "diagonal_offset is given, but diagonal is not WARPTILE_DIAGONAL_AT");
    INVALID(DESC(d.split_keys = 100), "splits are every 100 keys");
    INVALID(DESC(d.bias = (warptile_layout){{2, 3, 1, 4}, {0, 0, 0, 0}}), "bias has keys 4, but the call has 5");
    INVALID(DESC(d.packed_queries = 1; d.sequences = 2), "q has batch 2, but a packed tensor has 1");
    INVALID(DESC(d.sequences = 3), "sequences is 3, but q has batch 2");
    INVALID(DESC(d.sequences = -1), "sequences is -1");
    INVALID(DESC(d.longest_query = 2), "longest_query is given, but packed_queries is 0");
    INVALID(DESC(d.longest_key = 2), "longest_key is given, but");
    INVALID(DESC(d.table_stride = 2), "table_stride is given, but table_columns is 0");
    INVALID(DESC(d.table_columns = 2; d.packed_keys = 1), "key_offsets is given, but keys in pages are not packed");
    INVALID(DESC(d.table_columns = INT64_MAX), "block_table has");
    INVALID(DESC(d.table_columns = 2; d.k.shape[1] = d.v.shape[1] = 257), "k has pages of 257 rows");
    INVALID(DESC(d.kernel = "wmma"), "kernel is \"wmma\", but the tensors are on the CPU");
    INVALID(DESC(d.kernel = "\xff"), "kernel is not UTF-8");
    INVALID(DESC(d.kernel = ""), "kernel is empty");
    WORKS(DESC(d.kernel = "cpu"));
    WORKS(DESC(d.q.shape[0] = d.k.shape[0] = d.v.shape[0] = 0));
}

static void versions(void) {
    // A program of an older version has a shorter struct, and anything may follow it.
    struct {
        warptile_attention_desc desc;
        uint64_t more[2];
    } newer = {good(), {0, 0}};
    WORKS(warptile_attention_prepare(WARPTILE_CPU, &newer.desc, &(warptile_attention *){NULL}) == WARPTILE_OK ? 0 : 1);
    warptile_attention_desc older = good();
    older.size = offsetof(warptile_attention_desc, cache_element);
    older.cache_element = 7;
    WORKS(prepare(older));
    older.size = offsetof(warptile_attention_desc, out);
    older.mask = WARPTILE_MASK_CAUSAL;
    older.alibi = 99;
    WORKS(prepare(older));
    older.size--;
    INVALID(prepare(older), "desc has size");
    older.size = 0;
    INVALID(prepare(older), "desc has size 0");
    // One of a newer version has a longer one: that is right as long as it sets nothing that we do not know.
    warptile_attention *attention = NULL;
    newer.desc.size = sizeof newer;
    WORKS(warptile_attention_prepare(WARPTILE_CPU, &newer.desc, &attention));
    warptile_attention_free(attention);
    newer.more[1] = 1;
    INVALID(warptile_attention_prepare(WARPTILE_CPU, &newer.desc, &attention), "desc is ");
    warptile_attention_memory memory = good_memory();
    memory.size = offsetof(warptile_attention_memory, lse);
    memory.sinks = (float *)1;
    WORKS(run(good(), memory));
    memory.size = 16;
    INVALID(run(good(), memory), "memory has size 16");
}

static void memories(void) {
    WORKS(RUN());
    INVALID(warptile_attention_run(NULL, &(warptile_attention_memory){0}, NULL), "attention is null");
    INVALID(RUN(m.q = NULL), "q is null");
    INVALID(RUN(m.out = NULL), "out is null");
    INVALID(RUN(m.k = (char *)k + 2), "k is 0x");
    INVALID(RUN(m.out = (char *)out + 1), "out is 0x");
    INVALID(RUN(m.lse = lse), "lse is given, but the call was built without it");
    INVALID(RUN(d.want_lse = 1), "lse is null");
    INVALID(RUN(d.want_lse = 1; m.lse = out + 8), "out shares memory with lse");
    INVALID(RUN(m.out = q), "out shares memory with q");
    INVALID(RUN(m.out = (void *)(k + 64)), "out shares memory with k");
    INVALID(RUN(m.sinks = q), "sinks is given, but");
    INVALID(RUN(d.sinks = 1), "sinks is null");
    INVALID(RUN(d.sinks = 1; m.sinks = &(float[]){0, NAN}[0]), "sinks[1] is NaN");
    INVALID(RUN(d.alibi = 1), "alibi_slopes is null");
    INVALID(RUN(m.bias = q), "bias is given, but");
    INVALID(RUN(m.key_mask = (uint8_t *)q), "key_mask is given, but");
    INVALID(RUN(m.key_lengths = list), "key_lengths is given, but");
    INVALID(RUN(d.key_lengths = 1), "key_lengths is null");
    INVALID(RUN(d.key_lengths = 1; m.key_lengths = (int32_t *)((char *)list + 2)), "key_lengths is 0x");
    INVALID(RUN(d.key_lengths = 1; m.key_lengths = (int32_t[]){5, 6}), "key_lengths[1] is 6, but sequence 1 has 5 rows");
    INVALID(RUN(d.query_lengths = 1; m.query_lengths = (int32_t[]){-1, 2}), "query_lengths[0] is -1");
    INVALID(RUN(m.workspace = out), "workspace is given, but the CPU needs none");
    INVALID(run_on(good(), good_memory(), out), "stream is given, but");
    // The queries of both sequences one after the other.
    INVALID(RUN(d.packed_queries = 1; d.sequences = 2; d.q.shape[0] = 1; m.query_offsets = (int32_t[]){0, 3, 2}), "query_offsets[2] is 2");
    INVALID(RUN(d.packed_queries = 1; d.sequences = 2; d.q.shape[0] = 1; m.query_offsets = (int32_t[]){1, 2, 3}), "query_offsets[0] is 1");
    INVALID(RUN(d.packed_queries = 1; d.sequences = 2; d.q.shape[0] = 1; m.query_offsets = (int32_t[]){0, 2, 9}), "query_offsets[2] is 9");
    WORKS(RUN(d.packed_queries = 1; d.sequences = 2; d.q.shape[0] = 1; m.query_offsets = (int32_t[]){0, 0, 3}));
    // Bounds hold.
#define PACKED d.packed_queries = 1, d.sequences = 2, d.q.shape[0] = 1, m.query_offsets = (int32_t[]){0, 1, 3}
    INVALID(RUN(PACKED; d.longest_query = 1), "longest_query is 1, but sequence 1 has 2 queries");
    WORKS(RUN(PACKED; d.longest_query = 2));
    WORKS(RUN(PACKED; d.longest_query = 1; d.query_lengths = 1; m.query_lengths = (int32_t[]){1, 1}));
    INVALID(RUN(d.key_lengths = 1; m.key_lengths = (int32_t[]){3, 2}; d.longest_key = 2), "longest_key is 2, but sequence 0 has 3 keys");
    WORKS(RUN(d.key_lengths = 1; m.key_lengths = (int32_t[]){3, 2}; d.longest_key = 3));
    INVALID(RUN(d.packed_keys = 1; d.k.shape[0] = d.v.shape[0] = 1; m.key_offsets = (int32_t[]){0, 1, 5}; d.longest_key = 3),
            "longest_key is 3, but sequence 1 has 4 keys");
    WORKS(RUN(d.packed_keys = 1; d.k.shape[0] = d.v.shape[0] = 1; m.key_offsets = (int32_t[]){0, 1, 5}; d.longest_key = 4));
    // Scales are read while the output is written.
#define E4M3_KEYS d.cache_element = WARPTILE_E4M3, m.k_scale = m.v_scale = (float[]){1}
    WORKS(RUN(E4M3_KEYS));
    INVALID(RUN(E4M3_KEYS; out[5] = 1; m.k_scale = out + 5), "out shares memory with k_scale");
    INVALID(RUN(E4M3_KEYS; out[5] = 1; m.v_scale = out + 5), "out shares memory with v_scale");
    INVALID(RUN(E4M3_KEYS; d.want_lse = 1; m.lse = lse; lse[2] = 1; m.v_scale = lse + 2), "lse shares memory with v_scale");
    INVALID(RUN(d.table_columns = 1; m.block_table = (int32_t[]){1, 2}), "block_table[1] is 2, but k has 2 pages");
    INVALID(RUN(d.table_columns = 1; m.block_table = (int32_t[]){-1, 0}), "block_table[0] is -1");
    // Nothing lies in an empty tensor.
    WORKS(RUN(d.q.shape[0] = d.k.shape[0] = d.v.shape[0] = 0; m.q = m.k = m.v = m.out = NULL));
    WORKS(RUN(d.q.shape[1] = 0; m.q = m.out = NULL));
    WORKS(RUN(d.q.shape[0] = 0; d.table_columns = 2; m.q = m.out = NULL));
    WORKS(RUN(d.q.shape[0] = 0; d.table_columns = 2; d.table_stride = 3; m.q = m.out = NULL));
}

static void explanations(void) {
    warptile_attention_desc desc = good();
    char text[8] = "???????";
    size_t needed = 0;
    WORKS(warptile_explain(WARPTILE_CPU, NULL, &desc, NULL, 0, &needed));
    WORKS(warptile_explain(WARPTILE_CPU, "h200", &desc, text, 5, NULL));
    if (needed < 20 || memcmp(text, "prob\0?", 6) != 0) fail("warptile_explain", "wrong text or size");
    INVALID(warptile_explain(WARPTILE_CPU, NULL, &desc, NULL, 5, NULL), "text is null");
    INVALID(warptile_explain(-3, NULL, &desc, text, 5, NULL), "device is -3");
    INVALID(warptile_explain(0, "h20", &desc, text, 5, NULL), "unknown GPU \"h20\"; did you mean h200");
    desc.kernel = "decode_d64";
    INVALID(warptile_explain(WARPTILE_CPU, "h200", &desc, text, 5, NULL), "unknown kernel \"decode_d64\"; did you mean");
    desc.kernel = "wgmma";
    expect(__LINE__, warptile_explain(WARPTILE_CPU, "h200", &desc, text, 5, NULL), WARPTILE_NO_KERNEL, "no kernel for f32");
    desc.kernel = "wmma";
    INVALID(warptile_explain(WARPTILE_CPU, NULL, &desc, text, 5, NULL), "kernel is \"wmma\", but the tensors are on the CPU");

    // Planning takes no memory for each sequence.
    desc = good();
    desc.q.shape[0] = desc.k.shape[0] = desc.v.shape[0] = 1;
    desc.packed_queries = desc.packed_keys = 1;
    desc.sequences = 1 << 29;
    WORKS(warptile_explain(WARPTILE_CPU, "h200", &desc, text, 5, NULL));
    WORKS(prepare(desc));
    desc.sequences = INT64_MAX;
    INVALID(warptile_explain(WARPTILE_CPU, "h200", &desc, text, 5, NULL), "q has batch 9223372036854775807");
    INVALID(prepare(desc), "q has batch 9223372036854775807");
}

static void appends(void) {
    static float pages[256], new_rows[32];
    warptile_append_desc desc = {0}, d;
    desc.size = sizeof desc;
    desc.element = WARPTILE_F32;
    desc.k = desc.v = (warptile_layout){{1, 2, 2, 8}, {0, 0, 0, 0}};
    desc.k_pages = (warptile_layout){{1, 8, 2, 8}, {0, 0, 0, 0}};
    desc.v_pages = desc.k_pages;
    warptile_append_memory memory = {0}, m;
    memory.size = sizeof memory;
    memory.k = memory.v = new_rows;
    memory.k_pages = pages;
    memory.v_pages = pages + 128;
    memory.key_lengths = list;
#define APPEND(...)                                                                             \
    ({                                                                                          \
        warptile_append *append = NULL;                                                         \
        d = desc, m = memory;                                                                   \
        __VA_ARGS__;                                                                           \
        int status = warptile_append_prepare(WARPTILE_CPU, &d, &append);                        \
        if (status == WARPTILE_OK) status = warptile_append_run(append, &m, NULL);              \
        warptile_append_free(append);                                                           \
        status;                                                                                 \
    })
    WORKS(APPEND());
    INVALID(warptile_append_prepare(WARPTILE_CPU, NULL, &(warptile_append *){NULL}), "desc is null");
    INVALID(warptile_append_run(NULL, &memory, NULL), "append is null");
    INVALID(APPEND(d.rotary = 3), "rotary is 3");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 16), "the rotary size is 16");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 7), "the rotary size is 7");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = UINT32_MAX; d.rotary_frequencies = (double[]){1}), "the rotary size is 4294967295");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 2; d.rotary_frequencies = (double[]){NAN}), "rotary frequency is NaN");
    INVALID(APPEND(d.rotary_size = 8), "rotary_size is given, but rotary is WARPTILE_ROTARY_NONE");
    INVALID(APPEND(d.tables = WARPTILE_F32), "tables is given, but rotary is WARPTILE_ROTARY_NONE");
    INVALID(APPEND(d.table_positions = 4), "table_positions is given, but rotary is WARPTILE_ROTARY_NONE");
    INVALID(APPEND(d.rotary_base = 5e5), "rotary_base is given, but rotary is WARPTILE_ROTARY_NONE");
    WORKS(APPEND(d.rotary_base = 1e4));
    INVALID(APPEND(d.rotary_base = NAN), "rotary_base is given, but rotary is WARPTILE_ROTARY_NONE");
    INVALID(APPEND(d.rotary_frequencies = (double[]){1}), "rotary_frequencies is given, but rotary is WARPTILE_ROTARY_NONE");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 8; d.table_positions = 4), "table_positions is given, but tables is 0");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 8; d.table_stride = 4), "table_stride is given, but tables is 0");
#define TABLES d.rotary = 1, d.rotary_size = 8, d.tables = WARPTILE_F32, d.table_positions = 4
    INVALID(APPEND(TABLES; d.rotary_base = 5e5), "rotary_base is given, but tables are, too");
    INVALID(APPEND(TABLES; d.rotary_frequencies = (double[]){1}), "rotary_frequencies is given, but tables are, too");
#define FREQUENCIES d.rotary = 1, d.rotary_size = 2, d.rotary_frequencies = (double[]){1}
    WORKS(APPEND(FREQUENCIES; d.rotary_base = 1e4));
    INVALID(APPEND(FREQUENCIES; d.rotary_base = 5e5), "rotary_base is given, but rotary_frequencies are, too");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 8; d.tables = 9), "tables is 9");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 8; d.tables = WARPTILE_F16; d.table_positions = 4), "cos has elements of type f16");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 8; d.tables = WARPTILE_F32; d.table_positions = 4), "cos is null");
    INVALID(APPEND(d.rotary = 1; d.rotary_size = 8; d.tables = WARPTILE_F32; d.table_positions = 1), "key_lengths[0] is 0, and 2 rows follow");
    INVALID(APPEND(m.cos = pages), "cos is given, but");
    INVALID(APPEND(d.positions = 3), "positions is 3");
    INVALID(APPEND(d.positions = WARPTILE_POSITIONS_I64), "rotary is missing");
    INVALID(APPEND(d.q_out = desc.k), "q_out is given, but q is not");
    INVALID(APPEND(m.q = pages), "q is given, but");
    INVALID(APPEND(d.slots = 1), "slots is null");
    INVALID(APPEND(d.slots = 1; m.slots = (int64_t[]){0, 1}), "key_lengths is given, but");
    WORKS(APPEND(d.slots = 1; m.slots = (int64_t[]){-1, INT64_MAX}; m.key_lengths = NULL));
    INVALID(APPEND(m.key_lengths = (int32_t[]){7}), "key_lengths[0] is 7, and 2 rows follow, but there is room for 8");
    INVALID(APPEND(d.table_columns = 1), "block_table is null");
    INVALID(APPEND(d.longest = 1), "longest is given, but packed is 0");
#define ROWS d.packed = 1, d.sequences = 2, d.table_columns = 1, m.row_offsets = (int32_t[]){0, 0, 2}, m.block_table = (int32_t[]){-1, 0}
    INVALID(APPEND(ROWS; d.longest = 1), "longest is 1, but sequence 1 has 2 new rows");
    WORKS(APPEND(ROWS; d.longest = 2));
    WORKS(APPEND(ROWS; d.longest = 1; d.row_lengths = 1; m.row_lengths = (int32_t[]){0, 1}));
    INVALID(APPEND(m.v_pages = pages), "k_pages overlaps v_pages");
    INVALID(APPEND(d.v_pages.shape[0] = 2), "v_pages has pages 2, but k_pages has 1");
    INVALID(APPEND(m.k_pages = pages + 8; m.v_pages = pages), "v_pages shares memory with k_pages, but does not come after it");
    INVALID(APPEND(m.k = pages + 100), "k_pages shares memory with k");
    INVALID(APPEND(m.k_pages = NULL), "k_pages is null");
    // A cache in e4m3: what it holds is the nearest to 3 / 2, and to 3 / 0.001 at most 448.
    static uint8_t small[256];
    static const float k_scale[] = {2}, v_scale[] = {2, 0.001f};
    for (int i = 0; i < 32; i++) new_rows[i] = 3;
#define E4M3 d.cache_element = WARPTILE_E4M3, d.v_scales = 2, m.k_pages = small, m.v_pages = small + 128, m.k_scale = k_scale, m.v_scale = v_scale
    WORKS(APPEND(E4M3));
    if (small[0] != 0x3c || small[31] != 0x3c || small[32] != 0 || small[128] != 0x3c || small[136] != 0x7e || small[127] != 0) {
        fail("append", "wrong numbers in a cache in e4m3");
    }
    INVALID(APPEND(E4M3; m.v_scale = NULL), "v_scale is null");
    static float in_cache[64] = {1, 1};
    INVALID(APPEND(E4M3; m.k_pages = (uint8_t *)in_cache; m.k_scale = in_cache), "k_pages shares memory with k_scale");
    INVALID(APPEND(E4M3; m.v_pages = (uint8_t *)in_cache; m.v_scale = in_cache), "v_pages shares memory with v_scale");
    if (in_cache[0] != 1 || in_cache[1] != 1) fail("append", "a scale was overwritten");
    INVALID(APPEND(E4M3; m.k_scale = (float[]){0}), "k_scale[0] is 0, but must be a finite number above 0");
    INVALID(APPEND(m.k_scale = k_scale), "k_scale is given, but");
    INVALID(APPEND(d.k_scales = 1), "k_scales is given, but cache_element is not WARPTILE_E4M3");
    // Keys and values of each head side by side.
    warptile_layout pairs = {{1, 8, 2, 8}, {256, 32, 16, 1}};
    WORKS(APPEND(d.k_pages = d.v_pages = pairs; m.v_pages = pages + 8));
    INVALID(APPEND(d.k_pages = d.v_pages = pairs; m.v_pages = pages + 4), "k_pages overlaps v_pages");
}

static void merges(void) {
    static float a[96], b[96], lse_a[12], lse_b[12];
    const warptile_layout layouts[2] = {{{2, 3, 2, 8}, {0, 0, 0, 0}}, {{2, 3, 2, 8}, {0, 0, 0, 0}}};
    warptile_merge_desc desc = {0}, d;
    desc.size = sizeof desc;
    desc.element = WARPTILE_F32;
    desc.parts = 2;
    desc.part_layouts = layouts;
    desc.want_lse = 1;
    warptile_merge_part parts[2] = {{a, lse_a}, {b, lse_b}};
    warptile_merge_memory memory = {0}, m;
    memory.size = sizeof memory;
    memory.parts = parts;
    memory.out = out;
    memory.lse = lse;
#define MERGE(...)                                                                        \
    ({                                                                                    \
        warptile_merge *merge = NULL;                                                     \
        d = desc, m = memory;                                                             \
        __VA_ARGS__;                                                                     \
        int status = warptile_merge_prepare(WARPTILE_CPU, &d, &merge);                    \
        if (status == WARPTILE_OK) status = warptile_merge_run(merge, &m, NULL);          \
        warptile_merge_free(merge);                                                       \
        status;                                                                           \
    })
    for (int i = 0; i < 96; i++) a[i] = 1, b[i] = 3;
    // Shares of 1 and 3 quarters.
    for (int i = 0; i < 12; i++) lse_b[i] = logf(3);
    WORKS(MERGE());
    for (int i = 0; i < 96; i++) {
        if (fabsf(out[i] - 2.5f) > 1e-6f || fabsf(lse[i / 8] - logf(4)) > 1e-6f) fail("merge", "wrong result");
    }
    for (int i = 0; i < 12; i++) lse_b[i] = -INFINITY;
    WORKS(MERGE(d.base_two = 1));
    if (out[95] != 1 || lse[11] != 0) fail("merge", "a part without keys counts");
    INVALID(MERGE(d.parts = 0), "parts is 0, but must be 1 to 32");
    INVALID(MERGE(d.parts = 33), "parts is 33, but must be 1 to 32");
    INVALID(MERGE(d.part_layouts = NULL), "part_layouts is null");
    INVALID(MERGE(d.part_layouts = (warptile_layout[]){{{2, 3, 2, 8}, {0}}, {{2, 3, 1, 8}, {0}}}), "parts[1].out has heads 1");
    INVALID(MERGE(d.part_layouts = (warptile_layout[]){{{2, 3, 2, 8}, {0}}, {{2, 3, 2, -8}, {0}}}), "part_layouts[1].shape[3] is -8");
    INVALID(MERGE(m.parts = NULL), "parts is null");
    INVALID(MERGE(m.parts = (warptile_merge_part[]){{a, lse_a}, {NULL, lse_b}}), "parts[1].out is null");
    INVALID(MERGE(m.parts = (warptile_merge_part[]){{a, lse_a}, {out, lse_b}}), "out shares memory with parts[1].out");
    INVALID(MERGE(m.lse = NULL), "lse is null");
    INVALID(MERGE(d.want_lse = 0), "lse is given, but want_lse is 0");
    INVALID(warptile_merge_run(NULL, &memory, NULL), "merge is null");
}

// What a run of gradients with a change to the good descriptions and memory gives. Nothing is written after an error.
#define BACKWARD(...) \
    ({ \
        warptile_attention_desc d = good(); \
        warptile_attention_memory m = good_memory(); \
        warptile_backward_desc b = {.size = sizeof b, .attention = &d, .want_dq = 1}; \
        warptile_backward_memory n = {.size = sizeof n, .attention = &m, .d_out = d_out, .dq = gradient}; \
        warptile_backward *backward = NULL; \
        m.lse = lse; \
        __VA_ARGS__; \
        int status = warptile_backward_prepare(WARPTILE_CPU, &b, &backward); \
        if (status == WARPTILE_OK) status = warptile_backward_run(backward, &n, NULL); \
        warptile_backward_free(backward); \
        status; \
    })

static void gradients(void) {
    static float d_out[96], gradient[160];
    WORKS(BACKWARD());
    INVALID(warptile_backward_prepare(WARPTILE_CPU, NULL, &(warptile_backward *){NULL}), "desc is null");
    INVALID(warptile_backward_prepare(WARPTILE_CPU, &(warptile_backward_desc){0}, NULL), "backward is null");
    INVALID(warptile_backward_run(NULL, NULL, NULL), "backward is null");
    INVALID(BACKWARD(b.size = 8), "desc has size 8");
    INVALID(BACKWARD(b.attention = NULL), "attention is null");
    INVALID(BACKWARD(d.mask = 7), "mask is 7");
    INVALID(BACKWARD(b.want_dq = 0), "desc asks for no gradient");
    INVALID(BACKWARD(b.want_dk = 2), "want_dk is 2, but must be 0 or 1");
    INVALID(BACKWARD(b.want_d_sinks = 1), "d_sinks is wanted");
    INVALID(BACKWARD(b.want_d_bias = 1), "d_bias is wanted");
    INVALID(BACKWARD(b.reserved = 1), "reserved must be 0");
    INVALID(BACKWARD(b.dk = d.k), "dk is given, but want_dk is 0");
    INVALID(BACKWARD(b.dq = d.k), "dq has length 5, but q has 3");
    INVALID(BACKWARD(b.d_out = d.k), "d_out has length 5, but out has 3");
    INVALID(BACKWARD(b.gradient_element = WARPTILE_F16), "gradient_element is 1, but must be 0");
    INVALID(BACKWARD(d.table_columns = 1), "block_table is given");
    INVALID(BACKWARD(b.kernel = "mma"), "kernel is");
    INVALID(BACKWARD(n.size = 8), "memory has size 8");
    INVALID(BACKWARD(n.attention = NULL), "attention is null");
    INVALID(BACKWARD(n.d_out = NULL), "d_out is null");
    INVALID(BACKWARD(n.dq = NULL), "dq is null");
    INVALID(BACKWARD(n.dk = gradient), "dk is given");
    INVALID(BACKWARD(n.d_lse = lse), "d_lse is given");
    INVALID(BACKWARD(b.d_lse = 1), "d_lse is null");
    INVALID(BACKWARD(m.lse = NULL), "lse is null");
    INVALID(BACKWARD(m.out = NULL), "out is null");
    INVALID(BACKWARD(n.dq = (char *)gradient + 1), "dq is ");
    INVALID(BACKWARD(n.dq = d_out), "dq shares memory with d_out");
    INVALID(BACKWARD(n.workspace_bytes = 1), "workspace is given, but the CPU needs none");
}

int main(void) {
    if (warptile_last_error()[0]) fail("warptile_last_error", "a text before any error");
    for (int i = 0; i < 96; i++) q[i] = (float)i / 96;
    descriptions();
    gradients();
    versions();
    memories();
    explanations();
    appends();
    merges();
    INVALID(warptile_device_count(NULL), "count is null");
    warptile_attention_free(NULL);
    warptile_append_free(NULL);
    warptile_merge_free(NULL);
    if (warptile_attention_workspace(NULL) != 0) fail("warptile_attention_workspace", "bytes for nothing");
    printf("wrong: %d checks, %d mistakes\n", checks, mistakes);
    return mistakes != 0;
}
