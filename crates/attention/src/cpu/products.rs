//! The two matrix products of attention.
//!
//! A register holds a number of each of several queries: a panel of queries is stored with its lanes innermost, and so are its
//! scores and its output. Then keys and values are only ever read one number at a time, as the left operand, and in the order
//! they have in memory; no row has to be turned or packed for it, and softmax needs no sum across a register.
//!
//! A handful of queries would leave most lanes empty: see [`few`](crate::cpu::few).

use crate::cpu::isa::Work;
use crate::cpu::lanes::*;
use crate::spec::Element;

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
    pub(super) fn check(&self, count: usize, len: usize) {
        assert!(count == 0 || (count - 1) * self.stride + len <= self.data.len());
    }
}

/// `sums + a b`, where `a` has `ROWS` rows and `steps` columns with the given strides, and `b` has `steps` rows. The terms of a sum
/// are added one after the other.
///
/// # Safety
/// The machine has the instructions of `L`, and all elements of `a` and `b` may be read.
#[inline(always)]
pub(super) unsafe fn add_product<L: Lanes, B: Element, const ROWS: usize, const COLUMNS: usize>(
    mut sums: [[L; COLUMNS]; ROWS],
    steps: usize,
    (a, a_row, a_step): (*const f32, usize, usize),
    b: impl Fn(usize) -> *const B,
) -> [[L; COLUMNS]; ROWS] {
    for step in 0..steps {
        // SAFETY: the caller vouches for the instructions and the elements.
        unsafe {
            let row = b(step);
            let mut numbers = [L::splat(0.0); COLUMNS];
            for (i, numbers) in numbers.iter_mut().enumerate() {
                *numbers = L::widen(row.add(i * L::WIDTH));
            }
            let factors = a.add(step * a_step);
            for (index, sums) in sums.iter_mut().enumerate() {
                let factor = L::splat(*factors.add(index * a_row));
                for (sum, x) in sums.iter_mut().zip(numbers) {
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
        let factors = work.factors.as_ptr();
        let out = work.out.as_ptr().add(component * lanes).cast_mut();
        let place = |row: usize, column: usize| out.add(row * lanes + column * L::WIDTH);
        let mut sums = [[L::splat(0.0); COLUMNS]; ROWS];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let factor = L::load(factors.add(column * L::WIDTH));
                *sum = L::load(place(row, column)).mul(factor);
            }
        }
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
    }
}
