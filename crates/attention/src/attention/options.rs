//! The options of attention, set one by one.

use std::sync::Arc;

use warptile_kernels::{Features, Operand};

use super::Attention;
use crate::plan::Choice;
use crate::spec::{DropoutState, Elements, Mask, Scoring, Splits};

macro_rules! number_methods {
    ($($(#[$doc:meta])* $name:ident: $Operand:ident;)*) => {
        impl Attention {
            $($(#[$doc])*
            pub fn $name(self, $name: &[f32]) -> Self {
                self.numbers(Operand::$Operand, $name)
            })*
        }
    };
}
warptile_spec::number_options!(number_methods);

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
            d_bias: false,
        }
    }

    /// The mask, the scale, the softcap and how blocks are listed at once. Other options that have operands, dropout among them, are those
    /// whose operands are given.
    pub fn scoring(mut self, mut scoring: Scoring) -> Self {
        scoring.alibi = None;
        scoring.operands = Features::empty();
        scoring.dropout = self.scoring.dropout;
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

    /// Returns true if there are numbers of options that have one for each head.
    pub fn has_numbers(&self) -> bool {
        { self.numbers.iter() }.any(|(given, _)| *given != Operand::DropoutState)
    }

    /// Returns true if numbers of this option were given.
    pub fn has(&self, option: Operand) -> bool {
        self.numbers.iter().any(|(given, _)| *given == option)
    }

    /// The gradients that a backward pass computes of the numbers that were given, each `f32`, one for each query head. A bias is a tensor,
    /// and none of these.
    pub fn gradients_of_numbers(&self) -> impl Iterator<Item = Operand> {
        let given = |gradient: &Operand| gradient.gradient_of().is_some_and(|of| self.has(of));
        Operand::GRADIENTS.into_iter().filter(given)
    }

    /// Sets whether [`backward`](Self::backward) computes the gradient of the bias, too, which takes a pass over all scores of its own.
    /// Default: no.
    pub fn d_bias(mut self, wanted: bool) -> Self {
        self.d_bias = wanted;
        self
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

    /// Drops weights with probability `p`, from 0 to below 1 and rounded to a multiple of 2^-16, after the softmax, and divides the others
    /// by `1 - p`; the lse does not depend on it. Gradients need the same state. With a `p` of 0 all weights are kept.
    ///
    /// ```
    /// use warptile::spec::DropoutState;
    /// use warptile::{Attention, Backend};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let q = backend.tensor(&[0.0_f32; 64], [1, 8, 1, 8])?;
    /// let v = backend.tensor(&[1.0_f32; 64], [1, 8, 1, 8])?;
    /// let output = Attention::new().dropout(0.5, DropoutState::new(42, 0)).forward(&q, (&q, &v))?;
    /// // Each of eight equal weights is dropped, or counts twice.
    /// assert!(output.out.to_vec()?.iter().all(|x| (4.0 * x).fract() == 0.0 && *x <= 2.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn dropout(mut self, p: f32, state: DropoutState) -> Self {
        self.scoring.dropout = (p != 0.0).then_some(p);
        let words = bytemuck::cast_slice::<_, u32>(&state.words()).into();
        self.set(Operand::DropoutState, Some(words));
        if p == 0.0 {
            self.numbers
                .retain(|(operand, _)| *operand != Operand::DropoutState);
        }
        self
    }

    /// The options of a part of a call, whose first sequence, query head, query and key have these numbers in the whole: dropout draws the
    /// whole's mask. Queries and keys begin at multiples of [`DropoutState::ALIGNMENT`].
    pub fn of_part(mut self, first: [u32; 4]) -> Self {
        let state = { self.numbers.iter_mut() }.find(|(given, _)| *given == Operand::DropoutState);
        if let Some((_, Some(words))) = state {
            let (random, numbers) = words.split_at(DropoutState::WORDS - first.len());
            let moved = numbers
                .iter()
                .zip(first)
                .map(|(number, first)| number.wrapping_add(first));
            *words = random.iter().copied().chain(moved).collect();
        }
        self
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

    /// The numbers of an option by its operand, such as those of [`alibi_slopes`](Self::alibi_slopes). The call refuses an operand whose
    /// elements are not `f32`.
    pub fn numbers(mut self, operand: Operand, numbers: &[f32]) -> Self {
        let words: &[u32] = bytemuck::cast_slice(numbers);
        let is_float = operand.elements() == Elements::F32;
        self.set(operand, is_float.then(|| words.into()));
        self
    }

    fn set(&mut self, operand: Operand, words: Option<Arc<[u32]>>) {
        self.numbers.retain(|(other, _)| *other != operand);
        self.numbers.push((operand, words));
    }
}
