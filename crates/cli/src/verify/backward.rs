//! The gradients of one case, computed twice or hundreds of times and compared with the reference.

use warptile::cpu::{Stop, backward_cpu};
use warptile::gpu::{Operation, Prepared};
use warptile::spec::Backward;
use warptile::{Element, Error};
use warptile_check::{BackwardCase, Case, Failure, GradientBuffers};
use warptile_driver::Stream;

use super::check::{Checked, Error64, Errors, Place, Ran, Runs, steps_of};
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
    let backward = case.backward_of(case.call_on_gpu()?)?;
    let plan = match timed(&mut seconds.planning, || place.plan(case, &backward)) {
        Err(warptile_check::Error::Call(error @ Error::NoKernel { .. })) => {
            return Ok(Checked::NotApplicable(error.to_string()));
        }
        plan => plan?,
    };
    case.check_reference()?;
    let prepared = match place {
        Place::Cpu => None,
        Place::Gpu { lane, .. } => {
            let loaded = timed(&mut seconds.loading, || lane.gpu().load_of(plan.clone()))?;
            Some((lane.stream(), loaded))
        }
    };
    let forced = match place {
        Place::Gpu { image, .. } => image,
        Place::Cpu => None,
    };
    let image = forced.or(plan.image());
    let mut drew_tiles = false;
    for step in steps_of(&plan, image) {
        let shape = backward.shape(step)?;
        drew_tiles |= shape.draws_tiles && shape.tiles > shape.grid;
    }
    let data = timed(&mut seconds.generating, || case.backward::<T>())?;
    let mut compute = || timed(&mut seconds.computing, || compute(&data, prepared.as_ref()));
    let first = compute()?;
    let mut differs = None;
    if !runs.once && first.bits() != compute()?.bits() {
        differs = Some("two runs differ".to_owned());
    }
    if let (None, Some(repeat)) = (&differs, runs.repeat) {
        for launch in 1..=repeat.launches {
            Stop::current().check()?;
            if first.bits() != compute()?.bits() {
                differs = Some(repeat.differs(launch));
                break;
            }
        }
    }
    let gpu_reference = place.has_gpu_reference(case);
    let expected = timed(&mut seconds.reference, || match place {
        Place::Gpu { lane, .. } if gpu_reference => data.expectation_on_gpu(lane.reference()?),
        _ => data.expectation(),
    })?;
    let outcome = match timed(&mut seconds.comparing, || data.check(&expected, &first)) {
        Err(Failure::Invalid(error)) => return Err(error),
        Err(failure) => Err(failure.to_string()),
        Ok(ratio) => differs.map_or(
            Ok(Errors {
                out: Error64 {
                    error: ratio,
                    bound: 1.0,
                },
                lse: Error64 {
                    error: 0.0,
                    bound: 0.0,
                },
            }),
            Err,
        ),
    };
    Ok(Checked::Ran(Ran {
        image,
        way: None,
        drew_tiles,
        gpu_reference,
        outcome,
    }))
}

fn compute<T: Element>(
    data: &BackwardCase<T>,
    on_gpu: Option<&(&Stream, Prepared<Backward>)>,
) -> warptile_check::Result<GradientBuffers<T>> {
    match on_gpu {
        None => {
            let mut result = data.result();
            backward_cpu(&data.backward, &data.host(), result.host())?;
            Ok(result)
        }
        Some((stream, prepared)) => data.run_prepared(stream, prepared, || ()),
    }
}
