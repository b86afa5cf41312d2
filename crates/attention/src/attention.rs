//! The one verb: options, queries and keys in, output and lse out.

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSliceMut};

use crate::backend::{Place, same_device};
use crate::gpu::{Bindings, Gpu};
use crate::lse::Lse;
use crate::operands::{DeviceScales, KeyTensors, ScaledBy, Table};
use crate::tensor::{Storage, zeros};
use crate::{
    AlibiShape, Call, Choice, Element, Error, Keys, Mask, Operands, Plan, Queries, Result, Scoring,
    Splits, Tensor, ViewMut, forward_cpu,
};

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

impl Default for Attention {
    fn default() -> Self {
        Self::new()
    }
}

impl Attention {
    /// Full attention with scale `1 / sqrt(head size)`, on the kernel the planner chooses.
    pub fn new() -> Self {
        Attention {
            scoring: Scoring::default(),
            slopes: None,
            sinks: None,
            splits: Splits::Even,
            choice: Choice::Best,
            lse: true,
        }
    }

    /// Which keys a query sees.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.scoring.mask = mask;
        self
    }

    /// Factor of the scores instead of `1 / sqrt(head size)`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scoring.scale = Some(scale);
        self
    }

    /// Bounds the scores: `softcap * tanh(score / softcap)`.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.scoring.softcap = Some(softcap);
        self
    }

    /// ALiBi: subtracts `slope * distance` from the scores. One slope per head, or one per batch entry and head.
    pub fn alibi_slopes(mut self, slopes: &[f32]) -> Self {
        self.slopes = Some(slopes.into());
        self
    }

    /// Attention sinks: one logit per query head that joins the denominator of every row, as if there were one more key with
    /// that score and the value 0.
    pub fn sinks(mut self, sinks: &[f32]) -> Self {
        self.sinks = Some(sinks.into());
        self.scoring.sinks = true;
        self
    }

    /// Where keys are cut into ranges that are computed apart: with [`Splits::EveryKeys`] a sequence's bits are the same in every
    /// batch.
    pub fn splits(mut self, splits: Splits) -> Self {
        self.splits = splits;
        self
    }

    /// Asks for a family, kernel or image instead of the planner's choice; `warptile info` lists them.
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Leaves the lse out.
    pub fn without_lse(mut self) -> Self {
        self.lse = false;
        self
    }

    /// Attention of queries to keys and values, each dense or packed. On a GPU the call returns when the work is submitted;
    /// reading the output waits.
    ///
    /// The first call of a problem plans it and loads its kernel; slopes and sinks that were not used before are uploaded.
    /// A GPU keeps its last 64 problems, and lengths and strides do not tell problems apart: a new packed batch, or a cache that
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
        let (call, operands) = self.call(&queries, &keys, None)?;
        let backend = queries.q.backend();
        let (plan, out, lse) = match backend.place() {
            Place::Cpu => self.forward_on_cpu(&call, &operands)?,
            Place::Gpu(gpu) => self.forward_on_gpu(gpu, &call, &operands)?,
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
        let (call, operands) = attention.call(&queries, &keys, Some(&*out))?;
        let expected = queries.q.backend();
        let others = [
            ("out", Some(out.backend())),
            ("lse", lse.as_deref().map(Lse::backend)),
        ];
        for (argument, backend) in others {
            same_device(argument, backend, expected)?;
        }
        if let Some(lse) = &lse {
            check_lse_shape(lse.shape(), call.lse_shape())?;
        }
        match expected.place() {
            Place::Cpu => {
                let lse = lse.map(|lse| lse.host_mut("lse")).transpose()?;
                let layout = *call.out();
                let out = ViewMut::new(out.host_mut("out")?, layout);
                attention.run_on_cpu(&call, &operands, out, lse)
            }
            Place::Gpu(gpu) => {
                let lse = lse.map(|lse| lse.device_mut("lse")).transpose()?;
                let out = out.device_mut("out")?;
                attention.run_on_gpu(gpu, &call, &operands, out, lse)
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
        let (call, _) = self.call(&queries, &keys, None)?;
        match queries.q.backend().place() {
            Place::Cpu => self.plan_on_cpu(&call),
            Place::Gpu(gpu) => gpu.plan(call.problem(), &self.choice),
        }
    }

    /// The call that the options and tensors describe, with all of it checked.
    fn call<'b, T: Element>(
        &'b self,
        queries: &'b Queries<'b, T>,
        keys: &'b Keys<'b, T>,
        out: Option<&Tensor<T>>,
    ) -> Result<(Call, Tensors<'b, T>)> {
        let q = queries.q;
        let KeyTensors { k, v, quantized } = &keys.tensors;
        let others = [
            ("k", Some(k.backend())),
            ("v", Some(v.backend())),
            ("bias", keys.bias.map(Tensor::backend)),
            ("key_mask", keys.key_mask.map(Tensor::backend)),
        ];
        for (argument, backend) in others {
            same_device(argument, backend, q.backend())?;
        }
        let mut scoring = self.scoring;
        scoring.bias = keys.bias.is_some();
        scoring.key_mask = keys.key_mask.is_some();
        if let Some(slopes) = &self.slopes {
            scoring.alibi = Some(match slopes.len() <= q.layout().heads() {
                true => AlibiShape::PerHead,
                false => AlibiShape::PerBatchHead,
            });
        }
        let quantized = quantized.as_ref().map(ScaledBy::quantization);
        let mut builder = Call::builder(q.layout(), k.layout(), v.layout(), T::TYPE)
            .quantized(quantized.transpose()?)
            .scoring(scoring)
            .splits(self.splits)
            .lengths(
                queries.side.request(),
                keys.side.request(),
                keys.table.as_ref().map(Table::request),
            )
            .want_lse(self.lse);
        if let Some(out) = out {
            builder = builder.out(*out.layout());
        }
        if let Some(bias) = keys.bias {
            builder = builder.bias(*bias.layout());
        }
        if let Some(key_mask) = keys.key_mask {
            builder = builder.key_mask(*key_mask.layout());
        }
        let out_aligned = out.is_none_or(Tensor::starts_aligned);
        if !q.starts_aligned() || !keys.tensors.start_aligned() || !out_aligned {
            builder = builder.unaligned_addresses();
        }
        let call = builder.build()?;
        call.check_slopes(self.slopes.as_deref())?;
        call.check_sinks(self.sinks.as_deref())?;
        Ok((call, Tensors { queries, keys }))
    }

    fn plan_on_cpu(&self, call: &Call) -> Result<Plan> {
        match &self.choice {
            Choice::Best => Ok(Plan::cpu(call.problem())),
            Choice::Kernel(name) if name == "cpu" => Ok(Plan::cpu(call.problem())),
            other => Err(Error::GpuKernelOnCpu {
                name: other.to_string(),
            }),
        }
    }

    fn forward_on_cpu<T: Element>(
        &self,
        call: &Call,
        tensors: &Tensors<'_, T>,
    ) -> Result<Computed<T>> {
        let mut out = zeros("out", call.out().reach())?;
        let mut lse = match call.wants_lse() {
            true => Some(zeros("lse", call.lse_len())?),
            false => None,
        };
        let plan = self.run_on_cpu(
            call,
            tensors,
            ViewMut::new(&mut out, *call.out()),
            lse.as_deref_mut(),
        )?;
        let lse = lse.map(|lse| Storage::Host(Arc::new(lse)));
        Ok((plan, Storage::Host(Arc::new(out)), lse))
    }

    fn run_on_cpu<T: Element>(
        &self,
        call: &Call,
        tensors: &Tensors<'_, T>,
        out: ViewMut<'_, T>,
        lse: Option<&mut [f32]>,
    ) -> Result<Plan> {
        let plan = self.plan_on_cpu(call)?;
        let Tensors { queries, keys } = tensors;
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
        call: &Call,
        tensors: &Tensors<'_, T>,
    ) -> Result<Computed<T>> {
        // One way in and out for all calls of the driver.
        let context = gpu.stream().context();
        context.within(|| self.allocate_and_run(gpu, call, tensors))
    }

    fn allocate_and_run<T: Element>(
        &self,
        gpu: &Gpu,
        call: &Call,
        tensors: &Tensors<'_, T>,
    ) -> Result<Computed<T>> {
        let stream = gpu.stream();
        let wants_lse = call.wants_lse();
        let lse_len = if wants_lse { call.lse_len() } else { 0 };
        let (mut out, mut lse) = DeviceBuffer::uninit_pair(stream, call.out().reach(), lse_len)?;
        if leaves_gaps(call) {
            // The memory may be somebody's of before.
            out.as_slice_mut().fill_bytes(0)?;
            lse.as_slice_mut().fill_bytes(0)?;
        }
        let lse_slice = wants_lse.then(|| lse.as_slice_mut());
        let plan = self.run_on_gpu(gpu, call, tensors, out.as_slice_mut(), lse_slice)?;
        let lse = wants_lse.then(|| Storage::Device(Arc::new(lse)));
        Ok((plan, Storage::Device(Arc::new(out)), lse))
    }

    fn run_on_gpu<T: Element>(
        &self,
        gpu: &Gpu,
        call: &Call,
        tensors: &Tensors<'_, T>,
        out: DeviceSliceMut<'_, T>,
        lse: Option<DeviceSliceMut<'_, f32>>,
    ) -> Result<Plan> {
        let prepared = gpu.prepare(call.problem(), &self.choice)?;
        let constant = |values: &Option<Arc<[f32]>>| {
            values
                .as_deref()
                .map(|values| gpu.constant(values))
                .transpose()
        };
        let (slopes, sinks) = (constant(&self.slopes)?, constant(&self.sinks)?);
        let Tensors { queries, keys } = tensors;
        let q = queries.q.on_device("q")?;
        let KeyTensors { k, v, quantized } = &keys.tensors;
        let kv = [k.on_device("k")?, v.on_device("v")?];
        let scales;
        let mut bindings = match quantized {
            None => Bindings::of(q, kv, out),
            Some(by) => {
                scales = by.scales.upload(gpu)?;
                let scales = scales.each_ref().map(DeviceScales::slice);
                Bindings::quantized(q, by.element, kv, scales, out)
            }
        };
        if let Some(lse) = lse {
            bindings = bindings.lse(lse);
        }
        if let Some(slopes) = &slopes {
            bindings = bindings.slopes(slopes.as_slice());
        }
        if let Some(sinks) = &sinks {
            bindings = bindings.sinks(sinks.as_slice());
        }
        if let Some(bias) = keys.bias {
            bindings = bindings.bias(bias.on_device("bias")?);
        }
        if let Some(key_mask) = keys.key_mask {
            bindings = bindings.key_mask(key_mask.on_device("key_mask")?);
        }
        bindings = bindings.device_lengths(&queries.side, &keys.side, keys.table.as_ref());
        prepared.launch(gpu.stream(), call, &bindings)?;
        Ok(prepared.plan().clone())
    }
}

/// Refuses an lse of another shape than that of the queries: batch, heads, length.
fn check_lse_shape(found: [usize; 3], expected: [usize; 3]) -> Result<()> {
    let dimensions = ["batch", "heads", "length"];
    for ((dimension, found), expected) in dimensions.into_iter().zip(found).zip(expected) {
        if found != expected {
            return Err(Error::Mismatch {
                argument: "lse",
                dimension,
                found,
                other: "q",
                expected,
            });
        }
    }
    Ok(())
}

/// What was computed, and how.
type Computed<T> = (Plan, Storage<T>, Option<Storage<f32>>);

/// The tensors of a call.
struct Tensors<'a, T: Element> {
    queries: &'a Queries<'a, T>,
    keys: &'a Keys<'a, T>,
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
