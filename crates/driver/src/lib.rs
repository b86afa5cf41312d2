//! Safe ownership over the CUDA driver API.
//!
//! Needs NVIDIA's driver at run time and nothing at build time: no toolkit, no nvcc, no linking.
//! Without a driver, [`Driver::load`] says so in an error and everything still builds and runs.
//!
//! ```no_run
//! use warptile_driver::{Context, DeviceBuffer, Driver, Kernel, KernelOptions, LaunchConfig};
//! use warptile_driver::{Module, Stream};
//!
//! # fn main() -> warptile_driver::Result<()> {
//! # let image: Vec<u8> = Vec::new();
//! let context = Context::new(&Driver::load()?.device(0)?)?;
//! let stream = Stream::new(&context)?;
//! let mut buffer = DeviceBuffer::from_slice(&stream, &[1.0_f32; 1024])?;
//! let module = Module::load(&context, &image)?; // a cubin, a fat binary, or PTX
//! let kernel = Kernel::<u64>::load(&module, "double_all", &KernelOptions::new())?;
//! let config = LaunchConfig::new([8, 1, 1], [128, 1, 1]);
//! // SAFETY: the kernel takes one address and doubles 8 * 128 floats there.
//! unsafe { kernel.launch(&stream, &config, &buffer.pointer()) }?;
//! assert_eq!(buffer.to_vec()?, [2.0; 1024]);
//! # buffer.copy_from_slice(&[0.0; 1024])?;
//! # Ok(())
//! # }
//! ```
//!
//! # Who owns what
//! - [`Driver`], [`Device`], [`Context`], [`Stream`], [`Module`], [`Kernel`] and [`Staging`] are cheap
//!   handles: clones are the same thing. [`Event`], [`DeviceBuffer`], [`PinnedBuffer`], [`Scratch`]
//!   and [`Graph`] have one owner. Everything keeps alive what it needs, so nothing depends on the
//!   order of drops.
//! - A device has one [`Context`], however often it is asked for.
//! - A buffer belongs to a stream, its home, and is freed in that stream's order: dropping it right
//!   after a launch that reads it is sound. A context keeps the memory for its next buffers.
//! - For a launch on another stream, [`Stream::order_after`] the homes comes before it and [`Stream::order_before`]
//!   after it. The second orders all of them even if some calls fail.
//! - Memory is lent to other streams between two points of its own one, which does other work meanwhile: [`DeviceSlice::lend`], [`DeviceBuffer::lend`].
//! - Memory and streams of others (cudarc, candle, PyTorch) are borrowed with an owner that keeps
//!   them alive: [`Stream::borrow`], [`DeviceBuffer::borrow`]. No default stream is ever assumed.
//! - Memory that kernels need in addition to their tensors is attached to the stream that they run on:
//!   [`Stream::attached`].
//! - Everything is [`Send`] and [`Sync`]; the right context is made current around every call.
//!
//! # Captures
//! A stream may be captured by [`Graph::capture`] or, if it is borrowed, by whoever owns it.
//! [`Stream::capture`] tells which capture it is in, and [`Stream::hold`] keeps that so.
//! - A graph keeps what it is told to ([`Stream::keep_in`]), what is attached to its capture
//!   ([`Stream::attached_in`]), the buffers that are copied or filled, and its kernels. Each launch
//!   is ordered with the homes of the buffers.
//! - The end of a graph that somebody else captured is not seen. What it needs of this crate is never
//!   freed before the context. A plain value may be tied to such a graph: [`Context::keep_with_graph`].
//! - A buffer that is dropped while its stream is in a capture is freed after it.
//! - Memory is made outside of captures, and what this crate does on the side disturbs nobody's:
//!   [`Context::permanent_zeroed`], [`Scratch`], [`Staging`], [`PinnedBuffer`]. Neither do waits and questions about
//!   a stream or an event, and the beginning and end of graphs, in any mode of capture, nor the end of a context,
//!   which waits for the work of its own streams alone. Only [`Context::synchronize`] breaks captures. (So does what
//!   is left to do where the driver fails, twice, to wait for a stream whose memory is to be freed.)
//! - [`Kernel::launch_raw`] launches on a stream of somebody else's with one call and no bookkeeping.
//!
//! # What waits
//! Only what says so: the `synchronize` functions, [`PendingCopy::wait`] and its drop, the copies
//! between buffers and plain host slices, making [`Scratch`], dropping a graph, stream or [`Staging`]
//! that has scratch memory or arrays in use, dropping a graph whose capture forked onto another
//! device, dropping the last handle of a context in which modules were loaded, and, on devices
//! without memory pools, dropping a buffer.
//!
//! # Errors
//! [`DriverError`] says what was being done, the driver's code and text, and what to do. An error
//! in a running kernel shows at a later call: it then names the kernels launched since the stream
//! was last synchronized. What goes wrong in a destructor is reported by the next synchronization.
//! An error of a launch says that it was not queued.

mod allocation;
mod buffer;
mod capture;
mod context;
mod device;
mod driver;
mod error;
mod event;
mod gate;
mod graph;
mod image;
mod keep;
mod kernel;
mod launch;
mod lent;
mod module;
mod order;
mod pinned;
mod scratch;
mod staging;
mod stream;
mod tensor_map;

pub use buffer::{DeviceBuffer, DeviceSlice, DeviceSliceMut};
pub use capture::CaptureId;
pub use context::{Context, Current};
pub use device::Device;
pub use driver::Driver;
pub use error::{CudaError, DriverError, Result};
pub use event::Event;
pub use graph::Graph;
pub use kernel::{Kernel, KernelOptions};
pub use launch::{LaunchConfig, LaunchError};
pub use lent::{Lent, LentBuffer, Loan, Rows};
pub use module::Module;
pub use pinned::{PendingCopy, PinnedBuffer};
pub use scratch::Scratch;
pub use staging::{Staged, Staging};
pub use stream::{Held, Launching, Stream};
pub use tensor_map::{Swizzle, TensorMap, TensorMapElement, TiledTensorMap};

/// The raw types and the function table.
pub use warptile_cuda_sys as sys;
pub use warptile_cuda_sys::{
    CUdeviceAttribute as DeviceAttribute, CUdeviceptr as DevicePointer,
    CUfunctionAttribute as FunctionAttribute,
};

/// The README's examples, tested with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
