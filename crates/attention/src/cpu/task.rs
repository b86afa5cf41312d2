//! The unit of work of a core.

use std::ops::Range;

use warptile_kernels::tiling::Tiling;

use crate::spec::{Mask, Sequence};

/// The blocks of the CPU path.
pub(super) enum Blocks {}

impl Tiling for Blocks {
    /// The keys and values of a tile are converted once per block, so more rows cost less; fewer leave more blocks to share
    /// among cores. A multiple of every panel.
    const BLOCK_M: usize = 192;

    /// The scores of a panel of 48 queries and a tile, 24 KiB, stay in the first-level cache. A multiple of the classes of keys.
    const BLOCK_N: usize = 128;
}

/// A range of rows of one or more query heads that share a key/value head. Rows of a block are counted head by head.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) sequence: Sequence,
    pub(super) heads: Range<usize>,
    /// Positions in the sequence, at least one.
    pub(super) positions: Range<usize>,
    /// Which parts of the keys, if not all of them: those of other parts are another task's.
    pub(super) parts: Option<Range<usize>>,
}

/// Keys of a part: those between two multiples of it are added up by themselves, and then the parts, in their order. So several threads
/// may share the keys of a row without a change of its bits. A multiple of the keys of a tile.
pub(super) const PART: usize = 512;

impl Task {
    /// Rows of the block.
    pub(super) fn rows(&self) -> usize {
        self.heads.len() * self.positions.len()
    }

    /// Returns true if these are more parts of the same rows' keys.
    pub(super) fn continues(&self, other: &Task) -> bool {
        let rows = |task: &Task| (task.sequence, task.heads.start, task.positions.start);
        self.parts.is_some() && rows(self) == rows(other)
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
        let keys = visible(self.positions.start).start..visible(self.positions.end - 1).end;
        match &self.parts {
            Some(parts) => keys.start.max(parts.start * PART)..keys.end.min(parts.end * PART),
            None => keys,
        }
    }

    /// Splits the task into this many pieces at most, as even as whole parts allow.
    pub(super) fn split(&self, mask: Mask, pieces: usize) -> Vec<Task> {
        let keys = self.keys(mask);
        let parts = keys.start / PART..keys.end.div_ceil(PART);
        let pieces = pieces.min(parts.len());
        if pieces < 2 {
            return vec![self.clone()];
        }
        let place = |piece: usize| parts.start + parts.len() * piece / pieces;
        let pieces = (0..pieces).map(|piece| Task {
            parts: Some(place(piece)..place(piece + 1)),
            ..self.clone()
        });
        pieces.collect()
    }
}
