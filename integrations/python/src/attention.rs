//! `attention` and `explain`: the arguments checked against each other, and the call that they make.

use pyo3::prelude::*;
use warptile::cpu::raw;
use warptile::kernels::{Count, Elements, Kind};
use warptile::plan::{Choice, DeviceProfile, Plan};
use warptile::spec::{Call, DropoutState, Numbers, Operand};
use warptile::{ElementType, Layout};

use crate::arguments::{Options, Reader};
use crate::array::{Array, Device, Dtype, Gradients, Library, Order};
use crate::errors::{Failure, Names, Result};
use crate::given::Given;
use crate::gpu;
use crate::library::{self, Fill};
use crate::torch::Torch;

/// One call with everything that belongs to it.
pub(crate) struct Request<'py> {
    pub(crate) reader: Reader,
    pub(crate) order: Order,
    pub(crate) choice: Choice,
    pub(crate) call: Call,
    pub(crate) given: Given<'py>,
}

/// Refuses sequences that are longer than the caller says: a GPU would cut them off.
fn expect_within(
    names: Names,
    [argument, tensor]: [&'static str; 2],
    longest: Option<usize>,
    lengths: impl Iterator<Item = usize>,
) -> Result<()> {
    let Some(longest) = longest else {
        return Ok(());
    };
    match lengths.enumerate().find(|(_, length)| *length > longest) {
        None => Ok(()),
        Some((sequence, length)) => Err(Failure::Invalid(format!(
            "{} is {longest}, but sequence {sequence} has {length} rows of {}",
            names.of(argument),
            names.of(tensor)
        ))),
    }
}

/// The output and, if one is wanted, the lse.
pub(crate) type Results<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

impl<'py> Request<'py> {
    /// Reads all arguments and checks them against each other.
    pub(crate) fn new(options: &Options<'py>, gradients: Gradients) -> Result<Self> {
        let read = || Self::read(options, Self::reader(options, gradients)?, true);
        read().map_err(|failure| options.names.fail(failure))
    }

    /// A reader for the device of the queries.
    pub(crate) fn reader(options: &Options<'py>, gradients: Gradients) -> Result<Reader> {
        let q = Operand::Q;
        let (name, object) = (options.names.operand(q), options.operands[q].as_ref());
        Reader::of(name, object, options.stream, gradients)
    }

    /// As [`Request::new`], by a reader that may read the output and the lse. `aligned`: whether all tensors that are none of the call's
    /// start at multiples of 16 bytes.
    pub(crate) fn read(options: &Options<'py>, reader: Reader, aligned: bool) -> Result<Self> {
        let order = Order::parse(options.layout.as_deref().unwrap_or("bshd"))?;
        let given = reader.given(&options.operands, options.names)?;
        Self::of_given(options, reader, order, given, aligned)
    }

    /// As [`Request::read`], of operands that were read.
    pub(crate) fn of_given(
        options: &Options<'py>,
        reader: Reader,
        order: Order,
        given: Given<'py>,
        mut aligned: bool,
    ) -> Result<Self> {
        let types = given.types()?;
        let (packed_q, packed_k) = (
            given.has(Operand::QueryOffsets),
            given.has(Operand::KeyOffsets),
        );

        let (empty, scoring) = (Layout::new([0; 4], [0; 4]), options.scoring()?);
        let mut aligned_scores = true;
        let mut builder = Call::builder(&empty, &empty, &empty, types)
            .scoring(scoring)
            .want_lse(options.return_lse || given.has(Operand::Lse));
        for (operand, argument) in given.iter() {
            let layout = match operand.kind() {
                Kind::Queries => given.tensor(operand, order, packed_q)?,
                // Pages have their rows second, unless the order of heads and rows is the other one.
                Kind::Keys => {
                    given.tensor(operand, order, packed_k && !given.has(Operand::BlockTable))?
                }
                Kind::Scores => {
                    let is = &argument.array()?.is;
                    if operand.elements() == Elements::Bias && is.dtype == Dtype::F32 {
                        builder = builder.bias_type(ElementType::F32);
                    }
                    is.scores(operand)
                }
                Kind::List(Count::Table) => {
                    builder = { builder.numbers(operand, argument.request()) }
                        .table_layout(argument.table()?);
                    continue;
                }
                _ if operand.is_written() => continue,
                _ => {
                    builder = match operand.elements() {
                        Elements::I32 => builder.numbers(operand, argument.request()),
                        _ => builder.count(operand, argument.len()),
                    };
                    continue;
                }
            };
            builder.set_layout(operand, layout);
            let starts_aligned = argument.array()?.is.address.is_multiple_of(16);
            match operand.moves_rows() {
                true => aligned &= starts_aligned,
                false => aligned_scores &= starts_aligned,
            }
        }
        // A plan does without.
        if scoring.dropout.is_some() && !given.has(Operand::DropoutState) {
            builder = builder.numbers(Operand::DropoutState, Numbers::Device(DropoutState::WORDS));
        }
        let has_lengths = packed_k || given.has(Operand::KeyLengths);
        let longest = [
            options.max_seqlen_q.filter(|_| packed_q),
            options.max_seqlen_k.filter(|_| has_lengths),
        ];
        // The host sees the lengths of lists that it has.
        let on_host = reader.device() == Device::Cpu;
        if !on_host {
            builder = builder.longest(longest);
        }
        let builder = builder.aligned_addresses(aligned);
        let call = builder.aligned_scores(aligned_scores).build()?;
        if on_host {
            let (names, [q, k]) = (options.names, longest);
            let lengths = call.sequences().map(|one| one.q_len);
            expect_within(names, ["max_seqlen_q", "q"], q, lengths)?;
            let lengths = call.sequences().map(|one| one.k_len);
            expect_within(names, ["max_seqlen_k", "k"], k, lengths)?;
        }
        given.check(&call)?;
        let choice = match &options.kernel {
            Some(name) => name.parse::<Choice>()?,
            None => Choice::Best,
        };
        Ok(Request {
            reader,
            order,
            choice,
            call,
            given,
        })
    }

    /// A request in the terms of torch's `scaled_dot_product_attention` without a mask. None unless all arguments are plain tensors of torch
    /// with contiguous rows, of shapes and types that need no closer look.
    pub(crate) fn of_torch(options: &Options<'py>, shares_heads: bool) -> Option<Self> {
        let reader = Self::reader(options, Gradients::Ignored).ok()?;
        let mut given = reader.given(&options.operands, options.names).ok()?;
        let [q, k, v] = [Operand::Q, Operand::K, Operand::V].map(|operand| given.array(operand));
        let (q, k, v) = (q.ok()?, k.ok()?, v.ok()?);
        let of_torch = |array: &Array<'_>| array.library == Library::Torch && array.is.has_rows();
        let ([batch, heads, rows, size], [kv_batch, kv_heads, kv_rows, kv_size]) =
            (q.is.shape().try_into().ok()?, k.is.shape().try_into().ok()?);
        let is_usual = [q, k, v].into_iter().all(of_torch)
            && k.is.shape() == v.is.shape()
            && batch == kv_batch
            && size == kv_size
            && matches!(size, 8..=256)
            && (heads == kv_heads || shares_heads)
            && (rows == kv_rows || !options.is_causal());
        if !is_usual {
            return None;
        }
        let object = Torch::get(q.object.py()).ok()?.empty_like(q).ok()?;
        let argument = reader.made(Operand::Out, &object).ok()?;
        if !argument.is()?.has_rows() {
            return None;
        }
        given.arguments[Operand::Out] = Some(Box::new(argument));
        Self::of_given(options, reader, Order::Bhsd, given, true).ok()
    }

    /// The plan, for the device of the tensors or for another.
    pub(crate) fn plan(&self, py: Python<'_>, device: Option<&str>) -> Result<Plan> {
        let (problem, choice) = (self.call.problem(), &self.choice);
        let device = match device {
            None => self.reader.device(),
            Some("cpu") => Device::Cpu,
            Some("cuda") => Device::Cuda(0),
            Some(text) => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Device::Cuda(ordinal),
                _ => {
                    let profile = DeviceProfile::named(text).map_err(|error| {
                        Failure::Invalid(format!(
                            "device: {error}; it must be \"cpu\", \"cuda:0\" and so on, or a GPU that need not be there"
                        ))
                    })?;
                    return Ok(Plan::gpu(problem, &profile, choice)?);
                }
            },
        };
        match device {
            Device::Cpu => {
                self.choice.check_on_cpu()?;
                Ok(Plan::cpu(problem))
            }
            Device::Cuda(ordinal) => py.detach(|| gpu::plan(ordinal, problem, choice)),
        }
    }

    /// Computes it.
    pub(crate) fn run(self, py: Python<'py>) -> Result<Results<'py>> {
        self.run_after(py, None::<fn() -> Result<()>>)
    }

    /// Calls `before`, which may write what is read, and computes. Whatever is wrong with the arguments is found before that.
    pub(crate) fn run_after(
        self,
        py: Python<'py>,
        before: Option<impl FnOnce() -> Result<()>>,
    ) -> Result<Results<'py>> {
        let names = self.given.names;
        { self.compute(py, before) }.map_err(|failure| names.fail(failure))
    }

    fn compute(
        mut self,
        py: Python<'py>,
        before: Option<impl FnOnce() -> Result<()>>,
    ) -> Result<Results<'py>> {
        self.given.expect_state(&self.call)?;
        let into_jax = self.make_outputs()?;
        let Request {
            call,
            choice,
            given,
            ..
        } = &self;
        match self.reader.device() {
            Device::Cpu => {
                choice.check_on_cpu()?;
                let memory = given.memory(|operand| call.reach(operand))?;
                if let Some(before) = before {
                    raw::check(call, &memory)?;
                    before()?;
                }
                // SAFETY: the arrays are held until after the call, so their libraries keep the elements; that nobody changes them
                // meanwhile is what `attention` asks of its caller, as every function does that computes without the GIL.
                py.detach(|| unsafe { raw::forward(call, &memory) })?;
            }
            Device::Cuda(ordinal) => {
                let stream = self.reader.stream();
                let addresses = given.addresses(ordinal)?;
                let ready = py.detach(|| gpu::ready(ordinal, call, choice))?;
                if let Some(before) = before {
                    { ready.as_ref() }.map_or(Ok(()), |ready| ready.check(call, &addresses))?;
                    before()?;
                }
                if let Some(ready) = ready {
                    // SAFETY: the library says that the elements are there, and keeps them for work that was queued on its stream before
                    // it gives them to others; the stream is the library's or one that the caller vouches for.
                    py.detach(|| unsafe { gpu::forward(&ready, stream, call, &addresses) })?;
                }
            }
        }
        let result = |operand: Operand| match given.object(operand).cloned() {
            Some(array) if into_jax.contains(&Some(operand)) => {
                library::into_jax(array, given.array(Operand::Q)?).map(Some)
            }
            array => Ok(array),
        };
        match result(Operand::Out)? {
            Some(out) => Ok((out, result(Operand::Lse)?)),
            None => Err(Failure::Invalid("out is missing".to_owned())),
        }
    }

    /// Makes the output and the lse unless they were given. Tells which of them are to become arrays of jax.
    fn make_outputs(&mut self) -> Result<[Option<Operand>; 2]> {
        let fill = match self.call.leaves_gaps() {
            true => Fill::Zeros,
            false => Fill::Nothing,
        };
        let (call, packed) = (&self.call, self.call.queries().is_packed());
        let mut into_jax = [None; 2];
        for (operand, into_jax) in [Operand::Out, Operand::Lse].into_iter().zip(&mut into_jax) {
            if self.given.has(operand) || !call.has(operand) {
                continue;
            }
            let q = self.given.array(Operand::Q)?;
            *into_jax = (q.library == Library::Jax).then_some(operand);
            let make = || match call.layout(operand) {
                Some(layout) => library::output(q, self.order, layout, packed, fill),
                None => library::lse(q, call.out(), packed, fill),
            };
            let made = self.reader.making(q.object.py(), make)?;
            let argument = self.reader.made(operand, &made)?;
            self.given.arguments[operand] = Some(Box::new(argument));
        }
        Ok(into_jax)
    }
}
