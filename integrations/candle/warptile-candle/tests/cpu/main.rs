//! On the CPU, against candle's own operations.

#[path = "../common/mod.rs"]
mod common;
mod errors;
mod gradients;
mod random;
mod signatures;
mod writes;
