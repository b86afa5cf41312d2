//! Cache writes by the emulated kernel.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::Element;

use crate::append_cases::{AppendCase, Appends};
use crate::append_on_gpu::append_on;
use crate::place::{Emulated, with_emulated};

struct Place<'a> {
    emulated: &'a Emulated,
    numbers_on_device: bool,
}

impl<T: Element> Appends<T> for Place<'_> {
    fn append(&mut self, case: &mut AppendCase<T>) {
        let run = || self.emulated.run_launches();
        append_on(&self.emulated.gpu, case, self.numbers_on_device, run);
    }
}

fn right(seed: u64, numbers_on_device: bool) -> TestResult {
    fn verify<T: Element>(seed: u64, numbers_on_device: bool) -> Result<(), String> {
        with_emulated(|emulated| {
            let case = AppendCase::<T>::random(seed, numbers_on_device);
            case.verify(&mut Place {
                emulated,
                numbers_on_device,
            })
        })
    }
    let all = verify::<f16>(seed, numbers_on_device)
        .and(verify::<bf16>(seed, numbers_on_device))
        .and(verify::<f32>(seed, numbers_on_device));
    match all {
        Ok(()) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("seed {seed}: {failure}")),
    }
}

#[test]
#[ignore = "needs g++"]
fn writes_equal_float64() {
    QuickCheck::new()
        .tests(400)
        .quickcheck(right as fn(u64, bool) -> TestResult);
}
