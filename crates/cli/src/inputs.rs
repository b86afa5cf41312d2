//! The inputs of one attention call in host memory, and the call itself.

use std::time::{Duration, Instant};

use either::{Either, for_both, map_both};
use warptile::kernels::Operations;
use warptile::plan::{BackwardProblem, Choice, Plan};
use warptile::spec::{Call, HostInputs, Invalid, Numbers as Request, Operand, Slots, Types};
use warptile::{Backend, Element, ElementType, Error, Layout};
use warptile_check::Expectation;

use crate::failure::Failure;
use crate::tensors::{Numbers, Settings, Tensors};

/// The tensors of a call, and its numbers.
#[derive(Debug, Clone)]
pub(crate) struct Inputs<T> {
    pub(crate) types: Types,
    pub(crate) q: Vec<T>,
    /// Keys and values of the queries' type, or the bits of quantized ones.
    pub(crate) kv: Either<[Vec<T>; 2], [Vec<u8>; 2]>,
    /// The layouts of q, k and v.
    pub(crate) layouts: [Layout; 3],
    pub(crate) numbers: Numbers,
    /// Tensors that have an element for each score, `[batch, heads, queries, keys]` in memory.
    pub(crate) scores: Slots<Option<LaidOut<T>>>,
    /// A bias of `f32` for queries of another type, and how it lies.
    pub(crate) bias_f32: Option<(Vec<f32>, Layout)>,
    /// A gradient of the output, and how it lies.
    pub(crate) d_out: Option<(Vec<T>, Layout)>,
}

/// A tensor of the queries' type or of bytes, and how it lies.
type LaidOut<T> = (Either<Vec<T>, Vec<u8>>, Layout);

/// The result of a call, in host memory.
pub(crate) struct Answer<T> {
    /// In q's storage order.
    pub(crate) out: Vec<T>,
    pub(crate) out_layout: Layout,
    /// `[batch, heads, length]`; packed: `[heads, rows]`.
    pub(crate) lse: Vec<f32>,
    pub(crate) plan: Plan,
    pub(crate) times: Times,
    /// If the inputs have a gradient of the output.
    pub(crate) gradients: Option<InputGradients>,
}

/// The gradients of a call, in host memory.
pub(crate) struct InputGradients {
    /// The bytes of each gradient, those of tensors in the storage order of the tensor, and its layout.
    pub(crate) each: Vec<(Operand, (Vec<u8>, Layout))>,
    pub(crate) plan: Plan<BackwardProblem>,
    pub(crate) times: Times,
}

/// How long calls took, until their results were in host memory.
pub(crate) struct Times {
    /// The time of the first call: it loads the kernel, or starts the threads.
    pub(crate) first: Duration,
    /// Median of the calls after it, and how many there were.
    pub(crate) later: Option<(Duration, usize)>,
}

impl Times {
    /// Makes a call, several times if it takes less than a second and not `once`; the result of the first.
    fn of<R>(once: bool, call: impl Fn() -> warptile::Result<R>) -> warptile::Result<(R, Self)> {
        /// The most calls after the first, and the time after which there are no more.
        const REPEATS: usize = 20;
        const REPEAT_TIME: Duration = Duration::from_secs(1);
        let timed = || {
            let start = Instant::now();
            let result = call()?;
            Ok::<_, Error>((result, start.elapsed()))
        };
        let (result, first) = timed()?;
        let start = Instant::now();
        let mut later = Vec::new();
        let repeats = if once { 0 } else { REPEATS };
        while later.len() < repeats && start.elapsed() + first < REPEAT_TIME {
            later.push(timed()?.1);
        }
        later.sort_unstable();
        let median = later.get(later.len() / 2);
        let later = median.map(|&median| (median, later.len()));
        Ok((result, Times { first, later }))
    }
}

impl<T: Copy> Answer<T> {
    /// The output in the reference's order, `[batch, rows, heads, head size]`.
    pub(crate) fn out_in_reference_order(&self) -> Vec<T> {
        to_reference_order(&self.out, &self.out_layout)
    }
}

/// `data`, stored as `layout` says, in the order `[batch, rows, heads, head size]`.
pub(crate) fn to_reference_order<T: Copy>(data: &[T], layout: &Layout) -> Vec<T> {
    let [batch, rows, heads, head_dim] = layout.shape;
    let mut ordered = Vec::with_capacity(data.len());
    for b in 0..batch {
        for s in 0..rows {
            for h in 0..heads {
                let start = layout.offset(b, s, h);
                ordered.extend_from_slice(&data[start..start + head_dim]);
            }
        }
    }
    ordered
}

impl<T: Element> Inputs<T> {
    /// The call that these inputs are for, validated.
    ///
    /// # Errors
    /// [`Failure::Input`]: an option without its tensor, a tensor without its option, or a rule of calls that is broken.
    pub(crate) fn call(&self, settings: &Settings) -> Result<Call, Failure> {
        for (operand, option) in OF_OPTIONS {
            let name = operand.name();
            let given = self.numbers.lists[operand].is_some();
            match (settings.scoring.has(operand), given) {
                (true, false) => Err(format!("{option} needs a tensor {name} in the file")),
                (false, true) => Err(format!("the file has {name}: give {option}")),
                _ => Ok(()),
            }
            .map_err(Failure::Input)?;
        }
        let [q, k, v] = &self.layouts;
        let mut builder = Call::builder(q, k, v, self.types)
            .scoring(settings.scoring)
            .splits(settings.splits);
        for (operand, values) in self.numbers.floats.given() {
            builder = builder.count(operand, values.len());
        }
        for (operand, list) in self.numbers.lists.given() {
            builder = builder.numbers(operand, Request::Host(list));
        }
        if let Some(table) = self.numbers.table {
            builder = builder.table_layout(table);
        }
        for (operand, (_, layout)) in self.scores.given() {
            builder = builder.layout(operand, *layout);
        }
        if let Some((_, layout)) = &self.bias_f32 {
            builder = { builder.layout(Operand::Bias, *layout) }.bias_type(ElementType::F32);
        }
        let call = builder.build().map_err(in_terms_of_the_file)?;
        for (operand, values) in self.numbers.floats.given() {
            call.check_values(operand, values)?;
        }
        Ok(call)
    }

    /// Computes attention on `backend` by a kernel of the choice, and gradients if there is one of the output; several times if it takes
    /// less than a second and not `once`. Each time is from the call until the result is in host memory; the upload of the inputs is not
    /// part of it.
    pub(crate) fn compute(
        &self,
        settings: &Settings,
        choice: &Choice,
        backend: &Backend,
        once: bool,
    ) -> warptile::Result<Answer<T>> {
        let [q, k, v] = self.layouts;
        let tensors = Tensors {
            types: self.types,
            q: backend.tensor_with_layout(&self.q, q)?,
            kv: map_both!(&self.kv, [keys, values] => [
                backend.tensor_with_layout(keys, k)?,
                backend.tensor_with_layout(values, v)?,
            ]),
            scores: self.scores.try_map(|_, (data, layout)| {
                Ok::<_, Error>(map_both!(data, data => backend.tensor_with_layout(data, *layout)?))
            })?,
            bias_f32: { self.bias_f32.as_ref() }
                .map(|(bias, layout)| backend.tensor_with_layout(bias, *layout))
                .transpose()?,
        };
        let d_out = self.d_out.as_ref();
        let d_out = d_out.map(|(data, layout)| backend.tensor_with_layout(data, *layout));
        let d_out = d_out.transpose()?;
        backend.synchronize()?;
        let forward = tensors.forward(settings, &self.numbers);
        let of_output = match d_out.is_some() && choice.is_of_gradients() {
            true => Choice::Best,
            false => choice.clone(),
        };
        let by_choice = forward.by(of_output);
        let ((output, out), times) = Times::of(once, || {
            let output = by_choice.run()?;
            let out = output.out.to_vec()?;
            Ok((output, out))
        })?;
        let lse = match &output.lse {
            Some(lse) => lse.to_vec()?,
            None => Vec::new(),
        };
        let has_bias = self.scores[Operand::Bias].is_some() || self.bias_f32.is_some();
        let by_choice = forward.by(choice.clone()).d_bias(has_bias);
        let gradients = d_out.map(|d_out| {
            let ((each, plan), times) = Times::of(once, || {
                let computed = by_choice.gradients(&d_out, &output)?;
                let bytes = |gradient| Some((gradient, computed.to_bytes(gradient).transpose()?));
                let each = { Operand::GRADIENTS.into_iter().filter_map(bytes) }
                    .map(|(gradient, bytes)| Ok((gradient, bytes?)));
                Ok((each.collect::<Result<_, Error>>()?, computed.plan))
            })?;
            Ok::<_, Error>(InputGradients { each, plan, times })
        });
        Ok(Answer {
            out,
            out_layout: *output.out.layout(),
            lse,
            gradients: gradients.transpose()?,
            plan: output.plan,
            times,
        })
    }

    /// The values of the float64 reference, and the allowed differences.
    pub(crate) fn expectation(&self, call: &Call) -> warptile_check::Result<Expectation> {
        let mut inputs = HostInputs::default().with(Operand::Q, &self.q);
        for (operand, values) in self.numbers.floats.given() {
            inputs.set(operand, values);
        }
        for (operand, (data, _)) in self.scores.given() {
            for_both!(data, data => inputs.set(operand, data));
        }
        if let Some((bias, _)) = &self.bias_f32 {
            inputs.set(Operand::Bias, bias);
        }
        let inputs = for_both!(&self.kv, [k, v] => inputs.with(Operand::K, k).with(Operand::V, v));
        Expectation::new(call, &inputs)
    }
}

/// The tensors of a file that need an option of `warptile run`, and the option.
const OF_OPTIONS: [(Operand, &str); 3] = [
    (Operand::DropoutState, "--dropout"),
    (Operand::BlockOffsets, "--blocks"),
    (Operand::BlockIndices, "--blocks"),
];

/// Row offsets, pages and the key mask go by the names that the file has for them.
fn in_terms_of_the_file(mut error: Invalid) -> Invalid {
    let name = |argument: &str| {
        { Operand::of(Operations::FORWARD) }
            .find(|operand| operand.name() == argument)
            .and_then(Operand::file_name)
    };
    match &mut error {
        Invalid::Lengths { argument, .. }
        | Invalid::Mismatch { argument, .. }
        | Invalid::Presence { argument, .. } => *argument = name(argument).unwrap_or(argument),
        Invalid::Sequences { .. } => error.rename(name),
        Invalid::Pages { argument, .. } if *argument == "k" => *argument = "k_pages",
        _ => {}
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_order_undoes_the_layout() {
        // [batch 1, heads 2, rows 3, head size 1], numbered in storage order.
        let layout = Layout::bhsd([1, 2, 3, 1]);
        assert_eq!(
            to_reference_order(&[0, 1, 2, 3, 4, 5], &layout),
            [0, 3, 1, 4, 2, 5]
        );
    }
}
