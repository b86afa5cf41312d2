// Lists of blocks in the kernels on wgmma: a stage holds keys from several places, LISTED_BOX_ROWS from each. The loading thread walks over
// the list of a tile's queries, or over two lists at once if its warpgroups' rows have lists of their own, leaves out what no row sees, and writes beside each stage which keys it holds, and whether they are the
// tile's last: how many there are is known only when the list has been read.
#pragma once

#include "forward/wgmma_softmax.cuh"
#include "rule/blocks.cuh"

namespace warptile {

// Of the computing warpgroups: the keys of the blocks in hand.
template <class Traits, bool = lists_blocks<Traits>()> class ListedSteps {};
template <class Traits> class ListedSteps<Traits, true> {
  public:
    enum : int { UNIT = LISTED_BOX_ROWS, UNITS = Traits::BLOCK_N / UNIT };
    static_assert(Traits::BLOCK_N % UNIT == 0 && UNITS <= 2 && !Traits::GROUPS, "whole units, and rows of one head");

    // What the tile's rows see: a unit that begins from `first` to `last` hides nothing from any of them. `followed`: rows behind the
    // sequence's last key may hold anything.
    __device__ void start(const Mask& mask, int first_row, bool followed)
    {
        all_see_from = min(first_row + MMA_ROWS, mask.query_len) - 1 + mask.shift - mask.left;
        all_see_to = min(first_row + mask.shift + mask.right + 1, mask.key_len) - UNIT;
        key_len = mask.key_len;
        whole_to = followed ? key_len - UNIT : key_len;
    }

    // The keys that come next. Returns true if they hide nothing, and those in hand are whole.
    __device__ bool look(const ListedStage& stage, int warpgroup)
    {
        const ListedStage read = stage; // at once
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) next[unit] = read.first_key[unit];
        next_shown = read.shown >> warpgroup;
        int seen = 0; // a bit for each unit
        bool whole = true;
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            seen |= is_seen_by_all(next[unit], next_shown >> 2 * unit) << unit;
            whole &= next[unit] <= whole_to || next[unit] == key_len; // without keys it has zeros
        }
        const int all = uniform(8 * whole + 4 * read.is_last + seen);
        next_is_whole = all & 8;
        next_is_last = all & 4;
        next_seen = all & ALL_SEEN;
        return next_seen == ALL_SEEN && is_whole;
    }

    // They become those in hand.
    __device__ void move_on()
    {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            before[unit] = here[unit];
            here[unit] = next[unit];
        }
        shown = next_shown;
        seen = next_seen;
        is_last = next_is_last;
        was_whole = is_whole;
        is_whole = next_is_whole;
    }

    // Behind the last block: its values are those of the block before.
    __device__ void keep_last()
    {
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) before[unit] = here[unit];
        was_whole = is_whole;
    }

    // Hides keys as `apply_mask` does.
    __device__ void hide(float (&scores)[Traits::BLOCK_N / 2], const Forward& params, const Tile& tile, int first_row) const
    {
        const Mask mask(params.scoring, tile.query_len, tile.key_len);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            if (seen >> unit & 1) continue;
            // What the list does not have is behind the last key.
            const int first_key = (shown >> 2 * unit & 1 ? here[unit] : tile.key_len) + lane_column();
#pragma unroll
            for (int row = 0; row < ROWS_PER_THREAD; row++) {
                const int diagonal = first_row + lane_row() + 8 * row + mask.shift;
                const int first_seen = diagonal - mask.left - first_key;
                const int end_seen = min(diagonal + mask.right, tile.key_len - 1) + 1 - first_key;
                const unsigned hidden = ~columns_from(first_seen) | columns_from(end_seen);
#pragma unroll
                for (int i = 0; i < UNIT / 4; i++)
                    if (hidden & 1u << i) scores[unit * (UNIT / 2) + i / 2 * 4 + 2 * row + i % 2] = negative_infinity();
            }
        }
    }

    int here[UNITS], before[UNITS], next[UNITS]; // first keys of the block in hand, of the one before, and of the next
    bool is_last, next_is_last;
    bool was_whole; // no row of the block before is behind the sequence's last one

  private:
    __device__ bool is_seen_by_all(int first_key, int is_shown) const
    {
        return is_shown & 1 && all_see_from <= first_key && first_key <= all_see_to;
    }

    enum : int { ALL_SEEN = (1 << UNITS) - 1 };
    int shown, next_shown; // bit 2 * unit: the list has it
    int seen, next_seen;   // bit unit: nothing in it is hidden
    int all_see_from, all_see_to, key_len;
    int whole_to; // a unit that begins up to here has no row behind the sequence's last one, or such rows are zeros
    bool is_whole, next_is_whole;
};

// Of the loading thread: the keys of a tile that are still to be loaded, and the values that are.
template <class Traits, bool = lists_blocks<Traits>()> struct ListedLoading {};
template <class Traits> struct ListedLoading<Traits, true> {
    enum : int { UNIT = LISTED_BOX_ROWS, UNITS = Traits::BLOCK_N / UNIT };

    enum : int { LISTS = Traits::CONSUMERS, NONE = ListedKeys<UNIT>::NONE };
    static_assert(LISTS <= 2, "a list for each warpgroup");

    ListedKeys<UNIT> listed[LISTS];
    int next_key[LISTS]; // of each list; NONE after the last
    int value_rows[UNITS];

    // Begins the list of a tile, whose blocks are the range of keys that the mask shows. The tile gets one block, or none.
    __device__ void open(Tile& tile, const BlockLists& lists)
    {
#pragma unroll
        for (int list = 0; list < LISTS; list++) {
            // One for all rows, unless blocks of queries are smaller than tiles.
            const int query = tile.first_query + list * MMA_ROWS;
            const bool has_own = list == 0 || (lists.queries < Traits::BLOCK_M && query < tile.query_len);
            next_key[list] = NONE;
            if (!has_own) continue;
            listed[list] = ListedKeys<UNIT>(lists, tile.batch, tile.head, query, tile.first_block, tile.end_block);
            next_key[list] = listed[list].next();
        }
        is_shared = lists.queries >= Traits::BLOCK_M;
        tile.first_block = 0;
        tile.end_block = !is_done();
    }
    __device__ bool is_done() const
    {
        bool done = true;
#pragma unroll
        for (int list = 0; list < LISTS; list++) done &= next_key[list] == NONE;
        return done;
    }
    // Blocks that are still to come, at most.
    __device__ int left() const
    {
        int blocks = 0;
#pragma unroll
        for (int list = 0; list < LISTS; list++)
            if (next_key[list] != NONE) blocks += listed[list].left();
        return blocks;
    }

    // The keys of the next stage, and their rows in the tensor. Rows behind the last one there are read as zeros.
    __device__ void take(ListedStage& stage, int (&rows)[UNITS], const Tile& tile, int all_rows)
    {
        int shown = 0;
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            // The least of what the lists have next: NONE is the largest number.
            unsigned key = next_key[0];
            if constexpr (LISTS > 1) key = min(key, (unsigned)next_key[1]);
            // The second unit of a list's last block may be behind the last key.
            const bool has_keys = key < (unsigned)tile.key_len;
            stage.first_key[unit] = has_keys ? key : tile.key_len;
            rows[unit] = has_keys ? tile.key_offset + key : all_rows;
            if (key == (unsigned)NONE) continue;
#pragma unroll
            for (int list = 0; list < LISTS; list++)
                if (next_key[list] == (int)key) {
                    shown |= 1 << (2 * unit + list);
                    next_key[list] = listed[list].next();
                }
            if (is_shared) shown |= 3 << 2 * unit;
        }
        stage.shown = shown;
        stage.is_last = is_done();
    }

  private:
    bool is_shared; // the list is that of all rows
};

} // namespace warptile
