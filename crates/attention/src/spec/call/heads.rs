//! The heads of a call: found in its tensors, and checked.

use crate::spec::{Error, Heads, Layout, MAX_HEAD_DIM, Result};

impl Heads {
    /// Those of tensors. What two of them share is that of the first.
    pub(crate) const fn of(q: &Layout, k: &Layout, v: &Layout) -> Self {
        Heads {
            dim: q.head_dim(),
            value_dim: v.head_dim(),
            query: q.heads(),
            key_value: k.heads(),
        }
    }

    /// Whether a head of any of the tensors is whole pieces of so many elements.
    pub(crate) const fn are_multiples_of(&self, elements: usize) -> bool {
        self.dim.is_multiple_of(elements) && self.value_dim.is_multiple_of(elements)
    }

    /// Checks that attention can have such heads.
    ///
    /// # Errors
    /// [`Error::HeadDimUnsupported`] if a head size is no multiple of 8 between 8 and [`MAX_HEAD_DIM`];
    /// [`Error::HeadsNotMultiple`] if there are none, or the query heads are not a multiple of the key/value heads.
    pub fn validate(&self) -> Result<()> {
        for (argument, head_dim) in [("q", self.dim), ("v", self.value_dim)] {
            if !head_dim.is_multiple_of(8) || !(8..=MAX_HEAD_DIM).contains(&head_dim) {
                return Err(Error::HeadDimUnsupported { argument, head_dim });
            }
        }
        let (heads, kv_heads) = (self.query, self.key_value);
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::HeadsNotMultiple {
                heads,
                keys: "k",
                kv_heads,
            });
        }
        Ok(())
    }
}
