//! Steps of the backward pass. Not public yet.

pub use crate::cpu::prepass_cpu;
pub use warptile_spec::{Prepass, PrepassBuilder};
