//! Where the elements of a tensor lie: shape, strides, and views over slices.

use std::ops::Range;

use crate::abi::CHUNK_BYTES;
use crate::{DIMENSIONS, Invalid, Result, expect_countable, expect_room};

/// The dimensions of tensors that have an element for each score, as errors name them.
pub(crate) const SCORE_DIMENSIONS: [&str; 4] = ["batch", "queries", "heads", "keys"];

/// Shape and strides of a tensor.
///
/// Dimensions are always in the order batch, row (position in the sequence), head, head dimension, however the tensor is
/// stored: the strides tell. Strides count elements, and 0 repeats a dimension (inputs only).
///
/// ```
/// use warptile::Layout;
///
/// let bshd = Layout::bshd([2, 512, 8, 64]);
/// assert_eq!(bshd.strides, [512 * 8 * 64, 8 * 64, 64, 1]);
/// let bhsd = Layout::bhsd([2, 8, 512, 64]); // the same tensor, stored as [batch, heads, length, head size]
/// assert_eq!(bhsd.shape, bshd.shape);
/// assert_eq!(bhsd.strides, [8 * 512 * 64, 64, 512 * 64, 1]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Layout {
    /// Extents: batch, length, heads, head size.
    pub shape: [usize; 4],
    /// Distances in elements between neighbours along each dimension.
    pub strides: [usize; 4],
}

impl Layout {
    /// The layout of a tensor without elements.
    pub const EMPTY: Layout = Layout::new([0; 4], [0; 4]);

    /// A layout with the given strides. Nothing is checked here; a [`Call`](crate::Call) checks.
    pub const fn new(shape: [usize; 4], strides: [usize; 4]) -> Self {
        Layout { shape, strides }
    }

    /// Dense, stored as `[batch, length, heads, head size]`, which is the order of `shape`.
    pub fn bshd(shape: [usize; 4]) -> Self {
        Layout::dense(shape, [0, 1, 2, 3])
    }

    /// Dense, stored as `[batch, heads, length, head size]`, which is the order of the argument. [`Layout::shape`] is batch,
    /// length, heads, head size all the same.
    pub fn bhsd([batch, heads, length, head_dim]: [usize; 4]) -> Self {
        Layout::dense([batch, length, heads, head_dim], [0, 2, 1, 3])
    }

    /// Packed sequences without padding: `total` rows, stored as `[total, heads, head size]`.
    pub fn packed(total: usize, heads: usize, head_dim: usize) -> Self {
        Layout::bshd([1, total, heads, head_dim])
    }

    /// Dense, in the same storage order as `self`.
    pub fn dense_like(&self) -> Self {
        self.dense_with(self.head_dim())
    }

    /// Dense, in the same storage order as `self`, with another head size.
    pub fn dense_with(&self, head_dim: usize) -> Self {
        let [batch, rows, heads, _] = self.shape;
        let mut order = [0, 1, 2];
        // Stable, so equal strides (of extents of 1, say) keep the order batch, length, heads.
        order.sort_by_key(|&dimension| std::cmp::Reverse(self.strides[dimension]));
        let shape = [batch, rows, heads, head_dim];
        Layout::dense(shape, [order[0], order[1], order[2], 3])
    }

    /// `order` lists the dimensions from the outermost to the innermost.
    fn dense(shape: [usize; 4], order: [usize; 4]) -> Self {
        let mut strides = [0; 4];
        let mut step = 1_usize;
        for dimension in order.into_iter().rev() {
            strides[dimension] = step;
            // A shape that saturates is rejected by `required_len`, or has an extent of 0 and no element at all.
            // Where it has none, no step is 0, as only those of repeated dimensions are.
            step = step.saturating_mul(shape[dimension].max(1));
        }
        Layout { shape, strides }
    }

    /// Batch entries.
    pub const fn batch(&self) -> usize {
        self.shape[0]
    }

    /// Rows: positions in the sequence.
    pub const fn rows(&self) -> usize {
        self.shape[1]
    }

    /// Heads.
    pub const fn heads(&self) -> usize {
        self.shape[2]
    }

    /// Head size.
    pub const fn head_dim(&self) -> usize {
        self.shape[3]
    }

    /// Number of elements, not counting gaps; `None` if it overflows.
    pub fn element_count(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape
            .iter()
            .try_fold(1_usize, |product, &extent| product.checked_mul(extent))
    }

    /// Elements a buffer must have to hold the tensor, gaps included: 1 + the largest offset, or 0 for an empty tensor.
    /// `None` if no buffer can be that large.
    pub fn required_len(&self) -> Option<usize> {
        /// No allocation of any element type can have more elements than fit an `isize`, in bytes.
        const MOST_ELEMENTS: usize = isize::MAX as usize / 8;
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut last = 0_usize;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((extent - 1).checked_mul(stride)?)?;
        }
        (last < MOST_ELEMENTS).then(|| last + 1)
    }

    /// Offset in elements of the first element of a row of a head. In range for a validated layout and indices below the
    /// extents; what a layout that no memory can hold gives means nothing.
    pub const fn offset(&self, batch: usize, row: usize, head: usize) -> usize {
        let [b, r, h, _] = self.strides;
        batch
            .wrapping_mul(b)
            .wrapping_add(row.wrapping_mul(r))
            .wrapping_add(head.wrapping_mul(h))
    }

    /// [`Layout::required_len`] of a layout that was validated.
    pub fn reach(&self) -> usize {
        self.required_len().unwrap_or(usize::MAX)
    }

    /// Returns true if every row starts at a multiple of 16 bytes if the first one does.
    pub fn steps_aligned(&self, element_bytes: usize) -> bool {
        (0..3).all(|dimension| {
            self.shape[dimension] <= 1
                || self.strides[dimension].is_multiple_of(CHUNK_BYTES / element_bytes)
        })
    }

    /// Broadcasts the tensor along every dimension in which it has the extent 1. Unlike those of the other tensors, the last
    /// dimension may have any step.
    pub fn broadcast_to(&self, argument: &'static str, shape: [usize; 4]) -> Result<Layout> {
        let mut repeated = *self;
        for dimension in 0..4 {
            let (found, expected) = (self.shape[dimension], shape[dimension]);
            if found == expected {
                continue;
            }
            if found != 1 {
                return Err(Invalid::Mismatch {
                    argument,
                    dimension: SCORE_DIMENSIONS[dimension],
                    found,
                    other: "the call",
                    expected,
                });
            }
            repeated.shape[dimension] = expected;
            repeated.strides[dimension] = 0;
        }
        repeated
            .required_len()
            .map(|_| repeated)
            .ok_or(Invalid::LayoutTooLarge { argument })
    }

    /// Dense, in the same storage order as `self`, with extent 1 along every dimension in which it is repeated.
    pub(crate) fn without_repeats(&self) -> Layout {
        let mut once = *self;
        for (extent, stride) in once.shape.iter_mut().zip(self.strides) {
            if stride == 0 {
                *extent = 1;
            }
        }
        once.dense_like()
    }

    /// Returns true if no two indices share an element, which an output needs.
    ///
    /// Sufficient rather than exact: walking from the smallest stride to the largest, each must step over everything the
    /// smaller ones reach. Exotic interleavings that happen not to collide are turned down.
    pub fn is_overlap_free(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut dimensions = [0, 1, 2, 3].map(|d| (self.strides[d], self.shape[d]));
        dimensions.sort_unstable();
        let mut reach = 1_usize;
        for (stride, extent) in dimensions.into_iter().filter(|&(_, extent)| extent > 1) {
            if stride < reach {
                return false;
            }
            reach = reach.saturating_add(stride.saturating_mul(extent - 1));
        }
        true
    }

    /// Checks what every tensor needs: a contiguous last dimension, and an extent that fits the address space.
    pub fn validate(&self, argument: &'static str) -> Result<()> {
        let stride = self.strides[3];
        if stride != 1 {
            return Err(Invalid::LastDimNotContiguous { argument, stride });
        }
        self.required_len()
            .map(|_| ())
            .ok_or(Invalid::LayoutTooLarge { argument })
    }

    /// Checks that a buffer of `available` elements holds the tensor.
    pub fn check_buffer(&self, argument: &'static str, available: usize) -> Result<()> {
        let needed = self
            .required_len()
            .ok_or(Invalid::LayoutTooLarge { argument })?;
        expect_room(argument, needed, available)
    }
}

/// A tensor in host memory, borrowed.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct View<'a, T> {
    /// The elements; may be longer than the layout reaches.
    pub data: &'a [T],
    /// Where they lie.
    pub layout: Layout,
}

impl<'a, T: Copy> View<'a, T> {
    /// A view of `data`. Whether the two fit is checked where the view is used, by the argument's name there.
    pub const fn new(data: &'a [T], layout: Layout) -> Self {
        View { data, layout }
    }

    /// The elements without gaps, in the order batch, row, head, head dimension.
    ///
    /// # Errors
    /// [`Invalid::BufferTooSmall`] or [`Invalid::LayoutTooLarge`], naming `argument`; [`Invalid::Allocation`] if
    /// memory does not suffice for all elements of a layout that repeats some.
    pub fn to_dense(&self, argument: &'static str) -> Result<Vec<T>> {
        self.layout.validate(argument)?;
        self.layout.check_buffer(argument, self.data.len())?;
        let count = { self.layout.element_count() }.ok_or(Invalid::LayoutTooLarge { argument })?;
        let mut dense = Vec::new();
        if count == 0 {
            return Ok(dense);
        }
        { dense.try_reserve_exact(count) }.map_err(|_| Invalid::Allocation {
            argument,
            bytes: count.saturating_mul(size_of::<T>()),
        })?;
        let [batch, rows, heads, _] = self.layout.shape;
        for entry in 0..batch {
            for row in 0..rows {
                for head in 0..heads {
                    dense.extend_from_slice(self.row(entry, row, head));
                }
            }
        }
        Ok(dense)
    }

    /// One row of one head: `head_dim` elements.
    pub fn row(&self, batch: usize, row: usize, head: usize) -> &'a [T] {
        let start = self.layout.offset(batch, row, head);
        &self.data[start..start + self.layout.head_dim()]
    }

    /// Some rows, in a validated layout.
    pub fn rows(
        &self,
        batch: usize,
        rows: Range<usize>,
        head: usize,
    ) -> impl Iterator<Item = &'a [T]> + use<'a, T> {
        let (depth, step) = (self.layout.head_dim(), self.layout.strides[1]);
        let start = self.layout.offset(batch, rows.start, head);
        let data = self.data.get(start..).unwrap_or(&[]);
        (0..rows.len()).map(move |row| &data[row * step..][..depth])
    }
}

/// Checks a layout for itself: extents that kernels can count, strides that memory can have, and if the tensor is
/// written, no two elements at one address.
pub fn check_alone(argument: &'static str, layout: &Layout, written: bool) -> Result<()> {
    for (found, dimension) in layout.shape.into_iter().zip(DIMENSIONS) {
        expect_countable(argument, dimension, found)?;
    }
    layout.validate(argument)?;
    match written && !layout.is_overlap_free() {
        true => Err(Invalid::OutputOverlaps {
            argument,
            other: "itself: its strides place two elements at one address".to_owned(),
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;
    use crate::{Append, Call, ElementType, Merge};
    use quickcheck::quickcheck;
    use std::collections::HashSet;

    fn small(shape: (u8, u8, u8, u8), strides: (u8, u8, u8, u8)) -> Layout {
        let shape = [shape.0, shape.1, shape.2, shape.3].map(|extent| usize::from(extent % 4));
        let strides =
            [strides.0, strides.1, strides.2, strides.3].map(|stride| usize::from(stride % 40));
        Layout::new(shape, strides)
    }

    fn offsets(layout: &Layout) -> Vec<usize> {
        let [batch, rows, heads, head_dim] = layout.shape;
        let mut offsets = Vec::new();
        for b in 0..batch {
            for s in 0..rows {
                for h in 0..heads {
                    for d in 0..head_dim {
                        offsets.push(layout.offset(b, s, h) + d * layout.strides[3]);
                    }
                }
            }
        }
        offsets
    }

    quickcheck! {
        fn required_len_is_one_past_the_largest_offset(
            shape: (u8, u8, u8, u8), strides: (u8, u8, u8, u8)
        ) -> bool {
            let layout = small(shape, strides);
            let needed = offsets(&layout).into_iter().max().map_or(0, |last| last + 1);
            layout.required_len() == Some(needed)
        }

        fn overlap_free_means_all_offsets_differ(
            shape: (u8, u8, u8, u8), strides: (u8, u8, u8, u8)
        ) -> bool {
            let layout = small(shape, strides);
            let all = offsets(&layout);
            let distinct: HashSet<usize> = all.iter().copied().collect();
            !layout.is_overlap_free() || distinct.len() == all.len()
        }

        fn dense_layouts_have_no_gap_and_no_overlap(shape: (u8, u8, u8, u8)) -> bool {
            let shape = small(shape, (0, 0, 0, 0)).shape;
            [Layout::bshd(shape), Layout::bhsd(shape)].into_iter().all(|layout| {
                layout.is_overlap_free() && layout.required_len() == layout.element_count()
            })
        }

        /// Beside the layouts themselves, calls, merges and cache writes with small extents, where any stride may
        /// belong to one that is never stepped along.
        fn hostile_shapes_never_panic(shape: (usize, usize, usize, usize), strides: (usize, usize, usize, usize)) -> bool {
            let shape = [shape.0, shape.1, shape.2, shape.3];
            let strided = Layout::new(shape, [strides.0, strides.1, strides.2, strides.3]);
            for layout in [strided, Layout::bshd(shape), Layout::bhsd(shape), strided.dense_like()] {
                let _ = (layout.required_len(), layout.element_count(), layout.is_overlap_free());
                let _ = layout.offset(usize::MAX, usize::MAX, usize::MAX);
                let _ = layout.broadcast_to("bias", [7; 4]);
            }
            let small = [shape[0] % 3, shape[1] % 3, shape[2] % 3, 8];
            use_layout(&Layout::new(small, [strides.0, strides.1, strides.2, 1]));
            true
        }
    }

    /// As every tensor of a call, of a merge and of a cache write.
    fn use_layout(layout: &Layout) {
        for with_bias in [false, true] {
            let mut builder = Call::builder(layout, layout, layout, ElementType::F32);
            if with_bias {
                let bias = Layout::new([1; 4], [usize::MAX; 4]);
                builder = builder.layout(Operand::Bias, bias);
            }
            if let Ok(call) = builder.build() {
                let _ = (call.memory().count(), call.to_string());
            }
        }
        if let Ok(merge) = Merge::builder(ElementType::F32, &[*layout; 2]).build() {
            assert_eq!(merge.memory().count(), 2 + 2 * merge.part_count());
        }
        let [batch, _, heads, depth] = layout.shape;
        let pages = Layout::bshd([batch, 4, heads, depth]);
        let append = Append::builder(ElementType::F32, [layout, layout], [&pages, &pages])
            .device_key_lengths(batch)
            .build();
        let into = Append::builder(ElementType::F32, [&pages, &pages], [layout, layout])
            .device_slots()
            .build();
        for append in [append, into].into_iter().flatten() {
            let _ = append.memory().count();
        }
    }

    #[test]
    fn strides_that_are_never_stepped_along_may_be_anything() {
        use_layout(&Layout::new(
            [1, 1, 1, 8],
            [usize::MAX, 1 << 62, 1 << 61, 1],
        ));
        use_layout(&Layout::new([0, 1, 1, 8], [usize::MAX, usize::MAX, 8, 1]));
        let layout = Layout::new([1, 1, 1, 8], [usize::MAX, usize::MAX, usize::MAX, 1]);
        let call = Call::builder(&layout, &layout, &layout, ElementType::F32).build();
        let needed: Vec<_> = call.unwrap().memory().map(|(_, bytes)| bytes).collect();
        assert_eq!(needed[..3], [Some(32); 3]);
    }

    #[test]
    fn dense_copies_are_made_only_if_memory_can_hold_them() {
        let data = [1.0_f32; 8];
        let dense = |shape| View::new(&data, Layout::new(shape, [0, 0, 0, 1])).to_dense("x");
        assert_eq!(dense([2, 1, 3, 8]).unwrap(), [1.0; 48]);
        // At once, however many entries without an element there are.
        assert!(dense([usize::MAX, 0, 1, 8]).unwrap().is_empty());
        let error = dense([1 << 30, 1 << 30, 1 << 30, 8]).unwrap_err();
        assert!(matches!(error, Invalid::LayoutTooLarge { argument: "x" }));
        let error = dense([1 << 30, 1 << 26, 1, 8]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("x needs {} bytes, which cannot be allocated", 1_u64 << 61)
        );
    }

    #[test]
    fn a_shape_beyond_memory_has_no_length() {
        let layout = Layout::bshd([1 << 20, 1 << 20, 1 << 20, 256]);
        assert_eq!(layout.required_len(), None);
        let error = layout.validate("k").unwrap_err().to_string();
        assert!(error.starts_with("k has a shape"), "{error}");
    }

    #[test]
    fn dense_like_keeps_the_storage_order() {
        let shape = [2, 5, 3, 8];
        let bhsd = Layout::bhsd([2, 3, 5, 8]);
        assert_eq!(bhsd.dense_like(), bhsd);
        assert_eq!(Layout::bshd(shape).dense_like(), Layout::bshd(shape));
        let strided = Layout::new(shape, [1000, 16, 160, 1]);
        assert_eq!(strided.dense_like(), bhsd);
        assert_eq!(strided.dense_with(16), Layout::bhsd([2, 3, 5, 16]));
    }

    #[test]
    fn repeated_rows_overlap() {
        assert!(!Layout::new([1, 4, 1, 8], [0, 0, 0, 1]).is_overlap_free());
        assert!(!Layout::new([1, 4, 1, 8], [0, 7, 0, 1]).is_overlap_free());
        assert!(Layout::new([1, 4, 1, 8], [0, 8, 0, 1]).is_overlap_free());
    }
}
