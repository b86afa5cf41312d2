//! Buffers, slices, copies and events.

use std::sync::Arc;
use std::time::Duration;

use warptile_driver::sys::CUresult;
use warptile_driver::{Context, DeviceBuffer, DriverError, Event, Graph, PinnedBuffer, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::{context, driver, open, open_two};

#[test]
fn what_goes_in_comes_out() {
    let (fake, context, stream) = open();
    let values: Vec<u32> = (0..1000).collect();
    let mut buffer = DeviceBuffer::from_slice(&stream, &values).unwrap();
    assert_eq!((buffer.len(), buffer.byte_len()), (1000, 4000));
    assert_eq!(buffer.to_vec().unwrap(), values);
    assert_eq!(
        buffer.slice(10..13).unwrap().to_vec().unwrap(),
        [10, 11, 12]
    );
    buffer
        .slice_mut(..2)
        .unwrap()
        .copy_from_slice(&[8, 9])
        .unwrap();
    buffer.slice_mut(2..=2).unwrap().fill_bytes(0xFF).unwrap();
    let mut start = [0; 4];
    buffer
        .slice(..4)
        .unwrap()
        .copy_to_slice(&mut start)
        .unwrap();
    assert_eq!(start, [8, 9, u32::MAX, 3]);
    let nan = DeviceBuffer::<f32>::filled(&stream, 3, 0xFF).unwrap();
    assert!(nan.to_vec().unwrap().iter().all(|value| value.is_nan()));
    assert_eq!(
        DeviceBuffer::<f64>::zeroed(&stream, 2)
            .unwrap()
            .to_vec()
            .unwrap(),
        [0.0; 2]
    );
    drop((buffer, nan, stream, context));
    fake.assert_clean();
}

#[test]
fn empty_buffers_ask_nothing_of_the_driver() {
    let (fake, context, stream) = open();
    let calls = fake.calls();
    let mut empty = DeviceBuffer::<f32>::from_slice(&stream, &[]).unwrap();
    assert!(empty.is_empty());
    assert_eq!(empty.pointer(), 0);
    assert_eq!(empty.to_vec().unwrap(), []);
    let other = DeviceBuffer::<f32>::zeroed(&stream, 0).unwrap();
    empty.copy_from(&other).unwrap();
    assert_eq!(fake.calls(), calls);
    let pinned = PinnedBuffer::<f32>::zeroed(&context, 0).unwrap();
    let copy = empty.as_slice().copy_to_pinned(pinned).unwrap();
    assert_eq!(copy.wait().unwrap().len(), 0);
    drop((empty, other, stream, context));
    fake.assert_clean();
}

#[test]
fn lengths_and_ranges_are_checked() {
    let (_fake, context, stream) = open();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 4).unwrap();
    let wrong = [
        buffer.copy_from_slice(&[0; 3]).unwrap_err(),
        buffer.copy_to_slice(&mut [0; 5]).unwrap_err(),
        buffer
            .copy_from(&DeviceBuffer::zeroed(&stream, 5).unwrap())
            .unwrap_err(),
        {
            let pinned = PinnedBuffer::zeroed(&context, 3).unwrap();
            buffer.as_slice_mut().copy_from_pinned(pinned).unwrap_err()
        },
    ];
    for error in wrong {
        assert!(matches!(error, DriverError::Length { .. }), "{error}");
    }
    let (start, end) = (3, 2);
    let backwards = buffer.slice(start..end);
    assert!(matches!(
        backwards,
        Err(DriverError::OutOfRange { len: 4, .. })
    ));
    assert!(buffer.slice(..5).is_err());
    assert!(buffer.slice(..=usize::MAX).is_err());
    assert!(buffer.slice(4..).unwrap().is_empty());
}

#[test]
fn pinned_copies_do_not_wait_and_hand_the_memory_back() {
    let (fake, context, stream) = open();
    let values: Vec<u32> = (0..100).collect();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 100).unwrap();
    let pinned = PinnedBuffer::from_slice(&context, &values).unwrap();
    let up = buffer.as_slice_mut().copy_from_pinned(pinned).unwrap();
    let down = buffer
        .as_slice()
        .copy_to_pinned(PinnedBuffer::zeroed(&context, 100).unwrap())
        .unwrap();
    // The fill, two copies and their two events are all still queued.
    assert_eq!(fake.pending(), 5);
    assert!(!down.is_done().unwrap());
    assert_eq!(&*down.wait().unwrap(), values.as_slice());
    assert!(up.is_done().unwrap());
    let mut again = up.wait().unwrap();
    again[0] = 77;
    assert_eq!(again[..2], [77, 1]);
    drop((again, buffer, stream, context));
    fake.assert_clean();
}

#[test]
fn pinned_memory_may_be_longer_than_what_is_copied() {
    let (fake, context, stream) = open();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 3).unwrap();
    let up = PinnedBuffer::from_slice(&context, &[1, 2, 3, 4, 5]).unwrap();
    let up = buffer.as_slice_mut().copy_from_pinned(up).unwrap();
    let down = PinnedBuffer::from_slice(&context, &[9; 5]).unwrap();
    let down = buffer.as_slice().copy_to_pinned(down).unwrap();
    assert_eq!(down.wait().unwrap()[..], [1, 2, 3, 9, 9]);
    assert_eq!(up.wait().unwrap()[..], [1, 2, 3, 4, 5]);
    let short = PinnedBuffer::zeroed(&context, 2).unwrap();
    let error = buffer.as_slice().copy_to_pinned(short).unwrap_err();
    assert!(matches!(error, DriverError::Length { .. }), "{error}");
    drop((buffer, stream, context));
    fake.assert_clean();
}

#[test]
fn bytes_become_elements() {
    let (fake, context, stream) = open();
    let bytes = DeviceBuffer::from_slice(&stream, &[1_u8, 0, 0, 0, 2, 0, 0, 0, 3]).unwrap();
    let words = bytes.cast::<u32>().unwrap();
    assert_eq!(words.to_vec().unwrap(), [1, 2]);
    let none = DeviceBuffer::<u8>::uninit(&stream, 0).unwrap();
    assert!(none.cast::<u64>().unwrap().is_empty());
    drop((words, stream, context));
    fake.assert_clean();
}

#[test]
fn dropping_a_running_copy_waits_for_it() {
    let (fake, context, stream) = open();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 100).unwrap();
    let pinned = PinnedBuffer::from_slice(&context, &[5; 100]).unwrap();
    drop(buffer.as_slice_mut().copy_from_pinned(pinned).unwrap());
    assert_eq!(fake.live(Kind::PinnedMemory), 0);
    assert_eq!(buffer.to_vec().unwrap(), [5; 100]);
    drop((buffer, stream, context));
    fake.assert_clean();
}

#[test]
fn copies_between_streams_are_ordered_both_ways() {
    let (fake, context, stream) = open();
    let other = Stream::new(&context).unwrap();
    let mut source = DeviceBuffer::<u32>::filled(&stream, 64, 1).unwrap();
    let mut target = DeviceBuffer::<u32>::zeroed(&other, 64).unwrap();
    target.copy_from(&source).unwrap();
    // Neither may overtake the copy: changing the source, nor freeing it.
    source.as_slice_mut().fill_bytes(9).unwrap();
    drop(source);
    stream.synchronize().unwrap();
    assert_eq!(target.to_vec().unwrap(), [0x0101_0101; 64]);
    drop((target, stream, other, context));
    fake.assert_clean();
}

#[test]
fn an_explicit_edge_orders_another_streams_use() {
    let (fake, context, stream) = open();
    let kernel = crate::increment(&context).unwrap();
    let other = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    buffer.available_to(&other).unwrap();
    crate::launch(&kernel, &other, &buffer).unwrap();
    buffer.used_by(&other).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 64]);
    drop(buffer);
    stream.synchronize().unwrap();
    drop((kernel, stream, other, context));
    fake.assert_clean();
}

#[test]
fn without_the_edge_the_stand_in_sees_the_mistake() {
    let (fake, context, stream) = open();
    let kernel = crate::increment(&context).unwrap();
    let other = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    crate::launch(&kernel, &other, &buffer).unwrap();
    drop(buffer);
    stream.synchronize().unwrap();
    let error = other.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CUresult::ERROR_ILLEGAL_ADDRESS));
    assert_eq!(fake.violations().len(), 1, "{:?}", fake.violations());
}

#[test]
fn copies_between_devices() {
    let (fake, contexts, streams) = open_two();
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    let source = DeviceBuffer::from_slice(&streams[0], &[3_u32; 10]).unwrap();
    let mut target = DeviceBuffer::<u32>::uninit(&streams[1], 10).unwrap();
    target.copy_from(&source).unwrap();
    drop(source);
    assert_eq!(target.to_vec().unwrap(), [3; 10]);
    drop((target, streams, contexts));
    fake.assert_clean();
}

#[test]
fn borrowed_memory_is_used_but_never_freed() {
    let (fake, context, stream) = open();
    let owner = Arc::new(DeviceBuffer::from_slice(&stream, &[1_u32, 2, 3]).unwrap());
    // SAFETY: the owner is the buffer itself, freed in the order of the same stream.
    let borrowed = unsafe {
        DeviceBuffer::<u32>::borrow(&stream, owner.pointer(), owner.len(), owner.clone())
    }
    .unwrap();
    let address = owner.pointer();
    drop(owner);
    assert_eq!(borrowed.pointer(), address);
    assert_eq!(borrowed.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    drop(borrowed);
    assert_eq!(fake.live(Kind::DeviceMemory), 0);
    drop((stream, context));
    fake.assert_clean();
}

#[test]
fn a_borrowed_stream_keeps_its_owner_and_is_not_destroyed() {
    let (fake, context, stream) = open();
    let owner = Arc::new(stream);
    // SAFETY: the owner keeps the stream.
    let borrowed = unsafe { Stream::borrow(&context, owner.raw(), owner.clone()) }.unwrap();
    assert_eq!(Arc::strong_count(&owner), 2);
    let buffer = DeviceBuffer::from_slice(&borrowed, &[4_u8; 4]).unwrap();
    drop(borrowed);
    assert_eq!(buffer.to_vec().unwrap(), [4; 4]);
    assert_eq!(fake.live(Kind::Streams), 1);
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 1);
    drop((owner, context));
    fake.assert_clean();
}

#[test]
fn a_stream_of_another_context_is_not_borrowed() {
    let fake = FakeDriver::open();
    fake.set_device_count(2);
    let driver = driver(&fake).unwrap();
    let first = Context::new(&driver.device(0).unwrap()).unwrap();
    let second = Context::new(&driver.device(1).unwrap()).unwrap();
    let stream = Stream::new(&first).unwrap();
    // SAFETY: the stream outlives the call.
    let error = unsafe { Stream::borrow(&second, stream.raw(), Arc::new(())) }.unwrap_err();
    assert!(
        matches!(error, DriverError::ForeignContext { .. }),
        "{error}"
    );
}

#[test]
fn events_order_and_measure() {
    let (_fake, context, stream) = open();
    let (start, end) = (
        Event::timed(&context).unwrap(),
        Event::timed(&context).unwrap(),
    );
    stream.record(&start).unwrap();
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 16).unwrap();
    stream.record(&end).unwrap();
    assert!(!end.query().unwrap());
    let early = end.elapsed_since(&start).unwrap_err();
    assert_eq!(early.code(), Some(CUresult::ERROR_NOT_READY));
    end.synchronize().unwrap();
    assert!(end.query().unwrap());
    // The stand-in's clock: a millisecond for each of the fill and the second event.
    assert_eq!(end.elapsed_since(&start).unwrap(), Duration::from_millis(2));
    assert_eq!(start.elapsed_since(&end).unwrap(), Duration::ZERO);
    let untimed = Event::new(&context).unwrap();
    assert!(untimed.elapsed_since(&start).is_err());
    assert!(
        untimed.query().unwrap(),
        "an event never recorded has happened"
    );
    drop(buffer);
}

#[test]
fn a_stream_knows_whether_it_is_done() {
    let (_fake, _context, stream) = open();
    assert!(stream.query().unwrap());
    let _buffer = DeviceBuffer::<u8>::zeroed(&stream, 16).unwrap();
    assert!(!stream.query().unwrap());
    assert!(stream.query().unwrap());
}

#[test]
fn memory_info_and_priorities_are_read() {
    let (fake, context, stream) = open();
    fake.set_memory(1 << 20);
    let _buffer = DeviceBuffer::<u8>::zeroed(&stream, 1 << 10).unwrap();
    assert_eq!(
        context.memory_info().unwrap(),
        ((1 << 20) - (1 << 10), 1 << 20)
    );
    assert_eq!(context.stream_priorities().unwrap(), -5..=0);
    Stream::with_priority(&context, -5).unwrap();
}

#[test]
fn the_context_keeps_memory_for_its_next_buffers_until_it_is_trimmed() {
    const TOTAL: usize = 1 << 20;
    let (fake, context, stream) = open();
    fake.set_memory(TOTAL);
    let free = || context.memory_info().unwrap().0;
    drop(DeviceBuffer::<u8>::uninit(&stream, 5000).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(free(), TOTAL - 5000);
    let again = DeviceBuffer::<u8>::uninit(&stream, 2000).unwrap();
    assert_eq!(free(), TOTAL - 5000);
    context.trim_memory(3000).unwrap();
    assert_eq!(free(), TOTAL - 3000);
    context.trim_memory(0).unwrap();
    assert_eq!(free(), TOTAL - 2000);
    drop((again, stream, context));
    fake.assert_clean();
}

/// A buffer of as many bytes has the memory of the one before, without a call of the driver; on the same stream, and in no capture.
#[test]
fn a_stream_that_keeps_spares_reuses_them_in_its_own_order() {
    let (fake, context, stream) = open();
    let other = Stream::new(&context).unwrap();
    let of = |stream: &Stream, bytes: usize| DeviceBuffer::<u8>::uninit(stream, bytes).unwrap();
    stream.keep_spares();
    let first = of(&stream, 5000);
    let pointer = first.pointer();
    let before = fake.calls();
    drop(first);
    let again = of(&stream, 5000);
    assert_eq!(fake.calls(), before);
    assert_eq!(again.pointer(), pointer);
    drop(again);
    // Requests for another size, on another stream, or during a capture do not get that memory.
    assert_ne!(of(&stream, 4999).pointer(), pointer);
    assert_ne!(of(&other, 5000).pointer(), pointer);
    let captured = Graph::capture(&other, |_| {
        let elsewhere = of(&stream, 5000);
        assert_ne!(elsewhere.pointer(), pointer);
        Ok::<_, DriverError>(())
    });
    drop(captured.unwrap());
    // Too large to be kept; and of those that are kept no more than four.
    let frees = || fake.calls_of("cuMemFreeAsync");
    let freed = frees();
    drop(of(&stream, (4 << 20) + 1));
    assert_eq!(frees() - freed, 1);
    for bytes in 100..120 {
        drop(of(&stream, bytes));
    }
    assert!(frees() - freed > 16, "{}", frees() - freed);
    drop((other, stream, context));
    fake.assert_clean();
}

#[test]
fn a_refused_allocation_gives_unused_memory_back() {
    const TOTAL: usize = 1 << 20;
    let (fake, context, stream) = open();
    fake.set_memory(TOTAL);
    let free = || context.memory_info().unwrap().0;
    drop(DeviceBuffer::<u8>::uninit(&stream, 5000).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(free(), TOTAL - 5000);
    let refused = DeviceBuffer::<u8>::uninit(&stream, 2 * TOTAL).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert_eq!(free(), TOTAL);
    drop((stream, context));
    fake.assert_clean();
}

#[test]
fn without_pools_there_is_nothing_to_trim() {
    let fake = FakeDriver::open();
    fake.set_memory_pools(false);
    let context = context(&fake).unwrap();
    context.trim_memory(0).unwrap();
    assert_eq!(fake.live(Kind::MemoryPools), 0);
    drop(context);
    fake.assert_clean();
}

#[test]
fn a_pair_shares_one_allocation_and_no_element() {
    let (fake, context, stream) = open();
    let (mut first, mut second) = DeviceBuffer::<u8>::uninit_pair::<f32>(&stream, 5, 3).unwrap();
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    assert_eq!((first.len(), first.byte_len()), (5, 5));
    assert_eq!((second.len(), second.byte_len()), (3, 12));
    assert_eq!(second.pointer() - first.pointer(), 256);
    first.copy_from_slice(&[7; 5]).unwrap();
    second.copy_from_slice(&[1.0, 2.0, 3.0]).unwrap();
    first.as_slice_mut().fill_bytes(9).unwrap();
    assert_eq!(second.slice(1..).unwrap().to_vec().unwrap(), [2.0, 3.0]);
    // Either outlives the other.
    drop(second);
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    assert_eq!(first.to_vec().unwrap(), [9; 5]);
    drop(first);
    assert_eq!(fake.live(Kind::DeviceMemory), 0);

    let (first, second) = DeviceBuffer::<u8>::uninit_pair::<f32>(&stream, 5, 0).unwrap();
    assert!(second.is_empty() && second.pointer() == 0);
    drop((first, second));
    let (first, second) = DeviceBuffer::<u8>::uninit_pair::<f32>(&stream, 0, 0).unwrap();
    assert_eq!((first.pointer(), second.pointer()), (0, 0));
    let too_large = DeviceBuffer::<u8>::uninit_pair::<u8>(&stream, isize::MAX as usize, 1);
    assert!(matches!(
        too_large.unwrap_err(),
        DriverError::TooLarge { .. }
    ));
    drop((first, second, stream, context));
    fake.assert_clean();
}

#[test]
fn a_guard_spares_the_calls_between_the_way_in_and_out() {
    let (fake, context, stream) = open();
    let allocate = || DeviceBuffer::<u8>::uninit(&stream, 8).unwrap();
    let count = |work: &dyn Fn()| {
        let before = fake.calls();
        work();
        fake.calls() - before
    };
    // Alone: which is current, push, mind no captures, allocate, mind them again, pop; the same for freeing.
    assert_eq!(count(&|| drop(allocate())), 12);
    // Within: which is current, push, (which is current, mind none, allocate or free, mind them) x 4, pop.
    let within = count(&|| {
        let _current = context.enter().unwrap();
        drop(allocate());
        drop(allocate());
    });
    assert_eq!(within, 19);
    // Nobody asks again.
    let known = count(&|| {
        let twice = || -> Result<(), DriverError> {
            drop(allocate());
            drop(allocate());
            Ok(())
        };
        context.within(twice).unwrap();
    });
    assert_eq!(known, 15);
    // It is known no longer.
    assert_eq!(count(&|| drop(allocate())), 12);
    drop((stream, context));
    fake.assert_clean();
}
