// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs and capability.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

enum : int { PREPASS_ROWS = 64, GRADIENTS_F32 = 1, GRADIENTS_ADD = 2 };
constexpr unsigned ROLE_PREPASS = 5;
constexpr unsigned ROLE_KEY_GRADIENTS = 6;
constexpr unsigned ROLE_QUERY_GRADIENTS = 7;
constexpr unsigned ROLE_ALL_GRADIENTS = 8;
constexpr unsigned ROLE_QUERY_SUMS = 9;
constexpr unsigned ROLE_SINK_GRADIENTS = 10;

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
    const float* d_lse; // The gradient of the lse, where the lse has its rows; null: none.
    float* delta; // The sum over each row of the output times its gradient, less the gradient of its lse; 0 for rows past a sequence's end.
    float* scaled_lse; // The lse to base 2; plus infinity for rows that see no key or whose lse is farther from 0 than `Prepass::LARGEST_LSE`, and for rows past a sequence's end.
    unsigned* turns; // [CTAs] set to 0, for the kernel that adds to `dq_sum` in turn; null: none.
};
static_assert(sizeof(Prepass) == 192);

// The numbers that steps of a backward pass leave for later ones. Tile t is that of CTA t of the pre-pass: PREPASS_ROWS query rows
// of a head, number t % query_tiles of the tiles of head t / query_tiles, counted through the batch.
struct QueryRows {
    const float* delta; // `delta` of the pre-pass: tile t has PREPASS_ROWS numbers from t * PREPASS_ROWS on.
    const float* scaled_lse; // `scaled_lse` of the pre-pass, in the same order.
    float* dq_sum; // Sums of dq over the keys that were added so far, in a layout of the kernels' own. Tile t has n = PREPASS_ROWS * (the tiling's head size) numbers, from t * n on. It need not be cleared: the first tile of keys stores instead of adding. Null: the plan has no kernel that adds.
    unsigned* turns; // For each tile, the number of tiles of keys that were added to its sum; it tells whose turn it is. 0 before the kernel that adds.
    int query_tiles; // Tiles of a head: of one batch entry, or of all packed queries.
    int unused; // Unused.
};
static_assert(sizeof(QueryRows) == 40);

// How the tiles of a launch are shared out: those of keys of a key/value head, or of queries of a head. A head's tiles are numbered as
// forward numbers those of queries (work/order.cuh): of packed rows, sequence b has those from its first row / BLOCK + b on.
struct BackwardWork {
    unsigned* counter; // Counter from which CTAs draw tiles; 0 before and after each launch. Null where each CTA has one tile.
    int tiles; // Tiles in all: head_tiles * heads, and * batch unless the rows are packed.
    int head_tiles; // Tiles of a head: of one batch entry, or of all packed rows.
    int heads_at_once; // Heads whose tiles are interleaved: of all batch entries together, or of the packed rows. At least 1.
    int unused; // Unused.
};
static_assert(sizeof(BackwardWork) == 24);

// Block of the kernels of the backward pass that read and write through addresses: the portable pair (dK and dV of a tile of keys,
// and dQ of a tile of queries), and those that turn sums of dQ into dQ. One block serves all of them, for they differ only in what
// the tiles of `work` are, and in whether `rows.dq_sum` is there. With s the scores and p = exp2(s * log2(e) - scaled_lse), the
// gradient of a score is ds = p * (d_out v - delta); a bound multiplies it by its derivative; dq = scale * ds k, dk = scale * ds q,
// dv = p d_out.
struct Backward {
    BackwardWork work; // Tiles.
    int heads; // Query heads.
    int kv_heads; // Key/value heads; divides `heads`.
    int head_dim; // Elements of a row of q and k: at most the tiling's head size, a multiple of 8.
    int value_dim; // Elements of a row of v and d_out: at most the tiling's head size of values, a multiple of 8.
    Sequences sequences; // Lengths.
    Scoring scoring; // Scores. Sinks take part in the lse alone.
    QueryRows rows; // Numbers of query rows.
    Tensor q; // Queries.
    Tensor k; // Keys.
    Tensor v; // Values.
    Tensor d_out; // The gradient of the output.
    Tensor dq; // The gradient of the queries; null: not wanted.
    Tensor dk; // The gradient of the keys; null: not wanted.
    Tensor dv; // The gradient of the values; null: not wanted.
    int gradients; // [`GRADIENTS_F32`] and [`GRADIENTS_ADD`].
    int unused; // Unused.
};
static_assert(sizeof(Backward) == 496);

// Block of the gradient of the sinks. CTA h sums over all query rows of head h, in order.
struct SinkGradient {
    QueryRows rows; // Numbers of query rows.
    const float* sinks; // [head] logits that join the denominator.
    float* d_sinks; // [head] their gradients.
    int heads; // Query heads.
    int entries; // Batch entries; 1 for packed queries.
    int gradients; // [`GRADIENTS_ADD`].
    int unused; // Unused.
};
static_assert(sizeof(SinkGradient) == 72);

template <> constexpr unsigned long long BLOCK_HASH<Prepass> = 0x1853e06f0489ab0c;
template <> constexpr unsigned long long BLOCK_HASH<Backward> = 0xa0aa6469be5f0db7;
template <> constexpr unsigned long long BLOCK_HASH<SinkGradient> = 0xb56d4aa5ecaa1ce6;

} // namespace warptile
