//! Kernels compiled by the real compiler: what is refused, what is rebuilt, what `--check` finds.

mod build;
mod gates;
mod workshop;
