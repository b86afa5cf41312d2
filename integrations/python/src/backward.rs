//! `attention_backward`: the gradients of `attention`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warptile::cpu::raw;
use warptile::kernels::Kind;
use warptile::plan::Scratch;
use warptile::spec::{Backward, Operand};
use warptile::{ElementType, Layout};

use crate::arguments::{Objects, Options};
use crate::array::{Device, Dtype, Gradients, Library, MAX_RANK, Order};
use crate::attention::Request;
use crate::errors::{Failure, Result};
use crate::gpu;
use crate::library::{self, Fill};

/// All gradients in the order of [`Operand::GRADIENTS`]; `None` for those that are not wanted.
pub(crate) type Results<'py> = [Option<Bound<'py, PyAny>>; Operand::GRADIENTS.len()];

/// Which gradients are wanted, in the order of [`Operand::GRADIENTS`].
pub(crate) type Needs = [bool; Operand::GRADIENTS.len()];

/// The option that tells [`Needs`].
const NEEDS: &str = "needs";

/// The operands of gradients that are arguments.
fn arguments() -> impl Iterator<Item = Operand> {
    [Operand::DOut, Operand::DLse]
        .into_iter()
        .chain(Operand::GRADIENTS)
}

/// The arguments that have gradients, each with its gradient's.
pub(crate) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    { Operand::GRADIENTS.into_iter() }
        .filter_map(|operand| Some((operand.gradient_of()?.python_name()?, operand.name())))
}

/// True for gradients that are tensors, false for lists.
fn is_tensor(gradient: &Operand) -> bool {
    !matches!(gradient.kind(), Kind::List(_))
}

/// Takes the arguments of gradients out of keyword arguments: their operands, and the gradients that are wanted.
fn split<'py>(
    options: Option<&Bound<'py, PyDict>>,
) -> Result<(Objects<'py>, Option<Needs>, Option<Bound<'py, PyDict>>)> {
    let mut objects = Objects::default();
    let Some(options) = options else {
        return Ok((objects, None, None));
    };
    let options = options.copy()?;
    let taken = |name: &str| -> Result<Option<Bound<'py, PyAny>>> {
        let value = options.get_item(name)?;
        if value.is_some() {
            options.del_item(name)?;
        }
        Ok(value.filter(|value| !value.is_none()))
    };
    for operand in arguments() {
        objects[operand] = taken(operand.name())?;
    }
    let needs = taken(NEEDS)?.map(|needs| {
        needs.extract::<Needs>().map_err(|_| {
            let of: Vec<_> = names().map(|(of, _)| of).collect();
            Failure::Type(format!(
                "{NEEDS} must be {} truth values: whether the gradients of {} are wanted",
                of.len(),
                of.join(", ")
            ))
        })
    });
    Ok((objects, needs.transpose()?, Some(options)))
}

/// Computes gradients. `tensors`: d_out, q, k, v, out and lse.
pub(crate) fn run<'py>(
    py: Python<'py>,
    [d_out, q, k, v, out, lse]: [&Bound<'py, PyAny>; 6],
    options: Option<&Bound<'py, PyDict>>,
) -> Result<Results<'py>> {
    let (mut objects, needs, options) = split(options)?;
    objects[Operand::DOut] = Some(d_out.clone());
    let mut options = Options::of("attention_backward", [q, k, v], options.as_ref())?;
    options.operands[Operand::Out] = Some(out.clone());
    options.operands[Operand::Lse] = Some(lse.clone());
    let names = options.names;
    { compute(py, &options, &objects, needs) }.map_err(|failure| names.fail(failure))
}

fn compute<'py>(
    py: Python<'py>,
    options: &Options<'py>,
    objects: &Objects<'py>,
    needs: Option<Needs>,
) -> Result<Results<'py>> {
    if options.stream.is_some() {
        return Err(Failure::Invalid(
            "stream is given, but gradients are computed on the current stream of q's library"
                .to_owned(),
        ));
    }
    let reader = Request::reader(options, Gradients::Ignored)?.reading_results();
    // Gradients are written into tensors of every kind.
    let mut also = reader.given(objects, options.names)?;
    let aligned = { also.iter() }.all(|(operand, argument)| {
        let starts_aligned = |at: u64| at.is_multiple_of(16);
        !operand.moves_rows() || argument.is().is_none_or(|is| starts_aligned(is.address))
    });
    let request = Request::read(options, reader, aligned)?;
    let (call, order) = (request.call.clone(), request.order);
    let packed_q = call.queries().is_packed();
    let packed = |operand: Operand| match operand.kind() {
        Kind::Keys => call.keys().is_packed(),
        _ => packed_q,
    };
    // That of a bias takes a pass of its own.
    let by_default = |operand| operand != Operand::DBias || also.has(operand);
    let needs = needs.unwrap_or_else(|| {
        Operand::GRADIENTS
            .map(|operand| call.gradient_layout(operand).is_some() && by_default(operand))
    });
    let wanted = || Operand::GRADIENTS.into_iter().zip(needs);
    for (operand, wanted) in wanted() {
        if also.has(operand) && !wanted {
            return Err(Failure::Invalid(format!(
                "{} is given, but {NEEDS} says that it is not wanted",
                operand.name()
            )));
        }
    }

    let q = request.given.array(Operand::Q)?;
    also.array(Operand::DOut)?.is.expect_dtype(
        std::slice::from_ref(&q.is.dtype),
        &format!("{}, as q has", q.is.dtype),
    )?;
    // The type of the first gradient that is given.
    let dtype = { Operand::GRADIENTS.into_iter().filter(is_tensor) }
        .find_map(|operand| also.arguments[operand].as_ref()?.is())
        .map_or(&q.is.dtype, |is| &is.dtype)
        .clone();
    let (allowed, rule) = match q.is.dtype {
        Dtype::F32 => (vec![Dtype::F32], "float32".to_owned()),
        ref dtype => (
            vec![dtype.clone(), Dtype::F32],
            format!("{dtype} or float32"),
        ),
    };
    let mut builder = Backward::builder(call.clone())
        .d_lse(also.has(Operand::DLse))
        .gradient_type(match dtype {
            Dtype::F32 => ElementType::F32,
            _ => q.is.element()?,
        })
        .layout(Operand::DOut, also.tensor(Operand::DOut, order, packed_q)?);
    for (operand, wanted) in wanted() {
        builder = builder.want(operand, wanted);
    }
    for operand in Operand::GRADIENTS.into_iter().filter(is_tensor) {
        if !also.has(operand) {
            continue;
        }
        let is = &also.array(operand)?.is;
        is.expect_dtype(&allowed, &rule)?;
        is.expect_dtype(
            std::slice::from_ref(&dtype),
            &format!("{dtype}, as the other gradients have"),
        )?;
        let layout = match operand.kind() {
            Kind::Scores => is.scores(operand),
            _ => also.tensor(operand, order, packed(operand))?,
        };
        builder = builder.layout(operand, layout);
    }
    let backward = builder.build()?;
    request.given.expect_state(&call)?;
    if also.has(Operand::DLse) {
        also.get(Operand::DLse)?.check_lse(&call)?;
    }
    for (operand, layout) in { Operand::GRADIENTS.into_iter() }
        .filter(|operand| also.has(*operand) && !is_tensor(operand))
        .filter_map(|operand| Some((operand, backward.gradient(operand)?)))
    {
        let (is, heads) = (&also.array(operand)?.is, layout.reach());
        if is.list(1, "it must have the one dimension [heads]")? != heads {
            return Err(Failure::Invalid(format!(
                "{} has shape {:?}; it must be [heads], for {heads} heads",
                is.name,
                is.shape()
            )));
        }
    }

    // The ones that are not given.
    let mut into_jax = [false; Operand::GRADIENTS.len()];
    for (operand, into_jax) in Operand::GRADIENTS.into_iter().zip(&mut into_jax) {
        let Some(layout) = backward.gradient(operand).filter(|_| !also.has(operand)) else {
            continue;
        };
        let fill = match backward.leaves_gaps(operand) {
            true => Fill::Zeros,
            false => Fill::Nothing,
        };
        let made = match operand.kind() {
            Kind::List(_) => library::list(q, layout.reach())?,
            // With as many dimensions as the bias.
            Kind::Scores => {
                let from = MAX_RANK - request.given.array(Operand::Bias)?.is.shape().len();
                library::gradient(q, Order::Bhsd, layout, from, dtype.clone(), fill)?
            }
            _ => {
                let from = usize::from(packed(operand));
                library::gradient(q, order, layout, from, dtype.clone(), fill)?
            }
        };
        *into_jax = q.library == Library::Jax;
        let argument = reader.argument(operand, operand.name(), &made)?;
        also.arguments[operand] = Some(Box::new(argument));
    }
    let workspace = match reader.device() {
        Device::Cpu => None,
        Device::Cuda(ordinal) => {
            let bytes = gpu::workspace_bytes(ordinal, &backward, &request.choice)?;
            Some(library::workspace(q, bytes, Scratch::BACKWARD_ZEROS)?)
        }
    };

    let Request {
        choice, mut given, ..
    } = request;
    for operand in arguments() {
        if let Some(argument) = also.arguments[operand].take() {
            given.arguments[operand] = Some(argument);
        }
    }
    match (reader.device(), workspace) {
        (Device::Cuda(ordinal), Some(workspace)) => {
            let stream = reader.stream();
            let addresses = given.addresses(ordinal)?;
            let workspace = reader.array("workspace", &workspace)?;
            let at = workspace.is.address;
            // SAFETY: as for `attention`'s launch. The workspace's beginning was zeroed in the order of the stream, which is the current
            // one of q's library; that library gives its memory to others for work that comes later in that order.
            py.detach(|| unsafe {
                gpu::launch(ordinal, stream, &backward, &choice, &addresses, at)
            })?;
        }
        _ => {
            choice.check_on_cpu()?;
            let memory = given.memory(|operand| match operand {
                Operand::DOut => backward.d_out().reach(),
                Operand::DLse => call.lse_len(),
                _ => { backward.gradient(operand) }
                    .map_or_else(|| call.reach(operand), Layout::reach),
            })?;
            // SAFETY: as for `attention` on the CPU.
            py.detach(|| unsafe { raw::backward(&backward, &memory) })?;
        }
    }
    let mut results = Results::default();
    for ((operand, into_jax), result) in Operand::GRADIENTS
        .into_iter()
        .zip(into_jax)
        .zip(&mut results)
    {
        *result = match given.object(operand).cloned() {
            Some(array) if into_jax => Some(library::into_jax(array, given.array(Operand::Q)?)?),
            array => array,
        };
    }
    Ok(results)
}
