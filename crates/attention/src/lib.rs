//! Fused attention for Rust that needs only the NVIDIA driver, or no GPU at all.

mod element;
mod error;
mod layout;
mod mask;
mod params;
mod problem;
pub mod tiling;

pub use element::{Element, ElementType};
pub use error::{Error, Rejection, Result};
pub use layout::{Layout, View, ViewMut};
pub use mask::{Align, Mask};
pub use params::{AttentionParams, Strides, WINDOW_UNLIMITED};
pub use problem::{
    AlibiShape, MAX_HEAD_DIM, MAX_LEN, Problem, ProblemBuilder, Sequence, common_element,
};
pub use warptile_kernels::Family;
