//! What the Criterion benchmarks share. `cargo bench --package warptile-benches` runs them; those that need a GPU say so
//! and end where there is none.
//!
//! They answer questions about this code base over time (has planning become slower?). What the README compares with other
//! libraries is measured by `warptile bench` and benches/peers instead.

use std::sync::Arc;

use warptile::gpu::{Arguments, Gpu, Launcher};
use warptile::{Backend, Plan, Result};
use warptile_check::{Case, Inputs};
use warptile_driver::{DeviceBuffer, Stream};

/// Element type of the GPU benchmarks.
pub type Half = half::f16;

/// The best GPU's backend, or `None` after saying why there is none.
#[must_use]
pub fn gpu_backend() -> Option<Backend> {
    match Backend::cuda(0) {
        Ok(backend) => Some(backend),
        Err(error) => {
            eprintln!("not measured, for want of a GPU: {error}");
            None
        }
    }
}

/// A case written down in a benchmark.
///
/// # Panics
/// If the text is no case.
#[must_use]
pub fn case(text: &str) -> Case {
    match text.parse() {
        Ok(case) => case,
        Err(error) => panic!("{text}: {error}"),
    }
}

/// A problem on a GPU, ready to launch again and again.
#[derive(Debug)]
pub struct OnGpu {
    launcher: Launcher,
    q: DeviceBuffer<Half>,
    k: DeviceBuffer<Half>,
    v: DeviceBuffer<Half>,
    out: DeviceBuffer<Half>,
    lse: DeviceBuffer<f32>,
}

impl OnGpu {
    /// Uploads `case`, which has f16 elements and no ALiBi slopes, for `plan`.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn new(gpu: &Arc<Gpu>, plan: &Plan, inputs: &Inputs<Half>) -> Result<Self> {
        let stream = Stream::new(gpu.stream().context())?;
        let problem = plan.problem();
        Ok(OnGpu {
            launcher: gpu.launcher(plan, &stream)?,
            q: DeviceBuffer::from_slice(&stream, inputs.q.view().data)?,
            k: DeviceBuffer::from_slice(&stream, inputs.k.view().data)?,
            v: DeviceBuffer::from_slice(&stream, inputs.v.view().data)?,
            out: DeviceBuffer::zeroed(&stream, problem.out().required_len().unwrap_or(0))?,
            lse: DeviceBuffer::zeroed(&stream, problem.lse_len())?,
        })
    }

    /// The stream of the launches.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.launcher.stream()
    }

    /// Submits one launch.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn launch(&mut self) -> Result<()> {
        self.launcher.launch(
            Arguments::new(
                self.q.as_slice(),
                self.k.as_slice(),
                self.v.as_slice(),
                self.out.as_slice_mut(),
            )
            .with_lse(self.lse.as_slice_mut()),
        )
    }
}
