//! Kernels, families and images that are asked for by name, and what a plan says of itself.

use warptile::kernels::Family;
use warptile::plan::{Choice, DeviceProfile, Plan, Planner, Rates, Reason, Settings, Standing};
use warptile::{Attention, Backend, Error};
use warptile_kernels::{Target, catalog};

use crate::{PLAIN, case, choice, named, shape};

#[test]
fn a_kernel_is_forced_by_name_and_the_others_are_listed() {
    let forced = "scalar_d64_16x64_w4_s2";
    let plan = Plan::gpu(
        case(PLAIN).call().problem(),
        &DeviceProfile::h200(),
        &named(forced),
    )
    .unwrap();
    assert_eq!(plan.kernel_name(), forced);
    assert_eq!(shape(&plan, PLAIN).grid, 2 * 8 * 32);
    assert!(
        plan.considered()
            .iter()
            .any(|one| one.reason == Reason::NotRequested)
    );
    assert!(
        plan.explain()
            .contains("its tiles hold head sizes up to 32")
    );
}

#[test]
fn a_forced_kernel_that_cannot_run_is_an_error_about_that_kernel() {
    let problem = case("b1 h1 q10 k10 d128 f16 seed=1").call().problem();
    let error = Plan::gpu(
        problem,
        &DeviceProfile::h200(),
        &named("scalar_d64_16x64_w4_s2"),
    )
    .unwrap_err();
    let Error::NoKernel { considered, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(considered.len(), 1);
    assert_eq!(considered[0].reason, Reason::HeadDim { laid_out_for: 64 });
}

#[test]
fn an_unknown_family_is_an_error_with_suggestions() {
    let problem = case(PLAIN).call().problem();
    for (name, close) in [("wgma", "wgmma"), ("skalar", "scalar"), ("WMMA", "wmma")] {
        let error = Plan::gpu(problem, &DeviceProfile::h200(), &named(name)).unwrap_err();
        let expected = format!("did you mean {close},");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn an_unknown_kernel_is_an_error_with_suggestions() {
    let error = Plan::gpu(
        case(PLAIN).call().problem(),
        &DeviceProfile::h200(),
        &named("scaler_d64_16x64_w4_s2"),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("did you mean scalar_d64_16x64_w4_s2"),
        "{error}"
    );
}

#[test]
fn a_family_and_an_image_can_be_asked_for() {
    let problem = case(PLAIN).call().problem();
    let h200 = DeviceProfile::h200();
    for family in [Family::Scalar, Family::Wmma, Family::Wgmma] {
        let plan = Plan::gpu(problem, &h200, &Choice::Family(family)).unwrap();
        assert_eq!(plan.image().unwrap().family, family);
    }
    let image = "mma_d64_64x64_w4_s2_f16_compute_80";
    let plan = Plan::gpu(problem, &h200, &image.parse().unwrap()).unwrap();
    assert_eq!(plan.image().unwrap().name, image);
    let unknown = Choice::Image("mma_d64_64x64_w4_s2_f16_compute_81".to_owned());
    let error = Plan::gpu(problem, &h200, &unknown).unwrap_err().to_string();
    assert!(
        error.contains("did you mean mma_d64_64x64_w4_s2_f16_compute_8"),
        "{error}"
    );
    let wrong_family = Plan::gpu(
        case("b1 q5 k5 h1 d64 f32").call().problem(),
        &h200,
        &Choice::Family(Family::Wgmma),
    );
    assert!(
        wrong_family
            .unwrap_err()
            .to_string()
            .contains("not compiled for f32")
    );
}

/// A kernel that was not measured runs by name, and not because its estimate is a good guess.
#[test]
fn kernels_without_a_rate_run_only_by_name() {
    let chosen = choice("b4 h16 q4096 k4096 d128 f16 seed=1").kernel_name();
    let without: String = include_str!("../../rates/nvidia-h200.txt")
        .lines()
        .filter(|line| !line.contains(chosen))
        .map(|line| format!("{line}\n"))
        .collect();
    let rates: Rates = without.parse().unwrap();
    let h200 = DeviceProfile::h200();
    let planner = Planner::new(&h200).rates(&rates);
    let problem = case("b4 h16 q4096 k4096 d128 f16 seed=1").call().problem();
    let plan = planner.plan(problem, &Choice::Best).unwrap();
    assert_ne!(plan.kernel_name(), chosen);
    assert!(
        plan.considered()
            .iter()
            .any(|one| one.kernel == chosen && one.reason == Reason::Unmeasured)
    );
    assert_eq!(
        planner.plan(problem, &named(chosen)).unwrap().kernel_name(),
        chosen
    );
    // Where nothing else applies, it runs all the same.
    let only = catalog().iter().filter(|image| image.kernel == chosen);
    let plan = Planner::new(&h200)
        .rates(&rates)
        .images(only)
        .plan(problem, &Choice::Best);
    assert_eq!(plan.unwrap().kernel_name(), chosen);
}

/// However slow its rates say that it is.
#[test]
fn a_kernel_with_rates_comes_before_every_guess() {
    let rated = "scalar_d64_16x64_w4_s2";
    let head = "device NVIDIA H200\nmultiprocessors 132\nbandwidth 4\nlaunch 3";
    let rates: Rates = format!("{head}\nkernel {rated} 0.001 2").parse().unwrap();
    let h200 = DeviceProfile::h200();
    let planner = Planner::new(&h200).rates(&rates);
    let plan = |text: &str| planner.plan(case(text).call().problem(), &Choice::Best);
    assert_eq!(plan(PLAIN).unwrap().kernel_name(), rated);
    // Where only guesses are left, machine code comes before text that the driver must compile.
    let guess = plan("b1 q1 k4096 h8 d128 bf16 cache=e4m3").unwrap();
    assert_eq!(guess.basis().unwrap().standing, Standing::Unknown);
    assert!(!matches!(guess.image().unwrap().target, Target::Ptx(_)));
}

/// A persistent kernel could hang if some of its CTAs were not resident.
#[test]
fn settings_take_no_more_ctas_than_a_multiprocessor_holds() {
    let (kernel, text) = ("wgmma_d64_64x128_w8_s2", "b2 h8 q4096 k4096 d64 f16");
    let h200 = DeviceProfile::h200();
    let problem = case(text).call().problem();
    let head = "device NVIDIA H200\nmultiprocessors 132\nbandwidth 4\nlaunch 3";
    for (ctas, expected) in [(1, 1), (2, 2), (3, 2), (u32::MAX, 2)] {
        let chosen = format!(
            "{head}\nkernel {kernel} 400 2\nchoice {kernel} ctas={ctas} {}",
            problem.line()
        );
        let rates: Rates = chosen.parse().unwrap();
        let by_rates = Planner::new(&h200)
            .rates(&rates)
            .plan(problem, &Choice::Best);
        let mut settings = Settings::default();
        settings.ctas = Some(ctas);
        let by_settings = Planner::new(&h200)
            .settings(settings)
            .plan(problem, &named(kernel));
        // Those that are asked for come before those of a choice.
        let rates_of_one = chosen.replace(&format!("ctas={ctas}"), "ctas=1");
        let rates_of_one: Rates = rates_of_one.parse().unwrap();
        let planner = Planner::new(&h200).rates(&rates_of_one).settings(settings);
        let by_both = planner.plan(problem, &Choice::Best);
        for plan in [by_rates.unwrap(), by_settings.unwrap(), by_both.unwrap()] {
            let step = &plan.steps()[0];
            assert_eq!(step.settings.ctas, Some(ctas));
            assert_eq!(step.ctas_per_multiprocessor, expected, "ctas={ctas}");
            assert_eq!(shape(&plan, text).grid, 132 * expected);
        }
    }
}

/// A multiprocessor that holds two CTAs to the byte, and a CTA that has as much as it needs; each with one byte less.
#[test]
fn shared_memory_is_counted_to_the_byte() {
    let kernel = "wgmma_d96_64x128_w8_s2";
    let plan = |device: &DeviceProfile| {
        let problem = case("b2 h8 q512 k512 d96 f16").call().problem();
        Plan::gpu(problem, device, &named(kernel))
    };
    let h200 = DeviceProfile::h200();
    let resources = plan(&h200).unwrap().image().unwrap().resources;
    let needed = resources.static_shared_bytes + resources.dynamic_shared_bytes;
    for (less, ctas) in [(0, 2), (1, 1)] {
        let mut device = h200.clone();
        // The system keeps 1 KiB for each CTA.
        device.shared_bytes_per_multiprocessor = 2 * (needed + 1024) - less;
        let plan = plan(&device).unwrap();
        assert_eq!(plan.steps()[0].ctas_per_multiprocessor, ctas);
    }
    for (available, fits) in [(needed, true), (needed - 1, false)] {
        let mut device = h200.clone();
        device.shared_bytes_per_cta = available;
        match plan(&device) {
            Ok(_) => assert!(fits, "{available} of {needed}"),
            Err(Error::NoKernel { considered, .. }) => {
                let reason = Reason::SharedMemory { needed, available };
                assert_eq!(considered[0].reason, reason);
                assert!(!fits);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_kernel_for_quantized_keys_takes_no_others() {
    let kernel = "decode_d128_16x256_w8_s2_e4m3";
    let plan = |words: &str| {
        let problem = case(&format!("b1 q1 k8192 h32/8 d128 bf16 {words}"))
            .call()
            .problem();
        Plan::gpu(problem, &DeviceProfile::h200(), &named(kernel))
    };
    assert_eq!(plan("cache=e4m3").unwrap().kernel_name(), kernel);
    let error = plan("").unwrap_err().to_string();
    assert!(
        error.contains("reads keys and values in e4m3 only"),
        "{error}"
    );
}

#[test]
fn debug_output_fits_a_line() {
    let plan = Plan::gpu(
        case(PLAIN).call().problem(),
        &DeviceProfile::h200(),
        &Choice::Best,
    )
    .unwrap();
    let text = format!("{plan:?}");
    assert!(text.len() < 200 && !text.contains('\n'), "{text}");
    assert!(text.contains(plan.kernel_name()), "{text}");

    let backend = Backend::cpu();
    let shape = [1, 100, 4, 64];
    let tensor = backend.tensor(&vec![0.5_f32; 25_600], shape).unwrap();
    let output = Attention::new()
        .forward(&tensor, (&tensor, &tensor))
        .unwrap();
    let text = format!("{output:?}");
    assert!(text.len() < 300, "{text}");
    assert!(text.contains("[1, 100, 4, 64]"), "{text}");
}

/// Profiles are the caller's.
#[test]
fn any_number_of_multiprocessors_has_a_plan_or_an_error() {
    const MOST: u32 = DeviceProfile::MAX_MULTIPROCESSORS;
    for text in [
        "b8 q4096 k4096 h16 d128 bf16 mask=causal",
        "b1 q1 k8192 h32/8 d128 bf16",
        "b2 q2 k3 h8/2 d256 bf16 splits=256",
        "b2 q512 k512 h8 d64 f32",
    ] {
        let plan = |multiprocessors| {
            let device = DeviceProfile::h200().with_multiprocessors(multiprocessors);
            Plan::gpu(case(text).call().problem(), &device, &Choice::Best)
        };
        for multiprocessors in [0, 1, MOST] {
            let plan = plan(multiprocessors).unwrap();
            assert!(shape(&plan, text).grid > 0, "{text} on {multiprocessors}");
        }
        for multiprocessors in [MOST + 1, 1 << 31, u32::MAX] {
            assert_eq!(
                plan(multiprocessors).unwrap_err().to_string(),
                format!(
                    "the device profile has {multiprocessors} multiprocessors; at most {MOST} are supported"
                )
            );
        }
    }
}
