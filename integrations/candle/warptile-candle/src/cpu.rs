//! Tensors on the CPU.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Storage, Tensor, WithDType};
use half::{bf16, f16};
use warptile::{
    AppendOperands, CacheMut, Call, Element, Operands, TableLayout, View, ViewMut, append_cpu,
    forward_cpu,
};

use crate::attention::{Attention, Keys, Packed, Queries};
use crate::cache::{CALLER, Pages, Write};
use crate::describe::Described;

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
    let view = |index: usize, layout: &warptile::Layout| {
        let data = T::cpu_storage_as_slice(tensors[index])?;
        let start = layouts[index].start_offset().min(data.len());
        Ok::<_, candle_core::Error>(View::new(&data[start..], *layout))
    };
    let (q, k, v) = (view(0, call.q())?, view(1, call.k())?, view(2, call.v())?);
    let slopes = floats(attention.alibi_slopes.as_ref())?;
    let sinks = floats(attention.sinks.as_ref())?;
    let mut operands = Operands::none();
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
    let write_typed = match write.pages[0].dtype() {
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
    let cache = match pages {
        Pages::Apart(keys, values) => CacheMut::Apart(
            slice_mut::<T>(keys, k_start)?,
            slice_mut::<T>(values, v_start)?,
        ),
        Pages::Together(both) => {
            CacheMut::Together(slice_mut::<T>(both, k_start)?, write.values_at()?)
        }
    };
    let operands = AppendOperands {
        k: slice(&k.0, k.1)?,
        v: slice(&v.0, v.1)?,
        cache: cache.into(),
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

/// As [`slice`], for writing.
fn slice_mut<T: Stored>(storage: &mut CpuStorage, start: usize) -> Result<&mut [T]> {
    let data = T::of(storage).ok_or_else(|| CALLER.broken("the pages are of two types"))?;
    let start = start.min(data.len());
    Ok(&mut data[start..])
}

/// An element type that candle's storage is known to hold.
trait Stored: Element + WithDType {
    /// The elements, if they are of this type.
    fn of(storage: &mut CpuStorage) -> Option<&mut Vec<Self>>;
}

macro_rules! stored {
    ($($type:ty: $variant:ident),*) => {
        $(
            impl Stored for $type {
                fn of(storage: &mut CpuStorage) -> Option<&mut Vec<Self>> {
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
