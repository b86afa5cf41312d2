//! A cache of keys and values in pages, and who holds which page.

mod free_pages;
mod page;
mod pool;
mod step;

use std::fmt;
use std::marker::PhantomData;

use crate::backend::Backend;
use crate::error::Result;
use crate::operands::{Keys, Queries, Scales};
use crate::ops::{CacheTensors, CacheWrite};
use crate::spec::{
    Call, Element, ElementType, Heads, Invalid, Layout, SCALES, Types, check_list,
    expect_countable, expect_scales, scale_of,
};
use crate::tensor::Tensor;

use page::PageLayout;
use pool::Pool;
pub use pool::SequenceId;
use step::{Form, Step};

/// The keys and values of the layers of a decoder, in pages that its sequences share: allocated once, then given out and taken back.
///
/// Sequences come and go by [`allocate`](Self::allocate) and [`free`](Self::free). A [`step`](Self::step) names the sequences that
/// get new tokens; then each layer [`append`](Self::append)s the keys and values of those tokens, and attends to the
/// [`keys`](Self::keys) of the sequences. All layers share one block table, so page `p` of a sequence is page `p` in each.
///
/// ```
/// use warptile::{Attention, Backend, KvCache, Mask};
/// use warptile::spec::{Pairing, Rotary};
///
/// # fn main() -> warptile::Result<()> {
/// let backend = Backend::cpu();
/// // 2 key/value heads of size 8, in 64 pages of 16 rows, for steps of up to 4 sequences.
/// let mut cache = KvCache::<f32>::builder(2, 8).pages(64).page_rows(16).sequences(4).build(&backend)?;
/// let attention = Attention::new().mask(Mask::causal());
/// let sequence = cache.allocate();
/// let mut tokens = 5; // those of the prompt
/// for _ in 0..20 {
///     cache.step(&[(sequence, tokens)])?;
///     // A model would compute these from the tokens.
///     let mut q = backend.tensor(&vec![0.5_f32; tokens * 32], [1, tokens, 4, 8])?;
///     let kv = backend.tensor(&vec![0.25_f32; tokens * 16], [1, tokens, 2, 8])?;
///     let rotary = Rotary::computed(8, 10_000.0, Pairing::HalfSplit)?;
///     cache.append(0, &kv, &kv)?.rotary(rotary).queries(&mut q).run()?;
///     let output = attention.forward(&q, cache.keys(0)?)?;
///     # assert_eq!(output.out.shape(), [1, tokens, 4, 8]);
///     tokens = 1;
/// }
/// assert_eq!(cache.len(sequence)?, 24);
/// assert_eq!(cache.free_pages(), 62);
/// cache.free(sequence)?;
/// assert_eq!(cache.free_pages(), 64);
/// # Ok(())
/// # }
/// ```
///
/// # Tensors of a step
///
/// If all sequences of a step have the same number of new tokens, its tensors may be `[sequences, tokens, heads, head size]`. In
/// any case the tokens of all sequences may lie one after the other, `[1, tokens of all, heads, head size]`: then
/// [`queries`](Self::queries) says which are whose. The order is that of the step.
///
/// # Captured steps
///
/// On a GPU the table and the lengths are in memory that stays where it is. A graph that captured the appends and forwards of one
/// step does another one when it is launched after the next [`step`](Self::step), which sends what has changed of them, outside of the
/// graph and without a wait. What a graph fixes is how many sequences the step has, and how many new tokens each has;
/// [`step_padded`](Self::step_padded) fills up a step with empty places. Everything a graph reads in addition to the cache must stay where
/// it is, too: see [`Tensor::copy_from_slice`], [`CacheWrite::queries_into`] and
/// [`Attention::forward_into`](crate::Attention::forward_into). `examples/captured_step.rs` does all this.
pub struct KvCache<T: Element> {
    backend: Backend,
    layers: Vec<Layer<T>>,
    page_layout: PageLayout,
    pool: Pool,
    step: Step,
}

/// Keys and values of a layer, in one allocation: a [`PageLayout`] says where.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each layer, in a list that is made once"
)]
enum Layer<T: Element> {
    Same(Tensor<T>),
    Quantized {
        element: ElementType,
        /// The bits of its numbers.
        bits: Tensor<u8>,
        /// One for each key/value head, of the keys and of the values. They stay where they are.
        scales: [Tensor<f32>; 2],
    },
}

/// The scales of a quantized layer.
fn scales_of([k, v]: &[Tensor<f32>; 2]) -> Result<Scales<'_>> {
    Ok(match (k.as_slice(), v.as_slice()) {
        (Some(k), Some(v)) => Scales::new(k, v),
        _ => Scales::on_device(k.on_device("k_scale")?, v.on_device("v_scale")?),
    })
}

/// Describes a [`KvCache`]; made by [`KvCache::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct KvCacheBuilder<T> {
    element: PhantomData<T>,
    /// As many of queries as of keys and values: what a cache can hold does not depend on them.
    heads: Heads,
    layers: usize,
    pages: usize,
    page_rows: usize,
    sequences: usize,
    longest: Option<usize>,
    quantized: Option<ElementType>,
}

impl<T: Element> KvCacheBuilder<T> {
    /// Holds keys and values in a type of 8 bits: half the memory of 16 bits, and half the bytes to read in a step of
    /// decoding. What is appended is divided by scales, which are 1 until [`KvCache::set_scales`] sets others.
    ///
    /// ```
    /// use warptile::{Attention, Backend, ElementType, KvCache};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let mut cache = KvCache::<f32>::builder(2, 16).quantized(ElementType::E4m3).build(&backend)?;
    /// cache.set_scales(0, &[0.02], &[0.01])?; // of keys and of values, as a calibration has found them
    /// let sequence = cache.allocate();
    /// cache.step(&[(sequence, 5)])?;
    /// let q = backend.tensor(&[0.5_f32; 5 * 4 * 16], [1, 5, 4, 16])?;
    /// let kv = backend.tensor(&[0.25_f32; 5 * 2 * 16], [1, 5, 2, 16])?;
    /// cache.append(0, &kv, &kv)?.run()?;
    /// let output = Attention::new().forward(&q, cache.keys(0)?)?;
    /// # assert_eq!(output.out.shape(), [1, 5, 4, 16]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn quantized(mut self, element: impl Into<Option<ElementType>>) -> Self {
        self.quantized = element.into();
        self
    }

    /// Head size of the values, if it differs from that of the keys: 128 with 192, for example.
    ///
    /// ```
    /// use warptile::{Attention, Backend, KvCache};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let backend = Backend::cpu();
    /// let mut cache = KvCache::<f32>::builder(2, 24).value_dim(16).build(&backend)?;
    /// let sequence = cache.allocate();
    /// cache.step(&[(sequence, 5)])?;
    /// let q = backend.tensor(&[0.5_f32; 5 * 4 * 24], [1, 5, 4, 24])?;
    /// let k = backend.tensor(&[0.25_f32; 5 * 2 * 24], [1, 5, 2, 24])?;
    /// let v = backend.tensor(&[0.25_f32; 5 * 2 * 16], [1, 5, 2, 16])?;
    /// cache.append(0, &k, &v)?.run()?;
    /// let output = Attention::new().forward(&q, cache.keys(0)?)?;
    /// assert_eq!(output.out.shape(), [1, 5, 4, 16]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_dim(mut self, value_dim: usize) -> Self {
        self.heads = self.heads.value_dim(value_dim);
        self
    }

    /// Layers, each with keys and values of its own. Default: 1.
    pub fn layers(self, layers: usize) -> Self {
        KvCacheBuilder { layers, ..self }
    }

    /// Pages of each layer. Default: 256.
    pub fn pages(self, pages: usize) -> Self {
        KvCacheBuilder { pages, ..self }
    }

    /// Rows of a page, 1 to 256: of large pages the last of a sequence wastes more, and small ones make tables longer. Default: 16.
    pub fn page_rows(self, page_rows: usize) -> Self {
        KvCacheBuilder { page_rows, ..self }
    }

    /// The most sequences of a step. Any number may be allocated. Default: 1.
    pub fn sequences(self, sequences: usize) -> Self {
        KvCacheBuilder { sequences, ..self }
    }

    /// The most keys that a sequence can have. Default: as many as there is room for in all pages.
    pub fn longest(mut self, keys: usize) -> Self {
        self.longest = Some(keys);
        self
    }

    /// Allocates the pages of all layers.
    ///
    /// # Errors
    /// A number that is beyond what attention can have: layers, heads and head sizes, rows of a page, pages, keys of a sequence; if there
    /// is not enough memory; a type of [`quantized`](Self::quantized) that has no scales.
    pub fn build(self, backend: &Backend) -> Result<KvCache<T>> {
        let element_bytes = match self.quantized {
            None => size_of::<T>(),
            Some(_) => size_of::<u8>(),
        };
        let page_layout = PageLayout::new(self.pages, self.page_rows, &self.heads, element_bytes);
        let all = self.pages.saturating_mul(self.page_rows);
        let longest = self.longest.unwrap_or(all).min(all);
        let counts = [
            ("layers", self.layers),
            ("pages", self.pages),
            ("sequences", self.sequences),
        ];
        for (argument, found) in counts {
            if found == 0 {
                let rule = "is 0, but must be at least 1".to_owned();
                return Err(Invalid::Pages { argument, rule }.into());
            }
        }
        // Then every count of rows, pages and sequences in a step fits 31 bits.
        let counts = [
            ("layers", self.layers),
            ("pages", all),
            ("sequences", self.sequences),
        ];
        for (argument, found) in counts {
            expect_countable(argument, "length", found)?;
        }
        let columns = longest.div_ceil(self.page_rows.max(1));
        // The largest step of this cache.
        let q = Layout::bshd([self.sequences, 1, self.heads.query, self.heads.dim]);
        let [k, v] = page_layout.layouts();
        if self.quantized.is_some_and(|element| !element.is_scaled()) {
            let rule = "names a type whose numbers have no scales; e4m3 has them";
            return Err(Invalid::presence("quantized", rule).into());
        }
        let types = Types::of(T::TYPE).keys(self.quantized.unwrap_or(T::TYPE));
        Call::builder(&q, &k, &v, types)
            .device_block_table([self.sequences, columns])
            .device_key_lengths(self.sequences)
            .build()?;
        let memory = page_layout.memory();
        memory.validate("pages")?;
        let kv_heads = self.heads.key_value;
        let ones = vec![1.0; kv_heads];
        let layer = || -> Result<Layer<T>> {
            Ok(match self.quantized {
                None => Layer::Same(Tensor::uninit(backend, "pages", memory)?),
                Some(element) => Layer::Quantized {
                    element,
                    bits: Tensor::uninit(backend, "pages", memory)?,
                    scales: [
                        backend.tensor(&ones, [1, 1, 1, kv_heads])?,
                        backend.tensor(&ones, [1, 1, 1, kv_heads])?,
                    ],
                },
            })
        };
        Ok(KvCache {
            backend: backend.clone(),
            layers: (0..self.layers).map(|_| layer()).collect::<Result<_>>()?,
            page_layout,
            pool: Pool::new(self.pages as i32, self.page_rows, longest),
            step: Step::new(backend, self.sequences, columns, longest)?,
        })
    }
}

impl<T: Element> KvCache<T> {
    /// A cache of `kv_heads` heads of keys and values of `head_dim` elements; see [`KvCacheBuilder::value_dim`] for values of
    /// another head size.
    pub fn builder(kv_heads: usize, head_dim: usize) -> KvCacheBuilder<T> {
        Self::of_heads(Heads::new(kv_heads, head_dim))
    }

    /// As [`builder`](Self::builder), of these key/value heads and head sizes. Query heads do not count.
    pub fn of_heads(heads: Heads) -> KvCacheBuilder<T> {
        KvCacheBuilder {
            element: PhantomData,
            heads: Heads::new(heads.key_value, heads.dim).with_dims(heads.dims()),
            layers: 1,
            pages: 256,
            page_rows: 16,
            sequences: 1,
            longest: None,
            quantized: None,
        }
    }

    /// Sets what keys and values of a layer of a quantized cache are divided by, and multiplied by when they are read: one number for all
    /// key/value heads, or one for each. Rows that the cache has already count with the new scales, too.
    ///
    /// On a GPU the numbers go where the old ones were, in the order of the backend's stream, so a captured step reads them.
    ///
    /// # Errors
    /// If no such layer exists, or the cache is not quantized; a number of scales that is neither 1 nor that of the
    /// heads; a scale that is not finite and above 0; if the device fails.
    pub fn set_scales(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<()> {
        self.check_layer(layer)?;
        let Layer::Quantized {
            scales, element, ..
        } = &mut self.layers[layer]
        else {
            return Err(Invalid::Scales {
                argument: SCALES[0].name(),
                keys: None,
            }
            .into());
        };
        let kv_heads = scales[0].layout().head_dim();
        expect_scales(Some(*element), [k.len(), v.len()], kv_heads)?;
        for (operand, scales) in SCALES.into_iter().zip([k, v]) {
            check_list(operand, scales)?;
        }
        for (scales, to) in [k, v].into_iter().zip(scales) {
            let each: Vec<f32> = (0..kv_heads).map(|head| scale_of(scales, head)).collect();
            to.copy_from_slice(&each)?;
        }
        Ok(())
    }

    /// A new sequence without rows. It takes pages as it grows.
    pub fn allocate(&mut self) -> SequenceId {
        self.pool.allocate()
    }

    /// Gives a sequence's pages back. The present step goes on with what it has.
    ///
    /// # Errors
    /// If it is not a sequence of this cache, or was freed.
    pub fn free(&mut self, sequence: SequenceId) -> Result<()> {
        self.pool.free(sequence)
    }

    /// Drops what a sequence has beyond its first `len` rows, and gives back the pages that it no longer needs: for tokens that were
    /// drafted and rejected, say. The present step goes on with what it has.
    ///
    /// # Errors
    /// If it is not a sequence of this cache, or was freed.
    pub fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<()> {
        self.pool.truncate(sequence, len)
    }

    /// Rows of a sequence, those of the present step included.
    ///
    /// # Errors
    /// If it is not a sequence of this cache, or was freed.
    pub fn len(&self, sequence: SequenceId) -> Result<usize> {
        Ok(self.held(sequence)?.len)
    }

    /// The pages of a sequence in the order of its rows.
    ///
    /// # Errors
    /// If it is not a sequence of this cache, or was freed.
    pub fn pages_of(&self, sequence: SequenceId) -> Result<&[i32]> {
        Ok(&self.held(sequence)?.pages)
    }

    fn held(&self, sequence: SequenceId) -> Result<&pool::Held> {
        self.pool.get(sequence).ok_or(pool::UNKNOWN)
    }

    /// Begins a step, in which each of these sequences gets the given number of new rows: takes the pages that they need, and sends the
    /// table and the lengths to the device. The rows count from here on; every layer is to [`append`](Self::append) them.
    ///
    /// On a GPU nothing waits, and what was queued before still reads the numbers of its own step.
    ///
    /// # Errors
    /// Before anything changes: [`Error::OutOfPages`](crate::Error::OutOfPages); a sequence that is not one of this
    /// cache, that was freed, that is named twice, or that would be too long; more sequences than the cache was made
    /// for. If the device fails, or the backend's stream is in a capture, no sequence has grown, and the cache is in
    /// no step.
    pub fn step(&mut self, rows: &[(SequenceId, usize)]) -> Result<()> {
        self.step_padded(rows, rows.len())
    }

    /// As [`step`](Self::step), with empty places up to `batch` sequences: what is appended there goes nowhere, and who attends
    /// there sees no key.
    ///
    /// # Errors
    /// As [`step`](Self::step); if `batch` is less than the number of sequences.
    pub fn step_padded(&mut self, rows: &[(SequenceId, usize)], batch: usize) -> Result<()> {
        let most = self.step.most();
        if batch > most || batch < rows.len() {
            return Err(Invalid::Pages {
                argument: "step",
                rule: format!(
                    "has {} sequences in {batch} places; this cache was made for up to {most}",
                    rows.len()
                ),
            }
            .into());
        }
        self.pool.grow(rows)?;
        self.step.set(&self.pool, rows, batch).inspect_err(|_| {
            for &(sequence, more) in rows {
                if let Some(held) = self.pool.get(sequence) {
                    let before = held.len - more;
                    // It is there, so this does not fail.
                    drop(self.pool.truncate(sequence, before));
                }
            }
            self.step.clear();
        })
    }

    /// A write of the step's keys and values into a layer. Nothing happens before [`CacheWrite::run`]; with
    /// [`CacheWrite::rotary`] keys are rotated by their places in their sequences (tables must have a row for each),
    /// and with [`CacheWrite::queries`] so are queries of the same form. Writing again writes the same places.
    ///
    /// # Errors
    /// If no such layer exists, or the tensors do not have the rows of the step.
    pub fn append<'a>(
        &'a mut self,
        layer: usize,
        k: &'a Tensor<T>,
        v: &'a Tensor<T>,
    ) -> Result<CacheWrite<'a, T>> {
        let form = self.step.form("k", k.layout())?;
        self.check_layer(layer)?;
        let step = &self.step;
        let (layouts, values_at) = (self.page_layout.layouts(), self.page_layout.values_at());
        let cache = match &mut self.layers[layer] {
            Layer::Same(memory) => CacheTensors::in_one(memory, layouts, values_at, None),
            Layer::Quantized {
                element,
                bits,
                scales,
            } => {
                let quantized = scales_of(scales)?.of_type(*element);
                CacheTensors::in_one(bits, layouts, values_at, Some(quantized))
            }
        };
        let mut write = CacheWrite::new(k, v, cache);
        if form == Form::Packed {
            write = write.packed(step.offsets());
        }
        Ok(match step.on_device()? {
            Some([before, _, table]) => write
                .after_on_device(before)
                .known_lengths(step.on_host()[0])
                .block_table_on_device(table, step.columns()),
            None => {
                let [before, _, table] = step.on_host();
                write.after(before).block_table(table, step.columns())
            }
        })
    }

    /// The keys and values that the sequences of the step have in a layer, their new rows included. Queries whose rows lie one after the
    /// other go with them as [`cache.queries(&q)`](Self::queries).
    ///
    /// # Errors
    /// If no such layer exists, or the cache is in no step.
    pub fn keys(&self, layer: usize) -> Result<Keys<'_, T>> {
        self.check_layer(layer)?;
        if !self.step.is_set() {
            let rule = step::NO_STEP.to_owned();
            return Err(Invalid::Pages {
                argument: "k",
                rule,
            }
            .into());
        }
        let keys = match &self.layers[layer] {
            Layer::Same(memory) => Keys::of(self.page_layout.parts(memory), None),
            Layer::Quantized {
                element,
                bits,
                scales,
            } => {
                let quantized = scales_of(scales)?.of_type(*element);
                Keys::of(self.page_layout.parts(bits), Some(quantized))
            }
        };
        let layout = [self.step.batch(), self.step.columns()];
        Ok(match self.step.on_device()? {
            Some([_, after, table]) => { keys.in_pages_on_device(table, layout) }
                .lengths_on_device(after)
                .longest(self.longest()),
            None => {
                let [_, after, table] = self.step.on_host();
                keys.in_pages(table, layout).lengths(after)
            }
        })
    }

    /// Queries of the step's rows. If they are `[sequences, tokens, heads, head size]`, `&q` means the same.
    ///
    /// # Errors
    /// If `q` does not have the rows of the step.
    pub fn queries<'a>(&'a self, q: &'a Tensor<T>) -> Result<Queries<'a, T>> {
        let queries = Queries::new(q);
        Ok(match self.step.form("q", q.layout())? {
            Form::Dense => queries,
            Form::Packed => queries.packed(self.step.offsets()),
        })
    }

    /// The pages of keys and of values of a layer, each `[pages, page rows, heads, head size]`, for kernels of one's own. While
    /// somebody holds one, nothing can be appended: [`CacheWrite::run`] returns [`Error::Shared`](crate::Error::Shared).
    ///
    /// Both are views of one allocation, in which a page's values follow its keys, and the next page follows these. So both have
    /// the same distance from page to page, `layout().strides[0]` elements: a page of keys and one of values, each rounded up to a
    /// multiple of 16 bytes. Rows and heads of a page are dense.
    ///
    /// ```
    /// use warptile::{Backend, KvCache};
    ///
    /// # fn main() -> warptile::Result<()> {
    /// let cache = KvCache::<f32>::builder(2, 24).value_dim(16).build(&Backend::cpu())?;
    /// let [keys, values] = cache.tensors(0)?;
    /// assert_eq!((keys.shape(), values.shape()), ([256, 16, 2, 24], [256, 16, 2, 16]));
    /// let page = 16 * 2 * (24 + 16);
    /// assert_eq!(keys.layout().strides, [page, 2 * 24, 24, 1]);
    /// assert_eq!(values.layout().strides, [page, 2 * 16, 16, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no such layer exists, or the cache is quantized: see [`bits`](Self::bits).
    pub fn tensors(&self, layer: usize) -> Result<[Tensor<T>; 2]> {
        self.check_layer(layer)?;
        match &self.layers[layer] {
            Layer::Same(memory) => self.page_layout.views(memory),
            Layer::Quantized { .. } => Err(Invalid::presence("k_pages", "is quantized").into()),
        }
    }

    /// As [`tensors`](Self::tensors), of a quantized cache: the bits of its numbers.
    ///
    /// # Errors
    /// If no such layer exists, or the cache is not quantized.
    pub fn bits(&self, layer: usize) -> Result<[Tensor<u8>; 2]> {
        self.check_layer(layer)?;
        match &self.layers[layer] {
            Layer::Quantized { bits, .. } => self.page_layout.views(bits),
            Layer::Same(_) => Err(Invalid::presence("k_pages", "is not quantized").into()),
        }
    }

    fn check_layer(&self, layer: usize) -> Result<()> {
        match layer < self.layers.len() {
            true => Ok(()),
            false => Err(Invalid::Pages {
                argument: "layer",
                rule: format!("is {layer}, but the cache has {}", self.layers.len()),
            }
            .into()),
        }
    }

    /// Where the pages are.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Pages of each layer.
    pub fn pages(&self) -> usize {
        self.page_layout.pages()
    }

    /// Pages that no sequence holds.
    pub fn free_pages(&self) -> usize {
        self.pool.free_pages()
    }

    /// Rows of a page.
    pub fn page_rows(&self) -> usize {
        self.page_layout.page_rows()
    }

    /// Head sizes of keys and of values.
    pub fn dims(&self) -> [usize; 2] {
        self.page_layout.layouts().map(|layout| layout.head_dim())
    }

    /// The most keys that a sequence can have.
    pub fn longest(&self) -> usize {
        self.pool.longest()
    }
}

impl<T: Element> fmt::Debug for KvCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "KvCache<{}>({} layers of {} pages of {} rows, {} free, on {})",
            T::TYPE,
            self.layers.len(),
            self.pages(),
            self.page_rows(),
            self.free_pages(),
            self.backend
        )
    }
}
