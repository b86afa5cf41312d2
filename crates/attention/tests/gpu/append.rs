//! Cache writes on a GPU, against float64.

use half::{bf16, f16};
use quickcheck::{QuickCheck, TestResult};
use warptile::Element;

use crate::append_cases::{AppendCase, Appends};
use crate::append_on_gpu::append_on;
use crate::harness::gpu;

struct OnGpu {
    numbers_on_device: bool,
}

impl<T: Element> Appends<T> for OnGpu {
    fn append(&mut self, case: &mut AppendCase<T>) {
        append_on(gpu(), case, self.numbers_on_device, || ());
    }
}

fn right(seed: u64, numbers_on_device: bool) -> TestResult {
    fn verify<T: Element>(seed: u64, numbers_on_device: bool) -> Result<(), String> {
        AppendCase::<T>::random(seed, numbers_on_device).verify(&mut OnGpu { numbers_on_device })
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
#[ignore = "needs an NVIDIA GPU"]
fn random_writes_equal_float64() {
    QuickCheck::new()
        .tests(2000)
        .quickcheck(right as fn(u64, bool) -> TestResult);
}
