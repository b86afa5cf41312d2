//! The GPU path against the stand-in driver: what is launched, and that no failure leaks or goes unsaid.

use half::f16;
use warptile::{Attention, AttentionParams, Backend, Error, Mask, Result};
use warptile_driver::Driver;
use warptile_driver::sys::CUresult;
use warptile_fake_cuda::FakeDriver;

fn driver(fake: &FakeDriver) -> Driver {
    // SAFETY: the library is the stand-in, with the driver's signatures.
    unsafe { Driver::load_from(fake.path()) }.unwrap()
}

/// A kernel that reads through addresses, and one that reads through tensor maps and draws its tiles from a counter.
const PLAIN: &str = "scalar_d64_32x64_w4_s2";
const MAPPED: &str = "wgmma_d64_64x128_w8_s2";

/// One causal call on [2, 100, 4, 64] with everything that a call allocates.
fn forward(driver: &Driver) -> Result<()> {
    forward_on(driver, PLAIN, [2, 100, 4, 64])
}

fn forward_on(driver: &Driver, kernel: &str, shape: [usize; 4]) -> Result<()> {
    let backend = Backend::cuda_with(driver, 0)?;
    let data = vec![f16::ONE; shape.iter().product()];
    let (q, k, v) = (
        backend.tensor(&data, shape)?,
        backend.tensor(&data, shape)?,
        backend.tensor(&data, shape)?,
    );
    let mut attention = Attention::new().mask(Mask::causal()).kernel(kernel);
    if kernel == PLAIN {
        attention = attention.alibi_slopes(&vec![0.5; shape[2]]);
    }
    let output = attention.forward(&q, &k, &v)?;
    assert_eq!(output.out.to_vec()?.len(), data.len());
    output
        .lse
        .map_or(Ok(0), |lse| lse.to_vec().map(|lse| lse.len()))?;
    backend.synchronize()
}

#[test]
fn a_call_launches_one_kernel_with_the_problem_in_its_parameters() {
    let fake = FakeDriver::open();
    forward(&driver(&fake)).unwrap();
    let launches = fake.launches();
    let launch = &launches[0];
    assert_eq!(launches.len(), 1);
    assert_eq!(launch.name(), "warptile_scalar_d64_32x64_w4_s2_f16");
    let params: AttentionParams = bytemuck::pod_read_unaligned(launch.params());
    assert_eq!(
        (params.batch, params.heads, params.kv_heads, params.head_dim),
        (2, 4, 4, 64)
    );
    assert_eq!(
        (params.query_len, params.key_len, params.query_tiles),
        (100, 100, 4)
    );
    assert_eq!(
        (params.window_right, params.align_top_left, params.scale),
        (0, 0, 0.125)
    );
    assert_eq!(
        (
            params.q_stride.batch,
            params.q_stride.row,
            params.q_stride.head
        ),
        (25_600, 256, 64)
    );
    let addresses = [
        params.q,
        params.k,
        params.v,
        params.out,
        params.lse,
        params.alibi_slopes,
    ];
    assert!(addresses.iter().all(|&address| address != 0));
    assert_eq!((params.cu_seqlens_q, params.tile_counter), (0, 0));
    fake.assert_clean();
}

#[test]
fn a_launch_through_tensor_maps_brings_its_maps_and_its_tile_counter() {
    let fake = FakeDriver::open();
    // 264 CTAs stay; 5 tiles of each of the 80 heads are more, so they are drawn.
    forward_on(&driver(&fake), MAPPED, [8, 300, 10, 64]).unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 1);
    let block = launches[0].params();
    assert_eq!(block.len(), 640);
    let maps: Vec<&[u8]> = block[..384].chunks_exact(128).collect();
    assert!(maps.iter().all(|map| map.iter().any(|&byte| byte != 0)));
    assert!(maps[0] != maps[1], "q's box has other rows than k's");
    let params: AttentionParams = bytemuck::pod_read_unaligned(&block[384..624]);
    assert_eq!((params.batch, params.heads, params.query_tiles), (8, 10, 5));
    assert_ne!(params.tile_counter, 0);
    let word = |at: usize| i32::from_ne_bytes(block[at..at + 4].try_into().unwrap());
    assert_eq!((word(624), word(628)), (8 * 10 * 5, 8 * 10));
    fake.assert_clean();
}

#[test]
fn whatever_driver_call_fails_nothing_leaks_and_the_next_call_works() {
    for (kernel, shape) in [(PLAIN, [2, 100, 4, 64]), (MAPPED, [8, 300, 10, 64])] {
        every_failure_is_survived(|driver| forward_on(driver, kernel, shape));
    }
}

fn every_failure_is_survived(forward: impl Fn(&Driver) -> Result<()>) {
    let fake = FakeDriver::open();
    let driver = driver(&fake);
    let before = fake.calls();
    forward(&driver).unwrap();
    let calls = fake.calls() - before;
    fake.assert_clean();
    let mut failures = 0;
    for nth in 1..=calls {
        fake.fail(None, nth, CUresult::ERROR_OUT_OF_MEMORY.0);
        failures += usize::from(forward(&driver).is_err());
        assert!(
            fake.fault().is_some(),
            "call {nth} of {calls} was never made"
        );
        assert_eq!(fake.violations(), Vec::<String>::new(), "call {nth}");
        fake.assert_clean();
    }
    // The rest are calls of destructors, which have nobody to report to.
    assert!(
        failures as u64 > calls / 2,
        "{failures} of {calls} failures were reported"
    );
    fake.fail(None, 0, 0);
    forward(&driver).unwrap();
}

#[test]
fn a_kernel_that_faults_is_named_when_the_result_is_read() {
    let fake = FakeDriver::open();
    fake.fail_kernel(CUresult::ERROR_ILLEGAL_ADDRESS.0);
    let error = forward(&driver(&fake)).unwrap_err().to_string();
    assert!(error.contains("scalar_d64_32x64_w4_s2_f16"), "{error}");
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");
}

#[test]
fn a_device_without_an_image_is_an_error_before_anything_is_launched() {
    let fake = FakeDriver::open();
    fake.set_compute_capability(7, 5);
    let error = forward(&driver(&fake)).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    assert!(
        error.to_string().contains("no image for this device"),
        "{error}"
    );
    assert!(fake.launches().is_empty());
    fake.assert_clean();
}

#[test]
fn a_missing_device_and_a_full_one_are_told_apart() {
    let fake = FakeDriver::open();
    let loaded = driver(&fake);
    let error = Backend::cuda_with(&loaded, 3).unwrap_err().to_string();
    assert!(error.contains('3'), "{error}");

    fake.set_memory(100_000);
    let error = forward(&loaded).unwrap_err().to_string();
    assert!(
        error.to_lowercase().contains("out of memory") || error.contains("OUT_OF_MEMORY"),
        "{error}"
    );
    fake.assert_clean();
}
