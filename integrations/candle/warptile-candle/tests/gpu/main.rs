//! On a GPU, on candle's streams, against candle's own operations on the CPU.
//!
//! `cargo test -p warptile-candle --test gpu -- --include-ignored` on a machine with an NVIDIA GPU, its driver, cuBLAS and cuRAND.
//! candle's own kernels are not needed: what stands in for them has the one that a function of ours calls.

mod captures;
#[path = "../common/mod.rs"]
mod common;
mod problems;
mod threads;
mod writes;
