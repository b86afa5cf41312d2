//! Work on values for a handful of queries: see [`few`](crate::cpu::few).

use crate::cpu::few::QUERIES;
use crate::cpu::isa::Work;
use crate::cpu::lanes::*;
use crate::cpu::pairs::ZEROS;
use crate::cpu::products::add_product;
use crate::spec::Element;

/// Rounds numbers to `bf16` as [`Lanes::pair_bf16`] does.
pub(super) struct Round<'a> {
    pub(super) from: &'a [f32],
    /// As many.
    pub(super) to: &'a mut [u16],
}

impl Work for Round<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        for (to, x) in self.to.iter_mut().zip(self.from) {
            *to = (x.to_bits().wrapping_add(HALF_BF16) >> 16) as u16;
        }
    }
}

/// As [`FewValues`], by [`Lanes::dot`] of two keys at a time.
pub(super) struct FewDots<'a, T> {
    /// Rows of `bf16`.
    pub(super) values: &'a [&'a [T]],
    /// True if the first value is the second one of a pair.
    pub(super) odd: bool,
    /// Rows that will be needed soon.
    pub(super) ahead: &'a [&'a [T]],
    /// A row for each query, with a `bf16` number for each value of each pair. That of a value that is not there is 0.
    pub(super) weights: &'a [u16],
    /// Numbers from a row of weights to the next.
    pub(super) stride: usize,
    /// A row of `depth` numbers for each query; `depth` is a multiple of 32.
    pub(super) out: &'a mut [f32],
    pub(super) depth: usize,
    /// One for each query.
    pub(super) factors: &'a [f32],
}

impl<T: Element> Work for FewDots<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(mut self) {
        let count = self.factors.len();
        assert!(self.depth.is_multiple_of(2 * MAX_WIDTH) && size_of::<T>() == size_of::<u16>());
        assert!(self.values.iter().all(|row| self.depth <= row.len()));
        assert!(self.depth <= ZEROS.len());
        let weights = count.saturating_sub(1) * self.stride + self.pairs() * 2;
        assert!(weights <= self.weights.len() && count * self.depth <= self.out.len());
        let mut component = 0;
        while component < self.depth {
            let mut query = 0;
            let two = component + 4 * L::WIDTH <= self.depth;
            while query < count {
                // SAFETY: the caller vouches for the instructions; the rest was checked.
                query += unsafe {
                    match (two, query + QUERIES <= count) {
                        (true, true) => dots_of::<L, T, QUERIES, 2>(&mut self, query, component),
                        (true, false) => dots_of::<L, T, 1, 2>(&mut self, query, component),
                        (false, true) => dots_of::<L, T, QUERIES, 1>(&mut self, query, component),
                        (false, false) => dots_of::<L, T, 1, 1>(&mut self, query, component),
                    }
                };
            }
            component += if two { 4 * L::WIDTH } else { 2 * L::WIDTH };
        }
    }
}

impl<T> FewDots<'_, T> {
    fn pairs(&self) -> usize {
        (usize::from(self.odd) + self.values.len()).div_ceil(2)
    }
}

/// `COUNT` queries and `PAIRS` times two registers of components; returns `COUNT`.
///
/// # Safety
/// As [`Work::run`]; what [`FewDots::run`] checks.
#[inline(always)]
unsafe fn dots_of<L: Lanes, T: Element, const COUNT: usize, const PAIRS: usize>(
    work: &mut FewDots<'_, T>,
    query: usize,
    component: usize,
) -> usize {
    // SAFETY: the caller vouches for it. Two weights are a word, in any alignment.
    unsafe {
        let out = work.out.as_mut_ptr().add(query * work.depth + component);
        let mut sums = [[[L::splat(0.0); 2]; PAIRS]; COUNT];
        for (row, sums) in sums.iter_mut().enumerate() {
            let factor = L::splat(work.factors[query + row]);
            for (column, sum) in sums.as_flattened_mut().iter_mut().enumerate() {
                *sum = L::load(out.add(row * work.depth + column * L::WIDTH)).mul(factor);
            }
        }
        let weights = work.weights.as_ptr().add(query * work.stride);
        let (values, ahead, odd) = (work.values, work.ahead, usize::from(work.odd));
        for key in (0..2 * work.pairs()).step_by(2) {
            for row in ahead.get(key..key + 2).unwrap_or(&[]) {
                for pair in 0..PAIRS {
                    L::prefetch(row.as_ptr().wrapping_add(component + pair * 2 * L::WIDTH));
                }
            }
            let first = values.get(key.wrapping_sub(odd));
            let first = first.map_or(ZEROS.as_ptr(), |row| row.as_ptr().cast());
            let second = values.get(key + 1 - odd);
            let second = second.map_or(ZEROS.as_ptr(), |row| row.as_ptr().cast());
            let (first, second) = (first.add(component), second.add(component));
            let mut words = [[L::splat(0.0); 2]; PAIRS];
            for (pair, words) in words.iter_mut().enumerate() {
                let place = pair * 2 * L::WIDTH;
                *words = L::interleave(first.add(place), second.add(place));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let pair = weights.add(row * work.stride + key).cast::<f32>();
                let pair = L::splat(pair.read_unaligned());
                for (sum, words) in sums.as_flattened_mut().iter_mut().zip(words.as_flattened()) {
                    *sum = words.dot(pair, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (column, sum) in sums.as_flattened().iter().enumerate() {
                sum.store(out.add(row * work.depth + column * L::WIDTH));
            }
        }
    }
    COUNT
}

/// Adds up the values of a handful of queries: `out = factors out + weights values`.
pub(super) struct FewValues<'a, T> {
    pub(super) values: &'a [&'a [T]],
    /// Rows that will be needed soon.
    pub(super) ahead: &'a [&'a [T]],
    /// A row for each query, with a number for each value.
    pub(super) weights: &'a [f32],
    /// Numbers from a row of weights to the next.
    pub(super) stride: usize,
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
        let count = self.factors.len();
        assert!(self.depth.is_multiple_of(L::WIDTH));
        assert!(self.values.iter().all(|row| self.depth <= row.len()));
        let weights = count.saturating_sub(1) * self.stride + self.values.len();
        assert!(weights <= self.weights.len());
        assert!(count * self.depth <= self.out.len());
        let mut component = 0;
        while component < self.depth {
            // SAFETY: the caller vouches for the instructions; the rest was checked.
            component += unsafe {
                if component + 4 * L::WIDTH <= self.depth {
                    values_in::<L, T, 4>(&mut self, component)
                } else {
                    values_in::<L, T, 1>(&mut self, component)
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
unsafe fn values_in<L: Lanes, T: Element, const COLUMNS: usize>(
    work: &mut FewValues<'_, T>,
    component: usize,
) -> usize {
    let count = work.factors.len();
    let mut query = 0;
    while query < count {
        // SAFETY: the caller vouches for it.
        query += unsafe {
            if query + QUERIES <= count {
                values_of::<L, T, QUERIES, COLUMNS>(work, query, component)
            } else {
                values_of::<L, T, 1, COLUMNS>(work, query, component)
            }
        };
    }
    COLUMNS * L::WIDTH
}

/// `COUNT` queries; returns `COUNT`.
///
/// # Safety
/// As [`values_in`].
#[inline(always)]
unsafe fn values_of<L: Lanes, T: Element, const COUNT: usize, const COLUMNS: usize>(
    work: &mut FewValues<'_, T>,
    query: usize,
    component: usize,
) -> usize {
    // SAFETY: the caller vouches for it.
    unsafe {
        let out = work.out.as_mut_ptr().add(query * work.depth + component);
        let place = |row: usize, column: usize| out.add(row * work.depth + column * L::WIDTH);
        let mut sums = [[L::splat(0.0); COLUMNS]; COUNT];
        for (row, sums) in sums.iter_mut().enumerate() {
            let factor = L::splat(work.factors[query + row]);
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(place(row, column)).mul(factor);
            }
        }
        let weights = work.weights.as_ptr().add(query * work.stride);
        let values = work.values;
        let sums = add_product(sums, values.len(), (weights, work.stride, 1), |step| {
            if let Some(row) = work.ahead.get(step) {
                let columns = COLUMNS * L::WIDTH;
                for column in (component..component + columns).step_by(64 / size_of::<T>()) {
                    L::prefetch(row.as_ptr().wrapping_add(column));
                }
            }
            values.get_unchecked(step).as_ptr().add(component)
        });
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                sum.store(place(row, column));
            }
        }
    }
    COUNT
}
