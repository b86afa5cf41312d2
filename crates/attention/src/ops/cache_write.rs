//! Cache writes with tensors of the user's level.

use std::marker::PhantomData;
use std::sync::Arc;

use warptile_driver::{DeviceBuffer, DeviceSlice};
use warptile_kernels::{Operand, Slots, Types};

use crate::backend::{Backend, Place, same_device};
use crate::cpu::append_cpu;
use crate::error::Result;
use crate::gpu::{Bindings, Gpu, PositionElement};
use crate::operands::{Given, ScaledBy, Scales};
use crate::spec::{
    Append, AppendBuilder, DIMENSIONS, Element, ElementType, HostInputs, HostOutputs, Invalid,
    Layout, LengthElement, Numbers, Pairing, Quantized, Rotary, check_list, expect_same,
};
use crate::tensor::{Bytes, Tensor};

/// New keys and values on their way into a cache: where each row goes, and whether keys and queries are rotated.
///
/// [`Append`] says what a cache is and where rows go: by [`slots`](Self::slots), or [`after`](Self::after) the rows that sequences
/// have, through a block table or not. On a GPU the call returns when the work is submitted; numbers on the host travel along.
///
/// ```
/// use warptile::Backend;
/// use warptile::ops::CacheWrite;
/// use warptile::spec::{Pairing, Rotary};
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::cpu();
/// // 4 pages of 16 rows, 2 key/value heads of size 8; two sequences with 17 and 3 rows in the cache.
/// let mut k_pages = backend.tensor(&[0.0_f32; 4 * 16 * 2 * 8], [4, 16, 2, 8])?;
/// let mut v_pages = backend.tensor(&[0.0_f32; 4 * 16 * 2 * 8], [4, 16, 2, 8])?;
/// let table = [2, 0, 3, -1]; // two pages for the first sequence, one for the second
/// let lengths = [17, 3];
/// // One new row for each.
/// let (k, v) = (backend.tensor(&[1.0_f32; 32], [2, 1, 2, 8])?, backend.tensor(&[2.0_f32; 32], [2, 1, 2, 8])?);
/// let mut q = backend.tensor(&[1.0_f32; 64], [2, 1, 4, 8])?;
/// CacheWrite::new(&k, &v, (&mut k_pages, &mut v_pages))
///     .after(&lengths)
///     .block_table(&table, 2)
///     .rotary(Rotary::computed(8, 10_000.0, Pairing::HalfSplit)?)
///     .queries(&mut q)
///     .run()?;
/// // Row 17 of the first sequence is row 1 of its second page, page 0.
/// let values = v_pages.entries(0..1)?.rows(1..2)?.to_vec()?;
/// assert_eq!(values, [2.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is written until `run` is called"]
pub struct CacheWrite<'a, T: Element> {
    backend: Backend,
    read: Slots<Option<&'a dyn Bytes>>,
    written: Slots<Option<&'a mut (dyn Bytes + 'static)>>,
    /// Where the values lie in the memory of the keys, in elements of the cache, if they have none of their own.
    values_at: Option<usize>,
    /// The scales of a quantized cache.
    scales: Option<[(Operand, Given<'a>); 2]>,
    builder: AppendBuilder<'a>,
    /// Lists on the device.
    lists: Slots<Option<DeviceSlice<'a, u8>>>,
    element: PhantomData<T>,
}

/// The keys and values of a cache: two tensors, or one that has both. `(&mut k_pages, &mut v_pages)` are two.
#[derive(Debug)]
pub struct CacheTensors<'a, T: Element> {
    keys: &'a mut (dyn Bytes + 'static),
    /// `None` if they lie in the memory of the keys.
    values: Option<&'a mut (dyn Bytes + 'static)>,
    layouts: [Layout; 2],
    values_at: Option<usize>,
    /// The meaning of the bytes, unless they are elements `T`.
    quantized: Option<ScaledBy<'a>>,
    element: PhantomData<T>,
}

impl<'a, T: Element> CacheTensors<'a, T> {
    fn apart(
        keys: &'a mut (dyn Bytes + 'static),
        values: &'a mut (dyn Bytes + 'static),
        quantized: Option<ScaledBy<'a>>,
    ) -> Self {
        CacheTensors {
            layouts: [*keys.layout(), *values.layout()],
            keys,
            values: Some(values),
            values_at: None,
            quantized,
            element: PhantomData,
        }
    }

    /// In one tensor, of elements `T` unless `quantized` says otherwise.
    pub(crate) fn in_one(
        memory: &'a mut (dyn Bytes + 'static),
        layouts: [Layout; 2],
        values_at: usize,
        quantized: Option<ScaledBy<'a>>,
    ) -> Self {
        CacheTensors {
            keys: memory,
            values: None,
            layouts,
            values_at: Some(values_at),
            quantized,
            element: PhantomData,
        }
    }

    /// A cache whose keys and values lie in one tensor: keys from its first element on, values from the one `values_at` on, in
    /// these layouts.
    pub fn together(
        memory: &'a mut Tensor<T>,
        keys: Layout,
        values: Layout,
        values_at: usize,
    ) -> Self {
        Self::in_one(memory, [keys, values], values_at, None)
    }

    /// A cache in 8 bits: what it holds is the nearest to each number divided by its scale, after the rotation.
    ///
    /// ```
    /// use warptile::{Backend, E4m3, Scales};
    /// use warptile::ops::{CacheTensors, CacheWrite};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let empty = [E4m3::default(); 2 * 16 * 8];
    /// let (mut k_pages, mut v_pages) = (backend.tensor(&empty, [2, 16, 1, 8])?, backend.tensor(&empty, [2, 16, 1, 8])?);
    /// let new = backend.tensor(&[0.75_f32; 8], [1, 1, 1, 8])?;
    /// let cache = CacheTensors::quantized(&mut k_pages, &mut v_pages, Scales::new(&[0.5], &[0.25]));
    /// CacheWrite::new(&new, &new, cache).slots(&[17]).run()?;
    /// assert_eq!(v_pages.entries(1..2)?.rows(1..2)?.to_vec()?, [E4m3::from_f32(3.0); 8]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn quantized<Q: Quantized>(
        keys: &'a mut Tensor<Q>,
        values: &'a mut Tensor<Q>,
        scales: Scales<'a>,
    ) -> Self {
        Self::apart(keys, values, Some(scales.of_type(Q::TYPE)))
    }

    /// As [`quantized`](Self::quantized), of a type that is known at run time: the bits of its numbers.
    pub fn quantized_bits(
        element: ElementType,
        keys: &'a mut Tensor<u8>,
        values: &'a mut Tensor<u8>,
        scales: Scales<'a>,
    ) -> Self {
        Self::apart(keys, values, Some(scales.of_type(element)))
    }

    /// As [`together`](Self::together), in 8 bits.
    pub fn quantized_together<Q: Quantized>(
        memory: &'a mut Tensor<Q>,
        keys: Layout,
        values: Layout,
        values_at: usize,
        scales: Scales<'a>,
    ) -> Self {
        let quantized = Some(scales.of_type(Q::TYPE));
        Self::in_one(memory, [keys, values], values_at, quantized)
    }
}

impl<'a, T: Element> From<(&'a mut Tensor<T>, &'a mut Tensor<T>)> for CacheTensors<'a, T> {
    fn from((keys, values): (&'a mut Tensor<T>, &'a mut Tensor<T>)) -> Self {
        Self::apart(keys, values, None)
    }
}

macro_rules! on_device {
    ($($(#[$doc:meta])* $name:ident, $argument:ident, |$builder:ident, $count:ident $(, $more:ident: $type:ty)?| $set:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $name<L: LengthElement>(self, list: DeviceSlice<'a, L> $(, $more: $type)?) -> Self {
                let $count = list.len();
                self.list(Operand::$argument, Some(list.into_bytes())).with(|$builder| $set)
            }
        )*
    };
}

impl<'a, T: Element> CacheWrite<'a, T> {
    /// A write of the keys `k` and values `v` into `cache`.
    pub fn new(k: &'a Tensor<T>, v: &'a Tensor<T>, cache: impl Into<CacheTensors<'a, T>>) -> Self {
        let cache = cache.into();
        let [keys, values] = &cache.layouts;
        let element = cache.quantized.as_ref().map_or(T::TYPE, |by| by.element);
        let types = Types::of(T::TYPE).keys(element);
        let mut write = CacheWrite {
            backend: k.backend().clone(),
            builder: Append::builder(types, [k.layout(), v.layout()], [keys, values]),
            read: Slots::none(),
            written: Slots::none(),
            values_at: cache.values_at,
            scales: cache.quantized.map(|by| by.scales),
            lists: Slots::none(),
            element: PhantomData,
        };
        write.read[Operand::K] = Some(k);
        write.read[Operand::V] = Some(v);
        write.written[Operand::KPages] = Some(cache.keys);
        write.written[Operand::VPages] = cache.values;
        write
    }

    fn with(self, change: impl FnOnce(AppendBuilder<'a>) -> AppendBuilder<'a>) -> Self {
        CacheWrite {
            builder: change(self.builder),
            ..self
        }
    }

    /// Takes a list from the device, or from nowhere there, in place of one that was given before.
    fn list(mut self, operand: Operand, list: Option<DeviceSlice<'a, u8>>) -> Self {
        self.lists[operand] = list;
        self
    }

    /// Row `i` of k and v, counted through the batch, goes to slot `slots[i]`, which is `page * page rows + row`; a slot that does
    /// not exist, such as -1, is padding.
    pub fn slots(self, slots: &'a [i64]) -> Self {
        self.list(Operand::NewSlots, None)
            .with(|builder| builder.slots(slots))
    }

    /// Gives lengths in device memory that the host knows.
    pub(crate) fn known_lengths(self, lengths: &'a [i32]) -> Self {
        self.with(|builder| builder.known_lengths(lengths))
    }

    /// As [`slots`](Self::slots), in device memory.
    pub fn slots_on_device(self, slots: DeviceSlice<'a, i64>) -> Self {
        self.list(Operand::NewSlots, Some(slots.into_bytes()))
            .with(AppendBuilder::device_slots)
    }

    /// The rows of sequence `b` go after the `lengths[b]` rows that it has.
    pub fn after(self, lengths: &'a [i32]) -> Self {
        self.list(Operand::KeyLengths, None)
            .with(|builder| builder.key_lengths(lengths))
    }

    /// Row `j` of sequence `b` lies in page `table[b * columns + j / page rows]`. Without a table page `b` is its only one. Rows in pages
    /// that do not exist, such as -1, go nowhere.
    pub fn block_table(self, table: &'a [i32], columns: usize) -> Self {
        self.list(Operand::BlockTable, None)
            .with(|builder| builder.block_table(table, columns))
    }

    /// Sequence `b` has the rows `offsets[b]..offsets[b + 1]` of a k and v whose batch extent is 1.
    pub fn packed(self, offsets: &'a [i32]) -> Self {
        self.list(Operand::RowOffsets, None)
            .with(|builder| builder.packed(offsets))
    }

    /// Limits each sequence's new rows to the first `lengths[b]`.
    pub fn row_lengths(self, lengths: &'a [i32]) -> Self {
        self.list(Operand::RowLengths, None)
            .with(|builder| builder.row_lengths(lengths))
    }

    on_device! {
        /// As [`after`](Self::after), in device memory. Rows that do not fit are not written.
        after_on_device, KeyLengths, |builder, count| builder.device_key_lengths(count);
        /// As [`block_table`](Self::block_table), in device memory.
        block_table_on_device, BlockTable, |builder, _count, columns: usize| builder.device_block_table(columns);
        /// As [`packed`](Self::packed), in device memory; no sequence is taken to have more than `longest` new rows.
        packed_on_device, RowOffsets, |builder, count, longest: usize| {
            builder.device_packed(count.saturating_sub(1), longest)
        };
        /// As [`row_lengths`](Self::row_lengths), in device memory.
        row_lengths_on_device, RowLengths, |builder, count| builder.device_row_lengths(count);
    }

    /// Rotates the keys on their way into the cache, and the queries if there are any. By tables:
    /// [`rotary_f32`](Self::rotary_f32) and [`rotary_tables`](Self::rotary_tables).
    pub fn rotary(mut self, rotary: Rotary) -> Self {
        (self.read[Operand::Cos], self.read[Operand::Sin]) = (None, None);
        self.with(|builder| builder.rotary(rotary))
    }

    /// As [`rotary`](Self::rotary), by tables of cosines and sines in `f32`, `[1, positions, 1, rotary size / 2]`. [`run`](Self::run)
    /// refuses a position beyond their rows if the host knows it; one that lies on a device, or follows from lengths there, is taken for
    /// the last row.
    ///
    /// # Errors
    /// As [`Rotary::with_tables`]; if the two differ in layout.
    pub fn rotary_f32(
        self,
        cos: &'a Tensor<f32>,
        sin: &'a Tensor<f32>,
        pairing: Pairing,
    ) -> Result<Self> {
        self.tables(cos, sin, pairing)
    }

    /// As [`rotary_f32`](Self::rotary_f32), of the tensors' elements.
    ///
    /// # Errors
    /// As [`rotary_f32`](Self::rotary_f32).
    pub fn rotary_tables(
        self,
        cos: &'a Tensor<T>,
        sin: &'a Tensor<T>,
        pairing: Pairing,
    ) -> Result<Self> {
        self.tables(cos, sin, pairing)
    }

    fn tables<U: Element>(
        self,
        cos: &'a Tensor<U>,
        sin: &'a Tensor<U>,
        pairing: Pairing,
    ) -> Result<Self> {
        expect_same("sin", sin.shape(), ("cos", cos.shape()), DIMENSIONS)?;
        if sin.layout() != cos.layout() {
            return Err(Invalid::StridesDiffer {
                argument: "sin",
                expected: cos.layout().strides,
                found: sin.layout().strides,
            }
            .into());
        }
        let rotary = Rotary::with_tables(U::TYPE, *cos.layout(), pairing)?;
        let mut write = self.rotary(rotary);
        write.read[Operand::Cos] = Some(cos);
        write.read[Operand::Sin] = Some(sin);
        Ok(write)
    }

    /// Sets the position by which each row of k, counted through the batch, is rotated. A negative one counts as 0, and without tables one
    /// from 2^30 on as the last. Default: its place in its sequence.
    pub fn positions(self, positions: &'a [i32]) -> Self {
        self.list(Operand::Positions, None)
            .with(|builder| builder.positions(positions))
    }

    /// As [`positions`](Self::positions), in device memory. A `u32` from 2^31 on counts as 0.
    pub fn positions_on_device<P: PositionElement>(self, positions: DeviceSlice<'a, P>) -> Self {
        self.list(Operand::Positions, Some(positions.into_bytes()))
            .with(|builder| builder.device_positions(size_of::<P>() == 8))
    }

    /// Rotates these queries too, in place: of k's batch and rows, any number of heads. Nobody else may hold them.
    pub fn queries(mut self, q: &'a mut Tensor<T>) -> Self {
        let layout = *q.layout();
        self.read[Operand::Q] = None;
        self.written[Operand::Q] = Some(q);
        self.written[Operand::QOut] = None;
        self.with(|builder| builder.queries(layout, None))
    }

    /// As [`queries`](Self::queries), into `out`.
    pub fn queries_into(mut self, q: &'a Tensor<T>, out: &'a mut Tensor<T>) -> Self {
        let layouts = (*q.layout(), *out.layout());
        self.read[Operand::Q] = Some(q);
        self.written[Operand::Q] = None;
        self.written[Operand::QOut] = Some(out);
        self.with(|builder| builder.queries(layouts.0, Some(layouts.1)))
    }

    /// Writes the new rows. On a GPU, only numbers on the host need an allocation, so without them this may be part of a capture once
    /// the kernel was used before.
    ///
    /// # Errors
    /// Before anything is written: a tensor that does not fit, tensors on different devices, numbers on the host that break a rule;
    /// [`Error::Shared`](crate::Error::Shared) if somebody else holds the cache or the queries. If the launch fails.
    pub fn run(self) -> Result<()> {
        let counts = self
            .scales()
            .map(|(_, given)| given.request().count().unwrap_or(0));
        let counts: Vec<usize> = counts.collect();
        let builder = match counts[..] {
            [k, v] => self.builder.clone().scale_counts([k, v]),
            _ => self.builder.clone(),
        };
        let append = builder.build()?;
        for (operand, given) in self.scales() {
            if let Given::Numbers(Numbers::Host(values)) = given {
                check_list(*operand, bytemuck::cast_slice(values))?;
            }
        }
        for (operand, tensor) in self.read.given() {
            same_device(operand.name(), Some(tensor.backend()), &self.backend)?;
        }
        for (operand, tensor) in self.written.given() {
            same_device(operand.name(), Some(tensor.backend()), &self.backend)?;
        }
        let backend = self.backend.clone();
        match backend.place() {
            Place::Cpu => self.run_on_cpu(&append),
            Place::Gpu(gpu) => {
                let prepared = gpu.prepare_append(append.types())?;
                let scales = self.uploaded_scales(gpu)?;
                let scales = scales.each_ref();
                let bindings = self.bindings(&append, scales)?;
                prepared.launch(gpu.stream(), &append, &bindings)
            }
        }
    }

    fn scales(&self) -> impl Iterator<Item = &(Operand, Given<'a>)> {
        self.scales.iter().flatten()
    }

    /// The scales that are in host memory, in device memory.
    fn uploaded_scales(&self, gpu: &Gpu) -> Result<[Option<Arc<DeviceBuffer<f32>>>; 2]> {
        let mut uploaded = [None, None];
        for ((_, given), to) in self.scales().zip(&mut uploaded) {
            if let Given::Numbers(Numbers::Host(values)) = given {
                *to = Some(gpu.constant(bytemuck::cast_slice(values))?);
            }
        }
        Ok(uploaded)
    }

    fn run_on_cpu(self, append: &Append) -> Result<()> {
        let mut inputs = HostInputs::default();
        for (operand, given) in self.scales() {
            inputs.set(*operand, given.on_host(operand.name())?);
        }
        for (operand, tensor) in self.read.given() {
            inputs.set(operand, tensor.on_host(operand.name())?);
        }
        let in_one = |at| HostOutputs::cache_in_one::<u8>(&mut [], at);
        let mut outputs = self.values_at.map_or_else(HostOutputs::default, in_one);
        for (operand, to) in self.written.into_given() {
            outputs = outputs.with(operand, to.host_mut(operand.name())?);
        }
        append_cpu(append, &inputs, outputs)
    }

    /// `uploaded`: the scales of a quantized cache that are not given in device memory.
    fn bindings<'b>(
        self,
        append: &Append,
        uploaded: [&'b Option<Arc<DeviceBuffer<f32>>>; 2],
    ) -> Result<Bindings<'b>>
    where
        'a: 'b,
    {
        let mut bindings = Bindings::default();
        for ((operand, given), uploaded) in self.scales().zip(uploaded) {
            match (given, uploaded) {
                (_, Some(scales)) => bindings.set_bytes(*operand, scales.as_slice().into_bytes()),
                (Given::Numbers(Numbers::Device(scales)), None) => {
                    bindings.set_bytes(*operand, scales.clone());
                }
                _ => {}
            }
        }
        for (operand, tensor) in self.read.given() {
            bindings.set_bytes(operand, tensor.on_device(operand.name())?);
        }
        for (operand, to) in self.written.into_given() {
            let memory = to.device_mut(operand.name())?;
            if let (Operand::KPages, Some(at)) = (operand, self.values_at) {
                let at = at.saturating_mul(append.types().k.size());
                bindings.set_bytes(Operand::VPages, memory.slice(at..)?);
            }
            bindings.set_bytes(operand, memory);
        }
        for (operand, list) in self.lists.into_given() {
            bindings.set_bytes(operand, list);
        }
        Ok(bindings)
    }
}
