//! The needs of a problem: its features and lengths decide on kernel, image and grid.

use warptile::kernels::Family;
use warptile::plan::{Choice, DeviceProfile, Plan, Planner, Reason};
use warptile::spec::{Call, Features};
use warptile::{ElementType, Layout};
use warptile_check::Case;
use warptile_kernels::abi::MAX_QUOTIENT;
use warptile_kernels::{Role, Schedule, Target, catalog, images_for};

use crate::{case, choice, choice_on, device, named, shape};

/// Tests find a problem for every image within a few draws, even if the image lacks features.
#[test]
fn every_image_takes_some_of_the_problems_drawn_for_it() {
    const DRAWS: u64 = 300;
    for image in images_for(Role::Forward) {
        let version = match image.target {
            Target::Cubin(version) | Target::CubinExact(version) | Target::Ptx(version) => version,
            other => panic!("which device runs {other}?"),
        };
        let device = device(version / 10, version % 10, 232_448);
        let planner = Planner::new(&device).images(std::iter::once(image));
        let takes = |seed: &u64| {
            let drawn = Case::random(*seed, 600).for_image(image);
            let problem = drawn.call_on_gpu().unwrap().problem();
            planner.plan(problem, &Choice::Best).is_ok()
        };
        let taken = (0..DRAWS).filter(takes).count();
        assert!(taken >= 5, "{} takes {taken} of {DRAWS}", image.name);
    }
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

/// A step of decoding under a CUDA graph, in a tensor with room for prompts, is planned as a step of decoding.
#[test]
fn room_to_spare_makes_no_step_a_prompt() {
    let plan = |rows| {
        let q = Layout::packed(rows, 32, 128);
        let k = Layout::bshd([64, 4096, 8, 128]);
        let call = Call::builder(&q, &k, &k, ElementType::Bf16)
            .device_query_offsets(64, 1)
            .device_key_lengths(64)
            .build()
            .unwrap();
        Plan::gpu(call.problem(), &DeviceProfile::h200(), &Choice::Best).unwrap()
    };
    let (exact, roomy) = (plan(64), plan(8192));
    assert_eq!(roomy.kernel_name(), exact.kernel_name());
    let estimate = |plan: &Plan| plan.steps()[0].estimate_us;
    assert!(
        estimate(&roomy) < 2.0 * estimate(&exact),
        "{roomy}\n{exact}"
    );
}

#[test]
fn a_kernel_runs_the_image_that_does_no_more_than_it_must() {
    let h200 = DeviceProfile::h200();
    for (kernel, words, variant) in [
        ("wgmma_d128_128x128_w12_s2", "", ""),
        ("wgmma_d128_128x128_w12_s2", "softcap=30", "_softcap"),
        ("wgmma_d128_192x64_w16_s4", "softcap=30", "_softcap"),
        ("wgmma_d128_192x64_w16_s4", "alibi=head sinks", "_alibi"),
        ("wgmma_d256_128x64_w12_s2", "alibi=head", "_alibi"),
        ("wgmma_d256_128x64_w12_s2", "alibi=head keymask", "_tensors"),
        (
            "wgmma_d256_128x64_w12_s2",
            "alibi=head softcap=30",
            "_tensors",
        ),
    ] {
        let problem = case(&format!("b1 h2 q300 k300 d128 f16 {words} seed=1"))
            .call()
            .problem();
        let plan = Plan::gpu(problem, &h200, &named(kernel)).unwrap();
        let name = format!("{kernel}_f16{variant}_sm_90a");
        assert_eq!(plan.image().map(|image| image.name), Some(&*name), "{plan}");
    }
    let capped = case("b1 h2 q300 k300 d128 f16 softcap=30 seed=1")
        .call()
        .problem();
    let plain = Choice::Image("wgmma_d128_128x128_w12_s2_f16_sm_90a".to_owned());
    let error = Plan::gpu(capped, &h200, &plain).unwrap_err();
    assert!(error.to_string().contains("a softcap"), "{error}");
}

#[test]
fn a_step_of_decoding_runs_the_image_with_the_least_code() {
    for kernel in [
        "decode_d64_16x256_w8_s2",
        "decode_d128_16x128_w8_s2",
        "decode_d256_16x64_w4_s2",
        "decode_d512_16x32_w8_s2",
    ] {
        for (words, variant) in [
            ("", "_dense"),
            ("mask=causal", "_dense"),
            ("mask=window,127,0", "_dense"),
            ("pages=16", "_paged"),
            ("pages=16 lengths=ragged mask=causal", "_paged"),
            ("lengths=ragged", "_paged"),
            ("softcap=30", ""),
            ("alibi=head", ""),
            ("sinks", ""),
            ("pages=16 sinks", ""),
            ("splits=512", ""),
            ("pages=16 splits=512", ""),
        ] {
            let problem = case(&format!("b16 q1 k8192 h16/8 d64 bf16 {words} seed=1"))
                .call_on_gpu()
                .unwrap()
                .problem();
            let plan = Plan::gpu(problem, &DeviceProfile::h200(), &named(kernel)).unwrap();
            let name = plan.image().unwrap().name;
            assert_eq!(name, format!("{kernel}_bf16{variant}_sm_90"), "{words}");
        }
    }
}

#[test]
fn tiles_made_for_smaller_values_take_no_larger_ones() {
    let h200 = DeviceProfile::h200();
    let narrow = catalog()
        .iter()
        .filter(|image| image.tiling.value_dim < image.tiling.head_dim);
    let mut count = 0;
    for image in narrow.filter(|image| image.role == Role::Forward) {
        let (head_dim, value_dim) = (image.tiling.head_dim, image.tiling.value_dim);
        let plan = |values: u32| {
            let text = format!(
                "q4096 k4096 h16 d{head_dim}/{values} {} seed=1",
                image.element
            );
            Plan::gpu(case(&text).call().problem(), &h200, &named(image.kernel))
        };
        assert_eq!(plan(value_dim).unwrap().kernel_name(), image.kernel);
        let error = plan(value_dim + 8).unwrap_err().to_string();
        let reason = format!("its tiles hold values of head sizes up to {value_dim}");
        assert!(error.contains(&reason), "{error}");
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn values_of_192_and_128_go_to_tiles_made_for_them() {
    for mask in ["none", "causal"] {
        for size in [512, 4096, 16_384] {
            let text = format!("b2 q{size} k{size} h16 d192/128 bf16 mask={mask} seed=1");
            let plan = choice(&text);
            assert!(plan.kernel_name().starts_with("wgmma_d192v128_"), "{plan}");
        }
    }
    // Other kernels have the features that they lack, also on GPUs without them.
    for (words, device) in [
        ("softcap=30", DeviceProfile::h200()),
        ("alibi=head", DeviceProfile::h200()),
        ("", device(8, 0, 166_912)),
    ] {
        let text = format!("b2 q512 k512 h16 d192/128 bf16 {words} seed=1");
        let plan = Plan::gpu(case(&text).call().problem(), &device, &Choice::Best).unwrap();
        let tiling = plan.image().unwrap().tiling;
        assert!(tiling.value_dim >= 192, "{plan}");
    }
}

/// What an option adds to a score does not depend on the head size, so small ones pay more for it: 75 us by `mma`, and 48 by `wgmma`.
#[test]
fn narrow_heads_with_a_bias_are_for_wgmma() {
    for words in [
        "bias broadcast=none layout=bhsd",
        "alibi=head",
        "keymask",
        "bias keymask mask=causal",
    ] {
        let plan = choice(&format!("b4 q1024 k1024 h8 d32 f16 {words}"));
        assert!(plan.kernel_name().starts_with("wgmma"), "{plan}");
    }
}

#[test]
fn what_the_hopper_kernels_lack_goes_to_another_family_and_is_said() {
    for (words, feature) in [
        ("alibi=head", Features::ALIBI),
        ("bias", Features::BIAS),
        ("keymask", Features::KEY_MASK),
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
        // Options that change scores exclude only the tilings without registers for them.
        assert_eq!(
            plan.kernel_name().starts_with("wgmma"),
            !matches!(words, "scale=-0.5" | "unaligned"),
            "{words}: {plan}"
        );
    }
}

/// A scale that `wgmma` has no factor for counts where products may be large. The GPU's test of extreme scales names these families.
#[test]
fn scales_that_the_hopper_kernels_lack_depend_on_the_type() {
    let h200 = DeviceProfile::h200();
    for (element, scale, on_wgmma) in [
        ("f16", "1e37", true),
        ("f16", "1e-38", true),
        ("f16", "0", true),
        ("f16", "-1e-38", false),
        ("bf16", "1e37", true),
        ("bf16", "1e-30", true),
        ("bf16", "1e-38", false),
        ("bf16", "0", false),
    ] {
        let words = format!("q200 k200 h2 d64 {element} mask=causal scale={scale}");
        let problem = case(&words).call().problem();
        let element = problem.element();
        for family in [Family::Scalar, Family::Mma, Family::Decode, Family::Wgmma] {
            let images = images_for(Role::Forward).filter(|image| image.family == family);
            let images = images.filter(|image| image.element == element);
            let plan = Planner::new(&h200)
                .images(images)
                .plan(problem, &Choice::Best);
            let takes = family != Family::Wgmma || on_wgmma;
            assert_eq!(plan.is_ok(), takes, "{family}: {words}");
        }
        let listed = case(&format!("{words} blocks=64x64")).call().problem();
        for (family, takes) in [(Family::Wgmma, on_wgmma), (Family::Mma, true)] {
            let plan = Plan::gpu(listed, &h200, &Choice::Family(family));
            assert_eq!(plan.is_ok(), takes, "{family} with lists: {words}");
        }
    }
}

#[test]
fn keys_that_no_row_sees_are_no_reason_against_the_hopper_kernels() {
    for text in [
        "b1 h8 q2048 k65536 d128 f16 mask=causal diagonal=top-left seed=1",
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
fn few_tiles_of_few_keys_are_computed_by_clusters() {
    for text in [
        "b1 q1 k1024 h32/4 d128 bf16 seed=1",
        "b1 q1 k4096 h32/8 d128 f16 seed=1",
        "b1 q1 k1024 h32/8 d128 bf16 pages=16 device-lengths seed=1",
        "b1 q4 k4096 h32/8 d128 bf16 mask=causal seed=1",
        "b1 q1 k2048 h64/8 d64 bf16 seed=1",
    ] {
        let plan = choice(text);
        let image = plan.image().unwrap();
        assert_eq!(image.schedule, Schedule::ClusterTile, "{text}: {plan}");
        let shape = shape(&plan, text);
        assert_eq!(shape.grid, 8 * shape.tiles, "{text}");
        assert!(!shape.needs_workspace(), "{text}");
        assert_eq!(plan.scratch().bytes, 0, "{text}");
        // With fewer multiprocessors, clusters would take more than half of them.
        let small = DeviceProfile::h200().with_multiprocessors(15 * shape.tiles);
        let plan = Plan::gpu(case(text).call().problem(), &small, &named(image.kernel)).unwrap();
        assert_eq!(plan.image().unwrap().schedule, Schedule::SharedKeys);
    }
    for text in [
        // Clusters would read slower than all multiprocessors; they would not all fit; there is nothing to share.
        "b1 q1 k8192 h32/8 d128 bf16 seed=1",
        "b2 q1 k1024 h32/8 d128 bf16 seed=1",
        "b1 q1 k8192 h64/8 d64 bf16 mask=window,127,0 sinks seed=1",
        // Keys are cut at fixed places.
        "b1 q1 k1024 h32/4 d128 bf16 splits=512 seed=1",
    ] {
        let plan = choice(text);
        let schedule = plan.image().unwrap().schedule;
        assert_eq!(schedule, Schedule::SharedKeys, "{text}: {plan}");
    }
    // One block of keys is not shared.
    for (keys, schedule) in [(128, Schedule::SharedKeys), (256, Schedule::ClusterTile)] {
        let problem = case(&format!("b1 q1 k{keys} h32/4 d128 bf16"))
            .call()
            .problem();
        let kernel = named("decode_d128_16x128_w8_s2");
        let plan = Plan::gpu(problem, &DeviceProfile::h200(), &kernel).unwrap();
        assert_eq!(plan.image().unwrap().schedule, schedule, "{plan}");
    }
}

#[test]
fn several_clusters_share_tiles_of_many_keys_where_there_are_few() {
    // An H200 holds 15 clusters at once.
    for (text, clusters) in [
        ("b1 q1 k32768 h8/1 d512 bf16 seed=1", 15),
        ("b1 q1 k131072 h8/1 d256 f16 seed=1", 15),
        ("b1 q1 k32768 h24/3 d128 bf16 seed=1", 5),
        (
            "b3 q1 k16384 h8/1 d128 f16 pages=16 device-lengths seed=1",
            5,
        ),
        ("b1 q2 k32768 h4/1 d128 bf16 mask=causal seed=1", 15),
        ("b1 q1 k8192 h16/4 d128 bf16 seed=1", 3),
        // As many as have a block of 128 keys for each CTA.
        ("b1 q1 k8192 h8/1 d128 bf16 seed=1", 8),
        ("b1 q1 k3072 h8/1 d128 bf16 seed=1", 3),
        // All 16 clusters of another GPU.
        ("b1 q1 k4096 h8 d128 bf16 seed=1", 2),
    ] {
        let multiprocessors = if clusters == 2 { 136 } else { 132 };
        let device = DeviceProfile::h200().with_multiprocessors(multiprocessors);
        let plan = choice_on(&device, text);
        let image = plan.image().unwrap();
        assert_eq!(image.schedule, Schedule::ClusterTile, "{text}: {plan}");
        let shape = shape(&plan, text);
        assert_eq!(shape.splits, clusters, "{text}");
        assert_eq!(shape.grid, 8 * shape.tiles * clusters, "{text}");
        // A part and a semaphore for each CTA.
        assert!(shape.shares_keys && !shape.draws_tiles, "{text}");
        let part = image.tiling.block_m * (image.tiling.value_dim + 2) * 4;
        assert!(shape.workspace_bytes as u32 > shape.grid * (part + 4));
        assert_eq!(shape.workspace_bytes, plan.scratch().bytes, "{text}");
    }
    // Two clusters are not worth it.
    let text = "b1 q1 k2944 h8/1 d128 bf16 seed=1";
    let launch = shape(&choice(text), text);
    assert_eq!(
        (launch.grid, launch.splits, launch.workspace_bytes),
        (8, 1, 0)
    );
    for text in [
        "b1 q1 k32768 h16/4 d128 bf16 seed=1",
        "b4 q1 k32768 h8/1 d512 bf16 seed=1",
        "b1 q1 k32768 h8/1 d512 bf16 splits=512 seed=1",
    ] {
        let plan = choice(text);
        let schedule = plan.image().unwrap().schedule;
        assert_eq!(schedule, Schedule::SharedKeys, "{text}: {plan}");
    }
}

/// A cluster's share of a tile is a quotient of blocks, which the kernel finds exactly up to a number of them.
#[test]
fn tiles_of_more_blocks_than_can_be_shared_out_have_one_cluster() {
    let shape = |blocks: u64| {
        // All keys are one row.
        let [q, k] =
            [1, 128 * blocks as usize].map(|rows| Layout::new([1, rows, 1, 128], [0, 0, 0, 1]));
        let out = Layout::bshd([1, 1, 1, 128]);
        let call = Call::builder(&q, &k, &k, ElementType::Bf16).out(out);
        let call = call.build().unwrap();
        let kernel = named("decode_d128_16x128_w8_s2");
        let plan = Plan::gpu(call.problem(), &DeviceProfile::h200(), &kernel).unwrap();
        assert_eq!(plan.image().unwrap().schedule, Schedule::ClusterTile);
        plan.steps()[0].shape(&call).unwrap()
    };
    assert_eq!(shape(MAX_QUOTIENT).splits, 15);
    assert_eq!(shape(MAX_QUOTIENT + 1).splits, 1);
}

/// Where no tile is short, draws leave CTAs idle at the end as if all tiles were equal (measured: docs/notebook/wgmma.md, "What the last
/// draws cost").
#[test]
fn pieces_of_prompts_go_to_tiles_that_leave_few_ctas_idle() {
    for (text, kernel) in [
        // 176 tiles of 192 rows, or 256 of 128, for 132 CTAs: 207 and 158 us.
        (
            "b1 q2048 k8192 h16 d128 bf16 mask=causal",
            "wgmma_d128_128x128_w12_s2",
        ),
        (
            "b1 q1024 k8192 h32 d64 bf16 mask=causal",
            "wgmma_d64_256x64_w20_s6",
        ),
        (
            "b2 q512 k4096 h32/8 d128 bf16 mask=causal",
            "wgmma_d128_128x128_w12_s2",
        ),
        (
            "b1 q2048 k2048 h32 d64 bf16 mask=window,256,0",
            "wgmma_d64_256x64_w20_s6",
        ),
        // The last tiles are short.
        (
            "b1 q4096 k4096 h16 d128 bf16 mask=causal",
            "wgmma_d128_192x64_w16_s4",
        ),
    ] {
        assert_eq!(
            choice(&format!("{text} seed=1")).kernel_name(),
            kernel,
            "{text}"
        );
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

#[test]
fn sinks_run_on_every_family_and_a_bias_on_those_that_have_it() {
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
        assert_eq!(plan.image().unwrap().family, Family::Wgmma, "{plan}");
        for family in [Family::Scalar, Family::Mma] {
            Plan::gpu(problem(words), &h200, &Choice::Family(family)).unwrap();
        }
        Plan::gpu(problem(words), &h200, &Choice::Family(Family::Wmma)).unwrap_err();
    }
}
