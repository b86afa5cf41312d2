//! One case, computed twice on the device and held against the reference.

use warptile::{Backend, Element, Error, Image, accept, accept_lse};

use crate::case::Case;
use crate::case_inputs;
use crate::inputs::{Inputs, with_inputs};

/// What came of a case.
#[derive(Debug)]
pub(crate) enum Checked {
    Passed(Option<&'static Image>),
    Failed {
        image: Option<&'static Image>,
        reason: String,
    },
    /// No kernel takes the case; the planner's reasons.
    NotApplicable(String),
}

/// Computes `case` on `backend` and judges the result.
///
/// # Errors
/// When the device fails, or the case itself is not a valid problem.
pub(crate) fn check(case: &Case, backend: &Backend) -> warptile::Result<Checked> {
    let inputs = case_inputs::inputs(case);
    let checked = with_inputs!(&inputs, inputs => check_typed(case, inputs, backend));
    match checked {
        Err(error @ Error::NoKernel { .. }) => Ok(Checked::NotApplicable(error.to_string())),
        other => other,
    }
}

fn check_typed<T: Element>(
    case: &Case,
    inputs: &Inputs<T>,
    backend: &Backend,
) -> warptile::Result<Checked> {
    let settings = case.settings();
    let problem = inputs.problem(&settings)?;
    let first = inputs.forward(&settings, backend)?;
    let second = inputs.forward(&settings, backend)?;
    let exact = inputs.reference(&problem)?;
    let rounded = inputs.rounded(&problem)?;

    let mut reasons = Vec::new();
    let out = accept(&problem, &first.out_in_reference_order(), &exact, &rounded);
    if !out.passed {
        reasons.push(format!("out {out}"));
    }
    let lse = accept_lse(&problem, &first.lse, &exact, &rounded);
    if !lse.passed {
        reasons.push(format!("lse {lse}"));
    }
    // Bytes, so that NaN equals NaN and 0 differs from -0.
    let bytes = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
    if bytes(&first.out) != bytes(&second.out)
        || bytemuck::cast_slice::<f32, u8>(&first.lse) != bytemuck::cast_slice(&second.lse)
    {
        reasons.push("two runs differ".to_owned());
    }
    let image = first.plan.launch().map(|launch| launch.image);
    Ok(if reasons.is_empty() {
        Checked::Passed(image)
    } else {
        Checked::Failed {
            image,
            reason: reasons.join("; "),
        }
    })
}
