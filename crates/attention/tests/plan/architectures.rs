//! Which image runs on which GPU.

use warptile::Error;
use warptile::plan::{Choice, DeviceProfile, Plan, Planner};
use warptile::spec::MAX_HEAD_DIM;
use warptile_kernels::{Family, Features, Image, Role, Target, catalog};

use warptile_check::Case;

use crate::families::problems;
use crate::{CONSUMER_SHARED_BYTES, PLAIN, case, device, named};

fn target_on(device: &DeviceProfile) -> Target {
    let plan = Plan::gpu(case(PLAIN).call().problem(), device, &Choice::Best).unwrap();
    plan.image().unwrap().target
}

#[test]
fn every_architecture_gets_an_image_that_runs_on_it() {
    assert!(matches!(
        target_on(&DeviceProfile::h200()),
        Target::Cubin(90) | Target::CubinExact(90)
    ));
    assert_eq!(target_on(&device(8, 0, 166_912)), Target::Cubin(80));
    assert_eq!(
        target_on(&device(8, 6, CONSUMER_SHARED_BYTES)),
        Target::Cubin(80)
    );
    assert_eq!(
        target_on(&device(8, 9, CONSUMER_SHARED_BYTES)),
        Target::Cubin(80)
    );
    assert_eq!(target_on(&device(10, 0, 232_448)), Target::Cubin(100));
    assert_eq!(target_on(&device(10, 3, 232_448)), Target::Cubin(100));
    assert_eq!(
        target_on(&device(12, 0, CONSUMER_SHARED_BYTES)),
        Target::Cubin(120)
    );
    // Newer than anything compiled: the driver compiles the newest PTX there is of the kernel.
    assert_eq!(target_on(&device(13, 0, 232_448)), Target::Ptx(89));
}

/// A GPU that the tilings of the first design are not compiled for would get them from the driver, at some seconds each.
#[test]
fn machine_code_of_a_family_comes_before_its_text() {
    for seed in 0..2000 {
        let drawn = Case::random(seed, 600);
        let Ok(call) = drawn.call_on_gpu() else {
            continue;
        };
        for (major, shared) in [(10, 232_448), (12, CONSUMER_SHARED_BYTES)] {
            let device = device(major, 0, shared);
            let Ok(plan) = Plan::gpu(call.problem(), &device, &Choice::Best) else {
                continue;
            };
            let image = plan.image().unwrap();
            let is_first = FIRST_TILINGS.iter().any(|one| image.kernel.ends_with(one));
            assert!(!is_first, "{drawn} on {}: {plan}", device.name);
        }
    }
}

/// The tilings of the first design, in both families that have them.
const FIRST_TILINGS: [&str; 7] = [
    "d64_32x64_w4_s2",
    "d64_32x32_w4_s2",
    "d64_48x64_w8_s2",
    "d64_32x64_w4_s1",
    "d64_16x64_w4_s2",
    "d64_64x64_w8_s2",
    "d128_48x32_w8_s2",
];

/// They began on a GPU of 8.9, and run there by name. Nothing chooses them for what `mma` and `decode` can do.
#[test]
fn the_first_tilings_run_on_8_x_by_name() {
    for minor in [0, 6, 9] {
        let device = device(8, minor, CONSUMER_SHARED_BYTES);
        for tiling in FIRST_TILINGS {
            for family in ["scalar", "wmma"] {
                let kernel = format!("{family}_{tiling}");
                let plan = Plan::gpu(case(PLAIN).call().problem(), &device, &named(&kernel));
                let plan = plan.unwrap();
                assert_eq!(plan.image().unwrap().target, Target::Cubin(80));
                let image = Choice::Image(format!("{kernel}_f16_sm_80"));
                let by_image = Plan::gpu(case(PLAIN).call().problem(), &device, &image);
                assert_eq!(by_image.unwrap().kernel_name(), kernel);
            }
        }
        for file in ["shapes.txt", "decode.txt"] {
            for case in problems(file) {
                let plan = Plan::gpu(case.call().problem(), &device, &Choice::Best).unwrap();
                assert!(
                    matches!(plan.image().unwrap().family, Family::Mma | Family::Decode),
                    "{case}: {plan}"
                );
            }
        }
    }
}

/// At head size 128 this tile of mma has 4 warps, and where these spill machine code with 8: not the text of the one with 4.
#[test]
fn machine_code_of_a_tile_comes_before_its_text() {
    let case = case("b4 q4096 k4096 h16 d128 bf16");
    for (major, shared) in [(10, 232_448), (12, CONSUMER_SHARED_BYTES)] {
        let plan = Plan::gpu(
            case.call().problem(),
            &device(major, 0, shared),
            &Choice::Best,
        )
        .unwrap();
        let image = plan.image().unwrap();
        assert_eq!(image.target, Target::Cubin(major * 10), "{}", image.name);
    }
}

#[test]
fn without_machine_code_the_newest_ptx_that_runs_is_chosen() {
    let ptx = catalog()
        .iter()
        .filter(|image| matches!(image.target, Target::Ptx(_)));
    let kernel = "mma_d64_64x64_w4_s2";
    for (device, target) in [
        (device(8, 0, 166_912), 80),
        (device(8, 6, CONSUMER_SHARED_BYTES), 80),
        (device(8, 9, CONSUMER_SHARED_BYTES), 89),
        (DeviceProfile::h200(), 89),
    ] {
        let plan = Planner::new(&device)
            .images(ptx.clone())
            .plan(case(PLAIN).call().problem(), &named(kernel))
            .unwrap();
        let chosen = plan.image().unwrap().target;
        assert_eq!(chosen, Target::Ptx(target), "{}", device.name);
    }
}

#[test]
fn compute_89_images_fit_the_shared_memory_of_8_9() {
    let images = catalog()
        .iter()
        .filter(|image| image.target == Target::Ptx(89));
    let mut fit = 0;
    for image in images {
        let needed = image.resources.static_shared_bytes + image.resources.dynamic_shared_bytes;
        assert!(needed <= CONSUMER_SHARED_BYTES, "{}: {needed}", image.name);
        fit += 1;
    }
    assert!(fit > 0);
}

#[test]
fn a_device_older_than_every_image_is_an_error_that_says_so() {
    let error = Plan::gpu(
        case(PLAIN).call().problem(),
        &device(7, 5, 65_536),
        &Choice::Best,
    )
    .unwrap_err();
    assert!(matches!(error, Error::NoImages { .. }), "{error}");
    assert!(error.to_string().contains("a 7.5 device"), "{error}");
}

#[test]
fn an_image_for_exactly_one_device_is_not_given_to_its_successors() {
    for image in catalog()
        .iter()
        .filter(|image| matches!(image.target, Target::CubinExact(_)))
        .filter(|image| image.role == Role::Forward)
    {
        let tiling = image.tiling;
        let case = case(&format!(
            "b2 h8 q512 k512 d{}/{} {} seed=1",
            tiling.head_dim, tiling.value_dim, image.element
        ));
        let error = Plan::gpu(
            case.call().problem(),
            &device(10, 0, 232_448),
            &named(image.kernel),
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("no image for this device"),
            "{error}"
        );
    }
}

#[test]
fn every_head_size_and_element_type_has_a_kernel_on_every_architecture() {
    let devices = [
        device(8, 0, 166_912),
        device(8, 9, CONSUMER_SHARED_BYTES),
        DeviceProfile::h200(),
        device(10, 0, 232_448),
        device(12, 0, CONSUMER_SHARED_BYTES),
        device(13, 0, CONSUMER_SHARED_BYTES),
    ];
    // Above 256 there is none for f32.
    let of = |element| (8..=if element == "f32" { 256 } else { MAX_HEAD_DIM }).step_by(8);
    for element in ["f16", "bf16", "f32"] {
        for head_dim in of(element) {
            let problem = case(&format!("b1 h2 q100 k100 d{head_dim} {element} seed=1"))
                .call()
                .problem();
            for device in &devices {
                let image = Plan::gpu(problem, device, &Choice::Best)
                    .unwrap()
                    .image()
                    .unwrap();
                assert!(image.resources.dynamic_shared_bytes <= device.shared_bytes_per_cta);
                assert!(image.tiling.head_dim as usize >= head_dim);
            }
        }
    }
}

#[test]
fn head_sizes_above_256_have_kernels_for_few_queries_and_for_many() {
    let best = |words: &str, device: &DeviceProfile| {
        let problem = case(words).call().problem();
        Plan::gpu(problem, device, &Choice::Best)
    };
    for device in [
        device(8, 0, 166_912),
        device(8, 6, CONSUMER_SHARED_BYTES),
        device(8, 9, CONSUMER_SHARED_BYTES),
        DeviceProfile::h200(),
        device(10, 0, 232_448),
        device(12, 0, CONSUMER_SHARED_BYTES),
    ] {
        for head_dim in (264..=MAX_HEAD_DIM).step_by(8) {
            for element in ["f16", "bf16"] {
                for (words, family) in [
                    ("b16 h16/8 q1 k8192 pages=16", Family::Decode),
                    ("b1 h8/4 q4096 k4096 mask=causal softcap=50", Family::Mma),
                    ("b1 h8/4 q4096 k4096 bias keymask", Family::Mma),
                    ("b1 h2 q100 k100 unaligned bias=f32", Family::Mma),
                ] {
                    let plan =
                        best(&format!("{words} d{head_dim} {element} seed=1"), &device).unwrap();
                    assert_eq!(
                        plan.image().unwrap().family,
                        family,
                        "{plan} on {}",
                        device.name
                    );
                }
            }
        }
        let error = best("b1 h2 q100 k100 d512 f32 seed=1", &device).unwrap_err();
        assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    }
}

/// Calls with dropout run on images that have it, of the family that calls without it run on, and these on images without it.
#[test]
fn images_with_dropout_are_for_dropout_alone() {
    let devices = [
        DeviceProfile::h200(),
        device(8, 0, 166_912),
        device(8, 6, CONSUMER_SHARED_BYTES),
        device(10, 0, 232_448),
        device(12, 0, CONSUMER_SHARED_BYTES),
        device(13, 0, 232_448),
    ];
    let image = |words: &str, device: &DeviceProfile| {
        let problem = case(words).call().problem();
        let plan = Plan::gpu(problem, device, &Choice::Best);
        plan.map(|plan| plan.image().unwrap())
    };
    let drops = |image: &Image| image.features.contains(Features::DROPOUT);
    for device in &devices {
        for head_dim in (8..=256).step_by(8) {
            for words in ["bf16", "f16 mask=causal", "f32", "bf16 unaligned"] {
                let words = format!("b4 h8/2 q1000 k1000 d{head_dim} {words}");
                let plain = image(&words, device).unwrap();
                let dropping = image(&format!("{words} dropout=0.1"), device).unwrap();
                assert!(
                    !drops(plain) && drops(dropping),
                    "{words} on {}",
                    device.name
                );
                if !words.ends_with("unaligned") {
                    assert_eq!(dropping.family, plain.family, "{words} on {}", device.name);
                }
            }
            for words in [
                "softcap=5",
                "bias",
                "alibi=head keymask",
                "mask=window,30,5 sinks",
            ] {
                let words = format!("b2 h4/2 q300 k300 d{head_dim} f16 {words} dropout=0.1");
                assert!(drops(image(&words, device).unwrap()), "{words}");
            }
        }
        for words in ["d512 f16", "d128 bf16 cache=e4m3"] {
            let words = format!("b1 h2 q100 k100 {words} dropout=0.1");
            let error = image(&words, device).unwrap_err().to_string();
            assert!(error.contains("dropout"), "{error}");
        }
    }
}
