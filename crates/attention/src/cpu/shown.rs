//! The tensors over scores, and the lists of blocks: which keys they show a row, and with which bias.

use warptile_kernels::Operand;

use crate::cpu::operands::Operands;
use crate::spec::{Call, Element, Layout};

/// The bias and the key mask of a row, from some key on.
pub(super) struct ShownKeys<'a, T> {
    bias: Option<(Bias<'a, T>, Place)>,
    mask: Option<(&'a [u8], Place)>,
    /// The blocks that the row sees, keys of a block, and the first key.
    blocks: Option<(&'a [i32], usize, usize)>,
}

/// Where the first key's element is, and the steps from one to the next. It may be behind the last element, if no key follows.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    step: usize,
}

impl Place {
    fn at(self, index: usize) -> usize {
        self.start + index * self.step
    }
}

/// The elements of a bias: of the queries' type, or of `f32`.
#[derive(Clone, Copy)]
enum Bias<'a, T> {
    AsQueries(&'a [T]),
    F32(&'a [f32]),
}

impl<'a, T: Element> Bias<'a, T> {
    fn new(call: &Call, operands: &Operands<'a, T>) -> Option<Self> {
        Some(match call.scoring().has_bias_f32() {
            true => Bias::F32(operands.get(Operand::Bias)?),
            false => Bias::AsQueries(operands.get(Operand::Bias)?),
        })
    }

    fn at(self, index: usize) -> f32 {
        match self {
            Bias::AsQueries(elements) => elements[index].to_f32(),
            Bias::F32(elements) => elements[index],
        }
    }
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
            let start = layout.offset(row.0, row.1, row.2) + first_key * step;
            Place { start, step }
        };
        let bias = call
            .layout(Operand::Bias)
            .map(place)
            .and_then(|place| Some((Bias::new(call, operands)?, place)));
        let mask = { operands.get(Operand::KeyMask) }.zip(call.layout(Operand::KeyMask).map(place));
        let blocks = call.blocks().map(|blocks| {
            let seen = blocks.of(row.0, row.2, row.1);
            (seen, blocks.lists().keys(), first_key)
        });
        ShownKeys { bias, mask, blocks }
    }

    /// The bias of the score of key `index` from the first one on; `None` if the key is hidden.
    pub(super) fn bias(&self, index: usize) -> Option<f32> {
        if let Some((mask, place)) = self.mask
            && mask[place.at(index)] == 0
        {
            return None;
        }
        if let Some((seen, keys, first)) = self.blocks {
            let block = (first + index) / keys;
            seen.binary_search_by(|&one| (one as usize).cmp(&block))
                .ok()?;
        }
        let bias = { self.bias }.map_or(0.0, |(bias, place)| bias.at(place.at(index)));
        (bias != f32::NEG_INFINITY).then_some(bias)
    }
}
