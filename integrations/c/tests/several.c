// Several ranks on the CPU: outputs have the bits of one call, gradients its values; what is wrong names the argument and the rule.
#include "expect.h"
#include "random.h"

enum { HEADS = 4, KV_HEADS = 2, SIZE = 16, VALUE_SIZE = 24, MOST_RANKS = 4 };

static void *zeros(size_t count, size_t size) {
    void *made = calloc(count ? count : 1, size);
    if (!made) fail("calloc", "out of memory");
    return made;
}

static const int32_t cpus[MOST_RANKS] = {WARPTILE_CPU, WARPTILE_CPU, WARPTILE_CPU, WARPTILE_CPU};

static warptile_group *group_of(size_t ranks) {
    warptile_group *group;
    check(warptile_group_local(cpus, NULL, ranks, &group), "warptile_group_local");
    return group;
}

// A whole tensor, [rows, heads, head size], and the ranks' parts of it, [heads, rows of the rank, head size].
typedef struct {
    char *whole;
    void *parts[MOST_RANKS];
    int64_t rows, heads, row_bytes;
} tensor_of_ranks;

static tensor_of_ranks new_tensor(int64_t rows, int64_t heads, int64_t size, uint32_t element, int random) {
    tensor_of_ranks made = {0};
    made.rows = rows;
    made.heads = heads;
    made.row_bytes = size * (int64_t)size_of(element);
    made.whole = zeros((size_t)(rows * heads), (size_t)made.row_bytes);
    for (int64_t i = 0; random && i < rows * heads * size; i++) put(made.whole, element, i, draw_float());
    return made;
}

static void drop_tensor(tensor_of_ranks *tensor) {
    free(tensor->whole);
    for (int rank = 0; rank < MOST_RANKS; rank++) free(tensor->parts[rank]);
}

// Copies the rows between the whole and the parts.
static void deal(tensor_of_ranks *tensor, const warptile_sharded *sharded, size_t ranks, int back) {
    for (size_t rank = 0; rank < ranks; rank++) {
        size_t rows, bytes = (size_t)tensor->row_bytes;
        check(warptile_sharded_rows(sharded, (int64_t)rank, NULL, 0, &rows), "warptile_sharded_rows");
        int64_t *numbers = zeros(rows, sizeof *numbers);
        check(warptile_sharded_rows(sharded, (int64_t)rank, numbers, rows, NULL), "warptile_sharded_rows");
        if (!tensor->parts[rank]) tensor->parts[rank] = zeros(rows * (size_t)tensor->heads, bytes);
        for (size_t head = 0; head < (size_t)tensor->heads; head++) {
            for (size_t row = 0; row < rows; row++) {
                char *part = (char *)tensor->parts[rank] + (head * rows + row) * bytes;
                char *whole = tensor->whole + ((size_t)numbers[row] * (size_t)tensor->heads + head) * bytes;
                if (back) memcpy(whole, part, bytes);
                else memcpy(part, whole, bytes);
            }
        }
        free(numbers);
    }
}

static void near_to(const char *what, uint32_t element, const void *found, const void *expected, int64_t count) {
    double unit = element == WARPTILE_F32 ? 1e-5 : element == WARPTILE_F16 ? 1e-3 : 8e-3;
    checks++;
    for (int64_t i = 0; i < count; i++) {
        double value = get(found, element, i), other = get(expected, element, i);
        if (fabs(value - other) <= 2 * unit * (fabs(other) + 1)) continue;
        mistakes++;
        fprintf(stderr, "%s[%d] is %g, not %g\n", what, (int)i, value, other);
        return;
    }
}

static void equal_bits(const char *what, const void *found, const void *expected, size_t bytes) {
    checks++;
    if (memcmp(found, expected, bytes) == 0) return;
    mistakes++;
    fprintf(stderr, "%s has other bits than one call\n", what);
}

static const int64_t documents[] = {0, 20, 20, 101};
static const int32_t document_rows[] = {0, 20, 20, 101};

static warptile_attention_desc whole_of(uint32_t element, int64_t rows) {
    warptile_attention_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = element;
    desc.mask = WARPTILE_MASK_CAUSAL;
    desc.want_lse = 1;
    desc.q = (warptile_layout){{1, rows, HEADS, SIZE}, {0, 0, 0, 0}};
    desc.k = (warptile_layout){{1, rows, KV_HEADS, SIZE}, {0, 0, 0, 0}};
    desc.v = (warptile_layout){{1, rows, KV_HEADS, VALUE_SIZE}, {0, 0, 0, 0}};
    return desc;
}

// One problem by several ranks and by one call.
static void compare(uint32_t element, uint32_t sharding, uint32_t scheme, size_t ranks, int dropout) {
    static const float sinks[HEADS] = {0.5f, -1, 2, 0.25f};
    static const int32_t dropout_state[8] = {77, 0, 3, 0, 0, 0, 0, 0};
    int64_t rows = dropout ? 192 : 101;
    int packed = sharding == WARPTILE_SHARDING_DOCUMENTS;
    state = element * 100 + sharding * 10 + ranks;
    warptile_attention_desc desc = whole_of(element, rows);
    desc.softcap = 5;
    // Numbers for each head are for one of the schemes.
    desc.sinks = scheme == WARPTILE_SCHEME_GATHER;
    desc.dropout = dropout ? 0.25 : 0;
    warptile_sharded_desc dealt = {0};
    dealt.size = sizeof dealt;
    dealt.attention = &desc;
    dealt.sharding = sharding;
    dealt.scheme = scheme;
    dealt.documents = packed ? 3 : 0;
    dealt.document_offsets = packed ? documents : NULL;
    dealt.hosts = scheme == WARPTILE_SCHEME_HYBRID ? 2 : 0;
    warptile_group *group = group_of(ranks);
    warptile_sharded *sharded;
    check(warptile_sharded_prepare(group, &dealt, &sharded), "warptile_sharded_prepare");
    // The handles keep the group.
    warptile_group_free(group);

    tensor_of_ranks q = new_tensor(rows, HEADS, SIZE, element, 1), k = new_tensor(rows, KV_HEADS, SIZE, element, 1);
    tensor_of_ranks v = new_tensor(rows, KV_HEADS, VALUE_SIZE, element, 1), d_out = new_tensor(rows, HEADS, VALUE_SIZE, element, 1);
    tensor_of_ranks out = new_tensor(rows, HEADS, VALUE_SIZE, element, 0), dq = new_tensor(rows, HEADS, SIZE, element, 0);
    tensor_of_ranks dk = new_tensor(rows, KV_HEADS, SIZE, element, 0), dv = new_tensor(rows, KV_HEADS, VALUE_SIZE, element, 0);
    tensor_of_ranks *all[] = {&q, &k, &v, &d_out, &out, &dq, &dk, &dv};
    for (size_t i = 0; i < 8; i++) deal(all[i], sharded, ranks, 0);
    float d_sinks[HEADS], *lse = zeros((size_t)rows * HEADS, sizeof(float));
    warptile_attention_memory memory[MOST_RANKS] = {0};
    warptile_backward_memory back[MOST_RANKS] = {0};
    for (size_t rank = 0; rank < ranks; rank++) {
        memory[rank].size = sizeof *memory;
        memory[rank].q = q.parts[rank];
        memory[rank].k = k.parts[rank];
        memory[rank].v = v.parts[rank];
        memory[rank].out = out.parts[rank];
        back[rank].size = sizeof *back;
        back[rank].attention = &memory[rank];
        back[rank].d_out = d_out.parts[rank];
        back[rank].dq = dq.parts[rank];
        back[rank].dk = dk.parts[rank];
        back[rank].dv = dv.parts[rank];
    }
    // Numbers of options are those of the first.
    memory->sinks = desc.sinks ? sinks : NULL;
    memory->dropout_state = dropout ? dropout_state : NULL;
    back->d_sinks = desc.sinks ? d_sinks : NULL;
    warptile_sharded_output *output, *again;
    check(warptile_sharded_forward(sharded, memory, ranks, &output), "warptile_sharded_forward");
    check(warptile_sharded_lse(sharded, output, lse), "warptile_sharded_lse");
    check(warptile_sharded_forward(sharded, memory, ranks, &again), "warptile_sharded_forward");
    check(warptile_sharded_backward(sharded, output, back, ranks), "warptile_sharded_backward");
    for (size_t i = 4; i < 8; i++) deal(all[i], sharded, ranks, 1);
    // A part of the gradients has the same bits.
    tensor_of_ranks once_more = new_tensor(rows, KV_HEADS, SIZE, element, 0);
    deal(&once_more, sharded, ranks, 0);
    for (size_t rank = 0; rank < ranks; rank++) {
        back[rank].dk = once_more.parts[rank];
        back[rank].dq = back[rank].dv = NULL;
    }
    back->d_sinks = NULL;
    check(warptile_sharded_backward(sharded, again, back, ranks), "warptile_sharded_backward");
    deal(&once_more, sharded, ranks, 1);
    equal_bits("dk", once_more.whole, dk.whole, (size_t)(rows * KV_HEADS * dk.row_bytes));
    drop_tensor(&once_more);
    warptile_sharded_output_free(output);
    warptile_sharded_output_free(again);
    warptile_sharded_free(sharded);

    desc.packed_queries = desc.packed_keys = (uint32_t)packed;
    desc.sequences = packed ? 3 : 0;
    float one_d_sinks[HEADS], *one_lse = zeros((size_t)rows * HEADS, sizeof(float));
    warptile_attention_memory one = {0};
    one.size = sizeof one;
    one.q = q.whole;
    one.k = k.whole;
    one.v = v.whole;
    one.out = zeros((size_t)(rows * HEADS), (size_t)out.row_bytes);
    one.lse = one_lse;
    one.sinks = desc.sinks ? sinks : NULL;
    one.dropout_state = dropout ? dropout_state : NULL;
    one.query_offsets = one.key_offsets = packed ? document_rows : NULL;
    warptile_attention *attention;
    check(warptile_attention_prepare(WARPTILE_CPU, &desc, &attention), "warptile_attention_prepare");
    check(warptile_attention_run(attention, &one, NULL), "warptile_attention_run");
    warptile_attention_free(attention);
    equal_bits("out", out.whole, one.out, (size_t)(rows * HEADS * out.row_bytes));
    for (int64_t i = 0; i < rows * HEADS; i++) {
        if (lse[i] == one_lse[i % HEADS * rows + i / HEADS]) continue;
        mistakes++;
        fprintf(stderr, "lse[%d] is %g, not %g\n", (int)i, lse[i], one_lse[i % HEADS * rows + i / HEADS]);
        break;
    }
    warptile_backward_desc wanted = {0};
    wanted.size = sizeof wanted;
    wanted.attention = &desc;
    wanted.want_dq = wanted.want_dk = wanted.want_dv = 1;
    wanted.want_d_sinks = desc.sinks;
    warptile_backward_memory gradients = {0};
    gradients.size = sizeof gradients;
    gradients.attention = &one;
    gradients.d_out = d_out.whole;
    gradients.dq = zeros((size_t)(rows * HEADS), (size_t)dq.row_bytes);
    gradients.dk = zeros((size_t)(rows * KV_HEADS), (size_t)dk.row_bytes);
    gradients.dv = zeros((size_t)(rows * KV_HEADS), (size_t)dv.row_bytes);
    gradients.d_sinks = desc.sinks ? one_d_sinks : NULL;
    warptile_backward *backward;
    check(warptile_backward_prepare(WARPTILE_CPU, &wanted, &backward), "warptile_backward_prepare");
    check(warptile_backward_run(backward, &gradients, NULL), "warptile_backward_run");
    warptile_backward_free(backward);
    near_to("dq", element, dq.whole, gradients.dq, rows * HEADS * SIZE);
    near_to("dk", element, dk.whole, gradients.dk, rows * KV_HEADS * SIZE);
    near_to("dv", element, dv.whole, gradients.dv, rows * KV_HEADS * VALUE_SIZE);
    if (desc.sinks) near_to("d_sinks", WARPTILE_F32, d_sinks, one_d_sinks, HEADS);
    void *made[] = {lse, one_lse, one.out, gradients.dq, gradients.dk, gradients.dv};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
    for (size_t i = 0; i < 8; i++) drop_tensor(all[i]);
}

static void wrong_groups(void) {
    warptile_group *group = NULL;
    warptile_world world = {0};
    INVALID(warptile_group_local(cpus, NULL, 2, NULL), "group is null");
    INVALID(warptile_group_local(NULL, NULL, 2, &group), "devices is null");
    INVALID(warptile_group_local(cpus, NULL, 1, &group), "a group needs at least 2 ranks, not 1");
    INVALID(warptile_group_local((const int32_t[]){WARPTILE_CPU, -5}, NULL, 2, &group), "device is -5, but must be WARPTILE_CPU or");
    INVALID(warptile_group_local(cpus, (void *const[]){NULL, &world}, 2, &group), "stream is given, but ");
    INVALID(warptile_group_nccl(NULL, 0, NULL, &group), "world is null");
    INVALID(warptile_group_nccl(&world, 0, NULL, &group), "world has size 0");
    world.size = sizeof world;
    world.rank = 1;
    INVALID(warptile_group_nccl(&world, 0, NULL, &group), "rank is given, but ranks is 0");
    world.ranks = 2;
    INVALID(warptile_group_nccl(&world, 0, NULL, &group), "address is null, but ranks is given");
    world.address = "127.0.0.1:1";
    INVALID(warptile_group_nccl(&world, WARPTILE_CPU, NULL, &group), "device is the CPU, but NCCL is for GPUs");
    INVALID(warptile_group_nccl(&world, WARPTILE_LOCAL_RANK, NULL, &group), "device is WARPTILE_LOCAL_RANK, but ranks is given");
    world.timeout = -1;
    INVALID(warptile_group_nccl(&world, 0, NULL, &group), "timeout is -1");
    world.rank = -1;
    INVALID(warptile_group_nccl(&world, 0, NULL, &group), "rank is -1");
    if (group) fail("group", "a handle after an error");
    INVALID(warptile_group_synchronize(NULL, 1), "group is null");
    INVALID(warptile_group_ranks(NULL, NULL, NULL, NULL), "group is null");
    size_t all = 0, first = 1, count = 0;
    group = group_of(3);
    WORKS(warptile_group_ranks(group, &all, &first, &count));
    if (all != 3 || first != 0 || count != 3) fail("warptile_group_ranks", "wrong numbers");
    WORKS(warptile_group_synchronize(group, 1));
    warptile_group_free(group);
    warptile_group_free(NULL);
}

static void wrong_calls(void) {
    warptile_group *group = group_of(2);
    warptile_attention_desc whole = whole_of(WARPTILE_F32, 10), bad_whole;
    warptile_sharded_desc desc = {0}, bad;
    warptile_sharded *sharded = NULL, *other;
    desc.size = sizeof desc;
    desc.attention = &whole;
#define PREPARE(...) \
    (bad_whole = whole, bad = desc, bad.attention = &bad_whole, __VA_ARGS__, warptile_sharded_prepare(group, &bad, &sharded))
    INVALID(warptile_sharded_prepare(NULL, &desc, &sharded), "group is null");
    INVALID(warptile_sharded_prepare(group, NULL, &sharded), "desc is null");
    INVALID(warptile_sharded_prepare(group, &desc, NULL), "sharded is null");
    INVALID(PREPARE(bad.attention = NULL), "attention is null");
    INVALID(PREPARE(bad.sharding = 4), "sharding is 4, which is none of");
    INVALID(PREPARE(bad.scheme = 3), "scheme is 3, which is none of");
    INVALID(PREPARE(bad.hosts = 2), "hosts is given, but scheme is not");
    INVALID(PREPARE(bad.documents = 1), "documents is given, but sharding is not");
    INVALID(PREPARE(bad.sharding = WARPTILE_SHARDING_DOCUMENTS, bad.documents = 3), "document_offsets is null");
    INVALID(PREPARE(bad.sharding = WARPTILE_SHARDING_DOCUMENTS, bad.documents = 3, bad.document_offsets = documents),
            "sharding: the offsets of documents must rise from 0 to the length 10");
    INVALID(PREPARE(bad.sharding = WARPTILE_SHARDING_DOCUMENTS, bad.document_offsets = (const int64_t[]){-1}), "document_offsets[0] is -1");
    INVALID(PREPARE(bad_whole.element = 9), "element is 9");
    INVALID(PREPARE(bad_whole.k.shape[1] = bad_whole.v.shape[1] = 9), "k.shape[1] is 9, but q has 10 rows");
    INVALID(PREPARE(bad_whole.q.shape[0] = bad_whole.k.shape[0] = bad_whole.v.shape[0] = 2), "q.shape[0] is 2, but must be 1");
    INVALID(PREPARE(bad_whole.k.strides[0] = 320, bad_whole.k.strides[1] = 16, bad_whole.k.strides[2] = 160, bad_whole.k.strides[3] = 1),
            "k.strides must be zeros");
    INVALID(PREPARE(bad_whole.key_lengths = 1), "key_lengths is not for several devices");
    INVALID(PREPARE(bad_whole.cache_element = WARPTILE_E4M3), "k_scale is not for several devices");
    INVALID(PREPARE(bad_whole.bias = (warptile_layout){{1, 10, HEADS, 10}, {0, 0, 0, 0}}), "bias is not for several devices");
    INVALID(PREPARE(bad_whole.kernel = "wgmma"), "");
    if (sharded) fail("sharded", "a handle after an error");

    check(warptile_sharded_prepare(group, &desc, &sharded), "warptile_sharded_prepare");
    check(warptile_sharded_prepare(group, &desc, &other), "warptile_sharded_prepare");
    static float data[10 * HEADS * VALUE_SIZE], result[10 * HEADS * VALUE_SIZE];
    warptile_attention_memory memory[2] = {0}, good[2];
    warptile_backward_memory back[2] = {0}, good_back[2];
    warptile_sharded_output *output;
    for (int rank = 0; rank < 2; rank++) {
        memory[rank].size = sizeof *memory;
        memory[rank].q = memory[rank].k = memory[rank].v = data;
        memory[rank].out = result + rank * 5 * HEADS * VALUE_SIZE;
        back[rank].size = sizeof *back;
        back[rank].attention = &good[rank];
        back[rank].d_out = data;
        back[rank].dq = memory[rank].out;
    }
#define FORWARD(...) (memcpy(good, memory, sizeof good), __VA_ARGS__, warptile_sharded_forward(sharded, good, 2, NULL))
    INVALID(warptile_sharded_forward(NULL, memory, 2, NULL), "sharded is null");
    INVALID(warptile_sharded_forward(sharded, NULL, 2, NULL), "memory is null");
    INVALID(warptile_sharded_forward(sharded, memory, 3, NULL), "ranks is 3, but this process has 2 ranks");
    INVALID(FORWARD(good[1].size = 8), "memory[1] has size 8");
    INVALID(FORWARD(good[0].size -= 8), "memory[1] ");
    INVALID(FORWARD(good[0].k = NULL), "memory[0].k is null");
    INVALID(FORWARD(good[1].v = NULL), "memory[1].v is null");
    INVALID(FORWARD(good[1].q = (char *)data + 2), "memory[1].q is 0x");
    INVALID(FORWARD(good[0].out = NULL), "memory[0].out is null");
    INVALID(FORWARD(good[0].sinks = data), "sinks is given, but the call was built without it");
    INVALID(FORWARD(good[0].lse = result), "lse is given, but the call was built without it");
    INVALID(FORWARD(good[0].bias = data), "bias is given, but the call was built without it");
    check(warptile_sharded_forward(sharded, memory, 2, &output), "warptile_sharded_forward");
#define BACKWARD(...) \
    (memcpy(good, memory, sizeof good), memcpy(good_back, back, sizeof back), __VA_ARGS__, \
     warptile_sharded_backward(sharded, output, good_back, 2))
    INVALID(warptile_sharded_backward(sharded, NULL, back, 2), "output is null");
    INVALID(warptile_sharded_backward(sharded, output, back, 1), "ranks is 1, but");
    INVALID(warptile_sharded_backward(other, output, back, 2), "output is that of another handle than sharded");
    INVALID(BACKWARD(good_back[1].attention = NULL), "attention is null");
    INVALID(BACKWARD(good_back[0].d_out = NULL), "memory[0].d_out is null");
    INVALID(BACKWARD(good_back[0].d_sinks = result), "d_sinks is given, but the call was built without it");
    INVALID(BACKWARD(good_back[0].d_bias = result), "d_bias is given, but the call was built without it");
    INVALID(BACKWARD(good_back[0].d_lse = result), "d_lse is given, but the call was built without it");
    INVALID(BACKWARD(good_back[0].dk = result), "memory[1].dk is null");
    WORKS(BACKWARD((void)0));
    INVALID(warptile_sharded_lse(sharded, output, NULL), "lse is null");
    INVALID(warptile_sharded_lse(other, output, result), "output is that of another handle than sharded");
    INVALID(warptile_sharded_rows(sharded, 2, NULL, 0, NULL), "rank is 2, but there are 2 ranks");
    INVALID(warptile_sharded_rows(sharded, 0, NULL, 1, NULL), "rows is null");
    warptile_sharded_output_free(output);
    warptile_sharded_output_free(NULL);
    warptile_sharded_free(sharded);
    // Without its lse an output has no gradients.
    whole.want_lse = 0;
    check(warptile_sharded_prepare(group, &desc, &sharded), "warptile_sharded_prepare");
    check(warptile_sharded_forward(sharded, memory, 2, &output), "warptile_sharded_forward");
    INVALID(warptile_sharded_lse(sharded, output, result), "output has no log-sum-exp: set want_lse");
    INVALID(BACKWARD((void)0), "rank 0: the output has no lse");
    warptile_sharded_output_free(output);
    warptile_sharded_free(sharded);
    warptile_sharded_free(other);
    warptile_sharded_free(NULL);
    warptile_group_free(group);
}

// Two sequences, which get a prompt and then rows one by one, in pages of three ranks and by one call over all keys.
static void decoding(uint32_t element) {
    enum { SEQUENCES = 2, STEPS = 5, MOST = 80 };
    static const int64_t prompts[SEQUENCES] = {70, 33};
    size_t bytes = size_of(element);
    // Keys and values of a sequence, [rows, heads, head size].
    char *k[SEQUENCES], *v[SEQUENCES], *in[2], *q = zeros(SEQUENCES * HEADS * SIZE, bytes), *out = zeros(SEQUENCES * HEADS * VALUE_SIZE, bytes);
    state = element;
    for (int b = 0; b < SEQUENCES; b++) {
        k[b] = zeros(MOST * KV_HEADS * SIZE, bytes);
        v[b] = zeros(MOST * KV_HEADS * VALUE_SIZE, bytes);
        for (int64_t i = 0; i < MOST * KV_HEADS * SIZE; i++) put(k[b], element, i, draw_float());
        for (int64_t i = 0; i < MOST * KV_HEADS * VALUE_SIZE; i++) put(v[b], element, i, draw_float());
        in[b] = zeros(2 * MOST * KV_HEADS * VALUE_SIZE, bytes);
    }
    warptile_group *group = group_of(3);
    warptile_dealt_cache_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = element;
    desc.kv_heads = KV_HEADS;
    desc.head_size = SIZE;
    desc.value_size = VALUE_SIZE;
    desc.pages = 4;
    desc.sequences = SEQUENCES;
    warptile_dealt_cache *cache;
    check(warptile_dealt_cache_create(group, &desc, &cache), "warptile_dealt_cache_create");
    warptile_group_free(group);
    int64_t sequences[SEQUENCES], lengths[SEQUENCES] = {0}, found;
    for (int b = 0; b < SEQUENCES; b++) check(warptile_dealt_cache_allocate(cache, &sequences[b]), "warptile_dealt_cache_allocate");
    warptile_attention_desc call = {0};
    call.size = sizeof call;
    call.element = element;
    call.q = (warptile_layout){{SEQUENCES, 1, HEADS, SIZE}, {0}};
    call.softcap = 3;
    warptile_attention_memory of_call = {0};
    of_call.size = sizeof of_call;
    of_call.q = q;
    of_call.out = out;
    INVALID(warptile_dealt_cache_attend(cache, 0, &call, &of_call), "cache has no step");
    INVALID(warptile_dealt_cache_append(cache, 0, in[0], in[1]), "cache has no step");
    for (int step = 0; step < STEPS; step++) {
        int64_t rows[SEQUENCES], at = 0;
        for (int b = 0; b < SEQUENCES; b++) {
            rows[b] = step ? 1 : prompts[b];
            memcpy(in[0] + (size_t)at * KV_HEADS * SIZE * bytes, k[b] + (size_t)lengths[b] * KV_HEADS * SIZE * bytes,
                   (size_t)rows[b] * KV_HEADS * SIZE * bytes);
            memcpy(in[1] + (size_t)at * KV_HEADS * VALUE_SIZE * bytes, v[b] + (size_t)lengths[b] * KV_HEADS * VALUE_SIZE * bytes,
                   (size_t)rows[b] * KV_HEADS * VALUE_SIZE * bytes);
            at += rows[b];
            lengths[b] += rows[b];
        }
        check(warptile_dealt_cache_step(cache, sequences, rows, SEQUENCES), "warptile_dealt_cache_step");
        check(warptile_dealt_cache_append(cache, 0, in[0], in[1]), "warptile_dealt_cache_append");
        for (int64_t i = 0; i < SEQUENCES * HEADS * SIZE; i++) put(q, element, i, draw_float());
        if (step == 0) {
            INVALID(warptile_dealt_cache_attend(cache, 0, &call, &of_call), "rank 0: each sequence of the step must have one new row");
            continue;
        }
        check(warptile_dealt_cache_attend(cache, 0, &call, &of_call), "warptile_dealt_cache_attend");
        for (int b = 0; b < SEQUENCES; b++) {
            warptile_attention_desc one = whole_of(element, 1);
            one.k.shape[1] = one.v.shape[1] = lengths[b];
            one.softcap = 3;
            one.want_lse = 0;
            char expected[HEADS * VALUE_SIZE * 4];
            warptile_attention_memory memory = {0};
            memory.size = sizeof memory;
            memory.q = q + (size_t)b * HEADS * SIZE * bytes;
            memory.k = k[b];
            memory.v = v[b];
            memory.out = expected;
            warptile_attention *attention;
            check(warptile_attention_prepare(WARPTILE_CPU, &one, &attention), "warptile_attention_prepare");
            check(warptile_attention_run(attention, &memory, NULL), "warptile_attention_run");
            warptile_attention_free(attention);
            near_to("a row", element, out + (size_t)b * HEADS * VALUE_SIZE * bytes, expected, HEADS * VALUE_SIZE);
        }
    }
    check(warptile_dealt_cache_rows(cache, sequences[0], &found), "warptile_dealt_cache_rows");
    if (found != 74) fail("warptile_dealt_cache_rows", "not 74");

    const int64_t one = 1, much = 200, negative = -1;
    INVALID(warptile_dealt_cache_step(cache, sequences, &much, 1), "rank 0: ");
    INVALID(warptile_dealt_cache_step(cache, sequences, &negative, 1), "rows[0] is -1");
    INVALID(warptile_dealt_cache_step(cache, &much, &one, 1), "sequences[0] is 200, which is no sequence of the cache");
    INVALID(warptile_dealt_cache_step(cache, NULL, &one, 1), "sequences is null");
    check(warptile_dealt_cache_step(cache, sequences, &one, 1), "warptile_dealt_cache_step");
    INVALID(warptile_dealt_cache_append(cache, 0, NULL, v[0]), "k is null");
    INVALID(warptile_dealt_cache_append(cache, 0, k[0], v[0] + 1), "v is 0x");
    INVALID(warptile_dealt_cache_append(cache, -1, k[0], v[0]), "layer is -1");
    INVALID(warptile_dealt_cache_append(cache, 1, k[0], v[0]), "rank 0: ");
    check(warptile_dealt_cache_append(cache, 0, k[0], v[0]), "warptile_dealt_cache_append");
    warptile_attention_desc bad;
    warptile_attention_memory bad_memory;
    const float numbers[HEADS] = {0};
#define ATTEND(...) (bad = call, bad_memory = of_call, __VA_ARGS__, warptile_dealt_cache_attend(cache, 0, &bad, &bad_memory))
    call.q.shape[0] = 1;
    INVALID(ATTEND(bad_memory.q = NULL), "q is null");
    INVALID(ATTEND(bad_memory.out = NULL), "out is null");
    INVALID(ATTEND(bad.q.shape[2] = 3), "");
    INVALID(ATTEND(bad.q.shape[0] = SEQUENCES), "q has batch ");
    INVALID(ATTEND(bad.q.shape[3] = 2 * SIZE), "");
    INVALID(ATTEND(bad.q.strides[0] = HEADS * SIZE, bad.q.strides[1] = 16, bad.q.strides[2] = 16, bad.q.strides[3] = 1), "q.strides must be zeros");
    INVALID(ATTEND(bad.element = element % 3 + 1), "element is ");
    INVALID(ATTEND(bad.scale_given = 2), "scale_given is 2");
    INVALID(ATTEND(bad.mask = WARPTILE_MASK_WINDOW), "rank 0: ");
    INVALID(ATTEND(bad.sinks = 1), "sinks is null");
    INVALID(ATTEND(bad.sinks = 1, bad_memory.sinks = numbers), "rank 0: ");
    INVALID(ATTEND(bad.key_lengths = 1), "key_lengths is not for several devices");
    INVALID(warptile_dealt_cache_attend(cache, 4, &call, &of_call), "rank 0: ");
    INVALID(warptile_dealt_cache_attend(cache, -1, &call, &of_call), "layer is -1");
    INVALID(warptile_dealt_cache_attend(cache, 0, NULL, &of_call), "desc is null");
    INVALID(warptile_dealt_cache_attend(cache, 0, &call, NULL), "memory is null");
    INVALID(warptile_dealt_cache_attend(NULL, 0, &call, &of_call), "cache is null");
    WORKS(warptile_dealt_cache_attend(cache, 0, &call, &of_call));
    WORKS(warptile_dealt_cache_release(cache, sequences[0]));
    INVALID(warptile_dealt_cache_release(cache, sequences[0]), "sequence is 0, which is no sequence of the cache");
    INVALID(warptile_dealt_cache_rows(cache, sequences[0], &found), "sequence is 0, which is no sequence");
    warptile_dealt_cache_free(cache);
    warptile_dealt_cache_free(NULL);
    for (int b = 0; b < SEQUENCES; b++) {
        free(k[b]);
        free(v[b]);
        free(in[b]);
    }
    free(q);
    free(out);
}

static void wrong_caches(void) {
    warptile_group *group = group_of(2);
    warptile_dealt_cache *cache = NULL;
    warptile_dealt_cache_desc good = {0}, bad;
    good.size = sizeof good;
    good.element = WARPTILE_F16;
    good.kv_heads = KV_HEADS;
    good.head_size = SIZE;
#define CREATE(...) (bad = good, __VA_ARGS__, warptile_dealt_cache_create(group, &bad, &cache))
    INVALID(warptile_dealt_cache_create(NULL, &good, &cache), "group is null");
    INVALID(warptile_dealt_cache_create(group, NULL, &cache), "desc is null");
    INVALID(warptile_dealt_cache_create(group, &good, NULL), "cache is null");
    INVALID(CREATE(bad.element = WARPTILE_E4M3), "element is 4");
    INVALID(CREATE(bad.kv_heads = -2), "kv_heads is -2");
    INVALID(CREATE(bad.head_size = 7), "rank 0: ");
    INVALID(CREATE(bad.page_rows = 300), "rank 0: ");
    if (cache) fail("cache", "a handle after an error");
    warptile_group_free(group);
}

static void predictions(void) {
    char text[1 << 14];
    size_t needed;
    warptile_attention_desc whole = whole_of(WARPTILE_BF16, 65536);
    whole.q.shape[2] = 32;
    whole.k.shape[2] = whole.v.shape[2] = 8;
    whole.q.shape[3] = whole.k.shape[3] = whole.v.shape[3] = 128;
    warptile_sharded_desc desc = {0};
    desc.size = sizeof desc;
    desc.attention = &whole;
    desc.sharding = WARPTILE_SHARDING_ZIGZAG;
    desc.scheme = WARPTILE_SCHEME_HEADS;
    check(warptile_sharded_explain(0, "h100", 4, &desc, text, sizeof text, &needed), "warptile_sharded_explain");
    if (strncmp(text, "devices  4 by heads: ", 21) != 0 || !strstr(text, "\nnot      gather in 2 groups of heads: ") ||
        !strstr(text, "\nforward  wgmma_d128") || needed != strlen(text) + 1) {
        fail("warptile_sharded_explain", text);
    }
    // A number for each head is that of one launch.
    desc.scheme = WARPTILE_SCHEME_GATHER;
    whole.sinks = 1;
    check(warptile_sharded_explain(0, "h100", 4, &desc, text, sizeof text, NULL), "warptile_sharded_explain");
    if (strncmp(text, "devices  4 by gather: ", 22) != 0) fail("warptile_sharded_explain", text);
    desc.scheme = WARPTILE_SCHEME_HEADS;
    whole.sinks = 0;
    // Less is gained than it is worth.
    whole.q.shape[1] = whole.k.shape[1] = whole.v.shape[1] = 64;
    check(warptile_sharded_explain(0, "h100", 4, &desc, text, sizeof text, NULL), "warptile_sharded_explain");
    if (!strstr(text, "\nwarning  several devices are expected to gain ")) fail("warptile_sharded_explain", text);
    INVALID(warptile_sharded_explain(0, "h100", 0, &desc, text, sizeof text, NULL), "sharding: no ranks");
    INVALID(warptile_sharded_explain(0, "h100", -1, &desc, text, sizeof text, NULL), "ranks is -1");
}

int main(void) {
    static const uint32_t elements[] = {WARPTILE_F16, WARPTILE_BF16, WARPTILE_F32};
    for (int i = 0; i < 3; i++) {
        for (uint32_t sharding = 0; sharding < 4; sharding++) {
            for (uint32_t scheme = 0; scheme < 2; scheme++) compare(elements[i], sharding, scheme, 2 + (sharding + scheme) % 2, 0);
        }
    }
    compare(WARPTILE_F32, WARPTILE_SHARDING_ZIGZAG, WARPTILE_SCHEME_GATHER, 3, 1);
    compare(WARPTILE_BF16, WARPTILE_SHARDING_CONTIGUOUS, WARPTILE_SCHEME_HEADS, 2, 1);
    for (uint32_t sharding = 0; sharding < 4; sharding++) compare(WARPTILE_F16, sharding, WARPTILE_SCHEME_HYBRID, 4, 0);
    compare(WARPTILE_F32, WARPTILE_SHARDING_CONTIGUOUS, WARPTILE_SCHEME_HYBRID, 2, 1);
    for (int i = 0; i < 3; i++) decoding(elements[i]);
    wrong_caches();
    wrong_groups();
    wrong_calls();
    predictions();
    printf("several: %d checks, %d mistakes\n", checks, mistakes);
    return mistakes != 0;
}
