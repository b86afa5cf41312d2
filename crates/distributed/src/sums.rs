//! Sums of gradients that several ranks have computed of the same keys: sent to the owner in `f32`, added in the order of the ranks, and
//! rounded once.

use std::ops::Range;

use warptile::driver::Rows;
use warptile::ops::sum_into;
use warptile::{Element, Layout, Tensor};

use crate::error::{OfRank, Result};
use crate::shards::Shards;
use crate::stage::{Copied, Source, position, put_together};

/// The ranks that add to the gradients of each row.
pub(crate) struct Routes {
    /// The rows whose keys the queries of each rank see, except in whole documents that share a call.
    seen: Vec<Vec<Range<usize>>>,
    /// The rows of each owner.
    segments: Vec<Vec<Segment>>,
}

/// Rows of an owner that the same ranks add to.
struct Segment {
    rows: Range<usize>,
    /// The first of them among the owner's rows.
    local: usize,
    from: Vec<usize>,
}

impl Routes {
    pub(crate) fn new(shards: &Shards<'_>, seen: impl Iterator<Item = Vec<Range<usize>>>) -> Self {
        let seen: Vec<_> = seen.collect();
        let mut cuts: Vec<_> = { seen.iter().flatten() }
            .flat_map(|span| [span.start, span.end])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        let of_owner = |owner| {
            let (mut segments, mut local) = (Vec::new(), 0);
            for chunk in shards.map().chunks(owner) {
                let mut start = chunk.rows.start;
                let within = cuts.iter().filter(|cut| chunk.rows.contains(cut));
                for end in within.copied().chain([chunk.rows.end]) {
                    if start < end {
                        let sees = |spans: &&Vec<Range<usize>>| {
                            spans.iter().any(|span| span.contains(&start))
                        };
                        let from = { seen.iter().enumerate() };
                        let from = from.filter(|(_, spans)| sees(spans)).map(|(rank, _)| rank);
                        segments.push(Segment {
                            rows: start..end,
                            local: local + start - chunk.rows.start,
                            from: from.collect(),
                        });
                    }
                    start = end;
                }
                local += chunk.rows.len();
            }
            segments
        };
        let segments = (0..seen.len()).map(of_owner).collect();
        Routes { seen, segments }
    }

    /// How many rows a rank adds to.
    pub(crate) fn rows(&self, rank: usize) -> usize {
        self.seen[rank].iter().map(Range::len).sum()
    }

    /// Returns true if no rank adds to some rows of an owner.
    pub(crate) fn leave_gaps(&self, owner: usize) -> bool {
        { self.segments[owner].iter() }.any(|segment| segment.from.is_empty())
    }

    /// The rows of an owner that a rank adds to, in order.
    fn between(&self, owner: usize, from: usize) -> Vec<Range<usize>> {
        { self.segments[owner].iter() }
            .filter(|segment| segment.from.contains(&from))
            .map(|segment| segment.rows.clone())
            .collect()
    }
}

/// Sums of keys and values of a group of heads, on their way to the owners.
pub(crate) struct Home<'a> {
    shards: &'a Shards<'a>,
    heads: Range<usize>,
    /// The sums of each rank, where it computed them.
    sums: &'a [[Tensor<f32>; 2]],
    lent: Vec<[Source<'a, f32>; 2]>,
    /// Copies for each owner from each rank; an owner needs none of its own.
    copied: Vec<Vec<Option<[Copied<f32>; 2]>>>,
}

impl<'a> Home<'a> {
    /// Submits the copies; kernels that are submitted from now on wait for none.
    pub(crate) fn fetch(
        shards: &'a Shards<'a>,
        routes: &Routes,
        heads: Range<usize>,
        sums: &'a [[Tensor<f32>; 2]],
    ) -> Result<Self> {
        let lend = |(rank, [dk, dv]): (usize, &'a [Tensor<f32>; 2])| {
            Ok([Source::lend(rank, dk)?, Source::lend(rank, dv)?])
        };
        let lent: Vec<_> = { sums.iter().enumerate() }
            .map(lend)
            .collect::<Result<_>>()?;
        let copied = shards.group().each(|owner| {
            let copied = (0..sums.len()).map(|from| {
                let spans = routes.between(owner, from);
                if from == owner || spans.is_empty() {
                    return Ok(None);
                }
                let [dk, dv] = &lent[from];
                let fetch = |source| fetched(shards, owner, &routes.seen[from], &spans, source);
                Ok(Some([fetch(dk)?, fetch(dv)?]))
            });
            copied.collect::<warptile::Result<Vec<_>>>().of_rank(owner)
        });
        Ok(Home {
            shards,
            heads,
            sums,
            copied: copied.into_iter().collect::<Result<_>>()?,
            lent,
        })
    }

    /// Adds the sums up.
    pub(crate) fn add_up<'t, T: Element>(
        self,
        routes: &Routes,
        to: impl Iterator<Item = &'t mut [Tensor<T>; 2]>,
    ) -> Result<()> {
        let (sums, heads) = (self.sums, &self.heads);
        let items = self.copied.into_iter().zip(to);
        let added = self.shards.group().each_of(items, |owner, (copied, to)| {
            let mut parts = Vec::new();
            for (from, copied) in copied.into_iter().enumerate() {
                parts.push(match copied {
                    Some([dk, dv]) => {
                        let spans = routes.between(owner, from);
                        Some(([dk.into_tensor()?, dv.into_tensor()?], spans))
                    }
                    None if from == owner => Some((sums[from].clone(), routes.seen[from].clone())),
                    None => None,
                });
            }
            for segment in &routes.segments[owner] {
                let local = segment.local..segment.local + segment.rows.len();
                for (of, to) in to.iter_mut().enumerate() {
                    let parts = { segment.from.iter() }.filter_map(|from| parts[*from].as_ref());
                    let parts = parts.map(|(tensors, spans)| {
                        let at = position(spans, segment.rows.start);
                        tensors[of].rows(at..at + segment.rows.len())
                    });
                    let parts = parts.collect::<warptile::Result<Vec<_>>>()?;
                    if !parts.is_empty() {
                        let parts: Vec<_> = parts.iter().collect();
                        to.with_part(local.clone(), heads.clone(), |to| sum_into(&parts, to))??;
                    }
                }
            }
            warptile::Result::Ok(())
        });
        let added = { added.into_iter().enumerate() }.map(|(rank, added)| added.of_rank(rank));
        let added = added.collect::<Result<()>>();
        self.lent.into_iter().flatten().try_for_each(Source::end)?;
        added
    }
}

/// The rows `spans` of sums that have the rows `seen`.
fn fetched(
    shards: &Shards<'_>,
    owner: usize,
    seen: &[Range<usize>],
    spans: &[Range<usize>],
    source: &Source<'_, f32>,
) -> warptile::Result<Copied<f32>> {
    let [_, all, heads, dim] = source.tensor.shape();
    let rows: usize = spans.iter().map(Range::len).sum();
    let copies = spans.iter().map(|span| {
        let rows = Rows {
            count: heads,
            len: span.len() * dim,
            from: position(seen, span.start) * dim,
            from_pitch: all * dim,
            to: position(spans, span.start) * dim,
            to_pitch: rows * dim,
        };
        (source, rows)
    });
    let layout = Layout::bhsd([1, heads, rows, dim]);
    put_together(shards.group(), owner, layout, copies)?.copied()
}

/// The gradients of sinks from all ranks, added on rank 0.
pub(crate) fn of_sinks(
    shards: &Shards<'_>,
    d_sinks: Vec<Tensor<f32>>,
) -> Result<Option<Tensor<f32>>> {
    let Some(first) = d_sinks.first() else {
        return Ok(None);
    };
    let layout = *first.layout();
    let lent = Source::lend_all(&d_sinks)?;
    let whole = Range { start: 0, end: 1 };
    let add = || {
        let parts = { lent.iter().enumerate() }.map(|(rank, source)| match rank {
            0 => Ok(source.tensor.clone()),
            _ => fetched(
                shards,
                0,
                std::slice::from_ref(&whole),
                std::slice::from_ref(&whole),
                source,
            )?
            .into_tensor(),
        });
        let parts = parts.collect::<warptile::Result<Vec<_>>>()?;
        let mut sums = shards.group().uninit(0, layout)?;
        sum_into(&parts.iter().collect::<Vec<_>>(), &mut sums)?;
        warptile::Result::Ok(sums)
    };
    let sums = add().of_rank(0);
    Source::end_all(lent)?;
    sums.map(Some)
}
