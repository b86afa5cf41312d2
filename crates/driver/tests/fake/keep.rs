//! Values that graphs of others keep.

use std::sync::Arc;

use warptile_driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureStatus};
use warptile_driver::{Context, DeviceBuffer, Stream};
use warptile_fake_cuda::{FakeDriver, Kind};

use crate::foreign::{Foreign, MODES};
use crate::{context, increment, launch};

/// The graph that a stream is being captured into.
fn graph_of(context: &Context, stream: CUstream) -> CUgraph {
    let (mut status, mut id, mut graph) = (CUstreamCaptureStatus::NONE, 0, CUgraph::NULL);
    let (mut dependencies, mut count) = (std::ptr::null(), 0);
    let ask = context.driver().api().stream_get_capture_info;
    // SAFETY: all outlive the call, and the stream is live.
    let code = unsafe {
        ask(
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut dependencies,
            &mut count,
        )
    };
    assert_eq!(
        (code, status),
        (CUresult::SUCCESS, CUstreamCaptureStatus::ACTIVE)
    );
    graph
}

#[test]
fn a_graph_keeps_a_value_until_its_last_launch_has_ended() {
    for mode in MODES {
        let fake = FakeDriver::open();
        let context = context(&fake).unwrap();
        let foreign = Foreign::new(&context);
        let stream = foreign.borrowed();
        let value = Arc::new(());
        let kept = || Arc::strong_count(&value) == 2;
        let api = context.driver().api();
        let current = context.enter().unwrap();
        // SAFETY: the handles are the driver's, and dropping the value is nothing to it.
        unsafe {
            foreign.begin(mode);
            let graph = graph_of(&context, foreign.raw);
            context
                .keep_with_graph(graph, Box::new(value.clone()))
                .unwrap();
            let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
            let expect = |code| assert_eq!(code, CUresult::SUCCESS);
            expect((api.stream_end_capture)(foreign.raw, &mut graph));
            expect((api.graph_instantiate_with_flags)(&mut exec, graph, 0));
            expect((api.graph_destroy)(graph));
            expect((api.graph_launch)(exec, foreign.raw));
            assert!(kept());
            expect((api.graph_exec_destroy)(exec));
            assert!(kept(), "the launch has not ended");
        }
        stream.synchronize().unwrap();
        assert!(!kept());
        drop(current);
        drop((stream, foreign, context));
        fake.assert_clean();
    }
}

#[test]
fn a_broken_capture_keeps_nothing() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let foreign = Foreign::new(&context);
    let value = Arc::new(());
    let current = context.enter().unwrap();
    foreign.begin(MODES[0]);
    let graph = graph_of(&context, foreign.raw);
    // SAFETY: the graph is the capture's; the wait breaks that and touches nothing else.
    unsafe {
        context
            .keep_with_graph(graph, Box::new(value.clone()))
            .unwrap();
        (context.driver().api().stream_synchronize)(foreign.raw);
    }
    assert!(foreign.end().is_err());
    assert_eq!(Arc::strong_count(&value), 1);
    drop(current);
    drop((foreign, context));
    fake.assert_clean();
}

#[test]
fn what_is_not_kept_is_dropped_with_an_error() {
    for symbol in ["cuUserObjectCreate", "cuGraphRetainUserObject"] {
        let fake = FakeDriver::open();
        let context = context(&fake).unwrap();
        let foreign = Foreign::new(&context);
        let stream: Stream = foreign.borrowed();
        let kernel = increment(&context).unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[1_u32; 8]).unwrap();
        let value = Arc::new(());
        let current = context.enter().unwrap();
        foreign.begin(MODES[0]);
        let graph = graph_of(&context, foreign.raw);
        fake.fail(Some(symbol), 1, CUresult::ERROR_OUT_OF_MEMORY.0);
        // SAFETY: the graph is the capture's.
        let refused = unsafe { context.keep_with_graph(graph, Box::new(value.clone())) };
        assert!(refused.unwrap_err().is_out_of_memory());
        assert_eq!(Arc::strong_count(&value), 1);
        assert_eq!(fake.live(Kind::UserObjects), 0);
        launch(&kernel, &stream, &buffer).unwrap();
        drop(foreign.end().expect("the capture is whole"));
        assert_eq!(fake.violations(), Vec::<String>::new());
        drop(current);
    }
}
