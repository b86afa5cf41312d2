//! The driver crate against the stand-in driver: everything that can be shown without a GPU.

mod alone;
mod both;
mod captures;
mod ends;
mod errors;
mod faults;
mod foreign;
mod graphs;
mod keep;
mod launches;
mod lent;
mod lifetimes;
mod loading;
mod memory;
mod ordering;
mod raw;
mod staging;
mod standin;

#[path = "../common/kernel.rs"]
mod kernel;
#[path = "../common/work.rs"]
mod work;

use warptile_driver::{
    Context, DeviceBuffer, Driver, Kernel, KernelOptions, LaunchConfig, Module, Result, Stream,
};
use warptile_fake_cuda::FakeDriver;

use kernel::{Increment, PTX};

impl Increment {
    fn of(buffer: &DeviceBuffer<u32>) -> Increment {
        Increment {
            address: buffer.pointer(),
            count: buffer.len() as u64,
        }
    }
}

fn driver(fake: &FakeDriver) -> Result<Driver> {
    // SAFETY: the library is the stand-in, with the driver's signatures.
    unsafe { Driver::load_from(fake.path()) }
}

fn context(fake: &FakeDriver) -> Result<Context> {
    Context::new(&driver(fake)?.device(0)?)
}

/// The stand-in with a context and a stream.
fn open() -> (FakeDriver, Context, Stream) {
    let fake = FakeDriver::open();
    let context = context(&fake).unwrap();
    let stream = Stream::new(&context).unwrap();
    (fake, context, stream)
}

/// A context and a stream of each of two devices.
fn open_two() -> (FakeDriver, [Context; 2], [Stream; 2]) {
    open_two_of(FakeDriver::open())
}

fn open_two_of(fake: FakeDriver) -> (FakeDriver, [Context; 2], [Stream; 2]) {
    fake.set_device_count(2);
    let driver = driver(&fake).unwrap();
    let contexts = [0, 1].map(|ordinal| Context::new(&driver.device(ordinal).unwrap()).unwrap());
    let streams = contexts
        .each_ref()
        .map(|context| Stream::new(context).unwrap());
    (fake, contexts, streams)
}

fn increment(context: &Context) -> Result<Kernel<Increment>> {
    let module = Module::load(context, PTX)?;
    Kernel::load(&module, "increment", &KernelOptions::new())
}

/// Queues one `increment` of the whole buffer.
fn launch(kernel: &Kernel<Increment>, stream: &Stream, buffer: &DeviceBuffer<u32>) -> Result<()> {
    let blocks = (buffer.len() as u32).div_ceil(128);
    let config = LaunchConfig::new([blocks, 1, 1], [128, 1, 1]);
    // SAFETY: the parameter block is the kernel's; the buffer is the stream's, or the test's point
    // is to see what happens if it is not.
    unsafe { kernel.launch(stream, &config, &Increment::of(buffer)) }
}
