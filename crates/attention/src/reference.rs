//! The definition of attention, written down naively: what every other path is held against.

use std::marker::PhantomData;
use std::ops::{AddAssign, Mul};

use rayon::prelude::*;

use crate::element::Element;
use crate::error::Result;
use crate::layout::View;
use crate::problem::{Problem, Sequence};

/// What attention is, in `f64`.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceOutput {
    /// Dense `[batch, length, heads, head size]`, whatever the problem's output layout; packed: `[rows, heads, head size]`.
    /// Rows that belong to no sequence are 0.
    pub out: Vec<f64>,
    /// `[batch, heads, length]`; packed: `[heads, rows]`. Rows that belong to no sequence are 0.
    pub lse: Vec<f64>,
}

/// Computes a problem from its definition in `f64`, parallel over rows but otherwise naive. Scores beyond the range of
/// `f32` count as its largest finite number, which is what the fast paths can represent.
///
/// # Errors
/// A buffer shorter than its layout, or slopes that don't fit the problem.
pub fn reference<T: Element>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
) -> Result<ReferenceOutput> {
    compute::<T, Exact>(problem, q, k, v, alibi)
}

/// Computes the same without fusing anything, in the element type: sums in `f32`, but scores, probabilities and output
/// each rounded to `T` as they would be between three separate kernels. How far this is from [`reference()`] tells what
/// error is natural for the type; see [`accept`](crate::accept).
///
/// # Errors
/// As [`reference()`].
pub fn reference_rounded<T: Element>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
) -> Result<ReferenceOutput> {
    compute::<T, InElement<T>>(problem, q, k, v, alibi)
}

/// The arithmetic a reference is computed in.
trait Arithmetic: Sync {
    /// What products are made and summed in.
    type Real: Copy + Default + Send + Sync + Into<f64> + AddAssign + Mul<Output = Self::Real>;
    fn real(value: f64) -> Self::Real;
    fn dot(a: &[Self::Real], b: &[Self::Real]) -> f64;
    /// What is left of an intermediate result after storing it.
    fn round(value: f64) -> f64;
}

struct Exact;

impl Arithmetic for Exact {
    type Real = f64;

    fn real(value: f64) -> f64 {
        value
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        dot_in_lanes(a, b)
    }

    fn round(value: f64) -> f64 {
        value
    }
}

struct InElement<T>(PhantomData<T>);

impl<T: Element> Arithmetic for InElement<T> {
    type Real = f32;

    fn real(value: f64) -> f32 {
        value as f32
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        dot_in_order(a, b)
    }

    fn round(value: f64) -> f64 {
        T::from_f64(value).to_f64()
    }
}

/// A tensor copied to `[entry, head, row, head size]`.
struct Dense<R> {
    data: Vec<R>,
    rows: usize,
    heads: usize,
    head_dim: usize,
}

impl<R: Copy> Dense<R> {
    fn copy<T: Element, A: Arithmetic<Real = R>>(view: View<'_, T>) -> Self {
        let [entries, rows, heads, head_dim] = view.layout.shape;
        let mut data = Vec::with_capacity(entries * rows * heads * head_dim);
        for entry in 0..entries {
            for head in 0..heads {
                for row in 0..rows {
                    let row = view.row(entry, row, head).iter();
                    data.extend(row.map(|x| A::real(x.to_f64())));
                }
            }
        }
        Dense {
            data,
            rows,
            heads,
            head_dim,
        }
    }

    fn row(&self, entry: usize, row: usize, head: usize) -> &[R] {
        let start = ((entry * self.heads + head) * self.rows + row) * self.head_dim;
        &self.data[start..start + self.head_dim]
    }
}

fn compute<T: Element, A: Arithmetic>(
    problem: &Problem,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    alibi: Option<&[f32]>,
) -> Result<ReferenceOutput> {
    problem.check_inputs(&q, &k, &v, alibi)?;
    let (heads, head_dim, rows) = (problem.heads(), problem.head_dim(), problem.q().rows());
    let queries = Dense::copy::<T, A>(q);
    let keys = Dense::copy::<T, A>(k);
    let values = Dense::copy::<T, A>(v);

    let tasks: Vec<(Sequence, usize, usize)> = problem
        .sequences()
        .flat_map(|sequence| {
            (0..sequence.q_len)
                .flat_map(move |row| (0..heads).map(move |head| (sequence, row, head)))
        })
        .collect();
    let results: Vec<(Vec<f64>, f64)> = tasks
        .par_iter()
        .map(|&(sequence, row, head)| {
            let kv_head = head / problem.group_size();
            let visible = problem.mask().visible(row, sequence.q_len, sequence.k_len);
            let query = queries.row(sequence.entry, sequence.q_start + row, head);
            let slope = f64::from(problem.slope(alibi, sequence.batch, head));
            let diagonal = (row + sequence.k_len) as f64 - sequence.q_len as f64;
            let scores: Vec<f64> = visible
                .clone()
                .map(|key| {
                    let product = A::dot(
                        query,
                        keys.row(sequence.entry, sequence.k_start + key, kv_head),
                    );
                    let distance = (diagonal - key as f64).abs();
                    score::<A>(problem, product, slope * distance)
                })
                .collect();
            let value = |key: usize| {
                values.row(
                    sequence.entry,
                    sequence.k_start + visible.start + key,
                    kv_head,
                )
            };
            attend::<A>(&scores, head_dim, value)
        })
        .collect();

    let mut output = ReferenceOutput {
        out: vec![0.0; problem.q().batch() * rows * heads * head_dim],
        lse: vec![0.0; problem.lse_len()],
    };
    for (&(sequence, row, head), (out, lse)) in tasks.iter().zip(results) {
        let index = (sequence.entry * rows + sequence.q_start + row) * heads + head;
        output.out[index * head_dim..][..head_dim].copy_from_slice(&out);
        output.lse[problem.lse_offset(&sequence, head) + row] = lse;
    }
    Ok(output)
}

/// Scale, softcap, ALiBi.
fn score<A: Arithmetic>(problem: &Problem, product: f64, bias: f64) -> f64 {
    let mut score = A::round(A::round(product) * f64::from(problem.scale()));
    if let Some(cap) = problem.softcap().map(f64::from) {
        score = A::round(cap * (score / cap).tanh());
    }
    if bias != 0.0 {
        score = A::round(score - bias);
    }
    score.clamp(f64::from(f32::MIN), f64::from(f32::MAX))
}

/// Softmax of the visible scores, then the weighted sum of the values.
fn attend<'a, A: Arithmetic>(
    scores: &[f64],
    head_dim: usize,
    value: impl Fn(usize) -> &'a [A::Real],
) -> (Vec<f64>, f64)
where
    A::Real: 'a,
{
    if scores.is_empty() {
        return (vec![0.0; head_dim], f64::NEG_INFINITY);
    }
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = A::Real::default();
    for score in scores {
        sum += A::real((score - max).exp());
    }
    let sum: f64 = sum.into();
    let mut out = vec![A::Real::default(); head_dim];
    for (key, score) in scores.iter().enumerate() {
        let probability = A::real(A::round((score - max).exp() / sum));
        for (out, &value) in out.iter_mut().zip(value(key)) {
            *out += probability * value;
        }
    }
    let out = out.into_iter().map(|x| A::round(x.into())).collect();
    (out, max + sum.ln())
}

/// In 8 partial sums, which vectorises; a head size is a multiple of 8.
fn dot_in_lanes(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.into_iter().sum()
}

/// One product after the other.
fn dot_in_order(a: &[f32], b: &[f32]) -> f64 {
    f64::from(a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlibiShape, Layout, Mask};

    /// One head of size 8 whose key `j` scores `scores[j]` and whose value is `j` in every place.
    fn run(
        scores: &[f32],
        edit: impl Fn(crate::ProblemBuilder<'_>) -> crate::ProblemBuilder<'_>,
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
        let layout = Layout::bshd([1, 1, 1, 8]);
        let problem = Problem::builder(&layout, &layout, &layout, half::f16::TYPE)
            .scale(1.0)
            .build()
            .unwrap();
        let ones = [half::f16::from_f32(1.0 + 1.0 / 1024.0); 8];
        let view = View::new(&ones[..], layout);
        let exact = reference(&problem, view, view, view, None).unwrap();
        let rounded = reference_rounded(&problem, view, view, view, None).unwrap();
        assert_eq!(exact.lse[0], 8.0 * (1.0 + 1.0 / 1024.0_f64).powi(2));
        assert_eq!(rounded.lse[0], 8.0 + 1.0 / 64.0);
        assert_eq!(exact.out, rounded.out);
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
