//! The one verb: options, queries and keys in, output and lse out.

mod backward;
mod given;
mod options;

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice};
use warptile_kernels::Operand;

use crate::backend::{Place, same_device};
use crate::cpu::forward_cpu;
use crate::error::Result;
use crate::gpu::{Gpu, Ready};
use crate::lse::Lse;
use crate::operands::{Given, Keys, Queries};
use crate::plan::{Choice, Plan};
use crate::spec::{Call, CallBuilder, Element, HostOutputs, Scoring, Splits, expect_same};
use crate::tensor::{Bytes, Storage, Tensor, zeros};
use given::Arguments;

pub use backward::{Gradients, GradientsInto, OutputGiven, OutputGradient};

/// Attention and its options: `softmax(scale * q k^T) v`, masked.
///
/// ```
/// use warptile::{Attention, Backend, Mask};
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::auto()?; // the fastest GPU, else the CPU
/// let shape = [1, 4, 2, 8]; // batch, length, heads, head size
/// let data: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
/// let (q, k, v) = (backend.tensor(&data, shape)?, backend.tensor(&data, shape)?, backend.tensor(&data, shape)?);
/// let output = Attention::new().mask(Mask::causal()).forward(&q, (&k, &v))?;
/// let out: Vec<f32> = output.out.to_vec()?;
/// // The first query of a causal mask sees only the first key.
/// assert_eq!(out[..16], data[..16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "options do nothing until `forward` is called"]
pub struct Attention {
    scoring: Scoring,
    /// Numbers of options, each with its operand; `None` for an operand whose elements are not `f32`, which the call refuses.
    numbers: Vec<(Operand, Option<Arc<[u32]>>)>,
    splits: Splits,
    choice: Choice,
    lse: bool,
    d_bias: bool,
}

/// The result of [`Attention::forward`]. On a GPU `out` and `lse` share one allocation, which is freed when both are
/// dropped.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Output<T: Element> {
    /// The attention output, of q's shape, element type and dimension order, but with the head size of v.
    pub out: Tensor<T>,
    /// Natural logarithm of each row's sum of exponentials, unless turned off.
    pub lse: Option<Lse>,
    /// How it was computed.
    pub plan: Plan,
}

impl Attention {
    /// Attention of queries to keys and values, each dense or packed. On a GPU the call returns when the work is submitted;
    /// reading the output waits.
    ///
    /// The first call of a problem plans it and loads its kernel; numbers of options that were not used before are
    /// uploaded. A call whose options, layouts and lengths on the device are those of one of the last 64 is not
    /// described and checked again, and tensors that lie where they lay keep their tensor maps. A GPU keeps its last
    /// 64 problems as well, and lengths and strides do not tell problems apart: a new packed batch, or a cache that
    /// grew by a row, only allocates the output and launches. Row offsets on the host travel along without a wait.
    ///
    /// Rows of a packed output that no sequence owns are 0.
    ///
    /// # Errors
    /// Before anything is launched, if a shape is invalid, the tensors are on different devices, or no kernel supports the
    /// problem. If the device is out of memory or the launch fails.
    pub fn forward<'a, T: Element>(
        &self,
        queries: impl Into<Queries<'a, T>>,
        keys: impl Into<Keys<'a, T>>,
    ) -> Result<Output<T>> {
        let given = Arguments::new(self, queries.into(), keys.into());
        let made = self.describe(&given, None)?;
        let (call, backend) = (made.call(), given.backend());
        let (plan, out, lse) = match &made {
            Described::Cpu(call) => self.forward_on_cpu(call, &given)?,
            Described::Gpu(gpu, ready) => self.forward_on_gpu(gpu, ready, &given)?,
        };
        Ok(Output {
            out: Tensor::from_storage(backend.clone(), *call.out(), out),
            lse: lse.map(|storage| Lse::from_storage(backend.clone(), call.lse_shape(), storage)),
            plan,
        })
    }

    /// As [`forward`](Self::forward), into existing tensors, which nothing else may hold. Rows of a packed output that no
    /// sequence owns are left alone, and so are the gaps of a strided one.
    ///
    /// On a GPU this allocates in two cases. Lengths, offsets, pages and lists of blocks on the host need memory in a capture, and while all
    /// earlier such memory is in use. Kernels that draw tiles or share keys need a workspace for each stream and each capture. The call may
    /// be part of a capture if the problem was computed before with the same numbers of options, which are uploaded once.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); when `out` is not of q's shape with v's head size, or `lse` of its lse's.
    pub fn forward_into<'a, T: Element>(
        &self,
        queries: impl Into<Queries<'a, T>>,
        keys: impl Into<Keys<'a, T>>,
        out: &mut Tensor<T>,
        lse: Option<&mut Lse>,
    ) -> Result<Plan> {
        let attention = Attention {
            lse: lse.is_some(),
            ..self.clone()
        };
        let given = Arguments::new(&attention, queries.into(), keys.into());
        let made = attention.describe(&given, Some(&*out))?;
        let (call, expected) = (made.call(), given.backend());
        let others = [
            ("out", Some(out.backend())),
            ("lse", lse.as_deref().map(Lse::backend)),
        ];
        for (argument, backend) in others {
            same_device(argument, backend, expected)?;
        }
        if let Some(lse) = &lse {
            let dimensions = ["batch", "heads", "length"];
            expect_same("lse", lse.shape(), ("q", call.lse_shape()), dimensions)?;
        }
        match &made {
            Described::Cpu(call) => {
                let mut outputs = HostOutputs::new(out.host_mut("out")?);
                if let Some(lse) = lse {
                    outputs = outputs.lse(lse.0.host_mut("lse")?);
                }
                attention.run_on_cpu(call, &given, outputs)
            }
            Described::Gpu(gpu, ready) => {
                let lse = lse.map(|lse| lse.0.device_mut("lse")).transpose()?;
                let lse = lse.map(|lse| lse.into_bytes());
                let out = out.device_mut("out")?.into_bytes();
                attention.run_on_gpu(gpu, ready, &given, out, lse)
            }
        }
    }

    /// The plan [`forward`](Self::forward) would run, without running it.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), short of the device's.
    pub fn plan<'a, T: Element>(
        &self,
        queries: impl Into<Queries<'a, T>>,
        keys: impl Into<Keys<'a, T>>,
    ) -> Result<Plan> {
        let given = Arguments::new(self, queries.into(), keys.into());
        let call = self.request(&given, None)?.build()?;
        Self::check(&call, &given)?;
        match given.backend().place() {
            Place::Cpu => self.plan_on_cpu(&call),
            Place::Gpu(gpu) => gpu.plan(call.problem(), &self.choice),
        }
    }

    /// The call that the options and tensors describe, with all of it checked; on a GPU ready to be launched.
    fn describe<'b>(
        &self,
        given: &Arguments<'b>,
        out: Option<&dyn Bytes>,
    ) -> Result<Described<'b>> {
        let request = self.request(given, out)?;
        match given.backend().place() {
            Place::Cpu => {
                let call = request.build()?;
                Self::check(&call, given)?;
                Ok(Described::Cpu(Box::new(call)))
            }
            Place::Gpu(gpu) => {
                let ready = gpu.ready(request, &self.choice, |call| Self::check(call, given))?;
                Ok(Described::Gpu(gpu, ready))
            }
        }
    }

    /// Like [`describe`](Self::describe), but checks only that all tensors are on one device.
    fn request<'b>(
        &self,
        given: &Arguments<'b>,
        out: Option<&dyn Bytes>,
    ) -> Result<CallBuilder<'b>> {
        given.check_others()?;
        let mut aligned = out.is_none_or(|out| out.starts_aligned());
        let mut aligned_scores = true;
        let mut builder = given
            .builder()
            .scoring(self.scoring)
            .splits(self.splits)
            .want_lse(self.lse);
        for (operand, given_for) in given.iter() {
            same_device(operand.name(), given_for.backend(), given.backend())?;
            match given_for {
                Given::Tensor(part) => {
                    match operand.moves_rows() {
                        true => aligned &= part.starts_aligned(),
                        false => aligned_scores &= part.starts_aligned(),
                    }
                    builder.set_layout(operand, *part.layout());
                }
                Given::Numbers(_) => builder = builder.given(operand, given_for.request()),
            }
        }
        if let Some(out) = out {
            builder.set_layout(Operand::Out, *out.layout());
        }
        Ok(builder
            .aligned_addresses(aligned)
            .aligned_scores(aligned_scores))
    }

    /// Checks the numbers that are in host memory and that no description has.
    fn check(call: &Call, given: &Arguments<'_>) -> Result<()> {
        { given.floats(call) }.try_for_each(|(operand, values)| {
            call.check_values(operand, values)?;
            Ok(())
        })
    }

    fn plan_on_cpu(&self, call: &Call) -> Result<Plan> {
        self.choice.check_on_cpu()?;
        Ok(Plan::cpu(call.problem()))
    }

    fn forward_on_cpu<T: Element>(
        &self,
        call: &Call,
        given: &Arguments<'_>,
    ) -> Result<Computed<T>> {
        let mut out = zeros::<T>("out", call.out().reach())?;
        let mut lse = match call.wants_lse() {
            true => Some(zeros("lse", call.lse_len())?),
            false => None,
        };
        let mut outputs = HostOutputs::new(&mut out);
        if let Some(lse) = &mut lse {
            outputs = outputs.lse(lse);
        }
        let plan = self.run_on_cpu(call, given, outputs)?;
        let lse = lse.map(|lse| Storage::Host(Arc::new(lse)));
        Ok((plan, Storage::Host(Arc::new(out)), lse))
    }

    fn run_on_cpu(
        &self,
        call: &Call,
        given: &Arguments<'_>,
        outputs: HostOutputs<'_>,
    ) -> Result<Plan> {
        let plan = self.plan_on_cpu(call)?;
        forward_cpu(call, &given.inputs(call)?, outputs)?;
        Ok(plan)
    }

    fn forward_on_gpu<T: Element>(
        &self,
        gpu: &Gpu,
        ready: &Ready,
        given: &Arguments<'_>,
    ) -> Result<Computed<T>> {
        let (stream, call) = (gpu.stream(), ready.call());
        let wants_lse = call.wants_lse();
        let lse_len = if wants_lse { call.lse_len() } else { 0 };
        // One way in and out for all calls of the driver.
        stream.context().within(|| {
            let (mut out, mut lse) =
                DeviceBuffer::uninit_pair(stream, call.out().reach(), lse_len)?;
            if call.leaves_gaps() {
                // The allocation may hold stale data.
                out.as_slice_mut().fill_bytes(0)?;
                lse.as_slice_mut().fill_bytes(0)?;
            }
            let lse_slice = wants_lse.then(|| lse.as_slice_mut().into_bytes());
            let plan = self.run_on_gpu(
                gpu,
                ready,
                given,
                out.as_slice_mut().into_bytes(),
                lse_slice,
            )?;
            let lse = wants_lse.then(|| Storage::Device(Arc::new(lse)));
            Ok((plan, Storage::Device(Arc::new(out)), lse))
        })
    }

    fn run_on_gpu(
        &self,
        gpu: &Gpu,
        ready: &Ready,
        given: &Arguments<'_>,
        out: DeviceSlice<'_, u8>,
        lse: Option<DeviceSlice<'_, u8>>,
    ) -> Result<Plan> {
        let call = ready.call();
        let constants = given.constants(call, gpu)?;
        let mut bindings = given.bindings(&constants)?;
        bindings.set_bytes(Operand::Out, out);
        if let Some(lse) = lse {
            bindings.set_bytes(Operand::Lse, lse);
        }
        ready.launch(gpu.stream(), &bindings)?;
        Ok(ready.prepared().plan().clone())
    }
}

/// The result and the plan of a call.
type Computed<T> = (Plan, Storage<T>, Option<Storage<f32>>);

/// A call on its device.
enum Described<'a> {
    Cpu(Box<Call>),
    Gpu(&'a Gpu, Arc<Ready>),
}

impl Described<'_> {
    fn call(&self) -> &Call {
        match self {
            Described::Cpu(call) => call,
            Described::Gpu(_, ready) => ready.call(),
        }
    }
}
