//! The memory of one launch: named views, addresses, what can be checked of them before the launch, and the order of their streams.

use std::any::Any;
use std::sync::Arc;

use bytemuck::Pod;
use warptile_driver::{CaptureId, Context, DeviceSlice, DeviceSliceMut, Stream};
use warptile_kernels::abi::CHUNK_BYTES;
use warptile_kernels::{Operand, Slots};

use crate::error::{Error, Result};
use crate::spec::{
    Access, Element, Expected, Invalid, MemoryType, ViewTypes, expect_parts, memory,
};

/// The device addresses of one launch: those of operands, 0 for each that the description does not have, and those of a merge's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Addresses<'a> {
    /// The address of each operand.
    pub operands: Slots<u64>,
    /// The output and the lse of each part of a merge.
    pub parts: &'a [[u64; 2]],
}

impl<'a> Addresses<'a> {
    /// Those of a merge; `lse` is 0 if it is not wanted.
    pub fn merge(out: u64, lse: u64, parts: &'a [[u64; 2]]) -> Self {
        let mut operands = Slots::filled(0);
        (operands[Operand::Out], operands[Operand::Lse]) = (out, lse);
        Addresses { operands, parts }
    }
}

impl From<&Slots<u64>> for Addresses<'_> {
    fn from(operands: &Slots<u64>) -> Self {
        Addresses {
            operands: *operands,
            parts: &[],
        }
    }
}

/// The memory that an operation expects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) operands: &'a Slots<Expected>,
    pub(super) parts: &'a [[Expected; 2]],
    /// True if the kernels move rows 16 bytes at a time.
    pub(super) chunks: bool,
    /// What a kernel reads by the copy engine besides rows, which takes an address off a multiple of 16 bytes for an illegal instruction.
    pub(super) boxed: Option<Operand>,
}

impl<'a> Places<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = &'a Expected> + Clone {
        { self.operands.as_slice().iter() }.chain(self.parts.as_flattened())
    }

    /// Checks addresses: there if wanted and only then, aligned, and no output over anything.
    pub(super) fn check(self, at: &Addresses<'_>) -> Result<()> {
        expect_parts(at.parts.len(), self.parts.len())?;
        let operands = (self.operands.as_slice(), at.operands.as_slice());
        let parts = (self.parts.as_flattened(), at.parts.as_flattened());
        memory::check(operands, parts, self.chunks)?;
        let alignment = CHUNK_BYTES as u64;
        match self.boxed {
            Some(operand) if !at.operands[operand].is_multiple_of(alignment) => {
                Err(Invalid::Misaligned {
                    argument: operand.name(),
                    address: at.operands[operand],
                    alignment,
                }
                .into())
            }
            _ => Ok(()),
        }
    }
}

/// The memory of one launch: a view for every operand that the description needs, and for no other.
///
/// ```no_run
/// # use warptile::gpu::Bindings;
/// # use warptile::spec::Operand;
/// # use warptile::driver::DeviceBuffer;
/// # fn f(q: &DeviceBuffer<f32>, k: &DeviceBuffer<f32>, v: &DeviceBuffer<f32>, mut out: DeviceBuffer<f32>, mut lse: DeviceBuffer<f32>) {
/// let bindings = Bindings::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice_mut())
///     .output(Operand::Lse, lse.as_slice_mut());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct Bindings<'a> {
    views: Slots<Option<DeviceSlice<'a, u8>>>,
    types: ViewTypes,
    /// The output and the lse of each part of a merge.
    parts: Vec<[DeviceSlice<'a, u8>; 2]>,
    part_types: Vec<MemoryType>,
    part_addresses: Vec<[u64; 2]>,
}

impl Default for Bindings<'_> {
    fn default() -> Self {
        Bindings {
            views: Slots::none(),
            types: Slots::none(),
            parts: Vec::new(),
            part_types: Vec::new(),
            part_addresses: Vec::new(),
        }
    }
}

impl<'a> Bindings<'a> {
    /// Queries, keys, values, and where the output goes; gaps between its strided rows are left alone.
    pub fn new<T: Element, K: Pod>(
        q: DeviceSlice<'a, T>,
        k: DeviceSlice<'a, K>,
        v: DeviceSlice<'a, K>,
        out: DeviceSliceMut<'a, T>,
    ) -> Self {
        Self::default()
            .with(Operand::Q, q)
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::Out, out)
    }

    /// New keys and values of a cache write, and the cache's.
    pub fn append<T: Element, C: Pod>(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        k_pages: DeviceSliceMut<'a, C>,
        v_pages: DeviceSliceMut<'a, C>,
    ) -> Self {
        Self::default()
            .with(Operand::K, k)
            .with(Operand::V, v)
            .output(Operand::KPages, k_pages)
            .output(Operand::VPages, v_pages)
    }

    /// New keys and values of a cache write, and a cache that has its keys and values in one piece of memory, the values `v_at` elements
    /// after the keys: interleaved, say.
    ///
    /// # Errors
    /// When `v_at` is beyond the memory.
    pub fn append_in_one<T: Element, C: Pod>(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        cache: DeviceSliceMut<'a, C>,
        v_at: usize,
    ) -> Result<Self> {
        let k_pages = cache.into_bytes();
        let v_pages = k_pages.slice(v_at.saturating_mul(size_of::<C>())..)?;
        let mut bindings = Self::default().with(Operand::K, k).with(Operand::V, v);
        bindings.put::<C>(Operand::KPages, k_pages, Access::Write);
        bindings.put::<C>(Operand::VPages, v_pages, Access::Write);
        Ok(bindings)
    }

    /// Where the output of a merge goes, to which [`part`](Self::part) adds the parts; gaps between its strided rows are left alone.
    pub fn merge<T: Element>(out: DeviceSliceMut<'a, T>) -> Self {
        Self::default().output(Operand::Out, out)
    }

    /// The output and the lse of a merge's next part.
    pub fn part<T: Element>(mut self, out: DeviceSlice<'a, T>, lse: DeviceSlice<'a, f32>) -> Self {
        self.part_addresses.push([out.pointer(), lse.pointer()]);
        self.part_types.push(MemoryType::of::<T>());
        self.parts.push([out.into_bytes(), lse.into_bytes()]);
        self
    }

    /// The next part of a sum.
    pub fn addend(mut self, addend: DeviceSlice<'a, f32>) -> Self {
        self.part_addresses.push([addend.pointer(), 0]);
        self.part_types.push(MemoryType::of::<f32>());
        let addend = addend.into_bytes();
        self.parts.push([addend.clone(), addend]);
        self
    }

    /// The memory of an operand that is read; a launch refuses it for one that is written. Bytes (`u8`) are elements of any type that the
    /// description has.
    pub fn with<T: Pod>(mut self, operand: Operand, view: DeviceSlice<'a, T>) -> Self {
        self.set(operand, view);
        self
    }

    /// [`with`](Self::with) in place.
    pub fn set<T: Pod>(&mut self, operand: Operand, view: DeviceSlice<'a, T>) {
        self.put::<T>(operand, view.into_bytes(), Access::Read);
    }

    /// The memory of an operand that is written.
    pub fn output<T: Pod>(mut self, operand: Operand, view: DeviceSliceMut<'a, T>) -> Self {
        self.set_output(operand, view);
        self
    }

    /// [`output`](Self::output) in place.
    pub fn set_output<T: Pod>(&mut self, operand: Operand, view: DeviceSliceMut<'a, T>) {
        self.put::<T>(operand, view.into_bytes(), Access::Write);
    }

    /// Memory whose elements are those that the description has.
    pub(crate) fn set_bytes(&mut self, operand: Operand, view: DeviceSlice<'a, u8>) {
        self.views[operand] = Some(view);
    }

    fn put<T: Pod>(&mut self, operand: Operand, view: DeviceSlice<'a, u8>, access: Access) {
        self.views[operand] = Some(view);
        self.types[operand] = Some((MemoryType::of::<T>(), access));
    }

    /// Checks everything that can be known before a launch, and gives the addresses.
    pub(super) fn check(&self, context: &Context, expected: Places<'_>) -> Result<Addresses<'_>> {
        let mut operands = Slots::filled(0);
        let slots = { expected.operands.as_slice().iter() }.zip(self.types.as_slice());
        let views = { self.views.as_slice().iter() }.zip(operands.as_mut_slice());
        for ((slot, given), (view, address)) in slots.zip(views) {
            if let Some(view) = view {
                if let Some((found, access)) = *given {
                    slot.check_type(found, access)?;
                }
                check_view(slot, view, context)?;
                *address = view.pointer();
            } else if slot.wanted && !slot.on_host {
                return Err(
                    Invalid::presence(slot.name, "is missing, but the call needs it").into(),
                );
            }
        }
        expect_parts(self.parts.len(), expected.parts.len())?;
        for (slots, (views, found)) in
            { expected.parts.iter() }.zip({ self.parts.iter() }.zip(&self.part_types))
        {
            found.check(slots[0].name, slots[0].element, slots[0].size)?;
            for (slot, view) in slots.iter().zip(views) {
                check_view(slot, view, context)?;
            }
        }
        Ok(Addresses {
            operands,
            parts: &self.part_addresses,
        })
    }

    /// Has `submit` queue its launches on `stream`, ordered after all work that the views' own streams have queued so far and before the
    /// work that they queue later. In a capture the graph keeps the views' memory instead, and orders the streams at each launch.
    pub(super) fn submit_in_order(
        &self,
        stream: &Stream,
        capture: Option<CaptureId>,
        submit: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let views = { self.views.as_slice().iter().flatten() }.chain(self.parts.as_flattened());
        if let Some(capture) = capture {
            for view in views.clone() {
                let owner: Arc<dyn Any + Send + Sync> = view.owner();
                stream.keep_in(capture, owner);
            }
        }
        // Mostly none.
        let others: Vec<&Stream> = { views.map(DeviceSlice::stream) }
            .filter(|home| !home.is_same(stream))
            .collect();
        stream.order_after(others.iter().copied())?;
        let submitted = submit();
        // Also after an error: an earlier launch may be queued.
        let ordered = stream.order_before(others);
        submitted.and(ordered.map_err(Error::from))
    }
}

/// Checks everything of a view that can be known before a launch. A buffer without elements has no address; that it is there counts.
fn check_view(slot: &Expected, view: &DeviceSlice<'_, u8>, context: &Context) -> Result<()> {
    if !view.stream().context().is_same(context) {
        return Err(Error::DeviceMismatch {
            argument: slot.name,
            expected: place(context),
            found: place(view.stream().context()),
        });
    }
    if slot.on_host {
        return Err(Invalid::presence(
            slot.name,
            "is given on the device, but the call has it on the host",
        )
        .into());
    }
    let (needed, available) = (slot.bytes.reach(), view.len() as u64);
    if slot.wanted && available < needed {
        return Err(Invalid::BufferTooSmall {
            argument: slot.name,
            needed: (needed / slot.size) as usize,
            available: (available / slot.size) as usize,
        }
        .into());
    }
    Ok(())
}

/// A device in words.
pub(super) fn place(context: &Context) -> String {
    format!("cuda:{}", context.device().ordinal())
}

/// Refuses a stream of a different context than the kernels were loaded in.
pub(super) fn check_stream(stream: &Stream, context: &Context) -> Result<()> {
    match stream.context().is_same(context) {
        true => Ok(()),
        false => Err(Error::DeviceMismatch {
            argument: "stream",
            expected: place(context),
            found: place(stream.context()),
        }),
    }
}
