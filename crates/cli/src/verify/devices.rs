//! One problem on several devices, computed twice and compared with the reference.

use warptile::cpu::Stop;
use warptile::spec::{Backward, Operand};
use warptile::{Element, Tensor};
use warptile_check::{Buffer, Case, Data, GradientExpectation, Inputs, Verdict};
use warptile_distributed::Gradients;

use super::check::{Checked, Error64, Errors, Ran, Runs};
use super::phases::{Phases, timed};
use crate::devices::Dealt;
use crate::failure::Failure;
use crate::operation::Operation;
use crate::team::{OnTeam, Team};
use crate::tensors::{Numbers, Settings};

/// Deals a case out.
fn on_team<'a, T: Element>(
    case: &Case,
    dealt: &Dealt,
    team: &'a Team,
    inputs: &Inputs<T>,
) -> Result<OnTeam<'a, T>, Failure> {
    let settings = Settings {
        scoring: case.scoring,
        splits: case.splits,
    };
    let mut numbers = Numbers {
        lists: case.lists().given().clone(),
        ..Numbers::default()
    };
    for (option, data) in inputs.others.given() {
        numbers.floats[option] = data.floats().map(<[f32]>::to_vec);
    }
    let rows = [&inputs.q, &inputs.k, &inputs.v].map(|buffer| rows(dealt, buffer));
    OnTeam::new(team, dealt, settings.attention(&numbers), rows)
}

/// The rows of all sequences, with heads and head size.
fn rows<'a, T: Element>(dealt: &Dealt, buffer: &'a Buffer<T>) -> (&'a [T], [usize; 2]) {
    let [_, _, heads, dim] = buffer.layout.shape;
    (&buffer.elements()[..dealt.len * heads * dim], [heads, dim])
}

fn checked(dealt: &Dealt, outcome: Result<Errors, String>) -> Checked {
    Checked::Ran(Ran {
        image: None,
        way: Some(format!("{}-{}", dealt.by, dealt.sharding())),
        drew_tiles: false,
        gpu_reference: false,
        outcome,
    })
}

/// Computes `case` as it was dealt out, and judges the output, and the log-sum-exp if one group has all of it. What each phase took is added to `seconds`.
///
/// # Errors
/// When a device fails, or the problem is too large for a reference.
pub(super) fn check<T: Element>(
    case: &Case,
    dealt: &Dealt,
    team: &Team,
    runs: Runs,
    seconds: &mut Phases,
) -> Result<Checked, Failure> {
    case.check_reference()?;
    let call = case.try_call()?;
    let inputs = timed(&mut seconds.generating, || case.inputs::<T>());
    // Stopped, they are not those of the case.
    Stop::current().check()?;
    let on_team = on_team(case, dealt, team, &inputs)?;
    let compute = || {
        let outputs = on_team.forward()?;
        team.synchronize()?;
        let out = on_team.join(outputs.iter().map(|output| &output.out))?;
        Ok::<_, Failure>((out, on_team.join_lse(&outputs)?))
    };
    let (mut out, lse) = timed(&mut seconds.computing, compute)?;
    let differs = !runs.once && {
        let (out_again, lse_again) = timed(&mut seconds.computing, compute)?;
        let bits_of_lse = |lse: &Option<Vec<f32>>| lse.as_deref().map(bits);
        bits(&out) != bits(&out_again) || bits_of_lse(&lse) != bits_of_lse(&lse_again)
    };
    let expected = timed(&mut seconds.reference, || case.expectation(&inputs))?;
    // Rows behind the last packed sequence, which are 0 there.
    out.resize(expected.out().len(), T::zeroed());
    let judge = || {
        let lse = lse.map(|lse| expected.judge_lse(&by_head(&lse, call.lse_shape())));
        (expected.judge_out(&out), lse)
    };
    let (of_out, of_lse) = timed(&mut seconds.comparing, judge);
    Ok(checked(dealt, outcome([("out", of_out)], of_lse, differs)))
}

/// As [`check`], for gradients.
///
/// # Errors
/// As [`check`]; when the case has no gradients.
pub(super) fn check_gradients<T: Element>(
    case: &Case,
    dealt: &Dealt,
    team: &Team,
    runs: Runs,
    seconds: &mut Phases,
) -> Result<Checked, Failure> {
    case.check_reference()?;
    // Gradients of all tensors, from that of the output alone.
    let backward = <Backward as Operation>::of(case, &case.try_call()?)?;
    let mut data = timed(&mut seconds.generating, || case.backward::<T>())?;
    Stop::current().check()?;
    data.inputs.others[Operand::DLse] = None;
    let on_team = on_team(case, dealt, team, &data.inputs)?;
    let Some(Data::Elements(d_out)) = &data.inputs.others[Operand::DOut] else {
        return Err(Failure::Input(format!(
            "`{case}` has no gradient of its output"
        )));
    };
    let d_out = on_team.split(rows(dealt, d_out))?;
    let compute = || {
        let outputs = on_team.forward()?;
        let found = on_team.backward(&d_out, &outputs)?;
        team.synchronize()?;
        let join = |of: fn(&Gradients<T>) -> &Vec<Tensor<T>>| on_team.join(found.iter().map(of));
        let joined = [join(|of| &of.dq)?, join(|of| &of.dk)?, join(|of| &of.dv)?];
        let numbers = found.iter().flat_map(|of| &of.numbers);
        let numbers = numbers.map(|(gradient, found)| Ok((*gradient, found.to_vec()?)));
        let numbers = numbers.collect::<Result<Vec<_>, Failure>>()?;
        let out = on_team.join(outputs.iter().map(|output| &output.out))?;
        Ok::<_, Failure>((joined, numbers, out))
    };
    let (found, numbers, out) = timed(&mut seconds.computing, compute)?;
    let differs = !runs.once && {
        let (again, numbers_again, _) = timed(&mut seconds.computing, compute)?;
        let of_numbers = |(_, found): &(Operand, Vec<f32>)| bits(found);
        found.iter().zip(&again).any(|(a, b)| bits(a) != bits(b)) || {
            numbers.iter().map(of_numbers)
        }
        .ne(numbers_again.iter().map(of_numbers))
    };
    // Gradients follow from the output as the devices rounded it.
    if let Some(Data::Elements(of_host)) = &mut data.inputs.others[Operand::Out] {
        of_host.data[of_host.offset..][..out.len()].copy_from_slice(&out);
    }
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
        let numbers = numbers.iter();
        verdicts.extend(
            numbers.map(|(gradient, found)| (gradient.name(), expected.judge(*gradient, found))),
        );
        verdicts
    };
    let verdicts = timed(&mut seconds.comparing, judge);
    Ok(checked(dealt, outcome(verdicts, None, differs)))
}

/// `[entry, row, head]` in the order of an lse, `[entry, head, row]`, with 0 for rows behind the last packed sequence.
fn by_head(lse: &[f32], [entries, heads, rows]: [usize; 3]) -> Vec<f32> {
    let mut ordered = vec![0.0; entries * heads * rows];
    for (at, number) in lse.iter().enumerate() {
        let (place, head) = (at / heads, at % heads);
        let (entry, row) = (place / rows, place % rows);
        ordered[(entry * heads + head) * rows + row] = *number;
    }
    ordered
}

fn bits<T: Element>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The first result that is wrong, or the error nearest to its bound.
fn outcome(
    verdicts: impl IntoIterator<Item = (&'static str, Verdict)>,
    lse: Option<Verdict>,
    differs: bool,
) -> Result<Errors, String> {
    let nothing = || Error64 {
        error: 0.0,
        bound: 0.0,
    };
    if let Some(lse) = lse.filter(|lse| !lse.passed) {
        return Err(format!("lse {lse}"));
    }
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
            lse: lse.map_or_else(nothing, Error64::from),
        }),
    }
}
