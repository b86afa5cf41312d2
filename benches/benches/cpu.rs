//! The CPU path on the shapes that it is compared with PyTorch on (benches/peers/cpu_sdpa.py), and on some that it is not:
//! decoding, narrow types, softcap.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warptile::cpu::forward_cpu;
use warptile::{Element, with_element};
use warptile_benches::case;
use warptile_check::Case;

const CASES: [&str; 11] = [
    "b2 q512 k512 h8 d64 f32 layout=bhsd",
    "b1 q2048 k2048 h8 d64 f32 layout=bhsd",
    "b1 q2048 k2048 h8 d128 f32 mask=causal layout=bhsd",
    "b1 q301 k301 h12 d32 f32 layout=bhsd",
    "b2 q512 k512 h8 d64 f16",
    "b2 q512 k512 h8 d64 bf16",
    "b2 q512 k512 h8 d64 f32 softcap=30",
    "b2 q512 k512 h8 d64 f32 alibi=head",
    "b1 q1 k4096 h32/8 d128 f32",
    "b1 q1 k4096 h32/8 d128 f16",
    "b1 q1 k4096 h32/8 d128 bf16",
];

fn measure<T: Element>(criterion: &mut Criterion, case: &Case) {
    let call = case.call();
    let inputs = case.inputs::<T>();
    let mut result = case.result::<T>();
    let mut group = criterion.benchmark_group("cpu");
    let flops = u64::try_from(call.flops()).unwrap_or(u64::MAX);
    group.throughput(Throughput::Elements(flops));
    group.bench_function(case.to_string(), |bencher| {
        bencher.iter(|| forward_cpu(&call, &inputs.host(), result.host()));
    });
    group.finish();
}

fn cpu(criterion: &mut Criterion) {
    for text in CASES {
        let case = case(text);
        with_element!(case.element, T => measure::<T>(criterion, &case));
    }
}

criterion_group!(benches, cpu);
criterion_main!(benches);
