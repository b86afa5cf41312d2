//! Writes into a cache in e4m3 by the emulated kernel.

use std::sync::Arc;

use quickcheck::{QuickCheck, TestResult};
use warptile::Backend;
use warptile::gpu::Gpu;

use crate::place::with_emulated;
use crate::quantized::right_in_16_bits;

fn right(seed: u64) -> TestResult {
    with_emulated(|emulated| {
        let gpu = Gpu::on_stream(emulated.gpu.stream()).unwrap();
        let backend = Backend::from_gpu(Arc::new(gpu));
        match right_in_16_bits(&backend, seed, || emulated.run_launches()) {
            Ok(()) => TestResult::passed(),
            Err(failure) => TestResult::error(failure),
        }
    })
}

#[test]
#[ignore = "needs g++"]
fn writes_are_right() {
    QuickCheck::new()
        .tests(300)
        .quickcheck(right as fn(u64) -> TestResult);
}
