//! Where keys are cut into ranges that are computed apart.

use std::fmt;
use std::str::FromStr;

use crate::{Invalid, Result};

/// Where the keys of a sequence are cut into ranges that are computed apart and added up.
///
/// Floating-point sums depend on their order, so the cuts show in the last bits of a result. [`Splits::EveryKeys`] is for those who need a
/// sequence's bits to be the same in every batch. Where all numbers are finite:
///
/// - Output and lse of a query do not depend on the batch size, the other sequences and the order of all, on whether keys and
///   values lie densely, packed or in pages, and of what size, or on how many query rows are computed at once. So a prompt under a
///   causal mask or a window (bottom-right aligned) may be cut in chunks, each against the keys up to its own end.
/// - They do depend on element type, head size, heads, the other options, `n`, the kind of device, its `Rates` and this
///   crate's version, and on whether `Choice` asks for a different kernel than the planner takes.
/// - On a GPU only kernels that share keys among their CTAs can do this. They take `f16` and `bf16` in rows that start at
///   multiples of 16 bytes, and of the options no dropout, no lists of blocks and no bias of `f32`. They are made for few
///   queries: prompts are slow, and each range of each tile of rows leaves its part in device memory until all are added
///   up. Chunks of some hundred queries keep that in bounds. Where only the device knows lengths it follows from their
///   bounds (`Keys::longest`, `KvCacheBuilder::longest`).
/// - On the CPU nothing changes: its bits are the same either way, for every `n`.
///
/// A NaN or an infinity in `v` may reach queries of its sequence from which a mask hides its key, and which ones
/// depends on where keys are cut and on the tiles of rows: the weight of a hidden key is 0, and 0 times either is
/// NaN. Lengths and pages keep such values away.
///
/// Prints and parses as `even`, or as the number of keys.
///
/// ```
/// use warptile::{Attention, Backend, Mask, Splits};
///
/// # fn main() -> warptile::Result<()> {
/// # let backend = Backend::cpu();
/// let attention = Attention::new().mask(Mask::causal()).splits(Splits::EveryKeys(512));
/// let q = backend.tensor(&[0.25_f32; 6 * 8], [1, 6, 1, 8])?;
/// let whole = attention.forward(&q, (&q, &q))?.out.to_vec()?;
/// // The last two queries alone, against all keys.
/// let chunk = attention.forward(&q.rows(4..6)?, (&q, &q))?.out.to_vec()?;
/// assert_eq!(whole[4 * 8..], chunk);
/// assert!(Attention::new().splits(Splits::EveryKeys(100)).forward(&q, (&q, &q)).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Splits {
    /// So that all CTAs have as much to do: the fastest.
    #[default]
    Even,
    /// At every multiple of this many keys, counted from a sequence's first: a power of two from [`Splits::MIN_KEYS`]
    /// to [`Splits::MAX_KEYS`]. Fewer occupy more CTAs with short sequences, more leave fewer parts to add up.
    EveryKeys(u32),
}

impl Splits {
    /// The fewest keys between two cuts: no tile has more at once.
    pub const MIN_KEYS: u32 = 256;

    /// The most keys between two cuts.
    pub const MAX_KEYS: u32 = 1 << 20;

    /// Checks the number of keys.
    ///
    /// # Errors
    /// [`Invalid::Splits`].
    pub fn validate(self) -> Result<()> {
        match self {
            Splits::EveryKeys(keys)
                if !keys.is_power_of_two()
                    || !(Self::MIN_KEYS..=Self::MAX_KEYS).contains(&keys) =>
            {
                Err(Invalid::Splits { keys })
            }
            _ => Ok(()),
        }
    }

    /// Keys between two cuts, if these are at fixed places.
    pub const fn keys(self) -> Option<u32> {
        match self {
            Splits::Even => None,
            Splits::EveryKeys(keys) => Some(keys),
        }
    }
}

impl fmt::Display for Splits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Splits::Even => f.pad("even"),
            Splits::EveryKeys(keys) => fmt::Display::fmt(keys, f),
        }
    }
}

/// A text that says nothing of splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("splits are `even`, or a number of keys such as 512")]
pub struct ParseSplitsError;

impl FromStr for Splits {
    type Err = ParseSplitsError;

    /// Any number is taken; [`Splits::validate`] says whether it can be.
    fn from_str(text: &str) -> std::result::Result<Self, ParseSplitsError> {
        match text {
            "even" => Ok(Splits::Even),
            _ => text
                .parse()
                .map(Splits::EveryKeys)
                .map_err(|_| ParseSplitsError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_a_power_of_two_in_range() {
        for keys in (8..=20).map(|log| 1 << log) {
            assert!(Splits::EveryKeys(keys).validate().is_ok(), "{keys}");
        }
        for keys in [0, 1, 128, 255, 257, 768, 1 << 21, 1 << 31, u32::MAX] {
            let error = Splits::EveryKeys(keys).validate().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "splits are every {keys} keys, but the number must be a power of two from 256 to 1048576"
                )
            );
        }
        assert!(Splits::Even.validate().is_ok());
    }

    #[test]
    fn text_round_trips() {
        for splits in [Splits::Even, Splits::EveryKeys(512), Splits::EveryKeys(7)] {
            assert_eq!(splits.to_string().parse(), Ok(splits));
        }
        for text in ["", "-512", "512 ", "Even", "4294967296"] {
            assert_eq!(text.parse::<Splits>(), Err(ParseSplitsError), "{text}");
        }
    }
}
