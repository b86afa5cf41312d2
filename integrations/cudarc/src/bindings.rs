//! Views of cudarc's memory for one launch.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    SyncOnDrop,
};
use warptile::gpu::{AppendArgument, Argument, PositionElement};
use warptile::{Element, ElementType, LengthElement};

use crate::error::{Error, Result};

/// Memory that a launch reads or writes.
trait Memory {
    fn context(&self) -> &Arc<CudaContext>;
    fn bytes(&self) -> u64;
    /// Bytes of an element.
    fn element(&self) -> u64;
    /// The address, for which `stream` waits as far as it must. The guard is dropped after the launch.
    fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> (u64, SyncOnDrop<'b>);
}

impl<T> Memory for CudaView<'_, T> {
    fn context(&self) -> &Arc<CudaContext> {
        self.stream().context()
    }

    fn bytes(&self) -> u64 {
        self.num_bytes() as u64
    }

    fn element(&self) -> u64 {
        size_of::<T>() as u64
    }

    fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> (u64, SyncOnDrop<'b>) {
        self.device_ptr(stream)
    }
}

impl<T> Memory for CudaViewMut<'_, T> {
    fn context(&self) -> &Arc<CudaContext> {
        self.stream().context()
    }

    fn bytes(&self) -> u64 {
        self.num_bytes() as u64
    }

    fn element(&self) -> u64 {
        size_of::<T>() as u64
    }

    fn lock<'b>(&'b mut self, stream: &'b CudaStream) -> (u64, SyncOnDrop<'b>) {
        self.device_ptr_mut(stream)
    }
}

/// What is given for one argument.
enum Slot<'a> {
    Empty,
    /// From so many bytes on.
    Memory(Box<dyn Memory + 'a>, u64),
    /// In the memory of the argument before, from so many bytes on.
    Same(u64),
}

/// What is given for all arguments of a launch, in the order in which its description names them.
pub(crate) struct Slots<'a>(Vec<Slot<'a>>);

/// Addresses in the order of the slots, with what must be dropped after the launch.
pub(crate) struct Locked<'b> {
    pub(crate) addresses: Vec<u64>,
    /// Bytes from each address to the end of the memory, and those of an element; `None` where nothing is given.
    bytes: Vec<Option<(u64, u64)>>,
    _guards: Vec<SyncOnDrop<'b>>,
}

impl<'a> Slots<'a> {
    fn empty(count: usize) -> Self {
        Slots((0..count).map(|_| Slot::Empty).collect())
    }

    fn set(&mut self, at: usize, memory: impl Memory + 'a) {
        self.0[at] = Slot::Memory(Box::new(memory), 0);
    }

    /// Takes the addresses for work on `stream`.
    pub(crate) fn lock<'b>(
        &'b mut self,
        stream: &'b CudaStream,
        names: impl Fn(usize) -> &'static str,
    ) -> Result<Locked<'b>> {
        let count = self.0.len();
        let mut locked = Locked {
            addresses: vec![0; count],
            bytes: vec![None; count],
            _guards: Vec::with_capacity(count),
        };
        // Address, bytes and bytes of an element of the memory looked at last.
        let mut last = (0, 0, 1);
        for (at, slot) in self.0.iter_mut().enumerate() {
            let offset = match slot {
                Slot::Empty => continue,
                Slot::Memory(memory, offset) => {
                    let (ours, theirs) = (stream.context(), memory.context());
                    if ours.cu_ctx() != theirs.cu_ctx() {
                        return Err(Error::OtherContext {
                            argument: names(at),
                            expected: ours.ordinal(),
                            found: theirs.ordinal(),
                        });
                    }
                    let (bytes, element) = (memory.bytes(), memory.element());
                    let (address, guard) = memory.lock(stream);
                    locked._guards.push(guard);
                    last = (address, bytes, element);
                    *offset
                }
                Slot::Same(offset) => *offset,
            };
            let (address, bytes, element) = last;
            locked.addresses[at] = address.saturating_add(offset);
            locked.bytes[at] = Some((bytes.saturating_sub(offset), element));
        }
        Ok(locked)
    }
}

impl Locked<'_> {
    /// Checks that each argument that is needed is given, and large enough, and that no other is given.
    pub(crate) fn check(
        &self,
        needed: impl Iterator<Item = (&'static str, Option<u64>)>,
    ) -> Result<()> {
        for ((argument, needed), available) in needed.zip(&self.bytes) {
            let presence = |rule| Err(warptile::Error::Presence { argument, rule }.into());
            match (needed, *available) {
                (None, None) => {}
                (None, Some(_)) => {
                    return presence("is given, but the call was built without it");
                }
                // That it is there counts, if it has no elements, too.
                (Some(_), None) => return presence("is missing, but the call needs it"),
                (Some(needed), Some((available, element))) if available < needed => {
                    return Err(warptile::Error::BufferTooSmall {
                        argument,
                        needed: (needed / element) as usize,
                        available: (available / element) as usize,
                    }
                    .into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The memory of one attention: a view for every argument that the [`Call`](warptile::Call) needs, and for no other. Lists lie on the
/// device: the call is built with `device_key_lengths`, `device_query_offsets` and so on.
#[must_use = "bindings do nothing until they are launched with"]
pub struct Bindings<'a, T> {
    pub(crate) slots: Slots<'a>,
    element: PhantomData<T>,
}

macro_rules! argument {
    ($(#[$doc:meta])* $name:ident$(<$element:ident: $bound:path>)?, $view:ty, $at:expr) => {
        $(#[$doc])*
        pub fn $name$(<$element: $bound>)?(mut self, view: $view) -> Self {
            self.slots.set($at, view);
            self
        }
    };
}

impl<'a, T: Element> Bindings<'a, T> {
    /// Queries, keys, values, and where the output goes; gaps between its strided rows are left alone.
    pub fn new(
        q: CudaView<'a, T>,
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        out: CudaViewMut<'a, T>,
    ) -> Self {
        Self::of(q, [k, v], out)
    }

    /// As [`new`](Self::new), of quantized keys and values, as `u8` or any other type of one byte: a [`Call`](warptile::Call) that was
    /// built with [`quantized`](warptile::CallBuilder::quantized), which says what the bytes mean. Each has its scales, as many as the call says, which the kernel reads when it runs.
    pub fn quantized<B: 'a>(
        q: CudaView<'a, T>,
        (k, k_scale): (CudaView<'a, B>, CudaView<'a, f32>),
        (v, v_scale): (CudaView<'a, B>, CudaView<'a, f32>),
        out: CudaViewMut<'a, T>,
    ) -> Self {
        const { assert!(size_of::<B>() == 1, "a quantized number has one byte") };
        let mut bindings = Self::of(q, [k, v], out);
        bindings.slots.set(Argument::KScale as usize, k_scale);
        bindings.slots.set(Argument::VScale as usize, v_scale);
        bindings
    }

    fn of<C: 'a>(
        q: CudaView<'a, T>,
        [k, v]: [CudaView<'a, C>; 2],
        out: CudaViewMut<'a, T>,
    ) -> Self {
        let mut slots = Slots::empty(Argument::COUNT);
        slots.set(Argument::Q as usize, q);
        slots.set(Argument::K as usize, k);
        slots.set(Argument::V as usize, v);
        slots.set(Argument::Out as usize, out);
        Bindings {
            slots,
            element: PhantomData,
        }
    }

    argument! {
        /// Where the lse goes, `[batch, heads, length]`; for packed queries `[heads, rows]`.
        lse, CudaViewMut<'a, f32>, Argument::Lse as usize
    }
    argument! {
        /// Row offsets of packed queries, `sequences + 1` of them.
        query_offsets<L: LengthElement>, CudaView<'a, L>, Argument::QueryOffsets as usize
    }
    argument! {
        /// Row offsets of packed keys and values.
        key_offsets<L: LengthElement>, CudaView<'a, L>, Argument::KeyOffsets as usize
    }
    argument! {
        /// Used rows of each sequence's queries.
        query_lengths<L: LengthElement>, CudaView<'a, L>, Argument::QueryLengths as usize
    }
    argument! {
        /// Used rows of each sequence's keys and values.
        key_lengths<L: LengthElement>, CudaView<'a, L>, Argument::KeyLengths as usize
    }
    argument! {
        /// Numbers of the pages of keys and values.
        block_table<L: LengthElement>, CudaView<'a, L>, Argument::BlockTable as usize
    }
    argument! {
        /// ALiBi slopes.
        slopes, CudaView<'a, f32>, Argument::Slopes as usize
    }
    argument! {
        /// Sinks, one per query head.
        sinks, CudaView<'a, f32>, Argument::Sinks as usize
    }
    argument! {
        /// The additive bias.
        bias, CudaView<'a, T>, Argument::Bias as usize
    }
    argument! {
        /// The key mask; 0 hides a key.
        key_mask, CudaView<'a, u8>, Argument::KeyMask as usize
    }
}

/// The memory of one cache write: a view for every argument that the [`Append`](warptile::Append) needs, and for no other.
#[must_use = "bindings do nothing until they are launched with"]
pub struct AppendBindings<'a, T> {
    pub(crate) slots: Slots<'a>,
    /// Element type of the tables.
    pub(crate) tables: Option<ElementType>,
    pub(crate) wide_positions: Option<bool>,
    element: PhantomData<T>,
}

impl<'a, T: Element> AppendBindings<'a, T> {
    /// New keys and values, and the cache's.
    pub fn new(
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        k_pages: CudaViewMut<'a, T>,
        v_pages: CudaViewMut<'a, T>,
    ) -> Self {
        let mut bindings = Self::of(k, v);
        bindings.slots.set(AppendArgument::KPages as usize, k_pages);
        bindings.slots.set(AppendArgument::VPages as usize, v_pages);
        bindings
    }

    /// New keys and values, and a cache that has its keys and values in one piece of memory: interleaved, say. They begin `k_at` and
    /// `v_at` elements after the view.
    pub fn in_one(
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        cache: CudaViewMut<'a, T>,
        [k_at, v_at]: [usize; 2],
    ) -> Self {
        Self::of(k, v).cache_in_one(cache, [k_at, v_at])
    }

    /// As [`new`](Self::new), with a quantized cache, as `u8` or any other type of one byte: an [`Append`](warptile::Append) that was
    /// built with [`quantized`](warptile::AppendBuilder::quantized). Keys and values have their scales, as many as it says.
    pub fn quantized<B: 'a>(
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        (k_pages, k_scale): (CudaViewMut<'a, B>, CudaView<'a, f32>),
        (v_pages, v_scale): (CudaViewMut<'a, B>, CudaView<'a, f32>),
    ) -> Self {
        const { assert!(size_of::<B>() == 1, "a quantized number has one byte") };
        let mut bindings = Self::of(k, v);
        bindings.slots.set(AppendArgument::KPages as usize, k_pages);
        bindings.slots.set(AppendArgument::VPages as usize, v_pages);
        bindings.scales([k_scale, v_scale])
    }

    /// As [`quantized`](Self::quantized), with the keys and values in one piece of memory, `k_at` and `v_at` bytes after its beginning.
    pub fn quantized_in_one<B: 'a>(
        k: CudaView<'a, T>,
        v: CudaView<'a, T>,
        cache: CudaViewMut<'a, B>,
        at: [usize; 2],
        scales: [CudaView<'a, f32>; 2],
    ) -> Self {
        const { assert!(size_of::<B>() == 1, "a quantized number has one byte") };
        Self::of(k, v).cache_in_one(cache, at).scales(scales)
    }

    fn cache_in_one<C: 'a>(mut self, cache: CudaViewMut<'a, C>, [k_at, v_at]: [usize; 2]) -> Self {
        let bytes = |at: usize| (at as u64).saturating_mul(size_of::<C>() as u64);
        self.slots.0[AppendArgument::KPages as usize] = Slot::Memory(Box::new(cache), bytes(k_at));
        self.slots.0[AppendArgument::VPages as usize] = Slot::Same(bytes(v_at));
        self
    }

    fn scales(mut self, [k, v]: [CudaView<'a, f32>; 2]) -> Self {
        self.slots.set(AppendArgument::KScale as usize, k);
        self.slots.set(AppendArgument::VScale as usize, v);
        self
    }

    fn of(k: CudaView<'a, T>, v: CudaView<'a, T>) -> Self {
        let mut slots = Slots::empty(AppendArgument::COUNT);
        slots.set(AppendArgument::K as usize, k);
        slots.set(AppendArgument::V as usize, v);
        AppendBindings {
            slots,
            tables: None,
            wide_positions: None,
            element: PhantomData,
        }
    }

    /// Queries, rotated in place.
    pub fn queries(mut self, q: CudaViewMut<'a, T>) -> Self {
        self.slots.set(AppendArgument::Q as usize, q);
        self
    }

    /// Queries, and where the rotated ones go.
    pub fn queries_into(mut self, q: CudaView<'a, T>, out: CudaViewMut<'a, T>) -> Self {
        self.slots.set(AppendArgument::Q as usize, q);
        self.slots.set(AppendArgument::QOut as usize, out);
        self
    }

    argument! {
        /// Slots of the new rows.
        slots, CudaView<'a, i64>, AppendArgument::Slots as usize
    }
    argument! {
        /// The block table.
        block_table<L: LengthElement>, CudaView<'a, L>, AppendArgument::BlockTable as usize
    }
    argument! {
        /// Row offsets of packed k, v and q.
        row_offsets<L: LengthElement>, CudaView<'a, L>, AppendArgument::RowOffsets as usize
    }
    argument! {
        /// New rows of each sequence.
        row_lengths<L: LengthElement>, CudaView<'a, L>, AppendArgument::RowLengths as usize
    }
    argument! {
        /// Rows that the cache has of each sequence.
        key_lengths<L: LengthElement>, CudaView<'a, L>, AppendArgument::KeyLengths as usize
    }

    /// Positions of the new rows.
    pub fn positions<P: PositionElement>(mut self, view: CudaView<'a, P>) -> Self {
        self.slots.set(AppendArgument::Positions as usize, view);
        self.wide_positions = Some(P::WIDE);
        self
    }

    /// Tables of cosines and sines.
    pub fn tables<U: Element>(mut self, cos: CudaView<'a, U>, sin: CudaView<'a, U>) -> Self {
        self.slots.set(AppendArgument::Cos as usize, cos);
        self.slots.set(AppendArgument::Sin as usize, sin);
        self.tables = Some(U::TYPE);
        self
    }
}

/// The memory of one merge, in the order of the description's parts.
#[must_use = "bindings do nothing until they are launched with"]
pub struct MergeBindings<'a, T> {
    pub(crate) slots: Slots<'a>,
    element: PhantomData<T>,
}

impl<'a, T: Element> MergeBindings<'a, T> {
    /// Where the output goes; gaps between its strided rows are left alone.
    pub fn new(out: CudaViewMut<'a, T>) -> Self {
        let mut slots = Slots::empty(2);
        slots.set(0, out);
        MergeBindings {
            slots,
            element: PhantomData,
        }
    }

    argument! {
        /// Where the lse goes.
        lse, CudaViewMut<'a, f32>, 1
    }

    /// The next part's output and lse.
    pub fn part(mut self, out: CudaView<'a, T>, lse: CudaView<'a, f32>) -> Self {
        let memory: [Box<dyn Memory + 'a>; 2] = [Box::new(out), Box::new(lse)];
        let whole = |memory| Slot::Memory(memory, 0);
        self.slots.0.extend(memory.map(whole));
        self
    }

    pub(crate) fn parts(&self) -> usize {
        (self.slots.0.len() - 2) / 2
    }
}

impl fmt::Debug for Slots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.iter().map(|slot| match slot {
            Slot::Memory(memory, _) => Some(memory.bytes()),
            _ => None,
        });
        f.debug_list().entries(bytes).finish()
    }
}

macro_rules! debug {
    ($($name:ident)*) => {$(
        impl<T> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.slots).finish()
            }
        }
    )*};
}

debug!(Bindings AppendBindings MergeBindings);
