//! The definition of attention, written down naively: what every other path is compared with.

use warptile::{Call, Element, ElementType, Layout, Operands, ScoreTerms, Sequence, View};

use crate::compiled::{Compiled, cast_operands, cast_views, with_type};
use crate::error::{Error, Result, limited};
use crate::parallel;
use crate::rounding::{round, ulp};

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

/// Computes a call from its definition in `f64`, parallel over rows but otherwise naive. Scores beyond the range of `f32`
/// count as its largest finite number, which is what the fast paths can represent. A key whose bias is minus infinity is
/// hidden, as if by the key mask.
///
/// # Errors
/// [`Error::Call`] if a tensor does not fit the call, [`Error::TooLarge`] or [`Error::TooMuchWork`] if it would
/// take too much memory or time.
pub fn reference<T: Element>(
    call: &Call,
    q: View<'_, T>,
    k: View<'_, T>,
    v: View<'_, T>,
    operands: &Operands<'_, T>,
) -> Result<ReferenceOutput> {
    with_type!(U = T, {
        U::reference(call, cast_views([q, k, v]), &cast_operands(operands))
    })
}

/// Keys or values of a call that a reference reads: as they are, or copied from their pages to batch entries of their own,
/// [batch, keys, heads, head size], with zeros behind a sequence's last.
pub(crate) enum InOrder<'a, T> {
    Dense(View<'a, T>),
    Copied(Vec<T>, Layout),
}

impl<T: Element> InOrder<'_, T> {
    pub(crate) fn view(&self) -> View<'_, T> {
        match self {
            InOrder::Dense(view) => *view,
            InOrder::Copied(data, layout) => View::new(data, *layout),
        }
    }
}

/// Puts together what lies in pages, key by key as their definition says.
pub(crate) fn from_pages<'a, T: Element>(call: &Call, view: View<'a, T>) -> InOrder<'a, T> {
    let Some(pages) = call.pages() else {
        return InOrder::Dense(view);
    };
    let (heads, head_dim) = (call.kv_heads(), call.head_dim());
    let layout = Layout::bshd([call.batch(), call.key_len(), heads, head_dim]);
    let mut data = vec![T::from_f64(0.0); layout.required_len().unwrap_or(0)];
    for sequence in call.sequences() {
        for key in 0..sequence.k_len {
            // The call has checked every entry that a key needs.
            let Some(page) = pages.page(sequence.batch, key / pages.rows()) else {
                continue;
            };
            for head in 0..heads {
                let from = view.layout.offset(page, key % pages.rows(), head);
                let to = layout.offset(sequence.batch, key, head);
                data[to..to + head_dim].copy_from_slice(&view.data[from..from + head_dim]);
            }
        }
    }
    InOrder::Copied(data, layout)
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

    /// Norms of the rows of a transposed tensor.
    fn norms(&self) -> Vec<f64> {
        let mut squares = vec![0.0; self.exact.len() / self.head_dim];
        for (matrix, squares) in self
            .exact
            .chunks(self.rows.max(1) * self.head_dim)
            .zip(squares.chunks_mut(self.rows.max(1)))
        {
            for row in matrix.chunks(self.rows) {
                for (square, x) in squares.iter_mut().zip(row) {
                    *square += x * x;
                }
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }

    /// Where the matrix of an entry and head starts.
    fn start(&self, entry: usize, head: usize) -> usize {
        (entry * self.heads + head) * self.rows * self.head_dim
    }
}

/// What all rows of a computation share.
struct Computation<'a, T> {
    call: &'a Call,
    queries: Dense,
    /// Transposed.
    keys: Dense,
    /// Euclidean norms of the keys, `[entry, head, row]`; empty unless `rounded`.
    key_norms: Vec<f64>,
    values: Dense,
    operands: &'a Operands<'a, T>,
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

/// What a result is judged by; without `rounded` the exact part of it alone.
pub(crate) fn compute<T: Element>(
    call: &Call,
    [q, k, v]: [View<'_, T>; 3],
    operands: &Operands<'_, T>,
    rounded: bool,
) -> Result<References> {
    call.check_inputs(&q, &k, &v, operands)?;
    check_size(call, MAX_WORK)?;
    let put_together = [k, v].map(|view| from_pages(call, view));
    let [k, v] = &put_together;
    let (k, v) = (k.view(), v.view());
    let (heads, head_dim, rows) = (call.heads(), call.head_dim(), call.q().rows());
    let keys = Dense::copy(k, true);
    let computation = Computation {
        call,
        queries: Dense::copy(q, false),
        key_norms: match rounded {
            true => keys.norms(),
            false => Vec::new(),
        },
        keys,
        values: Dense::copy(v, false),
        operands,
        rounded,
    };
    let mut sequence_of = vec![None; call.q().batch() * rows];
    for sequence in call.sequences() {
        let start = sequence.q_entry * rows + sequence.q_start;
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
    parallel::for_each(all, call.flops() as f64 / 2.0, |row| {
        let (place, head) = (row.index / heads, row.index % heads);
        if let Some(sequence) = sequence_of[place] {
            let position = place - sequence.q_entry * rows - sequence.q_start;
            computation.attend(&sequence, position, head, row);
        }
    });

    Ok(References {
        exact: ReferenceOutput {
            out: exact,
            lse: by_head(call).map(|index| rest[index].lse).collect(),
        },
        rounded: ReferenceOutput {
            out: rounded_out,
            lse: by_head(call).map(|index| rest[index].rounded_lse).collect(),
        },
        out_floor,
        lse_floor: by_head(call).map(|index| rest[index].lse_floor).collect(),
    })
}

/// Indices of `[entry, row, head]` in the order of an lse, `[entry, head, row]`.
pub(crate) fn by_head(call: &Call) -> impl Iterator<Item = usize> {
    let [entries, heads, rows] = call.lse_shape();
    (0..entries).flat_map(move |entry| {
        (0..heads)
            .flat_map(move |head| (0..rows).map(move |row| (entry * rows + row) * heads + head))
    })
}

/// Fails if a reference of the call would take too much memory, or more than `max_work` multiply-adds.
pub(crate) fn check_size(call: &Call, max_work: f64) -> Result<()> {
    for layout in [call.q(), call.k(), call.v()] {
        limited("elements in a tensor", elements(layout), MAX_ELEMENTS)?;
    }
    limited("sequences", call.batch() as u128, MAX_ELEMENTS)?;
    if call.pages().is_some() {
        let row = call.kv_heads() as u128 * call.head_dim() as u128;
        let keys = call.batch() as u128 * call.key_len() as u128;
        limited("elements of keys in all pages", keys * row, MAX_ELEMENTS)?;
    }
    let work = call.flops() as f64 / 2.0;
    if work > max_work {
        return Err(Error::TooMuchWork {
            found: work,
            limit: max_work,
        });
    }
    Ok(())
}

fn elements(layout: &Layout) -> u128 {
    let extents = layout.shape.iter().map(|&extent| extent as u128);
    extents.product()
}

/// What is subtracted from or added to the dot product of a row with a key.
struct KeyTerms {
    terms: ScoreTerms,
    hidden: bool,
}

impl<T: Element> Computation<'_, T> {
    /// One row of one head.
    fn attend(&self, sequence: &Sequence, position: usize, head: usize, row: Row<'_>) {
        let call = self.call;
        let kv_head = head / call.group_size();
        let visible = call
            .mask()
            .visible(position, sequence.q_len, sequence.k_len);
        let sink = self.operands.sinks.map(|sinks| f64::from(sinks[head]));
        let terms: Vec<KeyTerms> = visible
            .clone()
            .map(|key| self.terms(sequence, position, head, key))
            .collect();
        if terms.iter().all(|key| key.hidden) {
            row.rest.lse = sink.unwrap_or(f64::NEG_INFINITY);
            row.rest.rounded_lse = row.rest.lse;
            return;
        }
        let start = self.queries.start(sequence.q_entry, head)
            + (sequence.q_start + position) * call.head_dim();
        let query = start..start + call.head_dim();
        let first_key = sequence.k_start + visible.start;
        let keys = KeysAt {
            start: self.keys.start(sequence.k_entry, kv_head) + first_key,
            step: self.keys.rows,
            count: visible.len(),
        };
        let first_value =
            self.values.start(sequence.k_entry, kv_head) + first_key * call.head_dim();
        let values = first_value..first_value + visible.len() * call.head_dim();

        let query_f64 = &self.queries.exact[query.clone()];
        let products = keys.products(query_f64, &self.keys.exact);
        let scores = self.scores(products.iter().copied(), &terms, |x| x);
        let (probabilities, lse) = softmax(&scores, sink);
        let values_f64 = &self.values.exact[values.clone()];
        weighted_sum(&probabilities, values_f64, row.out);
        row.rest.lse = lse;
        if !self.rounded {
            return;
        }

        let first_norm =
            (sequence.k_entry * call.kv_heads() + kv_head) * self.keys.rows + first_key;
        let norms = &self.key_norms[first_norm..first_norm + visible.len()];
        let reach = self.reach(query_f64, norms, &probabilities, &terms);
        self.floors(&probabilities, values_f64, reach, row.out, row.out_floor);
        row.rest.lse_floor = (self.units() * (1.0 + reach)) as f32;

        let products = keys.products(&self.queries.single[query], &self.keys.single);
        let products = || products.iter().map(|&product| f64::from(product));
        let single = self.scores(products(), &terms, round::<f32>);
        let (max, sum) = sum_of_exponentials(&single, sink);
        row.rest.rounded_lse = max + f64::from(sum).ln();
        let (scores, (max, sum)) = match T::TYPE {
            ElementType::F32 => (single, (max, sum)),
            _ => {
                let scores = self.scores(products(), &terms, round::<T>);
                let sum = sum_of_exponentials(&scores, sink);
                (scores, sum)
            }
        };
        let probabilities: Vec<f32> = scores
            .iter()
            .map(|score| round::<T>((score - max).exp() / f64::from(sum)) as f32)
            .collect();
        let mut out = vec![0.0; call.head_dim()];
        weighted_sum(&probabilities, &self.values.single[values], &mut out);
        for (to, x) in row.rounded_out.iter_mut().zip(out) {
            *to = round::<T>(f64::from(x));
        }
    }

    fn terms(&self, sequence: &Sequence, position: usize, head: usize, key: usize) -> KeyTerms {
        let call = self.call;
        let scoring = call.scoring();
        let slope = scoring.slope(self.operands.slopes, sequence.batch, head, call.heads());
        // Bias and mask go with dense tensors only, so that rows are positions.
        let at = |layout: &Layout| {
            layout.offset(sequence.batch, position, head) + key * layout.strides[3]
        };
        let bias = match (call.bias(), self.operands.bias) {
            (Some(layout), Some(bias)) => bias[at(layout)].to_f64(),
            _ => 0.0,
        };
        let shown = match (call.key_mask(), self.operands.key_mask) {
            (Some(layout), Some(mask)) => mask[at(layout)] != 0,
            _ => true,
        };
        let diagonal = (position + sequence.k_len) as f64 - sequence.q_len as f64;
        KeyTerms {
            terms: ScoreTerms {
                scale: call.scale(),
                slope: f64::from(slope),
                distance: (diagonal - key as f64).abs(),
                bias,
            },
            hidden: !shown || bias == f64::NEG_INFINITY,
        }
    }

    /// Scores with `round` after each operation; minus infinity for hidden keys.
    fn scores(
        &self,
        products: impl Iterator<Item = f64>,
        terms: &[KeyTerms],
        round: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let scoring = self.call.scoring();
        products
            .zip(terms)
            .map(|(product, key)| match key.hidden {
                true => f64::NEG_INFINITY,
                false => scoring
                    .score(product, &key.terms, &round)
                    .clamp(f64::from(f32::MIN), f64::from(f32::MAX)),
            })
            .collect()
    }

    /// Size of the terms that the scores of a row are summed from, in the mean over its probabilities:
    /// `|scale| |q| |k| + slope * distance + |bias|`, which no sum of the terms exceeds.
    fn reach(
        &self,
        query: &[f64],
        key_norms: &[f64],
        probabilities: &[f64],
        terms: &[KeyTerms],
    ) -> f64 {
        let norm = query.iter().map(|x| x * x).sum::<f64>().sqrt();
        let factor = f64::from(self.call.scale()).abs() * norm;
        let keys = probabilities.iter().zip(key_norms).zip(terms);
        keys.filter(|(_, key)| !key.hidden)
            .map(|((p, key_norm), KeyTerms { terms, .. })| {
                let added = (terms.slope * terms.distance).abs() + terms.bias.abs();
                p * (factor * key_norm + added).powi(2)
            })
            .sum::<f64>()
            .sqrt()
    }

    /// The error of an operation in `f32`, relative to the size of what it computes, with room for a few operations.
    fn units(&self) -> f64 {
        crate::accept::factor(self.call) * f64::from(f32::EPSILON)
    }

    /// The error to be expected of each output element even if the plain computation happens to have none.
    ///
    /// `out = sum(p v)` moves by `sum(p error(score) (v - out))`, which is at most the standard deviation of `v` under `p`
    /// times the error of the scores, about an ulp of `f32` at their [`reach`](Self::reach). The weights and the output
    /// itself are rounded to the element type: an ulp at the root mean square of `v`. A sink counts as a key of value 0.
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
                ulp(self.call.element(), size) + score_error * deviation + self.units() * size;
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
}

/// What products are made and summed in: `f64` or `f32`.
trait Real: Copy + Default + std::ops::AddAssign + std::ops::Mul<Output = Self> {}

impl Real for f64 {}
impl Real for f32 {}

/// Probabilities and lse. A sink is one more term of the denominator.
fn softmax(scores: &[f64], sink: Option<f64>) -> (Vec<f64>, f64) {
    let max = scores
        .iter()
        .copied()
        .chain(sink)
        .fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    for weight in &mut weights {
        *weight /= sum;
    }
    (weights, max + sum.ln())
}

/// The largest score, and the sum of exponentials relative to it in `f32`.
fn sum_of_exponentials(scores: &[f64], sink: Option<f64>) -> (f64, f32) {
    let all = || scores.iter().copied().chain(sink);
    let max = all().fold(f64::NEG_INFINITY, f64::max);
    (max, all().map(|score| (score - max).exp() as f32).sum())
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
    use warptile::{AlibiShape, Mask, Scoring};

    /// What one query of size 8 with the given scores of its keys gives; key `j` has the value `j` in every place.
    fn run(scores: &[f32], scoring: Scoring, operands: &Operands<'_, f32>) -> (f64, f64) {
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
        let scoring = scoring.scale(scoring.scale.unwrap_or(1.0));
        let mut builder = Call::builder(&q, &k, &k, f32::TYPE).scoring(scoring);
        let row = Layout::bshd([1, 1, 1, scores.len()]);
        if scoring.bias {
            builder = builder.bias(row);
        }
        if scoring.key_mask {
            builder = builder.key_mask(row);
        }
        let output = reference(
            &builder.build().unwrap(),
            View::new(&query, q),
            View::new(&keys, k),
            View::new(&values, k),
            operands,
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
        let (out, lse) = run(&[0.0, ln3], Scoring::new(), &Operands::none());
        let e = f64::from(ln3).exp();
        assert!(close(out, e / (1.0 + e)));
        assert!((lse - 4.0_f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn softcap_is_before_alibi_and_both_before_the_mask() {
        // The query sits on key 2. Key 1 is at distance 1, key 0 out of the window.
        let mut scoring = Scoring::new().softcap(2.0).mask(Mask::window(1, 0));
        scoring.alibi = Some(AlibiShape::PerHead);
        let (_, lse) = run(&[50.0, 3.0, 1.0], scoring, &Operands::none().slopes(&[0.5]));
        let expected = ((2.0 * 1.5_f64.tanh() - 0.5).exp() + (2.0 * 0.5_f64.tanh()).exp()).ln();
        assert!(close(lse, expected), "{lse} {expected}");
    }

    #[test]
    fn a_bias_is_added_after_the_softcap() {
        let mut scoring = Scoring::new().softcap(2.0);
        scoring.bias = true;
        let (_, lse) = run(&[3.0, 1.0], scoring, &Operands::none().bias(&[5.0, -1.0]));
        let expected =
            ((2.0 * 1.5_f64.tanh() + 5.0).exp() + (2.0 * 0.5_f64.tanh() - 1.0).exp()).ln();
        assert!(close(lse, expected), "{lse} {expected}");
    }

    #[test]
    fn hidden_keys_do_not_count_whatever_they_hold() {
        let mut masked = Scoring::new();
        masked.key_mask = true;
        let mut biased = Scoring::new();
        biased.bias = true;
        let hidden = f32::NEG_INFINITY;
        for score in [7.0, f32::NAN] {
            let scores = [1.0, score, 2.0];
            let by_mask = run(&scores, masked, &Operands::none().key_mask(&[1, 0, 255]));
            let by_bias = run(&scores, biased, &Operands::none().bias(&[0.0, hidden, 0.0]));
            let expected = (1.0_f64.exp() + 2.0_f64.exp()).ln();
            assert!(
                close(by_mask.1, expected) && by_mask == by_bias,
                "{by_mask:?} {by_bias:?}"
            );
        }
        let nothing = (0.0, f64::NEG_INFINITY);
        assert_eq!(
            run(&[1.0, 2.0], masked, &Operands::none().key_mask(&[0, 0])),
            nothing
        );
        assert_eq!(
            run(&[1.0], biased, &Operands::none().bias(&[hidden])),
            nothing
        );
    }

    #[test]
    fn a_sink_joins_the_denominator_only() {
        let mut scoring = Scoring::new();
        scoring.sinks = true;
        let sink = Operands::none().sinks(&[3.0]);
        let (out, lse) = run(&[0.0, 1.0], scoring, &sink);
        let sum = 1.0 + 1.0_f64.exp() + 3.0_f64.exp();
        assert!(close(out, 1.0_f64.exp() / sum) && close(lse, sum.ln()));
        // A row that sees no key.
        assert_eq!(run(&[], scoring, &sink), (0.0, 3.0));
        scoring.key_mask = true;
        assert_eq!(run(&[5.0], scoring, &sink.key_mask(&[0])), (0.0, 3.0));
    }

    #[test]
    fn no_keys_give_zero_and_minus_infinity() {
        let nothing = run(&[], Scoring::new(), &Operands::none());
        assert_eq!(nothing, (0.0, f64::NEG_INFINITY));
    }

    #[test]
    fn scale_may_be_zero_or_negative() {
        let out = |scale| run(&[5.0, -5.0], Scoring::new().scale(scale), &Operands::none()).0;
        assert!(close(out(0.0), 0.5));
        assert!(out(-1.0) > 0.99);
    }

    #[test]
    fn rounding_to_f16_loses_what_f16_cannot_hold() {
        use half::f16;
        let q = Layout::bshd([1, 1, 1, 8]);
        let k = Layout::bshd([1, 2, 1, 8]);
        let call = Call::builder(&q, &k, &k, f16::TYPE)
            .scoring(Scoring::new().scale(1000.0))
            .build()
            .unwrap();
        let more_than_one = f16::from_f32(1.0 + 1.0 / 1024.0);
        let queries = [more_than_one; 8];
        let keys = [[more_than_one; 8], [f16::ONE; 8]];
        let values = [[f16::ZERO; 8], [f16::ONE; 8]];
        let views = [
            View::new(&queries, q),
            View::new(keys.as_flattened(), k),
            View::new(values.as_flattened(), k),
        ];
        let References { exact, rounded, .. } =
            compute(&call, views, &Operands::none(), true).unwrap();
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
        let call = Call::builder(&q, &q, &q, f32::TYPE).build().unwrap();
        let data = vec![0.0; 1 << 29];
        let view = View::new(&data[..], q);
        let error = reference(&call, view, view, view, &Operands::none()).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
        let q = Layout::new([1, 1 << 20, 2, 8], [0, 0, 0, 1]);
        let out = Layout::bshd(q.shape);
        let call = Call::builder(&q, &q, &q, f32::TYPE)
            .out(out)
            .build()
            .unwrap();
        let view = View::new(&data[..8], q);
        let error = reference(&call, view, view, view, &Operands::none()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a float64 reference of 3.5e13 multiply-adds is too much; the limit is 2.7e11"
        );
    }

    #[test]
    fn a_tensor_of_another_layout_is_named() {
        let layout = Layout::bshd([1, 2, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, f32::TYPE)
            .build()
            .unwrap();
        let data = [0.0; 32];
        let right = View::new(&data[..], layout);
        let error = |k| {
            let error = reference(&call, right, k, right, &Operands::none()).unwrap_err();
            error.to_string()
        };
        let longer = View::new(&data[..], Layout::bshd([1, 3, 1, 8]));
        assert!(error(longer).starts_with("k has length 3, but the call has 2"));
        let strided = View::new(&data[..], Layout::new(layout.shape, [0, 16, 8, 1]));
        assert!(error(strided).starts_with("k has strides [0, 16, 8, 1], but"));
    }

    #[test]
    fn a_short_buffer_is_named() {
        let layout = Layout::bshd([1, 2, 1, 8]);
        let call = Call::builder(&layout, &layout, &layout, f32::TYPE)
            .build()
            .unwrap();
        let (full, short) = ([0.0; 16], [0.0; 15]);
        let full = View::new(&full[..], layout);
        let short = View::new(&short[..], layout);
        let error = reference(&call, full, short, full, &Operands::none()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "k needs a buffer of 16 elements for its shape and strides, but has 15"
        );
    }
}
