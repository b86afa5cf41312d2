//! One case, computed twice and held against the reference.

use half::{bf16, f16};
use warptile::gpu::Gpu;
use warptile::{Element, ElementType, Error, Plan, Problem, ViewMut, forward_cpu};
use warptile_check::{Case, Failure, Inputs, ResultBuffers};
use warptile_kernels::Image;

/// Where a case is computed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    Cpu,
    Gpu {
        gpu: &'a Gpu,
        /// `None`: the planner's choice.
        image: Option<&'static Image>,
    },
}

/// What came of a case.
#[derive(Debug)]
pub(crate) enum Checked {
    /// The image is `None` for the CPU path.
    Passed(Option<&'static Image>),
    Failed {
        image: Option<&'static Image>,
        reason: String,
    },
    /// No kernel takes the case; the planner's reasons.
    NotApplicable(String),
}

impl Place<'_> {
    fn plan(self, problem: Problem) -> warptile::Result<Plan> {
        match self {
            Place::Cpu => Ok(Plan::cpu(problem)),
            Place::Gpu { gpu, image: None } => Plan::gpu(problem, gpu.profile(), None),
            Place::Gpu {
                gpu,
                image: Some(image),
            } => Plan::from_catalog(
                problem,
                gpu.profile(),
                Some(image.kernel),
                std::iter::once(image),
            ),
        }
    }

    /// One run into poisoned buffers.
    fn run<T: Element>(
        self,
        case: &Case,
        inputs: &Inputs<T>,
        plan: &Plan,
    ) -> warptile::Result<ResultBuffers<T>> {
        match self {
            Place::Cpu => {
                let mut result = case.result::<T>();
                forward_cpu(
                    plan.problem(),
                    inputs.q.view(),
                    inputs.k.view(),
                    inputs.v.view(),
                    inputs.slopes(),
                    ViewMut::new(&mut result.out[result.offset..], *plan.problem().out()),
                    Some(&mut result.lse),
                )?;
                Ok(result)
            }
            Place::Gpu { gpu, .. } => case.run_on_gpu(inputs, gpu, plan),
        }
    }
}

/// Computes `case` and judges the result.
///
/// # Errors
/// When the device fails, or the problem is too large for a reference.
pub(crate) fn check(case: &Case, place: Place<'_>) -> warptile_check::Result<Checked> {
    match case.element {
        ElementType::F16 => check_typed::<f16>(case, place),
        ElementType::Bf16 => check_typed::<bf16>(case, place),
        _ => check_typed::<f32>(case, place),
    }
}

fn check_typed<T: Element>(case: &Case, place: Place<'_>) -> warptile_check::Result<Checked> {
    let plan = match place.plan(case.problem()) {
        Err(error @ Error::NoKernel { .. }) => {
            return Ok(Checked::NotApplicable(error.to_string()));
        }
        plan => plan?,
    };
    let inputs = case.inputs::<T>();
    let first = place.run(case, &inputs, &plan)?;
    let second = place.run(case, &inputs, &plan)?;
    let image = plan.launch().map(|launch| launch.image);
    let reason = match case.check(&inputs, &first) {
        Ok(_) if same_bits(&first, &second) => return Ok(Checked::Passed(image)),
        Ok(_) => "two runs differ".to_owned(),
        Err(Failure::Invalid(error)) => return Err(error),
        Err(failure) => failure.to_string(),
    };
    Ok(Checked::Failed { image, reason })
}

/// By bits, so that NaN equals itself and 0 is not -0.
fn same_bits<T: Element>(a: &ResultBuffers<T>, b: &ResultBuffers<T>) -> bool {
    bytemuck::cast_slice::<T, u8>(&a.out) == bytemuck::cast_slice::<T, u8>(&b.out)
        && bytemuck::cast_slice::<f32, u8>(&a.lse) == bytemuck::cast_slice::<f32, u8>(&b.lse)
}
