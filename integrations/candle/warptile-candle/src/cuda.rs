//! Tensors on a GPU: warptile's launches on candle's stream, by way of cudarc's memory.
//!
//! One call is one launch on the stream of q's device, whichever stream that is: candle 0.11's own is another one on each thread.
//! So nothing is kept for a stream or a thread. What a launch needs beside its tensors is allocated on that stream and freed in its
//! order, as its output is, and both may be part of a capture.

use std::ops::Deref;
use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr, ValidAsZeroBits,
};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Storage, Tensor};
use half::{bf16, f16};
use warptile::{Call, Choice, Element, TableLayout};
use warptile_cudarc::{AppendBindings, Bindings, Session};

use crate::attention::{Attention, Keys, Packed, Queries};
use crate::cache::{self, Pages, Write};
use crate::caller::Caller;
use crate::describe::Described;
use crate::quantized::Scales;

/// The output, and the lse if it is wanted.
pub(crate) fn forward(
    attention: &Attention,
    tensors: [&CudaStorage; 3],
    layouts: [&Layout; 3],
    want_lse: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    let types = tensors.map(|storage| storage.dtype());
    let device = tensors[0].device();
    let described = attention.describe(types, layouts, &device.location())?;
    let launch = match types[0] {
        DType::F16 => launch::<f16>,
        DType::BF16 => launch::<bf16>,
        // Any other is refused above.
        _ => launch::<f32>,
    };
    launch(attention, &described, tensors, layouts, want_lse)
}

fn launch<T: CudaDType + DeviceRepr + ValidAsZeroBits + Element>(
    attention: &Attention,
    described: &Described,
    tensors: [&CudaStorage; 3],
    layouts: [&Layout; 3],
    want_lse: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    let caller = attention.caller;
    let device = tensors[0].device();
    let session = session(caller, &device.cuda_stream())?;

    let beyond = |index: usize| beyond(caller, ["q", "k", "v"][index]);
    let whole = |index: usize, layout: &warptile::Layout| {
        let slice = tensors[index].as_cuda_slice::<T>()?;
        let view = part(slice, layouts[index].start_offset(), layout.required_len());
        view.ok_or_else(|| beyond(index))
    };
    let q = whole(0, &described.q)?;
    let scales = attention.scales.as_ref().map(locked_scales);
    let mut out = output::<T>(attention, device, described)?;
    let mut lse = match want_lse {
        true => {
            let [batch, rows, heads, _] = described.q.shape;
            Some(device.alloc_zeros::<f32>(batch * rows * heads)?)
        }
        false => None,
    };
    let beside = beside(attention);
    let locked: Vec<_> = beside
        .iter()
        .map(|(_, _, tensor)| tensor.storage_and_layout())
        .collect();
    {
        let out = out.as_view_mut();
        let mut bindings = match (&scales, &tensors[1].slice, &tensors[2].slice) {
            (Some(scales), CudaStorageSlice::F8E4M3(k), CudaStorageSlice::F8E4M3(v)) => {
                let [k_scale, v_scale] = scale_views(caller, scales)?;
                let [k_start, v_start] = [1, 2].map(|index| layouts[index].start_offset());
                let k = part(k, k_start, described.k.required_len()).ok_or_else(|| beyond(1))?;
                let v = part(v, v_start, described.v.required_len()).ok_or_else(|| beyond(2))?;
                Bindings::quantized(q, (k, k_scale), (v, v_scale), out)
            }
            _ => Bindings::new(q, whole(1, &described.k)?, whole(2, &described.v)?, out),
        };
        if let Some(lse) = &mut lse {
            bindings = bindings.lse(lse.as_view_mut());
        }
        for (&(name, list, _), (storage, layout)) in beside.iter().zip(&locked) {
            bindings = match numbers(caller, name, storage, layout)? {
                Numbers::U32(view) => lengths(bindings, list, view),
                Numbers::I32(view) => lengths(bindings, list, view),
                Numbers::F32(view) if list == List::Sinks => bindings.sinks(view),
                Numbers::F32(view) => bindings.slopes(view),
            };
        }
        session
            .launch_with(bindings, &Choice::Best, |aligned| {
                call(attention, described, aligned, want_lse)
            })
            .map_err(|error| failed(caller, error))?;
    }
    let storage = CudaStorage::wrap_cuda_slice(out, device.clone());
    let lse = lse.map(|lse| CudaStorage::wrap_cuda_slice(lse, device.clone()));
    Ok((storage, lse))
}

/// The call with its lengths, which the kernels read from the device and clamp.
fn call(
    attention: &Attention,
    described: &Described,
    aligned: bool,
    want_lse: bool,
) -> warptile::Result<Call> {
    let mut builder = described.builder(want_lse);
    let batch = described.batch;
    if let Queries::Packed(Packed { longest, .. }) = attention.queries {
        builder = builder.device_query_offsets(batch, longest);
    }
    match &attention.keys {
        Keys::Dense => {}
        Keys::Packed(Packed { longest, .. }) => {
            builder = builder.device_key_offsets(batch, *longest);
        }
        Keys::Paged { table, longest, .. } => {
            let columns = table.dims().last().copied().unwrap_or(0);
            let row_stride = table.stride().first().copied().unwrap_or(0);
            builder = builder
                .device_block_table(TableLayout::new([batch, columns], row_stride))
                .device_key_lengths(batch)
                .longest_keys(*longest);
        }
    }
    match aligned {
        true => builder.build(),
        false => builder.unaligned_addresses().build(),
    }
}

/// What a tensor beside q, k and v is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    QueryOffsets,
    KeyOffsets,
    KeyLengths,
    BlockTable,
    Slopes,
    Sinks,
}

/// The tensors that the launch reads beside q, k and v, with their names.
fn beside(attention: &Attention) -> Vec<(&'static str, List, &Tensor)> {
    let mut all = Vec::with_capacity(4);
    if let Queries::Packed(Packed { offsets, .. }) = &attention.queries {
        all.push(("seqlens_q", List::QueryOffsets, offsets));
    }
    match &attention.keys {
        Keys::Dense => {}
        Keys::Packed(Packed { offsets, .. }) => {
            all.push(("seqlens_k", List::KeyOffsets, offsets));
        }
        Keys::Paged { table, lengths, .. } => {
            all.push(("key_lengths", List::KeyLengths, lengths));
            all.push(("block_table", List::BlockTable, table));
        }
    }
    if let Some(slopes) = &attention.alibi_slopes {
        all.push(("alibi_slopes", List::Slopes, slopes));
    }
    if let Some(sinks) = &attention.sinks {
        all.push(("sinks", List::Sinks, sinks));
    }
    all
}

/// Gives a list of whole numbers to the launch; slopes and sinks are none, as was checked.
fn lengths<'a, T: Element, L: warptile::LengthElement>(
    bindings: Bindings<'a, T>,
    list: List,
    view: CudaView<'a, L>,
) -> Bindings<'a, T> {
    match list {
        List::QueryOffsets => bindings.query_offsets(view),
        List::KeyOffsets => bindings.key_offsets(view),
        List::KeyLengths => bindings.key_lengths(view),
        List::BlockTable => bindings.block_table(view),
        List::Slopes | List::Sinks => bindings,
    }
}

/// Numbers on the device.
enum Numbers<'a> {
    U32(CudaView<'a, u32>),
    I32(CudaView<'a, i32>),
    F32(CudaView<'a, f32>),
}

/// The numbers of a tensor whose rows are contiguous.
fn numbers<'a>(
    caller: Caller,
    name: &str,
    storage: &'a Storage,
    layout: &Layout,
) -> Result<Numbers<'a>> {
    let storage = on_gpu(caller, name, storage)?;
    let (start, reach) = (layout.start_offset(), reach(caller, name, layout)?);
    match storage.dtype() {
        DType::U32 => part(storage.as_cuda_slice()?, start, reach).map(Numbers::U32),
        DType::I32 => part(storage.as_cuda_slice()?, start, reach).map(Numbers::I32),
        _ => part(storage.as_cuda_slice()?, start, reach).map(Numbers::F32),
    }
    .ok_or_else(|| beyond(caller, name))
}

fn on_gpu<'a>(caller: Caller, name: &str, storage: &'a Storage) -> Result<&'a CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => Err(caller.broken(format!("{name} is not on a GPU"))),
    }
}

/// Elements from the first to the last of a list whose rows are contiguous; `None` if there are too many.
fn reach(caller: Caller, name: &str, layout: &Layout) -> Result<Option<usize>> {
    if let (Some(2..), Some(stride @ (0 | 2..))) = (layout.dims().last(), layout.stride().last()) {
        return Err(caller.broken(format!(
            "{name} has stride {stride} in its last dimension, which must be contiguous; use `contiguous()`"
        )));
    }
    let extents = layout.dims().iter().zip(layout.stride());
    Ok(match layout.dims().contains(&0) {
        true => Some(0),
        false => extents
            .map(|(&extent, &stride)| (extent - 1).checked_mul(stride))
            .try_fold(1_usize, |reach, step| reach.checked_add(step?)),
    })
}

/// So many elements from `start` on; `None` if there are not so many.
fn part<T>(slice: &CudaSlice<T>, start: usize, reach: Option<usize>) -> Option<CudaView<'_, T>> {
    slice.try_slice(start..start.checked_add(reach?)?)
}

/// A tensor's name, its memory by a guard of candle's, and where it lies in it.
type Locked<'a, G> = (&'static str, G, &'a Layout);

/// Scales of keys and values.
fn locked_scales(scales: &Scales) -> [Locked<'_, impl Deref<Target = Storage>>; 2] {
    scales.named().map(|(name, tensor)| {
        let (storage, layout) = tensor.storage_and_layout();
        (name, storage, layout)
    })
}

/// Scales of keys and values on the device.
fn scale_views<'a, G: Deref<Target = Storage>>(
    caller: Caller,
    [k, v]: &'a [Locked<'_, G>; 2],
) -> Result<[CudaView<'a, f32>; 2]> {
    let view = |(name, storage, layout): &'a Locked<'_, G>| match numbers(
        caller, name, storage, layout,
    )? {
        Numbers::F32(view) => Ok(view),
        _ => Err(caller.broken(format_args!("{name} is not f32"))),
    };
    Ok([view(k)?, view(v)?])
}

fn beyond(caller: Caller, name: &str) -> candle_core::Error {
    caller.broken(format_args!("{name} reaches beyond its memory"))
}

/// Memory for the output. Of packed queries it is zeroed: only the device knows whether there are rows that no sequence owns.
fn output<T: DeviceRepr + ValidAsZeroBits>(
    attention: &Attention,
    device: &CudaDevice,
    described: &Described,
) -> Result<CudaSlice<T>> {
    let elements = described.out.element_count();
    let elements = elements.ok_or_else(|| attention.caller.broken("q is too large"))?;
    match attention.queries {
        Queries::Packed(_) => device.alloc_zeros::<T>(elements),
        // SAFETY: the launch writes every row of dense queries before anything that comes after it on the stream reads them, and
        // every bit pattern is a number.
        Queries::Dense => unsafe { device.alloc::<T>(elements) },
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

/// Writes new keys and values into pages.
pub(crate) fn write(write: &Write<'_>, pages: Pages<'_, CudaStorage>) -> Result<()> {
    let launch = match write.new[0].dtype() {
        DType::F16 => launch_write::<f16>,
        DType::BF16 => launch_write::<bf16>,
        _ => launch_write::<f32>,
    };
    launch(write, pages)
}

fn launch_write<T: CudaDType + DeviceRepr + Element>(
    write: &Write<'_>,
    pages: Pages<'_, CudaStorage>,
) -> Result<()> {
    let caller = cache::CALLER;
    let described = write.describe()?;
    let append = described.builder().device_slots().build();
    let append = append.map_err(|error| caller.failed(error))?;
    let stream = match &pages {
        Pages::Apart(keys, _) | Pages::Together(keys) => keys.device().cuda_stream(),
    };
    let session = session(caller, &stream)?;

    let beyond = |name: &str| beyond(caller, name);
    let [(k, k_l), (v, v_l)] = write.new.map(Tensor::storage_and_layout);
    let (k, v) = (on_gpu(caller, "k", &k)?, on_gpu(caller, "v", &v)?);
    let (k_len, v_len) = (append.k().required_len(), append.v().required_len());
    let k = part(k.as_cuda_slice::<T>()?, k_l.start_offset(), k_len).ok_or_else(|| beyond("k"))?;
    let v = part(v.as_cuda_slice::<T>()?, v_l.start_offset(), v_len).ok_or_else(|| beyond("v"))?;
    let (slots, slots_l) = write.slots.storage_and_layout();
    let slots = on_gpu(caller, "slots", &slots)?.as_cuda_slice::<i64>()?;
    let slots = part(
        slots,
        slots_l.start_offset(),
        reach(caller, "slots", slots_l)?,
    );
    let slots = slots.ok_or_else(|| beyond("slots"))?;

    let starts = write.pages.map(|pages| pages.layout().start_offset());
    let scales = write.scales.as_ref().map(locked_scales);
    let scales = { scales.as_ref() }
        .map(|scales| scale_views(caller, scales))
        .transpose()?;
    let bindings = match (pages, scales) {
        (Pages::Apart(keys, values), None) => {
            let keys = from(keys.as_cuda_slice_mut::<T>()?, starts[0]);
            let values = from(values.as_cuda_slice_mut::<T>()?, starts[1]);
            let keys = keys.ok_or_else(|| beyond("k_pages"))?;
            AppendBindings::new(k, v, keys, values.ok_or_else(|| beyond("v_pages"))?)
        }
        (Pages::Together(both), None) => {
            let both = both.as_cuda_slice_mut::<T>()?.as_view_mut();
            AppendBindings::in_one(k, v, both, starts)
        }
        (Pages::Apart(keys, values), Some([k_scale, v_scale])) => {
            let (CudaStorageSlice::F8E4M3(keys), CudaStorageSlice::F8E4M3(values)) =
                (&mut keys.slice, &mut values.slice)
            else {
                return Err(caller.broken("the pages are not f8e4m3"));
            };
            let keys = from(keys, starts[0]).ok_or_else(|| beyond("k_pages"))?;
            let values = from(values, starts[1]).ok_or_else(|| beyond("v_pages"))?;
            AppendBindings::quantized(k, v, (keys, k_scale), (values, v_scale))
        }
        (Pages::Together(both), Some(scales)) => {
            let CudaStorageSlice::F8E4M3(both) = &mut both.slice else {
                return Err(caller.broken("the pages are not f8e4m3"));
            };
            AppendBindings::quantized_in_one(k, v, both.as_view_mut(), starts, scales)
        }
    };
    session
        .append(&append, bindings.slots(slots))
        .map_err(|error| failed(caller, error))
}

/// What is from `start` on; `None` if that is beyond the end.
fn from<T>(slice: &mut CudaSlice<T>, start: usize) -> Option<CudaViewMut<'_, T>> {
    slice.try_slice_mut(start..)
}
