// The gradients of attention in float64, those of the plain computation in the element type, and the variance of the error that no
// computation can avoid, on a GPU: what crates/check/src/reference/gradients.rs computes on the host. Three passes: rows of scores, with what
// they add to dq; columns of them, which are sums of dk and dv; and what the rule makes of the results.
#pragma once

// A key/value head of a sequence.
struct Item {
    int first_row;  // of the sequence, in `rows`
    int q_len, k_len, k_entry, k_start, kv_head;
    long long scores;  // where those of its first row begin
};

// The query, or the key, `number` of an item.
struct Line {
    int item, number;
};

// The sums of a gradient's elements: exact, of the plain computation, and variances, `len` numbers each. Null: none.
struct Sums {
    double* data;
    long long len;

    __device__ void set(long long at, const double (&x)[3]) const {
        for (int i = 0; i < 3; i++) data[i * len + at] = x[i];
    }
    __device__ void add(long long at, const double (&x)[3]) const {
        for (int i = 0; i < 3; i++) atomicAdd(&data[i * len + at], x[i]);
    }
};

struct GradientParameters {
    Parameters call;
    Tensor out, d_out;
    const float *lse, *d_lse;  // [head, row of q], at the row's `lse`
    long long lse_head;        // from one head to the next
    const Item* items;
    const Line* lines;
    double* weights;        // 6 numbers of each score, in planes
    long long plane;        // from one of these to the next
    Sums dq, dk, dv, d_bias, of_heads;
    ScoreTensor d_bias_at;  // without data
    double* squares;        // of dq, dk and dv: `GradientReferences::squares`
    double bias_terms;      // elements of scores that an element of the gradient of a bias is the sum of
    long long line_count;
    int k_rows, kv_heads;
};

constexpr double EPSILON = 1.1920928955078125e-7;  // of f32
constexpr double LEAST = 1.1754943508222875e-38;    // its least normal number
constexpr double LARGEST_LSE = 8388608.0;           // of a row that passes gradients, negative or not: `Prepass::LARGEST_LSE`

// That of numbers which kernels may take for 0.
__device__ double flushed_variance(double x) { return x == 0.0 ? 0.0 : LEAST * LEAST; }

// The variance of a rounding to the type; of f32 it is part of that of its arithmetic.
template <typename T>
__device__ double rounding_variance(double x) {
    return ulp<T>(x) * ulp<T>(x) / 12.0 + flushed_variance(x);
}
template <>
__device__ double rounding_variance<float>(double x) { return flushed_variance(x); }

// The weight of a key, before and after dropout, the gradient of its score by the scaled product, and with the bias.
struct Weight {
    double whole, p, ds, d_bias;
};

template <typename Rounding>
__device__ Weight weight_of(const Parameters& p, const Terms& terms, double dot, double dp, double lse, double delta, double kept) {
    Weight w = {0.0, 0.0, 0.0, 0.0};
    if (terms.hidden) return w;
    w.whole = Rounding::round(exp(score<Rounding>(p, dot, terms) - lse));
    if (w.whole == 0.0) return w;
    const double of_score = w.whole * (Rounding::round(dp) * kept - delta);
    w.d_bias = Rounding::round(of_score);
    w.p = Rounding::round(w.whole * kept);
    w.ds = Rounding::round(of_score * derivative<Rounding>(p, dot));
    return w;
}

// Adds numbers of each of a group's threads up by columns, as many at once as there are threads, and gives each sum to `put`.
template <typename Term, typename Put>
__device__ void by_columns(int count, int size, Term term, Put put) {
    __shared__ double sums[3][THREADS];
    for (int first = 0; first < size; first += THREADS) {
        const int columns = min(size - first, THREADS);
        const int width = (columns + 31) / 32 * 32;
        const int groups = THREADS / width;
        const int group = threadIdx.x / width, column = threadIdx.x % width;
        double sum[3] = {0.0, 0.0, 0.0};
        if (group < groups && column < columns) {
            for (int i = group; i < count; i += groups) term(i, first + column, sum);
        }
        for (int i = 0; i < 3; i++) sums[i][threadIdx.x] = sum[i];
        __syncthreads();
        if (group == 0 && column < columns) {
            for (int other = 1; other < groups; other++) {
                for (int i = 0; i < 3; i++) sum[i] += sums[i][other * width + column];
            }
            put(first + column, sum);
        }
        __syncthreads();  // the next columns, or the next row, write what these read
    }
}

// One row of a head, by the whole block.
template <typename T>
__device__ void gradients_of_row(const GradientParameters& g, const Item& item, int position, int in_group) {
    const Parameters& p = g.call;
    const Row& row = p.rows[item.first_row + position];
    const int head = item.kv_head * p.group + in_group, count = row.end_key - row.first_key;
    double* const weights = g.weights + item.scores + (static_cast<long long>(in_group) * item.q_len + position) * item.k_len;
    const double lse = static_cast<double>(g.lse[row.lse + head * g.lse_head]);
    const bool passes_none = fabs(lse) > LARGEST_LSE, is_empty = passes_none || count <= 0;
    for (int key = threadIdx.x; key < item.k_len; key += THREADS) {
        if (!is_empty && key >= row.first_key && key < row.end_key) continue;
        for (int i = 0; i < 6; i++) weights[i * g.plane + key] = 0.0;
    }
    if (passes_none) return;
    const auto of_row = [&](const Tensor& t) { return static_cast<const T*>(t.data) + row.q_entry * t.batch + row.q_row * t.row + head * t.head; };
    const T *const q = of_row(p.q), *const out = of_row(g.out), *const d_out = of_row(g.d_out);
    double delta = 0.0, delta_size = 0.0, q_norm = 0.0, d_norm = 0.0;
    for (int d = threadIdx.x; d < p.value_dim; d += THREADS) {
        const double y = Element<T>::wide(d_out[d]), x = Element<T>::wide(out[d]) * y;
        delta += x;
        delta_size += fabs(x);
        d_norm += y * y;
    }
    for (int d = threadIdx.x; d < p.head_dim; d += THREADS) q_norm += Element<T>::wide(q[d]) * Element<T>::wide(q[d]);
    delta = over_block<Sum>(delta);
    delta_size = over_block<Sum>(delta_size);
    q_norm = sqrt(over_block<Sum>(q_norm));
    d_norm = sqrt(over_block<Sum>(d_norm));
    if (g.d_lse) {
        const double d_lse = static_cast<double>(g.d_lse[row.lse + head * g.lse_head]);
        delta -= d_lse;
        delta_size += fabs(d_lse);
    }
    if (has_last_terms(p) && threadIdx.x == 0) {
        const double term = last_term(p, head), weight = exp(term - lse);
        const double reach = 1.0 + fabs(lse) + fabs(term);
        const double error = weight == 0.0 ? 0.0 : p.units * weight * (fabs(delta) * reach + delta_size);
        const double single = static_cast<double>(__double2float_rn(weight)) * static_cast<double>(__double2float_rn(delta));
        g.of_heads.add(head, {-weight * delta, -single, error * error});
    }
    if (is_empty) return;

    const long long first_row = static_cast<long long>(item.k_start) + row.first_key;
    const T* const keys = static_cast<const T*>(p.k.data) + item.k_entry * p.k.batch + item.kv_head * p.k.head + first_row * p.k.row;
    const T* const values = static_cast<const T*>(p.v.data) + item.k_entry * p.v.batch + item.kv_head * p.v.head + first_row * p.v.row;
    const double scale = static_cast<double>(p.scale);
    const double sums = EPSILON * EPSILON * max(count, item.q_len * p.group) / 24.0, sums_of_bias = EPSILON * EPSILON * g.bias_terms / 24.0;
    double squares[3] = {0.0, 0.0, 0.0};
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int key = row.first_key + i;
        double dot = 0.0, dp = 0.0, k_norm = 0.0, v_norm = 0.0;
        float dot_single = 0.0f, dp_single = 0.0f;
        for (int d = 0; d < p.head_dim; d++) {
            const double a = Element<T>::wide(q[d]), b = Element<T>::wide(keys[i * p.k.row + d]);
            dot += a * b;
            k_norm += b * b;
            dot_single = __fadd_rn(dot_single, __fmul_rn(static_cast<float>(a), static_cast<float>(b)));
        }
        for (int d = 0; d < p.value_dim; d++) {
            const double a = Element<T>::wide(d_out[d]), b = Element<T>::wide(values[i * p.v.row + d]);
            dp += a * b;
            v_norm += b * b;
            dp_single = __fadd_rn(dp_single, __fmul_rn(static_cast<float>(a), static_cast<float>(b)));
        }
        k_norm = sqrt(k_norm);
        v_norm = sqrt(v_norm);
        const Terms terms = terms_of<T>(p, row, head, key);
        const double kept = p.dropout_state ? dropout(p, row, head, key) : 1.0;
        const Weight right = weight_of<Exact>(p, terms, dot, dp, lse, delta, kept);
        const Weight plain =
            weight_of<Element<T>>(p, terms, static_cast<double>(dot_single), static_cast<double>(dp_single), lse, delta, kept);
        // The variances, from two roundings each and arithmetic in f32: as on the host, which says why.
        double of_p = 0.0, of_ds = 0.0, of_bias = 0.0;
        if (!terms.hidden) {
            const double reach = fabs(scale) * q_norm * k_norm + fabs(terms.slope * terms.distance) + fabs(terms.bias);
            const double weight_error = p.units * right.whole * (1.0 + reach + fabs(lse));
            const double ds_error = weight_error * (kept * d_norm * v_norm + delta_size), p_error = weight_error * kept;
            const double weight = right.d_bias == 0.0 ? right.whole : right.whole * right.ds / right.d_bias;
            const double slope = right.d_bias == 0.0 ? 0.0 : right.d_bias / right.whole;
            of_p = 2.0 * rounding_variance<T>(right.p) + p_error * p_error + sums * right.p * right.p;
            of_bias = 2.0 * rounding_variance<T>(right.d_bias) + ds_error * ds_error + sums_of_bias * right.d_bias * right.d_bias;
            of_ds = rounding_variance<T>(right.ds) + rounding_variance<T>(weight) * slope * slope + ds_error * ds_error +
                    sums * right.ds * right.ds;
            const double of_score = of_ds * scale * scale;
            const double added[3] = {of_score * k_norm * k_norm, of_score * q_norm * q_norm, of_p * d_norm * d_norm};
            for (int of = 0; of < 3; of++) squares[of] += added[of] * added[of];
        }
        const double all[6] = {right.p, plain.p, of_p, right.ds, plain.ds, of_ds};
        for (int of = 0; of < 6; of++) weights[of * g.plane + key] = all[of];
        if (g.d_bias.data) {
            const ScoreTensor& t = g.d_bias_at;
            const long long at = row.batch * t.batch + row.position * t.row + head * t.head + key * t.key;
            g.d_bias.add(at, {right.d_bias, plain.d_bias, of_bias});
        }
    }
    for (int of = 0; of < 3; of++) {
        const double sum = over_block<Sum>(squares[of]);  // and every weight is written
        if (threadIdx.x == 0) atomicAdd(&g.squares[of], sum);
    }
    const double* const ds = weights + 3 * g.plane + row.first_key;
    const long long place = ((static_cast<long long>(row.q_entry) * p.q_rows + row.q_row) * p.heads + head) * p.head_dim;
    by_columns(
        count, p.head_dim,
        [&](int i, int d, double(&sum)[3]) {
            const double k = Element<T>::wide(keys[i * p.k.row + d]);
            sum[0] += ds[i] * k;
            sum[1] += ds[g.plane + i] * k;
            sum[2] += ds[2 * g.plane + i] * (k * k);
        },
        [&](int d, const double(&sum)[3]) { g.dq.set(place + d, {scale * sum[0], scale * sum[1], scale * scale * sum[2]}); });
}

// dk and dv of a key, by the whole block.
template <typename T>
__device__ void gradients_of_key(const GradientParameters& g, const Item& item, int key) {
    const Parameters& p = g.call;
    const long long place = (static_cast<long long>(item.k_entry) * g.k_rows + item.k_start + key) * g.kv_heads + item.kv_head;
    const double scale = static_cast<double>(p.scale);
    for (int of_values = 0; of_values < 2; of_values++) {
        const Tensor& t = of_values ? g.d_out : p.q;
        const double* const weights = g.weights + item.scores + (of_values ? 0 : 3) * g.plane + key;
        const Sums& to = of_values ? g.dv : g.dk;
        const double factor = of_values ? 1.0 : scale;
        const int size = of_values ? p.value_dim : p.head_dim;
        by_columns(
            p.group * item.q_len, size,
            [&](int i, int d, double(&sum)[3]) {
                const Row& row = p.rows[item.first_row + i % item.q_len];
                const double* const weight = weights + static_cast<long long>(i) * item.k_len;
                // As of most rows under a mask.
                if (weight[0] == 0.0 && weight[g.plane] == 0.0 && weight[2 * g.plane] == 0.0) return;
                const int head = item.kv_head * p.group + i / item.q_len;
                const double x =
                    Element<T>::wide(static_cast<const T*>(t.data)[row.q_entry * t.batch + row.q_row * t.row + head * t.head + d]);
                sum[0] += weight[0] * x;
                sum[1] += weight[g.plane] * x;
                sum[2] += weight[2 * g.plane] * (x * x);
            },
            [&](int d, const double(&sum)[3]) {
                to.set(place * size + d, {factor * sum[0], factor * sum[1], factor * factor * sum[2]});
            });
    }
}

template <typename T>
__device__ void all_rows(const GradientParameters& g) {
    const long long all = g.line_count * g.call.group;
    for (long long index = blockIdx.x; index < all; index += gridDim.x) {
        const Line line = g.lines[index / g.call.group];
        gradients_of_row<T>(g, g.items[line.item], line.number, static_cast<int>(index % g.call.group));
        __syncthreads();
    }
}

template <typename T>
__device__ void all_keys(const GradientParameters& g) {
    for (long long index = blockIdx.x; index < g.line_count; index += gridDim.x) {
        const Line line = g.lines[index];
        gradients_of_key<T>(g, g.items[line.item], line.number);
    }
}

// What the rule takes from a gradient's sums: `GradientSizes` in crates/check/src/accept/gradients.rs.
struct Sizes {
    unsigned long long natural, largest;  // as bits, as in Errors
    double plain, unavoidable, uncertain, whole;
};

struct SizeParameters {
    Sums sums;
    float* floors;
    Sizes* sizes;  // 0 before
    int is_rounded;
};

template <typename T>
__device__ void sizes_of(const SizeParameters& p) {
    double natural = 0.0, largest = 0.0, plain = 0.0, unavoidable = 0.0, uncertain = 0.0, whole = 0.0;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < p.sums.len; i += static_cast<long long>(gridDim.x) * THREADS) {
        const double r = p.sums.data[i], sum = p.sums.data[p.sums.len + i], variance = p.sums.data[2 * p.sums.len + i];
        const double error = (p.is_rounded ? Element<T>::round(sum) : sum) - r, unit = fmax(ulp<T>(r), LEAST);
        natural = larger(natural, fabs(error));
        largest = larger(largest, fabs(r));
        if (error * error < CUDART_INF) plain += error * error;
        unavoidable += variance + unit * unit / 12.0;
        uncertain += variance > 0.0 ? 1.0 : 0.0;
        whole += variance;
        p.floors[i] = __double2float_rn(6.0 * sqrt(variance) + unit);
    }
    natural = over_block<Largest>(natural);
    largest = over_block<Largest>(largest);
    const double sums[4] = {over_block<Sum>(plain), over_block<Sum>(unavoidable), over_block<Sum>(uncertain), over_block<Sum>(whole)};
    if (threadIdx.x == 0) {
        atomicMax(&p.sizes->natural, static_cast<unsigned long long>(__double_as_longlong(natural)));
        atomicMax(&p.sizes->largest, static_cast<unsigned long long>(__double_as_longlong(largest)));
        double* const to[4] = {&p.sizes->plain, &p.sizes->unavoidable, &p.sizes->uncertain, &p.sizes->whole};
        for (int i = 0; i < 4; i++) atomicAdd(to[i], sums[i]);
    }
}

#define ENTRIES(name, T)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) gradients_rows_##name(const __grid_constant__ GradientParameters p) { all_rows<T>(p); } \
    extern "C" __global__ void __launch_bounds__(THREADS) gradients_keys_##name(const __grid_constant__ GradientParameters p) { all_keys<T>(p); } \
    extern "C" __global__ void __launch_bounds__(THREADS) gradients_sizes_##name(const __grid_constant__ SizeParameters p) { sizes_of<T>(p); }

ENTRIES(f16, __half)
ENTRIES(bf16, __nv_bfloat16)
ENTRIES(f32, float)
