//! Fused attention for Rust that needs only the NVIDIA driver, or no GPU at all.
