//! What a core computes at a time.

use std::ops::Range;

use crate::call::Sequence;
use crate::mask::Mask;

/// The same rows of one or more query heads that share a key/value head. Rows of a block are counted head by head.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) sequence: Sequence,
    pub(super) heads: Range<usize>,
    /// Positions in the sequence, at least one.
    pub(super) positions: Range<usize>,
}

impl Task {
    /// Rows of the block.
    pub(super) fn rows(&self) -> usize {
        self.heads.len() * self.positions.len()
    }

    /// Head and position of a row of the block.
    pub(super) fn row(&self, index: usize) -> (usize, usize) {
        let count = self.positions.len();
        (
            self.heads.start + index / count,
            self.positions.start + index % count,
        )
    }

    /// The keys that any row sees. What a row sees only moves forward from position to position.
    pub(super) fn keys(&self, mask: Mask) -> Range<usize> {
        let Sequence { q_len, k_len, .. } = self.sequence;
        let visible = |position| mask.visible(position, q_len, k_len);
        visible(self.positions.start).start..visible(self.positions.end - 1).end
    }
}
