//! Cache writes through [`PreparedAppend`](warptile::gpu::PreparedAppend) on any device.

use bytemuck::Pod;
use warptile::Element;
use warptile::gpu::{AppendBindings, Gpu};
use warptile_driver::DeviceBuffer;

use crate::append_cases::{AngleTables, AppendCase, Targets};
use crate::draw::Memory;

/// Uploads a case, launches it with its numbers on the host or on the device, has `run` do what the device needs besides, and gets
/// the results.
pub(crate) fn append_on<T: Element>(
    gpu: &Gpu,
    case: &mut AppendCase<T>,
    on_device: bool,
    run: impl FnOnce(),
) {
    let stream = gpu.stream();
    // Half of the cases have positions of 64 bits.
    let wide = case.batch().is_multiple_of(2);
    let append = case.describe(on_device, wide);
    fn numbers<N: Pod>(gpu: &Gpu, list: Option<&Vec<N>>) -> Option<DeviceBuffer<N>> {
        list.map(|list| DeviceBuffer::from_slice(gpu.stream(), list).unwrap())
    }
    let upload = |memory: &Memory<T>| DeviceBuffer::from_slice(stream, &memory.data).unwrap();
    let upload_f32 = |memory: &Memory<f32>| DeviceBuffer::from_slice(stream, &memory.data).unwrap();
    let (k, v) = (upload(&case.k), upload(&case.v));
    let (k_view, v_view) = (
        k.slice(case.k.offset..).unwrap(),
        v.slice(case.v.offset..).unwrap(),
    );
    let (keys, values) = &case.caches;
    let mut caches = (upload(keys), upload(values));
    let keys_view = caches.0.slice_mut(keys.offset..).unwrap();
    let mut bindings = match case.together {
        Some(at) => AppendBindings::in_one(k_view, v_view, keys_view, at).unwrap(),
        None => {
            let values_view = caches.1.slice_mut(values.offset..).unwrap();
            AppendBindings::new(k_view, v_view, keys_view, values_view)
        }
    };
    let mut queries = case
        .q
        .as_ref()
        .map(|(q, out)| (upload(q), out.as_ref().map(upload)));
    if let (Some((buffer, out_buffer)), Some((q, out))) = (&mut queries, &case.q) {
        bindings = match (out_buffer, out) {
            (Some(to), Some(out)) => bindings.queries_into(
                buffer.slice(q.offset..).unwrap(),
                to.slice_mut(out.offset..).unwrap(),
            ),
            _ => bindings.queries(buffer.slice_mut(q.offset..).unwrap()),
        };
    }
    let tables = case.tables.as_ref().map(|tables| match tables {
        AngleTables::F32(cos, sin) => (Some((upload_f32(cos), upload_f32(sin))), None),
        AngleTables::Elements(cos, sin) => (None, Some((upload(cos), upload(sin)))),
    });
    match (&tables, &case.tables) {
        (Some((Some((cos, sin)), _)), Some(AngleTables::F32(of_cos, of_sin))) => {
            let (cos, sin) = (cos.slice(of_cos.offset..), sin.slice(of_sin.offset..));
            bindings = bindings.tables(cos.unwrap(), sin.unwrap());
        }
        (Some((_, Some((cos, sin)))), Some(AngleTables::Elements(of_cos, of_sin))) => {
            let (cos, sin) = (cos.slice(of_cos.offset..), sin.slice(of_sin.offset..));
            bindings = bindings.tables(cos.unwrap(), sin.unwrap());
        }
        _ => {}
    }
    let (slots, before, table) = match &case.targets {
        Targets::Slots(slots) => (Some(slots), None, None),
        Targets::Lengths(before, table) => (None, Some(before), table.as_ref().map(|(t, _)| t)),
    };
    let slots = numbers(gpu, slots.filter(|_| on_device));
    let before = numbers(gpu, before.filter(|_| on_device));
    let table = numbers(gpu, table.filter(|_| on_device));
    let offsets = numbers(gpu, case.offsets.as_ref().filter(|_| on_device));
    let row_lengths = numbers(gpu, case.row_lengths.as_ref().filter(|_| on_device));
    let narrow_positions = case.positions.as_ref().filter(|_| on_device && !wide);
    let narrow_positions = numbers(gpu, narrow_positions);
    let wide_positions: Option<Vec<i64>> = case
        .positions
        .as_ref()
        .filter(|_| on_device && wide)
        .map(|list| list.iter().map(|&position| i64::from(position)).collect());
    let wide_positions = numbers(gpu, wide_positions.as_ref());
    if let Some(list) = &slots {
        bindings = bindings.slots(list.as_slice());
    }
    if let Some(list) = &before {
        bindings = bindings.key_lengths(list.as_slice());
    }
    if let Some(list) = &table {
        bindings = bindings.block_table(list.as_slice());
    }
    if let Some(list) = &offsets {
        bindings = bindings.row_offsets(list.as_slice());
    }
    if let Some(list) = &row_lengths {
        bindings = bindings.row_lengths(list.as_slice());
    }
    if let Some(list) = &narrow_positions {
        bindings = bindings.positions(list.as_slice());
    }
    if let Some(list) = &wide_positions {
        bindings = bindings.positions(list.as_slice());
    }
    let prepared = gpu.prepare_append(T::TYPE, None).unwrap();
    prepared.launch(stream, &append, &bindings).unwrap();
    drop(bindings);
    run();
    case.caches.0.data = caches.0.to_vec().unwrap();
    if case.together.is_none() {
        case.caches.1.data = caches.1.to_vec().unwrap();
    }
    if let (Some((buffer, out_buffer)), Some((q, out))) = (queries, &mut case.q) {
        q.data = buffer.to_vec().unwrap();
        if let (Some(from), Some(out)) = (out_buffer, out) {
            out.data = from.to_vec().unwrap();
        }
    }
}
