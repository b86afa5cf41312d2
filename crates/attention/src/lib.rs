//! Fused attention for Rust. On a GPU it needs only the NVIDIA driver; without one it runs on the CPU.
//!
//! `softmax(scale * q kᵀ) v` is computed without ever storing the score matrix, as FlashAttention does. The CUDA kernels are
//! compiled ahead of time and embedded in this crate; the driver is opened at run time.
//!
//! ```
//! use warptile::{Attention, Backend, Mask};
//!
//! # fn main() -> warptile::Result<()> {
//! let backend = Backend::auto()?; // the fastest GPU, else the CPU
//! let shape = [2, 128, 8, 64]; // batch, length, heads, head size
//! let host: Vec<f32> = (0..2 * 128 * 8 * 64).map(|i| (i as f32).sin()).collect();
//! let (q, k, v) = (backend.tensor(&host, shape)?, backend.tensor(&host, shape)?, backend.tensor(&host, shape)?);
//! let output = Attention::new().mask(Mask::causal()).forward(&q, (&k, &v))?;
//! println!("{:?} computed by {}", output.out, output.plan.kernel_name());
//! # assert_eq!(output.out.shape(), shape);
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//!
//! - A [`Tensor`] lives on a [`Backend`], a GPU or the CPU, and has a [`Layout`]: batch, length, heads, head size in any order
//!   in memory. Keys and values may have fewer heads than the queries (grouped-query and multi-query attention) and a different
//!   length.
//! - [`Attention`] holds the options (the list is [`Scoring`](crate::spec::Scoring)) and has one verb, [`forward`](Attention::forward). Its
//!   arguments are [`Queries`] and [`Keys`]: dense tensors, sequences packed one after the other, or keys and values in pages.
//!   Values may have a different head size than keys, and both may be [quantized](Keys::quantized) to 8 bits with scales.
//! - A [`Call`](crate::spec::Call) is one computation with its layouts and lengths. What is fixed of it is its
//!   [`Problem`](crate::spec::Problem): the planner chooses kernels for a problem, so a decode step or a new packed
//!   batch does not plan again.
//! - A [`Plan`](crate::plan::Plan) says which kernels run and why every other does not;
//!   [`Plan::explain`](crate::plan::Plan::explain) prints it. [`Choice`](crate::plan::Choice) asks for others.
//! - [`merge()`](crate::ops::merge) joins results over disjoint keys; [`CacheWrite`](crate::ops::CacheWrite) writes
//!   new keys and values into a cache, and rotates them.
//! - [`gpu`] is the level below, for streams, memory and graphs of your own; its raw layer serves those of other libraries.
//!
//! # Sequences of different lengths
//!
//! ```
//! use warptile::{Attention, Backend, Keys, Mask, Queries};
//!
//! # fn main() -> warptile::Result<()> {
//! # let backend = Backend::cpu();
//! // Three sequences of 2, 1 and 4 rows.
//! let tensor = backend.tensor(&[0.25_f32; 7 * 16], [1, 7, 2, 8])?;
//! let offsets = [0, 2, 3, 7];
//! let output = Attention::new()
//!     .mask(Mask::causal())
//!     .forward(Queries::new(&tensor).packed(&offsets), Keys::new(&tensor, &tensor).packed(&offsets))?;
//! assert_eq!(output.out.shape(), [1, 7, 2, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! # Keys and values in pages
//!
//! A cache of pages of 1 to 256 rows, and a block table that gives each sequence its pages in order:
//!
//! ```
//! use warptile::{Attention, Backend, Keys};
//!
//! # fn main() -> warptile::Result<()> {
//! # let backend = Backend::cpu();
//! let q = backend.tensor(&[0.25_f32; 2 * 2 * 8], [2, 1, 2, 8])?; // one new token of each of two sequences
//! let pages = backend.tensor(&[0.25_f32; 6 * 16 * 2 * 8], [6, 16, 2, 8])?; // 6 pages of 16 rows
//! let table = [5_u32, 0, 3, 0]; // two entries for each sequence
//! let keys = Keys::paged(&pages, &pages, &table, [2, 2]).lengths(&[20, 7]);
//! let output = Attention::new().forward(&q, keys)?;
//! # assert_eq!(output.out.shape(), [2, 1, 2, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! The strides of the pages may be any: heads before rows (`Layout::bhsd([pages, heads, rows, head_size])`), or keys and values in
//! one tensor ([`Tensor::view_as`]). What lies in a page past a sequence's last key, and in the table past its last page, is
//! never used. A table and lengths on the device ([`Keys::paged_on_device`], [`Keys::lengths_on_device`]) may grow between the
//! replays of a captured launch; [`Keys::longest`] bounds them.
//!
//! # Serving
//!
//! A [`KvCache`] holds the pages of all layers of a decoder, gives them to sequences and takes them back. Each turn of the loop is a
//! [`step`](KvCache::step): it names the sequences that get new tokens, a prompt or one token each. Then every layer
//! [`append`](KvCache::append)s keys and values, rotated on the way, and attends to what its sequences have.
//!
//! ```
//! use warptile::{Attention, Backend, KvCache, Layout, Mask, Tensor};
//! use warptile::spec::{Pairing, Rotary};
//!
//! # fn main() -> warptile::Result<()> {
//! # let backend = Backend::cpu();
//! # let project = |rows: usize, heads: usize| {
//! #     Tensor::from_vec(&backend, vec![0.25_f32; rows * heads * 8], Layout::packed(rows, heads, 8))
//! # };
//! let mut cache = KvCache::<f32>::builder(2, 8).layers(3).pages(64).sequences(2).build(&backend)?;
//! let attention = Attention::new().mask(Mask::causal());
//! let rotary = Rotary::computed(8, 10_000.0, Pairing::HalfSplit)?;
//! let (a, b) = (cache.allocate(), cache.allocate());
//! // The prompt of one sequence, then a step in which the other one joins with its own.
//! for step in [&[(a, 5)][..], &[(a, 1), (b, 7)], &[(a, 1), (b, 1)]] {
//!     cache.step(step)?;
//!     let rows: usize = step.iter().map(|(_, new)| new).sum();
//!     for layer in 0..3 {
//!         // `[1, rows of all sequences, heads, head size]`, as a model projects them.
//!         let (mut q, k, v) = (project(rows, 4)?, project(rows, 2)?, project(rows, 2)?);
//!         cache.append(layer, &k, &v)?.rotary(rotary.clone()).queries(&mut q).run()?;
//!         let output = attention.forward(cache.queries(&q)?, cache.keys(layer)?)?;
//!         # assert_eq!(output.out.shape(), [1, rows, 4, 8]);
//!     }
//! }
//! cache.free(a)?; // its pages go to others
//! # assert_eq!(cache.len(b)?, 8);
//! # Ok(())
//! # }
//! ```
//!
//! On a GPU the table and the lengths stay at their addresses, so a graph that captured a step does the next one,
//! too, while lengths and pages grow: [`KvCache`] says how. Below it are [`CacheWrite`](crate::ops::CacheWrite),
//! which writes into pages of one's own, by slots as well, and [`Keys::paged`], which reads them. `examples/decoder`
//! generates text with several sequences, and `examples/captured_step.rs` replays a captured step.
//!
//! # The same bits in every batch
//!
//! Two calls of the same problem give the same bits. A sequence in another batch does not, in general: a GPU cuts its keys into
//! ranges, for which the other sequences matter too, and adds up in another order. [`Splits::EveryKeys`] cuts at fixed places, with
//! the same kernel for every batch:
//!
//! ```
//! use warptile::{Attention, Mask, Splits};
//!
//! let attention = Attention::new().mask(Mask::causal()).splits(Splits::EveryKeys(512));
//! ```
//!
//! # Rates of your own GPU
//!
//! The planner goes by rates that are embedded. `warptile tune` measures those of your own GPU for your own problems;
//! [`gpu::Gpu::with_user_rates`] plans with them. With `WARPTILE_LOG=FILE` in the environment the library adds a line to the file for
//! each new problem that it prepares on a GPU, for `warptile tune --from-log`; without it, no file is read or written.
//!
//! # Cargo features
//!
//! `sm_80`, `sm_90`, `sm_100`, `sm_120` and `ptx`, all on by default, embed the kernels for GPUs of that architecture; `ptx` is for
//! newer ones, whose driver compiles it ([`kernels`] has the list). Without any of them only the CPU path is left.
//! [`Error::NoImages`] names the feature that a GPU needs.
//!
//! # Errors
//!
//! Unsupported problems and bad input are rejected before anything is launched; the [`Error`] names the argument and the rule.
//! An error while a kernel runs is reported, with the kernel's name, by the next call that waits.

mod attention;
mod backend;
#[doc(hidden)]
pub mod backward;
pub mod cache;
mod considered;
pub mod cpu;
mod error;
pub mod gpu;
mod lse;
mod operands;
pub mod ops;
pub mod plan;
mod recent;
pub mod spec;
mod tensor;

pub use attention::{Attention, Gradients, GradientsInto, Output, OutputGiven, OutputGradient};
pub use backend::Backend;
pub use cache::KvCache;
pub use error::{Error, Result};
pub use lse::Lse;
pub use operands::{Keys, Queries, Scales};
pub use spec::{BlockList, BlockLists, Diagonal, E4m3, Element, ElementType, Layout, Mask, Splits};
pub use tensor::Tensor;
#[doc(hidden)]
pub use warptile_spec::number_options;
pub use warptile_spec::with_element;

/// The traits of types whose bits may be any.
pub use bytemuck;
/// The 16-bit element types.
pub use half;
/// The driver layer: contexts, streams, buffers, graphs.
pub use warptile_driver as driver;
/// The embedded kernels, their catalog and their tilings.
pub use warptile_kernels as kernels;

/// The README's examples, tested with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
