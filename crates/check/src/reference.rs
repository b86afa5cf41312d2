//! The definition of attention, written down naively: what every other path is compared with.

use warptile::{AlibiShape, Element, ElementType, Layout, Problem, Sequence, View};

use crate::error::{Error, Result, limited};
use crate::parallel;
use crate::rounding::ulp;

/// Most elements of a tensor that a reference takes: 2 GiB in `f64`.
const MAX_ELEMENTS: u128 = 1 << 28;

/// Most multiply-adds of a reference: minutes on a few cores.
const MAX_WORK: f64 = (1_u64 << 38) as f64;

/// Output and lse of a problem, in `f64`.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceOutput {
    /// Dense `[batch, length, heads, head size]`, whatever the problem's output layout; packed: `[rows, heads, head size]`.
    /// Rows that belong to no sequence are 0.
    pub out: Vec<f64>,
    /// `[batch, heads, length]`; packed: `[heads, rows]`. Rows that belong to no sequence are 0.
    pub lse: Vec<f64>,
}

/// The exact result of a problem, the result of the plain computation in its element type, and the error that no
/// computation can be expected to avoid.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct References {
    pub(crate) exact: ReferenceOutput,
    /// `out` with scores, probabilities and output rounded to the element type, as between three separate kernels; `lse` of
    /// scores rounded to `f32`, in which every path computes it.
    pub(crate) rounded: ReferenceOutput,
    /// Error to be expected of each element, in the order of `exact`: see [`floors`].
    pub(crate) out_floor: Vec<f32>,
    pub(crate) lse_floor: Vec<f32>,
}

/// Computes a problem from its definition in `f64`, parallel over rows but otherwise naive. Scores beyond the range of
/// `f32` count as its largest finite number, which is what the fast paths can represent.
///
/// # Errors
/// [`Error::Call`] if a tensor or the slopes don't fit the problem, [`Error::TooLarge`] or [`Error::TooMuchWork`] if it would
/// take too much memory or time.
pub fn reference<T: Element>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
) -> Result<ReferenceOutput> {
    Ok(compute(problem, q, k, v, alibi, false)?.exact)
}

/// Computes everything that a result is judged by.
pub(crate) fn references<T: Element>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
) -> Result<References> {
    compute(problem, q, k, v, alibi, true)
}

/// A tensor copied to `[entry, head, row, head size]`, or to `[entry, head, head size, row]`.
struct Dense {
    exact: Vec<f64>,
    single: Vec<f32>,
    rows: usize,
    heads: usize,
    head_dim: usize,
}

impl Dense {
    fn copy<T: Element>(view: View<'_, T>, transposed: bool) -> Self {
        let [entries, rows, heads, head_dim] = view.layout.shape;
        let mut exact = vec![0.0; entries * rows * heads * head_dim];
        let mut single = vec![0.0; exact.len()];
        for entry in 0..entries {
            for head in 0..heads {
                let start = (entry * heads + head) * rows * head_dim;
                for row in 0..rows {
                    let from = view.layout.offset(entry, row, head);
                    for (d, x) in view.data[from..from + head_dim].iter().enumerate() {
                        let place = match transposed {
                            true => d * rows + row,
                            false => row * head_dim + d,
                        };
                        exact[start + place] = x.to_f64();
                        single[start + place] = x.to_f32();
                    }
                }
            }
        }
        Dense {
            exact,
            single,
            rows,
            heads,
            head_dim,
        }
    }

    /// Where the matrix of an entry and head starts.
    fn start(&self, entry: usize, head: usize) -> usize {
        (entry * self.heads + head) * self.rows * self.head_dim
    }
}

/// What all rows of a computation share.
struct Computation<'a> {
    problem: &'a Problem,
    queries: Dense,
    /// Transposed.
    keys: Dense,
    values: Dense,
    alibi: Option<&'a [f32]>,
    /// Whether the rounded result and the floors are wanted.
    rounded: bool,
}

/// Where the results of a row of a head go.
struct Row<'a> {
    index: usize,
    out: &'a mut [f64],
    rounded_out: &'a mut [f64],
    out_floor: &'a mut [f32],
    rest: &'a mut RowRest,
}

#[derive(Debug, Clone, Copy, Default)]
struct RowRest {
    lse: f64,
    rounded_lse: f64,
    lse_floor: f32,
}

fn compute<T: Element>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
    rounded: bool,
) -> Result<References> {
    check_inputs(problem, &q, &k, &v, alibi)?;
    let (heads, head_dim, rows) = (problem.heads(), problem.head_dim(), problem.q().rows());
    let computation = Computation {
        problem,
        queries: Dense::copy(q, false),
        keys: Dense::copy(k, true),
        values: Dense::copy(v, false),
        alibi,
        rounded,
    };
    let mut sequence_of = vec![None; problem.q().batch() * rows];
    for sequence in problem.sequences() {
        let start = sequence.entry * rows + sequence.q_start;
        sequence_of[start..start + sequence.q_len].fill(Some(sequence));
    }

    let places = sequence_of.len() * heads;
    let mut exact = vec![0.0; places * head_dim];
    let mut rounded_out = exact.clone();
    let mut out_floor = vec![0.0; exact.len()];
    let mut rest = vec![RowRest::default(); places];
    let all = exact
        .chunks_mut(head_dim)
        .zip(rounded_out.chunks_mut(head_dim))
        .zip(out_floor.chunks_mut(head_dim))
        .zip(&mut rest)
        .enumerate()
        .map(|(index, (((out, rounded_out), out_floor), rest))| Row {
            index,
            out,
            rounded_out,
            out_floor,
            rest,
        });
    parallel::for_each(all, |row| {
        let (place, head) = (row.index / heads, row.index % heads);
        if let Some(sequence) = sequence_of[place] {
            let position = place - sequence.entry * rows - sequence.q_start;
            computation.attend::<T>(&sequence, position, head, row);
        }
    });

    // From `[entry, row, head]` to `[entry, head, row]`.
    let by_head = || {
        (0..problem.q().batch()).flat_map(move |entry| {
            (0..heads)
                .flat_map(move |head| (0..rows).map(move |row| (entry * rows + row) * heads + head))
        })
    };
    Ok(References {
        exact: ReferenceOutput {
            out: exact,
            lse: by_head().map(|index| rest[index].lse).collect(),
        },
        rounded: ReferenceOutput {
            out: rounded_out,
            lse: by_head().map(|index| rest[index].rounded_lse).collect(),
        },
        out_floor,
        lse_floor: by_head().map(|index| rest[index].lse_floor).collect(),
    })
}

fn check_inputs<T: Element>(
    problem: &Problem,
    q: &View<'_, T>,
    k: &View<'_, T>,
    v: &View<'_, T>,
    alibi: Option<&[f32]>,
) -> Result<()> {
    for (argument, view, expected) in [
        ("q", q, problem.q()),
        ("k", k, problem.k()),
        ("v", v, problem.v()),
    ] {
        check_tensor(problem.element(), argument, view, expected)?;
        limited("elements in a tensor", elements(expected), MAX_ELEMENTS)?;
    }
    limited("sequences", problem.batch() as u128, MAX_ELEMENTS)?;
    let work = problem.flops() as f64 / 2.0;
    if work > MAX_WORK {
        return Err(Error::TooMuchWork {
            found: work,
            limit: MAX_WORK,
        });
    }
    Ok(problem.check_alibi(alibi)?)
}

fn check_tensor<T: Element>(
    element: ElementType,
    argument: &'static str,
    view: &View<'_, T>,
    expected: &Layout,
) -> warptile::Result<()> {
    const DIMENSIONS: [&str; 4] = ["batch", "length", "heads", "head size"];
    if T::TYPE != element {
        return Err(warptile::Error::ElementMismatch {
            argument,
            expected: element,
            found: T::TYPE,
        });
    }
    let (found, expected_shape) = (view.layout.shape, expected.shape);
    if let Some(index) = (0..4).find(|&index| found[index] != expected_shape[index]) {
        return Err(warptile::Error::Mismatch {
            argument,
            dimension: DIMENSIONS[index],
            expected: expected_shape[index],
            found: found[index],
        });
    }
    if view.layout.strides != expected.strides {
        return Err(warptile::Error::StridesDiffer {
            argument,
            expected: expected.strides,
            found: view.layout.strides,
        });
    }
    // The problem has checked that its layouts reach no further than memory does.
    let needed = expected.required_len().unwrap_or(usize::MAX);
    if view.data.len() < needed {
        return Err(warptile::Error::BufferTooSmall {
            argument,
            needed,
            available: view.data.len(),
        });
    }
    Ok(())
}

fn elements(layout: &Layout) -> u128 {
    let extents = layout.shape.iter().map(|&extent| extent as u128);
    extents.product()
}

/// What is left of a number after storing it.
fn round<T: Element>(value: f64) -> f64 {
    T::from_f64(value).to_f64()
}

impl Computation<'_> {
    /// One row of one head.
    fn attend<T: Element>(&self, sequence: &Sequence, position: usize, head: usize, row: Row<'_>) {
        let problem = self.problem;
        let kv_head = head / problem.group_size();
        let visible = problem
            .mask()
            .visible(position, sequence.q_len, sequence.k_len);
        if visible.is_empty() {
            row.rest.lse = f64::NEG_INFINITY;
            row.rest.rounded_lse = f64::NEG_INFINITY;
            return;
        }
        let start = self.queries.start(sequence.entry, head)
            + (sequence.q_start + position) * problem.head_dim();
        let query = start..start + problem.head_dim();
        let first_key = sequence.k_start + visible.start;
        let keys = KeysAt {
            start: self.keys.start(sequence.entry, kv_head) + first_key,
            step: self.keys.rows,
            count: visible.len(),
        };
        let first_value =
            self.values.start(sequence.entry, kv_head) + first_key * problem.head_dim();
        let values = first_value..first_value + visible.len() * problem.head_dim();
        let biases = self.biases(sequence, position, head, visible);

        let query_f64 = &self.queries.exact[query.clone()];
        let products = keys.products(query_f64, &self.keys.exact);
        let scores = self.scores(products.iter().copied(), &biases, |x| x);
        let (probabilities, lse) = softmax(&scores);
        let values_f64 = &self.values.exact[values.clone()];
        weighted_sum(&probabilities, values_f64, row.out);
        row.rest.lse = lse;
        if !self.rounded {
            return;
        }

        let reach = self.reach(query_f64, &keys, &probabilities, &biases);
        self.floors(&probabilities, values_f64, reach, row.out, row.out_floor);
        row.rest.lse_floor = (self.units() * (1.0 + reach)) as f32;

        let products = keys.products(&self.queries.single[query], &self.keys.single);
        let products = || products.iter().map(|&product| f64::from(product));
        let single = self.scores(products(), &biases, round::<f32>);
        let (max, sum) = sum_of_exponentials(&single);
        row.rest.rounded_lse = max + f64::from(sum).ln();
        let (scores, (max, sum)) = match T::TYPE {
            ElementType::F32 => (single, (max, sum)),
            _ => {
                let scores = self.scores(products(), &biases, round::<T>);
                let sum = sum_of_exponentials(&scores);
                (scores, sum)
            }
        };
        let probabilities: Vec<f32> = scores
            .iter()
            .map(|score| round::<T>((score - max).exp() / f64::from(sum)) as f32)
            .collect();
        let mut out = vec![0.0; problem.head_dim()];
        weighted_sum(&probabilities, &self.values.single[values], &mut out);
        for (to, x) in row.rounded_out.iter_mut().zip(out) {
            *to = round::<T>(f64::from(x));
        }
    }

    /// What ALiBi subtracts from the scores of the visible keys.
    fn biases(
        &self,
        sequence: &Sequence,
        position: usize,
        head: usize,
        visible: std::ops::Range<usize>,
    ) -> Vec<f64> {
        let index = match self.problem.alibi() {
            Some(AlibiShape::PerBatchHead) => sequence.batch * self.problem.heads() + head,
            _ => head,
        };
        let slope = self.alibi.map_or(0.0, |slopes| f64::from(slopes[index]));
        let diagonal = (position + sequence.k_len) as f64 - sequence.q_len as f64;
        visible
            .map(|key| slope * (diagonal - key as f64).abs())
            .collect()
    }

    /// Scale, softcap, ALiBi, with `round` after each.
    fn scores(
        &self,
        products: impl Iterator<Item = f64>,
        biases: &[f64],
        round: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let scale = f64::from(self.problem.scale());
        let softcap = self.problem.softcap().map(f64::from);
        products
            .zip(biases)
            .map(|(product, &bias)| {
                let mut score = round(round(product) * scale);
                if let Some(cap) = softcap {
                    score = round(cap * (score / cap).tanh());
                }
                if bias != 0.0 {
                    score = round(score - bias);
                }
                score.clamp(f64::from(f32::MIN), f64::from(f32::MAX))
            })
            .collect()
    }

    /// Size of the terms that the scores of a row are summed from, in the mean over its probabilities:
    /// `|scale| |q| |k| + |bias|`, which no sum of the terms exceeds.
    fn reach(&self, query: &[f64], keys: &KeysAt, probabilities: &[f64], biases: &[f64]) -> f64 {
        let norm = query.iter().map(|x| x * x).sum::<f64>().sqrt();
        let factor = f64::from(self.problem.scale()).abs() * norm;
        let squares = keys.squares(query.len(), &self.keys.exact);
        let terms = probabilities.iter().zip(&squares).zip(biases);
        terms
            .map(|((p, square), bias)| p * (factor * square.sqrt() + bias.abs()).powi(2))
            .sum::<f64>()
            .sqrt()
    }

    /// The error of an operation in `f32`, relative to the size of what it computes, with room for a few operations.
    fn units(&self) -> f64 {
        crate::accept::factor(self.problem) * f64::from(f32::EPSILON)
    }

    /// The error to be expected of each output element even if the plain computation happens to have none.
    ///
    /// `out = sum(p v)` moves by `sum(p error(score) (v - out))`, which is at most the standard deviation of `v` under `p`
    /// times the error of the scores, about an ulp of `f32` at their [`reach`](Self::reach). The weights and the output
    /// itself are rounded to the element type: an ulp at the root mean square of `v`.
    fn floors(
        &self,
        probabilities: &[f64],
        values: &[f64],
        reach: f64,
        out: &[f64],
        floors: &mut [f32],
    ) {
        let mut squares = vec![0.0; out.len()];
        for (p, row) in probabilities.iter().zip(values.chunks_exact(out.len())) {
            for (square, v) in squares.iter_mut().zip(row) {
                *square += p * (v * v);
            }
        }
        // Beyond that, the weights may be anything.
        let score_error = (self.units() * (1.0 + reach)).min(1.0);
        for ((floor, square), out) in floors.iter_mut().zip(squares).zip(out) {
            let size = square.sqrt();
            let deviation = (square - out * out).max(0.0).sqrt();
            let error =
                ulp(self.problem.element(), size) + score_error * deviation + self.units() * size;
            *floor = error as f32;
        }
    }
}

/// The visible keys of a row in a transposed matrix.
struct KeysAt {
    start: usize,
    step: usize,
    count: usize,
}

impl KeysAt {
    /// `q.k` of every key: one product after the other, all keys side by side.
    fn products<R: Real>(&self, query: &[R], keys: &[R]) -> Vec<R> {
        let mut sums = vec![R::default(); self.count];
        for (d, &q) in query.iter().enumerate() {
            let row = &keys[self.start + d * self.step..][..self.count];
            for (sum, &k) in sums.iter_mut().zip(row) {
                *sum += q * k;
            }
        }
        sums
    }

    /// `k.k` of every key.
    fn squares(&self, head_dim: usize, keys: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        for d in 0..head_dim {
            let row = &keys[self.start + d * self.step..][..self.count];
            for (sum, &k) in sums.iter_mut().zip(row) {
                *sum += k * k;
            }
        }
        sums
    }
}

/// What products are made and summed in: `f64` or `f32`.
trait Real: Copy + Default + std::ops::AddAssign + std::ops::Mul<Output = Self> {}

impl Real for f64 {}
impl Real for f32 {}

/// Probabilities and lse.
fn softmax(scores: &[f64]) -> (Vec<f64>, f64) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    for weight in &mut weights {
        *weight /= sum;
    }
    (weights, max + sum.ln())
}

/// The largest score, and the sum of exponentials relative to it in `f32`.
fn sum_of_exponentials(scores: &[f64]) -> (f64, f32) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials = scores.iter().map(|score| (score - max).exp() as f32);
    (max, exponentials.sum())
}

/// `out += sum(p v)`, one key after the other.
fn weighted_sum<R: Real>(probabilities: &[R], values: &[R], out: &mut [R]) {
    for (&p, row) in probabilities.iter().zip(values.chunks_exact(out.len())) {
        for (out, &v) in out.iter_mut().zip(row) {
            *out += p * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warptile::Mask;

    /// One head of size 8 whose key `j` scores `scores[j]` and whose value is `j` in every place.
    fn run(
        scores: &[f32],
        edit: impl Fn(warptile::ProblemBuilder<'_>) -> warptile::ProblemBuilder<'_>,
        slopes: Option<&[f32]>,
    ) -> (f64, f64) {
        let q = Layout::bshd([1, 1, 1, 8]);
        let k = Layout::bshd([1, scores.len(), 1, 8]);
        let mut query = [0.0; 8];
        query[0] = 1.0;
        let mut keys = vec![0.0; scores.len() * 8];
        let mut values = keys.clone();
        for (j, &score) in scores.iter().enumerate() {
            keys[j * 8] = score;
            values[j * 8..][..8].fill(j as f32);
        }
        let problem = edit(Problem::builder(&q, &k, &k, f32::TYPE).scale(1.0))
            .build()
            .unwrap();
        let output = reference(
            &problem,
            View::new(&query, q),
            View::new(&keys, k),
            View::new(&values, k),
            slopes,
        )
        .unwrap();
        assert!(output.out.iter().all(|&x| x == output.out[0]));
        (output.out[0], output.lse[0])
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn softmax_by_hand() {
        let ln3 = 3.0_f32.ln();
        let (out, lse) = run(&[0.0, ln3], |b| b, None);
        assert!(close(
            out,
            f64::from(ln3).exp() / (1.0 + f64::from(ln3).exp())
        ));
        assert!((lse - 4.0_f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn softcap_is_before_alibi_and_both_before_the_mask() {
        // The query sits on key 2. Key 1 is at distance 1, key 0 out of the window.
        let (_, lse) = run(
            &[50.0, 3.0, 1.0],
            |b| {
                b.softcap(2.0)
                    .alibi(AlibiShape::PerHead)
                    .mask(Mask::window(1, 0))
            },
            Some(&[0.5]),
        );
        let expected = ((2.0 * 1.5_f64.tanh() - 0.5).exp() + (2.0 * 0.5_f64.tanh()).exp()).ln();
        assert!(close(lse, expected), "{lse} {expected}");
    }

    #[test]
    fn no_keys_give_zero_and_minus_infinity() {
        assert_eq!(run(&[], |b| b, None), (0.0, f64::NEG_INFINITY));
    }

    #[test]
    fn scale_may_be_zero_or_negative() {
        assert!(close(run(&[5.0, -5.0], |b| b.scale(0.0), None).0, 0.5));
        assert!(run(&[5.0, -5.0], |b| b.scale(-1.0), None).0 > 0.99);
    }

    #[test]
    fn rounding_to_f16_loses_what_f16_cannot_hold() {
        use half::f16;
        let q = Layout::bshd([1, 1, 1, 8]);
        let k = Layout::bshd([1, 2, 1, 8]);
        let problem = Problem::builder(&q, &k, &k, f16::TYPE)
            .scale(1000.0)
            .build()
            .unwrap();
        let more_than_one = f16::from_f32(1.0 + 1.0 / 1024.0);
        let queries = [more_than_one; 8];
        let keys = [[more_than_one; 8], [f16::ONE; 8]];
        let values = [[f16::ZERO; 8], [f16::ONE; 8]];
        let References { exact, rounded, .. } = references(
            &problem,
            View::new(&queries, q),
            View::new(keys.as_flattened(), k),
            View::new(values.as_flattened(), k),
            None,
        )
        .unwrap();
        // Scores are 8015.6 and 8007.8, between numbers of f16 that are 4 apart.
        let product = |key: f64| 8.0 * (1.0 + 1.0 / 1024.0) * key * 1000.0;
        let difference = product(1.0 + 1.0 / 1024.0) - product(1.0);
        assert!(close(exact.out[0], 1.0 / (1.0 + difference.exp())));
        let stored = f16::from_f64(1.0 / (1.0 + 8.0_f64.exp()));
        assert_eq!(rounded.out[0], f64::from(stored));
        // The lse keeps what `f32` can hold.
        assert!((rounded.lse[0] - exact.lse[0]).abs() < 1e-3);
    }

    #[test]
    fn what_would_take_forever_is_refused() {
        let q = Layout::bshd([1, 1 << 20, 64, 8]);
        let problem = Problem::builder(&q, &q, &q, f32::TYPE).build().unwrap();
        let data = vec![0.0; 1 << 29];
        let view = View::new(&data[..], q);
        let error = reference(&problem, view, view, view, None).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        let q = Layout::new([1, 1 << 20, 2, 8], [0, 0, 0, 1]);
        let out = Layout::bshd(q.shape);
        let problem = Problem::builder(&q, &q, &q, f32::TYPE)
            .out(out)
            .build()
            .unwrap();
        let view = View::new(&data[..8], q);
        let error = reference(&problem, view, view, view, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a float64 reference of 3.5e13 multiply-adds is too much; the limit is 2.7e11"
        );
    }

    #[test]
    fn a_tensor_of_another_layout_is_named() {
        let layout = Layout::bshd([1, 2, 1, 8]);
        let problem = Problem::builder(&layout, &layout, &layout, f32::TYPE)
            .build()
            .unwrap();
        let data = [0.0; 32];
        let right = View::new(&data[..], layout);
        let error = |k| {
            let error = reference(&problem, right, k, right, None).unwrap_err();
            error.to_string()
        };
        let longer = View::new(&data[..], Layout::bshd([1, 3, 1, 8]));
        assert!(error(longer).starts_with("k has length 3, but 2"));
        let strided = View::new(&data[..], Layout::new(layout.shape, [0, 16, 8, 1]));
        assert!(error(strided).starts_with("k has strides [0, 16, 8, 1], but"));
    }

    #[test]
    fn a_short_buffer_is_named() {
        let layout = Layout::bshd([1, 2, 1, 8]);
        let problem = Problem::builder(&layout, &layout, &layout, f32::TYPE)
            .build()
            .unwrap();
        let (full, short) = ([0.0; 16], [0.0; 15]);
        let full = View::new(&full[..], layout);
        let short = View::new(&short[..], layout);
        let error = reference(&problem, full, short, full, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "k needs a buffer of 16 elements for its shape and strides, but has 15"
        );
    }
}
