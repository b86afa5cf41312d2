//! Who may be dropped when, and used where.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

use warptile_driver::{
    Context, Device, DeviceBuffer, DeviceSlice, Driver, Event, Graph, Kernel, Module, PendingCopy,
    PinnedBuffer, Staged, Staging, Stream,
};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::{context, driver, increment, launch, open, open_two};

#[test]
fn everything_can_be_sent_and_shared() {
    fn check<T: Send + Sync>() {}
    check::<Driver>();
    check::<Device>();
    check::<Context>();
    check::<Stream>();
    check::<Event>();
    check::<DeviceBuffer<f32>>();
    check::<DeviceSlice<'static, f32>>();
    check::<PinnedBuffer<f32>>();
    check::<PendingCopy<f32>>();
    check::<Module>();
    check::<Kernel<u64>>();
    check::<Graph>();
}

/// A thread destroys its thread-locals in the reverse order of their first uses, so these two after all that the crate has.
#[test]
fn thread_locals_may_hold_buffers_and_staged_arrays() {
    thread_local! {
        static BUFFER: RefCell<Option<DeviceBuffer<u8>>> = const { RefCell::new(None) };
        static STAGED: RefCell<Option<Staged>> = const { RefCell::new(None) };
    }
    let (fake, context, stream) = open();
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            BUFFER.with_borrow(|_| ());
            STAGED.with_borrow(|_| ());
            BUFFER.set(Some(DeviceBuffer::uninit(&stream, 8).unwrap()));
            let staging = Staging::new(&context);
            STAGED.set(Some(staging.upload(&stream, &[1, 2, 3]).unwrap()));
        });
        user.join().unwrap();
    });
    drop((stream, context));
    fake.assert_clean();
}

#[test]
fn a_buffer_may_be_dropped_while_a_kernel_reads_it() {
    for pools in [true, false] {
        let fake = FakeDriver::open();
        fake.set_memory_pools(pools);
        let context = context(&fake).unwrap();
        let stream = Stream::new(&context).unwrap();
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
        launch(&kernel, &stream, &buffer).unwrap();
        drop(buffer);
        stream.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 1);
        drop((kernel, stream, context));
        fake.assert_clean();
    }
}

#[test]
fn dropping_with_memory_pools_does_not_wait() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    drop(DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap());
    // The fill and the free.
    assert_eq!(fake.pending(), 2);
}

#[test]
fn a_module_may_be_dropped_while_its_kernel_runs() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    launch(&kernel, &stream, &buffer).unwrap();
    drop(kernel);
    assert_eq!(buffer.to_vec().unwrap(), [1; 64]);
    drop((buffer, stream, context));
    fake.assert_clean();
}

/// Builds one of everything, with work queued, for the orders below.
fn everything(fake: &FakeDriver) -> Vec<Box<dyn Send>> {
    let driver = driver(fake).unwrap();
    let device = driver.device(0).unwrap();
    let context = Context::new(&device).unwrap();
    let stream = Stream::new(&context).unwrap();
    let event = Event::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    launch(&kernel, &stream, &buffer).unwrap();
    stream.record(&event).unwrap();
    let pinned = PinnedBuffer::from_slice(&context, &[1; 64]).unwrap();
    let copy = buffer.as_slice_mut().copy_from_pinned(pinned).unwrap();
    let graph = Graph::capture::<warptile_driver::DriverError>(&stream, |stream| {
        launch(&kernel, stream, &buffer)?;
        buffer.as_slice_mut().fill_bytes(1)
    })
    .unwrap();
    graph.launch(&stream).unwrap();
    let spare = PinnedBuffer::<u8>::zeroed(&context, 10).unwrap();
    vec![
        Box::new(driver),
        Box::new(device),
        Box::new(context),
        Box::new(stream),
        Box::new(event),
        Box::new(kernel),
        Box::new(buffer),
        Box::new(copy),
        Box::new(graph),
        Box::new(spare),
    ]
}

#[test]
fn any_order_of_drops_is_fine() {
    let fake = FakeDriver::open();
    let count = everything(&fake).len();
    // Every rotation, forwards and backwards, and every one thing dropped first or last.
    for start in 0..count {
        for backwards in [false, true] {
            let mut things = everything(&fake);
            things.rotate_left(start);
            if backwards {
                things.reverse();
            }
            for thing in things {
                drop(thing);
            }
            fake.assert_clean();
        }
    }
}

#[test]
fn dropping_on_another_thread_is_fine() {
    let fake = FakeDriver::open();
    let things = everything(&fake);
    let threads: Vec<_> = things
        .into_iter()
        .map(|thing| thread::spawn(move || drop(thing)))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    fake.assert_clean();
}

#[test]
fn a_stream_may_be_dropped_before_its_buffers() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[3_u32; 5]).unwrap();
    drop((stream, context));
    assert_eq!(fake.live(Kind::Streams), 1);
    assert_eq!(buffer.to_vec().unwrap(), [3; 5]);
    drop(buffer);
    fake.assert_clean();
}

#[test]
fn threads_share_a_stream_and_have_their_own() {
    const THREADS: usize = 8;
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let shared = Stream::new(&context).unwrap();
    let kernel = Arc::new(increment(&context).unwrap());
    let counted = Arc::new(DeviceBuffer::<u32>::zeroed(&shared, 16).unwrap());
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (context, shared) = (context.clone(), shared.clone());
            let (kernel, counted) = (kernel.clone(), counted.clone());
            scope.spawn(move || {
                let own = Stream::new(&context).unwrap();
                let values = vec![index as u32; 100];
                let buffer = DeviceBuffer::from_slice(&own, &values).unwrap();
                for _ in 0..10 {
                    launch(&kernel, &own, &buffer).unwrap();
                    launch(&kernel, &shared, &counted).unwrap();
                }
                assert_eq!(buffer.to_vec().unwrap(), vec![index as u32 + 10; 100]);
            });
        }
    });
    assert_eq!(counted.to_vec().unwrap(), [10 * THREADS as u32; 16]);
    drop((counted, kernel, shared, context));
    fake.assert_clean();
}

#[test]
fn two_contexts_mix_on_one_thread() {
    let (fake, contexts, streams) = open_two();
    let kernels: Vec<_> = contexts.iter().map(|c| increment(c).unwrap()).collect();
    let buffers: Vec<_> = streams
        .iter()
        .map(|s| DeviceBuffer::<u32>::zeroed(s, 8).unwrap())
        .collect();
    for round in 0..6 {
        let which = round % 2;
        launch(&kernels[which], &streams[which], &buffers[which]).unwrap();
    }
    assert_eq!(buffers[1].to_vec().unwrap(), [3; 8]);
    assert_eq!(buffers[0].to_vec().unwrap(), [3; 8]);
    // An event of one device orders a stream of the other; recording it there is refused.
    let event = Event::new(&contexts[0]).unwrap();
    streams[0].record(&event).unwrap();
    streams[1].wait(&event).unwrap();
    assert!(streams[1].record(&event).is_err());
    drop((event, buffers, kernels, streams, contexts));
    fake.assert_clean();
}

#[test]
fn what_was_current_before_is_current_after() {
    use warptile_driver::sys::CUcontext;
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let driver = driver(&fake).unwrap();
    let ours = Context::new(&driver.device(0).unwrap()).unwrap();
    let theirs = Context::new(&driver.device(1).unwrap()).unwrap();
    let current = || {
        let mut current = CUcontext::NULL;
        // SAFETY: `current` outlives the call.
        unsafe { (driver.api().ctx_get_current)(&mut current) };
        current
    };
    let stream = Stream::new(&ours).unwrap();
    assert!(current().is_null());
    // SAFETY: `theirs` is alive.
    unsafe { (driver.api().ctx_push_current)(theirs.raw()) };
    let buffer = DeviceBuffer::from_slice(&stream, &[1_u8]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1]);
    drop((buffer, stream));
    assert_eq!(current(), theirs.raw());
}

#[test]
fn the_context_is_released_with_its_last_user() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let event = Event::new(&context).unwrap();
    drop(context);
    assert_eq!(fake.live(Kind::Contexts), 1);
    drop(event);
    fake.assert_clean();
}

#[test]
fn a_device_has_one_context_however_often_it_is_asked_for() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let first = context(&fake).unwrap();
    // Also through another handle of the driver.
    let again = context(&fake).unwrap();
    assert!(first.is_same(&again) && first == again);
    assert_eq!(fake.live(Kind::Contexts), 1);
    assert_eq!(fake.live(Kind::MemoryPools), 1);
    let other = Context::new(&driver(&fake).unwrap().device(1).unwrap()).unwrap();
    assert!(first != other);
    drop((first, again, other));
    fake.assert_clean();
    // After its end there is a new one.
    drop(context(&fake).unwrap());
    assert_eq!(fake.calls_of("cuDevicePrimaryCtxRetain"), 3);
    fake.assert_clean();
}

#[test]
fn two_drivers_have_two_contexts() {
    let fakes = [FakeDriver::open(), FakeDriver::open()];
    let contexts = fakes.each_ref().map(|fake| context(fake).unwrap());
    assert!(contexts[0] != contexts[1]);
    assert!(fakes.iter().all(|fake| fake.live(Kind::Contexts) == 1));
}
