//! The numbers of 8 bits with 4 bits of exponent and 3 of fraction.

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// An 8-bit number, in which a cache may hold keys and values: a sign, 4 bits of exponent and 3 of fraction, which PyTorch calls
/// `float8_e4m3fn` and safetensors `F8_E4M3`. Its largest numbers are ±448, the smallest step is 2^-9. It has NaN, but no infinities.
///
/// ```
/// use warptile::E4m3;
///
/// assert_eq!(E4m3::from_f32(0.3).to_f32(), 0.3125);
/// assert_eq!(E4m3::from_f32(1e9), E4m3::MAX);
/// assert_eq!(E4m3::from_bits(0x38).to_f32(), 1.0);
/// ```
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
#[must_use]
pub struct E4m3(u8);

impl E4m3 {
    /// The largest number, 448.
    pub const MAX: E4m3 = E4m3(0x7e);

    /// Not a number.
    pub const NAN: E4m3 = E4m3(0x7f);

    /// The number with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        E4m3(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Returns true if it is not a number.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }

    /// Converts to `f32`, exactly.
    pub const fn to_f32(self) -> f32 {
        WIDENED[self.0 as usize]
    }

    /// The nearest number, ties to even. What is beyond the largest one, infinities included, becomes that; NaN stays NaN.
    pub const fn from_f32(value: f32) -> Self {
        if value.is_nan() {
            return Self::NAN;
        }
        // As `to_e4m3` in kernels/base/e4m3.cuh.
        let sign = (value.to_bits() >> 24 & 0x80) as u8;
        let size = if value.abs() > 448.0 {
            448.0
        } else {
            value.abs()
        };
        let bits = if size < 0.015_625 {
            // Below 2^-6 they are multiples of 2^-9, and so are the `f32` from 2^14 on.
            (size + 16_384.0).to_bits() - 16_384.0_f32.to_bits()
        } else {
            let wide = size.to_bits(); // of whose 23 bits of fraction 3 stay
            ((wide + 0x7_ffff + (wide >> 20 & 1)) >> 20) - (127 - 7) * 8
        };
        E4m3(sign | bits as u8)
    }

    /// Rounds a number to the one that a cache with this scale holds: the nearest to `value / scale`, which is
    /// divided in `f32`.
    pub const fn quantize(value: f32, scale: f32) -> Self {
        Self::from_f32(value / scale)
    }
}

static WIDENED: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        table[bits] = widened(bits as u8);
        bits += 1;
    }
    table
};

const fn widened(bits: u8) -> f32 {
    let (exponent, fraction) = (bits >> 3 & 15, bits & 7);
    let size = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        (0, _) => fraction as f32 / 512.0,
        // 2^(exponent - 7) * (1 + fraction / 8)
        _ => f32::from_bits((exponent as u32 + 120) << 23 | (fraction as u32) << 20),
    };
    match bits & 0x80 {
        0 => size,
        _ => -size,
    }
}

/// As numbers: NaN equals nothing, and the zeros equal each other.
impl PartialEq for E4m3 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl fmt::Debug for E4m3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

impl fmt::Display for E4m3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_f32(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = E4m3> {
        (0..=u8::MAX).map(E4m3::from_bits)
    }

    /// Every number but NaN, in order, with -0 before 0.
    fn ladder() -> Vec<E4m3> {
        let mut numbers: Vec<E4m3> = all().filter(|x| !x.is_nan()).collect();
        numbers.sort_by(|a, b| a.to_f32().total_cmp(&b.to_f32()));
        numbers
    }

    #[test]
    fn all_256_are_what_the_format_says() {
        for x in all() {
            let bits = x.to_bits();
            let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
            let size = match exponent {
                0 => fraction * 2.0_f64.powi(-9),
                _ => (8.0 + fraction) * 2.0_f64.powi(exponent - 10),
            };
            let number = if bits & 0x80 == 0 { size } else { -size };
            match bits & 0x7f {
                0x7f => assert!(x.is_nan() && x.to_f32().is_nan()),
                _ => assert_eq!(f64::from(x.to_f32()), number, "{bits:#x}"),
            }
            // There and back, in the other types too, which have all of them.
            let again = E4m3::from_f32(x.to_f32()).to_bits();
            assert_eq!(again, if x.is_nan() { 0x7f } else { bits });
            let f16 = half::f16::from_f32(x.to_f32()).to_f32();
            let bf16 = half::bf16::from_f32(x.to_f32()).to_f32();
            assert!(x.is_nan() || (f16 == x.to_f32() && bf16 == x.to_f32()));
        }
        assert_eq!(E4m3::MAX.to_f32(), 448.0);
        assert_eq!(E4m3::from_bits(1).to_f32(), 2.0_f32.powi(-9));
    }

    #[test]
    fn rounds_to_nearest_even() {
        for pair in ladder().windows(2) {
            let (low, high) = (pair[0].to_f32(), pair[1].to_f32());
            if low == high {
                continue;
            }
            let middle = (low + high) / 2.0; // exact
            let even = if pair[0].to_bits() & 1 == 0 {
                low
            } else {
                high
            };
            assert_eq!(E4m3::from_f32(middle).to_f32(), even, "{middle}");
            assert_eq!(E4m3::from_f32(middle.next_down()).to_f32(), low);
            assert_eq!(E4m3::from_f32(middle.next_up()).to_f32(), high);
        }
        assert_eq!(E4m3::from_f32(-0.0).to_bits(), 0x80);
        assert_eq!(E4m3::from_f32(1e-30).to_bits(), 0);
    }

    #[test]
    fn saturates() {
        for beyond in [449.0, 464.0, 480.0, 1e30, f32::INFINITY] {
            assert_eq!(E4m3::from_f32(beyond).to_bits(), 0x7e);
            assert_eq!(E4m3::from_f32(-beyond).to_bits(), 0xfe);
        }
        assert!(E4m3::from_f32(f32::NAN).is_nan());
    }

    quickcheck::quickcheck! {
        /// Half the distance of neighbours, and the rounding of the division.
        fn what_comes_back_is_within_half_a_step(value: f32, scale: f32) -> bool {
            let scale = scale.abs();
            let within = (value / scale).abs() <= 448.0;
            if !within || !scale.is_normal() {
                return true;
            }
            let (value, scale) = (f64::from(value), f64::from(scale));
            let stored = f64::from(E4m3::quantize(value as f32, scale as f32).to_f32());
            let size = (value / scale).abs().max(2.0_f64.powi(-6));
            let step = 2.0_f64.powi(size.log2().floor() as i32 - 3);
            (stored - value / scale).abs() <= step / 2.0 * (1.0 + 1e-6)
        }
    }
}
