//! The one call: options, tensors in, output and lse out.

use std::sync::Arc;

use warptile_driver::DeviceBuffer;

use crate::backend::Place;
use crate::gpu::{Arguments, Gpu, PreparedCall};
use crate::tensor::Storage;
use crate::{
    AlibiShape, Element, Error, Mask, Plan, Problem, Reason, Rejection, Result, Tensor, ViewMut,
    forward_cpu,
};

/// Attention and its options: `softmax(scale * q k^T) v`, masked.
///
/// ```
/// use warptile::{Attention, Backend, Mask};
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::auto()?; // the best GPU, else the CPU
/// let shape = [1, 4, 2, 8]; // batch, length, heads, head size
/// let data: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
/// let (q, k, v) = (backend.tensor(&data, shape)?, backend.tensor(&data, shape)?, backend.tensor(&data, shape)?);
/// let output = Attention::new().mask(Mask::causal()).forward(&q, &k, &v)?;
/// let out: Vec<f32> = output.out.to_vec()?;
/// // The first query of a causal mask sees only the first key.
/// assert_eq!(out[..16], data[..16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "options do nothing until `forward` is called"]
pub struct Attention {
    mask: Mask,
    scale: Option<f32>,
    softcap: Option<f32>,
    alibi_slopes: Option<Vec<f32>>,
    kernel: Option<String>,
    lse: bool,
}

/// What [`Attention::forward`] gives. On a GPU `out` and `lse` share one piece of memory, which lasts as long as either.
#[derive(Debug, Clone)]
pub struct Output<T: Element> {
    /// The attention output, of q's shape, element type and dimension order.
    pub out: Tensor<T>,
    /// Natural logarithm of each row's sum of exponentials, unless turned off.
    pub lse: Option<Lse>,
    /// How it was computed.
    pub plan: Plan,
}

/// Natural logarithm of the softmax denominator of each query row; `-inf` for rows that see no key.
#[derive(Debug, Clone)]
pub struct Lse {
    shape: [usize; 3],
    storage: Storage<f32>,
}

impl Lse {
    /// Batch, heads, length; a packed batch has 1, heads, total rows.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Copies the values to the host, ordered as [`shape`](Self::shape) says. Waits for the computation.
    ///
    /// # Errors
    /// When the device reports an error.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        match &self.storage {
            Storage::Host(data) => Ok(data.to_vec()),
            Storage::Device(buffer) => Ok(buffer.to_vec()?),
        }
    }
}

impl Default for Attention {
    fn default() -> Self {
        Self::new()
    }
}

impl Attention {
    /// Full attention with scale `1 / sqrt(head size)`, on the kernel the planner chooses.
    pub const fn new() -> Self {
        Attention {
            mask: Mask::None,
            scale: None,
            softcap: None,
            alibi_slopes: None,
            kernel: None,
            lse: true,
        }
    }

    /// Which keys a query sees.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Factor of the scores instead of `1 / sqrt(head size)`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Bounds the scores: `softcap * tanh(score / softcap)`.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// ALiBi: subtracts `slope * distance` from the scores. One slope per head, or one per batch entry and head.
    pub fn alibi_slopes(mut self, slopes: &[f32]) -> Self {
        self.alibi_slopes = Some(slopes.to_vec());
        self
    }

    /// Forces a kernel by name (see `warptile info`) instead of the planner's choice.
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// Leaves the lse out.
    pub fn without_lse(mut self) -> Self {
        self.lse = false;
        self
    }

    /// Attention over dense tensors. On a GPU the call returns when the work is submitted; reading the output waits.
    ///
    /// The first call with a shape plans, loads the kernel if need be, and uploads row offsets and slopes, which waits for
    /// the GPU. A GPU keeps the last 32 such preparations: a call like one of them, from whichever thread, only allocates
    /// the output and launches.
    ///
    /// # Errors
    /// When a shape breaks a rule, the tensors are on different backends, or no kernel applies: before anything is
    /// launched. When the device is out of memory or the launch fails.
    pub fn forward<T: Element>(
        &self,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
    ) -> Result<Output<T>> {
        self.run(q, k, v, None)
    }

    /// Attention over packed sequences: sequence `b` is rows `cu_seqlens[b]..cu_seqlens[b + 1]` of tensors whose batch
    /// is 1.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and when the offsets decrease or leave the tensors.
    pub fn forward_packed<T: Element>(
        &self,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
        cu_seqlens_q: &[i32],
        cu_seqlens_k: &[i32],
    ) -> Result<Output<T>> {
        self.run(q, k, v, Some((cu_seqlens_q, cu_seqlens_k)))
    }

    /// The plan [`forward`](Self::forward) would run, without running it.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), short of the device's.
    pub fn plan<T: Element>(&self, q: &Tensor<T>, k: &Tensor<T>, v: &Tensor<T>) -> Result<Plan> {
        self.make_plan(q, k, v, None)
    }

    /// The plan [`forward_packed`](Self::forward_packed) would run, without running it.
    ///
    /// # Errors
    /// As [`forward_packed`](Self::forward_packed), short of the device's.
    pub fn plan_packed<T: Element>(
        &self,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
        cu_seqlens_q: &[i32],
        cu_seqlens_k: &[i32],
    ) -> Result<Plan> {
        self.make_plan(q, k, v, Some((cu_seqlens_q, cu_seqlens_k)))
    }

    /// The problem that the options and tensors describe, with all of it checked.
    fn problem<T: Element>(
        &self,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
        packed: Option<(&[i32], &[i32])>,
    ) -> Result<Problem> {
        for (argument, tensor) in [("k", k), ("v", v)] {
            if !tensor.backend().is_same(q.backend()) {
                return Err(Error::DeviceMismatch {
                    argument,
                    expected: q.backend().to_string(),
                    found: tensor.backend().to_string(),
                });
            }
        }
        let mut builder = Problem::builder(q.layout(), k.layout(), v.layout(), T::TYPE)
            .mask(self.mask)
            .want_lse(self.lse);
        if let Some(scale) = self.scale {
            builder = builder.scale(scale);
        }
        if let Some(softcap) = self.softcap {
            builder = builder.softcap(softcap);
        }
        if let Some((cu_seqlens_q, cu_seqlens_k)) = packed {
            builder = builder.packed(cu_seqlens_q, cu_seqlens_k);
        }
        if let Some(slopes) = &self.alibi_slopes {
            let per_head = slopes.len() == q.layout().heads();
            builder = builder.alibi(if per_head {
                AlibiShape::PerHead
            } else {
                AlibiShape::PerBatchHead
            });
        }
        let problem = builder.build()?;
        problem.check_alibi(self.alibi_slopes.as_deref())?;
        Ok(problem)
    }

    fn make_plan<T: Element>(
        &self,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
        packed: Option<(&[i32], &[i32])>,
    ) -> Result<Plan> {
        let problem = self.problem(q, k, v, packed)?;
        match q.backend().place() {
            Place::Cpu => self.plan_on_cpu(problem),
            Place::Gpu(gpu) => Plan::gpu(problem, gpu.profile(), self.kernel.as_deref()),
        }
    }

    fn plan_on_cpu(&self, problem: Problem) -> Result<Plan> {
        match self.kernel.as_deref() {
            None | Some("cpu") => Ok(Plan::cpu(problem)),
            Some(name) => Err(not_on_the_cpu(&problem, name)),
        }
    }

    fn run<T: Element>(
        &self,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
        packed: Option<(&[i32], &[i32])>,
    ) -> Result<Output<T>> {
        let problem = self.problem(q, k, v, packed)?;
        let (plan, out, lse) = match q.backend().place() {
            Place::Cpu => {
                let plan = self.plan_on_cpu(problem)?;
                let (out, lse) = self.run_on_cpu(plan.problem(), q, k, v)?;
                (plan, out, lse)
            }
            Place::Gpu(gpu) => {
                let slopes = self.alibi_slopes.as_deref();
                let call = gpu.prepare(&problem, self.kernel.as_deref(), slopes)?;
                let (out, lse) = run_on_gpu(&call, gpu, q, k, v)?;
                (call.plan().clone(), out, lse)
            }
        };
        let problem = plan.problem();
        Ok(Output {
            out: Tensor::from_storage(q.backend().clone(), *problem.out(), out),
            lse: lse.map(|storage| Lse {
                shape: problem.lse_shape(),
                storage,
            }),
            plan,
        })
    }

    fn run_on_cpu<T: Element>(
        &self,
        problem: &Problem,
        q: &Tensor<T>,
        k: &Tensor<T>,
        v: &Tensor<T>,
    ) -> Result<(Storage<T>, Option<Storage<f32>>)> {
        let mut out = vec![T::from_f32(0.0); problem.out().required_len().unwrap_or(0)];
        let mut lse = problem.wants_lse().then(|| vec![0.0; problem.lse_len()]);
        forward_cpu(
            problem,
            q.view()?,
            k.view()?,
            v.view()?,
            self.alibi_slopes.as_deref(),
            ViewMut::new(&mut out, *problem.out()),
            lse.as_deref_mut(),
        )?;
        Ok((
            Storage::Host(Arc::new(out)),
            lse.map(|lse| Storage::Host(Arc::new(lse))),
        ))
    }
}

fn run_on_gpu<T: Element>(
    call: &PreparedCall,
    gpu: &Gpu,
    q: &Tensor<T>,
    k: &Tensor<T>,
    v: &Tensor<T>,
) -> Result<(Storage<T>, Option<Storage<f32>>)> {
    let problem = call.plan().problem();
    let stream = gpu.stream();
    // One way in and out for all calls of the driver.
    let _current = stream.context().enter()?;
    let out_len = problem.out().required_len().unwrap_or(0);
    let lse_len = match problem.wants_lse() {
        true => problem.lse_len(),
        false => 0,
    };
    let (mut out, mut lse) = DeviceBuffer::uninit_pair(stream, out_len, lse_len)?;
    call.launch(Arguments {
        q: q.device_slice()?,
        k: k.device_slice()?,
        v: v.device_slice()?,
        out: out.as_slice_mut(),
        lse: problem.wants_lse().then(|| lse.as_slice_mut()),
        alibi_slopes: call.slopes(),
    })?;
    Ok((
        Storage::Device(Arc::new(out)),
        problem.wants_lse().then(|| Storage::Device(Arc::new(lse))),
    ))
}

/// A GPU kernel was asked for, but the tensors are on the CPU.
fn not_on_the_cpu(problem: &Problem, name: &str) -> Error {
    match warptile_kernels::catalog()
        .iter()
        .find(|image| image.kernel == name)
    {
        None => Error::unknown_kernel(
            name,
            warptile_kernels::catalog().iter().map(|image| image.kernel),
        ),
        Some(image) => Error::NoKernel {
            problem: format!("{problem} on the CPU"),
            rejected: vec![Rejection {
                kernel: image.kernel,
                reason: Reason::Feature("tensors on the CPU"),
            }],
        },
    }
}
