//! Pre-passes of the backward pass by the emulated kernel.

use quickcheck::{QuickCheck, TestResult};
use warptile::Element;

use crate::place::{Emulated, with_emulated};
use crate::prepass_cases::{PrepassCase, Prepasses, verify_all};
use crate::prepass_on_gpu::prepass_on;

impl<T: Element> Prepasses<T> for &Emulated {
    fn prepass(&mut self, case: &PrepassCase<T>, results: &mut [Vec<f32>; 2]) {
        prepass_on(&self.gpu, case, results, || self.run_launches());
    }
}

#[test]
#[ignore = "needs g++"]
fn pre_passes_equal_float64() {
    fn all(seed: u64) -> TestResult {
        with_emulated(|mut emulated| verify_all(seed, &mut emulated))
    }
    QuickCheck::new()
        .tests(100)
        .quickcheck(all as fn(u64) -> TestResult);
}
