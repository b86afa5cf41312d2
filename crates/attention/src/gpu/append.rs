//! Cache writes on a GPU.

use std::marker::PhantomData;

use bytemuck::Pod;
use warptile_driver::sys::CUstream;
use warptile_driver::{Context, DeviceSlice, DeviceSliceMut, Stream};
use warptile_kernels::{ElementType, Image, Role, abi};

use crate::element::Element;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::gpu::arguments::{AppendAddresses, AppendArgument};
use crate::gpu::block::{heads, scales, tensor};
use crate::gpu::kernel::Block;
use crate::gpu::memory::Expected;
use crate::gpu::operation::{Description, HostList, Operation};
use crate::operands::LengthElement;
use crate::ops::rotary::{Angles, Pairing};
use crate::ops::{Append, Rotary};
use crate::quantized::{Quantized, QuantizedType, check_key_type};

/// The kernel that writes into caches of one element type, loaded. It belongs to no stream: any number of threads may launch it,
/// on any number of streams of its context, and in captures. A cheap handle.
#[derive(Debug, Clone)]
pub struct PreparedAppend {
    operation: Operation,
}

/// A number that says where a row stands: `i32`, `u32` or `i64`.
pub trait PositionElement: Pod + sealed::Sealed {
    /// Whether it has 64 bits.
    const WIDE: bool;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
    impl Sealed for i64 {}
}

impl PositionElement for i32 {
    const WIDE: bool = false;
}

impl PositionElement for u32 {
    const WIDE: bool = false;
}

impl PositionElement for i64 {
    const WIDE: bool = true;
}

/// The memory of one cache write: a view for every slot that the description needs, and for no other.
#[derive(Debug)]
#[must_use = "bindings do nothing until they are launched with"]
pub struct AppendBindings<'a, T> {
    /// In the order of [`AppendArgument`].
    views: [Option<DeviceSlice<'a, u8>>; AppendArgument::COUNT],
    tables: Option<ElementType>,
    wide_positions: Option<bool>,
    quantized: Option<QuantizedType>,
    element: PhantomData<T>,
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $element:ident $(= $bound:ident)?, $argument:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name$(<$element: $bound>)?(mut self, view: DeviceSlice<'a, $element>) -> Self {
                self.views[AppendArgument::$argument as usize] = Some(view.into_bytes());
                self
            }
        )*
    };
}

impl<'a, T: Element> AppendBindings<'a, T> {
    /// New keys and values, and the cache's.
    pub fn new(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        k_pages: DeviceSliceMut<'a, T>,
        v_pages: DeviceSliceMut<'a, T>,
    ) -> Self {
        Self::of(k, v, [k_pages.into_bytes(), v_pages.into_bytes()])
    }

    /// New keys and values, and a cache that has its keys and values in one piece of memory, the values `v_at` elements after the
    /// keys: interleaved, say.
    ///
    /// # Errors
    /// When `v_at` is beyond the memory.
    pub fn in_one(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        cache: DeviceSliceMut<'a, T>,
        v_at: usize,
    ) -> Result<Self> {
        let cache = in_one(cache.into_bytes(), v_at.saturating_mul(size_of::<T>()))?;
        Ok(Self::of(k, v, cache))
    }

    /// New keys and values, and a quantized cache's, with the scales of both: one number each, or one for each key/value head.
    pub fn quantized<Q: Quantized>(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        [k_pages, v_pages]: [DeviceSliceMut<'a, Q>; 2],
        scales: [DeviceSlice<'a, f32>; 2],
    ) -> Self {
        Self::of(k, v, [k_pages.into_bytes(), v_pages.into_bytes()]).scaled(Q::TYPE, scales)
    }

    /// As [`in_one`](Self::in_one), of a quantized cache.
    ///
    /// # Errors
    /// When `v_at` is beyond the memory.
    pub fn quantized_in_one<Q: Quantized>(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        cache: DeviceSliceMut<'a, Q>,
        v_at: usize,
        scales: [DeviceSlice<'a, f32>; 2],
    ) -> Result<Self> {
        let cache = in_one(cache.into_bytes(), v_at)?;
        Ok(Self::of(k, v, cache).scaled(Q::TYPE, scales))
    }

    /// The pages are those of a cache of this type.
    pub(crate) fn scaled(
        mut self,
        element: QuantizedType,
        [k_scale, v_scale]: [DeviceSlice<'a, f32>; 2],
    ) -> Self {
        self.views[AppendArgument::KScale as usize] = Some(k_scale.into_bytes());
        self.views[AppendArgument::VScale as usize] = Some(v_scale.into_bytes());
        self.quantized = Some(element);
        self
    }

    /// With the pages of keys and of values as bytes, of elements `T` unless they are [`scaled`](Self::scaled).
    pub(crate) fn of(
        k: DeviceSlice<'a, T>,
        v: DeviceSlice<'a, T>,
        [k_pages, v_pages]: [DeviceSlice<'a, u8>; 2],
    ) -> Self {
        let mut views = [const { None }; AppendArgument::COUNT];
        views[AppendArgument::K as usize] = Some(k.into_bytes());
        views[AppendArgument::V as usize] = Some(v.into_bytes());
        views[AppendArgument::KPages as usize] = Some(k_pages);
        views[AppendArgument::VPages as usize] = Some(v_pages);
        AppendBindings {
            views,
            tables: None,
            wide_positions: None,
            quantized: None,
            element: PhantomData,
        }
    }

    /// Queries, rotated in place.
    pub fn queries(mut self, q: DeviceSliceMut<'a, T>) -> Self {
        self.views[AppendArgument::Q as usize] = Some(q.into_bytes());
        self
    }

    /// Queries, and where the rotated ones go.
    pub fn queries_into(mut self, q: DeviceSlice<'a, T>, out: DeviceSliceMut<'a, T>) -> Self {
        self.views[AppendArgument::Q as usize] = Some(q.into_bytes());
        self.views[AppendArgument::QOut as usize] = Some(out.into_bytes());
        self
    }

    numbers! {
        /// Slots of the new rows, if the description says that they are on the device.
        slots: i64, Slots;
        /// The block table, likewise.
        block_table: L = LengthElement, BlockTable;
        /// Row offsets of packed k, v and q, likewise.
        row_offsets: L = LengthElement, RowOffsets;
        /// New rows of each sequence, likewise.
        row_lengths: L = LengthElement, RowLengths;
        /// Rows that the cache has of each sequence, likewise.
        key_lengths: L = LengthElement, KeyLengths;
    }

    /// Positions of the new rows, likewise.
    pub fn positions<P: PositionElement>(mut self, view: DeviceSlice<'a, P>) -> Self {
        self.views[AppendArgument::Positions as usize] = Some(view.into_bytes());
        self.wide_positions = Some(P::WIDE);
        self
    }

    /// Tables of cosines and sines.
    pub fn tables<U: Element>(mut self, cos: DeviceSlice<'a, U>, sin: DeviceSlice<'a, U>) -> Self {
        self.views[AppendArgument::Cos as usize] = Some(cos.into_bytes());
        self.views[AppendArgument::Sin as usize] = Some(sin.into_bytes());
        self.tables = Some(U::TYPE);
        self
    }

    /// Lists that a write at the user's level has on the device, with their arguments.
    pub(crate) fn lists(mut self, lists: Vec<(AppendArgument, DeviceSlice<'a, u8>)>) -> Self {
        for (argument, list) in lists {
            self.views[argument as usize] = Some(list);
        }
        self
    }
}

impl PreparedAppend {
    pub(super) fn new(
        gpu: &Gpu,
        element: ElementType,
        cache: Option<QuantizedType>,
    ) -> Result<Self> {
        Ok(PreparedAppend {
            operation: Operation::load(gpu, Role::Append, element, cache)?,
        })
    }

    /// The image whose kernel writes.
    #[must_use]
    pub fn image(&self) -> &'static Image {
        self.operation.image()
    }

    /// The context that the kernel is loaded in.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.operation.context()
    }

    /// Submits a write to `stream`; doesn't wait. Numbers that the description has on the host travel along. Streams and captures
    /// as with [`Prepared::launch`](crate::gpu::Prepared::launch).
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::ElementMismatch`](crate::Error::ElementMismatch); a view that is missing, superfluous, too short, unaligned, or of
    /// another device or context; an output that shares memory with anything. After that, what the driver reports.
    pub fn launch<T: Element>(
        &self,
        stream: &Stream,
        append: &Append,
        bindings: &AppendBindings<'_, T>,
    ) -> Result<()> {
        append.check_types(bindings.tables, bindings.wide_positions)?;
        check_key_type("k_pages", append.quantized_type(), bindings.quantized)?;
        let lists = host_lists(append);
        self.operation
            .launch::<T, _>(stream, append, &bindings.views, &lists)
    }

    /// Submits a write to anybody's stream, by one driver call: it allocates, copies, waits for and loads nothing, takes no lock,
    /// and touches no reference count, so it may be part of anybody's capture. All numbers lie on the device: a captured launch
    /// reads them anew at each replay.
    ///
    /// # Errors
    /// Before anything is submitted: [`Error::ElementMismatch`](crate::Error::ElementMismatch); an address that is missing, superfluous or unaligned, an output
    /// that overlaps anything; numbers on the host. Then what the driver reports.
    ///
    /// # Safety
    /// - `stream` is a live stream of [`PreparedAppend::context`], which is current on the calling thread.
    /// - Each address that is not 0 is that of device memory which the context can use and which reaches as far as the
    ///   description's layouts say, or as its count of numbers; it stays valid until the launch, and every replay of a graph that
    ///   captured it, has ended.
    /// - Nothing else writes what the launch reads, or touches what it writes, at the same time. Slots, tables, offsets, lengths and
    ///   positions are an exception: any bits at any time are safe, and give wrong numbers in the cache at worst.
    /// - A clone of this value, or the [`Gpu`] that prepared it, lives until the launch has ended, and as long as any graph that
    ///   captured it.
    pub unsafe fn launch_raw(
        &self,
        stream: CUstream,
        append: &Append,
        addresses: &AppendAddresses,
    ) -> Result<()> {
        let list = addresses.list();
        // SAFETY: the caller's promises.
        unsafe { self.operation.launch_raw(stream, append, &list) }
    }
}

/// The keys and the values of a cache that has both in one piece of memory, the values from a byte on.
///
/// # Errors
/// When that is beyond the memory.
pub(crate) fn in_one(cache: DeviceSlice<'_, u8>, v_at: usize) -> Result<[DeviceSlice<'_, u8>; 2]> {
    let v_pages = cache.slice(v_at..)?;
    Ok([cache, v_pages])
}

/// The numbers that a write has on the host.
fn host_lists(append: &Append) -> Vec<HostList<'_>> {
    let (rows, before) = (append.rows(), append.before());
    let numbers = [
        (
            AppendArgument::BlockTable as usize,
            append.table().on_host(),
        ),
        (
            AppendArgument::RowOffsets as usize,
            rows.offsets().on_host(),
        ),
        (AppendArgument::RowLengths as usize, rows.used().on_host()),
        (AppendArgument::KeyLengths as usize, before.used().on_host()),
        (
            AppendArgument::Positions as usize,
            append.positions().on_host(),
        ),
    ];
    let numbers = numbers.map(|(slot, list)| list.map(|list| (slot, bytemuck::cast_slice(list))));
    let slots = append.slots().on_host();
    let slots = slots.map(|list| (AppendArgument::Slots as usize, bytemuck::cast_slice(list)));
    numbers.into_iter().chain([slots]).flatten().collect()
}

/// Threads that a head of a row takes.
fn lanes(append: &Append) -> usize {
    let chunk = 16 / append.element().size();
    let heads = append.heads();
    heads.dim.max(heads.value_dim).div_ceil(chunk)
}

impl Description for Append {
    const TYPED: &'static str = "k";

    fn element(&self) -> ElementType {
        self.element()
    }

    fn cache(&self) -> Option<QuantizedType> {
        self.quantized_type()
    }

    fn expected(&self) -> &[Expected] {
        self.expected()
    }

    fn work(&self) -> (usize, usize) {
        let heads = self.heads().query + 2 * self.heads().key_value;
        (self.batch() * self.rows().bound(), heads * lanes(self))
    }

    fn block(&self, row_ctas: i32, at: &[u64]) -> Block {
        let at = AppendAddresses::from_fn(|argument| at[argument as usize]);
        let count = |n: usize| n as i32;
        let [pages, page_rows, ..] = self.k_pages().shape;
        let q = self
            .q()
            .map_or_else(abi::Tensor::default, |layout| tensor(at.q, layout));
        let pages = abi::Pages::of(
            at.block_table,
            self.columns() as i64,
            count(page_rows),
            count(pages),
        );
        let append = abi::Append {
            sequences: abi::Sequences {
                batch: count(self.batch()),
                query_len: count(self.rows().bound()),
                key_len: count(self.capacity()),
                query_rows: count(self.rows().rows()),
                key_rows: count(self.capacity()),
                query_offsets: at.row_offsets,
                query_lengths: at.row_lengths,
                key_lengths: at.key_lengths,
                ..Default::default()
            }
            .with_ragged(&pages),
            pages,
            slots: at.slots,
            heads: heads(self.heads()),
            lanes: lanes(self) as i32,
            row_ctas,
            q,
            q_out: match self.q_out() {
                Some(out) => tensor(at.q_out, out),
                None => q,
            },
            k: tensor(at.k, self.k()),
            v: tensor(at.v, self.v()),
            k_pages: tensor(at.k_pages, self.k_pages()),
            v_pages: tensor(at.v_pages, self.v_pages()),
            rotary: self
                .rotary()
                .map_or_else(abi::Rotary::default, |rotary| rotation(self, rotary, &at)),
        };
        match self.quantized() {
            None => Block::Append(append),
            quantized => Block::AppendE4m3(abi::AppendE4m3 {
                append,
                scales: scales(quantized, at.k_scale, at.v_scale),
            }),
        }
    }
}

fn rotation(append: &Append, rotary: &Rotary, at: &AppendAddresses) -> abi::Rotary {
    let mut block = abi::Rotary {
        size: rotary.size() as i32,
        interleaved: i32::from(rotary.pairing() == Pairing::Interleaved),
        wide_positions: i32::from(append.wide_positions()),
        positions: at.positions,
        positions_end: rotary.positions_end() as i64,
        cos: at.cos,
        sin: at.sin,
        ..Default::default()
    };
    match rotary.angles() {
        Angles::Turns(turns) => block.turns[..turns.len()].copy_from_slice(turns),
        Angles::Tables { element, layout } => {
            block.float_tables = i32::from(*element == ElementType::F32);
            block.table_row = layout.strides[1] as i64;
        }
    }
    block
}
