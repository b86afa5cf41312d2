//! Padding masks in three steps: what each kernel is given.

use warptile::gpu::{Bindings, Gpu, Prepared, Session};
use warptile::half::f16;
use warptile::kernels::abi::KeyRuns;
use warptile::plan::{Choice, LaunchShape, Scratch};
use warptile::spec::{Backward, Call, Operand, Scoring};
use warptile::{ElementType, Layout, Mask};
use warptile_driver::{DeviceBuffer, Stream};
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

use crate::operations::{block as block_of, calls_of};
use crate::{Buffers, block, gpu};

/// As encoders have it, with an option that the images that hide keys alike from all queries do not take.
fn call() -> Call {
    let q = Layout::bshd([32, 512, 12, 64]);
    let shown = Layout::new([32, 1, 1, 512], [512, 0, 0, 1]);
    Call::builder(&q, &q, &q, ElementType::F16)
        .scoring(Scoring::new().softcap(30.0))
        .layout(Operand::KeyMask, shown)
        .build()
        .unwrap()
}

fn prepared(gpu: &Gpu, call: &Call) -> Prepared {
    gpu.prepare(call.problem(), &Choice::Best).unwrap()
}

fn launches(fake: &FakeDriver, call: &Call) -> (Vec<FakeLaunch>, Vec<LaunchShape>) {
    let gpu = gpu(fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let mut buffers = Buffers::new(&stream, call);
    let shown = DeviceBuffer::<u8>::zeroed(&stream, 32 * 512).unwrap();
    let prepared = prepared(&gpu, call);
    let bindings: Bindings<'_> = buffers.bindings().with(Operand::KeyMask, shown.as_slice());
    prepared.launch(&stream, call, &bindings).unwrap();
    stream.synchronize().unwrap();
    let steps = prepared.plan().steps().iter();
    let shapes = steps.map(|step| step.shape(call).unwrap()).collect();
    (fake.launches(), shapes)
}

#[test]
fn each_kernel_has_its_sequences() {
    let fake = FakeDriver::open();
    let (launches, shapes) = launches(&fake, &call());
    let names: Vec<_> = launches.iter().map(FakeLaunch::name).collect();
    assert_eq!(names[0], "warptile_runs_w16_f32");
    assert!(names[1].starts_with("warptile_wgmma_d64_") && !names[1].ends_with("_tensors"));
    assert!(names[2].starts_with("warptile_wgmma_d64_") && names[2].ends_with("_tensors"));
    let first: KeyRuns = block_of(&launches[0]);
    let [of_runs, of_others] = [&launches[1], &launches[2]].map(block);
    assert_eq!(
        (first.batch, first.query_len, first.key_len),
        (32, 512, 512)
    );
    assert_eq!((first.mask_batch, first.mask_key), (512, 1));
    assert_eq!((launches[0].grid, launches[0].block[0]), ([1, 1, 1], 512));
    // Counters are set to what makes the draw of each CTA its last one.
    for (left, shape) in [(first.no_runs, shapes[1]), (first.no_others, shapes[2])] {
        assert!(shape.draws_tiles && shape.tiles > shape.grid);
        assert_eq!(left, shape.tiles - shape.grid);
    }
    let counters = [of_runs.work.counter, of_others.work.counter];
    assert_eq!(counters, [first.run_counter, first.other_counter]);
    // The first counter of a workspace is that of launches that find 0 there.
    assert_eq!(counters.map(|at| at % 256), [64, 128]);
    let lists = &of_runs.sequences;
    assert_eq!(
        [lists.key_lengths, lists.key_offsets, lists.query_lengths],
        [first.key_lengths, 0, 0]
    );
    assert_eq!(of_runs.scoring.key_mask, 0);
    let lists = &of_others.sequences;
    assert_eq!(
        [lists.query_lengths, lists.query_offsets, lists.key_lengths],
        [first.other_queries, 0, 0]
    );
    assert_eq!(of_others.scoring.key_mask, first.key_mask);
}

#[test]
fn a_diagonal_stays_where_it_is() {
    for (mask, right) in [(Mask::causal(), 0), (Mask::window(100, 3), 3)] {
        let fake = FakeDriver::open();
        let q = Layout::bshd([32, 400, 12, 64]);
        let k = Layout::bshd([32, 512, 12, 64]);
        let call = Call::builder(&q, &k, &k, ElementType::F16)
            .scoring(Scoring::new().mask(mask).softcap(30.0))
            .layout(
                Operand::KeyMask,
                Layout::new([32, 1, 1, 512], [512, 0, 0, 1]),
            )
            .build()
            .unwrap();
        let (launches, _) = launches(&fake, &call);
        let [of_runs, of_others] = [&launches[1], &launches[2]].map(|launch| block(launch).scoring);
        assert_eq!(
            (of_others.align_top_left, of_others.window_right),
            (0, right)
        );
        assert_eq!(
            (of_runs.align_top_left, of_runs.window_right),
            (1, right + 112)
        );
    }
}

/// With the workspace of any plan, in three driver calls besides those that encode tensor maps; without one, none.
#[test]
fn a_raw_launch_needs_a_workspace_and_nothing_else() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let call = call();
    let buffers = Buffers::new(&stream, &call);
    let shown = DeviceBuffer::<u8>::zeroed(&stream, 32 * 512).unwrap();
    let mut at = buffers.addresses();
    at[Operand::KeyMask] = shown.pointer();
    let prepared = prepared(&gpu, &call);
    // SAFETY: the stand-in runs no kernel; the addresses it is given are those of the buffers.
    let refused = calls_of(&fake, &gpu, || unsafe {
        prepared.launch_raw(stream.raw(), &call, &at, 0)
    });
    assert!(refused.unwrap_err().contains("workspace"));
    let session = Session::new(&gpu, stream.raw()).unwrap();
    // SAFETY: likewise.
    let calls = calls_of(&fake, &gpu, || unsafe {
        session.launch(&prepared, &call, &at)
    });
    // Four maps for each of two kernels.
    assert_eq!(calls, Ok(3 + 2 * 4));
    let bytes: Scratch = prepared.scratch();
    assert_eq!(bytes.bytes, 256 + 4 * 1024 + 2 * 4 * 32);
}

/// Without queries there is nothing to look for.
#[test]
fn no_queries_launch_nothing() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let prepared = prepared(&gpu, &call());
    let q = Layout::bshd([32, 0, 12, 64]);
    let k = Layout::bshd([32, 512, 12, 64]);
    let call = Call::builder(&q, &k, &k, ElementType::F16)
        .layout(
            Operand::KeyMask,
            Layout::new([32, 1, 1, 512], [512, 0, 0, 1]),
        )
        .build()
        .unwrap();
    for step in prepared.plan().steps() {
        assert_eq!(step.shape(&call).unwrap().grid, 0, "{}", step.image.name);
    }
}

/// A call's steps find in the stream's workspace what the step before left there. So nothing that leaves something there itself may come
/// between, not even a single launch: `verify --backward` had gradients of no tensor among its problems, and others failed by them.
#[test]
fn another_threads_launch_does_not_come_between_steps() {
    const CALLS: usize = 300;
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let call = call();
    let steps = prepared(&gpu, &call);
    let layout = Layout::bshd([1, 100, 2, 64]);
    let small = Call::builder(&layout, &layout, &layout, ElementType::F16);
    let nothing = Operand::GRADIENTS.into_iter().fold(
        Backward::builder(small.build().unwrap()),
        |backward, gradient| backward.want(gradient, false),
    );
    let nothing = nothing.build().unwrap();
    let single = gpu.prepare_for(&nothing, &Choice::Best).unwrap();
    assert_eq!(
        (steps.plan().steps().len(), single.plan().steps().len()),
        (3, 1)
    );
    let mut buffers = Buffers::new(&stream, &call);
    let shown = DeviceBuffer::<u8>::zeroed(&stream, 32 * 512).unwrap();
    let rows = DeviceBuffer::<f16>::zeroed(&stream, layout.reach()).unwrap();
    let lse = DeviceBuffer::<f32>::zeroed(&stream, 200).unwrap();
    let tensors = [
        Operand::Q,
        Operand::K,
        Operand::V,
        Operand::Out,
        Operand::DOut,
    ];
    let of_single = { tensors.into_iter() }
        .fold(Bindings::default(), |all, of| all.with(of, rows.as_slice()))
        .with(Operand::Lse, lse.as_slice());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..CALLS {
                let bindings = buffers.bindings().with(Operand::KeyMask, shown.as_slice());
                steps.launch(&stream, &call, &bindings).unwrap();
            }
        });
        while !other.is_finished() {
            single.launch(&stream, &nothing, &of_single).unwrap();
        }
    });
    stream.synchronize().unwrap();
    let launches = fake.launches();
    assert!(launches.len() > 3 * CALLS);
    let mut left = 0;
    for launch in &launches {
        match launch.name() {
            name if name.contains("prepass") => assert_eq!(left, 0, "between two steps"),
            name if name.contains("runs") => left = 2,
            _ => left -= 1,
        }
    }
}
