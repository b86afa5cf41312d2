//! The other verb: gradients of an output in, gradients of queries, keys and values out.

use std::marker::PhantomData;

use warptile_kernels::{Operand, Slots};

use super::{Attention, Output};
use crate::attention::given::Arguments;
use crate::backend::{Place, same_device};
use crate::cpu::backward_cpu;
use crate::error::Result;
use crate::gpu::{Gpu, Prepared};
use crate::lse::Lse;
use crate::operands::{Keys, Queries};
use crate::plan::{BackwardProblem, Choice, Plan};
use crate::spec::{
    Access, Backward, Element, ElementType, HostOutputs, Invalid, KeyGradients, Layout, expect_same,
};
use crate::tensor::{Bytes, Tensor};

/// The gradient of an output, and of its lse if that was used. A `&Tensor` is the gradient of the output alone, and a
/// pair of a `&Tensor` and a `&Lse` that of both.
#[derive(Debug, Clone, Copy)]
pub struct OutputGradient<'a, T: Element> {
    d_out: &'a Tensor<T>,
    d_lse: Option<&'a Lse>,
}

impl<'a, T: Element> From<&'a Tensor<T>> for OutputGradient<'a, T> {
    fn from(d_out: &'a Tensor<T>) -> Self {
        OutputGradient { d_out, d_lse: None }
    }
}

impl<'a, T: Element> From<(&'a Tensor<T>, &'a Lse)> for OutputGradient<'a, T> {
    fn from((d_out, d_lse): (&'a Tensor<T>, &'a Lse)) -> Self {
        OutputGradient {
            d_out,
            d_lse: Some(d_lse),
        }
    }
}

/// An output with its lse: a `&Output`, or a pair of a `&Tensor` and a `&Lse`, such as parts of larger ones.
#[derive(Debug, Clone, Copy)]
pub struct OutputGiven<'a, T: Element> {
    out: &'a Tensor<T>,
    lse: Option<&'a Lse>,
}

impl<'a, T: Element> From<&'a Output<T>> for OutputGiven<'a, T> {
    fn from(output: &'a Output<T>) -> Self {
        OutputGiven {
            out: &output.out,
            lse: output.lse.as_ref(),
        }
    }
}

impl<'a, T: Element> From<(&'a Tensor<T>, &'a Lse)> for OutputGiven<'a, T> {
    fn from((out, lse): (&'a Tensor<T>, &'a Lse)) -> Self {
        let lse = Some(lse);
        OutputGiven { out, lse }
    }
}

/// The result of [`Attention::backward`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gradients<T: Element> {
    /// The gradient of the queries, of their shape and dimension order.
    pub dq: Tensor<T>,
    /// The gradient of the keys: the sum over all query heads that share a key/value head.
    pub dk: Tensor<T>,
    /// The gradient of the values, likewise.
    pub dv: Tensor<T>,
    /// The gradient of the bias, if [`Attention::d_bias`] asks for it. Along each dimension in which the bias has the extent 1, or is
    /// repeated by a stride of 0, it is a sum and has the extent 1.
    pub d_bias: Option<Tensor<T>>,
    /// The gradients of [`Attention::gradients_of_numbers`], each `[1, 1, heads, 1]`.
    pub numbers: Vec<(Operand, Tensor<f32>)>,
    /// How they were computed.
    pub plan: Plan<BackwardProblem>,
}

impl<T: Element> Gradients<T> {
    /// The gradients of the sinks, `[1, 1, heads, 1]`, if there are sinks.
    pub fn d_sinks(&self) -> Option<&Tensor<f32>> {
        { self.numbers.iter() }.find_map(|(of, to)| (*of == Operand::DSinks).then_some(to))
    }

    /// The bytes of a gradient, copied to the host, and its layout; `None` if it was not computed. Waits for the device.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_bytes(&self, gradient: Operand) -> Result<Option<(Vec<u8>, Layout)>> {
        let tensor: Option<&dyn Bytes> = match gradient {
            Operand::DQ => Some(&self.dq),
            Operand::DK => Some(&self.dk),
            Operand::DV => Some(&self.dv),
            Operand::DBias => self.d_bias.as_ref().map(|d_bias| d_bias as _),
            _ => { self.numbers.iter() }
                .find(|(of, _)| *of == gradient)
                .map(|(_, numbers)| numbers as _),
        };
        let Some(tensor) = tensor else {
            return Ok(None);
        };
        let bytes = match tensor.backend().is_gpu() {
            true => tensor.on_device(gradient.name())?.to_vec()?,
            false => tensor.on_host(gradient.name())?.to_vec(),
        };
        Ok(Some((bytes, *tensor.layout())))
    }
}

/// Where [`Attention::backward_into`] writes: any of the gradients, in tensors of one's own, of the type of the queries or of `f32`.
#[derive(Debug)]
#[must_use]
pub struct GradientsInto<'a, T: Element> {
    to: Written<'a>,
    adds: bool,
    of_keys: KeyGradients,
    elements: PhantomData<T>,
}

impl<T: Element> Default for GradientsInto<'_, T> {
    fn default() -> Self {
        GradientsInto {
            to: Slots::none(),
            adds: false,
            of_keys: KeyGradients::LikeOthers,
            elements: PhantomData,
        }
    }
}

impl<'a, T: Element> GradientsInto<'a, T> {
    /// No gradient yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The gradient of the queries.
    pub fn dq(self, dq: &'a mut Tensor<T>) -> Self {
        self.with(Operand::DQ, dq)
    }

    /// The gradient of the keys.
    pub fn dk(self, dk: &'a mut Tensor<T>) -> Self {
        self.with(Operand::DK, dk)
    }

    /// The gradient of the values.
    pub fn dv(self, dv: &'a mut Tensor<T>) -> Self {
        self.with(Operand::DV, dv)
    }

    /// The gradient of the bias, `[batch, queries, heads, keys]` with the extent 1 where the bias has it.
    pub fn d_bias(self, d_bias: &'a mut Tensor<T>) -> Self {
        self.with(Operand::DBias, d_bias)
    }

    /// Adds the gradients to what is there, as of several batches, instead of replacing it.
    pub fn add(mut self) -> Self {
        self.adds = true;
        self
    }

    /// The gradients of keys and values in `f32`, which are added to what is there, and so are those of options' numbers; `dq` is not. For
    /// those who add up what several calls with other queries give.
    pub fn key_sums(self, dk: &'a mut Tensor<f32>, dv: &'a mut Tensor<f32>) -> Self {
        self.of_keys(KeyGradients::Sums, dk, dv)
    }

    /// As [`key_sums`](Self::key_sums), but the gradients of keys and values replace what is there.
    pub fn key_parts(self, dk: &'a mut Tensor<f32>, dv: &'a mut Tensor<f32>) -> Self {
        self.of_keys(KeyGradients::Parts, dk, dv)
    }

    fn of_keys(
        mut self,
        of_keys: KeyGradients,
        dk: &'a mut Tensor<f32>,
        dv: &'a mut Tensor<f32>,
    ) -> Self {
        self.of_keys = of_keys;
        self.with(Operand::DK, dk).with(Operand::DV, dv)
    }

    /// The gradients of the sinks, `[1, 1, heads, 1]`.
    pub fn d_sinks(self, d_sinks: &'a mut Tensor<f32>) -> Self {
        self.numbers(Operand::DSinks, d_sinks)
    }

    /// The gradient of an option's numbers by its operand, as one of [`Attention::gradients_of_numbers`]: `[1, 1, heads, 1]`.
    pub fn numbers(self, gradient: Operand, to: &'a mut Tensor<f32>) -> Self {
        self.with(gradient, to)
    }

    fn with(mut self, operand: Operand, to: &'a mut dyn Bytes) -> Self {
        self.to[operand] = Some(to);
        self
    }
}

/// The memory that a backward pass reads besides what the forward pass reads.
type Outputs<'a> = Slots<Option<&'a dyn Bytes>>;

/// The gradients that are wanted.
struct Wanted<'a, 'b> {
    /// The tensors that they are written to; all that the call has, dense, if there are none.
    tensors: Option<&'a Written<'b>>,
    gradient_type: ElementType,
    adds: bool,
    of_keys: KeyGradients,
}

/// Where gradients are written.
type Written<'a> = Slots<Option<&'a mut dyn Bytes>>;

impl Attention {
    /// The gradients of queries, keys and values, of [options' numbers](Self::gradients_of_numbers), and of a bias if it is
    /// [asked for](Self::d_bias), from that of the output. The arguments are those of [`forward`](Self::forward), which gave
    /// `output` with its lse; on a GPU the call returns when the work is submitted.
    ///
    /// Equal arguments give the same bits each time: every sum has one order. `d_out` may have any strides whose last is 1. Rows of a
    /// gradient that no sequence owns are 0.
    ///
    /// ```
    /// use warptile::{Attention, Backend, Mask};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::auto()?;
    /// let shape = [1, 4, 2, 8];
    /// let data: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
    /// let (q, k, v) = (backend.tensor(&data, shape)?, backend.tensor(&data, shape)?, backend.tensor(&data, shape)?);
    /// let attention = Attention::new().mask(Mask::causal());
    /// let output = attention.forward(&q, (&k, &v))?;
    /// let d_out = backend.tensor(&data, shape)?;
    /// let gradients = attention.backward(&d_out, &q, (&k, &v), &output)?;
    /// // The first query sees only one key, so its output does not depend on its score: no gradient reaches it.
    /// assert!(gradients.dq.to_vec()?[..16].iter().all(|x| x.abs() < 1e-6));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Self::forward); without the output's lse; and for calls that have no backward pass, which
    /// [`BackwardBuilder::build`](crate::spec::BackwardBuilder::build) names.
    pub fn backward<'a, T: Element>(
        &self,
        gradient: impl Into<OutputGradient<'a, T>>,
        queries: impl Into<Queries<'a, T>>,
        keys: impl Into<Keys<'a, T>>,
        output: impl Into<OutputGiven<'a, T>>,
    ) -> Result<Gradients<T>> {
        let given = Arguments::new(self, queries.into(), keys.into());
        let gradient = gradient.into();
        let also = outputs(&gradient, output.into());
        let wanted = Wanted {
            tensors: None,
            gradient_type: T::TYPE,
            adds: false,
            of_keys: KeyGradients::LikeOthers,
        };
        let backward = self.describe_backward(&given, &also, &wanted)?;
        let backend = given.backend();
        let made = |operand: Operand| -> Result<Tensor<T>> {
            let layout = *backward.gradient(operand).unwrap_or(&Layout::EMPTY);
            match backward.leaves_gaps(operand) {
                true => Tensor::zeros(backend, operand.name(), layout),
                false => Tensor::uninit(backend, operand.name(), layout),
            }
        };
        let [mut dq, mut dk, mut dv] = [made(Operand::DQ)?, made(Operand::DK)?, made(Operand::DV)?];
        let wants_bias = backward.wants(Operand::DBias);
        let mut d_bias = wants_bias.then(|| made(Operand::DBias)).transpose()?;
        let numbers = self.gradients_of_numbers().map(|of| {
            let layout = *backward.gradient(of).unwrap_or(&Layout::EMPTY);
            Ok((of, Tensor::uninit(backend, of.name(), layout)?))
        });
        let mut numbers = numbers.collect::<Result<Vec<_>>>()?;
        let mut into = GradientsInto::new().dq(&mut dq).dk(&mut dk).dv(&mut dv);
        for (of, to) in &mut numbers {
            into = into.numbers(*of, to);
        }
        if let Some(d_bias) = &mut d_bias {
            into = into.d_bias(d_bias);
        }
        let plan = self.run_backward(&backward, &given, &also, into.to)?;
        Ok(Gradients {
            dq,
            dk,
            dv,
            d_bias,
            numbers,
            plan,
        })
    }

    /// As [`backward`](Self::backward), into existing tensors for the wanted gradients, which nothing else may hold. Rows
    /// that no sequence owns are left alone, and so are the gaps of a strided one.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); when a tensor is not of the shape of what it is the gradient of, or of a
    /// different type than that and `f32`.
    pub fn backward_into<'a, T: Element, G: Element>(
        &self,
        gradient: impl Into<OutputGradient<'a, T>>,
        queries: impl Into<Queries<'a, T>>,
        keys: impl Into<Keys<'a, T>>,
        output: impl Into<OutputGiven<'a, T>>,
        into: GradientsInto<'_, G>,
    ) -> Result<Plan<BackwardProblem>> {
        let given = Arguments::new(self, queries.into(), keys.into());
        let gradient = gradient.into();
        let also = outputs(&gradient, output.into());
        let wanted = Wanted {
            tensors: Some(&into.to),
            gradient_type: G::TYPE,
            adds: into.adds,
            of_keys: into.of_keys,
        };
        let backward = self.describe_backward(&given, &also, &wanted)?;
        for (operand, to) in into.to.given() {
            same_device(operand.name(), Some(to.backend()), given.backend())?;
        }
        self.run_backward(&backward, &given, &also, into.to)
    }

    /// The backward pass that the options and tensors describe, with all of it checked.
    fn describe_backward(
        &self,
        given: &Arguments<'_>,
        also: &Outputs<'_>,
        wanted: &Wanted<'_, '_>,
    ) -> Result<Backward> {
        let missing = || {
            Invalid::presence(
                "lse",
                "is missing in the output, but gradients need it: compute it with the output",
            )
        };
        also[Operand::Lse].ok_or_else(missing)?;
        for (operand, tensor) in also.given() {
            same_device(operand.name(), Some(tensor.backend()), given.backend())?;
        }
        let tensors = || wanted.tensors.into_iter().flat_map(Slots::given);
        let mut moved = tensors().filter(|(operand, _)| operand.moves_rows());
        let d_out = also[Operand::DOut];
        let aligned = d_out.is_none_or(|d_out| d_out.starts_aligned())
            && moved.all(|(_, to)| to.starts_aligned());
        let mut request = self.request(given, also[Operand::Out])?.want_lse(true);
        if !aligned {
            request = request.unaligned_addresses();
        }
        let call = request.build()?;
        Self::check(&call, given)?;
        let shape = call.lse_shape();
        for operand in [Operand::Lse, Operand::DLse] {
            if let Some(lse) = also[operand] {
                let [batch, length, heads, _] = lse.layout().shape;
                let dimensions = ["batch", "heads", "length"];
                expect_same(
                    operand.name(),
                    [batch, heads, length],
                    ("q", shape),
                    dimensions,
                )?;
            }
        }
        let mut builder = Backward::builder(call)
            .want_all(self.d_bias)
            .d_lse(also[Operand::DLse].is_some())
            .gradient_type(wanted.gradient_type)
            .adds(wanted.adds)
            .of_keys(wanted.of_keys);
        for operand in { Operand::GRADIENTS.into_iter() }.filter(|_| wanted.tensors.is_some()) {
            builder = builder.want(operand, false);
        }
        let d_out = d_out.map(|d_out| (Operand::DOut, *d_out.layout()));
        let to = tensors().map(|(operand, to)| (operand, *to.layout()));
        for (operand, layout) in to.chain(d_out) {
            builder = builder.layout(operand, layout);
        }
        let backward = builder.build()?;
        for (operand, to) in tensors() {
            backward.expected()[operand].check_type(to.memory_type(), Access::Write)?;
        }
        Ok(backward)
    }

    fn run_backward(
        &self,
        backward: &Backward,
        given: &Arguments<'_>,
        also: &Outputs<'_>,
        written: Written<'_>,
    ) -> Result<Plan<BackwardProblem>> {
        match given.backend().place() {
            Place::Cpu => {
                self.choice.check_on_cpu()?;
                let mut inputs = given.inputs(backward.call())?;
                for (operand, tensor) in also.given() {
                    inputs.set(operand, tensor.on_host(operand.name())?);
                }
                let mut outputs = HostOutputs::default();
                for (operand, to) in written.into_given() {
                    outputs = outputs.with(operand, to.host_mut(operand.name())?);
                }
                backward_cpu(backward, &inputs, outputs)?;
                Ok(Plan::backward_on_cpu(BackwardProblem::of(backward)))
            }
            Place::Gpu(gpu) => {
                // A kernel that was chosen for the output is none for gradients.
                let choice = match self.choice.is_of_gradients() {
                    true => &self.choice,
                    false => &Choice::Best,
                };
                let prepared = gpu.prepare_for(backward, choice)?;
                backward_on_gpu(gpu, &prepared, backward, given, also, written)
            }
        }
    }
}

fn backward_on_gpu(
    gpu: &Gpu,
    prepared: &Prepared<Backward>,
    backward: &Backward,
    given: &Arguments<'_>,
    also: &Outputs<'_>,
    written: Written<'_>,
) -> Result<Plan<BackwardProblem>> {
    let constants = given.constants(backward.call(), gpu)?;
    let mut bindings = given.bindings(&constants)?;
    for (operand, tensor) in also.given() {
        bindings.set_bytes(operand, tensor.on_device(operand.name())?);
    }
    for (operand, to) in written.into_given() {
        bindings.set_bytes(operand, to.device_mut(operand.name())?);
    }
    prepared.launch(gpu.stream(), backward, &bindings)?;
    Ok(prepared.plan().clone())
}

fn outputs<'a, T: Element>(
    gradient: &OutputGradient<'a, T>,
    output: OutputGiven<'a, T>,
) -> Outputs<'a> {
    let mut outputs = Outputs::none();
    outputs[Operand::Out] = Some(output.out);
    outputs[Operand::DOut] = Some(gradient.d_out);
    outputs[Operand::Lse] = output.lse.map(|lse| &lse.0 as _);
    outputs[Operand::DLse] = gradient.d_lse.map(|d_lse| &d_lse.0 as _);
    outputs
}
