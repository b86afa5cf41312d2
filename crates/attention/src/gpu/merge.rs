//! Merging results on a GPU.

use std::marker::PhantomData;

use warptile_driver::sys::CUstream;
use warptile_driver::{Context, DeviceSlice, DeviceSliceMut, Stream};
use warptile_kernels::abi::{self, MERGE_PARTS};
use warptile_kernels::{ElementType, Image, Role, Types};

use crate::gpu::Gpu;
use crate::gpu::block::tensor;
use crate::gpu::kernel::Block;
use crate::gpu::operation::{Description, Operation};
use crate::spec::{Element, Error, Expected, LseBase, Merge, Result, check_type};

/// The kernel that merges results of one element type, loaded. It belongs to no stream: any number of threads may launch it, on
/// any number of streams of its context, and in captures. A cheap handle.
#[derive(Debug, Clone)]
pub struct PreparedMerge {
    operation: Operation,
}

/// The memory of one merge.
#[derive(Debug)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct MergeBindings<'a, T> {
    /// In the order of [`Merge::expected`].
    views: Vec<Option<DeviceSlice<'a, u8>>>,
    element: PhantomData<T>,
}

/// Device addresses of one merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeAddresses<'a> {
    /// Of each part its output and its lse.
    pub parts: &'a [[u64; 2]],
    /// Receives the output.
    pub out: u64,
    /// Receives the lse as `f32`; 0 if it is not wanted.
    pub lse: u64,
}

impl<'a, T: Element> MergeBindings<'a, T> {
    /// Where the output goes; gaps between its strided rows are left alone.
    pub fn new(out: DeviceSliceMut<'a, T>) -> Self {
        MergeBindings {
            element: PhantomData,
            views: vec![Some(out.into_bytes()), None],
        }
    }

    /// Where the lse goes.
    pub fn lse(mut self, lse: DeviceSliceMut<'a, f32>) -> Self {
        self.views[1] = Some(lse.into_bytes());
        self
    }

    /// The next part's output and lse.
    pub fn part(mut self, out: DeviceSlice<'a, T>, lse: DeviceSlice<'a, f32>) -> Self {
        self.views
            .extend([Some(out.into_bytes()), Some(lse.into_bytes())]);
        self
    }
}

impl Gpu {
    /// The kernel that merges results of this element type: loaded the first time, and found again after that.
    ///
    /// # Errors
    /// [`Error::NoImages`] if the program has none that runs on the device; when the driver refuses the image.
    pub fn prepare_merge(&self, element: ElementType) -> Result<PreparedMerge> {
        Ok(PreparedMerge {
            operation: Operation::load(self, Role::Combine, Types::of(element))?,
        })
    }
}

impl PreparedMerge {
    /// The image whose kernel merges.
    #[must_use]
    pub fn image(&self) -> &'static Image {
        self.operation.image()
    }

    /// The context that the kernel is loaded in.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.operation.context()
    }

    /// Submits a merge to `stream`; doesn't wait. Streams and captures as with [`Prepared::launch`](crate::gpu::Prepared::launch).
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::ElementMismatch`], [`Error::Count`]; a view that is missing, superfluous, too
    /// short, unaligned, or of another device or context; an output that shares memory with anything. After that, what the
    /// driver reports.
    pub fn launch<T: Element>(
        &self,
        stream: &Stream,
        merge: &Merge,
        bindings: &MergeBindings<'_, T>,
    ) -> Result<()> {
        check_type("out", Some(self.image().element), Some(T::TYPE))?;
        check_parts(merge, bindings.views.len() / 2 - 1)?;
        self.operation.launch(stream, merge, &bindings.views, &[])
    }

    /// Submits a merge to anybody's stream, by one driver call: it allocates, copies, waits for and loads nothing, takes no
    /// lock, and touches no reference count, so it may be part of anybody's capture.
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::ElementMismatch`], [`Error::Count`]; an address that is missing, superfluous or
    /// unaligned, an output that overlaps anything. Then what the driver reports.
    ///
    /// # Safety
    /// - `stream` is a live stream of [`PreparedMerge::context`], which is current on the calling thread.
    /// - Each address that is not 0 is that of device memory which the context can use and which reaches as far as the
    ///   merge's layouts say; it stays valid until the launch, and every replay of a graph that captured it, has ended.
    /// - Nothing else writes what the launch reads, or touches what it writes, at the same time.
    /// - A clone of this value, or the [`Gpu`] that prepared it, lives until the launch has ended, and as long as any graph that
    ///   captured it.
    pub unsafe fn launch_raw(
        &self,
        stream: CUstream,
        merge: &Merge,
        addresses: &MergeAddresses<'_>,
    ) -> Result<()> {
        check_parts(merge, addresses.parts.len())?;
        let mut list = [0; 2 + 2 * MERGE_PARTS];
        (list[0], list[1]) = (addresses.out, addresses.lse);
        for (part, to) in addresses.parts.iter().zip(list[2..].chunks_exact_mut(2)) {
            to.copy_from_slice(part);
        }
        let list = &list[..merge.expected().len()];
        // SAFETY: the caller's promises.
        unsafe { self.operation.launch_raw(stream, merge, list) }
    }
}

fn check_parts(merge: &Merge, found: usize) -> Result<()> {
    match found == merge.part_count() {
        true => Ok(()),
        false => Err(Error::Count {
            argument: "parts",
            found,
            needed: merge.part_count(),
        }),
    }
}

impl Description for Merge {
    const TYPED: &'static str = "out";

    fn types(&self) -> Types {
        Types::of(self.element())
    }

    fn expected(&self) -> &[Expected] {
        self.expected()
    }

    fn work(&self) -> (usize, usize) {
        let [batch, rows, heads, head_dim] = self.out().shape;
        let chunk = 16 / self.element().size();
        (batch.saturating_mul(rows), heads * head_dim.div_ceil(chunk))
    }

    fn block(&self, row_ctas: i32, at: &[u64]) -> Block {
        let [_, rows, heads, head_dim] = self.out().shape.map(|extent| extent as i32);
        let mut block = abi::Merge {
            parts: self.part_count() as i32,
            base_two: i32::from(self.base() == LseBase::Two),
            rows,
            heads,
            head_dim,
            row_ctas,
            out: tensor(at[0], self.out()),
            ..Default::default()
        };
        if let Some(lse) = self.lse() {
            block.lse = tensor(at[1], lse);
        }
        for (index, addresses) in at[2..].chunks_exact(2).enumerate() {
            if let Some((out, lse)) = self.part(index) {
                block.outs[index] = tensor(addresses[0], out);
                block.lses[index] = tensor(addresses[1], lse);
            }
        }
        Block::Merge(block)
    }
}
