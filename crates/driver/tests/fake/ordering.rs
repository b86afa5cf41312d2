//! Launches on one stream of buffers that belong to others.

use warptile_driver::sys::CUresult;
use warptile_driver::{Context, DeviceBuffer, DriverError, Graph, PinnedBuffer, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::foreign::Foreign;
use crate::{context, increment, launch};

fn open() -> (FakeDriver, Context, [Stream; 3]) {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let streams = std::array::from_fn(|_| Stream::new(&context).unwrap());
    (fake, context, streams)
}

fn zeros(stream: &Stream) -> DeviceBuffer<u32> {
    DeviceBuffer::zeroed(stream, 8).unwrap()
}

#[test]
fn a_launch_comes_after_the_homes_of_its_buffers_and_they_come_after_it() {
    let (fake, context, [stream, first, second]) = open();
    let kernel = increment(&context).unwrap();
    let buffers = [zeros(&first), zeros(&second), zeros(&first)];
    let homes = [&first, &stream, &second, &first];
    stream.order_after(homes).unwrap();
    for buffer in &buffers {
        launch(&kernel, &stream, buffer).unwrap();
    }
    stream.order_before(homes).unwrap();
    // The fills come before; the memory is freed after.
    drop(buffers);
    second.synchronize().unwrap();
    first.synchronize().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 3);
    drop((kernel, stream, first, second, context));
    fake.assert_clean();
}

#[test]
fn ordering_with_nobody_asks_nothing_of_the_driver() {
    let (fake, _context, [stream, ..]) = open();
    let calls = fake.calls();
    let same = stream.clone();
    stream.order_after([]).unwrap();
    stream.order_after([&stream, &same]).unwrap();
    stream.order_before([&same]).unwrap();
    assert_eq!(fake.calls(), calls);
}

/// Two homes, a launch, and the buffers' end right after it, with every call failing once.
#[test]
fn whatever_fails_after_a_launch_its_buffers_outlive_it() {
    for borrowed in [false, true] {
        let fake = FakeDriver::open();
        let context = context(&fake).unwrap();
        let foreign: [_; 3] = std::array::from_fn(|_| Foreign::new(&context));
        let streams = foreign.each_ref().map(|stream| match borrowed {
            true => stream.borrowed(),
            false => Stream::new(&context).unwrap(),
        });
        let [stream, first, second] = &streams;
        let kernel = increment(&context).unwrap();
        let scenario = || -> (Result<(), DriverError>, bool) {
            let mut queued = false;
            let mut work = || {
                let zeroed = |home| DeviceBuffer::<u32>::zeroed(home, 8);
                let buffers = [zeroed(first)?, zeroed(second)?];
                stream.order_after([first, second])?;
                launch(&kernel, stream, &buffers[0])?;
                queued = true;
                let launched = launch(&kernel, stream, &buffers[1]);
                let ordered = stream.order_before([first, second]);
                drop(buffers);
                launched.and(ordered)
            };
            (work(), queued)
        };
        let finish = || {
            // The homes first, so that nothing but order keeps their memory.
            for stream in [second, first, stream] {
                let _ = stream.synchronize();
            }
            context.synchronize()
        };
        let before = fake.calls();
        scenario().0.unwrap();
        let calls = fake.calls() - before;
        finish().unwrap();
        for nth in 1..=calls {
            fake.fail(None, nth, CUresult::ERROR_UNKNOWN.0);
            let ran = fake.launches().len();
            let (outcome, queued) = scenario();
            let hit = fake.fault().expect("every call is made");
            fake.fail(None, 0, 0);
            let _ = finish();
            assert_eq!(fake.violations(), Vec::<String>::new(), "call {nth}, {hit}");
            let ran = fake.launches().len() - ran;
            // An error of a launch says that it does not run.
            let expected = match (&outcome, queued) {
                (_, false) => 0..=0,
                (Err(_), true) => 1..=2,
                (Ok(()), true) => 2..=2,
            };
            assert!(expected.contains(&ran), "call {nth}, {hit}: {ran} ran");
            assert_eq!(fake.live(Kind::DeviceMemory), 0, "call {nth}, {hit}");
        }
        drop((kernel, streams, foreign, context));
        fake.assert_clean();
    }
}

#[test]
fn an_error_of_a_launch_says_that_nothing_runs() {
    let (fake, context, _streams) = open();
    let foreign = Foreign::new(&context);
    let stream = foreign.borrowed();
    let kernel = increment(&context).unwrap();
    let buffer = zeros(&stream);
    let before = fake.calls();
    launch(&kernel, &stream, &buffer).unwrap();
    let calls = fake.calls() - before;
    let mut expected = 1;
    for nth in 1..=calls {
        fake.fail(None, nth, CUresult::ERROR_UNKNOWN.0);
        expected += u32::from(launch(&kernel, &stream, &buffer).is_ok());
        fake.fail(None, 0, 0);
        let _ = stream.synchronize();
        assert_eq!(fake.launches().len(), expected as usize, "call {nth}");
    }
    // Only the way out of the context can fail after the launch.
    assert_eq!(expected, 2);
    assert_eq!(buffer.to_vec().unwrap(), [expected; 8]);
}

#[test]
fn memory_is_not_freed_where_nothing_can_be_ordered() {
    let (fake, context, [stream, home, _]) = open();
    let kernel = increment(&context).unwrap();
    let buffer = zeros(&home);
    stream.order_after([&home]).unwrap();
    launch(&kernel, &stream, &buffer).unwrap();
    let broken = ["cuEventCreate", "cuStreamSynchronize", "cuCtxSynchronize"];
    fake.fail_always(&broken, CUresult::ERROR_UNKNOWN.0);
    assert!(stream.order_before([&home]).is_err());
    drop(buffer);
    fake.fail_always(&[], 0);
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    // From here on the device can be waited for again.
    drop(zeros(&home));
    let deferred = home.synchronize().unwrap_err();
    assert!(deferred.to_string().contains("waiting for the device"));
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn in_a_capture_streams_outside_of_it_are_left_alone() {
    let (fake, context, [stream, home, _]) = open();
    let kernel = increment(&context).unwrap();
    let buffer = zeros(&home);
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        stream.order_after([&home])?;
        stream.keep_for_graph(buffer.owner())?;
        launch(&kernel, stream, &buffer)?;
        stream.order_before([&home])?;
        assert!(home.capture()?.is_none());
        // The other way around nothing can be ordered now.
        assert!(matches!(
            home.order_after([stream]),
            Err(DriverError::Capturing { .. })
        ));
        assert!(home.order_before([stream]).is_err());
        Ok(())
    })
    .unwrap();
    drop((graph, buffer, kernel, stream, home, context));
    fake.assert_clean();
}

#[test]
fn a_graph_is_ordered_with_the_homes_of_what_it_keeps_at_each_launch() {
    let (fake, context, [stream, home, other]) = open();
    let kernel = increment(&context).unwrap();
    let mut buffer = zeros(&home);
    home.synchronize().unwrap();
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        stream.keep_for_graph(buffer.owner())?;
        launch(&kernel, stream, &buffer)
    })
    .unwrap();
    for launch_on in [&stream, &other] {
        // Before: the fill at home comes first, without a wait for it.
        buffer.as_slice_mut().fill_bytes(0).unwrap();
        graph.launch(launch_on).unwrap();
        launch_on.synchronize().unwrap();
        assert_eq!(fake.violations(), Vec::<String>::new());
        // After: home reads what the graph wrote.
        graph.launch(launch_on).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [2; 8]);
    }
    // Home frees the memory after the last launch.
    graph.launch(&stream).unwrap();
    drop((graph, buffer));
    home.synchronize().unwrap();
    stream.synchronize().unwrap();
    drop((kernel, stream, home, other, context));
    fake.assert_clean();
}

#[test]
fn a_graph_launched_in_a_capture_is_kept_by_the_other_graph() {
    let (fake, context, [stream, home, other]) = open();
    let kernel = increment(&context).unwrap();
    let mut buffer = zeros(&home);
    let inner = Graph::capture::<DriverError>(&stream, |stream| {
        stream.keep_for_graph(buffer.owner())?;
        launch(&kernel, stream, &buffer)
    })
    .unwrap();
    let outer = Graph::capture::<DriverError>(&other, |other| {
        inner.launch(other)?;
        inner.launch(other)
    })
    .unwrap();
    drop((inner, kernel));
    buffer.as_slice_mut().fill_bytes(0).unwrap();
    outer.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [2; 8]);
    drop(outer);
    drop((buffer, stream, home, other, context));
    fake.assert_clean();
}

#[test]
fn a_copy_comes_after_its_source_is_written() {
    let (fake, context, [stream, other, _]) = open();
    let source = DeviceBuffer::<u32>::filled(&stream, 64, 1).unwrap();
    let mut target = zeros(&other);
    let mut part = DeviceBuffer::<u32>::zeroed(&other, 64).unwrap();
    part.copy_from(&source).unwrap();
    // The copy's stream alone is waited for.
    assert_eq!(part.to_vec().unwrap(), [0x0101_0101; 64]);
    target.as_slice_mut().fill_bytes(0).unwrap();
    drop((source, target, part, stream, other, context));
    fake.assert_clean();
}

/// Pinned memory counts as a host slice, too, and the device reads it after the call has returned.
#[test]
fn a_copy_that_cannot_be_waited_for_is_waited_for_another_way() {
    let (fake, context, [stream, ..]) = open();
    let mut buffer = zeros(&stream);
    let pinned = PinnedBuffer::from_slice(&context, &[5_u32; 8]).unwrap();
    stream.synchronize().unwrap();
    fake.fail(Some("cuStreamSynchronize"), 1, CUresult::ERROR_UNKNOWN.0);
    buffer.copy_from_slice(&pinned).unwrap_err();
    drop(pinned);
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(buffer.to_vec().unwrap(), [5; 8]);
}
