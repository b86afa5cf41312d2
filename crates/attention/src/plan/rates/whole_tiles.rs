//! Few queries on many sequences of one length: where every key/value head of a sequence is one tile, and tiles fill
//! all multiprocessors, CTAs that take whole tiles read keys faster than CTAs that share them evenly. An even share
//! waits for the slowest multiprocessor; of tiles a slow one takes fewer (docs/notebook/decode.md, "Whole tiles,
//! drawn").

use warptile_kernels::{Family, Image, Schedule};

use super::Rates;
use crate::plan::DeviceProfile;
use crate::spec::Problem;

/// How a family's CTAs read whole tiles: measured at head sizes of 96 to 256 on an H200, in graphs of many launches.
/// The rates of `decode` are of graphs of few, and give 2 to 3% and some 4 us more; so that the two can be compared,
/// this is as much above what was measured.
struct Reading {
    /// Share of the memory's speed.
    of_bandwidth: f64,
    /// The cost of the last turn's tiles apart from reading, in microseconds, and that of each turn before it.
    last_us: f64,
    turn_us: f64,
}

/// Tiles of 64 rows, one for each CTA, with two CTAs on a multiprocessor.
const MMA: Reading = Reading {
    of_bandwidth: 0.99,
    last_us: 6.0,
    turn_us: 2.6,
};
/// One CTA a multiprocessor, which draws tiles; the share of the memory's speed as if stages were endless.
const WGMMA: Reading = Reading {
    of_bandwidth: 0.9915,
    last_us: 6.5,
    turn_us: 0.9,
};
/// The share of it that a ring of one stage would lose. With more stages, loads wait less for the stage that is being computed.
const OF_A_STAGE: f64 = 0.01;
/// Where rows are shorter than the tile's columns.
pub(super) const OF_SHORT_ROWS: f64 = 0.9;
/// Rows of a warpgroup, or of a tile of `mma`: in no other is there anything to compute.
pub(super) const ROWS: usize = 64;
/// How much longer reading takes, times the square of the idle share of the last turn, in which those that have a
/// tile read only a little faster.
const IDLE: f64 = 0.65;
/// Keys from which on it was measured: with fewer what a tile costs besides being read is no longer hidden.
const KEYS: usize = 512;

/// Returns true if rows of keys and of values have as many columns as the image's tiles.
pub(super) fn has_its_columns(problem: &Problem, image: &Image) -> bool {
    problem.heads().dims() == image.tiling.dims()
}

impl Rates {
    /// Time to read in whole tiles, in microseconds. `None` where the image does not do so, and where it was not measured:
    /// on GPUs other than Hopper, and with options that make scores slow. At head size 64 it is slower.
    pub(super) fn whole_tiles_us(
        &self,
        problem: &Problem,
        image: &Image,
        device: &DeviceProfile,
        turns: f64,
    ) -> Option<f64> {
        let (heads, tiling) = (problem.heads(), &image.tiling);
        let fills = has_its_columns(problem, image);
        let (query_len, key_len) = problem.typical_lengths();
        let rows = query_len * heads.group_size();
        let keys = key_len.min(problem.mask().widest(query_len, key_len) + query_len);
        let one_tile_a_head = image.schedule.has_group_tiles() || heads.group_size() == 1;
        let applies = device.major == 9
            && (96..=256).contains(&heads.dim)
            && rows <= ROWS
            && keys >= KEYS
            && one_tile_a_head
            && !problem.is_uneven()
            && problem.splits().keys().is_none()
            // Computing takes the time.
            && !problem.scoring().changes_scores();
        let (reading, of_bandwidth) = match (image.family, image.schedule) {
            (Family::Mma, Schedule::OneGroupTile) if tiling.block_m as usize == ROWS => {
                (MMA, if fills { 1.0 } else { OF_SHORT_ROWS })
            }
            (Family::Wgmma, Schedule::Persistent | Schedule::PersistentGroups)
                if fills && turns > 1.0 =>
            {
                (WGMMA, 1.0 - OF_A_STAGE / f64::from(tiling.stages))
            }
            _ => return None,
        };
        let idle = turns.ceil() / turns - 1.0;
        let longer = 1.0 + IDLE * idle * idle;
        let reading_us = self.reading_us(problem, reading.of_bandwidth * of_bandwidth) * longer;
        applies.then_some(reading_us + (turns.ceil() - 1.0) * reading.turn_us + reading.last_us)
    }
}
