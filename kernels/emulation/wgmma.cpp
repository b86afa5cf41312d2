// Random problems, in random order of everything that happens, for the kernels on wgmma: their C++ on the CPU. See README.md.
//
//     wgmma [seeds] [first seed]
//
// TILINGS names a file with a line `TILING(head size, value size, BLOCK_M, BLOCK_N, warps, stages, variant)` for each tiling.
#include "warps.h"

#include "forward/wgmma.cuh"
#include "guarded.h"
#include "random.h"

#include <climits>
#include <csignal>

using namespace warptile;
using emulation::launch;

namespace {

using Element = __half;

// Keys that the first lane of a quad has of each 8.
constexpr int SAMPLED_KEYS = 2;
// Rows of which its warp has one of each so many.
constexpr int SAMPLED_ROWS = 8;
// What the output holds before a launch.
constexpr Element UNWRITTEN = (Element)60000.0f;
// Lanes of a quad, whose sums are all taken to be the first one's.
constexpr int QUAD = 4;

// What a problem has to know of a kernel.
struct Tiling {
    int head_dim, value_dim, slabs, value_slabs, block_m, block_n, warps, stages, consumers, cluster;
    bool serving, groups, packs, pairs, softcap, alibi, keymask, bias, mask, tensors, dropout, blocks;
    void (*kernel)(const ForwardTma&);
    std::string (*name_of_barrier)(unsigned address);
};

template <class Traits> std::string name_of_barrier(unsigned address)
{
    const SharedLayout<Traits> layout = {emulation::Cta::BASE};
    const auto is = [&](const char* what, unsigned full, int stage) -> std::string {
        if (address != full && address != full + 8) return "";
        return std::string(what) + (address == full ? "_full " : "_empty ") + std::to_string(stage);
    };
    std::string name;
    for (int i = 0; i < Traits::RING_STAGES && name.empty(); i++) {
        name = is("keys", layout.keys_full(i), i);
        if (name.empty()) name = is("values", layout.values_full(i), i);
    }
    for (int i = 0; i < Traits::CONSUMERS * Traits::QUERY_STAGES && name.empty(); i++)
        name = is("queries", layout.queries_full(i / Traits::QUERY_STAGES, i % Traits::QUERY_STAGES), i);
    if constexpr (Traits::SERVING)
        for (int i = 0; i < SharedLayout<Traits>::TILE_SLOTS && name.empty(); i++) name = is("tile", layout.tile_full(i), i);
    if constexpr (Traits::PAIRS)
        if (name.empty()) name = is("mail", layout.mail_full(), 0);
    if constexpr (Traits::has_tensors() || Traits::hides_keys()) {
        if (name.empty() && address == layout.shown_asked()) name = "shown_asked";
        if (name.empty() && address == layout.shown_found()) name = "shown_found";
    }
    return name.empty() ? "a barrier at " + std::to_string(address) : name;
}

template <class Traits> Tiling tiling_of()
{
    return {Traits::HEAD_DIM, Traits::VALUE_DIM, Traits::SLABS, Traits::VALUE_SLABS, Traits::BLOCK_M, Traits::BLOCK_N, Traits::WARPS,
            Traits::STAGES, Traits::CONSUMERS, Traits::CLUSTER, Traits::SERVING, Traits::GROUPS, Traits::packs_rows(), Traits::PAIRS, Traits::SOFTCAP,
            Traits::has_alibi(), Traits::hides_keys(), Traits::has_bias_boxes(), Traits::has_mask_boxes(), Traits::has_tensors(), drops<Traits>(), lists_blocks<Traits>(), wgmma_attention<Traits>, name_of_barrier<Traits>};
}

// What kernels with dropout take, those with lists of blocks, and those with a bias or a mask by the copy engine.
union Block {
    ForwardTmaDropout with_dropout;
    ForwardTmaBlocks with_blocks;
    ForwardTmaBoxes with_boxes;
};

struct Problem {
    const Tiling tiling;
    int batch, kv_heads, group, heads, query_len, key_len, query_rows, key_rows, ctas;
    std::vector<int> first_query, queries, first_key, keys; // of each sequence, as they are to be understood
    Memory<int> query_offsets, key_offsets, query_lengths, key_lengths, table;
    Memory<Element> bias, out;
    Memory<unsigned char> key_mask;
    Memory<float> slopes;
    Memory<float> lse, parts;
    Memory<unsigned> semaphores, counter;
    MapOf maps[4], boxes_map;
    Block whole = {};
    ForwardTma& params = whole.with_dropout.tma;
    Forward& block = params.forward;
    bool windows_in_parts = false;
    bool has_many_blocks = false; // in a tile: more than loaders out of pages look up at once, whatever a box is
    bool has_few_keys = false;    // most tiles have none, so that those who are told tiles may fall far behind
    bool changes = false; // lengths do, while CTAs run
    // As they are again when a launch begins.
    std::vector<std::pair<Guarded<int>*, std::vector<int>>> lists;
    std::vector<Element> given_bias;
    std::vector<unsigned char> given_mask;
    std::vector<float> given_slopes;
    std::vector<unsigned> given_state; // of dropout
    Memory<unsigned> dropout_state;
    Memory<int> block_offsets, block_indices;
    std::vector<int> given_offsets, given_indices; // of lists of blocks

    Problem(const Tiling& tiling, Random& random) : tiling(tiling)
    {
        const bool is_packed = random.one_in(4), has_packed_keys = is_packed && !random.one_in(4);
        has_many_blocks = tiling.serving && random.one_in(12);
        has_few_keys = tiling.serving && !has_many_blocks && random.one_in(8);
        batch = has_few_keys ? random.between(8, 24) : has_many_blocks ? 1 : random.between(1, 3);
        kv_heads = random.between(1, 2);
        group = tiling.groups ? 2 << random.between(0, 2) : tiling.packs && random.one_in(2) ? random.between(1, 80) : random.between(1, 4);
        heads = kv_heads * group;
        query_len = has_few_keys || has_many_blocks || (tiling.serving && random.one_in(3)) ? random.between(1, 16) : random.between(1, 2 * tiling.block_m + 70);
        // Parts of tiles whose warpgroups see different first keys.
        windows_in_parts = tiling.serving && !has_few_keys && !has_many_blocks && random.one_in(5);
        if (windows_in_parts) query_len = random.between(1, 2 * tiling.block_m);
        key_len = windows_in_parts   ? random.between(3 * tiling.block_n, 9 * tiling.block_n)
                  : has_many_blocks  ? random.between(17 * tiling.block_n, 70 * tiling.block_n)
                  : random.one_in(3) ? random.between(0, 2 * tiling.block_n) : random.between(0, 9 * tiling.block_n);
        set_lengths(random, is_packed, has_packed_keys);
        changes = (tiling.blocks || reads_lengths(block.sequences)) && random.one_in(3);
        block.heads = heads;
        block.kv_heads = kv_heads;
        block.head_dim = tiling.head_dim;
        block.value_dim = tiling.value_dim;
        set_scoring(random);
        set_terms(random);
        if (tiling.blocks) set_blocks(random);
        if (tiling.serving && !has_packed_keys && random.one_in(2)) set_pages(random);
        set_output(is_packed);
        set_maps(is_packed, has_packed_keys);
        set_work(random, is_packed);
    }

    void list(Memory<int>& memory, const int*& pointer, const std::vector<int>& values)
    {
        memory = guarded(values);
        pointer = memory->data();
        lists.push_back({memory.get(), values});
    }

    void set_lengths(Random& random, bool is_packed, bool has_packed_keys)
    {
        Sequences& sequences = block.sequences;
        queries.assign(batch, query_len);
        keys.assign(batch, key_len);
        first_query.assign(batch, 0);
        first_key.assign(batch, 0);
        query_rows = query_len;
        key_rows = key_len;
        const auto pack = [&](std::vector<int>& first, std::vector<int>& lengths, int& rows) {
            std::vector<int> offsets(1, 0);
            for (int b = 0; b < batch; b++) {
                lengths[b] = random.one_in(5) ? 0 : random.between(0, lengths[b]);
                first[b] = offsets.back();
                offsets.push_back(first[b] + lengths[b]);
            }
            rows = offsets.back() + random.between(0, 9);
            return offsets;
        };
        if (is_packed) {
            list(query_offsets, sequences.query_offsets, pack(first_query, queries, query_rows));
            sequences.ragged |= RAGGED;
        }
        if (has_packed_keys) {
            list(key_offsets, sequences.key_offsets, pack(first_key, keys, key_rows));
            sequences.ragged |= RAGGED | RAGGED_KEYS;
        }
        const auto shorten = [&](std::vector<int>& lengths, int longest) {
            std::vector<int> given(lengths);
            for (int b = 0; b < batch; b++) {
                given[b] = has_few_keys && !random.one_in(6) ? 0 : random.between(-3, longest + 3);
                lengths[b] = std::min(lengths[b], std::max(given[b], 0));
            }
            return given;
        };
        if (has_few_keys || random.one_in(3)) {
            list(key_lengths, sequences.key_lengths, shorten(keys, key_len));
            sequences.ragged |= RAGGED | RAGGED_KEYS;
        }
        if (random.one_in(5)) {
            list(query_lengths, sequences.query_lengths, shorten(queries, query_len));
            sequences.ragged |= RAGGED;
        }
        sequences.batch = batch;
        sequences.query_len = query_len;
        sequences.key_len = key_len;
        sequences.query_rows = query_rows;
        sequences.key_rows = key_rows;
    }

    void set_scoring(Random& random)
    {
        Scoring& scoring = block.scoring;
        scoring.scale = 0.1f * random.between(1, random.one_in(4) ? 400 : 20);
        scoring.softcap = tiling.softcap && random.one_in(tiling.tensors ? 2 : 1) ? random.one_in(2) ? 5.0f : 50.0f : 0.0f;
        // A softcap's polynomial has a range: rows whose scores all lie near or behind one end of it.
        numbers::sign_of_products = scoring.softcap > 0 && random.one_in(2) ? random.one_in(2) ? -1 : 1 : 0;
        if (numbers::sign_of_products != 0) scoring.scale = 0.1f * random.between(1, 12) * scoring.softcap / tiling.slabs;
        scoring.window_left = scoring.window_right = WINDOW_UNLIMITED;
        if (tiling.pairs && group % 2 != 0) return; // the host does not launch these otherwise
        const bool window = windows_in_parts || random.one_in(2), causal = random.one_in(2);
        if (window) scoring.window_left = random.between(0, (windows_in_parts ? 1 : 3) * tiling.block_n);
        if (causal) scoring.window_right = 0;
        else if (window) scoring.window_right = random.between(0, 2 * tiling.block_n);
        put_diagonal(random, scoring, query_len, key_len);
    }

    // What is added to scores, and a mask of keys: at times of padding on both sides.
    void set_terms(Random& random)
    {
        Scoring& scoring = block.scoring;
        if (tiling.alibi || (tiling.tensors && random.one_in(3))) {
            scoring.slopes_batch = random.one_in(2) ? heads : 0;
            for (int i = 0; i < heads * (scoring.slopes_batch ? batch : 1); i++) given_slopes.push_back(0.1f * fabsf(random.normal()));
        }
        if (tiling.bias ? !random.one_in(8) : tiling.tensors && random.one_in(2)) {
            given_bias = random.normals<Element>(
                reach_of_scores(random, block, scoring.bias_batch, scoring.bias_head, scoring.bias_row, scoring.bias_key));
            const float hides = random.one_in(2) ? -INFINITY : -65504.0f;
            if (random.one_in(3))
                for (Element& number : given_bias)
                    if (random.one_in(3)) number = (Element)hides;
        }
        if (tiling.keymask || tiling.mask ? !random.one_in(8) : tiling.tensors && random.one_in(2)) {
            given_mask.resize(reach_of_scores(random, block, scoring.mask_batch, scoring.mask_head, scoring.mask_row, scoring.mask_key));
            if (tiling.keymask) scoring.mask_row = 0;
            if (random.one_in(2)) scoring.mask_head = scoring.mask_row = 0;
            const int length = std::max(key_len, 1) * scoring.mask_key, kind = random.between(0, 3);
            for (size_t begin = 0; begin < given_mask.size(); begin += length) {
                const int from = kind == 1 ? 0 : random.between(-length / 2, length), to = kind == 2 ? length : random.between(0, length + length / 2);
                for (int i = 0; i < length && begin + i < given_mask.size(); i++)
                    given_mask[begin + i] = kind == 0 ? !random.one_in(3) : i >= from && i < to ? random.between(1, 255) : 0;
            }
        }
        bias = guarded(given_bias);
        key_mask = guarded(given_mask);
        slopes = guarded(given_slopes);
        if (tiling.dropout) {
            for (int i = 0; i < 8; i++) given_state.push_back(random.any());
            dropout_state = guarded(given_state);
            whole.with_dropout.dropout = {dropout_state->data(), (unsigned)random.between(1, 0xffff), 1.5f};
        }
        if (!given_bias.empty()) scoring.bias = bias->data();
        if (!given_mask.empty()) scoring.key_mask = key_mask->data();
        if (!given_slopes.empty()) scoring.slopes = slopes->data();
    }

    // Of any blocks, some behind the last one; rows may end early.
    void set_blocks(Random& random)
    {
        BlockLists& lists = whole.with_blocks.blocks;
        lists.queries = random.one_in(2) ? 128 : 64;
        lists.keys = random.one_in(2) ? 128 : 64;
        lists.rows = (query_len + lists.queries - 1) / lists.queries + random.between(0, 1);
        lists.head_step = random.between(0, 1);
        lists.batch_step = random.one_in(2) ? 0 : lists.head_step ? heads : 1;
        const int rows = lists.rows * (lists.head_step ? heads : 1) * (lists.batch_step ? batch : 1);
        const int blocks = (key_len + lists.keys - 1) / lists.keys;
        given_offsets.push_back(0);
        for (int row = 0; row < rows; row++) {
            const int one_in = random.between(1, 5);
            for (int block = 0; block < blocks && !random.one_in(12); block++)
                if (random.one_in(one_in)) given_indices.push_back(block);
            if (random.one_in(5)) given_indices.push_back(random.one_in(2) ? INT_MAX : blocks);
            if (random.one_in(5)) given_indices.insert(given_indices.end(), {-1, 0, INT_MIN});
            given_offsets.push_back(given_indices.size());
        }
        lists.count = given_indices.size();
        list(block_offsets, lists.offsets, given_offsets);
        list(block_indices, lists.indices, given_indices);
    }
    bool shows(int b, int head, int query, int key) const
    {
        const BlockLists& lists = whole.with_blocks.blocks;
        const int row = (b * lists.batch_step + head * lists.head_step) * lists.rows + query / lists.queries;
        for (int i = given_offsets[row]; i < given_offsets[row + 1] && given_indices[i] >= 0; i++)
            if (given_indices[i] == key / lists.keys) return true;
        return false;
    }

    // Of any multiple of 16 rows. Entries of no key are out of range.
    void set_pages(Random& random)
    {
        const int rows = MIN_BOX_ROWS * (has_many_blocks ? 4 << random.between(0, 2) : random.between(1, 256 / MIN_BOX_ROWS));
        const int columns = (key_len + rows - 1) / rows + random.between(0, 1);
        const int count = batch * columns + random.between(1, 3);
        std::vector<int> numbers(count), entries((size_t)batch * columns, INT_MAX);
        for (int i = 0; i < count; i++) numbers[i] = i;
        random.shuffle(numbers);
        for (int b = 0; b < batch; b++)
            for (int i = 0; i * rows < keys[b]; i++) entries[b * columns + i] = numbers[b * columns + i];
        // The last row ends where its keys do, if they cannot become more.
        if (!changes) entries.resize((size_t)(batch - 1) * columns + (keys[batch - 1] + rows - 1) / rows);
        if (random.one_in(8) && !entries.empty()) entries[random.between(0, entries.size() - 1)] = random.one_in(2) ? INT_MIN : count;
        const int* pointer;
        list(table, pointer, entries);
        block.pages = {pointer, columns, rows, count, 0, 0};
        // As `Pages::of` in crates/spec/src/abi.rs.
        while (1 << block.pages.rows_log < rows) block.pages.rows_log++;
        block.pages.rows_inverse = (unsigned)(((1ull << (31 + block.pages.rows_log)) + rows - 1) / rows);
        if (!block.pages.table) block.pages.table = reinterpret_cast<const int*>(table.get());
    }

    void set_output(bool is_packed)
    {
        const size_t rows = is_packed ? query_rows : (size_t)batch * query_len;
        out = guarded(std::vector<Element>(rows * heads * tiling.value_dim));
        lse = guarded(std::vector<float>(rows * heads));
        const long long row = (long long)heads * tiling.value_dim;
        block.out = {out->data(), is_packed ? 0 : query_len * row, row, tiling.value_dim};
        block.lse = lse->data();
        block.lse_batch = is_packed ? 0 : (long long)heads * query_len;
        block.lse_head = is_packed ? query_rows : query_len;
    }
    Element& out_at(int batch, int row, int head, int column) const
    {
        return (*out)[batch * block.out.batch + row * block.out.row + head * block.out.head + column];
    }

    void set_maps(bool is_packed, bool has_packed_keys)
    {
        const int query_heads = tiling.groups ? group : 1, box_rows = MMA_ROWS / query_heads;
        maps[0] = {numbers::QUERIES, query_rows, heads, is_packed ? 1 : batch, box_rows, query_heads, {}};
        const Pages& pages = block.pages;
        const int of_block = tiling.block_n & -tiling.block_n;
        const int of_stage = tiling.blocks ? LISTED_BOX_ROWS : tiling.block_n;
        MapOf keys = {numbers::KEYS, key_rows, kv_heads, has_packed_keys ? 1 : batch, of_stage, 1, {}};
        if (pages.table) keys = {numbers::KEYS, pages.rows, kv_heads, pages.count, std::min(pages.rows & -pages.rows, of_block), 1, {}};
        maps[1] = maps[2] = keys;
        maps[2].of = numbers::VALUES;
        const int output_rows = std::min(16, box_rows);
        maps[3] = {numbers::QUERIES, query_rows, heads, is_packed ? 1 : batch, output_rows, 16 / output_rows,
                   [this](int batch, int row, int head, int column, const unsigned char* value) {
                       memcpy(&out_at(batch, row, head, column), value, sizeof(Element));
                   }};
        if (tiling.bias || tiling.mask) {
            const Scoring& scoring = block.scoring;
            const bool has_heads = tiling.bias ? scoring.bias_head : scoring.mask_head, has_batch = tiling.bias ? scoring.bias_batch : scoring.mask_batch;
            boxes_map = {numbers::QUERIES, query_len, has_heads ? heads : 1, has_batch ? batch : 1, MMA_ROWS, 1, {},
                         [this](int batch, int row, int head, int key) -> unsigned short {
                             const Scoring& scoring = block.scoring;
                             if (key < 0 || key >= key_len) return 0;
                             if (scoring.key_mask)
                                 return (*key_mask)[batch * scoring.mask_batch + head * scoring.mask_head + row * scoring.mask_row + key * scoring.mask_key];
                             if (!scoring.bias) return tiling.mask;
                             unsigned short number;
                             memcpy(&number, bias->data() + batch * scoring.bias_batch + head * scoring.bias_head + row * scoring.bias_row + key * scoring.bias_key, sizeof number);
                             return number;
                         },
                         tiling.bias ? 128 : 64};
            whole.with_boxes.boxes_map.opaque[0] = reinterpret_cast<unsigned long long>(&boxes_map);
        }
        TensorMap* const to[4] = {&params.q_map, &params.k_map, &params.v_map, &params.out_map};
        for (int i = 0; i < 4; i++) to[i]->opaque[0] = reinterpret_cast<unsigned long long>(&maps[i]);
    }

    // As `Step::shape_of_tiles` in crates/attention/src/plan/step.rs.
    void set_work(Random& random, bool is_packed)
    {
        Work& work = block.work;
        const bool pairs_heads = tiling.pairs && group % 2 == 0;
        const bool of_groups = tiling.groups || tiling.packs;
        const int numbered_heads = of_groups ? kv_heads : pairs_heads ? heads / 2 : heads;
        const int rows = tiling.pairs && !pairs_heads ? 2 * tiling.block_m : tiling.block_m, rows_of_query = of_groups ? group : 1;
        const int of_a_head = is_packed ? query_rows * rows_of_query / rows + batch : (query_len * rows_of_query + rows - 1) / rows;
        work.query_tiles = of_a_head;
        work.tiles = of_a_head * numbered_heads * (is_packed ? 1 : batch);
        work.heads_at_once = random.between(1, numbered_heads * (is_packed ? 1 : batch));
        const int resident = random.between(windows_in_parts ? 4 : tiling.serving ? 2 : 1, windows_in_parts || random.one_in(4) ? 6 : 3);
        work.splits = tiling.serving ? random.between(windows_in_parts ? 2 : 1, tiling.packs && random.one_in(3) ? random.one_in(4) ? 130 : 19 : 3) : 1;
        // Of a dense launch perhaps in another order.
        const bool may_be_ordered = !reads_lengths(block.sequences) && work.splits == 1 && !tiling.pairs && !of_groups;
        if (may_be_ordered && work.tiles <= (int)std::size(params.order) && random.one_in(3)) {
            std::vector<int> order(work.tiles);
            for (int i = 0; i < work.tiles; i++) order[i] = i;
            random.shuffle(order);
            std::copy(order.begin(), order.end(), params.order);
            params.ordered = work.tiles;
        }
        const int split_tiles = work.splits > 1 ? work.tiles % resident : 0, numbers = work.tiles + split_tiles * (work.splits - 1);
        const int at_once = std::min(numbers, resident);
        ctas = at_once * tiling.cluster;
        counter = guarded(std::vector<unsigned>(1));
        // Of packed rows a launch without one says that no CTA has a second number.
        if (numbers > at_once && (tiling.packs || !random.one_in(4))) work.counter = counter->data();
        const int words_of_part = (tiling.value_dim / 8 + 1) * WARPGROUP_THREADS * 4;
        parts = guarded(std::vector<float>((size_t)split_tiles * work.splits * tiling.consumers * words_of_part));
        // Of packed rows with words for those who wait behind them (kernels/forward/wgmma_joint_sum.cuh).
        semaphores = guarded(std::vector<unsigned>(tiling.packs ? 512 + split_tiles * work.splits * tiling.consumers : split_tiles * tiling.consumers));
        work.partials = parts->data();
        work.semaphores = semaphores->data();
    }

    // Why a launch failed, or nothing.
    std::string run(Random& random, bool changes)
    {
        out->fill(UNWRITTEN);
        lse->fill(NAN);
        // Until the launch before has ended, nothing is what it will be.
        parts->fill(NAN);
        const auto spoil = [&](auto& memory) {
            for (size_t i = 0; i < memory.size(); i++) memory[i] = random.any();
        };
        spoil(*counter);
        spoil(*semaphores);
        for (auto& [memory, values] : lists) spoil(*memory);
        bias->fill((Element)NAN);
        spoil(*key_mask);
        slopes->fill(NAN);
        if (tiling.dropout) spoil(*dropout_state);
        launch.at_predecessors_end = [&] {
            counter->fill(0);
            semaphores->fill(0);
            for (auto& [memory, values] : lists) std::copy(values.begin(), values.end(), memory->data());
            std::copy(given_bias.begin(), given_bias.end(), bias->data());
            std::copy(given_mask.begin(), given_mask.end(), key_mask->data());
            std::copy(given_slopes.begin(), given_slopes.end(), slopes->data());
            if (tiling.dropout) std::copy(given_state.begin(), given_state.end(), dropout_state->data());
            if (changes) change(random, 30);
        };
        launch.name_of_barrier = tiling.name_of_barrier;
        const std::string failure =
            launch.run(ctas, tiling.warps, tiling.cluster, random.any(), [this] { tiling.kernel(params); });
        if (!failure.empty()) return failure;
        for (size_t i = 0; i < semaphores->size(); i++)
            if ((*semaphores)[i] != 0) return "a semaphore is left at " + std::to_string((*semaphores)[i]);
        if ((*counter)[0] != 0) return "the counter is left at " + std::to_string((*counter)[0]);
        return changes ? "" : wrong();
    }
    // Lengths, offsets and pages, now and then, to whatever.
    void change(Random& random, int times)
    {
        if (times == 0) return;
        Guarded<int>& memory = *lists[random.between(0, lists.size() - 1)].first;
        const int bound = key_len + 5;
        if (memory.size() > 0)
            memory[random.between(0, memory.size() - 1)] =
                random.one_in(4) ? (random.one_in(2) ? INT_MIN : INT_MAX) : random.between(-bound / 4, bound + bound / 4);
        launch.later([this, &random, times] { change(random, times - 1); });
    }

    // --- The same by definition: of the rows and keys that first lanes have

    numbers::Tag key_tag(numbers::Of of, int slab, int kv_head, int b, int key) const
    {
        const Pages& pages = block.pages;
        if (!pages.table) return numbers::tag(of, slab, kv_head, block.sequences.key_offsets ? 0 : b, first_key[b] + key);
        const int page = (*table)[b * pages.table_row + key / pages.rows];
        return numbers::tag(of, slab, kv_head, std::min(std::max(page, 0), pages.count - 1), key % pages.rows);
    }

    std::string wrong() const
    {
        for (int b = 0; b < batch; b++)
            for (int head = 0; head < heads; head++)
                for (int query = 0; query < queries[b]; query++) {
                    // Packed rows are those of all heads of a group.
                    if ((tiling.packs ? query * group + head % group : query) % SAMPLED_ROWS != 0) continue;
                    const std::string why = wrong_row(b, head, query);
                    if (!why.empty()) return why;
                }
        // Rows of nobody.
        if (block.sequences.query_offsets) return "";
        for (int b = 0; b < batch; b++)
            for (int query = queries[b]; query < query_len; query++)
                if (out_at(b, query, 0, 0) != UNWRITTEN) return "a row that no sequence has is written";
        return "";
    }
    std::string wrong_row(int b, int head, int query) const
    {
        const Mask mask(block.scoring, queries[b], keys[b]);
        const int row = first_query[b] + query, of_batch = block.sequences.query_offsets ? 0 : b, kv_head = head / group;
        double max = -INFINITY, sum = 0, values[4] = {};
        std::vector<std::pair<int, double>> scores;
        for (int key = std::max(mask.first_key(query), 0); key < mask.end_key(query, 1); key++) {
            if (key % 8 >= SAMPLED_KEYS || (tiling.blocks && !shows(b, head, query, key))) continue;
            double score = 0;
            for (int slab = 0; slab < tiling.slabs; slab++)
                score += (double)numbers::number(numbers::tag(numbers::QUERIES, slab, head, of_batch, row)) *
                         numbers::number(key_tag(numbers::KEYS, slab, kv_head, b, key));
            score *= block.scoring.scale;
            if (block.scoring.softcap > 0) score = block.scoring.softcap * tanh(score / block.scoring.softcap);
            const auto at = [&](long long of_batch, long long of_head, long long of_row, long long of_key) {
                return b * of_batch + head * of_head + query * of_row + key * of_key;
            };
            const Scoring& scoring = block.scoring;
            if (scoring.slopes) score -= given_slopes[b * scoring.slopes_batch + head] * fabs((double)(query + keys[b] - queries[b] - key));
            if (scoring.bias) score += (float)given_bias[at(scoring.bias_batch, scoring.bias_head, scoring.bias_row, scoring.bias_key)];
            if (scoring.key_mask && !given_mask[at(scoring.mask_batch, scoring.mask_head, scoring.mask_row, scoring.mask_key)]) continue;
            if (score == -INFINITY) continue;
            scores.push_back({key, score});
            max = std::max(max, score);
        }
        for (const auto& [key, score] : scores) {
            const double weight = exp(score - max);
            sum += weight;
            if (tiling.dropout && !DropoutMask(whole.with_dropout.dropout, b).keeps(head, query, key)) continue;
            for (int slab = 0; slab < tiling.value_slabs; slab++)
                values[slab] += weight * numbers::number(key_tag(numbers::VALUES, slab, kv_head, b, key));
        }
        const auto differs = [](double x, double y) { return !(fabs(x - y) <= 3e-3 + fabs(y) * 0x1p-22); };
        for (int slab = 0; slab < tiling.value_slabs; slab++) {
            const double expected = sum == 0 ? 0 : values[slab] * (tiling.dropout ? whole.with_dropout.dropout.factor : 1) / (QUAD * sum), is = widen(out_at(of_batch, row, head, slab * 64));
            // Of a tile without keys, and of rows that others may follow, the first lane writes the first columns alone.
            if (slab > 0 && is == UNWRITTEN && (sum == 0 || reads_lengths(block.sequences))) continue;
            if (differs(is, expected))
                return "query " + std::to_string(query) + " of head " + std::to_string(head) + " of sequence " + std::to_string(b) + " has " +
                       std::to_string(is) + " in slab " + std::to_string(slab) + ", expected " + std::to_string(expected);
        }
        const float is = (*lse)[of_batch * block.lse_batch + head * block.lse_head + row];
        const double expected = log(QUAD * sum) + max;
        if (sum == 0 ? is != -INFINITY : differs(is, expected))
            return "query " + std::to_string(query) + " of head " + std::to_string(head) + " of sequence " + std::to_string(b) + " has lse " +
                   std::to_string(is) + ", expected " + std::to_string(expected);
        return "";
    }
};

std::string result(const Tiling& tiling, unsigned seed)
{
    Random random(seed);
    Problem problem(tiling, random);
    std::string failure;
    for (int i = 0; i < 2 && failure.empty(); i++) failure = problem.run(random, false);
    if (failure.empty() && problem.changes && !problem.lists.empty()) {
        failure = problem.run(random, true);
        if (failure.empty()) failure = problem.run(random, false);
    }
    return failure;
}

} // namespace

int main(int count, char** arguments)
{
    const int seeds = count > 1 ? atoi(arguments[1]) : 20, first = count > 2 ? atoi(arguments[2]) : 1;
    signal(SIGSEGV, [](int) { end("memory outside of the tensors and the workspace was touched\n"); });
    signal(SIGBUS, [](int) { end("memory outside of the tensors and the workspace was touched\n"); });
    signal(SIGALRM, [](int) { end("it does not end\n"); });
    int computed = 0, failed = 0, tilings = 0;
    const auto check = [&](const Tiling& tiling, const char* variant) {
        int of_this = 0;
        // Others than the tiling before has had.
        const int begin = first + tilings++ * 10000;
        for (int seed = begin; seed < begin + seeds && of_this < 3; seed++) {
            snprintf(running, sizeof running, "head size %d, %dx%d, %d warps, %d stages, %s, seed %d: ", tiling.head_dim, tiling.block_m,
                     tiling.block_n, tiling.warps, tiling.stages, variant, seed);
            alarm(60);
            const std::string failure = result(tiling, seed);
            alarm(0);
            computed++;
            if (failure.empty()) continue;
            failed++, of_this++;
            printf("%s%s\n", running, failure.c_str());
            fflush(stdout); // before a signal may end it
        }
    };
#define TILING(d, v, m, n, w, s, variant) check(tiling_of<WgmmaTraits<Element, d, v, m, n, w, s, Variant::variant>>(), #variant);
#include TILINGS
    printf("%d of %d problems passed\n", computed - failed, computed);
    return failed != 0;
}
