//! Where the keys and values of a page lie in the memory of a layer.

use bytemuck::Pod;
use warptile_kernels::abi::CHUNK_BYTES;

use crate::error::Result;
use crate::operands::Part;
use crate::spec::{Heads, Layout};
use crate::tensor::Tensor;

/// Page after page, and of each page its keys, then its values. A GPU translates addresses in units of 2 MB, and a kernel reads both
/// of a page: next to each other they need half as many translations as in two tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageLayout {
    keys: Layout,
    values: Layout,
    /// Elements from a page's keys to its values.
    values_at: usize,
    /// Elements from a page to the next.
    page: usize,
}

impl PageLayout {
    /// Nothing is checked here: numbers that are too large give layouts that no call takes.
    pub(super) fn new(pages: usize, page_rows: usize, heads: &Heads, element_bytes: usize) -> Self {
        let [mut keys, mut values] = heads
            .dims()
            .map(|size| Layout::bshd([pages, page_rows, heads.key_value, size]));
        // Kernels read 16 bytes at a time, so the keys and the values of every page begin at multiples of that. A row of a head has
        // at least 8 elements, so only pages in 8 bits may need a gap.
        let [values_at, to_next] = [keys, values].map(|layout| {
            let elements = layout.strides[0];
            let rounded = elements.checked_next_multiple_of(CHUNK_BYTES / element_bytes);
            rounded.unwrap_or(usize::MAX)
        });
        let page = values_at.saturating_add(to_next);
        keys.strides[0] = page;
        values.strides[0] = page;
        PageLayout {
            keys,
            values,
            values_at,
            page,
        }
    }

    /// The layouts of the keys and of the values.
    pub(super) fn layouts(&self) -> [Layout; 2] {
        [self.keys, self.values]
    }

    pub(super) fn values_at(&self) -> usize {
        self.values_at
    }

    pub(super) fn pages(&self) -> usize {
        self.keys.batch()
    }

    pub(super) fn page_rows(&self) -> usize {
        self.keys.rows()
    }

    /// All elements of a layer, gaps included.
    pub(super) fn memory(&self) -> Layout {
        Layout::bshd([self.pages(), 1, 1, self.page])
    }

    /// Keys and values for a call that borrows them.
    pub(super) fn parts<'a, C: Pod + Send + Sync>(&self, memory: &'a Tensor<C>) -> [Part<'a>; 2] {
        [
            Part::of(memory, 0, self.keys),
            Part::of(memory, self.values_at, self.values),
        ]
    }

    /// Keys and values as tensors of their own, which share the memory.
    pub(super) fn views<C: Pod>(&self, memory: &Tensor<C>) -> Result<[Tensor<C>; 2]> {
        Ok([
            memory.view_at(0, self.keys)?,
            memory.view_at(self.values_at, self.values)?,
        ])
    }
}
