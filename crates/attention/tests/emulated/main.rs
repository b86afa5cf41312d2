//! The C++ of the operations' kernels, compiled for the CPU: the stand-in driver records what is launched, and the emulated kernel
//! runs on the same parameters and memory. The whole way of a launch is tested but the GPU itself. Needs g++ 12 or newer; run
//! with `--include-ignored`.

mod append;
#[path = "../common/append.rs"]
mod append_cases;
#[path = "../common/append_on_gpu.rs"]
mod append_on_gpu;
mod backward;
#[path = "../common/draw.rs"]
mod draw;
mod e4m3;
mod lists;
#[path = "../common/masks.rs"]
mod masks;
mod merge;
#[path = "../common/merge.rs"]
mod merge_cases;
#[path = "../common/merge_on_gpu.rs"]
mod merge_on_gpu;
mod place;
mod prepass;
#[path = "../common/prepass.rs"]
mod prepass_cases;
#[path = "../common/prepass_on_gpu.rs"]
mod prepass_on_gpu;
#[path = "../common/quantized.rs"]
mod quantized;
mod runs;
