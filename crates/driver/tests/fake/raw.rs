//! The layer for other people's streams: launches, default streams and identities.

use std::sync::Arc;
use std::thread;

use bytemuck::{Pod, Zeroable};
use warptile_driver::sys::CUstream;
use warptile_driver::{
    Context, DeviceBuffer, DriverError, Graph, Kernel, KernelOptions, LaunchConfig, Module,
    PinnedBuffer, Stream,
};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::foreign::{Foreign, MODES};
use crate::{Increment, PTX, context, driver, increment, open};

const PLAIN: LaunchConfig = LaunchConfig::new([1, 1, 1], [128, 1, 1]);

#[test]
fn a_raw_launch_is_one_call() {
    let (fake, context, stream) = open();
    let module = Module::load(&context, PTX).unwrap();
    let options = KernelOptions::new().dynamic_shared_bytes(60_000);
    let kernel = Kernel::<Increment>::load(&module, "increment", &options).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let _current = context.enter().unwrap();
    let configs = [
        (PLAIN, "cuLaunchKernel"),
        (PLAIN.cooperative(), "cuLaunchCooperativeKernel"),
        (PLAIN.cluster([1, 1, 1]), "cuLaunchKernelEx"),
        (PLAIN.programmatic().cooperative(), "cuLaunchKernelEx"),
    ];
    for (config, symbol) in configs {
        let before = (fake.calls(), fake.calls_of(symbol));
        // SAFETY: the block is the kernel's, the context current, and the buffer the stream's.
        unsafe { kernel.launch_raw(stream.raw(), &config, &Increment::of(&buffer)) }.unwrap();
        assert_eq!(fake.calls() - before.0, 1, "{symbol}");
        assert_eq!(fake.calls_of(symbol) - before.1, 1, "{symbol}");
    }
    assert_eq!(buffer.to_vec().unwrap(), [4; 8]);
    let programmatic: Vec<u32> = fake.launches().iter().map(|l| l.programmatic).collect();
    assert_eq!(programmatic, [0, 0, 0, 1]);

    let before = fake.calls();
    let too_much = PLAIN.dynamic_shared_bytes(60_001);
    // SAFETY: never launched.
    let refused = unsafe { kernel.launch_raw(stream.raw(), &too_much, &Increment::of(&buffer)) };
    assert!(matches!(refused, Err(DriverError::Launch { .. })));
    assert_eq!(fake.calls(), before);
    fake.fail(Some("cuLaunchKernel"), 1, 701);
    // SAFETY: as above.
    let failed = unsafe { kernel.launch_raw(stream.raw(), &PLAIN, &Increment::of(&buffer)) };
    let text = failed.unwrap_err().to_string();
    assert!(text.contains("launching kernel increment"), "{text}");
}

#[test]
fn anybody_may_capture_a_raw_launch() {
    for mode in MODES {
        let (fake, context, stream) = open();
        let foreign = Foreign::new(&context);
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
        stream.synchronize().unwrap();
        foreign.begin(mode);
        let current = context.enter().unwrap();
        // SAFETY: kernel and buffer outlive the graph.
        unsafe { kernel.launch_raw(foreign.raw, &PLAIN, &Increment::of(&buffer)) }.unwrap();
        drop(current);
        let graph = foreign.end().expect("the capture is whole");
        graph.launch(&foreign);
        graph.launch(&foreign);
        foreign.borrowed().synchronize().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2; 8]);
        // Nothing was kept behind the caller's back.
        drop((graph, foreign, kernel, buffer, stream, context));
        fake.assert_clean();
    }
}

/// The edges of graphs that say so came with 12.3.
#[test]
fn a_launch_that_may_begin_early_is_captured_in_order_by_older_drivers() {
    const EARLY: LaunchConfig = PLAIN.programmatic();
    for (version, early) in [(12_020, 0), (12_030, 1)] {
        for mode in MODES {
            let fake = FakeDriver::open();
            fake.set_version(version);
            let context = context(&fake).unwrap();
            let stream = Stream::new(&context).unwrap();
            let foreign = Foreign::new(&context);
            let kernel = increment(&context).unwrap();
            let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
            stream.synchronize().unwrap();
            let block = Increment::of(&buffer);
            let _current = context.enter().unwrap();
            // SAFETY: the block is the kernel's, and kernel and buffer outlive both graphs.
            let raw = |on| unsafe { kernel.launch_raw(on, &EARLY, &block) }.unwrap();
            // SAFETY: as above.
            let safe = |on: &Stream| unsafe { kernel.launch(on, &EARLY, &block) };
            foreign.begin(mode);
            raw(foreign.raw);
            safe(&foreign.borrowed()).unwrap();
            let theirs = foreign.end().expect("the capture is whole");
            let ours = Graph::capture(&stream, safe).unwrap();
            // Outside of captures such a launch begins early with any driver.
            raw(stream.raw());
            safe(&stream).unwrap();
            ours.launch(&stream).unwrap();
            theirs.launch(&foreign);
            foreign.borrowed().synchronize().unwrap();
            stream.synchronize().unwrap();
            let launches = fake.launches();
            let of = |on: CUstream| -> Vec<u32> {
                let on = launches.iter().filter(|one| one.stream == on.0.addr());
                on.map(|one| one.programmatic).collect()
            };
            assert_eq!(of(foreign.raw), [early; 2], "{version}, {mode:?}");
            let mut on_ours = of(stream.raw());
            on_ours.sort_unstable();
            let mut expected = [1, 1, early];
            expected.sort_unstable();
            assert_eq!(on_ours, expected, "{version}, {mode:?}");
            let asked = fake.calls_of("cuStreamIsCapturing");
            // Each raw launch asks, with the older driver alone.
            assert_eq!(asked, if version < 12_030 { 2 } else { 0 });
            assert_eq!(fake.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn a_threads_default_stream_is_refused_where_it_could_leave_the_thread() {
    let (_fake, context, _stream) = open();
    // SAFETY: refused.
    let error = unsafe { Stream::borrow(&context, CUstream::PER_THREAD, Arc::new(())) };
    let error = error.unwrap_err();
    assert!(matches!(error, DriverError::PerThreadStream), "{error}");
    let text = error.to_string();
    assert!(text.contains("CU_STREAM_PER_THREAD (handle 0x2)"), "{text}");
    assert!(text.contains("launch_raw"), "{text}");
}

#[test]
fn a_raw_launch_takes_the_default_stream_of_its_thread() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    stream.synchronize().unwrap();
    let launch = || {
        let _current = context.enter().unwrap();
        // SAFETY: the buffer outlives the launch.
        unsafe { kernel.launch_raw(CUstream::PER_THREAD, &PLAIN, &Increment::of(&buffer)) }
            .unwrap();
    };
    launch();
    thread::scope(|scope| scope.spawn(launch).join().unwrap());
    context.synchronize().unwrap();
    let streams: Vec<usize> = fake.launches().iter().map(|launch| launch.stream).collect();
    assert_eq!(streams.len(), 2);
    assert_ne!(streams[0], streams[1]);
    drop((kernel, buffer, stream, context));
    fake.assert_clean();
}

#[test]
fn null_and_legacy_are_borrowed_as_one_stream() {
    let (fake, context, stream) = open();
    let borrow = |raw| {
        // SAFETY: the default stream lives as long as the context.
        unsafe { Stream::borrow(&context, raw, Arc::new(())) }.unwrap()
    };
    let (null, legacy) = (borrow(CUstream::NULL), borrow(CUstream::LEGACY));
    assert!(null.is_same(&legacy) && null == legacy);
    assert!(!null.is_same(&stream));
    let buffer = DeviceBuffer::from_slice(&null, &[3_u32; 8]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [3; 8]);
    drop((buffer, null, legacy, stream, context));
    fake.assert_clean();
}

#[test]
fn streams_and_buffers_tell_their_context() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let driver = driver(&fake).unwrap();
    let [first, second] = [0, 1].map(|at| Context::new(&driver.device(at).unwrap()).unwrap());
    let default_of = |context: &Context| {
        // SAFETY: as above.
        unsafe { Stream::borrow(context, CUstream::NULL, Arc::new(())) }.unwrap()
    };
    // One handle, two contexts: two streams.
    let (one, other) = (default_of(&first), default_of(&second));
    assert_eq!(one.raw(), other.raw());
    assert!(!one.is_same(&other));
    let mut buffer = DeviceBuffer::<u32>::uninit(&one, 4).unwrap();
    assert!(buffer.context().is_same(&first));
    assert!(!buffer.as_slice().context().is_same(&second));
    assert!(buffer.as_slice_mut().context() == &first);
}

#[test]
fn pinned_memory_is_aligned_or_refused() {
    /// A type with a larger alignment than a page.
    #[derive(Clone, Copy)]
    #[repr(C, align(65536))]
    struct Wide([u8; 65536]);
    // SAFETY: bytes, all of them, without padding.
    unsafe impl Zeroable for Wide {}
    // SAFETY: as above.
    unsafe impl Pod for Wide {}

    let (fake, context, _stream) = open();
    let mut refused = 0;
    for _ in 0..8 {
        match PinnedBuffer::<Wide>::zeroed(&context, 1) {
            Ok(buffer) => assert!(std::ptr::from_ref(&buffer[0]).is_aligned()),
            Err(error) => {
                assert!(matches!(error, DriverError::Alignment { .. }), "{error}");
                assert!(error.to_string().contains("65536"), "{error}");
                refused += 1;
            }
        }
        // One page further, so that chance does not align all.
        PinnedBuffer::<u8>::zeroed(&context, 4096).unwrap();
    }
    assert!(refused > 0, "chance aligned every allocation");
    assert_eq!(fake.live(Kind::PinnedMemory), 0);
}
