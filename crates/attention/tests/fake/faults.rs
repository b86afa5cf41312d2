//! Whatever driver call fails: nothing leaks, nothing is freed under a kernel, and the next call works.

use half::f16;
use warptile::gpu::Bindings;
use warptile::spec::{Call, Operand};
use warptile::{Attention, Backend, ElementType, Keys, Layout, Mask, Queries, Result};
use warptile_driver::sys::CUresult;
use warptile_driver::{DeviceBuffer, Driver, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::{MAPPED, PLAIN, driver, kernel};

/// Fails every driver call of `work` once, and then runs it unhindered.
pub(crate) fn every_failure_is_survived(work: impl Fn(&Driver) -> Result<()>) {
    let fake = FakeDriver::open();
    let driver = driver(&fake);
    let before = fake.calls();
    work(&driver).unwrap();
    let calls = fake.calls() - before;
    fake.assert_clean();
    let mut failures = 0;
    for nth in 1..=calls {
        fake.fail(None, nth, CUresult::ERROR_OUT_OF_MEMORY.0);
        failures += usize::from(work(&driver).is_err());
        assert!(
            fake.fault().is_some(),
            "call {nth} of {calls} was never made"
        );
        assert_eq!(fake.violations(), Vec::<String>::new(), "call {nth}");
        fake.assert_clean();
    }
    // The rest are calls of destructors, which cannot report errors.
    assert!(
        failures as u64 > calls / 2,
        "{failures} of {calls} failures were reported"
    );
    fake.fail(None, 0, 0);
    work(&driver).unwrap();
}

/// Two causal calls with everything that a call allocates.
fn forward(driver: &Driver, name: &str) -> Result<()> {
    let shape = match name {
        // More tiles than CTAs that stay.
        MAPPED => [8, 300, 10, 64],
        _ => [2, 100, 4, 64],
    };
    let backend = Backend::cuda_with(driver, 0)?;
    let data = vec![f16::ONE; shape.iter().product()];
    let (q, k, v) = (
        backend.tensor(&data, shape)?,
        backend.tensor(&data, shape)?,
        backend.tensor(&data, shape)?,
    );
    let mut attention = Attention::new().mask(Mask::causal()).choice(kernel(name));
    if name == PLAIN {
        attention = attention
            .alibi_slopes(&vec![0.5; shape[2]])
            .sinks(&vec![0.5; shape[2]]);
    }
    for _ in 0..2 {
        let output = attention.forward(&q, (&k, &v))?;
        assert_eq!(output.out.to_vec()?.len(), data.len());
        output
            .lse
            .map_or(Ok(0), |lse| lse.to_vec().map(|lse| lse.len()))?;
    }
    backend.synchronize()
}

#[test]
fn a_call_through_addresses() {
    every_failure_is_survived(|driver| forward(driver, PLAIN));
}

#[test]
fn a_call_through_tensor_maps() {
    every_failure_is_survived(|driver| forward(driver, MAPPED));
}

#[test]
fn a_packed_call() {
    every_failure_is_survived(|driver| {
        let backend = Backend::cuda_with(driver, 0)?;
        let x = backend.tensor(&[f16::ONE; 100 * 2 * 64], [1, 100, 2, 64])?;
        for end in [90, 100] {
            let offsets = [0, 40, end];
            let queries = Queries::new(&x).packed(&offsets);
            let output = Attention::new()
                .choice(kernel(PLAIN))
                .forward(queries, Keys::new(&x, &x).packed(&offsets))?;
            output.out.to_vec()?;
        }
        backend.synchronize()
    });
}

/// Every buffer belongs to a stream of its own, and is dropped right after the launch. If any call fails, its memory must still not be
/// freed before the kernel has ended.
#[test]
fn a_launch_over_buffers_of_other_streams() {
    every_failure_is_survived(|driver| {
        let gpu = warptile::gpu::Gpu::new(driver, 0)?;
        let tensor = Layout::bshd([1, 64, 2, 64]);
        let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16).build()?;
        let prepared = gpu.prepare(call.problem(), &kernel(PLAIN))?;
        let stream = Stream::new(gpu.context())?;
        let homes = (0..5)
            .map(|_| Stream::new(gpu.context()))
            .collect::<warptile_driver::Result<Vec<_>>>()?;
        for _ in 0..2 {
            let [q, k, v] = [0, 1, 2].map(|i| DeviceBuffer::<f16>::zeroed(&homes[i], 8192));
            let (q, k, v) = (q?, k?, v?);
            let mut out = DeviceBuffer::<f16>::zeroed(&homes[3], 8192)?;
            let mut lse = DeviceBuffer::<f32>::zeroed(&homes[4], 128)?;
            let bindings =
                Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
                    .output(Operand::Lse, lse.as_slice_mut());
            prepared.launch(&stream, &call, &bindings)?;
        }
        stream.synchronize()?;
        for home in &homes {
            home.synchronize()?;
        }
        Ok(())
    });
}

#[test]
fn a_kernel_that_faults_is_named_when_the_result_is_read() {
    let fake = FakeDriver::open();
    fake.fail_kernel(CUresult::ERROR_ILLEGAL_ADDRESS.0);
    let error = forward(&driver(&fake), PLAIN).unwrap_err().to_string();
    assert!(error.contains("scalar_d64_32x64_w4_s2_f16"), "{error}");
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");
}

/// Each view in turn belongs to another stream, which writes it before the launch and again after: no event missing, none the
/// wrong way around.
#[test]
fn the_stream_of_every_view_is_ordered_before_and_after() {
    const VIEWS: usize = 9;
    for view in 0..VIEWS {
        let fake = FakeDriver::open();
        {
            let gpu = warptile::gpu::Gpu::new(&driver(&fake), 0).unwrap();
            let tensor = Layout::bshd([1, 64, 2, 64]);
            let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
                .scoring("alibi=head sinks bias keymask".parse().unwrap())
                .layout(Operand::Bias, Layout::bhsd([1, 1, 64, 64]))
                .layout(Operand::KeyMask, Layout::bhsd([1, 1, 1, 64]))
                .build()
                .unwrap();
            let prepared = gpu.prepare(call.problem(), &kernel(PLAIN)).unwrap();
            let stream = Stream::new(gpu.context()).unwrap();
            let home = Stream::new(gpu.context()).unwrap();
            let of = |index: usize| if index == view { &home } else { &stream };
            let half =
                |index: usize, len: usize| DeviceBuffer::<f16>::zeroed(of(index), len).unwrap();
            let single =
                |index: usize, len: usize| DeviceBuffer::<f32>::zeroed(of(index), len).unwrap();
            let (mut q, mut k, mut v) = (half(0, 8192), half(1, 8192), half(2, 8192));
            let (mut out, mut lse) = (half(3, 8192), single(4, 128));
            let (mut slopes, mut sinks) = (single(5, 2), single(6, 2));
            let mut bias = half(7, 4096);
            let mut mask = DeviceBuffer::<u8>::zeroed(of(8), 64).unwrap();
            for _ in 0..2 {
                for buffer in [&mut q, &mut k, &mut v, &mut out, &mut bias] {
                    buffer.as_slice_mut().fill_bytes(1).unwrap();
                }
                for buffer in [&mut lse, &mut slopes, &mut sinks] {
                    buffer.as_slice_mut().fill_bytes(1).unwrap();
                }
                mask.as_slice_mut().fill_bytes(1).unwrap();
                let bindings =
                    Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
                        .output(Operand::Lse, lse.as_slice_mut())
                        .with(Operand::Slopes, slopes.as_slice())
                        .with(Operand::Sinks, sinks.as_slice())
                        .with(Operand::Bias, bias.as_slice())
                        .with(Operand::KeyMask, mask.as_slice());
                prepared.launch(&stream, &call, &bindings).unwrap();
            }
            home.synchronize().unwrap();
            stream.synchronize().unwrap();
            assert_eq!(fake.violations(), Vec::<String>::new(), "view {view}");
        }
        fake.assert_clean();
    }
}
