//! A row of a panel in vector registers.
//!
//! The inner loop of a matrix product must keep its sums in registers; compilers do that for vector types, but not
//! reliably for arrays of numbers, hence the intrinsics.

use crate::cpu::matmul::PANEL;

/// [`PANEL`] numbers in as many registers as it takes.
pub(super) trait Lanes: Copy {
    /// All 0.
    ///
    /// # Safety
    /// The machine has the vector instructions of the implementing type. This holds for every method of the trait.
    unsafe fn zero() -> Self;

    /// The numbers of a row.
    ///
    /// # Safety
    /// As [`Lanes::zero`].
    unsafe fn load(row: &[f32; PANEL]) -> Self;

    /// `self + factor * row`.
    ///
    /// # Safety
    /// As [`Lanes::zero`].
    unsafe fn add_scaled(self, factor: f32, row: Self) -> Self;

    /// Writes the numbers to a row.
    ///
    /// # Safety
    /// As [`Lanes::zero`].
    unsafe fn store(self, row: &mut [f32; PANEL]);
}

/// What any machine can do; compilers turn groups of four into its vector instructions.
#[derive(Clone, Copy)]
pub(super) struct Portable([[f32; 4]; PANEL / 4]);

impl Lanes for Portable {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Portable([[0.0; 4]; PANEL / 4])
    }

    #[inline(always)]
    unsafe fn load(row: &[f32; PANEL]) -> Self {
        Portable(bytemuck::cast(*row))
    }

    #[inline(always)]
    unsafe fn add_scaled(mut self, factor: f32, row: Self) -> Self {
        for (sums, row) in self.0.iter_mut().zip(row.0) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum = match cfg!(target_arch = "aarch64") {
                    true => factor.mul_add(x, *sum),
                    false => factor * x + *sum,
                };
            }
        }
        self
    }

    #[inline(always)]
    unsafe fn store(self, row: &mut [f32; PANEL]) {
        *row = bytemuck::cast(self.0);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::*;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{Lanes, PANEL};
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($(#[$attribute:meta])* $name:ident, $register:ty, $width:literal,
         $zero:ident, $load:ident, $splat:ident, $fma:ident, $store:ident) => {
            $(#[$attribute])*
            #[derive(Clone, Copy)]
            pub(in crate::cpu) struct $name([$register; PANEL / $width]);

            $(#[$attribute])*
            impl Lanes for $name {
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the caller vouches for the instruction set.
                    $name([unsafe { $zero() }; PANEL / $width])
                }

                #[inline(always)]
                unsafe fn load(row: &[f32; PANEL]) -> Self {
                    // SAFETY: as above; register `i` reads `$width` numbers from `$width * i`, all within the row.
                    $name(std::array::from_fn(|i| unsafe { $load(row.as_ptr().add($width * i)) }))
                }

                #[inline(always)]
                unsafe fn add_scaled(mut self, factor: f32, row: Self) -> Self {
                    // SAFETY: the caller vouches for the instruction set.
                    let factor = unsafe { $splat(factor) };
                    for (sum, x) in self.0.iter_mut().zip(row.0) {
                        // SAFETY: the same.
                        *sum = unsafe { $fma(factor, x, *sum) };
                    }
                    self
                }

                #[inline(always)]
                unsafe fn store(self, row: &mut [f32; PANEL]) {
                    for (i, register) in self.0.into_iter().enumerate() {
                        // SAFETY: as in `load`.
                        unsafe { $store(row.as_mut_ptr().add($width * i), register) };
                    }
                }
            }
        };
    }

    lanes! {
        Avx2, __m256, 8,
        _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps
    }

    lanes! {
        // Only compiled where build.rs found a compiler that has it.
        #[cfg(warptile_avx512)]
        #[clippy::msrv = "1.89"]
        Avx512, __m512, 16,
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps
    }
}
