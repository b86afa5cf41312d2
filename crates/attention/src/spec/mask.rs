//! Which keys a query may see.

use std::fmt;
use std::ops::Range;

/// Where the diagonal of a mask runs when the query and key lengths differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Align {
    /// The first query is aligned with the first key.
    TopLeft,
    /// The last query is aligned with the last key: FlashAttention's convention, and what decoding with a cache wants.
    BottomRight,
}

impl fmt::Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Align::TopLeft => "top-left",
            Align::BottomRight => "bottom-right",
        })
    }
}

/// Which keys a query may see.
///
/// With `diagonal = i + key_len - query_len` (top-left aligned: `diagonal = i`), query `i` sees key `j` if
///
/// | mask | condition |
/// |---|---|
/// | `None` | always |
/// | `Causal` | `j <= diagonal` |
/// | `Window` | `diagonal - left <= j <= diagonal + right` |
///
/// ```
/// use warptile::Mask;
///
/// // 2 queries, 5 keys: the last query sees all keys, the one before it all but the last.
/// assert_eq!(Mask::causal().visible(0, 2, 5), 0..4);
/// assert_eq!(Mask::causal().visible(1, 2, 5), 0..5);
/// // The two keys before the diagonal and the diagonal itself.
/// assert_eq!(Mask::window(2, 0).visible(1, 2, 5), 2..5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mask {
    /// Every query sees every key.
    #[default]
    None,
    /// A query sees no key after the diagonal.
    Causal {
        /// Where the diagonal runs.
        align: Align,
    },
    /// A query sees the keys near the diagonal, which is bottom-right aligned; `None` means unlimited on that side.
    Window {
        /// How many keys before the diagonal are visible.
        left: Option<u32>,
        /// How many keys after the diagonal are visible.
        right: Option<u32>,
    },
}

impl Mask {
    /// No mask.
    #[must_use]
    pub const fn none() -> Self {
        Mask::None
    }

    /// Causal, bottom-right aligned.
    #[must_use]
    pub const fn causal() -> Self {
        Mask::Causal {
            align: Align::BottomRight,
        }
    }

    /// A sliding window around the bottom-right aligned diagonal. A side takes a number of keys or, for no limit, `None`.
    /// `Mask::window(None, 0)` equals [`Mask::causal`] in effect.
    #[must_use]
    pub fn window(left: impl Into<Option<u32>>, right: impl Into<Option<u32>>) -> Self {
        Mask::Window {
            left: left.into(),
            right: right.into(),
        }
    }

    /// The keys that query `row` of a sequence with `query_len` queries sees among `key_len` keys; possibly none.
    ///
    /// Every path of this crate is checked against this definition.
    #[must_use]
    pub fn visible(&self, row: usize, query_len: usize, key_len: usize) -> Range<usize> {
        let bounds = self.bounds();
        // Wide enough that no length a caller can name overflows.
        let keys = key_len as i128;
        let diagonal = row as i128 + bounds.diagonal_offset(query_len, key_len);
        let start = bounds
            .left
            .map_or(0, |left| (diagonal - i128::from(left)).clamp(0, keys));
        let end = bounds.right.map_or(keys, |right| {
            (diagonal + i128::from(right) + 1).clamp(0, keys)
        });
        start as usize..end as usize
    }

    /// About the most keys that a row sees. Under a mask with one edge it is the first or the last, under a window any that has the
    /// whole of it.
    #[must_use]
    pub(crate) fn widest(&self, query_len: usize, key_len: usize) -> usize {
        [0, query_len / 2, query_len.saturating_sub(1)]
            .map(|row| self.visible(row, query_len, key_len).len())
            .into_iter()
            .max()
            .unwrap_or(0)
    }

    /// How many (query, key) pairs are visible in a sequence, without walking over its rows.
    #[must_use]
    pub(crate) fn visible_pairs(&self, query_len: usize, key_len: usize) -> u128 {
        let bounds = self.bounds();
        let offset = bounds.diagonal_offset(query_len, key_len);
        let ends = bounds
            .right
            .map_or(query_len as i128 * key_len as i128, |right| {
                sum_of_clamped(query_len, offset + i128::from(right) + 1, key_len)
            });
        let starts = bounds.left.map_or(0, |left| {
            sum_of_clamped(query_len, offset - i128::from(left), key_len)
        });
        (ends - starts) as u128
    }

    pub(crate) const fn bounds(&self) -> MaskBounds {
        match *self {
            Mask::None => MaskBounds {
                left: None,
                right: None,
                align: Align::BottomRight,
            },
            Mask::Causal { align } => MaskBounds {
                left: None,
                right: Some(0),
                align,
            },
            Mask::Window { left, right } => MaskBounds {
                left,
                right,
                align: Align::BottomRight,
            },
        }
    }
}

/// Every mask as one window: how far a query sees to both sides of its diagonal, and where that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaskBounds {
    pub(crate) left: Option<u32>,
    pub(crate) right: Option<u32>,
    pub(crate) align: Align,
}

impl MaskBounds {
    /// The key on the diagonal of query 0.
    pub(crate) const fn diagonal_offset(&self, query_len: usize, key_len: usize) -> i128 {
        match self.align {
            Align::TopLeft => 0,
            Align::BottomRight => key_len as i128 - query_len as i128,
        }
    }
}

/// The sum of `clamp(i + offset, 0, limit)` over `i` in `0..count`.
fn sum_of_clamped(count: usize, offset: i128, limit: usize) -> i128 {
    let (count, limit) = (count as i128, limit as i128);
    // Rows below `rising` contribute 0, from there the terms rise by one, from `full` on each is `limit`.
    let rising = (-offset).clamp(0, count);
    let full = (limit - offset).clamp(rising, count);
    let terms = full - rising;
    let first = rising + offset;
    terms * first + terms * (terms - 1) / 2 + (count - full) * limit
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: Option<u32>| side.map_or("unlimited".to_owned(), |n| n.to_string());
        match self {
            Mask::None => f.pad("none"),
            Mask::Causal { align } => f.pad(&format!("causal {align}")),
            Mask::Window { left, right } => {
                f.pad(&format!("window {} to {}", side(*left), side(*right)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    fn any_mask(kind: u8, left: u32, right: u32) -> Mask {
        let (left, right) = (left % 50, right % 50);
        match kind % 7 {
            0 => Mask::none(),
            1 => Mask::causal(),
            2 => Mask::Causal {
                align: Align::TopLeft,
            },
            3 => Mask::window(left, right),
            4 => Mask::window(None, right),
            5 => Mask::window(left, None),
            _ => Mask::window(u32::MAX - left, u32::MAX - right),
        }
    }

    quickcheck! {
        fn visible_is_the_documented_condition(kind: u8, left: u32, right: u32, queries: u8, keys: u8) -> bool {
            let (query_len, key_len) = (queries as usize % 64, keys as usize % 64);
            let mask = any_mask(kind, left, right);
            (0..query_len).all(|i| {
                let range = mask.visible(i, query_len, key_len);
                (0..key_len).all(|j| {
                    let (i, j) = (i as i64, j as i64);
                    let bottom_right = i + key_len as i64 - query_len as i64;
                    let sees = match mask {
                        Mask::None => true,
                        Mask::Causal { align: Align::TopLeft } => j <= i,
                        Mask::Causal { align: Align::BottomRight } => j <= bottom_right,
                        Mask::Window { left, right } => {
                            left.is_none_or(|left| bottom_right - i64::from(left) <= j)
                                && right.is_none_or(|right| j <= bottom_right + i64::from(right))
                        }
                    };
                    sees == range.contains(&(j as usize))
                })
            })
        }

        fn pairs_are_the_sum_over_rows(kind: u8, left: u32, right: u32, queries: u8, keys: u8) -> bool {
            let (query_len, key_len) = (queries as usize, keys as usize);
            let mask = any_mask(kind, left, right);
            let sum: usize = (0..query_len)
                .map(|row| mask.visible(row, query_len, key_len).len())
                .sum();
            mask.visible_pairs(query_len, key_len) == sum as u128
        }
    }

    #[test]
    fn rows_before_the_first_key_see_nothing() {
        assert!(Mask::causal().visible(0, 5, 2).is_empty());
        assert_eq!(Mask::causal().visible(3, 5, 2), 0..1);
        assert!(Mask::window(1, 1).visible(0, 9, 3).is_empty());
    }

    #[test]
    fn extreme_lengths_do_not_overflow() {
        let n = usize::MAX;
        assert_eq!(Mask::causal().visible(n - 1, n, 3), 0..3);
        assert!(Mask::causal().visible(0, n, 3).is_empty());
        assert_eq!(Mask::window(u32::MAX, u32::MAX).visible(0, 1, 7), 0..7);
    }

    #[test]
    fn names() {
        assert_eq!(Mask::causal().to_string(), "causal bottom-right");
        assert_eq!(Mask::window(3, None).to_string(), "window 3 to unlimited");
        assert_eq!(Mask::default().to_string(), "none");
    }
}
