//! The tensors over scores, and the lists of blocks: which keys they show a row, and with which bias.

use warptile_kernels::Operand;

use crate::cpu::operands::Operands;
use crate::spec::{Call, Element, Layout};

/// The bias and the key mask of a row, from some key on.
pub(super) struct ShownKeys<'a, T> {
    bias: Option<(&'a [T], usize)>,
    mask: Option<(&'a [u8], usize)>,
    /// The blocks that the row sees, keys of a block, and the first key.
    blocks: Option<(&'a [i32], usize, usize)>,
}

impl<'a, T: Element> ShownKeys<'a, T> {
    /// `row`: sequence, position and head.
    pub(super) fn new(
        call: &'a Call,
        operands: &Operands<'a, T>,
        row: (usize, usize, usize),
        first_key: usize,
    ) -> Self {
        let place = |layout: &Layout| {
            let step = layout.strides[3];
            (layout.offset(row.0, row.1, row.2) + first_key * step, step)
        };
        let bias = call
            .layout(Operand::Bias)
            .map(place)
            .zip(operands.get(Operand::Bias));
        let mask = call
            .layout(Operand::KeyMask)
            .map(place)
            .zip(operands.get(Operand::KeyMask));
        let blocks = call.blocks().map(|blocks| {
            let seen = blocks.of(row.0, row.2, row.1);
            (seen, blocks.lists().keys(), first_key)
        });
        ShownKeys {
            blocks,
            bias: bias.map(|((start, step), data)| (&data[start..], step)),
            mask: mask.map(|((start, step), data)| (&data[start..], step)),
        }
    }

    /// The bias of the score of key `index` from the first one on; `None` if the key is hidden.
    pub(super) fn bias(&self, index: usize) -> Option<f32> {
        if let Some((mask, step)) = self.mask
            && mask[index * step] == 0
        {
            return None;
        }
        if let Some((seen, keys, first)) = self.blocks {
            let block = (first + index) / keys;
            seen.binary_search_by(|&one| (one as usize).cmp(&block))
                .ok()?;
        }
        let bias = self
            .bias
            .map_or(0.0, |(bias, step)| bias[index * step].to_f32());
        (bias != f32::NEG_INFINITY).then_some(bias)
    }
}
