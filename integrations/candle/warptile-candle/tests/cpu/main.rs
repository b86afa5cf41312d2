//! On the CPU, against candle's own operations.

#[path = "../common/mod.rs"]
mod common;
mod errors;
mod gradients;
#[path = "../../examples/train/model.rs"]
mod model;
mod random;
mod signatures;
mod training;
mod writes;
