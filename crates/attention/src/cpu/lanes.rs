//! Vector registers of `f32`, one type for each instruction set.
//!
//! The inner loop of a matrix product must keep its sums in registers; compilers do that for vector types, but not
//! reliably for arrays of numbers, hence the intrinsics.

use crate::spec::{Element, ElementType};

/// The most numbers that a register of any implementation has.
pub(super) const MAX_WIDTH: usize = 16;

/// Half of the last place of `bf16`, in the bits of a number.
pub(super) const HALF_BF16: u32 = 0x8000;

/// The bits of a number that `bf16` has.
const UPPER_HALF: u32 = 0xffff_0000;

/// A vector register.
///
/// Every operation rounds as the same operation on `f32` does, so a lane's result does not depend on the lane.
///
/// # Safety
/// For every method, the machine has the instructions of the implementing type. A pointer argument leads to [`Lanes::WIDTH`] numbers
/// that may be read, or written, in any alignment of the element.
pub(super) trait Lanes: Copy {
    /// Numbers in a register; divides [`MAX_WIDTH`].
    const WIDTH: usize;

    /// True if a fused multiply-add is one instruction.
    const FMA: bool;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self * factor + summand`.
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self;
    /// The larger one; `other` if either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// `value` where `self >= bound` or `self` is NaN, else 0.
    unsafe fn zero_below(self, bound: Self, value: Self) -> Self;
    /// The integer nearest to each number, and the same shifted to the exponent's place, as bits. The shifted bits of a NaN are 0; apart
    /// from that, neither means anything for numbers beyond 2^21.
    unsafe fn round(self) -> (Self, Self);
    /// Adds the bits of both as integers.
    unsafe fn add_bits(self, bits: Self) -> Self;
    /// Packs each lane into a pair of `bf16`: this number in the lower half, the other in the upper one. Rounded to the nearest, ties
    /// away from
    /// 0. A NaN whose low 16 bits are 0, as of `bf16` inputs and of arithmetic, stays one.
    unsafe fn pair_bf16(self, other: Self) -> Self;
    /// Splits the pair of `f16` in each lane into two numbers, the lower half first.
    unsafe fn split_f16(self) -> [Self; 2];
    /// Splits the pair of `bf16` in each lane into two numbers, the lower half first.
    unsafe fn split_bf16(self) -> [Self; 2];
    /// Adds the products of two pairs of `bf16` in each lane: `sum + low low + high high`. Products are exact. Where one instruction does
    /// it, numbers below the normal ones count as 0.
    #[inline(always)]
    unsafe fn dot(self, other: Self, sum: Self) -> Self {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let ([low, high], [other_low, other_high]) = (self.split_bf16(), other.split_bf16());
            high.mul_add(other_high, low.mul_add(other_low, sum))
        }
    }
    /// Words of two rows of twice as many elements of 16 bits as a register has words: a row's elements are lower halves, or upper ones.
    unsafe fn interleave(lower: *const u16, upper: *const u16) -> [Self; 2];
    /// Transposes the square of the first [`Lanes::WIDTH`] registers.
    unsafe fn transpose(square: &mut [Self; MAX_WIDTH]);
    /// Brings the cache line of this address nearer. Any address will do.
    unsafe fn prefetch<T>(_address: *const T) {}

    /// The numbers of [`Lanes::WIDTH`] elements, exactly.
    #[inline(always)]
    unsafe fn widen<T: Element>(from: *const T) -> Self {
        // SAFETY: the caller vouches for the instructions and for the elements, which are of the type that is read.
        unsafe {
            match T::TYPE {
                ElementType::F16 => Self::load_f16(from.cast()),
                ElementType::Bf16 => Self::load_bf16(from.cast()),
                _ => Self::load(from.cast()),
            }
        }
    }

    /// The numbers of the pair of elements of 16 bits that each lane holds, the first one's in the lower half.
    #[inline(always)]
    unsafe fn split<T: Element>(self) -> [Self; 2] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            match T::TYPE {
                ElementType::F16 => self.split_f16(),
                _ => self.split_bf16(),
            }
        }
    }

    /// `2^self` for numbers up to 100, within 2 ulp; 0 below -126, where the result would be subnormal. A NaN stays one.
    ///
    /// `self = n + r` with `|r| <= 1/2`; the polynomial for `2^r` has the smallest largest relative error, 9.1e-8, of those with
    /// the value 1 at 0.
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        const FACTORS: [f32; 5] = [
            1.326_472_7e-3,
            9.671_513e-3,
            5.550_733_6e-2,
            0.240_222_42,
            // Three steps below ln 2.
            f32::from_bits(0x3f31_7215),
        ];
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let (n, exponent) = self.round();
            let r = self.sub(n);
            let mut p = Self::splat(FACTORS[0]);
            for factor in &FACTORS[1..] {
                p = p.mul_add(r, Self::splat(*factor));
            }
            p = p.mul_add(r, Self::splat(1.0));
            self.zero_below(Self::splat(-126.0), p.add_bits(exponent))
        }
    }
}

/// Code for any machine; compilers turn groups of four into its vector instructions.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Portable(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Portable(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Lanes for Portable {
    const WIDTH: usize = 4;
    const FMA: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Portable([x; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four numbers.
        Portable(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller vouches for four numbers.
        let halves = unsafe { from.cast::<[u16; 4]>().read_unaligned() };
        Portable(halves.map(f16_to_f32))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller vouches for four numbers.
        let halves = unsafe { from.cast::<[u16; 4]>().read_unaligned() };
        Portable(halves.map(|half| f32::from_bits(u32::from(half) << 16)))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for room for four numbers.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
        Portable(std::array::from_fn(|lane| {
            match Self::FMA {
                true => self.0[lane].mul_add(factor.0[lane], summand.0[lane]),
                // Without the instruction `mul_add` is a slow function call.
                false => self.0[lane] * factor.0[lane] + summand.0[lane],
            }
        }))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn zero_below(self, bound: Self, value: Self) -> Self {
        Portable(std::array::from_fn(|lane| {
            match self.0[lane] < bound.0[lane] {
                true => 0.0,
                false => value.0[lane],
            }
        }))
    }

    #[inline(always)]
    unsafe fn round(self) -> (Self, Self) {
        /// Adding this rounds to an integer and leaves it in the low bits.
        const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
        let rounded = self.map(|x| x + ROUND);
        let shifted = |x: f32| match x.is_nan() {
            true => 0.0,
            false => f32::from_bits(x.to_bits() << 23),
        };
        (rounded.map(|x| x - ROUND), rounded.map(shifted))
    }

    #[inline(always)]
    unsafe fn add_bits(self, bits: Self) -> Self {
        self.zip(bits, |a, b| {
            f32::from_bits(a.to_bits().wrapping_add(b.to_bits()))
        })
    }

    #[inline(always)]
    unsafe fn pair_bf16(self, other: Self) -> Self {
        self.zip(other, |a, b| {
            let [a, b] = [a, b].map(|x| x.to_bits().wrapping_add(HALF_BF16));
            f32::from_bits(a >> 16 | b & UPPER_HALF)
        })
    }

    #[inline(always)]
    unsafe fn split_f16(self) -> [Self; 2] {
        [
            self.map(|x| f16_to_f32(x.to_bits() as u16)),
            self.map(|x| f16_to_f32((x.to_bits() >> 16) as u16)),
        ]
    }

    #[inline(always)]
    unsafe fn split_bf16(self) -> [Self; 2] {
        [
            self.map(|x| f32::from_bits(x.to_bits() << 16)),
            self.map(|x| f32::from_bits(x.to_bits() & UPPER_HALF)),
        ]
    }

    #[inline(always)]
    unsafe fn interleave(lower: *const u16, upper: *const u16) -> [Self; 2] {
        // SAFETY: the caller vouches for eight elements of each.
        let (lower, upper) = unsafe {
            let lower = lower.cast::<[u16; 8]>().read_unaligned();
            (lower, upper.cast::<[u16; 8]>().read_unaligned())
        };
        let word = |i: usize| f32::from_bits(u32::from(lower[i]) | u32::from(upper[i]) << 16);
        [0, 4].map(|first| Portable(std::array::from_fn(|lane| word(first + lane))))
    }

    #[inline(always)]
    unsafe fn transpose(square: &mut [Self; MAX_WIDTH]) {
        let rows: [[f32; 4]; 4] = std::array::from_fn(|row| square[row].0);
        for (column, to) in square[..4].iter_mut().enumerate() {
            *to = Portable(rows.map(|row| row[column]));
        }
    }
}

/// The number that these bits are in IEEE binary16, by integer arithmetic that vectorises everywhere.
#[inline(always)]
fn f16_to_f32(half: u16) -> f32 {
    /// Makes up for the difference between the exponents' biases, 127 - 15. Exact, and turns subnormals into normals.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    /// The first infinity, shifted like all others.
    const INFINITY: u32 = 0x7c00 << 13;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let special = magnitude | f32::INFINITY.to_bits();
    f32::from_bits(
        sign | if magnitude < INFINITY {
            finite
        } else {
            special
        },
    )
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::*;

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(warptile_neon)]
pub(super) use aarch64::*;

#[cfg(warptile_neon)]
mod aarch64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::{Isa, Work};
    use crate::cpu::turn::Widen;

    struct Exp2<'a>(&'a mut [f32]);

    impl Work for Exp2<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
            for piece in self.0.chunks_exact_mut(L::WIDTH) {
                // SAFETY: the caller vouches for the instructions; a piece is as long as a register.
                unsafe { L::load(piece.as_ptr()).exp2().store(piece.as_mut_ptr()) };
            }
        }
    }

    struct PairBf16<'a>(&'a [f32], &'a [f32], &'a mut [f32]);

    impl Work for PairBf16<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
            let pieces = { self.0.chunks_exact(L::WIDTH) }.zip(self.1.chunks_exact(L::WIDTH));
            for ((a, b), to) in pieces.zip(self.2.chunks_exact_mut(L::WIDTH)) {
                // SAFETY: the caller vouches for the instructions; pieces are as long as a register.
                unsafe {
                    let (a, b) = (L::load(a.as_ptr()), L::load(b.as_ptr()));
                    a.pair_bf16(b).store(to.as_mut_ptr());
                }
            }
        }
    }

    #[test]
    fn pairs_are_rounded_to_bf16() {
        let numbers: Vec<f32> = (0..1 << 12).map(|i| (i as f32 - 2e3) * 1.37e-3).collect();
        let others: Vec<f32> = numbers.iter().map(|x| 1.0 / (x + 0.111)).collect();
        for isa in Isa::all() {
            let mut pairs = vec![0.0; numbers.len()];
            isa.run(PairBf16(&numbers, &others, &mut pairs));
            for (i, pair) in pairs.iter().enumerate() {
                let halves = [pair.to_bits() << 16, pair.to_bits() & UPPER_HALF];
                for (half, number) in halves.into_iter().zip([numbers[i], others[i]]) {
                    // None of them is between two of bf16.
                    let expected = half::bf16::from_f32(number).to_f32();
                    assert_eq!(f32::from_bits(half), expected, "{isa:?} {number}");
                }
            }
            let mut special = [f32::NAN; 16];
            isa.run(PairBf16(&[f32::NAN; 16], &[-f32::NAN; 16], &mut special));
            for pair in special.map(f32::to_bits) {
                let halves = [
                    f32::from_bits(pair << 16),
                    f32::from_bits(pair & UPPER_HALF),
                ];
                assert!(halves.into_iter().all(f32::is_nan), "{isa:?}");
            }
        }
    }

    /// Distance in units of the last place of `expected`.
    fn ulps(value: f32, expected: f64) -> f64 {
        let place = f32::from_bits((expected as f32).to_bits() + 1) - expected as f32;
        (f64::from(value) - expected).abs() / f64::from(place)
    }

    #[test]
    fn exp2_is_within_two_ulp() {
        for isa in Isa::all() {
            let numbers: Vec<f32> = (0..1 << 16).map(|i| i as f32 / 290.0 - 126.0).collect();
            let mut found = numbers.clone();
            isa.run(Exp2(&mut found));
            for (x, found) in numbers.into_iter().zip(found) {
                assert!(ulps(found, f64::from(x).exp2()) <= 2.0, "{isa:?} {x}");
            }
            let special = [
                -126.5,
                -1e4,
                -1e10,
                f32::MIN,
                f32::NEG_INFINITY,
                0.0,
                f32::NAN,
                -f32::NAN,
            ];
            let mut found = [special, special].concat();
            isa.run(Exp2(&mut found));
            assert_eq!(found[..6], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0], "{isa:?}");
            assert!(found[6].is_nan() && found[7].is_nan(), "{isa:?}");
            let mut odd = [f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)].repeat(8);
            isa.run(Exp2(&mut odd));
            assert!(odd.iter().all(|x| x.is_nan()), "{isa:?}");
        }
    }

    #[test]
    fn widening_is_exact_for_every_16_bits() {
        fn check<T: Element>(isa: Isa) {
            let bits: Vec<u16> = (0..=u16::MAX).collect();
            let values: &[T] = bytemuck::cast_slice(&bits);
            let mut wide = vec![0.0; values.len()];
            // An odd number of columns, so that some are not in registers.
            for (values, to) in values.chunks(515).zip(wide.chunks_mut(515)) {
                let (rows, factor) = (&[values][..], None);
                isa.run(Widen { rows, factor, to });
            }
            for (value, wide) in values.iter().zip(wide) {
                let expected = value.to_f32();
                assert!(
                    expected == wide || expected.is_nan() && wide.is_nan(),
                    "{isa:?} {value:?}"
                );
                assert_eq!(expected.is_sign_negative(), wide.is_sign_negative());
            }
        }
        for isa in Isa::all() {
            check::<half::f16>(isa);
            check::<half::bf16>(isa);
        }
    }
}
