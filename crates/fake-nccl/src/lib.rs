//! An NCCL for ranks that are threads of one process, over the streams of warptile-fake-cuda, for tests.
//!
//! The crate builds a shared library with every export of [`warptile_nccl_sys`]'s table. Communicators are non-blocking, and slower than
//! real ones where that is allowed: a group stays in progress until all ranks that it exchanges messages with have called theirs. Then each
//! message is a copy in the receiver's stream, for which both streams wait. Finalizing a communicator ends once the stream
//! of its last messages is idle. Misuse that a real library punishes by luck only is a violation: messages of different lengths, a call while another
//! is in progress, a communicator used after its end.
//!
//! [`FakeNccl`] opens a private copy and makes calls fail.

mod exports;
mod handle;
#[path = "../../fake-cuda/src/private_copy.rs"]
mod private_copy;
mod state;

pub use exports::*;
pub use handle::{FakeNccl, Fault};
