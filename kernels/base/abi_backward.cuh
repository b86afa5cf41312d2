// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

enum : int { PREPASS_ROWS = 64 };
constexpr unsigned ROLE_PREPASS = 5;

// Block of the pre-pass of the backward pass. CTA c has PREPASS_ROWS rows of a head: number c % query_tiles of the tiles of head
// c / query_tiles, counted through the batch. It writes as many numbers, from c * PREPASS_ROWS on. A head's tiles are numbered as
// forward numbers them (work/order.cuh): of packed queries, sequence b has those from its first row / PREPASS_ROWS + b on.
struct Prepass {
    Sequences sequences; // Lengths of queries.
    int heads; // Query heads.
    int head_dim; // Elements of a row of a head.
    int query_tiles; // Tiles of a head: of one batch entry, or of all packed queries.
    int lanes; // Lanes that share a row, a power of two of at most 32.
    Tensor out; // The output.
    Tensor d_out; // The gradient of the output.
    const float* lse; // Natural logarithm of each row's sum of exponentials.
    long long lse_batch; // Elements of the lse between batch entries; 0 for packed queries.
    long long lse_head; // Elements of the lse between heads; its rows are contiguous.
    float* delta; // The sum over each row of the output times its gradient; 0 for rows past a sequence's end.
    float* scaled_lse; // The lse to base 2; plus infinity for rows that see no key, and for rows past a sequence's end.
};
static_assert(sizeof(Prepass) == 176);

template <> constexpr unsigned long long BLOCK_HASH<Prepass> = 0x7469a7007893257d;

} // namespace warptile
