//! One row of one head: scores, their softmax and the weighted sum of the values, exactly and rounded.

use warptile::kernels::Kind;
use warptile::spec::{Call, HostInputs, Operand, ScoreTerms, Scoring, Sequence, Slots};
use warptile::{Element, ElementType, Layout};

use super::matrix::{Dense, KeysAt, weighted_sum};
use crate::rounding::round;

/// The data that all rows of a computation share.
pub(super) struct Computation<'a, T> {
    pub(super) call: &'a Call,
    pub(super) queries: Dense,
    /// Transposed.
    pub(super) keys: Dense,
    /// Euclidean norms of the keys, `[entry, head, row]`; empty unless `rounded`.
    pub(super) key_norms: Vec<f64>,
    pub(super) values: Dense,
    pub(super) options: Options<'a, T>,
    /// True if the rounded result and the floors are wanted.
    pub(super) rounded: bool,
}

/// The operands of options.
pub(super) struct Options<'a, T> {
    /// Those that are lists.
    lists: Slots<Option<&'a [f32]>>,
    bias: Option<&'a [T]>,
    bias_f32: Option<&'a [f32]>,
    key_mask: Option<&'a [u8]>,
}

impl<'a, T: Element> Options<'a, T> {
    pub(super) fn new(call: &Call, inputs: &HostInputs<'a>) -> warptile::Result<Self> {
        let is_f32 = call.scoring().has_bias_f32();
        let mut lists = Slots::default();
        for operand in Operand::of_scores().filter(|operand| operand.kind() != Kind::Scores) {
            lists[operand] = inputs.elements(operand)?;
        }
        Ok(Options {
            lists,
            bias: if is_f32 {
                None
            } else {
                inputs.elements(Operand::Bias)?
            },
            bias_f32: if is_f32 {
                inputs.elements(Operand::Bias)?
            } else {
                None
            },
            key_mask: inputs.elements(Operand::KeyMask)?,
        })
    }

    /// The gradient of the head's sink, if there is one, from a row of this lse and this product of its output with its gradient.
    pub(super) fn gradient_of_head(
        &self,
        head: usize,
        lse: f64,
        delta: f64,
    ) -> Option<HeadGradient> {
        let sink = f64::from(self.lists[Operand::Sinks]?[head]);
        let weight = (sink - lse).exp();
        Some(HeadGradient {
            operand: Operand::DSinks,
            exact: -(weight * delta),
            rounded: -(f64::from(weight as f32) * f64::from(delta as f32)),
            weight,
            reach: 1.0 + lse.abs() + sink.abs(),
        })
    }
}

/// What a row adds to the gradient of an option's number of its head.
pub(super) struct HeadGradient {
    pub(super) operand: Operand,
    pub(super) exact: f64,
    pub(super) rounded: f64,
    /// The part of the row's softmax that the number takes.
    pub(super) weight: f64,
    /// What errors of the row's numbers in `f32` are multiplied by on their way into the weight.
    pub(super) reach: f64,
}

/// Where the results of a row of a head go.
pub(super) struct Row<'a> {
    pub(super) index: usize,
    pub(super) out: &'a mut [f64],
    pub(super) rounded_out: &'a mut [f64],
    pub(super) out_floor: &'a mut [f32],
    pub(super) rest: &'a mut RowRest,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowRest {
    pub(super) lse: f64,
    pub(super) rounded_lse: f64,
    pub(super) lse_floor: f32,
}

/// The terms subtracted from or added to the dot product of a row with a key.
pub(super) struct KeyTerms {
    pub(super) terms: ScoreTerms,
    pub(super) hidden: bool,
}

impl KeyTerms {
    /// [`Scoring::score`] with `round` after each operation, and with `single` instead from ALiBi's term on. Slopes are of `f32`, and
    /// FlashAttention's plain computation does not round what they are multiplied by to 16 bits either: neighbouring scores of a far key
    /// would be 4 apart.
    #[inline(always)]
    pub(super) fn score(
        &self,
        scoring: &Scoring,
        product: f64,
        round: impl Fn(f64) -> f64,
        single: impl Fn(f64) -> f64,
    ) -> f64 {
        let terms = self.terms;
        if terms.head.slope == 0.0 {
            return scoring.score(product, &terms, round);
        }
        let score = scoring.bent(product, &terms, round);
        let slope = f64::from(terms.head.slope);
        single(single(score - slope * terms.distance) + terms.bias)
    }

    /// An upper bound on sums of a product of this size and the terms.
    #[inline(always)]
    pub(super) fn size(&self, product: f64) -> f64 {
        let ScoreTerms {
            head,
            distance,
            bias,
            ..
        } = self.terms;
        product + ((f64::from(head.slope) * distance).abs() + bias.abs())
    }
}

impl<T: Element> Computation<'_, T> {
    /// One row of one head.
    pub(super) fn attend(&self, sequence: &Sequence, position: usize, head: usize, row: Row<'_>) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.attend_by_four(sequence, position, head, row) };
        }
        self.attend_by_any(sequence, position, head, row);
    }

    /// Gives the same numbers as the plain loop, four in each vector: no multiplication is fused with an addition.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn attend_by_four(&self, sequence: &Sequence, position: usize, head: usize, row: Row<'_>) {
        self.attend_by_any(sequence, position, head, row);
    }

    /// As many numbers in a vector as the caller's instructions have.
    #[inline(always)]
    fn attend_by_any(&self, sequence: &Sequence, position: usize, head: usize, row: Row<'_>) {
        let call = self.call;
        let heads = call.heads();
        let kv_head = head / heads.group_size();
        let visible = call
            .mask()
            .visible(position, sequence.q_len, sequence.k_len);
        let sink = self.options.lists[Operand::Sinks].map(|sinks| f64::from(sinks[head]));
        let terms: Vec<KeyTerms> = visible
            .clone()
            .map(|key| self.terms(sequence, position, head, key))
            .collect();
        if terms.iter().all(|key| key.hidden) {
            row.rest.lse = sink.unwrap_or(f64::NEG_INFINITY);
            row.rest.rounded_lse = row.rest.lse;
            return;
        }
        let start =
            self.queries.start(sequence.q_entry, head) + (sequence.q_start + position) * heads.dim;
        let query = start..start + heads.dim;
        let first_key = sequence.k_start + visible.start;
        let keys = KeysAt {
            start: self.keys.start(sequence.k_entry, kv_head) + first_key,
            step: self.keys.rows,
            count: visible.len(),
        };
        let size = row.out.len();
        let first_value = self.values.start(sequence.k_entry, kv_head) + first_key * size;
        let values = first_value..first_value + visible.len() * size;

        let query_f64 = &self.queries.exact[query.clone()];
        let products = keys.products(query_f64, &self.keys.exact);
        let scores = self.scores(products.iter().copied(), &terms, |x| x, |x| x);
        let (probabilities, lse) = softmax(&scores, sink);
        let values_f64 = &self.values.exact[values.clone()];
        let kept: Option<Vec<f64>> = call.dropout().map(|dropout| {
            let row = dropout.row(sequence.batch, head, position);
            let factor = f64::from(call.dropout_factor());
            let factor = |key| if row.keeps(key) { factor } else { 0.0 };
            visible.clone().map(factor).collect()
        });
        let weights: Vec<f64> = match &kept {
            Some(kept) => probabilities
                .iter()
                .zip(kept)
                .map(|(p, factor)| p * factor)
                .collect(),
            None => probabilities.clone(),
        };
        weighted_sum(&weights, values_f64, |v| v, row.out);
        row.rest.lse = lse;
        if !self.rounded {
            return;
        }

        let first_norm =
            (sequence.k_entry * heads.key_value + kv_head) * self.keys.rows + first_key;
        let norms = &self.key_norms[first_norm..first_norm + visible.len()];
        let reach = self.reach(query_f64, norms, &probabilities, &terms);
        self.floors(&weights, values_f64, reach, row.out, row.out_floor);
        row.rest.lse_floor = (self.units() * (1.0 + reach)) as f32;

        let products = keys.products(&self.queries.single[query], &self.keys.single);
        let products = || products.iter().map(|&product| f64::from(product));
        let single = self.scores(products(), &terms, round::<f32>, round::<f32>);
        let (max, sum) = sum_of_exponentials(&single, sink);
        row.rest.rounded_lse = max + f64::from(sum).ln();
        let (scores, (max, sum)) = match T::TYPE {
            ElementType::F32 => (single, (max, sum)),
            _ => {
                let scores = self.scores(products(), &terms, round::<T>, round::<f32>);
                let sum = sum_of_exponentials(&scores, sink);
                (scores, sum)
            }
        };
        let mut probabilities: Vec<f32> = scores
            .iter()
            .map(|score| round::<T>((score - max).exp() / f64::from(sum)) as f32)
            .collect();
        for (p, factor) in probabilities.iter_mut().zip(kept.iter().flatten()) {
            *p = round::<T>(f64::from(*p) * factor) as f32;
        }
        let mut out = vec![0.0; size];
        weighted_sum(&probabilities, &self.values.single[values], |v| v, &mut out);
        for (to, x) in row.rounded_out.iter_mut().zip(out) {
            *to = round::<T>(f64::from(x));
        }
    }

    #[inline(always)]
    pub(super) fn terms(
        &self,
        sequence: &Sequence,
        position: usize,
        head: usize,
        key: usize,
    ) -> KeyTerms {
        let call = self.call;
        let scoring = call.scoring();
        let of_head = scoring.head_terms(sequence.batch, head, call.heads().query, |list| {
            self.options.lists[list]
        });
        // Bias and mask go with dense tensors only, so that rows are positions.
        let at = |layout: &Layout| {
            layout.offset(sequence.batch, position, head) + key * layout.strides[3]
        };
        let options = &self.options;
        let bias = match (call.layout(Operand::Bias), options.bias, options.bias_f32) {
            (Some(layout), Some(bias), _) => bias[at(layout)].to_f64(),
            (Some(layout), _, Some(bias)) => f64::from(bias[at(layout)]),
            _ => 0.0,
        };
        let shown = match (call.layout(Operand::KeyMask), self.options.key_mask) {
            (Some(layout), Some(mask)) => mask[at(layout)] != 0,
            _ => true,
        };
        let listed =
            { call.blocks() }.is_none_or(|blocks| blocks.show(sequence.batch, head, position, key));
        let diagonal = (position + sequence.k_len) as f64 - sequence.q_len as f64;
        KeyTerms {
            terms: ScoreTerms {
                scale: call.scale(),
                head: of_head,
                distance: (diagonal - key as f64).abs(),
                bias,
            },
            hidden: !shown || !listed || bias == f64::NEG_INFINITY,
        }
    }

    /// Scores as [`KeyTerms::score`] has them; minus infinity for hidden keys.
    #[inline(always)]
    fn scores(
        &self,
        products: impl Iterator<Item = f64>,
        terms: &[KeyTerms],
        round: impl Fn(f64) -> f64,
        single: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let scoring = self.call.scoring();
        products
            .zip(terms)
            .map(|(product, key)| match key.hidden {
                true => f64::NEG_INFINITY,
                false => key
                    .score(scoring, product, &round, &single)
                    .clamp(f64::from(f32::MIN), f64::from(f32::MAX)),
            })
            .collect()
    }
}

/// Probabilities and lse. A sink is one more term of the denominator.
#[inline(always)]
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
#[inline(always)]
fn sum_of_exponentials(scores: &[f64], sink: Option<f64>) -> (f64, f32) {
    let all = || scores.iter().copied().chain(sink);
    let max = all().fold(f64::NEG_INFINITY, f64::max);
    (max, all().map(|score| (score - max).exp() as f32).sum())
}
