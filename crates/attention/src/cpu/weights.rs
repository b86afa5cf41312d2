//! One step of online softmax for a panel of queries.

use crate::cpu::isa::Work;
use crate::cpu::lanes::*;

/// Number of classes of keys whose weights are added up separately: key `j` of a sequence belongs to class `j % CLASSES` in every tile.
pub(super) const CLASSES: usize = MAX_WIDTH;

/// Turns scores, in units of ln 2 after multiplication by their lane's unit, into weights relative to the largest score so far.
pub(super) struct Weights<'a> {
    /// A row of `lanes` scores for each key, then weights. Hidden keys have the score minus infinity. Starts with a key of class 0, and
    /// the number of keys is a multiple of [`CLASSES`].
    pub(super) scores: &'a mut [f32],
    pub(super) lanes: usize,
    /// Where the weights go if not in the place of the scores: a row of `lanes` words for each two keys, each the weights of both,
    /// rounded to `bf16`, the first in the lower half. Their sums are of what they were before.
    pub(super) pairs: Option<&'a mut [u32]>,
    /// One for each lane, positive.
    pub(super) units: &'a [f32],
    /// The largest score of each lane so far.
    pub(super) max: &'a mut [f32],
    /// The sum of all weights of each lane so far.
    pub(super) sum: &'a mut [f32],
    /// The factor for each lane's sums so far.
    pub(super) factors: &'a mut [f32],
}

impl Work for Weights<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(mut self) {
        let lanes = self.lanes;
        assert!(lanes.is_multiple_of(L::WIDTH) && self.scores.len().is_multiple_of(lanes));
        assert!((self.scores.len() / lanes).is_multiple_of(CLASSES));
        for state in [&self.max[..], self.sum, self.factors, self.units] {
            assert!(lanes <= state.len());
        }
        // SAFETY: the caller vouches for the instructions. There is a row of `pairs` for each two keys; behind the place of a score
        // is that of the next key, `lanes` further.
        unsafe {
            match self.pairs.take() {
                Some(pairs) => {
                    assert!(2 * pairs.len() == self.scores.len());
                    let pairs = pairs.as_mut_ptr().cast::<f32>();
                    weigh::<L>(self, |_, index, [first, second]| {
                        first.pair_bf16(second).store(pairs.add(index));
                    });
                }
                None => weigh::<L>(self, |place, _, [first, second]| {
                    first.store(place);
                    second.store(place.add(lanes));
                }),
            }
        }
    }
}

/// `store` gets the weights of two consecutive keys, the first one even, with the place of the first score and the pair's index.
///
/// # Safety
/// The machine has the instructions of `L`; what [`Weights::run`] checks.
#[inline(always)]
unsafe fn weigh<L: Lanes>(work: Weights<'_>, store: impl Fn(*mut f32, usize, [L; 2])) {
    let Weights {
        scores,
        lanes,
        pairs: _,
        units,
        max,
        sum,
        factors,
    } = work;
    let keys = scores.len() / lanes;
    let scores = scores.as_mut_ptr();
    for lane in (0..lanes).step_by(L::WIDTH) {
        // SAFETY: the caller vouches for the instructions; the rows are `lanes` long, a multiple of a register's width.
        unsafe {
            let unit = L::load(units.as_ptr().add(lane));
            let column = scores.add(lane);
            let place = |key: usize| column.add(key * lanes);
            let (max, sum, factors) = (
                max.as_mut_ptr().add(lane),
                sum.as_mut_ptr().add(lane),
                factors.as_mut_ptr().add(lane),
            );
            let old = L::load(max);
            let mut largest = [L::splat(f32::NEG_INFINITY); 4];
            for key in (0..keys).step_by(4) {
                for (i, largest) in largest.iter_mut().enumerate() {
                    // Ignores a NaN.
                    *largest = L::load(place(key + i)).max(*largest);
                }
            }
            let largest = (largest[0].max(largest[1])).max(largest[2].max(largest[3]));
            let largest = largest.mul(unit).max(old);
            largest.store(max);
            // Where no key was seen yet, 0: every weight is 0 then, where inf - inf would be a NaN.
            let largest = largest.max(L::splat(f32::MIN));
            let below = L::splat(0.0).sub(largest);
            // Rounded in between as the largest was, so that its own exponent is 0 even where two neighbouring numbers are far apart.
            let weight = |place: *mut f32| L::load(place).mul(unit).add(below).exp2();
            let mut sums = [L::splat(0.0); CLASSES];
            for key in (0..keys).step_by(CLASSES) {
                for class in (0..CLASSES).step_by(2) {
                    let place = place(key + class);
                    let (first, second) = (weight(place), weight(place.add(lanes)));
                    sums[class] = sums[class].add(first);
                    sums[class + 1] = sums[class + 1].add(second);
                    store(place, (key + class) / 2 * lanes + lane, [first, second]);
                }
            }
            for half in [8, 4, 2, 1] {
                for class in 0..half {
                    sums[class] = sums[class].add(sums[class + half]);
                }
            }
            let factor = old.sub(largest).exp2();
            factor.store(factors);
            L::load(sum).mul(factor).add(sums[0]).store(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    #[test]
    fn two_tiles_give_the_weights_of_both() {
        for isa in Isa::all() {
            let (lanes, keys) = (isa.panel(), 32);
            let score = |key: usize, lane: usize| match (key + lane) % 7 {
                0 => f32::NEG_INFINITY,
                x => (key * lane % 23) as f32 - x as f32,
            };
            let (mut max, mut sum) = (vec![f32::NEG_INFINITY; lanes], vec![0.0; lanes]);
            let (mut factors, mut all) = (vec![f32::NAN; lanes], vec![0.0; 3 * keys * lanes]);
            // Nothing is seen of the first of three tiles.
            for tile in 0..3 {
                let scores = &mut all[tile * keys * lanes..][..keys * lanes];
                for (i, to) in scores.iter_mut().enumerate() {
                    *to = match tile {
                        0 => f32::NEG_INFINITY,
                        _ => score(tile * keys + i / lanes, i % lanes),
                    };
                }
                let (max, sum, factors) = (&mut max[..], &mut sum[..], &mut factors[..]);
                // Units whose multiplication is exact change no bit.
                let units: Vec<f32> = (0..lanes).map(|lane| [1.0, 0.5, 4.0][lane % 3]).collect();
                for (i, score) in scores.iter_mut().enumerate() {
                    *score /= units[i % lanes];
                }
                isa.run(Weights {
                    scores,
                    lanes,
                    pairs: None,
                    units: &units,
                    max,
                    sum,
                    factors,
                });
            }
            for lane in 0..lanes {
                let scores = (keys..3 * keys).map(|key| score(key, lane));
                let largest = scores.clone().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(max[lane], largest, "{isa:?}");
                let weights = scores.map(|score| f64::from(score - largest).exp2());
                let expected: f64 = weights.clone().sum();
                assert!(
                    (f64::from(sum[lane]) - expected).abs() <= 1e-6 * expected,
                    "{isa:?}"
                );
                // Those of the first tile are relative to its own largest score.
                for (key, expected) in weights.enumerate() {
                    let factor = if key < keys { factors[lane] } else { 1.0 };
                    let found = f64::from(all[(keys + key) * lanes + lane] * factor);
                    assert!((found - expected).abs() <= 1e-6, "{isa:?} {key}");
                }
            }
        }
    }

    /// The largest score times the unit is rounded, so that of its key must be, too: at 3e9 and more they would be hundreds apart.
    #[test]
    fn the_key_of_the_largest_score_has_the_weight_1() {
        for isa in Isa::all() {
            let (lanes, keys) = (isa.panel(), 32);
            for unit in [0.127_517_43, 0.360_673_76] {
                for score in [1.28e12, 7.7e20, -7.7e20, 3.3, 1.0] {
                    let mut scores = vec![f32::NEG_INFINITY; keys * lanes];
                    scores[..lanes].fill(score);
                    let (mut max, mut sum) = (vec![f32::NEG_INFINITY; lanes], vec![0.0; lanes]);
                    isa.run(Weights {
                        scores: &mut scores,
                        lanes,
                        pairs: None,
                        units: &vec![unit; lanes],
                        max: &mut max,
                        sum: &mut sum,
                        factors: &mut vec![f32::NAN; lanes],
                    });
                    let (weights, others) = scores.split_at(lanes);
                    assert_eq!(weights, vec![1.0; lanes], "{isa:?} {score}");
                    assert!(others.iter().all(|&weight| weight == 0.0));
                    assert_eq!(sum, weights);
                }
            }
        }
    }

    #[test]
    fn pairs_are_the_weights_rounded() {
        for isa in Isa::all() {
            let (lanes, keys) = (isa.panel(), 32);
            let score = |i: usize| (i * 31 % 47) as f32 / 5.0 - 4.0;
            let scores: Vec<f32> = (0..keys * lanes).map(score).collect();
            let weigh = |scores: &mut [f32], pairs: Option<&mut [u32]>| {
                let (mut max, mut sum) = (vec![f32::NEG_INFINITY; lanes], vec![0.0; lanes]);
                let mut factors = vec![f32::NAN; lanes];
                isa.run(Weights {
                    scores,
                    lanes,
                    pairs,
                    units: &vec![1.0; lanes],
                    max: &mut max,
                    sum: &mut sum,
                    factors: &mut factors,
                });
                [max, sum, factors]
            };
            let (mut weights, mut pairs) = (scores.clone(), vec![0; keys / 2 * lanes]);
            let state = weigh(&mut weights, None);
            assert_eq!(weigh(&mut scores.clone(), Some(&mut pairs)), state);
            for (i, pair) in pairs.into_iter().enumerate() {
                let first = i / lanes * 2 * lanes + i % lanes;
                let halves = [(first, pair << 16), (first + lanes, pair & 0xffff_0000)];
                for (place, half) in halves {
                    let error = (f32::from_bits(half) - weights[place]).abs();
                    assert!(error <= weights[place] / 256.0, "{isa:?} {place}");
                }
            }
        }
    }
}
