//! A call with a padding mask as the two calls that it is made of: of the sequences whose mask shows their first keys and no others,
//! and of the others. On a GPU it is found on the device which is which.

use crate::{Call, Diagonal, Features, Layout, Numbers, Operand};

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
        call.given &= !(1 << Operand::KeyMask as u64);
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
