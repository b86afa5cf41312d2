//! Fused attention for Rust that needs only the NVIDIA driver, or no GPU at all.

pub mod accept;
mod cpu;
mod element;
mod error;
mod layout;
mod mask;
mod params;
mod problem;
mod reference;
pub mod testing;
pub mod tiling;

pub use cpu::forward_cpu;
pub use element::{Element, ElementType};
pub use error::{Error, Rejection, Result};
pub use layout::{Layout, View, ViewMut};
pub use mask::{Align, Mask};
pub use params::{AttentionParams, Strides, WINDOW_UNLIMITED};
pub use problem::{
    AlibiShape, MAX_HEAD_DIM, MAX_LEN, Problem, ProblemBuilder, Sequence, common_element,
};
pub use reference::{ReferenceOutput, reference, reference_rounded};
pub use warptile_kernels::Family;
