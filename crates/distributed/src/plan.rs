//! The predicted time of a call.

use std::fmt;
use std::ops::Range;

use warptile::Mask;
use warptile::spec::Heads;

use crate::error::Result;
use crate::heads::Share;
use crate::need::{Part, cut, own_keys, pairs, parts, parts_of, staged, summed};
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
    /// `Heads` among the ranks of a host, and `Gather` between hosts: each row of keys goes to a host once. Ranks that follow each other
    /// are on one host, the same number on each. Documents have a launch each.
    Hybrid {
        /// How many hosts there are.
        hosts: usize,
    },
}

/// A quarter of the key/value heads comes first: its copy is waited for, and the others' run while it is computed.
const FIRST_PART: usize = 4;

/// Bytes into one GPU per second over NVLink: 0.9 of what one peer copy of 512 MB reached on two H100.
const LINK: f64 = 355e9;
/// Those into one GPU from other hosts, where each GPU has an adapter of 400 Gbit/s: 0.9 of that. Not measured.
const HOST_LINK: f64 = 45e9;
/// Ordering the ranks with each other, in microseconds.
const ORDERING_US: f64 = 12.0;
/// Below this gain a plan warns.
const LEAST_GAIN: f64 = 1.2;

/// The groups that `kv_heads` key/value heads are streamed in: few, as each has launches of its own, whose last tiles leave
/// multiprocessors idle. Options with numbers for each head take `one_group`.
pub(crate) fn groups(kv_heads: usize, one_group: bool) -> Vec<Range<usize>> {
    let first = match one_group {
        true => kv_heads,
        false => kv_heads.div_ceil(FIRST_PART),
    };
    in_two(first, kv_heads)
}

/// As [`groups`], of a backward pass: two halves, as the first one's keys are waited for, and the last one's gradients travel when nothing is
/// left to compute. With a third group kernels take longer than that hides (docs/several-gpus.md).
pub(crate) fn groups_of_gradients(kv_heads: usize, one_group: bool) -> Vec<Range<usize>> {
    let half = match one_group {
        true => kv_heads,
        false => kv_heads.div_ceil(2),
    };
    in_two(half, kv_heads)
}

fn in_two(first: usize, all: usize) -> Vec<Range<usize>> {
    { [0..first, first..all].into_iter() }
        .filter(|heads| !heads.is_empty())
        .collect()
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Gather => f.write_str("gather"),
            Scheme::Heads => f.write_str("heads"),
            Scheme::Hybrid { hosts } => write!(f, "hybrid of {hosts} hosts"),
        }
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
    /// Predicts a call by the scheme from one device's time for the whole of it, or its gradients from one device's time for all of them.
    /// An element has `size` bytes; `has_numbers` is that of [`Attention::has_numbers`](warptile::Attention::has_numbers).
    ///
    /// # Errors
    /// As [`parts`]; [`Error::Argument`](crate::Error::Argument) if [`Scheme::Heads`] has more ranks than query heads.
    pub fn new(
        scheme: Scheme,
        map: &RowMap,
        (mask, has_numbers): (Mask, bool),
        heads: Heads,
        (size, are_gradients): (usize, bool),
        one_us: f64,
    ) -> Result<Self> {
        let sizes = [size, usize::from(are_gradients) * size_of::<f32>()];
        match scheme {
            Scheme::Gather => Self::gather(map, (mask, has_numbers), heads, sizes, one_us),
            Scheme::Heads => Self::heads(map, heads, sizes, one_us),
            Scheme::Hybrid { hosts } => Self::hybrid(map, mask, heads, hosts, sizes, one_us),
        }
    }

    /// An element of keys has the first size, and one of their gradients' shares the second: 0 if there are none.
    fn gather(
        map: &RowMap,
        (mask, has_numbers): (Mask, bool),
        heads: Heads,
        [size, of_shares]: [usize; 2],
        one_us: f64,
    ) -> Result<Self> {
        let kv_heads = heads.key_value;
        let row = kv_heads * heads.key_value_elements();
        let of_rank = |rank| parts_of(&cut(map.chunks(rank), mask), mask);
        let all_parts = (0..map.ranks()).map(of_rank).collect::<Result<Vec<_>>>()?;
        let hides_copies = |(rank, parts): (usize, &Vec<Part>)| {
            let is_own = |part: &&Part| own_keys(map, rank, part).is_some();
            2 * pairs(parts.iter().filter(is_own)) >= pairs(parts)
        };
        let len = |part: Option<&Range<usize>>| part.map_or(0, Range::len);
        // The heads of the group whose keys are waited for, and of that whose shares are.
        let (groups, first, last) = match of_shares {
            0 if all_parts.iter().enumerate().all(hides_copies) => (groups(kv_heads, true), 0, 0),
            0 => {
                let groups = groups(kv_heads, has_numbers);
                let first = len(groups.first());
                (groups, first, 0)
            }
            _ => {
                let groups = groups_of_gradients(kv_heads, has_numbers);
                let (first, last) = (len(groups.first()), len(groups.last()));
                (groups, first, last)
            }
        };
        // The bytes of keys, and of shares of their gradients, into each rank.
        let mut bytes = vec![[0; 2]; map.ranks()];
        for (rank, parts) in all_parts.iter().enumerate() {
            let spans = staged(parts);
            let others = |spans: &[Range<usize>]| {
                let pieces = spans.iter().flat_map(|span| map.pieces(span.clone()));
                let others: Vec<_> = pieces.filter(|piece| piece.rank != rank).collect();
                others
            };
            for piece in others(&spans) {
                bytes[rank][0] += piece.rows.len() * row * size;
            }
            let of_sums = summed(parts, map.ranks());
            for piece in of_sums.iter().flat_map(|spans| others(spans)) {
                bytes[piece.rank][1] += piece.rows.len() * row * of_shares;
            }
        }
        let all = pairs(all_parts.iter().flatten()).max(1) as f64;
        let time = |(parts, bytes): (&Vec<Part>, &[usize; 2])| {
            let compute = one_us * pairs(parts) as f64 / all;
            let [keys, shares] = bytes.map(|bytes| bytes as f64 / LINK * 1e6);
            let of_all = |part: usize| part as f64 / kv_heads.max(1) as f64;
            let waited_for = keys * of_all(first) + shares * of_all(last);
            ORDERING_US + waited_for + compute.max(keys + shares - waited_for)
        };
        Ok(Expected {
            scheme: Scheme::Gather,
            groups: groups.len(),
            one_us,
            us: all_parts.iter().zip(&bytes).map(time).fold(0.0, f64::max),
            fetched_bytes: bytes.iter().map(|all| all[0] + all[1]).max().unwrap_or(0) as u64,
        })
    }

    /// All copies are waited for. Sizes are those of [`gather`](Self::gather). The output's rows come back; of a backward pass the output and
    /// its gradient travel as well, and the gradients of queries, keys and values come back: where ranks share a key/value head, as shares.
    fn heads(
        map: &RowMap,
        heads: Heads,
        [size, of_shares]: [usize; 2],
        one_us: f64,
    ) -> Result<Self> {
        let (of_key, [given, back]) = (heads.key_value_elements(), travel(heads, of_shares));
        let mut expected = Expected {
            scheme: Scheme::Heads,
            groups: 1,
            one_us,
            us: 0.0,
            fetched_bytes: 0,
        };
        for (rank, share) in { Share::all(map.ranks(), heads)?.into_iter() }.enumerate() {
            let (own, queries, keys) = (map.local_len(rank), share.queries.len(), share.keys.len());
            // Of each row of others before the computation, and of each of the rank's own after it.
            let before = (queries * given + keys * of_key) * size;
            let back_of_keys = match (of_shares, heads.key_value < map.ranks()) {
                (0, _) => 0,
                (_, true) => (map.ranks() - 1) * of_key * of_shares,
                (_, false) => (heads.key_value - keys) * of_key * size,
            };
            let after = (heads.query - queries) * back * size + back_of_keys;
            let bytes = (map.len() - own) * before + own * after;
            let compute = one_us * queries as f64 / heads.query as f64;
            let us = 2.0 * ORDERING_US + bytes as f64 / LINK * 1e6 + compute;
            expected.us = expected.us.max(us);
            expected.fetched_bytes = expected.fetched_bytes.max(bytes as u64);
        }
        Ok(expected)
    }

    /// All copies are waited for. Sizes are those of [`gather`](Self::gather).
    fn hybrid(
        map: &RowMap,
        mask: Mask,
        heads: Heads,
        hosts: usize,
        [size, of_shares]: [usize; 2],
        one_us: f64,
    ) -> Result<Self> {
        let (ranks, of_hosts) = map.of_hosts(hosts)?;
        let shares = Share::all(ranks, heads)?;
        let parts = { 0..hosts }.map(|host| parts(&of_hosts, host, mask));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let pairs: Vec<_> = parts.iter().map(pairs).collect();
        let all = pairs.iter().sum::<u128>().max(1) as f64;
        let [given, back] = travel(heads, of_shares);
        // Into each rank, from its host and from others.
        let mut bytes = vec![[0; 2]; map.ranks()];
        for rank in 0..map.ranks() {
            let (host, share) = (rank / ranks, &shares[rank % ranks]);
            let (own, rows) = (map.local_len(rank), of_hosts.local_len(host));
            let others = heads.query - share.queries.len();
            bytes[rank][0] += (rows - own) * share.queries.len() * given * size;
            bytes[rank][0] += own * others * back * size;
            let spans = staged(&parts[host]);
            let pieces = spans.iter().flat_map(|span| map.pieces(span.clone()));
            for piece in pieces.filter(|piece| piece.rank != rank) {
                let elements = piece.rows.len() * share.keys.len() * heads.key_value_elements();
                let is_far = usize::from(piece.rank / ranks != host);
                bytes[rank][is_far] += elements * size;
                bytes[piece.rank][is_far] += elements * of_shares;
            }
        }
        let time = |(rank, [near, far]): (usize, &[usize; 2])| {
            let share = shares[rank % ranks].queries.len() as f64 / heads.query.max(1) as f64;
            let compute = one_us * pairs[rank / ranks] as f64 / all * share;
            let copies = (*near as f64 / LINK + *far as f64 / HOST_LINK) * 1e6;
            3.0 * ORDERING_US + copies + compute
        };
        Ok(Expected {
            scheme: Scheme::Hybrid { hosts },
            groups: 1,
            one_us,
            us: bytes.iter().enumerate().map(time).fold(0.0, f64::max),
            fetched_bytes: bytes.iter().map(|all| all[0] + all[1]).max().unwrap_or(0) as u64,
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

/// The elements of a query head's row that travel: queries, and of a backward pass the output and its gradient; and what comes back, the
/// output, or the gradients of queries.
fn travel(heads: Heads, of_shares: usize) -> [usize; 2] {
    let [dim, of_value] = heads.dims();
    match of_shares {
        0 => [dim, of_value],
        _ => [dim + 2 * of_value, dim],
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
