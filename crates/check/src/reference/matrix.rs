//! Copies of tensors as matrices of known order, and the products with them.

use warptile::cpu::Stop;
use warptile::spec::View;

use crate::compiled::Compiled;

/// Rows that are turned together: elements of a column lie far apart, and those of this many rows are written next to each other.
const ROWS_AT_ONCE: usize = 16;

/// A tensor copied to `[entry, head, row, head size]`, or to `[entry, head, head size, row]`.
pub(super) struct Dense {
    pub(super) exact: Vec<f64>,
    pub(super) single: Vec<f32>,
    pub(super) rows: usize,
    heads: usize,
    head_dim: usize,
}

impl Dense {
    /// `scales`: what the elements are multiplied by, one number or one for each head. Once the caller's [`Stop`] is requested, the
    /// other rows are left out.
    pub(super) fn copy<T: Compiled>(
        view: View<'_, T>,
        scales: Option<&[f32]>,
        transposed: bool,
    ) -> Self {
        let [entries, rows, heads, head_dim] = view.layout.shape;
        let mut exact = vec![0.0; entries * rows * heads * head_dim];
        let mut single = vec![0.0; exact.len()];
        let mut block = vec![0.0; ROWS_AT_ONCE * head_dim];
        let stop = Stop::current();
        for (entry, head) in
            (0..entries).flat_map(|entry| (0..heads).map(move |head| (entry, head)))
        {
            let start = (entry * heads + head) * rows * head_dim;
            let scale = match scales {
                None => 1.0,
                Some([one]) => f64::from(*one),
                Some(each) => f64::from(each[head]),
            };
            let firsts = (0..rows).step_by(ROWS_AT_ONCE);
            for first in firsts.take_while(|_| !stop.is_requested()) {
                let count = ROWS_AT_ONCE.min(rows - first);
                for (row, numbers) in block.chunks_exact_mut(head_dim).take(count).enumerate() {
                    let from = view.layout.offset(entry, first + row, head);
                    T::load(&view.data[from..from + head_dim], numbers);
                }
                let mut put = |place: usize, x: f32| {
                    let scaled = f64::from(x) * scale;
                    exact[start + place] = scaled;
                    single[start + place] = scaled as f32;
                };
                if transposed {
                    for d in 0..head_dim {
                        for row in 0..count {
                            put(d * rows + first + row, block[row * head_dim + d]);
                        }
                    }
                } else {
                    for (place, &x) in block[..count * head_dim].iter().enumerate() {
                        put(first * head_dim + place, x);
                    }
                }
            }
        }
        Dense {
            exact,
            single,
            rows,
            heads,
            head_dim,
        }
    }

    /// Norms of the rows of a transposed tensor; some columns are left out once the caller's [`Stop`] is requested.
    pub(super) fn norms(&self) -> Vec<f64> {
        let stop = Stop::current();
        let mut squares = vec![0.0; self.exact.len() / self.head_dim];
        for (matrix, squares) in self
            .exact
            .chunks(self.rows.max(1) * self.head_dim)
            .zip(squares.chunks_mut(self.rows.max(1)))
        {
            let columns = matrix.chunks(self.rows);
            for column in columns.take_while(|_| !stop.is_requested()) {
                for (square, x) in squares.iter_mut().zip(column) {
                    *square += x * x;
                }
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }

    /// Where the matrix of an entry and head starts.
    pub(super) fn start(&self, entry: usize, head: usize) -> usize {
        (entry * self.heads + head) * self.rows * self.head_dim
    }
}

/// The visible keys of a row in a transposed matrix.
pub(super) struct KeysAt {
    pub(super) start: usize,
    pub(super) step: usize,
    pub(super) count: usize,
}

impl KeysAt {
    /// `q.k` of every key: one product after the other, all keys side by side.
    #[inline(always)]
    pub(super) fn products<R: Real>(&self, query: &[R], keys: &[R]) -> Vec<R> {
        let mut sums = vec![R::default(); self.count];
        let row = |d: usize| &keys[self.start + d * self.step..][..self.count];
        let blocks = query.chunks_exact(4);
        let (done, rest) = (query.len() - blocks.remainder().len(), blocks.remainder());
        for (block, q) in blocks.enumerate() {
            // Four of them while the sum is at hand.
            let rows = [0, 1, 2, 3].map(|d| row(4 * block + d));
            for (i, sum) in sums.iter_mut().enumerate() {
                for d in 0..4 {
                    *sum += q[d] * rows[d][i];
                }
            }
        }
        for (d, &q) in rest.iter().enumerate() {
            for (sum, &k) in sums.iter_mut().zip(row(done + d)) {
                *sum += q * k;
            }
        }
        sums
    }
}

/// The number type in which products are computed and summed: `f64` or `f32`.
pub(super) trait Real:
    Copy + Default + std::ops::AddAssign + std::ops::Mul<Output = Self>
{
}

impl Real for f64 {}
impl Real for f32 {}

/// `out += sum(p f(v))`, one key after the other.
#[inline(always)]
pub(super) fn weighted_sum<R: Real>(
    probabilities: &[R],
    values: &[R],
    f: impl Fn(R) -> R,
    out: &mut [R],
) {
    let len = out.len();
    let (blocks, rows) = (probabilities.chunks_exact(4), values.chunks_exact(4 * len));
    let rest = blocks.remainder();
    for (p, rows) in blocks.zip(rows) {
        // Four keys while the sum is at hand.
        let rows = [0, 1, 2, 3].map(|key| &rows[key * len..][..len]);
        for (i, out) in out.iter_mut().enumerate() {
            for key in 0..4 {
                *out += p[key] * f(rows[key][i]);
            }
        }
    }
    let values = &values[(probabilities.len() - rest.len()) * len..];
    for (&p, row) in rest.iter().zip(values.chunks_exact(len)) {
        for (out, &v) in out.iter_mut().zip(row) {
            *out += p * f(v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sums depend on their order.
    fn numbers(count: usize) -> Vec<f64> {
        (0..count).map(|i| (i as f64 * 1.7).sin() / 3.0).collect()
    }

    #[test]
    fn four_at_a_time_are_added_in_their_order() {
        for count in 0..10 {
            for len in [1, 2, 7, 8, 9] {
                let (few, many) = (numbers(count), numbers(count * len));
                // `count` rows of `len` numbers, used once as keys and once as values.
                let mut sums = vec![0.0; len];
                for (x, row) in few.iter().zip(many.chunks_exact(len)) {
                    for (sum, y) in sums.iter_mut().zip(row) {
                        *sum += x * y;
                    }
                }
                let keys = KeysAt {
                    start: 0,
                    step: len,
                    count: len,
                };
                assert_eq!(keys.products(&few, &many), sums);
                let mut out = vec![0.0; len];
                weighted_sum(&few, &many, |y| y, &mut out);
                assert_eq!(out, sums);
            }
        }
    }
}
