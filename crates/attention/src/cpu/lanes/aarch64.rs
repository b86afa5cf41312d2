//! Vector registers of NEON, which every processor of the target has.

use super::{HALF_BF16, Lanes, MAX_WIDTH, UPPER_HALF};
use std::arch::{aarch64::*, asm};

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon(float32x4_t);

impl Neon {
    #[inline(always)]
    fn of_bits(bits: uint32x4_t) -> Self {
        // SAFETY: the target has NEON.
        Neon(unsafe { vreinterpretq_f32_u32(bits) })
    }

    #[inline(always)]
    fn bits(self) -> uint32x4_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_u32_f32(self.0) }
    }

    /// The numbers that these bits are in `f16`.
    #[inline(always)]
    fn of_f16(halves: uint16x4_t) -> Self {
        let numbers: float32x4_t;
        // SAFETY: the target has NEON, and this is an instruction of it, which computes `numbers` and, of
        // numbers that signal, sets a flag of the floating-point status. The oldest supported compiler has no name for it.
        unsafe {
            asm!(
                "fcvtl {numbers:v}.4s, {halves:v}.4h",
                numbers = lateout(vreg) numbers,
                halves = in(vreg) halves,
                options(pure, nomem, nostack)
            );
        }
        Neon(numbers)
    }
}

// SAFETY (of every block below): the target has NEON, and the caller vouches for the memory behind a pointer.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one argument for all")]
impl Lanes for Neon {
    const WIDTH: usize = 4;
    const FMA: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Neon(unsafe { vdupq_n_f32(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Neon(unsafe { vld1q_f32(from) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Neon::of_f16(unsafe { vld1_u16(from) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        Neon::of_bits(unsafe { vshlq_n_u32::<16>(vmovl_u16(vld1_u16(from))) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { vst1q_f32(to, self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Neon(unsafe { vaddq_f32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Neon(unsafe { vsubq_f32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Neon(unsafe { vmulq_f32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, summand: Self) -> Self {
        Neon(unsafe { vfmaq_f32(summand.0, self.0, factor.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // The instruction for it would let a NaN through.
        Neon(unsafe { vbslq_f32(vcgtq_f32(self.0, other.0), self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn zero_below(self, bound: Self, value: Self) -> Self {
        Neon::of_bits(unsafe { vbicq_u32(value.bits(), vcltq_f32(self.0, bound.0)) })
    }

    #[inline(always)]
    unsafe fn round(self) -> (Self, Self) {
        // A NaN becomes the integer 0.
        unsafe {
            let integers = vcvtnq_s32_f32(self.0);
            let exponents = vshlq_n_u32::<23>(vreinterpretq_u32_s32(integers));
            (Neon(vcvtq_f32_s32(integers)), Neon::of_bits(exponents))
        }
    }

    #[inline(always)]
    unsafe fn add_bits(self, bits: Self) -> Self {
        Neon::of_bits(unsafe { vaddq_u32(self.bits(), bits.bits()) })
    }

    #[inline(always)]
    unsafe fn pair_bf16(self, other: Self) -> Self {
        unsafe {
            let half = vdupq_n_u32(HALF_BF16);
            let (lower, upper) = (vaddq_u32(self.bits(), half), vaddq_u32(other.bits(), half));
            // The lower one's upper half goes below the other's.
            Neon::of_bits(vsriq_n_u32::<16>(upper, lower))
        }
    }

    #[inline(always)]
    unsafe fn split_f16(self) -> [Self; 2] {
        unsafe { [vmovn_u32(self.bits()), vshrn_n_u32::<16>(self.bits())].map(Neon::of_f16) }
    }

    #[inline(always)]
    unsafe fn split_bf16(self) -> [Self; 2] {
        unsafe {
            let upper = vandq_u32(self.bits(), vdupq_n_u32(UPPER_HALF));
            [vshlq_n_u32::<16>(self.bits()), upper].map(Neon::of_bits)
        }
    }

    #[inline(always)]
    unsafe fn interleave(lower: *const u16, upper: *const u16) -> [Self; 2] {
        unsafe {
            let (lower, upper) = (vld1q_u16(lower), vld1q_u16(upper));
            let halves = [vzip1q_u16(lower, upper), vzip2q_u16(lower, upper)];
            halves.map(|words| Neon::of_bits(vreinterpretq_u32_u16(words)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(square: &mut [Self; MAX_WIDTH]) {
        unsafe {
            let pairs = |a: float32x4_t, b: float32x4_t| {
                let even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
                (even, vreinterpretq_f64_f32(vtrn2q_f32(a, b)))
            };
            let (top, bottom) = (
                pairs(square[0].0, square[1].0),
                pairs(square[2].0, square[3].0),
            );
            let columns = [
                vtrn1q_f64(top.0, bottom.0),
                vtrn1q_f64(top.1, bottom.1),
                vtrn2q_f64(top.0, bottom.0),
                vtrn2q_f64(top.1, bottom.1),
            ];
            for (column, to) in columns.into_iter().zip(&mut square[..4]) {
                *to = Neon(vreinterpretq_f32_f64(column));
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(address: *const T) {
        unsafe {
            asm!(
                "prfm pldl2keep, [{address}]",
                address = in(reg) address,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
}
