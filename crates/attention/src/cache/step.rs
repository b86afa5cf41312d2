//! The present step of a cache: which sequences it has, and the numbers that kernels read.

use std::ops::Range;
use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice, Staging};

use crate::backend::{Backend, Place};
use crate::cache::pool::{Pool, SequenceId};
use crate::error::Result;
use crate::spec::{Invalid, Layout};

/// The entry of a table for a missing page: rows written there are dropped.
const NO_PAGE: i32 = -1;

/// The rule that tensors break before the first step.
pub(super) const NO_STEP: &str = "has rows, but the cache is in no step";

#[derive(Debug)]
pub(super) struct Step {
    /// Sequences that a step can have, and pages that each can have.
    most: usize,
    columns: usize,
    /// Rows that a sequence can have.
    longest: usize,
    /// Sequences of the present step, empty places included.
    batch: usize,
    /// True from the first step on.
    is_set: bool,
    /// True if all places are empty.
    vacant: bool,
    /// New rows of each sequence, if all have the same number.
    rows_each: Option<usize>,
    /// Where the new rows of each sequence begin among those of all, and where the last end.
    offsets: Vec<i32>,
    /// For `most` sequences each: rows before the step, rows after it, numbers of pages.
    numbers: Vec<i32>,
    /// The contents of the table at each place.
    rows: Vec<Row>,
    device: Option<OnDevice>,
}

/// The contents of a row of the table.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// The sequence that owns the pages, and the [epoch](crate::cache::pool::Held::epoch) at which they were read.
    owner: Option<(SequenceId, u64)>,
    /// Entries that may be pages.
    pages: usize,
}

/// The table's numbers on the device, always at one address.
#[derive(Debug)]
struct OnDevice {
    numbers: DeviceBuffer<i32>,
    staging: Arc<Staging>,
}

impl OnDevice {
    /// Sends what has changed of the numbers, in ascending order, by few copies: without a wait.
    fn send(&mut self, numbers: &[i32], changed: &[Range<usize>]) -> Result<()> {
        /// Gaps up to this length are copied along, which takes no longer than one more copy.
        const GAP: usize = 4096;
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for range in changed.iter().filter(|range| !range.is_empty()) {
            match pieces.last_mut() {
                Some(last) if range.start - last.end <= GAP => last.end = range.end,
                _ => pieces.push(range.clone()),
            }
        }
        for piece in pieces {
            let mut to = self.numbers.slice_mut(piece.clone())?;
            self.staging.copy_into(&numbers[piece], &mut to)?;
        }
        Ok(())
    }
}

/// How the rows of a step lie in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `[sequences, rows, heads, head size]`.
    Dense,
    /// `[1, rows of all sequences, heads, head size]`.
    Packed,
}

impl Step {
    pub(super) fn new(
        backend: &Backend,
        most: usize,
        columns: usize,
        longest: usize,
    ) -> Result<Self> {
        let mut numbers = crate::tensor::zeros("sequences", most.saturating_mul(2 + columns))?;
        numbers[2 * most..].fill(NO_PAGE);
        let device = match backend.place() {
            Place::Cpu => None,
            Place::Gpu(gpu) => Some(OnDevice {
                numbers: DeviceBuffer::from_slice(gpu.stream(), &numbers)?,
                staging: gpu.staging().clone(),
            }),
        };
        Ok(Step {
            most,
            columns,
            longest,
            batch: 0,
            is_set: false,
            vacant: true,
            rows_each: None,
            offsets: vec![0],
            numbers,
            rows: vec![
                Row {
                    owner: None,
                    pages: 0
                };
                most
            ],
            device,
        })
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// Returns true if the cache is in a step, which may have no sequence.
    pub(super) fn is_set(&self) -> bool {
        self.is_set
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn offsets(&self) -> &[i32] {
        &self.offsets
    }

    /// Makes this the step in which the sequences, which have their new rows already, got them; `batch` is at least their number
    /// and at most [`most`](Self::most).
    pub(super) fn set(
        &mut self,
        pool: &Pool,
        rows: &[(SequenceId, usize)],
        batch: usize,
    ) -> Result<()> {
        let (lengths, table) = self.numbers.split_at_mut(2 * self.most);
        let (before, after) = lengths.split_at_mut(self.most);
        let mut changed = Vec::with_capacity(1 + batch);
        changed.push(0..2 * self.most);
        self.offsets.truncate(1);
        let mut end = 0;
        for place in 0..batch {
            let (held, more) = match rows.get(place) {
                Some(&(id, more)) => (pool.get(id).map(|held| (id, held)), more),
                None => (None, 0),
            };
            let (pages, len) = held.map_or((&[][..], 0), |(_, held)| (&held.pages[..], held.len));
            // Lengths fit 31 bits: the longest has been checked against `MAX_LEN`.
            after[place] = len as i32;
            before[place] = (len - more) as i32;
            end += more as i32;
            self.offsets.push(end);
            let next = Row {
                owner: held.map(|(id, held)| (id, held.epoch)),
                pages: pages.len(),
            };
            let known = std::mem::replace(&mut self.rows[place], next);
            // For an unchanged owner only the new pages are missing.
            let from = match known.owner == next.owner {
                true => known.pages.min(next.pages),
                false => 0,
            };
            let to = known.pages.max(next.pages);
            let start = place * self.columns;
            table[start + from..start + next.pages].copy_from_slice(&pages[from..]);
            table[start + next.pages..start + to].fill(NO_PAGE);
            changed.push(2 * self.most + start + from..2 * self.most + start + to);
        }
        self.batch = batch;
        self.is_set = true;
        self.vacant = rows.is_empty();
        let first = rows.first().map(|&(_, more)| more);
        self.rows_each = first.filter(|&first| rows.iter().all(|&(_, more)| more == first));
        match &mut self.device {
            Some(device) => device.send(&self.numbers, &changed),
            None => Ok(()),
        }
    }

    /// Makes this no step.
    pub(super) fn clear(&mut self) {
        self.batch = 0;
        self.is_set = false;
        self.vacant = true;
        self.rows_each = None;
        self.offsets.truncate(1);
        // The device's contents of the table are unknown.
        self.rows.fill(Row {
            owner: None,
            pages: self.columns,
        });
    }

    /// How a tensor has the rows of the step.
    pub(super) fn form(&self, argument: &'static str, layout: &Layout) -> Result<Form> {
        let [batch, rows, ..] = layout.shape;
        let all = self.offsets.last().map_or(0, |&end| end as usize);
        // Empty places have as many rows as the sequences do, or what a sequence could have.
        let each = match self.vacant {
            true => Some(rows.min(self.longest)),
            false => self.rows_each,
        };
        let dense = batch == self.batch && each == Some(rows);
        match () {
            () if dense => Ok(Form::Dense),
            () if batch == 1 && rows == all => Ok(Form::Packed),
            () => Err(Invalid::Pages {
                argument,
                rule: match each {
                    _ if !self.is_set => NO_STEP.to_owned(),
                    Some(each) => format!(
                        "has batch {batch} and length {rows}; the step has {} sequences of {each} new rows, or batch 1 and length {all} one after the other",
                        self.batch
                    ),
                    None => format!(
                        "has batch {batch} and length {rows}; the sequences of the step have different numbers of new rows, which lie one after the other, with batch 1 and length {all}"
                    ),
                },
            }.into()),
        }
    }

    fn before_range(&self) -> Range<usize> {
        0..self.batch
    }

    fn after_range(&self) -> Range<usize> {
        self.most..self.most + self.batch
    }

    fn table_range(&self) -> Range<usize> {
        2 * self.most..2 * self.most + self.batch * self.columns
    }

    /// Rows before the step, rows after it, and the table: on the host.
    pub(super) fn on_host(&self) -> [&[i32]; 3] {
        [self.before_range(), self.after_range(), self.table_range()]
            .map(|range| &self.numbers[range])
    }

    /// The table on the device; `None` on the CPU.
    pub(super) fn on_device(&self) -> Result<Option<[DeviceSlice<'_, i32>; 3]>> {
        let Some(device) = &self.device else {
            return Ok(None);
        };
        let slice = |range| device.numbers.slice(range);
        Ok(Some([
            slice(self.before_range())?,
            slice(self.after_range())?,
            slice(self.table_range())?,
        ]))
    }
}
