//! The two matrix products of attention.
//!
//! A general product has to copy both operands into the order its inner loop reads. Here the left one (queries, then
//! probabilities) is read as it is, and the right one (keys, then values) is put into [`Panels`] where it is converted to
//! `f32` anyway. That is what makes this a third faster than calling a library for each tile.

use crate::cpu::lanes::*;
use crate::cpu::simd;
use crate::element::Element;

/// Columns of a panel: the width of the inner loop. A multiple of every vector register.
pub(super) const PANEL: usize = 32;

/// Widest row a panel matrix is made from: the largest head size.
const MAX_ROW: usize = crate::layout::MAX_HEAD_DIM;

/// The right operand of a product: `depth` rows, cut into panels of [`PANEL`] columns. A panel is contiguous, row by row;
/// columns beyond the last are 0.
#[derive(Default)]
pub(super) struct Panels {
    data: Vec<f32>,
    depth: usize,
    count: usize,
}

impl Panels {
    /// Width including the columns that fill up the last panel.
    pub(super) fn width(&self) -> usize {
        self.count * PANEL
    }

    /// Sets the shape. What the panels hold is left over from before.
    fn reshape(&mut self, depth: usize, columns: usize) {
        self.depth = depth;
        self.count = columns.div_ceil(PANEL);
        let len = self.count * depth * PANEL;
        if self.data.len() < len {
            self.data.resize(len, 0.0);
        }
    }

    /// Makes the matrix whose rows are `rows`, all of `columns` elements.
    pub(super) fn fill<'a, T: Element>(
        &mut self,
        columns: usize,
        rows: impl ExactSizeIterator<Item = &'a [T]>,
    ) {
        self.reshape(rows.len(), columns);
        let panel_len = self.depth * PANEL;
        for (index, row) in rows.enumerate() {
            for (panel, piece) in row.chunks(PANEL).enumerate() {
                let place = &mut self.data[panel * panel_len + index * PANEL..][..PANEL];
                let (place, rest) = place.split_at_mut(piece.len());
                simd::widen(piece, place);
                rest.fill(0.0);
            }
        }
    }

    /// Makes the matrix whose columns are `columns`, all of `depth` elements.
    pub(super) fn fill_transposed<'a, T: Element>(
        &mut self,
        depth: usize,
        columns: impl ExactSizeIterator<Item = &'a [T]>,
    ) {
        let count = columns.len();
        self.reshape(depth, count);
        let mut wide = [0.0; MAX_ROW];
        let wide = &mut wide[..depth];
        for (index, column) in columns.enumerate() {
            simd::widen(column, wide);
            self.set_column(index, wide);
        }
        wide.fill(0.0);
        for index in count..self.width() {
            self.set_column(index, wide);
        }
    }

    fn set_column(&mut self, index: usize, column: &[f32]) {
        let panel = &mut self.data[index / PANEL * self.depth * PANEL..];
        let (rows, _) = panel.as_chunks_mut::<PANEL>();
        for (row, &x) in rows.iter_mut().zip(column) {
            row[index % PANEL] = x;
        }
    }

    /// The elements of a column.
    pub(super) fn column(&self, index: usize) -> impl Iterator<Item = f32> {
        let panel = &self.data[index / PANEL * self.depth * PANEL..];
        let (rows, _) = panel.as_chunks::<PANEL>();
        rows[..self.depth].iter().map(move |row| row[index % PANEL])
    }
}

/// The left operand: dense rows.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

/// `c = scale * a b`; rows of `c` are as wide as the panels.
pub(super) fn product(scale: f32, a: Left<'_>, b: &Panels, c: &mut [f32]) {
    multiply(a, b, c, Store::Scaled(scale));
}

/// `c += a b`; rows of `c` are as wide as the panels.
pub(super) fn add_product(a: Left<'_>, b: &Panels, c: &mut [f32]) {
    multiply(a, b, c, Store::Add);
}

/// What happens to a finished sum.
#[derive(Clone, Copy)]
enum Store {
    Scaled(f32),
    Add,
}

fn multiply(a: Left<'_>, b: &Panels, c: &mut [f32], store: Store) {
    #[cfg(target_arch = "x86_64")]
    {
        #[cfg(warptile_avx512)]
        #[target_feature(enable = "avx512f")]
        fn with_avx512(a: Left<'_>, b: &Panels, c: &mut [f32], store: Store) {
            // SAFETY: compiled for, and called on, machines that have it.
            unsafe { multiply_in::<Avx512, 12, 4>(a, b, c, store) }
        }
        #[cfg(warptile_avx512)]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has the feature.
            return unsafe { with_avx512(a, b, c, store) };
        }
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(a: Left<'_>, b: &Panels, c: &mut [f32], store: Store) {
            // SAFETY: compiled for, and called on, machines that have it.
            unsafe { multiply_in::<Avx2, 3, 2>(a, b, c, store) }
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the machine has both features.
            return unsafe { with_avx2(a, b, c, store) };
        }
    }
    // SAFETY: needs nothing of the machine.
    unsafe { multiply_in::<Portable, 3, 2>(a, b, c, store) }
}

/// Takes `ROWS` rows at a time: their sums, a row of the panel and a factor are what registers should hold. Of what is left
/// it takes `FEW` at a time, then single ones.
///
/// # Safety
/// The machine has the vector instructions of `L`.
#[inline(always)]
unsafe fn multiply_in<L: Lanes, const ROWS: usize, const FEW: usize>(
    a: Left<'_>,
    b: &Panels,
    c: &mut [f32],
    store: Store,
) {
    let width = b.width();
    let rows = c.len() / width;
    let panels = b.data.chunks_exact(b.depth * PANEL).take(b.count);
    // A panel stays in the first-level cache while all rows pass by.
    for (index, panel) in panels.enumerate() {
        let (panel, _) = panel.as_chunks::<PANEL>();
        let mut row = 0;
        while row < rows {
            let rows_left = &a.data[row * a.stride..];
            let c = &mut c[row * width + index * PANEL..];
            // SAFETY: the caller vouches for the instruction set.
            row += unsafe {
                if row + ROWS <= rows {
                    tile::<L, ROWS>(rows_left, a.stride, panel, c, width, store)
                } else if row + FEW <= rows {
                    tile::<L, FEW>(rows_left, a.stride, panel, c, width, store)
                } else {
                    tile::<L, 1>(rows_left, a.stride, panel, c, width, store)
                }
            };
        }
    }
}

/// Multiplies `ROWS` rows with a panel; returns `ROWS`.
///
/// # Safety
/// The machine has the vector instructions of `L`.
#[inline(always)]
unsafe fn tile<L: Lanes, const ROWS: usize>(
    a: &[f32],
    a_stride: usize,
    panel: &[[f32; PANEL]],
    c: &mut [f32],
    c_stride: usize,
    store: Store,
) -> usize {
    let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &a[row * a_stride..][..panel.len()]);
    // SAFETY: the caller vouches for the instruction set.
    let mut sums = [unsafe { L::zero() }; ROWS];
    for (step, b) in panel.iter().enumerate() {
        // SAFETY: as above.
        let b = unsafe { L::load(b) };
        for (sum, row) in sums.iter_mut().zip(rows) {
            // SAFETY: as above.
            *sum = unsafe { sum.add_scaled(row[step], b) };
        }
    }
    for (row, sum) in sums.into_iter().enumerate() {
        let mut result = [0.0; PANEL];
        // SAFETY: as above.
        unsafe { sum.store(&mut result) };
        for (c, sum) in c[row * c_stride..][..PANEL].iter_mut().zip(result) {
            match store {
                Store::Scaled(scale) => *c = scale * sum,
                Store::Add => *c += sum,
            }
        }
    }
    ROWS
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    /// Small integers, so that every sum is exact.
    fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<Vec<f32>> {
        let entry = |row, column| ((row * 31 + column * 17 + seed) % 11) as f32 - 5.0;
        (0..rows)
            .map(|row| (0..columns).map(|column| entry(row, column)).collect())
            .collect()
    }

    /// A way to multiply: the dispatched one, and those that this machine would not choose.
    type Multiply = fn(Left<'_>, &Panels, &mut [f32], Store);

    fn ways() -> Vec<Multiply> {
        let portable: Multiply = |a, b, c, store| {
            // SAFETY: needs nothing of the machine.
            unsafe { multiply_in::<Portable, 3, 2>(a, b, c, store) }
        };
        let mut ways = vec![multiply as Multiply, portable];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            ways.push(|a, b, c, store| {
                // SAFETY: only pushed on a machine that has the features.
                unsafe { multiply_in::<Avx2, 3, 2>(a, b, c, store) }
            });
        }
        ways
    }

    quickcheck! {
        fn products_are_products(rows: u8, depth: u8, columns: u8, transposed: bool) -> bool {
            let (rows, depth, columns) = (
                usize::from(rows % 40),
                1 + usize::from(depth % 70),
                1 + usize::from(columns % 100),
            );
            let (a, b) = (matrix(rows, depth, 1), matrix(depth, columns, 2));
            let expected = |row: usize, column: usize| -> f32 {
                (0..depth).map(|step| a[row][step] * b[step][column]).sum()
            };
            let mut panels = Panels::default();
            // What is left over from a larger matrix must not show.
            panels.fill(200, [[f32::NAN; 200]; 100].iter().map(|row| &row[..]));
            if transposed {
                let columns: Vec<Vec<f32>> = (0..columns)
                    .map(|column| (0..depth).map(|step| b[step][column]).collect())
                    .collect();
                panels.fill_transposed(depth, columns.iter().map(|column| &column[..]));
            } else {
                panels.fill(columns, b.iter().map(|row| &row[..]));
            }
            let a = Left { data: &a.concat(), stride: depth };
            let width = panels.width();
            let columns_agree = (0..columns).all(|column| {
                panels.column(column).eq((0..depth).map(|step| b[step][column]))
            });
            columns_agree && ways().into_iter().all(|multiply| {
                let mut c = vec![f32::NAN; rows * width];
                multiply(a, &panels, &mut c, Store::Scaled(2.0));
                multiply(a, &panels, &mut c, Store::Add);
                (0..rows).all(|row| (0..width).all(|column| {
                    let expected = if column < columns { 3.0 * expected(row, column) } else { 0.0 };
                    c[row * width + column] == expected
                }))
            })
        }
    }
}
