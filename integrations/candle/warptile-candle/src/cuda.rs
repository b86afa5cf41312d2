//! Tensors on a GPU: warptile's launches on candle's stream.
//!
//! One call is one launch on the stream of q's device, whichever stream that is: candle 0.11's own is another one on each thread.
//! So nothing is kept for a stream or a thread. What a launch needs beside its tensors is allocated on that stream and freed in its
//! order, as its output is, and both may be part of a capture.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
    ValidAsZeroBits,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Storage, Tensor};
use half::{bf16, f16};
use warptile::driver::sys::CUstream;
use warptile::driver::{DevicePointer, Driver};
use warptile::gpu::{Addresses, AppendAddresses, Gpu, Prepared};
use warptile::{Call, Choice, TableLayout};

use crate::attention::{Attention, Keys, Packed, Queries};
use crate::cache::{self, Pages, Write};
use crate::caller::Caller;
use crate::describe::Described;
use crate::open::open;

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

fn launch<T: CudaDType + DeviceRepr + ValidAsZeroBits>(
    attention: &Attention,
    described: &Described,
    tensors: [&CudaStorage; 3],
    layouts: [&Layout; 3],
    want_lse: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    let device = tensors[0].device();
    let stream = device.cuda_stream();
    let gpu = gpu(stream.context()).map_err(|error| attention.caller.broken(error))?;

    let whole = |index: usize, layout: &warptile::Layout| {
        let slice = tensors[index].as_cuda_slice::<T>()?;
        part(slice, layouts[index].start_offset(), layout.required_len()).ok_or_else(|| {
            attention
                .caller
                .broken(format!("{} reaches beyond its memory", NAMES[index]))
        })
    };
    let views = [
        whole(0, &described.q)?,
        whole(1, &described.k)?,
        whole(2, &described.v)?,
    ];
    let beside = beside(attention);
    let locked: Vec<_> = beside
        .iter()
        .map(|list| list.tensor.storage_and_layout())
        .collect();
    let mut lists = Vec::with_capacity(locked.len());
    for (list, (storage, layout)) in beside.iter().zip(&locked) {
        lists.push(numbers(attention.caller, list.name, storage, layout)?);
    }

    // The guards order the stream after whatever writes these tensors now, and, when they are dropped after the launch, whatever
    // writes them later after it.
    let mut addresses = Addresses::default();
    let mut guards = Vec::with_capacity(views.len() + lists.len());
    for (view, address) in views
        .iter()
        .zip([&mut addresses.q, &mut addresses.k, &mut addresses.v])
    {
        let (pointer, guard) = view.device_ptr(&stream);
        *address = pointer;
        guards.push(guard);
    }
    for (view, list) in lists.iter().zip(&beside) {
        let (pointer, guard) = view.device_ptr(&stream);
        *(list.slot)(&mut addresses) = pointer;
        guards.push(guard);
    }

    let call = call(attention, described, &addresses, want_lse)?;
    let failed = |error| attention.caller.failed(error);
    let prepared = gpu.prepare(call.problem(), &Choice::Best).map_err(failed)?;
    let mut out = output::<T>(attention, device, &call)?;
    let mut lse = match call.wants_lse() {
        true => Some(device.alloc_zeros::<f32>(call.lse_len())?),
        false => None,
    };
    let mut workspace = workspace(attention, device, &prepared, &call)?;
    {
        let (pointer, _written) = out.device_ptr_mut(&stream);
        addresses.out = pointer;
        let lse = lse.as_mut().map(|lse| lse.device_ptr_mut(&stream));
        addresses.lse = lse.as_ref().map_or(0, |(pointer, _)| *pointer);
        let workspace = workspace
            .as_mut()
            .map(|workspace| workspace.device_ptr_mut(&stream));
        let scratch = workspace.as_ref().map_or(0, |(pointer, _)| *pointer);
        stream.context().bind_to_thread().w()?;
        // SAFETY: the stream is live, and of the context that the kernels are loaded in, as `gpu` has checked; it is current now.
        // Every address is that of a view of device memory that reaches as far as the call's layouts say, or as its count of numbers,
        // by `part` and `numbers`; the output, the lse and the workspace were allocated with the sizes that the call has, and are
        // freed in the stream's order after it. The workspace is zeroed on the stream and belongs to this launch alone; cudarc's
        // memory is aligned to 256 bytes. What is read is ordered as for candle's own kernels: by cudarc's guards, or by the one
        // stream there is; if a caller breaks that order, it gets wrong numbers, and lengths are clamped. What a graph needs of the
        // kernels is kept by `gpu`, which is never dropped.
        unsafe { prepared.launch_raw(raw(&stream), &call, &addresses, scratch) }.map_err(failed)?;
    }
    drop(guards);
    let storage = CudaStorage::wrap_cuda_slice(out, device.clone());
    let lse = lse.map(|lse| CudaStorage::wrap_cuda_slice(lse, device.clone()));
    Ok((storage, lse))
}

const NAMES: [&str; 3] = ["q", "k", "v"];

/// The call with its lengths, which the kernels read from the device and clamp.
fn call(
    attention: &Attention,
    described: &Described,
    addresses: &Addresses,
    want_lse: bool,
) -> Result<Call> {
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
    if [addresses.q, addresses.k, addresses.v]
        .iter()
        .any(|address| !address.is_multiple_of(16))
    {
        builder = builder.unaligned_addresses();
    }
    builder
        .build()
        .map_err(|error| attention.caller.failed(error))
}

/// A tensor that the launch reads beside q, k and v.
struct Beside<'a> {
    name: &'static str,
    tensor: &'a Tensor,
    slot: fn(&mut Addresses) -> &mut DevicePointer,
}

fn beside(attention: &Attention) -> Vec<Beside<'_>> {
    let mut list = Vec::with_capacity(4);
    let mut add = |name, tensor, slot| list.push(Beside { name, tensor, slot });
    if let Queries::Packed(Packed { offsets, .. }) = &attention.queries {
        add("seqlens_q", offsets, |addresses| {
            &mut addresses.query_offsets
        });
    }
    match &attention.keys {
        Keys::Dense => {}
        Keys::Packed(Packed { offsets, .. }) => {
            add("seqlens_k", offsets, |addresses| &mut addresses.key_offsets);
        }
        Keys::Paged { table, lengths, .. } => {
            add("key_lengths", lengths, |addresses| {
                &mut addresses.key_lengths
            });
            add("block_table", table, |addresses| &mut addresses.block_table);
        }
    }
    if let Some(slopes) = &attention.alibi_slopes {
        add("alibi_slopes", slopes, |addresses| &mut addresses.slopes);
    }
    if let Some(sinks) = &attention.sinks {
        add("sinks", sinks, |addresses| &mut addresses.sinks);
    }
    list
}

/// Numbers on the device.
enum Numbers<'a> {
    U32(CudaView<'a, u32>),
    I32(CudaView<'a, i32>),
    I64(CudaView<'a, i64>),
    F32(CudaView<'a, f32>),
}

impl Numbers<'_> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (DevicePointer, SyncOnDrop<'a>) {
        match self {
            Numbers::U32(view) => view.device_ptr(stream),
            Numbers::I32(view) => view.device_ptr(stream),
            Numbers::I64(view) => view.device_ptr(stream),
            Numbers::F32(view) => view.device_ptr(stream),
        }
    }
}

/// The numbers of a tensor whose rows are contiguous.
fn numbers<'a>(
    caller: Caller,
    name: &str,
    storage: &'a Storage,
    layout: &Layout,
) -> Result<Numbers<'a>> {
    let Storage::Cuda(storage) = storage else {
        return Err(caller.broken(format!("{name} is not on a GPU")));
    };
    if let (Some(2..), Some(stride @ (0 | 2..))) = (layout.dims().last(), layout.stride().last()) {
        return Err(caller.broken(format!(
            "{name} has stride {stride} in its last dimension, which must be contiguous; use `contiguous()`"
        )));
    }
    let extents = layout.dims().iter().zip(layout.stride());
    let reach = match layout.dims().contains(&0) {
        true => Some(0),
        false => extents
            .map(|(&extent, &stride)| (extent - 1).checked_mul(stride))
            .try_fold(1_usize, |reach, step| reach.checked_add(step?)),
    };
    let start = layout.start_offset();
    match storage.dtype() {
        DType::U32 => part(storage.as_cuda_slice()?, start, reach).map(Numbers::U32),
        DType::I64 => part(storage.as_cuda_slice()?, start, reach).map(Numbers::I64),
        DType::I32 => part(storage.as_cuda_slice()?, start, reach).map(Numbers::I32),
        _ => part(storage.as_cuda_slice()?, start, reach).map(Numbers::F32),
    }
    .ok_or_else(|| caller.broken(format!("{name} reaches beyond its memory")))
}

/// So many elements from `start` on; `None` if there are not so many.
fn part<T>(slice: &CudaSlice<T>, start: usize, reach: Option<usize>) -> Option<CudaView<'_, T>> {
    slice.try_slice(start..start.checked_add(reach?)?)
}

/// Memory for the output. Of packed queries it is zeroed: only the device knows whether there are rows that no sequence owns.
fn output<T: DeviceRepr + ValidAsZeroBits>(
    attention: &Attention,
    device: &CudaDevice,
    call: &Call,
) -> Result<CudaSlice<T>> {
    let elements = call.out().element_count();
    let elements = elements.ok_or_else(|| attention.caller.broken("q is too large"))?;
    match attention.queries {
        Queries::Packed(_) => device.alloc_zeros::<T>(elements),
        // SAFETY: the launch writes every row of dense queries before anything that comes after it on the stream reads them, and
        // every bit pattern is a number.
        Queries::Dense => unsafe { device.alloc::<T>(elements) },
    }
}

/// Zeroed memory for the counters of tiles and for parts of tiles; `None` if the call's launches need none.
fn workspace(
    attention: &Attention,
    device: &CudaDevice,
    prepared: &Prepared,
    call: &Call,
) -> Result<Option<CudaSlice<u8>>> {
    let mut bytes = 0;
    for step in prepared.plan().steps() {
        let shape = step
            .shape(call)
            .map_err(|error| attention.caller.failed(error))?;
        bytes = bytes.max(shape.workspace_bytes);
    }
    match bytes {
        0 => Ok(None),
        bytes => device.alloc_zeros::<u8>(bytes).map(Some),
    }
}

/// Warptile's side of a context: opened once for each GPU, and never dropped.
fn gpu(context: &CudaContext) -> std::result::Result<&'static Gpu, String> {
    static GPUS: Mutex<Vec<(usize, &'static Gpu)>> = Mutex::new(Vec::new());
    let ordinal = context.ordinal();
    // A list that a panic left behind is whole.
    let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = match gpus.iter().find(|(known, _)| *known == ordinal) {
        Some(&(_, gpu)) => gpu,
        None => {
            let gpu: &'static Gpu = Box::leak(Box::new(open(Driver::load(), ordinal)?));
            gpus.push((ordinal, gpu));
            gpu
        }
    };
    // cudarc can make contexts beside a device's primary one; streams and memory of those are of no use to our kernels.
    match gpu.context().raw().0.addr() == context.cu_ctx().addr() {
        true => Ok(gpu),
        false => Err(format!(
            "candle's device uses a CUDA context that is not the primary one of cuda:{ordinal}; use Device::new_cuda or \
             Device::new_cuda_with_stream"
        )),
    }
}

/// Writes new keys and values into pages.
pub(crate) fn write(write: &Write<'_>, pages: Pages<'_, CudaStorage>) -> Result<()> {
    let launch = match write.pages[0].dtype() {
        DType::F16 => launch_write::<f16>,
        DType::BF16 => launch_write::<bf16>,
        _ => launch_write::<f32>,
    };
    launch(write, pages)
}

fn launch_write<T: CudaDType + DeviceRepr>(
    write: &Write<'_>,
    mut pages: Pages<'_, CudaStorage>,
) -> Result<()> {
    let caller = cache::CALLER;
    let failed = |error| caller.failed(error);
    let described = write.describe()?;
    let append = described.builder().device_slots().build().map_err(failed)?;
    let stream = match &pages {
        Pages::Apart(keys, _) | Pages::Together(keys) => keys.device().cuda_stream(),
    };
    let gpu = gpu(stream.context()).map_err(|error| caller.broken(error))?;
    let prepared = gpu.prepare_append(described.element).map_err(failed)?;

    let beyond = |name: &str| caller.broken(format_args!("{name} reaches beyond its memory"));
    let [(k, k_l), (v, v_l)] = write.new.map(Tensor::storage_and_layout);
    let (Storage::Cuda(k), Storage::Cuda(v)) = (&*k, &*v) else {
        return Err(caller.broken("k and v are not on a GPU"));
    };
    let k = part(
        k.as_cuda_slice::<T>()?,
        k_l.start_offset(),
        append.k().required_len(),
    );
    let v = part(
        v.as_cuda_slice::<T>()?,
        v_l.start_offset(),
        append.v().required_len(),
    );
    let (k, v) = (k.ok_or_else(|| beyond("k"))?, v.ok_or_else(|| beyond("v"))?);
    let (slots, slots_l) = write.slots.storage_and_layout();
    let slots = numbers(caller, "slots", &slots, slots_l)?;

    let mut addresses = AppendAddresses::default();
    let ((k, _k), (v, _v), (slots, _slots)) = (
        k.device_ptr(&stream),
        v.device_ptr(&stream),
        slots.device_ptr(&stream),
    );
    (addresses.k, addresses.v, addresses.slots) = (k, v, slots);
    let [k_start, v_start] = write.pages.map(|pages| pages.layout().start_offset());
    let ends = [
        ("k_pages", k_start, append.k_pages().required_len()),
        ("v_pages", v_start, append.v_pages().required_len()),
    ];
    let ends = ends.map(|(name, start, reach)| {
        let end = reach.and_then(|reach| reach.checked_add(start));
        end.map(|end| (name, start, end))
            .ok_or_else(|| beyond(name))
    });
    let [keys_end, values_end] = ends;
    let (keys_end, values_end) = (keys_end?, values_end?);
    // The address of a part of `slice` that ends there.
    let at = |base: DevicePointer, len: usize, (name, start, end): (&str, usize, usize)| match end
        <= len
    {
        true => Ok(base + (start * size_of::<T>()) as u64),
        false => Err(beyond(name)),
    };
    let (first, mut second) = match &mut pages {
        Pages::Apart(keys, values) => (
            keys.as_cuda_slice_mut::<T>()?,
            Some(values.as_cuda_slice_mut::<T>()?),
        ),
        Pages::Together(both) => (both.as_cuda_slice_mut::<T>()?, None),
    };
    let first_len = first.len();
    let second_len = second.as_ref().map_or(first_len, |second| second.len());
    let (first, _first) = first.device_ptr_mut(&stream);
    let second = second.as_mut().map(|second| second.device_ptr_mut(&stream));
    let second_base = second.as_ref().map_or(first, |(pointer, _)| *pointer);
    addresses.k_pages = at(first, first_len, keys_end)?;
    addresses.v_pages = at(second_base, second_len, values_end)?;
    stream.context().bind_to_thread().w()?;
    // SAFETY: the stream is live, and of the context that the kernel is loaded in, as `gpu` has checked; it is current now. Every
    // address is that of device memory that reaches as far as the layouts say, or as its count of numbers: `part`, `numbers` and
    // `at` have checked. What is read and written is ordered as for candle's own kernels: by cudarc's guards, which are dropped after
    // the launch, or by the one stream there is; slots are clamped. What a graph needs of the kernel is kept by `gpu`, which is never
    // dropped.
    unsafe { prepared.launch_raw(raw(&stream), &append, &addresses) }.map_err(failed)
}

fn raw(stream: &CudaStream) -> CUstream {
    CUstream(stream.cu_stream().cast())
}
