//! Tensors on a GPU: warptile's launches on candle's stream, by way of cudarc's memory.
//!
//! One call is one launch on the stream of q's device, whichever stream that is: candle 0.11's own is another one on each thread.
//! So nothing is kept for a stream or a thread. What a launch needs besides its tensors is allocated on that stream and freed in its
//! order, as its output is, and both may be part of a capture.

use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
#[cfg(feature = "distributed")]
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice,
};
#[cfg(feature = "distributed")]
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Shape, Storage, Tensor};
use warptile::plan::Choice;
use warptile::spec::{Numbers, Operand, Request};
use warptile_cudarc::{Bindings, Session};

use crate::attention::{Attention, GRADIENTS, ROWS};
use crate::cache::{CALLER, Pages, Write};
use crate::caller::{Caller, name_of};
use crate::describe::Described;
use crate::elements::with_cuda_elements;
use crate::locks::Locks;

/// As [`Attention::describe`], of what candle has locked.
pub(crate) fn describe(
    attention: &Attention,
    tensors: [&CudaStorage; 3],
    layouts: [&Layout; 3],
) -> Result<Described> {
    let types = tensors.map(BackendStorage::dtype);
    attention.describe(types, layouts, &tensors[0].device().location())
}

/// The output, and the lse if it is wanted.
pub(crate) fn forward(
    attention: &Attention,
    described: &Described,
    tensors: [&CudaStorage; 3],
    layouts: [&Layout; 3],
    locks: &Locks<'_>,
    want_lse: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    let caller = attention.caller;
    let device = tensors[0].device();
    let session = session(caller, &device.cuda_stream())?;
    let mut out = output(attention, device, described, tensors[0].dtype())?;
    let mut lse = match want_lse {
        true => {
            let [batch, rows, heads, _] = described.q.shape;
            Some(device.zeros_impl(&Shape::from(batch * rows * heads), DType::F32)?)
        }
        false => None,
    };
    let mut bindings = Bindings::default().output(Operand::Out, whole(caller, "out", &mut out)?);
    if let Some(lse) = &mut lse {
        bindings = bindings.output(Operand::Lse, whole(caller, "lse", lse)?);
    }
    for (operand, (storage, layout)) in ROWS.into_iter().zip(tensors.into_iter().zip(layouts)) {
        bindings = bindings.with(operand, part(caller, operand, storage, layout)?);
    }
    for (operand, _) in attention.lists() {
        bindings = bindings.with(operand, locked(caller, operand, locks)?);
    }
    let numbers = numbers(attention)?;
    let launched = session.launch_with(bindings, &Choice::Best, |aligned| {
        let builder = attention.call(described, numbers.into_iter(), want_lse);
        let builder = builder.longest(attention.longest);
        Ok(aligned.described(builder).build()?)
    });
    launched.map_err(|error| failed(caller, error))?;
    Ok((out, lse))
}

/// The lists, which kernels read from the device and clamp.
fn numbers<'a>(attention: &Attention) -> Result<Vec<(Operand, Request<'a>)>> {
    let counted = |(operand, list): (Operand, &Tensor)| {
        let reach = reach(attention.caller, name_of(operand), list.layout())?;
        Ok((operand, Numbers::Device(reach)))
    };
    attention.lists().map(counted).collect()
}

/// The gradients of q, k and v; the tensors are those of the locks.
pub(crate) fn backward(
    attention: &Attention,
    described: &Described,
    device: &CudaDevice,
    locks: &Locks<'_>,
    dtype: DType,
    layouts: [&Layout; 3],
) -> Result<[CudaStorage; 3]> {
    let caller = attention.caller;
    let session = session(caller, &device.cuda_stream())?;
    // Rows that no sequence owns have none.
    let zeros = |index: usize| device.zeros_impl(layouts[index].shape(), dtype);
    let mut gradients = [zeros(0)?, zeros(1)?, zeros(2)?];
    let mut bindings = Bindings::default();
    for (operand, gradient) in GRADIENTS.into_iter().zip(&mut gradients) {
        bindings = bindings.output(operand, whole(caller, operand.name(), gradient)?);
    }
    for operand in locks.operands() {
        bindings = bindings.with(operand, locked(caller, operand, locks)?);
    }
    let numbers = numbers(attention)?;
    let launched = session.backward_with(bindings, |aligned| {
        let builder = attention.call(described, numbers.into_iter(), true);
        let builder = builder.longest(attention.longest);
        attention.backward(described, aligned.described(builder))
    });
    launched.map_err(|error| failed(caller, error))?;
    Ok(gradients)
}

/// Writes new keys and values into pages.
pub(crate) fn write(write: &Write<'_>, pages: Pages<'_, CudaStorage>) -> Result<()> {
    let locks = &write.locks.borrow();
    let (mut keys, mut values, device) = match pages {
        Pages::Apart(keys, values) => {
            let device = keys.device().clone();
            let values = whole(CALLER, "v_pages", values)?;
            (whole(CALLER, "k_pages", keys)?, Some(values), device)
        }
        Pages::Together(both) => {
            let device = both.device().clone();
            (whole(CALLER, "k_pages", both)?, None, device)
        }
    };
    let size = write.pages[0].dtype().size_in_bytes();
    let [k_start, v_start] = write.starts().map(|start| start.saturating_mul(size));
    let view = |operand| locked(CALLER, operand, locks);
    let keys = keys.try_slice_mut(k_start..);
    let keys = keys.ok_or_else(|| beyond(CALLER, "k_pages"))?;
    let mut bindings = match &mut values {
        Some(values) => {
            let values = values.try_slice_mut(v_start..);
            let values = values.ok_or_else(|| beyond(CALLER, "v_pages"))?;
            Bindings::append(view(Operand::K)?, view(Operand::V)?, keys, values)
        }
        None => {
            let values_at = write.values_at()?.saturating_mul(size);
            Bindings::append_in_one(view(Operand::K)?, view(Operand::V)?, keys, values_at)
        }
    };
    for operand in locks.operands().filter(|operand| !operand.moves_rows()) {
        bindings = bindings.with(operand, view(operand)?);
    }
    session(CALLER, &device.cuda_stream())?
        .append(&write.append, bindings)
        .map_err(|error| failed(CALLER, error))
}

/// The bytes of a tensor that is locked.
fn locked<'a>(caller: Caller, operand: Operand, locks: &'a Locks<'_>) -> Result<CudaView<'a, u8>> {
    match locks.get(operand) {
        Some((Storage::Cuda(storage), layout)) => part(caller, operand, storage, layout),
        _ => Err(caller.broken(format!("{} is not on a GPU", name_of(operand)))),
    }
}

/// Elements from the first to the last of a tensor whose rows are contiguous.
fn reach(caller: Caller, name: &str, layout: &Layout) -> Result<usize> {
    if let (Some(2..), Some(stride @ (0 | 2..))) = (layout.dims().last(), layout.stride().last()) {
        return Err(caller.broken(format!(
            "{name} has stride {stride} in its last dimension, which must be contiguous; use `contiguous()`"
        )));
    }
    let extents = layout.dims().iter().zip(layout.stride());
    if layout.dims().contains(&0) {
        return Ok(0);
    }
    extents
        .map(|(&extent, &stride)| (extent - 1).checked_mul(stride))
        .try_fold(1_usize, |reach, step| reach.checked_add(step?))
        .ok_or_else(|| beyond(caller, name))
}

/// The bytes of a tensor from its first element to its last.
fn part<'a>(
    caller: Caller,
    operand: Operand,
    storage: &'a CudaStorage,
    layout: &Layout,
) -> Result<CudaView<'a, u8>> {
    fn of<T>(slice: &CudaSlice<T>, start: usize, reach: usize) -> Option<CudaView<'_, u8>> {
        let view = slice.try_slice(start..start.checked_add(reach)?)?;
        // SAFETY: this is the number of bytes of the view, and bytes may have any bits.
        unsafe { view.transmute(view.num_bytes()) }
    }
    let name = name_of(operand);
    let (start, reach) = (layout.start_offset(), reach(caller, name, layout)?);
    with_cuda_elements!(&storage.slice, slice => of(slice, start, reach))
        .ok_or_else(|| beyond(caller, name))
}

/// The bytes of a whole storage, for writing.
fn whole<'a>(
    caller: Caller,
    name: &str,
    storage: &'a mut CudaStorage,
) -> Result<CudaViewMut<'a, u8>> {
    fn of<T>(slice: &mut CudaSlice<T>) -> Option<CudaViewMut<'_, u8>> {
        // SAFETY: this is the number of bytes of the slice, and a number of candle's types may have any bits.
        unsafe { slice.transmute_mut(slice.num_bytes()) }
    }
    with_cuda_elements!(&mut storage.slice, slice => of(slice)).ok_or_else(|| beyond(caller, name))
}

fn beyond(caller: Caller, name: &str) -> candle_core::Error {
    caller.broken(format_args!("{name} reaches beyond its memory"))
}

/// Memory for the output. Of packed queries it is zeroed: only the device knows whether there are rows that no sequence owns.
fn output(
    attention: &Attention,
    device: &CudaDevice,
    described: &Described,
    dtype: DType,
) -> Result<CudaStorage> {
    let elements = described.out.element_count();
    let elements = elements.ok_or_else(|| attention.caller.broken("q is too large"))?;
    let shape = Shape::from(elements);
    match attention.has(Operand::QueryOffsets) {
        true => device.zeros_impl(&shape, dtype),
        // SAFETY: the launch writes every row of dense queries before anything that comes after it on the stream reads them, and
        // every bit pattern is a number.
        false => unsafe { device.alloc_uninit(&shape, dtype) },
    }
}

/// Elements that ranks can have.
#[cfg(feature = "distributed")]
pub(crate) trait Number:
    warptile::Element + CudaDType + DeviceRepr + ValidAsZeroBits
{
}

#[cfg(feature = "distributed")]
impl<T: warptile::Element + CudaDType + DeviceRepr + ValidAsZeroBits> Number for T {}

/// A rank of a group on a GPU of candle's. It works on a stream of its own, before which candle's has come, and which candle's waits for.
#[cfg(feature = "distributed")]
#[derive(Debug)]
pub(crate) struct Rank {
    device: CudaDevice,
    tensors: warptile_cudarc::Tensors,
}

#[cfg(feature = "distributed")]
impl Rank {
    pub(crate) fn new(caller: Caller, device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream().context().new_stream();
        let stream = stream.map_err(|error| caller.broken(error))?;
        let tensors = warptile_cudarc::Tensors::new(&stream);
        Ok(Rank {
            device: device.clone(),
            tensors: tensors.map_err(|error| failed(caller, error))?,
        })
    }

    pub(crate) fn backend(&self) -> warptile::Backend {
        self.tensors.backend().clone()
    }

    pub(crate) fn device(&self) -> candle_core::Device {
        candle_core::Device::Cuda(self.device.clone())
    }

    /// A contiguous tensor.
    pub(crate) fn take<T: Number>(
        &self,
        caller: Caller,
        rows: &Tensor,
        layout: warptile::Layout,
    ) -> Result<warptile::Tensor<T>> {
        let (storage, of_rows) = rows.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            return Err(caller.broken("a tensor is not on a GPU"));
        };
        let slice = storage.as_cuda_slice::<T>()?;
        self.ordered(caller, || {
            let view = slice.slice(of_rows.start_offset()..);
            self.tensors.tensor(view, layout)
        })
    }

    /// Memory of candle's with a tensor's elements.
    pub(crate) fn give<T: Number>(
        &self,
        caller: Caller,
        found: &warptile::Tensor<T>,
    ) -> Result<CudaStorage> {
        let mut slice = self.device.alloc_zeros::<T>(found.layout().reach())?;
        self.ordered(caller, || self.tensors.copy(found, slice.as_view_mut()))?;
        Ok(T::wrap_cuda_slice(slice, self.device.clone()))
    }

    /// Copies behind what candle has submitted, and before what it will submit.
    fn ordered<R>(
        &self,
        caller: Caller,
        copy: impl FnOnce() -> warptile_cudarc::Result<R>,
    ) -> Result<R> {
        let (ours, theirs) = (self.tensors.stream(), self.device.cuda_stream());
        ours.join(&theirs).map_err(|error| caller.broken(error))?;
        let copied = copy();
        theirs.join(ours).map_err(|error| caller.broken(error))?;
        copied.map_err(|error| failed(caller, error))
    }
}

/// Warptile's side of a stream.
fn session(caller: Caller, stream: &Arc<CudaStream>) -> Result<Session> {
    let ordinal = stream.context().ordinal();
    Session::new(stream).map_err(|error| match error {
        warptile_cudarc::Error::NotPrimary { .. } => caller.broken(format!(
            "candle's device uses a CUDA context that is not the primary one of cuda:{ordinal}; use Device::new_cuda or \
             Device::new_cuda_with_stream"
        )),
        error => caller.broken(format!(
            "the tensors are on cuda:{ordinal}, but warptile cannot use it: {error}"
        )),
    })
}

fn failed(caller: Caller, error: warptile_cudarc::Error) -> candle_core::Error {
    match error {
        warptile_cudarc::Error::Warptile(error) => caller.failed(error),
        error => caller.broken(error),
    }
}
