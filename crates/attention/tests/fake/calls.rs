//! Calls of `Attention::forward`: what they launch, what they cost, and what is kept from one to the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use half::f16;
use warptile::kernels::abi;
use warptile::{Attention, Backend, ElementType, Error, Layout, Mask, Output, Result, Tensor};
use warptile_driver::{DeviceBuffer, DriverError, Graph};
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

use crate::{MAPPED, PLAIN, block, driver, kernel, ones, ones_on};

#[test]
fn a_call_launches_one_kernel_with_the_call_in_its_parameters() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 100, 4, 64]);
    Attention::new()
        .mask(Mask::causal())
        .choice(kernel(PLAIN))
        .alibi_slopes(&[0.5; 4])
        .sinks(&[1.0, 2.0, 3.0, 4.0])
        .forward(&x, (&x, &x))
        .unwrap();
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 1);
    assert_eq!(launches[0].name(), "warptile_scalar_d64_32x64_w4_s2_f16");
    let params = block(&launches[0]);
    let heads = abi::Heads {
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        value_dim: 64,
    };
    assert_eq!(params.heads, heads);
    let (lengths, scoring, work) = (params.sequences, params.scoring, params.work);
    assert_eq!(
        (lengths.batch, lengths.query_len, lengths.key_len),
        (2, 100, 100)
    );
    assert_eq!((work.query_tiles, work.tiles, work.counter), (4, 32, 0));
    assert_eq!(
        (scoring.window_right, scoring.align_top_left, scoring.scale),
        (0, 0, 0.125)
    );
    assert_eq!(
        (params.q.batch, params.q.row, params.q.head),
        (25_600, 256, 64)
    );
    let addresses = [
        params.q.address,
        params.k.address,
        params.v.address,
        params.out.address,
        params.lse,
        scoring.slopes,
        scoring.sinks,
    ];
    assert!(addresses.iter().all(|&address| address != 0));
    assert_eq!(
        (lengths.query_offsets, scoring.bias, scoring.key_mask),
        (0, 0, 0)
    );
    drop((backend, x));
    fake.assert_clean();
}

#[test]
fn a_launch_through_tensor_maps_brings_its_maps_and_its_tile_counter() {
    let fake = FakeDriver::open();
    // 5 tiles of each of the 80 heads are more than the 264 CTAs that stay.
    let (backend, x) = ones(&fake, [8, 300, 10, 64]);
    let [k, v] = [(); 2].map(|()| ones_on(&backend, x.shape()));
    let attention = Attention::new().mask(Mask::causal()).choice(kernel(MAPPED));
    attention.forward(&x, (&k, &v)).unwrap();
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 1);
    // The maps of q, k, v and out.
    let maps: Vec<&[u8]> = launches[0].params()[..512].chunks_exact(128).collect();
    assert!(maps.iter().all(|map| map.iter().any(|&byte| byte != 0)));
    for (i, map) in maps.iter().enumerate() {
        assert!(!maps[..i].contains(map), "map {i}");
    }
    let work = block(&launches[0]).work;
    assert_eq!(
        (work.query_tiles, work.tiles, work.heads_at_once),
        (5, 400, 80)
    );
    assert_ne!(work.counter, 0);
    drop((backend, x, k, v));
    fake.assert_clean();
}

#[test]
fn a_device_without_an_image_is_an_error_before_anything_is_launched() {
    let fake = FakeDriver::open();
    fake.set_compute_capability(7, 5);
    let (backend, x) = ones(&fake, [2, 100, 4, 64]);
    let error = Attention::new().forward(&x, (&x, &x)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoImages {
                major: 7,
                minor: 5,
                ..
            }
        ),
        "{error}"
    );
    let prepared = backend.gpu().unwrap().prepare_merge(ElementType::F16);
    assert!(matches!(prepared, Err(Error::NoImages { .. })));
    assert!(fake.launches().is_empty());
    drop((backend, x));
    fake.assert_clean();
}

#[test]
fn a_missing_device_and_a_full_one_are_told_apart() {
    let fake = FakeDriver::open();
    let loaded = driver(&fake);
    let error = Backend::cuda_with(&loaded, 3).unwrap_err().to_string();
    assert!(error.contains('3'), "{error}");

    fake.set_memory(100_000);
    let backend = Backend::cuda_with(&loaded, 0).unwrap();
    let data = vec![f16::ONE; 100_000];
    let error = backend
        .tensor(&data, [1, 100_000, 1, 1])
        .unwrap_err()
        .to_string();
    assert!(error.contains("OUT_OF_MEMORY"), "{error}");
    drop(backend);
    fake.assert_clean();
}

#[test]
fn the_fastest_gpu_is_chosen_and_the_others_say_why_not() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let backend = Backend::auto_with(&driver(&fake));
    assert!(backend.to_string().starts_with("cuda:0"));
    let reasons: Vec<String> = backend
        .passed_over()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        reasons,
        ["cuda:1: expected to take 1.00 times as long as cuda:0"]
    );
    drop(backend);

    fake.set_compute_capability(7, 5);
    let backend = Backend::auto_with(&driver(&fake));
    assert!(!backend.is_gpu());
    assert_eq!(backend.passed_over().len(), 2);
    let reason = &backend.passed_over()[0].reason;
    assert!(reason.contains("has no kernels for"), "{reason}");
}

#[test]
fn a_call_like_one_before_launches_once_and_allocates_and_waits_for_nothing() {
    type Call = fn(&Tensor<f16>) -> Result<Output<f16>>;
    let calls: [Call; 4] = [
        |x| Attention::new().choice(kernel(PLAIN)).forward(x, (x, x)),
        |x| {
            let attention = Attention::new().without_lse();
            attention.choice(kernel(PLAIN)).forward(x, (x, x))
        },
        |x| {
            let attention = Attention::new().mask(Mask::causal());
            attention
                .choice(kernel(PLAIN))
                .alibi_slopes(&[0.5, 0.25])
                .forward(x, (x, x))
        },
        // It reads and writes through tensor maps, which are those of the call before: its tensors lie where they lay.
        |x| Attention::new().choice(kernel(MAPPED)).forward(x, (x, x)),
    ];
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 100, 2, 64]);
    for (index, call) in calls.into_iter().enumerate() {
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
            .map(|symbol| match symbol {
                // With or without attributes.
                "cuLaunchKernel" => fake.calls_of(symbol) + fake.calls_of("cuLaunchKernelEx"),
                _ => fake.calls_of(symbol),
            })
        };
        let (before, all_before) = (counts(), fake.calls());
        let output = call(&x).unwrap();
        let (between, all_between) = (counts(), fake.calls());
        drop(output);
        let (after, all_after) = (counts(), fake.calls());
        let new = |from: [u64; 6], to: [u64; 6]| {
            std::array::from_fn::<u64, 6, _>(|symbol| to[symbol] - from[symbol])
        };
        // One way into the context, and one question whether it is current; the output has the memory of the one before.
        assert_eq!(new(before, between), [1, 1, 0, 1, 0, 1], "call {index}");
        assert_eq!(all_between - all_before, 4, "call {index}");
        assert_eq!(new(between, after), [0; 6], "call {index}");
        assert_eq!(all_after - all_between, 0, "call {index}");
    }
    drop((backend, x));
    fake.assert_clean();
}

/// Two queries of one shape take turns: each finds the call of both again, and its own tensor maps.
#[test]
fn calls_of_one_shape_have_the_maps_of_their_own_tensors() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [1, 100, 2, 64]);
    let y = ones_on(&backend, x.shape());
    let attention = Attention::new().choice(kernel(MAPPED));
    let mut out = ones_on(&backend, x.shape());
    let encoded = || fake.calls_of("cuTensorMapEncodeTiled");
    for (turn, maps) in [(0, 8), (1, 0), (2, 0)] {
        let before = encoded();
        for q in [&x, &y] {
            drop(attention.forward_into(q, (&x, &y), &mut out, None).unwrap());
        }
        assert_eq!(encoded() - before, maps, "turn {turn}");
    }
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 6);
    let q_address = |launch: &FakeLaunch| block(launch).q.address;
    for (turn, launch) in launches.iter().enumerate() {
        assert_eq!(q_address(launch), q_address(&launches[turn % 2]));
        assert_eq!(launch.params(), launches[turn % 2].params());
    }
    assert_ne!(q_address(&launches[0]), q_address(&launches[1]));
    drop((backend, x, y, out));
    fake.assert_clean();
}

/// The memory of a tensor that is gone is that of another one, of another shape.
#[test]
fn a_call_at_an_address_of_before_has_its_own_maps() {
    let fake = FakeDriver::open();
    let shapes = [[2, 50, 2, 64], [1, 100, 2, 64]];
    let (backend, x) = ones(&fake, shapes[0]);
    let address = x.device_slice().unwrap().pointer();
    drop(x);
    let attention = Attention::new().choice(kernel(MAPPED));
    for turn in 0..6 {
        let x = ones_on(&backend, shapes[turn % 2]);
        assert_eq!(x.device_slice().unwrap().pointer(), address);
        drop(attention.forward(&x, (&x, &x)).unwrap());
    }
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 6);
    for (turn, launch) in launches.iter().enumerate() {
        let [batch, rows, heads, head_dim] = shapes[turn % 2].map(|extent| extent as u64);
        let map: [u64; 6] = bytemuck::pod_read_unaligned(&launch.params()[..48]);
        assert_eq!(
            map,
            [address, 4, head_dim, rows, heads, batch],
            "turn {turn}"
        );
        assert_eq!(block(launch).sequences.query_len as u64, rows);
    }
    drop(backend);
    fake.assert_clean();
}

/// Kernels of Hopper wait for the launch ahead themselves, so theirs may begin early. CTAs that stay and fit a multiprocessor in twos do so
/// where they have one each, by asking for more shared memory than two could have, or where they fill all the room there is.
#[test]
fn launches_begin_early_where_ctas_do_not_crowd() {
    let fake = FakeDriver::open();
    let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
    let (in_twos, alone) = ("wgmma_d64_64x128_w8_s2", "wgmma_d64_128x128_w12_s2");
    let two_fit = 233_472 / 2 - 1024;
    for (name, rows, ctas, early, shared) in [
        (in_twos, 64 * 66, 132, 1, two_fit + 1024),
        (in_twos, 64 * 67, 134, 0, 82_944),
        (in_twos, 64 * 131, 262, 0, 82_944),
        (in_twos, 64 * 133, 264, 1, 82_944),
        (alone, 64, 2, 1, 99_328),
        ("wgmma_d64_192x128_w16_s3", 64, 2, 1, 148_480),
        (PLAIN, 64, 4, 0, 55_808),
    ] {
        let (x, keys) = (
            ones_on(&backend, [1, rows, 2, 64]),
            ones_on(&backend, [1, 64, 2, 64]),
        );
        let attention = Attention::new().choice(kernel(name));
        // The second finds the stream busy: an idle one has nothing to begin before the end of.
        for _ in 0..2 {
            drop(attention.forward(&x, (&keys, &keys)).unwrap());
        }
        backend.synchronize().unwrap();
        let launches = fake.launches();
        let found = { launches.last() }
            .map(|launch| (launch.grid[0], launch.programmatic, launch.shared_bytes));
        assert_eq!(found, Some((ctas, early, shared)), "{name} of {rows} rows");
    }
    drop(backend);
    fake.assert_clean();
}

/// Reads the values that a kernel would find at an address in its parameters.
pub(crate) fn on_device<T: bytemuck::Pod>(address: u64, len: usize) -> Vec<T> {
    let pointer = std::ptr::with_exposed_provenance::<T>(address as usize);
    // SAFETY: the stand-in's device memory is host memory, and callers name `len` values that were uploaded for a launch
    // and that its backend still keeps.
    unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec()
}

#[test]
fn calls_that_differ_in_anything_are_never_taken_for_each_other() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 50, 2, 64]);
    let rows = ones_on(&backend, [1, 100, 2, 64]);
    let layout = Layout::bhsd([2, 2, 50, 64]);
    let other_layout = backend
        .tensor_with_layout(&[f16::ONE; 2 * 50 * 2 * 64], layout)
        .unwrap();
    let new = || Attention::new().choice(kernel(PLAIN));
    let calls = [
        (new(), &x),
        (new().mask(Mask::causal()), &x),
        (new().mask(Mask::window(3, 0)), &x),
        (new().scale(0.5), &x),
        (new().softcap(20.0), &x),
        (new().without_lse(), &x),
        (new().alibi_slopes(&[0.5, 0.25]), &x),
        (new().alibi_slopes(&[0.5, 0.125]), &x),
        (new().alibi_slopes(&[0.5, 0.25, 0.5, 0.25]), &x),
        (new().sinks(&[0.5, 0.25]), &x),
        (new(), &other_layout),
        (new(), &rows),
    ];
    // Three rounds: the first prepares, the others find what was prepared.
    for _ in 0..3 {
        for (attention, x) in &calls {
            drop(attention.forward(*x, (*x, *x)).unwrap());
        }
        backend.synchronize().unwrap();
        let launches = fake.launches();
        fake.forget_launches();
        assert_eq!(launches.len(), calls.len());
        let params: Vec<_> = launches.iter().map(block).collect();
        let scoring = |call: usize| params[call].scoring;
        assert_eq!(
            (scoring(0).window_right, scoring(1).window_right),
            (1 << 30, 0)
        );
        assert_eq!(scoring(2).window_left, 3);
        assert_eq!((scoring(0).scale, scoring(3).scale), (0.125, 0.5));
        assert_eq!((scoring(0).softcap, scoring(4).softcap), (0.0, 20.0));
        assert_eq!((params[5].lse, params[0].lse == 0), (0, false));
        let lists: [(u64, &[f32]); 4] = [
            (scoring(6).slopes, &[0.5, 0.25]),
            (scoring(7).slopes, &[0.5, 0.125]),
            (scoring(8).slopes, &[0.5, 0.25, 0.5, 0.25]),
            (scoring(9).sinks, &[0.5, 0.25]),
        ];
        for (address, expected) in lists {
            assert_eq!(on_device::<f32>(address, expected.len()), expected);
        }
        assert_eq!((scoring(7).slopes_batch, scoring(8).slopes_batch), (0, 2));
        assert_eq!((params[0].q.row, params[10].q.row), (128, 64));
        assert_eq!(params[11].sequences.query_len, 100);
    }
    drop(calls);
    drop((backend, x, rows, other_layout));
    fake.assert_clean();
}

#[test]
fn a_cache_that_grows_is_planned_few_times() {
    let fake = FakeDriver::open();
    let (backend, q) = ones(&fake, [1, 1, 2, 64]);
    let cache = ones_on(&backend, [1, 2100, 2, 64]);
    let mut plans = Vec::new();
    for keys in 1024..2024 {
        let part = cache.rows(0..keys).unwrap();
        let output = Attention::new().forward(&q, (&part, &part)).unwrap();
        let problem = *output.plan.problem();
        if !plans.contains(&problem) {
            plans.push(problem);
        }
    }
    backend.synchronize().unwrap();
    assert!(plans.len() <= 16, "{}", plans.len());
    // The images of a plan are loaded once, regardless of the length.
    assert!((1..=2).contains(&fake.calls_of("cuModuleLoadDataEx")));
    let launches = fake.launches();
    assert_eq!(launches.len(), 1000);
    for (launch, keys) in launches.iter().zip(1024..) {
        assert_eq!(block(launch).sequences.key_len, keys);
    }
    drop((backend, q, cache));
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
                    let scale = ((thread + call) % 80 + 1) as f32;
                    let attention = Attention::new().scale(scale).alibi_slopes(&[scale, 1.0]);
                    let output = attention.forward(x, (x, x)).unwrap();
                    assert_eq!(output.plan.problem().scoring().scale, Some(scale));
                }
            });
        }
    });
    backend.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), THREADS * CALLS);
    // Whoever came first loaded a kernel for all.
    let kernels: BTreeSet<_> = launches.iter().map(|launch| launch.name()).collect();
    assert_eq!(fake.calls_of("cuModuleLoadDataEx"), kernels.len() as u64);
    drop((backend, x));
    fake.assert_clean();
}

#[test]
fn a_call_within_a_capture_is_refused_and_breaks_nothing() {
    let fake = FakeDriver::open();
    let (backend, x) = ones(&fake, [2, 30, 2, 64]);
    let attention = Attention::new().mask(Mask::causal());
    attention.forward(&x, (&x, &x)).unwrap();
    let stream = backend.gpu().unwrap().stream();
    let refused = Graph::capture::<Error>(stream, |_| attention.forward(&x, (&x, &x)).map(drop));
    assert!(
        matches!(&refused, Err(Error::Driver(DriverError::Capturing { .. }))),
        "{refused:?}"
    );
    attention.forward(&x, (&x, &x)).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 2);
    drop((refused, backend, x));
    fake.assert_clean();
}

/// An output that starts anywhere gets a kernel that writes there, as inputs get one that reads there.
#[test]
fn an_output_of_ones_own_need_not_be_aligned() {
    let fake = FakeDriver::open();
    {
        let (backend, q) = ones(&fake, [1, 64, 2, 64]);
        let stream = backend.gpu().unwrap().stream().clone();
        let memory = Arc::new(DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap());
        for start in [0, 2] {
            // SAFETY: 8192 elements from there lie in `memory`, which the owner keeps alive.
            let buffer = unsafe {
                let pointer = memory.pointer() + start;
                DeviceBuffer::<f16>::borrow(&stream, pointer, 8192, memory.clone())
            };
            let layout = Layout::bshd([1, 64, 2, 64]);
            let mut out = Tensor::from_device(&backend, buffer.unwrap(), layout).unwrap();
            let attention = Attention::new();
            let plan = attention
                .forward_into(&q, (&q, &q), &mut out, None)
                .unwrap();
            assert_eq!(plan.needs_alignment(), start == 0, "{plan}");
        }
        backend.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 2);
    }
    fake.assert_clean();
}
