//! Vector registers of `f32`, one type for each instruction set.
//!
//! The inner loop of a matrix product must keep its sums in registers; compilers do that for vector types, but not
//! reliably for arrays of numbers, hence the intrinsics.

use crate::element::{Element, ElementType};

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
/// Of every method: the machine has the instructions of the implementing type. Of methods that take a pointer: it leads to
/// [`Lanes::WIDTH`] numbers that may be read, or written, in any alignment of the element.
pub(super) trait Lanes: Copy {
    /// Numbers in a register; divides [`MAX_WIDTH`].
    const WIDTH: usize;

    /// Whether a fused multiply-add is one instruction.
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
    /// Of each lane a pair of `bf16`: this number in the lower half, the other in the upper one. Rounded to the nearest, ties away from
    /// 0. A NaN whose low 16 bits are 0, as of `bf16` inputs and of arithmetic, stays one.
    unsafe fn pair_bf16(self, other: Self) -> Self;
    /// Of each lane a pair of `f16`, that in the lower half first: the numbers of both.
    unsafe fn split_f16(self) -> [Self; 2];
    /// Of each lane a pair of `bf16`, that in the lower half first: the numbers of both.
    unsafe fn split_bf16(self) -> [Self; 2];
    /// Adds the products of two pairs of `bf16` in each lane: `sum + low low + high high`. Products are exact. Where one instruction does
    /// it, numbers below the normal ones count as 0.
    unsafe fn dot(self, other: Self, sum: Self) -> Self;
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

/// What any machine can do; compilers turn groups of four into its vector instructions.
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
    unsafe fn dot(self, other: Self, sum: Self) -> Self {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let ([low, high], [other_low, other_high]) = (self.split_bf16(), other.split_bf16());
            high.mul_add(other_high, low.mul_add(other_low, sum))
        }
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
mod x86_64 {
    use super::{HALF_BF16, Lanes, MAX_WIDTH, UPPER_HALF};
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($(#[$attribute:meta])* $name:ident($register:ty), $width:literal, {
            splat: $splat:ident, load: $load:ident, store: $store:ident, add: $add:ident, sub: $sub:ident, mul: $mul:ident,
            fma: $fma:ident, max: $max:ident, to_integers: $to_integers:ident, to_numbers: $to_numbers:ident,
            shift: $shift:ident, shift_right: $shift_right:ident, integers: $integers:ident, and: $and:ident, or: $or:ident,
            add_integers: $add_integers:ident, as_integers: $as_integers:ident,
            as_numbers: $as_numbers:ident, half_of: $half_of:ident, widen_f16: $widen_f16:ident,
            widen_u16: $widen_u16:ident, half: $half:ty
        } $($method:item)*) => {
            $(#[$attribute])*
            #[derive(Clone, Copy)]
            pub(in crate::cpu) struct $name($register);

            $(#[$attribute])*
            // SAFETY (of every block below): the caller vouches for the instructions, and for the memory behind a pointer.
            #[expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all")]
            impl Lanes for $name {
                const WIDTH: usize = $width;
                const FMA: bool = true;

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    $name(unsafe { $splat(x) })
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    $name(unsafe { $load(from) })
                }

                #[inline(always)]
                unsafe fn load_f16(from: *const u16) -> Self {
                    $name(unsafe { $widen_f16($half_of(from.cast::<$half>())) })
                }

                #[inline(always)]
                unsafe fn load_bf16(from: *const u16) -> Self {
                    $name(unsafe { $as_numbers($shift::<16>($widen_u16($half_of(from.cast::<$half>())))) })
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    unsafe { $store(to, self.0) };
                }

                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    $name(unsafe { $add(self.0, other.0) })
                }

                #[inline(always)]
                unsafe fn sub(self, other: Self) -> Self {
                    $name(unsafe { $sub(self.0, other.0) })
                }

                #[inline(always)]
                unsafe fn mul(self, other: Self) -> Self {
                    $name(unsafe { $mul(self.0, other.0) })
                }

                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
                    $name(unsafe { $fma(self.0, factor.0, summand.0) })
                }

                #[inline(always)]
                unsafe fn max(self, other: Self) -> Self {
                    $name(unsafe { $max(self.0, other.0) })
                }

                #[inline(always)]
                unsafe fn round(self) -> (Self, Self) {
                    // A NaN becomes the integer -2^31, whose low bits are 0.
                    unsafe {
                        let integers = $to_integers(self.0);
                        ($name($to_numbers(integers)), $name($as_numbers($shift::<23>(integers))))
                    }
                }

                #[inline(always)]
                unsafe fn add_bits(self, bits: Self) -> Self {
                    $name(unsafe { $as_numbers($add_integers($as_integers(self.0), $as_integers(bits.0))) })
                }

                #[inline(always)]
                unsafe fn pair_bf16(self, other: Self) -> Self {
                    unsafe {
                        let half = $integers(HALF_BF16.cast_signed());
                        let lower = $add_integers($as_integers(self.0), half);
                        let upper = $add_integers($as_integers(other.0), half);
                        let upper = $and(upper, $integers(UPPER_HALF.cast_signed()));
                        $name($as_numbers($or($shift_right::<16>(lower), upper)))
                    }
                }

                #[inline(always)]
                unsafe fn split_bf16(self) -> [Self; 2] {
                    unsafe {
                        let bits = $as_integers(self.0);
                        let upper = $and(bits, $integers(UPPER_HALF.cast_signed()));
                        [$name($as_numbers($shift::<16>(bits))), $name($as_numbers(upper))]
                    }
                }

                #[inline(always)]
                unsafe fn prefetch<T>(address: *const T) {
                    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
                }

                $($method)*
            }
        };
    }

    lanes! {
        Avx2(__m256), 8, {
            splat: _mm256_set1_ps, load: _mm256_loadu_ps, store: _mm256_storeu_ps, add: _mm256_add_ps,
            sub: _mm256_sub_ps, mul: _mm256_mul_ps, fma: _mm256_fmadd_ps, max: _mm256_max_ps,
            to_integers: _mm256_cvtps_epi32, to_numbers: _mm256_cvtepi32_ps, shift: _mm256_slli_epi32,
            shift_right: _mm256_srli_epi32, integers: _mm256_set1_epi32, and: _mm256_and_si256, or: _mm256_or_si256,
            add_integers: _mm256_add_epi32, as_integers: _mm256_castps_si256, as_numbers: _mm256_castsi256_ps,
            half_of: _mm_loadu_si128, widen_f16: _mm256_cvtph_ps, widen_u16: _mm256_cvtepu16_epi32, half: __m128i
        }

        #[inline(always)]
        unsafe fn zero_below(self, bound: Self, value: Self) -> Self {
            Avx2(unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0), value.0) })
        }

        #[inline(always)]
        unsafe fn split_f16(self) -> [Self; 2] {
            unsafe {
                let bits = _mm256_castps_si256(self.0);
                let lower = _mm256_blend_epi16::<0xaa>(bits, _mm256_setzero_si256());
                // Numbers of 4 lanes of the lower half, of the same of the upper half, then of the other 4 lanes.
                let halves = _mm256_packus_epi32(lower, _mm256_srli_epi32::<16>(bits));
                let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(halves);
                [
                    Avx2(_mm256_cvtph_ps(_mm256_castsi256_si128(halves))),
                    Avx2(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves))),
                ]
            }
        }

        #[inline(always)]
        unsafe fn dot(self, other: Self, sum: Self) -> Self {
            unsafe {
                let ([low, high], [other_low, other_high]) = (self.split_bf16(), other.split_bf16());
                high.mul_add(other_high, low.mul_add(other_low, sum))
            }
        }

        #[inline(always)]
        unsafe fn interleave(lower: *const u16, upper: *const u16) -> [Self; 2] {
            unsafe {
                let lower = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_loadu_si256(lower.cast()));
                let upper = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_loadu_si256(upper.cast()));
                [
                    Avx2(_mm256_castsi256_ps(_mm256_unpacklo_epi16(lower, upper))),
                    Avx2(_mm256_castsi256_ps(_mm256_unpackhi_epi16(lower, upper))),
                ]
            }
        }

        #[inline(always)]
        unsafe fn transpose(square: &mut [Self; MAX_WIDTH]) {
            // Half h of register j of quad i: column 4 h + j of rows 4 i to 4 i + 3. No closures: they would be compiled without the
            // instructions.
            for row in [0, 4] {
                unsafe {
                    let (a, b) = (square[row].0, square[row + 1].0);
                    let (c, d) = (square[row + 2].0, square[row + 3].0);
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    square[row] = Avx2(_mm256_shuffle_ps::<0x44>(ab, cd));
                    square[row + 1] = Avx2(_mm256_shuffle_ps::<0xee>(ab, cd));
                    let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    square[row + 2] = Avx2(_mm256_shuffle_ps::<0x44>(ab, cd));
                    square[row + 3] = Avx2(_mm256_shuffle_ps::<0xee>(ab, cd));
                }
            }
            for column in 0..4 {
                let (upper, lower) = (square[column].0, square[column + 4].0);
                square[column] = Avx2(unsafe { _mm256_permute2f128_ps::<0x20>(upper, lower) });
                square[column + 4] = Avx2(unsafe { _mm256_permute2f128_ps::<0x31>(upper, lower) });
            }
        }
    }

    /// Which elements of two registers of 32, numbered one after the other, go into two of words: one of each in turn.
    #[cfg(warptile_avx512)]
    const INTERLEAVED: [[u16; 32]; 2] = {
        let mut places = [[0; 32]; 2];
        let mut i = 0;
        while i < 32 {
            places[i / 16][2 * (i % 16)] = i as u16;
            places[i / 16][2 * (i % 16) + 1] = 32 + i as u16;
            i += 1;
        }
        places
    };

    lanes! {
        // Only compiled where build.rs found a compiler that has it.
        #[cfg(warptile_avx512)]
        #[clippy::msrv = "1.89"]
        Avx512(__m512), 16, {
            splat: _mm512_set1_ps, load: _mm512_loadu_ps, store: _mm512_storeu_ps, add: _mm512_add_ps,
            sub: _mm512_sub_ps, mul: _mm512_mul_ps, fma: _mm512_fmadd_ps, max: _mm512_max_ps,
            to_integers: _mm512_cvtps_epi32, to_numbers: _mm512_cvtepi32_ps, shift: _mm512_slli_epi32,
            shift_right: _mm512_srli_epi32, integers: _mm512_set1_epi32, and: _mm512_and_si512, or: _mm512_or_si512,
            add_integers: _mm512_add_epi32, as_integers: _mm512_castps_si512, as_numbers: _mm512_castsi512_ps,
            half_of: _mm256_loadu_si256, widen_f16: _mm512_cvtph_ps, widen_u16: _mm512_cvtepu16_epi32, half: __m256i
        }

        #[inline(always)]
        unsafe fn zero_below(self, bound: Self, value: Self) -> Self {
            // Not less than, or unordered.
            Avx512(unsafe {
                let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, bound.0);
                _mm512_maskz_mov_ps(kept, value.0)
            })
        }

        #[inline(always)]
        unsafe fn split_f16(self) -> [Self; 2] {
            unsafe {
                let lower = _mm512_castps_si512(self.0);
                let upper = _mm512_srli_epi32::<16>(lower);
                [
                    Avx512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(lower))),
                    Avx512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(upper))),
                ]
            }
        }

        #[inline(always)]
        unsafe fn dot(self, other: Self, sum: Self) -> Self {
            // SAFETY (beyond that of all blocks): only `Isa::run_dots` calls what calls this, where the machine has the instruction.
            unsafe {
                let [a, b] = std::mem::transmute::<[__m512; 2], [__m512bh; 2]>([self.0, other.0]);
                Avx512(_mm512_dpbf16_ps(sum.0, a, b))
            }
        }

        #[inline(always)]
        unsafe fn interleave(lower: *const u16, upper: *const u16) -> [Self; 2] {
            // SAFETY: as of `dot`.
            unsafe {
                let (lower, upper) = (_mm512_loadu_si512(lower.cast()), _mm512_loadu_si512(upper.cast()));
                let first = _mm512_loadu_si512(INTERLEAVED[0].as_ptr().cast());
                let second = _mm512_loadu_si512(INTERLEAVED[1].as_ptr().cast());
                [
                    Avx512(_mm512_castsi512_ps(_mm512_permutex2var_epi16(lower, first, upper))),
                    Avx512(_mm512_castsi512_ps(_mm512_permutex2var_epi16(lower, second, upper))),
                ]
            }
        }

        #[inline(always)]
        unsafe fn transpose(square: &mut [Self; MAX_WIDTH]) {
            // Quarter q of register j of quad i: column 4 q + j of rows 4 i to 4 i + 3.
            for row in [0, 4, 8, 12] {
                unsafe {
                    let (a, b) = (square[row].0, square[row + 1].0);
                    let (c, d) = (square[row + 2].0, square[row + 3].0);
                    let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
                    square[row] = Avx512(_mm512_shuffle_ps::<0x44>(ab, cd));
                    square[row + 1] = Avx512(_mm512_shuffle_ps::<0xee>(ab, cd));
                    let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
                    square[row + 2] = Avx512(_mm512_shuffle_ps::<0x44>(ab, cd));
                    square[row + 3] = Avx512(_mm512_shuffle_ps::<0xee>(ab, cd));
                }
            }
            for column in 0..4 {
                let (a, b) = (square[column].0, square[column + 4].0);
                let (c, d) = (square[column + 8].0, square[column + 12].0);
                unsafe {
                    let (ab, cd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d));
                    square[column] = Avx512(_mm512_shuffle_f32x4::<0x88>(ab, cd));
                    square[column + 8] = Avx512(_mm512_shuffle_f32x4::<0xdd>(ab, cd));
                    let (ab, cd) = (_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d));
                    square[column + 4] = Avx512(_mm512_shuffle_f32x4::<0x88>(ab, cd));
                    square[column + 12] = Avx512(_mm512_shuffle_f32x4::<0xdd>(ab, cd));
                }
            }
        }
    }
}

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
