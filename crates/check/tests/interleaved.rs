//! Cases whose keys and values are of one tensor, on the stand-in driver: one allocation has both.

use half::f16;
use warptile::Layout;
use warptile::driver::Driver;
use warptile::gpu::Gpu;
use warptile::kernels::Family;
use warptile::kernels::abi::{Forward, ForwardE4m3, Tensor};
use warptile::plan::Choice;
use warptile::spec::Operand;
use warptile_check::{Buffer, Case, Data, DeviceInputs, Ferry, LayoutKind, values_behind_keys};
use warptile_driver::Stream;
use warptile_fake_cuda::{FakeDriver, FakeLaunch};

fn open() -> (FakeDriver, Gpu) {
    let fake = FakeDriver::open();
    // SAFETY: the library is the stand-in, with the driver's signatures.
    let driver = unsafe { Driver::load_from(fake.path()) }.unwrap();
    let gpu = Gpu::new(&driver, 0).unwrap();
    (fake, gpu)
}

fn block(launch: &FakeLaunch) -> Forward {
    let bytes = launch.params();
    let known = [size_of::<Forward>(), size_of::<ForwardE4m3>()];
    assert!(known.contains(&bytes.len()), "{launch:?}");
    bytemuck::pod_read_unaligned(&bytes[..size_of::<Forward>()])
}

/// Every element of a tensor on the device is that of the host, poison of unused rows included.
fn same_elements<T: bytemuck::Pod>(case: &Case, host: &Buffer<T>, device: &Tensor) {
    let layout = Layout {
        strides: [device.batch, device.row, device.head, 1].map(|stride| stride as usize),
        ..host.layout
    };
    let [entries, rows, heads, head_dim] = layout.shape;
    for entry in 0..entries {
        for row in 0..rows {
            for head in 0..heads {
                let at = device.address as usize + layout.offset(entry, row, head) * size_of::<T>();
                let pointer = std::ptr::with_exposed_provenance::<u8>(at);
                // SAFETY: the stand-in's device memory is the host's, the tensor was uploaded, and the case is on the device still.
                let found =
                    unsafe { std::slice::from_raw_parts(pointer, head_dim * size_of::<T>()) };
                let start = host.layout.offset(entry, row, head);
                let expected = &host.elements()[start..start + head_dim];
                assert!(
                    found == bytemuck::cast_slice::<T, u8>(expected),
                    "{case}: {entry} {row} {head}"
                );
            }
        }
    }
}

/// In pages and without, quantized, with values of another head size, of addresses that are not aligned.
const CASES: [&str; 6] = [
    "b3 q1 k70 h4/2 d64 f16 layout=interleaved pages=16 lengths=ragged seed=4",
    "b2 q1 k100 h4/2 d64 f16 layout=interleaved",
    "b2 q1 k70 h4/2 d64 f16 cache=e4m3 layout=interleaved pages=16",
    "b2 q1 k70 h4/2 d128/64 f16 layout=interleaved pages=16 lengths=40,70",
    "packed=3x50,2x9 h2 d64/128 f16 layout=interleaved",
    "b3 q2 k70 h4/2 d64 f16 layout=interleaved unaligned",
];

#[test]
fn values_begin_behind_the_keys_of_the_first_entry() {
    for text in CASES {
        let (fake, gpu) = open();
        let case: Case = text.parse().unwrap();
        let inputs = case.inputs::<f16>();
        let plans =
            [Family::Decode, Family::Scalar].map(|family| case.plan(&gpu, &Choice::Family(family)));
        let plan = plans.into_iter().find_map(Result::ok).unwrap();
        let on_gpu = case.upload(&inputs, &gpu, &plan).unwrap();
        // The copy has one allocation, too.
        for mut on_gpu in [on_gpu.once_more().unwrap(), on_gpu] {
            fake.forget_launches();
            on_gpu.launch().unwrap();
            on_gpu.result().unwrap();
            let block = block(&fake.launches()[0]);
            let size = case.call().types().k.size();
            let of_entry = |layout: &Layout| layout.shape[1..].iter().product::<usize>();
            let (keys, values) = (of_entry(&inputs.k.layout), of_entry(&inputs.v.layout));
            assert_eq!(
                block.v.address - block.k.address,
                (keys * size) as u64,
                "{case}"
            );
            if inputs.k.layout.batch() > 1 {
                assert_eq!(
                    [block.k.batch, block.v.batch],
                    [(keys + values) as i64; 2],
                    "{case}"
                );
            }
            for (operand, numbers, tensor) in [
                (Operand::K, &inputs.k, &block.k),
                (Operand::V, &inputs.v, &block.v),
            ] {
                match &inputs.others[operand] {
                    Some(Data::Bytes(bits)) => same_elements(&case, bits, tensor),
                    _ => same_elements(&case, numbers, tensor),
                }
            }
        }
    }
}

/// Besides the two margins of each buffer, and the offset of cases that are not aligned.
#[test]
fn memory_is_that_of_keys_and_values() {
    let (_fake, gpu) = open();
    let stream = Stream::new(gpu.context()).unwrap();
    for text in CASES {
        let case: Case = text.parse().unwrap();
        let inputs = case.inputs::<f16>();
        let size = case.call().types().k.size();
        let elements: usize = [&inputs.k, &inputs.v]
            .iter()
            .map(|buffer| buffer.layout.element_count().unwrap())
            .sum();
        let on_device = DeviceInputs::upload(&stream, &Ferry::default(), &inputs).unwrap();
        let kv = on_device.byte_len() - inputs.q.data.len() * 2;
        assert!(
            (elements * size..=(elements + 40) * size).contains(&kv),
            "{case}: {kv} bytes for {elements} elements"
        );
    }
}

#[test]
fn only_interleaved_cases_are_of_one_tensor() {
    for seed in 0..3000 {
        let case = Case::random(seed, 60);
        let call = case.call();
        let empty = call.k().element_count() == Some(0);
        let expected = case.layout == LayoutKind::Interleaved && !empty;
        let found = values_behind_keys(call.k(), call.v());
        assert_eq!(found.is_some(), expected, "{case}");
    }
}
