//! Problems without data: how they are drawn and made smaller.

mod call;
mod draw;
mod lists;
mod shrink;

use warptile::plan::DeviceProfile;
use warptile::spec::{Heads, Operand, Scoring, Types};
use warptile::{ElementType, Splits};

use crate::data::Random;

pub(crate) use call::MAX_ENTRIES;
pub use lists::Lists;

/// How the tensors of a [`Case`] are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayoutKind {
    /// `[batch, length, heads, head size]`.
    Bshd,
    /// `[batch, heads, length, head size]`.
    Bhsd,
    /// BSHD with unused elements after every head, row and batch entry.
    Gaps,
    /// BSHD, except that k and v are of one tensor: every batch entry or page of keys is followed by that of values.
    /// Where both have the same head size, the tensor is `[batch, 2, length, heads, head size]`. On the host, k and v
    /// have vectors of their own, with room for the other.
    Interleaved,
}

impl LayoutKind {
    const NAMES: [(Self, &str); 4] = [
        (LayoutKind::Bshd, "bshd"),
        (LayoutKind::Bhsd, "bhsd"),
        (LayoutKind::Gaps, "gaps"),
        (LayoutKind::Interleaved, "interleaved"),
    ];

    /// Its word in the text of a case.
    pub(crate) fn name(self) -> &'static str {
        { Self::NAMES.iter() }
            .find(|one| one.0 == self)
            .map_or("", |one| one.1)
    }

    /// The one with this word.
    pub(crate) fn named(name: &str) -> Option<Self> {
        { Self::NAMES.iter() }
            .find(|one| one.1 == name)
            .map(|one| one.0)
    }
}

/// Sequence lengths of a [`Case`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lengths {
    /// All sequences have the same lengths.
    Dense {
        /// Sequences.
        batch: usize,
        /// Queries of each.
        query: usize,
        /// Keys of each.
        key: usize,
    },
    /// Queries and keys of each sequence, packed one after the other, with unused rows behind the last.
    Packed(Vec<(usize, usize)>),
}

impl Lengths {
    /// Queries and keys of each sequence.
    pub(crate) fn each(&self) -> Vec<(usize, usize)> {
        match self {
            Lengths::Dense { batch, query, key } => vec![(*query, *key); *batch],
            Lengths::Packed(lengths) => lengths.clone(),
        }
    }
}

/// How much of its sequences a [`Case`] uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Used {
    /// All.
    All,
    /// So many queries and keys of each.
    Each(Vec<(usize, usize)>),
    /// All queries, and from an eighth of its keys to all, as the seed has it.
    Ragged,
}

/// A problem without data: prints on a line and parses back.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Case {
    /// Sequence lengths.
    pub lengths: Lengths,
    /// How much of each sequence is used.
    pub used: Used,
    /// The rows of a page, if keys and values are paged.
    pub pages: Option<usize>,
    /// How many neighbouring pages a sequence has one after the other; the runs are in random order. A cache that has served for a while
    /// leaves more or less of them. At least 1, which is any order.
    pub runs: usize,
    /// True if offsets, used lengths, the block table and lists of blocks are in device memory, if the case runs on a GPU.
    pub device_lengths: bool,
    /// The heads and their sizes.
    pub heads: Heads,
    /// Element type.
    pub element: ElementType,
    /// The type of quantized keys and values, whose scales are as the seed has them.
    pub quantized: Option<ElementType>,
    /// The options.
    pub scoring: Scoring,
    /// True if a key mask is a padding mask: of shape `[batch, 1, 1, keys]`, it hides the keys behind the lengths that
    /// [`Used::Ragged`] has with the same seed. Without a key mask it means nothing.
    pub padding: bool,
    /// The dimensions that a bias and a key mask do not depend on, of batch, queries, heads and keys; `None`: as the seed has it, but not keys. Not those of a
    /// padding mask.
    pub broadcast: Option<[bool; 4]>,
    /// Where keys are cut.
    pub splits: Splits,
    /// How the tensors are stored.
    pub layout: LayoutKind,
    /// True if tensors start, and with [`LayoutKind::Gaps`] also step, at odd multiples of an element: what a kernel must not
    /// touch with 16-byte copies.
    pub unaligned: bool,
    /// Multiprocessors that a GPU is planned to have, if not its own: on few of them small problems take the paths of large
    /// ones.
    pub multiprocessors: Option<u32>,
    /// True if gradients are computed, instead of the output.
    pub backward: bool,
    /// True if the gradient of the bias is one of these.
    pub d_bias: bool,
    /// The seed of the data.
    pub seed: u64,
}

impl Case {
    /// A plain case: one sequence, full attention in `f32`, BSHD.
    pub fn new(query: usize, key: usize, heads: Heads) -> Self {
        Case {
            lengths: Lengths::Dense {
                batch: 1,
                query,
                key,
            },
            used: Used::All,
            pages: None,
            runs: 1,
            device_lengths: false,
            heads,
            element: ElementType::F32,
            quantized: None,
            scoring: Scoring::new(),
            padding: false,
            broadcast: None,
            splits: Splits::Even,
            layout: LayoutKind::Bshd,
            unaligned: false,
            multiprocessors: None,
            backward: false,
            d_bias: false,
            seed: 0,
        }
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        match &self.lengths {
            Lengths::Dense { batch, .. } => *batch,
            Lengths::Packed(lengths) => lengths.len(),
        }
    }

    /// Queries and keys of each sequence that are used.
    pub fn used_lengths(&self) -> Vec<(usize, usize)> {
        match &self.used {
            Used::All => self.lengths.each(),
            Used::Each(used) => used.clone(),
            Used::Ragged => self.ragged(),
        }
    }

    /// Returns true if there are [lists](Self::lists) that could be in device memory.
    pub(crate) fn has_lists(&self) -> bool {
        matches!(self.lengths, Lengths::Packed(_))
            || self.used != Used::All
            || self.pages.is_some()
            || self.scoring.blocks.is_some()
    }

    /// All queries of each sequence, and from an eighth of its keys to all.
    fn ragged(&self) -> Vec<(usize, usize)> {
        let mut random = Random::new(self.seed ^ 0x4a66);
        let part = |(query, key): (usize, usize)| {
            let least = key.div_ceil(8);
            (query, least + random.below(key - least + 1))
        };
        self.lengths.each().into_iter().map(part).collect()
    }

    /// Returns true if an operand is a padding mask.
    pub(crate) fn is_padding(&self, operand: Operand) -> bool {
        self.padding && operand == Self::PADDING
    }

    /// The keys of each sequence that a padding mask shows, if an operand is one.
    pub fn shown_keys(&self, operand: Operand) -> Option<Vec<usize>> {
        self.is_padding(operand)
            .then(|| self.ragged().into_iter().map(|shown| shown.1).collect())
    }

    /// Without the option that has this word.
    pub(crate) fn remove(&mut self, word: &str) {
        self.scoring = self.scoring.without(word);
        self.padding &= self.scoring.has(Self::PADDING);
        self.d_bias &= self.scoring.has(Operand::Bias);
        let has_scores = self.scoring.has_score_tensors();
        self.broadcast = self.broadcast.filter(|_| has_scores);
    }

    /// The element types of the tensors.
    pub(crate) fn types(&self) -> Types {
        Types::of(self.element).keys(self.quantized.unwrap_or(self.element))
    }

    /// The numbers of scales of quantized keys and values.
    pub(crate) fn scale_counts(&self) -> impl Iterator<Item = (Operand, usize)> {
        let mut random = Random::new(self.seed ^ 0x5ca1e);
        let choices = [1, self.heads.key_value];
        let counts =
            [Operand::KScale, Operand::VScale].map(|operand| (operand, random.pick(&choices)));
        counts.into_iter().filter(|_| self.quantized.is_some())
    }

    /// The device that the case is planned for, on a GPU with this profile.
    pub fn profile(&self, gpu: &DeviceProfile) -> DeviceProfile {
        match self.multiprocessors {
            Some(count) => gpu.clone().with_multiprocessors(count),
            None => gpu.clone(),
        }
    }
}

/// Every option at once.
#[cfg(test)]
pub(crate) fn every_option() -> Scoring {
    let mut all = Scoring::new();
    Operand::of_scores().for_each(|operand| all = all.with(operand));
    for word in Scoring::words() {
        let value = match word {
            "mask" => "causal",
            "dropout" => "0.5",
            "blocks" => "64x64",
            _ => "2",
        };
        let known = all.uses(word) || all.parse_word(&format!("{word}={value}")).is_some();
        assert!(known, "{word}");
    }
    all
}
