//! The kernels on a real GPU, against the float64 reference. Run with `--include-ignored` on a machine that has one.

mod activations;
mod errors;
mod harness;
mod named_bugs;
mod pages;
mod random;
mod repetition;
mod tilings;
