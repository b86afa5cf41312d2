//! Tests of the CPU path.

mod append;
#[path = "../common/append.rs"]
mod append_cases;
mod backward;
mod blocks;
mod bugs;
mod cache;
mod common;
#[path = "../common/compositions.rs"]
mod compositions;
#[path = "../common/draw.rs"]
mod draw;
mod dropout;
mod e4m3;
mod features;
mod few;
mod invariance;
mod merge;
#[path = "../common/merge.rs"]
mod merge_cases;
#[path = "../common/neighbours.rs"]
mod neighbours;
mod not_finite;
mod pages;
mod prepass;
#[path = "../common/prepass.rs"]
mod prepass_cases;
#[path = "../common/quantized.rs"]
mod quantized;
mod random;
mod real;
mod shapes;
mod threads;
