//! Pre-passes through [`Prepared`](warptile::gpu::Prepared) on any device.

use warptile::Element;
use warptile::backward::Prepass;
use warptile::gpu::{Bindings, Gpu};
use warptile::plan::Choice;
use warptile::spec::Operand;
use warptile_driver::DeviceBuffer;

use crate::draw::Memory;
use crate::prepass_cases::PrepassCase;

/// Uploads a case, launches it, has `run` do what the device needs besides, and gets the results. They do not depend on where lengths are.
pub(crate) fn prepass_on<T: Element>(
    gpu: &Gpu,
    case: &PrepassCase<T>,
    results: &mut [Vec<f32>; 2],
    run: impl Fn(),
) {
    let stream = gpu.stream();
    let upload = |memory: &Memory<T>| DeviceBuffer::from_slice(stream, &memory.data).unwrap();
    let (out, d_out) = (upload(&case.out), upload(&case.d_out));
    let floats = |list: &[f32]| DeviceBuffer::from_slice(stream, list).unwrap();
    let lse = floats(&case.lse);
    let d_lse = case.d_lse.as_deref().map(floats);
    let lists: Vec<_> = { case.lists() }
        .map(|(operand, list)| (operand, DeviceBuffer::from_slice(stream, list).unwrap()))
        .collect();
    let of_host = case.described(false);
    let prepared = gpu.prepare_for(&of_host, &Choice::Best).unwrap();
    let [on_host, on_device] = [false, true].map(|on_device| {
        let prepass = case.described(on_device);
        // A head of a batch entry has as many tiles as a sequence can have, if its length is not known.
        let is_longer = prepass.len() > of_host.len();
        let [mut delta, mut scaled] = results.each_ref().map(|list| match is_longer {
            true => floats(&vec![f32::NAN; prepass.len()]),
            false => floats(list),
        });
        let mut bindings = Bindings::default()
            .with(Operand::Out, out.slice(case.out.offset..).unwrap())
            .with(Operand::DOut, d_out.slice(case.d_out.offset..).unwrap())
            .with(Operand::Lse, lse.as_slice())
            .output(Operand::Delta, delta.as_slice_mut())
            .output(Operand::ScaledLse, scaled.as_slice_mut());
        if let Some(d_lse) = &d_lse {
            bindings = bindings.with(Operand::DLse, d_lse.as_slice());
        }
        for (operand, list) in lists.iter().filter(|_| on_device) {
            bindings = bindings.with(*operand, list.as_slice());
        }
        prepared.launch(stream, &prepass, &bindings).unwrap();
        run();
        let [mut delta, mut scaled] = [delta.to_vec().unwrap(), scaled.to_vec().unwrap()];
        if is_longer {
            let count = of_host.tiles() * Prepass::TILE;
            for (found, like_host) in [&mut delta, &mut scaled].into_iter().zip(results.iter()) {
                let mut kept = like_host.clone();
                for batch in 0..of_host.batch() {
                    for head in 0..of_host.out().heads() {
                        let [from, to] = [&prepass, &of_host].map(|of| of.start(batch, head));
                        kept[to..to + count].copy_from_slice(&found[from..from + count]);
                    }
                }
                *found = kept;
            }
        }
        [delta, scaled]
    });
    let bits =
        |results: &[Vec<f32>; 2]| bytemuck::cast_slice::<f32, u32>(&results.concat()).to_vec();
    assert_eq!(bits(&on_host), bits(&on_device));
    *results = on_host;
}
