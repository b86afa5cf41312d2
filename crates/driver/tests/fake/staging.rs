//! Small host arrays on their way to the device.

use std::sync::Arc;

use warptile_driver::{Context, DeviceBuffer, DriverError, Graph, Staging, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::foreign::{Foreign, MODES};
use crate::{context, increment, launch, open};

/// The array at an address, for kernels and copies of the stream.
fn at(stream: &Stream, pointer: u64, len: usize) -> DeviceBuffer<u32> {
    // SAFETY: the tests use it while it is staged, or kept by a graph.
    unsafe { DeviceBuffer::borrow(stream, pointer, len, Arc::new(())) }.unwrap()
}

#[test]
fn an_upload_waits_for_nothing_and_its_memory_comes_again() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let mut slots = 0;
    for round in 0..10_u32 {
        let waits = || {
            [
                "cuStreamSynchronize",
                "cuCtxSynchronize",
                "cuEventSynchronize",
            ]
            .map(|symbol| fake.calls_of(symbol))
        };
        let before = waits();
        let mut values = [round; 30];
        let staged = staging.upload(&stream, &values).unwrap();
        values.fill(99);
        assert!(staged.pointer().is_multiple_of(256));
        let busy = staging.upload(&stream, &[7_u32; 10]).unwrap();
        assert_ne!(staged.pointer(), busy.pointer());
        assert_eq!(waits(), before);
        assert_eq!(
            at(&stream, staged.pointer(), 30).to_vec().unwrap(),
            [round; 30]
        );
        assert_eq!(at(&stream, busy.pointer(), 10).to_vec().unwrap(), [7; 10]);
        drop((staged, busy));
        stream.synchronize().unwrap();
        slots = fake.live(Kind::PinnedMemory);
    }
    assert_eq!(slots, 2);
    let empty = staging.upload::<i32>(&stream, &[]).unwrap();
    assert_eq!(empty.pointer(), 0);
    drop((empty, staging, stream, context));
    fake.assert_clean();
}

/// Each copy of a loop finds what the one before has left, without waits in between.
#[test]
fn arrays_go_into_memory_that_stays() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let kernel = increment(&context).unwrap();
    let mut state = DeviceBuffer::<u32>::zeroed(&stream, 6).unwrap();
    let mut results: Vec<_> = (0..20)
        .map(|_| DeviceBuffer::<u32>::zeroed(&stream, 6).unwrap())
        .collect();
    for (value, result) in (0..).zip(&mut results) {
        let mut values = [value; 4];
        let mut part = state.slice_mut(1..5).unwrap();
        staging.copy_into(&values, &mut part).unwrap();
        values.fill(99);
        launch(&kernel, &stream, &state).unwrap();
        result.copy_from(&state).unwrap();
    }
    for (value, result) in (0..).zip(&results) {
        let v = value + 1;
        assert_eq!(result.to_vec().unwrap(), [v, v, v, v, v, v]);
    }

    let mut part = state.slice_mut(..3).unwrap();
    let error = staging.copy_into(&[1; 2], &mut part).unwrap_err();
    assert!(matches!(error, DriverError::Length { .. }), "{error}");
    staging
        .copy_into(&[], &mut state.slice_mut(..0).unwrap())
        .unwrap();
    let error = Graph::capture::<DriverError>(&stream, |_| {
        staging.copy_into(&[1; 3], &mut state.slice_mut(..3)?)
    });
    let error = error.unwrap_err();
    assert!(matches!(error, DriverError::Capturing { .. }), "{error}");
    drop((staging, kernel, results, state, stream, context));
    fake.assert_clean();
}

#[test]
fn a_slot_that_the_device_still_uses_is_not_given_out() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let kernel = increment(&context).unwrap();
    let mut results: Vec<_> = (0..20)
        .map(|_| DeviceBuffer::<u32>::zeroed(&stream, 4).unwrap())
        .collect();
    for (value, result) in (0..).zip(&mut results) {
        let staged = staging.upload(&stream, &[value; 4]).unwrap();
        let array = at(&stream, staged.pointer(), 4);
        launch(&kernel, &stream, &array).unwrap();
        result.copy_from(&array).unwrap();
    }
    // Dropped before its work is done.
    drop((staging, kernel));
    for (value, result) in (0..).zip(&results) {
        assert_eq!(result.to_vec().unwrap(), [value + 1; 4]);
    }
    drop((results, stream, context));
    fake.assert_clean();
}

#[test]
fn the_pool_shrinks_again() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let staged: Vec<_> = (0..100_u32)
        .map(|value| staging.upload(&stream, &[value]).unwrap())
        .collect();
    assert_eq!(fake.live(Kind::PinnedMemory), 100);
    drop(staged);
    stream.synchronize().unwrap();
    for value in 0..100_u32 {
        drop(staging.upload(&stream, &[value]).unwrap());
        stream.synchronize().unwrap();
    }
    assert!(fake.live(Kind::PinnedMemory) <= 17);
    // Sizes far apart do not share slots, near ones do.
    let before = fake.live(Kind::PinnedMemory);
    drop(staging.upload(&stream, &vec![0_u32; 10_000]).unwrap());
    stream.synchronize().unwrap();
    drop(staging.upload(&stream, &vec![0_u32; 9_000]).unwrap());
    stream.synchronize().unwrap();
    assert!(fake.live(Kind::PinnedMemory) <= before + 1);
    drop((staging, stream, context));
    fake.assert_clean();
}

#[test]
fn a_graph_has_its_arrays_for_itself() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let mut sum = DeviceBuffer::<u32>::zeroed(&stream, 4).unwrap();
    stream.synchronize().unwrap();
    let kernel = increment(&context).unwrap();
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        let staged = staging.upload(stream, &[40_u32; 4])?;
        let array = at(stream, staged.pointer(), 4);
        launch(&kernel, stream, &array)?;
        sum.copy_from(&array)
    })
    .unwrap();
    drop(kernel);
    for _ in 0..3 {
        graph.launch(&stream).unwrap();
        // Copied again each time, so the increments do not add up.
        assert_eq!(sum.to_vec().unwrap(), [41; 4]);
        drop(staging.upload(&stream, &[0_u32; 4]).unwrap());
    }
    assert_eq!(fake.live(Kind::PinnedMemory), 2);
    drop(graph);
    assert_eq!(fake.live(Kind::PinnedMemory), 1);
    drop((staging, sum, stream, context));
    fake.assert_clean();
}

#[test]
fn somebody_elses_graph_keeps_its_arrays_for_good() {
    for mode in MODES {
        let (fake, context, _owned) = open();
        let staging = Staging::new(&context);
        let foreign = Foreign::new(&context);
        let stream = foreign.borrowed();
        foreign.begin(mode);
        let staged = staging.upload(&stream, &[6_u32; 4]).unwrap();
        let pointer = staged.pointer();
        drop((staged, staging));
        let graph = foreign.end().expect("the capture is whole");
        context.synchronize().unwrap();
        graph.launch(&foreign);
        assert_eq!(at(&stream, pointer, 4).to_vec().unwrap(), [6; 4]);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
}

#[test]
fn an_array_may_be_given_back_in_a_capture_that_began_meanwhile() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let mut staged = Some(staging.upload(&stream, &[1_u32; 4]).unwrap());
    let first = staged.as_ref().map(|staged| staged.pointer());
    let graph = Graph::capture::<DriverError>(&stream, |_| {
        drop(staged.take());
        Ok(())
    })
    .unwrap();
    // Its end is marked as soon as that is possible, and then it comes again.
    let second = staging.upload(&stream, &[2_u32; 4]).unwrap();
    assert_ne!(Some(second.pointer()), first);
    stream.synchronize().unwrap();
    let third = staging.upload(&stream, &[3_u32; 4]).unwrap();
    assert_eq!(Some(third.pointer()), first);
    drop((second, third, graph, staging, stream, context));
    fake.assert_clean();
}

#[test]
fn an_upload_disturbs_nobodys_capture() {
    let (fake, context, stream) = open();
    let staging = Staging::new(&context);
    let foreign = Foreign::new(&context);
    for mode in MODES {
        foreign.begin(mode);
        for _ in 0..3 {
            drop(staging.upload(&stream, &[1_u32; 4]).unwrap());
        }
        drop(foreign.end().expect("the capture is whole"));
    }
    drop((staging, foreign, stream, context));
    fake.assert_clean();
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let first = context(&fake).unwrap();
    let second = Context::new(&crate::driver(&fake).unwrap().device(1).unwrap()).unwrap();
    let stream = Stream::new(&second).unwrap();
    let refused = Staging::new(&first).upload(&stream, &[1_u32]);
    assert!(matches!(refused, Err(DriverError::OtherContext { .. })));
}
