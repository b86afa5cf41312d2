//! Captures of ours and of others: what is dropped, kept and attached while one is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use warptile_driver::sys::CUresult;
use warptile_driver::{
    DeviceBuffer, DriverError, Event, Graph, Module, PinnedBuffer, Result, Scratch, Stream,
};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::foreign::{Foreign, MODES};
use crate::{PTX, context, increment, launch, open};

fn ones(stream: &Stream) -> DeviceBuffer<u32> {
    DeviceBuffer::from_slice(stream, &[1; 8]).unwrap()
}

#[test]
fn a_buffer_dropped_in_a_capture_of_its_stream_is_freed_when_that_ends() {
    for pools in [true, false] {
        let fake = FakeDriver::open();
        fake.set_memory_pools(pools);
        let context = context(&fake).unwrap();
        let stream = Stream::new(&context).unwrap();
        let mut buffers = Some([ones(&stream), ones(&stream)]);
        let graph = Graph::capture::<DriverError>(&stream, |_| {
            if let Some([here, there]) = buffers.take() {
                drop(here);
                thread::spawn(move || drop(there)).join().unwrap();
            }
            assert_eq!(fake.live(Kind::DeviceMemory), 2);
            Ok(())
        })
        .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(fake.live(Kind::DeviceMemory), 0);
        graph.launch(&stream).unwrap();
        drop((graph, stream, context));
        fake.assert_clean();
    }
}

#[test]
fn a_buffer_of_another_stream_is_freed_at_once_though_a_capture_is_under_way() {
    let (fake, context, stream) = open();
    let other = Stream::new(&context).unwrap();
    let mut buffers = Some([ones(&other), ones(&other)]);
    let graph = Graph::capture::<DriverError>(&stream, |_| {
        if let Some([here, there]) = buffers.take() {
            drop(here);
            thread::spawn(move || drop(there)).join().unwrap();
        }
        assert_eq!(fake.live(Kind::DeviceMemory), 0);
        Ok(())
    })
    .unwrap();
    drop((graph, stream, other, context));
    fake.assert_clean();
}

#[test]
fn a_buffer_of_a_stream_that_a_capture_forked_onto_is_freed_after_it() {
    let (fake, context, stream) = open();
    let mut forked = Some(Stream::new(&context).unwrap());
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        if let Some(side) = forked.take() {
            let buffer = ones(&side);
            side.wait_for(stream)?;
            drop(buffer);
            stream.wait_for(&side)?;
            // The last handle of the stream: it must not be destroyed within the capture.
            drop(side);
        }
        assert_eq!(fake.live(Kind::DeviceMemory), 1);
        assert_eq!(fake.live(Kind::Streams), 2);
        Ok(())
    })
    .unwrap();
    assert_eq!(fake.live(Kind::DeviceMemory), 0);
    assert_eq!(fake.live(Kind::Streams), 1);
    drop((graph, stream, context));
    fake.assert_clean();
}

#[test]
fn no_thread_frees_into_a_capture_that_begins_meanwhile() {
    const ROUNDS: usize = 300;
    let (fake, context, stream) = open();
    let buffers: Vec<_> = (0..ROUNDS).map(|_| ones(&stream)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for buffer in buffers {
                drop(buffer);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            Graph::capture::<DriverError>(&stream, |_| Ok(())).unwrap();
        }
    });
    stream.synchronize().unwrap();
    assert_eq!(fake.live(Kind::DeviceMemory), 0);
    drop((stream, context));
    fake.assert_clean();
}

#[test]
fn a_stream_that_is_held_enters_no_capture() {
    let (fake, context, stream) = open();
    let held = stream.hold();
    let refused = Graph::capture::<DriverError>(&stream, |_| Ok(()));
    assert!(matches!(refused, Err(DriverError::Held { .. })));
    let began = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let work = |_: &Stream| {
                began.store(true, Ordering::SeqCst);
                Ok(())
            };
            Graph::capture::<DriverError>(&stream, work).unwrap();
        });
        for _ in 0..100 {
            thread::yield_now();
            assert_eq!(stream.capture().unwrap(), None);
        }
        assert!(!began.load(Ordering::SeqCst));
        drop(held);
    });
    assert!(began.load(Ordering::SeqCst));
    drop((stream, context));
    fake.assert_clean();
}

#[test]
fn what_is_dropped_in_somebody_elses_capture_is_freed_after_it() {
    for mode in MODES {
        for pools in [true, false] {
            let fake = FakeDriver::open();
            fake.set_memory_pools(pools);
            let context = context(&fake).unwrap();
            let foreign = Foreign::new(&context);
            let stream = foreign.borrowed();
            let (first, second) = (ones(&stream), ones(&stream));
            foreign.begin(mode);
            drop(first);
            thread::spawn(move || drop(second)).join().unwrap();
            assert_eq!(fake.live(Kind::DeviceMemory), 2);
            let refused = DeviceBuffer::<u8>::uninit(&stream, 1).unwrap_err();
            assert!(
                matches!(refused, DriverError::Capturing { .. }),
                "{refused}"
            );
            drop(foreign.end().expect("the capture is whole"));
            // The next who comes by frees it.
            stream.synchronize().unwrap();
            assert_eq!(fake.live(Kind::DeviceMemory), 0, "{mode:?}");
            drop((stream, foreign, context));
            fake.assert_clean();
        }
    }
}

#[test]
fn a_borrowed_stream_may_be_given_back_in_the_middle_of_a_capture() {
    let (fake, context, owned) = open();
    let foreign = Foreign::new(&context);
    let stream = foreign.borrowed();
    let buffer = ones(&stream);
    stream
        .attached::<Scratch, DriverError>(|| Scratch::zeroed(&context, 64))
        .unwrap();
    foreign.begin(MODES[0]);
    drop((buffer, stream));
    drop(foreign.end().expect("the capture is whole"));
    assert_eq!(fake.live(Kind::DeviceMemory), 2);
    context.synchronize().unwrap();
    assert_eq!(fake.live(Kind::DeviceMemory), 0);
    drop((foreign, owned, context));
    fake.assert_clean();
}

#[test]
fn a_stream_tells_its_capture() {
    let (fake, context, stream) = open();
    let side = Stream::new(&context).unwrap();
    let foreign = Foreign::new(&context);
    let borrowed = foreign.borrowed();
    assert_eq!(stream.capture().unwrap(), None);
    assert_eq!(borrowed.capture().unwrap(), None);
    let mut seen = Vec::new();
    for _ in 0..2 {
        Graph::capture::<DriverError>(&stream, |stream| {
            let id = stream.capture()?;
            assert_eq!(side.capture()?, None);
            side.wait_for(stream)?;
            assert_eq!(side.capture()?, id);
            stream.wait_for(&side)?;
            seen.extend(id);
            Ok(())
        })
        .unwrap();
        assert_eq!(side.capture().unwrap(), None);
    }
    for mode in MODES {
        foreign.begin(mode);
        seen.extend(borrowed.capture().unwrap());
        // A stream of ours enters it, too.
        side.wait_for(&borrowed).unwrap();
        assert_eq!(side.capture().unwrap().as_ref(), seen.last());
        borrowed.wait_for(&side).unwrap();
        drop(foreign.end().expect("the capture is whole"));
        assert_eq!(side.capture().unwrap(), None);
    }
    assert_eq!(seen.len(), 5);
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), 5);
    drop((borrowed, foreign, side, stream, context));
    fake.assert_clean();
}

#[test]
fn asking_for_the_capture_costs_a_call_only_where_the_answer_is_not_known() {
    let (fake, context, stream) = open();
    let foreign = Foreign::new(&context);
    let borrowed = foreign.borrowed();
    let asked = |stream: &Stream| {
        let _current = context.enter().unwrap();
        let before = (fake.calls(), fake.calls_of("cuStreamGetCaptureInfo_v2"));
        stream.capture().unwrap();
        let calls = fake.calls() - before.0;
        (calls, fake.calls_of("cuStreamGetCaptureInfo_v2") - before.1)
    };
    assert_eq!(asked(&stream), (0, 0));
    // One look at what is current, and the question.
    assert_eq!(asked(&borrowed), (2, 1));
    Graph::capture::<DriverError>(&stream, |stream| {
        assert_eq!(asked(stream).1, 1);
        Ok(())
    })
    .unwrap();
    // The first answer after the capture is remembered.
    assert_eq!(asked(&stream).1, 1);
    assert_eq!(asked(&stream), (0, 0));
}

#[test]
fn a_broken_capture_is_an_error_and_nothing_is_freed_into_it() {
    let (fake, context, owned) = open();
    let foreign = Foreign::new(&context);
    let stream = foreign.borrowed();
    let buffer = ones(&stream);
    foreign.begin(MODES[0]);
    // SAFETY: breaks the capture, and touches nothing else.
    unsafe { (context.driver().api().stream_synchronize)(foreign.raw) };
    let error = stream.capture().unwrap_err();
    assert_eq!(
        error.code(),
        Some(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED)
    );
    drop(buffer);
    assert!(foreign.end().is_err());
    stream.synchronize().unwrap();
    drop((stream, foreign, owned, context));
    fake.assert_clean();
}

#[test]
fn each_capture_keeps_its_own() {
    let (fake, context, stream) = open();
    let inner_stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let (outer_buffer, inner_buffer) = (ones(&stream), ones(&inner_stream));
    let mut inner = None;
    let outer = Graph::capture::<DriverError>(&stream, |stream| {
        stream.keep_for_graph(outer_buffer.owner())?;
        launch(&kernel, stream, &outer_buffer)?;
        inner = Some(Graph::capture::<DriverError>(&inner_stream, |stream| {
            stream.keep_for_graph(inner_buffer.owner())?;
            launch(&kernel, stream, &inner_buffer)
        })?);
        Ok(())
    })
    .unwrap();
    drop((kernel, outer_buffer, inner_buffer));
    assert_eq!(fake.live(Kind::DeviceMemory), 2);
    inner.as_ref().unwrap().launch(&inner_stream).unwrap();
    drop(inner);
    inner_stream.synchronize().unwrap();
    // The other capture, which was under way all the time, has none of it.
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    outer.launch(&stream).unwrap();
    drop(outer);
    stream.synchronize().unwrap();
    context.synchronize().unwrap();
    drop((stream, inner_stream, context));
    fake.assert_clean();
}

#[test]
fn what_a_forked_stream_keeps_is_the_graphs() {
    let (fake, context, stream) = open();
    let side = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = ones(&side);
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        side.wait_for(stream)?;
        side.keep_for_graph(buffer.owner())?;
        launch(&kernel, &side, &buffer)?;
        stream.wait_for(&side)
    })
    .unwrap();
    drop((kernel, buffer));
    for _ in 0..2 {
        graph.launch(&stream).unwrap();
    }
    drop(graph);
    context.synchronize().unwrap();
    assert_eq!(fake.launches().len(), 2);
    drop((side, stream, context));
    fake.assert_clean();
}

#[test]
fn a_module_dropped_in_a_capture_breaks_nothing_and_goes_with_the_next_synchronization() {
    let (fake, context, stream) = open();
    let foreign = Foreign::new(&context);
    let mut modules: Vec<Module> = (0..5)
        .map(|_| Module::load(&context, PTX).unwrap())
        .collect();
    let graph = Graph::capture::<DriverError>(&stream, |_| {
        drop(modules.pop());
        Ok(())
    });
    graph.unwrap();
    for mode in MODES {
        foreign.begin(mode);
        drop(modules.pop());
        drop(foreign.end().expect("the capture is whole"));
    }
    drop(modules);
    assert_eq!(fake.live(Kind::Modules), 5);
    context.synchronize().unwrap();
    assert_eq!(fake.live(Kind::Modules), 0);
    drop((foreign, stream, context));
    fake.assert_clean();
}

/// The driver calls waits, questions and graphs "potentially unsafe", for every stream.
#[test]
fn waits_and_graphs_of_ours_break_no_capture_of_somebody_else() {
    let (fake, context, stream) = open();
    let foreign = Foreign::new(&context);
    let work = || -> Result<()> {
        let mut buffer = ones(&stream);
        assert!(stream.query().is_ok());
        stream.synchronize()?;
        let (start, end) = (Event::timed(&context)?, Event::timed(&context)?);
        stream.record(&start)?;
        stream.record(&end)?;
        assert!(end.query().is_ok());
        end.synchronize()?;
        end.elapsed_since(&start)?;
        let pinned = || PinnedBuffer::zeroed(&context, 8);
        buffer.as_slice().copy_to_pinned(pinned()?)?.wait()?;
        drop(buffer.as_slice().copy_to_pinned(pinned()?)?);
        let graph = Graph::capture(&stream, |_| buffer.as_slice_mut().fill_bytes(0))?;
        graph.launch(&stream)?;
        assert_eq!(buffer.to_vec()?, [0; 8]);
        drop(graph);
        stream.synchronize()
    };
    for mode in MODES {
        foreign.begin(mode);
        work().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| work().unwrap());
        });
        drop(foreign.end().expect("the capture is whole"));
    }
    drop((foreign, stream, context));
    fake.assert_clean();
}

#[test]
fn a_launch_into_somebody_elses_capture_keeps_its_kernel_for_good() {
    for mode in MODES {
        let (fake, context, _owned) = open();
        let foreign = Foreign::new(&context);
        let stream = foreign.borrowed();
        let kernel = increment(&context).unwrap();
        let buffer = ones(&stream);
        foreign.begin(mode);
        launch(&kernel, &stream, &buffer).unwrap();
        let graph = foreign.end().expect("the capture is whole");
        drop(kernel);
        context.synchronize().unwrap();
        graph.launch(&foreign);
        assert_eq!(buffer.to_vec().unwrap(), [2; 8]);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_stream_has_one_value_of_each_type_as_long_as_it_lives() {
    let (fake, context, stream) = open();
    let (one, other) = (Stream::new(&context).unwrap(), stream.clone());
    let workspace = |stream: &Stream| {
        stream
            .attached::<Scratch, DriverError>(|| Scratch::zeroed(&context, 64))
            .unwrap()
    };
    let first = workspace(&stream);
    assert!(Arc::ptr_eq(&first, &workspace(&other)));
    assert!(!Arc::ptr_eq(&first, &workspace(&one)));
    assert_eq!((fake.live(Kind::DeviceMemory), first.byte_len()), (2, 64));
    let number = stream.attached::<usize, DriverError>(|| Ok(7)).unwrap();
    assert_eq!(*number, 7);
    let failed = one.attached::<usize, DriverError>(|| Err(DriverError::NoDevice));
    assert!(matches!(failed, Err(DriverError::NoDevice)));
    // It is not freed under a kernel that still runs.
    let kernel = increment(&context).unwrap();
    // SAFETY: the memory lives until the stream's work is done.
    let borrowed =
        unsafe { DeviceBuffer::<u32>::borrow(&stream, first.pointer(), 16, Arc::new(())) };
    launch(&kernel, &stream, &borrowed.unwrap()).unwrap();
    drop((first, kernel, stream, other));
    assert_eq!(fake.launches().len(), 1);
    assert_eq!(fake.live(Kind::DeviceMemory), 1);
    drop((one, context));
    fake.assert_clean();
}

#[test]
fn a_capture_has_one_value_of_each_type_on_each_stream() {
    let (fake, context, stream) = open();
    let side = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let workspace = |stream: &Stream| {
        let id = stream.capture().unwrap().expect("a capture is under way");
        stream.attached_in::<Scratch, DriverError>(id, || Scratch::zeroed(&context, 64))
    };
    let graph = Graph::capture::<DriverError>(&stream, |stream| {
        side.wait_for(stream)?;
        let (here, there) = (workspace(stream)?, workspace(&side)?);
        assert!(Arc::ptr_eq(&here, &workspace(stream)?));
        assert!(!Arc::ptr_eq(&here, &there));
        for (stream, memory) in [(stream, here), (&side, there)] {
            // SAFETY: the graph keeps the memory.
            let buffer =
                unsafe { DeviceBuffer::<u32>::borrow(stream, memory.pointer(), 16, Arc::new(())) }?;
            launch(&kernel, stream, &buffer)?;
        }
        stream.wait_for(&side)
    })
    .unwrap();
    assert_eq!(fake.live(Kind::DeviceMemory), 2);
    graph.launch(&stream).unwrap();
    // It waits for its last launch.
    drop(graph);
    assert_eq!(fake.launches().len(), 2);
    assert_eq!(fake.live(Kind::DeviceMemory), 0);
    drop((kernel, side, stream, context));
    fake.assert_clean();
}

#[test]
fn what_is_attached_to_somebody_elses_capture_stays() {
    for mode in MODES {
        let (fake, context, owned) = open();
        let foreign = Foreign::new(&context);
        let stream = foreign.borrowed();
        foreign.begin(mode);
        let id = stream.capture().unwrap().expect("a capture is under way");
        let workspace = || {
            stream
                .attached_in(id, || context.permanent_zeroed(64))
                .unwrap()
        };
        let address = workspace();
        assert!(Arc::ptr_eq(&address, &workspace()));
        drop(foreign.end().expect("the capture is whole"));
        drop(stream);
        context.synchronize().unwrap();
        assert_eq!(fake.live(Kind::DeviceMemory), 1);
        drop((foreign, owned, context));
        // Nobody frees it before the CUDA context ends.
        assert_eq!(fake.calls_of("cuMemFree_v2"), 0);
        fake.assert_clean_but_for(1);
    }
}

#[test]
fn permanent_memory_is_made_outside_of_any_capture_and_holds_zeros() {
    let (fake, context, stream) = open();
    let foreign = Foreign::new(&context);
    let zeros = |pointer: u64| {
        // SAFETY: the memory outlives the context.
        let buffer = unsafe { DeviceBuffer::<u8>::borrow(&stream, pointer, 1000, Arc::new(())) };
        assert_eq!(buffer.unwrap().to_vec().unwrap(), [0; 1000]);
    };
    let mut made = vec![context.permanent_zeroed(1000).unwrap()];
    for mode in MODES {
        foreign.begin(mode);
        made.push(context.permanent_zeroed(1000).unwrap());
        let there = thread::scope(|scope| {
            let thread = scope.spawn(|| context.permanent_zeroed(1000).unwrap());
            thread.join().unwrap()
        });
        made.push(there);
        drop(foreign.end().expect("the capture is whole"));
    }
    Graph::capture::<DriverError>(&stream, |_| {
        made.push(context.permanent_zeroed(1000)?);
        Ok(())
    })
    .unwrap();
    made.iter().for_each(|&pointer| zeros(pointer));
    assert_eq!(context.permanent_zeroed(0).unwrap(), 0);
    let too_much = context.permanent_zeroed(2 << 30).unwrap_err();
    assert!(too_much.is_out_of_memory(), "{too_much}");
    drop((foreign, stream, context));
    fake.assert_clean_but_for(made.len());
}

#[test]
fn pinned_memory_may_be_had_and_dropped_in_any_capture() {
    let (fake, context, stream) = open();
    let foreign = Foreign::new(&context);
    let pinned = || drop(PinnedBuffer::from_slice(&context, &[1_u32; 8]).unwrap());
    for mode in MODES {
        foreign.begin(mode);
        pinned();
        drop(foreign.end().expect("the capture is whole"));
    }
    Graph::capture::<DriverError>(&stream, |_| {
        pinned();
        Ok(())
    })
    .unwrap();
    drop((foreign, stream, context));
    fake.assert_clean();
}
