//! One problem on several devices, computed twice and compared with the reference.

use warptile::spec::{Backward, Operand};
use warptile::{Attention, Element, Tensor};
use warptile_check::{Buffer, Case, Data, GradientExpectation, Inputs, Verdict};
use warptile_distributed::{Group, Shards};

use super::check::{Checked, Error64, Errors, Ran, Runs};
use super::phases::{Phases, timed};
use crate::devices::{Dealt, PATIENCE};
use crate::failure::Failure;
use crate::operation::Operation;

/// A case on a group.
struct OnGroup<'a, T: Element> {
    dealt: &'a Dealt,
    shards: Shards<'a>,
    attention: Attention,
    q: Vec<Tensor<T>>,
    k: Vec<Tensor<T>>,
    v: Vec<Tensor<T>>,
}

impl<'a, T: Element> OnGroup<'a, T> {
    fn new(
        case: &Case,
        dealt: &'a Dealt,
        group: &'a Group,
        inputs: &Inputs<T>,
    ) -> Result<Self, Failure> {
        let numbers = { inputs.others.given() }
            .filter(|(option, _)| option.word().is_some())
            .filter_map(|(option, data)| Some((option, data.floats()?)));
        let attention = Attention::new().scoring(case.scoring).splits(case.splits);
        let shards = dealt.shards(group)?;
        Ok(OnGroup {
            dealt,
            attention: numbers.fold(attention, |all, (option, numbers)| {
                all.numbers(option, numbers)
            }),
            q: split(&shards, dealt, &inputs.q)?,
            k: split(&shards, dealt, &inputs.k)?,
            v: split(&shards, dealt, &inputs.v)?,
            shards,
        })
    }

    fn forward(&self) -> Result<Vec<T>, Failure> {
        let shards = &self.shards;
        let output = shards.forward(&self.attention, &self.q, (&self.k, &self.v))?;
        self.shards.group().synchronize(PATIENCE)?;
        Ok(self.shards.join(&output.out)?)
    }

    /// The gradients of queries, keys, values and sinks.
    fn gradients(&self, d_out: &[Tensor<T>]) -> Result<Gradients<T>, Failure> {
        let (shards, attention, kv) = (&self.shards, &self.attention, (&self.k[..], &self.v[..]));
        let output = shards.forward(attention, &self.q, kv)?;
        let found = shards.backward(attention, d_out, &self.q, kv, &output)?;
        shards.group().synchronize(PATIENCE)?;
        let d_sinks = found.d_sinks.map(|sinks| sinks.to_vec()).transpose()?;
        let joined = [
            shards.join(&found.dq)?,
            shards.join(&found.dk)?,
            shards.join(&found.dv)?,
        ];
        Ok((joined, d_sinks))
    }

    fn checked(&self, outcome: Result<Errors, String>) -> Checked {
        Checked::Ran(Ran {
            image: None,
            way: Some(format!("{}-{}", self.dealt.by, self.dealt.sharding())),
            drew_tiles: false,
            gpu_reference: false,
            outcome,
        })
    }
}

/// The gradients of queries, keys and values on the host, and those of sinks if there are any.
type Gradients<T> = ([Vec<T>; 3], Option<Vec<f32>>);

/// The rows of all sequences, dealt out.
fn split<T: Element>(
    shards: &Shards<'_>,
    dealt: &Dealt,
    buffer: &Buffer<T>,
) -> Result<Vec<Tensor<T>>, Failure> {
    let [_, _, heads, dim] = buffer.layout.shape;
    let rows = &buffer.elements()[..dealt.len * heads * dim];
    Ok(shards.split(rows, heads, dim)?)
}

/// Computes `case` as it was dealt out, and judges the output. What each phase took is added to `seconds`.
///
/// # Errors
/// When a device fails, or the problem is too large for a reference.
pub(super) fn check<T: Element>(
    case: &Case,
    dealt: &Dealt,
    group: &Group,
    runs: Runs,
    seconds: &mut Phases,
) -> Result<Checked, Failure> {
    let inputs = timed(&mut seconds.generating, || case.inputs::<T>());
    let on_group = OnGroup::new(case, dealt, group, &inputs)?;
    let mut out = timed(&mut seconds.computing, || on_group.forward())?;
    let differs =
        !runs.once && bits(&out) != bits(&timed(&mut seconds.computing, || on_group.forward())?);
    let expected = timed(&mut seconds.reference, || case.expectation(&inputs))?;
    // Rows behind the last packed sequence, which are 0 there.
    out.resize(expected.out().len(), T::zeroed());
    let verdict = timed(&mut seconds.comparing, || expected.judge_out(&out));
    Ok(on_group.checked(outcome([("out", verdict)], differs)))
}

/// As [`check`], for gradients.
///
/// # Errors
/// As [`check`]; when the case has no gradients.
pub(super) fn check_gradients<T: Element>(
    case: &Case,
    dealt: &Dealt,
    group: &Group,
    runs: Runs,
    seconds: &mut Phases,
) -> Result<Checked, Failure> {
    // Of all tensors, and from that of the output alone.
    let backward = <Backward as Operation>::of(&case.try_call()?)?;
    let mut data = timed(&mut seconds.generating, || case.backward::<T>())?;
    data.inputs.others[Operand::DLse] = None;
    let on_group = OnGroup::new(case, dealt, group, &data.inputs)?;
    let Some(Data::Elements(d_out)) = &data.inputs.others[Operand::DOut] else {
        return Err(Failure::Input(format!(
            "`{case}` has no gradient of its output"
        )));
    };
    let d_out = split(&on_group.shards, dealt, d_out)?;
    let compute = || on_group.gradients(&d_out);
    let (found, d_sinks) = timed(&mut seconds.computing, compute)?;
    let differs = !runs.once && {
        let (again, sinks_again) = timed(&mut seconds.computing, compute)?;
        found.iter().zip(&again).any(|(a, b)| bits(a) != bits(b))
            || d_sinks.as_deref().map(bits) != sinks_again.as_deref().map(bits)
    };
    let expected = timed(&mut seconds.reference, || {
        GradientExpectation::new(&backward, &data.host())
    })?;
    let judge = || {
        let gradients = [Operand::DQ, Operand::DK, Operand::DV]
            .into_iter()
            .zip(found);
        let mut verdicts: Vec<_> = gradients
            .map(|(gradient, mut found)| {
                found.resize(expected.gradient(gradient).len(), T::zeroed());
                (gradient.name(), expected.judge(gradient, &found))
            })
            .collect();
        let of_sinks = d_sinks.map(|found| expected.judge(Operand::DSinks, &found));
        verdicts.extend(of_sinks.map(|verdict| (Operand::DSinks.name(), verdict)));
        verdicts
    };
    let verdicts = timed(&mut seconds.comparing, judge);
    Ok(on_group.checked(outcome(verdicts, differs)))
}

fn bits<T: Element>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The first result that is wrong, or the error nearest to its bound.
fn outcome(
    verdicts: impl IntoIterator<Item = (&'static str, Verdict)>,
    differs: bool,
) -> Result<Errors, String> {
    let nothing = || Error64 {
        error: 0.0,
        bound: 0.0,
    };
    let mut out = nothing();
    for (name, verdict) in verdicts {
        if !verdict.passed {
            return Err(format!("{name} {verdict}"));
        }
        let error = Error64::from(verdict);
        if error.ratio() >= out.ratio() {
            out = error;
        }
    }
    match differs {
        true => Err("two runs differ".to_owned()),
        false => Ok(Errors {
            out,
            lse: nothing(),
        }),
    }
}
