// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

enum : unsigned { ROLE_KEY_RUNS = 11 };

// Block of the kernel that finds the sequences of which a key mask shows the first keys and no others, as of padding behind them; the
// mask is the same for all queries and heads. A launch behind it takes their keys by lengths, without the mask. It finds no keys in the
// others, and what it writes there is written again by a launch with the mask, which finds no queries in the first ones.
struct KeyRuns {
    const unsigned char* key_mask; // Bytes for keys, where 0 hides the key.
    long long mask_batch; // Bytes of the mask between batch entries.
    long long mask_key; // Bytes of the mask between keys.
    int* key_lengths; // [batch] keys that are shown, where they are the first ones; else 0.
    int* other_queries; // [batch] queries of each other sequence; else 0.
    unsigned* run_counter; // Counter from which CTAs draw the tiles of the launch without the mask.
    unsigned* other_counter; // Counter from which CTAs draw the tiles of the launch with it.
    unsigned no_runs; // What `run_counter` is set to if no sequence is the first launch's, so that no CTA has a second tile and the last one leaves 0; else to 0.
    unsigned no_others; // What `other_counter` is set to if no sequence is the second launch's, likewise.
    int batch; // Sequences.
    int query_len; // Queries of a sequence.
    int key_len; // Keys of a sequence.
    int unused; // Unused.
};
static_assert(sizeof(KeyRuns) == 80);

template <> constexpr unsigned long long BLOCK_HASH<KeyRuns> = 0x4c89e5e308ac1c3c;

} // namespace warptile
