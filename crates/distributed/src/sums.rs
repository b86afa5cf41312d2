//! Sums of gradients that several ranks have computed of the same keys: sent to the owner in `f32`, added in the order of the ranks, and
//! rounded once.

use std::ops::Range;

use warptile::driver::Rows;
use warptile::ops::sum_into;
use warptile::spec::Merge;
use warptile::{Element, Layout, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::group::all_or_none;
use crate::shards::Shards;
use crate::stage::{Copied, Source, Staged, fetched, position, staged_rows};

/// What is added up for the gradients of each row.
pub(crate) struct Routes {
    /// In the order of the ranks.
    parts: Vec<Part>,
    /// How many rows each rank's parts take.
    rows: Vec<usize>,
    /// The rows of each owner.
    segments: Vec<Vec<Segment>>,
}

/// What queries of a rank give.
struct Part {
    rank: usize,
    /// The rows whose keys these queries see, except in whole documents that share a call.
    seen: Vec<Range<usize>>,
    /// Where the first of them lies among the rows of the rank's parts.
    first: usize,
}

impl Part {
    fn position(&self, row: usize) -> usize {
        self.first + position(&self.seen, row)
    }
}

/// Rows of an owner that the same parts add to.
struct Segment {
    rows: Range<usize>,
    /// The first of them among the owner's rows.
    local: usize,
    from: Vec<usize>,
}

/// Refuses more parts than a sum takes; `rank` is that of the sum.
pub(crate) fn check_parts(rank: usize, parts: usize) -> Result<()> {
    match parts <= Merge::MAX_PARTS {
        true => Ok(()),
        false => Err(Error::Argument {
            rank,
            rule: format!(
                "gradients would be sums of {parts} parts, and at most {} can be added",
                Merge::MAX_PARTS
            ),
        }),
    }
}

impl Routes {
    /// The rows that the parts of each rank see.
    ///
    /// # Errors
    /// As [`check_parts`], the same on all ranks.
    pub(crate) fn new(
        shards: &Shards<'_>,
        of_ranks: impl Iterator<Item = Vec<Vec<Range<usize>>>>,
    ) -> Result<Self> {
        let (mut parts, mut rows) = (Vec::new(), Vec::new());
        for (rank, of_rank) in of_ranks.enumerate() {
            let of_part = rows_of_part(&of_rank);
            rows.push(of_part * of_rank.len());
            parts.extend({ of_rank.into_iter().enumerate() }.map(|(at, seen)| Part {
                rank,
                seen,
                first: at * of_part,
            }));
        }
        let mut cuts: Vec<_> = { parts.iter().flat_map(|part| &part.seen) }
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
                        let sees =
                            |at: &usize| parts[*at].seen.iter().any(|span| span.contains(&start));
                        segments.push(Segment {
                            rows: start..end,
                            local: local + start - chunk.rows.start,
                            from: (0..parts.len()).filter(sees).collect(),
                        });
                    }
                    start = end;
                }
                local += chunk.rows.len();
            }
            segments
        };
        let segments: Vec<_> = (0..rows.len()).map(of_owner).collect();
        for (owner, segments) in segments.iter().enumerate() {
            let most = segments.iter().map(|segment| segment.from.len()).max();
            check_parts(owner, most.unwrap_or(0))?;
        }
        Ok(Routes {
            parts,
            rows,
            segments,
        })
    }

    /// Numbers for each head, which all ranks add to and rank 0 gets.
    fn of_numbers(ranks: usize) -> Self {
        let row = Range { start: 0, end: 1 };
        let mut segments: Vec<_> = (0..ranks).map(|_| Vec::new()).collect();
        segments[0].push(Segment {
            rows: row.clone(),
            local: 0,
            from: (0..ranks).collect(),
        });
        let part = |rank| Part {
            rank,
            seen: vec![row.clone()],
            first: 0,
        };
        Routes {
            parts: (0..ranks).map(part).collect(),
            rows: vec![1; ranks],
            segments,
        }
    }

    /// How many rows the parts of a rank take.
    pub(crate) fn rows(&self, rank: usize) -> usize {
        self.rows[rank]
    }

    /// Returns true if nothing is added to some rows of an owner.
    pub(crate) fn leave_gaps(&self, owner: usize) -> bool {
        { self.segments[owner].iter() }.any(|segment| segment.from.is_empty())
    }

    /// The rows of an owner that each part of other ranks adds to, and where the first of them arrives among all of these.
    pub(crate) fn arriving(&self, owner: usize) -> (Vec<Arriving>, usize) {
        let mut all = 0;
        let from = { self.parts.iter().enumerate() }.map(|(at, part)| {
            let segments = self.segments[owner].iter();
            let added = segments.filter(|segment| part.rank != owner && segment.from.contains(&at));
            let spans: Vec<_> = added.map(|segment| segment.rows.clone()).collect();
            let first = all;
            all += staged_rows(&spans);
            (spans, first)
        });
        (from.collect(), all)
    }

    /// The copies that bring an owner the rows of all other ranks.
    fn copies(&self, owner: usize, heads: usize, dim: usize) -> Vec<(usize, Rows)> {
        let (from, all) = self.arriving(owner);
        let copies = from.into_iter().zip(&self.parts);
        let copies = copies.flat_map(|((spans, first), part)| {
            let copy = |span: &Range<usize>| Rows {
                count: heads,
                len: span.len() * dim,
                from: part.position(span.start) * dim,
                from_pitch: self.rows[part.rank] * dim,
                to: (first + position(&spans, span.start)) * dim,
                to_pitch: all * dim,
            };
            let copies: Vec<_> = spans.iter().map(|span| (part.rank, copy(span))).collect();
            copies
        });
        copies.collect()
    }
}

/// How many rows each part of a rank takes.
pub(crate) fn rows_of_part(parts: &[Vec<Range<usize>>]) -> usize {
    let rows = parts.iter().map(|seen| staged_rows(seen));
    rows.max().unwrap_or(0)
}

/// The rows that a part adds to, and where the first of them arrives.
type Arriving = (Vec<Range<usize>>, usize);

/// Sums of a group of heads, on their way to the owners: of keys and of values, or of numbers.
pub(crate) struct Home<'a, const N: usize> {
    shards: &'a Shards<'a>,
    heads: Range<usize>,
    /// The sums of each rank of this process, where it computed them.
    sums: &'a [[Tensor<f32>; N]],
    lent: [Vec<Source<'a, f32>>; N],
    /// The rows that arrive at each owner of this process.
    pub(crate) copied: Vec<[Copied<f32>; N]>,
}

impl<'a, const N: usize> Home<'a, N> {
    /// Submits the copies; kernels that are submitted from now on wait for none.
    pub(crate) fn fetch(
        shards: &'a Shards<'a>,
        routes: &Routes,
        heads: Range<usize>,
        sums: &'a [[Tensor<f32>; N]],
    ) -> Result<Self> {
        let group = shards.group();
        let mut lent = [(); N].map(|()| Vec::new());
        for (rank, sums) in group.local_ranks().zip(sums) {
            for (lent, sums) in lent.iter_mut().zip(sums) {
                lent.push(Source::lend(rank, sums)?);
            }
        }
        let copied = group.each(|owner| {
            let shapes = sums[0].each_ref().map(Tensor::shape);
            let (_, rows) = routes.arriving(owner);
            let layouts = shapes.map(|[_, _, heads, dim]| Layout::bhsd([1, heads, rows, dim]));
            let copies = |of: usize, owner| {
                let [_, _, heads, dim] = shapes[of];
                routes.copies(owner, heads, dim)
            };
            let from = lent.each_ref().map(|lent| &lent[..]);
            let mut fetched = fetched(group, owner, from, layouts, copies)?;
            { fetched.iter_mut() }
                .try_for_each(Staged::copy_own)
                .of_rank(owner)?;
            Ok(fetched.map(|staged| staged.tensor))
        });
        Ok(Home {
            shards,
            heads,
            sums,
            copied: all_or_none(group, copied)?,
            lent,
        })
    }

    /// Adds the sums up.
    pub(crate) fn add_up<'t, T: Element>(
        self,
        routes: &Routes,
        to: impl Iterator<Item = &'t mut [Tensor<T>; N]>,
    ) -> Result<()> {
        let (group, heads) = (self.shards.group(), &self.heads);
        let items = { self.copied.into_iter().zip(self.sums) }.zip(to);
        let added = group.each_of(items, |owner, ((copied, own), to)| {
            let add = || {
                let (from, _) = routes.arriving(owner);
                for ((copied, own), to) in copied.into_iter().zip(own).zip(to) {
                    let copied = copied.into_tensor()?;
                    for segment in &routes.segments[owner] {
                        let rows = segment.rows.len();
                        let part = |at: &usize| match &routes.parts[*at] {
                            part if part.rank == owner => {
                                let at = part.position(segment.rows.start);
                                own.rows(at..at + rows)
                            }
                            _ => {
                                let (spans, first) = &from[*at];
                                let at = first + position(spans, segment.rows.start);
                                copied.rows(at..at + rows)
                            }
                        };
                        let parts = segment.from.iter().map(part);
                        let parts = parts.collect::<warptile::Result<Vec<_>>>()?;
                        if !parts.is_empty() {
                            let parts: Vec<_> = parts.iter().collect();
                            let local = segment.local..segment.local + rows;
                            to.with_part(local, heads.clone(), |to| sum_into(&parts, to))??;
                        }
                    }
                }
                warptile::Result::Ok(())
            };
            add().of_rank(owner)
        });
        let added = all_or_none(group, added);
        self.lent.into_iter().try_for_each(Source::end_all)?;
        added.map(drop)
    }
}

/// Gradients of numbers for each head from all ranks, added on rank 0; `None` in a process that does not have it.
pub(crate) fn of_numbers(
    shards: &Shards<'_>,
    of_ranks: impl Iterator<Item = Tensor<f32>>,
) -> Result<Option<Tensor<f32>>> {
    let of_ranks: Vec<_> = of_ranks.map(|numbers| [numbers]).collect();
    let (group, layout) = (shards.group(), *of_ranks[0][0].layout());
    let routes = Routes::of_numbers(group.ranks());
    let home = Home::fetch(shards, &routes, 0..layout.shape[2], &of_ranks)?;
    let sums =
        { group.local_ranks() }.map(|rank| Ok([group.uninit(rank, layout).of_rank(rank)?]));
    let mut sums = sums.collect::<Result<Vec<_>>>()?;
    home.add_up(&routes, sums.iter_mut())?;
    let first = { sums.into_iter().next() }.filter(|_| group.local_ranks().start == 0);
    Ok(first.map(|[numbers]| numbers))
}
