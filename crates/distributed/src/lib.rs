//! Attention over several devices of one process.
//!
//! ```
//! use std::time::Duration;
//! use warptile::{Attention, Backend, Mask};
//! use warptile_distributed::{Group, Sharding};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let group = Group::local([Backend::cpu(), Backend::cpu()])?; // or Backend::cuda(0)?, Backend::cuda(1)?
//!     let shards = group.shards(&Sharding::Zigzag, 1000)?;
//!     let host = |heads: usize| vec![0.5_f32; 1000 * heads * 64]; // [length, heads, head size]
//!     let q = shards.split(&host(8), 8, 64)?;
//!     let (k, v) = (shards.split_keys(&host(2), 2, 64)?, shards.split_keys(&host(2), 2, 64)?);
//!     let out = shards.forward(&Attention::new().mask(Mask::causal()), &q, (&k, &v))?; // one tensor a rank
//!     group.synchronize(Duration::from_secs(60))?;
//!     println!("{} values", shards.join(&out)?.len());
//!     Ok(())
//! }
//! ```

mod error;
mod gather;
mod group;
pub mod need;
mod plan;
pub mod shard;
mod shards;

pub use error::{Error, Result};
pub use group::Group;
pub use plan::Expected;
pub use shard::{RowMap, Sharding};
pub use shards::Shards;
