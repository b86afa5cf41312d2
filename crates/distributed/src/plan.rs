//! The predicted time of a call.

use std::fmt;
use std::ops::Range;

use warptile::Mask;
use warptile::spec::Heads;

use crate::error::Result;
use crate::heads::Share;
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

/// As [`groups`], of a backward pass: the last is short as well, because its gradients travel when nothing is left to compute.
pub(crate) fn groups_of_gradients(kv_heads: usize) -> Vec<Range<usize>> {
    let [short, all] = [kv_heads.div_ceil(FIRST_PART), kv_heads];
    let last = all.saturating_sub(short).max(short.min(all));
    { [0..short, short..last, last..all].into_iter() }
        .filter(|heads| !heads.is_empty())
        .collect()
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Gather => "gather",
            Scheme::Heads => "heads",
        })
    }
}

/// The predicted time of a call by a scheme: a model, not a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// The scheme.
    pub scheme: Scheme,
    /// How many groups the heads are computed in.
    pub groups: usize,
    /// One device's time in microseconds, as given.
    pub one_us: f64,
    /// The time of the slowest rank in microseconds.
    pub us: f64,
    /// The most bytes that a rank fetches from others.
    pub fetched_bytes: u64,
}

impl Expected {
    /// Predicts a call by the scheme from one device's time for the whole of it. An element has `size` bytes.
    ///
    /// # Errors
    /// As [`parts`]; [`Error::Argument`](crate::Error::Argument) if [`Scheme::Heads`] has more ranks than query heads.
    pub fn new(
        scheme: Scheme,
        map: &RowMap,
        mask: Mask,
        heads: Heads,
        size: usize,
        one_us: f64,
    ) -> Result<Self> {
        match scheme {
            Scheme::Gather => Self::gather(map, mask, heads, size, one_us),
            Scheme::Heads => Self::heads(map, heads, size, one_us),
        }
    }

    fn gather(map: &RowMap, mask: Mask, heads: Heads, size: usize, one_us: f64) -> Result<Self> {
        let kv_heads = heads.key_value;
        let row_bytes = kv_heads * heads.key_value_elements() * size;
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
            scheme: Scheme::Gather,
            groups: groups.len(),
            one_us,
            us: pairs.iter().zip(&fetched).map(time).fold(0.0, f64::max),
            fetched_bytes: fetched.iter().copied().max().unwrap_or(0),
        })
    }

    /// All copies are waited for: before the computation, and after it for the output's rows.
    fn heads(map: &RowMap, heads: Heads, size: usize, one_us: f64) -> Result<Self> {
        let mut expected = Expected {
            scheme: Scheme::Heads,
            groups: 1,
            one_us,
            us: 0.0,
            fetched_bytes: 0,
        };
        for (rank, share) in { Share::all(map.ranks(), heads)?.into_iter() }.enumerate() {
            let (own, queries) = (map.local_len(rank), share.queries.len());
            let row = queries * heads.dim + share.keys.len() * heads.key_value_elements();
            let output = (heads.query - queries) * heads.value_dim;
            let bytes = ((map.len() - own) * row + own * output) * size;
            let compute = one_us * queries as f64 / heads.query as f64;
            let us = 2.0 * ORDERING_US + bytes as f64 / LINK * 1e6 + compute;
            expected.us = expected.us.max(us);
            expected.fetched_bytes = expected.fetched_bytes.max(bytes as u64);
        }
        Ok(expected)
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
        let (scheme, us, gain) = (self.scheme, self.us, self.gain());
        let groups = match self.groups {
            1 => String::new(),
            groups => format!(" in {groups} groups of heads"),
        };
        write!(
            f,
            "{scheme}{groups}: {us:.0} us expected, {gain:.2}x of one device"
        )
    }
}
