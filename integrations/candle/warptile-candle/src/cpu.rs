//! Tensors on the CPU.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::{CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, WithDType};
use warptile::bytemuck;
use warptile::cpu::{append_cpu, backward_cpu, forward_cpu};
use warptile::kernels::{Count, Elements, Kind};
use warptile::spec::{HostInputs, HostOutputs, Numbers, Operand, Slots};

use crate::attention::{Attention, GRADIENTS, ROWS};
use crate::cache::{CALLER, Pages, Write};
use crate::caller::{Caller, name_of};
use crate::describe::Described;
use crate::elements::with_cpu_elements;
use crate::locks::Locks;

/// The output, and the lse if it is wanted.
pub(crate) fn forward(
    attention: &Attention,
    described: &Described,
    tensors: [&CpuStorage; 3],
    layouts: [&Layout; 3],
    lists: &Lists,
    want_lse: bool,
) -> Result<(CpuStorage, Option<CpuStorage>)> {
    let caller = attention.caller;
    let numbers = { lists.given() }.map(|(operand, list)| (operand, Numbers::Host(&list[..])));
    let call = attention.call(described, numbers, want_lse);
    let call = call.build().map_err(|error| caller.failed(error))?;
    for (index, found) in [call.query_len(), call.key_len()].into_iter().enumerate() {
        let (side, limit) = (["q", "k"][index], attention.longest[index]);
        if let Some(limit) = limit.filter(|&limit| found > limit) {
            return Err(caller.broken(format!(
                "max_seqlen_{side} is {limit}, but a sequence has {found} rows of {side}"
            )));
        }
    }
    let mut inputs = HostInputs::default();
    for (operand, (storage, layout)) in ROWS.into_iter().zip(tensors.into_iter().zip(layouts)) {
        inputs.set(operand, bytes(caller, storage, layout)?);
    }
    set_floats(&mut inputs, lists);
    let elements = Shape::from(call.out().element_count().unwrap_or(0));
    let mut out = CpuDevice.zeros_impl(&elements, tensors[0].dtype())?;
    let mut lse = want_lse.then(|| vec![0.0_f32; call.lse_len()]);
    let mut outputs = HostOutputs::default().with(Operand::Out, bytes_mut(caller, &mut out, 0)?);
    if let Some(lse) = &mut lse {
        outputs = outputs.lse(lse);
    }
    forward_cpu(&call, &inputs, outputs).map_err(|error| caller.failed(error))?;
    Ok((out, lse.map(CpuStorage::F32)))
}

/// The gradients of q, k and v; the tensors are those of the locks.
pub(crate) fn backward(
    attention: &Attention,
    described: &Described,
    locks: &Locks<'_>,
    lists: &Lists,
    dtype: DType,
) -> Result<[CpuStorage; 3]> {
    let caller = attention.caller;
    let numbers = { lists.given() }.map(|(operand, list)| (operand, Numbers::Host(&list[..])));
    let call = attention.call(described, numbers, true);
    let backward = attention.backward(described, call);
    let backward = backward.map_err(|error| caller.failed(error))?;
    let inputs = inputs(caller, locks, lists)?;
    let zeros = |operand| {
        let layout = backward.gradient(operand);
        let count = layout.and_then(warptile::Layout::element_count);
        CpuDevice.zeros_impl(&Shape::from(count.unwrap_or(0)), dtype)
    };
    let mut gradients = [
        zeros(Operand::DQ)?,
        zeros(Operand::DK)?,
        zeros(Operand::DV)?,
    ];
    let mut outputs = HostOutputs::default();
    for (operand, gradient) in GRADIENTS.into_iter().zip(&mut gradients) {
        outputs = outputs.with(operand, bytes_mut(caller, gradient, 0)?);
    }
    backward_cpu(&backward, &inputs, outputs).map_err(|error| caller.failed(error))?;
    Ok(gradients)
}

/// Writes new keys and values into pages.
pub(crate) fn write(write: &Write<'_>, pages: Pages<'_, CpuStorage>) -> Result<()> {
    let locks = write.locks.borrow();
    let inputs = inputs(CALLER, &locks, &write.scales_on_host)?;
    let [k_start, v_start] = write.starts();
    let outputs = match pages {
        Pages::Apart(keys, values) => HostOutputs::cache(
            bytes_mut(CALLER, keys, k_start)?,
            bytes_mut(CALLER, values, v_start)?,
        ),
        Pages::Together(both) => {
            HostOutputs::cache_in_one(bytes_mut(CALLER, both, k_start)?, write.values_at()?)
        }
    };
    append_cpu(&write.append, &inputs, outputs).map_err(|error| CALLER.failed(error))
}

/// The numbers of lists.
pub(crate) type Lists = Slots<Option<Vec<i32>>>;

/// The memory of the tensors of the locks, and of the lists that no description has.
fn inputs<'a>(caller: Caller, locks: &'a Locks<'_>, lists: &'a Lists) -> Result<HostInputs<'a>> {
    let mut inputs = HostInputs::default();
    for operand in locks.operands() {
        let Some((Storage::Cpu(storage), layout)) = locks.get(operand) else {
            return Err(caller.broken("a tensor is not on the CPU"));
        };
        inputs.set(operand, bytes(caller, storage, layout)?);
    }
    set_floats(&mut inputs, lists);
    Ok(inputs)
}

/// The memory of the lists that no description has.
fn set_floats<'a>(inputs: &mut HostInputs<'a>, lists: &'a Lists) {
    for (operand, list) in lists.given() {
        if operand.elements() == Elements::F32 {
            inputs.set(operand, bytemuck::cast_slice::<i32, f32>(list));
        }
    }
}

/// Reads lists, one after the other.
pub(crate) fn lists<'a>(
    caller: Caller,
    tensors: impl Iterator<Item = (Operand, &'a Tensor)>,
) -> Result<Lists> {
    let mut lists = Slots::none();
    for (operand, tensor) in tensors {
        lists[operand] = Some(list(caller, operand, tensor)?);
    }
    Ok(lists)
}

/// The numbers of a list row by row, by their bits. Lengths above i32's are refused; an entry of a table that no key needs, and a word of a
/// state, may have any bits.
fn list(caller: Caller, operand: Operand, tensor: &Tensor) -> Result<Vec<i32>> {
    match operand.elements() {
        Elements::F32 => {
            let floats = tensor.flatten_all()?.to_vec1::<f32>()?;
            Ok(floats.iter().map(|x| x.to_bits().cast_signed()).collect())
        }
        _ if matches!(operand.kind(), Kind::List(Count::Table | Count::State))
            && tensor.dtype() == DType::U32 =>
        {
            let words = tensor.flatten_all()?.to_vec1::<u32>()?;
            Ok(words.into_iter().map(u32::cast_signed).collect())
        }
        _ => numbers(caller, name_of(operand), tensor),
    }
}

/// Reads lengths or page numbers, row by row.
pub(crate) fn numbers(caller: Caller, name: &str, tensor: &Tensor) -> Result<Vec<i32>> {
    let tensor = tensor.flatten_all()?;
    if tensor.dtype() == DType::I32 {
        return tensor.to_vec1();
    }
    let number = |(index, number): (usize, u32)| {
        i32::try_from(number)
            .map_err(|_| caller.broken(format!("{name}[{index}] is {number}, above 2^31 - 1")))
    };
    tensor
        .to_vec1()?
        .into_iter()
        .enumerate()
        .map(number)
        .collect()
}

/// The bytes of a tensor from its first element on.
fn bytes<'a>(caller: Caller, storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [u8]> {
    fn of<T: WithDType>(elements: &[T], start: usize) -> &[u8] {
        let elements = &elements[start.min(elements.len())..];
        // SAFETY: the numbers of candle's types have no padding, so all their bytes are initialized; borrowed as long as the result.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
    }
    with_cpu_elements!(caller, storage, elements => of(elements, layout.start_offset()))
}

/// As [`bytes`], for writing, from an element on.
fn bytes_mut(caller: Caller, storage: &mut CpuStorage, start: usize) -> Result<&mut [u8]> {
    fn of<T: WithDType>(elements: &mut [T], start: usize) -> &mut [u8] {
        let start = start.min(elements.len());
        let elements = &mut elements[start..];
        let len = size_of_val(elements);
        // SAFETY: as in `bytes`; borrowed exclusively, and a number of candle's types may have any bits.
        unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), len) }
    }
    with_cpu_elements!(caller, storage, elements => of(elements, start))
}
