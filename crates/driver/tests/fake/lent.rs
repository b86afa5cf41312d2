//! Memory that other streams use while its own goes on.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use warptile_driver::sys::CUstream;
use warptile_driver::{DeviceBuffer, DriverError, Graph, Result, Rows, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::{increment, launch, open, open_two, open_two_of};

/// Three rows of four in a source of rows of six, to rows of five.
const ROWS: Rows = Rows {
    count: 3,
    len: 4,
    from: 1,
    from_pitch: 6,
    to: 2,
    to_pitch: 5,
};

/// One row, whose pitches say nothing: the last element.
const ROW: Rows = Rows {
    count: 1,
    len: 1,
    from: 17,
    from_pitch: usize::MAX,
    to: 16,
    to_pitch: usize::MAX,
};

fn numbers(stream: &Stream) -> DeviceBuffer<u32> {
    DeviceBuffer::from_slice(stream, &(0..18).collect::<Vec<u32>>()).unwrap()
}

const COPIED: [u32; 17] = [0, 0, 1, 2, 3, 4, 0, 7, 8, 9, 10, 0, 13, 14, 15, 16, 17];

#[test]
fn rows_are_copied_from_both_devices() {
    rows_are_copied(&[]);
    // Drivers before 12.8 have no batches of copies. The stand-in cannot lose a function on macOS.
    if !cfg!(target_os = "macos") {
        rows_are_copied(&["cuMemcpyBatchAsync"]);
    }
}

fn rows_are_copied(lacking: &[&str]) {
    let (fake, contexts, streams) = open_two_of(FakeDriver::open_without(lacking));
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    let pull = Stream::new(&contexts[0]).unwrap();
    // SAFETY: every context has this stream.
    let legacy = unsafe { Stream::borrow(&contexts[0], CUstream::LEGACY, Arc::new(())) }.unwrap();
    let batches = || fake.calls_of("cuMemcpyBatchAsync");
    for (from, by) in [
        (0, &streams[0]),
        (0, &pull),
        (1, &pull),
        (0, &legacy),
        (1, &legacy),
    ] {
        let source = numbers(&streams[from]);
        let target = DeviceBuffer::<u32>::zeroed(&streams[0], 17).unwrap();
        let mut target = target.lend().unwrap();
        let lent = source.as_slice().lend().unwrap();
        let before = batches();
        target
            .copy_rows(by, &[(&lent, ROWS), (&lent, ROW)])
            .unwrap();
        let batched = lacking.is_empty() && by != &legacy;
        assert_eq!(batches() - before, u64::from(batched));
        // The source ends while the copy is queued.
        drop(lent);
        drop(source);
        assert_eq!(target.into_buffer().unwrap().to_vec().unwrap(), COPIED);
    }
    drop((legacy, pull, streams, contexts));
    fake.assert_clean();
}

/// Memory is freed behind its later use of a stream, whichever of two threads is the first to note its own.
#[test]
fn threads_use_the_same_memory_on_one_stream() {
    /// More memory that both use, so that it takes the first some time to note its use: each note drops an event.
    const MORE: usize = 20_000;
    let (fake, context, stream) = open();
    let [home, by] = [(); 2].map(|()| Stream::new(&context).unwrap());
    let kernel = increment(&context).unwrap();
    let (more, source) = (numbers(&stream), numbers(&home));
    // SAFETY: the loan keeps the memory.
    let view = unsafe { DeviceBuffer::<u32>::borrow(&by, source.pointer(), 18, Arc::new(())) };
    let view = view.unwrap();
    let mut lent: Vec<_> = (0..MORE).map(|_| more.as_slice().lend().unwrap()).collect();
    lent.push(source.as_slice().lend().unwrap());
    for lent in &lent {
        // SAFETY: nothing is queued.
        unsafe { by.use_lent::<u32, _>(&[lent], &[], || ()) }.unwrap();
    }
    let marks = || fake.calls_of("cuEventRecord");
    let (asked, before) = (Barrier::new(2), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let reads: Vec<_> = lent.iter().collect();
            let submit = || {
                before.store(marks(), Ordering::SeqCst);
                asked.wait();
            };
            // SAFETY: nothing is queued.
            unsafe { by.use_lent::<u32, _>(&reads, &[], submit) }.unwrap();
        });
        scope.spawn(|| {
            let reads: Vec<_> = lent.iter().rev().collect();
            let submit = || {
                asked.wait();
                // The other has marked its end, and not noted it everywhere.
                while marks() == before.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                launch(&kernel, &by, &view).unwrap();
            };
            // SAFETY: the kernel is queued on the stream and uses the memory alone, as nobody reads it.
            unsafe { by.use_lent::<u32, _>(&reads, &[], submit) }.unwrap();
        });
    });
    drop((lent, view));
    drop(source);
    home.synchronize().unwrap();
    by.synchronize().unwrap();
    drop((more, kernel, home, by, stream, context));
    fake.assert_clean();
}

/// The point of lending: on its own stream, later kernels are not before the copy, nor it before them.
#[test]
fn copies_and_later_kernels_do_not_wait_for_each_other() {
    let (fake, contexts, streams) = open_two();
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    let pull = Stream::new(&contexts[0]).unwrap();
    let (source, other) = (numbers(&streams[1]), numbers(&streams[1]));
    let target = DeviceBuffer::<u32>::uninit(&streams[0], 17).unwrap();
    let mut target = target.lend().unwrap();
    let lent = source.as_slice().lend().unwrap();
    launch(&increment(&contexts[1]).unwrap(), &streams[1], &other).unwrap();
    target.copy_rows(&pull, &[(&lent, ROWS)]).unwrap();
    assert!(fake.pending() > 0);
    assert_eq!(fake.copies_behind_kernels(), 0);
    streams[1].synchronize().unwrap();
    assert!(fake.pending() > 0, "the kernel waited for the copy");
    drop(lent);
    drop(target);
    drop((source, other, pull, streams, contexts));
    fake.assert_clean();
}

#[test]
fn a_copy_takes_its_stream_into_a_capture() {
    let (fake, context, stream) = open();
    let pull = Stream::new(&context).unwrap();
    let source = numbers(&stream);
    let mut target = Some(DeviceBuffer::<u32>::zeroed(&stream, 17).unwrap());
    let graph = Graph::capture::<DriverError>(&stream, |_| {
        let lent = source.as_slice().lend()?;
        if let Some(buffer) = target.take() {
            let mut buffer = buffer.lend()?;
            buffer.copy_rows(&pull, &[(&lent, ROWS), (&lent, ROW)])?;
            target = Some(buffer.into_buffer()?);
        }
        lent.end()
    });
    let graph = graph.unwrap();
    graph.launch(&stream).unwrap();
    let target = target.unwrap();
    assert_eq!(target.to_vec().unwrap(), COPIED);
    drop((graph, source, target, pull, stream, context));
    fake.assert_clean();
}

#[test]
fn what_is_forgotten_is_kept() {
    let (fake, contexts, streams) = open_two();
    contexts[0].enable_peer_access(&contexts[1]).unwrap();
    let pull = Stream::new(&contexts[0]).unwrap();
    let source = numbers(&streams[1]);
    let target = DeviceBuffer::<u32>::uninit(&streams[0], 17).unwrap();
    let mut target = target.lend().unwrap();
    let lent = source.as_slice().lend().unwrap();
    target.copy_rows(&pull, &[(&lent, ROWS)]).unwrap();
    mem::forget((lent, target));
    drop(source);
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    pull.synchronize().unwrap();
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn wrong_rows_are_refused_before_anything_is_queued() -> Result<()> {
    let (fake, contexts, streams) = open_two();
    let source = numbers(&streams[0]);
    let lent = source.as_slice().lend()?;
    let mut target = DeviceBuffer::<u32>::zeroed(&streams[0], 17)?.lend()?;
    streams[0].synchronize()?;
    let mut refused = |by: &Stream, rows: Rows| {
        let calls = fake.pending();
        let error = target.copy_rows(by, &[(&lent, ROWS), (&lent, rows)]);
        assert_eq!(fake.pending(), calls);
        error.unwrap_err()
    };
    for rows in [
        Rows { from: 3, ..ROWS },
        Rows { to: 4, ..ROWS },
        Rows { count: 4, ..ROWS },
        Rows {
            count: 1,
            to: usize::MAX,
            ..ROWS
        },
        // As many elements as 0, by a multiplication without a check.
        Rows {
            count: 1 << (usize::BITS / 2),
            len: 1 << (usize::BITS / 2),
            from: 0,
            from_pitch: 1 << (usize::BITS / 2),
            to: 0,
            to_pitch: 1 << (usize::BITS / 2),
        },
    ] {
        let error = refused(&streams[0], rows);
        assert!(matches!(error, DriverError::OutOfRange { .. }), "{error}");
    }
    for rows in [
        Rows {
            from_pitch: 3,
            ..ROWS
        },
        Rows {
            to_pitch: 0,
            ..ROWS
        },
    ] {
        let error = refused(&streams[0], rows);
        assert_eq!(
            error.to_string(),
            format!(
                "rows of 4 elements cannot lie {} elements apart",
                rows.from_pitch.min(rows.to_pitch)
            )
        );
    }
    let error = refused(&streams[1], ROWS);
    assert!(matches!(error, DriverError::OtherContext { .. }), "{error}");
    // No rows are no work, wherever they would be.
    let none = Rows {
        count: 0,
        to: 100,
        ..ROWS
    };
    target.copy_rows(&streams[0], &[(&lent, none)])?;
    drop(contexts);
    Ok(())
}

#[test]
fn a_single_row_needs_no_pitch() {
    let (fake, context, stream) = open();
    let source = numbers(&stream);
    let lent = source.as_slice().lend().unwrap();
    let target = DeviceBuffer::<u32>::zeroed(&stream, 5).unwrap();
    let mut target = target.lend().unwrap();
    let row = Rows {
        count: 1,
        len: 4,
        from: 14,
        from_pitch: 0,
        to: 1,
        to_pitch: 0,
    };
    target.copy_rows(&stream, &[(&lent, row)]).unwrap();
    let target = target.into_buffer().unwrap();
    assert_eq!(target.to_vec().unwrap(), [0, 14, 15, 16, 17]);
    drop(lent);
    drop((source, target, stream, context));
    fake.assert_clean();
}
