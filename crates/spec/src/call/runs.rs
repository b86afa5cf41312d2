//! A call with a padding mask as the two calls that it is made of: of the sequences whose mask shows their first keys and no others,
//! and of the others. On a GPU it is found on the device which is which.

use crate::{Call, Diagonal, Features, Layout, Numbers, Operand, Problem};

impl Call {
    /// What a key mask is the same for: all queries of a head, and all heads, too. Neither without one.
    pub(crate) fn mask_is_same(&self) -> [bool; 2] {
        let is_same = |mask: &Layout, dims: &[usize]| {
            { dims.iter() }.all(|&d| mask.shape[d] <= 1 || mask.strides[d] == 0)
        };
        [&[1][..], &[1, 2]].map(|dims| {
            let mask = self.layout(Operand::KeyMask);
            mask.is_some_and(|mask| is_same(mask, dims))
        })
    }

    /// This call without the key mask, with lengths of keys on the device. A diagonal stays where it is.
    #[must_use]
    pub fn of_runs(&self) -> Call {
        let mut call = self.clone();
        call.terms.layouts[Operand::KeyMask as usize] = None;
        let scoring = &mut call.terms.scoring;
        scoring.operands = scoring.operands - Features::KEY_MASK;
        let mask = &mut scoring.mask;
        mask.diagonal = Diagonal::At(mask.diagonal.offset(self.query_len(), self.key_len()) as i32);
        call.keys.used = Numbers::Device(());
        call
    }

    /// This call with lengths of queries on the device.
    #[must_use]
    pub fn of_others(&self) -> Call {
        let mut call = self.clone();
        call.queries.used = Numbers::Device(());
        call
    }
}

impl Features {
    /// Returns true for an image that hides the same keys from all queries: it takes a key mask and no bias.
    pub const fn hide_keys_alone(self) -> bool {
        self.contains(Features::KEY_MASK) && !self.contains(Features::BIAS)
    }

    /// The features that an image with these has for a problem.
    pub fn of_use_for(self, problem: &Problem) -> Self {
        match self.hide_keys_alone() && !problem.mask_is_same()[0] {
            true => self - Features::KEY_MASK,
            false => self,
        }
    }
}
