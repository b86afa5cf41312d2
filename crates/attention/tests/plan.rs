//! The planner against the embedded catalog: what it picks for which device, and what it says of the rest.

use std::collections::BTreeMap;

use warptile::{
    Attention, Backend, Choice, DeviceProfile, Error, Family, Features, LaunchShape, Plan, Planner,
    Problem, Rates, Reason, Splits,
};
use warptile_check::{Case, repository_file};
use warptile_kernels::{Schedule, Target, catalog};

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

fn named(kernel: &str) -> Choice {
    Choice::Kernel(kernel.to_owned())
}

/// The launch of a plan's kernel for a case.
fn shape(plan: &Plan, text: &str) -> LaunchShape {
    plan.steps()[0].shape(&case(text).call()).unwrap()
}

const PLAIN: &str = "b2 h8 q512 k512 d64 f16 seed=1";

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
    {
        let head_dim = image.tiling.head_dim;
        let case = case(&format!(
            "b2 h8 q512 k512 d{head_dim} {} seed=1",
            image.element
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
    for head_dim in (8..=256).step_by(8) {
        for element in ["f16", "bf16", "f32"] {
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
fn one_long_sequence_among_short_ones_decides() {
    let kernel = |packed: &str| {
        let problem = case(&format!("packed={packed} h32 d128 bf16 seed=1"))
            .call()
            .problem();
        Plan::gpu(problem, &DeviceProfile::h200(), &Choice::Best)
            .unwrap()
            .kernel_name()
            .to_owned()
    };
    let short = ["128x128"; 63].join(",");
    let long = kernel("16384x16384");
    assert_eq!(kernel(&format!("16384x16384,{short}")), long);
    assert_ne!(kernel(&short), long);
}

#[test]
fn a_kernel_runs_the_image_that_does_no_more_than_it_must() {
    let kernel = Choice::Kernel("wgmma_d128_128x128_w12_s2".to_owned());
    let h200 = DeviceProfile::h200();
    for (words, name) in [
        ("", "wgmma_d128_128x128_w12_s2_f16_sm_90a"),
        ("softcap=30", "wgmma_d128_128x128_w12_s2_f16_softcap_sm_90a"),
    ] {
        let problem = case(&format!("b1 h2 q300 k300 d128 f16 {words} seed=1"))
            .call()
            .problem();
        let plan = Plan::gpu(problem, &h200, &kernel).unwrap();
        assert_eq!(plan.image().map(|image| image.name), Some(name), "{plan}");
    }
    let capped = case("b1 h2 q300 k300 d128 f16 softcap=30 seed=1")
        .call()
        .problem();
    let plain = Choice::Image("wgmma_d128_128x128_w12_s2_f16_sm_90a".to_owned());
    let error = Plan::gpu(capped, &h200, &plain).unwrap_err();
    assert!(error.to_string().contains("a softcap"), "{error}");
}

#[test]
fn what_the_hopper_kernels_lack_goes_to_another_family_and_is_said() {
    for (words, feature) in [
        ("alibi=head", Features::ALIBI),
        ("scale=-0.5", Features::NEGATIVE_SCALE),
        ("unaligned", Features::UNALIGNED),
        ("softcap=30", Features::SOFTCAP),
    ] {
        let problem = case(&format!("b4 h16 q4096 k4096 d128 f16 {words} seed=1"))
            .call()
            .problem();
        let plan = Plan::gpu(problem, &DeviceProfile::h200(), &Choice::Best).unwrap();
        let tallest = "wgmma_d128_192x80_w16_s3";
        assert_ne!(plan.kernel_name(), tallest);
        assert!(
            plan.considered()
                .iter()
                .any(|one| one.kernel == tallest && one.reason == Reason::Lacks(feature)),
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
fn pieces_of_prompts_go_to_the_hopper_images_that_serve() {
    let image = |text: &str| choice(text).image().unwrap().name;
    for text in [
        "b1 q512 k8192 h32/8 d128 bf16 mask=causal pages=16 seed=1",
        "b1 q512 k32768 h32/8 d128 f16 mask=causal pages=256 seed=1",
        "b4 q300 k2000 h8 d64 f16 mask=causal pages=48 seed=1",
        // Not in pages, but with fewer tiles than CTAs.
        "b1 q64 k8192 h32/8 d128 bf16 mask=causal seed=1",
        "b1 q256 k8192 h32/8 d128 bf16 mask=causal seed=1",
    ] {
        let name = image(text);
        assert!(
            name.starts_with("wgmma") && name.contains("_serving_"),
            "{text}: {name}"
        );
    }
    for text in [
        "b1 q512 k8192 h32/8 d128 bf16 mask=causal seed=1",
        "b4 q4096 k4096 h16 d128 bf16 mask=causal seed=1",
    ] {
        let name = image(text);
        assert!(!name.contains("_serving_"), "{text}: {name}");
    }
    for text in [
        "b1 q1 k8192 h32/8 d128 bf16 pages=16 seed=1",
        "b1 q1 k8192 h32/8 d128 bf16 seed=1",
        "b64 q1 k4096 h32/8 d128 bf16 pages=16 seed=1",
        "b1 q512 k8192 h32/8 d128 bf16 mask=causal splits=1024 seed=1",
    ] {
        let name = image(text);
        assert!(name.starts_with("decode"), "{text}: {name}");
    }
    // Boxes of 8 rows are not worth it.
    let text = "b1 q512 k8192 h32/8 d128 bf16 mask=causal pages=24 seed=1";
    let plan = choice(text);
    let reason = Reason::PageRows { rows: 8, least: 16 };
    assert!(
        plan.considered().iter().any(|one| one.reason == reason),
        "{plan}"
    );
    assert!(!plan.kernel_name().starts_with("wgmma"), "{plan}");
}

#[test]
fn tiles_are_drawn_where_there_are_more_of_them_than_ctas() {
    for (text, draws) in [
        ("b2 h8 q512 k512 d64 f16 seed=1", false),
        ("b2 h8 q4096 k4096 d64 f16 seed=1", true),
    ] {
        let problem = case(text).call().problem();
        let plan = Plan::gpu(
            problem,
            &DeviceProfile::h200(),
            &named("wgmma_d64_64x128_w8_s2"),
        );
        let launch = shape(&plan.unwrap(), text);
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
        assert_eq!(shape(&choice(text), text).grid, 0, "{text}");
    }
}

/// What was timed on an H200: problem, family, kernel, microseconds.
fn measured(file: &str) -> BTreeMap<String, Vec<(String, String, f64)>> {
    let path = repository_file(&format!("evidence/{file}"));
    let rows: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut problems: BTreeMap<String, Vec<(String, String, f64)>> = BTreeMap::new();
    for row in rows["rows"].as_array().unwrap() {
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
    Plan::gpu(
        case(problem).call().problem(),
        &DeviceProfile::h200(),
        &Choice::Best,
    )
    .unwrap()
}

/// Of all kernels, on the problems on which all were timed: a choice this far off is a mistake and not noise.
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
fn the_choice_is_of_a_family_within_a_tenth_of_the_fastest_measured() {
    let problems = measured("families.json");
    assert!(problems.len() > 40, "{} problems", problems.len());
    for (problem, times) in problems {
        let family = choice(&problem).image().unwrap().family.to_string();
        let fastest = times.iter().map(|row| row.2).fold(f64::INFINITY, f64::min);
        let (_, _, us) = times
            .iter()
            .find(|row| row.0 == family)
            .expect("every family was timed");
        assert!(
            *us <= 1.1 * fastest,
            "{problem}: {family} takes {us} us, the fastest {fastest}"
        );
    }
}

/// Of decode: tiles of many rows are for many rows. Where they have few, those of 16 rows were measured to be faster.
#[test]
fn few_rows_get_small_tiles() {
    for (problem, rows) in [
        ("b1 q1 k1024 h32/4 d128 bf16", 16),
        ("b16 q1 k8192 h32/8 d128 bf16", 16),
        ("b16 q1 k8192 h64/8 d64 bf16", 16),
        ("b8 q8 k16384 h32/8 d128 bf16 mask=causal", 32),
        ("b8 q16 k16384 h32/8 d128 bf16 mask=causal", 64),
    ] {
        let plan = Plan::gpu(
            case(problem).call().problem(),
            &DeviceProfile::h200(),
            &Choice::Family(Family::Decode),
        );
        let plan = plan.unwrap();
        let chosen = plan.image().unwrap();
        assert_eq!(chosen.tiling.block_m, rows, "{problem}: {}", chosen.name);
    }
}

#[test]
fn a_family_and_an_image_can_be_asked_for() {
    let problem = case(PLAIN).call().problem();
    let h200 = DeviceProfile::h200();
    for family in [Family::Scalar, Family::Wmma, Family::Wgmma] {
        let plan = Plan::gpu(problem, &h200, &Choice::Family(family)).unwrap();
        assert_eq!(plan.image().unwrap().family, family);
    }
    let image = "wmma_d64_64x64_w4_s2_f16_compute_80";
    let plan = Plan::gpu(problem, &h200, &image.parse().unwrap()).unwrap();
    assert_eq!(plan.image().unwrap().name, image);
    let unknown = Choice::Image("wmma_d64_64x64_w4_s2_f16_compute_81".to_owned());
    let error = Plan::gpu(problem, &h200, &unknown).unwrap_err().to_string();
    assert!(
        error.contains("did you mean wmma_d64_64x64_w4_s2_f16_compute_8"),
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

/// A kernel that nobody has measured runs by name, and not because its estimate is a good guess.
#[test]
fn kernels_without_a_rate_run_only_by_name() {
    let chosen = choice("b4 h16 q4096 k4096 d128 f16 seed=1").kernel_name();
    let without: String = include_str!("../rates/nvidia-h200.txt")
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

#[test]
fn sinks_run_on_every_family_and_a_bias_on_the_scalar_one() {
    let problem = |words: &str| {
        case(&format!("b2 h8 q512 k512 d64 f16 {words}"))
            .call()
            .problem()
    };
    let h200 = DeviceProfile::h200();
    for family in [Family::Scalar, Family::Wmma, Family::Wgmma] {
        Plan::gpu(problem("sinks"), &h200, &Choice::Family(family)).unwrap();
    }
    for words in ["bias", "keymask"] {
        let plan = Plan::gpu(problem(words), &h200, &Choice::Best).unwrap();
        assert_eq!(plan.image().unwrap().family, Family::Scalar, "{plan}");
    }
}

/// The problem of a line of words that cuts keys every 512.
fn every_512(text: &str) -> Problem {
    case(&format!("{text} splits=512")).call().problem()
}

/// A token, a prompt, a batch, packed, in pages, with lengths on the device: whatever element type, head size and options leave open.
const ANY_BATCH: [&str; 9] = [
    "b1 q1 k1",
    "b1 q1 k100000",
    "b64 q1 k8192",
    "b4 q5 k3000",
    "b1 q8192 k8192",
    "packed=300x300,1x4000,0x7",
    "b64 q1 k4096 pages=16 lengths=ragged",
    "b3 q70 k900 pages=7 lengths=900,1,200",
    "packed=300x900,1x4000 pages=256 device-lengths",
];

#[test]
fn with_splits_one_image_computes_every_batch() {
    let devices = [
        DeviceProfile::h200(),
        device(8, 0, 166_912),
        device(12, 0, CONSUMER_SHARED_BYTES),
    ];
    for device in &devices {
        for head_dim in [8, 64, 72, 128, 192, 256] {
            for words in [
                "f16",
                "bf16",
                "f16 mask=causal",
                "f16 mask=window,127,0 sinks",
                "bf16 softcap=30 alibi=head",
                "f16 scale=-1",
            ] {
                let image = |batch: &str, heads: &str| {
                    let problem = every_512(&format!("{batch} {heads} d{head_dim} {words}"));
                    let plan = Plan::gpu(problem, device, &Choice::Best).ok();
                    plan.map(|plan| plan.image().unwrap().name)
                };
                let first = image(ANY_BATCH[0], "h32/8");
                if device.major == 9 {
                    assert!(first.is_some(), "d{head_dim} {words}");
                }
                for batch in ANY_BATCH {
                    for heads in ["h1", "h32/8", "h64/1"] {
                        let found = image(batch, heads);
                        assert_eq!(found, first, "{batch} {heads} d{head_dim} {words}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_cut_keys_at_fixed_places_says_so() {
    let h200 = DeviceProfile::h200();
    let problem = every_512("b1 q1 k8192 h32/8 d128 f16");
    let plan = Plan::gpu(problem, &h200, &Choice::Best).unwrap();
    assert_eq!(plan.image().unwrap().schedule, Schedule::SharedKeys);
    assert!(plan.explain().contains("splits=512"), "{plan}");
    let not = |kernel: &str| {
        let mut others = plan.considered().iter();
        others.find(|one| one.kernel == kernel).unwrap()
    };
    assert_eq!(not("wmma_d128_64x64_w4_s1").reason, Reason::Splits);
    let error = Plan::gpu(problem, &h200, &named("wmma_d128_64x64_w4_s1"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot cut keys at fixed places"), "{error}");
    for words in ["f32", "f16 bias", "f16 unaligned"] {
        let problem = every_512(&format!("b1 q1 k8192 h32/8 d128 {words}"));
        let error = Plan::gpu(problem, &h200, &Choice::Best).unwrap_err();
        assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    }
    assert_ne!(problem, case("b1 q1 k8192 h32/8 d128 f16").call().problem());
}

/// No other image takes what is too much for the one that takes all.
#[test]
fn with_splits_too_many_units_are_an_error() {
    use warptile::{Call, ElementType, Layout};
    let q = Layout::new([1 << 16, 1 << 13, 1, 8], [0, 0, 0, 1]);
    let out = Layout::new([1 << 16, 1 << 13, 1, 8], [1 << 16, 8, 8, 1]);
    let k = Layout::new([1 << 16, 1 << 16, 1, 8], [0, 0, 0, 1]);
    let call = Call::builder(&q, &k, &k, ElementType::F16)
        .out(out)
        .splits(Splits::EveryKeys(256))
        .build()
        .unwrap();
    let error = Plan::gpu(call.problem(), &DeviceProfile::h200(), &Choice::Best);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("needs 8589934592 tiles"), "{error}");
}

/// Bytes for the parts of a call, by looking at what each query of each sequence sees.
fn bytes_of_parts(case: &Case, plan: &Plan, keys: usize) -> usize {
    let (call, tiling) = (case.call(), plan.image().unwrap().tiling);
    let (block_m, head_dim) = (tiling.block_m as usize, tiling.head_dim as usize);
    let mut units = 0;
    for sequence in call.sequences() {
        let seen = (0..sequence.q_len)
            .map(|row| call.mask().visible(row, sequence.q_len, sequence.k_len))
            .filter(|seen| !seen.is_empty());
        let touched = seen.fold(None, |all: Option<(usize, usize)>, seen| {
            let here = (seen.start / keys, (seen.end - 1) / keys);
            Some(all.map_or(here, |all| (all.0.min(here.0), all.1.max(here.1))))
        });
        let splits = touched.map_or(1, |(first, last)| last - first + 1);
        let tiles = (sequence.q_len * call.group_size()).div_ceil(block_m);
        units += tiles * call.kv_heads() * splits;
    }
    // The counter, and 1,024 semaphores.
    256 + 4 * 1024 + units * block_m * (head_dim + 2) * 4
}

#[test]
fn the_scratch_holds_the_parts_of_every_call() {
    fn holds(seed: u64) -> quickcheck::TestResult {
        let mut case = Case::random(seed, 3000).with_splits();
        (case.unaligned, case.scoring.bias, case.scoring.key_mask) = (false, false, false);
        if case.element == warptile::ElementType::F32 {
            case.element = warptile::ElementType::F16;
        }
        let Splits::EveryKeys(keys) = case.splits else {
            return quickcheck::TestResult::error("no splits");
        };
        for call in [case.call(), case.call_on_gpu().unwrap()] {
            let plan = Plan::gpu(call.problem(), &DeviceProfile::h200(), &Choice::Best).unwrap();
            let shape = plan.steps()[0].shape(&call).unwrap();
            let needed = bytes_of_parts(&case, &plan, keys as usize);
            let given = (shape.workspace_bytes, plan.scratch().bytes);
            if needed > given.0 || given.0 > given.1 {
                return quickcheck::TestResult::error(format!("{case}: {needed}, {given:?}"));
            }
            let even = matches!(case.lengths, warptile_check::Lengths::Dense { .. })
                && case.used == warptile_check::Used::All;
            let masked = matches!(case.scoring.mask, warptile::Mask::Window { .. });
            let rows = call.batch() * call.query_len() != 0;
            if even && !masked && rows && case.pages.is_none() && needed != given.0 {
                return quickcheck::TestResult::error(format!("{case}: {needed} is not {given:?}"));
            }
        }
        quickcheck::TestResult::passed()
    }
    quickcheck::QuickCheck::new()
        .tests(400)
        .quickcheck(holds as fn(u64) -> quickcheck::TestResult);
}

#[test]
fn even_splits_need_no_more_than_every_stream_has() {
    // 256 CTAs with two parts of 64 rows and head size 128.
    let most = 256 + 4 * 1024 + 2 * 256 * 64 * (128 + 2) * 4;
    let mut plans = 0;
    for image in catalog()
        .iter()
        .filter(|image| image.role == warptile_kernels::Role::Forward)
        // Their parts are larger; a session is made for them too, and a stream's workspace grows.
        .filter(|image| !image.name.contains("_serving_"))
    {
        let head_dim = image.tiling.head_dim;
        let problem = case(&format!("b64 q1 k8192 h32/8 d{head_dim} {}", image.element));
        let mut profile = device(9, 0, 232_448);
        profile.multiprocessors = 300;
        if let Ok(plan) = Plan::gpu(
            problem.call().problem(),
            &profile,
            &Choice::Image(image.name.to_owned()),
        ) {
            assert!(plan.scratch().bytes <= most, "{}", image.name);
            plans += 1;
        }
    }
    assert!(plans > 0);
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
