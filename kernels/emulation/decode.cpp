// Random problems for the kernels on mma.sync: their C++ on the CPU against float64. See README.md.
#include "shim.h"

#include "guarded.h"

#include "debug/checked.cuh"
#include "forward/mma.cuh"
#include "forward/mma_tile.cuh"
#include "forward/mma_tile_dropout_unaligned.cuh"
#include "random.h"

#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>

using namespace warptile;

namespace warptile {
void grid_dependency_wait()
{
    has_waited[threadIdx.x] = true;
    if (at_predecessors_end) at_predecessors_end();
}
} // namespace warptile

namespace {

// What has failed of the asserts of launches that debug images have.
const char* failed_assert = nullptr;

} // namespace

void __assertfail(const char* message, const char*, unsigned, const char*, size_t)
{
    if (!failed_assert) failed_assert = message;
}

namespace {

// The longest that a problem may take.
constexpr unsigned SECONDS = 300;

// CTAs of a cluster.
template <class Traits> constexpr int CLUSTER_OF = 1;
template <class Traits>
    requires(Traits::Schedule::SCHEDULE == SCHEDULE_CLUSTER_TILE)
constexpr int CLUSTER_OF<Traits> = Traits::CLUSTER;

// What problems depend on of a kernel's traits, as numbers: problems are compiled for each pair of types, not for each kernel.
template <class Element_, class Keys_> struct Kernel {
    using Element = Element_;
    using Keys = Keys_;
    int head_dim, block_m, block_n, warps, threads, shared_bytes, cluster;
    int part_in_cluster_at; // of kernels with a cluster for each tile
    unsigned features;
    bool shares_keys, drops;
    void (*run)(const typename Keys::Block& block, const ForwardDropout& dropping_block);

    // Whether an image's problems may have one of these.
    bool has(unsigned some) const { return features & some; }
    // With none of what the host does not know of sequences they are dense.
    bool is_dense() const { return !has(FEATURE_PACKED | FEATURE_DEVICE_LENGTHS | FEATURE_PAGED); }
};

template <class Traits> void attention(const typename Traits::Keys::Block& block, const ForwardDropout& dropping_block)
{
    if constexpr (drops<Traits>()) {
        check_launch<Traits>(dropping_block.forward);
        tile_attention<Traits>(dropping_block.forward);
    } else {
        check_launch<Traits>(block);
        if constexpr (Traits::Schedule::SCHEDULE != SCHEDULE_ONE_GROUP_TILE)
            mma_attention<Traits>(block);
        else
            tile_attention<Traits>(block);
    }
}

template <class Traits> Kernel<typename Traits::Element, typename Traits::Keys> kernel_of()
{
    static_assert(Traits::SHARED_BYTES <= sizeof warptile::shared);
    constexpr int CLUSTER = CLUSTER_OF<Traits>;
    int part_in_cluster_at = 0;
    if constexpr (CLUSTER > 1) part_in_cluster_at = Traits::part_in_cluster_at();
    return {Traits::HEAD_DIM, Traits::BLOCK_M, Traits::BLOCK_N, Traits::WARPS, Traits::THREADS, Traits::SHARED_BYTES, CLUSTER, part_in_cluster_at,
            Traits::FEATURES, Traits::Schedule::SHARES_KEYS, drops<Traits>(), attention<Traits>};
}

// One problem with all the memory that its block points to, which is as large as the library makes it.
template <class Kernel> struct Problem {
    using Element = typename Kernel::Element;
    using Keys = typename Kernel::Keys;
    using Key = typename Keys::Element;
    static constexpr bool HAS_SCALES = !std::is_same_v<Key, Element>;
    // Rounding weights and the output moves sums of numbers around 1 by less.
    static constexpr double TOLERANCE = std::is_same_v<Element, __half> ? 6e-3 : 4e-2;

    const Kernel kernel;
    int batch, kv_heads, group, heads, head_dim, value_dim, query_len, key_len, grid;
    int clusters = 1; // of each tile: the grid's second dimension
    std::vector<Element> q;
    std::vector<Key> k, v;
    float scales[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}}; // of keys and of values, for each key/value head
    std::vector<float> sinks, slopes;
    std::vector<int> keys, queries; // as they are to be understood
    bool packs_queries = false, packs_keys = false;
    std::vector<int> first_key, first_query; // of each sequence, among all rows
    int key_rows, query_rows;                // in all
    Memory<Element> device_q, out;
    Memory<Key> device_k, device_v;
    Memory<float> device_scales[2];
    Memory<float> lse, parts;
    Memory<int> key_lengths, query_lengths; // as the device has them, also out of range
    Memory<int> key_offsets, query_offsets;
    Memory<int> table;
    Memory<Element> bias;
    Memory<unsigned char> key_mask;
    Memory<float> wide_bias;
    Memory<unsigned> semaphores, counter;
    typename Keys::Block whole_block = {};
    // Of images with dropout another block is the whole one.
    ForwardDropout dropping_block = {};
    Memory<unsigned> dropout_state;
    static Forward& forward_of(Problem& problem)
    {
        return problem.kernel.drops ? problem.dropping_block.forward : const_cast<Forward&>(Keys::forward(problem.whole_block));
    }
    Forward& block = forward_of(*this);
    bool writes_late = false; // see `write_late`
    bool are_hugely_negative = false;
    int behind = 0; // numbers behind tensors whose rows do not start at multiples of 16 bytes

    // `reads_ahead`: with what is read while the launch before ends, where a schedule does that.
    Problem(const Kernel& kernel, Random& random, bool reads_ahead) : kernel(kernel)
    {
        // Of one head's keys there may be so many parts that they are added up in groups.
        const bool has_many_parts = kernel.shares_keys && kernel.block_n <= 64 && random.one_in(4);
        // Of a CTA there may be so many groups that the second one is brought to L2, too.
        const bool has_many_groups = !kernel.has(FEATURE_PACKED) && kernel.block_n <= 64 && !has_many_parts && random.one_in(3);
        const bool has_many_keys = has_many_parts || has_many_groups;
        // There may be more sequences than a CTA has threads, and than it keeps lengths of.
        const bool has_many_sequences = !has_many_keys && random.one_in(30);
        batch = has_many_keys ? 1 : has_many_sequences ? random.between(120, 600) : random.between(1, 5);
        kv_heads = has_many_keys || has_many_sequences ? 1 : random.between(1, 4);
        group = random.between(1, has_many_sequences ? 2 : 6);
        heads = kv_heads * group;
        head_dim = CHUNK<Key> * random.between(1, kernel.head_dim / CHUNK<Key>);
        value_dim = random.one_in(2) ? head_dim : CHUNK<Key> * random.between(1, kernel.head_dim / CHUNK<Key>);
        query_len = has_many_sequences ? 1 : random.between(1, std::max(5, kernel.block_m / 3));
        key_len = has_many_keys        ? kernel.block_n * random.between(36, 50) - random.between(0, kernel.block_n)
                  : has_many_sequences ? random.between(0, 40)
                                       : random.between(0, 700);
        grid = has_many_parts ? random.between(50, 150) : has_many_groups ? 1 : random.between(1, 7);
        block.heads = heads;
        block.kv_heads = kv_heads;
        block.head_dim = head_dim;
        block.value_dim = value_dim;
        Sequences& sequences = block.sequences;
        sequences.batch = batch;
        sequences.query_len = query_len;
        sequences.key_len = key_len;
        set_lengths(random, reads_ahead && (kernel.shares_keys || kernel.cluster > 1));
        q = random.normals<Element>((size_t)query_rows * heads * head_dim);
        if (!q.empty() && random.one_in(3)) q[(size_t)random.between(0, query_rows * heads - 1) * head_dim] = NOT_A_NUMBER<Element>;
        if constexpr (HAS_SCALES) set_scales(random);
        k = quantized(random, scales[0], head_dim);
        v = quantized(random, scales[1], value_dim);
        if constexpr (HAS_SCALES)
            if (random.one_in(8)) spoil_key_scale(random.between(0, kv_heads - 1));
        if (kernel.has(FEATURE_UNALIGNED) && random.one_in(3)) behind = 1;
        device_q = guarded(beginning_in_between(q));
        out = guarded(std::vector<Element>((size_t)query_rows * heads * value_dim + behind));
        lse = guarded(std::vector<float>((size_t)query_rows * heads));
        const long long query_row = (long long)heads * head_dim, out_row = (long long)heads * value_dim;
        block.q = {device_q->data(), packs_queries ? 0 : query_len * query_row, query_row, head_dim};
        block.out = {out->data(), packs_queries ? 0 : query_len * out_row, out_row, value_dim};
        block.lse = lse->data();
        block.lse_batch = packs_queries ? 0 : heads * query_len;
        block.lse_head = packs_queries ? query_rows : query_len;
        set_scoring(random);
        if (random.one_in(4)) set_hugely_negative(random);
        if (kernel.has(FEATURE_PAGED) && !packs_keys && random.one_in(3)) {
            set_pages(random);
        } else {
            device_k = guarded(beginning_in_between(k));
            device_v = guarded(beginning_in_between(v));
            block.k = {device_k->data(), packs_keys ? 0 : key_len * key_row(), key_row(), head_dim};
            block.v = {device_v->data(), packs_keys ? 0 : key_len * value_row(), value_row(), value_dim};
        }
        if (may_be_read_ahead(sequences, block.pages)) sequences.ragged |= READ_AHEAD;
        set_work(random);
    }

    void set_scales(Random& random)
    {
        KeyScales& block = whole_block.scales;
        const float* lists[2];
        int steps[2];
        for (int i = 0; i < 2; i++) {
            steps[i] = random.between(0, 1);
            std::vector<float> list(steps[i] ? kv_heads : 1);
            for (float& scale : list) scale = 0.01f * random.between(1, 99);
            for (int head = 0; head < kv_heads; head++) scales[i][head] = list[head * steps[i]];
            device_scales[i] = guarded(list);
            lists[i] = device_scales[i]->data();
        }
        block = {lists[0], lists[1], steps[0], steps[1]};
    }
    // Only a device can hold such a scale; the keys stay numbers.
    void spoil_key_scale(int head)
    {
        const int step = whole_block.scales.k_step;
        (*device_scales[0])[head * step] = NAN;
        for (int other = 0; other < kv_heads; other++)
            if (other * step == head * step) scales[0][other] = NAN;
    }
    // Normal numbers, each divided by its head's scale. What no sequence owns must never be seen.
    std::vector<Key> quantized(Random& random, const float (&scales)[4], int dim) const
    {
        const size_t row = (size_t)kv_heads * dim;
        std::vector<Key> all(key_rows * row, NOT_A_NUMBER<Key>);
        for (int b = 0; b < batch; b++)
            for (size_t i = first_key[b] * row; i < (first_key[b] + keys[b]) * row; i++)
                all[i] = rounded<Key>(random.normal() / scales[i / dim % kv_heads]);
        return all;
    }

    // As `with_ragged` in crates/spec/src/abi.rs.
    static bool may_be_read_ahead(const Sequences& sequences, const Pages& pages)
    {
        return (sequences.key_lengths || pages.table) && !sequences.key_offsets && !sequences.query_offsets && !sequences.query_lengths;
    }

    // Memory ends with a page, so with one number more it does not begin at a multiple of 16 bytes.
    template <class T> std::vector<T> beginning_in_between(std::vector<T> numbers) const
    {
        numbers.resize(numbers.size() + behind, NOT_A_NUMBER<T>);
        return numbers;
    }

    long long key_row() const { return (long long)kv_heads * head_dim; }
    long long value_row() const { return (long long)kv_heads * value_dim; }

    void set_lengths(Random& random, bool reads_ahead)
    {
        Sequences& sequences = block.sequences;
        keys.assign(batch, key_len);
        queries.assign(batch, query_len);
        for (int b = 0; b < batch; b++) {
            first_key.push_back(b * key_len);
            first_query.push_back(b * query_len);
        }
        key_rows = batch * key_len;
        query_rows = batch * query_len;
        const auto pack = [&](std::vector<int>& first, std::vector<int>& lengths, int& rows, const int*& pointer) {
            std::vector<int> offsets(1, 0);
            for (int b = 0; b < batch; b++) {
                lengths[b] = random.one_in(6) ? 0 : random.between(0, lengths[b]);
                first[b] = offsets.back();
                offsets.push_back(first[b] + lengths[b]);
            }
            rows = offsets.back() + random.between(0, 9);
            Memory<int> memory = guarded(offsets);
            pointer = memory->data();
            return memory;
        };
        if (kernel.has(FEATURE_PACKED) && !reads_ahead && random.one_in(3)) {
            packs_queries = true;
            query_offsets = pack(first_query, queries, query_rows, sequences.query_offsets);
            sequences.ragged |= RAGGED;
            if (!random.one_in(4)) {
                packs_keys = true;
                key_offsets = pack(first_key, keys, key_rows, sequences.key_offsets);
                sequences.ragged |= RAGGED | RAGGED_KEYS;
            }
        }
        sequences.query_rows = packs_queries ? query_rows : query_len;
        sequences.key_rows = packs_keys ? key_rows : key_len;
        if (!kernel.has(FEATURE_DEVICE_LENGTHS)) return;
        const auto shorten = [&](std::vector<int>& lengths, const int*& pointer, auto any) {
            std::vector<int> given;
            for (int& length : lengths) {
                given.push_back(any());
                length = std::min(length, std::max(given.back(), 0));
            }
            Memory<int> memory = guarded(given);
            pointer = memory->data();
            return memory;
        };
        if (reads_ahead || random.one_in(2)) {
            key_lengths = shorten(keys, sequences.key_lengths, [&] {
                return random.one_in(4) ? random.between(-5, key_len + 50) : random.between(0, key_len);
            });
            sequences.ragged |= RAGGED | RAGGED_KEYS;
        }
        if (!reads_ahead && random.one_in(3)) {
            query_lengths = shorten(queries, sequences.query_lengths, [&] { return random.between(-1, query_len + 1); });
            sequences.ragged |= RAGGED;
        }
    }

    void set_scoring(Random& random)
    {
        Scoring& scoring = block.scoring;
        const bool window = random.one_in(4), causal = random.one_in(2);
        scoring.scale = (kernel.has(FEATURE_NEGATIVE_SCALE) && random.one_in(4) ? -1 : 1) / sqrtf(head_dim);
        scoring.softcap = kernel.has(FEATURE_SOFTCAP) && random.one_in(4) ? 5.0f : 0.0f;
        scoring.window_left = window ? random.between(0, 200) : WINDOW_UNLIMITED;
        scoring.window_right = causal ? 0 : window ? random.between(0, 100) : WINDOW_UNLIMITED;
        put_diagonal(random, scoring, query_len, key_len);
        if (kernel.has(FEATURE_SINKS) && random.one_in(3)) {
            for (int head = 0; head < heads; head++) sinks.push_back(random.normal());
            if (random.one_in(4)) sinks[random.between(0, heads - 1)] = NAN;
            scoring.sinks = sinks.data();
        }
        if (kernel.has(FEATURE_ALIBI) && random.one_in(4)) {
            scoring.slopes_batch = random.one_in(2) ? heads : 0;
            for (int i = 0; i < heads * (scoring.slopes_batch ? batch : 1); i++) slopes.push_back(0.1f * fabsf(random.normal()));
            scoring.slopes = slopes.data();
        }
        if (packs_queries) return; // tensors of scores go with dense sequences
        if (kernel.has(FEATURE_BIAS) && random.one_in(2)) {
            bias = guarded(random.normals<Element>(
                reach_of_scores(random, block, scoring.bias_batch, scoring.bias_head, scoring.bias_row, scoring.bias_key)));
            scoring.bias = bias->data();
            if (kernel.has(FEATURE_BIAS_F32) && random.one_in(2)) {
                // The same numbers.
                std::vector<float> numbers;
                for (size_t i = 0; i < bias->size(); i++) numbers.push_back(widen((*bias)[i]));
                wide_bias = guarded(numbers);
                scoring.bias = wide_bias->data();
                scoring.padding = 1;
            }
        }
        if (kernel.has(FEATURE_KEY_MASK) && random.one_in(2)) {
            std::vector<unsigned char> mask(reach_of_scores(random, block, scoring.mask_batch, scoring.mask_head, scoring.mask_row, scoring.mask_key));
            const int shown = random.one_in(3) ? key_len / 2 : random.between(1, 4); // padding behind so many keys, or one of so many keys hidden
            for (size_t i = 0; i < mask.size(); i++) mask[i] = shown > 4 ? (int)i < shown : !random.one_in(shown);
            key_mask = guarded(mask);
            scoring.key_mask = key_mask->data();
        }
    }

    // Of a row of keys.
    int number_in_sequence(int row) const
    {
        if (!packs_keys) return row % key_len;
        return row - *std::prev(std::upper_bound(first_key.begin(), first_key.end(), row));
    }

    // Scores of equal keys near the lowest number there is, also below it; those of the keys before a random one are 0.
    void set_hugely_negative(Random& random)
    {
        Scoring& scoring = block.scoring;
        std::fill(q.begin(), q.end(), rounded<Element>(1));
        std::copy(q.begin(), q.end(), device_q->data());
        const int first = random.one_in(3) ? random.between(0, key_len) : 0;
        for (size_t i = 0; i < k.size(); i++)
            if (widen(k[i]) == widen(k[i])) k[i] = rounded<Key>(number_in_sequence(i / key_row()) < first ? 0 : -1);
        scoring.softcap = 0;
        scoring.slopes = nullptr;
        scoring.sinks = nullptr;
        scoring.bias = nullptr;
        scoring.key_mask = nullptr;
        if (random.one_in(2)) scoring.window_left = scoring.window_right = WINDOW_UNLIMITED;
        scoring.scale = MAX_FLOAT / head_dim * 0.1f * random.between(7, 10);
        are_hugely_negative = true;
    }

    // The same keys and values in pages of random numbers. Rows of nobody are NaN, entries of no key are out of range.
    void set_pages(Random& random)
    {
        const int rows = random.one_in(2) ? 16 << random.between(0, 2) : random.between(1, 40);
        const int columns = (key_len + rows - 1) / rows, count = batch * columns + random.between(0, 3) + 1;
        std::vector<int> numbers(count);
        for (int i = 0; i < count; i++) numbers[i] = i;
        random.shuffle(numbers);
        device_k = guarded(std::vector<Key>((size_t)count * rows * key_row() + behind, NOT_A_NUMBER<Key>));
        device_v = guarded(std::vector<Key>((size_t)count * rows * value_row() + behind, NOT_A_NUMBER<Key>));
        table = guarded(std::vector<int>((size_t)batch * (columns + 1) - 1, 0x7fffffff)); // the last row's last entry is missing
        for (int b = 0; b < batch; b++)
            for (int key = 0; key < keys[b]; key++) {
                const int page = numbers[b * columns + key / rows];
                (*table)[b * (columns + 1) + key / rows] = page;
                const size_t from = (size_t)b * key_len + key, to = (size_t)page * rows + key % rows;
                std::copy_n(&k[from * key_row()], key_row(), &(*device_k)[to * key_row()]);
                std::copy_n(&v[from * value_row()], value_row(), &(*device_v)[to * value_row()]);
            }
        block.pages = {table->data(), columns + 1, rows, count};
        // As `Pages::of` in crates/spec/src/abi.rs.
        while (1 << block.pages.rows_log < rows) block.pages.rows_log++;
        block.pages.rows_inverse = (unsigned)(((1ull << (31 + block.pages.rows_log)) + rows - 1) / rows);
        block.k = {device_k->data(), rows * key_row(), key_row(), head_dim};
        block.v = {device_v->data(), rows * value_row(), value_row(), value_dim};
    }

    void set_work(Random& random)
    {
        if (kernel.shares_keys) {
            if (kernel.has(FEATURE_PACKED) && random.one_in(3)) block.work.keys_per_split = kernel.block_n << random.between(0, 1);
            // Some divisor of the heads, and as many CTAs for each.
            int side_by_side = random.between(1, kv_heads);
            while (kv_heads % side_by_side != 0) side_by_side--;
            block.work.side_by_side = side_by_side;
            block.work.query_tiles = row_tiles();
            block.work.tiles = grid;
            block.work.heads_at_once = 1;
            grid = std::min<size_t>((grid + side_by_side - 1) / side_by_side, units() / side_by_side) * side_by_side;
        } else {
            // Those of packed queries are numbered across the sequences.
            block.work.query_tiles = packs_queries ? query_rows * group / kernel.block_m + batch : row_tiles();
            const int heads_with_tiles = packs_queries ? kv_heads : kv_heads * batch;
            block.work.tiles = block.work.query_tiles * heads_with_tiles;
            clusters = kernel.cluster > 1 ? random.between(1, 3) : 1;
            grid = block.work.tiles * kernel.cluster;
            block.work.heads_at_once = random.between(1, heads_with_tiles);
        }
        const bool shares = kernel.shares_keys || clusters > 1;
        const size_t places = !shares ? 0 : block.work.keys_per_split ? units() : kernel.shares_keys ? 2 * grid : grid * clusters;
        parts = guarded(std::vector<float>(places * kernel.block_m * (kernel.head_dim + 2), NAN));
        if (kernel.drops) {
            dropout_state = guarded(std::vector<unsigned>{(unsigned)random.between(0, 1 << 30), 5, 7, 0, 3, 1, 64, 96});
            dropping_block.dropout = {dropout_state->data(), 6554, 65536.0f / (65536 - 6554)};
        }
        semaphores = guarded(std::vector<unsigned>(shares ? grid : 0));
        counter = guarded(std::vector<unsigned>(kernel.shares_keys));
        block.work.counter = counter->data();
        block.work.semaphores = semaphores->data();
        block.work.partials = parts->data();
    }

    int row_tiles() const { return (query_len * group + kernel.block_m - 1) / kernel.block_m; }

    // Units of work at most, as `Sides` in crates/attention/src/plan/shared_keys.rs counts them.
    size_t units() const
    {
        const Scoring& scoring = block.scoring;
        const long long each = block.work.keys_per_split ? block.work.keys_per_split : kernel.block_n;
        const auto key = [&](long long at) { return std::clamp(at, 0ll, (long long)key_len); };
        long long end_key = key_len, among = (long long)query_len + scoring.window_left;
        if (scoring.align_top_left) {
            if (scoring.window_right != WINDOW_UNLIMITED) end_key = key((long long)query_len + scoring.window_right);
            among = std::max(end_key - key(-(long long)scoring.window_left), 0ll);
        }
        long long of_tile = (end_key + each - 1) / each;
        if (scoring.window_left != WINDOW_UNLIMITED) of_tile = std::min(of_tile, (among + each - 1) / each + 1);
        return (size_t)std::max(of_tile, 1ll) * row_tiles() * batch * kv_heads;
    }

    // A CTA after the other, in random order; the threads of each in turns.
    void launch(Random& random)
    {
        out->fill(NOT_A_NUMBER<Element>);
        blockDim.x = kernel.threads;
        gridDim.x = grid;
        gridDim.y = clusters;
        failed_assert = nullptr;
        std::vector<int> order(grid);
        for (int i = 0; i < grid; i++) order[i] = i;
        random.shuffle(order);
        const int cluster_size = kernel.cluster;
        if (cluster_size > 1) {
            std::vector<int> numbers(grid * clusters / cluster_size), twice;
            for (size_t i = 0; i < numbers.size(); i++) numbers[i] = i;
            random.shuffle(numbers);
            for (int cluster : numbers)
                for (int pass = 0; pass < 2; pass++)
                    for (int i = 0; i < cluster_size; i++) twice.push_back(cluster * cluster_size + i);
            order = twice;
        }
        int turn = 0;
        for (int cta : order) {
            blockIdx.x = cta % grid;
            blockIdx.y = cta / grid;
            const bool leaves = cluster_size > 1 && turn++ / cluster_size % 2 == 0;
            fill_shared(random);
            if (writes_late) write_late(random, (Late)(random.between(LENGTHS, BOTH)));
            Barrier all(kernel.threads, true);
            cta_bar = &all;
            std::vector<Barrier> of_warps(kernel.warps, Barrier(32, false));
            for (int warp = 0; warp < kernel.warps; warp++) warp_bar[warp] = &of_warps[warp];
            std::fill(std::begin(copies), std::end(copies), Copies());
            std::fill(std::begin(has_waited), std::end(has_waited), false);
            const std::vector<unsigned> counted(semaphores->data(), semaphores->data() + semaphores->size());
            valid_barriers.clear();
            std::fill(std::begin(cluster_arrivals), std::end(cluster_arrivals), 0);
            std::fill(std::begin(cluster_waits), std::end(cluster_waits), 0);
            Threads::run(kernel.threads, random.any(), [this] {
                kernel.run(whole_block, dropping_block);
            });
            expect_no_copies();
            at_predecessors_end = nullptr;
            // A cluster of several CTAs meets twice, whatever each of them has found of its tile: when parts are there, and at the end.
            for (int thread = 0; thread < kernel.threads; thread++)
                if (cluster_waits[thread] != (cluster_size > 1 ? 2 : 0) || cluster_arrivals[thread] != cluster_waits[thread])
                    end("a thread does not come to its cluster's barriers\n");
            if (cluster_size > 1) {
                if (!leaves) continue;
                // The first time only what lies in shared memory counts.
                std::copy(counted.begin(), counted.end(), semaphores->data());
                const unsigned char* const part = warptile::shared + kernel.part_in_cluster_at;
                std::vector<unsigned char>& left = parts_of_cta[cta % cluster_size];
                left.assign(kernel.part_in_cluster_at, 0);
                left.insert(left.end(), part, part + kernel.block_m * (kernel.head_dim + 2) * 4);
            }
        }
    }

    // What nobody has written looks like something: numbers as lengths and indices have them, ends of lists, anything.
    void fill_shared(Random& random) const
    {
        const int kind = random.between(0, 3);
        for (int at = 0; at < kernel.shared_bytes; at += sizeof(int)) {
            const int word = kind == 0 ? random.between(0, 4) : kind == 1 ? random.between(-1, 700) : random.any();
            memcpy(warptile::shared + at, &word, sizeof word);
        }
    }

    enum Late { LENGTHS, TABLE, BOTH };
    // The launch before writes queries, keys, values, lengths and numbers of pages, until a thread has waited for it; before, they or
    // some of them are others.
    void write_late(Random& random, Late late)
    {
        struct Write {
            int *to, value;
        };
        std::vector<Write> writes;
        const auto spoil = [&](const Memory<int>& numbers, int bound) {
            if (!numbers || numbers->size() == 0) return;
            const int some = random.one_in(3) ? 1000 : random.between(1, 9); // hardly one besides, or many
            const size_t always = random.between(0, numbers->size() - 1);
            for (size_t i = 0; i < numbers->size(); i++)
                if (i == always || random.one_in(some)) {
                    writes.push_back({&(*numbers)[i], (*numbers)[i]});
                    (*numbers)[i] = random.one_in(3) ? 0 : random.between(-3, bound);
                }
        };
        if (late != TABLE || !table) spoil(key_lengths, key_len + 9);
        if (late != TABLE || !table) spoil(query_lengths, query_len + 3);
        if (late != TABLE || !table) spoil(key_offsets, key_rows + 9);
        if (late != TABLE || !table) spoil(query_offsets, query_rows + 3);
        if (late != LENGTHS) spoil(table, block.pages.count + 3);
        const auto hidden = [](auto& memory) {
            std::vector was(memory->data(), memory->data() + memory->size());
            memory->fill(rounded<typename decltype(was)::value_type>(1));
            return was;
        };
        at_predecessors_end = [this, writes, q = hidden(device_q), k = hidden(device_k), v = hidden(device_v), done = false]() mutable {
            if (done) return;
            done = true;
            for (const Write& write : writes) *write.to = write.value;
            std::copy(q.begin(), q.end(), device_q->data());
            std::copy(k.begin(), k.end(), device_k->data());
            std::copy(v.begin(), v.end(), device_v->data());
        };
    }

    // What is wrong with the result; empty if nothing is.
    std::string wrong() const
    {
        const std::string harm = harm_done();
        if (!harm.empty()) return harm;
        std::vector<bool> owned(query_rows, false);
        for (int b = 0; b < batch; b++) std::fill_n(owned.begin() + first_query[b], queries[b], true);
        const size_t out_row = (size_t)heads * value_dim;
        for (size_t i = 0; i < query_rows * out_row; i++)
            if (!owned[i / out_row] && is_number((*out)[i])) return "a row of nobody was written, " + std::to_string(i / out_row);
        for (int b = 0; b < batch; b++)
            for (int head = 0; head < heads; head++)
                for (int query = 0; query < queries[b]; query++) {
                    const std::string row = wrong_row(b, head, query);
                    if (!row.empty())
                        return row + " at sequence " + std::to_string(b) + ", head " + std::to_string(head) + ", query " +
                               std::to_string(query);
                }
        return "";
    }

    // What a launch must leave as it was, whatever lengths have done.
    std::string harm_done() const
    {
        if (failed_assert) return std::string("a launch is refused: ") + failed_assert;
        for (const auto* zeros : {&semaphores, &counter})
            for (size_t i = 0; i < (*zeros)->size(); i++)
                if ((**zeros)[i] != 0) return "a semaphore or the counter is left at " + std::to_string((**zeros)[i]);
        for (const bool unharmed : {out->is_unharmed(), lse->is_unharmed(), parts->is_unharmed(), semaphores->is_unharmed(),
                                    counter->is_unharmed()})
            if (!unharmed) return "something was written in front of an output or the workspace";
        return "";
    }

    static bool is_number(Element x) { return widen(x) == widen(x); }

    std::string wrong_row(int b, int head, int query) const
    {
        const size_t query_row = first_query[b] + query;
        const Element* const found = &(*out)[(query_row * heads + head) * value_dim];
        const Scoring& scoring = block.scoring;
        const Mask mask(scoring, queries[b], keys[b]);
        const Element* const of_query = &q[(query_row * heads + head) * head_dim];
        std::vector<double> scores, factors;
        // Of f32 first: the compiler takes many times as long from f16 to f64 at once.
        std::vector<float> query_numbers(head_dim), numbers(head_dim), values(value_dim);
        const auto widen_all = [](const auto* from, std::vector<float>& to) {
            for (size_t d = 0; d < to.size(); d++) to[d] = widen(from[d]);
        };
        widen_all(of_query, query_numbers);
        std::vector<size_t> rows;
        for (int key = 0; key < keys[b]; key++) {
            if (!mask.sees(query, key)) continue;
            const size_t row = (size_t)(first_key[b] + key) * kv_heads + head / group;
            double score = 0;
            widen_all(&k[row * head_dim], numbers);
            for (int d = 0; d < head_dim; d++) score += (double)query_numbers[d] * numbers[d];
            score *= (double)scoring.scale * scales[0][head / group];
            if (scoring.softcap > 0) score = scoring.softcap * tanh(score / scoring.softcap);
            if (scoring.slopes) score -= slopes[b * scoring.slopes_batch + head] * fabs((double)(query + keys[b] - queries[b] - key));
            if (scoring.bias)
                score += widen((*bias)[b * scoring.bias_batch + head * scoring.bias_head + query * scoring.bias_row + key * scoring.bias_key]);
            if (scoring.key_mask &&
                !(*key_mask)[b * scoring.mask_batch + head * scoring.mask_head + query * scoring.mask_row + key * scoring.mask_key])
                continue;
            scores.push_back(score);
            rows.push_back(row);
            factors.push_back(!kernel.drops ? 1
                              : DropoutMask(dropping_block.dropout, b).keeps(head, query, key) ? dropping_block.dropout.factor
                                                                                               : 0);
        }
        const float found_lse = (*lse)[b * block.lse_batch + head * block.lse_head + (packs_queries ? query_row : query)];
        const bool is_nan_sink = scoring.sinks && std::isnan(sinks[head]);
        if (!scores.empty() && (is_nan_sink || !is_number(of_query[0]) || std::isnan(scales[0][head / group]))) {
            const bool all = std::none_of(found, found + value_dim, is_number);
            return all && std::isnan(found_lse) ? "" : "a query, scale or sink that is no number has a result that is one";
        }
        if (is_nan_sink) return std::isnan(found_lse) ? "" : "a sink that is no number has an lse that is one";
        double largest = scoring.sinks ? sinks[head] : -INFINITY;
        for (double score : scores) largest = std::max(largest, score);
        double sum = scoring.sinks ? exp(sinks[head] - largest) : 0;
        for (double score : scores) sum += exp(score - largest);
        const double expected_lse = sum > 0 ? largest + log(sum) : -INFINITY;
        // The kernels keep scores in a part of the range.
        const bool is_right = are_hugely_negative && expected_lse < -1e35 ? found_lse < -1e35f && found_lse > -INFINITY
                                                                          : fabs(expected_lse - found_lse) < 2e-4;
        if (!(expected_lse == found_lse || is_right))
            return "lse " + std::to_string(found_lse) + ", not " + std::to_string(expected_lse);
        std::vector<double> sums(value_dim);
        for (size_t i = 0; i < scores.size(); i++) {
            const double weight = factors[i] * exp(scores[i] - largest) * scales[1][head / group];
            widen_all(&v[rows[i] * value_dim], values);
            for (int d = 0; d < value_dim; d++) sums[d] += weight * values[d];
        }
        for (int d = 0; d < value_dim; d++) {
            const double expected = sum > 0 ? sums[d] / sum : 0;
            if (!(fabs(expected - widen(found[d])) < TOLERANCE))
                return "out " + std::to_string(widen(found[d])) + ", not " + std::to_string(expected) + ", column " +
                       std::to_string(d);
        }
        return "";
    }
};

// What the device holds of lengths, offsets and pages of a problem; changes while there is one of these. Then all is as it was.
template <class Kernel> class Changes {
  public:
    Changes(Problem<Kernel>& problem, Random& random) : problem(problem), block(problem.block), grid(problem.grid), clusters(problem.clusters)
    {
        Sequences& sequences = problem.block.sequences;
        sequences.ragged |= RAGGED | RAGGED_KEYS;
        sequences.key_lengths = list(problem.batch, problem.key_len);
        if (random.one_in(2)) sequences.query_lengths = list(problem.batch, problem.query_len);
        if (problem.table) {
            page_numbers.assign(problem.table->data(), problem.table->data() + problem.table->size());
        } else if (problem.kernel.has(FEATURE_PACKED) && random.one_in(2)) {
            sequences.key_rows = problem.key_rows;
            sequences.key_offsets = list(problem.batch + 1, sequences.key_rows);
            problem.block.k.batch = problem.block.v.batch = 0;
        }
        if (problem.kernel.has(FEATURE_PACKED) && random.one_in(2)) {
            sequences.query_rows = problem.query_rows;
            sequences.query_offsets = list(problem.batch + 1, sequences.query_rows);
            problem.block.q.batch = problem.block.out.batch = problem.block.lse_batch = 0;
            problem.block.lse_head = sequences.query_rows;
            if (!problem.kernel.shares_keys) {
                // Tiles are numbered across the sequences.
                Work& work = problem.block.work;
                work.query_tiles = sequences.query_rows * problem.group / problem.kernel.block_m + problem.batch;
                work.tiles = work.query_tiles * problem.kv_heads;
                problem.clusters = 1; // the workspace is as large as fewer CTAs need
                problem.grid = work.tiles * problem.kernel.cluster;
            }
        }
        sequences.ragged &= ~READ_AHEAD;
        if (problem.may_be_read_ahead(sequences, problem.block.pages)) sequences.ragged |= READ_AHEAD;
        // When the threads of a CTA meet, which is the same in every run, and whenever another thread finds the time.
        at_barrier = [this, random = Random(random.between(0, 1 << 30))]() mutable {
            if (random.one_in(2)) change_all(random);
        };
        changing = std::thread([this, random = Random(random.between(0, 1 << 30))]() mutable {
            while (!stop) {
                change_one(random);
                std::this_thread::sleep_for(std::chrono::microseconds(20)); // leaves the CPU to the CTA
            }
        });
    }
    ~Changes()
    {
        at_barrier = nullptr;
        stop = true;
        changing.join();
        problem.block = block;
        problem.grid = grid;
        problem.clusters = clusters;
        for (size_t i = 0; i < page_numbers.size(); i++) (*problem.table)[i] = page_numbers[i];
    }

  private:
    struct List {
        Memory<int> values;
        int bound;
    };

    const int* list(int count, int bound)
    {
        lists.push_back({guarded(std::vector<int>(count, 0)), bound});
        return lists.back().values->data();
    }
    void change_all(Random& random)
    {
        const int to = random.between(0, 2);
        for (List& list : lists)
            for (size_t i = 0; i < list.values->size(); i++)
                set((*list.values)[i], to == 0 ? 0 : to == 1 ? list.bound : any(random, list.bound));
    }
    void change_one(Random& random)
    {
        const int which = random.between(0, lists.size() - 1 + !page_numbers.empty());
        if (which == (int)lists.size()) {
            set((*problem.table)[random.between(0, page_numbers.size() - 1)], any(random, problem.block.pages.count));
        } else {
            const List& list = lists[which];
            set((*list.values)[random.between(0, list.values->size() - 1)], any(random, list.bound));
        }
    }
    static int any(Random& random, int bound)
    {
        switch (random.between(0, 5)) {
        case 0: return 0;
        case 1: return bound;
        case 2: return random.one_in(2) ? INT_MIN : INT_MAX;
        default: return random.between(-bound / 8 - 1, bound + bound / 8 + 1);
        }
    }
    static void set(int& place, int value) { std::atomic_ref<int>(place).store(value, std::memory_order_relaxed); }

    Problem<Kernel>& problem;
    const Forward block; // as it was
    const int grid, clusters;
    std::vector<List> lists;
    std::vector<int> page_numbers; // as they were
    std::atomic<bool> stop = false;
    std::thread changing;
};

// After the first one. CTAs with a tile each leave nothing for the next launch, and have more to compute.
template <class Kernel> int more_launches(const Kernel& kernel) { return kernel.shares_keys ? 2 : 1; }

// Prints what went wrong with what runs; whether nothing has.
bool reported(const std::string& wrong)
{
    alarm(0);
    if (!wrong.empty()) printf("%s%s\n", running, wrong.c_str());
    return wrong.empty();
}

// Whether debug images refuse launches whose values begin in between, where numbers of keys and values have one byte.
bool asserts_chunks()
{
    using Traits = MmaTraits<__half, 64, 16, 128, 4, 4, Share, E4m3Keys<__half>>;
    const auto kernel = kernel_of<Traits>();
    Random random(1);
    Problem problem(kernel, random, false);
    problem.launch(random);
    std::string wrong = problem.harm_done();
    if (wrong.empty()) {
        problem.block.v.row += CHUNK_BYTES / 2;
        threadIdx.x = 0;
        check_launch<Traits>(problem.whole_block);
        if (!failed_assert) wrong = "a distance of rows that is no multiple of 16 bytes passes";
    }
    return reported(wrong);
}

// Whether a problem comes out right, and twice the same.
template <class Kernel> bool passes(const Kernel& kernel, unsigned seed)
{
    Random random(seed);
    Problem<Kernel> problem(kernel, random, seed % 2 == 1);
    problem.launch(random);
    std::string wrong = problem.wrong();
    const std::vector first(problem.out->data(), problem.out->data() + problem.out->size());
    if (wrong.empty()) {
        problem.writes_late = true;
        for (int i = 0; i < more_launches(kernel) && wrong.empty(); i++) {
            problem.launch(random);
            if (memcmp(first.data(), problem.out->data(), first.size() * sizeof first[0]) != 0) wrong = "other bits the second time";
        }
    }
    return reported(wrong);
}

// Whether launches do no harm while everything that the device holds of lengths, offsets and pages changes, and the next is right.
template <class Kernel> bool survives_changes(const Kernel& kernel, unsigned seed)
{
    Random random(seed);
    Problem<Kernel> problem(kernel, random, seed % 2 == 1);
    std::string wrong;
    {
        Changes<Kernel> changes(problem, random);
        for (int i = 0; i < 3 && wrong.empty(); i++) {
            problem.launch(random);
            wrong = problem.harm_done();
        }
    }
    if (wrong.empty()) {
        problem.launch(random);
        wrong = problem.wrong();
    }
    return reported(wrong);
}

} // namespace

// decode [seeds] [changes]
int main(int count, char** arguments)
{
    const int seeds = count > 1 ? atoi(arguments[1]) : 20;
    const bool changes = count > 2 && strcmp(arguments[2], "changes") == 0;
    if (count > 3 || (count > 2 && !changes)) return 2;
    signal(SIGSEGV, [](int) { end("memory outside of the tensors and the workspace was touched\n"); });
    signal(SIGBUS, [](int) { end("memory outside of the tensors and the workspace was touched\n"); });
    signal(SIGALRM, [](int) { end("it hangs\n"); });
    int computed = 0, failed = 0;
    const auto check = [&]<class Traits>(Traits, int seed) {
        const auto kernel = kernel_of<Traits>();
        snprintf(running, sizeof running, "head size %d, %dx%d, %d warps, %s%s, seed %d: ", kernel.head_dim,
                 kernel.block_m, kernel.block_n, kernel.warps,
                 kernel.is_dense() ? "dense" : kernel.has(SCORE_TENSORS) ? "tensors" : !kernel.has(FEATURE_PACKED) ? "paged" : kernel.shares_keys ? "shared keys" : kernel.cluster > 1 ? "a tile a cluster" : "a tile a CTA",
                 kernel.has(FEATURE_E4M3) ? ", e4m3" : "", seed);
        fflush(stdout); // before a signal may end it
        alarm(SECONDS);
        computed++;
        failed += !(changes ? survives_changes(kernel, seed) : passes(kernel, seed));
    };
    for (int seed = 1; seed <= seeds; seed++) {
        check(MmaTraits<__half, 64, 16, 64, 4, 3, Share>(), seed);
        check(TileTraits<__half, 64, 128, 64, 4, 2>(), seed);
        check(TileTraits<__half, 96, 64, 32, 4, 3>(), seed);
        check(TensorTileTraits<__half, 64, 64, 64, 4, 2>(), seed);
        check(UnalignedTileTraits<__half, 64, 64, 64, 4, 2>(), seed);
        check(DroppingTileTraits<__half, 64, 128, 64, 4, 2>(), seed);
        if (seed % 3 == 2) check(DroppingTileTraits<__half, 256, 64, 64, 4, 1>(), seed);
        if (seed % 2 == 0) check(DroppingUnalignedTileTraits<__half, 64, 64, 64, 4, 2>(), seed);
        if (seed % 4 == 3) check(DroppingUnalignedTileTraits<__nv_bfloat16, 256, 64, 64, 4, 1>(), seed);
        if (seed % 4 == 1) check(DroppingTileTraits<__nv_bfloat16, 96, 128, 32, 4, 4>(), seed);
        if (seed % 4 == 2) check(TensorTileTraits<__nv_bfloat16, 256, 64, 64, 4, 1>(), seed);
        if (seed % 6 == 3) check(TensorTileTraits<__half, 512, 32, 32, 4, 1>(), seed);
        if (seed % 4 == 3) check(UnalignedTileTraits<__nv_bfloat16, 256, 64, 64, 4, 1>(), seed);
        if (seed % 6 == 1) check(UnalignedTileTraits<__half, 512, 32, 32, 4, 1>(), seed);
        if (seed % 2 == 1) check(MmaTraits<__half, 64, 16, 64, 4, 3, ClusterTile>(), seed);
        if (seed % 6 == 2) check(MmaTraits<__half, 64, 32, 64, 4, 3, ClusterTile>(), seed);
        if (seed % 6 == 3) check(MmaTraits<__half, 512, 16, 32, 8, 2, ClusterTile>(), seed);
        if (seed % 4 == 0) check(MmaTraits<__half, 64, 32, 128, 4, 3, Share>(), seed);
        if (seed % 4 == 0) check(MmaTraits<__half, 128, 16, 128, 8, 2, Share>(), seed);
        if (seed % 4 == 1) check(MmaTraits<__half, 128, 64, 128, 8, 2, Share>(), seed);
        if (seed % 5 == 0) check(MmaTraits<__half, 128, 32, 128, 8, 2, Share>(), seed);
        if (seed % 4 == 0) check(TileTraits<__half, 128, 128, 64, 4, 2>(), seed);
        if (seed % 6 == 2) check(TileTraits<__half, 256, 64, 64, 4, 1>(), seed);
        if (seed % 6 == 0) check(MmaTraits<__half, 256, 16, 64, 4, 2, Share>(), seed);
        if (seed % 6 == 4) check(MmaTraits<__half, 256, 16, 32, 4, 2, Share>(), seed); // two warps share rows
        if (seed % 3 == 0) check(MmaTraits<__half, 512, 16, 16, 4, 2, Share>(), seed);
        if (seed % 6 == 1) check(MmaTraits<__nv_bfloat16, 512, 16, 32, 8, 2, Share>(), seed);
        if (seed % 4 == 3) check(TileTraits<__nv_bfloat16, 192, 64, 64, 4, 1>(), seed);
        if (seed % 3 == 1) check(TileTraits<__half, 512, 32, 32, 4, 1>(), seed);
        if (seed % 6 == 5) check(TileTraits<__nv_bfloat16, 512, 64, 64, 8, 1>(), seed);
        check(MmaTraits<__half, 64, 16, 128, 4, 4, Share, E4m3Keys<__half>>(), seed);
        if (seed % 2 == 0) check(MmaTraits<__nv_bfloat16, 64, 16, 128, 4, 4, Share, E4m3Keys<__nv_bfloat16>>(), seed);
        if (seed % 4 == 2) check(MmaTraits<__half, 128, 16, 128, 4, 2, Share, E4m3Keys<__half>>(), seed);
        if (seed % 4 == 3) check(MmaTraits<__nv_bfloat16, 128, 16, 256, 8, 2, Share, E4m3Keys<__nv_bfloat16>>(), seed);
        if (seed % 6 == 3) check(MmaTraits<__half, 256, 16, 64, 2, 2, Share, E4m3Keys<__half>>(), seed);
        constexpr unsigned ALL = OPTIONAL_FEATURES | SCORE_TENSORS;
        check(MmaTraits<__half, 64, 16, 128, 4, 2, Share, SameKeys<__half>, ALL>(), seed);
        if (seed % 2 == 0) check(MmaTraits<__nv_bfloat16, 64, 64, 64, 4, 4, Share, SameKeys<__nv_bfloat16>, ALL>(), seed);
        if (seed % 4 == 1) check(MmaTraits<__half, 256, 16, 32, 2, 2, Share, SameKeys<__half>, ALL>(), seed);
        if (seed % 6 == 5) check(MmaTraits<__half, 512, 16, 16, 4, 2, Share, SameKeys<__half>, ALL>(), seed);
        if (seed % 2 == 1) check(MmaTraits<__half, 128, 16, 128, 4, 2, Share, E4m3Keys<__half>, ALL>(), seed);
        constexpr unsigned PAGED = FEATURE_PAGED | FEATURE_DEVICE_LENGTHS;
        check(MmaTraits<__half, 64, 16, 256, 8, 2, Share, SameKeys<__half>, PAGED>(), seed);
        if (seed % 2 == 1) check(MmaTraits<__nv_bfloat16, 128, 16, 128, 8, 2, Share, SameKeys<__nv_bfloat16>, PAGED>(), seed);
        if (seed % 4 == 2) check(MmaTraits<__half, 256, 16, 64, 4, 2, Share, SameKeys<__half>, PAGED>(), seed);
        if (seed % 4 == 0) check(MmaTraits<__half, 512, 16, 32, 8, 2, Share, SameKeys<__half>, PAGED>(), seed);
        // The others have nothing that changes.
        if (changes) continue;
        check(MmaTraits<__half, 64, 16, 256, 8, 2, Share, SameKeys<__half>, 0>(), seed);
        if (seed % 2 == 0) check(MmaTraits<__nv_bfloat16, 128, 16, 128, 8, 2, Share, SameKeys<__nv_bfloat16>, 0>(), seed);
        if (seed % 4 == 1) check(MmaTraits<__half, 256, 16, 64, 4, 2, Share, SameKeys<__half>, 0>(), seed);
        if (seed % 4 == 3) check(MmaTraits<__nv_bfloat16, 512, 16, 32, 8, 2, Share, SameKeys<__nv_bfloat16>, 0>(), seed); // stages freed late
    }
    snprintf(running, sizeof running, "asserts of debug images: ");
    computed++;
    failed += !asserts_chunks();
    printf("%d of %d problems passed\n", computed - failed, computed);
    return failed != 0;
}
