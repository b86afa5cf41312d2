//! Attention over several devices of one process.
//!
//! [`Group::local`] takes the devices, [`Group::shards`] deals rows to them, and [`Shards::forward`] computes; [`Group::broadcast`] and
//! [`Group::merge`] are for keys that stay where they are. `docs/several-gpus.md` has examples.

mod error;
mod gather;
mod group;
mod heads;
mod merged;
pub mod need;
mod plan;
pub mod shard;
mod shards;
mod stage;

pub use error::{Error, Result};
pub use group::Group;
pub use plan::{Expected, Scheme};
pub use shard::{RowMap, Sharding};
pub use shards::Shards;

/// Compiles and runs the page's example.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/several-gpus.md")]
struct Page;
