//! The GPU path against the stand-in driver: what is launched, and that no failure leaks or goes unsaid.

use half::f16;
use warptile::gpu::{Arguments, Gpu, Launcher};
use warptile::{
    Attention, AttentionParams, Backend, ElementType, Error, Layout, Mask, Output, Plan, Problem,
    Result, Tensor,
};
use warptile_driver::sys::CUresult;
use warptile_driver::{Context, DeviceBuffer, Driver, DriverError, Graph, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

fn driver(fake: &FakeDriver) -> Driver {
    // SAFETY: the library is the stand-in, with the driver's signatures.
    unsafe { Driver::load_from(fake.path()) }.unwrap()
}

/// A kernel that reads through addresses, and one that reads through tensor maps and draws its tiles from a counter.
const PLAIN: &str = "scalar_d64_32x64_w4_s2";
const MAPPED: &str = "wgmma_d64_64x128_w8_s2";

/// One causal call on [2, 100, 4, 64] with everything that a call allocates.
fn forward(driver: &Driver) -> Result<()> {
    forward_again(driver, PLAIN, 1)
}

/// The same call several times on one backend.
fn forward_again(driver: &Driver, kernel: &str, times: usize) -> Result<()> {
    // 5 tiles of each of the 80 heads are more than the 264 CTAs of the second kernel that stay.
    let shape = match kernel {
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
    let mut attention = Attention::new().mask(Mask::causal()).kernel(kernel);
    if kernel == PLAIN {
        attention = attention.alibi_slopes(&vec![0.5; shape[2]]);
    }
    for _ in 0..times {
        let output = attention.forward(&q, &k, &v)?;
        assert_eq!(output.out.to_vec()?.len(), data.len());
        output
            .lse
            .map_or(Ok(0), |lse| lse.to_vec().map(|lse| lse.len()))?;
    }
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
    forward_again(&driver(&fake), MAPPED, 1).unwrap();
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
    for kernel in [PLAIN, MAPPED] {
        every_failure_is_survived(|driver| forward_again(driver, kernel, 2));
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

/// A backend and a tensor of ones.
fn ones(fake: &FakeDriver, shape: [usize; 4]) -> (Backend, Tensor<f16>) {
    let backend = Backend::cuda_with(&driver(fake), 0).unwrap();
    let tensor = ones_on(&backend, shape);
    (backend, tensor)
}

fn ones_on(backend: &Backend, shape: [usize; 4]) -> Tensor<f16> {
    let data = vec![f16::ONE; shape.iter().product()];
    backend.tensor(&data, shape).unwrap()
}

#[test]
fn a_call_like_one_before_allocates_once_launches_once_and_waits_for_nothing() {
    type Call = fn(&Tensor<f16>) -> Result<Output<f16>>;
    // The last reads through tensor maps: three more calls to encode them, in one more look at the context.
    let calls: [(Call, u64, u64); 5] = [
        (|x| Attention::new().kernel(PLAIN).forward(x, x, x), 3, 7),
        (
            |x| {
                let attention = Attention::new().without_lse();
                attention.kernel(PLAIN).forward(x, x, x)
            },
            3,
            7,
        ),
        (
            |x| {
                let attention = Attention::new().mask(Mask::causal());
                attention.alibi_slopes(&[0.5, 0.25]).forward(x, x, x)
            },
            3,
            7,
        ),
        (
            |x| {
                let attention = Attention::new().kernel(PLAIN);
                attention.forward_packed(x, x, x, &[0, 30, 100], &[0, 40, 90])
            },
            3,
            7,
        ),
        (|x| Attention::new().kernel(MAPPED).forward(x, x, x), 4, 11),
    ];
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 100, 2, 64]);
    for (index, (call, looks, all)) in calls.into_iter().enumerate() {
        drop(call(&x).unwrap());
        let counts = || {
            [
                "cuCtxGetCurrent",
                "cuCtxPushCurrent_v2",
                "cuMemAllocFromPoolAsync",
                "cuLaunchKernel",
                "cuMemFreeAsync",
                "cuCtxPopCurrent_v2",
            ]
            .map(|symbol| fake.calls_of(symbol))
        };
        let (before, all_before) = (counts(), fake.calls());
        let output = call(&x).unwrap();
        let (between, all_between) = (counts(), fake.calls());
        drop(output);
        let (after, all_after) = (counts(), fake.calls());
        let new = |from: [u64; 6], to: [u64; 6]| {
            std::array::from_fn::<u64, 6, _>(|symbol| to[symbol] - from[symbol])
        };
        // One way into the context, in which the allocation and the launch ask once each whether it is current.
        assert_eq!(new(before, between), [looks, 1, 1, 1, 0, 1], "call {index}");
        assert_eq!(all_between - all_before, all, "call {index}");
        assert_eq!(new(between, after), [1, 1, 0, 0, 1, 1], "call {index}");
        assert_eq!(all_after - all_between, 4, "call {index}");
    }
    drop((backend, x));
    fake.assert_clean();
}

/// Launches of one plan on buffers whose homes are other streams, each dropped right after its launch; once more in a graph that
/// outlives the launcher.
fn launches_beside_other_streams(driver: &Driver) -> Result<()> {
    let context = Context::new(&driver.device(0)?)?;
    let (stream, home) = (Stream::new(&context)?, Stream::new(&context)?);
    let (outputs, others) = (Stream::new(&context)?, Stream::new(&context)?);
    let gpu = Gpu::on_stream(&stream)?;
    let layout = Layout::bshd([8, 300, 10, 64]);
    let len = layout.required_len().unwrap_or_default();
    let problem = Problem::builder(&layout, &layout, &layout, ElementType::F16).build()?;
    let plan = Plan::gpu(problem, gpu.profile(), Some(MAPPED))?;
    let mut launcher = gpu.launcher(&plan, &stream)?;
    let launch = |launcher: &mut Launcher| -> Result<()> {
        let inputs = DeviceBuffer::<f16>::zeroed(&home, len)?;
        let mut out = DeviceBuffer::<f16>::zeroed(&outputs, len)?;
        let mut lse = DeviceBuffer::<f32>::zeroed(&others, 8 * 10 * 300)?;
        let arguments = Arguments::new(
            inputs.as_slice(),
            inputs.as_slice(),
            inputs.as_slice(),
            out.as_slice_mut(),
        );
        launcher.launch(arguments.with_lse(lse.as_slice_mut()))
    };
    for _ in 0..2 {
        launch(&mut launcher)?;
    }
    let inputs = DeviceBuffer::<f16>::zeroed(&home, len)?;
    let mut out = DeviceBuffer::<f16>::zeroed(&outputs, len)?;
    let mut lse = DeviceBuffer::<f32>::zeroed(&others, 8 * 10 * 300)?;
    let graph = Graph::capture::<Error>(&stream, |_| {
        let (q, k, v) = (inputs.as_slice(), inputs.as_slice(), inputs.as_slice());
        let arguments = Arguments::new(q, k, v, out.as_slice_mut());
        launcher.launch(arguments.with_lse(lse.as_slice_mut()))
    })?;
    drop((launcher, inputs, out, lse));
    graph.launch(&stream)?;
    graph.launch(&home)?;
    drop(graph);
    // The homes first: nothing but order keeps their memory.
    home.synchronize()?;
    outputs.synchronize()?;
    others.synchronize()?;
    stream.synchronize()?;
    Ok(context.synchronize()?)
}

#[test]
fn whatever_fails_the_buffers_of_other_streams_outlive_the_launch() {
    every_failure_is_survived(launches_beside_other_streams);
}

/// What a kernel would find at an address in its parameters.
fn on_device<T: bytemuck::Pod>(address: u64, len: usize) -> Vec<T> {
    let pointer = std::ptr::with_exposed_provenance::<T>(address as usize);
    // SAFETY: the stand-in's device memory is host memory, and callers name `len` values that were uploaded for a launch
    // and that its backend still keeps.
    unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec()
}

#[test]
fn calls_that_differ_in_anything_are_never_taken_for_each_other() {
    let fake = FakeDriver::open();
    // No tensor maps: the parameter block is the one below.
    fake.set_compute_capability(8, 0);
    let (backend, x) = ones(&fake, [2, 50, 2, 64]);
    let rows = ones_on(&backend, [1, 100, 2, 64]);
    let other_layout = backend
        .tensor_with_layout(&[f16::ONE; 2 * 50 * 2 * 64], Layout::bhsd([2, 50, 2, 64]))
        .unwrap();
    let new = Attention::new;
    let dense = [
        (new(), &x),
        (new().mask(Mask::causal()), &x),
        (new().mask(Mask::window(3, 0)), &x),
        (new().scale(0.5), &x),
        (new().softcap(20.0), &x),
        (new().without_lse(), &x),
        (new().alibi_slopes(&[0.5, 0.25]), &x),
        (new().alibi_slopes(&[0.5, 0.125]), &x),
        (new().alibi_slopes(&[0.5, 0.25, 0.5, 0.25]), &x),
        (new().kernel("scalar_d64_32x64_w4_s2"), &x),
        (new(), &other_layout),
        (new(), &rows),
    ];
    let packed: [(&[i32], &[i32]); 3] = [
        (&[0, 50, 100], &[0, 50, 100]),
        (&[0, 50, 100], &[0, 40, 100]),
        (&[0, 40, 100], &[0, 50, 100]),
    ];

    // Three rounds: the first prepares, the others find what was prepared.
    let mut rounds: Vec<Vec<AttentionParams>> = Vec::new();
    for _ in 0..3 {
        for (attention, x) in &dense {
            let output = attention.forward(x, x, x).unwrap();
            let planned = attention.plan(x, x, x).unwrap();
            assert_eq!(output.plan.problem(), planned.problem());
            assert_eq!(output.plan.kernel_name(), planned.kernel_name());
        }
        for (queries, keys) in packed {
            let output = new().forward_packed(&rows, &rows, &rows, queries, keys);
            let problem = output.unwrap().plan.problem().clone();
            assert_eq!(problem.cu_seqlens_q(), Some(queries));
            assert_eq!(problem.cu_seqlens_k(), Some(keys));
        }
        backend.synchronize().unwrap();
        let launches = fake.launches();
        fake.forget_launches();
        let params = |launch: &warptile_fake_cuda::FakeLaunch| {
            bytemuck::pod_read_unaligned::<AttentionParams>(launch.params())
        };
        rounds.push(launches.iter().map(params).collect());
    }

    for round in &rounds {
        assert_eq!(round.len(), dense.len() + packed.len());
        for ((attention, x), params) in dense.iter().zip(round) {
            let plan = attention.plan(x, x, x).unwrap();
            let block_m = plan.launch().unwrap().image.tiling.block_m as usize;
            let expected = AttentionParams {
                q: x_address(params),
                k: x_address(params),
                v: x_address(params),
                out: params.out,
                lse: params.lse,
                alibi_slopes: params.alibi_slopes,
                ..AttentionParams::new(plan.problem(), block_m)
            };
            assert_eq!(*params, expected);
            assert_eq!(params.lse != 0, plan.problem().wants_lse());
        }
        let slopes: [(usize, &[f32]); 3] = [
            (6, &[0.5, 0.25]),
            (7, &[0.5, 0.125]),
            (8, &[0.5, 0.25, 0.5, 0.25]),
        ];
        for (call, expected) in slopes {
            let found = on_device::<f32>(round[call].alibi_slopes, expected.len());
            assert_eq!(found, expected);
        }
        for (params, (queries, keys)) in round[dense.len()..].iter().zip(packed) {
            assert_eq!(on_device::<i32>(params.cu_seqlens_q, 3), queries);
            assert_eq!(on_device::<i32>(params.cu_seqlens_k, 3), keys);
        }
    }
    drop(dense);
    drop((backend, x, rows, other_layout));
    fake.assert_clean();
}

/// Address of the tensor that is q, k and v at once.
fn x_address(params: &AttentionParams) -> u64 {
    assert!(params.q == params.k && params.k == params.v);
    params.q
}

#[test]
fn only_the_last_calls_are_kept() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 100, 1, 64]);
    let before = fake.live(Kind::DeviceMemory);
    for last in 1..=100 {
        let offsets = [0, last];
        let output = Attention::new().forward_packed(&x, &x, &x, &offsets, &offsets);
        drop(output.unwrap());
        // Two offset buffers a call.
        let kept = fake.live(Kind::DeviceMemory) - before;
        assert!(kept <= 2 * 32, "{kept} buffers after {last} calls");
    }
    assert_eq!(fake.live(Kind::DeviceMemory) - before, 2 * 32);
    drop((backend, x));
    fake.assert_clean();
}

#[test]
fn threads_share_what_is_prepared() {
    const THREADS: usize = 4;
    const CALLS: usize = 50;
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 30, 2, 64]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let x = &x;
            scope.spawn(move || {
                for call in 0..CALLS {
                    // More shapes of call than are kept, so that threads drop what others are using.
                    let scale = ((thread + call) % 40 + 1) as f32;
                    let attention = Attention::new().scale(scale).alibi_slopes(&[scale, 1.0]);
                    let output = attention.forward(x, x, x).unwrap();
                    assert_eq!(output.plan.problem().scale(), scale);
                }
            });
        }
    });
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), THREADS * CALLS);
    drop((backend, x));
    fake.assert_clean();
}

#[test]
fn a_call_within_a_capture_is_refused_and_breaks_nothing() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 30, 2, 64]);
    let attention = Attention::new().mask(Mask::causal());
    attention.forward(&x, &x, &x).unwrap();
    let stream = backend.gpu().unwrap().stream();
    let refused = Graph::capture::<Error>(stream, |_| attention.forward(&x, &x, &x).map(drop));
    assert!(
        matches!(&refused, Err(Error::Driver(DriverError::Capturing { .. }))),
        "{refused:?}"
    );
    attention.forward(&x, &x, &x).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 2);
    drop((refused, backend, x));
    fake.assert_clean();
}
