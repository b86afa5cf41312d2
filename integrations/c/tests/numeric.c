// Random problems with every option, against a loop in double precision. `numeric [--device NUMBER] [PROBLEMS [FIRST]]`
#include "random.h"

// Returns 0 if the device has no kernel for the problem.
static int run(uint64_t seed) {
    static const uint32_t elements[] = {WARPTILE_F16, WARPTILE_BF16, WARPTILE_F32};
    static const int64_t sizes[] = {8, 24, 64, 72, 128};
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4; i++) draw(2);
    uint32_t element = elements[draw(3)];
    int sequences = 1 + (int)draw(MOST_SEQUENCES), unaligned = draw(8) == 0;
    int64_t size = sizes[draw(5)], value_size = draw(3) ? size : sizes[draw(5)];
    int64_t kv_heads = 1 + draw(2), heads = kv_heads * (1 + draw(3));
    // 0: dense, 1: packed, 2: dense with lengths, 3: pages.
    unsigned kind = draw(4);
    int64_t page_rows = 1 + draw(20), columns = 1 + draw(5), pages = 1 + draw(12);
    int64_t most_q = 1 + draw(draw(2) ? 40 : 3), most_k = kind == 3 ? columns * page_rows : 1 + draw(90);
    int32_t q_at[MOST_SEQUENCES + 1] = {0}, k_at[MOST_SEQUENCES + 1] = {0}, q_len[MOST_SEQUENCES], k_len[MOST_SEQUENCES];
    int32_t table[MOST_SEQUENCES * 5];
    for (int b = 0; b < sequences; b++) {
        q_len[b] = kind == 1 ? (int32_t)draw((unsigned)most_q + 1) : (int32_t)most_q;
        k_len[b] = kind == 0 ? (int32_t)most_k : (int32_t)draw((unsigned)most_k + 1);
        q_at[b + 1] = q_at[b] + q_len[b];
        k_at[b + 1] = k_at[b] + k_len[b];
        for (int c = 0; c < columns; c++) table[b * columns + c] = (int32_t)draw((unsigned)pages);
    }
    // Packed tensors have padding at their ends.
    int64_t entries = kind == 1 ? 1 : sequences, q_rows = kind == 1 ? q_at[sequences] + 2 : most_q;
    int64_t k_rows = kind == 1 ? k_at[sequences] + 1 : most_k;
    int step = unaligned ? 1 : 8;
    tensor q = make(element, entries, q_rows, heads, size, step);
    uint32_t of_keys = draw(5) == 0 ? WARPTILE_E4M3 : element;
    int key_step = of_keys == WARPTILE_E4M3 ? 2 * step : step;
    int64_t k_entries = kind == 3 ? pages : entries, entry_rows = kind == 3 ? page_rows : k_rows;
    tensor k = make(of_keys, k_entries, entry_rows, kv_heads, size, key_step);
    tensor v = make(of_keys, k_entries, entry_rows, kv_heads, value_size, key_step);
    float scales[2][2] = {{1, 1}, {1, 1}};
    tensor out = make(element, entries, q_rows, heads, value_size, step);

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
    desc.sinks = draw(4) == 0;
    desc.want_lse = draw(2);
    desc.unaligned_addresses = (uint32_t)unaligned;
    desc.packed_queries = desc.packed_keys = kind == 1;
    desc.sequences = kind == 1 ? sequences : 0;
    desc.key_lengths = kind >= 2;
    desc.table_columns = kind == 3 ? columns : 0;
    if (of_keys == WARPTILE_E4M3) {
        desc.cache_element = WARPTILE_E4M3;
        desc.k_scales = draw(2) ? (uint32_t)kv_heads : draw(2);
        desc.v_scales = draw(2) ? (uint32_t)kv_heads : draw(2);
        for (int i = 0; i < 4; i++) scales[i / 2][i % 2] = 0.75f + 0.25f * draw_float();
    }
    tensor bias = {0}, key_mask = {0};
    if (kind != 1 && kind != 3 && draw(4) == 0) {
        uint32_t of_bias = draw(2) ? element : WARPTILE_F32;
        desc.bias_element = of_bias == element ? 0 : of_bias;
        bias = make(of_bias, draw(2) ? 1 : sequences, most_q, draw(2) ? 1 : heads, most_k, 1);
        desc.bias = bias.layout;
    }
    if (kind != 1 && kind != 3 && draw(4) == 0) {
        key_mask = make(WARPTILE_F16, sequences, 1, 1, most_k, 1);
        uint8_t *bytes = (uint8_t *)key_mask.host;
        for (int64_t i = 0; i < key_mask.reach; i++) bytes[i] = draw(4) != 0;
        upload(key_mask.memory, bytes, (size_t)key_mask.reach);
        desc.key_mask = key_mask.layout;
    }
    int64_t longest_k = kind == 1 ? 0 : most_k;
    for (int b = 0; b < sequences; b++)
        if (longest_k < k_len[b]) longest_k = k_len[b];
    block_lists lists;
    draw_lists(&lists, &desc, heads, most_q, longest_k);
    float slopes[MOST_SEQUENCES * 6], sinks[6];
    for (int i = 0; i < MOST_SEQUENCES * 6; i++) slopes[i] = 0.1f * (draw_float() + 1);
    for (int i = 0; i < 6; i++) sinks[i] = draw_float();

    warptile_attention *attention = NULL;
    int status = warptile_attention_prepare(memory_device, &desc, &attention), computed = 0;
    if (status == WARPTILE_NO_KERNEL) goto done;
    if (status != WARPTILE_OK) wrong(seed, "%s", warptile_last_error());

    size_t lse_count = (size_t)(entries * heads * q_rows);
    float *lse = malloc(4 * lse_count);
    void *before = malloc((size_t)out.reach * size_of(element));
    if (!lse || !before) fail("malloc", "out of memory");
    memcpy(before, out.host, (size_t)out.reach * size_of(element));
    warptile_attention_memory memory = {0};
    memory.size = sizeof memory;
    memory.q = q.memory;
    memory.k = k.memory;
    memory.v = v.memory;
    memory.out = out.memory;
    memory.lse = desc.want_lse ? (float *)allocate(4 * lse_count) : NULL;
    memory.query_offsets = kind == 1 ? (int32_t *)uploaded(q_at, sizeof q_at) : NULL;
    memory.key_offsets = kind == 1 ? (int32_t *)uploaded(k_at, sizeof k_at) : NULL;
    memory.key_lengths = kind >= 2 ? (int32_t *)uploaded(k_len, sizeof k_len) : NULL;
    memory.block_table = kind == 3 ? (int32_t *)uploaded(table, sizeof table) : NULL;
    memory.alibi_slopes = desc.alibi ? (float *)uploaded(slopes, sizeof slopes) : NULL;
    memory.sinks = desc.sinks ? (float *)uploaded(sinks, sizeof sinks) : NULL;
    memory.bias = bias.memory;
    memory.key_mask = (uint8_t *)key_mask.memory;
    give_lists(&memory, &lists, &desc);
    memory.k_scale = of_keys == WARPTILE_E4M3 ? (float *)uploaded(scales[0], sizeof scales[0]) : NULL;
    memory.v_scale = of_keys == WARPTILE_E4M3 ? (float *)uploaded(scales[1], sizeof scales[1]) : NULL;
    memory.workspace_bytes = warptile_attention_workspace(attention);
    memory.workspace = allocate(memory.workspace_bytes);
    if (warptile_attention_run(attention, &memory, NULL) != WARPTILE_OK) wrong(seed, "%s", warptile_last_error());
    download(out.host, out.memory, (size_t)out.reach * size_of(element));
    if (memory.lse) download(lse, memory.lse, 4 * lse_count);
    computed = 1;

    // A GPU's exponentials and hyperbolic tangents are approximate.
    double single = memory_device == WARPTILE_CPU ? 2e-5 : 1e-4;
    double tolerance = element == WARPTILE_F32 ? single : element == WARPTILE_F16 ? 2e-3 : 1.6e-2;
    double *weights = malloc(sizeof(double) * (size_t)(most_k + 1));
    uint8_t *written = calloc((size_t)out.reach, 1);
    if (!weights || !written) fail("malloc", "out of memory");
    for (int b = 0; b < sequences; b++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < q_len[b]; i++) {
                int64_t group = h / (heads / kv_heads), entry = kind == 1 ? 0 : b, row = kind == 1 ? q_at[b] + i : i;
                int64_t length = k_len[b], diagonal = i;
                if (desc.diagonal == WARPTILE_DIAGONAL_BOTTOM_RIGHT) diagonal += length - q_len[b];
                if (desc.diagonal == WARPTILE_DIAGONAL_AT) diagonal += desc.diagonal_offset;
                double k_scale = scales[0][desc.k_scales > 1 ? group : 0], v_scale = scales[1][desc.v_scales > 1 ? group : 0];
                double scale = desc.scale_given ? desc.scale : 1 / sqrt((double)size), most = -INFINITY, sum = 0;
                for (int64_t j = 0; j < length; j++) {
                    int64_t page = kind == 3 ? table[b * columns + j / page_rows] : entry;
                    int64_t key = kind == 3 ? j % page_rows : kind == 1 ? k_at[b] + j : j;
                    double score = 0;
                    for (int64_t d = 0; d < size; d++) score += (double)at(&q, entry, row, h, d) * at(&k, page, key, group, d);
                    score *= scale * k_scale;
                    if (desc.softcap != 0) score = desc.softcap * tanh(score / desc.softcap);
                    if (desc.alibi) {
                        float slope = slopes[desc.alibi == WARPTILE_ALIBI_PER_HEAD ? h : b * heads + h];
                        score -= slope * fabs((double)(i + length - q_len[b] - j));
                    }
                    if (bias.host) {
                        const int64_t *shape = bias.layout.shape;
                        score += at(&bias, shape[0] == 1 ? 0 : b, i, shape[2] == 1 ? 0 : h, j);
                    }
                    int seen = !(desc.mask == WARPTILE_MASK_CAUSAL && j > diagonal);
                    if (desc.mask == WARPTILE_MASK_WINDOW) {
                        seen = (desc.window_left < 0 || j >= diagonal - desc.window_left) &&
                               (desc.window_right < 0 || j <= diagonal + desc.window_right);
                    }
                    if (desc.block_queries) seen = seen && is_listed(&lists, h, i, j);
                    if (key_mask.host) seen = seen && ((uint8_t *)key_mask.host)[offset(&key_mask, b, 0, 0, j)];
                    weights[j] = seen ? score : -INFINITY;
                    most = fmax(most, weights[j]);
                }
                if (desc.sinks) most = fmax(most, sinks[h]);
                for (int64_t j = 0; j < length; j++) sum += weights[j] = most > -INFINITY ? exp(weights[j] - most) : 0;
                if (desc.sinks) sum += exp(sinks[h] - most);
                for (int64_t d = 0; d < value_size; d++) {
                    double expected = 0, found = at(&out, entry, row, h, d);
                    for (int64_t j = 0; j < length && sum > 0; j++) {
                        int64_t page = kind == 3 ? table[b * columns + j / page_rows] : entry;
                        int64_t key = kind == 3 ? j % page_rows : kind == 1 ? k_at[b] + j : j;
                        expected += weights[j] / sum * v_scale * at(&v, page, key, group, d);
                    }
                    written[offset(&out, entry, row, h, d)] = 1;
                    if (!(fabs(found - expected) <= tolerance)) {
                        wrong(seed, "out[%d][%d][%d][%d] is %g, not %g", b, (int)i, (int)h, (int)d, found, expected);
                    }
                }
                if (memory.lse) {
                    double expected = sum > 0 ? most + log(sum) : -INFINITY, found = lse[(entry * heads + h) * q_rows + row];
                    if (found != expected && !(fabs(found - expected) <= 2e-3)) wrong(seed, "lse is %g, not %g", found, expected);
                }
            }
        }
    }
    for (int64_t i = 0; i < out.reach; i++) {
        size_t bytes = size_of(element);
        if (!written[i] && memcmp((char *)out.host + (size_t)i * bytes, (char *)before + (size_t)i * bytes, bytes) != 0) {
            wrong(seed, "element %d of out belongs to no row, but was written", (int)i);
        }
    }
    const void *numbers[] = {memory.lse,         memory.query_offsets, memory.key_offsets, memory.key_lengths,
                             memory.block_table, memory.alibi_slopes,  memory.sinks,       memory.workspace,
                             memory.k_scale,     memory.v_scale,       memory.block_offsets, memory.block_indices};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i]) release((void *)(uintptr_t)numbers[i]);
    }
    free(lse);
    free(before);
    free(weights);
    free(written);
done:
    warptile_attention_free(attention);
    tensor *tensors[] = {&q, &k, &v, &out, &bias, &key_mask};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) drop(tensors[i]);
    return computed;
}

int main(int argc, char **argv) { return run_all("numeric", run, argc, argv); }
