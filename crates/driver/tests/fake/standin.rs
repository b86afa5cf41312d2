//! The stand-in itself: that it does what was seen of a real driver, or is documented of it. A test
//! that relies on it is only as good as this.

use std::thread;

use warptile_driver::sys::{
    CUcontext, CUdeviceptr, CUpointerAttribute, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, DriverApi,
};
use warptile_driver::{Context, DeviceBuffer, DriverError, Event, Graph, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::foreign::{Foreign, MODES};
use crate::{driver, increment, launch, open, open_two};

/// Status and id of the capture that a stream is in.
fn info(api: &DriverApi, stream: CUstream) -> (CUresult, CUstreamCaptureStatus, u64) {
    let (mut status, mut id) = (CUstreamCaptureStatus::NONE, 0);
    let null = std::ptr::null_mut();
    // SAFETY: the results outlive the call, and the others are optional.
    let code = unsafe {
        (api.stream_get_capture_info)(
            stream,
            &mut status,
            &mut id,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            null,
        )
    };
    (code, status, id)
}

#[test]
fn the_id_of_a_stream_must_not_be_asked_for_during_a_capture() {
    let (_fake, context, _stream) = open();
    let api = context.driver().api();
    let get_id = api.stream_get_id;
    let foreign = Foreign::new(&context);
    let mut id = 0;
    // SAFETY: `id` outlives the calls.
    unsafe {
        assert_eq!(get_id(foreign.raw, &mut id), CUresult::SUCCESS);
        for mode in MODES {
            foreign.begin(mode);
            let code = get_id(foreign.raw, &mut id);
            assert_eq!(code, CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
            let (_, status, _) = info(api, foreign.raw);
            assert_eq!(status, CUstreamCaptureStatus::INVALIDATED);
            let ended = foreign.end().err();
            assert_eq!(ended, Some(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED));
        }
    }
}

#[test]
fn null_and_legacy_are_one_stream_and_the_threads_default_stream_is_each_threads_own() {
    let (fake, context, _stream) = open();
    let get_id = context.driver().api().stream_get_id;
    let ids = || {
        let _current = context.enter().unwrap();
        [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD].map(|stream| {
            let mut id = 0;
            // SAFETY: `id` outlives the call.
            assert_eq!(unsafe { get_id(stream, &mut id) }, CUresult::SUCCESS);
            id
        })
    };
    let here = ids();
    let there = thread::scope(|scope| scope.spawn(ids).join().unwrap());
    assert_eq!(here, ids());
    assert_eq!(here[0], here[1]);
    assert_eq!(here[0], there[0]);
    assert!(here[2] != there[2] && here[2] != here[0]);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn a_plain_allocation_breaks_the_captures_that_the_thread_minds() {
    let (_fake, context, _stream) = open();
    let foreign = Foreign::new(&context);
    let api = context.driver().api();
    let allocate = |mind: CUstreamCaptureMode| {
        let _current = context.enter().unwrap();
        let (mut before, mut pointer): (_, CUdeviceptr) = (mind, 0);
        // SAFETY: both outlive the calls; the memory is freed.
        unsafe {
            (api.thread_exchange_stream_capture_mode)(&mut before);
            let code = (api.mem_alloc)(&mut pointer, 64);
            if code == CUresult::SUCCESS {
                (api.mem_free)(pointer);
            }
            (api.thread_exchange_stream_capture_mode)(&mut before);
            assert_eq!(before, mind);
            code == CUresult::SUCCESS
        }
    };
    let [global, local, relaxed] = MODES;
    for capture in MODES {
        for mind in MODES {
            for elsewhere in [false, true] {
                foreign.begin(capture);
                let allowed = match elsewhere {
                    false => allocate(mind),
                    true => thread::scope(|scope| {
                        let thread = scope.spawn(|| allocate(mind));
                        thread.join().unwrap()
                    }),
                };
                let expected = match (capture, mind, elsewhere) {
                    (_, mind, _) if mind == relaxed => true,
                    (capture, _, false) => capture == relaxed,
                    (capture, mind, true) => !(capture == global && mind == global),
                };
                assert_eq!(allowed, expected, "{capture:?} {mind:?} {elsewhere}");
                assert_eq!(foreign.end().is_ok(), expected);
            }
        }
    }
    assert_ne!(local, relaxed);
}

#[test]
fn a_capture_is_isolated_joined_and_ended_where_it_began() {
    let (fake, context, stream) = open();
    let (foreign, other) = (Foreign::new(&context), Foreign::new(&context));
    let (borrowed, fork) = (foreign.borrowed(), other.borrowed());
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    stream.synchronize().unwrap();
    let ended = |foreign: &Foreign| foreign.end().err();

    // An event from outside.
    let outside = Event::new(&context).unwrap();
    stream.record(&outside).unwrap();
    foreign.begin(MODES[0]);
    let error = borrowed.wait(&outside).unwrap_err();
    assert_eq!(error.code(), Some(CUresult::ERROR_STREAM_CAPTURE_ISOLATION));
    assert_eq!(
        ended(&foreign),
        Some(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)
    );

    // A fork that does not come back.
    foreign.begin(MODES[0]);
    fork.wait_for(&borrowed).unwrap();
    launch(&kernel, &fork, &buffer).unwrap();
    assert_eq!(
        ended(&foreign),
        Some(CUresult::ERROR_STREAM_CAPTURE_UNJOINED)
    );

    // Two captures that meet.
    foreign.begin(MODES[0]);
    other.begin(MODES[0]);
    let error = fork.wait_for(&borrowed).unwrap_err();
    assert_eq!(error.code(), Some(CUresult::ERROR_STREAM_CAPTURE_MERGE));
    assert!(foreign.end().is_err() && other.end().is_err());

    // Another thread.
    foreign.begin(CUstreamCaptureMode::THREAD_LOCAL);
    let there = thread::scope(|scope| scope.spawn(|| ended(&foreign)).join().unwrap());
    assert_eq!(there, Some(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD));
    drop(foreign.end().expect("the capture is whole"));
    foreign.begin(CUstreamCaptureMode::RELAXED);
    thread::scope(|scope| scope.spawn(|| foreign.end().map(drop)).join().unwrap()).unwrap();

    // The legacy stream.
    let begin = context.driver().api().stream_begin_capture;
    let _current = context.enter().unwrap();
    // SAFETY: refused.
    let code = unsafe { begin(CUstream::LEGACY, MODES[0]) };
    assert_eq!(code, CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn launches_of_one_graph_follow_one_another_on_any_stream() {
    let (fake, context, stream) = open();
    let other = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    stream.synchronize().unwrap();
    let graph =
        Graph::capture::<DriverError>(&stream, |stream| launch(&kernel, stream, &buffer)).unwrap();
    for launch_on in [&stream, &other, &stream, &other] {
        graph.launch(launch_on).unwrap();
    }
    // Only the last stream is waited for.
    other.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 4);
}

#[test]
fn memory_of_another_device_needs_peer_access() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    fake.set_memory_pools(false);
    let driver = driver(&fake).unwrap();
    let contexts = [0, 1].map(|at| Context::new(&driver.device(at).unwrap()).unwrap());
    let streams = contexts
        .each_ref()
        .map(|context| Stream::new(context).unwrap());
    let kernel = increment(&contexts[0]).unwrap();
    let theirs = DeviceBuffer::<u32>::zeroed(&streams[1], 8).unwrap();
    streams[1].synchronize().unwrap();
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    launch(&kernel, &streams[0], &theirs).unwrap();
    streams[0].synchronize().unwrap();
    assert_eq!(theirs.to_vec().unwrap(), [1; 8]);
    assert_eq!(fake.violations(), Vec::<String>::new());
    // Access in the other direction was not opened.
    let ours = DeviceBuffer::<u32>::zeroed(&streams[0], 8).unwrap();
    streams[0].synchronize().unwrap();
    launch(&increment(&contexts[1]).unwrap(), &streams[1], &ours).unwrap();
    let error = streams[1].synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CUresult::ERROR_ILLEGAL_ADDRESS));
    assert!(fake.violations()[0].contains("another device"));
}

#[test]
fn peer_access_opens_the_pool() {
    for opened in [true, false] {
        let (fake, contexts, streams) = open_two();
        let kernel = increment(&contexts[0]).unwrap();
        let theirs = DeviceBuffer::<u32>::zeroed(&streams[1], 8).unwrap();
        streams[1].synchronize().unwrap();
        if opened {
            contexts[0].enable_peer_access(&contexts[1]).unwrap();
        }
        launch(&kernel, &streams[0], &theirs).unwrap();
        assert_eq!(streams[0].synchronize().is_ok(), opened);
        assert_eq!(fake.violations().is_empty(), opened);
    }
}

#[test]
fn work_that_nothing_orders_is_seen() {
    let (fake, context, stream) = open();
    let other = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    launch(&kernel, &other, &buffer).unwrap();
    other.synchronize().unwrap();
    let seen = fake.violations();
    assert!(
        seen.len() == 1 && seen[0].contains("not ordered"),
        "{seen:?}"
    );
}

#[test]
fn memory_that_is_gone_before_the_launch_is_seen() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    // SAFETY: none: the owner does not keep the memory, which is what is tested.
    let stale = unsafe {
        DeviceBuffer::<u32>::borrow(&stream, buffer.pointer(), 8, std::sync::Arc::new(()))
    }
    .unwrap();
    drop(buffer);
    stream.synchronize().unwrap();
    launch(&kernel, &stream, &stale).unwrap();
    assert!(stream.synchronize().is_err());
    assert!(fake.violations()[0].contains("freed before it ran"));
}

#[test]
fn what_nobody_freed_goes_with_the_context() {
    let (fake, context, stream) = open();
    assert_ne!(context.raw(), CUcontext::NULL);
    context.permanent_zeroed(64).unwrap();
    assert_eq!(fake.reclaimed(), 0);
    drop((stream, context));
    assert_eq!(fake.reclaimed(), 1);
    fake.assert_clean_but_for(1);
}

#[test]
fn an_address_tells_its_device_if_it_is_one_of_a_device() {
    let (_fake, context, stream) = open();
    let get = context.driver().api().pointer_get_attribute;
    let ordinal = |address: CUdeviceptr| {
        let mut ordinal = -1_i32;
        let value = (&raw mut ordinal).cast();
        // SAFETY: the attribute's value is an `int`, and any address may be asked for.
        let code = unsafe { get(value, CUpointerAttribute::DEVICE_ORDINAL, address) };
        (code, ordinal)
    };
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
    let expected = context.device().ordinal() as i32;
    let success = (CUresult::SUCCESS, expected);
    assert_eq!(ordinal(buffer.pointer()), success);
    assert_eq!(ordinal(buffer.pointer() + 99), success);
    assert_eq!(ordinal(16), (CUresult::ERROR_INVALID_VALUE, -1));
}
