//! Two kernels timed in turn: blocks in the order A B B A.

use warptile::plan::Plan;

use super::gpu::Bench;
use crate::interrupt;

/// The number of launches of a graph is a multiple of this, so that a longer graph can have one more for each of them.
pub(crate) const LAUNCHES: usize = 50;

/// Replays of both before the first block.
const WARM_UP: usize = 1;

/// The pair of calls that is timed.
pub(crate) struct Pair<'a> {
    /// A, and B.
    pub(crate) plans: [&'a Plan; 2],
    /// Launches of a replay of each. Those of B count as many as A's: with more of them, B is slower by a known part.
    pub(crate) launches: [usize; 2],
    /// Blocks to be measured.
    pub(crate) blocks: usize,
}

/// Microseconds of one launch of A, of B twice, and of A, for each block; after Ctrl-C of fewer.
///
/// # Errors
/// An error of the device, or a problem that cannot be computed.
pub(crate) fn measure(
    bench: &mut dyn Bench,
    pair: &Pair<'_>,
) -> warptile_check::Result<Vec<[f64; 4]>> {
    let [old, new] = pair.plans;
    let old = bench.capture(old, pair.launches[0])?;
    let new = bench.capture(new, pair.launches[1])?;
    for _ in 0..WARM_UP {
        bench.time(&old)?;
        bench.time(&new)?;
    }
    let mut blocks = Vec::with_capacity(pair.blocks);
    while blocks.len() < pair.blocks && !interrupt::requested() {
        let mut block = [0.0; 4];
        for (time, replay) in block.iter_mut().zip([&old, &new, &new, &old]) {
            *time = bench.time(replay)? / pair.launches[0] as f64;
        }
        blocks.push(block);
    }
    Ok(blocks)
}
