//! Cache writes on a GPU, against float64.

use std::sync::Arc;

use half::{bf16, f16};
use quickcheck::TestResult;
use warptile::driver::{DeviceBuffer, Graph, Stream};
use warptile::gpu::{Bindings, Gpu};
use warptile::ops::CacheWrite;
use warptile::spec::{Append, Operand, Pairing, Rotary, Types};
use warptile::{Backend, Element, ElementType, Layout};

use crate::append_cases::{AppendCase, Appends};
use crate::append_on_gpu::append_on;
use crate::harness::{gpu, gpu_of_ptx, quickcheck, ran};
use crate::quantized::right_in_16_bits;

struct OnGpu {
    gpu: &'static Gpu,
    numbers_on_device: bool,
}

impl<T: Element> Appends<T> for OnGpu {
    fn append(&mut self, case: &mut AppendCase<T>) {
        append_on(self.gpu, case, self.numbers_on_device, || ());
    }
}

fn right(seed: u64, numbers_on_device: bool) -> TestResult {
    fn verify<T: Element>(seed: u64, numbers_on_device: bool) -> Result<(), String> {
        [gpu(), gpu_of_ptx()].into_iter().try_for_each(|gpu| {
            AppendCase::<T>::random(seed, numbers_on_device).verify(&mut OnGpu {
                gpu,
                numbers_on_device,
            })
        })
    }
    let all = verify::<f16>(seed, numbers_on_device)
        .and(verify::<bf16>(seed, numbers_on_device))
        .and(verify::<f32>(seed, numbers_on_device));
    match all {
        Ok(()) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("seed {seed}: {failure}")),
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_writes_equal_float64() {
    quickcheck(2000).quickcheck(right as fn(u64, bool) -> TestResult);
    for gpu in [gpu(), gpu_of_ptx()] {
        for element in [ElementType::F16, ElementType::Bf16, ElementType::F32] {
            ran(gpu.prepare_append(element).unwrap().plan().image().unwrap());
        }
    }
}

fn right_in_e4m3(seed: u64) -> TestResult {
    let all = [gpu(), gpu_of_ptx()].into_iter().try_for_each(|gpu| {
        let own = Gpu::on_stream(gpu.stream()).map_err(|error| error.to_string())?;
        let own = own.with_profile(gpu.profile().clone());
        right_in_16_bits(&Backend::from_gpu(Arc::new(own)), seed, || ())
    });
    match all {
        Ok(()) => TestResult::passed(),
        Err(failure) => TestResult::error(failure),
    }
}

/// Called so that the evidence script runs it with the writes of the other types.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_writes_in_e4m3_are_right() {
    quickcheck(500).quickcheck(right_in_e4m3 as fn(u64) -> TestResult);
    for gpu in [gpu(), gpu_of_ptx()] {
        for element in [ElementType::F16, ElementType::Bf16] {
            let types = Types::of(element).keys(ElementType::E4m3);
            ran(gpu.prepare_append(types).unwrap().plan().image().unwrap());
        }
    }
}

/// One captured write, replayed while lengths and positions grow on the device, fills the cache as writes on the CPU do.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_write_follows_the_lengths_on_the_device() {
    const STEPS: i32 = 40;
    // Nobody else allocates on it meanwhile.
    let stream = &Stream::new(gpu().context()).unwrap();
    let (new, pages) = (Layout::bshd([2, 1, 2, 64]), Layout::bhsd([12, 2, 16, 64]));
    let rotary = Rotary::computed(64, 10_000.0, Pairing::HalfSplit).unwrap();
    let values: Vec<f16> = (0..256).map(|i| f16::from_f32((i as f32).sin())).collect();
    let table: Vec<i32> = vec![4, 2, 9, 0, 11, 3, 5, 1];
    let append = Append::builder(ElementType::F16, [&new, &new], [&pages, &pages])
        .device_key_lengths(2)
        .device_block_table(4)
        .rotary(rotary.clone())
        .build()
        .unwrap();
    let prepared = gpu().prepare_append(ElementType::F16).unwrap();
    let upload = |values: &[f16]| DeviceBuffer::from_slice(stream, values).unwrap();
    let (k, v) = (upload(&values), upload(&values));
    let empty = vec![f16::ZERO; 12 * 2 * 16 * 64];
    let (mut keys, mut values_of_cache) = (upload(&empty), upload(&empty));
    let on_device = DeviceBuffer::from_slice(stream, &table).unwrap();
    let mut lengths = DeviceBuffer::from_slice(stream, &[0, 17]).unwrap();
    let graph = {
        let bindings = Bindings::append(
            k.as_slice(),
            v.as_slice(),
            keys.as_slice_mut(),
            values_of_cache.as_slice_mut(),
        )
        .with(Operand::KeyLengths, lengths.as_slice())
        .with(Operand::BlockTable, on_device.as_slice());
        Graph::capture::<warptile::Error>(stream, |stream| {
            prepared.launch(stream, &append, &bindings)
        })
        .unwrap()
    };
    for step in 0..STEPS {
        lengths.copy_from_slice(&[step, 17 + step]).unwrap();
        graph.launch(stream).unwrap();
    }

    let cpu = Backend::cpu();
    let row = cpu.tensor_with_layout(&values, new).unwrap();
    let mut expected = [(); 2].map(|()| cpu.tensor_with_layout(&empty, pages).unwrap());
    for step in 0..STEPS {
        let [keys, values] = &mut expected;
        CacheWrite::new(&row, &row, (keys, values))
            .after(&[step, 17 + step])
            .block_table(&table, 4)
            .rotary(rotary.clone())
            .run()
            .unwrap();
    }
    assert_eq!(
        values_of_cache.to_vec().unwrap(),
        expected[1].to_vec().unwrap()
    );
    let keys = keys.to_vec().unwrap();
    for (found, expected) in keys.iter().zip(expected[0].to_vec().unwrap()) {
        assert!(
            (found.to_f32() - expected.to_f32()).abs() < 1e-3,
            "{found} {expected}"
        );
    }
}
