//! Tensors on the CPU.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Storage, Tensor, WithDType};
use half::{bf16, f16};
use warptile::{
    AppendOperands, CacheMut, CacheOperand, Call, Element, KeyView, Operands, TableLayout, View,
    ViewMut, append_cpu, forward_cpu,
};

use crate::attention::{Attention, Keys, Packed, Queries};
use crate::cache::{CALLER, Pages, Write};
use crate::describe::Described;
use crate::quantized::{bits, bits_mut};

/// The output, and the lse if it is wanted.
pub(crate) fn forward(
    attention: &Attention,
    tensors: [&CpuStorage; 3],
    layouts: [&Layout; 3],
    want_lse: bool,
) -> Result<(CpuStorage, Option<CpuStorage>)> {
    let types = tensors.map(BackendStorage::dtype);
    let described = attention.describe(types, layouts, &DeviceLocation::Cpu)?;
    let call = call(attention, &described, want_lse)?;
    let compute = match types[0] {
        DType::F16 => compute::<f16>,
        DType::BF16 => compute::<bf16>,
        // Any other is refused above.
        _ => compute::<f32>,
    };
    compute(attention, &call, tensors, layouts)
}

/// The call with its lengths, which are read and checked.
fn call(attention: &Attention, described: &Described, want_lse: bool) -> Result<Call> {
    let mut builder = described.builder(want_lse);
    let mut limits = [("q", usize::MAX), ("k", usize::MAX)];
    let (queries, keys, table);
    if let Queries::Packed(Packed { offsets, longest }) = &attention.queries {
        queries = numbers(attention, "seqlens_q", offsets)?;
        builder = builder.packed_queries(&queries);
        limits[0].1 = *longest;
    }
    match &attention.keys {
        Keys::Dense => {}
        Keys::Packed(Packed { offsets, longest }) => {
            keys = numbers(attention, "seqlens_k", offsets)?;
            builder = builder.packed_keys(&keys);
            limits[1].1 = *longest;
        }
        Keys::Paged {
            table: pages,
            lengths,
            longest,
        } => {
            keys = numbers(attention, "key_lengths", lengths)?;
            table = numbers(attention, "block_table", pages)?;
            let columns = pages.dims().last().copied().unwrap_or(0);
            let layout = TableLayout::from([described.batch, columns]);
            builder = builder.block_table(&table, layout).key_lengths(&keys);
            limits[1].1 = *longest;
        }
    }
    let call = builder
        .build()
        .map_err(|error| attention.caller.failed(error))?;
    for ((side, limit), found) in limits.into_iter().zip([call.query_len(), call.key_len()]) {
        if found > limit {
            return Err(attention.caller.broken(format!(
                "max_seqlen_{side} is {limit}, but a sequence has {found} rows of {side}"
            )));
        }
    }
    Ok(call)
}

fn compute<T: Element + WithDType>(
    attention: &Attention,
    call: &Call,
    tensors: [&CpuStorage; 3],
    layouts: [&Layout; 3],
) -> Result<(CpuStorage, Option<CpuStorage>)> {
    let q = view(T::cpu_storage_as_slice(tensors[0])?, layouts[0], call.q());
    let keys = |index: usize, layout: &warptile::Layout| -> Result<KeyView<'_, T>> {
        Ok(match bits(tensors[index]) {
            Some((data, element)) => {
                KeyView::Quantized(view(data, layouts[index], layout), element)
            }
            None => {
                let data = T::cpu_storage_as_slice(tensors[index])?;
                view(data, layouts[index], layout).into()
            }
        })
    };
    let (k, v) = (keys(1, call.k())?, keys(2, call.v())?);
    let slopes = floats(attention.alibi_slopes.as_ref())?;
    let sinks = floats(attention.sinks.as_ref())?;
    let scales = { attention.scales.as_ref() }
        .map(|scales| scales.read())
        .transpose()?;
    let mut operands = Operands::none();
    if let Some([k_scale, v_scale]) = &scales {
        operands = operands.scales(k_scale, v_scale);
    }
    operands.slopes = slopes.as_deref();
    operands.sinks = sinks.as_deref();
    let mut out = vec![T::zero(); call.out().element_count().unwrap_or(0)];
    let mut lse = call.wants_lse().then(|| vec![0.0_f32; call.lse_len()]);
    forward_cpu(
        call,
        q,
        k,
        v,
        &operands,
        ViewMut::new(&mut out, *call.out()),
        lse.as_deref_mut(),
    )
    .map_err(|error| attention.caller.failed(error))?;
    Ok((T::to_cpu_storage_owned(out), lse.map(CpuStorage::F32)))
}

/// The elements from a tensor's first on, in this layout.
fn view<'a, T: Copy>(data: &'a [T], layout: &Layout, described: &warptile::Layout) -> View<'a, T> {
    let start = layout.start_offset().min(data.len());
    View::new(&data[start..], *described)
}

/// Reads lengths or page numbers, row by row.
pub(crate) fn numbers(attention: &Attention, name: &str, tensor: &Tensor) -> Result<Vec<i32>> {
    let tensor = tensor.flatten_all()?;
    if tensor.dtype() == DType::I32 {
        return tensor.to_vec1();
    }
    let number = |(index, number): (usize, u32)| {
        i32::try_from(number).map_err(|_| {
            attention
                .caller
                .broken(format!("{name}[{index}] is {number}, above 2^31 - 1"))
        })
    };
    tensor
        .to_vec1()?
        .into_iter()
        .enumerate()
        .map(number)
        .collect()
}

fn floats(tensor: Option<&Tensor>) -> Result<Option<Vec<f32>>> {
    tensor.map(Tensor::to_vec1).transpose()
}

/// Writes new keys and values into pages.
pub(crate) fn write(write: &Write<'_>, pages: Pages<'_, CpuStorage>) -> Result<()> {
    let write_typed = match write.new[0].dtype() {
        DType::F16 => write_typed::<f16>,
        DType::BF16 => write_typed::<bf16>,
        _ => write_typed::<f32>,
    };
    write_typed(write, pages)
}

fn write_typed<T: Stored>(write: &Write<'_>, pages: Pages<'_, CpuStorage>) -> Result<()> {
    let slots = write.slots.to_vec1::<i64>()?;
    let append = write.describe()?.builder().slots(&slots).build();
    let append = append.map_err(|error| CALLER.failed(error))?;
    let [k, v] = write.new.map(Tensor::storage_and_layout);
    let [k_start, v_start] = write.pages.map(|pages| pages.layout().start_offset());
    let starts = [k_start, v_start];
    let scales = { write.scales.as_ref() }
        .map(|scales| scales.read())
        .transpose()?;
    let cache: CacheOperand<'_, T> = match append.quantized_type().zip(scales.as_ref()) {
        None => memory(write, pages, starts, T::of)?.into(),
        Some((element, [k, v])) => {
            let memory = memory(write, pages, starts, bits_mut)?;
            CacheOperand::Quantized(memory, element, [k, v])
        }
    };
    let operands = AppendOperands {
        k: slice(&k.0, k.1)?,
        v: slice(&v.0, v.1)?,
        cache,
        queries: None,
        tables: None,
    };
    append_cpu(&append, operands).map_err(|error| CALLER.failed(error))
}

/// The elements from a tensor's first on.
fn slice<'a, T: WithDType>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    let Storage::Cpu(storage) = storage else {
        return Err(CALLER.broken("a tensor is not on the CPU"));
    };
    let data = T::cpu_storage_as_slice(storage)?;
    Ok(&data[layout.start_offset().min(data.len())..])
}

/// The memory of the pages, whose elements are at hand by `of`.
fn memory<'a, C: Copy + 'a>(
    write: &Write<'_>,
    pages: Pages<'a, CpuStorage>,
    [k_start, v_start]: [usize; 2],
    of: impl Fn(&'a mut CpuStorage) -> Option<&'a mut [C]>,
) -> Result<CacheMut<'a, C>> {
    let from = |storage: &'a mut CpuStorage, start: usize| {
        let data = of(storage).ok_or_else(|| CALLER.broken("the pages are of two types"))?;
        let start = start.min(data.len());
        Ok::<_, candle_core::Error>(&mut data[start..])
    };
    Ok(match pages {
        Pages::Apart(keys, values) => CacheMut::Apart(from(keys, k_start)?, from(values, v_start)?),
        Pages::Together(both) => CacheMut::Together(from(both, k_start)?, write.values_at()?),
    })
}

/// An element type that candle's storage is known to hold.
trait Stored: Element + WithDType {
    /// The elements, if they are of this type.
    fn of(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

macro_rules! stored {
    ($($type:ty: $variant:ident),*) => {
        $(
            impl Stored for $type {
                fn of(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                    match storage {
                        CpuStorage::$variant(data) => Some(data),
                        _ => None,
                    }
                }
            }
        )*
    };
}

stored!(f16: F16, bf16: BF16, f32: F32);
