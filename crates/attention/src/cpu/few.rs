//! Products and softmax of a handful of queries, as in decoding.
//!
//! They would leave most lanes of a panel empty. So a lane is a key while scores are computed, and a component while values are added up;
//! every key is read once for up to four queries, and numbers of 16 bits become `f32` only in registers. Each sum is taken in the order
//! that [`Scores`](crate::cpu::products::Scores), [`Weights`](crate::cpu::weights::Weights) and [`Values`](crate::cpu::products::Values)
//! take it in, so the bits are the same.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::cpu::isa::{Isa, Work};
use crate::cpu::lanes::*;
use crate::cpu::products::Rows;
use crate::cpu::weights::CLASSES;
use crate::spec::{Element, ElementType};

/// Queries that share what is read of a key.
pub(super) const QUERIES: usize = 4;

/// Scores are written for this many keys at a time, with any instructions; behind the last key they mean nothing.
pub(super) const KEYS_AT_ONCE: usize = 2 * MAX_WIDTH;

/// Scores of a handful of queries: sums of products, or of [`Lanes::dot`].
pub(super) struct FewScores<'a, T> {
    pub(super) keys: &'a [&'a [T]],
    /// Rows that will be needed soon.
    pub(super) ahead: &'a [&'a [T]],
    /// A row for each query, as long as a key, of numbers, or for dots of words that each hold a pair as keys do. The length is a multiple
    /// of a register's width.
    pub(super) queries: Rows<'a>,
    /// The factor that dot products are multiplied by in the end.
    pub(super) factor: f32,
    pub(super) count: usize,
    /// A row for each query, with room for the next multiple of [`KEYS_AT_ONCE`] keys.
    pub(super) out: &'a mut [f32],
    /// Numbers from a row of `out` to the next.
    pub(super) stride: usize,
    /// [`TURNED`] numbers for a while.
    pub(super) turned: &'a mut [f32],
}

impl<T: Element> FewScores<'_, T> {
    /// Computes them; with `dots` from pairs of numbers of 16 bits.
    pub(super) fn run(self, isa: Isa, dots: bool) {
        // The constant first: other types have no dots, and none are compiled.
        if const { matches!(T::TYPE, ElementType::Bf16) } && dots {
            isa.run_dots(Sums::<T, true>(self));
        } else {
            isa.run(Sums::<T, false>(self));
        }
    }
}

struct Sums<'a, T, const DOTS: bool>(FewScores<'a, T>);

impl<T: Element, const DOTS: bool> Work for Sums<'_, T, DOTS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let Sums(work) = self;
        let row = work.queries.stride;
        let depth = if DOTS { 2 * row } else { row };
        let group = 2 * L::WIDTH;
        work.queries.check(work.count, row);
        assert!(row.is_multiple_of(L::WIDTH) && (!DOTS || size_of::<T>() == 2));
        assert!(work.keys.iter().all(|key| depth <= key.len()));
        let mut soon = work.ahead.chunks(group);
        for (index, keys) in work.keys.chunks(group).enumerate() {
            // Lanes without a key repeat the last one.
            let mut rows = [keys[keys.len() - 1].as_ptr(); 2 * MAX_WIDTH];
            for (row, key) in rows.iter_mut().zip(keys) {
                *row = key.as_ptr();
            }
            let mut ahead = rows;
            for (row, key) in ahead.iter_mut().zip(soon.next().unwrap_or(&[])) {
                *row = key.as_ptr();
            }
            let rows = (&rows, &ahead);
            let mut query = 0;
            while query < work.count {
                let queries = (&work.queries.data[query * row..], row);
                let out = &mut work.out[query * work.stride + index * group..];
                let out = (out, work.stride, work.factor);
                let turned = &mut work.turned[..];
                // SAFETY: the caller vouches for the instructions; queries and keys have `depth` numbers each.
                query += unsafe {
                    if query + QUERIES <= work.count {
                        scores_of::<L, T, QUERIES, DOTS>(queries, rows, depth, turned, out)
                    } else {
                        scores_of::<L, T, 1, DOTS>(queries, rows, depth, turned, out)
                    }
                };
            }
        }
    }
}

/// Keys of two registers, and as many rows that will be needed soon.
type Keys<'a, T> = (&'a [*const T; 2 * MAX_WIDTH], &'a [*const T; 2 * MAX_WIDTH]);

/// Numbers of [`FewScores::turned`].
pub(super) const TURNED: usize = 2 * MAX_WIDTH * MAX_WIDTH;

/// Scores of `COUNT` queries and two registers of keys; returns `COUNT`.
///
/// # Safety
/// The machine has the instructions of `L`. There are `COUNT` queries of `row` numbers or words, and keys of `depth` numbers.
#[inline(always)]
unsafe fn scores_of<L: Lanes, T: Element, const COUNT: usize, const DOTS: bool>(
    (queries, row): (&[f32], usize),
    keys: Keys<'_, T>,
    depth: usize,
    turned: &mut [f32],
    (out, stride, factor): (&mut [f32], usize, f32),
) -> usize {
    assert!((COUNT - 1) * stride + 2 * L::WIDTH <= out.len());
    // SAFETY: the caller vouches for it, and for `out` the assertion.
    unsafe {
        let mut sums = [[L::splat(0.0); 2]; COUNT];
        // Numbers of 16 bits are turned two at a time.
        let numbers = (size_of::<u32>() / size_of::<T>()).max(1);
        let step = numbers * L::WIDTH;
        let whole = depth / step * step;
        let queries = queries.as_ptr();
        for column in (0..whole).step_by(step) {
            let query = queries.add(if DOTS { column / 2 } else { column });
            turn::<L, T, true>(keys, column, turned);
            for (index, words) in turned.chunks_exact(2 * L::WIDTH).take(L::WIDTH).enumerate() {
                let words = [L::load(words.as_ptr()), L::load(words[L::WIDTH..].as_ptr())];
                if numbers == 2 && !DOTS {
                    let query = query.add(2 * index);
                    let (first, second) = (words[0].split::<T>(), words[1].split::<T>());
                    let (low, high) = ([first[0], second[0]], [first[1], second[1]]);
                    sums = add_column::<L, COUNT, false>(sums, low, (query, row));
                    sums = add_column::<L, COUNT, false>(sums, high, (query.add(1), row));
                } else {
                    let query = query.add(index);
                    sums = add_column::<L, COUNT, DOTS>(sums, words, (query, row));
                }
            }
        }
        if whole < depth {
            let query = queries.add(whole);
            turn::<L, T, false>(keys, whole, turned);
            for (index, column) in turned.chunks_exact(2 * L::WIDTH).take(L::WIDTH).enumerate() {
                let column = [
                    L::load(column.as_ptr()),
                    L::load(column[L::WIDTH..].as_ptr()),
                ];
                sums = add_column::<L, COUNT, false>(sums, column, (query.add(index), row));
            }
        }
        for (query, sums) in sums.into_iter().enumerate() {
            for (half, mut sum) in sums.into_iter().enumerate() {
                if DOTS {
                    sum = sum.mul(L::splat(factor));
                }
                sum.store(out.as_mut_ptr().add(query * stride + half * L::WIDTH));
            }
        }
    }
    COUNT
}

/// A register's width of words of 32 bits of two registers of keys, or of numbers: to a row for each word or number, with one of each key.
///
/// # Safety
/// The machine has the instructions of `L`. Each key has these numbers.
#[inline(always)]
unsafe fn turn<L: Lanes, T: Element, const WORDS: bool>(
    (keys, ahead): Keys<'_, T>,
    column: usize,
    to: &mut [f32],
) {
    assert!(2 * L::WIDTH * L::WIDTH <= to.len());
    for half in 0..2 {
        // SAFETY: the caller vouches for it; any address may be fetched ahead; `to` has room.
        unsafe {
            let mut square = [L::splat(0.0); MAX_WIDTH];
            for (index, register) in square[..L::WIDTH].iter_mut().enumerate() {
                let key = half * L::WIDTH + index;
                L::prefetch(ahead[key].wrapping_add(column));
                let from = keys[key].add(column);
                *register = match WORDS {
                    true => L::load(from.cast()),
                    false => L::widen(from),
                };
            }
            L::transpose(&mut square);
            for (index, register) in square[..L::WIDTH].iter().enumerate() {
                register.store(to.as_mut_ptr().add((2 * index + half) * L::WIDTH));
            }
        }
        // One square fills the registers: compilers would mix the two.
        compiler_fence(Ordering::SeqCst);
    }
}

/// Adds the products, or dots, of a column of two registers of keys.
///
/// # Safety
/// The machine has the instructions of `L`; COUNT queries, `stride` apart, have a number here.
#[inline(always)]
unsafe fn add_column<L: Lanes, const COUNT: usize, const DOTS: bool>(
    mut sums: [[L; 2]; COUNT],
    column: [L; 2],
    (queries, stride): (*const f32, usize),
) -> [[L; 2]; COUNT] {
    for (query, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller vouches for it.
        unsafe {
            let query = L::splat(*queries.add(query * stride));
            for (sum, column) in sums.iter_mut().zip(column) {
                *sum = match DOTS {
                    true => query.dot(column, *sum),
                    false => query.mul_add(column, *sum),
                };
            }
        }
    }
    sums
}

/// Turns the scores of a handful of queries, in units of ln 2, into weights relative to the largest score so far.
pub(super) struct FewWeights<'a> {
    /// A row for each query, `stride` apart. Hidden keys have the score minus infinity.
    pub(super) scores: &'a mut [f32],
    pub(super) stride: usize,
    /// Keys of a row: a multiple of [`CLASSES`]; the first key belongs to class 0.
    pub(super) keys: usize,
    /// The largest score of each query so far.
    pub(super) max: &'a mut [f32],
    /// The sum of all weights of each query so far.
    pub(super) sum: &'a mut [f32],
    /// The factor for each query's sums so far.
    pub(super) factors: &'a mut [f32],
}

impl Work for FewWeights<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        assert!(self.keys.is_multiple_of(CLASSES));
        let state = (self.max.iter_mut())
            .zip(self.sum)
            .zip(self.factors)
            .zip(self.scores.chunks_mut(self.stride));
        for (((max, sum), factor), scores) in state {
            let scores = &mut scores[..self.keys];
            // SAFETY: the caller vouches for the instructions; pieces and arrays are as long as `CLASSES`, which is `MAX_WIDTH`.
            unsafe {
                let mut largest = L::splat(f32::NEG_INFINITY);
                for piece in scores.chunks_exact(L::WIDTH) {
                    // Ignores a NaN.
                    largest = L::load(piece.as_ptr()).max(largest);
                }
                let mut all = [f32::NEG_INFINITY; MAX_WIDTH];
                largest.store(all.as_mut_ptr());
                let old = *max;
                *max = all.into_iter().fold(old, f32::max);
                // Where no key was seen yet, 0: every weight is 0 then, where inf - inf would be a NaN.
                let largest = max.max(f32::MIN);
                let below = L::splat(0.0 - largest);
                let one = L::splat(1.0);
                let mut sums = [L::splat(0.0); MAX_WIDTH];
                for piece in scores.chunks_exact_mut(CLASSES) {
                    let places = piece.chunks_exact_mut(L::WIDTH);
                    for (place, sum) in places.zip(&mut sums) {
                        let weight = L::load(place.as_ptr()).mul_add(one, below).exp2();
                        *sum = sum.add(weight);
                        weight.store(place.as_mut_ptr());
                    }
                }
                let mut classes = [0.0; CLASSES];
                for (to, sum) in classes.chunks_exact_mut(L::WIDTH).zip(sums) {
                    sum.store(to.as_mut_ptr());
                }
                for half in [8, 4, 2, 1] {
                    for class in 0..half {
                        classes[class] += classes[class + half];
                    }
                }
                L::splat(old - largest).exp2().store(all.as_mut_ptr());
                *factor = all[0];
                *sum = *sum * *factor + classes[0];
            }
        }
    }
}

/// The check that all numbers are finite.
pub(super) struct Finite<'a>(pub(super) &'a [f32]);

impl Work for Finite<'_> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) -> bool {
        let pieces = self.0.chunks_exact(MAX_WIDTH);
        let rest = pieces.remainder().iter().all(|x| x.is_finite());
        let mut zeros = [0.0; MAX_WIDTH];
        for piece in pieces {
            for (zero, x) in zeros.iter_mut().zip(piece) {
                *zero += x * 0.0;
            }
        }
        rest && zeros.iter().all(|zero| *zero == 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::few_values::{FewDots, FewValues, Round};
    use crate::cpu::memory::Memory;
    use crate::cpu::weights::Weights;
    use half::{bf16, f16};
    use quickcheck::quickcheck;

    /// Small integers, which every element type has, so that every sum is exact.
    fn matrix<T: Element>(rows: usize, columns: usize, seed: usize) -> Vec<T> {
        let entry = |i: usize| ((i / columns * 31 + i % columns * 17 + seed) % 11) as f32 - 5.0;
        (0..rows * columns).map(|i| T::from_f32(entry(i))).collect()
    }

    /// Products with this many keys of `pieces` registers are what they should be.
    fn products<T: Element>(isa: Isa, keys: usize, pieces: usize, count: usize) -> bool {
        let depth = isa.width() * pieces;
        let (data, queries) = (matrix::<T>(keys, depth, 1), matrix(count, depth, 2));
        let rows: Vec<&[T]> = data.chunks(depth).collect();
        let number = |key: usize, c: usize| data[key * depth + c].to_f32();
        let stride = keys.next_multiple_of(KEYS_AT_ONCE);
        let mut out = vec![0.0; count * stride];
        FewScores {
            keys: &rows,
            ahead: &rows[keys / 2..],
            queries: Rows {
                data: &queries,
                stride: depth,
            },
            factor: 1.0,
            count,
            out: &mut out,
            stride,
            turned: &mut [0.0; TURNED],
        }
        .run(isa, false);
        let scores_agree = out.iter().enumerate().all(|(i, x)| {
            let (query, key) = (i / stride, i % stride);
            if key >= keys {
                return true;
            }
            let terms = (0..depth).map(|c| number(key, c) * queries[query * depth + c]);
            *x == terms.sum::<f32>()
        });
        let weights = matrix::<f32>(count, stride, 3);
        let (before, factors) = (matrix::<f32>(count, depth, 4), matrix::<f32>(1, count, 5));
        let mut out = before.clone();
        isa.run(FewValues {
            values: &rows,
            ahead: &rows[keys / 2..],
            weights: &weights,
            stride,
            out: &mut out,
            depth,
            factors: &factors,
        });
        scores_agree
            && out.iter().enumerate().all(|(i, x)| {
                let (query, c) = (i / depth, i % depth);
                let terms = (0..keys).map(|key| number(key, c) * weights[query * stride + key]);
                *x == before[i] * factors[query] + terms.sum::<f32>()
            })
    }

    /// Like the test above, for pairs of `bf16`, with values that begin in the middle of a pair or not.
    fn dots(isa: Isa, keys: usize, pieces: usize, count: usize, odd: bool) -> bool {
        let depth = 32 * pieces;
        let (data, queries) = (
            matrix::<bf16>(keys, depth, 1),
            matrix::<bf16>(count, depth, 2),
        );
        let rows: Vec<&[bf16]> = data.chunks(depth).collect();
        let number = |key: usize, c: usize| data[key * depth + c].to_f32();
        let mut words = Memory::<f32>::default();
        words.resize(queries.len() / 2);
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(&queries);
        let stride = keys.next_multiple_of(KEYS_AT_ONCE) + 2;
        let mut out = vec![0.0; count * stride];
        FewScores {
            keys: &rows,
            ahead: &rows[keys / 2..],
            queries: Rows {
                data: &words,
                stride: depth / 2,
            },
            factor: 0.5,
            count,
            out: &mut out,
            stride,
            turned: &mut [0.0; TURNED],
        }
        .run(isa, true);
        let scores_agree = out.iter().enumerate().all(|(i, x)| {
            let (query, key) = (i / stride, i % stride);
            if key >= keys {
                return true;
            }
            let query = &queries[query * depth..];
            let terms = (0..depth).map(|c| number(key, c) * query[c].to_f32());
            *x == terms.sum::<f32>() * 0.5
        });
        let first = usize::from(odd);
        let mut weights = matrix::<f32>(count, stride, 3);
        for (i, weight) in weights.iter_mut().enumerate() {
            if !(first..first + keys).contains(&(i % stride)) {
                *weight = 0.0;
            }
        }
        let mut halves = vec![0; weights.len()];
        isa.run(Round {
            from: &weights,
            to: &mut halves,
        });
        let (before, factors) = (matrix::<f32>(count, depth, 4), matrix::<f32>(1, count, 5));
        let mut out = before.clone();
        isa.run_dots(FewDots {
            values: &rows,
            odd,
            ahead: &rows[keys / 2..],
            weights: &halves,
            stride,
            out: &mut out,
            depth,
            factors: &factors,
        });
        scores_agree
            && out.iter().enumerate().all(|(i, x)| {
                let (query, c) = (i / depth, i % depth);
                let weights = &weights[query * stride + first..];
                let terms = (0..keys).map(|key| number(key, c) * weights[key]);
                *x == before[i] * factors[query] + terms.sum::<f32>()
            })
    }

    quickcheck! {
        fn products_are_products(keys: u8, pieces: u8, count: u8) -> bool {
            let (keys, pieces) = (usize::from(keys % 70), 1 + usize::from(pieces % 9));
            let count = 1 + usize::from(count % 8);
            Isa::all().all(|isa| {
                products::<f32>(isa, keys, pieces, count)
                    && products::<f16>(isa, keys, pieces, count)
                    && products::<bf16>(isa, keys, pieces, count)
            })
        }

        fn dots_are_products(keys: u8, pieces: u8, count: u8, odd: bool) -> bool {
            let (keys, pieces) = (usize::from(keys % 70), 1 + usize::from(pieces % 5));
            Isa::all().all(|isa| dots(isa, keys, pieces, 1 + usize::from(count % 8), odd))
        }
    }

    /// The weights are bit-for-bit identical for any scores.
    #[test]
    fn weights_are_those_of_a_panel() {
        const KEYS: usize = 96;
        for isa in Isa::all() {
            let count = 5;
            let lanes = isa.width().next_multiple_of(8);
            let score = |query: usize, key: usize| match (query * 7 + key) % 23 {
                0 => f32::NEG_INFINITY,
                1 if query == 3 => f32::NAN,
                _ if query == 4 => f32::NEG_INFINITY,
                x => (key * 37 % 101) as f32 / 7.0 - x as f32,
            };
            let stride = KEYS + 5;
            let (mut max, mut sum) = (vec![1.5, -3.0, f32::NEG_INFINITY, 2.0, -1.0], vec![0.7; 5]);
            let mut factors = vec![f32::NAN; count];
            let (mut all_max, mut all_sum) = (vec![0.0; lanes], vec![0.7; lanes]);
            all_max[..count].copy_from_slice(&max);
            let mut all_factors = vec![f32::NAN; lanes];
            let mut few: Vec<f32> = { 0..count * stride }
                .map(|i| score(i / stride, i % stride))
                .collect();
            let mut all: Vec<f32> = { 0..KEYS * lanes }
                .map(|i| score(i % lanes, i / lanes))
                .collect();
            isa.run(FewWeights {
                scores: &mut few,
                stride,
                keys: KEYS,
                max: &mut max,
                sum: &mut sum,
                factors: &mut factors,
            });
            isa.run(Weights {
                scores: &mut all,
                lanes,
                pairs: None,
                units: &vec![1.0; lanes],
                max: &mut all_max,
                sum: &mut all_sum,
                factors: &mut all_factors,
            });
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            for query in 0..count {
                assert!(same(max[query], all_max[query]), "{isa:?} {query}");
                assert!(same(sum[query], all_sum[query]), "{isa:?} {query}");
                assert!(same(factors[query], all_factors[query]), "{isa:?} {query}");
                for key in 0..KEYS {
                    let (a, b) = (few[query * stride + key], all[key * lanes + query]);
                    assert!(same(a, b), "{isa:?} {query} {key}: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn one_number_that_is_not_finite_is_found() {
        for isa in Isa::all() {
            let mut numbers = [f32::MAX; 41];
            assert!(isa.run(Finite(&numbers)));
            for place in 0..numbers.len() {
                for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    numbers[place] = x;
                    assert!(!isa.run(Finite(&numbers)), "{isa:?} {place}");
                }
                numbers[place] = 0.0;
            }
        }
    }
}
