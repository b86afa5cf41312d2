//! The kernel that adds 1, which the stand-in runs, too.

use bytemuck::{Pod, Zeroable};
use warptile_driver::{Context, DeviceBuffer, Kernel, KernelOptions, LaunchConfig, Module, Stream};

pub(crate) const PTX: &[u8] = include_bytes!("../kernels.ptx");

/// The parameters of `increment`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Increment {
    pub(crate) address: u64,
    pub(crate) count: u64,
}

pub(crate) fn increment(context: &Context) -> Kernel<Increment> {
    let module = Module::load(context, PTX).unwrap();
    Kernel::load(&module, "increment", &KernelOptions::new().param_bytes(16)).unwrap()
}

/// Queues one `increment` of the whole buffer. As any launch, it doesn't keep the buffer for a graph.
pub(crate) fn launch(kernel: &Kernel<Increment>, stream: &Stream, buffer: &DeviceBuffer<u32>) {
    let params = Increment {
        address: buffer.pointer(),
        count: buffer.len() as u64,
    };
    let blocks = (buffer.len() as u32).div_ceil(128);
    let config = LaunchConfig::new([blocks, 1, 1], [128, 1, 1]);
    // SAFETY: the parameter block is the kernel's, and the buffer is the stream's.
    unsafe { kernel.launch(stream, &config, &params) }.unwrap();
}
