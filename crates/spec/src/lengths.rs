//! How long the sequences of a call are, and where they lie in their tensors.

use std::sync::Arc;

use crate::call::counted;
use crate::{Invalid, Numbers, Operand, Request, Result, expect_same};

/// The numbers of a checked call: lengths, offsets or pages.
type Kept = Numbers<Arc<[i32]>>;

/// The lengths of one side of a call: of its queries, or of its keys and values.
///
/// Sequence `b` is the rows `offsets[b]..offsets[b + 1]` of a packed tensor, or the rows of batch entry `b` of a dense one; of
/// these the first `used[b]`, if that is given. Paged keys count as dense: [`Call::pages`](crate::Call::pages) says where they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideLengths {
    /// Rows of the tensor: of each batch entry, or of the one packed entry; of paged keys the bound.
    pub rows: usize,
    /// No sequence is longer.
    pub bound: usize,
    /// The first row of each sequence, and the end of the last, of packed ones.
    pub offsets: Kept,
    /// The rows of each sequence that are used, if not all are.
    pub used: Kept,
}

impl SideLengths {
    /// Rows of the tensor: of each batch entry, or of the one packed entry; of paged keys the bound.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// The longest a sequence is, or can be where its length is on the device.
    pub const fn bound(&self) -> usize {
        self.bound
    }

    /// Row offsets of packed sequences, one more than there are sequences.
    pub const fn offsets(&self) -> &Kept {
        &self.offsets
    }

    /// Used rows of each sequence.
    pub const fn used(&self) -> &Kept {
        &self.used
    }

    /// Returns true if the sequences lie one after the other in a tensor whose batch extent is 1.
    pub const fn is_packed(&self) -> bool {
        self.offsets.is_given()
    }

    /// Returns true if the host does not know every length.
    pub const fn on_device(&self) -> bool {
        self.offsets.on_device() || self.used.on_device()
    }

    /// Returns true if some row belongs to no sequence, or could.
    pub fn leaves_gaps(&self) -> bool {
        self.used.is_given()
            || match &self.offsets {
                Numbers::Host(offsets) => {
                    let is_cut = |ends: &[i32]| (ends[1] - ends[0]) as usize > self.bound;
                    offsets.last().is_none_or(|&end| end as usize != self.rows)
                        || offsets.windows(2).any(is_cut)
                }
                Numbers::Device(()) => true,
                Numbers::None => self.bound < self.rows,
            }
    }

    /// First row and number of rows of a sequence. Where the device knows better, the first row is 0 and the number the bound.
    pub fn sequence(&self, batch: usize) -> (usize, usize) {
        let (start, mut rows) = match &self.offsets {
            // Checked offsets are 0 or more and do not decrease.
            Numbers::Host(offsets) => {
                let (start, end) = (offsets[batch] as usize, offsets[batch + 1] as usize);
                (start, end - start)
            }
            Numbers::Device(()) => (0, self.bound),
            Numbers::None => (0, self.rows),
        };
        if let Numbers::Host(used) = &self.used {
            rows = rows.min(used[batch] as usize);
        }
        (start, rows.min(self.bound))
    }
}

/// One side's lengths as the caller gives them, before they are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LengthsRequest<'a> {
    pub offsets: Request<'a>,
    pub used: Request<'a>,
    /// No sequence is taken to be longer.
    pub longest: Option<usize>,
    /// As `longest`, of the offsets on the device: others have another bound or none.
    pub longest_packed: Option<usize>,
}

impl<'a> LengthsRequest<'a> {
    /// Packed, with these offsets, which have no bound.
    pub(crate) fn set_offsets(&mut self, offsets: Request<'a>) {
        (self.offsets, self.longest_packed) = (offsets, None);
    }

    /// Packed, with the offsets on the device, where no sequence is taken to be longer than `longest`.
    pub(crate) fn packed_on_device(&mut self, sequences: usize, longest: usize) {
        self.offsets = Numbers::Device(sequences.saturating_add(1));
        self.longest_packed = Some(longest);
    }

    /// A copy that owns its data; `None` if it has a list on the host.
    pub(crate) fn kept(&self) -> Option<LengthsRequest<'static>> {
        Some(LengthsRequest {
            offsets: self.offsets.kept()?,
            used: self.used.kept()?,
            longest: self.longest,
            longest_packed: self.longest_packed,
        })
    }
}

/// The operands of a side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub tensor: Operand,
    pub offsets: Operand,
    pub used: Operand,
}

pub(crate) const QUERIES: Names = Names {
    tensor: Operand::Q,
    offsets: Operand::QueryOffsets,
    used: Operand::QueryLengths,
};
pub(crate) const KEYS: Names = Names {
    tensor: Operand::K,
    offsets: Operand::KeyOffsets,
    used: Operand::KeyLengths,
};

/// The argument that says how many sequences a side has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// A tensor, or a block table, by its batch extent.
    Tensor(&'static str),
    /// Row offsets.
    Offsets(&'static str),
}

/// Checks that keys have as many sequences as queries.
pub(crate) fn expect_sequences(
    (keys, of_keys): (Source, usize),
    (queries, of_queries): (Source, usize),
) -> Result<()> {
    if of_keys == of_queries {
        return Ok(());
    }
    let sequences = |argument, found, other, other_is_packed, expected| Invalid::Sequences {
        argument,
        found,
        other,
        other_is_packed,
        expected,
    };
    Err(match (keys, queries) {
        (Source::Offsets(k), Source::Offsets(q)) => sequences(k, of_keys, q, true, of_queries),
        (Source::Offsets(k), Source::Tensor(q)) => sequences(k, of_keys, q, false, of_queries),
        (Source::Tensor(k), Source::Offsets(q)) => sequences(q, of_queries, k, false, of_keys),
        (Source::Tensor(k), Source::Tensor(q)) => {
            return expect_same(k, [of_keys], (q, [of_queries]), ["batch"]);
        }
    })
}

impl LengthsRequest<'_> {
    /// The argument that says how many sequences there are.
    pub(crate) fn source(&self, names: Names) -> Source {
        match self.offsets.is_given() {
            true => Source::Offsets(names.offsets.name()),
            false => Source::Tensor(names.tensor.name()),
        }
    }

    /// As [`check`](Self::check), for a tensor whose rows lie one after the other: kernels look for the ends of sequences only where a list
    /// says that there are some. `longest` is the bound's name.
    pub(crate) fn check_rows(
        self,
        names: Names,
        longest: &'static str,
        entries: usize,
        rows: usize,
    ) -> Result<(SideLengths, usize)> {
        let has_lengths = self.offsets.is_given() || self.used.is_given();
        if self.longest.is_some_and(|longest| longest < rows) && !has_lengths {
            return Err(Invalid::presence(
                longest,
                "is fewer than the rows that a dense tensor without lengths has: give lengths, or a view of fewer rows",
            ));
        }
        self.check(names, entries, rows)
    }

    /// Checks the lengths against a tensor of `entries` batch entries of `rows` rows each. Returns them with the number of
    /// sequences.
    pub(crate) fn check(
        self,
        names: Names,
        entries: usize,
        rows: usize,
    ) -> Result<(SideLengths, usize)> {
        let broken = |argument: &'static str, index: usize, rule: String| Invalid::Lengths {
            argument,
            index,
            rule,
        };
        let mut bound = rows;
        let sequences = match self.offsets.count() {
            None => entries,
            Some(0) => {
                let rule = "is missing: one offset more than sequences is needed".to_owned();
                return Err(broken(names.offsets.name(), 0, rule));
            }
            Some(len) => {
                expect_same(
                    names.tensor.name(),
                    [entries],
                    ("a packed tensor", [1]),
                    ["batch"],
                )?;
                len - 1
            }
        };
        if let Numbers::Host(offsets) = self.offsets {
            bound = check_offsets(names.offsets.name(), offsets, rows)?;
        }
        if let Some(len) = self.used.count()
            && len != sequences
        {
            let (lengths, of) = (counted(len, "length"), counted(sequences, "sequence"));
            let rule = format!("ends the list: {lengths} for {of}");
            return Err(broken(names.used.name(), len.min(sequences), rule));
        }
        for longest in [self.longest, self.longest_packed].into_iter().flatten() {
            bound = bound.min(longest);
        }
        let lengths = SideLengths {
            rows,
            bound,
            offsets: self.offsets.keep(),
            used: self.used.keep(),
        };
        let lengths = match self.used {
            Numbers::Host(used) => within(lengths, names, used)?,
            _ => lengths,
        };
        Ok((lengths, sequences))
    }
}

/// Checks host lengths against the rows that the sequences have, and narrows the bound to them.
fn within(mut lengths: SideLengths, names: Names, used: &[i32]) -> Result<SideLengths> {
    let mut longest = 0;
    for (index, &length) in used.iter().enumerate() {
        let rows = match lengths.offsets.on_host() {
            Some(offsets) => (offsets[index + 1] - offsets[index]) as usize,
            None => lengths.rows,
        };
        match usize::try_from(length) {
            Ok(length) if length <= rows => longest = longest.max(length),
            _ => {
                return Err(Invalid::Lengths {
                    argument: names.used.name(),
                    index,
                    rule: format!(
                        "is {length}, but sequence {index} has {}",
                        counted(rows, "row")
                    ),
                });
            }
        }
    }
    lengths.bound = lengths.bound.min(longest);
    Ok(lengths)
}

/// Checks row offsets over a tensor of `rows` rows; returns the longest sequence.
fn check_offsets(argument: &'static str, offsets: &[i32], rows: usize) -> Result<usize> {
    let broken = |index: usize, rule: String| Invalid::Lengths {
        argument,
        index,
        rule,
    };
    if let Some(&first) = offsets.first()
        && first != 0
    {
        let rule = format!("is {first}; the first sequence must start at row 0");
        return Err(broken(0, rule));
    }
    let mut longest = 0;
    for (index, pair) in offsets.windows(2).enumerate() {
        let (start, end) = (pair[0], pair[1]);
        if end < start {
            let rule = format!(
                "is {end}, less than the offset before it ({start}); offsets must not decrease"
            );
            return Err(broken(index + 1, rule));
        }
        // Neither is negative: the first is 0 and none decreases.
        if end as usize > rows {
            let rows = counted(rows, "row");
            let rule = format!("is {end}, but the tensor has only {rows}");
            return Err(broken(index + 1, rule));
        }
        longest = longest.max((end - start) as usize);
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_past_the_bound_belong_to_nobody() {
        let lengths = |rows, bound, offsets: Option<&[i32]>| SideLengths {
            rows,
            bound,
            offsets: offsets.map_or(Numbers::None, |offsets| Numbers::Host(offsets.into())),
            used: Numbers::None,
        };
        assert!(!lengths(100, 100, None).leaves_gaps());
        assert!(lengths(100, 50, None).leaves_gaps());
        assert!(!lengths(100, 60, Some(&[0, 40, 100])).leaves_gaps());
        assert!(lengths(100, 59, Some(&[0, 40, 100])).leaves_gaps());
        assert!(lengths(100, 60, Some(&[0, 40, 99])).leaves_gaps());
        assert!(!lengths(0, 0, Some(&[0])).leaves_gaps());
    }
}
