//! Which keys a query may see.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::Excerpt;

/// Where the diagonal of a mask runs: which key is on that of query `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Diagonal {
    /// `i`: the first query is aligned with the first key.
    TopLeft,
    /// `i + key_len - query_len`: the last query is aligned with the last key, which is FlashAttention's convention, and what decoding
    /// with a cache wants.
    #[default]
    BottomRight,
    /// `i + offset`, in every sequence of a batch: for a chunk of a prompt, or where other calls have the first queries. The offset may
    /// be negative.
    At(i32),
}

impl Diagonal {
    /// The key on the diagonal of query 0; before the first one if negative.
    pub const fn offset(self, query_len: usize, key_len: usize) -> i128 {
        match self {
            Diagonal::TopLeft => 0,
            Diagonal::BottomRight => key_len as i128 - query_len as i128,
            Diagonal::At(offset) => offset as i128,
        }
    }
}

impl fmt::Display for Diagonal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Diagonal::TopLeft => f.pad("top-left"),
            Diagonal::BottomRight => f.pad("bottom-right"),
            Diagonal::At(offset) => offset.fmt(f),
        }
    }
}

/// A text that is no [`Diagonal`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} is not a diagonal: bottom-right, top-left, or the key on the diagonal of the first query, such as 0 or -3",
    Excerpt::new(.0)
)]
pub struct ParseDiagonalError(String);

impl FromStr for Diagonal {
    type Err = ParseDiagonalError;

    /// Parses what `Display` prints.
    fn from_str(text: &str) -> Result<Self, ParseDiagonalError> {
        match text {
            "top-left" => Ok(Diagonal::TopLeft),
            "bottom-right" => Ok(Diagonal::BottomRight),
            offset => offset
                .parse()
                .map(Diagonal::At)
                .map_err(|_| ParseDiagonalError(offset.to_owned())),
        }
    }
}

/// Which keys a query may see: key `j` if `diagonal - left <= j <= diagonal + right`, where [`Diagonal`] says which key is the query's
/// `diagonal`. A side that is `None` is not limited.
///
/// | mask | left | right |
/// |---|---|---|
/// | [`none`](Self::none) | `None` | `None` |
/// | [`causal`](Self::causal) | `None` | 0 |
/// | [`window`](Self::window) | given | given |
///
/// ```
/// use warptile::{Diagonal, Mask};
///
/// // 2 queries, 5 keys: the last query sees all keys, the one before it all but the last.
/// assert_eq!(Mask::causal().visible(0, 2, 5), 0..4);
/// assert_eq!(Mask::causal().visible(1, 2, 5), 0..5);
/// // The two keys before the diagonal and the diagonal itself.
/// assert_eq!(Mask::window(2, 0).visible(1, 2, 5), 2..5);
/// // Queries that begin at the second key.
/// let chunk = Mask::causal().diagonal(Diagonal::At(1));
/// assert_eq!(chunk.visible(0, 2, 5), 0..2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[must_use]
pub struct Mask {
    /// How many keys before the diagonal are visible.
    pub left: Option<u32>,
    /// How many keys after the diagonal are visible.
    pub right: Option<u32>,
    /// Where the diagonal runs.
    pub diagonal: Diagonal,
}

impl Mask {
    /// No mask: every query sees every key.
    pub const fn none() -> Self {
        Mask {
            left: None,
            right: None,
            diagonal: Diagonal::BottomRight,
        }
    }

    /// A query sees no key after the diagonal, which is bottom-right aligned.
    pub const fn causal() -> Self {
        Mask {
            right: Some(0),
            ..Self::none()
        }
    }

    /// A sliding window around the bottom-right aligned diagonal. A side takes a number of keys or, for no limit, `None`.
    /// `Mask::window(None, 0)` is [`Mask::causal`].
    pub fn window(left: impl Into<Option<u32>>, right: impl Into<Option<u32>>) -> Self {
        Mask {
            left: left.into(),
            right: right.into(),
            ..Self::none()
        }
    }

    /// Moves the window to another diagonal.
    pub const fn diagonal(self, diagonal: Diagonal) -> Self {
        Mask { diagonal, ..self }
    }

    /// Returns true if every query sees every key, wherever the diagonal runs.
    pub const fn hides_nothing(&self) -> bool {
        self.left.is_none() && self.right.is_none()
    }

    /// Returns true if a query sees all keys up to its diagonal and no other.
    pub const fn is_causal(&self) -> bool {
        self.left.is_none() && matches!(self.right, Some(0))
    }

    /// The keys that query `row` of a sequence with `query_len` queries sees among `key_len` keys; possibly none.
    ///
    /// Every path of this crate is checked against this definition.
    pub fn visible(&self, row: usize, query_len: usize, key_len: usize) -> Range<usize> {
        // Wide enough that no length a caller can name overflows.
        let keys = key_len as i128;
        let diagonal = row as i128 + self.diagonal.offset(query_len, key_len);
        let start = { self.left }.map_or(0, |left| (diagonal - i128::from(left)).clamp(0, keys));
        let end = self.right.map_or(keys, |right| {
            (diagonal + i128::from(right) + 1).clamp(0, keys)
        });
        start as usize..end.max(start) as usize
    }

    /// About the most keys that a row sees. Under a mask with one edge it is the first or the last, under a window any that has the
    /// whole of it.
    pub fn widest(&self, query_len: usize, key_len: usize) -> usize {
        [0, query_len / 2, query_len.saturating_sub(1)]
            .map(|row| self.visible(row, query_len, key_len).len())
            .into_iter()
            .max()
            .unwrap_or(0)
    }

    /// How many (query, key) pairs are visible in a sequence, without walking over its rows.
    pub fn visible_pairs(&self, query_len: usize, key_len: usize) -> u128 {
        let offset = self.diagonal.offset(query_len, key_len);
        let ends = self
            .right
            .map_or(query_len as i128 * key_len as i128, |right| {
                sum_of_clamped(query_len, offset + i128::from(right) + 1, key_len)
            });
        let starts = self.left.map_or(0, |left| {
            sum_of_clamped(query_len, offset - i128::from(left), key_len)
        });
        (ends - starts) as u128
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
        if self.hides_nothing() {
            return f.pad("none");
        }
        let sides = match self.is_causal() {
            true => "causal".to_owned(),
            false => format!("window {} to {}", side(self.left), side(self.right)),
        };
        match self.diagonal {
            Diagonal::At(offset) => f.pad(&format!("{sides} from key {offset}")),
            aligned => f.pad(&format!("{sides} {aligned}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    fn any_mask(kind: u8, sides: [u32; 2], offset: i8) -> Mask {
        let [left, right] = sides.map(|side| side % 50);
        let mask = match kind % 6 {
            0 => Mask::none(),
            1 => Mask::causal(),
            2 => Mask::window(left, right),
            3 => Mask::window(None, right),
            4 => Mask::window(left, None),
            _ => Mask::window(u32::MAX - left, u32::MAX - right),
        };
        mask.diagonal(match kind / 6 % 4 {
            0 => Diagonal::BottomRight,
            1 => Diagonal::TopLeft,
            2 => Diagonal::At(offset.into()),
            _ => Diagonal::At([i32::MIN, i32::MAX][usize::from(offset < 0)]),
        })
    }

    quickcheck! {
        fn visible_is_the_documented_condition(kind: u8, left: u32, right: u32, offset: i8, queries: u8, keys: u8) -> bool {
            let (query_len, key_len) = (queries as usize % 64, keys as usize % 64);
            let mask = any_mask(kind, [left, right], offset);
            (0..query_len).all(|i| {
                let range = mask.visible(i, query_len, key_len);
                (0..key_len).all(|j| {
                    let (i, j) = (i as i64, j as i64);
                    let diagonal = match mask.diagonal {
                        Diagonal::TopLeft => i,
                        Diagonal::BottomRight => i + key_len as i64 - query_len as i64,
                        Diagonal::At(offset) => i + i64::from(offset),
                    };
                    let sees = mask.left.is_none_or(|left| diagonal - i64::from(left) <= j)
                        && mask.right.is_none_or(|right| j <= diagonal + i64::from(right));
                    sees == range.contains(&(j as usize))
                })
            })
        }

        fn pairs_are_the_sum_over_rows(kind: u8, left: u32, right: u32, offset: i8, queries: u8, keys: u8) -> bool {
            let (query_len, key_len) = (queries as usize, keys as usize);
            let mask = any_mask(kind, [left, right], offset);
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
        let window = Mask::window(3, None);
        assert_eq!(window.to_string(), "window 3 to unlimited bottom-right");
        let chunk = window.diagonal(Diagonal::At(-7));
        assert_eq!(chunk.to_string(), "window 3 to unlimited from key -7");
        for diagonal in [Diagonal::TopLeft, Diagonal::BottomRight, Diagonal::At(-7)] {
            assert_eq!(diagonal.to_string().parse(), Ok(diagonal));
        }
        assert!("2147483648".parse::<Diagonal>().is_err());
        assert_eq!(Mask::default().to_string(), "none");
    }
}
