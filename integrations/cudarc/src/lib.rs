//! Warptile's attention on [cudarc](https://docs.rs/cudarc)'s streams and memory.
//!
//! A [`Session`] is Warptile's side of a [`CudaStream`](cudarc::driver::CudaStream). It launches descriptions of
//! Warptile's, a [`Call`](warptile::spec::Call), an [`Append`](warptile::spec::Append) or a
//! [`Merge`](warptile::spec::Merge), on views of cudarc's memory: [`Bindings`] and [`MergeBindings`].
//!
//! ```no_run
//! use warptile_cudarc::Session;
//! use warptile_cudarc::cudarc::driver::CudaContext;
//! use warptile_cudarc::warptile::{Layout, Mask};
//! use warptile_cudarc::warptile::spec::Scoring;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stream = CudaContext::new(0)?.default_stream();
//! let session = Session::new(&stream)?;
//! let (q, kv) = (Layout::bshd([2, 128, 8, 64]), Layout::bshd([2, 300, 2, 64]));
//! let queries = stream.clone_htod(&vec![0.5_f32; 2 * 128 * 8 * 64])?;
//! let keys = stream.clone_htod(&vec![0.5_f32; 2 * 300 * 2 * 64])?;
//! let mut out = stream.alloc_zeros::<f32>(2 * 128 * 8 * 64)?;
//! session.forward(
//!     Scoring::new().mask(Mask::causal()),
//!     [(queries.as_view(), q), (keys.as_view(), kv), (keys.as_view(), kv)],
//!     (out.as_view_mut(), q),
//!     None,
//! )?;
//! let result = stream.clone_dtoh(&out)?;
//! # let _ = result;
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! A launch returns when the kernel is queued on the session's stream. Views of memory that belongs to other streams are ordered by
//! cudarc's events, as for cudarc's own copies and launches: if its event tracking is on, which it is unless you turn it off, nothing
//! else is needed. If you turn it off, the order between streams is yours to make.
//!
//! # Captures
//! A launch may be part of a capture of the session's stream ([`CudaStream::begin_capture`](cudarc::driver::CudaStream::begin_capture)).
//! - Launch once before, so that the kernel is loaded.
//! - cudarc records and awaits its events even in a capture, which breaks it: turn event tracking off before the memory is allocated
//!   ([`CudaContext::disable_event_tracking`](cudarc::driver::CudaContext::disable_event_tracking)).
//! - Some kernels need memory besides their tensors: it becomes part of the graph, or is that of a session made by
//!   [`Session::for_graph`].
//! - Lengths, offsets and tables are read again at each replay. Views borrow their memory only for the launch: keep
//!   it until the last replay.
//! - No other thread begins a capture of the stream during a launch.
//!
//! # Several GPUs
//! [`Tensors`] are Warptile's tensors on cudarc's streams, which `warptile-distributed` takes.
//!
//! # Threads
//! A session may be used by any number of threads. Kernels stay loaded until the process ends.

mod bindings;
mod error;
mod session;
mod tensors;

pub use bindings::{Bindings, MergeBindings};
pub use error::{Error, Result};
pub use session::{Aligned, Session};
pub use tensors::Tensors;

pub use cudarc;
pub use warptile;
