//! Rows into panels and back.

use crate::cpu::isa::Work;
use crate::cpu::lanes::*;
use crate::spec::Element;

/// The columns from `column` on, one register's width of them, of at most as many rows: row `i` of `to` becomes column
/// `column + i`, after `change`. Lanes without a row become 0.
///
/// # Safety
/// The machine has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn turn<L: Lanes, T: Element>(
    rows: &[&[T]],
    column: usize,
    change: impl Fn(L) -> L,
    to: &mut [f32],
    stride: usize,
) {
    assert!(rows.len() <= L::WIDTH && (L::WIDTH - 1) * stride + L::WIDTH <= to.len());
    // SAFETY: the caller vouches for the instructions; the rows are long enough, and so is `to`.
    unsafe {
        let mut square = [L::splat(0.0); MAX_WIDTH];
        for (i, register) in square[..L::WIDTH].iter_mut().enumerate() {
            // With a full square, which is the rule, nothing depends on the number of rows.
            if rows.len() == L::WIDTH || i < rows.len() {
                let piece = &rows[i][column..column + L::WIDTH];
                *register = change(L::widen(piece.as_ptr()));
            }
        }
        L::transpose(&mut square);
        for (i, register) in square[..L::WIDTH].iter().enumerate() {
            register.store(to.as_mut_ptr().add(i * stride));
        }
    }
}

/// Puts rows into the lanes of a panel, multiplied by `factor`.
pub(super) struct Pack<'a, T> {
    /// As many as the panel has lanes, or fewer.
    pub(super) rows: &'a [&'a [T]],
    pub(super) factor: f32,
    pub(super) lanes: usize,
    /// A row of `lanes` numbers for each column.
    pub(super) to: &'a mut [f32],
}

impl<T: Element> Work for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let depth = self.to.len() / self.lanes;
        let whole = depth / L::WIDTH * L::WIDTH;
        // SAFETY: the caller vouches for the instructions.
        let factor = unsafe { L::splat(self.factor) };
        for lane in (0..self.lanes).step_by(L::WIDTH) {
            let rows = &self.rows[lane.min(self.rows.len())..];
            let rows = &rows[..rows.len().min(L::WIDTH)];
            for column in (0..whole).step_by(L::WIDTH) {
                let to = &mut self.to[column * self.lanes + lane..];
                // SAFETY: the caller vouches for the instructions.
                unsafe { turn::<L, T>(rows, column, |x| x.mul(factor), to, self.lanes) };
            }
            for column in whole..depth {
                let to = &mut self.to[column * self.lanes + lane..][..L::WIDTH];
                to.fill(0.0);
                for (to, row) in to.iter_mut().zip(rows) {
                    *to = row[column].to_f32() * self.factor;
                }
            }
        }
    }
}

/// Turns a matrix whose rows and columns are multiples of [`MAX_WIDTH`]; what its numbers are does not matter.
pub(super) struct Turn<'a> {
    /// Rows and columns.
    pub(super) size: [usize; 2],
    pub(super) from: &'a [f32],
    /// Numbers from one row to the next.
    pub(super) from_stride: usize,
    pub(super) to: &'a mut [f32],
    pub(super) to_stride: usize,
}

impl Work for Turn<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let [rows, columns] = self.size;
        assert!(columns.is_multiple_of(L::WIDTH) && rows.is_multiple_of(L::WIDTH));
        if rows == 0 || columns == 0 {
            return;
        }
        assert!((rows - 1) * self.from_stride + columns <= self.from.len());
        assert!((columns - 1) * self.to_stride + rows <= self.to.len());
        for row in (0..rows).step_by(L::WIDTH) {
            for column in (0..columns).step_by(L::WIDTH) {
                // SAFETY: the caller vouches for the instructions; both matrices have this square, as was checked.
                unsafe {
                    let from = self.from.as_ptr().add(row * self.from_stride + column);
                    let to = self.to.as_mut_ptr().add(column * self.to_stride + row);
                    let mut square = [L::splat(0.0); MAX_WIDTH];
                    for (i, register) in square[..L::WIDTH].iter_mut().enumerate() {
                        *register = L::load(from.add(i * self.from_stride));
                    }
                    L::transpose(&mut square);
                    for (i, register) in square[..L::WIDTH].iter().enumerate() {
                        register.store(to.add(i * self.to_stride));
                    }
                }
            }
        }
    }
}

/// Multiplies rows of `lanes` numbers by a factor for each lane.
pub(super) struct Scale<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) factors: &'a [f32],
}

impl Work for Scale<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        for row in self.rows.chunks_exact_mut(self.factors.len()) {
            for (x, factor) in row.iter_mut().zip(self.factors) {
                *x *= factor;
            }
        }
    }
}

/// Brings rows nearer.
pub(super) struct Prefetch<'a, T>(pub(super) &'a [&'a [T]]);

impl<T> Work for Prefetch<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        const LINE_BYTES: usize = 64;
        for row in self.0 {
            for place in row.iter().step_by(LINE_BYTES / size_of::<T>()) {
                // SAFETY: the caller vouches for the instructions.
                unsafe { L::prefetch(place) };
            }
        }
    }
}

/// Takes rows out of the lanes of a panel, each multiplied by its factor.
pub(super) struct Unpack<'a> {
    /// A row of `lanes` numbers for each column.
    pub(super) from: &'a [f32],
    pub(super) lanes: usize,
    /// One for each lane.
    pub(super) factors: &'a [f32],
    /// A row for each lane, or for the first few.
    pub(super) to: &'a mut [f32],
}

impl Work for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let depth = self.from.len() / self.lanes;
        let whole = depth / L::WIDTH * L::WIDTH;
        let rows = self.to.len() / depth;
        for (lane, factors) in (0..self.lanes)
            .step_by(L::WIDTH)
            .zip(self.factors.chunks_exact(L::WIDTH))
        {
            let count = rows.saturating_sub(lane).min(L::WIDTH);
            let to = &mut self.to[lane.min(rows) * depth..];
            for column in (0..whole).step_by(L::WIDTH) {
                // SAFETY: the caller vouches for the instructions; the slices are long enough for what is read and written.
                unsafe {
                    let factors = L::load(factors.as_ptr());
                    let mut square = [L::splat(0.0); MAX_WIDTH];
                    for (i, register) in square[..L::WIDTH].iter_mut().enumerate() {
                        let piece = &self.from[(column + i) * self.lanes + lane..][..L::WIDTH];
                        *register = L::load(piece.as_ptr()).mul(factors);
                    }
                    L::transpose(&mut square);
                    for (i, register) in square[..count].iter().enumerate() {
                        let to = &mut to[i * depth + column..][..L::WIDTH];
                        register.store(to.as_mut_ptr());
                    }
                }
            }
            for column in whole..depth {
                let from = &self.from[column * self.lanes + lane..];
                for row in 0..count {
                    to[row * depth + column] = from[row] * factors[row];
                }
            }
        }
    }
}

/// Converts rows to `f32`, one after the other, each number multiplied by `factor` if there is one.
pub(super) struct Widen<'a, T> {
    pub(super) rows: &'a [&'a [T]],
    pub(super) factor: Option<f32>,
    /// The output, as long as all rows together.
    pub(super) to: &'a mut [f32],
}

impl<T: Element> Work for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) {
        let Some(first) = self.rows.first() else {
            return;
        };
        for (row, to) in self.rows.iter().zip(self.to.chunks_exact_mut(first.len())) {
            let (pieces, rest) = (row.chunks_exact(L::WIDTH), to.len() / L::WIDTH * L::WIDTH);
            for (piece, to) in pieces.zip(to.chunks_exact_mut(L::WIDTH)) {
                // SAFETY: the caller vouches for the instructions; both pieces are as long as a register.
                unsafe {
                    let mut numbers = L::widen(piece.as_ptr());
                    if let Some(factor) = self.factor {
                        numbers = numbers.mul(L::splat(factor));
                    }
                    numbers.store(to.as_mut_ptr());
                }
            }
            for (x, to) in row[rest..].iter().zip(&mut to[rest..]) {
                *to = self.factor.map_or(x.to_f32(), |factor| x.to_f32() * factor);
            }
        }
    }
}

/// The largest square of a number. A NaN may or may not count.
pub(super) struct LargestSquare<'a, T>(pub(super) &'a [&'a [T]]);

impl<T: Element> Work for LargestSquare<'_, T> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<L: Lanes, const ROWS: usize, const COLUMNS: usize>(self) -> f32 {
        // SAFETY: the caller vouches for the instructions.
        let mut largest = [unsafe { L::splat(0.0) }; 2];
        let mut of_rest = 0.0_f32;
        for (index, row) in self.0.iter().enumerate() {
            let pieces = row.chunks_exact(L::WIDTH);
            for x in pieces.remainder() {
                of_rest = of_rest.max(x.to_f32() * x.to_f32());
            }
            for piece in pieces {
                // SAFETY: the caller vouches for the instructions; a piece is as long as a register.
                unsafe {
                    let numbers = L::widen(piece.as_ptr());
                    largest[index % 2] = numbers.mul(numbers).max(largest[index % 2]);
                }
            }
        }
        let mut all = [0.0; MAX_WIDTH];
        // SAFETY: the caller vouches for the instructions; the array has room for a register.
        unsafe { largest[0].max(largest[1]).store(all.as_mut_ptr()) };
        all.into_iter().fold(of_rest, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    #[test]
    fn matrices_are_turned() {
        for isa in Isa::all() {
            let (rows, columns) = (32, 48);
            let from: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let mut to = vec![0.0; from.len()];
            isa.run(Turn {
                size: [rows, columns],
                from: &from,
                from_stride: columns,
                to: &mut to,
                to_stride: rows,
            });
            for (i, x) in to.iter().enumerate() {
                assert_eq!(*x, from[i % rows * columns + i / rows], "{isa:?}");
            }
        }
    }

    #[test]
    fn rows_go_into_panels_and_come_back() {
        for isa in Isa::all() {
            for (count, depth) in [(1_usize, 8), (7, 64), (16, 40), (17, 33), (33, 100)] {
                let rows: Vec<Vec<f32>> = { 0..count }
                    .map(|row| (0..depth).map(|i| (row * depth + i) as f32).collect())
                    .collect();
                let rows: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
                let lanes = count.next_multiple_of(isa.width());
                let mut panel = vec![f32::NAN; lanes * depth];
                let (rows, to) = (&rows[..], &mut panel[..]);
                isa.run(Pack {
                    rows,
                    factor: 0.5,
                    lanes,
                    to,
                });
                let factors = vec![4.0; lanes];
                let mut back = vec![f32::NAN; count * depth];
                let (from, to) = (&panel[..], &mut back[..]);
                isa.run(Unpack {
                    from,
                    lanes,
                    factors: &factors,
                    to,
                });
                for (i, x) in back.iter().enumerate() {
                    assert_eq!(*x, 2.0 * i as f32, "{isa:?}");
                }
                let others = panel.chunks(lanes).flat_map(|row| &row[count..]);
                assert!(others.into_iter().all(|x| *x == 0.0), "{isa:?}");
            }
        }
    }

    #[test]
    fn the_largest_square_may_be_anywhere() {
        for isa in Isa::all() {
            for place in 0..41 {
                let mut row = [1.0_f32; 41];
                row[place] = -3.0;
                assert_eq!(isa.run(LargestSquare(&[&[0.5; 41], &row])), 9.0, "{isa:?}");
            }
        }
    }
}
