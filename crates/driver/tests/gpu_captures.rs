//! Captures of others, and concurrent work, on a real driver. In an executable of their own, and one at a time: a capture in
//! global mode forbids every other thread of the process to allocate.

#[path = "common/device.rs"]
mod device;
#[path = "common/kernel.rs"]
mod kernel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warptile_driver::sys::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUgraph, CUgraphExec, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};
use warptile_driver::{
    Context, DeviceBuffer, Driver, DriverError, Event, Graph, LaunchConfig, PinnedBuffer, Result,
    Scratch, Staging, Stream,
};

use device::first_context;
use kernel::{Increment, increment, launch};

/// Held by the one test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::GLOBAL,
    CUstreamCaptureMode::THREAD_LOCAL,
    CUstreamCaptureMode::RELAXED,
];

/// Captures what `work` does on a stream as somebody else would, and launches it `times`.
fn captured_by_others(
    context: &Context,
    mode: CUstreamCaptureMode,
    times: usize,
    work: impl FnOnce(&Stream),
) {
    let owned = Arc::new(Stream::new(context).unwrap());
    // SAFETY: the owner keeps the stream.
    let stream = unsafe { Stream::borrow(context, owned.raw(), owned.clone()) }.unwrap();
    let api = context.driver().api();
    let _current = context.enter().unwrap();
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    // SAFETY: all outlive the calls, and the handles are the driver's; the captured work uses what
    // is kept.
    unsafe {
        assert_eq!(
            (api.stream_begin_capture)(owned.raw(), mode),
            CUresult::SUCCESS
        );
        work(&stream);
        assert_eq!(
            (api.stream_end_capture)(owned.raw(), &mut graph),
            CUresult::SUCCESS,
            "{mode:?}"
        );
        assert_eq!(
            (api.graph_instantiate_with_flags)(&mut exec, graph, 0),
            CUresult::SUCCESS
        );
        for _ in 0..times {
            assert_eq!((api.graph_launch)(exec, owned.raw()), CUresult::SUCCESS);
        }
        stream.synchronize().unwrap();
        (api.graph_exec_destroy)(exec);
        (api.graph_destroy)(graph);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn nothing_done_on_the_side_disturbs_somebody_elses_capture() {
    let _alone = alone();
    let context = first_context();
    let side = Stream::new(&context).unwrap();
    let staging = Staging::new(&context);
    for mode in MODES {
        let doomed = DeviceBuffer::<u32>::zeroed(&side, 1000).unwrap();
        captured_by_others(&context, mode, 2, |stream| {
            let id = stream.capture().unwrap().expect("a capture is under way");
            assert_eq!(stream.capture().unwrap(), Some(id));
            let address = stream
                .attached_in(id, || context.permanent_zeroed(4096))
                .unwrap();
            drop(Scratch::zeroed(&context, 4096).unwrap());
            drop(staging.upload(&side, &[1_u32; 100]).unwrap());
            let array = staging.upload(stream, &[7_u32; 100]).unwrap();
            assert!(*address != 0 && array.pointer() != 0);
            drop(doomed);
            assert!(stream.is_capturing().unwrap());
        });
    }
    side.synchronize().unwrap();
    context.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn waits_and_graphs_of_ours_break_no_capture_of_somebody_else() {
    let _alone = alone();
    let context = first_context();
    let side = Stream::new(&context).unwrap();
    let work = || -> Result<()> {
        let mut buffer = DeviceBuffer::<u32>::from_slice(&side, &[1; 1000])?;
        let _done = side.query()?;
        side.synchronize()?;
        let (start, end) = (Event::timed(&context)?, Event::timed(&context)?);
        side.record(&start)?;
        side.record(&end)?;
        let _happened = end.query()?;
        end.synchronize()?;
        end.elapsed_since(&start)?;
        let pinned = || PinnedBuffer::zeroed(&context, 1000);
        buffer.as_slice().copy_to_pinned(pinned()?)?.wait()?;
        drop(buffer.as_slice().copy_to_pinned(pinned()?)?);
        let graph = Graph::capture(&side, |_| buffer.as_slice_mut().fill_bytes(0))?;
        graph.launch(&side)?;
        assert_eq!(buffer.to_vec()?, [0; 1000]);
        drop(graph);
        context.memory_info()?;
        drop(increment(&context));
        side.synchronize()
    };
    for mode in MODES {
        captured_by_others(&context, mode, 1, |_| {
            work().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| work().unwrap());
            });
        });
    }
    context.synchronize().unwrap();
}

/// Opens a context, and leaves it with kernels under way on several streams.
fn come_and_go(driver: &Driver) -> Result<()> {
    const LEN: usize = 1 << 24;
    let context = Context::new(&driver.device(0)?)?;
    let kernel = increment(&context);
    for _ in 0..2 {
        let stream = Stream::new(&context)?;
        stream.attached::<Scratch, DriverError>(|| Scratch::zeroed(&context, 4096))?;
        let buffer = DeviceBuffer::<u32>::zeroed(&stream, LEN)?;
        for _ in 0..3 {
            stream.synchronize()?;
            launch(&kernel, &stream, &buffer);
        }
        for _ in 0..200 {
            launch(&kernel, &stream, &buffer);
        }
        let graph = Graph::capture(&stream, |stream| {
            stream.keep_for_graph(buffer.owner())?;
            launch(&kernel, stream, &buffer);
            Ok::<_, DriverError>(())
        })?;
        graph.launch(&stream)?;
    }
    // A stream of the last kernel, so that its end is unfinished when the module goes.
    let stream = Stream::new(&context)?;
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, LEN)?;
    for _ in 0..200 {
        launch(&kernel, &stream, &buffer);
    }
    drop((buffer, stream, kernel));
    Ok(())
}

/// Somebody else, who has the primary context without this crate, captures meanwhile.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_end_of_a_context_breaks_no_capture() {
    let _alone = alone();
    let driver = Driver::load().unwrap();
    let (api, device) = (driver.api(), driver.device(0).unwrap().raw());
    let (mut raw, mut stream, mut graph) = (CUcontext::NULL, CUstream::NULL, CUgraph::NULL);
    let expect = |code, what: &str| assert_eq!(code, CUresult::SUCCESS, "{what}");
    // SAFETY: all outlive the calls, and the handles are the driver's.
    unsafe {
        let retain = api.device_primary_ctx_retain;
        expect(retain(&mut raw, device), "retaining the context");
        expect((api.ctx_push_current)(raw), "entering the context");
        let create = api.stream_create_with_priority;
        let created = create(&mut stream, CU_STREAM_NON_BLOCKING, 0);
        expect(created, "making a stream");
        for mode in MODES {
            for elsewhere in [false, true] {
                expect((api.stream_begin_capture)(stream, mode), "capturing");
                match elsewhere {
                    false => come_and_go(&driver).unwrap(),
                    true => std::thread::scope(|scope| {
                        scope.spawn(|| come_and_go(&driver).unwrap());
                    }),
                }
                let ended = (api.stream_end_capture)(stream, &mut graph);
                assert_eq!(ended, CUresult::SUCCESS, "{mode:?}, {elsewhere}");
                expect((api.graph_destroy)(graph), "the captured graph");
            }
        }
        // No error of a kernel whose module went too early has come to light.
        expect((api.ctx_synchronize)(), "waiting for the context");
        expect((api.stream_destroy)(stream), "the stream");
        expect((api.ctx_pop_current)(&mut raw), "leaving the context");
        let release = api.device_primary_ctx_release;
        expect(release(device), "releasing the context");
    }
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap();
    launch(&increment(&context), &stream, &buffer);
    assert_eq!(buffer.to_vec().unwrap(), [1; 1000]);
}

/// Somebody else's graph keeps a value as long as it, what it was instantiated as, or a launch of that is there.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_graph_of_somebody_else_keeps_a_value_until_its_last_launch_has_ended() {
    const LEN: usize = 1 << 26;
    let _alone = alone();
    let context = first_context();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context);
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, LEN).unwrap();
    let params = Increment {
        address: buffer.pointer(),
        count: LEN as u64,
    };
    let config = LaunchConfig::new([(LEN / 128) as u32, 1, 1], [128, 1, 1]);
    stream.synchronize().unwrap();
    let api = context.driver().api();
    let _current = context.enter().unwrap();
    let expect = |code, what: &str| assert_eq!(code, CUresult::SUCCESS, "{what}");
    let mut seen_running = 0;
    for mode in MODES {
        let value = Arc::new(());
        let kept = || Arc::strong_count(&value) == 2;
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        let (mut status, mut id) = (CUstreamCaptureStatus::NONE, 0);
        let (mut dependencies, mut count) = (std::ptr::null(), 0);
        // SAFETY: all outlive the calls, and the handles are the driver's; the stream is captured behind this crate's back, and
        // nothing else of it is used meanwhile.
        unsafe {
            expect((api.stream_begin_capture)(stream.raw(), mode), "beginning");
            let asked = (api.stream_get_capture_info)(
                stream.raw(),
                &mut status,
                &mut id,
                &mut graph,
                &mut dependencies,
                &mut count,
            );
            expect(asked, "asking");
            context
                .keep_with_graph(graph, Box::new(value.clone()))
                .unwrap();
            for _ in 0..100 {
                kernel.launch_raw(stream.raw(), &config, &params).unwrap();
            }
            expect((api.stream_end_capture)(stream.raw(), &mut graph), "ending");
            let instantiate = api.graph_instantiate_with_flags;
            expect(instantiate(&mut exec, graph, 0), "instantiating");
            expect((api.graph_destroy)(graph), "destroying");
            assert!(kept(), "{mode:?}");
            expect((api.graph_launch)(exec, stream.raw()), "launching");
            expect((api.graph_exec_destroy)(exec), "destroying it ready");
            // If the launch still runs after the look at the value, it ran at the look.
            let looked = kept();
            if (api.stream_query)(stream.raw()) == CUresult::ERROR_NOT_READY {
                assert!(looked, "{mode:?}: let go under a launch");
                seen_running += 1;
            }
        }
        stream.synchronize().unwrap();
        let start = std::time::Instant::now();
        while kept() {
            assert!(start.elapsed().as_secs() < 5, "{mode:?}: never let go");
            std::thread::yield_now();
        }
        println!("{mode:?}: let go {:?} after the end", start.elapsed());
    }
    println!("looked under {seen_running} launches");
    assert_eq!(buffer.slice(0..3).unwrap().to_vec().unwrap(), [300; 3]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn raw_launches_and_safe_ones_are_captured_by_others() {
    let _alone = alone();
    let context = first_context();
    let home = Stream::new(&context).unwrap();
    let config = LaunchConfig::new([8, 1, 1], [128, 1, 1]);
    for mode in MODES {
        let buffer = DeviceBuffer::<u32>::zeroed(&home, 1000).unwrap();
        home.synchronize().unwrap();
        let kernel = increment(&context);
        let params = Increment {
            address: buffer.pointer(),
            count: 1000,
        };
        captured_by_others(&context, mode, 3, |stream| {
            launch(&kernel, stream, &buffer);
            // SAFETY: the block is the kernel's, and kernel and buffer outlive the graph.
            unsafe { kernel.launch_raw(stream.raw(), &config, &params) }.unwrap();
        });
        assert_eq!(buffer.to_vec().unwrap(), [6; 1000]);
    }
    // The thread's default stream, and the legacy one.
    let buffer = DeviceBuffer::<u32>::zeroed(&home, 1000).unwrap();
    home.synchronize().unwrap();
    let kernel = increment(&context);
    let params = Increment {
        address: buffer.pointer(),
        count: 1000,
    };
    let current = context.enter().unwrap();
    for stream in [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD] {
        // SAFETY: as above.
        unsafe { kernel.launch_raw(stream, &config.programmatic(), &params) }.unwrap();
        context.synchronize().unwrap();
    }
    drop(current);
    assert_eq!(buffer.to_vec().unwrap(), [3; 1000]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_graph_is_ordered_with_the_homes_of_its_buffers() {
    let _alone = alone();
    let context = first_context();
    let [stream, home, other] = [(); 3].map(|()| Stream::new(&context).unwrap());
    let kernel = increment(&context);
    let mut buffer = DeviceBuffer::<u32>::zeroed(&home, 1 << 22).unwrap();
    home.synchronize().unwrap();
    let mut dropped = Some(DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap());
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        drop(dropped.take());
        stream.keep_for_graph(buffer.owner())?;
        launch(&kernel, stream, &buffer);
        Ok(())
    })
    .unwrap();
    for round in 0..20 {
        buffer.as_slice_mut().fill_bytes(0).unwrap();
        graph.launch([&stream, &other][round % 2]).unwrap();
        graph.launch(&stream).unwrap();
        assert!(buffer.to_vec().unwrap().iter().all(|&value| value == 2));
    }
    drop((graph, buffer));
    context.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_default_stream_is_in_no_capture() {
    let _alone = alone();
    let context = first_context();
    let owner = Arc::new(());
    // SAFETY: the default stream lives as long as the context.
    let legacy = unsafe { Stream::borrow(&context, CUstream::LEGACY, owner) }.unwrap();
    assert_eq!(legacy.capture().unwrap(), None);
    let mut status = CUstreamCaptureStatus::ACTIVE;
    let _current = context.enter().unwrap();
    let is_capturing = context.driver().api().stream_is_capturing;
    // SAFETY: `status` outlives the call.
    let code = unsafe { is_capturing(CUstream::PER_THREAD, &mut status) };
    assert_eq!(
        (code, status),
        (CUresult::SUCCESS, CUstreamCaptureStatus::NONE)
    );
}
