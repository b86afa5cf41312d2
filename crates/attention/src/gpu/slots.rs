//! The places in memory that a launch reads and writes, and the rules they must keep.

use warptile_kernels::ElementType;

use crate::call::Call;
use crate::error::{Error, Result};
use crate::layout::Layout;

/// Device addresses of one launch; 0 is "not given".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Addresses {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Receives the output. Gaps between strided rows, and rows that no sequence owns, are left alone.
    pub out: u64,
    /// Receives the lse as `f32`, `[batch, heads, length]`; for packed queries `[heads, rows]`.
    pub lse: u64,
    /// `batch + 1` row offsets of packed queries, as `i32` or `u32`.
    pub query_offsets: u64,
    /// `batch + 1` row offsets of packed keys and values.
    pub key_offsets: u64,
    /// Used rows of each sequence's queries.
    pub query_lengths: u64,
    /// Used rows of each sequence's keys and values.
    pub key_lengths: u64,
    /// ALiBi slopes as `f32`.
    pub slopes: u64,
    /// Sinks as `f32`, one per query head.
    pub sinks: u64,
    /// The additive bias, in the tensors' element type.
    pub bias: u64,
    /// The key mask, a byte each; 0 hides.
    pub key_mask: u64,
    /// Numbers of the pages of keys and values, as `i32` or `u32`.
    pub block_table: u64,
}

/// How many slots there are.
pub(crate) const SLOTS: usize = 14;

/// What a launch does with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What a call expects of one slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) name: &'static str,
    pub(crate) wanted: bool,
    pub(crate) access: Access,
    /// Where its bytes lie, from its address on.
    pub(crate) bytes: Strided,
    /// The address is a multiple of this.
    pub(crate) alignment: u64,
}

impl Addresses {
    /// In the order of [`expected`].
    pub(crate) fn list(&self) -> [u64; SLOTS] {
        [
            self.q,
            self.k,
            self.v,
            self.out,
            self.lse,
            self.query_offsets,
            self.key_offsets,
            self.query_lengths,
            self.key_lengths,
            self.slopes,
            self.sinks,
            self.bias,
            self.key_mask,
            self.block_table,
        ]
    }

    pub(crate) fn from_list(list: [u64; SLOTS]) -> Self {
        let [
            q,
            k,
            v,
            out,
            lse,
            query_offsets,
            key_offsets,
            query_lengths,
            key_lengths,
            slopes,
            sinks,
            bias,
            key_mask,
            block_table,
        ] = list;
        Addresses {
            q,
            k,
            v,
            out,
            lse,
            query_offsets,
            key_offsets,
            query_lengths,
            key_lengths,
            slopes,
            sinks,
            bias,
            key_mask,
            block_table,
        }
    }

    /// Checks the addresses against what a call expects: there if wanted and only then, aligned, and no output over anything.
    pub(crate) fn check(&self, expected: &[Expected; SLOTS]) -> Result<()> {
        let addresses = self.list();
        for (slot, address) in expected.iter().zip(addresses) {
            // Nothing lies in an empty tensor, so it needs no address.
            if slot.wanted && address == 0 && !slot.bytes.is_empty() {
                return Err(Error::Presence {
                    argument: slot.name,
                    rule: "is missing, but the call needs it",
                });
            }
            if !slot.wanted && address != 0 {
                return Err(Error::Presence {
                    argument: slot.name,
                    rule: "is given, but the call was built without it",
                });
            }
            if !address.is_multiple_of(slot.alignment) {
                return Err(Error::Misaligned {
                    argument: slot.name,
                    address,
                    alignment: slot.alignment,
                });
            }
            if address.checked_add(slot.bytes.reach()).is_none() {
                return Err(Error::LayoutTooLarge {
                    argument: slot.name,
                });
            }
        }
        for (index, (output, at)) in expected.iter().zip(addresses).enumerate() {
            if output.access != Access::Write || !output.wanted {
                continue;
            }
            for (other_index, (other, other_at)) in expected.iter().zip(addresses).enumerate() {
                // Two outputs are compared once.
                let skip = other_index == index
                    || !other.wanted
                    || (other.access == Access::Write && other_index < index);
                if !skip && output.bytes.may_meet(at, &other.bytes, other_at) {
                    return Err(Error::OutputOverlaps {
                        argument: output.name,
                        other: other.name.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// What a call expects, in the order of [`Addresses::list`]. `needs_alignment`: the kernels move 16 bytes at a time.
pub(crate) fn expected(call: &Call, needs_alignment: bool) -> [Expected; SLOTS] {
    let element = call.element();
    let size = element.size() as u64;
    let row_alignment = if needs_alignment { 16 } else { size };
    let tensor = |name, layout: &Layout, access| Expected {
        name,
        wanted: true,
        access,
        bytes: Strided::rows(layout, element),
        alignment: row_alignment,
    };
    let list = |name, wanted: bool, count: usize, access| Expected {
        name,
        wanted,
        access,
        bytes: Strided::list(if wanted { count as u64 * 4 } else { 0 }),
        alignment: 4,
    };
    let score = |name, layout: Option<&Layout>, size: u64| Expected {
        name,
        wanted: layout.is_some(),
        access: Access::Read,
        bytes: layout.map_or(Strided::list(0), |layout| Strided::elements(layout, size)),
        alignment: size,
    };
    let (queries, keys, scoring) = (call.queries(), call.keys(), call.scoring());
    let batch = call.batch();
    use Access::{Read, Write};
    [
        tensor("q", call.q(), Read),
        tensor("k", call.k(), Read),
        tensor("v", call.v(), Read),
        tensor("out", call.out(), Write),
        list("lse", call.wants_lse(), call.lse_len(), Write),
        list("query_offsets", queries.is_packed(), batch + 1, Read),
        list("key_offsets", keys.is_packed(), batch + 1, Read),
        list("query_lengths", queries.used().is_given(), batch, Read),
        list("key_lengths", keys.used().is_given(), batch, Read),
        list(
            "alibi_slopes",
            scoring.alibi.is_some(),
            scoring.slope_count(batch, call.heads()),
            Read,
        ),
        list("sinks", scoring.sinks, call.heads(), Read),
        score("bias", call.bias(), size),
        score("key_mask", call.key_mask(), 1),
        Expected {
            name: "block_table",
            wanted: call.pages().is_some(),
            access: Read,
            bytes: call.pages().map_or(Strided::list(0), |pages| {
                Strided::elements(&pages.layout().elements(), 4)
            }),
            alignment: 4,
        },
    ]
}

/// Bytes in memory: pieces of equal size at regular distances, in up to four dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strided {
    /// Distance in bytes and number of pieces along each dimension.
    steps: [(u64, u64); 4],
    /// Bytes of a piece.
    piece: u64,
}

impl Strided {
    /// The rows of a tensor.
    pub(crate) fn rows(layout: &Layout, element: ElementType) -> Self {
        let size = element.size() as u64;
        let step = |d: usize| (layout.strides[d] as u64 * size, layout.shape[d] as u64);
        Strided {
            steps: [step(0), step(1), step(2), (0, 1)],
            piece: layout.head_dim() as u64 * size,
        }
    }

    /// The elements of a tensor whose last dimension may have any step.
    pub(crate) fn elements(layout: &Layout, size: u64) -> Self {
        let step = |d: usize| (layout.strides[d] as u64 * size, layout.shape[d] as u64);
        Strided {
            steps: [step(0), step(1), step(2), step(3)],
            piece: size,
        }
    }

    /// So many bytes in a row.
    pub(crate) const fn list(bytes: u64) -> Self {
        Strided {
            steps: [(0, 1); 4],
            piece: bytes,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.piece == 0 || self.steps.iter().any(|&(_, count)| count == 0)
    }

    /// Bytes from the address to the end of the last piece. A validated layout's reach fits.
    pub(crate) fn reach(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.steps.iter().fold(self.piece, |reach, &(step, count)| {
            reach.saturating_add(step.saturating_mul(count - 1))
        })
    }

    /// The same bytes in as few and as large pieces as they make: heads that lie side by side are one piece.
    fn joined(mut self) -> Self {
        self.steps.sort_unstable();
        for step in &mut self.steps {
            if step.1 > 1 && step.0 <= self.piece {
                self.piece += step.0 * (step.1 - 1);
                *step = (0, 1);
            }
        }
        self
    }

    /// Whether some byte of these, laid at `at`, could be one of `other`'s at `other_at`. A no is certain.
    ///
    /// Ranges that are apart never meet. Otherwise all pieces of both start at multiples of the common divisor of their
    /// distances from where they began: if they fill different parts of it, as keys and values interleaved in one tensor do,
    /// they do not meet either.
    pub(crate) fn may_meet(&self, at: u64, other: &Strided, other_at: u64) -> bool {
        if self.is_empty() || other.is_empty() {
            return false;
        }
        let (end, other_end) = (
            at.saturating_add(self.reach()),
            other_at.saturating_add(other.reach()),
        );
        if end <= other_at || other_end <= at {
            return false;
        }
        let (a, b) = (self.joined(), other.joined());
        let period = [a, b]
            .iter()
            .flat_map(|bytes| bytes.steps)
            .filter(|&(_, count)| count > 1)
            .fold(0, |divisor, (step, _)| gcd(divisor, step));
        if period == 0 {
            return true; // one piece each, and their ranges meet
        }
        // Where the other's pieces begin, counted from where these do, around the period.
        let ahead = match other_at >= at {
            true => (other_at - at) % period,
            false => (period - (at - other_at) % period) % period,
        };
        ahead < a.piece || ahead + b.piece > period
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;
    use std::collections::HashSet;

    fn bytes_at(bytes: &Strided, at: u64) -> HashSet<u64> {
        let mut all = HashSet::new();
        let [s0, s1, s2, s3] = bytes.steps;
        for i in 0..s0.1 {
            for j in 0..s1.1 {
                for k in 0..s2.1 {
                    for l in 0..s3.1 {
                        let start = at + i * s0.0 + j * s1.0 + k * s2.0 + l * s3.0;
                        all.extend(start..start + bytes.piece);
                    }
                }
            }
        }
        all
    }

    fn small(numbers: [u8; 5]) -> Strided {
        let step = |n: u8| (u64::from(n % 16) * 2, u64::from(n / 16 % 4));
        Strided {
            steps: [
                step(numbers[0]),
                step(numbers[1]),
                step(numbers[2]),
                step(numbers[3]),
            ],
            piece: u64::from(numbers[4] % 9),
        }
    }

    quickcheck! {
        fn sets_that_share_a_byte_are_always_found(
            a: (u8, u8, u8, u8, u8), b: (u8, u8, u8, u8, u8), at: u8, other_at: u8
        ) -> bool {
            let (a, b) = (small([a.0, a.1, a.2, a.3, a.4]), small([b.0, b.1, b.2, b.3, b.4]));
            let (at, other_at) = (1000 + u64::from(at), 1000 + u64::from(other_at));
            let share = !bytes_at(&a, at).is_disjoint(&bytes_at(&b, other_at));
            !share || a.may_meet(at, &b, other_at)
        }

        fn reach_is_where_the_last_piece_ends(a: (u8, u8, u8, u8, u8)) -> bool {
            let a = small([a.0, a.1, a.2, a.3, a.4]);
            a.reach() == bytes_at(&a, 0).into_iter().max().map_or(0, |last| last + 1)
        }
    }

    /// K and V of one tensor `[batch, rows, 2, heads, head size]`.
    #[test]
    fn interleaved_tensors_do_not_meet() {
        let layout = Layout::new([2, 10, 4, 64], [10 * 512, 512, 64, 1]);
        let rows = Strided::rows(&layout, ElementType::F16);
        assert!(!rows.may_meet(4096, &rows, 4096 + 512));
        assert!(!rows.may_meet(4096 + 512, &rows, 4096));
        assert!(rows.may_meet(4096, &rows, 4096 + 510));
        assert!(rows.may_meet(4096, &rows, 4096));
    }

    #[test]
    fn neighbours_do_not_meet_and_one_shared_byte_does() {
        let list = Strided::list(16);
        assert!(!list.may_meet(0, &list, 16));
        assert!(list.may_meet(0, &list, 15));
        assert!(!list.may_meet(0, &Strided::list(0), 8));
    }
}
