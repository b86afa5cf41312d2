//! Fused attention for candle without nvcc: the functions of candle-flash-attn by their names and signatures, computed by
//! [Warptile](https://github.com/warptile/warptile). It compiles in seconds, because the CUDA kernels are compiled already.
//!
//! A crate that uses candle-flash-attn changes one line of its manifest, and no line of its source:
//!
//! ```toml
//! candle-flash-attn = { package = "warptile-candle", version = "0.11" }
//! ```
//!
//! The first two numbers of a version are those of the candle-core that it works with: 0.9, 0.10 or 0.11.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use warptile_candle::flash_attn;
//!
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::new_cuda(0).unwrap_or(Device::Cpu);
//! let q = Tensor::randn(0f32, 1., (2, 128, 8, 64), &device)?.to_dtype(DType::F16)?; // batch, length, heads, head size
//! let k = Tensor::randn(0f32, 1., (2, 300, 2, 64), &device)?.to_dtype(DType::F16)?; // four query heads share a key/value head
//! let out = flash_attn(&q, &k, &k, 0.125, true)?;
//! assert_eq!(out.dims(), q.dims());
//! # Ok(())
//! # }
//! ```
//!
//! # What it computes
//!
//! - f16, bf16 and f32; head sizes 8 to 512 in steps of 8, of v possibly different from that of q and k. On NVIDIA
//!   GPUs from compute capability 8.0 on, and on the CPU.
//! - The results of candle-flash-attn except for rounding, with all its options: masks and windows aligned bottom-right, grouped heads,
//!   packed sequences, keys and values in pages of 1 to 256 rows, and so on. A query that sees no key gives 0. One exception: a window with
//!   a left limit alone has no other here. In candle-flash-attn it also hides keys more than `seqlen_k` past the diagonal, which the first
//!   of many queries have.
//! - [`Attention`] has these options as methods, and some that candle-flash-attn lacks, such as the log-sum-exp of each row, and pages
//!   whose key lengths a captured graph reads at each replay. [`write_to_pages`] writes new keys and values into such pages.
//! - Keys and values in 8 bits with scales: [`Attention::scales`] reads them, [`write_to_pages_quantized`] writes them into pages. On a GPU
//!   the head size is a multiple of 16 up to 256 then, and q is f16 or bf16.
//!
//! Not supported: f32 on a GPU at head sizes above 256, and the `mm_prefix_ranges` of
//! [`flash_attn_varlen_paged_windowed`]. Both are errors. Gradients flow to q, k and v, unlike in candle-flash-attn,
//! but not from pages, quantized keys and head sizes above 256. [`Attention::dropout`] drops weights where there are
//! kernels for it, which the CPU has.
//!
//! # Several GPUs
//!
//! With the feature `distributed`, `Devices` deals one long sequence to several devices, whose calls are computed by
//! [warptile-distributed](https://docs.rs/warptile-distributed).
//!
//! # On a GPU
//!
//! - A call launches on the stream of q's device, whichever that is, from any thread, and waits for nothing. What it
//!   needs in addition to its tensors is allocated on that stream, as candle allocates its results.
//! - It may be part of a capture on a stream of one's own (`Device::new_cuda_with_stream`). Make the same call once before, so that
//!   its kernel is loaded.
//! - Lengths and page numbers are read by the kernels, which clamp them. On the CPU bad ones are errors.
//! - The feature `cuda`, on by default, turns on candle's; without it, tensors on the CPU are all there is, and no CUDA is needed.

mod attention;
mod cache;
mod caller;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
mod describe;
#[cfg(feature = "distributed")]
mod devices;
mod elements;
mod flash_attn;
mod key_lengths;
mod locks;

pub use attention::Attention;
pub use cache::{write_to_pages, write_to_pages_quantized};
#[cfg(feature = "distributed")]
pub use devices::Devices;
pub use flash_attn::*;
#[cfg(feature = "distributed")]
pub use warptile_distributed::{Scheme, Sharding, Shards, World};
