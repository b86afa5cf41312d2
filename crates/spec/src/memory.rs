//! The memory that a launch reads and writes: what is expected of each place, and whether it keeps the rules.

use crate::abi::CHUNK_BYTES;
use crate::{ElementType, Invalid, Layout, MemoryType, Result};

/// The use that an operation makes of an operand's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads the memory.
    Read,
    /// It writes the memory, to which it needs exclusive access meanwhile.
    Write,
}

impl Access {
    /// Returns an error if the memory of `argument` is given for a different access.
    pub fn check(self, argument: &'static str, given: Access) -> Result<()> {
        match self {
            _ if given == self => Ok(()),
            Access::Write => Err(Invalid::presence(
                argument,
                "is written, so it belongs to the outputs",
            )),
            Access::Read => Err(Invalid::presence(
                argument,
                "is read, so it belongs to the inputs",
            )),
        }
    }
}

/// The requirements of a call on one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The name that errors give it.
    pub name: &'static str,
    /// True if the call has it; if not, it must not be given.
    pub wanted: bool,
    /// The access of the operation: a read or a write.
    pub access: Access,
    /// Where its bytes lie, from its address on.
    pub bytes: Strided,
    /// The address is a multiple of this power of two.
    pub alignment: u64,
    /// True if it is a multiple of [`CHUNK_BYTES`] as well where kernels move rows in chunks.
    pub moves_rows: bool,
    /// Bytes of an element.
    pub size: u64,
    /// The type of its elements, if it is one of tensors.
    pub element: Option<ElementType>,
    /// True if its numbers travel with the call instead of lying on the device.
    pub on_host: bool,
}

impl Expected {
    /// The rows of a tensor, at addresses that are multiples of `alignment`.
    pub fn tensor(
        name: &'static str,
        layout: &Layout,
        element_bytes: usize,
        access: Access,
        alignment: u64,
    ) -> Self {
        Expected {
            wanted: true,
            access,
            bytes: Strided::rows(layout, element_bytes as u64),
            alignment,
            size: element_bytes as u64,
            ..Self::unwanted(name)
        }
    }

    /// `count` numbers of `size` bytes in a row, if they are wanted.
    pub fn list(name: &'static str, wanted: bool, count: usize, size: u64, access: Access) -> Self {
        let bytes = match wanted {
            true => (count as u64).saturating_mul(size),
            false => 0,
        };
        Expected {
            wanted,
            access,
            bytes: Strided::list(bytes),
            alignment: size,
            size,
            ..Self::unwanted(name)
        }
    }

    /// An operand that must not be given.
    pub const fn unwanted(name: &'static str) -> Self {
        Expected {
            name,
            wanted: false,
            access: Access::Read,
            bytes: Strided::list(0),
            alignment: 1,
            moves_rows: false,
            size: 4,
            element: None,
            on_host: false,
        }
    }

    /// The bytes that it must have from its address on; `None` if it must not be given.
    pub fn needed(&self) -> Option<u64> {
        let given = self.wanted && !self.on_host;
        given.then(|| self.bytes.reach())
    }

    /// Returns true if the operation writes it.
    pub fn is_output(&self) -> bool {
        self.wanted && self.access == Access::Write
    }

    /// Checks the type of the memory that is given for it, and the access that is given to it.
    ///
    /// # Errors
    /// As [`check_view_types`](crate::check_view_types).
    pub fn check_type(&self, found: MemoryType, access: Access) -> Result<()> {
        if self.wanted {
            self.access.check(self.name, access)?;
            found.check(self.name, self.element, self.size)?;
        }
        Ok(())
    }

    /// With elements of this type.
    pub fn of_type(mut self, element: ElementType) -> Self {
        self.element = Some(element);
        self
    }

    /// Travels with the call if `on_host`.
    pub fn on_host(self, on_host: bool) -> Self {
        Expected { on_host, ..self }
    }
}

/// Places in memory, with what is expected of each and its address.
pub type Places<'a> = (&'a [Expected], &'a [u64]);

/// Checks addresses against what is expected of them: there if wanted and only then, aligned, and no output over
/// anything. `inputs` are places that are only read; with `chunks`, kernels move rows 16 bytes at a time.
///
/// # Errors
/// [`Invalid::Presence`], [`Invalid::Misaligned`], [`Invalid::LayoutTooLarge`] or [`Invalid::OutputOverlaps`].
pub fn check(places: Places<'_>, inputs: Places<'_>, chunks: bool) -> Result<()> {
    check_each(places, chunks)?;
    check_each(inputs, chunks)?;
    let (expected, addresses) = places;
    for (index, (output, &at)) in expected.iter().zip(addresses).enumerate() {
        if output.access != Access::Write || !output.wanted {
            continue;
        }
        let meets = |other: &Expected, other_at: u64| match output.bytes.may_meet(
            at,
            &other.bytes,
            other_at,
        ) {
            true => Err(Invalid::OutputOverlaps {
                argument: output.name,
                other: other.name.to_owned(),
            }),
            false => Ok(()),
        };
        for (other_index, (other, &other_at)) in expected.iter().zip(addresses).enumerate() {
            // Two outputs are compared once.
            let skip = !other.wanted
                || other_index == index
                || (other.access == Access::Write && other_index < index);
            if !skip {
                meets(other, other_at)?;
            }
        }
        for (other, &other_at) in inputs.0.iter().zip(inputs.1) {
            if other.wanted {
                meets(other, other_at)?;
            }
        }
    }
    Ok(())
}

fn check_each((expected, addresses): Places<'_>, chunks: bool) -> Result<()> {
    for (slot, &address) in expected.iter().zip(addresses) {
        if !slot.wanted {
            if address != 0 {
                return Err(Invalid::presence(
                    slot.name,
                    "is given, but the call was built without it",
                ));
            }
            continue;
        }
        // Nothing lies in an empty tensor, so it needs no address.
        if address == 0 && !slot.bytes.is_empty() {
            return Err(Invalid::presence(
                slot.name,
                "is missing, but the call needs it",
            ));
        }
        let alignment = match chunks && slot.moves_rows {
            true => CHUNK_BYTES as u64,
            false => slot.alignment,
        };
        if address & (alignment - 1) != 0 {
            return Err(Invalid::Misaligned {
                argument: slot.name,
                address,
                alignment,
            });
        }
        if address.checked_add(slot.bytes.reach()).is_none() {
            return Err(Invalid::LayoutTooLarge {
                argument: slot.name,
            });
        }
    }
    Ok(())
}

/// Bytes in memory: pieces of equal size at regular distances, in up to four dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// Distance in bytes and number of pieces along each dimension.
    steps: [(u64, u64); 4],
    /// Bytes of a piece.
    piece: u64,
    /// Bytes from the address to the end of the last piece; 0 if there is none.
    reach: u64,
}

impl Strided {
    /// The rows of a tensor.
    pub fn rows(layout: &Layout, size: u64) -> Self {
        let [batch, rows, heads, head_dim] = layout.shape;
        let [batch_step, row_step, head_step, _] = layout.strides;
        let steps = [
            steps(batch, batch_step, size),
            steps(rows, row_step, size),
            steps(heads, head_step, size),
            (0, 1),
        ];
        Self::of(steps, (head_dim as u64).saturating_mul(size))
    }

    /// The elements of a tensor whose last dimension may have any step.
    pub fn elements(layout: &Layout, size: u64) -> Self {
        let steps = std::array::from_fn(|d| steps(layout.shape[d], layout.strides[d], size));
        Self::of(steps, size)
    }

    fn of(steps: [(u64, u64); 4], piece: u64) -> Self {
        let is_empty = piece == 0 || steps.iter().any(|&(_, count)| count == 0);
        let reach = match is_empty {
            true => 0,
            false => steps.iter().fold(piece, |reach, &(step, count)| {
                reach.saturating_add(step.saturating_mul(count - 1))
            }),
        };
        Strided {
            steps,
            piece,
            reach,
        }
    }

    /// So many bytes in a row.
    pub const fn list(bytes: u64) -> Self {
        Strided {
            steps: [(0, 1); 4],
            piece: bytes,
            reach: bytes,
        }
    }

    /// Returns true if there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.reach == 0
    }

    /// Bytes from the address to the end of the last piece. A validated layout's reach fits.
    #[inline]
    pub const fn reach(&self) -> u64 {
        self.reach
    }

    /// Joins neighbouring pieces, so that the same bytes are as few pieces as possible: adjacent heads become one.
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

    /// Returns true if some byte of these, laid at `at`, could be one of `other`'s at `other_at`. A no is certain.
    ///
    /// Ranges that are apart never meet. Otherwise all pieces of both start at multiples of the common divisor of their
    /// distances from where they began: if they fill different parts of it, as keys and values interleaved in one tensor do,
    /// they do not meet either.
    pub fn may_meet(&self, at: u64, other: &Strided, other_at: u64) -> bool {
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

/// Distance in bytes and number of pieces along a dimension. A step that is never taken is 0, regardless of the layout.
fn steps(extent: usize, stride: usize, size: u64) -> (u64, u64) {
    match extent {
        0 | 1 => (0, extent as u64),
        _ => ((stride as u64).saturating_mul(size), extent as u64),
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
        let steps = [
            step(numbers[0]),
            step(numbers[1]),
            step(numbers[2]),
            step(numbers[3]),
        ];
        Strided::of(steps, u64::from(numbers[4] % 9))
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
        let rows = Strided::rows(&layout, 2);
        assert!(!rows.may_meet(4096, &rows, 4096 + 512));
        assert!(!rows.may_meet(4096 + 512, &rows, 4096));
        assert!(rows.may_meet(4096, &rows, 4096 + 510));
        assert!(rows.may_meet(4096, &rows, 4096));
    }

    #[test]
    fn a_step_that_is_never_taken_is_0() {
        let never = Layout::new([1, 0, 1, 8], [usize::MAX, usize::MAX / 2, 1 << 62, 1]);
        let [rows, elements] = [Strided::rows, Strided::elements].map(|of| of(&never, 4));
        assert_eq!(rows.steps, [(0, 1), (0, 0), (0, 1), (0, 1)]);
        assert_eq!(elements.steps, [(0, 1), (0, 0), (0, 1), (4, 8)]);
        let empty = Layout::new([0, 3, 1, 1 << 62], [8, 1 << 62, 8, 1]);
        assert!(Strided::rows(&empty, 8).is_empty());
        assert_eq!(Strided::rows(&empty, 8).reach(), 0);
    }

    #[test]
    fn neighbours_do_not_meet_and_one_shared_byte_does() {
        let list = Strided::list(16);
        assert!(!list.may_meet(0, &list, 16));
        assert!(list.may_meet(0, &list, 15));
        assert!(!list.may_meet(0, &Strided::list(0), 8));
    }
}
