//! Pages, and the sequences that hold them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// A sequence of a [`KvCache`](crate::KvCache). No other sequence of any cache has the same id, not even after it was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(u64);

impl SequenceId {
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SequenceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a sequence has.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// In the order of its rows: as many as those need.
    pub(super) pages: Vec<i32>,
    pub(super) len: usize,
    /// How often it has given pages back: between two of these times it only takes more.
    pub(super) epoch: u64,
}

/// Every page is either free or held by one sequence.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    page_rows: usize,
    longest: usize,
    /// Given out from the back.
    free: Vec<i32>,
    sequences: HashMap<SequenceId, Held>,
}

impl Pool {
    pub(super) fn new(pages: i32, page_rows: usize, longest: usize) -> Self {
        Pool {
            page_rows,
            longest,
            free: (0..pages).rev().collect(),
            sequences: HashMap::new(),
        }
    }

    pub(super) fn free_pages(&self) -> usize {
        self.free.len()
    }

    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn allocate(&mut self) -> SequenceId {
        let id = SequenceId::fresh();
        self.sequences.insert(id, Held::default());
        id
    }

    pub(super) fn get(&self, id: SequenceId) -> Option<&Held> {
        self.sequences.get(&id)
    }

    pub(super) fn free(&mut self, id: SequenceId) -> Result<()> {
        let held = self.sequences.remove(&id).ok_or(UNKNOWN)?;
        self.free.extend(held.pages.into_iter().rev());
        Ok(())
    }

    pub(super) fn truncate(&mut self, id: SequenceId, len: usize) -> Result<()> {
        let held = self.sequences.get_mut(&id).ok_or(UNKNOWN)?;
        held.len = held.len.min(len);
        let needed = held.len.div_ceil(self.page_rows);
        if needed < held.pages.len() {
            held.epoch += 1;
            self.free.extend(held.pages.drain(needed..).rev());
        }
        Ok(())
    }

    /// Gives each sequence the pages for so many more rows, or changes nothing.
    pub(super) fn grow(&mut self, rows: &[(SequenceId, usize)]) -> Result<()> {
        let mut seen = HashSet::new();
        let mut needed = 0;
        for (index, &(id, more)) in rows.iter().enumerate() {
            let broken = |rule: String| Error::Lengths {
                argument: "rows",
                index,
                rule,
            };
            let held = self.sequences.get(&id).ok_or_else(|| {
                broken("is of a sequence that is not one of this cache, or was freed".to_owned())
            })?;
            if !seen.insert(id) {
                return Err(broken(
                    "is of a sequence that the step has already".to_owned(),
                ));
            }
            let len = held.len.saturating_add(more);
            if len > self.longest {
                return Err(broken(format!(
                    "is {more}, which makes the sequence {len} keys long; this cache was made for sequences of up to {}",
                    self.longest
                )));
            }
            needed += len.div_ceil(self.page_rows) - held.pages.len();
        }
        if needed > self.free.len() {
            return Err(Error::OutOfPages {
                needed,
                free: self.free.len(),
            });
        }
        for (id, more) in rows {
            if let Some(held) = self.sequences.get_mut(id) {
                held.len += more;
                let pages = held.len.div_ceil(self.page_rows) - held.pages.len();
                let rest = self.free.len() - pages;
                held.pages.extend(self.free.drain(rest..).rev());
            }
        }
        Ok(())
    }
}

/// The error about a sequence that is not there.
pub(super) const UNKNOWN: Error = Error::Presence {
    argument: "sequence",
    rule: "is not one of this cache, or was freed",
};
