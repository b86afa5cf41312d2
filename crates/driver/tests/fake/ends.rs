//! The end of a context, when others go on in it: what it waits for, what it leaves alone, and what it gives back.

use std::sync::Arc;
use std::thread;

use warptile_driver::sys::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUgraph, CUresult, CUstream, CUstreamCaptureMode,
};
use warptile_driver::{Context, DeviceBuffer, Driver, DriverError, Graph, Result, Scratch, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::foreign::MODES;
use crate::{driver, increment, launch};

fn expect(code: CUresult) {
    assert_eq!(code, CUresult::SUCCESS);
}

/// Somebody else with a stream in the device's primary context, without a handle of this crate's context.
struct Other {
    driver: Driver,
    stream: CUstream,
}

impl Other {
    fn new(driver: &Driver) -> Arc<Other> {
        let api = driver.api();
        let (mut context, mut stream) = (CUcontext::NULL, CUstream::NULL);
        // SAFETY: all outlive the calls, and the handles are the driver's.
        unsafe {
            expect((api.device_primary_ctx_retain)(&mut context, 0));
            expect((api.ctx_push_current)(context));
            let create = api.stream_create_with_priority;
            expect(create(&mut stream, CU_STREAM_NON_BLOCKING, 0));
            expect((api.ctx_pop_current)(&mut context));
        }
        Arc::new(Other {
            driver: driver.clone(),
            stream,
        })
    }

    /// Captures nothing while `work` goes on.
    fn capture_during(&self, mode: CUstreamCaptureMode, work: impl FnOnce()) {
        let api = self.driver.api();
        let mut graph = CUgraph::NULL;
        // SAFETY: the stream is live and `graph` outlives the call.
        unsafe {
            expect((api.stream_begin_capture)(self.stream, mode));
            work();
            expect((api.stream_end_capture)(self.stream, &mut graph));
            expect((api.graph_destroy)(graph));
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let api = self.driver.api();
        // SAFETY: made by `new`.
        unsafe {
            expect((api.stream_destroy)(self.stream));
            expect((api.device_primary_ctx_release)(0));
        }
    }
}

/// Opens a context, uses it in every way that leaves something to its end, and leaves it with work under way.
fn come_and_go(driver: &Driver) -> Result<()> {
    let context = Context::new(&driver.device(0)?)?;
    let [stream, side] = [Stream::new(&context)?, Stream::new(&context)?];
    stream.keep_spares();
    let kernel = increment(&context)?;
    let buffer = DeviceBuffer::from_slice(&stream, &[1_u32; 8])?;
    let _workspace = stream.attached::<Scratch, DriverError>(|| Scratch::zeroed(&context, 64))?;
    for _ in 0..4 {
        stream.synchronize()?;
        launch(&kernel, &stream, &buffer)?;
    }
    let buffer = DeviceBuffer::from_slice(&side, &[1_u32; 8])?;
    Graph::capture(&side, |side| launch(&kernel, side, &buffer))?.launch(&side)
}

#[test]
fn the_end_of_a_context_breaks_no_capture() {
    let fake = FakeDriver::open();
    let driver = driver(&fake).unwrap();
    let other = Other::new(&driver);
    for mode in MODES {
        other.capture_during(mode, || {
            come_and_go(&driver).unwrap();
            assert_eq!(fake.live(Kind::Modules), 0, "{mode:?}");
            thread::scope(|scope| {
                scope.spawn(|| come_and_go(&driver).unwrap());
            });
        });
    }
    assert_eq!(fake.calls_of("cuCtxSynchronize"), 0);
    assert_eq!(fake.launches().len(), 3 * 2 * 5);
    drop(other);
    fake.assert_clean();
}

#[test]
fn it_waits_for_its_own_work_and_no_other() {
    let fake = FakeDriver::open();
    let driver = driver(&fake).unwrap();
    let other = Other::new(&driver);
    let mut theirs = 0;
    let context = Context::new(&driver.device(0).unwrap()).unwrap();
    let current = context.enter().unwrap();
    // SAFETY: the memory outlives its use.
    unsafe {
        expect((driver.api().mem_alloc)(&mut theirs, 64));
        expect((driver.api().memset_d8_async)(theirs, 1, 64, other.stream));
    }
    drop(current);
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    launch(&kernel, &stream, &buffer).unwrap();
    // In an order in which nothing else could be waited for.
    drop((buffer, stream));
    assert_eq!(fake.launches().len(), 0);
    drop((kernel, context));
    assert_eq!((fake.launches().len(), fake.live(Kind::Modules)), (1, 0));
    assert_eq!(fake.pending(), 1, "the fill of somebody else");
    // SAFETY: nothing of this test uses the memory after this.
    unsafe {
        let mut context = CUcontext::NULL;
        expect((driver.api().device_primary_ctx_retain)(&mut context, 0));
        expect((driver.api().ctx_push_current)(context));
        expect((driver.api().stream_synchronize)(other.stream));
        expect((driver.api().mem_free)(theirs));
        expect((driver.api().ctx_pop_current)(&mut context));
        expect((driver.api().device_primary_ctx_release)(0));
    }
    drop(other);
    fake.assert_clean();
}

#[test]
fn a_borrowed_stream_given_back_in_its_owners_capture_leaves_its_modules_loaded() {
    for mode in MODES {
        let fake = FakeDriver::open();
        let driver = driver(&fake).unwrap();
        let other = Other::new(&driver);
        let context = Context::new(&driver.device(0).unwrap()).unwrap();
        // SAFETY: the owner keeps the stream.
        let stream = unsafe { Stream::borrow(&context, other.stream, other.clone()) }.unwrap();
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1_u32; 8]).unwrap();
        launch(&kernel, &stream, &buffer).unwrap();
        other.capture_during(mode, || drop((buffer, stream, kernel, context)));
        // The launch came before the capture, and its end is unknown.
        assert_eq!(fake.launches().len(), 0);
        assert_eq!(fake.live(Kind::Modules), 1);
        drop(other);
        assert_eq!(fake.violations(), Vec::<String>::new());
        assert_eq!(fake.launches().len(), 1);
    }
}

#[test]
fn a_borrowed_stream_that_is_given_back_before_the_context_is_waited_for() {
    let fake = FakeDriver::open();
    let driver = driver(&fake).unwrap();
    let other = Other::new(&driver);
    for _ in 0..3 {
        let context = Context::new(&driver.device(0).unwrap()).unwrap();
        // SAFETY: the owner keeps the stream.
        let stream = unsafe { Stream::borrow(&context, other.stream, other.clone()) }.unwrap();
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1_u32; 8]).unwrap();
        launch(&kernel, &stream, &buffer).unwrap();
        drop((buffer, stream, kernel));
        assert_eq!(fake.live(Kind::Modules), 1);
        other.capture_during(MODES[0], || drop(context));
        assert_eq!(fake.live(Kind::Modules), 0);
    }
    assert_eq!(fake.launches().len(), 3);
    drop(other);
    fake.assert_clean();
}

#[test]
fn streams_that_come_and_go_leave_no_more_than_their_unfinished_ends() {
    let fake = FakeDriver::open();
    let driver = driver(&fake).unwrap();
    let context = Context::new(&driver.device(0).unwrap()).unwrap();
    let kernel = increment(&context).unwrap();
    let home = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&home, 8).unwrap();
    home.synchronize().unwrap();
    for done in [true, false] {
        for _ in 0..100 {
            let stream = Stream::new(&context).unwrap();
            launch(&kernel, &stream, &buffer).unwrap();
            if done {
                stream.synchronize().unwrap();
            }
        }
        // Each question about an event is a step of its stream.
        let most = if done { 0 } else { 4 };
        assert!(
            fake.live(Kind::Events) <= most,
            "{}",
            fake.live(Kind::Events)
        );
    }
    context.synchronize().unwrap();
    assert_eq!(fake.live(Kind::Events), 0);
    drop((buffer, home, kernel, context));
    fake.assert_clean();
}

/// Whatever fails on the way, nothing is unloaded under a kernel, and what fails once leaves nothing behind.
#[test]
fn a_call_that_fails_at_the_end_changes_nothing() {
    let fake = FakeDriver::open();
    let driver = driver(&fake).unwrap();
    let before = fake.calls();
    come_and_go(&driver).unwrap();
    let calls = fake.calls() - before;
    for code in [CUresult::ERROR_UNKNOWN, CUresult::ERROR_OUT_OF_MEMORY] {
        for nth in 1..=calls {
            fake.fail(None, nth, code.0);
            let _ = come_and_go(&driver);
            let hit = fake.fault();
            assert!(hit.is_some(), "call {nth} of {calls} was never made");
            assert_eq!(fake.violations(), Vec::<String>::new(), "{nth}, {hit:?}");
            fake.assert_clean();
        }
    }
}

/// Where every way to know the end of a stream fails, its modules stay.
#[test]
fn without_a_way_to_wait_nothing_is_unloaded() {
    for broken in [
        &["cuEventSynchronize"][..],
        &["cuStreamQuery", "cuEventCreate", "cuStreamSynchronize"],
        &["cuStreamQuery", "cuEventRecord", "cuStreamSynchronize"],
    ] {
        let fake = FakeDriver::open();
        let driver = driver(&fake).unwrap();
        let other = Other::new(&driver);
        let context = Context::new(&driver.device(0).unwrap()).unwrap();
        let stream = Stream::new(&context).unwrap();
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
        launch(&kernel, &stream, &buffer).unwrap();
        fake.fail_always(broken, CUresult::ERROR_UNKNOWN.0);
        drop((buffer, stream, kernel, context));
        fake.fail_always(&[], 0);
        assert_eq!(fake.live(Kind::Modules), 1, "{broken:?}");
        assert_eq!(fake.live(Kind::Events), 0, "{broken:?}");
        drop(other);
        assert_eq!(fake.violations(), Vec::<String>::new(), "{broken:?}");
        assert_eq!(fake.launches().len(), 1);
    }
}
