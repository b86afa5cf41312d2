//! Tests for a GPU and for the stand-in: each test takes a context and how many elements its larger buffers have.
//!
//! A GPU says nothing of a kernel that writes to memory that is somebody else's by then: some other test, at work meanwhile, finds
//! a wrong number. The stand-in looks at the addresses of every launch, so all that can run there does.

use std::collections::BTreeMap;
use std::fmt::Write;

use warptile_driver::{
    Context, DeviceBuffer, DriverError, FunctionAttribute, Graph, PinnedBuffer, Stream,
};

use crate::kernel::{increment, launch};

/// One of these tests.
pub(crate) type Work = fn(&Context, usize);

/// Declares `$with!`'s argument: the names of all of them, which are functions of this module.
macro_rules! all_work {
    ($with:ident) => {
        $with! {
            what_goes_in_comes_out,
            pinned_copies_round_trip,
            a_kernel_runs_and_its_buffers_may_be_dropped_at_once,
            streams_wait_for_each_other,
            a_graph_replays_and_owns_what_it_needs,
            a_broken_capture_leaves_the_stream_usable,
            a_pair_of_buffers_shares_no_element,
            threads_work_side_by_side,
        }
    };
}
pub(crate) use all_work;

/// Says which of the values are wrong, what they are, and where.
///
/// # Panics
/// If some are.
#[track_caller]
fn expect_all(what: &str, values: &[u32], expected: u32) {
    // First and last place of each wrong value, and how many places have it.
    let mut wrong: BTreeMap<u32, (usize, usize, usize)> = BTreeMap::new();
    for (at, &value) in values.iter().enumerate() {
        if value != expected {
            let (_, last, count) = wrong.entry(value).or_insert((at, at, 0));
            *last = at;
            *count += 1;
        }
    }
    let mut text = String::new();
    for (value, (first, last, count)) in wrong.iter().take(8) {
        let _ = write!(text, "; {value} in {count} places from {first} to {last}");
    }
    assert!(
        wrong.is_empty(),
        "{what}: expected {expected} in all {} places, and got {} other values{text}",
        values.len(),
        wrong.len()
    );
}

pub(crate) fn what_goes_in_comes_out(context: &Context, len: usize) {
    let stream = Stream::new(context).unwrap();
    let values: Vec<u32> = (0..len as u32 + 3).collect();
    let mut buffer = DeviceBuffer::from_slice(&stream, &values).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), values);
    let mut copy = DeviceBuffer::<u32>::filled(&stream, values.len(), 0xFF).unwrap();
    expect_all("filled", &copy.to_vec().unwrap(), u32::MAX);
    copy.copy_from(&buffer).unwrap();
    buffer.slice_mut(10..20).unwrap().fill_bytes(0).unwrap();
    assert_eq!(copy.to_vec().unwrap(), values);
    assert_eq!(buffer.slice(9..21).unwrap().to_vec().unwrap()[..2], [9, 0]);
}

pub(crate) fn pinned_copies_round_trip(context: &Context, len: usize) {
    let stream = Stream::new(context).unwrap();
    let values: Vec<u64> = (0..len as u64).collect();
    let mut buffer = DeviceBuffer::<u64>::zeroed(&stream, values.len()).unwrap();
    let up = PinnedBuffer::from_slice(context, &values).unwrap();
    let up = buffer.as_slice_mut().copy_from_pinned(up).unwrap();
    let down = PinnedBuffer::zeroed(context, values.len()).unwrap();
    let down = buffer.as_slice().copy_to_pinned(down).unwrap();
    assert_eq!(down.wait().unwrap()[..], values);
    assert!(up.is_done().unwrap());
}

pub(crate) fn a_kernel_runs_and_its_buffers_may_be_dropped_at_once(context: &Context, len: usize) {
    let stream = Stream::new(context).unwrap();
    let kernel = increment(context);
    assert!(kernel.attribute(FunctionAttribute::NUM_REGS).unwrap() > 0);
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, len).unwrap();
    for _ in 0..100 {
        launch(&kernel, &stream, &buffer);
        let scratch = DeviceBuffer::<u32>::zeroed(&stream, len).unwrap();
        launch(&kernel, &stream, &scratch);
    }
    drop(kernel);
    expect_all("100 launches", &buffer.to_vec().unwrap(), 100);
}

pub(crate) fn streams_wait_for_each_other(context: &Context, len: usize) {
    let [first, second] = [(); 2].map(|()| Stream::new(context).unwrap());
    let kernel = increment(context);
    let buffer = DeviceBuffer::<u32>::zeroed(&first, len).unwrap();
    for _ in 0..50 {
        launch(&kernel, &first, &buffer);
        buffer.available_to(&second).unwrap();
        launch(&kernel, &second, &buffer);
        buffer.used_by(&second).unwrap();
    }
    expect_all("two streams in turn", &buffer.to_vec().unwrap(), 100);
    let mut copy = DeviceBuffer::<u32>::uninit(&second, len).unwrap();
    copy.copy_from(&buffer).unwrap();
    drop(buffer);
    expect_all("a copy on the second stream", &copy.to_vec().unwrap(), 100);
}

pub(crate) fn a_graph_replays_and_owns_what_it_needs(context: &Context, _len: usize) {
    let [stream, other] = [(); 2].map(|()| Stream::new(context).unwrap());
    let result = DeviceBuffer::<u32>::zeroed(&stream, 4096).unwrap();
    let graph = {
        let kernel = increment(context);
        let scratch = DeviceBuffer::<u32>::zeroed(&stream, 4096).unwrap();
        stream.synchronize().unwrap();
        let mut scratch = Some(scratch);
        Graph::capture::<DriverError>(&stream, |stream| {
            assert!(matches!(
                stream.synchronize(),
                Err(DriverError::Capturing { .. })
            ));
            launch(&kernel, stream, &result);
            if let Some(scratch) = scratch.take() {
                // A launch knows no buffers: what the graph is to keep is named.
                stream.keep_for_graph(scratch.owner())?;
                launch(&kernel, stream, &scratch);
            }
            Ok(())
        })
        .unwrap()
    };
    assert!(!stream.is_capturing().unwrap());
    assert_eq!(result.to_vec().unwrap()[0], 0);
    for _ in 0..30 {
        graph.launch(&stream).unwrap();
        graph.launch(&other).unwrap();
    }
    drop(graph);
    other.synchronize().unwrap();
    expect_all("60 launches of a graph", &result.to_vec().unwrap(), 60);
}

pub(crate) fn a_broken_capture_leaves_the_stream_usable(context: &Context, _len: usize) {
    let stream = Stream::new(context).unwrap();
    let failed: Result<Graph, DriverError> =
        Graph::capture(&stream, |_| Err(DriverError::NoDevice));
    assert!(matches!(failed, Err(DriverError::NoDevice)));
    let buffer = DeviceBuffer::from_slice(&stream, &[1_u32; 100]).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 100]);
}

pub(crate) fn a_pair_of_buffers_shares_no_element(context: &Context, _len: usize) {
    let stream = Stream::new(context).unwrap();
    let (mut first, mut second) =
        DeviceBuffer::<u8>::uninit_pair::<f32>(&stream, 1001, 333).unwrap();
    first.copy_from_slice(&[7; 1001]).unwrap();
    second.copy_from_slice(&[0.5; 333]).unwrap();
    assert_eq!(first.to_vec().unwrap(), [7; 1001]);
    drop(first);
    assert_eq!(second.to_vec().unwrap(), [0.5; 333]);
}

pub(crate) fn threads_work_side_by_side(context: &Context, _len: usize) {
    let kernel = increment(context);
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let kernel = &kernel;
            scope.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let buffer = DeviceBuffer::from_slice(&stream, &[thread; 10_000]).unwrap();
                for _ in 0..50 {
                    launch(kernel, &stream, &buffer);
                }
                let values = buffer.to_vec().unwrap();
                let what = format!("thread {thread}, at {:#x}", buffer.pointer());
                expect_all(&what, &values, thread + 50);
            });
        }
    });
}

/// All of them at once, each in a thread of its own and `rounds` times.
pub(crate) fn everything_at_once(context: &Context, len: usize, rounds: usize) {
    macro_rules! list {
        ($($name:ident,)*) => { [$((stringify!($name), $name as Work)),*] };
    }
    std::thread::scope(|scope| {
        for (name, work) in all_work!(list) {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, move || {
                    for _ in 0..rounds {
                        work(context, len);
                    }
                })
                .unwrap();
        }
    });
}
