// Sizes and the shared memory layout of the family `decode`, and what `mma` shares with it.
#pragma once

#include "base/anew.cuh"
#include "base/element.cuh"
#include "base/math.cuh"
#include "base/record.cuh"
#include "forward/mma_keys.cuh"
#include "memory/copy_number.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "rule/score.cuh"
#include "work/segment.cuh"

namespace warptile {

// Warps of `mma` that share the columns of their rows' results: registers hold 256 of 16 rows. Each computes all their scores.
__device__ constexpr int column_parts_of(int head_dim) { return head_dim > 256 ? 2 : 1; }

// Features that most decoding steps do not need.
constexpr unsigned OPTIONAL_FEATURES = SCORE_OPTIONS | FEATURE_PACKED | FEATURE_PAGED | FEATURE_DEVICE_LENGTHS;

// `Schedule`: the tiles and keys that each CTA reads (work/share.cuh, work/one_tile.cuh). `Keys`: the type of keys and values.
// `OPTIONS`: the flags of OPTIONAL_FEATURES and SCORE_TENSORS that the image supports.
template <class Element_, int HEAD_DIM_, int BLOCK_M_, int BLOCK_N_, int WARPS_, int STAGES_, template <class> class Schedule_,
          class Keys_ = SameKeys<Element_>, unsigned OPTIONS = OPTIONAL_FEATURES>
struct MmaTraits {
    using Element = Element_;
    using Keys = Keys_;
    using Schedule = Schedule_<MmaTraits>;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr int BLOCK_M = BLOCK_M_; // rows: queries and heads that share a key/value head
    static constexpr int BLOCK_N = BLOCK_N_; // keys that the teams take together
    static constexpr int WARPS = WARPS_;
    static constexpr int STAGES = STAGES_; // groups of keys, and of values, that a team has under way
    static constexpr int MIN_CTAS = 1;
    static constexpr int K_STRIDE = 0, V_STRIDE = 0; // rows are swizzled, not padded
    // True if more lengths are read ahead than there are threads. At head size 128 only the image with four warps does so, which is for
    // steps of many sequences: the one with eight would take 1.2% longer for one sequence (docs/notebook/decode.md, "Lengths of many
    // sequences"). An enumerator, because a variable would be data in each image.
    enum : bool {
        KEEPS_MANY_LENGTHS = (OPTIONS | SCORE_TENSORS) != (OPTIONAL_FEATURES | SCORE_TENSORS) && OPTIONS & FEATURE_DEVICE_LENGTHS && !(HEAD_DIM == 128 && WARPS == 8)
    };
    static constexpr unsigned ROLE = ROLE_FORWARD, SCHEDULE = Schedule::SCHEDULE;
    static constexpr unsigned FEATURES = OPTIONS | FEATURE_NEGATIVE_SCALE | FEATURE_LSE | Keys::FEATURES;
    // Returns true if the image supports any of these features.
    __device__ static constexpr bool has(unsigned features) { return FEATURES & features; }
    // All sequences are as long as the host says, and lie one after the other.
    __device__ static constexpr bool is_dense() { return !has(FEATURE_PACKED | FEATURE_DEVICE_LENGTHS | FEATURE_PAGED); }
    // Lengths or offsets may lie on the device.
    __device__ static constexpr bool has_lengths() { return has(FEATURE_PACKED | FEATURE_DEVICE_LENGTHS); }
    // The first segment is prepared before the launch ahead has ended: its keys are brought to L2, and its rows begin. So these need no
    // numbers from memory: no last terms, slopes or scales.
    __device__ static constexpr bool prepares_early()
    {
        return Schedule::SHARES_KEYS && !has(FEATURE_PACKED | LAST_TERM_FEATURES | FEATURE_ALIBI | FEATURE_E4M3);
    }

    // A team is as many warps as the tile's rows need, of 16 rows each. The teams take turns with groups of keys. With more warps than
    // that for the fewest keys there can be in a group, several warps share 16 rows: each has some of the columns, of scores' products as
    // of results.
    static constexpr int THREADS = 32 * WARPS;
    __device__ static constexpr int row_warps() { return BLOCK_M / FRAGMENT_ROWS; } // of the first columns; the others follow them
    __device__ static constexpr int column_parts()
    {
        return WARPS * FRAGMENT_DEPTH > BLOCK_N * row_warps() ? WARPS * FRAGMENT_DEPTH / (BLOCK_N * row_warps()) : 1;
    }
    static constexpr int TEAM_WARPS = row_warps() * column_parts();
    static constexpr int TEAM_THREADS = 32 * TEAM_WARPS;
    static constexpr int TEAMS = WARPS / TEAM_WARPS;
    static constexpr bool TEAM_BARRIERS = TEAM_WARPS > 1 && TEAMS > 1; // otherwise a team is a warp or the CTA
    // A stage is free when all warps of the team have read it. They meet behind each group to know that; or they know it when they meet
    // for the next one, which is a barrier less, and a stage less is under way while they wait. Two teams together still have enough
    // under way, and Hopper's memory is read faster so, but not in pages (docs/notebook/decode.md, "Less under way").
    __device__ static constexpr bool frees_late() { return is_dense() && column_parts() > 1 && TEAMS > 1; }
    // Asking for all keys of a group ahead of its values takes 1.9 to 4% less where one sequence of 4,096 to 16,384 keys is all there is,
    // and more in pages and where several warps share rows (docs/notebook/decode.md, "Keys ahead of values").
    __device__ static constexpr bool loads_keys_first() { return prepares_early() && is_dense() && TEAM_WARPS == 1 && WARPS == 8 && HEAD_DIM == 128; }
    static constexpr int KEYS = BLOCK_N / TEAMS;        // of a group
    static constexpr int WARP_KEYS = KEYS / TEAM_WARPS; // that a warp loads
    static constexpr int ROW_BYTES = HEAD_DIM * (int)sizeof(Element);
    static constexpr int ROW_CHUNKS = ROW_BYTES / CHUNK_BYTES;
    static constexpr int KEY_ROW_BYTES = HEAD_DIM * (int)sizeof(typename Keys::Element);
    static constexpr int KEY_ROW_CHUNKS = KEY_ROW_BYTES / CHUNK_BYTES;
    static constexpr int GROUP_BYTES = KEYS * KEY_ROW_BYTES; // of keys, and as many of values
    static constexpr int STAGE_BYTES = 2 * GROUP_BYTES;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES; // a team's

    static_assert(sizeof(Element) == 2, "mma.sync takes f16 and bf16");
    static_assert((OPTIONS | SCORE_TENSORS) == (OPTIONAL_FEATURES | SCORE_TENSORS) || prepares_early(), "only images that prepare early have fewer options");
    static_assert(BLOCK_M % FRAGMENT_ROWS == 0, "a product has 16 rows");
    static_assert(WARPS % TEAM_WARPS == 0, "whole teams");
    static_assert(BLOCK_N % (TEAMS * FRAGMENT_DEPTH) == 0, "the products with the values take 16 keys at a time");
    static_assert(KEYS % TEAM_WARPS == 0 && WARP_KEYS <= 32, "a lane finds the place of one key");
    static_assert(HEAD_DIM % (Keys::STEPS * FRAGMENT_DEPTH) == 0, "four chunks of a key are loaded at a time");
    static_assert(HEAD_DIM % (Keys::TILES * FRAGMENT_COLUMNS) == 0, "and two of 16 values");
    static_assert(ROW_CHUNKS % 8 == 0 && (KEY_ROW_CHUNKS % 8 == 0 || KEY_ROW_CHUNKS == 4), "the swizzle");
    static_assert(32 % KEY_ROW_CHUNKS == 0 || KEY_ROW_CHUNKS % 32 == 0, "whole rows a copy");
    // Registers hold the queries where there are enough.
    static constexpr bool HOLDS_QUERIES = HEAD_DIM / column_parts() <= 128;
    // Teams' results and parts are added up.
    static constexpr int CLUSTER = Schedule::CLUSTER; // CTAs that share a tile in their shared memory
    static_assert(Schedule::SHARES_KEYS || CLUSTER > 1, "others take a tile's keys with all warps: mma_tile.cuh");
    static constexpr int RESULT_BYTES = BLOCK_M * HEAD_DIM * (int)sizeof(float);
    // Described and not yet computed: two; the others are still being read.
    static constexpr int SEGMENTS = Schedule::SHARES_KEYS ? 4 : 2;
    static constexpr int QUERY_BUFFERS = Schedule::SHARES_KEYS ? 2 : 1; // the next segment's are on their way

    // Shared memory.
    static constexpr int QUERIES_AT = TEAMS * RING_BYTES;
    static constexpr int QUERY_BYTES = BLOCK_M * ROW_BYTES;
    static constexpr int SUMS_AT = QUERIES_AT + QUERY_BUFFERS * QUERY_BYTES;
    static constexpr int SINKS_AT = SUMS_AT + TEAMS * BLOCK_M * (int)sizeof(float2);
    static constexpr int SEGMENTS_AT = SINKS_AT + BLOCK_M * (int)sizeof(float);
    static constexpr int BARRIERS_AT = SEGMENTS_AT + SEGMENTS * (int)sizeof(Segment);
    static constexpr int PLACES_AT = BARRIERS_AT + (TEAM_BARRIERS ? TEAMS * BARRIER_BYTES : 0);
    // Numbers of pages: a warp's for as many groups as it has stages, and for the first ones of two segments.
    static constexpr int PAGES_AT = PLACES_AT + TEAMS * (int)sizeof(int);
    static constexpr int PAGES_BYTES = STAGES * WARP_KEYS * (int)sizeof(int);
    static constexpr int SCHEDULE_AT = PAGES_AT + 3 * WARPS * PAGES_BYTES;
    static constexpr int RESULTS_AT = (SCHEDULE_AT + Schedule::SHARED_BYTES + 127) / 128 * 128;
    // Where a GPU must have more than the smallest of them anyway and there is room, a team's result lies apart, and the whole ring stays
    // under way when a segment ends. Otherwise it lies in a stage of the team's ring, if that is large enough.
    static constexpr int SMALL_GPU_BYTES = 99 * 1024, LARGE_GPU_BYTES = 227 * 1024; // that a CTA may have
    static constexpr int BYTES_APART = RESULTS_AT + TEAMS * RESULT_BYTES;
    static constexpr bool HAS_ROOM = (CLUSTER > 1 || RESULTS_AT > SMALL_GPU_BYTES) && BYTES_APART <= LARGE_GPU_BYTES;
    static constexpr bool RESULT_IN_RING = RESULT_BYTES <= STAGE_BYTES && !HAS_ROOM;
    static constexpr int SHARED_BYTES = RESULT_IN_RING ? SCHEDULE_AT + Schedule::SHARED_BYTES : BYTES_APART;
    // Where the part of a cluster's CTA lies: in its ring, which is free when its one segment ends, behind the first team's result if that
    // is there too.
    __device__ static constexpr int part_in_cluster_at() { return RESULT_IN_RING ? STAGE_BYTES : 0; }
    static_assert(CLUSTER == 1 || RESULT_BYTES + BLOCK_M * (int)sizeof(float2) + (RESULT_IN_RING ? STAGE_BYTES : 0) <=
                                      (RESULT_IN_RING ? RING_BYTES : TEAMS * RING_BYTES),
                  "the part of a cluster's CTA and its sums");
    static_assert(SEGMENTS_AT % 8 == 0 && BARRIERS_AT % 8 == 0 && PLACES_AT % 4 == 0);
};

// A thread's place among those of its CTA, and what lies where in shared memory.
template <class Traits> struct MmaThread {
    unsigned char* const shared;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    __device__ explicit MmaThread(unsigned char* shared) : shared(shared) {}

    __device__ int team() const { return warp / Traits::TEAM_WARPS; }
    __device__ int team_warp() const { return warp % Traits::TEAM_WARPS; } // which of the team's
    __device__ int row_warp() const { return warp % Traits::row_warps(); }   // which 16 rows of the tile
    __device__ int column_part() const                                     // and which columns of the results
    {
        if constexpr (Traits::column_parts() == 1) return 0;
        return team_warp() / Traits::row_warps();
    }

    __device__ Segment& segment(int number) const
    {
        return reinterpret_cast<Segment*>(shared + Traits::SEGMENTS_AT)[(unsigned)number % Traits::SEGMENTS];
    }
    // First keys of groups lie at multiples of BLOCK_N behind this.
    __device__ int first_key() const { return team() * Traits::KEYS; }
    // Blocks in which this team's group has keys of the segment.
    __device__ int first_block(const Segment& of) const
    {
        return (unsigned)(of.first_key + Traits::BLOCK_N - Traits::KEYS - first_key()) / Traits::BLOCK_N;
    }
    __device__ int end_block(const Segment& of) const
    {
        return of.first_key < of.end_key ? (unsigned)(of.end_key - first_key() + Traits::BLOCK_N - 1) / Traits::BLOCK_N : 0;
    }

    // Bytes into shared memory.
    __device__ int stage_at(int stage) const { return team() * Traits::RING_BYTES + stage * Traits::STAGE_BYTES; }
    __device__ static int queries_at(int number)
    {
        return Traits::QUERIES_AT + (unsigned)number % Traits::QUERY_BUFFERS * Traits::QUERY_BYTES;
    }
    __device__ unsigned address_of(int at) const { return (unsigned)__cvta_generic_to_shared(shared) + at; }
    // Bytes into a row: its 16-byte chunks are swapped so that 8 rows' same chunk lies in different banks.
    __device__ static int swizzled(int row, int chunk) { return (chunk ^ (unsigned)row % 8) * CHUNK_BYTES; }
    // Bytes into a row of keys or values; two such rows may share 128 bytes.
    __device__ static int swizzled_key(int row, int chunk)
    {
        return Traits::KEY_ROW_CHUNKS == 4 ? (chunk ^ (unsigned)row / 2 % 4) * CHUNK_BYTES : swizzled(row, chunk);
    }
};

// A row of a tile: a query and one of all query heads.
struct Row {
    int query, head;

    // `group` query heads share a key/value head.
    __device__ Row(const Segment& of, int group, int row)
    {
        // Both are far below 2^20: the half keeps rounding from crossing an integer.
        const int at = of.first_head + row, steps = (int)((at + 0.5f) * reciprocal_approximate(anew(group)));
        query = of.first_query + steps;
        head = of.kv_head * group + at - steps * group;
    }
};

} // namespace warptile
