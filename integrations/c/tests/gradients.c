// Gradients of random problems with every option, against a loop in double precision. `gradients [--device NUMBER] [PROBLEMS [FIRST]]`
#include "random.h"

// A gradient: what it must be, and the sum of the absolute values that it is the sum of.
typedef struct {
    tensor found;
    void *before;
    double *expected, *size;
    uint8_t *written;
} gradient;

static void *zeros(size_t count, size_t size) {
    void *made = calloc(count, size);
    if (!made) fail("calloc", "out of memory");
    return made;
}

static gradient make_gradient(uint32_t element, int64_t batch, int64_t rows, int64_t heads, int64_t size, int step) {
    gradient made = {make(element, batch, rows, heads, size, step), NULL, NULL, NULL, NULL};
    size_t count = (size_t)made.found.reach;
    made.before = zeros(count, size_of(element));
    memcpy(made.before, made.found.host, count * size_of(element));
    made.expected = zeros(count, sizeof(double));
    made.size = zeros(count, sizeof(double));
    made.written = zeros(count, 1);
    return made;
}

static void drop_gradient(gradient *gradient) {
    drop(&gradient->found);
    free(gradient->before);
    free(gradient->expected);
    free(gradient->size);
    free(gradient->written);
}

static void add(gradient *to, int64_t at, double value, double size) {
    to->expected[at] += value;
    to->size[at] += size;
    to->written[at] = 1;
}

static void compare(uint64_t seed, const char *name, gradient *gradient, int wanted, int adds, double unit) {
    uint32_t element = gradient->found.element;
    size_t bytes = size_of(element);
    download(gradient->found.host, gradient->found.memory, (size_t)gradient->found.reach * bytes);
    for (int64_t i = 0; i < gradient->found.reach; i++) {
        char *found = (char *)gradient->found.host + (size_t)i * bytes, *before = (char *)gradient->before + (size_t)i * bytes;
        if (!wanted || !gradient->written[i]) {
            if (memcmp(found, before, bytes) != 0) wrong(seed, "element %d of %s was written", (int)i, name);
            continue;
        }
        double old = adds ? get(gradient->before, element, i) : 0, value = get(gradient->found.host, element, i);
        double expected = gradient->expected[i] + old, tolerance = unit * (gradient->size[i] + fabs(old) + 0.01);
        if (!(fabs(value - expected) <= tolerance)) wrong(seed, "%s[%d] is %g, not %g", name, (int)i, value, expected);
    }
}

// Returns 0 if the device has no kernel for the problem.
static int run(uint64_t seed) {
    static const uint32_t elements[] = {WARPTILE_F16, WARPTILE_BF16, WARPTILE_F32};
    static const int64_t sizes[] = {8, 24, 64, 72, 128};
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4; i++) draw(2);
    uint32_t element = elements[draw(3)], of_gradients = draw(3) ? element : WARPTILE_F32;
    int sequences = 1 + (int)draw(MOST_SEQUENCES), packed = draw(3) == 0, adds = draw(3) == 0;
    int64_t size = sizes[draw(5)], value_size = draw(3) ? size : sizes[draw(5)];
    int64_t kv_heads = 1 + draw(2), heads = kv_heads * (1 + draw(3));
    int64_t most_q = 1 + draw(draw(2) ? 90 : 3), most_k = 1 + draw(90);
    int32_t q_at[MOST_SEQUENCES + 1] = {0}, k_at[MOST_SEQUENCES + 1] = {0}, q_len[MOST_SEQUENCES], k_len[MOST_SEQUENCES];
    for (int b = 0; b < sequences; b++) {
        q_len[b] = packed ? (int32_t)draw((unsigned)most_q + 1) : (int32_t)most_q;
        k_len[b] = packed ? (int32_t)draw((unsigned)most_k + 1) : (int32_t)most_k;
        q_at[b + 1] = q_at[b] + q_len[b];
        k_at[b + 1] = k_at[b] + k_len[b];
    }
    // Packed tensors have padding at their ends.
    int64_t entries = packed ? 1 : sequences, q_rows = packed ? q_at[sequences] + 2 : most_q;
    int64_t k_rows = packed ? k_at[sequences] + 1 : most_k;
    tensor q = make(element, entries, q_rows, heads, size, 8), k = make(element, entries, k_rows, kv_heads, size, 8);
    tensor v = make(element, entries, k_rows, kv_heads, value_size, 8), out = make(element, entries, q_rows, heads, value_size, 8);
    tensor d_out = make(element, entries, q_rows, heads, value_size, 8);
    gradient dq = make_gradient(of_gradients, entries, q_rows, heads, size, 8);
    gradient dk = make_gradient(of_gradients, entries, k_rows, kv_heads, size, 8);
    gradient dv = make_gradient(of_gradients, entries, k_rows, kv_heads, value_size, 8);
    gradient d_sinks = make_gradient(WARPTILE_F32, 1, 1, 1, heads, 0);
    int biased = !packed && draw(3) == 0;
    int64_t bias_entries = draw(2) ? 1 : sequences, bias_rows = draw(2) ? 1 : most_q, bias_heads = draw(2) ? 1 : heads;
    tensor bias = make(element, bias_entries, bias_rows, bias_heads, most_k, 1);
    gradient d_bias = make_gradient(of_gradients, bias_entries, bias_rows, bias_heads, most_k, 1);

    warptile_attention_desc desc = {0};
    desc.size = sizeof desc;
    desc.element = element;
    desc.q = q.layout;
    desc.k = k.layout;
    desc.v = v.layout;
    desc.out = out.layout;
    draw_mask_and_scale(&desc);
    desc.softcap = draw(4) ? 0 : 2;
    desc.alibi = draw(2) ? 0 : draw(3);
    desc.sinks = draw(3) == 0;
    if (biased) desc.bias = bias.layout;
    desc.want_lse = 1;
    desc.packed_queries = desc.packed_keys = (uint32_t)packed;
    desc.sequences = packed ? sequences : 0;
    block_lists lists;
    int64_t longest_k = 0;
    for (int b = 0; b < sequences; b++)
        if (longest_k < k_len[b]) longest_k = k_len[b];
    draw_lists(&lists, &desc, heads, most_q, longest_k);
    float slopes[MOST_SEQUENCES * 6], sinks[6];
    for (int i = 0; i < MOST_SEQUENCES * 6; i++) slopes[i] = 0.1f * (draw_float() + 1);
    for (int i = 0; i < 6; i++) sinks[i] = draw_float();

    warptile_backward_desc wanted = {0};
    wanted.size = sizeof wanted;
    wanted.attention = &desc;
    wanted.want_dq = draw(4) != 0;
    wanted.want_dk = draw(4) != 0;
    wanted.want_dv = draw(4) != 0 || !(wanted.want_dq || wanted.want_dk);
    wanted.want_d_sinks = desc.sinks && draw(2);
    wanted.want_d_bias = biased && draw(4);
    if (wanted.want_d_bias) wanted.d_bias = d_bias.found.layout;
    wanted.d_lse = draw(3) == 0;
    wanted.gradient_element = of_gradients == element ? 0 : of_gradients;
    wanted.add = (uint32_t)adds;
    wanted.d_out = d_out.layout;
    if (wanted.want_dq) wanted.dq = dq.found.layout;
    if (wanted.want_dk) wanted.dk = dk.found.layout;
    if (wanted.want_dv) wanted.dv = dv.found.layout;

    warptile_attention *attention = NULL;
    warptile_backward *backward = NULL;
    int status = warptile_attention_prepare(memory_device, &desc, &attention), computed = 0;
    if (status == WARPTILE_OK) status = warptile_backward_prepare(memory_device, &wanted, &backward);
    if (status == WARPTILE_NO_KERNEL) goto done;
    if (status != WARPTILE_OK) wrong(seed, "%s", warptile_last_error());
    computed = 1;

    size_t lse_count = (size_t)(entries * heads * q_rows);
    float *d_lse = zeros(lse_count, 4);
    for (size_t i = 0; i < lse_count; i++) d_lse[i] = draw_float();
    warptile_attention_memory memory = {0};
    memory.size = sizeof memory;
    memory.q = q.memory;
    memory.k = k.memory;
    memory.v = v.memory;
    memory.out = out.memory;
    memory.lse = allocate(4 * lse_count);
    memory.query_offsets = packed ? (int32_t *)uploaded(q_at, sizeof q_at) : NULL;
    memory.key_offsets = packed ? (int32_t *)uploaded(k_at, sizeof k_at) : NULL;
    memory.alibi_slopes = desc.alibi ? (float *)uploaded(slopes, sizeof slopes) : NULL;
    memory.sinks = desc.sinks ? (float *)uploaded(sinks, sizeof sinks) : NULL;
    memory.bias = biased ? bias.memory : NULL;
    give_lists(&memory, &lists, &desc);
    memory.workspace_bytes = warptile_attention_workspace(attention);
    memory.workspace = allocate(memory.workspace_bytes);
    warptile_backward_memory gradients = {0};
    gradients.size = sizeof gradients;
    gradients.attention = &memory;
    gradients.d_out = d_out.memory;
    gradients.d_lse = wanted.d_lse ? (float *)uploaded(d_lse, 4 * lse_count) : NULL;
    gradients.dq = wanted.want_dq ? dq.found.memory : NULL;
    gradients.dk = wanted.want_dk ? dk.found.memory : NULL;
    gradients.dv = wanted.want_dv ? dv.found.memory : NULL;
    gradients.d_sinks = wanted.want_d_sinks ? (float *)d_sinks.found.memory : NULL;
    gradients.d_bias = wanted.want_d_bias ? d_bias.found.memory : NULL;
    gradients.workspace_bytes = warptile_backward_workspace(backward);
    gradients.workspace = allocate(gradients.workspace_bytes);
    if (warptile_attention_run(attention, &memory, NULL) != WARPTILE_OK) wrong(seed, "%s", warptile_last_error());
    if (warptile_backward_run(backward, &gradients, NULL) != WARPTILE_OK) wrong(seed, "%s", warptile_last_error());

    double *weights = zeros((size_t)most_k + 1, sizeof(double)), *bent = zeros((size_t)most_k + 1, sizeof(double));
    double *of_weights = zeros((size_t)most_k + 1, sizeof(double));
    for (int64_t h = 0; h < heads && desc.sinks; h++) add(&d_sinks, h, 0, 0);
    for (int b = 0; b < sequences; b++) {
        int64_t entry = packed ? 0 : b, length = k_len[b];
        for (int64_t h = 0; h < heads; h++) {
            int64_t group = h / (heads / kv_heads);
            for (int64_t j = 0; j < length; j++) {
                int64_t key = packed ? k_at[b] + j : j;
                for (int64_t d = 0; d < size; d++) add(&dk, offset(&dk.found, entry, key, group, d), 0, 0);
                for (int64_t d = 0; d < value_size; d++) add(&dv, offset(&dv.found, entry, key, group, d), 0, 0);
            }
            for (int64_t i = 0; i < q_len[b]; i++) {
                int64_t row = packed ? q_at[b] + i : i, diagonal = i;
                if (desc.diagonal == WARPTILE_DIAGONAL_BOTTOM_RIGHT) diagonal += length - q_len[b];
                if (desc.diagonal == WARPTILE_DIAGONAL_AT) diagonal += desc.diagonal_offset;
                double scale = desc.scale_given ? desc.scale : 1 / sqrt((double)size), most = -INFINITY, sum = 0;
                for (int64_t j = 0; j < length; j++) {
                    int64_t key = packed ? k_at[b] + j : j;
                    double score = 0;
                    for (int64_t d = 0; d < size; d++) score += (double)at(&q, entry, row, h, d) * at(&k, entry, key, group, d);
                    score *= scale;
                    bent[j] = 1;
                    if (desc.softcap != 0) {
                        double bend = tanh(score / desc.softcap);
                        score = desc.softcap * bend;
                        bent[j] = 1 - bend * bend;
                    }
                    if (desc.alibi) {
                        float slope = slopes[desc.alibi == WARPTILE_ALIBI_PER_HEAD ? h : b * heads + h];
                        score -= slope * fabs((double)(i + length - q_len[b] - j));
                    }
                    if (biased) score += at(&bias, b % bias_entries, i % bias_rows, h % bias_heads, j);
                    int seen = !(desc.mask == WARPTILE_MASK_CAUSAL && j > diagonal);
                    if (desc.mask == WARPTILE_MASK_WINDOW) {
                        seen = (desc.window_left < 0 || j >= diagonal - desc.window_left) &&
                               (desc.window_right < 0 || j <= diagonal + desc.window_right);
                    }
                    if (desc.block_queries) seen = seen && is_listed(&lists, h, i, j);
                    weights[j] = seen ? score : -INFINITY;
                    most = fmax(most, weights[j]);
                }
                if (desc.sinks) most = fmax(most, sinks[h]);
                for (int64_t j = 0; j < length; j++) sum += weights[j] = most > -INFINITY ? exp(weights[j] - most) : 0;
                double sink = desc.sinks ? exp(sinks[h] - most) : 0, delta = 0, rounded = 0;
                sum += sink;
                for (int64_t j = 0; j < length; j++) {
                    int64_t key = packed ? k_at[b] + j : j;
                    weights[j] = sum > 0 ? weights[j] / sum : 0;
                    of_weights[j] = 0;
                    for (int64_t d = 0; d < value_size; d++) {
                        of_weights[j] += (double)at(&d_out, entry, row, h, d) * at(&v, entry, key, group, d);
                    }
                    delta += weights[j] * of_weights[j];
                }
                // The output is rounded, and multiplied by its gradient.
                for (int64_t d = 0; d < value_size; d++) rounded += fabs((double)at(&d_out, entry, row, h, d));
                double of_lse = wanted.d_lse ? d_lse[(entry * heads + h) * q_rows + row] : 0;
                if (desc.sinks) {
                    sink /= sum;
                    add(&d_sinks, h, sink * (of_lse - delta), sink * (fabs(of_lse) + fabs(delta) + rounded));
                }
                for (int64_t d = 0; d < size; d++) add(&dq, offset(&dq.found, entry, row, h, d), 0, 0);
                for (int64_t j = 0; j < length; j++) {
                    int64_t key = packed ? k_at[b] + j : j;
                    double score = weights[j] * (of_weights[j] - delta + of_lse);
                    double of_score = weights[j] * (fabs(of_weights[j]) + fabs(delta) + fabs(of_lse) + rounded);
                    add(&d_bias, offset(&d_bias.found, b % bias_entries, i % bias_rows, h % bias_heads, j), score, of_score);
                    score *= scale * bent[j];
                    of_score *= fabs(scale);
                    for (int64_t d = 0; d < size; d++) {
                        double of_q = at(&q, entry, row, h, d), of_k = at(&k, entry, key, group, d);
                        add(&dq, offset(&dq.found, entry, row, h, d), score * of_k, of_score * fabs(of_k));
                        add(&dk, offset(&dk.found, entry, key, group, d), score * of_q, of_score * fabs(of_q));
                    }
                    for (int64_t d = 0; d < value_size; d++) {
                        double part = weights[j] * at(&d_out, entry, row, h, d);
                        add(&dv, offset(&dv.found, entry, key, group, d), part, fabs(part));
                    }
                }
            }
        }
    }
    // Roundings of the element type and, on a GPU, of approximate functions.
    double single = memory_device == WARPTILE_CPU ? 2e-5 : 1e-4;
    double unit = element == WARPTILE_F32 ? single : element == WARPTILE_F16 ? 2e-3 : 1.6e-2;
    compare(seed, "dq", &dq, (int)wanted.want_dq, adds, unit);
    compare(seed, "dk", &dk, (int)wanted.want_dk, adds, unit);
    compare(seed, "dv", &dv, (int)wanted.want_dv, adds, unit);
    compare(seed, "d_bias", &d_bias, (int)wanted.want_d_bias, adds, unit);
    compare(seed, "d_sinks", &d_sinks, (int)wanted.want_d_sinks, adds, unit);
    const void *numbers[] = {memory.lse,       memory.workspace,    memory.query_offsets, memory.key_offsets,  memory.alibi_slopes, memory.sinks,
                             gradients.d_lse, gradients.workspace, memory.block_offsets, memory.block_indices};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i]) release((void *)(uintptr_t)numbers[i]);
    }
    free(d_lse);
    free(weights);
    free(bent);
    free(of_weights);
done:
    warptile_attention_free(attention);
    warptile_backward_free(backward);
    tensor *tensors[] = {&q, &k, &v, &out, &d_out, &bias};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) drop(tensors[i]);
    gradient *all[] = {&dq, &dk, &dv, &d_bias, &d_sinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop_gradient(all[i]);
    return computed;
}

int main(int argc, char **argv) { return run_all("gradients", run, argc, argv); }
