//! Code that is compiled once for each instruction set, chosen at run time.

#[cfg(warptile_amx)]
use crate::cpu::amx;
use crate::cpu::engine::Engine;
use crate::cpu::lanes::*;

/// The most lanes of a panel, with any instructions.
pub(super) const MAX_PANEL: usize = 3 * MAX_WIDTH;

/// A set of vector instructions that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isa {
    set: Set,
    /// The instructions for products of pairs of `bf16`.
    pairs: Pairs,
}

/// Instructions that multiply `bf16` numbers two at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pairs {
    None,
    /// Dot products of vectors, an extension of AVX-512.
    Dots,
    /// The instructions of tile registers.
    #[cfg(warptile_amx)]
    Tiles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// Instructions that every machine of the target has.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(all(target_arch = "x86_64", warptile_avx512))]
    Avx512,
    #[cfg(warptile_neon)]
    Neon,
}

/// A piece of work for vector instructions.
pub(super) trait Work {
    type Output;

    /// Sums of `ROWS` times `COLUMNS` registers, with a row of `COLUMNS` registers and one more, are what registers hold.
    ///
    /// # Safety
    /// The machine has the instructions of `L`. Inlined always, and so is what it calls, so that all is compiled for them.
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) -> Self::Output;
}

impl Isa {
    /// All that this machine has, the best first.
    pub(super) fn all() -> impl Iterator<Item = Isa> {
        #[cfg(all(target_arch = "x86_64", warptile_avx512))]
        let dots = (
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512bf16"),
            Set::Avx512,
            Pairs::Dots,
        );
        // Never there; so what handles it is compiled everywhere.
        #[cfg(not(all(target_arch = "x86_64", warptile_avx512)))]
        let dots = (false, Set::Portable, Pairs::Dots);
        let sets = [
            #[cfg(warptile_amx)]
            (amx::usable(), Set::Avx512, Pairs::Tiles),
            dots,
            #[cfg(all(target_arch = "x86_64", warptile_avx512))]
            (
                is_x86_feature_detected!("avx512f"),
                Set::Avx512,
                Pairs::None,
            ),
            #[cfg(target_arch = "x86_64")]
            (
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c"),
                Set::Avx2,
                Pairs::None,
            ),
            #[cfg(warptile_neon)]
            (true, Set::Neon, Pairs::None),
            (true, Set::Portable, Pairs::None),
        ];
        let there = sets.into_iter().filter(|(there, ..)| *there);
        there.map(|(_, set, pairs)| Isa { set, pairs })
    }

    /// The engine that multiplies pairs of `bf16`, if these instructions do it faster than numbers of `f32`.
    pub(super) fn engine(self) -> Option<Engine> {
        match self.pairs {
            Pairs::None => None,
            Pairs::Dots => Some(Engine::Dots(self)),
            #[cfg(warptile_amx)]
            Pairs::Tiles => Some(Engine::Tiles(amx::Tiles::new())),
        }
    }

    /// The best instruction set that this machine has.
    pub(super) fn best() -> Isa {
        Isa::all().next().unwrap_or(Isa {
            set: Set::Portable,
            pairs: Pairs::None,
        })
    }

    /// Does some work with these instructions.
    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        match self.set {
            // SAFETY: needs nothing of the machine.
            Set::Portable => unsafe { work.run::<Portable, 4, 2>() },
            // SAFETY: every machine of the target has them.
            #[cfg(warptile_neon)]
            Set::Neon => unsafe { work.run::<Neon, 8, 3>() },
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn with_avx2<W: Work>(work: W) -> W::Output {
                    // SAFETY: compiled for, and called on, machines that have them.
                    unsafe { work.run::<Avx2, 6, 2>() }
                }
                // SAFETY: the machine has the features: this value can only be made if it has.
                unsafe { with_avx2(work) }
            }
            #[cfg(all(target_arch = "x86_64", warptile_avx512))]
            Set::Avx512 => {
                #[target_feature(enable = "avx512f")]
                fn with_avx512<W: Work>(work: W) -> W::Output {
                    // SAFETY: compiled for, and called on, machines that have it.
                    unsafe { work.run::<Avx512, 8, 3>() }
                }
                // SAFETY: the machine has the feature: this value can only be made if it has.
                unsafe { with_avx512(work) }
            }
        }
    }

    /// Does some work that calls [`Lanes::dot`] or [`Lanes::interleave`].
    pub(super) fn run_dots<W: Work>(self, work: W) -> W::Output {
        match self.pairs {
            #[cfg(all(target_arch = "x86_64", warptile_avx512))]
            Pairs::Dots => {
                #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
                fn with_dots<W: Work>(work: W) -> W::Output {
                    // SAFETY: compiled for, and called on, machines that have them.
                    unsafe { work.run::<Avx512, 8, 3>() }
                }
                // SAFETY: the machine has the features: this value can only be made if it has.
                unsafe { with_dots(work) }
            }
            // Elsewhere only tests come here.
            // SAFETY: needs nothing of the machine.
            _ => unsafe { work.run::<Portable, 4, 2>() },
        }
    }

    /// Numbers in a register.
    pub(super) fn width(self) -> usize {
        self.run(Width)
    }

    /// Lanes of a full panel.
    pub(super) fn panel(self) -> usize {
        self.run(Panel)
    }
}

struct Width;

impl Work for Width {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) -> usize {
        L::WIDTH
    }
}

struct Panel;

impl Work for Panel {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) -> usize {
        COLUMNS * L::WIDTH
    }
}
