//! Attention over several devices, of one process or of several.
//!
//! [`Group::local`] takes the devices of one process, [`Group::nccl`] one of each process. [`Group::shards`] deals rows to them, and
//! [`Shards::forward`] and [`Shards::backward`] compute; [`Group::cache`] deals the pages of a cache, and [`Group::broadcast`] and
//! [`Group::merge`] are for other keys that stay where they are.
//! `docs/several-gpus.md` has examples.

mod cache;
mod call;
mod error;
mod gather;
mod group;
mod heads;
mod hybrid;
mod lse;
mod merged;
mod nccl;
pub mod need;
mod plan;
pub mod shard;
mod shards;
mod stage;
mod sums;

pub use cache::ShardedCache;
pub use error::{Error, Result};
pub use group::Group;
pub use lse::ShardedLse;
pub use nccl::failure::Failure;
pub use nccl::world::World;
pub use plan::{Expected, Scheme};
pub use shard::{RowMap, Sharding};
pub use shards::{Gradients, Output, Shards};
/// NCCL's functions, for [`Group::nccl_with`].
pub use warptile_nccl_sys as nccl_sys;

/// Compiles and runs the page's example.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/several-gpus.md")]
struct Page;
