//! Heads as records of measurements have them in JSON. The maintainers' tool, which reads those, compiles this file, too.

use serde::{Deserialize, Serialize};

use super::Heads;

/// [`Heads`], as fields of a record.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct HeadsRecord {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Left out by some peers where it is the head size of keys.
    value_dim: Option<usize>,
}

impl From<Heads> for HeadsRecord {
    fn from(heads: Heads) -> Self {
        HeadsRecord {
            heads: heads.query,
            kv_heads: heads.key_value,
            head_dim: heads.dim,
            value_dim: Some(heads.value_dim),
        }
    }
}

impl From<HeadsRecord> for Heads {
    fn from(record: HeadsRecord) -> Self {
        Heads::new(record.heads, record.head_dim)
            .key_value(record.kv_heads)
            .value_dim(record.value_dim.unwrap_or(record.head_dim))
    }
}
