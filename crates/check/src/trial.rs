//! When a measurement may change a choice: the rules for trials of two things by their times.
//!
//! `warptile tune` and `cargo xtask evolve` decide by these rules and by nothing else:
//!
//! - What is in use (A) and what may replace it (B) are timed in blocks, in the order A B B A. A clock that drifts steadily
//!   during a block slows both by as much.
//! - The ratio of a block is `(A1 + A4) / (B2 + B3)`: above 1 where B is faster. The median of all blocks estimates the
//!   gain. An outlier of any size is only one block of many.
//! - The bound is the exact lower confidence bound of the median by order statistics: of `n` independent ratios, each at or below the true
//!   median with a probability of at least 1/2, fewer than `k` are so with a probability of at most `P(Bin(n, 1/2) < k)`. So
//!   the `k`-th smallest is above the true median at most that often. No distribution of the times is assumed. (H. A. David and H. N.
//!   Nagaraja, *Order Statistics*, 3rd edition, section 7.1.)
//! - The confidence is `1 - 0.01 / tried` (Bonferroni): of all the candidates that were tried, one that is not better gets past
//!   its bound in at most 1% of searches.
//! - B wins if the bound is above [`LEAST_GAIN`]. It must win twice: in a first trial and in its repeat in a fresh process.
//!
//! The number of blocks is to be decided before the first is measured. Whoever stops at the first bound that pleases
//! has tried more than once.
//!
//! ```
//! use warptile_check::trial::{Rules, ratio};
//!
//! let rules = Rules::of_tried(1);
//! // 2% faster, with some noise, and one block during which somebody else used the GPU.
//! let times = |noise: f64| [1.02 + noise, 1.0, 1.0 + noise, 1.02];
//! let mut ratios: Vec<f64> = (0..20).map(|block| ratio(times(f64::from(block % 5) * 1e-3))).collect();
//! ratios[3] = ratio([1.02, 1.0, 9.0, 1.02]);
//! let first = rules.judge(&ratios);
//! assert!(first.wins());
//! // Equal speeds win nothing, and few blocks cannot win at all.
//! assert!(!rules.judge(&[1.0; 20]).wins());
//! assert_eq!(rules.fewest_blocks(), 7);
//! assert!(!rules.judge(&ratios[..6]).wins());
//! ```

/// How often one that is not better may get past its bound, in all that is tried together.
const MISTAKES: f64 = 0.01;

/// The bound of the ratio has to be above this: less is not worth a change.
pub const LEAST_GAIN: f64 = 1.005;

/// Old over new time of a block that was measured in the order A B B A: above 1 where the new one is faster.
///
/// Times that are not all finite and above 0 measured nothing. Their ratio is 0: they speak against the new one.
pub fn ratio([a1, b2, b3, a4]: [f64; 4]) -> f64 {
    let measured = [a1, b2, b3, a4]
        .iter()
        .all(|time| time.is_finite() && *time > 0.0);
    if measured { (a1 + a4) / (b2 + b3) } else { 0.0 }
}

/// The rules of a search, which follow from the number of candidates that it tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    tried: usize,
}

impl Rules {
    /// The rules for a search over `tried` candidates: each candidate that was timed counts once. 0 counts as 1.
    pub fn of_tried(tried: usize) -> Self {
        Rules {
            tried: tried.max(1),
        }
    }

    /// How often a bound may be wrong: 0.01 divided by the number tried.
    pub fn level(&self) -> f64 {
        MISTAKES / self.tried as f64
    }

    /// The fewest blocks that can win: with fewer not even the smallest ratio is a bound.
    pub fn fewest_blocks(&self) -> usize {
        // The smallest of n is wrong with a probability of 2^-n.
        (1..)
            .find(|&blocks| 0.5_f64.powi(blocks) <= self.level())
            .map_or(usize::MAX, |blocks| blocks as usize)
    }

    /// Judges a trial by the ratios of its blocks.
    pub fn judge(&self, ratios: &[f64]) -> Judged {
        let mut sorted: Vec<f64> = ratios
            .iter()
            .map(|ratio| match ratio.is_finite() && *ratio > 0.0 {
                true => *ratio,
                false => 0.0,
            })
            .collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => 0.0,
            blocks if blocks % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Judged {
            blocks: sorted.len(),
            median,
            bound: bound_rank(sorted.len(), self.level()).map(|rank| sorted[rank - 1]),
        }
    }
}

/// The outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// Blocks of A B B A.
    pub blocks: usize,
    /// The median ratio: the estimate of the gain.
    pub median: f64,
    /// The median is above this at the confidence of the rules; `None` where there were too few blocks to say so of any.
    pub bound: Option<f64>,
}

impl Judged {
    /// Returns true if the new one won this trial. A choice changes only if its repeat in a fresh process is won as well.
    pub fn wins(&self) -> bool {
        self.bound.is_some_and(|bound| bound > LEAST_GAIN)
    }
}

/// The largest `k` for which the `k`-th smallest of `count` values is above their median with a probability of at most `level`:
/// `P(Bin(count, 1/2) < k) <= level`.
fn bound_rank(count: usize, level: f64) -> Option<usize> {
    // Logarithms, because 2^-count leaves the range of numbers at 1,075 blocks.
    let mut ln_term = -(count as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut rank = 0;
    while rank < count {
        // One more value at or below the median: C(count, rank) / 2^count.
        below += ln_term.exp();
        if below > level {
            break;
        }
        ln_term += ((count - rank) as f64 / (rank + 1) as f64).ln();
        rank += 1;
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;
    use crate::normal;

    /// Blocks of times with normal noise on each, and the old one `gain` times as long. The clock drifts by as much as 1% in a block.
    fn blocks(count: usize, gain: f64, noise: f64, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut uniform = || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) >> 11) as f64 * 2.0_f64.powi(-53) + 2.0_f64.powi(-54)
        };
        let mut normal = vec![0.0; 4 * count];
        normal::fill(&mut normal, &mut uniform);
        normal
            .chunks_exact(4)
            .map(|normal| {
                let drift = 0.01 * (uniform() - 0.5);
                let time = |place: usize, of_one: f64| {
                    of_one * (1.0 + drift * place as f64 / 3.0) * (noise * normal[place]).exp()
                };
                ratio([time(0, gain), time(1, 1.0), time(2, 1.0), time(3, gain)])
            })
            .collect()
    }

    quickcheck! {
        fn a_gain_of_2_percent_wins_under_noise(seed: u64, tried: u8) -> bool {
            let rules = Rules::of_tried(usize::from(tried));
            rules.judge(&blocks(61, 1.02, 0.008, seed)).wins()
        }

        fn an_outlier_changes_no_verdict(seed: u64, place: usize, times: f64) -> bool {
            let rules = Rules::of_tried(20);
            [1.02, 1.0].iter().all(|&gain| {
                let mut ratios = blocks(41, gain, 0.005, seed);
                let before = rules.judge(&ratios).wins();
                ratios[place % 41] = times;
                before == (gain > 1.0) && rules.judge(&ratios).wins() == before
            })
        }

        fn the_order_of_blocks_says_nothing(ratios: Vec<f64>) -> bool {
            let rules = Rules::of_tried(3);
            let reversed: Vec<f64> = ratios.iter().rev().copied().collect();
            rules.judge(&ratios) == rules.judge(&reversed)
        }
    }

    #[test]
    fn what_gains_no_more_than_the_least_wins_at_most_1_percent_of_the_trials() {
        const TRIALS: u64 = 10_000;
        // Any number of blocks, and the gain at which a mistake is most likely, or none.
        for (count, gain, noise) in [
            (7, LEAST_GAIN, 0.01),
            (20, LEAST_GAIN, 0.05),
            (33, LEAST_GAIN, 0.001),
            (21, 1.0, 0.01),
        ] {
            let rules = Rules::of_tried(1);
            let wins = (0..TRIALS)
                .filter(|&trial| {
                    rules
                        .judge(&blocks(count, gain, noise, trial << 8 | count as u64))
                        .wins()
                })
                .count();
            // Three standard deviations of a count whose mean is 1%.
            assert!(
                wins <= 130,
                "{wins} of {TRIALS} with {count} blocks won at {gain}"
            );
        }
    }

    #[test]
    fn of_many_that_are_equal_one_wins_in_at_most_1_percent_of_the_searches() {
        let rules = Rules::of_tried(20);
        let wrong = (0..2_000_u64)
            .filter(|search| {
                (0..20).any(|candidate| {
                    rules
                        .judge(&blocks(15, LEAST_GAIN, 0.02, search * 20 + candidate))
                        .wins()
                })
            })
            .count();
        assert!(wrong <= 34, "{wrong} of 2000");
    }

    /// The ranks against sums of whole binomial coefficients.
    #[test]
    fn ranks_are_exact() {
        for count in 1..=100_usize {
            // A u128 holds every term of 100, and 2^100.
            let mut coefficient = 1_u128;
            let mut below = 0;
            for rank in 1..=count {
                below += coefficient;
                coefficient = coefficient * (count - rank + 1) as u128 / rank as u128;
                let probability = below as f64 / (1_u128 << count) as f64;
                for near in [1.0 - 1e-9, 1.0 + 1e-9] {
                    let found = bound_rank(count, probability * near).unwrap_or(0);
                    assert_eq!(
                        found >= rank,
                        near > 1.0,
                        "{count} blocks, rank {rank}: {found}"
                    );
                }
            }
        }
        // Beyond the range of 2^-count: near count / 2 - 2.33 standard deviations.
        let rank = bound_rank(10_000, 0.01).unwrap();
        assert!((4_870..4_890).contains(&rank), "{rank}");
    }

    #[test]
    fn the_fewest_blocks_are_the_fewest_that_can_win() {
        for tried in [0, 1, 2, 10, 60, 1_000] {
            let rules = Rules::of_tried(tried);
            let fewest = rules.fewest_blocks();
            assert!(rules.judge(&vec![1.1; fewest]).wins());
            let judged = rules.judge(&vec![1.1; fewest - 1]);
            assert_eq!((judged.bound, judged.wins()), (None, false));
        }
        assert_eq!(Rules::of_tried(60).fewest_blocks(), 13);
    }

    #[test]
    fn a_block_that_measured_nothing_speaks_against_the_new_one() {
        for broken in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(ratio([1.0, broken, 1.0, 1.0]), 0.0);
            assert_eq!(ratio([broken, 1.0, 1.0, 1.0]), 0.0);
        }
        let rules = Rules::of_tried(1);
        for broken in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(rules.judge(&[broken; 9]).bound, Some(0.0));
        }
        let nothing = rules.judge(&[]);
        assert_eq!((nothing.blocks, nothing.bound), (0, None));
    }
}
