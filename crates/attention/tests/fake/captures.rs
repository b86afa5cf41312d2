//! Captures, ours and other people's: what each graph keeps, and that nothing that may overlap shares a workspace.

use std::collections::HashSet;

use warptile::spec::Call;
use warptile::{Attention, ElementType, Error, Layout};
use warptile_driver::{Graph, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::calls::on_device;
use crate::foreign::{Foreign, MODES};
use crate::{Buffers, MAPPED, PLAIN, block, gpu, kernel, ones, ones_on};

/// 400 tiles, more than the CTAs that stay.
fn call() -> Call {
    let tensor = Layout::bshd([8, 300, 10, 64]);
    Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
        .build()
        .unwrap()
}

fn counters(fake: &FakeDriver) -> Vec<u64> {
    fake.launches()
        .iter()
        .map(|launch| block(launch).work.counter)
        .collect()
}

/// As the layers of a model take turns: then each one's numbers were used longest ago.
#[test]
fn the_numbers_of_many_layers_stay_on_the_device() {
    let fake = FakeDriver::open();
    {
        let (backend, x) = ones(&fake, [1, 64, 2, 64]);
        let mut out = ones_on(&backend, [1, 64, 2, 64]);
        let layer = |layer: usize| Attention::new().sinks(&[layer as f32; 2]);
        for sinks in 0..200 {
            layer(sinks)
                .forward_into(&x, (&x, &x), &mut out, None)
                .unwrap();
        }
        let stream = backend.gpu().unwrap().stream();
        Graph::capture::<Error>(stream, |_| {
            layer(0)
                .forward_into(&x, (&x, &x), &mut out, None)
                .map(drop)
        })
        .unwrap();
    }
    fake.assert_clean();
}

#[test]
fn two_graphs_and_a_direct_launch_share_no_counter() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = call();
        let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&stream, &call);
        let mut capture = || {
            Graph::capture::<Error>(&stream, |stream| {
                prepared.launch(stream, &call, &buffers.bindings())
            })
            .unwrap()
        };
        let graphs = [capture(), capture()];
        let other = Stream::new(gpu.context()).unwrap();
        prepared
            .launch(&stream, &call, &buffers.bindings())
            .unwrap();
        graphs[0].launch(&stream).unwrap();
        graphs[1].launch(&other).unwrap();
        prepared.launch(&other, &call, &buffers.bindings()).unwrap();
        prepared
            .launch(&stream, &call, &buffers.bindings())
            .unwrap();
        stream.synchronize().unwrap();
        other.synchronize().unwrap();
        let counters = counters(&fake);
        assert_eq!(counters.len(), 5);
        assert!(!counters.contains(&0));
        // Two graphs and two streams; the launches of a stream share one.
        assert_eq!(counters.iter().collect::<HashSet<_>>().len(), 4);
    }
    fake.assert_clean();
}

#[test]
fn streams_forked_in_one_capture_share_no_counter() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = call();
        let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let fork = Stream::new(gpu.context()).unwrap();
        let (mut here, mut there) = (Buffers::new(&stream, &call), Buffers::new(&stream, &call));
        let graph = Graph::capture::<Error>(&stream, |stream| {
            fork.wait_for(stream)?;
            prepared.launch(stream, &call, &here.bindings())?;
            prepared.launch(&fork, &call, &there.bindings())?;
            Ok(stream.wait_for(&fork)?)
        })
        .unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let counters = counters(&fake);
        assert_eq!(counters.len(), 2);
        assert_ne!(counters[0], counters[1]);
    }
    fake.assert_clean();
}

#[test]
fn a_graph_keeps_everything_it_uses() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let tensor = Layout::packed(100, 2, 64);
        let offsets = [0, 30, 100];
        let call = Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
            .packed(&offsets, &offsets)
            .build()
            .unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let graph = {
            let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
            let mut buffers = Buffers::new(&stream, &call);
            Graph::capture::<Error>(&stream, |stream| {
                prepared.launch(stream, &call, &buffers.bindings())
            })
            .unwrap()
        };
        // Buffers, offsets, workspace, kernel: nothing of ours is left but the graph.
        drop(gpu);
        for _ in 0..3 {
            graph.launch(&stream).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 3);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
    fake.assert_clean();
}

/// A buffer written on its own stream after the capture is seen by the graph's next launch, and one that the graph writes is
/// not read before.
#[test]
fn a_graph_is_ordered_with_the_streams_of_its_buffers() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let call = call();
        let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
        let stream = Stream::new(gpu.context()).unwrap();
        let home = Stream::new(gpu.context()).unwrap();
        let mut buffers = Buffers::new(&home, &call);
        let graph = Graph::capture::<Error>(&stream, |stream| {
            prepared.launch(stream, &call, &buffers.bindings())
        })
        .unwrap();
        buffers.q.as_slice_mut().fill_bytes(1).unwrap();
        graph.launch(&stream).unwrap();
        // The stand-in reports a race between streams that no event orders.
        buffers.q.as_slice_mut().fill_bytes(2).unwrap();
        drop(buffers);
        home.synchronize().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
    fake.assert_clean();
}

#[test]
fn somebody_elses_capture_outlives_what_was_launched_in_it() {
    for mode in MODES {
        let fake = FakeDriver::open();
        let gpu = gpu(&fake);
        let call = call();
        let theirs = Foreign::new(gpu.context());
        let borrowed = theirs.borrowed();
        let mut memory = Buffers::new(&borrowed, &call);
        borrowed.synchronize().unwrap();
        let graph = {
            let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
            theirs.begin(mode);
            prepared
                .launch(&borrowed, &call, &memory.bindings())
                .unwrap();
            theirs.end().unwrap()
        };
        let eager = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
        eager.launch(&borrowed, &call, &memory.bindings()).unwrap();
        drop((eager, gpu));
        graph.launch(&theirs);
        graph.launch(&theirs);
        borrowed.synchronize().unwrap();
        let counters = counters(&fake);
        assert_eq!(counters.len(), 3);
        assert!(!counters.contains(&0));
        assert_ne!(
            counters[0], counters[1],
            "the graph has a workspace of its own"
        );
        assert_eq!(counters[1], counters[2]);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }
}

/// Every replay uses the offsets of the captured launch, regardless of launches since.
#[test]
fn a_captured_packed_batch_keeps_its_offsets() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let tensor = Layout::packed(100, 2, 64);
    let call = |offsets: &[i32]| {
        Call::builder(&tensor, &tensor, &tensor, ElementType::F16)
            .packed(offsets, offsets)
            .build()
            .unwrap()
    };
    let (one, other) = (call(&[0, 50, 100]), call(&[0, 48, 98]));
    let prepared = gpu.prepare(one.problem(), &kernel(PLAIN)).unwrap();
    let theirs = Foreign::new(gpu.context());
    let borrowed = theirs.borrowed();
    let mut memory = Buffers::new(&borrowed, &one);
    borrowed.synchronize().unwrap();
    theirs.begin(MODES[0]);
    prepared
        .launch(&borrowed, &one, &memory.bindings())
        .unwrap();
    let graph = theirs.end().unwrap();
    for _ in 0..3 {
        prepared
            .launch(&borrowed, &other, &memory.bindings())
            .unwrap();
    }
    graph.launch(&theirs);
    borrowed.synchronize().unwrap();
    let launches = fake.launches();
    let offsets = |index: usize| {
        let lengths = block(&launches[index]).sequences;
        on_device::<i32>(lengths.query_offsets, 3)
    };
    assert_eq!(launches.len(), 4);
    assert_eq!(
        (offsets(0), offsets(3)),
        (vec![0, 48, 98], vec![0, 50, 100])
    );
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn a_prepared_call_costs_one_driver_call_more_on_a_borrowed_stream() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let call = call();
    let prepared = gpu.prepare(call.problem(), &kernel(MAPPED)).unwrap();
    let own = Stream::new(gpu.context()).unwrap();
    let theirs = Foreign::new(gpu.context());
    let cost = |stream: &Stream| {
        let mut memory = Buffers::new(stream, &call);
        prepared.launch(stream, &call, &memory.bindings()).unwrap();
        let before = fake.calls();
        let _current = gpu.context().enter().unwrap();
        prepared.launch(stream, &call, &memory.bindings()).unwrap();
        let calls = fake.calls() - before;
        stream.synchronize().unwrap();
        calls
    };
    let (own, borrowed) = (cost(&own), cost(&theirs.borrowed()));
    assert_eq!(borrowed, own + 1);
}
