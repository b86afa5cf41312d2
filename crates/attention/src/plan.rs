//! Problem to plan: which kernels run, how they are launched, and why every other kernel does not run.
//!
//! Planning is a pure function of the problem, the device's limits, the rates and the catalog; it needs no GPU.

mod backward;
mod choice;
mod device;
#[cfg(test)]
mod extremes;
mod heads_at_once;
mod known;
mod occupancy;
mod pairs;
mod planner;
mod rates;
mod rows;
mod runs;
mod settings;
mod share;
mod shared_keys;
mod split_tiles;
mod step;
mod tile_order;

use std::fmt;
use std::sync::Arc;

use warptile_kernels::{Features, Image};

use crate::spec::Problem;

pub use crate::considered::{Considered, Reason};
pub use backward::BackwardProblem;
pub(crate) use backward::BackwardScratch;
pub use choice::Choice;
pub use device::DeviceProfile;
pub(crate) use occupancy::{MAX_TILES, alone_bytes};
pub(crate) use pairs::Numbered;
pub use planner::Planner;
use rates::of_tensors;
pub use rates::{Rates, Standing, Timed};
pub use rows::RowProblem;
pub use settings::Settings;
pub(crate) use share::RunScratch;
pub use share::Share;
pub(crate) use split_tiles::{
    PackedSpeed, TileKeys, is_for_parts, packs_rows, rest_keys, splits_of, splits_tiles,
};
pub use step::{LaunchShape, Scratch, Step};
#[cfg(test)]
pub(crate) use tile_order::SEARCHES;
pub(crate) use tile_order::tile_order;

/// Where and how a problem of an operation will be computed. A cheap handle: clones are the same plan.
pub struct Plan<P = Problem> {
    inner: Arc<Inner<P>>,
}

struct Inner<P> {
    problem: P,
    /// `None` on the CPU.
    device: Option<DeviceProfile>,
    /// In the order in which they run; none on the CPU.
    steps: Vec<Step>,
    considered: Vec<Considered>,
    basis: Option<Basis>,
}

/// The basis for the choice of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Basis {
    /// The reliability of the chosen kernel's rates on the device.
    pub standing: Standing,
    /// The GPU that the rates are of.
    pub rates_of: String,
    /// True if that is the device's own kind.
    pub of_this_gpu: bool,
    /// True if trials chose the kernel for this very problem.
    pub tuned: bool,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tuned, self.standing) {
            (true, _) => write!(f, "measured for this problem on {}", self.rates_of),
            (_, Standing::Measured) => write!(f, "measured on {}", self.rates_of),
            (_, Standing::Modelled) => {
                let of = match self.of_this_gpu {
                    true => "another, scaled".to_owned(),
                    false => format!("{}, scaled by data sheets", self.rates_of),
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

impl Plan {
    /// A plan for the CPU path.
    pub fn cpu(problem: Problem) -> Self {
        Self::new(problem, None, Vec::new(), Vec::new(), None)
    }

    /// Device memory that a launch of any call of the problem needs in addition to the tensors. It belongs to one
    /// stream or one graph at a time. With [`Splits::EveryKeys`](crate::Splits::EveryKeys) it grows with the queries
    /// and keys of the problem.
    pub fn scratch(&self) -> Scratch {
        Scratch::of(self.problem(), self.steps())
    }
}

impl<P> Plan<P> {
    pub(super) fn new(
        problem: P,
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

    /// Sets the number of CTAs in clusters to what the device can hold, a number for each step.
    pub(crate) fn with_clustered_ctas(self, ctas: &[Option<u32>]) -> Self
    where
        P: Copy,
    {
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
    pub fn problem(&self) -> &P {
        &self.inner.problem
    }

    /// The device the plan is for; `None` for the CPU.
    pub fn device(&self) -> Option<&DeviceProfile> {
        self.inner.device.as_ref()
    }

    /// The kernels that run, in order; none on the CPU.
    pub fn steps(&self) -> &[Step] {
        &self.inner.steps
    }

    /// The image of the step that takes most of the time: the first one with tiles; `None` on the CPU.
    pub fn image(&self) -> Option<&'static Image> {
        let main = self
            .steps()
            .iter()
            .find(|step| step.image.tiling.has_tiles());
        main.or(self.steps().first()).map(|step| step.image)
    }

    /// The name of the image's kernel; `cpu` on the CPU.
    pub fn kernel_name(&self) -> &'static str {
        self.image().map_or("cpu", |image| image.kernel)
    }

    /// The planner's estimate of the GPU time in microseconds, the sum of those of the steps; 0 for an operation without a choice.
    pub fn estimate_us(&self) -> f64 {
        self.steps().iter().map(|step| step.estimate_us).sum()
    }

    /// Returns true if every row of every tensor has to start at a multiple of 16 bytes.
    pub fn needs_alignment(&self) -> bool {
        self.steps()
            .iter()
            .any(|step| !step.image.features.contains(Features::UNALIGNED))
    }

    /// Every kernel that was not chosen, and why.
    pub fn considered(&self) -> &[Considered] {
        &self.inner.considered
    }

    /// The basis for the choice; `None` on the CPU, which has no choice.
    pub fn basis(&self) -> Option<&Basis> {
        self.inner.basis.as_ref()
    }

    /// A readable account of the choice: problem, device, kernels, and the reason for each kernel left out.
    pub fn explain(&self) -> String
    where
        P: fmt::Display,
    {
        self.to_string()
    }
}

impl<P> Clone for Plan<P> {
    fn clone(&self) -> Self {
        Plan {
            inner: self.inner.clone(),
        }
    }
}

/// In a line: [`Plan::explain`] has the kernels that were not chosen.
impl<P: fmt::Display> fmt::Debug for Plan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device().map_or("CPU", |device| &device.name);
        let problem = self.problem();
        write!(f, "Plan({problem} on {device} by {})", self.kernel_name())
    }
}

impl<P: fmt::Display> fmt::Display for Plan<P> {
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
            if step.share != Share::All {
                writeln!(f, "         {}", step.share)?;
            }
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
