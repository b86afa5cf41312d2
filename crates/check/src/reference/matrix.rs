//! Copies of tensors as matrices of known order, and the products with them.

use warptile::{Element, View};

/// A tensor copied to `[entry, head, row, head size]`, or to `[entry, head, head size, row]`.
pub(super) struct Dense {
    pub(super) exact: Vec<f64>,
    pub(super) single: Vec<f32>,
    pub(super) rows: usize,
    heads: usize,
    head_dim: usize,
}

impl Dense {
    /// `scales`: what the elements are multiplied by, one number or one for each head.
    pub(super) fn copy<T: Element>(
        view: View<'_, T>,
        scales: Option<&[f32]>,
        transposed: bool,
    ) -> Self {
        let [entries, rows, heads, head_dim] = view.layout.shape;
        let mut exact = vec![0.0; entries * rows * heads * head_dim];
        let mut single = vec![0.0; exact.len()];
        for entry in 0..entries {
            for head in 0..heads {
                let start = (entry * heads + head) * rows * head_dim;
                let scale = match scales {
                    None => 1.0,
                    Some([one]) => f64::from(*one),
                    Some(each) => f64::from(each[head]),
                };
                for row in 0..rows {
                    let from = view.layout.offset(entry, row, head);
                    for (d, x) in view.data[from..from + head_dim].iter().enumerate() {
                        let place = match transposed {
                            true => d * rows + row,
                            false => row * head_dim + d,
                        };
                        exact[start + place] = x.to_f64() * scale;
                        single[start + place] = (x.to_f64() * scale) as f32;
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

    /// Norms of the rows of a transposed tensor.
    pub(super) fn norms(&self) -> Vec<f64> {
        let mut squares = vec![0.0; self.exact.len() / self.head_dim];
        for (matrix, squares) in self
            .exact
            .chunks(self.rows.max(1) * self.head_dim)
            .zip(squares.chunks_mut(self.rows.max(1)))
        {
            for row in matrix.chunks(self.rows) {
                for (square, x) in squares.iter_mut().zip(row) {
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
    pub(super) fn products<R: Real>(&self, query: &[R], keys: &[R]) -> Vec<R> {
        let mut sums = vec![R::default(); self.count];
        for (d, &q) in query.iter().enumerate() {
            let row = &keys[self.start + d * self.step..][..self.count];
            for (sum, &k) in sums.iter_mut().zip(row) {
                *sum += q * k;
            }
        }
        sums
    }
}

/// What products are made and summed in: `f64` or `f32`.
pub(super) trait Real:
    Copy + Default + std::ops::AddAssign + std::ops::Mul<Output = Self>
{
}

impl Real for f64 {}
impl Real for f32 {}

/// `out += sum(p v)`, one key after the other.
pub(super) fn weighted_sum<R: Real>(probabilities: &[R], values: &[R], out: &mut [R]) {
    for (&p, row) in probabilities.iter().zip(values.chunks_exact(out.len())) {
        for (out, &v) in out.iter_mut().zip(row) {
            *out += p * v;
        }
    }
}
