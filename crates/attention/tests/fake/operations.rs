//! Code that the tests of operations other than forward share.

use bytemuck::AnyBitPattern;
use warptile::gpu::Gpu;
use warptile::{Error, Result};
use warptile_driver::{Graph, Stream};
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

use crate::gpu;

/// The block that a launch was given.
pub(crate) fn block<B: AnyBitPattern>(launch: &FakeLaunch) -> B {
    bytemuck::pod_read_unaligned(launch.params())
}

/// The driver calls of a raw launch in the GPU's context, or why it was refused.
pub(crate) fn calls_of(
    fake: &FakeDriver,
    gpu: &Gpu,
    launch: impl FnOnce() -> Result<()>,
) -> std::result::Result<u64, String> {
    let _current = gpu.context().enter().unwrap();
    let before = fake.calls();
    launch()
        .map(|()| fake.calls() - before)
        .map_err(|error| error.to_string())
}

/// Captures what `submit` submits with memory of the capturing stream and of another, and launches the graph twice when everything
/// else is gone. `inspect` sees the launches while the graph is there.
pub(crate) fn replayed_twice<M>(
    memory: impl Fn(&Stream) -> M,
    submit: impl FnOnce(&Gpu, &mut [M; 2], &Stream) -> Result<()>,
    inspect: impl FnOnce(&[FakeLaunch]),
) {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let home = Stream::new(gpu.context()).unwrap();
        let mut memory = [memory(&stream), memory(&home)];
        let graph =
            Graph::capture::<Error>(&stream, |stream| submit(&gpu, &mut memory, stream)).unwrap();
        drop((memory, gpu));
        for _ in 0..2 {
            graph.launch(&stream).unwrap();
        }
        stream.synchronize().unwrap();
        home.synchronize().unwrap();
        assert_eq!(fake.violations(), Vec::<String>::new());
        inspect(&fake.launches());
    }
    fake.assert_clean();
}
