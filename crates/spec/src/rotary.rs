//! Rotary position embedding: which elements of a head are turned, and by what.

use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

use crate::abi::ROTARY_PAIRS;
use crate::call::{counted, following};

use crate::lengths::KEYS;
use crate::{
    DIMENSIONS, Element, ElementType, HostInputs, Invalid, Layout, MAX_LEN, Operand, Result,
    SideLengths, expect_countable, expect_same,
};

/// Which two elements of a head are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// 2i and 2i + 1: GPT-J, GLM and the original paper.
    Interleaved,
    /// i and i + half of the rotary size: GPT-NeoX, Llama and Qwen as Hugging Face stores them.
    HalfSplit,
}

/// Rotary position embedding of queries and keys. The first `size` elements of a head are turned, in pairs; pair i by an angle that
/// is proportional to the row's position. The others are copied.
///
/// Computed angles are counted in turns, as whole multiples of 2^-64 of one: the product with the position wraps around at
/// whole turns, so nothing is lost to large positions. Angles are off by less than 2e-9 radians at position 1e6, and by 1e-6 at 2^30; the
/// cosines and sines have the precision of `f32`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    pairing: Pairing,
    size: usize,
    angles: Angles,
}

/// Where the angles come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Angles {
    /// The turns that a position adds to each pair, in units of 2^-64.
    Turns(Arc<[u64]>),
    /// From tables of cosines and sines, both `[1, positions, 1, size / 2]`.
    Tables {
        /// The element type of both tables.
        element: ElementType,
        /// The layout of both tables.
        layout: Layout,
    },
}

impl Rotary {
    /// Rotates the first `size` elements, pair i by `position * base^(-2i / size)`; the usual base is 10000.
    ///
    /// # Errors
    /// [`Invalid::RotarySize`] if the size is odd, 0 or more than 256; [`Invalid::Number`] if the base gives no finite angles.
    pub fn computed(size: usize, base: f64, pairing: Pairing) -> Result<Self> {
        check_size(size)?;
        let exponent = |pair: usize| -2.0 * pair as f64 / size as f64;
        let frequencies: Vec<f64> = (0..size / 2)
            .map(|pair| base.powf(exponent(pair)))
            .collect();
        Self::with_frequencies(&frequencies, pairing)
    }

    /// Pair i by `position * frequencies[i]`, in radians: for scaled embeddings, such as Llama 3's and YaRN's.
    ///
    /// # Errors
    /// As [`Rotary::computed`].
    pub fn with_frequencies(frequencies: &[f64], pairing: Pairing) -> Result<Self> {
        let size = frequencies.len().saturating_mul(2);
        check_size(size)?;
        if let Some(&frequency) = frequencies.iter().find(|frequency| !frequency.is_finite()) {
            let (argument, value) = ("rotary frequency", frequency as f32);
            return Err(Invalid::number(argument, value, "a finite number"));
        }
        // 2^64 times the turn's fraction; a fraction that rounds to 1 saturates, which is 2^-64 less.
        let turns = |&frequency: &f64| ((frequency / TAU).rem_euclid(1.0) * 2_f64.powi(64)) as u64;
        Ok(Rotary {
            pairing,
            size,
            angles: Angles::Turns(frequencies.iter().map(turns).collect()),
        })
    }

    /// By tables of cosines and sines for each position: `f32`, or of the tensors' element type. `layout` is that of both,
    /// `[1, positions, 1, size / 2]` with any distance between the rows: of a tensor that has the cosines and sines of a
    /// position side by side, sines begin `size / 2` elements later.
    ///
    /// The tables need a row for every position. [`AppendBuilder::build`](crate::AppendBuilder::build) refuses positions beyond
    /// them that the host knows. Positions that follow from numbers on a device are unchecked: one beyond the last row is
    /// turned by the last row.
    ///
    /// # Errors
    /// [`Invalid::RotarySize`]; [`Invalid::Mismatch`] or [`Invalid::LayoutTooLarge`] if the layout is not of that shape, or has no
    /// position.
    pub fn with_tables(element: ElementType, layout: Layout, pairing: Pairing) -> Result<Self> {
        let [batch, positions, heads, pairs] = layout.shape;
        check_size(pairs.saturating_mul(2))?;
        let of_one = [batch, positions.min(1), heads, pairs];
        expect_same("cos", of_one, ("a table", [1, 1, 1, pairs]), DIMENSIONS)?;
        layout.validate("cos")?;
        expect_countable("cos", "length", positions)?;
        Ok(Rotary {
            pairing,
            size: 2 * pairs,
            angles: Angles::Tables { element, layout },
        })
    }

    /// Which elements are pairs.
    pub const fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// Elements of a head that are turned.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// By which angle a position turns each pair.
    pub const fn angles(&self) -> &Angles {
        &self.angles
    }

    /// Rows of the tables, if there are some.
    pub fn table_rows(&self) -> Option<usize> {
        match &self.angles {
            Angles::Turns(_) => None,
            Angles::Tables { layout, .. } => Some(layout.rows()),
        }
    }

    /// Positions are below this; larger ones count as the last.
    pub fn positions_end(&self) -> usize {
        match &self.angles {
            Angles::Turns(_) => MAX_LEN,
            Angles::Tables { layout, .. } => layout.rows(),
        }
    }

    /// Cosine and sine of each pair at a position. Tables are among the inputs, which were checked.
    pub fn angles_at(
        &self,
        position: i64,
        inputs: &HostInputs<'_>,
        to: &mut [[f32; 2]],
    ) -> Result<()> {
        // At least one position, by the constructors.
        let position = position.clamp(0, self.positions_end() as i64 - 1) as usize;
        match &self.angles {
            Angles::Turns(turns) => {
                for (to, turns) in to.iter_mut().zip(&**turns) {
                    // The upper half, as a number between -1/2 and 1/2 of a turn, has more bits than the result.
                    let turns = (turns.wrapping_mul(position as u64) >> 32) as i32;
                    let (sin, cos) = (f64::from(turns) * (TAU / 2_f64.powi(32))).sin_cos();
                    *to = [cos as f32, sin as f32];
                }
                Ok(())
            }
            Angles::Tables { element, layout } => {
                let start = layout.offset(0, position, 0);
                let row = start..start + layout.head_dim();
                crate::with_element!(element, T => read_row::<T>(inputs, row, to))
            }
        }
    }

    /// Turns the pairs of a head's row in place.
    pub fn turn<T: Element>(&self, row: &mut [T], angles: &[[f32; 2]]) {
        for (pair, &[cos, sin]) in angles.iter().enumerate() {
            let (first, second) = match self.pairing {
                Pairing::Interleaved => (2 * pair, 2 * pair + 1),
                Pairing::HalfSplit => (pair, self.size / 2 + pair),
            };
            let (x, y) = (row[first].to_f32(), row[second].to_f32());
            row[first] = T::from_f32(x.mul_add(cos, -(y * sin)));
            row[second] = T::from_f32(x.mul_add(sin, y * cos));
        }
    }
}

fn read_row<U: Element>(
    inputs: &HostInputs<'_>,
    row: Range<usize>,
    to: &mut [[f32; 2]],
) -> Result<()> {
    let table = |operand| inputs.elements::<U>(operand).map(Option::unwrap_or_default);
    let (cos, sin) = (table(Operand::Cos)?, table(Operand::Sin)?);
    for ((to, cos), sin) in to.iter_mut().zip(&cos[row.clone()]).zip(&sin[row]) {
        *to = [cos.to_f32(), sin.to_f32()];
    }
    Ok(())
}

fn check_size(size: usize) -> Result<()> {
    match size.is_multiple_of(2) && (2..=2 * ROTARY_PAIRS).contains(&size) {
        true => Ok(()),
        false => Err(Invalid::RotarySize { size }),
    }
}

/// Checks that tables of `end` rows have one for the position of each row that exists, of any if only a device knows which do.
pub(super) fn check_positions(
    positions: &[i32],
    (rows, batch, row_count): (&SideLengths, usize, usize),
    end: usize,
) -> Result<()> {
    let check = |mut places: Range<usize>| {
        let beyond = |&index: &usize| usize::try_from(positions[index]).is_ok_and(|at| at >= end);
        match places.find(beyond) {
            Some(index) => Err(Invalid::Lengths {
                argument: Operand::Positions.name(),
                index,
                rule: format!(
                    "is {}, but cos and sin have {}",
                    positions[index],
                    counted(end, "row")
                ),
            }),
            None => Ok(()),
        }
    };
    if rows.on_device() {
        return check(0..positions.len());
    }
    (0..batch).try_for_each(|index| {
        let (first, len) = rows.sequence(index);
        let entry = if rows.is_packed() { 0 } else { index };
        let start = entry * row_count + first;
        check(start..start + len)
    })
}

/// Checks that tables of `end` rows have one for each place of new rows after those that a sequence has, as far as the host knows both.
pub(super) fn check_places(lengths: &[i32], rows: &SideLengths, end: usize) -> Result<()> {
    if rows.on_device() {
        return Ok(());
    }
    for (index, &length) in lengths.iter().enumerate() {
        let (_, new) = rows.sequence(index);
        if new > 0 && length as usize + new > end {
            return Err(Invalid::Lengths {
                argument: KEYS.used.name(),
                index,
                rule: format!(
                    "is {length}, and {}, but cos and sin have rows for {}",
                    following(new),
                    counted(end, "position")
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against products in whole numbers of 2^-96 turns, which are exact to the bit of the frequency.
    #[test]
    fn angles_are_exact_at_large_positions() {
        let rotary = Rotary::computed(128, 10_000.0, Pairing::HalfSplit).unwrap();
        let mut angles = vec![[0.0; 2]; 64];
        for position in [0_i64, 1, 4095, 131_071, 999_983, 1 << 20, (1 << 24) + 1] {
            rotary
                .angles_at(position, &HostInputs::default(), &mut angles)
                .unwrap();
            for (pair, &[cos, sin]) in angles.iter().enumerate() {
                let frequency = 10_000_f64.powf(-2.0 * pair as f64 / 128.0);
                let turns = (frequency / TAU * 2_f64.powi(96)) as u128;
                let fraction = turns.wrapping_mul(position as u128) & ((1 << 96) - 1);
                let angle = fraction as f64 / 2_f64.powi(96) * TAU;
                let (sine, cosine) = angle.sin_cos();
                let error = (f64::from(cos) - cosine)
                    .abs()
                    .max((f64::from(sin) - sine).abs());
                assert!(error < 4e-8, "{position} {pair}: {error}");
            }
        }
    }

    #[test]
    fn sizes_and_frequencies_are_checked() {
        let computed = |size, base| Rotary::computed(size, base, Pairing::Interleaved);
        for size in [0, 7, 258] {
            assert!(
                matches!(computed(size, 1e4), Err(Invalid::RotarySize { .. })),
                "{size}"
            );
        }
        assert!(computed(256, 1e6).is_ok());
        assert!(matches!(computed(8, f64::NAN), Err(Invalid::Number { .. })));
        assert!(matches!(computed(8, 0.0), Err(Invalid::Number { .. })));
        let table = |layout| Rotary::with_tables(ElementType::F32, layout, Pairing::Interleaved);
        assert!(table(Layout::bshd([1, 5, 1, 4])).is_ok());
        assert!(table(Layout::bshd([1, 0, 1, 4])).is_err());
        assert!(table(Layout::bshd([1, 5, 2, 4])).is_err());
    }
}
