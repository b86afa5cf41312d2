//! Capture and replay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use warptile_driver::sys::{CUresult, CUstream};
use warptile_driver::{
    Context, DeviceBuffer, DriverError, Event, Graph, LaunchConfig, Result, Stream,
};
use warptile_fake_cuda::Kind;

use crate::foreign::Foreign;
use crate::kernel::Increment;
use crate::{increment, launch, open, open_two};

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
fn a_launch_costs_calls_for_each_stream_of_kept_buffers() {
    let (fake, context, stream) = open();
    let homes = [(); 3].map(|()| Stream::new(&context).unwrap());
    for (homes, calls) in [(0, 1), (1, 9), (3, 19)].map(|(count, calls)| (&homes[..count], calls)) {
        let buffers = homes
            .iter()
            .map(|home| DeviceBuffer::<u32>::zeroed(home, 8).unwrap());
        let buffers: Vec<_> = buffers.collect();
        let graph = Graph::capture::<DriverError>(&stream, |stream| {
            let mut owners = buffers.iter().map(DeviceBuffer::owner);
            owners.try_for_each(|owner| stream.keep_for_graph(owner))
        })
        .unwrap();
        // The first launch asks whether the capture is over.
        graph.launch(&stream).unwrap();
        let launch = context.within(|| {
            let entered = fake.calls();
            graph.launch(&stream)?;
            Ok::<_, DriverError>(fake.calls() - entered)
        });
        assert_eq!(launch.unwrap(), calls);
    }
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

/// A graph is ordered with the buffers of all devices that its capture forked onto, and keeps what it needs there.
#[test]
fn a_capture_forks_onto_another_device() -> Result<()> {
    let (fake, contexts, streams) = open_two();
    let [first, second] = &streams;
    let home = Stream::new(&contexts[1])?;
    let back = Stream::new(&contexts[0])?;
    let mut source = DeviceBuffer::<u32>::zeroed(&home, 8)?;
    let mut target = DeviceBuffer::<u32>::zeroed(second, 8)?;
    let mut elsewhere = DeviceBuffer::<u32>::zeroed(&Stream::new(&contexts[0])?, 8)?;
    let kernel = increment(&contexts[1])?;
    contexts.iter().try_for_each(Context::synchronize)?;
    let graph = Graph::capture::<DriverError>(first, |first| {
        second.wait_for(first)?;
        target.copy_from(&source)?;
        second.keep_for_graph(target.owner())?;
        launch(&kernel, second, &target)?;
        // From the other device onto one more stream of this one.
        back.wait_for(second)?;
        back.keep_for_graph(elsewhere.owner())?;
        launch(&increment(&contexts[0])?, &back, &elsewhere)?;
        second.wait_for(&back)?;
        first.wait_for(second)
    })?;
    // Queued, not run.
    source.as_slice_mut().fill_bytes(7)?;
    elsewhere.as_slice_mut().fill_bytes(0)?;
    drop((source, kernel));
    for _ in 0..2 {
        graph.launch(first)?;
    }
    first.synchronize()?;
    assert_eq!(fake.launches().len(), 4);
    assert_eq!(target.to_vec()?, [0x0707_0708; 8]);
    assert_eq!(elsewhere.to_vec()?, [2; 8]);
    // Both streams are as before, and the other device's later captures are its own.
    let own = Graph::capture::<DriverError>(second, |_| target.as_slice_mut().fill_bytes(0))?;
    own.launch(second)?;
    assert_eq!(target.to_vec()?, [0; 8]);
    // The module of the other device waits for the graph, which was launched on this one.
    graph.launch(first)?;
    drop((own, graph));
    assert_eq!(fake.launches().len(), 6);
    drop((home, back, target, elsewhere, streams, contexts));
    fake.assert_clean();
    Ok(())
}

/// Others may take streams of theirs into a capture of ours, also those of another device.
#[test]
fn a_stream_that_others_took_into_a_capture_has_its_things_kept_by_the_graph() -> Result<()> {
    let (fake, contexts, streams) = open_two();
    let foreign = Foreign::new(&contexts[1]);
    let borrowed = foreign.borrowed();
    let mut target = DeviceBuffer::<u32>::zeroed(&streams[1], 8)?;
    contexts.iter().try_for_each(Context::synchronize)?;
    let wait_for = |stream: CUstream, other: &Stream| {
        let (event, api) = (
            Event::new(other.context()).unwrap(),
            contexts[0].driver().api(),
        );
        let _current = other.context().enter().unwrap();
        // SAFETY: the event and the streams are alive.
        unsafe {
            let recorded = (api.event_record)(event.raw(), other.raw());
            assert_eq!(recorded, CUresult::SUCCESS);
            let waits = (api.stream_wait_event)(stream, event.raw(), 0);
            assert_eq!(waits, CUresult::SUCCESS);
        }
    };
    let graph = Graph::capture::<DriverError>(&streams[0], |first| {
        wait_for(foreign.raw, first);
        borrowed.keep_for_graph(target.owner())?;
        launch(&increment(&contexts[1])?, &borrowed, &target)?;
        wait_for(first.raw(), &borrowed);
        Ok(())
    })?;
    target.as_slice_mut().fill_bytes(7)?;
    graph.launch(&streams[0])?;
    assert_eq!(target.to_vec()?, [0x0707_0708; 8]);
    drop((graph, target, borrowed, foreign, streams, contexts));
    fake.assert_clean();
    Ok(())
}

#[test]
fn a_capture_ends_behind_those_who_act_on_it() {
    let (fake, context, stream) = open();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 8).unwrap();
    stream.synchronize().unwrap();
    let (config, params) = (LaunchConfig::new([1; 3], [8, 1, 1]), Increment::of(&buffer));
    let [(asked, has_asked), (end, ends)] = [(); 2].map(|()| mpsc::channel());
    let graph = thread::scope(|scope| {
        let (kernel, stream) = (&kernel, &stream);
        let user = scope.spawn(move || {
            ends.recv().unwrap();
            let at = stream.launching().unwrap();
            assert!(at.capture().is_some());
            asked.send(()).unwrap();
            thread::sleep(Duration::from_millis(100));
            // SAFETY: the parameter block is the kernel's; the buffer is the stream's and outlives the graph.
            unsafe { kernel.launch_at(&at, &config, &params) }.unwrap();
        });
        let graph = Graph::capture::<DriverError>(stream, |_| {
            end.send(()).unwrap();
            has_asked.recv().unwrap();
            Ok(())
        });
        user.join().unwrap();
        graph.unwrap()
    });
    stream.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 0, "launched, not captured");
    graph.launch(&stream).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
    drop((graph, buffer, kernel, stream, context));
    fake.assert_clean();
}

#[test]
fn a_capture_ends_though_its_thread_still_holds_streams() {
    let (fake, context, stream) = open();
    let mut held = None;
    let graph = Graph::capture::<DriverError>(&stream, |_| {
        held = Some(stream.hold());
        Ok(())
    });
    drop((graph.unwrap(), held));
    Graph::capture::<DriverError>(&stream, |_| Ok(())).unwrap();
    drop((stream, context));
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
