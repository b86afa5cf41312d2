// The parameter block every family's kernel takes, by value, as its only argument.
//
// crates/attention/src/params.rs holds the same record for the host. Both sides are compared offset by offset through the
// `warptile_record` constant that each image carries (see record.cuh), so neither can move alone.
#pragma once

namespace warptile {

// Distance in elements between neighbours along each dimension; the head dimension itself is contiguous.
// Packed variable-length tensors have batch = 0: their sequences are told apart by cu_seqlens.
struct Strides {
    long long batch;
    long long row;
    long long head;
};

// Used for `window_left` and `window_right` when that side is unlimited. Lengths stay at or below 2^30, so
// `row + window` cannot overflow a 32-bit integer.
constexpr int WINDOW_UNLIMITED = 1 << 30;

struct AttentionParams {
    const void* q;
    const void* k;
    const void* v;
    void* out;
    float* lse;                // natural logarithm; null when not wanted
    const int* cu_seqlens_q;   // [batch + 1] row offsets; null for dense tensors
    const int* cu_seqlens_k;   // [batch + 1] row offsets; null for dense tensors
    const float* alibi_slopes; // slope of head h in batch b at [b * alibi_batch_stride + h]; null for no ALiBi
    int* tile_counter;         // work queue of persistent kernels; null for the others
    Strides q_stride;
    Strides k_stride;
    Strides v_stride;
    Strides out_stride;
    long long lse_batch_stride; // rows of lse are contiguous; 0 for packed tensors
    long long lse_head_stride;
    long long alibi_batch_stride; // 0 when all batches share the slopes
    int batch;
    int heads;
    int kv_heads;
    int head_dim;     // as the tensors have it: at most the tiling's HEAD_DIM, a multiple of 8
    int query_len;    // dense: rows of q; packed: the longest query sequence
    int key_len;      // dense: rows of k; packed: the longest key sequence
    int query_tiles;  // ceil(query_len / BLOCK_M)
    int window_left;  // a query sees keys down to `diagonal - window_left`, ...
    int window_right; // ... and up to `diagonal + window_right`; causal is (WINDOW_UNLIMITED, 0)
    int align_top_left; // diagonal = i when set, else i + key_len - query_len (of the sequence in hand)
    float scale;      // natural units, finite: score = scale * q.k
    float softcap;    // cap * tanh(score / cap) when > 0; 0 for none
};

} // namespace warptile
