//! The kernels of backward passes.

use warptile::kernels::{External, Family, Features, Image, Role, catalog};
use warptile::plan::{BackwardProblem, Choice, DeviceProfile, Plan, Planner, Standing, Step};
use warptile::spec::{Backward, Operand};
use warptile_check::Case;

use crate::{CONSUMER_SHARED_BYTES, device};

/// The kernels of the gradients of keys and of queries, on a device.
fn kernels(device: &DeviceProfile, words: &str) -> [&'static str; 2] {
    let plan = plan(device, words);
    assert_eq!(plan.steps()[0].image.kernel, "prepass_w4");
    [1, 2].map(|step| plan.steps()[step].image.kernel)
}

fn plan(device: &DeviceProfile, words: &str) -> Plan<BackwardProblem> {
    let case: Case = words.parse().unwrap();
    let backward = Backward::builder(case.call())
        .want_all(case.d_bias)
        .build()
        .unwrap();
    Planner::new(device)
        .plan_backward(BackwardProblem::of(&backward), &Choice::Best)
        .unwrap()
}

#[test]
fn large_problems_take_tiles_of_many_rows() {
    let h200 = DeviceProfile::h200();
    for (words, expected) in [
        (
            "b4 q4096 k4096 h32 d64 bf16 keymask",
            ["dkv_d64_64x128_w4_s2", "dq_d64_128x64_w4_s2"],
        ),
        (
            "b4 q4096 k4096 h16 d128 f16 mask=causal keymask",
            ["dkv_d128_64x128_w8_s2", "dq_d128_128x64_w4_s1"],
        ),
        (
            "b4 q4096 k4096 h8 d256 bf16 keymask",
            ["dkv_d256_64x64_w8_s2", "dq_d256_64x32_w4_s1"],
        ),
        (
            "b4 q4096 k4096 h8/2 d104/160 bf16 keymask",
            ["dkv_d192_64x64_w8_s2", "dq_d192_64x32_w4_s1"],
        ),
        (
            "b2 q512 k512 h8 d64 f32",
            ["dkv_d64_32x32_w4_s1", "dq_d64_32x32_w4_s1"],
        ),
        // Few rows.
        (
            "b1 q64 k64 h8 d64 bf16 keymask",
            ["dkv_d64_64x64_w4_s2", "dq_d64_64x64_w4_s2"],
        ),
    ] {
        assert_eq!(kernels(&h200, words), expected, "{words}");
    }
}

#[test]
fn every_gpu_has_kernels_for_every_head_size() {
    let h200 = DeviceProfile::h200();
    for (major, minor, shared_kb) in [
        (8, 0, 163),
        (8, 6, 99),
        (8, 9, 99),
        (9, 0, 227),
        (10, 0, 227),
        (12, 0, 99),
        (13, 0, 99),
    ] {
        let mut device = h200.clone();
        (device.major, device.minor) = (major, minor);
        device.shared_bytes_per_cta = shared_kb << 10;
        for element in ["f16", "bf16", "f32"] {
            for dim in (8..=256).step_by(8) {
                let words = format!("b2 q300 k300 h4/2 d{dim} {element} mask=causal");
                let plan = plan(&device, &words);
                for step in plan.steps() {
                    assert!(step.image.target.runs_on(major, minor), "{words}");
                }
            }
        }
    }
}

#[test]
fn a_plan_says_why_others_do_not_run() {
    let text = plan(
        &DeviceProfile::h200(),
        "b2 q300 k300 h4 d128 bf16 sinks softcap=30 alibi=head",
    )
    .explain();
    for line in [
        "problem  bf16 b2 q320 k320 h4 d128 softcap=30 alibi=head sinks backward",
        "prepass  prepass_w4 (image prepass_w4_bf16_sm_90)",
        "not      dq_d64_64x64_w4_s2: its tiles hold head sizes up to 64",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains("sink gradients dsinks_w8"), "{text}");
}

/// Biases are the pair's on Hopper, too, and their gradient has a step of its own, also alone.
#[test]
fn the_gradient_of_a_bias_has_a_step() {
    let words = "b2 q4096 k4096 h16 d128 bf16 mask=causal bias dbias broadcast=batch backward";
    let made = plan(&DeviceProfile::h200(), words);
    let families: Vec<_> = made.steps().iter().map(|step| step.image.family).collect();
    let expected = [Family::Prepass, Family::Dkv, Family::Dq, Family::Dbias];
    assert_eq!(families, expected);
    let text = made.explain();
    for line in [
        "problem  bf16 b2 q4096 k4096 h16 d128 mask=causal bias backward dbias",
        "not      dqkv_d128_64x128_w12_s2: does not support an additive bias",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(
        text.contains("(image dbias_d256_64x64_w4_s3_bf16_sm_90)"),
        "{text}"
    );
    let case: Case = words.parse().unwrap();
    let alone = { Operand::GRADIENTS.into_iter() }
        .fold(Backward::builder(case.call()), |builder, operand| {
            builder.want(operand, operand == Operand::DBias)
        });
    let problem = BackwardProblem::of(&alone.build().unwrap());
    let planner = Planner::new(made.device().unwrap());
    let alone = planner.plan_backward(problem, &Choice::Best).unwrap();
    let roles: Vec<_> = alone.steps().iter().map(|step| step.role).collect();
    assert_eq!(roles, [Role::Prepass, Role::BiasGradients]);
}

#[test]
fn hopper_takes_one_pass_where_it_can() {
    let h200 = DeviceProfile::h200();
    let one_pass = |words: &str| {
        let case: Case = words.parse().unwrap();
        let backward = Backward::builder(case.call()).build().unwrap();
        let choice = Choice::Family(Family::Dqkv);
        Planner::new(&h200).plan_backward(BackwardProblem::of(&backward), &choice)
    };
    for (words, expected) in [
        (
            "b4 q4096 k4096 h32/8 d128 bf16 mask=causal",
            ["dqkv_d128_64x128_w12_s2", "dqsum_d128_64x128_w4_s1"],
        ),
        (
            "packed=300x300,5x5 h8 d128 bf16",
            ["dqkv_d128_64x128_w12_s2", "dqsum_d128_64x128_w4_s1"],
        ),
        (
            "b1 q70 k300 h2 d40/80 f16",
            ["dqkv_d96_64x128_w12_s2", "dqsum_d96_64x128_w4_s1"],
        ),
        (
            "b1 q70 k300 h2 d40/64 f16 mask=window,5,0 sinks",
            ["dqkv_d64_64x192_w16_s2", "dqsum_d64_64x192_w4_s1"],
        ),
        (
            "b4 q4096 k4096 h16 d128 f16 mask=causal dropout=0.1",
            ["dqkv_d128_64x128_w12_s2", "dqsum_d128_64x128_w4_s1"],
        ),
    ] {
        assert_eq!(kernels(&h200, words), expected, "{words}");
    }
    for (words, image) in [
        (
            "b1 q300 k300 h8 d64 bf16 softcap=30",
            "dqkv_d64_64x192_w16_s2_bf16_softcap_sm_90a",
        ),
        (
            "b1 q300 k300 h8 d128 f16 alibi=batch",
            "dqkv_d128_64x128_w12_s2_f16_alibi_sm_90a",
        ),
        (
            "b1 q300 k300 h8 d96 f16",
            "dqkv_d96_64x128_w12_s2_f16_sm_90a",
        ),
    ] {
        let steps = plan(&h200, words);
        assert_eq!(steps.steps()[1].image.name, image, "{words}");
    }
    // Not where a gradient is not wanted.
    let case: Case = "b1 q70 k300 h2 d64 f16".parse().unwrap();
    let backward = Backward::builder(case.call())
        .want(Operand::DQ, false)
        .build()
        .unwrap();
    let plan = Planner::new(&h200)
        .plan_backward(BackwardProblem::of(&backward), &Choice::Best)
        .unwrap();
    assert_eq!(plan.steps()[1].image.kernel, "dkv_d64_64x64_w4_s2");
    for words in [
        "b1 q300 k300 h8 d64 bf16 softcap=30 alibi=head",
        "b1 q300 k300 h8 d64 bf16 alibi=head sinks",
        "b1 q300 k300 h8 d192 bf16",
        "b1 q300 k300 h8 d64 f32",
        "b1 q300 k300 h8 d64 f16 scale=0",
    ] {
        one_pass(words).unwrap_err();
    }
}

#[test]
fn hopper_takes_wgmma_for_large_heads_where_it_can() {
    let h200 = DeviceProfile::h200();
    let of_192 = ["wdkv_d192_64x64_w12_s3", "wdq_d192_128x64_w12_s3"];
    let of_256 = ["wdkv_d256_64x64_w12_s3", "wdq_d256_128x64_w12_s2"];
    // Where a warpgroup of its own draws which weights are kept.
    let of_192_with_dropout = ["wdkv_d192_64x64_w16_s3", "wdq_d192_128x64_w16_s3"];
    for (words, expected) in [
        ("b4 q4096 k4096 h8 d256 bf16", of_256),
        ("b4 q4096 k4096 h32/8 d192 f16 mask=causal", of_192),
        ("b4 q4096 k4096 h8/2 d104/160 bf16", of_192),
        ("b2 q512 k512 h8 d136 f16 mask=window,70,0 sinks", of_192),
        ("packed=300x300,5x5 h8 d256 bf16", of_256),
        // Few rows, too.
        ("b1 q64 k64 h1 d256 bf16", of_256),
        ("b1 q1 k5 h1 d200/72 f16", of_256),
        ("b4 q4096 k4096 h8 d256 bf16 dropout=0.1", of_256),
        ("b4 q4096 k4096 h8 d256 bf16 softcap=50", of_256),
        ("b1 q300 k300 h8/4 d192 f16 alibi=head", of_192),
        (
            "b4 q4096 k4096 h10 d192 bf16 dropout=0.1",
            of_192_with_dropout,
        ),
    ] {
        assert_eq!(kernels(&h200, words), expected, "{words}");
    }
    for option in [
        "softcap=30 alibi=head",
        "softcap=30 dropout=0.1",
        "bias",
        "keymask",
        "scale=0",
        "scale=-1",
        "scale=1e-20",
    ] {
        let words = format!("b2 q512 k512 h8 d256 bf16 {option}");
        let [of_keys, of_queries] = kernels(&h200, &words);
        assert!(of_keys.starts_with("dkv_"), "{words}: {of_keys}");
        assert!(of_queries.starts_with("dq_"), "{words}: {of_queries}");
    }
    // Weights of keys are in f16 on their way, those of queries are not.
    let both = kernels(&h200, "b2 q512 k512 h8 d256 bf16 alibi=head sinks");
    assert_eq!(both, ["dkv_d256_64x64_w8_s2", of_256[1]]);
    // A gradient alone.
    for (wanted, expected) in [(Operand::DQ, of_256[1]), (Operand::DK, of_256[0])] {
        let case: Case = "b1 q70 k300 h2 d256 f16".parse().unwrap();
        let mut builder = Backward::builder(case.call());
        for operand in [Operand::DQ, Operand::DK, Operand::DV] {
            builder = builder.want(operand, operand == wanted);
        }
        let plan = Planner::new(&h200)
            .plan_backward(
                BackwardProblem::of(&builder.build().unwrap()),
                &Choice::Best,
            )
            .unwrap();
        assert_eq!(plan.steps()[1].image.kernel, expected);
        assert_eq!(plan.steps().len(), 2);
    }
    // On no other GPU.
    for (major, minor) in [(8, 0), (10, 0), (13, 0)] {
        let [of_keys, _] = kernels(&device(major, minor, 232_448), "b2 q512 k512 h8 d256 bf16");
        assert!(of_keys.starts_with("dkv_"), "{major}.{minor}: {of_keys}");
    }
}

/// The rates are those of docs/notebook/backward.md, within a tenth.
#[test]
fn the_expected_times_of_gradients_are_near_the_measured_ones() {
    for (words, tflops) in [
        ("b4 q4096 k4096 h16 d128 bf16", 610.0),
        ("b4 q4096 k4096 h32 d64 bf16", 537.0),
        ("b1 q16384 k16384 h16 d128 bf16", 599.0),
        ("b4 q4096 k4096 h8 d192 bf16", 445.0),
        ("b4 q4096 k4096 h8 d256 bf16", 459.0),
    ] {
        let case: Case = words.parse().unwrap();
        let backward = Backward::builder(case.call()).build().unwrap();
        let problem = BackwardProblem::of(&backward);
        for (gpu, standing) in [("h100", Standing::Measured), ("h200", Standing::Modelled)] {
            let gpu = DeviceProfile::named(gpu).unwrap();
            let plan = Planner::new(&gpu)
                .plan_backward(problem, &Choice::Best)
                .unwrap();
            let expected = backward.flops() as f64 / plan.estimate_us() * 1e-6;
            assert!(
                (0.9..1.1).contains(&(expected / tflops)),
                "{words}: {expected}"
            );
            assert_eq!(plan.basis().unwrap().standing, standing);
        }
    }
}

/// With dropout gradients are computed by images that have it, and without it by images without it. Sums of dQ are the same.
#[test]
fn images_with_dropout_are_for_dropout_alone() {
    let drops = |step: &Step| step.image.features.contains(Features::DROPOUT);
    for words in [
        "b1 q100 k100 h2 d64 bf16",
        "b4 q4096 k4096 h8/2 d128 f16 mask=causal",
        "b4 q4096 k4096 h8/2 d72/136 bf16 softcap=30",
        "b2 q512 k512 h8 d200 f32",
    ] {
        for device in [
            DeviceProfile::h200(),
            device(8, 0, 166_912),
            device(8, 6, CONSUMER_SHARED_BYTES),
            device(10, 0, 232_448),
            device(12, 0, CONSUMER_SHARED_BYTES),
            device(13, 0, 232_448),
        ] {
            assert!(!plan(&device, words).steps().iter().any(drops), "{words}");
            let words = format!("{words} dropout=0.1");
            let plan = plan(&device, &words);
            let sums = |step: &Step| step.image.role == Role::QuerySums;
            let mut of_gradients = plan.steps()[1..3].iter();
            assert!(
                of_gradients.all(|step| drops(step) || sums(step)),
                "{words}"
            );
        }
    }
}

/// A kernel from outside, of gradients, too.
#[test]
fn images_from_outside_compute_gradients_if_they_are_named() {
    const KERNEL: &str = "dqkv_d64_64x192_w16_s2";
    let of = |image: &Image| External {
        name: format!("{}_new", image.name),
        kernel: format!("{KERNEL}_new"),
        entry: image.entry.to_owned(),
        family: image.family,
        target: image.target,
        element: image.element,
        registers: image.resources.registers,
        static_shared_bytes: image.resources.static_shared_bytes,
        toolchain: image.toolchain.to_owned(),
        source_hash: image.source_hash.to_owned(),
        sha256: image.sha256.to_owned(),
        bytes: image.bytes().unwrap(),
    };
    let named: Vec<&Image> = { catalog().iter() }
        .filter(|image| image.kernel == KERNEL)
        // SAFETY: the bytes are those of an embedded image, described as the catalog has it.
        .map(|image| unsafe { of(image).into_image() }.unwrap())
        .collect();
    assert!(!named.is_empty());
    let case: Case = "b1 q4096 h8 d64 bf16 mask=causal".parse().unwrap();
    let backward = Backward::builder(case.call()).build().unwrap();
    let h200 = DeviceProfile::h200();
    let planner = Planner::new(&h200).named(&named);
    for (choice, expected) in [
        (Choice::Best, KERNEL),
        (Choice::Family(Family::Dqkv), KERNEL),
        (Choice::Kernel(KERNEL.to_owned()), KERNEL),
        (
            Choice::Kernel(format!("{KERNEL}_new")),
            "dqkv_d64_64x192_w16_s2_new",
        ),
    ] {
        let plan = planner
            .plan_backward(BackwardProblem::of(&backward), &choice)
            .unwrap();
        assert_eq!(plan.steps()[1].image.kernel, expected, "{choice}");
        assert_eq!(plan.steps()[2].image.role, Role::QuerySums);
    }
}
