//! A cache whose pages are dealt to the ranks.

use std::collections::HashMap;
use std::ops::Range;

use warptile::cache::{KvCacheBuilder, SequenceId};
use warptile::driver::Rows;
use warptile::spec::Operand;
use warptile::{Attention, Element, KvCache, Layout, Lse, Mask, Tensor};

use crate::error::{Error, OfRank, Result};
use crate::group::{Group, all_or_none};
use crate::nccl::control::FIELD;
use crate::stage::{Source, put_together};

/// A [`KvCache`] over the ranks of a group: page `p` of a sequence is with rank `p % ranks`, so each has its share of every long sequence.
/// With [`Group::cache_with_lead`] rank 0 has some more.
///
/// Keys are stored as they are given: rotate them before, by their places in their sequences.
#[derive(Debug)]
pub struct ShardedCache<'a, T: Element> {
    group: &'a Group,
    dealing: Dealing,
    /// The shares of this process's ranks.
    caches: Vec<KvCache<T>>,
    sequences: HashMap<SequenceId, Sequence>,
    step: Step,
}

#[derive(Debug)]
struct Sequence {
    /// Its parts with the ranks of this process.
    parts: Vec<SequenceId>,
    len: usize,
}

/// How the pages of a sequence are dealt to the ranks.
#[derive(Debug, Clone, Copy)]
struct Dealing {
    ranks: usize,
    page_rows: usize,
    /// How many pages are rank 0's before the others are dealt in turn.
    lead: usize,
}

impl Dealing {
    fn owner(&self, row: usize) -> usize {
        let page = row / self.page_rows;
        page.checked_sub(self.lead).map_or(0, |at| at % self.ranks)
    }

    /// How many of the first `len` rows of a sequence are with a rank.
    fn rows(&self, len: usize, rank: usize) -> usize {
        let Dealing {
            ranks, page_rows, ..
        } = *self;
        let lead = len.min(self.lead.saturating_mul(page_rows));
        let (dealt, turn) = (len - lead, page_rows * ranks);
        let last = (dealt % turn).saturating_sub(rank * page_rows);
        let own = dealt / turn * page_rows + last.min(page_rows);
        if rank == 0 { lead + own } else { own }
    }
}

/// The new rows of a step.
#[derive(Debug, Default)]
struct Step {
    /// The runs of each rank of this process among the rows of all sequences.
    runs: Vec<Vec<Range<usize>>>,
    rows: usize,
    /// The number of sequences, if each has one new row.
    single: Option<usize>,
}

impl Group {
    /// A cache whose pages are dealt to the ranks; `builder` describes the share of each. Of several processes, each makes the same calls
    /// with the same numbers of rows.
    ///
    /// # Errors
    /// [`Error::Rank`] with the rank whose share cannot be made.
    pub fn cache<T: Element>(&self, builder: &KvCacheBuilder<T>) -> Result<ShardedCache<'_, T>> {
        self.cache_with_lead(builder, 0)
    }

    /// As [`Group::cache`], where the first `rows` rows of each sequence, in whole pages, are with rank 0, and the pages behind them are dealt.
    /// Rank 0 begins a step before the others and waits for them at its end: more rows fill that time. The best number is that time over
    /// what a row takes, divided by the number of sequences in a step. Rank 0 needs that many rows more for each sequence, in pages. All ranks
    /// have these pages, as `builder` describes each share.
    ///
    /// # Errors
    /// As [`Group::cache`].
    pub fn cache_with_lead<T: Element>(
        &self,
        builder: &KvCacheBuilder<T>,
        rows: usize,
    ) -> Result<ShardedCache<'_, T>> {
        let caches = self.local_ranks().zip(self.backends());
        let caches = caches.map(|(rank, backend)| builder.clone().build(backend).of_rank(rank));
        let caches: Vec<KvCache<T>> = caches.collect::<Result<_>>()?;
        let page_rows = caches[0].page_rows();
        Ok(ShardedCache {
            group: self,
            dealing: Dealing {
                ranks: self.ranks(),
                page_rows,
                lead: rows / page_rows,
            },
            caches,
            sequences: HashMap::new(),
            step: Step::default(),
        })
    }
}

impl<T: Element> ShardedCache<'_, T> {
    /// A new sequence without rows.
    pub fn allocate(&mut self) -> SequenceId {
        let parts: Vec<_> = self.caches.iter_mut().map(KvCache::allocate).collect();
        let id = parts[0];
        self.sequences.insert(id, Sequence { parts, len: 0 });
        id
    }

    /// Gives a sequence's pages back.
    ///
    /// # Errors
    /// [`Error::Rank`] if it is not a sequence of this cache, or was freed.
    pub fn free(&mut self, sequence: SequenceId) -> Result<()> {
        let parts = self.sequences.remove(&sequence).map(|of| of.parts);
        // An unknown one is the first rank's error.
        let parts = parts.unwrap_or_else(|| vec![sequence]);
        let caches = self.caches.iter_mut().zip(parts);
        { self.group.local_ranks().zip(caches) }
            .try_for_each(|(rank, (cache, part))| cache.free(part).of_rank(rank))
    }

    /// Rows of a sequence; `None` if it is not one of this cache.
    pub fn len(&self, sequence: SequenceId) -> Option<usize> {
        self.sequences.get(&sequence).map(|of| of.len)
    }

    /// The share of each rank of this process.
    pub fn caches(&self) -> &[KvCache<T>] {
        &self.caches
    }

    /// Begins a step, in which each of these sequences gets the given number of new rows.
    ///
    /// # Errors
    /// [`Error::Rank`] as [`KvCache::step`], and [`Error::Argument`] with another process's reason; no sequence has grown then.
    pub fn step(&mut self, rows: &[(SequenceId, usize)]) -> Result<()> {
        let dealing = self.dealing;
        let local_ranks = self.group.local_ranks();
        let mut steps = vec![Vec::with_capacity(rows.len()); local_ranks.len()];
        let mut lengths = Vec::with_capacity(rows.len());
        for &(sequence, more) in rows {
            let Some(Sequence { parts, len }) = self.sequences.get(&sequence) else {
                // The first rank names it.
                steps[0].push((sequence, more));
                continue;
            };
            lengths.push((*len, more));
            let end = len.saturating_add(more);
            for ((rank, steps), part) in local_ranks.clone().zip(&mut steps).zip(parts) {
                let [before, after] = [*len, end].map(|len| dealing.rows(len, rank));
                steps.push((*part, after - before));
            }
        }
        self.step = Step::default();
        let mut stepped = Ok(());
        for (place, rank) in local_ranks.clone().enumerate() {
            stepped = self.caches[place].step(&steps[place]).of_rank(rank);
            if stepped.is_err() {
                steps.truncate(place);
                break;
            }
        }
        let Dealing {
            page_rows, lead, ..
        } = dealing;
        let call = format!(
            "a step of lengths and new rows {lengths:?}{FIELD}pages of {page_rows} rows{FIELD}a lead of {lead} pages"
        );
        let stepped = match self.group.processes() {
            Some(nccl) => nccl.agree_if(&call, stepped),
            None => stepped,
        };
        if let Err(error) = stepped {
            self.take_back(&steps);
            return Err(error);
        }
        // Only now, as all shares have the rows: before, there may be any number of runs.
        let mut runs = vec![Vec::new(); local_ranks.len()];
        let mut at = 0;
        for (sequence, more) in rows {
            let Some(Sequence { len, .. }) = self.sequences.get_mut(sequence) else {
                continue;
            };
            let end = *len + more;
            while *len < end {
                let page_end = *len - *len % dealing.page_rows + dealing.page_rows;
                let (owner, to) = (dealing.owner(*len), end.min(page_end));
                if local_ranks.contains(&owner) {
                    runs[self.group.place(owner)].push(at..at + to - *len);
                }
                at += to - *len;
                *len = to;
            }
        }
        let is_single = rows.iter().all(|(_, more)| *more == 1);
        self.step = Step {
            runs,
            rows: at,
            single: is_single.then_some(rows.len()),
        };
        Ok(())
    }

    /// Undoes the steps of the first ranks.
    fn take_back(&mut self, steps: &[Vec<(SequenceId, usize)>]) {
        for (cache, step) in self.caches.iter_mut().zip(steps) {
            for &(part, more) in step {
                // It is there, so this does not fail.
                let before = cache.len(part).map(|len| len.saturating_sub(more));
                drop(before.and_then(|before| cache.truncate(part, before)));
            }
        }
    }

    /// Writes the keys and values of the step into a layer, each row into its owner's share. They are dense, on rank 0, and
    /// `[1, rows of all sequences, heads, head size]`, or `[sequences, rows, heads, head size]` where all have as many. Of several
    /// processes each has all rows.
    ///
    /// # Errors
    /// [`Error::Argument`] without a step, and for tensors that are not the step's; [`Error::Rank`] as [`KvCache::append`].
    pub fn append(&mut self, layer: usize, k: &Tensor<T>, v: &Tensor<T>) -> Result<()> {
        self.group.refuse_capture()?;
        if self.step.runs.is_empty() {
            return self.refused("the cache has no step: `step` must succeed first".to_owned());
        }
        for (name, tensor) in [("k", k), ("v", v)] {
            let shape = tensor.shape();
            let is_dense = *tensor.layout() == Layout::bshd(shape);
            if !is_dense || shape[0] * shape[1] != self.step.rows {
                return self.refused(format!(
                    "{name} must be dense, with {} rows",
                    self.step.rows
                ));
            }
            if !tensor.backend().is_same(&self.group.backends()[0]) {
                let rank = self.group.local_ranks().start;
                return self.refused(format!("{name} must be on rank {rank}"));
            }
        }
        let (group, runs) = (self.group, &self.step.runs);
        let home = group.local_ranks().start;
        let lent = [Source::lend(home, k)?, Source::lend(home, v)?];
        let written = group.each_of(&mut self.caches, |rank, cache| {
            let own = |at: usize| {
                let source = &lent[at];
                let [_, _, heads, dim] = source.tensor.shape();
                let (row, mut to) = (heads * dim, 0);
                let copies = runs[group.place(rank)].iter().map(|run| {
                    let rows = Rows {
                        count: 1,
                        len: run.len() * row,
                        from: run.start * row,
                        from_pitch: run.len() * row,
                        to: to * row,
                        to_pitch: run.len() * row,
                    };
                    to += run.len();
                    (source, rows)
                });
                let copies: Vec<_> = copies.collect();
                let layout = Layout::bshd([1, to, heads, dim]);
                put_together(group, (rank, at), layout, copies.into_iter())?.into_tensor()
            };
            let (k, v) = (own(0)?, own(1)?);
            cache.append(layer, &k, &v)?.run()
        });
        let written = group.local_ranks().zip(written);
        let written = written.map(|(rank, written)| written.of_rank(rank));
        let written = written.collect();
        lent.into_iter().try_for_each(Source::end)?;
        written
    }

    /// Attention of a step with one new row for each sequence, `[sequences, 1, heads, head size]`, to all keys of its sequence, the new one
    /// included: each rank attends to its keys, and the results are merged on rank 0 in the order of the ranks. Of several processes each
    /// has the queries and gets the result.
    ///
    /// # Errors
    /// [`Error::Argument`] for another step, for masks that hide keys, for options with numbers for each head, which would count on every
    /// rank, and without the lse, by which results are merged; [`Error::Rank`] as [`Attention::forward`].
    pub fn attend(
        &self,
        layer: usize,
        attention: &Attention,
        q: &Tensor<T>,
    ) -> Result<(Tensor<T>, Lse)> {
        let [batch, rows, heads, _] = q.shape();
        if self.step.single != Some(batch) || rows != 1 {
            return self.refused(
                "each sequence of the step must have one new row, and q that one".to_owned(),
            );
        }
        let mask = attention.mask_set();
        if !(mask.hides_nothing() || mask == Mask::causal()) {
            return self.refused(format!(
                "{mask:?} hides keys by their places, which a rank does not have"
            ));
        }
        if attention.has_numbers() || attention.has(Operand::DropoutState) {
            return self.refused(
                "dropout and options with numbers for each head are not for a dealt cache"
                    .to_owned(),
            );
        }
        if !attention.wants_lse() {
            return self.refused(
                "the lse must not be turned off: it says how parts are merged".to_owned(),
            );
        }
        let attention = attention.clone().mask(Mask::none());
        let group = self.group;
        // Before anything is launched.
        group.refuse_capture()?;
        if group.processes().is_none() {
            let [_, of_values] = self.caches[0].dims();
            let layout = Layout::bshd([batch, rows, heads, of_values]);
            return group.merge_of_each(q, layout, |rank, q, out, lse| {
                let keys = self.caches[rank].keys(layer)?;
                attention.forward_into(q, keys, out, Some(lse)).map(drop)
            });
        }
        let rank = group.local_ranks().start;
        let compute = || attention.forward(q, self.caches[0].keys(layer)?);
        let parts = all_or_none(group, vec![compute().of_rank(rank)])?;
        let call = format!("attend to layer {layer}{FIELD}{attention:?}");
        group.merge_of(&call, &parts)
    }

    fn refused<R>(&self, rule: String) -> Result<R> {
        let rank = self.group.local_ranks().start;
        Err(Error::Argument { rank, rule })
    }
}
