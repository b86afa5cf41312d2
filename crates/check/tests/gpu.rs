//! The reference on a GPU against the one on the host.

use half::{bf16, f16};
use warptile::driver::Driver;
use warptile::gpu::Gpu;
use warptile::spec::Operand;
use warptile::{Element, ElementType};
use warptile_check::{Case, Expectation, Ferry, ReferenceOnGpu};

fn reference() -> ReferenceOnGpu {
    let gpu = Gpu::new(&Driver::load().unwrap(), 0).unwrap();
    ReferenceOnGpu::new(&gpu).unwrap()
}

/// Requires the same values, except for the order of sums in `f64`, and bounds that differ by no more than the order of sums in
/// `f32` explains.
fn compare<T: Element>(case: &Case, reference: &ReferenceOnGpu) {
    let inputs = case.inputs::<T>();
    let host = case.expectation(&inputs).unwrap();
    let gpu = case.expectation_on_gpu(&inputs, reference).unwrap();
    same_values(case, host.out(), gpu.out());
    same_values(case, host.lse(), gpu.lse());
    let largest = |bounds: &mut dyn Iterator<Item = f64>| bounds.fold(0.0, f64::max);
    let bounds = |expected: &Expectation| {
        let out = largest(&mut expected.out_bounds());
        (out, largest(&mut expected.lse_bounds()))
    };
    let (host, gpu) = (bounds(&host), bounds(&gpu));
    for (host, gpu) in [(host.0, gpu.0), (host.1, gpu.1)] {
        assert!(
            gpu <= 2.0 * host && host <= 2.0 * gpu,
            "{case}: bounds {host} and {gpu}"
        );
    }
}

fn same_values(case: &Case, host: &[f64], gpu: &[f64]) {
    assert_eq!(host.len(), gpu.len(), "{case}");
    for (index, (a, b)) in host.iter().zip(gpu).enumerate() {
        // Equal infinities, or equal to twelve digits of the terms that were summed.
        assert!(
            a == b || (a - b).abs() <= 1e-12 * (1.0 + a.abs()),
            "{case}: {index}: {a} {b}"
        );
    }
}

fn compare_any(case: &Case, reference: &ReferenceOnGpu) {
    match case.element {
        ElementType::F16 => compare::<f16>(case, reference),
        ElementType::Bf16 => compare::<bf16>(case, reference),
        _ => compare::<f32>(case, reference),
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn random_problems_have_the_same_reference_on_the_gpu() {
    let reference = reference();
    for seed in 0..600 {
        compare_any(&Case::random(seed, 300), &reference);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn large_problems_have_the_same_reference_on_the_gpu() {
    let reference = reference();
    for text in [
        "b1 q2048 k3577 h2 d128 bf16 mask=causal seed=1",
        "b2 q1024 k1023 h4/2 d256 f16 softcap=30 sinks seed=2",
        "packed=1x9000,700x700,0x5 h2 d64 f32 alibi=batch mask=window,500,20 seed=3",
        "b2 q130 k2500 h3 d40 f16 bias keymask layout=gaps used=130x2500,7x1300 seed=4",
    ] {
        let case: Case = text.parse().unwrap();
        compare_any(&case, &reference);
    }
}

/// As [`compare`], of gradients.
fn compare_gradients<T: Element>(case: &Case, reference: &ReferenceOnGpu) {
    let data = case.backward::<T>().unwrap();
    let host = data.expectation().unwrap();
    let gpu = data.expectation_on_gpu(reference).unwrap();
    for operand in Operand::GRADIENTS {
        same_values(case, host.gradient(operand), gpu.gradient(operand));
        for (host, gpu) in host.bounds(operand).iter().zip(gpu.bounds(operand)) {
            assert!(
                gpu <= 1.001 * host && *host <= 1.001 * gpu,
                "{case}: {}: bounds {host} and {gpu}",
                operand.name()
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_have_the_same_reference_on_the_gpu() {
    let reference = reference();
    let random = (0..600).map(|seed| Case::random(seed, 200));
    let large = [
        "b1 q1024 k1577 h2 d128 bf16 mask=causal seed=1",
        "b2 q500 k1023 h4/2 d256 f16 softcap=30 sinks dropout=0.2 seed=2",
        "packed=1x4000,700x700,0x5 h2 d64 f32 alibi=batch mask=window,500,20 seed=3",
        "b2 q130 k2500 h3 d40 f16 bias keymask layout=gaps used=130x2500,7x1300 dbias seed=4",
    ];
    let large = large.map(|text| text.parse::<Case>().unwrap());
    for case in random.chain(large) {
        let case = Case {
            backward: true,
            ..case.differentiable()
        };
        match case.element {
            ElementType::F16 => compare_gradients::<f16>(&case, &reference),
            ElementType::Bf16 => compare_gradients::<bf16>(&case, &reference),
            _ => compare_gradients::<f32>(&case, &reference),
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_ferried_comes_back() {
    let gpu = Gpu::new(&Driver::load().unwrap(), 0).unwrap();
    let ferry = Ferry::default();
    // Around what is copied at once, and more than may be under way.
    for len in [0, 1, 1024, 1025, 1 << 20, (1 << 20) + 1, 20 << 20] {
        let values: Vec<u32> = (0..len).collect();
        let on_gpu = ferry.upload(gpu.stream(), &values).unwrap();
        assert_eq!(on_gpu.to_vec().unwrap(), values);
        assert_eq!(ferry.download(&on_gpu).unwrap(), values);
    }
}
