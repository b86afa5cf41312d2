//! The host's cost of a launch, at both levels of the interface. The problem is so small that the GPU keeps up.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use warptile::gpu::{Gpu, Session};
use warptile::kernels::Family;
use warptile::plan::Choice;
use warptile::spec::{Call, Operand, Slots};
use warptile::{Attention, Layout};
use warptile_benches::{Half, case, gpu_backend};
use warptile_driver::{DeviceBuffer, Stream};

/// Launches between two waits: fewer than a stream's queue holds, so that none waits for the GPU.
const LAUNCHES: usize = 100;

fn launch(criterion: &mut Criterion) {
    let Some(backend) = gpu_backend() else { return };
    if let Err(error) = launch_on(criterion, &backend) {
        eprintln!("not measured to the end: {error}");
    }
}

fn launch_on(criterion: &mut Criterion, backend: &warptile::Backend) -> warptile_check::Result<()> {
    let Some(gpu) = backend.gpu() else {
        return Ok(());
    };
    let case = case("b1 q16 k16 h1 d64 f16");
    let inputs = case.inputs::<Half>();
    let call = case.call();
    let plan = gpu.plan(call.problem(), &Choice::Best)?;

    let mut on_gpu = case.upload(&inputs, gpu, &plan)?;
    let stream = on_gpu.stream().clone();
    let mut failed = None;
    criterion.bench_function(&format!("launch/{LAUNCHES} planned launches"), |bencher| {
        bencher.iter_batched(
            || stream.synchronize(),
            |_idle| {
                for _ in 0..LAUNCHES {
                    failed = on_gpu.launch().err().or(failed.take());
                }
            },
            BatchSize::PerIteration,
        );
    });
    if let Some(error) = failed {
        return Err(error.into());
    }

    for family in [Family::Scalar, Family::Wgmma] {
        raw_launches(criterion, gpu, &call, family)?;
    }

    let (out_len, lse_len) = (call.out().required_len().unwrap_or(0), call.lse_len());
    criterion.bench_function(
        "launch/the memory of one output, had and dropped",
        |bencher| {
            bencher.iter(|| DeviceBuffer::<Half>::uninit_pair::<f32>(&stream, out_len, lse_len));
        },
    );

    let tensor = |buffer: &warptile_check::Buffer<Half>| {
        let len = buffer.layout.required_len().unwrap_or(0);
        backend.tensor_with_layout(&buffer.elements()[..len], buffer.layout)
    };
    let (q, k, v) = (tensor(&inputs.q)?, tensor(&inputs.k)?, tensor(&inputs.v)?);
    let attention = Attention::new();
    attention.forward(&q, (&k, &v))?;
    criterion.bench_function("launch/one forward, until it is submitted", |bencher| {
        bencher.iter_batched(
            || backend.synchronize(),
            |_idle| attention.forward(&q, (&k, &v)),
            BatchSize::PerIteration,
        );
    });
    criterion.bench_function("launch/one forward, until it is done", |bencher| {
        bencher.iter(|| {
            let output = attention.forward(&q, (&k, &v));
            backend.synchronize().and(output.map(drop))
        });
    });
    Ok(())
}

/// Launches of a prepared call on somebody else's stream: one driver call each, and three encodings of tensor maps for the
/// kernels that read through them.
fn raw_launches(
    criterion: &mut Criterion,
    gpu: &Gpu,
    call: &Call,
    family: Family,
) -> warptile_check::Result<()> {
    let prepared = match gpu.prepare(call.problem(), &Choice::Family(family)) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("not measured: {error}");
            return Ok(());
        }
    };
    let stream = Stream::new(gpu.context())?;
    let len = |layout: &Layout| layout.required_len().unwrap_or(0);
    let zeroed = |layout: &Layout| DeviceBuffer::<Half>::zeroed(&stream, len(layout));
    let (q, k, v) = (zeroed(call.q())?, zeroed(call.k())?, zeroed(call.v())?);
    let (out, lse) = (
        zeroed(call.out())?,
        DeviceBuffer::<f32>::zeroed(&stream, call.lse_len())?,
    );
    let at = Slots::from_fn(|operand| match operand {
        Operand::Q => q.pointer(),
        Operand::K => k.pointer(),
        Operand::V => v.pointer(),
        Operand::Out => out.pointer(),
        Operand::Lse => lse.pointer(),
        _ => 0,
    });
    let session = Session::new(gpu, stream.raw())?;
    let _current = gpu.context().enter()?;
    let mut failed = None;
    criterion.bench_function(
        &format!("launch/{LAUNCHES} raw launches, {family}"),
        |bencher| {
            bencher.iter_batched(
                || stream.synchronize(),
                |_idle| {
                    for _ in 0..LAUNCHES {
                        // SAFETY: the context is current, the stream is the session's alone, and the buffers, which have the
                        // call's lengths, outlive the wait at the end of this function.
                        let launched = unsafe { session.launch(&prepared, call, &at) };
                        failed = launched.err().or(failed.take());
                    }
                },
                BatchSize::PerIteration,
            );
        },
    );
    stream.synchronize()?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

criterion_group!(benches, launch);
criterion_main!(benches);
