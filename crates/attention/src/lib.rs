//! Fused attention for Rust that needs only the NVIDIA driver, or no GPU at all.

pub mod accept;
mod attention;
mod backend;
mod cpu;
mod device;
mod element;
mod error;
pub mod gpu;
mod layout;
mod mask;
mod params;
mod plan;
mod problem;
mod rates;
mod reference;
mod tensor;
pub mod testing;
pub mod tiling;

pub use attention::{Attention, Lse, Output};
pub use backend::Backend;
pub use cpu::forward_cpu;
pub use device::DeviceProfile;
pub use element::{Element, ElementType};
pub use error::{Error, Result};
pub use layout::{Layout, View, ViewMut};
pub use mask::{Align, Mask};
pub use plan::{Launch, Plan, Reason, Rejection};
pub use problem::{
    AlibiShape, MAX_HEAD_DIM, MAX_LEN, Problem, ProblemBuilder, Sequence, common_element,
};
pub use reference::{ReferenceOutput, reference, reference_rounded};
pub use tensor::Tensor;
pub use warptile_kernels::Family;
pub use warptile_kernels::abi::{Forward, ForwardTma, WINDOW_UNLIMITED};
