//! What a call at the user's level is made of: queries, and keys with their values, each with the lengths of its sequences.

use std::sync::Arc;

use bytemuck::Pod;
use warptile_driver::{DeviceBuffer, DeviceSlice};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::lengths::{LengthsRequest, Request};
use crate::pages::{TableLayout, TableRequest};
use crate::quantized::{
    K_SCALE, KeyView, Quantization, Quantized, QuantizedType, V_SCALE, check_values,
};
use crate::tensor::Bytes;
use crate::{Element, Layout, Tensor, View};

/// A 32-bit number that counts rows or pages: `i32` or `u32`. A `u32` beyond `i32::MAX` counts as negative, which kernels clamp.
pub trait LengthElement: Pod + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
}

impl LengthElement for i32 {}
impl LengthElement for u32 {}

/// The lengths of one side of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Side<'a> {
    offsets: List<'a>,
    used: List<'a>,
    longest: Option<usize>,
}

/// Numbers on the host or on the device.
#[derive(Debug, Clone, Default)]
enum List<'a> {
    #[default]
    None,
    Host(&'a [i32]),
    Device(DeviceSlice<'a, u8>),
}

impl<'a> List<'a> {
    fn request(&self) -> Request<'a> {
        match self {
            List::None => Request::None,
            List::Host(numbers) => Request::Host(numbers),
            List::Device(bytes) => Request::Device(bytes.len() / size_of::<i32>()),
        }
    }

    fn device(&self) -> Option<DeviceSlice<'a, u8>> {
        match self {
            List::Device(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }
}

impl<'a> Side<'a> {
    pub(crate) fn request(&self) -> LengthsRequest<'a> {
        LengthsRequest {
            offsets: self.offsets.request(),
            used: self.used.request(),
            longest: self.longest,
        }
    }

    pub(crate) fn device_offsets(&self) -> Option<DeviceSlice<'a, u8>> {
        self.offsets.device()
    }

    pub(crate) fn device_used(&self) -> Option<DeviceSlice<'a, u8>> {
        self.used.device()
    }
}

/// The block table of paged keys.
#[derive(Debug, Clone)]
pub(crate) struct Table<'a> {
    entries: List<'a>,
    layout: TableLayout,
}

impl<'a> Table<'a> {
    pub(crate) fn request(&self) -> TableRequest<'a> {
        TableRequest {
            entries: self.entries.request(),
            layout: self.layout,
        }
    }

    pub(crate) fn on_device(&self) -> Option<DeviceSlice<'a, u8>> {
        self.entries.device()
    }
}

macro_rules! lengths {
    () => {
        /// The sequences lie one after the other along the rows of tensors whose batch extent is 1: sequence `b` is rows
        /// `offsets[b]..offsets[b + 1]`. Rows past the last offset belong to no sequence.
        pub fn packed(mut self, offsets: &'a [i32]) -> Self {
            self.side.offsets = List::Host(offsets);
            self
        }

        /// As [`packed`](Self::packed) with offsets on the device, which nobody checks: the kernel clamps them to the rows
        /// there are. No sequence is taken to be longer than `longest`.
        pub fn packed_on_device<L: LengthElement>(
            mut self,
            offsets: DeviceSlice<'a, L>,
            longest: usize,
        ) -> Self {
            self.side.offsets = List::Device(offsets.into_bytes());
            self.side.longest = Some(longest);
            self
        }

        /// Of each sequence only the first `lengths[b]` rows exist.
        pub fn lengths(mut self, lengths: &'a [i32]) -> Self {
            self.side.used = List::Host(lengths);
            self
        }

        /// As [`lengths`](Self::lengths) with lengths on the device, which the kernel clamps to the rows there are.
        pub fn lengths_on_device<L: LengthElement>(mut self, lengths: DeviceSlice<'a, L>) -> Self {
            self.side.used = List::Device(lengths.into_bytes());
            self
        }
    };
}

/// The queries of a call. A `&Tensor` is dense queries.
#[derive(Debug, Clone)]
#[must_use = "queries do nothing until `forward` is called"]
pub struct Queries<'a, T: Element> {
    pub(crate) q: &'a Tensor<T>,
    pub(crate) side: Side<'a>,
}

impl<'a, T: Element> Queries<'a, T> {
    /// Dense queries.
    pub fn new(q: &'a Tensor<T>) -> Self {
        Queries {
            q,
            side: Side::default(),
        }
    }

    lengths!();
}

impl<'a, T: Element> From<&'a Tensor<T>> for Queries<'a, T> {
    fn from(q: &'a Tensor<T>) -> Self {
        Queries::new(q)
    }
}

/// What quantized keys and values are multiplied by: one number for all key/value heads, or one for each. They are finite and above 0.
/// Numbers on a device are not checked; kernels read them when they run, so a captured launch reads them anew at each replay.
#[derive(Debug, Clone)]
pub struct Scales<'a> {
    k: ScaleList<'a>,
    v: ScaleList<'a>,
}

#[derive(Debug, Clone)]
enum ScaleList<'a> {
    Host(&'a [f32]),
    Device(DeviceSlice<'a, f32>),
}

impl<'a> ScaleList<'a> {
    fn count(&self) -> usize {
        match self {
            ScaleList::Host(scales) => scales.len(),
            ScaleList::Device(scales) => scales.len(),
        }
    }

    fn on_host(&self, argument: &'static str) -> Result<&'a [f32]> {
        match self {
            ScaleList::Host(scales) => Ok(scales),
            ScaleList::Device(_) => Err(Error::Presence {
                argument,
                rule: "is on a GPU, but the tensors are in host memory",
            }),
        }
    }
}

impl<'a> Scales<'a> {
    /// Of the keys, and of the values.
    #[must_use]
    pub fn new(k: &'a [f32], v: &'a [f32]) -> Self {
        Scales {
            k: ScaleList::Host(k),
            v: ScaleList::Host(v),
        }
    }

    /// As [`new`](Self::new), in device memory.
    #[must_use]
    pub fn on_device(k: DeviceSlice<'a, f32>, v: DeviceSlice<'a, f32>) -> Self {
        Scales {
            k: ScaleList::Device(k),
            v: ScaleList::Device(v),
        }
    }

    pub(crate) const fn of_type(self, element: QuantizedType) -> ScaledBy<'a> {
        ScaledBy {
            element,
            scales: self,
        }
    }

    /// How many there are, after those on the host were checked.
    fn counts(&self) -> Result<[usize; 2]> {
        for (argument, list) in [(K_SCALE, &self.k), (V_SCALE, &self.v)] {
            if let ScaleList::Host(scales) = list {
                check_values(argument, scales)?;
            }
        }
        Ok([self.k.count(), self.v.count()])
    }

    /// Of the keys, and of the values.
    pub(crate) fn host(&self) -> Result<[&'a [f32]; 2]> {
        Ok([self.k.on_host(K_SCALE)?, self.v.on_host(V_SCALE)?])
    }

    /// The memory of both on a GPU. Numbers on the host that were not used before are uploaded.
    pub(crate) fn upload(&self, gpu: &Gpu) -> Result<[DeviceScales<'a>; 2]> {
        let upload = |list: &ScaleList<'a>| -> Result<DeviceScales<'a>> {
            Ok(match list {
                ScaleList::Host(scales) => DeviceScales::Constant(gpu.constant(scales)?),
                ScaleList::Device(scales) => DeviceScales::Given(scales.clone()),
            })
        };
        Ok([upload(&self.k)?, upload(&self.v)?])
    }
}

/// Scales in device memory.
pub(crate) enum DeviceScales<'a> {
    Constant(Arc<DeviceBuffer<f32>>),
    Given(DeviceSlice<'a, f32>),
}

impl<'a> DeviceScales<'a> {
    pub(crate) fn slice<'b>(&'b self) -> DeviceSlice<'b, f32>
    where
        'a: 'b,
    {
        match self {
            DeviceScales::Constant(buffer) => buffer.as_slice(),
            DeviceScales::Given(slice) => slice.clone(),
        }
    }
}

/// The keys or the values of a call, and where they lie in a tensor that may have both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    memory: &'a dyn Bytes,
    layout: Layout,
    /// Bytes before the first element.
    at: usize,
}

impl<'a> Part<'a> {
    /// All of a tensor.
    pub(crate) fn all(tensor: &'a dyn Bytes) -> Self {
        Part {
            memory: tensor,
            layout: *tensor.layout(),
            at: 0,
        }
    }

    /// From the element `at` on, in this layout.
    pub(crate) fn of<C: Pod + Send + Sync>(
        memory: &'a Tensor<C>,
        at: usize,
        layout: Layout,
    ) -> Self {
        Part {
            memory,
            layout,
            at: at.saturating_mul(size_of::<C>()),
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn backend(&self) -> &'a Backend {
        self.memory.backend()
    }

    /// Whether it starts at a multiple of 16 bytes. On the CPU it does not matter.
    fn starts_aligned(&self) -> bool {
        self.memory.starts_aligned() && self.at.is_multiple_of(16)
    }

    fn on_host(&self, argument: &'static str) -> Result<&'a [u8]> {
        let bytes = self.memory.on_host(argument)?;
        Ok(bytes.get(self.at..).unwrap_or_default())
    }

    pub(crate) fn on_device(&self, argument: &'static str) -> Result<DeviceSlice<'a, u8>> {
        Ok(self.memory.on_device(argument)?.slice(self.at..)?)
    }
}

/// Keys and values of the queries' elements or quantized.
#[derive(Debug, Clone)]
pub(crate) struct KeyTensors<'a> {
    pub(crate) k: Part<'a>,
    pub(crate) v: Part<'a>,
    /// What their bytes mean, unless they are elements of the queries' type.
    pub(crate) quantized: Option<ScaledBy<'a>>,
}

/// A type of 8 bits, with the scales of keys and of values.
#[derive(Debug, Clone)]
pub(crate) struct ScaledBy<'a> {
    pub(crate) element: QuantizedType,
    pub(crate) scales: Scales<'a>,
}

impl ScaledBy<'_> {
    /// What a description says of it, after scales on the host were checked.
    pub(crate) fn quantization(&self) -> Result<Quantization> {
        let [k, v] = self.scales.counts()?;
        Ok(Quantization::new(self.element).scales(k, v))
    }
}

impl<'a> KeyTensors<'a> {
    pub(crate) fn views<T: Element>(&self) -> Result<[KeyView<'a, T>; 2]> {
        let view = |argument, part: &Part<'a>| -> Result<KeyView<'a, T>> {
            let (bytes, layout) = (part.on_host(argument)?, part.layout);
            Ok(match &self.quantized {
                // They were elements of this type before.
                None => KeyView::Same(View::new(bytemuck::cast_slice(bytes), layout)),
                Some(by) => KeyView::Quantized(View::new(bytes, layout), by.element),
            })
        };
        Ok([view("k", &self.k)?, view("v", &self.v)?])
    }

    /// Whether both start at multiples of 16 bytes. On the CPU it does not matter.
    pub(crate) fn start_aligned(&self) -> bool {
        self.k.starts_aligned() && self.v.starts_aligned()
    }
}

/// The keys and values of a call, and what is said of their scores. `(&k, &v)` is dense keys and values.
///
/// ```
/// use warptile::{Attention, Backend, Keys, Layout};
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::auto()?;
/// let q = backend.tensor(&[0.5_f32; 16], [1, 2, 1, 8])?;
/// let kv = backend.tensor(&[0.5_f32; 24], [1, 3, 1, 8])?;
/// // Of the three keys only the first two exist.
/// let output = Attention::new().forward(&q, Keys::new(&kv, &kv).lengths(&[2]))?;
/// let lse: Vec<f32> = output.lse.map_or(Ok(Vec::new()), |lse| lse.to_vec())?;
/// // Two equal scores of 8 * 0.25 / sqrt(8).
/// assert!((lse[0] - (2.0_f32.ln() + 2.0 / 8.0_f32.sqrt())).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "keys do nothing until `forward` is called"]
pub struct Keys<'a, T: Element> {
    pub(crate) tensors: KeyTensors<'a>,
    pub(crate) side: Side<'a>,
    pub(crate) table: Option<Table<'a>>,
    pub(crate) bias: Option<&'a Tensor<T>>,
    pub(crate) key_mask: Option<&'a Tensor<u8>>,
}

impl<'a, T: Element> Keys<'a, T> {
    /// Dense keys and values.
    pub fn new(k: &'a Tensor<T>, v: &'a Tensor<T>) -> Self {
        Self::of([Part::all(k), Part::all(v)], None)
    }

    /// Dense keys and values in 8 bits, beside queries in 16 bits or `f32`: half the memory of 16 bits, and half the bytes to read in a step
    /// of decoding. [`CacheWrite`](crate::CacheWrite) writes them; `scales` are those that it divides by. In pages:
    /// [`in_pages`](Self::in_pages).
    ///
    /// ```
    /// use warptile::{Attention, Backend, E4m3, Keys, Scales};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let q = backend.tensor(&[0.5_f32; 8], [1, 1, 1, 8])?;
    /// // 0.25 at a scale of 0.01 is 25, and the nearest to that is 24.
    /// let kv = backend.tensor(&[E4m3::quantize(0.25, 0.01); 24], [1, 3, 1, 8])?;
    /// let keys = Keys::quantized(&kv, &kv, Scales::new(&[0.01], &[0.01]));
    /// let output = Attention::new().forward(&q, keys)?;
    /// # assert!(output.out.to_vec()?.iter().all(|x| (x - 0.24).abs() < 1e-6));
    /// # Ok(())
    /// # }
    /// ```
    pub fn quantized<Q: Quantized>(k: &'a Tensor<Q>, v: &'a Tensor<Q>, scales: Scales<'a>) -> Self {
        Self::of([Part::all(k), Part::all(v)], Some(scales.of_type(Q::TYPE)))
    }

    /// As [`quantized`](Self::quantized), of a type that is known at run time: the bits of its numbers.
    pub fn quantized_bits(
        element: QuantizedType,
        k: &'a Tensor<u8>,
        v: &'a Tensor<u8>,
        scales: Scales<'a>,
    ) -> Self {
        Self::of([Part::all(k), Part::all(v)], Some(scales.of_type(element)))
    }

    /// Of elements `T`, unless `quantized` says otherwise.
    pub(crate) fn of([k, v]: [Part<'a>; 2], quantized: Option<ScaledBy<'a>>) -> Self {
        Keys {
            tensors: KeyTensors { k, v, quantized },
            side: Side::default(),
            table: None,
            bias: None,
            key_mask: None,
        }
    }

    /// The tensors are of pages: see [`paged`](Self::paged).
    pub fn in_pages<L: LengthElement>(
        self,
        table: &'a [L],
        layout: impl Into<TableLayout>,
    ) -> Self {
        self.with_table(List::Host(bytemuck::cast_slice(table)), layout.into())
    }

    /// The tensors are of pages: see [`paged_on_device`](Self::paged_on_device).
    pub fn in_pages_on_device<L: LengthElement>(
        self,
        table: DeviceSlice<'a, L>,
        layout: impl Into<TableLayout>,
    ) -> Self {
        self.with_table(List::Device(table.into_bytes()), layout.into())
    }

    /// Keys and values in pages, as a cache holds them: tensors of pages, rows of a page (1 to 256), heads, head size, with any
    /// strides. The table has for each sequence the numbers of its pages in order; its entries past the last key of a sequence
    /// mean nothing, and neither do the rows of a page past it.
    ///
    /// ```
    /// use warptile::{Attention, Backend, Keys};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let q = backend.tensor(&[0.5_f32; 2 * 8], [2, 1, 1, 8])?; // a new token of each of two sequences
    /// let pages = backend.tensor(&[0.5_f32; 5 * 16 * 8], [5, 16, 1, 8])?; // 5 pages of 16 rows
    /// let table = [4, 1, /* the second sequence has one page only */ 0, -1];
    /// let keys = Keys::paged(&pages, &pages, &table, [2, 2]).lengths(&[20, 3]);
    /// let output = Attention::new().forward(&q, keys)?;
    /// # assert_eq!(output.out.to_vec()?, [0.5; 16]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn paged<L: LengthElement>(
        k: &'a Tensor<T>,
        v: &'a Tensor<T>,
        table: &'a [L],
        layout: impl Into<TableLayout>,
    ) -> Self {
        Keys::new(k, v).in_pages(table, layout)
    }

    /// As [`paged`](Self::paged) with a table on the device, whose numbers the kernel clamps to the pages there are.
    pub fn paged_on_device<L: LengthElement>(
        k: &'a Tensor<T>,
        v: &'a Tensor<T>,
        table: DeviceSlice<'a, L>,
        layout: impl Into<TableLayout>,
    ) -> Self {
        Keys::new(k, v).in_pages_on_device(table, layout)
    }

    fn with_table(mut self, entries: List<'a>, layout: TableLayout) -> Self {
        self.table = Some(Table { entries, layout });
        self
    }

    lengths!();

    /// No sequence is taken to have more keys than this. Where only the device knows the lengths, a bound nearer to them than
    /// the rows there are lets a better kernel be chosen, and less work be launched.
    pub fn longest(mut self, keys: usize) -> Self {
        self.side.longest = Some(keys);
        self
    }

    /// Adds a tensor to the scores: `[batch, queries, heads, keys]` as [`Layout`](crate::Layout) counts dimensions, so
    /// [`Layout::bhsd`](crate::Layout::bhsd) describes the usual `[batch, heads, queries, keys]`. An extent of 1 repeats.
    pub fn bias(mut self, bias: &'a Tensor<T>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Hides the keys for which a tensor of the same shape as [`bias`](Self::bias) is 0. Values of hidden keys count 0 times, so they must be
    /// finite: 0 times a NaN or an infinity is NaN. [`lengths`](Self::lengths) hide keys whose values may be anything.
    pub fn key_mask(mut self, key_mask: &'a Tensor<u8>) -> Self {
        self.key_mask = Some(key_mask);
        self
    }
}

impl<'a, T: Element> From<(&'a Tensor<T>, &'a Tensor<T>)> for Keys<'a, T> {
    fn from((k, v): (&'a Tensor<T>, &'a Tensor<T>)) -> Self {
        Keys::new(k, v)
    }
}
