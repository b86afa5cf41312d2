//! The gradients of one case, computed twice or hundreds of times and compared with the reference.

use warptile::cpu::backward_cpu;
use warptile::plan::{BackwardProblem, Choice, Planner};
use warptile::{Element, Error};
use warptile_check::{BackwardCase, Case, GradientBuffers, GradientFailure};

use super::check::{Checked, Error64, Errors, Place, Ran, Runs};
use super::phases::{Phases, timed};

/// Computes the gradients of `case` and judges them. What each phase took is added to `seconds`.
///
/// # Errors
/// When the device fails, or the problem is too large for a reference.
pub(super) fn check<T: Element>(
    case: &Case,
    place: Place<'_>,
    runs: Runs,
    seconds: &mut Phases,
) -> warptile_check::Result<Checked> {
    let image = match place {
        Place::Cpu => None,
        Place::Gpu { lane, .. } => {
            let backward = case.backward_of(case.call_on_gpu()?)?;
            let planner = Planner::new(lane.gpu().profile());
            let problem = BackwardProblem::of(&backward);
            match timed(&mut seconds.planning, || {
                planner.plan_backward(problem, &Choice::Best)
            }) {
                Err(error @ Error::NoKernel { .. }) => {
                    return Ok(Checked::NotApplicable(error.to_string()));
                }
                // The kernel of the last gradient.
                plan => plan?.steps().last().map(|step| step.image),
            }
        }
    };
    let data = timed(&mut seconds.generating, || case.backward::<T>())?;
    let mut compute = || timed(&mut seconds.computing, || compute(&data, place));
    let first = compute()?;
    let again = match (runs.once, runs.repeat) {
        (true, _) => 0,
        (_, None) => 1,
        (_, Some(repeat)) => 1 + repeat.launches,
    };
    let mut differs = None;
    for launch in 1..=again {
        if first.bits() != compute()?.bits() {
            differs = Some(launch);
            break;
        }
    }
    let expected = timed(&mut seconds.reference, || data.expectation())?;
    let outcome = match timed(&mut seconds.comparing, || data.check(&expected, &first)) {
        Err(GradientFailure::Invalid(error)) => return Err(error),
        Err(failure) => Err(failure.to_string()),
        Ok(_) if differs.is_some() => Err("two runs differ".to_owned()),
        Ok(ratio) => Ok(Errors {
            out: Error64 {
                error: ratio,
                bound: 1.0,
            },
            lse: Error64 {
                error: 0.0,
                bound: 0.0,
            },
        }),
    };
    Ok(Checked::Ran(Ran {
        image,
        drew_tiles: false,
        gpu_reference: false,
        outcome,
    }))
}

fn compute<T: Element>(
    data: &BackwardCase<T>,
    place: Place<'_>,
) -> warptile_check::Result<GradientBuffers<T>> {
    match place {
        Place::Cpu => {
            let mut result = data.result();
            backward_cpu(&data.backward, &data.host(), result.host())?;
            Ok(result)
        }
        Place::Gpu { lane, .. } => data.run_on_gpu(lane.gpu(), &Choice::Best, || ()),
    }
}
