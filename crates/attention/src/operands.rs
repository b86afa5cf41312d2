//! Arguments of a call at the user's level: queries, and keys with their values, each with the lengths of its sequences.

use std::marker::PhantomData;

use bytemuck::Pod;
use warptile_driver::DeviceSlice;
use warptile_kernels::Operand;
use warptile_kernels::abi::CHUNK_BYTES;

use crate::backend::Backend;
use crate::error::Result;
use crate::spec::{
    BlockList, BlockLists, Element, ElementType, Elements, Invalid, Layout, LengthElement,
    MemoryType, Numbers, Quantized, Request, TableLayout,
};
use crate::tensor::{Bytes, Tensor};

/// The argument given for an operand.
#[derive(Debug, Clone)]
pub(crate) enum Given<'a> {
    /// A tensor, or a part of one.
    Tensor(Part<'a>),
    /// Numbers of 32 bits; `None` for some of a different type from the operand's, which the call refuses.
    Numbers(Numbers<&'a [u8], DeviceSlice<'a, u8>>),
}

/// The operands of one side of a call besides q, k and v, and bounds of its lengths.
#[derive(Debug, Clone)]
pub(crate) struct Side<'a> {
    pub(crate) given: Vec<(Operand, Given<'a>)>,
    longest: Option<usize>,
    /// As `longest`, of the offsets on the device: others have another bound or none.
    longest_packed: Option<usize>,
    pub(crate) table: Option<TableLayout>,
    pub(crate) blocks: Option<BlockLists>,
}

impl<'a> Side<'a> {
    fn new(given: Vec<(Operand, Given<'a>)>) -> Self {
        Side {
            given,
            longest: None,
            longest_packed: None,
            table: None,
            blocks: None,
        }
    }

    fn set(&mut self, operand: Operand, given: Given<'a>) {
        if matches!(operand, Operand::QueryOffsets | Operand::KeyOffsets) {
            self.longest_packed = None;
        }
        self.given.retain(|(other, _)| *other != operand);
        self.given.push((operand, given));
    }

    /// No sequence is taken to be longer.
    pub(crate) fn bound(&self) -> Option<usize> {
        let bounds = [self.longest, self.longest_packed];
        bounds.into_iter().flatten().min()
    }

    fn host<T: Pod>(&mut self, operand: Operand, numbers: &'a [T]) {
        let bytes = bytemuck::cast_slice(numbers);
        self.set(operand, Given::Numbers(Numbers::Host(bytes)));
    }

    fn device<T: Pod>(&mut self, operand: Operand, numbers: DeviceSlice<'a, T>) {
        let numbers = Numbers::Device(numbers.into_bytes());
        self.set(operand, Given::Numbers(numbers));
    }
}

impl<'a> Given<'a> {
    /// The backend of a tensor.
    pub(crate) fn backend(&self) -> Option<&'a Backend> {
        match self {
            Given::Tensor(part) => Some(part.backend()),
            Given::Numbers(_) => None,
        }
    }

    /// The builder's description of these numbers.
    pub(crate) fn request(&self) -> Request<'a> {
        match self {
            Given::Numbers(Numbers::Host(bytes)) => Numbers::Host(bytemuck::cast_slice(bytes)),
            Given::Numbers(Numbers::Device(bytes)) => {
                Numbers::Device(bytes.len() / size_of::<i32>())
            }
            _ => Numbers::None,
        }
    }

    /// The memory of what must be in host memory.
    pub(crate) fn on_host(&self, argument: &'static str) -> Result<&'a [u8]> {
        match self {
            Given::Tensor(part) => part.on_host(argument),
            Given::Numbers(Numbers::Host(bytes)) => Ok(bytes),
            Given::Numbers(_) => Err(Invalid::presence(
                argument,
                "is on a GPU, but the tensors are in host memory",
            )
            .into()),
        }
    }
}

macro_rules! lengths {
    ($offsets:ident, $lengths:ident) => {
        /// The sequences lie one after the other along the rows of tensors whose batch extent is 1: sequence `b` is rows
        /// `offsets[b]..offsets[b + 1]`. Rows past the last offset belong to no sequence.
        pub fn packed(mut self, offsets: &'a [i32]) -> Self {
            self.side.host(Operand::$offsets, offsets);
            self
        }

        /// As [`packed`](Self::packed) with offsets on the device, which are unchecked: the kernel clamps them to the rows
        /// there are. No sequence is taken to be longer than `longest`.
        pub fn packed_on_device<L: LengthElement>(
            mut self,
            offsets: DeviceSlice<'a, L>,
            longest: usize,
        ) -> Self {
            self.side.device(Operand::$offsets, offsets);
            self.side.longest_packed = Some(longest);
            self
        }

        /// Limits each sequence to its first `lengths[b]` rows.
        pub fn lengths(mut self, lengths: &'a [i32]) -> Self {
            self.side.host(Operand::$lengths, lengths);
            self
        }

        /// Row offsets or used lengths by their operand: [`packed`](Self::packed) or [`lengths`](Self::lengths). The call refuses an
        /// operand whose elements are not `i32`.
        pub fn numbers(mut self, operand: Operand, numbers: &'a [i32]) -> Self {
            match operand.elements() {
                Elements::I32 => self.side.host(operand, numbers),
                _ => self.side.set(operand, Given::Numbers(Numbers::None)),
            }
            self
        }

        /// As [`lengths`](Self::lengths) with lengths on the device, which the kernel clamps to the rows there are.
        pub fn lengths_on_device<L: LengthElement>(mut self, lengths: DeviceSlice<'a, L>) -> Self {
            self.side.device(Operand::$lengths, lengths);
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
            side: Side::new(Vec::new()),
        }
    }

    lengths!(QueryOffsets, QueryLengths);
}

impl<'a, T: Element> From<&'a Tensor<T>> for Queries<'a, T> {
    fn from(q: &'a Tensor<T>) -> Self {
        Queries::new(q)
    }
}

/// The scales of quantized keys and values: one number for all key/value heads, or one for each. They are finite and above 0. Numbers
/// on a device are not checked; kernels read them when they run, so a captured launch reads them again at each replay.
#[derive(Debug, Clone)]
#[must_use]
pub struct Scales<'a>([Numbers<&'a [f32], DeviceSlice<'a, f32>>; 2]);

impl<'a> Scales<'a> {
    /// The scales of the keys, and of the values.
    pub fn new(k: &'a [f32], v: &'a [f32]) -> Self {
        Scales([Numbers::Host(k), Numbers::Host(v)])
    }

    /// As [`new`](Self::new), in device memory.
    pub fn on_device(k: DeviceSlice<'a, f32>, v: DeviceSlice<'a, f32>) -> Self {
        Scales([Numbers::Device(k), Numbers::Device(v)])
    }

    pub(crate) fn of_type(self, element: ElementType) -> ScaledBy<'a> {
        let given = |numbers: Numbers<&'a [f32], DeviceSlice<'a, f32>>| {
            Given::Numbers(match numbers {
                Numbers::Host(scales) => Numbers::Host(bytemuck::cast_slice(scales)),
                Numbers::Device(scales) => Numbers::Device(scales.into_bytes()),
                Numbers::None => Numbers::None,
            })
        };
        let [k, v] = self.0.map(given);
        ScaledBy {
            element,
            scales: [(Operand::KScale, k), (Operand::VScale, v)],
        }
    }
}

/// A type of 8 bits, with the scales of keys and of values.
#[derive(Debug, Clone)]
pub(crate) struct ScaledBy<'a> {
    pub(crate) element: ElementType,
    pub(crate) scales: [(Operand, Given<'a>); 2],
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

    /// The type of the tensor's elements.
    pub(crate) fn memory_type(&self) -> MemoryType {
        self.memory.memory_type()
    }

    /// Returns true if it starts at a multiple of 16 bytes. On the CPU it does not matter.
    pub(crate) fn starts_aligned(&self) -> bool {
        self.memory.starts_aligned() && self.at.is_multiple_of(CHUNK_BYTES)
    }

    fn on_host(&self, argument: &'static str) -> Result<&'a [u8]> {
        let bytes = self.memory.on_host(argument)?;
        Ok(bytes.get(self.at..).unwrap_or_default())
    }

    pub(crate) fn on_device(&self, argument: &'static str) -> Result<DeviceSlice<'a, u8>> {
        Ok(self.memory.on_device(argument)?.slice(self.at..)?)
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
    /// The type of keys and values.
    pub(crate) element: ElementType,
    pub(crate) tensors: [Part<'a>; 2],
    pub(crate) side: Side<'a>,
    queries: PhantomData<T>,
}

impl<'a, T: Element> Keys<'a, T> {
    /// Dense keys and values.
    pub fn new(k: &'a Tensor<T>, v: &'a Tensor<T>) -> Self {
        Self::of([Part::all(k), Part::all(v)], None)
    }

    /// Dense keys and values in 8 bits, with queries in 16 bits or `f32`: half the memory of 16 bits, and half the
    /// bytes to read in a step of decoding. [`CacheWrite`](crate::ops::CacheWrite) writes them; `scales` are those
    /// that it divides by. In pages: [`in_pages`](Self::in_pages).
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
        element: ElementType,
        k: &'a Tensor<u8>,
        v: &'a Tensor<u8>,
        scales: Scales<'a>,
    ) -> Self {
        Self::of([Part::all(k), Part::all(v)], Some(scales.of_type(element)))
    }

    /// Takes keys and values of elements `T`, unless `quantized` gives another type.
    pub(crate) fn of([k, v]: [Part<'a>; 2], quantized: Option<ScaledBy<'a>>) -> Self {
        let element = quantized.as_ref().map_or(T::TYPE, |by| by.element);
        let scales = quantized.map_or_else(Vec::new, |by| Vec::from(by.scales));
        Keys {
            element,
            tensors: [k, v],
            side: Side::new(scales),
            queries: PhantomData,
        }
    }

    /// The tensors are of pages: see [`paged`](Self::paged).
    pub fn in_pages<L: LengthElement>(
        mut self,
        table: &'a [L],
        layout: impl Into<TableLayout>,
    ) -> Self {
        self.side.host(Operand::BlockTable, table);
        self.side.table = Some(layout.into());
        self
    }

    /// The tensors are of pages: see [`paged_on_device`](Self::paged_on_device).
    pub fn in_pages_on_device<L: LengthElement>(
        mut self,
        table: DeviceSlice<'a, L>,
        layout: impl Into<TableLayout>,
    ) -> Self {
        self.side.device(Operand::BlockTable, table);
        self.side.table = Some(layout.into());
        self
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

    lengths!(KeyOffsets, KeyLengths);

    /// No sequence is taken to have more keys than this. Where only the device knows the lengths, a bound nearer to them than
    /// the rows there are lets a better kernel be chosen, and less work be launched. Fewer than the rows of a dense tensor are an error where
    /// no lengths are given.
    pub fn longest(mut self, keys: usize) -> Self {
        self.side.longest = Some(keys);
        self
    }

    /// Each block of queries sees the blocks of keys that a list has, and of these what the mask shows: block-sparse attention. The lists
    /// are for each sequence's queries and keys, counted from its first ones. A query without blocks has an output of 0 and an lse of minus
    /// infinity.
    ///
    /// ```
    /// use warptile::{Attention, Backend, BlockList, BlockLists, Keys};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let q = backend.tensor(&[0.0_f32; 128 * 8], [1, 128, 1, 8])?;
    /// let k = backend.tensor(&[0.0_f32; 192 * 8], [1, 192, 1, 8])?;
    /// // The first 64 queries see the last 64 keys, the others all but those.
    /// let lists = BlockLists::new(64, 64);
    /// let blocks = BlockList::from_mask(lists, [1, 1, 2, 3], &[false, false, true, true, true, false])?;
    /// let output = Attention::new().forward(&q, Keys::new(&k, &k).blocks(&blocks))?;
    /// let lse: Vec<f32> = output.lse.map_or(Ok(Vec::new()), |lse| lse.to_vec())?;
    /// assert!((lse[0] - 64_f32.ln()).abs() < 1e-5 && (lse[64] - 128_f32.ln()).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn blocks(mut self, list: &'a BlockList) -> Self {
        self.side.blocks = Some(list.lists());
        self.side.host(Operand::BlockOffsets, list.offsets());
        self.side.host(Operand::BlockIndices, list.indices());
        self
    }

    /// As [`blocks`](Self::blocks), with lists on the device: offsets and indices as [`BlockList`] has them. They are unchecked. The
    /// kernel clamps offsets to the indices there are, leaves out blocks past a sequence's last one, and a block that is listed twice
    /// counts twice. With [`BlockLists::each`] the planner knows about how many blocks a row has.
    pub fn blocks_on_device<L: LengthElement>(
        mut self,
        lists: BlockLists,
        offsets: DeviceSlice<'a, L>,
        indices: DeviceSlice<'a, L>,
    ) -> Self {
        self.side.blocks = Some(lists);
        self.side.device(Operand::BlockOffsets, offsets);
        self.side.device(Operand::BlockIndices, indices);
        self
    }

    /// Adds a tensor to the scores: `[batch, queries, heads, keys]` as [`Layout`](crate::Layout) counts dimensions, so
    /// [`Layout::bhsd`](crate::Layout::bhsd) describes the usual `[batch, heads, queries, keys]`. An extent of 1 repeats.
    pub fn bias(self, bias: &'a Tensor<T>) -> Self {
        self.scores(Operand::Bias, bias)
    }

    /// Like [`bias`](Self::bias), with elements of `f32` whatever the type of the queries. Gradients are refused unless that is `f32`, too.
    pub fn bias_f32(self, bias: &'a Tensor<f32>) -> Self {
        self.scores(Operand::Bias, bias)
    }

    /// A tensor that has an element for each score by its operand: [`bias`](Self::bias) or [`key_mask`](Self::key_mask).
    /// The call refuses any other operand, and elements of another type.
    pub fn scores<U: Pod + Send + Sync>(mut self, operand: Operand, tensor: &'a Tensor<U>) -> Self {
        self.side.set(operand, Given::Tensor(Part::all(tensor)));
        self
    }

    /// Hides the keys for which a tensor of the same shape as [`bias`](Self::bias) is 0. Values of hidden keys count
    /// 0 times, so they must be finite: 0 times a NaN or an infinity is NaN. [`lengths`](Self::lengths) hide keys
    /// whose values may be anything.
    pub fn key_mask(self, key_mask: &'a Tensor<u8>) -> Self {
        self.scores(Operand::KeyMask, key_mask)
    }
}

impl<'a, T: Element> From<(&'a Tensor<T>, &'a Tensor<T>)> for Keys<'a, T> {
    fn from((k, v): (&'a Tensor<T>, &'a Tensor<T>)) -> Self {
        Keys::new(k, v)
    }
}
