//! Operations other than forward: results merged, new keys and values written into a cache.

mod cache_write;
mod merge;

pub use cache_write::{CacheTensors, CacheWrite};
pub use merge::{merge, merge_into, sum_into};
