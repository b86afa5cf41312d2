//! Attention over several devices of one process. See the README.

mod error;
pub mod need;
pub mod shard;

pub use error::{Error, Result};
pub use shard::{RowMap, Sharding};
