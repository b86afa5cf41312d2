//! What the numbers of tiles stand for: of kernels whose CTAs work in pairs, two tiles that see the same keys; of others rows of one head, or
//! of all heads that share a key/value head.

use warptile_kernels::{Image, Schedule};

use crate::mask::Mask;

/// What CTAs take by one number: rows of some heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbered {
    /// Query heads, key/value heads or pairs of heads: what numbers tell apart.
    pub(crate) heads: usize,
    /// Rows of a number.
    pub(crate) rows: u64,
    /// Rows that each query is.
    pub(crate) rows_of_query: u64,
    /// CTAs that compute a number together.
    pub(crate) ctas: u64,
}

impl Numbered {
    /// Of an image's tiles for a problem with these heads. The kernels go by the same rules (kernels/forward/wgmma_pair.cuh).
    pub(crate) fn of(image: &Image, [heads, kv_heads]: [usize; 2]) -> Self {
        let group = heads / kv_heads.max(1);
        let single = Numbered {
            heads,
            rows: u64::from(image.tiling.block_m),
            rows_of_query: 1,
            ctas: 1,
        };
        match image.schedule {
            Schedule::OneGroupTile | Schedule::PersistentGroups => Numbered {
                heads: kv_heads,
                rows_of_query: group as u64,
                ..single
            },
            Schedule::Pairs if has_pairs_of_heads(group) => Numbered {
                heads: heads / 2,
                ctas: 2,
                ..single
            },
            Schedule::Pairs => Numbered {
                rows: 2 * single.rows,
                ctas: 2,
                ..single
            },
            _ => single,
        }
    }
}

/// Whether the two tiles of a pair are those of two heads, else two of one head.
const fn has_pairs_of_heads(group_size: usize) -> bool {
    group_size.is_multiple_of(2)
}

/// Whether both tiles of a pair see the same keys.
pub(super) fn pairs_share_keys(group_size: usize, mask: Mask) -> bool {
    has_pairs_of_heads(group_size) || mask == Mask::None
}

/// Whether a box of queries can have those of all heads of a group, and a warp's rows one head (kernels/forward/wgmma_layout.cuh).
pub(super) const fn groups_fit_boxes(group_size: usize) -> bool {
    matches!(group_size, 2 | 4)
}
