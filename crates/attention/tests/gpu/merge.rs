//! Merges on a GPU, against float64.

use half::{bf16, f16};
use quickcheck::TestResult;
use warptile::gpu::Gpu;
use warptile::ops::merge;
use warptile::spec::LseBase;
use warptile::{Backend, Element, ElementType, Layout, Lse};
use warptile_driver::{Graph, Stream};

use crate::draw::Memory;
use crate::harness::{gpu, gpu_of_ptx, quickcheck, ran};
use crate::merge_cases::{MergeCase, Merges, SumCase};
use crate::merge_on_gpu::{merge_on, sum_on};

struct OnGpu(&'static Gpu);

impl<T: Element> Merges<T> for OnGpu {
    fn merge(&mut self, case: &MergeCase<T>, out: &mut Memory<T>, lse: Option<&mut Memory<f32>>) {
        merge_on(self.0, case, out, lse, || ());
    }
}

fn right(seed: u64) -> TestResult {
    fn verify<T: Element>(seed: u64) -> Result<(), String> {
        let case = MergeCase::<T>::random(seed);
        case.verify(&mut OnGpu(gpu()))?;
        case.verify(&mut OnGpu(gpu_of_ptx()))
    }
    let all = verify::<f16>(seed)
        .and(verify::<bf16>(seed))
        .and(verify::<f32>(seed));
    match all {
        Ok(()) => TestResult::passed(),
        Err(failure) => TestResult::error(format!("seed {seed}: {failure}")),
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_merges_equal_float64() {
    quickcheck(1000).quickcheck(right as fn(u64) -> TestResult);
    for gpu in [gpu(), gpu_of_ptx()] {
        for element in [ElementType::F16, ElementType::Bf16, ElementType::F32] {
            ran(gpu.prepare_merge(element).unwrap().plan().image().unwrap());
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_sums_are_right() {
    fn verify<T: Element>(seed: u64) -> Result<(), String> {
        { [gpu(), gpu_of_ptx()].into_iter() }.try_for_each(|gpu| {
            SumCase::<T>::random(seed).verify(|case, out| sum_on(gpu, case, out, || ()))
        })
    }
    fn right(seed: u64) -> TestResult {
        let all = verify::<f16>(seed).and(verify::<bf16>(seed));
        match all.and(verify::<f32>(seed)) {
            Ok(()) => TestResult::passed(),
            Err(failure) => TestResult::error(format!("seed {seed}: {failure}")),
        }
    }
    quickcheck(1000).quickcheck(right as fn(u64) -> TestResult);
}

/// More CTAs than the device holds at once, in a graph of somebody who captures the raw launch.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_large_merge_in_a_graph_is_that_of_the_cpu() {
    let shape = [4, 3000, 24, 128];
    let len = shape.iter().product::<usize>();
    let values: Vec<bf16> = (0..len)
        .map(|i| bf16::from_f32((i % 8191) as f32 / 8191.0))
        .collect();
    let lse: Vec<f32> = (0..len / 128).map(|i| (i % 97) as f32 / 9.0).collect();
    let backward: Vec<f32> = lse.iter().rev().copied().collect();
    let compute = |backend: &Backend| {
        let parts = [
            backend.tensor(&values, shape).unwrap(),
            backend
                .tensor_with_layout(&values, Layout::bhsd([4, 24, 3000, 128]))
                .unwrap(),
        ];
        let lses = [&lse, &backward].map(|lse| Lse::from_slice(backend, lse, shape).unwrap());
        let list = [(&parts[0], &lses[0]), (&parts[1], &lses[1])];
        let (out, lse) = merge(&list, LseBase::Natural).unwrap();
        (out.to_vec().unwrap(), lse.to_vec().unwrap())
    };
    let backend = Backend::on_stream(gpu().stream()).unwrap();
    let (found, expected) = (compute(&backend), compute(&Backend::cpu()));
    for (found, expected) in found.0.iter().zip(&expected.0) {
        assert!(
            (found.to_f32() - expected.to_f32()).abs() <= 0.0079,
            "{found} {expected}"
        );
    }
    for (found, expected) in found.1.iter().zip(&expected.1) {
        assert!((found - expected).abs() <= 4e-6, "{found} {expected}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_captured_merge_is_replayed() {
    // Nobody else allocates on it meanwhile.
    let stream = Stream::new(gpu().context()).unwrap();
    let backend = Backend::on_stream(&stream).unwrap();
    let shape = [1, 64, 4, 64];
    let one = backend.tensor(&vec![1.0_f32; 64 * 4 * 64], shape).unwrap();
    let three = backend.tensor(&vec![3.0_f32; 64 * 4 * 64], shape).unwrap();
    let lse = Lse::from_slice(&backend, &[0.5; 256], shape).unwrap();
    let (mut out, mut merged) = merge(&[(&one, &lse), (&one, &lse)], LseBase::Two).unwrap();
    let parts = [(&one, &lse), (&three, &lse)];
    let graph = Graph::capture::<warptile::Error>(&stream, |_| {
        warptile::ops::merge_into(&parts, LseBase::Two, &mut out, Some(&mut merged))
    })
    .unwrap();
    for _ in 0..3 {
        graph.launch(&stream).unwrap();
    }
    assert_eq!(out.to_vec().unwrap(), vec![2.0; 64 * 4 * 64]);
    assert_eq!(merged.to_vec().unwrap(), vec![1.5; 256]);
}
