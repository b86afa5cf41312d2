//! Where attention is computed: a GPU or the CPU.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use warptile_driver::{Driver, Stream};

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::plan::{Choice, DeviceProfile, Plan};
use crate::spec::{Call, ElementType, Layout};
use crate::tensor::Tensor;

/// A device to compute on. A cheap handle: clones refer to the same device.
#[derive(Debug, Clone)]
pub struct Backend {
    place: Place,
    passed_over: Arc<[PassedOver]>,
}

#[derive(Debug, Clone)]
pub(crate) enum Place {
    Cpu,
    Gpu(Arc<Gpu>),
}

/// A GPU, or all of them, that [`Backend::auto`] did not take, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassedOver {
    /// `cuda:0` and so on; `cuda` for what concerns all GPUs.
    pub device: String,
    /// Why it was not taken.
    pub reason: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.reason)
    }
}

impl Backend {
    /// The GPU that is expected to be the fastest, by the rates of its kernels on a large problem; the CPU if no GPU can be
    /// used. [`Backend::passed_over`] says why each other GPU was not taken.
    ///
    /// # Errors
    /// None at present: a machine without a working GPU gives the CPU.
    pub fn auto() -> Result<Self> {
        match Driver::load() {
            Ok(driver) => Ok(Self::auto_with(&driver)),
            Err(error) => Ok(Self::cpu_instead_of(vec![PassedOver {
                device: "cuda".to_owned(),
                reason: error.to_string(),
            }])),
        }
    }

    /// [`Backend::auto`] among the GPUs of a driver that was loaded by hand.
    pub fn auto_with(driver: &Driver) -> Self {
        let mut passed_over = Vec::new();
        let mut pass =
            |device: String, reason: String| passed_over.push(PassedOver { device, reason });
        let mut ranked = Vec::new();
        match driver.devices() {
            Err(error) => pass("cuda".to_owned(), error.to_string()),
            Ok(devices) => {
                for device in devices {
                    let ordinal = device.ordinal();
                    let estimate =
                        DeviceProfile::of(&device).and_then(|profile| expected_us(&profile));
                    match estimate {
                        Ok(estimate) => ranked.push((ordinal, estimate)),
                        Err(error) => pass(format!("cuda:{ordinal}"), error.to_string()),
                    }
                }
            }
        }
        // Stable: among equals the first, as CUDA_VISIBLE_DEVICES orders them.
        ranked.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let mut chosen: Option<(Arc<Gpu>, f64)> = None;
        for (ordinal, estimate) in ranked {
            let device = format!("cuda:{ordinal}");
            match &chosen {
                Some((best, fastest)) => {
                    let times = estimate / fastest;
                    let reason = format!(
                        "expected to take {times:.2} times as long as cuda:{}",
                        best.ordinal()
                    );
                    passed_over.push(PassedOver { device, reason });
                }
                None => match Gpu::new(driver, ordinal) {
                    Ok(gpu) => chosen = Some((Arc::new(gpu), estimate)),
                    Err(error) => passed_over.push(PassedOver {
                        device,
                        reason: error.to_string(),
                    }),
                },
            }
        }
        match chosen {
            Some((gpu, _)) => Backend {
                place: Place::Gpu(gpu),
                passed_over: passed_over.into(),
            },
            None => Self::cpu_instead_of(passed_over),
        }
    }

    fn cpu_instead_of(passed_over: Vec<PassedOver>) -> Self {
        Backend {
            place: Place::Cpu,
            passed_over: passed_over.into(),
        }
    }

    /// The CPU, with all its cores.
    pub fn cpu() -> Self {
        Self::cpu_instead_of(Vec::new())
    }

    /// The GPU with this ordinal, in the driver's order.
    ///
    /// # Errors
    /// When there is no driver, it is too old, or it has no such device; the message says what was tried.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        Self::cuda_with(&Driver::load()?, ordinal)
    }

    /// [`Backend::cuda`] through a driver that was loaded by hand.
    ///
    /// # Errors
    /// As [`Backend::cuda`].
    pub fn cuda_with(driver: &Driver, ordinal: u32) -> Result<Self> {
        Ok(Self::from_gpu(Arc::new(Gpu::new(driver, ordinal)?)))
    }

    /// The GPU of a stream of one's own, on which all tensors and launches of this backend are ordered.
    ///
    /// # Errors
    /// When the driver refuses a device attribute.
    pub fn on_stream(stream: &Stream) -> Result<Self> {
        Ok(Self::from_gpu(Arc::new(Gpu::on_stream(stream)?)))
    }

    /// A GPU that was set up by hand.
    pub fn from_gpu(gpu: Arc<Gpu>) -> Self {
        Backend {
            place: Place::Gpu(gpu),
            passed_over: Vec::new().into(),
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Why [`Backend::auto`] did not take other GPUs; empty for a backend made otherwise.
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.passed_over
    }

    /// The GPU behind this backend, for launching on streams and buffers of one's own; `None` for the CPU.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.place {
            Place::Cpu => None,
            Place::Gpu(gpu) => Some(gpu),
        }
    }

    /// Returns true if this is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.gpu().is_some()
    }

    /// The device's name, `CPU` for the CPU.
    pub fn device_name(&self) -> &str {
        self.gpu().map_or("CPU", |gpu| &gpu.profile().name)
    }

    /// Waits until everything submitted to this backend is done.
    ///
    /// # Errors
    /// The first error the device met since the last wait.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu()
            .map_or(Ok(()), |gpu| Ok(gpu.stream().synchronize()?))
    }

    /// Returns true if tensors of both can be used in one call: both are the CPU, or GPUs of one context.
    pub fn is_same(&self, other: &Backend) -> bool {
        match (&self.place, &other.place) {
            (Place::Cpu, Place::Cpu) => true,
            (Place::Gpu(a), Place::Gpu(b)) => a.context().is_same(b.context()),
            _ => false,
        }
    }

    /// Copies `data`, stored densely as `[batch, length, heads, head size]`, to the device.
    ///
    /// # Errors
    /// When `data` does not have exactly the elements of the shape, or the device is out of memory.
    pub fn tensor<T: Pod>(&self, data: &[T], shape: [usize; 4]) -> Result<Tensor<T>> {
        self.tensor_with_layout(data, Layout::bshd(shape))
    }

    /// Copies `data`, stored as `layout` says, to the device.
    ///
    /// # Errors
    /// As [`Backend::tensor`].
    pub fn tensor_with_layout<T: Pod>(&self, data: &[T], layout: Layout) -> Result<Tensor<T>> {
        Tensor::upload(self, data, layout)
    }
}

/// Refuses a tensor, if there is one, that is on a different device than `expected`.
pub(crate) fn same_device(
    argument: &'static str,
    found: Option<&Backend>,
    expected: &Backend,
) -> Result<()> {
    match found {
        Some(found) if !found.is_same(expected) => Err(Error::DeviceMismatch {
            argument,
            expected: expected.to_string(),
            found: found.to_string(),
        }),
        _ => Ok(()),
    }
}

/// The expected time of a large problem on a device, in microseconds.
fn expected_us(profile: &DeviceProfile) -> Result<f64> {
    let tensor = Layout::bshd([4, 4096, 16, 128]);
    let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16).build()?;
    let plan = Plan::gpu(call.problem(), profile, &Choice::Best)?;
    Ok(plan.estimate_us())
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Cpu => f.write_str("cpu"),
            Place::Gpu(gpu) => write!(f, "cuda:{} ({})", gpu.ordinal(), gpu.profile().name),
        }
    }
}
