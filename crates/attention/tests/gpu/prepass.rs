//! Pre-passes of the backward pass on a GPU, against float64.

use quickcheck::TestResult;
use warptile::backward::Prepass;
use warptile::gpu::Gpu;
use warptile::plan::Choice;
use warptile::{Element, ElementType, Layout};

use crate::harness::{gpu, gpu_of_ptx, quickcheck, ran};
use crate::prepass_cases::{PrepassCase, Prepasses, verify_all};
use crate::prepass_on_gpu::prepass_on;

struct OnGpu(&'static Gpu);

impl<T: Element> Prepasses<T> for OnGpu {
    fn prepass(&mut self, case: &PrepassCase<T>, results: &mut [Vec<f32>; 2]) {
        prepass_on(self.0, case, results, || ());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_pre_passes_equal_float64() {
    fn on_machine_code(seed: u64) -> TestResult {
        verify_all(seed, &mut OnGpu(gpu()))
    }
    fn on_text(seed: u64) -> TestResult {
        verify_all(seed, &mut OnGpu(gpu_of_ptx()))
    }
    quickcheck(1000).quickcheck(on_machine_code as fn(u64) -> TestResult);
    quickcheck(200).quickcheck(on_text as fn(u64) -> TestResult);
    for gpu in [gpu(), gpu_of_ptx()] {
        for element in [ElementType::F16, ElementType::Bf16, ElementType::F32] {
            let rows = Layout::bshd([1, 1, 1, 8]);
            let prepass = Prepass::builder(element, &rows, &rows).build().unwrap();
            let prepared = gpu.prepare_for(&prepass, &Choice::Best).unwrap();
            ran(prepared.plan().image().unwrap());
        }
    }
}
