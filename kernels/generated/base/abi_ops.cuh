// Written by `cargo xtask build-kernels` from crates/spec/src/abi.rs, where to change it.
#pragma once

#include "base/abi.cuh"

namespace warptile {

// Block of the kernels that merge results of attention over disjoint keys.
struct Merge {
    int parts; // Results to be merged, at least 1.
    int base_two; // 1 if each lse is a logarithm to base 2, 0 if it is a natural one.
    int rows; // Rows of a batch entry.
    int heads; // Heads.
    int head_dim; // Elements of a row of a head.
    int row_ctas; // CTAs that share a row of all heads. CTA c is number c % row_ctas of row c / row_ctas, counted through the batch.
    Tensor out; // The merged output.
    Tensor lse; // The merged lse, a float for each row and head; null: not wanted.
    Tensor outs[32]; // The outputs to be merged.
    Tensor lses[32]; // Their lse, a float for each row and head; null: the outputs to be merged are floats, and are added.
};
static_assert(sizeof(Merge) == 2136);

// Rotation of pairs of elements by angles that are proportional to a row's position. Positions on the device are not validated: the
// kernels clamp them to [0, positions_end).
struct Rotary {
    int size; // Number of elements of a head that are rotated, from the first on: even; 0: none.
    int interleaved; // 1 if elements 2i and 2i + 1 are a pair, 0 if i and size / 2 + i are.
    int float_tables; // 1 if the tables are float, 0 if they have the tensors' element type.
    int wide_positions; // 1 if positions have 64 bits, 0 if they have 32.
    const void* positions; // A position for each row of k, counted through the batch; null: the place in the sequence.
    long long positions_end; // Exclusive upper bound of positions; the number of rows of the tables, if there are tables.
    const void* cos; // [positions_end][size / 2] cosines; null: angles are computed.
    const void* sin; // [positions_end][size / 2] sines.
    long long table_row; // Elements between the rows of both tables.
    unsigned long long turns[128]; // Turns that one position adds to each pair's angle, in units of 2^-64.
};
static_assert(sizeof(Rotary) == 1080);

// Block of the kernels that write new keys and values into a cache, and rotate queries and keys on the way.
struct Append {
    Sequences sequences; // The new rows are queries here: a sequence has at most `query_len` of them, of the rows `query_rows` of k and v. The rows that the cache has of it already are keys: `key_lengths` of at most `key_len`.
    Pages pages; // The cache's pages. Without a table and slots page b is sequence b's only one.
    const long long* slots; // Destination of each row of k, counted through the batch: page * rows + row. A row whose slot is outside the cache is not written. Null: new rows follow the rows that their sequence has.
    int heads; // Query heads; 0: no queries.
    int kv_heads; // Key/value heads.
    int head_dim; // Elements of a row of q and k.
    int value_dim; // Elements of a row of v.
    int lanes; // Threads that share a head of a row, with at most a chunk of 16 bytes each.
    int row_ctas; // CTAs that share a row of all heads. CTA c is number c % row_ctas of row c / row_ctas, as new_row (ops/append.cuh) numbers them.
    Tensor q; // Queries.
    Tensor q_out; // Where rotated queries go; may be `q`.
    Tensor k; // New keys.
    Tensor v; // New values.
    Tensor k_pages; // Keys of the cache; its batch entries are pages.
    Tensor v_pages; // Values of the cache.
    Rotary rotary; // Rotation of q and k.
};
static_assert(sizeof(Append) == 1392);

// Block of the kernels that write into a cache in e4m3: each number is divided by its scale, and rounded.
struct AppendE4m3 {
    Append append; // Everything else. Strides of the cache count its elements, which are bytes.
    KeyScales scales; // Scales.
};
static_assert(sizeof(AppendE4m3) == 1416);

template <> constexpr unsigned long long BLOCK_HASH<Merge> = 0x46c21d77b96c621a;
template <> constexpr unsigned long long BLOCK_HASH<Append> = 0x586ec4ad4f079217;
template <> constexpr unsigned long long BLOCK_HASH<AppendE4m3> = 0xa6cc8d066227c3f1;

} // namespace warptile
