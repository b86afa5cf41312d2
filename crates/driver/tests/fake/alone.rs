//! Launches on an idle stream, by graphs of one kernel.

use std::sync::Arc;

use warptile_driver::{DeviceBuffer, Graph, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::{context, increment, launch};

/// Launches by the kernel itself, graphs made, parameters set and graphs launched.
fn counts(fake: &FakeDriver) -> [u64; 4] {
    [
        "cuLaunchKernel",
        "cuGraphInstantiateWithFlags",
        "cuGraphExecKernelNodeSetParams_v2",
        "cuGraphLaunch",
    ]
    .map(|symbol| fake.calls_of(symbol))
}

#[test]
fn the_third_launch_on_an_idle_stream_is_by_a_graph_and_each_has_its_own_parameters() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffers = [64, 300].map(|len| DeviceBuffer::<u32>::zeroed(&stream, len).unwrap());
    for turn in 0..6 {
        stream.synchronize().unwrap();
        launch(&kernel, &stream, &buffers[turn % 2]).unwrap();
        let graphs = (turn as u64).saturating_sub(1);
        let expected = [
            6.min(turn as u64 + 1).min(2),
            graphs.min(1),
            graphs.saturating_sub(1),
            graphs,
        ];
        assert_eq!(counts(&fake), expected, "turn {turn}");
    }
    // Grid and parameters are those of each launch, and the kernel is known by name.
    stream.synchronize().unwrap();
    let launches = fake.launches();
    assert_eq!(launches.len(), 6);
    for (turn, found) in launches.iter().enumerate() {
        let buffer = &buffers[turn % 2];
        assert_eq!(found.name(), "increment");
        assert_eq!(found.grid, [(buffer.len() as u32).div_ceil(128), 1, 1]);
        let params: [u64; 2] = bytemuck::pod_read_unaligned(found.params());
        assert_eq!(params, [buffer.pointer(), buffer.len() as u64]);
    }
    drop((buffers, kernel, stream, context));
    fake.assert_clean();
}

#[test]
fn behind_other_work_in_captures_and_on_borrowed_streams_the_kernel_itself_is_launched() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernel = increment(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    for _ in 0..3 {
        stream.synchronize().unwrap();
        launch(&kernel, &stream, &buffer).unwrap();
        launch(&kernel, &stream, &buffer).unwrap();
    }
    assert_eq!(
        counts(&fake),
        [5, 1, 0, 1],
        "the second of each is behind the first"
    );

    stream.synchronize().unwrap();
    let graph = Graph::capture(&stream, |stream| launch(&kernel, stream, &buffer)).unwrap();
    assert_eq!(
        counts(&fake),
        [6, 2, 0, 1],
        "a captured launch is part of the other graph"
    );
    drop(graph);

    // SAFETY: the stream is live as long as its owner.
    let borrowed =
        unsafe { Stream::borrow(&context, stream.raw(), Arc::new(stream.clone())) }.unwrap();
    for _ in 0..4 {
        borrowed.synchronize().unwrap();
        launch(&kernel, &borrowed, &buffer).unwrap();
    }
    assert_eq!(counts(&fake), [10, 2, 0, 1]);
    drop((borrowed, buffer, kernel, stream, context));
    fake.assert_clean();
}

/// A stream keeps graphs of a limited number of kernels, and the module of each: a kernel that was loaded again is a different one, even
/// at the same address.
#[test]
fn graphs_keep_the_modules_of_their_kernels_and_go_with_the_stream() {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
    for loaded in 1..=12 {
        let kernel = increment(&context).unwrap();
        for _ in 0..3 {
            stream.synchronize().unwrap();
            launch(&kernel, &stream, &buffer).unwrap();
        }
        drop(kernel);
        context.synchronize().unwrap();
        assert_eq!(counts(&fake)[3], loaded);
        let unloaded = fake.calls_of("cuModuleUnload");
        assert_eq!(unloaded, loaded.saturating_sub(8), "of {loaded}");
        assert_eq!(fake.calls_of("cuGraphExecDestroy"), unloaded);
    }
    drop((buffer, stream, context));
    fake.assert_clean();
}

/// Whatever the driver refuses, the kernel is launched.
#[test]
fn without_a_graph_the_kernel_itself_is_launched() {
    for symbol in [
        "cuGraphCreate",
        "cuGraphAddKernelNode_v2",
        "cuGraphInstantiateWithFlags",
        "cuGraphExecKernelNodeSetParams_v2",
    ] {
        let fake = FakeDriver::open();
        let context = context(&fake).unwrap();
        let stream = Stream::new(&context).unwrap();
        let kernel = increment(&context).unwrap();
        let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 64).unwrap();
        fake.fail_always(&[symbol], 801);
        for _ in 0..7 {
            stream.synchronize().unwrap();
            launch(&kernel, &stream, &buffer).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 7, "{symbol}");
        fake.fail_always(&[], 0);
        buffer.copy_from_slice(&[0; 64]).unwrap();
        drop((buffer, kernel, stream, context));
        fake.assert_clean();
    }
}
