//! The cost of describing a problem and choosing a kernel for it. Needs no GPU.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use warptile::plan::{Choice, DeviceProfile, Plan};
use warptile::spec::{Call, Problem};
use warptile::{ElementType, Layout};
use warptile_benches::case;

/// Packed sequences of 50 rows on average, whose offsets are on the device.
fn sequences_on_the_device(sequences: usize) -> Problem {
    let tensor = Layout::packed(50 * sequences, 1, 64);
    let call = Call::builder(&tensor, &tensor, &tensor, ElementType::Bf16)
        .device_query_offsets(sequences, 512)
        .device_key_offsets(sequences, 512);
    match call.build() {
        Ok(call) => call.problem(),
        Err(error) => panic!("{error}"),
    }
}

fn plan(criterion: &mut Criterion) {
    let dense = case("b2 q512 k512 h8 d64 f16");
    let packed = case("packed=100x100,512x512,7x300,64x64 h32/8 d128 bf16 mask=causal");
    for (name, case) in [("dense", &dense), ("packed", &packed)] {
        criterion.bench_function(&format!("call/{name}"), |bencher| {
            bencher.iter(|| black_box(case).call().problem());
        });
    }
    let device = DeviceProfile::h200();
    for (name, problem) in [
        ("dense", dense.call().problem()),
        ("packed", packed.call().problem()),
        ("10M sequences", sequences_on_the_device(10_000_000)),
    ] {
        // Without a kernel there is nothing to choose, and nothing to measure.
        if let Err(error) = Plan::gpu(problem, &device, &Choice::Best) {
            eprintln!("plan/{name} is not measured: {error}");
            continue;
        }
        criterion.bench_function(&format!("plan/{name}"), |bencher| {
            bencher.iter(|| Plan::gpu(*black_box(&problem), &device, &Choice::Best));
        });
        if let Ok(plan) = Plan::gpu(problem, &device, &Choice::Best) {
            criterion.bench_function(&format!("explain/{name}"), |bencher| {
                bencher.iter(|| black_box(&plan).explain());
            });
        }
    }
}

criterion_group!(benches, plan);
criterion_main!(benches);
