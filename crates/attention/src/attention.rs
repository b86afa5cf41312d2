//! The one verb: options, queries and keys in, output and lse out.

mod given;
mod options;

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice, DeviceSliceMut};

use crate::backend::{Place, same_device};
use crate::extents::expect_same;
use crate::gpu::{Bindings, Gpu, Ready};
use crate::lse::Lse;
use crate::operands::{DeviceScales, KeyTensors, ScaledBy, Table};
use crate::tensor::{Bytes, Storage, zeros};
use crate::{
    AlibiShape, Call, CallBuilder, Choice, Element, Keys, Operands, Plan, Queries, Result, Scoring,
    Splits, Tensor, ViewMut, forward_cpu,
};
use given::Given;

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
    slopes: Option<Arc<[f32]>>,
    sinks: Option<Arc<[f32]>>,
    splits: Splits,
    choice: Choice,
    lse: bool,
}

/// What [`Attention::forward`] gives. On a GPU `out` and `lse` share one piece of memory, which lasts as long as either.
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
    /// The first call of a problem plans it and loads its kernel; slopes and sinks that were not used before are uploaded.
    /// A call whose options, layouts and lengths on the device are those of one of the last 64 is not described and checked anew, and tensors
    /// that lie where they lay keep their tensor maps. A GPU keeps its last 64 problems as well, and lengths and strides do not tell problems apart: a new packed batch, or a cache that
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
        let (queries, keys) = (queries.into(), keys.into());
        let given = Given::of(&queries, &keys);
        let made = self.describe(&given, None)?;
        let (call, backend) = (made.call(), queries.q.backend());
        let (plan, out, lse) = match &made {
            Described::Cpu(call) => self.forward_on_cpu(call, &queries, &keys)?,
            Described::Gpu(gpu, ready) => self.forward_on_gpu(gpu, ready, &given)?,
        };
        Ok(Output {
            out: Tensor::from_storage(backend.clone(), *call.out(), out),
            lse: lse.map(|storage| Lse::from_storage(backend.clone(), call.lse_shape(), storage)),
            plan,
        })
    }

    /// As [`forward`](Self::forward), into tensors of one's own, which nobody else may hold. Rows of a packed output that no
    /// sequence owns are left alone, and so are the gaps of a strided one. Nothing is allocated on a GPU, so this may be part
    /// of a capture once the problem was computed before.
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
        let (queries, keys) = (queries.into(), keys.into());
        let attention = Attention {
            lse: lse.is_some(),
            ..self.clone()
        };
        let given = Given::of(&queries, &keys);
        let made = attention.describe(&given, Some(&*out))?;
        let (call, expected) = (made.call(), queries.q.backend());
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
                let lse = lse.map(|lse| lse.host_mut("lse")).transpose()?;
                let out = ViewMut::new(out.host_mut("out")?, *call.out());
                attention.run_on_cpu(call, &queries, &keys, out, lse)
            }
            Described::Gpu(gpu, ready) => {
                let lse = lse.map(|lse| lse.device_mut("lse")).transpose()?;
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
        let (queries, keys) = (queries.into(), keys.into());
        let given = Given::of(&queries, &keys);
        let call = self.request(&given, None)?.build()?;
        self.check(&call)?;
        match given.q.backend().place() {
            Place::Cpu => self.plan_on_cpu(&call),
            Place::Gpu(gpu) => gpu.plan(call.problem(), &self.choice),
        }
    }

    /// The call that the options and tensors describe, with all of it checked; on a GPU ready to be launched.
    fn describe<'b>(&self, given: &Given<'b>, out: Option<&dyn Bytes>) -> Result<Described<'b>> {
        let request = self.request(given, out)?;
        match given.q.backend().place() {
            Place::Cpu => {
                let call = request.build()?;
                self.check(&call)?;
                Ok(Described::Cpu(Box::new(call)))
            }
            Place::Gpu(gpu) => {
                let ready = gpu.ready(request, &self.choice, |call| self.check(call))?;
                Ok(Described::Gpu(gpu, ready))
            }
        }
    }

    /// The same, of which only the devices were checked.
    fn request<'b>(&self, given: &Given<'b>, out: Option<&dyn Bytes>) -> Result<CallBuilder<'b>> {
        let KeyTensors { k, v, quantized } = given.keys;
        let others = [
            ("k", Some(k.backend())),
            ("v", Some(v.backend())),
            ("bias", given.bias.map(Bytes::backend)),
            ("key_mask", given.key_mask.map(Bytes::backend)),
        ];
        for (argument, backend) in others {
            same_device(argument, backend, given.q.backend())?;
        }
        let mut scoring = self.scoring;
        scoring.bias = given.bias.is_some();
        scoring.key_mask = given.key_mask.is_some();
        if let Some(slopes) = &self.slopes {
            scoring.alibi = Some(match slopes.len() <= given.q.layout().heads() {
                true => AlibiShape::PerHead,
                false => AlibiShape::PerBatchHead,
            });
        }
        let quantized = quantized.as_ref().map(ScaledBy::quantization);
        let mut builder = Call::builder(given.q.layout(), k.layout(), v.layout(), given.element)
            .quantized(quantized.transpose()?)
            .scoring(scoring)
            .splits(self.splits)
            .lengths(
                given.queries.request(),
                given.keys_side.request(),
                given.table.map(Table::request),
            )
            .want_lse(self.lse);
        if let Some(out) = out {
            builder = builder.out(*out.layout());
        }
        if let Some(bias) = given.bias {
            builder = builder.bias(*bias.layout());
        }
        if let Some(key_mask) = given.key_mask {
            builder = builder.key_mask(*key_mask.layout());
        }
        let out_aligned = out.is_none_or(|out| out.starts_aligned());
        if !given.q.starts_aligned() || !given.keys.start_aligned() || !out_aligned {
            builder = builder.unaligned_addresses();
        }
        Ok(builder)
    }

    /// Checks the numbers among the options.
    fn check(&self, call: &Call) -> Result<()> {
        call.check_slopes(self.slopes.as_deref())?;
        call.check_sinks(self.sinks.as_deref())
    }

    fn plan_on_cpu(&self, call: &Call) -> Result<Plan> {
        self.choice.check_on_cpu()?;
        Ok(Plan::cpu(call.problem()))
    }

    fn forward_on_cpu<T: Element>(
        &self,
        call: &Call,
        queries: &Queries<'_, T>,
        keys: &Keys<'_, T>,
    ) -> Result<Computed<T>> {
        let mut out = zeros("out", call.out().reach())?;
        let mut lse = match call.wants_lse() {
            true => Some(zeros("lse", call.lse_len())?),
            false => None,
        };
        let plan = self.run_on_cpu(
            call,
            queries,
            keys,
            ViewMut::new(&mut out, *call.out()),
            lse.as_deref_mut(),
        )?;
        let lse = lse.map(|lse| Storage::Host(Arc::new(lse)));
        Ok((plan, Storage::Host(Arc::new(out)), lse))
    }

    fn run_on_cpu<T: Element>(
        &self,
        call: &Call,
        queries: &Queries<'_, T>,
        keys: &Keys<'_, T>,
        out: ViewMut<'_, T>,
        lse: Option<&mut [f32]>,
    ) -> Result<Plan> {
        let plan = self.plan_on_cpu(call)?;
        let quantized = keys.tensors.quantized.as_ref();
        let scales = quantized.map(|by| by.scales.host()).transpose()?;
        let operands = Operands {
            k_scale: scales.map(|[k, _]| k),
            v_scale: scales.map(|[_, v]| v),
            slopes: self.slopes.as_deref(),
            sinks: self.sinks.as_deref(),
            bias: keys.bias.map(|bias| bias.on_host("bias")).transpose()?,
            key_mask: keys
                .key_mask
                .map(|mask| mask.on_host("key_mask"))
                .transpose()?,
        };
        let (q, [k, v]) = (queries.q.view("q")?, keys.tensors.views()?);
        forward_cpu(call, q, k, v, &operands, out, lse)?;
        Ok(plan)
    }

    fn forward_on_gpu<T: Element>(
        &self,
        gpu: &Gpu,
        ready: &Ready,
        given: &Given<'_>,
    ) -> Result<Computed<T>> {
        let (stream, call) = (gpu.stream(), ready.call());
        let wants_lse = call.wants_lse();
        let lse_len = if wants_lse { call.lse_len() } else { 0 };
        // One way in and out for all calls of the driver.
        stream.context().within(|| {
            let (mut out, mut lse) =
                DeviceBuffer::uninit_pair(stream, call.out().reach(), lse_len)?;
            if leaves_gaps(call) {
                // The memory may be somebody's of before.
                out.as_slice_mut().fill_bytes(0)?;
                lse.as_slice_mut().fill_bytes(0)?;
            }
            let lse_slice = wants_lse.then(|| lse.as_slice_mut());
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
        given: &Given<'_>,
        out: DeviceSlice<'_, u8>,
        lse: Option<DeviceSliceMut<'_, f32>>,
    ) -> Result<Plan> {
        let constant = |values: &Option<Arc<[f32]>>| {
            values
                .as_deref()
                .map(|values| gpu.constant(values))
                .transpose()
        };
        let (slopes, sinks) = (constant(&self.slopes)?, constant(&self.sinks)?);
        let KeyTensors { k, v, quantized } = given.keys;
        let kv = [k.on_device("k")?, v.on_device("v")?];
        let mut bindings = Bindings::of(given.element, given.q.on_device("q")?, kv, out);
        let scales;
        if let Some(by) = quantized {
            scales = by.scales.upload(gpu)?;
            let scales = scales.each_ref().map(DeviceScales::slice);
            bindings = bindings.quantized_by(by.element, scales);
        }
        if let Some(lse) = lse {
            bindings = bindings.lse(lse);
        }
        if let Some(slopes) = &slopes {
            bindings = bindings.slopes(slopes.as_slice());
        }
        if let Some(sinks) = &sinks {
            bindings = bindings.sinks(sinks.as_slice());
        }
        if let Some(bias) = given.bias {
            bindings = bindings.bias_of(given.element, bias.on_device("bias")?);
        }
        if let Some(key_mask) = given.key_mask {
            bindings = bindings.key_mask(key_mask.on_device("key_mask")?);
        }
        bindings = bindings.device_lengths(given.queries, given.keys_side, given.table);
        ready.launch(gpu.stream(), &bindings)?;
        Ok(ready.prepared().plan().clone())
    }
}

/// What was computed, and how.
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

/// Whether some row of the output belongs to no sequence, or could: then nothing writes it.
fn leaves_gaps(call: &Call) -> bool {
    let queries = call.queries();
    match queries.offsets().on_host() {
        Some(offsets) => {
            queries.used().is_given()
                || offsets
                    .last()
                    .is_none_or(|&end| end as usize != queries.rows())
        }
        None => queries.is_packed() || queries.used().is_given(),
    }
}
