//! Vector registers of AVX2 and AVX-512.

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
