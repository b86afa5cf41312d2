//! The host's cost of a call of `Attention::forward` apart from the driver: measured with a stand-in that does next to
//! nothing. Needs no GPU; `launch` measures the same with the real driver.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use warptile::{Attention, Backend, Keys, Mask, Output, Queries, Tensor};
use warptile_benches::{Half, case};
use warptile_driver::Driver;
use warptile_fake_cuda::FakeDriver;

fn forward(criterion: &mut Criterion) {
    if let Err(error) = forward_on_stand_in(criterion) {
        eprintln!("not measured to the end: {error}");
    }
}

fn forward_on_stand_in(criterion: &mut Criterion) -> warptile::Result<()> {
    type Call = fn(&Tensor<Half>) -> warptile::Result<Output<Half>>;
    let calls: [(&str, Call); 3] = [
        ("dense", |x| Attention::new().forward(x, (x, x))),
        ("alibi", |x| {
            let attention = Attention::new().mask(Mask::causal());
            attention.alibi_slopes(&[0.5, 0.25]).forward(x, (x, x))
        }),
        ("packed", |x| {
            let keys = Keys::new(x, x).packed(&[0, 20, 60]);
            Attention::new().forward(Queries::new(x).packed(&[0, 10, 64]), keys)
        }),
    ];
    let fake = FakeDriver::open();
    // SAFETY: the library is the stand-in, with the driver's signatures.
    let driver = unsafe { Driver::load_from(fake.path()) }?;
    let backend = Backend::cuda_with(&driver, 0)?;
    let q = case("b1 q64 k64 h2 d64 f16").inputs::<Half>().q;
    let len = q.layout.required_len().unwrap_or(0);
    let x = backend.tensor_with_layout(&q.elements()[..len], q.layout)?;

    let mut group = criterion.benchmark_group("forward");
    for (name, call) in calls {
        call(&x)?;
        let mut failed = None;
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || {
                    fake.forget_launches();
                    backend.synchronize()
                },
                |_idle| failed = call(&x).err().or(failed.take()),
                BatchSize::PerIteration,
            );
        });
        if let Some(error) = failed {
            return Err(error);
        }
    }
    group.finish();
    Ok(())
}

criterion_group!(benches, forward);
criterion_main!(benches);
