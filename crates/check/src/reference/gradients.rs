//! The gradients of attention from their definition, exactly and rounded.

use std::sync::Mutex;

use warptile::backward::Prepass;
use warptile::cpu::Stop;
use warptile::kernels::{Elements, Kind};
use warptile::spec::{Backward, Call, HostInputs, Operand, Sequence, Slots, View};
use warptile::{Element, ElementType, Layout};

use super::matrix::{Dense, KeysAt, weighted_sum};
use super::row::{Computation, KeyTerms, Options};
use super::{MAX_GRADIENT_WORK, check_gradient_size};
use crate::compiled::Compiled;
use crate::error::Result;
use crate::parallel;
use crate::rounding::{LEAST, round, ulp};

/// A number for each element of each gradient, dense: those of tensors `[batch, length, heads, head size]`.
pub(crate) type Gradients = Slots<Vec<f64>>;

/// The exact gradients, those of the plain computation in the element type, and the variance of the error that no computation can be
/// expected to avoid.
#[derive(Debug)]
pub(crate) struct GradientReferences {
    pub(crate) exact: Gradients,
    /// Scores, weights, their gradients and the results rounded to the element type, as between separate kernels.
    pub(crate) rounded: Gradients,
    /// Variance that rounding the weights and the gradients of scores to the element type before they are multiplied, and arithmetic in
    /// `f32`, give each element.
    pub(crate) variance: Gradients,
    /// The sum of the squares of what each rounded weight, or gradient of a score, adds to the variance of a tensor's gradient. The elements
    /// that it adds to have one error between them, so that few of these do not make a mean certain, however many elements they have.
    pub(crate) squares: Slots<f64>,
}

/// What a key/value head of a sequence adds to the references: exact, rounded, and the variance.
struct Part {
    gradients: [Gradients; 3],
    squares: Slots<f64>,
}

/// Computes all gradients of a backward pass from its inputs, the output and lse among them: whether these are
/// right is not asked here.
pub(crate) fn gradients<T: Compiled>(
    backward: &Backward,
    inputs: &HostInputs<'_>,
) -> Result<GradientReferences> {
    backward.check_inputs(inputs)?;
    let call = backward.call();
    let wants_bias = backward.wants(Operand::DBias);
    check_gradient_size(call, wants_bias, MAX_GRADIENT_WORK)?;
    let tensor = |operand| inputs.elements::<T>(operand).map(Option::unwrap_or_default);
    let view = |operand, layout: &Layout| -> Result<_> { Ok(View::new(tensor(operand)?, *layout)) };
    let dense = |view, transposed| Dense::copy(view, None, transposed);
    let (q, k, v) = (
        view(Operand::Q, call.q())?,
        view(Operand::K, call.k())?,
        view(Operand::V, call.v())?,
    );
    let (keys, values) = (dense(k, true), dense(v, true));
    let computation = Computation {
        call,
        queries: dense(q, false),
        key_norms: keys.norms(),
        keys,
        // Transposed, as the gradient of a weight is a product with a value.
        values,
        options: Options::<T>::new(call, inputs)?,
        rounded: true,
    };
    let floats = |operand| inputs.elements::<f32>(operand);
    let pass = Pass {
        value_norms: computation.values.norms(),
        computation,
        rows_of_keys: dense(k, false),
        out: dense(view(Operand::Out, call.out())?, false),
        d_out: dense(view(Operand::DOut, backward.d_out())?, false),
        lse: floats(Operand::Lse)?.unwrap_or_default(),
        d_lse: floats(Operand::DLse)?,
        wants_bias,
        stop: Stop::current(),
    };
    pass.stop.check()?;
    let empty = || {
        Slots::from_fn(|operand| {
            let layout = pass.layout(operand);
            vec![0.0; layout.map_or(0, |layout| layout.shape.iter().product())]
        })
    };
    let results = Mutex::new([empty(), empty(), empty()]);
    let heads = call.heads();
    // One key/value head after the other of each sequence: numbers of heads add up in this order.
    let items: Vec<(Sequence, usize)> = { call.sequences() }
        .flat_map(|sequence| (0..heads.key_value).map(move |head| (sequence, head)))
        .collect();
    let parts: Vec<Mutex<Option<Part>>> = items.iter().map(|_| Mutex::default()).collect();
    parallel::for_each(
        items.iter().zip(&parts),
        call.flops() as f64 * 4.0,
        |(item, part)| {
            let computed = pass.part(&item.0, item.1);
            *part
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(computed);
        },
    );
    pass.stop.check()?;
    let mut all = results
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut squares = Slots::from_fn(|_| 0.0);
    for ((sequence, kv_head), part) in items.into_iter().zip(parts) {
        let part = part
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(part) = part else { continue };
        for (all, part) in all.iter_mut().zip(&part.gradients) {
            pass.add_part(&sequence, kv_head, part, all);
        }
        for (operand, sum) in squares.iter_mut() {
            *sum += part.squares[operand];
        }
    }
    let [exact, mut rounded, variance] = all;
    for (operand, gradient) in rounded.iter_mut() {
        if operand.elements() != Elements::F32 {
            gradient.iter_mut().for_each(|x| *x = round::<T>(*x));
        }
    }
    Ok(GradientReferences {
        exact,
        rounded,
        variance,
        squares,
    })
}

/// Terms of an element of the gradient of a bias in this layout.
pub(crate) fn terms_of_bias(call: &Call, layout: Option<&Layout>) -> f64 {
    let heads = call.heads().query;
    let all = [call.batch(), call.query_len(), heads, call.key_len()];
    let shape = layout.map_or(all, |layout| layout.shape);
    let shared = |(all, one): (&usize, &usize)| *all as f64 / (*one).max(1) as f64;
    all.iter().zip(&shape).map(shared).product()
}

struct Pass<'a, T> {
    computation: Computation<'a, T>,
    rows_of_keys: Dense,
    value_norms: Vec<f64>,
    out: Dense,
    d_out: Dense,
    lse: &'a [f32],
    d_lse: Option<&'a [f32]>,
    /// The gradient of a bias is computed if it is wanted: it has many numbers.
    wants_bias: bool,
    /// The caller's flag, for all threads.
    stop: Stop,
}

/// The results of one row of scores.
struct Scores {
    /// Weights before dropout.
    whole: Vec<f64>,
    p: Vec<f64>,
    /// Gradients of the scaled products.
    ds: Vec<f64>,
    /// Gradients of the scores with the bias.
    d_bias: Vec<f64>,
}

impl<T: Element> Pass<'_, T> {
    /// The dense layout of a gradient that is computed.
    fn layout(&self, operand: Operand) -> Option<Layout> {
        let is_computed = operand != Operand::DBias || self.wants_bias;
        { self.computation.call.gradient_layout(operand) }.filter(|_| is_computed)
    }

    /// Puts the sums of a key/value head of a sequence in their places: rows by head of the group, numbers of lists, and scores.
    fn add_part(&self, sequence: &Sequence, kv_head: usize, part: &Gradients, all: &mut Gradients) {
        let group = self.computation.call.heads().group_size();
        for operand in Operand::GRADIENTS {
            let Some(layout) = self.layout(operand) else {
                continue;
            };
            let (all, part) = (&mut all[operand], &part[operand]);
            let (dense, size) = (Layout::bshd(layout.shape), layout.head_dim());
            let (heads, entry, start, count) = match operand.kind() {
                Kind::Queries => (group, sequence.q_entry, sequence.q_start, sequence.q_len),
                Kind::Keys => (1, sequence.k_entry, sequence.k_start, sequence.k_len),
                Kind::Scores => {
                    let (queries, keys) = (sequence.q_len, sequence.k_len);
                    // An extent of 1 is a sum.
                    let place = |d: usize, number: usize| number.min(layout.shape[d] - 1);
                    for (index, x) in part.iter().enumerate() {
                        let row = index / keys;
                        let head = kv_head * group + row / queries;
                        let (entry, row) = (place(0, sequence.batch), place(1, row % queries));
                        all[dense.offset(entry, row, place(2, head)) + place(3, index % keys)] += x;
                    }
                    continue;
                }
                Kind::List(_) => {
                    for (to, sum) in all.iter_mut().skip(kv_head * group).zip(part) {
                        *to += sum;
                    }
                    continue;
                }
                _ => continue,
            };
            for (index, numbers) in part.chunks_exact(size).enumerate() {
                let (head, row) = (kv_head * heads + index / count, start + index % count);
                let to = dense.offset(entry, row, head);
                all[to..to + size].copy_from_slice(numbers);
            }
        }
    }

    fn part(&self, sequence: &Sequence, kv_head: usize) -> Part {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.part_by_four(sequence, kv_head) };
        }
        self.part_by_any(sequence, kv_head)
    }

    /// Gives the same numbers as the plain loop, four in each vector: no multiplication is fused with an addition.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn part_by_four(&self, sequence: &Sequence, kv_head: usize) -> Part {
        self.part_by_any(sequence, kv_head)
    }

    /// As many numbers in a vector as the caller's instructions have.
    #[inline(always)]
    fn part_by_any(&self, sequence: &Sequence, kv_head: usize) -> Part {
        let call = self.computation.call;
        let heads = call.heads();
        let part = || {
            Slots::from_fn(|operand| {
                let size = self.layout(operand).map_or(0, |layout| layout.head_dim());
                vec![
                    0.0;
                    match operand.kind() {
                        Kind::Queries => heads.group_size() * sequence.q_len * size,
                        Kind::Keys => sequence.k_len * size,
                        Kind::Scores if self.wants_bias =>
                            heads.group_size() * sequence.q_len * sequence.k_len,
                        Kind::Scores => 0,
                        _ => heads.group_size() * size,
                    }
                ]
            })
        };
        let mut parts = Part {
            gradients: [part(), part(), part()],
            squares: Slots::from_fn(|_| 0.0),
        };
        for in_group in 0..heads.group_size() {
            let head = kv_head * heads.group_size() + in_group;
            for position in (0..sequence.q_len).take_while(|_| !self.stop.is_requested()) {
                self.row(sequence, kv_head, head, position, in_group, &mut parts);
            }
        }
        parts
    }

    #[inline(always)]
    fn row(
        &self,
        sequence: &Sequence,
        kv_head: usize,
        head: usize,
        position: usize,
        in_group: usize,
        part: &mut Part,
    ) {
        let [exact, rounded, variance] = &mut part.gradients;
        let computation = &self.computation;
        let call = computation.call;
        let heads = call.heads();
        let [dim, of_values] = heads.dims();
        let at = call.lse_offset(sequence, head) + position;
        if self.lse[at].abs() > Prepass::LARGEST_LSE {
            return;
        }
        let lse = f64::from(self.lse[at]);
        let row_of = |dense: &Dense, size: usize| {
            let start = dense.start(sequence.q_entry, head) + (sequence.q_start + position) * size;
            start..start + size
        };
        let (query, values_row) = (
            row_of(&computation.queries, dim),
            row_of(&self.out, of_values),
        );
        let (q, d_out) = (
            &computation.queries.exact[query],
            &self.d_out.exact[values_row.clone()],
        );
        let out = &self.out.exact[values_row];
        let d_lse = self.d_lse.map_or(0.0, |d_lse| f64::from(d_lse[at]));
        let products = || out.iter().zip(d_out).map(|(x, y)| x * y);
        let delta = products().sum::<f64>() - d_lse;
        let delta_size = products().map(f64::abs).sum::<f64>() + d_lse.abs();
        let eps = computation.units();
        if let Some(of_head) = computation.options.gradient_of_head(head, lse, delta) {
            let number = of_head.operand;
            exact[number][in_group] += of_head.exact;
            rounded[number][in_group] += of_head.rounded;
            let error = match of_head.weight {
                0.0 => 0.0,
                weight => eps * weight * (delta.abs() * of_head.reach + delta_size),
            };
            variance[number][in_group] += error * error;
        }
        let visible = { call.mask() }.visible(position, sequence.q_len, sequence.k_len);
        if visible.is_empty() {
            return;
        }
        let terms: Vec<KeyTerms> = { visible.clone() }
            .map(|key| computation.terms(sequence, position, head, key))
            .collect();
        let at = |dense: &Dense| KeysAt {
            start: dense.start(sequence.k_entry, kv_head) + sequence.k_start + visible.start,
            step: dense.rows,
            count: visible.len(),
        };
        let (keys, values) = (&computation.keys, &computation.values);
        let scale = f64::from(call.scale());
        let row = { call.dropout() }.map(|dropout| dropout.row(sequence.batch, head, position));
        let factor = f64::from(call.dropout_factor());
        // The factor of the weight of a visible key.
        let kept = |index: usize| match row {
            Some(row) if !row.keeps(visible.start + index) => 0.0,
            _ => factor,
        };
        let scores = |s: Vec<f64>, dp: Vec<f64>, round: &dyn Fn(f64) -> f64, single| {
            let mut scores = Scores {
                whole: Vec::with_capacity(s.len()),
                p: Vec::with_capacity(s.len()),
                ds: Vec::with_capacity(s.len()),
                d_bias: Vec::with_capacity(s.len()),
            };
            for (index, ((dot, dp), key)) in s.into_iter().zip(dp).zip(&terms).enumerate() {
                let (score, slant) = self.score(dot, key, round, single);
                let p = round((score - lse).exp());
                let of_score = match p == 0.0 {
                    true => 0.0,
                    false => p * (round(dp) * kept(index) - delta),
                };
                let ds = if p == 0.0 {
                    0.0
                } else {
                    round(of_score * slant)
                };
                scores.d_bias.push(round(of_score));
                scores.whole.push(p);
                scores.p.push(round(p * kept(index)));
                scores.ds.push(ds);
            }
            scores
        };
        let right = scores(
            at(keys).products(q, &keys.exact),
            at(values).products(d_out, &values.exact),
            &|x| x,
            &|x| x,
        );
        let single = |x: &[f64]| -> Vec<f32> { x.iter().map(|x| *x as f32).collect() };
        let double = |x: Vec<f32>| -> Vec<f64> { x.into_iter().map(f64::from).collect() };
        let plain = scores(
            double(at(keys).products(&single(q), &keys.single)),
            double(at(values).products(&single(d_out), &values.single)),
            &round::<T>,
            &round::<f32>,
        );

        // The variance of each weight and each gradient of a score, from two roundings each and arithmetic in `f32`. Each addition of a sum rounds
        // the terms before it, half of them on average, by up to half an ulp.
        let longest = visible.len().max(sequence.q_len * heads.group_size());
        let sums = f64::from(f32::EPSILON).powi(2) * longest as f64 / 24.0;
        let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
        let (q_norm, d_norm) = (norm(q), norm(d_out));
        let first_norm = (sequence.k_entry * heads.key_value + kv_head) * keys.rows
            + sequence.k_start
            + visible.start;
        let mut spread = Scores {
            whole: Vec::new(),
            p: Vec::with_capacity(terms.len()),
            ds: Vec::with_capacity(terms.len()),
            d_bias: Vec::with_capacity(terms.len()),
        };
        let sums_of_bias = f64::from(f32::EPSILON).powi(2)
            * terms_of_bias(call, self.layout(Operand::DBias).as_ref())
            / 24.0;
        for (index, key) in terms.iter().enumerate() {
            let (p, ds) = (right.p[index], right.ds[index]);
            if key.hidden {
                spread.p.push(0.0);
                spread.ds.push(0.0);
                spread.d_bias.push(0.0);
                continue;
            }
            let reach = key.size(scale.abs() * q_norm * computation.key_norms[first_norm + index]);
            let of_p = eps * right.whole[index] * (1.0 + reach + lse.abs());
            let product = kept(index) * d_norm * self.value_norms[first_norm + index];
            let of_ds = of_p * (product + delta_size);
            let of_p = of_p * kept(index);
            let flushed = |x: f64| if x == 0.0 { 0.0 } else { LEAST.powi(2) };
            let rounding = |x: f64| match T::TYPE {
                ElementType::F32 => flushed(x),
                _ => ulp(T::TYPE, x).powi(2) / 12.0 + flushed(x),
            };
            let of_p = 2.0 * rounding(p) + of_p * of_p + sums * p * p;
            let d_bias = right.d_bias[index];
            spread
                .d_bias
                .push(2.0 * rounding(d_bias) + of_ds * of_ds + sums_of_bias * d_bias * d_bias);
            // A weight is multiplied by the `slope`, by which its own rounding counts, and their product is rounded.
            let whole = right.whole[index];
            let (weight, slope) = match d_bias == 0.0 {
                true => (whole, 0.0),
                false => (whole * ds / d_bias, d_bias / whole),
            };
            let of_ds =
                rounding(ds) + rounding(weight) * slope * slope + of_ds * of_ds + sums * ds * ds;
            spread.p.push(of_p);
            spread.ds.push(of_ds);
            let of_score = of_ds * scale * scale;
            for (operand, added) in [
                (
                    Operand::DQ,
                    of_score * computation.key_norms[first_norm + index].powi(2),
                ),
                (Operand::DK, of_score * q_norm * q_norm),
                (Operand::DV, of_p * d_norm * d_norm),
            ] {
                part.squares[operand] += added * added;
            }
        }

        let rows = |size: usize| {
            let first = sequence.k_start + visible.start;
            first * size..(first + visible.len()) * size
        };
        let of_keys = {
            let start = self.rows_of_keys.start(sequence.k_entry, kv_head);
            let rows = rows(dim);
            &self.rows_of_keys.exact[start + rows.start..start + rows.end]
        };
        let dq_at = (in_group * sequence.q_len + position) * dim;
        for (scores, to, square) in [
            (&right, &mut *exact, false),
            (&plain, rounded, false),
            (&spread, variance, true),
        ] {
            let power = |x: f64| if square { x * x } else { x };
            let factor = power(scale);
            let mut sum = vec![0.0; dim];
            weighted_sum(&scores.ds, of_keys, power, &mut sum);
            for (to, x) in to[Operand::DQ][dq_at..dq_at + dim].iter_mut().zip(sum) {
                *to = factor * x;
            }
            if self.wants_bias {
                let row = (in_group * sequence.q_len + position) * sequence.k_len + visible.start;
                to[Operand::DBias][row..row + visible.len()].copy_from_slice(&scores.d_bias);
            }
            for (index, (p, ds)) in scores.p.iter().zip(&scores.ds).enumerate() {
                let key = visible.start + index;
                let (p, ds) = (*p, factor * ds);
                for (to, x) in to[Operand::DK][key * dim..(key + 1) * dim]
                    .iter_mut()
                    .zip(q)
                {
                    *to += ds * power(*x);
                }
                for (to, x) in to[Operand::DV][key * of_values..(key + 1) * of_values]
                    .iter_mut()
                    .zip(d_out)
                {
                    *to += p * power(*x);
                }
            }
        }
    }

    /// A score, and its derivative by the scaled product; minus infinity for a hidden key.
    fn score(
        &self,
        dot: f64,
        key: &KeyTerms,
        round: &dyn Fn(f64) -> f64,
        single: &dyn Fn(f64) -> f64,
    ) -> (f64, f64) {
        if key.hidden {
            return (f64::NEG_INFINITY, 0.0);
        }
        let scoring = self.computation.call.scoring();
        (
            key.score(scoring, dot, round, single),
            scoring.derivative(dot, &key.terms, round),
        )
    }
}
