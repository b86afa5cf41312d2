//! Backward passes by the emulated kernels.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::plan::Choice;
use warptile::{Element, ElementType};
use warptile_check::{Case, GradientFailure};

use crate::place::{Emulated, with_emulated};

fn verify<T: Element>(case: &Case, place: &Emulated) -> Result<f64, GradientFailure> {
    let backward = case.backward::<T>()?;
    let result = backward.run_on_gpu(&place.gpu, &Choice::Best, || place.run_launches())?;
    backward.check(&backward.expectation()?, &result)
}

#[test]
#[ignore = "needs g++"]
fn gradients_equal_float64() {
    fn one(seed: u64) -> TestResult {
        let case = Case::random_with_work(seed, 150, 400_000).differentiable();
        let verdict = with_emulated(|place| match case.element {
            ElementType::F16 => verify::<f16>(&case, place),
            ElementType::Bf16 => verify::<bf16>(&case, place),
            _ => verify::<f32>(&case, place),
        });
        match verdict {
            Ok(_) => TestResult::passed(),
            Err(failure) => TestResult::error(format!("{case}: {failure}")),
        }
    }
    QuickCheck::new()
        .tests(100)
        .quickcheck(one as fn(u64) -> TestResult);
}
