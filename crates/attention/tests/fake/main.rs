//! The GPU path against the stand-in driver: what is launched, what is refused, and that no failure leaks or goes unsaid.

mod append;
mod arguments;
mod blocks;
mod boxes;
mod cache;
mod calls;
mod captures;
mod clusters;
mod dropout;
mod faults;
#[path = "../../../driver/tests/fake/foreign.rs"]
mod foreign;
mod lengths;
mod merge;
mod operations;
mod pages;
mod pairs;
mod prepass;
mod raw;
mod runs;
mod splits;
mod sync;

use half::f16;
use warptile::gpu::{Bindings, Gpu};
use warptile::kernels::abi::{Declared, Forward, ForwardE4m3, ForwardTma};
use warptile::plan::Choice;
use warptile::spec::{Call, Operand, Slots};
use warptile::{Backend, Tensor};
use warptile_driver::{DeviceBuffer, Driver, Stream};
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

/// A kernel that reads through addresses, and one that reads through tensor maps and draws its tiles from a counter.
const PLAIN: &str = "scalar_d64_32x64_w4_s2";
const MAPPED: &str = "wgmma_d64_64x128_w8_s2";

fn driver(fake: &FakeDriver) -> Driver {
    // SAFETY: the library is the stand-in, with the driver's signatures.
    unsafe { Driver::load_from(fake.path()) }.unwrap()
}

fn kernel(name: &str) -> Choice {
    Choice::Kernel(name.to_owned())
}

/// A backend and a tensor of ones.
fn ones(fake: &FakeDriver, shape: [usize; 4]) -> (Backend, Tensor<f16>) {
    let backend = Backend::cuda_with(&driver(fake), 0).unwrap();
    let tensor = ones_on(&backend, shape);
    (backend, tensor)
}

fn ones_on(backend: &Backend, shape: [usize; 4]) -> Tensor<f16> {
    let data = vec![f16::ONE; shape.iter().product()];
    backend.tensor(&data, shape).unwrap()
}

/// The part of a launch's parameters that all blocks have.
fn block(launch: &FakeLaunch) -> Forward {
    let bytes = launch.params();
    let at = match bytes.len() {
        n if n == size_of::<ForwardTma>() => std::mem::offset_of!(ForwardTma, forward),
        n if n == size_of::<Forward>() => 0,
        n if n == size_of::<ForwardE4m3>() => std::mem::offset_of!(ForwardE4m3, forward),
        n => panic!(
            "{n} bytes are no block; one has {:?}",
            Forward::MEMBERS.len()
        ),
    };
    bytemuck::pod_read_unaligned(&bytes[at..at + size_of::<Forward>()])
}

/// Buffers for a call, on one stream.
struct Buffers {
    q: DeviceBuffer<f16>,
    k: DeviceBuffer<f16>,
    v: DeviceBuffer<f16>,
    out: DeviceBuffer<f16>,
    lse: DeviceBuffer<f32>,
}

impl Buffers {
    fn new(stream: &Stream, call: &Call) -> Self {
        let len = |layout: &warptile::Layout| layout.required_len().unwrap();
        Buffers {
            q: DeviceBuffer::zeroed(stream, len(call.q())).unwrap(),
            k: DeviceBuffer::zeroed(stream, len(call.k())).unwrap(),
            v: DeviceBuffer::zeroed(stream, len(call.v())).unwrap(),
            out: DeviceBuffer::zeroed(stream, len(call.out())).unwrap(),
            lse: DeviceBuffer::zeroed(stream, call.lse_len()).unwrap(),
        }
    }

    /// The operands of a call without options.
    fn addresses(&self) -> Slots<u64> {
        addresses([
            (Operand::Q, self.q.pointer()),
            (Operand::K, self.k.pointer()),
            (Operand::V, self.v.pointer()),
            (Operand::Out, self.out.pointer()),
            (Operand::Lse, self.lse.pointer()),
        ])
    }

    fn bindings(&mut self) -> Bindings<'_> {
        Bindings::new(
            self.q.as_slice(),
            self.k.as_slice(),
            self.v.as_slice(),
            self.out.as_slice_mut(),
        )
        .output(Operand::Lse, self.lse.as_slice_mut())
    }
}

/// Addresses of a raw launch.
fn addresses(given: impl IntoIterator<Item = (Operand, u64)>) -> Slots<u64> {
    let mut addresses = Slots::default();
    for (operand, address) in given {
        addresses[operand] = address;
    }
    addresses
}

/// Device 0 and a stream on it.
fn gpu(fake: &FakeDriver) -> Gpu {
    Gpu::new(&driver(fake), 0).unwrap()
}
