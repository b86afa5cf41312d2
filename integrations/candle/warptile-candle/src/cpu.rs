//! Tensors on the CPU.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Tensor, WithDType};
use half::{bf16, f16};
use warptile::{Call, Element, Operands, TableLayout, View, ViewMut, forward_cpu};

use crate::attention::{Attention, Keys, Packed, Queries};
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
    let call = builder.build().map_err(|error| attention.failed(error))?;
    for ((side, limit), found) in limits.into_iter().zip([call.query_len(), call.key_len()]) {
        if found > limit {
            return Err(attention.broken(format!(
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
    .map_err(|error| attention.failed(error))?;
    Ok((T::to_cpu_storage_owned(out), lse.map(CpuStorage::F32)))
}

/// Reads lengths or page numbers, row by row.
pub(crate) fn numbers(attention: &Attention, name: &str, tensor: &Tensor) -> Result<Vec<i32>> {
    let tensor = tensor.flatten_all()?;
    if tensor.dtype() == DType::I32 {
        return tensor.to_vec1();
    }
    let number = |(index, number): (usize, u32)| {
        i32::try_from(number)
            .map_err(|_| attention.broken(format!("{name}[{index}] is {number}, above 2^31 - 1")))
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
