//! The planner against the embedded catalog: what it picks for which device, and what it says of the rest.

use std::collections::BTreeMap;

use warptile::{DeviceProfile, Error, Plan, Reason};
use warptile_check::{Case, repository_file};
use warptile_kernels::{Target, catalog};

fn case(text: &str) -> Case {
    text.parse().unwrap()
}

fn device(major: u32, minor: u32, shared_bytes_per_cta: u32) -> DeviceProfile {
    let mut profile = DeviceProfile::h200();
    profile.name = format!("a {major}.{minor} device");
    (profile.major, profile.minor) = (major, minor);
    profile.shared_bytes_per_cta = shared_bytes_per_cta;
    profile
}

/// Shared memory a CTA may have on consumer parts (8.6, 8.9, 12.0).
const CONSUMER_SHARED_BYTES: u32 = 101_376;

const PLAIN: &str = "b2 h8 q512 k512 d64 f16 seed=1";

fn target_on(device: &DeviceProfile) -> Target {
    let plan = Plan::gpu(case(PLAIN).problem(), device, None).unwrap();
    plan.launch().unwrap().image.target
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
    // Newer than anything compiled: the driver compiles the newest PTX there is.
    assert_eq!(target_on(&device(13, 0, 232_448)), Target::Ptx(89));
}

#[test]
fn without_machine_code_the_newest_ptx_that_runs_is_chosen() {
    let ptx = catalog()
        .iter()
        .filter(|image| matches!(image.target, Target::Ptx(_)));
    let kernel = "wmma_d64_64x64_w4_s2";
    for (device, target) in [
        (device(8, 0, 166_912), 80),
        (device(8, 6, CONSUMER_SHARED_BYTES), 80),
        (device(8, 9, CONSUMER_SHARED_BYTES), 89),
        (DeviceProfile::h200(), 89),
    ] {
        let plan =
            Plan::from_catalog(case(PLAIN).problem(), &device, Some(kernel), ptx.clone()).unwrap();
        let chosen = plan.launch().unwrap().image.target;
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
    let error = Plan::gpu(case(PLAIN).problem(), &device(7, 5, 65_536), None).unwrap_err();
    let Error::NoKernel { rejected, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        rejected
            .iter()
            .any(|rejection| matches!(rejection.reason, Reason::NoImage { .. }))
    );
    assert!(
        error
            .to_string()
            .contains("no image for this device (compiled for"),
        "{error}"
    );
    assert!(error.to_string().contains("a 7.5 device"), "{error}");
}

#[test]
fn an_image_for_exactly_one_device_is_not_given_to_its_successors() {
    for image in catalog()
        .iter()
        .filter(|image| matches!(image.target, Target::CubinExact(_)))
    {
        let head_dim = image.tiling.head_dim;
        let case = case(&format!(
            "b2 h8 q512 k512 d{head_dim} {} seed=1",
            image.element
        ));
        let error =
            Plan::gpu(case.problem(), &device(10, 0, 232_448), Some(image.kernel)).unwrap_err();
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
    for head_dim in (8..=256).step_by(8) {
        for element in ["f16", "bf16", "f32"] {
            let problem = case(&format!("b1 h2 q100 k100 d{head_dim} {element} seed=1")).problem();
            for device in &devices {
                let plan = Plan::gpu(problem.clone(), device, None).unwrap();
                let launch = plan.launch().unwrap();
                assert!(launch.dynamic_shared_bytes <= device.shared_bytes_per_cta);
                assert!(launch.image.tiling.head_dim as usize >= head_dim);
            }
        }
    }
}

#[test]
fn a_kernel_is_forced_by_name_and_the_others_are_listed() {
    let forced = "scalar_d64_16x64_w4_s2";
    let plan = Plan::gpu(case(PLAIN).problem(), &DeviceProfile::h200(), Some(forced)).unwrap();
    assert_eq!(plan.kernel_name(), forced);
    assert_eq!(plan.launch().unwrap().grid, 2 * 8 * 32);
    assert!(
        plan.rejected()
            .iter()
            .any(|rejection| rejection.reason == Reason::NotRequested)
    );
    assert!(
        plan.explain()
            .contains("its tiles hold head sizes up to 32")
    );
}

#[test]
fn a_forced_kernel_that_cannot_run_is_an_error_about_that_kernel() {
    let problem = case("b1 h1 q10 k10 d128 f16 seed=1").problem();
    let error = Plan::gpu(
        problem,
        &DeviceProfile::h200(),
        Some("scalar_d64_16x64_w4_s2"),
    )
    .unwrap_err();
    let Error::NoKernel { rejected, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(rejected.len(), 1);
    assert_eq!(rejected[0].reason, Reason::HeadDim { laid_out_for: 64 });
}

#[test]
fn an_unknown_kernel_is_an_error_with_suggestions() {
    let error = Plan::gpu(
        case(PLAIN).problem(),
        &DeviceProfile::h200(),
        Some("scaler_d64_16x64_w4_s2"),
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
fn what_the_hopper_kernels_lack_goes_to_another_family_and_is_said() {
    for (words, feature) in [
        ("alibi=head", "ALiBi"),
        ("scale=-0.5", "a negative scale"),
        (
            "unaligned",
            "rows that don't start at multiples of 16 bytes",
        ),
        ("softcap=30", "a softcap"),
    ] {
        let problem = case(&format!("b4 h16 q4096 k4096 d128 f16 {words} seed=1")).problem();
        let plan = Plan::gpu(problem, &DeviceProfile::h200(), None).unwrap();
        let tallest = "wgmma_d128_192x80_w16_s3";
        assert_ne!(plan.kernel_name(), tallest);
        assert!(
            plan.rejected()
                .iter()
                .any(|rejection| rejection.kernel == tallest
                    && rejection.reason == Reason::Feature(feature)),
            "{words}: {plan}"
        );
        // A softcap costs only the tiling with no registers left for it.
        assert_eq!(
            plan.kernel_name().starts_with("wgmma"),
            words == "softcap=30",
            "{words}: {plan}"
        );
    }
}

#[test]
fn keys_that_no_row_sees_are_no_reason_against_the_hopper_kernels() {
    for text in [
        "b1 h8 q2048 k65536 d128 f16 mask=causal-top-left seed=1",
        "b1 h8 q2048 k65536 d128 f16 mask=window,-1,0 seed=1",
        "h8 packed=64x64,8192x8192,64x64 d128 bf16 seed=1",
        "b1 h8 q4096 k4096 d64 f16 mask=window,128,0 seed=1",
        "b1 h2 q16384 k16384 d128 bf16 mask=window,256,256 seed=1",
    ] {
        let plan = choice(text);
        assert!(plan.kernel_name().starts_with("wgmma"), "{text}: {plan}");
    }
}

#[test]
fn tiles_are_drawn_where_there_are_more_of_them_than_ctas() {
    for (text, draws) in [
        ("b2 h8 q512 k512 d64 f16 seed=1", false),
        ("b2 h8 q4096 k4096 d64 f16 seed=1", true),
    ] {
        let problem = case(text).problem();
        let plan = Plan::gpu(
            problem,
            &DeviceProfile::h200(),
            Some("wgmma_d64_64x128_w8_s2"),
        );
        let launch = plan.unwrap().launch().unwrap().clone();
        assert_eq!(launch.draws_tiles, draws, "{text}");
        assert_eq!(launch.grid, launch.tiles.min(2 * 132), "{text}");
    }
}

#[test]
fn nothing_to_compute_is_an_empty_grid() {
    for text in [
        "b0 h2 q10 k10 d64 f16 seed=1",
        "b2 h2 q0 k10 d64 f16 seed=1",
    ] {
        let plan = Plan::gpu(case(text).problem(), &DeviceProfile::h200(), None).unwrap();
        assert_eq!(plan.launch().unwrap().grid, 0, "{text}");
    }
}

/// What was timed on an H200: problem, family, kernel, microseconds.
fn measured(file: &str) -> BTreeMap<String, Vec<(String, String, f64)>> {
    let path = repository_file(&format!("evidence/{file}"));
    let rows: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut problems: BTreeMap<String, Vec<(String, String, f64)>> = BTreeMap::new();
    for row in rows.as_array().unwrap() {
        if row["method"] == "graph" {
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            let problem = format!(
                "b{} q{} k{} h{}/{} d{} {} mask={} seed=1",
                row["batch"],
                row["query_len"],
                row["key_len"],
                row["heads"],
                row["kv_heads"],
                row["head_dim"],
                text("element"),
                text("mask"),
            );
            let us = row["median_us"].as_f64().unwrap();
            problems
                .entry(problem)
                .or_default()
                .push((text("family"), text("kernel"), us));
        }
    }
    problems
}

fn choice(problem: &str) -> Plan {
    Plan::gpu(case(problem).problem(), &DeviceProfile::h200(), None).unwrap()
}

/// Of all kernels, on the problems on which all were timed.
#[test]
fn the_choice_is_within_a_tenth_of_the_fastest_kernel_measured() {
    let problems = measured("kernels.json");
    assert!(problems.len() >= 3, "{} problems", problems.len());
    for (problem, times) in problems {
        let plan = choice(&problem);
        let fastest = times.iter().map(|row| row.2).fold(f64::INFINITY, f64::min);
        let chosen = times.iter().find(|row| row.1 == plan.kernel_name());
        let (_, kernel, us) = chosen.expect("every kernel was timed");
        assert!(
            *us <= 1.1 * fastest,
            "{problem}: {kernel} takes {us} us, the fastest {fastest}"
        );
    }
}

/// Of all families, on every problem of benches/peers/shapes.txt.
#[test]
fn the_choice_is_of_the_fastest_family_measured() {
    let problems = measured("families.json");
    assert!(problems.len() > 40, "{} problems", problems.len());
    for (problem, times) in problems {
        let family = choice(&problem).launch().unwrap().image.family.to_string();
        let fastest = times.iter().min_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
        assert_eq!(family, fastest.0, "{problem}: {times:?}");
    }
}
