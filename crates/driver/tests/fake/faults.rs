//! Every call of a scenario fails once: in each case nothing leaks, nothing is used after its end, and the context is
//! as good as new afterwards.

use warptile_driver::sys::CUresult;
use warptile_driver::{
    Context, DeviceBuffer, Driver, DriverError, Event, Graph, Kernel, KernelOptions, LaunchConfig,
    Module, PinnedBuffer, Result, Rows, Scratch, Staging, Stream,
};
use warptile_fake_cuda::FakeDriver;

use crate::{Increment, PTX, driver, increment, launch};

type Scenario = fn(&Driver) -> Result<()>;

/// Runs the scenario with its first call failing, then its second, and so on.
fn fail_each_call(configure: fn(&FakeDriver), scenario: Scenario) {
    let fake = FakeDriver::open();
    configure(&fake);
    let driver = driver(&fake).unwrap();
    let before = fake.calls();
    scenario(&driver).unwrap();
    let calls = fake.calls() - before;
    fake.assert_clean();
    assert!(calls > 10, "a scenario of {calls} calls shows little");
    for code in [CUresult::ERROR_UNKNOWN, CUresult::ERROR_OUT_OF_MEMORY] {
        for nth in 1..=calls {
            fake.fail(None, nth, code.0);
            let result = scenario(&driver);
            let hit = fake.fault();
            let Some(symbol) = hit else {
                panic!("call {nth} of {calls} was never made");
            };
            match result {
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        text.contains(code.name().unwrap_or_default()),
                        "{symbol}: {text}"
                    );
                }
                // A failure in a destructor, after the last chance to report it, is lost.
                Ok(()) => assert!(in_destructor(&symbol), "{symbol} failed unnoticed"),
            }
            assert_eq!(
                fake.violations(),
                Vec::<String>::new(),
                "call {nth}, {symbol}"
            );
            fake.assert_clean();
        }
    }
    scenario(&driver).unwrap();
    fake.assert_clean();
}

/// Calls that destructors make.
fn in_destructor(symbol: &str) -> bool {
    [
        "Destroy",
        "Free",
        "Unload",
        "Release",
        "Current",
        "Synchronize",
        "ThreadExchange",
        "IsCapturing",
        "StreamQuery",
    ]
    .iter()
    .any(|word| symbol.contains(word))
}

fn nothing_special(_: &FakeDriver) {}

#[test]
fn buffers_and_launches() {
    fn scenario(driver: &Driver) -> Result<()> {
        let context = Context::new(&driver.device(0)?)?;
        let stream = Stream::new(&context)?;
        let kernel = increment(&context)?;
        let source = DeviceBuffer::from_slice(&stream, &[1_u32; 32])?;
        let mut target = DeviceBuffer::<u32>::zeroed(&stream, 32)?;
        target.copy_from(&source)?;
        launch(&kernel, &stream, &target)?;
        drop(source);
        assert_eq!(target.to_vec()?, [2; 32]);
        let (first, second) = DeviceBuffer::<u8>::uninit_pair::<f32>(&stream, 5, 3)?;
        drop((first, second, target));
        context.trim_memory(0)?;
        stream.synchronize()
    }
    fail_each_call(nothing_special, scenario);
    fail_each_call(|fake| fake.set_memory_pools(false), scenario);
}

#[test]
fn two_streams_with_events_between() {
    fail_each_call(nothing_special, |driver| {
        let context = Context::new(&driver.device(0)?)?;
        let (first, second) = (Stream::new(&context)?, Stream::new(&context)?);
        let kernel = increment(&context)?;
        let source = DeviceBuffer::from_slice(&first, &[1_u32; 32])?;
        launch(&kernel, &first, &source)?;
        let mut target = DeviceBuffer::<u32>::zeroed(&second, 32)?;
        target.copy_from(&source)?;
        drop(source);
        first.synchronize()?;
        assert_eq!(target.to_vec()?, [2; 32]);
        let (start, end) = (Event::timed(&context)?, Event::timed(&context)?);
        first.record(&start)?;
        first.record(&end)?;
        end.synchronize()?;
        end.elapsed_since(&start)?;
        second.synchronize()?;
        context.synchronize()
    });
}

#[test]
fn rows_between_lent_memory() {
    fn two_devices(fake: &FakeDriver) {
        fake.set_device_count(2);
    }
    fail_each_call(two_devices, |driver| {
        let contexts = [
            Context::new(&driver.device(0)?)?,
            Context::new(&driver.device(1)?)?,
        ];
        contexts[0].enable_peer_access(&contexts[1])?;
        let (own, pull) = (Stream::new(&contexts[0])?, Stream::new(&contexts[0])?);
        let other = Stream::new(&contexts[1])?;
        let source = DeviceBuffer::from_slice(&other, &[1_u32; 32])?;
        let lent = source.as_slice().lend()?;
        let mut target = DeviceBuffer::<u32>::zeroed(&own, 32)?.lend()?;
        for len in [8, 4] {
            let rows = Rows {
                count: 4,
                len,
                from: 0,
                from_pitch: 8,
                to: 0,
                to_pitch: 8,
            };
            target.copy_rows(&pull, &[(&lent, rows)])?;
        }
        drop(lent);
        drop(source);
        other.synchronize()?;
        assert_eq!(target.into_buffer()?.to_vec()?, [1; 32]);
        own.synchronize()
    });
}

#[test]
fn pinned_copies() {
    fail_each_call(nothing_special, |driver| {
        let context = Context::new(&driver.device(0)?)?;
        let stream = Stream::new(&context)?;
        let mut buffer = DeviceBuffer::<u32>::zeroed(&stream, 32)?;
        let up = PinnedBuffer::from_slice(&context, &[7; 32])?;
        let up = buffer.as_slice_mut().copy_from_pinned(up)?;
        let down = PinnedBuffer::zeroed(&context, 32)?;
        let down = buffer.as_slice().copy_to_pinned(down)?;
        assert_eq!(down.wait()?[..], [7; 32]);
        drop(up);
        stream.synchronize()
    });
}

#[test]
fn graphs() {
    fail_each_call(nothing_special, |driver| {
        let context = Context::new(&driver.device(0)?)?;
        let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
        let kernel = increment(&context)?;
        let buffer = DeviceBuffer::<u32>::from_slice(&stream, &[1; 8])?;
        let mut copy = DeviceBuffer::<u32>::from_slice(&stream, &[0; 8])?;
        let graph = Graph::capture::<DriverError>(&stream, |stream| {
            launch(&kernel, stream, &buffer)?;
            copy.copy_from(&buffer)
        })?;
        drop(kernel);
        graph.launch(&stream)?;
        assert_eq!(copy.to_vec()?, [2; 8]);
        other.wait_for(&stream)?;
        graph.launch(&other)?;
        drop((buffer, copy, graph));
        stream.synchronize()?;
        other.synchronize()
    });
}

#[test]
fn buffers_of_other_streams_arrays_and_workspaces() {
    fn scenario(driver: &Driver) -> Result<()> {
        let context = Context::new(&driver.device(0)?)?;
        let (stream, home) = (Stream::new(&context)?, Stream::new(&context)?);
        let staging = Staging::new(&context);
        let kernel = increment(&context)?;
        let buffer = DeviceBuffer::<u32>::zeroed(&home, 8)?;
        let work = |stream: &Stream| -> Result<()> {
            stream.order_after([&home])?;
            let workspace = || Scratch::zeroed(&context, 64);
            match stream.capture()? {
                Some(id) => drop(stream.attached_in(id, workspace)?),
                None => drop(stream.attached(workspace)?),
            }
            stream.keep_for_graph(buffer.owner())?;
            let array = staging.upload(stream, &[1_u32, 2, 3])?;
            launch(&kernel, stream, &buffer)?;
            drop(array);
            stream.order_before([&home])
        };
        for _ in 0..2 {
            work(&stream)?;
        }
        let graph = Graph::capture(&stream, work)?;
        graph.launch(&stream)?;
        drop((graph, buffer));
        home.synchronize()?;
        stream.synchronize()
    }
    fail_each_call(nothing_special, scenario);
    fail_each_call(|fake| fake.set_memory_pools(false), scenario);
}

#[test]
fn kernels_with_all_options() {
    fail_each_call(nothing_special, |driver| {
        let context = Context::new(&driver.device(0)?)?;
        let stream = Stream::with_priority(&context, -1)?;
        let module = Module::load(&context, PTX)?;
        let options = KernelOptions::new()
            .dynamic_shared_bytes(100_000)
            .large_clusters();
        let kernel = Kernel::<Increment>::load(&module, "increment", &options)?;
        let buffer = DeviceBuffer::<u32>::filled(&stream, 8, 0)?;
        let plain = LaunchConfig::new([2, 1, 1], [32, 1, 1]).dynamic_shared_bytes(90_000);
        for config in [plain, plain.cluster([2, 1, 1]), plain.cooperative()] {
            kernel.blocks_per_multiprocessor(&config)?;
            // SAFETY: the parameter block is the kernel's, the buffer the stream's.
            unsafe { kernel.launch(&stream, &config, &Increment::of(&buffer)) }?;
        }
        assert_eq!(buffer.to_vec()?, [3; 8]);
        drop(buffer);
        stream.synchronize()
    });
}
