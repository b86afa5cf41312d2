//! Tests of the CPU path.

mod bugs;
mod common;
mod features;
mod pages;
mod random;
mod real;
mod shapes;
mod threads;
