//! The options of attention, set one by one.

use warptile_kernels::{Features, Operand};

use super::Attention;
use crate::plan::Choice;
use crate::spec::{Mask, Scoring, Splits};

impl Default for Attention {
    fn default() -> Self {
        Self::new()
    }
}

impl Attention {
    /// Full attention with scale `1 / sqrt(head size)`, on the kernel the planner chooses.
    pub fn new() -> Self {
        Attention {
            scoring: Scoring::default(),
            numbers: Vec::new(),
            splits: Splits::Even,
            choice: Choice::Best,
            lse: true,
        }
    }

    /// The mask, the scale and the softcap at once. Options that have operands are those whose operands are given.
    pub fn scoring(mut self, mut scoring: Scoring) -> Self {
        scoring.alibi = None;
        scoring.operands = Features::empty();
        self.scoring = scoring;
        self
    }

    /// The mask that was set.
    pub fn mask_set(&self) -> Mask {
        self.scoring.mask
    }

    /// Returns true unless the lse was left out.
    pub fn wants_lse(&self) -> bool {
        self.lse
    }

    /// Returns true if there are numbers of options, such as sinks, which have one number for each head.
    pub fn has_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Returns true if numbers of this option were given.
    pub fn has(&self, option: Operand) -> bool {
        self.numbers.iter().any(|(given, _)| *given == option)
    }

    /// Which keys a query sees.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.scoring.mask = mask;
        self
    }

    /// Factor of the scores instead of `1 / sqrt(head size)`: finite, 0 and negative allowed, at most [`Scoring::MAX_SCALE`] in size.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scoring.scale = Some(scale);
        self
    }

    /// Bounds the scores: `softcap * tanh(score / softcap)`. Above 0; leave it out for no bound.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.scoring.softcap = Some(softcap);
        self
    }

    /// ALiBi: subtracts `slope * distance` from the scores, where the distance of query `i` and key `j` is
    /// `|i + key length - query length - j|`. One slope per query head, or one per batch entry and query head, those of an entry
    /// next to each other.
    pub fn alibi_slopes(self, slopes: &[f32]) -> Self {
        self.numbers(Operand::Slopes, slopes)
    }

    /// Attention sinks: one logit per query head that joins the denominator of every row, as if there were one more key with
    /// that score and the value 0. A head whose logit is minus infinity has no sink.
    pub fn sinks(self, sinks: &[f32]) -> Self {
        self.numbers(Operand::Sinks, sinks)
    }

    /// Where keys are cut into ranges that are computed apart: with [`Splits::EveryKeys`] a sequence's bits are the same in every
    /// batch.
    pub fn splits(mut self, splits: Splits) -> Self {
        self.splits = splits;
        self
    }

    /// Asks for a family, kernel or image instead of the planner's choice; `warptile info` lists them. Gradients are
    /// computed by the planner's choice unless it is one of their kernels.
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Leaves the lse out.
    pub fn without_lse(mut self) -> Self {
        self.lse = false;
        self
    }

    /// The numbers of an option by its operand, such as those of [`alibi_slopes`](Self::alibi_slopes).
    pub fn numbers(mut self, operand: Operand, numbers: &[f32]) -> Self {
        self.numbers.retain(|(other, _)| *other != operand);
        self.numbers.push((operand, numbers.into()));
        self
    }
}
