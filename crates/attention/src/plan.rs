//! Problem to plan: which kernels run, how they are launched, and why every other kernel does not run.
//!
//! Planning is a pure function of the problem, the device's limits, the rates and the catalog; it needs no GPU.

#[cfg(test)]
mod extremes;
mod heads_at_once;
mod pairs;
mod planner;
mod settings;
mod shared_keys;
mod split_tiles;
mod step;
mod tile_order;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use warptile_kernels::{ElementType, Features, Image, Target};

use crate::choice::Choice;
use crate::device::DeviceProfile;
use crate::rates::Standing;
use crate::{Problem, Result};

pub(crate) use pairs::Numbered;
use planner::MAX_CTAS_PER_MULTIPROCESSOR;
pub use planner::Planner;
pub(crate) use planner::{alone_bytes, check_images, preference};
pub use settings::Settings;
use split_tiles::PARTS_A_CTA;
pub(crate) use split_tiles::{TileKeys, rest_keys, splits_of, splits_tiles};
pub use step::{LaunchShape, Scratch, Step};
#[cfg(test)]
pub(crate) use tile_order::SEARCHES;
pub(crate) use tile_order::tile_order;

/// Where and how a problem will be computed. A cheap handle: clones are the same plan.
#[derive(Clone)]
pub struct Plan {
    inner: Arc<Inner>,
}

struct Inner {
    problem: Problem,
    /// `None` on the CPU.
    device: Option<DeviceProfile>,
    /// In the order in which they run; none on the CPU.
    steps: Vec<Step>,
    considered: Vec<Considered>,
    basis: Option<Basis>,
}

/// What the choice of a kernel rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Basis {
    /// What the rates of the chosen kernel are worth on the device.
    pub standing: Standing,
    /// The GPU that the rates are of.
    pub rates_of: String,
    /// Whether that is the device's own kind.
    pub of_this_gpu: bool,
    /// Whether trials chose the kernel for this very problem.
    pub tuned: bool,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tuned, self.standing) {
            (true, _) => write!(f, "measured for this problem on {}", self.rates_of),
            (_, Standing::Measured) => write!(f, "measured on {}", self.rates_of),
            (_, Standing::Modelled) => {
                let of = match self.of_this_gpu {
                    true => "another, scaled",
                    false => &self.rates_of,
                };
                write!(
                    f,
                    "modelled: nobody has measured this kernel on this GPU; the rates are those of {of}"
                )
            }
            (_, Standing::Unknown) => {
                f.write_str("guessed: no kernel with rates applies, and this one has none")
            }
        }
    }
}

/// A kernel that was considered and will not run, and why.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Considered {
    /// Kernel name, `{family}_{tiling}`.
    pub kernel: &'static str,
    /// Why not.
    pub reason: Reason,
}

/// Why a kernel will not run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// It was not compiled for the problem's element type.
    Element(ElementType),
    /// Its tiles are too narrow for the head size.
    HeadDim {
        /// Head size its tiles are laid out for.
        laid_out_for: u32,
    },
    /// They are too narrow for the head size of the values.
    ValueDim {
        /// Head size of values its tiles are laid out for.
        laid_out_for: u32,
    },
    /// No image of it runs on the device.
    NoImage {
        /// What it was compiled for.
        targets: Vec<Target>,
    },
    /// A CTA needs more shared memory than the device gives.
    SharedMemory {
        /// Bytes needed.
        needed: u32,
        /// Bytes a CTA may have.
        available: u32,
    },
    /// It cannot do something that the problem needs.
    Lacks(Features),
    /// It reads keys and values of this type only.
    OnlyKeys(ElementType),
    /// It cannot cut keys at fixed places, which [`Splits::EveryKeys`](crate::Splits::EveryKeys) asks for.
    Splits,
    /// Its CTAs compute two tiles at a time that see the same keys, and this problem has none: neither is the number of query heads even
    /// that share a key/value head, nor does every query see all keys.
    Pairs,
    /// The rows of its tiles are those of all query heads that share a key/value head, and this problem has another number of them than those it
    /// was made for.
    Groups,
    /// Its CTAs come in clusters, of which the device can hold none.
    Clusters,
    /// It loads keys out of pages in boxes of whole rows, and pages of this size leave none that is large enough.
    PageRows {
        /// The largest power of two that divides the rows of a page.
        rows: usize,
        /// What it must be at least.
        least: usize,
    },
    /// It would have more tiles than a launch can have.
    Grid {
        /// Tiles needed.
        ctas: u64,
    },
    /// It applies, but another is expected to be faster.
    Slower {
        /// Its estimated time over that of the chosen kernel.
        times: f64,
    },
    /// It applies, but it has no rates, and one that has applies too.
    Unmeasured,
    /// It applies, but trials chose another for this problem.
    Tuned,
    /// It applies, but another was asked for.
    NotRequested,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Element(element) => write!(f, "not compiled for {element}"),
            Reason::HeadDim { laid_out_for } => {
                write!(f, "its tiles hold head sizes up to {laid_out_for}")
            }
            Reason::ValueDim { laid_out_for } => {
                write!(f, "its tiles hold values of head sizes up to {laid_out_for}")
            }
            Reason::NoImage { targets } => {
                f.write_str("no image for this device (compiled for")?;
                targets
                    .iter()
                    .try_for_each(|target| write!(f, " {target}"))?;
                f.write_char(')')
            }
            Reason::SharedMemory { needed, available } => {
                write!(
                    f,
                    "needs {needed} bytes of shared memory; the device gives a CTA {available}"
                )
            }
            Reason::Lacks(features) => write!(f, "does not support {features}"),
            Reason::OnlyKeys(keys) => write!(f, "reads keys and values in {keys} only"),
            Reason::Splits => f.write_str("cannot cut keys at fixed places"),
            Reason::Clusters => f.write_str("the device can hold none of its clusters of CTAs"),
            Reason::Pairs => f.write_str(
                "computes pairs of tiles that see the same keys: an even number of query heads that share a key/value head, or no mask",
            ),
            Reason::Groups => f.write_str("takes 2 or 4 query heads that share a key/value head"),
            Reason::PageRows { rows, least } => write!(
                f,
                "takes pages of a multiple of {least} rows; {rows} is the largest power of two in these"
            ),
            Reason::Grid { ctas } => write!(f, "needs {ctas} tiles; a launch can have {MAX_TILES}"),
            Reason::Unmeasured => f.write_str("applies, but has no rates: it runs only by name"),
            Reason::Tuned => f.write_str("applies, but trials chose another for this problem"),
            Reason::Slower { times } => {
                write!(f, "applies, expected to take {times:.2} times as long")
            }
            Reason::NotRequested => f.write_str("applies, but another kernel was asked for"),
        }
    }
}

/// CTAs that a device can hold at once, at most.
const MAX_RESIDENT: u64 =
    DeviceProfile::MAX_MULTIPROCESSORS as u64 * MAX_CTAS_PER_MULTIPROCESSOR as u64;

/// The most tiles of a launch: what a grid can have along x (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability"), less the parts that persistent CTAs have of split tiles, and the numbers that they draw when nothing is left.
pub(crate) const MAX_TILES: u64 = (1 << 31) - 1 - (PARTS_A_CTA as u64 + 1) * MAX_RESIDENT;

impl Plan {
    /// A plan for the CPU path.
    #[must_use]
    pub fn cpu(problem: Problem) -> Self {
        Self::new(problem, None, Vec::new(), Vec::new(), None)
    }

    /// Chooses kernels for `problem` on `device` from the embedded catalog and the embedded rates; [`Planner`] takes others.
    ///
    /// # Errors
    /// [`Error::UnknownName`](crate::Error::UnknownName) if the catalog has no kernel or image of the name asked for;
    /// [`Error::NoKernel`](crate::Error::NoKernel) with every kernel's reason if none, or not the one asked for, can run;
    /// [`Error::NoImages`](crate::Error::NoImages) if the program has no kernels for the device at all;
    /// [`Error::Profile`](crate::Error::Profile) if there can be no such device.
    pub fn gpu(problem: Problem, device: &DeviceProfile, choice: &Choice) -> Result<Self> {
        Planner::new(device).plan(problem, choice)
    }

    fn new(
        problem: Problem,
        device: Option<DeviceProfile>,
        steps: Vec<Step>,
        considered: Vec<Considered>,
        basis: Option<Basis>,
    ) -> Self {
        Plan {
            inner: Arc::new(Inner {
                problem,
                device,
                steps,
                considered,
                basis,
            }),
        }
    }

    /// The same with as many CTAs in clusters as the device can hold, a number for each step.
    pub(crate) fn with_clustered_ctas(self, ctas: &[Option<u32>]) -> Self {
        if ctas.iter().all(Option::is_none) {
            return self;
        }
        let mut steps = self.inner.steps.clone();
        for (step, &ctas) in steps.iter_mut().zip(ctas) {
            step.clustered_ctas = ctas;
        }
        Self::new(
            self.inner.problem,
            self.inner.device.clone(),
            steps,
            self.inner.considered.clone(),
            self.inner.basis.clone(),
        )
    }

    /// The problem this plan solves.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.inner.problem
    }

    /// The device the plan is for; `None` for the CPU.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceProfile> {
        self.inner.device.as_ref()
    }

    /// The kernels that run, in order; none on the CPU.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.inner.steps
    }

    /// The image of the step that computes the output; `None` on the CPU.
    #[must_use]
    pub fn image(&self) -> Option<&'static Image> {
        self.steps().first().map(|step| step.image)
    }

    /// That image's kernel, `cpu` on the CPU.
    #[must_use]
    pub fn kernel_name(&self) -> &'static str {
        self.image().map_or("cpu", |image| image.kernel)
    }

    /// Device memory that a launch of any call of the problem needs beside the tensors. It belongs to one stream or one graph at a time.
    /// With [`Splits::EveryKeys`](crate::Splits::EveryKeys) it grows with the queries and keys of the problem.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch::of(self.problem(), self.steps())
    }

    /// Whether every row of every tensor has to start at a multiple of 16 bytes.
    #[must_use]
    pub fn needs_alignment(&self) -> bool {
        self.steps()
            .iter()
            .any(|step| !step.image.features.contains(Features::UNALIGNED))
    }

    /// Every kernel that was not chosen, and why.
    #[must_use]
    pub fn considered(&self) -> &[Considered] {
        &self.inner.considered
    }

    /// What the choice rests on; `None` on the CPU, which has no choice.
    #[must_use]
    pub fn basis(&self) -> Option<&Basis> {
        self.inner.basis.as_ref()
    }

    /// A readable account of the choice: problem, device, kernels, and the reason for each kernel left out.
    #[must_use]
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

/// In a line: [`Plan::explain`] has the kernels that were not chosen.
impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device().map_or("CPU", |device| &device.name);
        let problem = self.problem();
        write!(f, "Plan({problem} on {device} by {})", self.kernel_name())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "problem  {}", self.problem())?;
        let Some(device) = self.device() else {
            return writeln!(
                f,
                "device   cpu\nkernel   cpu (tiled online softmax over all cores)"
            );
        };
        writeln!(
            f,
            "device   {} (compute capability {}.{}, {} multiprocessors)",
            device.name, device.major, device.minor, device.multiprocessors
        )?;
        for step in self.steps() {
            writeln!(
                f,
                "{:<8} {} (image {})",
                step.role.to_string(),
                step.image.kernel,
                step.image.name
            )?;
            writeln!(
                f,
                "         CTAs of {} threads with {} bytes of shared memory, {} a multiprocessor, {}",
                step.threads(),
                step.image.resources.dynamic_shared_bytes,
                step.ctas_per_multiprocessor,
                step.image.schedule
            )?;
            if !step.settings.is_default() {
                writeln!(f, "         {}", step.settings)?;
            }
        }
        if let Some(basis) = self.basis() {
            writeln!(f, "rates    {basis}")?;
        }
        for one in self.considered() {
            writeln!(f, "not      {}: {}", one.kernel, one.reason)?;
        }
        Ok(())
    }
}
