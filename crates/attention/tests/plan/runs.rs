//! Padding masks: which problems are computed in three steps.

use warptile::plan::{Choice, DeviceProfile, Plan, Share};
use warptile_kernels::{Features, Role};

use crate::{case, choice, device};

/// With an option that images that hide keys alike from all queries do not take.
const ENCODER: &str = "b32 q512 k512 h12 d64 f16 softcap=30 keymask=padding";

fn steps(words: &str) -> usize {
    choice(words).steps().len()
}

#[test]
fn long_padded_sequences_are_computed_without_their_mask() {
    for words in [
        ENCODER,
        "b32 q512 k512 h12 d64 bf16 softcap=30 keymask=padding layout=bhsd",
        "b8 q2048 k2048 h16 d128 f16 softcap=30 keymask=padding mask=causal",
        "b8 q2048 k2048 h16/4 d128 bf16 softcap=30 keymask=padding sinks",
        "b8 q1024 k1024 h8 d256 f16 softcap=30 keymask=padding",
        "b4 q2048 k2048 h16 d64 f32 keymask=padding",
    ] {
        let plan = choice(words);
        let [first, runs, others] = plan.steps() else {
            panic!("{plan}");
        };
        assert_eq!(first.role, Role::KeyRuns);
        assert_eq!((runs.share, others.share), (Share::Runs, Share::Others));
        assert!(others.image.features.contains(Features::KEY_MASK));
        // As with lengths on the device.
        let lengths = words.replace("keymask=padding", "lengths=ragged device-lengths");
        let of_lengths = case(&lengths).call_on_gpu().unwrap().problem();
        let of_lengths = Plan::gpu(of_lengths, &DeviceProfile::h200(), &Choice::Best).unwrap();
        assert_eq!(runs.image.name, of_lengths.image().unwrap().name);
        assert_eq!(plan.image().unwrap().name, runs.image.name);
        assert!(plan.estimate_us() > runs.estimate_us + 1.0);
        let text = plan.explain();
        assert!(
            text.contains("\nkey runs runs_w16 (image runs_w16_f32_sm_90)\n"),
            "{text}"
        );
        assert!(
            text.contains("\n         the other sequences, with the mask\n"),
            "{text}"
        );
    }
}

/// The tensor cores hide keys at about the speed of a call without a mask.
#[test]
fn one_step_is_enough_where_all_queries_have_the_same_keys() {
    for words in [
        "b32 q512 k512 h12 d64 f16 keymask=padding",
        "b16 q1024 k1024 h16 d64 bf16 keymask=padding",
        "b8 q2048 k2048 h16 d128 f16 keymask=padding mask=causal",
        "b8 q2048 k2048 h16/4 d128 bf16 keymask=padding sinks",
        "b8 q2048 k2048 h16 d96 bf16 keymask broadcast=queries",
        "b8 q2048 k2048 h16 d192 bf16 keymask broadcast=queries,heads lengths=ragged",
        "b8 q1024 k1024 h8 d256 f16 keymask=padding mask=window,300,0",
        "b1 q512 k512 h12 d64 f16 keymask broadcast=queries,batch",
    ] {
        let plan = choice(words);
        assert_eq!(plan.steps().len(), 1, "{plan}");
        let image = plan.image().unwrap();
        assert!(image.name.contains("_keymask_"), "{words}: {plan}");
    }
    // Masks that queries do not share, and what else is done to scores.
    for words in [
        "keymask broadcast=batch,heads",
        "keymask=padding alibi=head",
        "keymask=padding softcap=30",
        "keymask=padding bias",
    ] {
        let plan = choice(&format!("b2 q300 k300 h2 d128 f16 {words}"));
        let image = plan.image().unwrap();
        assert!(!image.name.contains("_keymask_"), "{words}: {plan}");
        let named = "wgmma_d128_192x64_w16_s4_f16_keymask_sm_90a"
            .parse()
            .unwrap();
        let refused = Plan::gpu(*plan.problem(), &DeviceProfile::h200(), &named);
        assert!(refused.is_err(), "{words}");
    }
}

/// The copy engine brings biases, and masks that depend on the query, to the plain images' tilings.
#[test]
fn biases_and_masks_whose_rows_are_aligned_come_in_boxes() {
    for (words, variant) in [
        ("b32 q512 k512 h12 d64 f16 bias broadcast=batch", "_bias_"),
        (
            "b4 q1024 k1024 h8 d32 bf16 bias broadcast=none layout=bhsd",
            "_bias_",
        ),
        (
            "b1 q4096 k4096 h16 d128 bf16 bias broadcast=batch,heads mask=causal",
            "_bias_",
        ),
        (
            "b4 q4096 k4096 h8 d256 f16 bias broadcast=heads sinks",
            "_bias_",
        ),
        (
            "b32 q512 k512 h12 d64 f16 keymask broadcast=batch",
            "_mask_",
        ),
        (
            "b8 q2048 k2048 h16 d128 bf16 keymask broadcast=batch,heads",
            "_mask_",
        ),
        (
            "b2 q2048 k2048 h16/4 d192 bf16 keymask broadcast=none lengths=ragged",
            "_mask_",
        ),
    ] {
        let plan = choice(words);
        let name = plan.image().unwrap().name;
        assert!(name.contains(variant), "{words}: {plan}");
    }
    // Rows that are shared, or not multiples of 16 bytes; keys with gaps; both at once, and what else is done to scores.
    for words in [
        "q300 k300 bias broadcast=batch",
        "q300 k328 keymask broadcast=batch",
        "q512 k512 bias broadcast=queries",
        "q512 k512 bias broadcast=keys",
        "q512 k512 bias broadcast=batch layout=gaps",
        "q512 k512 bias keymask broadcast=batch",
        "q512 k512 bias broadcast=batch softcap=30",
        "q512 k512 keymask broadcast=batch alibi=head",
    ] {
        let words = format!("b2 {words} h2 d128 f16");
        let plan = choice(&words);
        let name = plan.image().unwrap().name;
        assert!(name.contains("_tensors_"), "{words}: {plan}");
    }
    let problem = case("b2 q512 k512 h2 d128 f16").call().problem();
    let plan = |variant: &str| {
        let name = format!("wgmma_d128_192x64_w16_s4_f16_{variant}_sm_90a");
        Plan::gpu(problem, &DeviceProfile::h200(), &name.parse().unwrap())
    };
    assert!(plan("bias").is_ok());
    let refused = plan("mask").unwrap_err().to_string();
    assert!(refused.contains("with a boolean mask only"), "{refused}");
}

/// The first step must pay.
#[test]
fn short_problems_and_those_that_read_have_one_step() {
    for words in [
        "b2 q128 k128 h4 d64 f16 keymask=padding",
        "b4 q256 k256 h8 d64 f16 keymask=padding",
        "b16 q256 k256 h12 d64 f16 keymask=padding",
        "b16 q1 k8192 h32/8 d128 bf16 keymask=padding",
    ] {
        assert_eq!(steps(words), 1, "{words}");
    }
}

/// Masks that differ between queries or heads, lengths and pages besides, options that count on where keys are, keys cut at fixed places.
#[test]
fn other_problems_have_one_step() {
    assert_eq!(steps(ENCODER), 3);
    for words in [
        "lengths=ragged",
        "alibi=head",
        "bias",
        "pages=64",
        "splits=512",
        "scale=-1",
    ] {
        assert_eq!(steps(&format!("{ENCODER} {words}")), 1, "{words}");
    }
    let random =
        (0..64).map(|seed| format!("b32 q512 k512 h12 d64 f16 softcap=30 keymask seed={seed}"));
    for words in random {
        let is_same = case(&words).call().problem().masks_keys_alone();
        assert_eq!(steps(&words), if is_same { 3 } else { 1 }, "{words}");
    }
    assert_eq!(steps("b32 q512 k512 h12 d64 f16"), 1);
}

#[test]
fn a_kernel_that_is_asked_for_computes_all_sequences() {
    let problem = case(ENCODER).call().problem();
    let h200 = DeviceProfile::h200();
    for choice in ["wgmma", "wgmma_d64_64x128_w8_s2", "mma"] {
        let plan = Plan::gpu(problem, &h200, &choice.parse().unwrap()).unwrap();
        assert_eq!(plan.steps().len(), 1, "{choice}");
        assert_eq!(plan.steps()[0].share, Share::All);
    }
}

#[test]
fn a_problem_says_that_its_mask_is_of_padding() {
    let problem = case(ENCODER).call().problem();
    assert_eq!(problem.line(), ENCODER);
    assert!(problem.to_string().ends_with(" keymask=padding"));
    assert_eq!(case(&problem.line()).call().problem().line(), ENCODER);
    let one = case("b1 q512 k512 h12 d64 f16 keymask=padding");
    assert!(one.call().problem().masks_keys_alone());
}

/// Other GPUs have the same by `mma`.
#[test]
fn other_gpus_have_three_steps_too() {
    for (major, minor, shared) in [
        (8, 0, 166_912),
        (10, 0, 232_448),
        (12, 0, crate::CONSUMER_SHARED_BYTES),
    ] {
        let device = device(major, minor, shared);
        let plan = crate::choice_on(&device, ENCODER);
        assert_eq!(plan.steps().len(), 3, "{plan}");
        assert!(plan.steps()[0].image.target.runs_on(major, minor));
    }
}
