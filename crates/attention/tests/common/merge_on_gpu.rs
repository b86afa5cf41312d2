//! Merges through [`Prepared`](warptile::gpu::Prepared) on any device.

use warptile::Element;
use warptile::gpu::{Bindings, Gpu};
use warptile::spec::Operand;
use warptile_driver::DeviceBuffer;

use crate::draw::Memory;
use crate::merge_cases::{MergeCase, SumCase};

/// Uploads a case, launches it, has `run` do what the device needs besides, and gets the results.
pub(crate) fn merge_on<T: Element>(
    gpu: &Gpu,
    case: &MergeCase<T>,
    out: &mut Memory<T>,
    lse: Option<&mut Memory<f32>>,
    run: impl FnOnce(),
) {
    let stream = gpu.stream();
    let upload = |memory: &Memory<T>| DeviceBuffer::from_slice(stream, &memory.data).unwrap();
    let upload_lse = |memory: &Memory<f32>| DeviceBuffer::from_slice(stream, &memory.data).unwrap();
    let mut merged = (upload(out), lse.as_deref().map(upload_lse));
    let parts: Vec<_> = case
        .parts
        .iter()
        .map(|(part, lse)| (upload(part), upload_lse(lse)))
        .collect();
    let mut bindings = Bindings::merge(merged.0.slice_mut(out.offset..).unwrap());
    if let (Some(memory), Some(lse)) = (&mut merged.1, &lse) {
        bindings = bindings.output(Operand::Lse, memory.slice_mut(lse.offset..).unwrap());
    }
    for ((part, lse), (of_part, of_lse)) in parts.iter().zip(&case.parts) {
        bindings = bindings.part(
            part.slice(of_part.offset..).unwrap(),
            lse.slice(of_lse.offset..).unwrap(),
        );
    }
    let prepared = gpu.prepare_merge(T::TYPE).unwrap();
    prepared.launch(stream, &case.merge, &bindings).unwrap();
    run();
    out.data = merged.0.to_vec().unwrap();
    if let (Some(memory), Some(lse)) = (merged.1, lse) {
        lse.data = memory.to_vec().unwrap();
    }
}

/// As [`merge_on`], of a sum.
pub(crate) fn sum_on<T: Element>(
    gpu: &Gpu,
    case: &SumCase<T>,
    out: &mut Memory<T>,
    run: impl FnOnce(),
) {
    let stream = gpu.stream();
    let mut sums = DeviceBuffer::from_slice(stream, &out.data).unwrap();
    let addends: Vec<_> = { case.addends.iter() }
        .map(|memory| DeviceBuffer::from_slice(stream, &memory.data).unwrap())
        .collect();
    let mut bindings = Bindings::merge(sums.slice_mut(out.offset..).unwrap());
    for (addend, of) in addends.iter().zip(&case.addends) {
        bindings = bindings.addend(addend.slice(of.offset..).unwrap());
    }
    let prepared = gpu.prepare_merge(T::TYPE).unwrap();
    prepared.launch(stream, &case.merge, &bindings).unwrap();
    run();
    out.data = sums.to_vec().unwrap();
}
