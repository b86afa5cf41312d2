/* Warptile: fused attention. On a GPU it needs only the NVIDIA driver; without one it runs on the CPU.
 *
 * Made by cbindgen from the sources in integrations/c/src: do not edit. The README there has examples and how to install.
 */

#ifndef WARPTILE_H
#define WARPTILE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Done.
 */
#define WARPTILE_OK 0

/**
 * An argument breaks a rule. Nothing was computed or launched.
 */
#define WARPTILE_INVALID 1

/**
 * No kernel can compute this on the device. The text lists every kernel and the reason. Nothing was launched.
 */
#define WARPTILE_NO_KERNEL 2

/**
 * There is no usable driver, no such device, or what several GPUs need is missing: access to each other's memory, or NCCL.
 */
#define WARPTILE_NO_DEVICE 3

/**
 * The driver reports an error; it may be that of earlier work on the device.
 */
#define WARPTILE_DRIVER 4

/**
 * Memory of the host or of the device does not suffice.
 */
#define WARPTILE_OUT_OF_MEMORY 5

/**
 * A fault of this library. What was being written is undefined.
 */
#define WARPTILE_FAULT 6

/**
 * Ranks of a group have not met, one is lost or late, or their calls differ. The text says which. The group is of no more use, unless
 * only the bound of a wait has passed.
 */
#define WARPTILE_RANKS 7

/**
 * Elements are IEEE half precision, 2 bytes.
 */
#define WARPTILE_F16 1

/**
 * Elements are bfloat16, 2 bytes.
 */
#define WARPTILE_BF16 2

/**
 * Elements are IEEE single precision, 4 bytes.
 */
#define WARPTILE_F32 3

/**
 * Elements are e4m3 (float8_e4m3fn), 1 byte: of keys, values and caches alone.
 */
#define WARPTILE_E4M3 4

/**
 * The CPU, where a device's number is asked for.
 */
#define WARPTILE_CPU -1

/**
 * A query sees every key.
 */
#define WARPTILE_MASK_NONE 0

/**
 * A query sees no key after the one on the diagonal.
 */
#define WARPTILE_MASK_CAUSAL 1

/**
 * A query sees window_left keys before and window_right keys after the one on the diagonal. A negative number means no limit.
 */
#define WARPTILE_MASK_WINDOW 2

/**
 * The last query is aligned with the last key.
 */
#define WARPTILE_DIAGONAL_BOTTOM_RIGHT 0

/**
 * The first query is aligned with the first key.
 */
#define WARPTILE_DIAGONAL_TOP_LEFT 1

/**
 * The first query is aligned with key diagonal_offset, which may be negative.
 */
#define WARPTILE_DIAGONAL_AT 2

/**
 * No slopes.
 */
#define WARPTILE_ALIBI_NONE 0

/**
 * One slope for each query head.
 */
#define WARPTILE_ALIBI_PER_HEAD 1

/**
 * One slope for each batch entry and query head, heads contiguous.
 */
#define WARPTILE_ALIBI_PER_BATCH_HEAD 2

/**
 * Keys are copied as they are.
 */
#define WARPTILE_ROTARY_NONE 0

/**
 * Elements 2i and 2i + 1 of a head are turned together: GPT-J and the original paper.
 */
#define WARPTILE_ROTARY_INTERLEAVED 1

/**
 * Elements i and i + rotary_size / 2 are turned together: GPT-NeoX, Llama and Qwen as Hugging Face stores them.
 */
#define WARPTILE_ROTARY_HALF_SPLIT 2

/**
 * A row's place in its sequence is its position.
 */
#define WARPTILE_POSITIONS_NONE 0

/**
 * Positions are given as int32_t.
 */
#define WARPTILE_POSITIONS_I32 1

/**
 * Positions are given as int64_t.
 */
#define WARPTILE_POSITIONS_I64 2

/**
 * The most parts of a merge. For more, merge the results of merges.
 */
#define WARPTILE_MERGE_PARTS 32

/**
 * The GPU that has the number of this process among those of its host, where warptile_group_nccl asks for a device and the environment
 * says who this process is: `ranks` of the world is 0.
 */
#define WARPTILE_LOCAL_RANK -2

/**
 * Each rank has one chunk of the rows, in order: balanced without a mask.
 */
#define WARPTILE_SHARDING_CONTIGUOUS 0

/**
 * There are twice as many chunks as ranks, and rank r has chunk r and chunk 2 ranks - 1 - r: balanced under a causal mask.
 */
#define WARPTILE_SHARDING_ZIGZAG 1

/**
 * The rows are those of packed documents. Long ones are dealt out in zigzag, short ones stay whole; no query sees another document.
 */
#define WARPTILE_SHARDING_DOCUMENTS 2

/**
 * Each half of the rows is dealt out in zigzag: the work of all ranks ends closer together than by one zigzag.
 */
#define WARPTILE_SHARDING_TWO_ZIGZAGS 3

/**
 * Each rank fetches the keys that its queries see.
 */
#define WARPTILE_SCHEME_GATHER 0

/**
 * Each rank gets all rows of some heads: for at least as many query heads as ranks.
 */
#define WARPTILE_SCHEME_HEADS 1

/**
 * By heads among the ranks of a host, which fetch the keys of other hosts: each row goes to a host once. Ranks that follow each other are on
 * one of `hosts` hosts, the same number on each.
 */
#define WARPTILE_SCHEME_HYBRID 2

/**
 * A write that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
 */
typedef struct warptile_append warptile_append;

/**
 * A description that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
 */
typedef struct warptile_attention warptile_attention;

/**
 * Gradients that were checked and prepared for a device. They never change: any number of threads may use them at the same time.
 */
typedef struct warptile_backward warptile_backward;

/**
 * A cache whose pages are dealt to the ranks of a group: page p of a sequence is with rank p modulo their number, so each has its share of
 * every long sequence. Calls of several threads take turns.
 */
typedef struct warptile_dealt_cache warptile_dealt_cache;

/**
 * Devices that compute together, in the order of their ranks. Any number of threads may use a group at the same time, except that calls of
 * several processes come in one order on all of them.
 */
typedef struct warptile_group warptile_group;

/**
 * A merge that was checked and prepared for a device. It never changes: any number of threads may use it at the same time.
 */
typedef struct warptile_merge warptile_merge;

/**
 * A description that was checked for a group, whose rows are dealt to the ranks. Any number of threads may use it at the same time.
 */
typedef struct warptile_sharded warptile_sharded;

/**
 * The output of warptile_sharded_forward as a backward pass needs it, with its log-sum-exp.
 */
typedef struct warptile_sharded_output warptile_sharded_output;

/**
 * Where the elements of a tensor lie.
 *
 * The dimensions are always in the order batch, length, heads, head size, however the tensor is stored. Strides are distances
 * in elements between neighbours along each dimension; the last one is 1, except where there is an element for each score. A stride of 0 repeats an input.
 * Four zeros for strides mean a tensor that is stored in the order of its dimensions without gaps.
 */
typedef struct warptile_layout {
  /**
   * Extents. Four zeros, where a layout is optional, mean that it is not given.
   */
  int64_t shape[4];
  /**
   * Distances in elements.
   */
  int64_t strides[4];
} warptile_layout;

/**
 * Description of a computation, `softmax(scale * q kT) v`, and its options. Fill the struct with zeros, then set `size`, `element`, `q`,
 * `k` and `v`: zero is the default of all other fields. A field that would have no effect is refused, such as `window_left` with
 * WARPTILE_MASK_CAUSAL, unless it has its default.
 *
 * For each batch entry and head, with the key/value head `h / (heads / kv_heads)`: `score = scale * q.k`, then
 * `softcap * tanh(score / softcap)`, then `- slope * distance` from the aligned key, then `+ bias`, then the masks. A query that sees no
 * key gives 0, and -infinity for its lse, or its sink. Head sizes are multiples of 8 from 8 to 512.
 */
typedef struct warptile_attention_desc {
  /**
   * `sizeof(warptile_attention_desc)`.
   */
  size_t size;
  /**
   * Element type of q, k, v and out, and of k, v and bias unless they have their own: WARPTILE_F16, WARPTILE_BF16 or WARPTILE_F32.
   */
  uint32_t element;
  /**
   * WARPTILE_MASK_NONE, and so on.
   */
  uint32_t mask;
  /**
   * Queries.
   */
  struct warptile_layout q;
  /**
   * Keys. Their heads must divide those of q. With a block table: pages, rows of a page, heads, head size.
   */
  struct warptile_layout k;
  /**
   * Values, of the shape of k except for the head size, which may differ, such as 128 with 192.
   */
  struct warptile_layout v;
  /**
   * Output, of the shape of q but with the head size of v. Not given: dense, in the order in which q is stored.
   */
  struct warptile_layout out;
  /**
   * Added to the scores: batch, queries, heads, keys, each 1 for all. Not given: none. Four zeros for strides mean a bias without gaps
   * here, too: for one number that counts for all scores, pass extents of 1 instead.
   */
  struct warptile_layout bias;
  /**
   * Hides keys where its byte is 0; shape and strides as those of bias. Not given: none.
   */
  struct warptile_layout key_mask;
  /**
   * Keys before the diagonal that a query sees, for WARPTILE_MASK_WINDOW.
   */
  int64_t window_left;
  /**
   * Keys after the diagonal that a query sees, for WARPTILE_MASK_WINDOW.
   */
  int64_t window_right;
  /**
   * Where the mask's diagonal runs: WARPTILE_DIAGONAL_BOTTOM_RIGHT, and so on. Allowed without a mask, where it hides nothing.
   */
  uint32_t diagonal;
  /**
   * The key aligned with the first query, for WARPTILE_DIAGONAL_AT.
   */
  int32_t diagonal_offset;
  /**
   * Factor of the scores, if `scale_given` is 1; else it is 1 / sqrt(head size).
   */
  float scale;
  /**
   * 0 or 1.
   */
  uint32_t scale_given;
  /**
   * Bounds the scores: `softcap * tanh(score / softcap)`. 0: no bound.
   */
  float softcap;
  /**
   * WARPTILE_ALIBI_NONE, and so on.
   */
  uint32_t alibi;
  /**
   * 1: every query head has a sink, a logit that joins the denominator of its rows.
   */
  uint32_t sinks;
  /**
   * 1: the log-sum-exp of every row is written, too.
   */
  uint32_t want_lse;
  /**
   * 1: the queries of the sequences lie one after the other in a q whose batch extent is 1, and query_offsets says where.
   */
  uint32_t packed_queries;
  /**
   * 1: likewise of keys and values, and key_offsets.
   */
  uint32_t packed_keys;
  /**
   * 1: query_lengths says how many queries of each sequence exist.
   */
  uint32_t query_lengths;
  /**
   * 1: key_lengths says how many keys of each sequence exist.
   */
  uint32_t key_lengths;
  /**
   * Sequences of packed queries. Else 0, or the batch extent of q.
   */
  int64_t sequences;
  /**
   * No sequence has more queries. 0: as many as q has rows. Only with packed_queries. A bound near to the truth lets a GPU do less;
   * it cuts off what is longer, and the CPU refuses it.
   */
  int64_t longest_query;
  /**
   * No sequence has more keys. 0: as many as there can be. Only with packed_keys or key_lengths. As longest_query for what is longer.
   */
  int64_t longest_key;
  /**
   * Columns of the block table: the most pages of a sequence. 0: k and v are not in pages.
   */
  int64_t table_columns;
  /**
   * Entries from one row of the block table to the next. 0: as many as there are columns.
   */
  int64_t table_stride;
  /**
   * Cuts keys at every multiple of this number, a power of two from 256 on, so that a sequence's bits are the same in every batch.
   * 0: where it is fastest.
   */
  uint32_t split_keys;
  /**
   * 1: on a GPU q, k, v, out, bias and key_mask may start at any address that is a multiple of their elements' size. 0: they start at
   * multiples of 16 bytes, which more kernels take. The CPU takes both.
   */
  uint32_t unaligned_addresses;
  /**
   * Name of the kernel or kernel family to be used on a GPU. Null: the fastest.
   */
  const char *kernel;
  /**
   * 1: warptile_attention_run makes the launch and nothing else: one call of the driver for each step of the plan, and one more for each
   * tensor that a step reads through a tensor map. The caller sees to it that the device's primary context is current on the thread, that the stream is of
   * it, and that all addresses are of memory that the device can use. 0: it looks, and makes the context current for the time of the call.
   */
  uint32_t unchecked;
  /**
   * Element type of k and v: 0, for that of `element`, or WARPTILE_E4M3, with any `element`.
   */
  uint32_t cache_element;
  /**
   * With WARPTILE_E4M3: how many numbers k_scale has, 1 or one for each key/value head. 0: 1.
   */
  uint32_t k_scales;
  /**
   * With WARPTILE_E4M3: how many numbers v_scale has, 1 or one for each key/value head. 0: 1.
   */
  uint32_t v_scales;
  /**
   * Probability of dropping a weight, from 0 to below 1, rounded to a multiple of 2^-16. Weights that are kept are divided by 1 - dropout;
   * dropout_state says which are. 0: none.
   */
  double dropout;
  /**
   * Queries of a block, 64 or 128: each block of queries sees the blocks of keys that block_offsets and block_indices list, and of these
   * what the mask shows. 0: no lists.
   */
  uint32_t block_queries;
  /**
   * Keys of a block, 64 or 128.
   */
  uint32_t block_keys;
  /**
   * 1: each sequence has lists of its own.
   */
  uint32_t blocks_per_batch;
  /**
   * 1: each query head has lists of its own. Those of a sequence's heads follow each other.
   */
  uint32_t blocks_per_head;
  /**
   * How many numbers block_offsets has: one for each row of each list, and one more.
   */
  int64_t block_offset_count;
  /**
   * How many numbers block_indices has.
   */
  int64_t block_index_count;
  /**
   * Element type of bias: 0, for that of `element`, or WARPTILE_F32, which has no gradients unless `element` is it.
   */
  uint32_t bias_element;
  /**
   * 0.
   */
  uint32_t reserved;
} warptile_attention_desc;

/**
 * The memory of one call: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
 * asks for must be given.
 */
typedef struct warptile_attention_memory {
  /**
   * `sizeof(warptile_attention_memory)`.
   */
  size_t size;
  /**
   * Queries.
   */
  const void *q;
  /**
   * Keys.
   */
  const void *k;
  /**
   * Values.
   */
  const void *v;
  /**
   * Receives the output. Gaps between its rows, and rows that no sequence has, are left alone.
   */
  void *out;
  /**
   * Receives the log-sum-exp, natural: [batch, heads, length] without gaps, or [heads, rows] for packed queries.
   */
  float *lse;
  /**
   * Where each sequence begins among the rows of q, and where the last one ends: sequences + 1 numbers.
   */
  const int32_t *query_offsets;
  /**
   * Where each sequence begins among the rows of k and v, and where the last one ends: sequences + 1 numbers.
   */
  const int32_t *key_offsets;
  /**
   * Queries of each sequence.
   */
  const int32_t *query_lengths;
  /**
   * Keys of each sequence.
   */
  const int32_t *key_lengths;
  /**
   * For each sequence the numbers of its pages, in order.
   */
  const int32_t *block_table;
  /**
   * ALiBi slopes.
   */
  const float *alibi_slopes;
  /**
   * Sinks, one for each query head; minus infinity for a head without one.
   */
  const float *sinks;
  /**
   * The bias, of the tensors' element type or `bias_element`.
   */
  const void *bias;
  /**
   * The key mask; 0 hides. Values of hidden keys count 0 times, so they must be finite: 0 times NaN is NaN.
   */
  const uint8_t *key_mask;
  /**
   * Device memory of warptile_attention_workspace bytes, at a multiple of 256. Fill it with zeros once, before its first use: every
   * launch leaves zeros where they count. No two launches that may run at the same time share one; a captured graph has one of its
   * own. Null if no bytes are needed.
   */
  void *workspace;
  /**
   * Bytes there.
   */
  size_t workspace_bytes;
  /**
   * Scales by which keys in e4m3 are multiplied: finite, above 0. A GPU reads them when the work runs, and does not check them.
   */
  const float *k_scale;
  /**
   * Scales by which values in e4m3 are multiplied: finite, above 0.
   */
  const float *v_scale;
  /**
   * Eight words: the seed and the offset of dropout's random numbers, each with the low half first, and the numbers of the first sequence,
   * head, query and key. Those of query and key are multiples of 32.
   */
  const int32_t *dropout_state;
  /**
   * Where each row of the lists of blocks begins in block_indices, and where the last one ends. A row belongs to a block of queries.
   */
  const int32_t *block_offsets;
  /**
   * Numbers of blocks of keys, ascending in each row. One below 0 ends its row.
   */
  const int32_t *block_indices;
} warptile_attention_memory;

/**
 * Description of the gradients of a computation. Fill the struct with zeros, then set `size`, `attention` and at least one of the
 * `want` fields: zero is the default of all other fields.
 *
 * Pages, keys in e4m3 and head sizes above 256 have no gradients, nor have slopes. dk and dv are the sums over the query heads that share
 * a key/value head.
 */
typedef struct warptile_backward_desc {
  /**
   * `sizeof(warptile_backward_desc)`.
   */
  size_t size;
  /**
   * The computation, described as for warptile_attention_prepare; its `want_lse`, `kernel` and `unchecked` do not count.
   */
  const struct warptile_attention_desc *attention;
  /**
   * 1: the gradient of the queries is computed.
   */
  uint32_t want_dq;
  /**
   * 1: that of the keys.
   */
  uint32_t want_dk;
  /**
   * 1: that of the values.
   */
  uint32_t want_dv;
  /**
   * 1: that of the sinks.
   */
  uint32_t want_d_sinks;
  /**
   * 1: the log-sum-exp has a gradient, too, which d_lse gives.
   */
  uint32_t d_lse;
  /**
   * Element type of dq, dk, dv and d_bias: 0, for that of the tensors, or WARPTILE_F32. That of d_sinks is WARPTILE_F32.
   */
  uint32_t gradient_element;
  /**
   * 1: gradients are added to what is there. 0: they replace it.
   */
  uint32_t add;
  /**
   * 1: as in warptile_attention_desc.
   */
  uint32_t unchecked;
  /**
   * Gradient of the output, of the output's shape. Not given: stored as the output is.
   */
  struct warptile_layout d_out;
  /**
   * Gradient of q, of its shape. Not given: dense, in the order in which q is stored.
   */
  struct warptile_layout dq;
  /**
   * Gradient of k, likewise.
   */
  struct warptile_layout dk;
  /**
   * Gradient of v, likewise.
   */
  struct warptile_layout dv;
  /**
   * Name of the kernel or kernel family for the main step on a GPU. Null: the fastest.
   */
  const char *kernel;
  /**
   * Gradient of the bias, of its shape, but with the extent 1 where the bias is repeated. Not given: dense, in the order in which the
   * bias is stored.
   */
  struct warptile_layout d_bias;
  /**
   * 1: the gradient of the bias is computed.
   */
  uint32_t want_d_bias;
  /**
   * 0.
   */
  uint32_t reserved;
} warptile_backward_desc;

/**
 * The memory of gradients: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
 * asks for must be given.
 */
typedef struct warptile_backward_memory {
  /**
   * `sizeof(warptile_backward_memory)`.
   */
  size_t size;
  /**
   * The memory of the computation, whose `out` and `lse` are read here: both must be given. Its workspace does not count.
   */
  const struct warptile_attention_memory *attention;
  /**
   * Gradient of the output.
   */
  const void *d_out;
  /**
   * Gradient of the log-sum-exp, stored as that is.
   */
  const float *d_lse;
  /**
   * Receives the gradient of q. Gaps between rows, and rows that no sequence has, are left alone in all gradients.
   */
  void *dq;
  /**
   * Receives the gradient of k.
   */
  void *dk;
  /**
   * Receives the gradient of v.
   */
  void *dv;
  /**
   * Receives the gradient of the sinks, one number for each query head.
   */
  float *d_sinks;
  /**
   * Device memory of warptile_backward_workspace bytes, at a multiple of 256, as in warptile_attention_memory: zeros before its first
   * use, and not shared by launches that may run at the same time. Null if no bytes are needed.
   */
  void *workspace;
  /**
   * Bytes there.
   */
  size_t workspace_bytes;
  /**
   * Receives the gradient of the bias.
   */
  void *d_bias;
} warptile_backward_memory;

/**
 * New keys and values that are written into a cache, rotated on the way. Fill the struct with zeros, then set `size`, `element`, `k`,
 * `v`, `k_pages` and `v_pages`: zero is the default of all other fields. A field that would have no effect is refused, such as
 * `rotary_frequencies` with tables, unless it has its default.
 *
 * A cache is pages: [pages, rows of a page, heads, head size] with any strides, so heads may come before rows, and keys and values may be
 * interleaved. A dense cache is one page for each sequence. Rows go after the key_lengths[b] rows that sequence b has, into the pages that
 * row b of the block table names (without a table: page b), or with `slots` row i goes to row slots[i] of all pages. What has no place goes
 * nowhere: slots such as -1, numbers of pages that do not exist, and rows beyond the last column. On the CPU the values of a cache in one
 * tensor come after its keys.
 */
typedef struct warptile_append_desc {
  /**
   * `sizeof(warptile_append_desc)`.
   */
  size_t size;
  /**
   * Element type of all tensors; `cache_element` may be another.
   */
  uint32_t element;
  /**
   * WARPTILE_ROTARY_NONE, and so on.
   */
  uint32_t rotary;
  /**
   * New keys: batch, rows, heads, head size.
   */
  struct warptile_layout k;
  /**
   * New values.
   */
  struct warptile_layout v;
  /**
   * The cache's keys: pages, rows of a page, heads, head size.
   */
  struct warptile_layout k_pages;
  /**
   * The cache's values.
   */
  struct warptile_layout v_pages;
  /**
   * Queries to be rotated, too: of the batch and rows of k. Not given: none.
   */
  struct warptile_layout q;
  /**
   * Where rotated queries go. Not given: where they are.
   */
  struct warptile_layout q_out;
  /**
   * 1: rows go to slots. 0: after key_lengths.
   */
  uint32_t slots;
  /**
   * 1: the rows of the sequences lie one after the other in k, v and q, whose batch extent is 1, and row_offsets says where.
   */
  uint32_t packed;
  /**
   * 1: row_lengths says how many new rows of each sequence exist.
   */
  uint32_t row_lengths;
  /**
   * WARPTILE_POSITIONS_NONE, and so on: by what rows are rotated.
   */
  uint32_t positions;
  /**
   * Sequences of packed rows. Else 0, or the batch extent of k.
   */
  int64_t sequences;
  /**
   * No sequence has more new rows. 0: as many as k has. Only with packed. A GPU leaves out what is beyond; the CPU refuses it.
   */
  int64_t longest;
  /**
   * Columns of the block table, which is contiguous. 0: no table.
   */
  int64_t table_columns;
  /**
   * Elements of a head that are turned: even, at most 256 and the head size.
   */
  uint32_t rotary_size;
  /**
   * Element type of tables of cosines and sines: WARPTILE_F32, or that of the tensors. 0: angles are computed.
   */
  uint32_t tables;
  /**
   * Positions that the tables have. One beyond them is refused if it is known on the host; on a device it counts as the last.
   */
  int64_t table_positions;
  /**
   * Elements from one position of the tables to the next. 0: rotary_size / 2.
   */
  int64_t table_stride;
  /**
   * Computed angles: pair i is turned by position * base^(-2i / rotary_size). 0: 10000. The default, 0 or 10000, is allowed
   * without computed angles.
   */
  double rotary_base;
  /**
   * Computed angles: pair i is turned by position * frequencies[i], in radians. rotary_size / 2 numbers in host memory, read by
   * warptile_append_prepare. Null: by rotary_base.
   */
  const double *rotary_frequencies;
  /**
   * As in warptile_attention_desc.
   */
  uint32_t unchecked;
  /**
   * Element type of the cache: 0, for that of `element`, or WARPTILE_E4M3, with any `element`.
   */
  uint32_t cache_element;
  /**
   * With WARPTILE_E4M3: how many numbers k_scale has, 1 or one for each key/value head. 0: 1.
   */
  uint32_t k_scales;
  /**
   * With WARPTILE_E4M3: how many numbers v_scale has, 1 or one for each key/value head. 0: 1.
   */
  uint32_t v_scales;
} warptile_append_desc;

/**
 * The memory of one write: on a GPU addresses of device memory, on the CPU pointers. Null is "not given": exactly what the description
 * asks for must be given.
 */
typedef struct warptile_append_memory {
  /**
   * `sizeof(warptile_append_memory)`.
   */
  size_t size;
  /**
   * New keys.
   */
  const void *k;
  /**
   * New values.
   */
  const void *v;
  /**
   * The cache's keys.
   */
  void *k_pages;
  /**
   * The cache's values.
   */
  void *v_pages;
  /**
   * Queries. Written unless the description has q_out.
   */
  void *q;
  /**
   * Receives rotated queries.
   */
  void *q_out;
  /**
   * For each row of k, counted through the batch, its row among all rows of all pages.
   */
  const int64_t *slots;
  /**
   * For each sequence the numbers of its pages, in order.
   */
  const int32_t *block_table;
  /**
   * Where each sequence begins among the rows of k, and where the last one ends: sequences + 1 numbers.
   */
  const int32_t *row_offsets;
  /**
   * New rows of each sequence.
   */
  const int32_t *row_lengths;
  /**
   * Rows that the cache has of each sequence before the write, which leaves these numbers alone.
   */
  const int32_t *key_lengths;
  /**
   * Position of each row of k, of the size that the description says.
   */
  const void *positions;
  /**
   * Cosines, [positions, rotary_size / 2].
   */
  const void *cos;
  /**
   * Sines.
   */
  const void *sin;
  /**
   * Scales of the keys: finite, above 0. Keys are divided by them before they go into a cache in e4m3, as the nearest numbers, at most
   * 448. A GPU reads the scales when the work runs, and does not check them.
   */
  const float *k_scale;
  /**
   * Scales of the values.
   */
  const float *v_scale;
} warptile_append_memory;

/**
 * Attention over disjoint sets of keys, merged into attention over all of them: `parts` outputs and lse of the same queries. Fill the
 * struct with zeros, then set `size`, `element`, `parts` and `part_layouts`.
 *
 * A part whose lse is -infinity (or +infinity) saw no key in that row and contributes nothing.
 */
typedef struct warptile_merge_desc {
  /**
   * `sizeof(warptile_merge_desc)`.
   */
  size_t size;
  /**
   * Element type of all outputs.
   */
  uint32_t element;
  /**
   * How many parts, at most WARPTILE_MERGE_PARTS.
   */
  uint32_t parts;
  /**
   * Layouts of the parts' outputs, all of one shape: `parts` of them.
   */
  const struct warptile_layout *part_layouts;
  /**
   * Merged output. Not given: dense, in the order in which the first part is stored.
   */
  struct warptile_layout out;
  /**
   * 1: the merged lse is written, too.
   */
  uint32_t want_lse;
  /**
   * 1: every lse is a logarithm to base 2, as FlashInfer's are. 0: natural.
   */
  uint32_t base_two;
  /**
   * As in warptile_attention_desc.
   */
  uint32_t unchecked;
  /**
   * 0.
   */
  uint32_t reserved;
} warptile_merge_desc;

/**
 * A part's memory.
 */
typedef struct warptile_merge_part {
  /**
   * Its output.
   */
  const void *out;
  /**
   * Its lse: [batch, heads, length] without gaps.
   */
  const float *lse;
} warptile_merge_part;

/**
 * The memory of one merge: on a GPU addresses of device memory, on the CPU pointers.
 */
typedef struct warptile_merge_memory {
  /**
   * `sizeof(warptile_merge_memory)`.
   */
  size_t size;
  /**
   * As many as the description has parts. The array itself is in host memory, and not needed after the call.
   */
  const struct warptile_merge_part *parts;
  /**
   * Receives the output.
   */
  void *out;
  /**
   * Receives the lse, [batch, heads, length] without gaps; null unless it is wanted.
   */
  float *lse;
} warptile_merge_memory;

/**
 * A cache to be dealt. Fill the struct with zeros, then set `size`, `element`, `kv_heads` and `head_size`.
 */
typedef struct warptile_dealt_cache_desc {
  /**
   * `sizeof(warptile_dealt_cache_desc)`.
   */
  size_t size;
  /**
   * Element type of keys, values, queries and outputs.
   */
  uint32_t element;
  /**
   * Rows of a page, 1 to 256. 0: 16.
   */
  uint32_t page_rows;
  /**
   * Key/value heads.
   */
  int64_t kv_heads;
  /**
   * Head size of keys.
   */
  int64_t head_size;
  /**
   * Head size of values. 0: that of keys.
   */
  int64_t value_size;
  /**
   * Pages of each rank, for each layer. 0: 256.
   */
  int64_t pages;
  /**
   * Layers, each with keys and values of its own. 0: 1.
   */
  int64_t layers;
  /**
   * The most sequences of a step. 0: 1.
   */
  int64_t sequences;
} warptile_dealt_cache_desc;

/**
 * A process among those of a job, each of which has one GPU. Fill the struct with zeros, then set `size`.
 */
typedef struct warptile_world {
  /**
   * `sizeof(warptile_world)`.
   */
  size_t size;
  /**
   * This process's rank, from 0.
   */
  int64_t rank;
  /**
   * How many processes there are. 0: rank, ranks and address are those that torchrun, an MPI or SLURM has put into the environment;
   * the address is WARPTILE_RENDEZVOUS, or the host of MASTER_ADDR and the port behind MASTER_PORT.
   */
  int64_t ranks;
  /**
   * Where rank 0 listens and the others connect, such as "host:29501". Null where the environment says it.
   */
  const char *address;
  /**
   * Seconds that ranks may take to find each other, to make a call that others have made, and to send the rows of a call. 0: 60.
   */
  double timeout;
  /**
   * Seconds without a sign of life after which a rank is lost. 0: 5.
   */
  double silence;
} warptile_world;

/**
 * Attention of a sequence, or of packed documents, to itself, over several devices. Fill the struct with zeros, then set `size` and
 * `attention`.
 */
typedef struct warptile_sharded_desc {
  /**
   * `sizeof(warptile_sharded_desc)`.
   */
  size_t size;
  /**
   * The whole computation: q, k and v are [1, all rows, heads, head size], with zeros for strides. What is not for several
   * devices is refused by its name; `unchecked` does not count.
   */
  const struct warptile_attention_desc *attention;
  /**
   * WARPTILE_SHARDING_CONTIGUOUS, and so on.
   */
  uint32_t sharding;
  /**
   * WARPTILE_SCHEME_GATHER, and so on.
   */
  uint32_t scheme;
  /**
   * Documents, for WARPTILE_SHARDING_DOCUMENTS.
   */
  int64_t documents;
  /**
   * Where each document begins among the rows, and where the last one ends: documents + 1 numbers in host memory.
   */
  const int64_t *document_offsets;
  /**
   * How many hosts there are, for WARPTILE_SCHEME_HYBRID.
   */
  size_t hosts;
} warptile_sharded_desc;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The text of the last error on this thread: the argument's name and the rule that it breaks, or what the driver said. Empty if
 * there was none. Valid until the next error on this thread; a success leaves it alone.
 */
const char *warptile_last_error(void);

/**
 * The version of this library, such as "0.1.0".
 */
const char *warptile_version(void);

/**
 * Counts the GPUs that this process can see. They are numbered from 0, in the driver's order.
 *
 * Returns WARPTILE_NO_DEVICE if there is no usable driver; the text says why.
 *
 * # Safety
 * `count` is null, which is an error, or valid for writing.
 */
int32_t warptile_device_count(int32_t *count);

/**
 * Checks a description and prepares it for a device: plans, and loads the kernel if it is not loaded yet, which may take long. Gives a
 * handle, to be freed with warptile_attention_free.
 *
 * `device` is the number of a GPU, or WARPTILE_CPU. A GPU is opened the first time, in its primary context, and stays open. A
 * description like one of the last 64 is found again without planning.
 *
 * Returns WARPTILE_INVALID if the description breaks a rule, WARPTILE_NO_KERNEL if no kernel of the device can do it.
 *
 * # Safety
 * `desc` is null, which is an error, or valid for reading `desc->size` bytes; `desc->kernel` is null or ends with a NUL. `attention`
 * is null, which is an error, or valid for writing.
 */
int32_t warptile_attention_prepare(int32_t device,
                                   const struct warptile_attention_desc *desc,
                                   struct warptile_attention **attention);

/**
 * Bytes of device memory that every launch of the handle needs in addition to its tensors; 0 on the CPU and for many kernels.
 *
 * # Safety
 * `attention` is null, which gives 0, or a handle that was not freed.
 */
size_t warptile_attention_workspace(const struct warptile_attention *attention);

/**
 * Computes.
 *
 * On a GPU: submits the kernel to `stream`, a CUstream or cudaStream_t of the device's primary context, and returns. Null is the legacy
 * default stream. It allocates, copies, waits for and loads nothing, so it may be part of any capture; each replay reads the current
 * lengths, offsets and tables. On the CPU `stream` is null, and the result is there on return, computed by as many threads as there
 * are cores.
 *
 * Lists that a GPU reads are not checked: the kernels clamp what they find. On the CPU they are.
 *
 * # Safety
 * - `attention` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or valid for reading
 *   `memory->size` bytes.
 * - Each address reaches as far as the description says. It stays valid until the work, and every replay of a graph that captured
 *   it, has ended. Meanwhile nothing else writes the inputs, or reads or writes the outputs; on the CPU, gaps between the rows of `out`
 *   count as written.
 * - On a GPU, `stream` is a live stream. The kernels of a handle stay after it is freed.
 */
int32_t warptile_attention_run(const struct warptile_attention *attention,
                               const struct warptile_attention_memory *memory,
                               void *stream);

/**
 * Frees a handle. Work that it has submitted goes on, and graphs that captured it may be replayed.
 *
 * # Safety
 * `attention` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_attention_free(struct warptile_attention *attention);

/**
 * Checks a description of gradients and prepares it for a device, as warptile_attention_prepare does. The handle is freed with
 * warptile_backward_free.
 *
 * # Safety
 * `desc` is null, which is an error, or valid for reading `desc->size` bytes; likewise `desc->attention`; `desc->kernel` is null or ends
 * with a NUL. `backward` is null, which is an error, or valid for writing.
 */
int32_t warptile_backward_prepare(int32_t device,
                                  const struct warptile_backward_desc *desc,
                                  struct warptile_backward **backward);

/**
 * Bytes of device memory that every launch of the handle needs in addition to its tensors; 0 on the CPU.
 *
 * # Safety
 * `backward` is null, which gives 0, or a handle that was not freed.
 */
size_t warptile_backward_workspace(const struct warptile_backward *backward);

/**
 * Computes the gradients. Streams, captures and the CPU work as with warptile_attention_run. The same inputs give the same bits.
 *
 * # Safety
 * As warptile_attention_run, for the memory of the computation, too: its output and lse are inputs here.
 */
int32_t warptile_backward_run(const struct warptile_backward *backward,
                              const struct warptile_backward_memory *memory,
                              void *stream);

/**
 * Frees a handle, as warptile_attention_free does.
 *
 * # Safety
 * As warptile_attention_free.
 */
void warptile_backward_free(struct warptile_backward *backward);

/**
 * Says which kernel would compute a description on a device, and why no other: some lines of text. Computes and loads nothing. `device`
 * is as for warptile_attention_prepare. If `gpu` is not null, it names a GPU that need not be there, such as "h200", "rtx4090" or "8.6",
 * in place of `device`.
 *
 * Writes at most `capacity` bytes, the last one a NUL, and to `needed` the bytes that the whole text takes with its NUL.
 * `text` may be null if `capacity` is 0, and `needed` may be null.
 *
 * # Safety
 * `desc` as for warptile_attention_prepare; `gpu` is null or ends with a NUL; `text` is valid for writing `capacity` bytes, `needed` for writing, unless they are null.
 */
int32_t warptile_explain(int32_t device,
                         const char *gpu,
                         const struct warptile_attention_desc *desc,
                         char *text,
                         size_t capacity,
                         size_t *needed);

/**
 * Checks a write and prepares it for a device, as warptile_attention_prepare does. The handle is freed with warptile_append_free.
 *
 * # Safety
 * `desc` is null, which is an error, or valid for reading `desc->size` bytes; frequencies are as many as it says. `append` is null, which
 * is an error, or valid for writing.
 */
int32_t warptile_append_prepare(int32_t device,
                                const struct warptile_append_desc *desc,
                                struct warptile_append **append);

/**
 * Writes the rows. Streams, captures and the CPU work as with warptile_attention_run. Nothing outside of the cache is ever written,
 * even if numbers on a device are invalid.
 *
 * # Safety
 * As warptile_attention_run.
 */
int32_t warptile_append_run(const struct warptile_append *append,
                            const struct warptile_append_memory *memory,
                            void *stream);

/**
 * Frees a handle, as warptile_attention_free does.
 *
 * # Safety
 * `append` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_append_free(struct warptile_append *append);

/**
 * Checks a merge and prepares it for a device, as warptile_attention_prepare does. The handle is freed with warptile_merge_free.
 *
 * # Safety
 * `desc` is null, which is an error, or valid for reading `desc->size` bytes, and `part_layouts` for reading `parts` layouts. `merge` is
 * null, which is an error, or valid for writing.
 */
int32_t warptile_merge_prepare(int32_t device,
                               const struct warptile_merge_desc *desc,
                               struct warptile_merge **merge);

/**
 * Merges: streams, captures and the CPU as with warptile_attention_run.
 *
 * # Safety
 * As warptile_attention_run; `memory->parts` is valid for reading as many parts as the description has.
 */
int32_t warptile_merge_run(const struct warptile_merge *merge, const struct warptile_merge_memory *memory, void *stream);

/**
 * Frees a handle, as warptile_attention_free does.
 *
 * # Safety
 * `merge` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_merge_free(struct warptile_merge *merge);

/**
 * Makes a cache whose pages are dealt to the ranks of a group. It keeps the group, and is freed with warptile_dealt_cache_free.
 *
 * # Safety
 * `group` is null, which is an error, or a handle that was not freed. `desc` is null, which is an error, or valid for reading `desc->size`
 * bytes. `cache` is null, which is an error, or valid for writing.
 */
int32_t warptile_dealt_cache_create(const struct warptile_group *group,
                                    const struct warptile_dealt_cache_desc *desc,
                                    struct warptile_dealt_cache **cache);

/**
 * Gives a new sequence without rows, by its number. Of several processes, each makes the same calls.
 *
 * # Safety
 * `cache` is null, which is an error, or a handle that was not freed. `sequence` is null, which is an error, or valid for writing.
 */
int32_t warptile_dealt_cache_allocate(const struct warptile_dealt_cache *cache,
                                      int64_t *sequence);

/**
 * Gives a sequence's pages back.
 *
 * # Safety
 * `cache` is null, which is an error, or a handle that was not freed.
 */
int32_t warptile_dealt_cache_release(const struct warptile_dealt_cache *cache, int64_t sequence);

/**
 * Tells how many rows a sequence has.
 *
 * # Safety
 * `cache` is null, which is an error, or a handle that was not freed. `rows` is null, which is an error, or valid for writing.
 */
int32_t warptile_dealt_cache_rows(const struct warptile_dealt_cache *cache, int64_t sequence, int64_t *rows);

/**
 * Begins a step, in which `sequences[i]` gets `rows[i]` new rows. No sequence has grown if it is refused.
 *
 * # Safety
 * `cache` is null, which is an error, or a handle that was not freed. Both lists are null or `count` numbers.
 */
int32_t warptile_dealt_cache_step(const struct warptile_dealt_cache *cache,
                                  const int64_t *sequences,
                                  const int64_t *rows,
                                  size_t count);

/**
 * Writes the keys and values of the step into a layer, each row into the pages of its owner. `k` and `v` are in the memory of this
 * process's first rank, [rows of all sequences, heads, head size], in the order of the step; each process has all of them. Rotate keys
 * before, by their places in their sequences.
 *
 * # Safety
 * `cache` is null, which is an error, or a handle that was not freed. `k` and `v` reach as far as the step says, and are not written until
 * the work has ended that was then submitted to the rank's stream, which is not being captured.
 */
int32_t warptile_dealt_cache_append(const struct warptile_dealt_cache *cache,
                                    int64_t layer,
                                    const void *k,
                                    const void *v);

/**
 * Attention of a step of one new row for each sequence to all keys of its sequence, the new one included: each rank attends to its keys,
 * and the results are merged on this process's first rank, in the order of the ranks. Streams as for warptile_sharded_forward.
 *
 * `desc` says the element type, the queries, [sequences, 1, heads, head size] with zeros for strides, and the options; those of each head
 * and masks are refused, and k, v, want_lse and unchecked do not count. `memory` has q and out, in the memory of this process's first
 * rank; each process has them.
 *
 * # Safety
 * `cache` is null, which is an error, or a handle that was not freed. `desc` and `memory` are null, which is an error, or valid for reading
 * as many bytes as their size says; `desc->kernel` is null or ends with a NUL. The queries and the output reach as far as `desc` says,
 * until the work has ended that was then submitted to the rank's stream, which is not being captured; meanwhile nothing else writes the
 * queries, or uses the output.
 */
int32_t warptile_dealt_cache_attend(const struct warptile_dealt_cache *cache,
                                    int64_t layer,
                                    const struct warptile_attention_desc *desc,
                                    const struct warptile_attention_memory *memory);

/**
 * Frees a cache. Work that it has submitted goes on.
 *
 * # Safety
 * `cache` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_dealt_cache_free(struct warptile_dealt_cache *cache);

/**
 * Groups devices of this process: GPUs of one host, whose memory is opened to each other, or WARPTILE_CPU several times over. There are at
 * least two; a GPU may be there several times. The handle is freed with warptile_group_free.
 *
 * `streams` has a stream for each device, a CUstream or cudaStream_t of its primary context, on which the rank's tensors are read and
 * written. Null, for one stream or for the list, is the legacy default stream. On the CPU streams are null.
 *
 * # Safety
 * `devices` is null, which is an error, or `count` numbers; `streams` is null or `count` streams, which live until the group and all
 * handles made of it are freed. `group` is null, which is an error, or valid for writing.
 */
int32_t warptile_group_local(const int32_t *devices,
                             void *const *streams,
                             size_t count,
                             struct warptile_group **group);

/**
 * Groups processes, each of which has one rank on a GPU of its own, by NCCL, which is opened now: WARPTILE_LIBNCCL, or the libnccl.so.2
 * that the process has loaded or the loader finds. Waits until all processes have called this. `device` is the number of a GPU, or
 * WARPTILE_LOCAL_RANK; `stream` is as for warptile_group_local.
 *
 * Each process makes the same calls of the group, and passes the rows of its rank alone. Results count once warptile_group_synchronize has
 * succeeded after them.
 *
 * Returns WARPTILE_NO_DEVICE if there is no NCCL, WARPTILE_RANKS if the processes have not met.
 *
 * # Safety
 * `world` is null, which is an error, or valid for reading `world->size` bytes; its address is null or ends with a NUL. `stream` lives
 * until the group and all handles made of it are freed. `group` is null, which is an error, or valid for writing.
 */
int32_t warptile_group_nccl(const struct warptile_world *world,
                            int32_t device,
                            void *stream,
                            struct warptile_group **group);

/**
 * How many ranks a group has in all processes, and the numbers of this process's: `count` from `first` on. Each may be null.
 *
 * # Safety
 * `group` is null, which is an error, or a handle that was not freed. The others are null or valid for writing.
 */
int32_t warptile_group_ranks(const struct warptile_group *group, size_t *all, size_t *first, size_t *count);

/**
 * Waits until this process's ranks have done what was submitted to them, at most as many seconds as `timeout` says. Returns WARPTILE_RANKS
 * with the rank that has not, or that has failed.
 *
 * # Safety
 * `group` is null, which is an error, or a handle that was not freed.
 */
int32_t warptile_group_synchronize(const struct warptile_group *group,
                                   double timeout);

/**
 * Frees a group. Over NCCL, this leaves the group and tells the other processes. It waits for messages under way, each within the group's
 * timeout; for kernels before them, until five times the timeout has passed; and then for NCCL to end, which takes seconds. Handles made
 * from the group keep it until they are freed.
 *
 * # Safety
 * `group` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_group_free(struct warptile_group *group);

/**
 * Checks a description of a computation over a group's devices, and deals the rows to the ranks. Nothing is planned and no kernel is
 * loaded before the first call. The handle is freed with warptile_sharded_free, and keeps the group until then.
 *
 * # Safety
 * `group` is null, which is an error, or a handle that was not freed. `desc` is null, which is an error, or valid for reading `desc->size`
 * bytes; likewise `desc->attention`, as for warptile_attention_prepare; document_offsets are as many as it says. `sharded` is null, which
 * is an error, or valid for writing.
 */
int32_t warptile_sharded_prepare(const struct warptile_group *group,
                                 const struct warptile_sharded_desc *desc,
                                 struct warptile_sharded **sharded);

/**
 * Which rows a rank of any process has, in the order of its tensors: at most `capacity` numbers are written to `rows`, and to `needed` how
 * many there are. `rows` may be null if `capacity` is 0, and `needed` may be null.
 *
 * # Safety
 * `sharded` is null, which is an error, or a handle that was not freed. `rows` is valid for writing `capacity` numbers, `needed` for
 * writing, unless they are null.
 */
int32_t warptile_sharded_rows(const struct warptile_sharded *sharded,
                              int64_t rank,
                              int64_t *rows,
                              size_t capacity,
                              size_t *needed);

/**
 * Computes. `memory` is that of each rank of this process, on its device: `ranks` structs that lie one behind the other. Tensors are the
 * rank's rows, as warptile_sharded_rows counts them, stored without gaps as [heads, rows, head size]. The numbers of options, such
 * as `alibi_slopes`, are in host memory, and only those of the first struct are read. `lse` is null; the workspace does not count.
 *
 * On GPUs the tensors are copied on the GPU, each on its rank's stream, and the call returns when all work is submitted: what is
 * submitted to that stream later finds the output. On the CPU it is there on return. A call is no part of a capture.
 *
 * If `output` is not null it receives a handle for warptile_sharded_backward and warptile_sharded_lse, which need the description's
 * want_lse. The handle holds copies of the output, and is freed with warptile_sharded_output_free.
 *
 * # Safety
 * - `sharded` is null, which is an error, or a handle that was not freed. `memory` is null, which is an error, or `ranks` structs, each
 *   valid for reading as many bytes as its size says. `output` is null or valid for writing.
 * - Each tensor has as many rows as its rank. It stays valid until the work has ended that was then submitted to the rank's stream.
 *   Meanwhile nothing else writes the inputs, or uses the outputs.
 * - On GPUs no stream of the group is being destroyed or captured.
 */
int32_t warptile_sharded_forward(const struct warptile_sharded *sharded,
                                 const struct warptile_attention_memory *memory,
                                 size_t ranks,
                                 struct warptile_sharded_output **output);

/**
 * Computes the gradients of queries, keys, values and options' numbers from that of the output, as warptile_sharded_forward computes.
 * `output` is that of a call of `sharded` with the same inputs, whose description has want_lse; `out` does not count. Those gradients are
 * written that `memory` has, those of options' numbers in the memory of rank 0; equal arguments give the same bits each time.
 *
 * # Safety
 * As warptile_sharded_forward, for `attention` of each struct, too; `output` is null, which is an error, or a handle that was not freed.
 */
int32_t warptile_sharded_backward(const struct warptile_sharded *sharded,
                                  const struct warptile_sharded_output *output,
                                  const struct warptile_backward_memory *memory,
                                  size_t ranks);

/**
 * Writes the natural log-sum-exp of all rows into host memory, [all rows, heads], and waits for what computes it. Not over NCCL.
 *
 * # Safety
 * As warptile_sharded_backward. `lse` is null, which is an error, or valid for writing as many numbers.
 */
int32_t warptile_sharded_lse(const struct warptile_sharded *sharded, const struct warptile_sharded_output *output, float *lse);

/**
 * Predicts a call over as many GPUs as `ranks` says, by its scheme and another, from the plan for one: some lines of text, written as
 * warptile_explain does, whose arguments `device`, `gpu`, `text`, `capacity` and `needed` are. The GPUs are taken to be joined by NVLink.
 *
 * # Safety
 * `desc` as for warptile_sharded_prepare; the others as for warptile_explain.
 */
int32_t warptile_sharded_explain(int32_t device,
                                 const char *gpu,
                                 int64_t ranks,
                                 const struct warptile_sharded_desc *desc,
                                 char *text,
                                 size_t capacity,
                                 size_t *needed);

/**
 * Frees a handle. Work that it has submitted goes on.
 *
 * # Safety
 * `sharded` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_sharded_free(struct warptile_sharded *sharded);

/**
 * Frees a handle.
 *
 * # Safety
 * `output` is null, or a handle that was not freed and that no other thread uses.
 */
void warptile_sharded_output_free(struct warptile_sharded_output *output);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WARPTILE_H */
/* Seal of header.sh: 0060f940f6eb043055e38e13a6ed51950727083b37a7ce9a229f70160630823c */
