//! `write_cache`: new keys and values into a cache, rotated on the way, as flash_attn's `flash_attn_with_kvcache` does it.

use half::{bf16, f16};
use pyo3::prelude::*;
use warptile::gpu::AppendAddresses;
use warptile::{
    Append, AppendOperands, CacheMut, CacheOperand, Element, ElementType, Layout, Pairing,
    QueriesMut, Rotary, TableLayout, Tables, append_cpu,
};

use crate::arguments::{Lengths, Reader, Scales};
use crate::array::{Array, Described, Device, Gradients, Order};
use crate::cpu;
use crate::errors::{CACHE_NAMES, Failure, Result, renamed};
use crate::gpu;
use crate::library::{self, Fill};

/// The arguments of `write_cache`.
pub(crate) struct Request<'py> {
    reader: Reader,
    append: Append,
    q: Option<Array<'py>>,
    k: Array<'py>,
    v: Array<'py>,
    k_cache: Array<'py>,
    v_cache: Array<'py>,
    scales: Option<Scales<'py>>,
    lengths: Lengths<'py>,
    table: Option<Lengths<'py>>,
    cos: Option<Array<'py>>,
    sin: Option<Array<'py>>,
}

/// The arguments as Python gives them, under their names.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Arguments<'py> {
    pub(crate) k: Bound<'py, PyAny>,
    pub(crate) v: Bound<'py, PyAny>,
    pub(crate) k_cache: Bound<'py, PyAny>,
    pub(crate) v_cache: Bound<'py, PyAny>,
    pub(crate) cache_seqlens: Bound<'py, PyAny>,
    pub(crate) q: Option<Bound<'py, PyAny>>,
    pub(crate) block_table: Option<Bound<'py, PyAny>>,
    pub(crate) rotary_cos: Option<Bound<'py, PyAny>>,
    pub(crate) rotary_sin: Option<Bound<'py, PyAny>>,
    pub(crate) interleaved: bool,
    pub(crate) k_descale: Option<Bound<'py, PyAny>>,
    pub(crate) v_descale: Option<Bound<'py, PyAny>>,
}

impl<'py> Request<'py> {
    /// Reads all arguments and checks them against each other.
    pub(crate) fn new(options: &Arguments<'py>) -> Result<Self> {
        let reader = Reader::of("k", &options.k, None, Gradients::Refused)?;
        let k = reader.array("k", &options.k)?;
        let v = reader.array("v", &options.v)?;
        let k_cache = reader.written("k_cache", &options.k_cache)?;
        let v_cache = reader.written("v_cache", &options.v_cache)?;
        let q = reader.optional("q", options.q.as_ref())?;
        let element = k.is.element()?;
        let scales = reader.scales(
            [&k_cache, &v_cache],
            [options.k_descale.as_ref(), options.v_descale.as_ref()],
        )?;
        let same = [&k_cache, &v_cache]
            .into_iter()
            .filter(|_| scales.is_none());
        for other in same.chain([&v]).chain(&q) {
            if other.is.element()? != element {
                return Err(other.is.wrong_dtype(&format!("{}, as k has", k.is.dtype)));
            }
        }
        let layout = |array: &Array<'_>| array.is.tensor(Order::Bshd, false);
        let new = [layout(&k)?, layout(&v)?];
        let cache = [layout(&k_cache)?, layout(&v_cache)?];
        let lengths = reader.lengths("cache_seqlens", Some(&options.cache_seqlens), false)?;
        let lengths = lengths.ok_or_else(|| Failure::Invalid("cache_seqlens is missing".into()))?;
        let table = reader.lengths("block_table", options.block_table.as_ref(), true)?;
        let cos = reader.optional("rotary_cos", options.rotary_cos.as_ref())?;
        let sin = reader.optional("rotary_sin", options.rotary_sin.as_ref())?;

        let mut builder = Append::builder(element, new.each_ref(), cache.each_ref());
        builder = builder.quantized(scales.as_ref().map(Scales::quantization));
        builder = match lengths.on_host() {
            Some(before) => builder.key_lengths(before),
            None => builder.device_key_lengths(lengths.count()),
        };
        if let Some(table) = &table {
            let TableLayout {
                shape: [sequences, columns],
                row_stride,
            } = table.table();
            if sequences != new[0].batch() {
                return Err(Failure::Invalid(format!(
                    "block_table has {sequences} rows, but k has batch {}",
                    new[0].batch()
                )));
            }
            if sequences > 1 && row_stride != columns {
                return Err(Failure::Invalid(
                    "block_table has gaps between its rows, which a cache is not written by; pass a contiguous one"
                        .to_owned(),
                ));
            }
            builder = match table.on_host() {
                Some(entries) => builder.block_table(entries, columns),
                None => builder.device_block_table(columns),
            };
        }
        match (&cos, &sin) {
            (Some(cos), Some(sin)) => {
                let table = angle_table(&cos.is)?;
                if angle_table(&sin.is)? != table || sin.is.dtype != cos.is.dtype {
                    return Err(Failure::Invalid(
                        "rotary_sin is not of the shape, strides and type of rotary_cos".to_owned(),
                    ));
                }
                let pairing = match options.interleaved {
                    true => Pairing::Interleaved,
                    false => Pairing::HalfSplit,
                };
                let rotary = Rotary::with_tables(cos.is.element()?, table, pairing)?;
                builder = builder.rotary(rotary);
                if let Some(q) = &q {
                    let q_layout = layout(q)?;
                    builder = builder.queries(q_layout, Some(q_layout.dense_like()));
                }
            }
            (None, None) => {}
            _ => {
                return Err(Failure::Invalid(
                    "rotary_cos and rotary_sin are given together or not at all".to_owned(),
                ));
            }
        }
        let append = builder
            .build()
            .map_err(|error| renamed(error, CACHE_NAMES))?;
        if let Some(scales) = &scales {
            scales.check(append.batch(), append.heads().key_value)?;
        }
        Ok(Request {
            reader,
            append,
            q,
            k,
            v,
            k_cache,
            v_cache,
            scales,
            lengths,
            table,
            cos,
            sin,
        })
    }

    /// A place for the rotated queries, if there is a rotation and queries.
    pub(crate) fn q_out(&self) -> Result<Option<Array<'py>>> {
        match (&self.q, self.append.q_out()) {
            (Some(q), Some(layout)) => {
                let made = library::dense(q, &layout.shape, &layout.strides, None, Fill::Nothing)?;
                Ok(Some(self.reader.array("q_out", &made)?))
            }
            _ => Ok(None),
        }
    }

    /// Writes, and rotates the queries into their place.
    pub(crate) fn run(&self, py: Python<'py>, q_out: Option<&Array<'py>>) -> Result<()> {
        let done = match self.reader.device() {
            Device::Cpu => self.run_on_cpu(py, q_out),
            Device::Cuda(ordinal) => self.run_on_gpu(py, ordinal, q_out),
        };
        match done {
            Err(Failure::Warptile(error)) => Err(renamed(error, CACHE_NAMES).into()),
            done => done,
        }
    }

    fn run_on_cpu(&self, py: Python<'_>, q_out: Option<&Array<'_>>) -> Result<()> {
        let is = |array: &Option<Array<'_>>| array.as_ref().map(|array| array.is.clone());
        let (cos, sin) = (is(&self.cos), is(&self.sin));
        let q = match q_out {
            Some(_) => is(&self.q),
            None => None,
        };
        let places = Places {
            q: q.as_ref(),
            q_out: q_out.map(|q_out| &q_out.is),
            k: &self.k.is,
            v: &self.v.is,
            k_cache: &self.k_cache.is,
            v_cache: &self.v_cache.is,
            scales: self.scales.as_ref().map(Scales::values),
            tables: cos.as_ref().zip(sin.as_ref()),
        };
        let append = &self.append;
        // SAFETY: the arrays are held until after the call, so their libraries keep the elements; that nobody else touches them
        // meanwhile is what is asked of callers.
        py.detach(|| unsafe {
            match append.element() {
                ElementType::F16 => places.write::<f16>(append),
                ElementType::Bf16 => places.write::<bf16>(append),
                ElementType::F32 => places.write::<f32>(append),
                other => Err(Failure::Type(format!("elements of type {other}"))),
            }
        })
    }

    fn run_on_gpu(&self, py: Python<'_>, ordinal: u32, q_out: Option<&Array<'_>>) -> Result<()> {
        let of = |array: &Option<Array<'_>>| array.as_ref().map_or(0, |array| array.is.address);
        let mut addresses = AppendAddresses::default();
        if let Some(q_out) = q_out {
            (addresses.q, addresses.q_out) = (of(&self.q), q_out.is.address);
        }
        addresses.k = self.k.is.address;
        addresses.v = self.v.is.address;
        addresses.k_pages = self.k_cache.is.address;
        addresses.v_pages = self.v_cache.is.address;
        addresses.key_lengths = self.lengths.address();
        addresses.block_table = self.table.as_ref().map_or(0, Lengths::address);
        (addresses.cos, addresses.sin) = (of(&self.cos), of(&self.sin));
        if let Some(scales) = &self.scales {
            [addresses.k_scale, addresses.v_scale] = scales.addresses();
        }
        let (append, stream) = (&self.append, self.reader.stream());
        // SAFETY: as for `attention`'s launch.
        py.detach(|| unsafe { gpu::append(ordinal, stream, append, &addresses) })
    }
}

/// Layout of cosines or sines, `[positions, half of the rotary size]`.
fn angle_table(array: &Described) -> Result<Layout> {
    array.element()?;
    let ([positions, pairs], stride) = array.table()?;
    Ok(Layout::new([1, positions, 1, pairs], [0, stride, 0, 1]))
}

/// The memory of a write on the CPU.
struct Places<'a> {
    q: Option<&'a Described>,
    q_out: Option<&'a Described>,
    k: &'a Described,
    v: &'a Described,
    k_cache: &'a Described,
    v_cache: &'a Described,
    /// Of a quantized cache: those of keys and of values.
    scales: Option<[&'a [f32]; 2]>,
    /// Cosines and sines.
    tables: Option<(&'a Described, &'a Described)>,
}

impl Places<'_> {
    /// # Safety
    /// Each array's elements are in memory and stay there until this returns, and nobody else touches those of the cache and of
    /// `q_out` or writes the others meanwhile.
    unsafe fn write<T: Element>(&self, append: &Append) -> Result<()> {
        let (k_layout, v_layout) = (append.k_pages(), append.v_pages());
        let angles = match self.tables {
            Some((cos, sin)) => Some((cos, sin, angle_table(cos)?)),
            None => None,
        };
        let inputs = [
            (Some(self.k), Some(append.k())),
            (Some(self.v), Some(append.v())),
            (self.q, append.q()),
            (
                angles.map(|(cos, ..)| cos),
                angles.as_ref().map(|(.., layout)| layout),
            ),
            (
                angles.map(|(_, sin, _)| sin),
                angles.as_ref().map(|(.., layout)| layout),
            ),
        ];
        let together = cpu::overlap(self.k_cache, k_layout, self.v_cache, v_layout);
        for (input, layout) in inputs {
            let (Some(input), Some(layout)) = (input, layout) else {
                continue;
            };
            for (cache, cache_layout) in [(self.k_cache, k_layout), (self.v_cache, v_layout)] {
                if cpu::overlap(input, layout, cache, cache_layout) {
                    return Err(Failure::Invalid(format!(
                        "{} shares memory with {}, which is written",
                        input.name, cache.name
                    )));
                }
            }
        }
        // SAFETY: the layouts are those of the arrays; outputs overlap no input, and `q_out` is new. A cache with keys and values in one
        // tensor becomes one slice.
        unsafe {
            let cache = match append.quantized_type().zip(self.scales) {
                None => self.cache_memory::<T>(append, together)?.into(),
                Some((element, scales)) => {
                    CacheOperand::Quantized(self.cache_memory(append, together)?, element, scales)
                }
            };
            let queries = match (self.q, self.q_out, append.q(), append.q_out()) {
                (Some(q), Some(out), Some(q_layout), Some(out_layout)) => Some(QueriesMut::Into(
                    cpu::slice(q, q_layout)?,
                    cpu::slice_mut(out, out_layout)?,
                )),
                _ => None,
            };
            let tables = match &angles {
                None => None,
                Some((cos, sin, layout)) => Some(match cos.element()? {
                    ElementType::F32 => {
                        Tables::F32(cpu::slice(cos, layout)?, cpu::slice(sin, layout)?)
                    }
                    _ => Tables::Elements(cpu::slice(cos, layout)?, cpu::slice(sin, layout)?),
                }),
            };
            let operands = AppendOperands {
                k: cpu::slice(self.k, append.k())?,
                v: cpu::slice(self.v, append.v())?,
                cache,
                queries,
                tables,
            };
            Ok(append_cpu(append, operands)?)
        }
    }

    /// The cache, whose elements are of type `C`. `together`: whether keys and values share memory.
    ///
    /// # Safety
    /// As [`Places::write`].
    unsafe fn cache_memory<C>(&self, append: &Append, together: bool) -> Result<CacheMut<'_, C>> {
        // SAFETY: the caller's promise.
        unsafe {
            match together {
                false => Ok(CacheMut::Apart(
                    cpu::slice_mut(self.k_cache, append.k_pages())?,
                    cpu::slice_mut(self.v_cache, append.v_pages())?,
                )),
                true => self.in_one(append),
            }
        }
    }

    /// Keys and values whose memory is interleaved, the keys first.
    ///
    /// # Safety
    /// As [`Places::write`].
    unsafe fn in_one<C>(&self, append: &Append) -> Result<CacheMut<'_, C>> {
        let (from, to) = (self.k_cache.address, self.v_cache.address);
        let size = size_of::<C>() as u64;
        let apart = to.checked_sub(from).filter(|apart| apart % size == 0);
        let Some(apart) = apart.and_then(|bytes| usize::try_from(bytes / size).ok()) else {
            return Err(Failure::Invalid(
                "k_cache and v_cache share memory, but the values do not come after the keys"
                    .to_owned(),
            ));
        };
        let (keys, key_len) = cpu::place::<C>(self.k_cache, append.k_pages())?;
        let (_, value_len) = cpu::place::<C>(self.v_cache, append.v_pages())?;
        let len = key_len.max(value_len.saturating_add(apart));
        // SAFETY: both arrays lie in this memory, which begins with the keys' first element and, as they overlap, is less than twice as large
        // as the larger one. `place` has checked alignment and size; the rest is the caller's promise.
        let memory = unsafe { std::slice::from_raw_parts_mut(keys, len) };
        Ok(CacheMut::Together(memory, apart))
    }
}
