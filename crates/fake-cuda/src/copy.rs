//! Copies and fills.

use std::ffi::c_void;

use warptile_cuda_sys::*;

use crate::argument::{In, Out};
use crate::device::device_of;
use crate::memory::{done, queued, transfer};
use crate::queue::Op;
use crate::state::State;
use crate::stream::{Key, StreamKind};

/// Runs everything first: the synchronous copies wait for the default stream, and are used here
/// only where nothing else is under way.
fn copy_now(state: &mut State, to: u64, from: u64, bytes: usize) -> CUresult {
    let context = match state.current() {
        Ok(context) => context,
        Err(code) => return code,
    };
    if state.break_captures(context) {
        return CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    state.run_all();
    transfer(to, from, bytes);
    state.lost.unwrap_or(CUresult::SUCCESS)
}

pub(crate) fn memcpy_htod(
    state: &mut State,
    to: CUdeviceptr,
    from: In<c_void>,
    bytes: usize,
) -> CUresult {
    match state.on_device(to, bytes) {
        Ok(_) => copy_now(state, to, from.address(), bytes),
        Err(code) => code,
    }
}

pub(crate) fn memcpy_dtoh(
    state: &mut State,
    to: Out<c_void>,
    from: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    match state.on_device(from, bytes) {
        Ok(_) => copy_now(state, to.address(), from, bytes),
        Err(code) => code,
    }
}

pub(crate) fn memcpy_htod_async(
    state: &mut State,
    to: CUdeviceptr,
    from: In<c_void>,
    bytes: usize,
    on: Key,
) -> CUresult {
    done(state.on_device_of(on, to, bytes).and_then(|to| {
        let from = state.host_source(&from, bytes);
        queued(state.push(on, Op::Copy { to, from, bytes }))
    }))
}

pub(crate) fn memcpy_dtoh_async(
    state: &mut State,
    to: Out<c_void>,
    from: CUdeviceptr,
    bytes: usize,
    on: Key,
) -> CUresult {
    let place = match state.on_device_of(on, from, bytes) {
        Ok(place) => place,
        Err(code) => return code,
    };
    if let Some(to) = state.pinned_at(to.address(), bytes) {
        let from = place;
        return state.push(on, Op::Copy { to, from, bytes });
    }
    // Pageable memory is written before the call returns.
    if let Some(capture) = state.streams.get(&on).and_then(|stream| stream.capture) {
        state.invalidate(capture);
        return CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    state.run(on, None);
    match (state.lost, state.address_of(&place)) {
        (Some(code), _) => code,
        (None, Some(from)) => {
            transfer(to.address(), from, bytes);
            CUresult::SUCCESS
        }
        (None, None) => {
            state.fault("a copy read device memory that was freed before".into());
            CUresult::SUCCESS
        }
    }
}

pub(crate) fn memcpy_dtod_async(
    state: &mut State,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    on: Key,
) -> CUresult {
    let to = state.on_device_of(on, to, bytes);
    let from = state.on_device_of(on, from, bytes);
    done(to.and_then(|to| {
        let from = from?;
        queued(state.push(on, Op::Copy { to, from, bytes }))
    }))
}

pub(crate) fn memcpy_peer_async(
    state: &mut State,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    on: Key,
) -> CUresult {
    let mut place = |address, context| {
        let place = state.on_device(address, bytes)?;
        if state.device_with(address) != Some(device_of(context)) {
            state.violation(format!("{address:#x} is not of the context given with it"));
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(place)
    };
    let (to, from) = (place(to, to_context), place(from, from_context));
    done(to.and_then(|to| {
        let from = from?;
        queued(state.push(on, Op::Copy { to, from, bytes }))
    }))
}

/// Copies of a batch, in order.
#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn memcpy_batch_async(
    state: &mut State,
    to: Out<CUdeviceptr>,
    from: Out<CUdeviceptr>,
    bytes: Out<usize>,
    count: usize,
    attributes: Out<CUmemcpyAttributes>,
    attributes_from: Out<usize>,
    attributes_count: usize,
    _failed: Out<usize>,
    on: Key,
) -> CUresult {
    let order = attributes.read(1)[0].src_access_order;
    let on_legacy =
        { state.streams.get(&on) }.is_some_and(|stream| stream.kind == StreamKind::Legacy);
    if count == 0 || attributes_count != 1 || attributes_from.read(1) != [0] || on_legacy {
        return CUresult::ERROR_INVALID_VALUE;
    }
    if order != CUmemcpySrcAccessOrder::STREAM {
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    if state
        .streams
        .get(&on)
        .is_some_and(|stream| stream.capture.is_some())
    {
        return CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    let sides = to.read(count).into_iter().zip(from.read(count));
    done(
        { sides.zip(bytes.read(count)) }.try_for_each(|((to, from), bytes)| {
            let to = state.on_device(to, bytes)?;
            let from = state.on_device(from, bytes)?;
            queued(state.push(on, Op::Copy { to, from, bytes }))
        }),
    )
}

/// Rectangles of device memory, row by row.
pub(crate) fn memcpy_2d_async(state: &mut State, copy: In<CUmemcpy2D>, on: Key) -> CUresult {
    let copy = copy.first();
    let kinds = [copy.src_memory_type, copy.dst_memory_type];
    if kinds != [CUmemoryType::UNIFIED; 2] {
        return CUresult::ERROR_NOT_SUPPORTED;
    }
    let bytes = copy.width_in_bytes;
    if [copy.src_pitch, copy.dst_pitch]
        .iter()
        .any(|pitch| *pitch < bytes)
    {
        state.violation("a rectangle has rows that overlap".into());
        return CUresult::ERROR_INVALID_VALUE;
    }
    let row = |start: u64, pitch: usize, [x, y]: [usize; 2], row: usize| {
        start + (x + (y + row) * pitch) as u64
    };
    done((0..copy.height).try_for_each(|at| {
        let (to, from) = (
            [copy.dst_x_in_bytes, copy.dst_y],
            [copy.src_x_in_bytes, copy.src_y],
        );
        let to = state.on_device(row(copy.dst_device, copy.dst_pitch, to, at), bytes)?;
        let from = state.on_device(row(copy.src_device, copy.src_pitch, from, at), bytes)?;
        queued(state.push(on, Op::Copy { to, from, bytes }))
    }))
}

/// Queues a fill with the bytes of `pattern`, over and over.
fn fill(state: &mut State, to: u64, pattern: &[u8], bytes: usize, on: Key) -> CUresult {
    let pattern = pattern.to_vec();
    done(
        state
            .on_device_of(on, to, bytes)
            .and_then(|to| queued(state.push(on, Op::Fill { to, pattern, bytes }))),
    )
}

/// `bytes` bytes of `pattern`, over and over. Not byte by byte: benchmarks fill more than a GPU's cache before each launch, and nothing
/// here is optimised.
pub(crate) fn repeated(pattern: &[u8], bytes: usize) -> Vec<u8> {
    let mut all = pattern.repeat(bytes.div_ceil(pattern.len()));
    all.truncate(bytes);
    all
}

fn fill_now(state: &mut State, to: u64, pattern: &[u8], bytes: usize) -> CUresult {
    if let Err(code) = state.on_device(to, bytes) {
        return code;
    }
    let staged = repeated(pattern, bytes);
    copy_now(state, to, staged.as_ptr().expose_provenance() as u64, bytes)
}

pub(crate) fn memset_d8(state: &mut State, to: CUdeviceptr, value: u8, count: usize) -> CUresult {
    fill_now(state, to, &[value], count)
}

pub(crate) fn memset_d8_async(
    state: &mut State,
    to: CUdeviceptr,
    value: u8,
    count: usize,
    on: Key,
) -> CUresult {
    fill(state, to, &[value], count, on)
}
