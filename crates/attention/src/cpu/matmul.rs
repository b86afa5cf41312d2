//! Matrix products on slices.

/// A matrix in `f32`; neighbours in a row are 1 apart, rows `stride`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn row(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.stride..][..self.columns]
    }

    fn check(&self) {
        assert!(
            self.rows > 0
                && self.columns > 0
                && (self.rows - 1) * self.stride + self.columns <= self.data.len(),
            "matrix reaches beyond its slice"
        );
    }
}

/// `c = scale * a b^T`, `c` dense.
pub(super) fn product_transposed(scale: f32, a: Rows<'_>, b: Rows<'_>, c: &mut [f32]) {
    assert_eq!(a.columns, b.columns);
    multiply(scale, a, b, (1, b.stride), b.rows, 0.0, c);
}

/// `c += a b`, `c` dense.
pub(super) fn add_product(a: Rows<'_>, b: Rows<'_>, c: &mut [f32]) {
    assert_eq!(a.columns, b.rows);
    multiply(1.0, a, b, (b.stride, 1), b.columns, 1.0, c);
}

fn multiply(
    alpha: f32,
    a: Rows<'_>,
    b: Rows<'_>,
    (b_row, b_column): (usize, usize),
    columns: usize,
    beta: f32,
    c: &mut [f32],
) {
    a.check();
    b.check();
    assert!(a.rows * columns <= c.len());
    // SAFETY: a and b lie within their slices, and c has a.rows dense rows, all checked above; c is borrowed mutably, so it
    // overlaps neither.
    unsafe {
        matrixmultiply::sgemm(
            a.rows,
            a.columns,
            columns,
            alpha,
            a.data.as_ptr(),
            a.stride as isize,
            1,
            b.data.as_ptr(),
            b_row as isize,
            b_column as isize,
            beta,
            c.as_mut_ptr(),
            columns as isize,
            1,
        );
    }
}
