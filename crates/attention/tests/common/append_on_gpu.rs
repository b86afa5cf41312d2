//! Cache writes through [`Prepared`](warptile::gpu::Prepared) on any device.

use bytemuck::Pod;
use warptile::Element;
use warptile::gpu::{Bindings, Gpu};
use warptile::spec::Operand;
use warptile_driver::DeviceBuffer;

use crate::append_cases::{AngleTables, AppendCase, Targets};
use crate::draw::Memory;

/// The bytes of a list.
fn bytes<N: Pod>(list: &[N]) -> &[u8] {
    bytemuck::cast_slice(list)
}

/// The bytes of a tensor from its first element on.
fn bytes_of<T: Pod>(memory: &Memory<T>) -> &[u8] {
    bytemuck::cast_slice(&memory.data[memory.offset..])
}

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
    let upload = |memory: &Memory<T>| DeviceBuffer::from_slice(stream, &memory.data).unwrap();
    let (k, v) = (upload(&case.k), upload(&case.v));
    let (k_view, v_view) = (
        k.slice(case.k.offset..).unwrap(),
        v.slice(case.v.offset..).unwrap(),
    );
    let (keys, values) = &case.caches;
    let mut caches = (upload(keys), upload(values));
    let keys_view = caches.0.slice_mut(keys.offset..).unwrap();
    let mut bindings = match case.together {
        Some(at) => Bindings::append_in_one(k_view, v_view, keys_view, at).unwrap(),
        None => {
            let values_view = caches.1.slice_mut(values.offset..).unwrap();
            Bindings::append(k_view, v_view, keys_view, values_view)
        }
    };
    let mut queries = case
        .q
        .as_ref()
        .map(|(q, out)| (upload(q), out.as_ref().map(upload)));
    if let (Some((buffer, out_buffer)), Some((q, out))) = (&mut queries, &case.q) {
        bindings = match (out_buffer, out) {
            (Some(to), Some(out)) => bindings
                .with(Operand::Q, buffer.slice(q.offset..).unwrap())
                .output(Operand::QOut, to.slice_mut(out.offset..).unwrap()),
            _ => bindings.output(Operand::Q, buffer.slice_mut(q.offset..).unwrap()),
        };
    }
    let tables = match &case.tables {
        Some(AngleTables::F32(cos, sin)) => [cos, sin].map(|table| Some(bytes_of(table))),
        Some(AngleTables::Elements(cos, sin)) => [cos, sin].map(|table| Some(bytes_of(table))),
        None => [None; 2],
    };
    let (slots, before, table) = match &case.targets {
        Targets::Slots(slots) => (Some(&slots[..]), None, None),
        Targets::Lengths(before, table) => {
            (None, Some(&before[..]), table.as_ref().map(|(t, _)| &t[..]))
        }
    };
    let widened: Option<Vec<i64>> = { case.positions.as_ref() }
        .filter(|_| wide)
        .map(|list| list.iter().map(|&position| i64::from(position)).collect());
    let positions = match &widened {
        Some(list) => Some(bytes(list)),
        None => case.positions.as_deref().map(bytes),
    };
    let numbers = [
        (Operand::NewSlots, slots.map(bytes)),
        (Operand::KeyLengths, before.map(bytes)),
        (Operand::BlockTable, table.map(bytes)),
        (Operand::RowOffsets, case.offsets.as_deref().map(bytes)),
        (Operand::RowLengths, case.row_lengths.as_deref().map(bytes)),
        (Operand::Positions, positions),
    ];
    let numbers = numbers.into_iter().filter(|_| on_device);
    let tables = [Operand::Cos, Operand::Sin].into_iter().zip(tables);
    let lists: Vec<_> = { numbers.chain(tables) }
        .filter_map(|(operand, list)| {
            Some((operand, DeviceBuffer::from_slice(stream, list?).unwrap()))
        })
        .collect();
    for (operand, list) in &lists {
        bindings = bindings.with(*operand, list.as_slice());
    }
    let prepared = gpu.prepare_append(T::TYPE).unwrap();
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
