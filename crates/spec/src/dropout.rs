//! Dropout of weights: which of them a call keeps.

use crate::{Invalid, Result};

/// The random numbers of a call with dropout: a seed, an offset, and the numbers of the call's first sequence, head, query and key among
/// those that share a mask.
///
/// A weight is kept or dropped by these, by the probability and by its sequence, head, query and key, and by nothing else: not by
/// the batch, the lengths, the packing, the kernel or the device. Different offsets have independent masks. A shard of a larger problem
/// draws the whole's mask if it is given the numbers of its first sequence, head, query and key there.
///
/// ```
/// use warptile::spec::DropoutState;
///
/// let state = DropoutState::new(42, 0);
/// let second_half = DropoutState { query: 512, ..state };
/// assert_eq!(DropoutState::from_words(second_half.words()), second_half);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DropoutState {
    /// Seed.
    pub seed: u64,
    /// Number of the mask among those of a seed: another one in each layer and step.
    pub offset: u64,
    /// Number of the first sequence.
    pub sequence: u32,
    /// Number of the first query head.
    pub head: u32,
    /// Number of each sequence's first query: a multiple of [`DropoutState::ALIGNMENT`].
    pub query: u32,
    /// Number of each sequence's first key: a multiple of [`DropoutState::ALIGNMENT`].
    pub key: u32,
}

impl DropoutState {
    /// Number of 32-bit words.
    pub const WORDS: usize = 8;

    /// The first query's and the first key's number are multiples of it.
    pub const ALIGNMENT: u32 = 32;

    /// The random numbers of a whole problem.
    pub const fn new(seed: u64, offset: u64) -> Self {
        DropoutState {
            seed,
            offset,
            sequence: 0,
            head: 0,
            query: 0,
            key: 0,
        }
    }

    /// The words of [`Operand::DropoutState`](crate::Operand::DropoutState): seed and offset, each with the low half first, then the
    /// numbers of the first sequence, head, query and key.
    pub const fn words(&self) -> [i32; Self::WORDS] {
        [
            self.seed as i32,
            (self.seed >> 32) as i32,
            self.offset as i32,
            (self.offset >> 32) as i32,
            self.sequence as i32,
            self.head as i32,
            self.query as i32,
            self.key as i32,
        ]
    }

    /// The state that has these [`words`](Self::words).
    pub const fn from_words(words: [i32; Self::WORDS]) -> Self {
        let [
            seed,
            seed_high,
            offset,
            offset_high,
            sequence,
            head,
            query,
            key,
        ] = words;
        DropoutState {
            seed: wide(seed, seed_high),
            offset: wide(offset, offset_high),
            sequence: sequence as u32,
            head: head as u32,
            query: query as u32,
            key: key as u32,
        }
    }

    /// Checks words that a caller gives.
    ///
    /// # Errors
    /// [`Invalid::Count`]; [`Invalid::Lengths`] if the number of the first query or key is not aligned.
    pub(crate) fn check(argument: &'static str, words: &[i32]) -> Result<Self> {
        let Ok(words) = <[i32; Self::WORDS]>::try_from(words) else {
            return Err(Invalid::count(argument, words.len(), Self::WORDS));
        };
        let state = Self::from_words(words);
        for (index, first, of) in [(6, state.query, "query"), (7, state.key, "key")] {
            if !first.is_multiple_of(Self::ALIGNMENT) {
                let multiple = Self::ALIGNMENT;
                return Err(Invalid::Lengths {
                    argument,
                    index,
                    rule: format!(
                        "is {first}, but the number of the first {of} must be a multiple of {multiple}"
                    ),
                });
            }
        }
        Ok(state)
    }
}

const fn wide(low: i32, high: i32) -> u64 {
    low as u32 as u64 | (high as u32 as u64) << 32
}

/// The weights that a call keeps.
///
/// A *cell* is 16 weights that share a call of [`philox`]: those of queries `q` and `q + 8` with keys `k + 8 j` and `k + 8 j + 1`, where
/// `q` has bit 3 clear, `k` is even and has bits 3 and 4 clear, and `j` is 0 to 3. A thread of tensor-core kernels holds them. Word `j` has
/// a byte for each of four weights: first those of `q`, then those of `q + 8`.
///
/// A weight is kept unless its byte is below the cell's threshold. That is the upper byte of the call's, or one more: if the exclusive or
/// of the first three words is below the call's lower byte, shifted to the top. So the probability of each weight is exact: its byte is
/// independent of the cell's threshold, and the mean of the thresholds is the call's. Two weights of a cell are independent but for the
/// threshold that they share: their covariance is its variance, at most 1/4, divided by 65,536, so for a probability p the correlation is
/// at most 1 / (262,144 p (1 - p)). Weights of different cells are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropout {
    threshold: u32,
    key: [u32; 2],
    first: DropoutState,
}

impl Dropout {
    /// Probabilities are multiples of `1 / STEPS`.
    pub const STEPS: u32 = 1 << 16;

    /// With this probability, from 0 to below 1, of dropping a weight.
    pub fn new(p: f32, state: DropoutState) -> Self {
        let [low, high, ..] = state.words().map(|word| word as u32);
        let offset = [state.offset as u32, (state.offset >> 32) as u32, 0, 0];
        let [first, second, ..] = philox(offset, [low, high]);
        Dropout {
            threshold: Self::threshold(p),
            key: [first, second],
            first: state,
        }
    }

    /// The number of steps of a probability, at most one less than there are.
    pub fn threshold(p: f32) -> u32 {
        ((p * Self::STEPS as f32).round() as u32).min(Self::STEPS - 1)
    }

    /// The factor of weights that are kept: 1 / (1 - p).
    pub fn factor(p: f32) -> f32 {
        Self::STEPS as f32 / (Self::STEPS - Self::threshold(p)) as f32
    }

    /// The weights of a query of a sequence and head.
    pub fn row(&self, sequence: usize, head: usize, query: usize) -> DropoutRow {
        // Lengths, heads and batches are below 2^31; sums of numbers wrap as those of kernels do.
        let at = |first: u32, index: usize| first.wrapping_add(index as u32);
        let query = at(self.first.query, query);
        DropoutRow {
            dropout: *self,
            cell: query >> 4 << 3 | query & 7,
            half: 16 * (query >> 3 & 1),
            sequence: at(self.first.sequence, sequence),
            head: at(self.first.head, head),
        }
    }
}

/// The threshold of a cell with these words, from 0 to 256: weights are kept whose bytes are not below it.
const fn threshold_of_cell(words: [u32; 4], threshold: u32) -> u32 {
    let is_raised = words[0] ^ words[1] ^ words[2] < threshold << 24;
    (threshold >> 8) + is_raised as u32
}

/// The weights of a query that a call keeps.
#[derive(Debug, Clone, Copy)]
pub struct DropoutRow {
    dropout: Dropout,
    cell: u32,
    /// The lowest bit of the query's half of each word.
    half: u32,
    sequence: u32,
    head: u32,
}

impl DropoutRow {
    /// Keys of a group.
    pub const GROUP: usize = DropoutState::ALIGNMENT as usize;

    /// The weights of keys `GROUP * group` and after that are kept: a bit for each, the first key's lowest.
    pub fn kept(&self, group: usize) -> u32 {
        let mut kept = 0;
        for cell in 0..Self::CELLS {
            for (index, [even, odd]) in self.cell(group, cell).into_iter().enumerate() {
                let pair = u32::from(even) | u32::from(odd) << 1;
                kept |= pair << (8 * index as u32 + 2 * cell);
            }
        }
        kept
    }

    /// Returns true if the weight of a key is kept.
    pub fn keeps(&self, key: usize) -> bool {
        let place = (key % Self::GROUP) as u32;
        let pairs = self.cell(key / Self::GROUP, place / 2 % Self::CELLS);
        pairs[(place / 8) as usize][(place % 2) as usize]
    }

    /// The cells of a row and a group of keys.
    const CELLS: u32 = 4;

    /// Returns true for each weight of a cell and this query that is kept: of pairs of keys that are 8 apart.
    #[inline]
    fn cell(&self, group: usize, cell: u32) -> [[bool; 2]; 4] {
        let Dropout {
            threshold,
            key,
            first,
        } = self.dropout;
        let cells = (first.key >> 5).wrapping_add(group as u32) << 2;
        let words = philox([self.cell, cells | cell, self.sequence, self.head], key);
        let least = threshold_of_cell(words, threshold);
        words.map(|word| [0, 8].map(|odd| word >> (self.half + odd) & 0xff >= least))
    }
}

/// Philox4x32 with 7 rounds, the fewest that pass BigCrush: 128 random bits of a counter and a key. (J. Salmon et al., "Parallel Random
/// Numbers: As Easy as 1, 2, 3", 2011.)
pub const fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_rounds::<7>(counter, key)
}

const fn philox_rounds<const ROUNDS: u32>(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut first, mut second]) = (counter, key);
    let mut round = 0;
    while round < ROUNDS {
        let (x, y) = (0xd251_1f53 * a as u64, 0xcd9e_8d57 * c as u64);
        [a, b, c, d] = [
            (y >> 32) as u32 ^ b ^ first,
            y as u32,
            (x >> 32) as u32 ^ d ^ second,
            x as u32,
        ];
        first = first.wrapping_add(0x9e37_79b9);
        second = second.wrapping_add(0xbb67_ae85);
        round += 1;
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    /// The published vectors of Random123, for 7 rounds and for 10.
    #[test]
    fn philox_has_its_known_answers() {
        const ONES: u32 = u32::MAX;
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        for (counter, key, seven, ten) in [
            (
                [0; 4],
                [0; 2],
                [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [ONES; 4],
                [ONES; 2],
                [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                pi,
                [0xa409_3822, 0x299f_31d0],
                [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox_rounds::<7>(counter, key), seven);
            assert_eq!(philox_rounds::<10>(counter, key), ten);
        }
    }

    #[test]
    fn a_probability_is_a_multiple_of_its_step() {
        assert_eq!(Dropout::threshold(0.0), 0);
        assert_eq!(Dropout::threshold(0.5), 1 << 15);
        assert_eq!(Dropout::threshold(0.1), 6554);
        assert_eq!(Dropout::threshold(1.0 - f32::EPSILON), 0xffff);
        assert_eq!((Dropout::factor(0.0), Dropout::factor(0.5)), (1.0, 2.0));
    }

    quickcheck! {
        fn words_are_a_state(seed: u64, offset: u64, first: (u32, u32, u32, u32)) -> bool {
            let (sequence, head, query, key) = first;
            let state = DropoutState { seed, offset, sequence, head, query, key };
            DropoutState::from_words(state.words()) == state
        }

        /// A shard draws the whole's mask.
        fn a_shard_keeps_what_the_whole_does(seed: u64, at: (u16, u8, u8, u8), first: (u8, u8, u8, u8)) -> bool {
            let (whole, align) = (DropoutState::new(seed, 3), DropoutState::ALIGNMENT);
            let (query, key) = (align * u32::from(first.2), align * u32::from(first.3));
            let shard = DropoutState { sequence: first.0.into(), head: first.1.into(), query, key, ..whole };
            let [whole, shard] = [whole, shard].map(|state| Dropout::new(0.5, state));
            let (s, h, q, k) = (usize::from(at.0), usize::from(at.1), usize::from(at.2), usize::from(at.3));
            let of_whole = whole.row(s + usize::from(first.0), h + usize::from(first.1), q + query as usize);
            shard.row(s, h, q).keeps(k) == of_whole.keeps(k + key as usize)
        }
    }

    /// Counts of independent draws lie within 5 standard deviations of what is expected.
    fn expect_binomial(found: usize, count: usize, p: f64, what: &str) {
        let (mean, deviation) = (count as f64 * p, (count as f64 * p * (1.0 - p)).sqrt());
        let off = (found as f64 - mean).abs();
        assert!(off <= 5.0 * deviation, "{what}: {found} of {count}, {p}");
    }

    /// Words of a cell that have these values in some bytes, numbered from 0 to 15, and in which this one is the upper byte of the exclusive
    /// or of the first three words.
    fn words(bytes: &[(usize, u32)], upper: u32) -> [u32; 4] {
        let mut words = [0x1234_5678, 0x9abc_def0, 0x0f1e_2d3c, 0x4b5a_6978];
        for &(byte, value) in bytes {
            let (word, shift) = (byte / 4, 8 * (byte % 4));
            words[word] = words[word] & !(0xff << shift) | value << shift;
        }
        let is_free = |word: &usize| bytes.iter().all(|(byte, _)| byte / 4 != *word);
        let free = (0..3).find(is_free).unwrap();
        words[free] ^= (words[0] ^ words[1] ^ words[2] ^ upper << 24) & 0xff << 24;
        words
    }

    /// Returns true if a weight of a cell is kept.
    fn keeps(words: [u32; 4], threshold: u32, weight: usize) -> bool {
        words[weight / 4].to_le_bytes()[weight % 4] as u32 >= threshold_of_cell(words, threshold)
    }

    /// Over all values of a weight's byte, and of what decides about the cell's threshold.
    #[test]
    fn the_probability_of_each_weight_is_exact() {
        for threshold in [0, 1, 66, 6554, 0x7fff, 0x8000, 0xfe01, 0xffff] {
            for weight in 0..16 {
                let values = (0..Dropout::STEPS).map(|i| words(&[(weight, i >> 8)], i & 0xff));
                let dropped = values.filter(|&words| !keeps(words, threshold, weight));
                assert_eq!(dropped.count(), threshold as usize, "weight {weight}");
            }
        }
    }

    /// Two weights of a cell share its threshold and nothing else.
    #[test]
    fn weights_of_a_cell_have_the_covariance_of_its_threshold() {
        for threshold in [66, 6554, 0x7f80, 0x8080, 0xff80] {
            let lower = f64::from(threshold & 0xff) / 256.0;
            for (one, other) in [(0, 1), (0, 2), (1, 7), (3, 12), (11, 15), (13, 14)] {
                let mut both = 0.0;
                // An upper byte of 0 is below all lower ones, and 255 is not.
                for (raised, share) in [(0, lower), (255, 1.0 - lower)] {
                    let values = (0..1 << 16)
                        .map(|i| words(&[(one, i >> 8), (other, i & 0xff)], raised))
                        .filter(|&words| {
                            [one, other]
                                .iter()
                                .all(|&weight| !keeps(words, threshold, weight))
                        });
                    both += share * values.count() as f64 / f64::from(Dropout::STEPS);
                }
                let p = f64::from(threshold) / f64::from(Dropout::STEPS);
                let covariance = both - p * p;
                let expected = lower * (1.0 - lower) / 65536.0;
                assert!(
                    (covariance - expected).abs() < 1e-12,
                    "{threshold} {one} {other}"
                );
                assert!(covariance <= 0.25 / 65536.0);
            }
        }
    }

    #[test]
    fn the_share_of_kept_weights_is_the_probability() {
        const N: usize = 512;
        for p in [0.0, 0.001, 0.1, 0.5, 0.9, 0.999] {
            let dropout = Dropout::new(p, DropoutState::new(7, 1));
            let kept = (0..N * N).filter(|i| dropout.row(1, 2, i / N).keeps(i % N));
            let exact = f64::from(Dropout::threshold(p)) / f64::from(Dropout::STEPS);
            expect_binomial(kept.count(), N * N, 1.0 - exact, &format!("{p}"));
        }
    }

    /// Pairs of weights, of neighbours and of different masks, are kept together as often as if they were independent.
    #[test]
    fn weights_are_independent() {
        const N: usize = 256;
        let state = DropoutState::new(0x1234_5678_9abc, 5);
        let mask = |state| Dropout::new(0.5, state);
        let dropout = mask(state);
        for (sequence, head, query, key) in [
            (0, 0, 0, 1),
            (0, 0, 0, 2),
            (0, 0, 1, 0),
            (0, 0, 0, 8),
            (0, 0, 0, 9),
            (0, 0, 8, 0),
            (0, 0, 8, 8),
            (0, 0, 0, 16),
            (0, 0, 16, 0),
            (0, 0, 0, 32),
            (0, 1, 0, 0),
            (1, 0, 0, 0),
            (1, 1, 0, 0),
        ] {
            let both = (0..N * N).filter(|i| {
                dropout.row(3, 4, i / N).keeps(i % N)
                    && dropout
                        .row(3 + sequence, 4 + head, i / N + query)
                        .keeps(i % N + key)
            });
            let what = format!("{sequence} {head} {query} {key}");
            expect_binomial(both.count(), N * N, 0.25, &what);
        }
        for other in [
            DropoutState { offset: 6, ..state },
            DropoutState {
                seed: state.seed + 1,
                ..state
            },
            DropoutState {
                seed: state.seed ^ 1 << 63,
                ..state
            },
            DropoutState {
                offset: 5 | 1 << 40,
                ..state
            },
        ] {
            let other = mask(other);
            let both = (0..N * N).filter(|i| {
                dropout.row(0, 0, i / N).keeps(i % N) && other.row(0, 0, i / N).keeps(i % N)
            });
            expect_binomial(both.count(), N * N, 0.25, &format!("{other:?}"));
        }
    }
}
