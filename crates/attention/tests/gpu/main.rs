//! The kernels on a real GPU, against the float64 reference. Run with `--include-ignored` on a machine that has one.

mod activations;
mod append;
#[path = "../common/append.rs"]
mod append_cases;
#[path = "../common/append_on_gpu.rs"]
mod append_on_gpu;
mod backward;
mod blocks;
mod boxes;
mod cache;
#[path = "../common/compositions.rs"]
mod compositions;
#[path = "../../examples/common/decode_step.rs"]
mod decode_step;
#[path = "../common/draw.rs"]
mod draw;
mod dropout;
mod e4m3;
mod early;
mod errors;
mod extremes;
mod growing;
mod harness;
mod invariance;
#[path = "../common/masks.rs"]
mod masks;
mod merge;
#[path = "../common/merge.rs"]
mod merge_cases;
#[path = "../common/merge_on_gpu.rs"]
mod merge_on_gpu;
mod named_bugs;
#[path = "../common/neighbours.rs"]
mod neighbours;
mod pages;
mod prepass;
#[path = "../common/prepass.rs"]
mod prepass_cases;
#[path = "../common/prepass_on_gpu.rs"]
mod prepass_on_gpu;
#[path = "../common/quantized.rs"]
mod quantized;
mod random;
mod repetition;
mod runs;
mod tilings;
