// The float64 reference, and the plain computation in the element type, on a GPU: what crates/check/src/reference.rs computes on
// the host, for problems that would take it minutes. Written for clarity: no tiles, no tensor cores, every score kept in memory.
//
// Not part of the catalog. `cargo xtask build-reference` compiles it to reference.ptx; crates/check/src/on_gpu.rs launches it.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

// The largest finite errors: of the output and of the lse after the roundings of the plain computation, and of 0.3 added to the output
// and taken away again. As bits: those of numbers that are not negative have their order.
struct Errors {
    unsigned long long out, lse, rounding;
};

// A query row that belongs to a sequence. Which keys it sees was decided on the host.
struct Row {
    int batch;
    int q_entry;
    int q_row;       // of the tensor
    int position;    // in the sequence
    int k_entry;
    int k_start;     // first row of the sequence's keys in the tensor
    int first_key;   // the keys it sees, counted from k_start
    int end_key;
    long long diagonal;
    long long lse;   // its place of head 0
};

struct Tensor {
    const void* data;
    long long batch, row, head;
};

// A tensor with an element for each score.
struct ScoreTensor {
    const void* data;  // null: none
    long long batch, row, head, key;
};

struct Parameters {
    Tensor q, k, v;
    ScoreTensor bias, key_mask;
    const Row* rows;
    const float* slopes;  // null: none
    const float* sinks;   // null: none
    double* scratch;      // 4 numbers per key for each block
    double* out;          // [row of q, head, d], as all of that size
    float* out_floor;
    double* lse;          // [row of q, head], as all of that size
    float* lse_floor;
    Errors* errors;       // 0 before
    double units;         // the relative error of arithmetic in f32
    long long slopes_batch;
    int row_count, q_rows, heads, group, head_dim, value_dim, key_bound;
    float scale;
    float softcap;        // 0: none
    int dropped;          // dropout: of 65,536 weights this many are dropped; 0: no dropout
    // Of keys and values that are multiplied by it: null: none. Numbers between those of neighbouring key/value heads.
    const float *k_scale, *v_scale;
    int k_scale_step, v_scale_step;
    const unsigned* dropout_state;  // null: no dropout
    // Lists of blocks: row r of a list is block_indices[block_offsets[r]..block_offsets[r + 1]], to the first number below 0. Null: none.
    const int *block_offsets, *block_indices;
    int block_queries, block_keys, block_rows, block_batch, block_head;
    int bias_is_f32;  // whatever T is
};

constexpr int THREADS = 256;
constexpr double LARGEST = 3.4028234663852886e38;  // of f32

// The nearest number of the type, rounded once: "round to odd" in between keeps ties apart from near-ties.
__device__ float to_odd(double x) {
    float toward_zero = __double2float_rz(x);
    if (static_cast<double>(toward_zero) == x) return toward_zero;
    return __uint_as_float(__float_as_uint(toward_zero) | 1u);
}

// Single: what rounds the term of ALiBi, and what is added to it, as on the host.
template <typename T>
struct Element;

template <>
struct Element<__half> {
    using Single = Element<float>;
    static constexpr int BITS = 10, SMALLEST = -14;
    static __device__ double wide(__half x) { return static_cast<double>(__half2float(x)); }
    static __device__ double round(double x) { return wide(__float2half_rn(to_odd(x))); }
};

template <>
struct Element<__nv_bfloat16> {
    using Single = Element<float>;
    static constexpr int BITS = 7, SMALLEST = -126;
    static __device__ double wide(__nv_bfloat16 x) { return static_cast<double>(__bfloat162float(x)); }
    static __device__ double round(double x) { return wide(__float2bfloat16_rn(to_odd(x))); }
};

template <>
struct Element<float> {
    using Single = Element;
    static constexpr int BITS = 23, SMALLEST = -126;
    static __device__ double wide(float x) { return static_cast<double>(x); }
    static __device__ double round(double x) { return static_cast<double>(__double2float_rn(x)); }
};

struct Exact {
    using Single = Exact;
    static __device__ double round(double x) { return x; }
};

// Distance between neighbouring numbers of the type.
template <typename T>
__device__ double ulp(double x) {
    int exponent = static_cast<int>(__double_as_longlong(x) >> 52 & 0x7ff) - 1023;
    if (exponent == 1024) return 0.0;
    return scalbn(1.0, max(exponent, Element<T>::SMALLEST) - Element<T>::BITS);
}

// A sink is one more term of a row's denominator, the last one.
__device__ bool has_last_terms(const Parameters& p) { return p.sinks; }
__device__ double last_term(const Parameters& p, int head) { return static_cast<double>(p.sinks[head]); }

// The terms of a score other than the dot product.
struct Terms {
    double slope, distance, bias;
    bool hidden;
};

// `KeyTerms::score` of crates/check/src/reference/row.rs, with what Rounding leaves of each intermediate result.
template <typename Rounding>
__device__ double score(const Parameters& p, double dot, const Terms& terms) {
    if (terms.hidden) return -CUDART_INF;
    double s = Rounding::round(Rounding::round(dot) * static_cast<double>(p.scale));
    if (p.softcap != 0.0f) {
        double cap = static_cast<double>(p.softcap);
        s = Rounding::round(cap * tanh(s / cap));
    }
    if (terms.slope != 0.0) {
        using Single = typename Rounding::Single;
        s = Single::round(Single::round(s - terms.slope * terms.distance) + terms.bias);
    } else if (p.bias.data) {
        s = Rounding::round(s + terms.bias);
    }
    // Unlike fmin and fmax, comparisons keep a NaN.
    return s < -LARGEST ? -LARGEST : s > LARGEST ? LARGEST : s;
}

// `Scoring::derivative`.
template <typename Rounding>
__device__ double derivative(const Parameters& p, double dot) {
    if (p.softcap == 0.0f) return 1.0;
    const double product = Rounding::round(Rounding::round(dot) * static_cast<double>(p.scale));
    const double bent = Rounding::round(tanh(product / static_cast<double>(p.softcap)));
    return 1.0 - bent * bent;
}

// Returns true if a query sees the block of a key.
__device__ bool lists(const Parameters& p, const Row& row, int head, int key) {
    if (!p.block_offsets) return true;
    const long long list = static_cast<long long>(row.batch) * p.block_batch + head * p.block_head;
    const int* const offsets = p.block_offsets + list * p.block_rows + row.position / p.block_queries;
    for (int i = offsets[0]; i < offsets[1] && p.block_indices[i] >= 0; i++) {
        if (p.block_indices[i] == key / p.block_keys) return true;
    }
    return false;
}

template <typename T>
__device__ Terms terms_of(const Parameters& p, const Row& row, int head, int key) {
    Terms terms = {0.0, 0.0, 0.0, false};
    if (p.slopes) terms.slope = static_cast<double>(p.slopes[row.batch * p.slopes_batch + head]);
    terms.distance = fabs(static_cast<double>(row.diagonal - key));
    if (p.bias.data) {
        long long at = row.batch * p.bias.batch + row.position * p.bias.row + head * p.bias.head + key * p.bias.key;
        terms.bias = p.bias_is_f32 ? static_cast<double>(static_cast<const float*>(p.bias.data)[at])
                                   : Element<T>::wide(static_cast<const T*>(p.bias.data)[at]);
        terms.hidden = terms.bias == -CUDART_INF;
    }
    if (p.key_mask.data) {
        const ScoreTensor& mask = p.key_mask;
        long long at = row.batch * mask.batch + row.position * mask.row + head * mask.head + key * mask.key;
        terms.hidden |= static_cast<const unsigned char*>(mask.data)[at] == 0;
    }
    terms.hidden |= !lists(p, row, head, key);
    return terms;
}

// Philox4x32 with 7 rounds.
__device__ uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 7; round++) {
        const unsigned x = counter.x, z = counter.z;
        counter = {__umulhi(0xcd9e8d57u, z) ^ counter.y ^ key.x, 0xcd9e8d57u * z, __umulhi(0xd2511f53u, x) ^ counter.w ^ key.y,
                   0xd2511f53u * x};
        key = {key.x + 0x9e3779b9u, key.y + 0xbb67ae85u};
    }
    return counter;
}

// What dropout multiplies the weight of a key by: see `Dropout` in crates/spec/src/dropout.rs.
__device__ double dropout(const Parameters& p, const Row& row, int head, int key_index) {
    const unsigned* const s = p.dropout_state;
    const unsigned query = s[6] + row.position, key = s[7] + key_index;
    const uint4 of_offset = philox({s[2], s[3], 0, 0}, {s[0], s[1]});
    const uint4 cell = {(query >> 4) << 3 | (query & 7), (key >> 5) << 2 | (key >> 1 & 3), s[4] + row.batch, s[5] + head};
    const uint4 random = philox(cell, {of_offset.x, of_offset.y});
    const unsigned words[] = {random.x, random.y, random.z, random.w};
    const unsigned bits = words[key >> 3 & 3] >> (16 * (query >> 3 & 1) + 8 * (key & 1)) & 0xff;
    const unsigned dropped = static_cast<unsigned>(p.dropped), raised = (random.x ^ random.y ^ random.z) < dropped << 24 ? 1 : 0;
    return bits < (dropped >> 8) + raised ? 0.0 : static_cast<double>(65536.0f / static_cast<float>(65536 - p.dropped));
}

struct Largest {
    template <typename Real>
    static __device__ Real combine(Real a, Real b) { return b > a ? b : a; }
};

struct Sum {
    template <typename Real>
    static __device__ Real combine(Real a, Real b) { return a + b; }
};

// Combines a number of each thread; all threads get the result.
template <typename Operation, typename Real>
__device__ Real over_block(Real x) {
    __shared__ Real numbers[THREADS];
    numbers[threadIdx.x] = x;
    __syncthreads();
    for (int width = THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) {
            numbers[threadIdx.x] = Operation::combine(numbers[threadIdx.x], numbers[threadIdx.x + width]);
        }
        __syncthreads();
    }
    Real result = numbers[0];
    __syncthreads();
    return result;
}

// The larger one of two errors. The second one is ignored if it is infinite or NaN.
__device__ double larger(double largest, double error) {
    return error > largest && error < CUDART_INF ? error : largest;
}

// |(x + 0.3 - 0.3) - x| in the type, of what is left of x in it.
template <typename T>
__device__ double rounding_error(double x) {
    const double shift = Element<T>::round(0.3), stored = Element<T>::round(x);
    return fabs(Element<T>::round(Element<T>::round(stored + shift) - shift) - stored);
}

// The largest errors that a thread has met.
struct Largests {
    double out = 0.0, lse = 0.0, rounding = 0.0;
};

// One row of one head, computed by the whole block.
template <typename T>
__device__ void attend(const Parameters& p, const Row& row, int head, double* scratch, Largests& largests) {
    const int count = row.end_key - row.first_key;
    double* const weights = scratch;                  // scores, then probabilities
    double* const singles = scratch + p.key_bound;    // scores rounded to f32
    double* const narrows = singles + p.key_bound;    // scores, then probabilities, rounded to T
    double* const sizes = narrows + p.key_bound;      // what the scores are summed from
    const int kv_head = head / p.group;
    const double k_scale = p.k_scale ? static_cast<double>(p.k_scale[kv_head * p.k_scale_step]) : 1.0;
    const double v_scale = p.v_scale ? static_cast<double>(p.v_scale[kv_head * p.v_scale_step]) : 1.0;
    const T* const q = static_cast<const T*>(p.q.data) + row.q_entry * p.q.batch + row.q_row * p.q.row + head * p.q.head;
    const T* const keys = static_cast<const T*>(p.k.data) + row.k_entry * p.k.batch + kv_head * p.k.head;
    const T* const values = static_cast<const T*>(p.v.data) + row.k_entry * p.v.batch + kv_head * p.v.head;
    const long long first_row = static_cast<long long>(row.k_start) + row.first_key;

    const long long place = (static_cast<long long>(row.q_entry) * p.q_rows + row.q_row) * p.heads + head;
    double norm = 0.0;
    for (int d = 0; d < p.head_dim; d++) norm += Element<T>::wide(q[d]) * Element<T>::wide(q[d]);
    norm = sqrt(norm);

    // Scores.
    double max = -CUDART_INF, max_single = -CUDART_INF, max_narrow = -CUDART_INF;
    int shown = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const T* const k = keys + (first_row + i) * p.k.row;
        double dot = 0.0, square = 0.0;
        float dot_single = 0.0f;
        for (int d = 0; d < p.head_dim; d++) {
            double a = Element<T>::wide(q[d]), b = Element<T>::wide(k[d]) * k_scale;
            dot += a * b;
            square += b * b;
            // Rounded after each product and each sum, which is what the host does.
            dot_single = __fadd_rn(dot_single, __fmul_rn(static_cast<float>(a), static_cast<float>(b)));
        }
        const Terms terms = terms_of<T>(p, row, head, row.first_key + i);
        const double single = static_cast<double>(dot_single);
        weights[i] = score<Exact>(p, dot, terms);
        singles[i] = score<Element<float>>(p, single, terms);
        narrows[i] = score<Element<T>>(p, single, terms);
        sizes[i] = terms.hidden ? 0.0
                                : fabs(static_cast<double>(p.scale)) * norm * sqrt(square)
                                      + fabs(terms.slope * terms.distance) + fabs(terms.bias);
        max = Largest::combine(max, weights[i]);
        max_single = Largest::combine(max_single, singles[i]);
        max_narrow = Largest::combine(max_narrow, narrows[i]);
        shown |= !terms.hidden;
    }
    shown = over_block<Sum>(shown);
    const double last = has_last_terms(p) ? last_term(p, head) : -CUDART_INF;
    if (shown == 0) {
        // The outputs were zeroed.
        if (threadIdx.x == 0) p.lse[place] = last;
        return;
    }
    max = Largest::combine(over_block<Largest>(max), last);
    max_single = Largest::combine(over_block<Largest>(max_single), last);
    max_narrow = Largest::combine(over_block<Largest>(max_narrow), last);

    // Sums of exponentials: in f64, and in f32 for what is rounded.
    double sum = 0.0;
    float sum_single = 0.0f, sum_narrow = 0.0f;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        weights[i] = exp(weights[i] - max);
        narrows[i] = exp(narrows[i] - max_narrow);
        sum += weights[i];
        sum_single = __fadd_rn(sum_single, static_cast<float>(exp(singles[i] - max_single)));
        sum_narrow = __fadd_rn(sum_narrow, static_cast<float>(narrows[i]));
    }
    sum = over_block<Sum>(sum);
    sum_single = over_block<Sum>(sum_single);
    sum_narrow = over_block<Sum>(sum_narrow);
    if (has_last_terms(p)) {
        sum += exp(last - max);
        sum_single = __fadd_rn(sum_single, static_cast<float>(exp(last - max_single)));
        sum_narrow = __fadd_rn(sum_narrow, static_cast<float>(exp(last - max_narrow)));
    }

    // Probabilities.
    double reach = 0.0;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        weights[i] /= sum;
        narrows[i] = Element<T>::round(narrows[i] / static_cast<double>(sum_narrow));
        reach += weights[i] * (sizes[i] * sizes[i]);
        if (p.dropout_state) {
            const double factor = dropout(p, row, head, row.first_key + i);
            weights[i] *= factor;
            narrows[i] = Element<T>::round(narrows[i] * factor);
        }
    }
    reach = sqrt(over_block<Sum>(reach));  // and every probability is written
    if (threadIdx.x == 0) {
        const double lse = max + log(sum);
        p.lse[place] = lse;
        largests.lse = larger(largests.lse, fabs(max_single + log(static_cast<double>(sum_single)) - lse));
        p.lse_floor[place] = static_cast<float>(p.units * (1.0 + reach));
    }

    // Outputs, as many columns at once as there are threads: a group of threads has one key at a time, a thread one element of it.
    __shared__ double outs[THREADS], squares[THREADS];
    __shared__ float narrow_sums[THREADS];
    for (int first = 0; first < p.value_dim; first += THREADS) {
        const int columns = min(p.value_dim - first, THREADS);
        const int width = (columns + 31) / 32 * 32;
        const int groups = THREADS / width;
        const int group = threadIdx.x / width, column = threadIdx.x % width, d = first + column;
        double out = 0.0, square = 0.0;
        float narrow = 0.0f;
        if (group < groups && column < columns) {
            for (int i = group; i < count; i += groups) {
                const double v = Element<T>::wide(values[(first_row + i) * p.v.row + d]) * v_scale;
                out += weights[i] * v;
                square += weights[i] * (v * v);
                narrow = __fadd_rn(narrow, __fmul_rn(static_cast<float>(narrows[i]), static_cast<float>(v)));
            }
        }
        outs[threadIdx.x] = out;
        squares[threadIdx.x] = square;
        narrow_sums[threadIdx.x] = narrow;
        __syncthreads();
        if (group == 0 && column < columns) {
            for (int other = 1; other < groups; other++) {
                out += outs[other * width + column];
                square += squares[other * width + column];
                narrow = __fadd_rn(narrow, narrow_sums[other * width + column]);
            }
            // Weights are at most as large, and so is their sum.
            const double largest = p.dropout_state ? static_cast<double>(65536.0f / static_cast<float>(65536 - p.dropped)) : 1.0;
            const double size = sqrt(square * largest);
            const double variance = square * largest - out * out;
            const double deviation = (variance > 0.0 ? sqrt(variance) : 0.0) + (p.dropout_state ? fabs(out) : 0.0);
            const double score_error = fmin(p.units * (1.0 + reach), 1.0);
            const long long at = place * p.value_dim + d;
            p.out[at] = out;
            largests.out = larger(largests.out, fabs(Element<T>::round(static_cast<double>(narrow)) - out));
            largests.rounding = larger(largests.rounding, rounding_error<T>(out));
            p.out_floor[at] = static_cast<float>(ulp<T>(size) + score_error * deviation + p.units * size);
        }
        __syncthreads();  // the next columns, or the next row, write what these read
    }
}

template <typename T>
__device__ void attend_all(const Parameters& p) {
    double* const scratch = p.scratch + 4ll * p.key_bound * blockIdx.x;
    const long long all = static_cast<long long>(p.row_count) * p.heads;
    Largests largests;
    for (long long index = blockIdx.x; index < all; index += gridDim.x) {
        attend<T>(p, p.rows[index / p.heads], static_cast<int>(index % p.heads), scratch, largests);
    }
    const double out = over_block<Largest>(largests.out), lse = over_block<Largest>(largests.lse);
    const double rounding = over_block<Largest>(largests.rounding);
    if (threadIdx.x == 0) {
        atomicMax(&p.errors->out, static_cast<unsigned long long>(__double_as_longlong(out)));
        atomicMax(&p.errors->lse, static_cast<unsigned long long>(__double_as_longlong(lse)));
        atomicMax(&p.errors->rounding, static_cast<unsigned long long>(__double_as_longlong(rounding)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) reference_f16(const __grid_constant__ Parameters p) {
    attend_all<__half>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) reference_bf16(const __grid_constant__ Parameters p) {
    attend_all<__nv_bfloat16>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) reference_f32(const __grid_constant__ Parameters p) {
    attend_all<float>(p);
}

#include "gradients.cuh"
