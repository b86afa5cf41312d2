//! Problem to plan: which kernel runs, how it is launched, and why every other kernel does not.
//!
//! Planning is a pure function of the problem, the device's limits and the catalog; it needs no GPU.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, LazyLock};

use warptile_kernels::{ElementType, Features, Image, Schedule, Target};

use crate::device::DeviceProfile;
use crate::rates;
use crate::{Error, Problem, Result, params};

/// Where and how a problem will be computed. A cheap handle: clones are the same plan.
#[derive(Debug, Clone)]
pub struct Plan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    problem: Problem,
    /// Both are `None` on the CPU.
    device: Option<DeviceProfile>,
    launch: Option<Launch>,
    rejected: Vec<Rejection>,
}

/// The launch of the chosen kernel.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Launch {
    /// The chosen kernel's image for this device.
    pub image: &'static Image,
    /// CTAs.
    pub grid: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, in bytes.
    pub dynamic_shared_bytes: u32,
    /// Tiles of query rows for each head of each batch entry (or sequence).
    pub query_tiles: u32,
    /// Tiles of query rows in all.
    pub tiles: u32,
    /// Whether CTAs stay and draw their tiles from a counter, which the launch's workspace holds.
    pub draws_tiles: bool,
    /// Whether tensors must start at multiples of 16 bytes.
    pub needs_alignment: bool,
    /// CTAs a multiprocessor can hold at once.
    pub ctas_per_multiprocessor: u32,
    /// The planner's estimate of the GPU time, in microseconds; only its order among kernels means anything.
    pub estimate_us: f64,
}

/// A kernel that will not run, and why.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rejection {
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
    /// The kernel lacks what the problem asks for.
    Missing(Features),
    /// The family lacks something the problem asks for.
    Feature(&'static str),
    /// The grid would exceed what a launch can have.
    Grid {
        /// CTAs needed.
        ctas: u64,
    },
    /// It applies, but another is expected to be faster.
    Slower {
        /// Its estimated time over that of the chosen kernel.
        times: f64,
    },
    /// It applies, but another was asked for by name.
    NotRequested,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Element(element) => write!(f, "not compiled for {element}"),
            Reason::HeadDim { laid_out_for } => {
                write!(f, "its tiles hold head sizes up to {laid_out_for}")
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
            Reason::Missing(features) => write!(f, "does not support {features}"),
            Reason::Feature(feature) => write!(f, "does not support {feature}"),
            Reason::Grid { ctas } => write!(f, "needs {ctas} CTAs; a launch can have {MAX_GRID}"),
            Reason::Slower { times } => {
                write!(f, "applies, expected to take {times:.2} times as long")
            }
            Reason::NotRequested => f.write_str("applies, but another kernel was asked for"),
        }
    }
}

/// Largest grid along x (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const MAX_GRID: u64 = (1 << 31) - 1;

/// Images by kernel name.
type Kernels = BTreeMap<&'static str, Vec<&'static Image>>;

fn by_kernel(images: impl Iterator<Item = &'static Image>) -> Kernels {
    let mut kernels = Kernels::new();
    for image in images {
        kernels.entry(image.kernel).or_default().push(image);
    }
    kernels
}

/// The embedded catalog, sorted once: it has several hundred images.
static CATALOG: LazyLock<Kernels> = LazyLock::new(|| by_kernel(warptile_kernels::catalog().iter()));

impl Plan {
    /// A plan for the CPU path.
    #[must_use]
    pub fn cpu(problem: Problem) -> Self {
        Self::new(problem, None, None, Vec::new())
    }

    /// Chooses a kernel for `problem` on `device` from the embedded catalog; `kernel` forces one by name.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`] if the catalog has no kernel of that name, [`Error::NoKernel`] with every kernel's reason
    /// if none (or not the one asked for) can run.
    pub fn gpu(problem: Problem, device: &DeviceProfile, kernel: Option<&str>) -> Result<Self> {
        Self::choose(problem, device, kernel, &CATALOG)
    }

    /// [`Plan::gpu`] over a part of the catalog, such as only the PTX images.
    ///
    /// # Errors
    /// As [`Plan::gpu`].
    pub fn from_catalog(
        problem: Problem,
        device: &DeviceProfile,
        kernel: Option<&str>,
        images: impl Iterator<Item = &'static Image> + Clone,
    ) -> Result<Self> {
        Self::choose(problem, device, kernel, &by_kernel(images))
    }

    fn choose(
        problem: Problem,
        device: &DeviceProfile,
        kernel: Option<&str>,
        kernels: &Kernels,
    ) -> Result<Self> {
        if let Some(name) = kernel
            && !kernels.contains_key(name)
        {
            return Err(Error::unknown_kernel(name, kernels.keys().copied()));
        }

        let mut candidates = Vec::new();
        let mut rejected = Vec::new();
        for (&kernel, images) in kernels {
            match consider(&problem, device, images) {
                Ok(launch) => candidates.push(launch),
                Err(reason) => rejected.push(Rejection { kernel, reason }),
            }
        }

        candidates.sort_by(|a, b| a.estimate_us.total_cmp(&b.estimate_us));
        let chosen = match kernel {
            Some(name) => candidates
                .iter()
                .position(|launch| launch.image.kernel == name),
            None => (!candidates.is_empty()).then_some(0),
        };
        let Some(chosen) = chosen else {
            if let Some(name) = kernel {
                rejected.retain(|rejection| rejection.kernel == name);
            }
            return Err(Error::NoKernel {
                problem: format!("{problem} on {}", device.name),
                rejected,
            });
        };
        let launch = candidates.remove(chosen);
        rejected.extend(candidates.iter().map(|other| Rejection {
            kernel: other.image.kernel,
            reason: match kernel {
                Some(_) => Reason::NotRequested,
                None => Reason::Slower {
                    times: other.estimate_us / launch.estimate_us,
                },
            },
        }));
        Ok(Self::new(
            problem,
            Some(device.clone()),
            Some(launch),
            rejected,
        ))
    }

    fn new(
        problem: Problem,
        device: Option<DeviceProfile>,
        launch: Option<Launch>,
        rejected: Vec<Rejection>,
    ) -> Self {
        Plan {
            inner: Arc::new(Inner {
                problem,
                device,
                launch,
                rejected,
            }),
        }
    }

    /// The problem this plan solves.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.inner.problem
    }

    /// The launch of the chosen kernel; `None` on the CPU.
    #[must_use]
    pub fn launch(&self) -> Option<&Launch> {
        self.inner.launch.as_ref()
    }

    /// The chosen kernel's name, `cpu` on the CPU.
    #[must_use]
    pub fn kernel_name(&self) -> &'static str {
        self.launch().map_or("cpu", |launch| launch.image.kernel)
    }

    /// Every kernel that was not chosen, and why.
    #[must_use]
    pub fn rejected(&self) -> &[Rejection] {
        &self.inner.rejected
    }

    /// A readable account of the choice: problem, device, kernel, launch, and the reason for each kernel left out.
    #[must_use]
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "problem  {}", self.problem())?;
        let (Some(device), Some(launch)) = (&self.inner.device, self.launch()) else {
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
        writeln!(
            f,
            "kernel   {} (image {})",
            launch.image.kernel, launch.image.name
        )?;
        writeln!(
            f,
            "launch   {} CTAs of {} threads, {} bytes of shared memory each, {} per multiprocessor",
            launch.grid,
            launch.threads,
            launch.dynamic_shared_bytes,
            launch.ctas_per_multiprocessor
        )?;
        for rejection in self.rejected() {
            writeln!(f, "not      {}: {}", rejection.kernel, rejection.reason)?;
        }
        Ok(())
    }
}

/// The launch of one kernel, given its images, or why it can't run.
fn consider(
    problem: &Problem,
    device: &DeviceProfile,
    images: &[&'static Image],
) -> std::result::Result<Launch, Reason> {
    let element = problem.element();
    let of_element = images
        .iter()
        .copied()
        .filter(|image| image.element == element);
    let any = of_element.clone().next().ok_or(Reason::Element(element))?;
    if any.tiling.head_dim < problem.head_dim() as u32 {
        return Err(Reason::HeadDim {
            laid_out_for: any.tiling.head_dim,
        });
    }
    let missing = missing(any, problem);
    if !missing.is_empty() {
        return Err(Reason::Missing(missing));
    }
    let image = of_element
        .clone()
        .filter(|image| image.target.runs_on(device.major, device.minor))
        .max_by_key(|image| preference(image.target))
        .ok_or_else(|| Reason::NoImage {
            targets: of_element.map(|image| image.target).collect(),
        })?;

    let needed = image.resources.dynamic_shared_bytes;
    if needed > device.shared_bytes_per_cta {
        return Err(Reason::SharedMemory {
            needed,
            available: device.shared_bytes_per_cta,
        });
    }
    let block_m = image.tiling.block_m as usize;
    let query_tiles = params::query_tiles(problem, block_m);
    let tiles = params::tiles(problem, block_m);
    if tiles > MAX_GRID {
        return Err(Reason::Grid { ctas: tiles });
    }
    let tiles = tiles as u32;
    let ctas_per_multiprocessor = occupancy(image, device);
    let persistent = image.schedule == Schedule::Persistent;
    let grid = match persistent {
        true => tiles.min(device.multiprocessors * ctas_per_multiprocessor),
        false => tiles,
    };
    Ok(Launch {
        image,
        grid,
        threads: 32 * image.tiling.warps,
        dynamic_shared_bytes: needed,
        query_tiles: query_tiles as u32,
        tiles,
        draws_tiles: persistent && tiles > grid,
        needs_alignment: !image.features.contains(Features::UNALIGNED),
        ctas_per_multiprocessor,
        estimate_us: rates::estimate_us(problem, image, device, tiles, ctas_per_multiprocessor),
    })
}

/// What the kernel of `image` cannot do that `problem` asks for.
fn missing(image: &Image, problem: &Problem) -> Features {
    let mut needs = Features::empty();
    let mut need = |wanted: bool, feature: Features| {
        if wanted {
            needs |= feature;
        }
    };
    need(problem.scale() < 0.0, Features::NEGATIVE_SCALE);
    need(problem.alibi().is_some(), Features::ALIBI);
    need(!problem.is_aligned(), Features::UNALIGNED);
    need(problem.softcap().is_some(), Features::SOFTCAP);
    need(problem.is_packed(), Features::PACKED);
    needs - image.features
}

/// Machine code made for the device first, then the newest that runs on it, then PTX.
fn preference(target: Target) -> (u32, u32) {
    match target {
        Target::CubinExact(sm) => (2, sm),
        Target::Cubin(sm) => (1, sm),
        Target::Ptx(sm) => (0, sm),
        _ => (0, 0),
    }
}

/// CTAs of `image` a multiprocessor holds at once, by shared memory, threads and registers; at least 1.
fn occupancy(image: &Image, device: &DeviceProfile) -> u32 {
    // The system keeps 1 KiB of shared memory for each resident CTA (CUDA C++ Programming Guide, "Shared Memory").
    const RESERVED_SHARED_BYTES: u32 = 1024;
    let threads = 32 * image.tiling.warps;
    let by_shared = device.shared_bytes_per_multiprocessor
        / (image.resources.dynamic_shared_bytes + RESERVED_SHARED_BYTES);
    let by_threads = device.threads_per_multiprocessor / threads;
    // Registers are handed out per warp in steps of 8 a thread; a PTX image has no count before the driver compiles it.
    let registers = image.resources.registers.max(1).next_multiple_of(8);
    let by_registers = device.registers_per_multiprocessor / (registers * threads);
    by_shared.min(by_threads).min(by_registers).max(1)
}
