//! Merges: what is launched, what is refused, captures, and failures.

use half::f16;
use warptile::gpu::{Addresses, Bindings};
use warptile::kernels::abi;
use warptile::ops::merge;
use warptile::spec::{Invalid, LseBase, Merge, Operand};
use warptile::{Backend, ElementType, Error, Layout, Lse, Tensor};
use warptile_driver::{DeviceBuffer, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::faults::every_failure_is_survived;
use crate::operations::{block, calls_of, replayed_twice};
use crate::{driver, gpu};

const SHAPE: [usize; 4] = [2, 100, 3, 64];
const LEN: usize = 2 * 100 * 3 * 64;

fn description(parts: usize) -> Merge {
    Merge::builder(ElementType::F16, &vec![Layout::bshd(SHAPE); parts])
        .build()
        .unwrap()
}

struct Memory {
    out: DeviceBuffer<f16>,
    lse: DeviceBuffer<f32>,
}

impl Memory {
    fn new(stream: &Stream) -> Self {
        Memory {
            out: DeviceBuffer::zeroed(stream, LEN).unwrap(),
            lse: DeviceBuffer::zeroed(stream, LEN / 64).unwrap(),
        }
    }
}

/// Bindings of a result and `parts` parts that share their memory.
fn bindings<'a>(to: &'a mut Memory, part: &'a Memory, parts: usize) -> Bindings<'a> {
    let start = Bindings::merge(to.out.as_slice_mut()).output(Operand::Lse, to.lse.as_slice_mut());
    (0..parts).fold(start, |all, _| {
        all.part(part.out.as_slice(), part.lse.as_slice())
    })
}

#[test]
fn a_merge_is_launched_with_its_strides_and_base() {
    let fake = FakeDriver::open();
    {
        let backend = Backend::cuda_with(&driver(&fake), 0).unwrap();
        let data = vec![f16::ONE; LEN];
        let rows = backend.tensor(&data, SHAPE).unwrap();
        let heads_first = Layout::bhsd([2, 3, 100, 64]);
        let heads = backend.tensor_with_layout(&data, heads_first).unwrap();
        let lse = Lse::zeros(&backend, SHAPE).unwrap();
        merge(&[(&heads, &lse), (&rows, &lse)], LseBase::Two).unwrap();
        backend.synchronize().unwrap();
        let launches = fake.launches();
        let block: abi::Merge = block(&launches[0]);
        assert_eq!(launches[0].name(), "warptile_merge_w4_f16");
        assert_eq!((block.parts, block.base_two, block.row_ctas), (2, 1, 1));
        assert_eq!(launches[0].grid, [200, 1, 1]);
        let steps = |tensor: abi::Tensor| (tensor.batch, tensor.row, tensor.head);
        assert_eq!(steps(block.outs[0]), (19200, 64, 6400));
        assert_eq!(steps(block.outs[1]), (19200, 192, 64));
        assert_eq!(steps(block.out), (19200, 64, 6400));
        assert_eq!(steps(block.lses[1]), (300, 1, 100));
        assert_eq!(block.lses[2].address, 0);
        // A row of the output has 3 heads of 8 chunks; with 40 heads it takes 3 CTAs of 128 threads.
        let wide = backend
            .tensor(&vec![f16::ONE; 5 * 2560], [1, 5, 40, 64])
            .unwrap();
        let lse = Lse::zeros(&backend, [1, 5, 40, 64]).unwrap();
        merge(&[(&wide, &lse)], LseBase::Natural).unwrap();
        backend.synchronize().unwrap();
        assert_eq!(fake.launches()[1].grid, [15, 1, 1]);
        // Nothing to merge, nothing launched.
        let none: Tensor<f16> = backend.tensor(&[], [0, 5, 40, 64]).unwrap();
        let lse = Lse::zeros(&backend, [0, 5, 40, 64]).unwrap();
        merge(&[(&none, &lse)], LseBase::Natural).unwrap();
        backend.synchronize().unwrap();
        assert_eq!(fake.launches().len(), 2);
    }
    fake.assert_clean();
}

#[test]
fn wrong_memory_is_refused_before_anything_is_launched() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let (mut to, part) = (Memory::new(&stream), Memory::new(&stream));
        let prepared = gpu.prepare_merge(ElementType::F16).unwrap();
        let text = |merge: &Merge, bindings: Bindings<'_>| {
            let error = prepared.launch(&stream, merge, &bindings).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            text(&description(2), bindings(&mut to, &part, 1)),
            "parts has 1 value; 2 are needed"
        );
        let bound =
            Bindings::merge(to.out.as_slice_mut()).part(part.out.as_slice(), part.lse.as_slice());
        assert_eq!(
            text(&description(1), bound),
            "lse is missing, but the call needs it"
        );
        let short = part.lse.slice(..599).unwrap();
        let bound = bindings(&mut to, &part, 1).part(part.out.as_slice(), short);
        assert_eq!(
            text(&description(2), bound),
            "parts[1].lse needs a buffer of 600 elements for its shape and strides, but has 599"
        );
        let of_f32 = Merge::builder(ElementType::F32, &[Layout::bshd(SHAPE)])
            .build()
            .unwrap();
        let error = prepared
            .launch(&stream, &of_f32, &bindings(&mut to, &part, 1))
            .unwrap_err();
        assert!(
            matches!(error, Error::Invalid(Invalid::ElementMismatch { .. })),
            "{error}"
        );
        assert!(fake.launches().is_empty());
        prepared
            .launch(&stream, &description(32), &bindings(&mut to, &part, 32))
            .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(block::<abi::Merge>(&fake.launches()[0]).parts, 32);
    }
    fake.assert_clean();
}

#[test]
fn a_raw_merge_is_one_driver_call_and_checks_its_addresses() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let (to, part) = (Memory::new(&stream), Memory::new(&stream));
    let prepared = gpu.prepare_merge(ElementType::F16).unwrap();
    let merge = description(2);
    let launch = |parts: &[[u64; 2]], out: u64, lse: u64| {
        let addresses = Addresses::merge(out, lse, parts);
        // SAFETY: the stand-in runs no kernel; the addresses it is given are those of the buffers.
        let raw = || unsafe { prepared.launch_raw(stream.raw(), &merge, addresses, 0) };
        calls_of(&fake, &gpu, raw)
    };
    let good = [[part.out.pointer(), part.lse.pointer()]; 2];
    let (out, lse) = (to.out.pointer(), to.lse.pointer());
    let refused = |parts: &[[u64; 2]], out, lse, expected: &str| {
        let text = launch(parts, out, lse).unwrap_err();
        assert!(text.starts_with(expected), "{text}");
    };
    refused(&good[..1], out, lse, "parts has 1 value;");
    refused(&good, 0, lse, "out is missing");
    refused(&good, out, 0, "lse is missing");
    refused(
        &[good[0], [good[0][0], 0]],
        out,
        lse,
        "parts[1].lse is missing",
    );
    refused(
        &[good[0], [good[0][0] + 1, good[0][1]]],
        out,
        lse,
        "parts[1].out starts at",
    );
    refused(&good, good[0][0] + 16, lse, "out overlaps parts[0].out");
    refused(&good, out, good[0][1], "lse overlaps parts[0].lse");
    stream.synchronize().unwrap();
    assert!(fake.launches().is_empty());
    assert_eq!(launch(&good, out, lse), Ok(1));
}

#[test]
fn a_graph_keeps_the_parts_and_orders_their_streams() {
    replayed_twice(
        Memory::new,
        |gpu, [to, part], stream| {
            let prepared = gpu.prepare_merge(ElementType::F16)?;
            prepared.launch(stream, &description(2), &bindings(to, part, 2))
        },
        |launches| assert_eq!(launches.len(), 2),
    );
}

#[test]
fn every_failure_of_a_merge_is_survived() {
    every_failure_is_survived(|driver| {
        let backend = Backend::cuda_with(driver, 0)?;
        let part = backend.tensor(&vec![f16::ONE; LEN], SHAPE)?;
        let lse = Lse::from_slice(&backend, &vec![0.5; LEN / 64], SHAPE)?;
        let (out, lse) = merge(&[(&part, &lse), (&part, &lse)], LseBase::Natural)?;
        assert_eq!((out.to_vec()?.len(), lse.to_vec()?.len()), (LEN, LEN / 64));
        backend.synchronize()
    });
}

#[test]
fn a_device_without_an_image_is_an_error_that_says_so() {
    let fake = FakeDriver::open();
    fake.set_compute_capability(7, 5);
    let gpu = gpu(&fake);
    for error in [
        gpu.prepare_merge(ElementType::F16).unwrap_err(),
        gpu.prepare_append(ElementType::F16).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoImages { major: 7, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("8.0 is the oldest"), "{text}");
    }
}
