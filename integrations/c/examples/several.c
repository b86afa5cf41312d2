// One causal sequence over several devices, with gradients: `several [DEVICE DEVICE ...]`, by default the CPU twice over. A GPU may be
// named several times. Fails if an output differs from that of one call on the CPU.
#include <math.h>

#include "memory.h"

enum { ROWS = 301, HEADS = 8, KV_HEADS = 2, HEAD_SIZE = 64, MOST_RANKS = 16 };

static size_t ranks = 2;
static int32_t devices[MOST_RANKS] = {WARPTILE_CPU, WARPTILE_CPU};
// Of each rank.
static size_t row_count[MOST_RANKS];
static int64_t row_numbers[MOST_RANKS][ROWS];

// What is allocated from here on is of the rank's device.
static void at(size_t rank) {
    if (devices[rank] != WARPTILE_CPU) open_device(devices[rank]);
}

// Each rank's rows of a whole tensor, [rows, heads, head size], on its device, as [heads, rows, head size]; zeros if there is none.
static void deal(const float *whole, int heads, void **parts) {
    static float part[ROWS * HEADS * HEAD_SIZE];
    for (size_t rank = 0; rank < ranks; rank++) {
        size_t rows = row_count[rank];
        for (size_t i = 0; whole && i < rows * (size_t)heads; i++) {
            const float *row = whole + ((size_t)row_numbers[rank][i % rows] * (size_t)heads + i / rows) * HEAD_SIZE;
            memcpy(part + i * HEAD_SIZE, row, HEAD_SIZE * sizeof(float));
        }
        at(rank);
        parts[rank] = allocate(rows * (size_t)heads * HEAD_SIZE * sizeof(float));
        if (whole) upload(parts[rank], part, rows * (size_t)heads * HEAD_SIZE * sizeof(float));
    }
}

// The largest difference of the ranks' rows from those of a whole tensor.
static double compare(const float *whole, int heads, void *const *parts) {
    static float part[ROWS * HEADS * HEAD_SIZE];
    double worst = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        size_t rows = row_count[rank];
        at(rank);
        download(part, parts[rank], rows * (size_t)heads * HEAD_SIZE * sizeof(float));
        for (size_t i = 0; i < rows * (size_t)heads * HEAD_SIZE; i++) {
            size_t row = (size_t)row_numbers[rank][i / HEAD_SIZE % rows], head = i / HEAD_SIZE / rows;
            double difference = fabs(part[i] - (double)whole[(row * (size_t)heads + head) * HEAD_SIZE + i % HEAD_SIZE]);
            // Not a number is no result.
            worst = difference >= worst || isnan(difference) ? difference : worst;
        }
    }
    return worst;
}

static void report(const char *what, double difference) {
    printf("%-10s largest difference from one call %.1e\n", what, difference);
    if (!(difference < 1e-3)) fail(what, "the result is wrong");
}

int main(int argc, char **argv) {
    static float q[ROWS * HEADS * HEAD_SIZE], kv[ROWS * KV_HEADS * HEAD_SIZE], out[sizeof q / 4], lse[ROWS * HEADS], dq[sizeof q / 4],
        dk[sizeof kv / 4];
    if (argc > 1) ranks = (size_t)argc - 1;
    if (ranks > MOST_RANKS) fail(argv[0], "too many devices");
    for (int i = 1; i < argc; i++) devices[i - 1] = atoi(argv[i]);
    for (size_t i = 0; i < sizeof q / 4; i++) q[i] = sinf((float)i);
    for (size_t i = 0; i < sizeof kv / 4; i++) kv[i] = cosf((float)i);

    warptile_attention_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = WARPTILE_F32;
    desc.mask = WARPTILE_MASK_CAUSAL;
    desc.want_lse = 1; // for the gradients
    desc.q = (warptile_layout){{1, ROWS, HEADS, HEAD_SIZE}, {0}};
    desc.k = desc.v = (warptile_layout){{1, ROWS, KV_HEADS, HEAD_SIZE}, {0}};
    warptile_sharded_desc dealt = {0};
    dealt.size = sizeof dealt;
    dealt.attention = &desc;
    dealt.sharding = WARPTILE_SHARDING_ZIGZAG;

    warptile_group *group;
    warptile_sharded *sharded;
    check(warptile_group_local(devices, NULL, ranks, &group), "warptile_group_local");
    check(warptile_sharded_prepare(group, &dealt, &sharded), "warptile_sharded_prepare");
    for (size_t rank = 0; rank < ranks; rank++) {
        check(warptile_sharded_rows(sharded, (int64_t)rank, row_numbers[rank], ROWS, &row_count[rank]), "warptile_sharded_rows");
    }
    void *q_of[MOST_RANKS], *kv_of[MOST_RANKS], *out_of[MOST_RANKS], *dq_of[MOST_RANKS], *dk_of[MOST_RANKS];
    deal(q, HEADS, q_of);
    deal(kv, KV_HEADS, kv_of);
    deal(NULL, HEADS, out_of);
    deal(NULL, HEADS, dq_of);
    deal(NULL, KV_HEADS, dk_of);
    warptile_attention_memory memory[MOST_RANKS] = {0};
    warptile_backward_memory back[MOST_RANKS] = {0};
    for (size_t rank = 0; rank < ranks; rank++) {
        memory[rank].size = sizeof *memory;
        memory[rank].q = q_of[rank];
        memory[rank].k = memory[rank].v = kv_of[rank];
        memory[rank].out = out_of[rank];
        back[rank].size = sizeof *back;
        back[rank].attention = &memory[rank];
        back[rank].d_out = out_of[rank]; // any numbers of the output's shape
        back[rank].dq = dq_of[rank];
        back[rank].dk = dk_of[rank];
    }
    warptile_sharded_output *output;
    check(warptile_sharded_forward(sharded, memory, ranks, &output), "warptile_sharded_forward");
    check(warptile_sharded_backward(sharded, output, back, ranks), "warptile_sharded_backward");
    check(warptile_group_synchronize(group, 60), "warptile_group_synchronize");
    warptile_sharded_output_free(output);
    warptile_sharded_free(sharded);
    warptile_group_free(group);

    // The same by one call.
    warptile_attention *attention;
    warptile_attention_memory whole = {0};
    whole.size = sizeof whole;
    whole.q = q;
    whole.k = whole.v = kv;
    whole.out = out;
    whole.lse = lse;
    check(warptile_attention_prepare(WARPTILE_CPU, &desc, &attention), "warptile_attention_prepare");
    check(warptile_attention_run(attention, &whole, NULL), "warptile_attention_run");
    warptile_attention_free(attention);
    warptile_backward_desc wanted = {0};
    wanted.size = sizeof wanted;
    wanted.attention = &desc;
    wanted.want_dq = wanted.want_dk = 1;
    warptile_backward *backward;
    warptile_backward_memory gradients = {0};
    gradients.size = sizeof gradients;
    gradients.attention = &whole;
    gradients.d_out = out;
    gradients.dq = dq;
    gradients.dk = dk;
    check(warptile_backward_prepare(WARPTILE_CPU, &wanted, &backward), "warptile_backward_prepare");
    check(warptile_backward_run(backward, &gradients, NULL), "warptile_backward_run");
    warptile_backward_free(backward);
    printf("%d ranks\n", (int)ranks);
    report("output", compare(out, HEADS, out_of));
    report("dq", compare(dq, HEADS, dq_of));
    report("dk", compare(dk, KV_HEADS, dk_of));
    void **all[] = {q_of, kv_of, out_of, dq_of, dk_of};
    for (size_t i = 0; i < sizeof all / sizeof *all * ranks; i++) {
        at(i % ranks);
        release(all[i / ranks][i % ranks]);
    }
    return 0;
}
