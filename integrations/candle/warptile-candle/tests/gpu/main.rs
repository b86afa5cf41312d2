//! On a GPU, on candle's streams, against candle's own operations on the CPU.
//!
//! `cargo test -p warptile-candle --test gpu -- --include-ignored` on a machine with an NVIDIA GPU, its driver, cuBLAS and cuRAND.
//! candle's own kernels are not needed: what stands in for them has the one that a function of ours calls.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

mod captures;
#[path = "../common/mod.rs"]
mod common;
mod problems;
mod threads;
mod writes;

/// A device that is made or dropped waits for the whole context, and that ends every capture in it: a test that captures runs alone.
static CAPTURING: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    CAPTURING.write().unwrap_or_else(PoisonError::into_inner)
}

fn beside_others() -> RwLockReadGuard<'static, ()> {
    CAPTURING.read().unwrap_or_else(PoisonError::into_inner)
}
