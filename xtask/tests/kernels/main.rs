//! Kernels compiled by the real compiler: what is refused, what is rebuilt, what `--check` finds. The pinned compiler, and
//! so these tests, exist for Linux x86-64.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod build;
mod gates;
mod workshop;
