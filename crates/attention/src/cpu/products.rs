//! The two matrix products of attention.
//!
//! A register holds a number of each of several queries: a panel of queries is stored with its lanes innermost, and so are its
//! scores and its output. Then keys and values are only ever read one number at a time, as the left operand, and in the order
//! they have in memory; no row has to be turned or packed for it, and softmax needs no sum across a register.
//!
//! A handful of queries, as in decoding, would leave most lanes empty. Then scores are computed with a key in each lane, and
//! outputs with a component of the value in each. Every sum is taken in the same order, so the bits are the same.

use crate::cpu::isa::Work;
use crate::cpu::lanes::*;
use crate::cpu::memory::Memory;
use crate::cpu::turn::{Prefetch, turn};
use crate::element::Element;

/// Rows of numbers, one `stride` elements after the other.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

impl Rows<'_> {
    /// The rows from this one on.
    pub(super) fn from(self, row: usize) -> Self {
        Rows {
            data: &self.data[row * self.stride..],
            stride: self.stride,
        }
    }

    /// Panics if some of the first `count` rows of `len` numbers are not there.
    #[inline(always)]
    fn check(&self, count: usize, len: usize) {
        assert!(count == 0 || (count - 1) * self.stride + len <= self.data.len());
    }
}

/// `sums + a b`, where `a` has `ROWS` rows and `steps` columns with the given strides, and `b` has `steps` rows. The terms of a sum
/// are added one after the other.
///
/// # Safety
/// The machine has the instructions of `L`, and all elements of `a` and `b` may be read.
#[inline(always)]
unsafe fn add_product<L: Lanes, B: Element, const ROWS: usize, const COLUMNS: usize>(
    mut sums: [[L; COLUMNS]; ROWS],
    steps: usize,
    (a, a_row, a_step): (*const f32, usize, usize),
    b: impl Fn(usize) -> *const B,
) -> [[L; COLUMNS]; ROWS] {
    for step in 0..steps {
        // SAFETY: the caller vouches for the instructions and the elements.
        unsafe {
            let row = b(step);
            let row: [L; COLUMNS] = std::array::from_fn(|i| L::widen(row.add(i * L::WIDTH)));
            let factors = a.add(step * a_step);
            for (index, sums) in sums.iter_mut().enumerate() {
                let factor = L::splat(*factors.add(index * a_row));
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum = factor.mul_add(x, *sum);
                }
            }
        }
    }
    sums
}

/// Calls `$call` with the constant `$columns` that `$count` is, up to 3.
macro_rules! with_columns {
    ($count:expr, $columns:ident => $call:expr) => {
        match $count {
            1 => {
                const $columns: usize = 1;
                $call
            }
            2 => {
                const $columns: usize = 2;
                $call
            }
            _ => {
                const $columns: usize = 3;
                $call
            }
        }
    };
}

/// Scores of a panel of queries: `out = keys queries`.
pub(super) struct Scores<'a> {
    /// A row for each key.
    pub(super) keys: Rows<'a>,
    pub(super) key_count: usize,
    /// `depth` rows of `lanes` numbers.
    pub(super) queries: &'a [f32],
    pub(super) depth: usize,
    pub(super) lanes: usize,
    /// A row of `lanes` numbers for each key.
    pub(super) out: &'a mut [f32],
}

impl Work for Scores<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        self.keys.check(self.key_count, self.depth);
        assert!(self.depth * self.lanes <= self.queries.len());
        assert!(self.key_count * self.lanes <= self.out.len());
        assert!(self.lanes.is_multiple_of(L::WIDTH) && self.lanes / L::WIDTH <= 3);
        // SAFETY: the caller vouches for the instructions; the rest was checked.
        unsafe {
            with_columns!(self.lanes / L::WIDTH, N => scores::<L, ROWS, N>(self));
        }
    }
}

/// # Safety
/// As [`Work::run`]; what [`Scores::run`] checks.
#[inline(always)]
unsafe fn scores<L: Lanes, const ROWS: usize, const COLUMNS: usize>(work: Scores<'_>) {
    let Scores {
        keys,
        key_count,
        queries,
        depth,
        lanes,
        out,
    } = work;
    let mut key = 0;
    while key < key_count {
        // SAFETY: the caller vouches for it.
        key += unsafe {
            let (a, to) = (
                keys.data.as_ptr().add(key * keys.stride),
                out.as_mut_ptr().add(key * lanes),
            );
            let a = (a, keys.stride, 1);
            if key + ROWS <= key_count {
                scores_of::<L, ROWS, COLUMNS>(depth, a, (queries, lanes), to)
            } else {
                scores_of::<L, 1, COLUMNS>(depth, a, (queries, lanes), to)
            }
        };
    }
}

/// Scores of `ROWS` keys; returns `ROWS`.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn scores_of<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
    depth: usize,
    keys: (*const f32, usize, usize),
    (queries, lanes): (&[f32], usize),
    out: *mut f32,
) -> usize {
    // SAFETY: the caller vouches for it.
    unsafe {
        let zero = [[L::splat(0.0); COLUMNS]; ROWS];
        let sums = add_product(zero, depth, keys, |step| queries.as_ptr().add(step * lanes));
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                sum.store(out.add(row * lanes + column * L::WIDTH));
            }
        }
    }
    ROWS
}

/// Adds up the values of a panel of queries: `out = factors out + values^T weights`.
pub(super) struct Values<'a> {
    /// A row for each key.
    pub(super) values: Rows<'a>,
    pub(super) key_count: usize,
    /// A row of `lanes` numbers for each key.
    pub(super) weights: &'a [f32],
    pub(super) lanes: usize,
    pub(super) depth: usize,
    /// `depth` rows of `lanes` numbers.
    pub(super) out: &'a mut [f32],
    /// One for each lane.
    pub(super) factors: &'a [f32],
}

impl Work for Values<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        self.values.check(self.key_count, self.depth);
        assert!(self.key_count * self.lanes <= self.weights.len());
        assert!(self.depth * self.lanes <= self.out.len() && self.lanes <= self.factors.len());
        assert!(self.lanes.is_multiple_of(L::WIDTH) && self.lanes / L::WIDTH <= 3);
        // SAFETY: the caller vouches for the instructions; the rest was checked.
        unsafe {
            with_columns!(self.lanes / L::WIDTH, N => values::<L, ROWS, N>(self));
        }
    }
}

/// # Safety
/// As [`Work::run`]; what [`Values::run`] checks.
#[inline(always)]
unsafe fn values<L: Lanes, const ROWS: usize, const COLUMNS: usize>(work: Values<'_>) {
    let mut component = 0;
    while component < work.depth {
        // SAFETY: the caller vouches for it.
        component += unsafe {
            if component + ROWS <= work.depth {
                values_of::<L, ROWS, COLUMNS>(&work, component)
            } else {
                values_of::<L, 1, COLUMNS>(&work, component)
            }
        };
    }
}

/// `ROWS` components; returns `ROWS`.
///
/// # Safety
/// As [`values`].
#[inline(always)]
unsafe fn values_of<L: Lanes, const ROWS: usize, const COLUMNS: usize>(
    work: &Values<'_>,
    component: usize,
) -> usize {
    let lanes = work.lanes;
    // SAFETY: the caller vouches for it.
    unsafe {
        let factors: [L; COLUMNS] =
            std::array::from_fn(|i| L::load(work.factors.as_ptr().add(i * L::WIDTH)));
        let out = work.out.as_ptr().add(component * lanes).cast_mut();
        let place = |row: usize, column: usize| out.add(row * lanes + column * L::WIDTH);
        let sums: [[L; COLUMNS]; ROWS] = std::array::from_fn(|row| {
            std::array::from_fn(|column| L::load(place(row, column)).mul(factors[column]))
        });
        let values = work.values.data.as_ptr().add(component);
        let a = (values, 1, work.values.stride);
        let weights = work.weights.as_ptr();
        let sums = add_product(sums, work.key_count, a, |step| weights.add(step * lanes));
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                sum.store(place(row, column));
            }
        }
    }
    ROWS
}

/// As [`Scores`], for a handful of queries.
pub(super) struct FewScores<'a, T> {
    pub(super) keys: &'a [&'a [T]],
    /// Rows that will be needed soon.
    pub(super) ahead: &'a [&'a [T]],
    /// A row of `depth` numbers for each query; `depth` is a multiple of a register's width.
    pub(super) queries: Rows<'a>,
    pub(super) count: usize,
    /// A row of `lanes` numbers for each key; only those of the queries are written.
    pub(super) out: &'a mut [f32],
    pub(super) lanes: usize,
    /// Memory for a group of keys.
    pub(super) group: &'a mut Memory<f32>,
}

impl<T: Element> Work for FewScores<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let depth = self.queries.stride;
        let group_len = 2 * L::WIDTH;
        self.queries.check(self.count, depth);
        assert!(depth.is_multiple_of(L::WIDTH));
        assert!(self.count <= self.lanes && self.keys.len() * self.lanes <= self.out.len());
        self.group.resize(depth * group_len);
        for (index, keys) in self.keys.chunks(group_len).enumerate() {
            for (half, keys) in keys.chunks(L::WIDTH).enumerate() {
                for component in (0..depth).step_by(L::WIDTH) {
                    let to = &mut self.group[component * group_len + half * L::WIDTH..];
                    // SAFETY: the caller vouches for the instructions.
                    unsafe { turn::<L, T>(keys, component, |x| x, to, group_len) };
                }
            }
            let soon = self.ahead.chunks(group_len).nth(index).unwrap_or(&[]);
            // SAFETY: the caller vouches for the instructions.
            unsafe { Prefetch(soon).run::<L, ROWS, COLUMNS>() };
            let out = &mut self.out[index * group_len * self.lanes..];
            let mut query = 0;
            while query < self.count {
                let group = &self.group[..depth * group_len];
                let row = &self.queries.data[query * depth..];
                let to = (&mut out[query..], self.lanes, keys.len());
                // SAFETY: the caller vouches for the instructions; there are so many queries of `depth` numbers.
                query += unsafe {
                    if query + 4 <= self.count {
                        few_scores_of::<L, 4>(row, group, depth, to)
                    } else {
                        few_scores_of::<L, 1>(row, group, depth, to)
                    }
                };
            }
        }
    }
}

/// Scores of `ROWS` queries and a group of keys; returns `ROWS`.
///
/// # Safety
/// As [`Work::run`]; there are `ROWS` queries, and as many numbers in the group as its keys have.
#[inline(always)]
unsafe fn few_scores_of<L: Lanes, const ROWS: usize>(
    queries: &[f32],
    group: &[f32],
    depth: usize,
    (out, lanes, key_count): (&mut [f32], usize, usize),
) -> usize {
    // SAFETY: the caller vouches for it.
    let sums = unsafe {
        let zero = [[L::splat(0.0); 2]; ROWS];
        let (a, group) = ((queries.as_ptr(), depth, 1), group.as_ptr());
        add_product(zero, depth, a, |step| group.add(step * 2 * L::WIDTH))
    };
    for (row, sums) in sums.into_iter().enumerate() {
        let mut scores = [0.0; 2 * MAX_WIDTH];
        for (half, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller vouches for the instructions; a register has at most `MAX_WIDTH` numbers.
            unsafe { sum.store(scores[half * L::WIDTH..].as_mut_ptr()) };
        }
        for (key, score) in scores[..key_count].iter().enumerate() {
            out[key * lanes + row] = *score;
        }
    }
    ROWS
}

/// As [`Values`], for a handful of queries.
pub(super) struct FewValues<'a, T> {
    pub(super) values: &'a [&'a [T]],
    /// Rows that will be needed soon.
    pub(super) ahead: &'a [&'a [T]],
    /// A row of `lanes` numbers for each key.
    pub(super) weights: &'a [f32],
    pub(super) lanes: usize,
    pub(super) count: usize,
    /// A row of `depth` numbers for each query; `depth` is a multiple of a register's width.
    pub(super) out: &'a mut [f32],
    pub(super) depth: usize,
    /// One for each query.
    pub(super) factors: &'a [f32],
}

impl<T: Element> Work for FewValues<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(mut self) {
        assert!(self.depth.is_multiple_of(L::WIDTH));
        assert!(self.values.iter().all(|row| self.depth <= row.len()));
        assert!(self.count <= self.lanes && self.count <= self.factors.len());
        assert!(self.values.len() * self.lanes <= self.weights.len());
        assert!(self.count * self.depth <= self.out.len());
        let mut component = 0;
        let steps = self.depth.div_ceil(4 * L::WIDTH);
        let mut soon = self.ahead.chunks(self.ahead.len().div_ceil(steps).max(1));
        while component < self.depth {
            // SAFETY: the caller vouches for the instructions; the rest was checked.
            component += unsafe {
                Prefetch(soon.next().unwrap_or(&[])).run::<L, ROWS, COLUMNS>();
                if component + 4 * L::WIDTH <= self.depth {
                    few_values_in::<L, T, 4>(&mut self, component)
                } else {
                    few_values_in::<L, T, 1>(&mut self, component)
                }
            };
        }
    }
}

/// `COLUMNS` registers of components of all queries; returns how many components these are.
///
/// # Safety
/// As [`Work::run`]; what [`FewValues::run`] checks.
#[inline(always)]
unsafe fn few_values_in<L: Lanes, T: Element, const COLUMNS: usize>(
    work: &mut FewValues<'_, T>,
    component: usize,
) -> usize {
    let mut query = 0;
    while query < work.count {
        // SAFETY: the caller vouches for it.
        query += unsafe {
            if query + 4 <= work.count {
                few_values_of::<L, T, 4, COLUMNS>(work, query, component)
            } else {
                few_values_of::<L, T, 1, COLUMNS>(work, query, component)
            }
        };
    }
    COLUMNS * L::WIDTH
}

/// `ROWS` queries; returns `ROWS`.
///
/// # Safety
/// As [`few_values_in`].
#[inline(always)]
unsafe fn few_values_of<L: Lanes, T: Element, const ROWS: usize, const COLUMNS: usize>(
    work: &mut FewValues<'_, T>,
    query: usize,
    component: usize,
) -> usize {
    // SAFETY: the caller vouches for it.
    unsafe {
        let out = work.out.as_mut_ptr().add(query * work.depth + component);
        let place = |row: usize, column: usize| out.add(row * work.depth + column * L::WIDTH);
        let sums: [[L; COLUMNS]; ROWS] = std::array::from_fn(|row| {
            let factor = L::splat(work.factors[query + row]);
            std::array::from_fn(|column| L::load(place(row, column)).mul(factor))
        });
        let a = (work.weights.as_ptr().add(query), 1, work.lanes);
        let values = work.values;
        let sums = add_product(sums, values.len(), a, |step| {
            values.get_unchecked(step).as_ptr().add(component)
        });
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                sum.store(place(row, column));
            }
        }
    }
    ROWS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use quickcheck::quickcheck;

    /// Small integers, so that every sum is exact.
    fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
        let entry = |i: usize| ((i / columns * 31 + i % columns * 17 + seed) % 11) as f32 - 5.0;
        (0..rows * columns).map(entry).collect()
    }

    quickcheck! {
        fn products_are_products(keys: u8, depth: u8, columns: u8, gap: u8) -> bool {
            let (keys, depth) = (usize::from(keys % 40), 1 + usize::from(depth % 70));
            let stride = depth + usize::from(gap % 3);
            Isa::all().all(|isa| {
                let lanes = isa.width() * (1 + usize::from(columns) % (isa.panel() / isa.width()));
                let (data, queries) = (matrix(keys, stride, 1), matrix(depth, lanes, 2));
                let rows = Rows { data: &data, stride };
                let mut out = vec![f32::NAN; keys * lanes];
                isa.run(Scores {
                    keys: rows, key_count: keys, queries: &queries, depth, lanes, out: &mut out,
                });
                let scores_agree = out.iter().enumerate().all(|(i, x)| {
                    let (key, lane) = (i / lanes, i % lanes);
                    let terms = (0..depth).map(|c| data[key * stride + c] * queries[c * lanes + lane]);
                    *x == terms.sum::<f32>()
                });
                let weights = matrix(keys, lanes, 3);
                let (before, factors) = (matrix(depth, lanes, 4), matrix(1, lanes, 5));
                let mut out = before.clone();
                isa.run(Values {
                    values: rows, key_count: keys, weights: &weights, lanes, depth, out: &mut out, factors: &factors,
                });
                scores_agree && out.iter().enumerate().all(|(i, x)| {
                    let (c, lane) = (i / lanes, i % lanes);
                    let terms = (0..keys).map(|key| data[key * stride + c] * weights[key * lanes + lane]);
                    *x == before[i] * factors[lane] + terms.sum::<f32>()
                })
            })
        }

        fn few_queries_have_the_same_products(keys: u8, pieces: u8, count: u8) -> bool {
            Isa::all().all(|isa| {
                let (keys, count) = (usize::from(keys % 70), 1 + usize::from(count % 8));
                let depth = isa.width() * (1 + usize::from(pieces % 9));
                let lanes = count.next_multiple_of(isa.width());
                let (data, queries) = (matrix(keys, depth, 1), matrix(count, depth, 2));
                let rows: Vec<&[f32]> = data.chunks(depth).collect();
                let mut out = vec![0.0; keys * lanes];
                isa.run(FewScores {
                    keys: &rows, ahead: &rows, queries: Rows { data: &queries, stride: depth }, count,
                    out: &mut out, lanes, group: &mut Memory::default(),
                });
                let scores_agree = out.iter().enumerate().all(|(i, x)| {
                    let (key, query) = (i / lanes, i % lanes);
                    let terms = (0..depth).map(|c| data[key * depth + c] * queries[query * depth + c]);
                    query >= count || *x == terms.sum::<f32>()
                });
                let weights = matrix(keys, lanes, 3);
                let (before, factors) = (matrix(count, depth, 4), matrix(1, count, 5));
                let mut out = before.clone();
                isa.run(FewValues {
                    values: &rows, ahead: &rows, weights: &weights, lanes, count, out: &mut out, depth,
                    factors: &factors,
                });
                scores_agree && out.iter().enumerate().all(|(i, x)| {
                    let (query, c) = (i / depth, i % depth);
                    let terms = (0..keys).map(|key| data[key * depth + c] * weights[key * lanes + query]);
                    *x == before[i] * factors[query] + terms.sum::<f32>()
                })
            })
        }
    }
}
