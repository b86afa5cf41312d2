//! How many heads there are, and of what size: found in tensors, and checked.

use std::fmt;

use crate::{Invalid, Layout, MAX_HEAD_DIM, Result};

/// Heads and their sizes, in one struct: what a call, a problem, a test case and a record of a measurement hold.
///
/// Prints and parses as two words: `h32/8 d192/128` are 32 query heads, 8 key/value heads, head size 192 of queries and keys, and
/// 128 of values and the output. A second number that is the same as the first is left out: `h8 d64`. Ordered by size, then by
/// number.
///
/// ```
/// use warptile_spec::Heads;
///
/// let heads = Heads::new(32, 192).key_value(8).value_dim(128);
/// assert_eq!(heads.to_string(), "h32/8 d192/128");
/// assert_eq!(heads.group_size(), 4);
/// assert_eq!(Heads::new(8, 64).to_string(), "h8 d64");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[must_use]
pub struct Heads {
    /// Head size of queries and keys.
    pub dim: usize,
    /// Head size of values and of the output.
    pub value_dim: usize,
    /// Query heads.
    pub query: usize,
    /// Key/value heads: a divisor of the query heads.
    pub key_value: usize,
}

impl Heads {
    /// As many key/value heads as query heads, and one size for all.
    pub const fn new(heads: usize, dim: usize) -> Self {
        Heads {
            dim,
            value_dim: dim,
            query: heads,
            key_value: heads,
        }
    }

    /// Sets the number of key/value heads.
    pub const fn key_value(self, key_value: usize) -> Self {
        Heads { key_value, ..self }
    }

    /// With this head size of values.
    pub const fn value_dim(self, value_dim: usize) -> Self {
        Heads { value_dim, ..self }
    }

    /// With these head sizes, as [`dims`](Self::dims) has them.
    pub const fn with_dims(mut self, [dim, value_dim]: [usize; 2]) -> Self {
        self.dim = dim;
        self.value_dim = value_dim;
        self
    }

    /// The head size of queries and keys, and that of values and the output.
    pub const fn dims(&self) -> [usize; 2] {
        [self.dim, self.value_dim]
    }

    /// Those of tensors. What two of them share is that of the first.
    pub const fn of(q: &Layout, k: &Layout, v: &Layout) -> Self {
        Heads {
            dim: q.head_dim(),
            value_dim: v.head_dim(),
            query: q.heads(),
            key_value: k.heads(),
        }
    }

    /// Returns true if all head sizes are multiples of `elements`.
    pub const fn are_multiples_of(&self, elements: usize) -> bool {
        self.dim.is_multiple_of(elements) && self.value_dim.is_multiple_of(elements)
    }

    /// Checks that attention can have such heads.
    ///
    /// # Errors
    /// [`Invalid::HeadDimUnsupported`] if a head size is not a multiple of 8 between 8 and [`MAX_HEAD_DIM`];
    /// [`Invalid::HeadsNotMultiple`] if there are none, or the query heads are not a multiple of the key/value heads.
    pub fn validate(&self) -> Result<()> {
        for (argument, head_dim) in [("q", self.dim), ("v", self.value_dim)] {
            if !head_dim.is_multiple_of(8) || !(8..=MAX_HEAD_DIM).contains(&head_dim) {
                return Err(Invalid::HeadDimUnsupported { argument, head_dim });
            }
        }
        let (heads, kv_heads) = (self.query, self.key_value);
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Invalid::HeadsNotMultiple {
                heads,
                keys: "k",
                kv_heads,
            });
        }
        Ok(())
    }

    /// Query heads that share a key/value head.
    pub const fn group_size(&self) -> usize {
        match self.key_value {
            0 => self.query,
            key_value => self.query / key_value,
        }
    }

    /// Returns true if the head size of values differs from that of keys.
    pub const fn values_differ(&self) -> bool {
        self.value_dim != self.dim
    }

    /// Elements of a key and its value.
    pub const fn key_value_elements(&self) -> usize {
        self.dim + self.value_dim
    }

    /// The numbers of heads: `32/8`, or `32` if there are as many of keys and values.
    pub fn counts(&self) -> String {
        pair(self.query, self.key_value)
    }

    /// The head sizes: `192/128`, or `64` if that of values is the same.
    pub fn sizes(&self) -> String {
        pair(self.dim, self.value_dim)
    }

    /// Applies one word, such as `h32/8` or `d64`; `None` if it is another. For grammars that have other words as well.
    pub fn parse_word(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_at_checked(1)?;
        let (first, second) = value.split_once('/').unwrap_or((value, value));
        let numbers = || Some((first.parse().ok()?, second.parse().ok()?));
        match name {
            "h" => (self.query, self.key_value) = numbers()?,
            "d" => (self.dim, self.value_dim) = numbers()?,
            _ => return None,
        }
        Some(())
    }
}

fn pair(first: usize, second: usize) -> String {
    match first == second {
        true => first.to_string(),
        false => format!("{first}/{second}"),
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{} d{}", self.counts(), self.sizes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    fn parsed(text: &str) -> Option<Heads> {
        let mut heads = Heads::new(1, 64);
        { text.split_whitespace() }.try_for_each(|word| heads.parse_word(word))?;
        Some(heads)
    }

    quickcheck! {
        fn text_round_trips(query: usize, key_value: usize, dim: usize, value_dim: usize) -> bool {
            let heads = Heads::new(query, dim).key_value(key_value).value_dim(value_dim);
            parsed(&heads.to_string()) == Some(heads)
        }
    }

    #[test]
    fn a_word_gives_both_numbers() {
        assert_eq!(parsed("d128"), Some(Heads::new(1, 128)));
        assert_eq!(parsed("h8/2"), Some(Heads::new(8, 64).key_value(2)));
        assert_eq!(parsed("d64 h6"), Some(Heads::new(6, 64)));
        for text in ["h", "h8/", "d/8", "d8/8/8", "h-1", "k8", "dx", "é8"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_order_first() {
        assert!(Heads::new(32, 64) < Heads::new(8, 128));
        assert!(Heads::new(8, 64).key_value(2) < Heads::new(8, 64));
    }
}
