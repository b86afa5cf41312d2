//! The predicted time of a call.

use std::fmt;
use std::ops::Range;

use warptile::Mask;

use crate::error::Result;
use crate::need::{parts, staged};
use crate::shard::RowMap;

/// How a call over several devices is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scheme {
    /// Each rank fetches the keys that its queries see, of one group of heads while another is computed.
    #[default]
    Gather,
    /// Each rank gets all rows of some heads, and gives the output's back. It needs at least as many query heads as ranks; with fewer
    /// key/value heads than ranks, several ranks get the same one. Without grouped heads and on many ranks less travels than with `Gather`.
    Heads,
}

/// A quarter of the key/value heads comes first: its copy is waited for, and the others' run while it is computed.
const FIRST_PART: usize = 4;

/// Bytes into one GPU per second over NVLink: 0.9 of what one peer copy of 512 MB reached on two H100.
const LINK: f64 = 355e9;
/// Ordering the ranks with each other, in microseconds.
const ORDERING_US: f64 = 12.0;
/// Below this gain a plan warns.
const LEAST_GAIN: f64 = 1.2;

/// The groups that `kv_heads` key/value heads are streamed in: few, as each has launches of its own, whose last tiles leave
/// multiprocessors idle.
pub(crate) fn groups(kv_heads: usize) -> Vec<Range<usize>> {
    let first = kv_heads.div_ceil(FIRST_PART);
    { [0..first, first..kv_heads].into_iter() }
        .filter(|heads| !heads.is_empty())
        .collect()
}

/// A prediction for the scheme `gather`: a model, not a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// How many groups the key/value heads are streamed in.
    pub groups: usize,
    /// One device's time in microseconds, as given.
    pub one_us: f64,
    /// The time of the slowest rank in microseconds.
    pub us: f64,
    /// The most bytes that a rank fetches from others.
    pub fetched_bytes: u64,
}

impl Expected {
    /// Predicts a call from one device's time for the whole of it. `row_bytes` are those of a key and its value, of all heads.
    ///
    /// # Errors
    /// As [`parts`].
    pub fn new(
        map: &RowMap,
        mask: Mask,
        kv_heads: usize,
        row_bytes: usize,
        one_us: f64,
    ) -> Result<Self> {
        let groups = groups(kv_heads);
        let mut pairs = Vec::new();
        let mut fetched = Vec::new();
        for rank in 0..map.ranks() {
            let parts = parts(map, rank, mask)?;
            let seen = { parts.iter() }
                .map(|part| part.mask.visible_pairs(part.local.len(), part.keys.len()));
            pairs.push(seen.sum::<u128>());
            let spans = staged(&parts);
            let pieces = spans.iter().flat_map(|span| map.pieces(span.clone()));
            let rows = pieces
                .filter(|piece| piece.rank != rank)
                .map(|piece| piece.rows.len());
            fetched.push((rows.sum::<usize>() * row_bytes) as u64);
        }
        let all = pairs.iter().sum::<u128>().max(1) as f64;
        let time = |(pairs, fetched): (&u128, &u64)| {
            let (compute, link) = (one_us * *pairs as f64 / all, *fetched as f64 / LINK * 1e6);
            let first_part = groups.first().map_or(0, Range::len);
            let first = link * first_part as f64 / kv_heads.max(1) as f64;
            ORDERING_US + first + compute.max(link - first)
        };
        Ok(Expected {
            groups: groups.len(),
            one_us,
            us: pairs.iter().zip(&fetched).map(time).fold(0.0, f64::max),
            fetched_bytes: fetched.iter().copied().max().unwrap_or(0),
        })
    }

    /// One device's time over that of all ranks.
    pub fn gain(&self) -> f64 {
        self.one_us / self.us
    }

    /// Says so where several devices gain less than 1.2.
    pub fn warning(&self) -> Option<String> {
        (self.gain() < LEAST_GAIN).then(|| {
            format!(
                "several devices are expected to gain {:.2}x of one only",
                self.gain()
            )
        })
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (groups, us, gain) = (self.groups, self.us, self.gain());
        write!(
            f,
            "gather in {groups} groups of heads: {us:.0} us expected, {gain:.2}x of one device"
        )
    }
}
