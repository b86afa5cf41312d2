//! A CUDA driver made of host memory, for testing code that drives a GPU on machines without one.
//!
//! The crate builds a shared library with every export of [`warptile_cuda_sys`]'s table. It keeps
//! streams as real queues: asynchronous work runs only when something waits for it, so memory that
//! is freed too early, or a missing event edge, shows as a violation instead of passing by luck.
//! It counts live objects, fails any call on demand, and can be an old driver, a stub, a machine
//! without devices, a device without memory pools, or one with little memory.
//!
//! [`FakeDriver`] opens a private copy, so that tests can run side by side:
//!
//! ```no_run
//! use warptile_fake_cuda::FakeDriver;
//!
//! let fake = FakeDriver::open();
//! fake.set_device_count(2);
//! fake.fail(Some("cuMemAllocFromPoolAsync"), 1, 2); // the next allocation runs out of memory
//! // ... Driver::load_from(fake.path()), and the code to be tested ...
//! fake.assert_clean();
//! ```
//!
//! A program under test, in a process of its own, is told by the environment how long kernels take, and how many devices there are:
//! [`KERNEL_TIMES`] and [`DEVICES`].
//!
//! # What it is not
//! Kernels are recorded, not run, except `increment` (a `u64` address and a `u64` count: adds 1 to
//! each `u32`). Of a kernel's memory it knows the allocations that the words of its parameters point
//! into: those must be alive, on its device, and ordered with copies and fills on other streams. Two
//! launches of one kernel in one graph must be ordered with each other.
//! Destructors that are made to fail have done their work all the same, as the real ones may: their
//! errors are those of earlier work. A graph runs its operations in the order of their capture. The
//! legacy default stream does not wait for blocking streams.

mod argument;
mod capture;
mod control;
mod copy;
mod device;
mod event;
mod exports;
mod graph;
mod handle;
mod image;
mod memory;
mod module;
mod private_copy;
mod queue;
mod state;
mod stream;
mod user_object;

/// The environment variable with the times of kernels, for a program in a process of its own: `NAME=MICROSECONDS`, separated by
/// commas. A name stands for all kernels whose names begin with it, and the first that fits counts. All other operations take a
/// millisecond each. A kernel that takes `inf` never ends, and who waits for it waits for ever. One that takes `nan` breaks its
/// context.
pub const KERNEL_TIMES: &str = "WARPTILE_FAKE_KERNEL_TIMES";

/// The environment variable with the number of devices, likewise. Default: 1.
pub const DEVICES: &str = "WARPTILE_FAKE_DEVICES";

pub use control::*;
pub use exports::*;
pub use handle::FakeDriver;
