//! Code that is compiled once for each instruction set, chosen at run time.

#[cfg(warptile_amx)]
use crate::cpu::amx;
use crate::cpu::lanes::*;

/// The most lanes of a panel, with any instructions.
pub(super) const MAX_PANEL: usize = 3 * MAX_WIDTH;

/// A set of vector instructions that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isa {
    set: Set,
    /// Whether there are tile registers for products of `bf16`.
    tiles: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    /// What every machine of the target has.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(all(target_arch = "x86_64", warptile_avx512))]
    Avx512,
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
        let sets = [
            #[cfg(warptile_amx)]
            (amx::usable(), Set::Avx512, true),
            #[cfg(all(target_arch = "x86_64", warptile_avx512))]
            (is_x86_feature_detected!("avx512f"), Set::Avx512, false),
            #[cfg(target_arch = "x86_64")]
            (
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c"),
                Set::Avx2,
                false,
            ),
            (true, Set::Portable, false),
        ];
        let there = sets.into_iter().filter(|(there, ..)| *there);
        there.map(|(_, set, tiles)| Isa { set, tiles })
    }

    /// Whether products of `bf16` may be left to [`amx`](crate::cpu::amx).
    pub(super) fn has_tiles(self) -> bool {
        self.tiles
    }

    /// The best one.
    pub(super) fn best() -> Isa {
        Isa::all().next().unwrap_or(Isa {
            set: Set::Portable,
            tiles: false,
        })
    }

    /// Does some work with these instructions.
    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        match self.set {
            // SAFETY: needs nothing of the machine.
            Set::Portable => unsafe { work.run::<Portable, 4, 2>() },
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn with_avx2<W: Work>(work: W) -> W::Output {
                    // SAFETY: compiled for, and called on, machines that have them.
                    unsafe { work.run::<Avx2, 6, 2>() }
                }
                // SAFETY: the machine has the features: there is no other way to make this value.
                unsafe { with_avx2(work) }
            }
            #[cfg(all(target_arch = "x86_64", warptile_avx512))]
            Set::Avx512 => {
                #[target_feature(enable = "avx512f")]
                fn with_avx512<W: Work>(work: W) -> W::Output {
                    // SAFETY: compiled for, and called on, machines that have it.
                    unsafe { work.run::<Avx512, 8, 3>() }
                }
                // SAFETY: the machine has the feature: there is no other way to make this value.
                unsafe { with_avx512(work) }
            }
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
