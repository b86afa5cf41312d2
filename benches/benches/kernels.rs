//! GPU time of every kernel that takes the original problem and its long relatives, by events around batches of launches.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warptile::Error;
use warptile::gpu::Gpu;
use warptile::plan::Choice;
use warptile_benches::{Half, case, gpu_backend};
use warptile_driver::Event;

const CASES: [&str; 3] = [
    "b2 q512 k512 h8 d64 f16",
    "b2 q4096 k4096 h8 d64 f16",
    "b2 q4096 k4096 h8 d128 f16 mask=causal",
];

fn kernels(criterion: &mut Criterion) {
    let Some(backend) = gpu_backend() else { return };
    let Some(gpu) = backend.gpu() else { return };
    let mut names: Vec<&str> = warptile_kernels::images_for(warptile_kernels::Role::Forward)
        .map(|image| image.kernel)
        .collect();
    names.sort_unstable();
    names.dedup();
    for text in CASES {
        for name in &names {
            match measure(criterion, gpu, text, name) {
                Ok(()) | Err(warptile_check::Error::Call(Error::NoKernel { .. })) => {}
                Err(error) => eprintln!("{name} on {text} is not measured: {error}"),
            }
        }
    }
}

fn measure(
    criterion: &mut Criterion,
    gpu: &std::sync::Arc<Gpu>,
    text: &str,
    kernel: &str,
) -> warptile_check::Result<()> {
    let case = case(text);
    let plan = gpu.plan(case.call().problem(), &Choice::Kernel(kernel.to_owned()))?;
    let mut on_gpu = case.upload(&case.inputs::<Half>(), gpu, &plan)?;
    let stream = on_gpu.stream().clone();
    let (start, end) = (
        Event::timed(stream.context())?,
        Event::timed(stream.context())?,
    );
    let mut group = criterion.benchmark_group(text);
    // Criterion's "elements" are floating-point operations here.
    group.throughput(Throughput::Elements(
        u64::try_from(case.call().flops()).unwrap_or(u64::MAX),
    ));
    let mut failed = None;
    group.bench_function(kernel, |bencher| {
        bencher.iter_custom(|launches| {
            let mut batch = || {
                stream.synchronize()?;
                stream.record(&start)?;
                for _ in 0..launches {
                    on_gpu.launch()?;
                }
                stream.record(&end)?;
                end.synchronize()?;
                Ok(end.elapsed_since(&start)?)
            };
            batch().unwrap_or_else(|error: Error| {
                failed = Some(error);
                // Criterion wants a time; the error is reported below.
                Duration::from_nanos(1)
            })
        });
    });
    group.finish();
    failed.map_or(Ok(()), |error| Err(error.into()))
}

criterion_group!(benches, kernels);
criterion_main!(benches);
