//! The sequences of a call that a step computes, where several steps share them.

use std::fmt;

use crate::plan::step::{LaunchShape, Scratch, Step};
use crate::spec::Call;

/// The sequences of a call that a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Share {
    /// All of them.
    #[default]
    All,
    /// Those whose key mask shows their first keys and no others.
    Runs,
    /// The others.
    Others,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Share::All => "all sequences",
            Share::Runs => {
                "the sequences whose key mask shows their first keys and no others, without the mask"
            }
            Share::Others => "the other sequences, with the mask",
        })
    }
}

/// Where the first step leaves its numbers in the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunScratch {
    /// Keys of the sequences that the second step computes.
    pub(crate) key_lengths: usize,
    /// Queries of those that the third one computes.
    pub(crate) other_queries: usize,
    /// Bytes in all.
    pub(crate) bytes: usize,
}

impl RunScratch {
    /// Counters from which tiles are drawn. The first step sets them: a launch of another plan that counts on a counter of 0 has another
    /// one.
    pub(crate) const RUN_COUNTER: usize = 64;
    pub(crate) const OTHER_COUNTER: usize = 128;

    /// For a number of sequences.
    pub(crate) const fn of(sequences: usize) -> Self {
        let list = sequences * size_of::<i32>();
        // Behind what other launches expect to be zero.
        let key_lengths = Scratch::PARTS_AT;
        RunScratch {
            key_lengths,
            other_queries: key_lengths + list,
            bytes: key_lengths + 2 * list,
        }
    }
}

const _: () = assert!(RunScratch::OTHER_COUNTER < Scratch::counter().bytes);

impl Step {
    /// One CTA, if there is anything to compute.
    pub(super) fn shape_of_key_runs(&self, call: &Call) -> LaunchShape {
        let grid = u32::from(call.batch() > 0 && call.query_len() > 0);
        LaunchShape {
            grid,
            tiles: grid,
            query_tiles: grid,
            heads_at_once: 1,
            side_by_side: 1,
            draws_tiles: false,
            shares_keys: false,
            splits: 1,
            workspace_bytes: RunScratch::of(call.batch()).bytes,
        }
    }

    /// The tiles of a launch that are left when each CTA, or each cluster, has taken its first one.
    pub(crate) fn tiles_to_draw(&self, shape: &LaunchShape) -> u32 {
        shape.tiles - (shape.grid / self.image.schedule.ctas_of_cluster()).min(shape.tiles)
    }
}
