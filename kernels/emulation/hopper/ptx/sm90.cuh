#pragma once
#include "base/abi.cuh"
#include "numbers.h"
#include "ptx/launch.cuh"
#include "ptx/mbarrier.cuh"
// The copy engine, and messages between CTAs: what is asked for happens some time later.
namespace warptile {
using emulation::Cta;
using emulation::Range;

// The contents of a tensor map. The map's first word is the address of this struct.
struct MapOf {
    numbers::Of of;
    int rows, heads, batches; // that there are
    int box_rows, box_heads;
    // Stores one element of the output. Null in maps of inputs.
    std::function<void(int batch, int row, int head, int column, const unsigned char* value)> put;
    // The number of a bias, or the byte of a mask, whose rows lie as they do on a GPU. Null in all other maps.
    std::function<unsigned short(int batch, int row, int head, int column)> get;
    int row_bytes = 128;

    int box() const { return box_rows * box_heads; }
    static const MapOf& at(const TensorMap& map) { return *reinterpret_cast<const MapOf*>(map.opaque[0]); }
};

template <int ALIGNMENT> unsigned char* dynamic_shared()
{
    static_assert(ALIGNMENT <= Cta::BASE);
    return emulation::launch.cta().memory + Cta::BASE;
}
inline unsigned shared_address(const void* pointer)
{
    return (unsigned)(static_cast<const unsigned char*>(pointer) - emulation::launch.cta().memory);
}
inline int uniform(int x) { return x; }
inline bool elect_one() { return true; }
inline unsigned thread_index() { return threadIdx.x; }
inline void stay_here() {}
inline void fence_barrier_init() {}
inline void fence_shared_for_async() {}
inline void prefetch_map(const TensorMap&) {}
template <int> void setmaxnreg_dec() {}
template <int> void setmaxnreg_inc() {}

inline void barrier_arrive_expect_bytes(unsigned barrier, unsigned bytes)
{
    emulation::launch.step();
    emulation::launch.arrive(emulation::launch.cta(), barrier, bytes);
}

// To the same place of some CTAs of the cluster.
inline void copy_box_to(unsigned first_rank, unsigned end_rank, unsigned destination, const TensorMap& map, unsigned barrier, int column,
                        int row, int head, int batch)
{
    emulation::Launch& launch = emulation::launch;
    const MapOf& of = MapOf::at(map);
    const Range range = {destination, destination + of.box() * of.row_bytes};
    launch.step();
    if (head < 0 || head >= of.heads || batch < 0 || batch >= of.batches) launch.fail("a box of head %d of batch entry %d is asked for", head, batch);
    // Of a bias or a mask; elsewhere columns are multiples of 64. On a GPU it is an illegal instruction.
    if (of.get && column * (of.row_bytes / 64) % 16) launch.fail("a box from column %d on begins at no multiple of 16 bytes", column);
    for (unsigned rank = first_rank; rank < end_rank; rank++) {
        Cta& cta = launch.cta_of(rank);
        launch.must_live(cta);
        launch.must_be_free(cta, range);
        cta.arriving.push_back(range);
        memset(cta.memory + range.begin, 0xff, range.end - range.begin);
        launch.later([=, &launch, &cta, &of] {
            launch.must_live(cta);
            for (int i = 0; i < of.box(); i++) {
                const int at = row + i % of.box_rows, of_head = head + i / of.box_rows;
                const bool exists = at >= 0 && at < of.rows && of_head < of.heads;
                if (of.get) {
                    const int size = of.row_bytes / 64, of_chunk = 16 / size, mixed = size == 2 ? i % 8 : i / 2 % 4;
                    for (int c = 0; c < 64; c++) {
                        const unsigned short number = exists ? of.get(batch, at, of_head, column + c) : 0;
                        memcpy(cta.memory + range.begin + i * of.row_bytes + (c / of_chunk ^ mixed) * 16 + c % of_chunk * size, &number, size);
                    }
                    continue;
                }
                const numbers::Tag tag = exists ? numbers::tag(of.of, column / 64, of_head, batch, at) : numbers::ZERO;
                memcpy(cta.memory + range.begin + i * 128, &tag, sizeof tag);
            }
            const auto same = [&](const Range& other) { return other.begin == range.begin && other.end == range.end; };
            cta.arriving.erase(std::find_if(cta.arriving.begin(), cta.arriving.end(), same));
            launch.bring(cta, barrier, range.end - range.begin);
        });
    }
}
inline void copy_box(unsigned destination, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch)
{
    const unsigned rank = emulation::launch.rank();
    copy_box_to(rank, rank + 1, destination, map, barrier, column, row, head, batch);
}
inline void copy_box_to_pair(unsigned destination, const TensorMap& map, unsigned barrier, int column, int row, int head, int batch)
{
    copy_box_to(0, 2, destination, map, barrier, column, row, head, batch);
}

// --- Clusters

inline unsigned cluster_rank() { return emulation::launch.rank(); }
inline void cluster_sync()
{
    emulation::launch.meet("the cluster", *emulation::launch.cta().cluster, emulation::launch.cluster_size() * emulation::launch.warps());
}
inline void cluster_leave()
{
    emulation::Warp& warp = emulation::launch.warp();
    emulation::launch.wait_until("its messages", [&] { return warp.messages == 0; });
    cluster_sync();
}
constexpr unsigned RANK_AT = 24;
inline unsigned address_in(unsigned address, unsigned rank) { return address | (rank + 1) << RANK_AT; }
// Something that arrives at a CTA of the cluster.
template <class Message> void send(unsigned address, Message message)
{
    Cta& cta = emulation::launch.cta_of((address >> RANK_AT) - 1);
    emulation::Warp& warp = emulation::launch.warp();
    emulation::launch.step();
    warp.messages++;
    emulation::launch.later([=, &cta, &warp] {
        emulation::launch.must_live(cta);
        message(cta);
        warp.messages--;
    });
}
inline void barrier_arrive_in_cluster(unsigned barrier)
{
    send(barrier, [=](Cta& cta) { emulation::launch.arrive(cta, barrier & ((1u << RANK_AT) - 1)); });
}
inline void barrier_arrive_in_pair(unsigned barrier)
{
    for (unsigned rank = 0; rank < 2; rank++) barrier_arrive_in_cluster(address_in(barrier, rank));
}
inline void send_in_cluster(unsigned address, int word, unsigned barrier)
{
    send(address, [=](Cta& cta) {
        memcpy(cta.memory + (address & ((1u << RANK_AT) - 1)), &word, sizeof word);
        emulation::launch.bring(cta, barrier & ((1u << RANK_AT) - 1), sizeof word);
    });
}

// --- The way back

// The first two columns of each 8, of rows 0 and 8.
inline void store_matrices(unsigned row_address, unsigned m0, unsigned m1, unsigned m2, unsigned m3)
{
    Cta& cta = emulation::launch.cta();
    const unsigned words[4] = {m0, m1, m2, m3};
    for (int i = 0; i < 4; i++) {
        const unsigned to = (row_address ^ i / 2 * 16) + i % 2 * 8 * 128;
        emulation::launch.must_be_free(cta, {to, to + 16});
        memcpy(cta.memory + to, &words[i], sizeof words[i]);
    }
}
inline void store_box(const TensorMap& map, unsigned source, int column, int row, int head, int batch)
{
    Cta& cta = emulation::launch.cta();
    const MapOf& of = MapOf::at(map);
    const Range range = {source, source + of.box() * 128};
    const std::shared_ptr<int> group = emulation::launch.warp().stores;
    emulation::launch.must_be_there(cta, range);
    cta.leaving.push_back(range);
    ++*group;
    emulation::launch.later([=, &cta, &of] {
        for (int i = 0; i < of.box(); i += 8) {
            const int at = row + i % of.box_rows, of_head = head + i / of.box_rows;
            if (at >= 0 && at < of.rows && of_head < of.heads) of.put(batch, at, of_head, column, cta.memory + source + i * 128);
        }
        const auto same = [&](const Range& other) { return other.begin == range.begin && other.end == range.end; };
        cta.leaving.erase(std::find_if(cta.leaving.begin(), cta.leaving.end(), same));
        --*group;
    });
}
inline void commit_stores()
{
    emulation::Warp& warp = emulation::launch.warp();
    warp.store_groups.push_back(std::move(warp.stores));
    warp.stores = std::make_shared<int>(0);
}
template <int PENDING> void wait_for_store_reads()
{
    auto& groups = emulation::launch.warp().store_groups;
    emulation::launch.wait_until("the copy engine", [&] {
        for (size_t i = 0; i + PENDING < groups.size(); i++)
            if (*groups[i] > 0) return false;
        return true;
    });
    while (groups.size() > PENDING) groups.pop_front();
}
inline void store_global(void* destination, const uint4& words) { memcpy(destination, &words, sizeof words); }
}
