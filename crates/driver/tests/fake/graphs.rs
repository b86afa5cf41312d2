//! Capture and replay.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warptile_driver::sys::CUresult;
use warptile_driver::{DeviceBuffer, DriverError, Graph, Stream};
use warptile_fake_cuda::Kind;

use crate::{increment, launch, open};

#[test]
fn captured_work_runs_when_launched_as_often_as_launched() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        launch(&kernel, stream, &buffer)?;
        launch(&kernel, stream, &buffer)
    })
    .unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0; 8]);
    for _ in 0..5 {
        graph.launch(&stream).unwrap();
    }
    assert_eq!(buffer.to_vec().unwrap(), [10; 8]);
    drop((graph, buffer, kernel, stream, context));
    fake.assert_clean();
}

#[test]
fn the_graph_keeps_what_it_needs() {
    let (fake, context, stream) = open();
    let other = Stream::new(&context).unwrap();
    let result = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let graph = {
        let kernel = increment(&context).unwrap();
        let seed = DeviceBuffer::<u32>::from_slice(&stream, &[5; 8]).unwrap();
        let mut scratch = Some(DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap());
        let mut result = {
            // SAFETY: the owner keeps the memory.
            unsafe { DeviceBuffer::<u32>::borrow(&stream, result.pointer(), 8, result.owner()) }
                .unwrap()
        };
        Graph::capture::<DriverError>(&stream, |stream| {
            if let Some(mut scratch) = scratch.take() {
                scratch.copy_from(&seed)?;
                launch(&kernel, stream, &scratch)?;
                result.copy_from(&scratch)?;
            }
            Ok(())
        })
        .unwrap()
        // Kernel, module, seed, scratch and the borrowed view are dropped here.
    };
    assert_eq!(fake.live(Kind::Modules), 1);
    assert_eq!(fake.live(Kind::DeviceMemory), 3);
    graph.launch(&other).unwrap();
    // The memory it kept is freed only after its last launch, though that is on another stream.
    drop(graph);
    stream.synchronize().unwrap();
    assert_eq!(result.to_vec().unwrap(), [6; 8]);
    drop((result, stream, other, context));
    fake.assert_clean();
}

#[test]
fn callers_can_have_things_kept() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        stream.keep_for_graph(buffer.owner())?;
        launch(&kernel, stream, &buffer)
    })
    .unwrap();
    drop(buffer);
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    drop((graph, kernel, stream, context));
    fake.assert_clean();
}

#[test]
fn a_capture_ends_whatever_happens_in_it() {
    let (fake, context, stream) = open();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let failed: Result<Graph, DriverError> =
        Graph::capture(&stream, |_| Err(DriverError::NoDevice));
    assert!(matches!(failed, Err(DriverError::NoDevice)));
    assert!(!stream.is_capturing().unwrap());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        Graph::capture::<DriverError>(&stream, |_| panic!("in a capture"))
    }));
    assert!(panicked.is_err());
    assert!(!stream.is_capturing().unwrap());
    assert_eq!(buffer.to_vec().unwrap(), [0; 8]);
    drop((buffer, stream, context));
    fake.assert_clean();
}

#[test]
fn what_a_capture_forbids_is_refused_without_breaking_it() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        let refused = [
            stream.synchronize().unwrap_err(),
            stream.query().unwrap_err(),
            buffer.to_vec().unwrap_err(),
            buffer.copy_from_slice(&[0; 8]).unwrap_err(),
            DeviceBuffer::<u32>::zeroed(stream, 1).unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, DriverError::Capturing { .. }), "{error}");
        }
        buffer.as_slice_mut().fill_bytes(0)?;
        launch(&kernel, stream, &buffer)
    })
    .unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
    drop((graph, buffer, kernel, stream, context));
    fake.assert_clean();
}

#[test]
fn a_capture_within_a_capture_is_an_error() {
    let (fake, context, stream) = open();
    let outer = Graph::capture::<DriverError>(&stream, |stream| {
        Graph::capture::<DriverError>(stream, |_| Ok(())).map(drop)
    });
    assert_eq!(
        outer.unwrap_err().code(),
        Some(CUresult::ERROR_ILLEGAL_STATE)
    );
    assert!(!stream.is_capturing().unwrap());
    drop((stream, context));
    fake.assert_clean();
}

#[test]
fn a_forked_stream_joins_the_capture() {
    let (fake, context, stream) = open();
    let side = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        side.wait_for(stream)?;
        launch(&kernel, &side, &buffer)?;
        stream.wait_for(&side)
    })
    .unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0; 8]);
    graph.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
    drop((graph, buffer, kernel, side, stream, context));
    fake.assert_clean();
}

#[test]
fn an_error_in_a_replay_names_the_graphs_kernels() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let graph =
        Graph::capture::<DriverError>(&stream, |stream| launch(&kernel, stream, &buffer)).unwrap();
    fake.fail_kernel(CUresult::ERROR_LAUNCH_FAILED.0);
    graph.launch(&stream).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(
        error.to_string().contains("kernel increment was running"),
        "{error}"
    );
}

#[test]
fn a_graph_launched_on_two_branches_of_a_capture_runs_once_at_a_time() {
    let (fake, context, stream) = open();
    let side = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let part =
        Graph::capture::<DriverError>(&stream, |stream| launch(&kernel, stream, &buffer)).unwrap();
    let whole = Graph::capture::<DriverError>(&stream, |stream| part.launch(stream)).unwrap();
    // Graphs that share a part, on three branches, with a thread on one of them.
    let outer = Graph::capture::<DriverError>(&stream, |stream| {
        let third = Stream::new(&context)?;
        side.wait_for(stream)?;
        third.wait_for(stream)?;
        part.launch(stream)?;
        std::thread::scope(|scope| scope.spawn(|| whole.launch(&side)).join().unwrap())?;
        part.launch(&third)?;
        whole.launch(stream)?;
        stream.wait_for(&third)?;
        stream.wait_for(&side)
    })
    .unwrap();
    assert_eq!(fake.violations(), Vec::<String>::new());
    outer.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [4; 8]);
    drop((outer, whole, part, buffer, kernel, side, stream, context));
    fake.assert_clean();
}

#[test]
fn a_launch_fails_in_a_capture_without_losing_the_order_of_others() {
    let (fake, context, stream) = open();
    let side = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let part =
        Graph::capture::<DriverError>(&stream, |stream| launch(&kernel, stream, &buffer)).unwrap();
    let outer = Graph::capture::<DriverError>(&stream, |stream| {
        side.wait_for(stream)?;
        part.launch(stream)?;
        fake.fail(Some("cuGraphLaunch"), 1, CUresult::ERROR_OUT_OF_MEMORY.0);
        assert!(part.launch(stream).unwrap_err().is_out_of_memory());
        part.launch(&side)?;
        stream.wait_for(&side)
    })
    .unwrap();
    outer.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [2; 8]);
    drop((outer, part, buffer, kernel, side, stream, context));
    fake.assert_clean();
}

#[test]
fn graphs_that_share_a_part_follow_one_another() {
    let (fake, context, stream) = open();
    let streams = [(); 3].map(|()| Stream::new(&context).unwrap());
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    let part =
        Graph::capture::<DriverError>(&stream, |stream| launch(&kernel, stream, &buffer)).unwrap();
    let wholes = [(); 2]
        .map(|()| Graph::capture::<DriverError>(&stream, |stream| part.launch(stream)).unwrap());
    let outer = Graph::capture::<DriverError>(&stream, |stream| wholes[0].launch(stream)).unwrap();
    stream.synchronize().unwrap();
    let [first, second, third] = &streams;
    outer.launch(first).unwrap();
    part.launch(second).unwrap();
    wholes[1].launch(third).unwrap();
    part.launch(first).unwrap();
    part.launch(second).unwrap();
    wholes[0].launch(third).unwrap();
    // Whichever stream is waited for first, what comes before runs before.
    third.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 6);
    assert_eq!(buffer.to_vec().unwrap(), [6; 8]);
    // In a capture nothing of another stream can be waited for.
    let captured = Graph::capture::<DriverError>(third, |_| part.launch(first));
    assert!(matches!(
        captured.unwrap_err(),
        DriverError::Capturing { .. }
    ));
    drop((
        outer, wholes, part, buffer, kernel, streams, stream, context,
    ));
    fake.assert_clean();
}
