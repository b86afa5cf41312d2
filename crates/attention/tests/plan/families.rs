//! Which family computes what, on GPUs of every kind.

use std::iter;

use warptile::kernels::Family;
use warptile::plan::{Choice, DeviceProfile, Plan};
use warptile_check::{Case, repository_file};

use crate::{CONSUMER_SHARED_BYTES, case, device};

/// The problems of a list in benches/peers/.
pub(crate) fn problems(file: &str) -> Vec<Case> {
    let path = repository_file(&format!("benches/peers/{file}"));
    let text = std::fs::read_to_string(path).unwrap();
    let lines = { text.lines() }.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let cases: Vec<Case> = lines.map(case).collect();
    assert!(cases.len() > 30, "{file}");
    cases
}

fn plan(case: &Case, device: &DeviceProfile) -> Plan {
    Plan::gpu(case.call().problem(), device, &Choice::Best).unwrap()
}

fn family(plan: &Plan) -> Family {
    plan.image().unwrap().family
}

/// GPUs without `wgmma`.
fn others() -> [DeviceProfile; 5] {
    let mut a100 = device(8, 0, 166_912);
    a100.multiprocessors = 108;
    [
        a100,
        device(8, 6, CONSUMER_SHARED_BYTES),
        device(8, 9, CONSUMER_SHARED_BYTES),
        device(10, 0, 232_448),
        device(12, 0, CONSUMER_SHARED_BYTES),
    ]
}

/// `docs/speed.md`, "Few queries on many keys": a tile of many rows reads keys slower than CTAs that share them, but
/// on Hopper where the copy engine brings each key once for the rows of a whole group (docs/notebook/wgmma.md, "Few
/// queries"), and where there are enough whole tiles.
#[test]
fn few_queries_on_many_keys_are_for_decode() {
    let exceptions = [
        ("b16 q1 k8192 h16/8 d256 bf16", Family::Wgmma),
        ("b64 q1 k4096 h32/8 d128 bf16", Family::Mma),
        ("b32 q4 k8192 h32/8 d128 bf16 mask=causal", Family::Mma),
    ];
    let exceptions = exceptions.map(|(line, family)| (case(line).call().problem(), family));
    for case in problems("decode.txt") {
        let few = case.call().query_len() <= 8;
        let hopper = plan(&case, &DeviceProfile::h200());
        let exception = { exceptions.iter() }.find(|one| one.0 == case.call().problem());
        let usual = match few {
            true => Family::Decode,
            false => Family::Wgmma,
        };
        let expected = exception.map_or(usual, |one| one.1);
        assert_eq!(family(&hopper), expected, "{case}: {hopper}");
        for device in others() {
            let plan = plan(&case, &device);
            let expected = if few { Family::Decode } else { Family::Mma };
            assert_eq!(family(&plan), expected, "{case} on {}: {plan}", device.name);
        }
    }
}

/// Each of more sequences of one length than run at once (docs/notebook/decode.md, "Whole tiles, drawn").
#[test]
fn many_whole_tiles_of_one_length_are_drawn() {
    let plan = |line: &str| plan(&case(line), &DeviceProfile::h200());
    for (line, kernel) in [
        ("b64 q1 k4096 h32/8 d128 bf16", "mma_d128_64x64_w4_s2"),
        (
            "b64 q4 k4096 h32/8 d128 f16 mask=causal",
            "mma_d128_64x64_w4_s2",
        ),
        ("b64 q1 k2048 h16/8 d256 bf16", "mma_d256_64x64_w4_s1"),
        ("b64 q1 k4096 h16/8 d192 bf16", "mma_d192_64x64_w4_s1"),
        ("b128 q1 k4096 h32/8 d96 bf16", "mma_d128_64x64_w4_s2"),
        ("b16 q1 k4096 h32 d128 bf16", "mma_d128_64x64_w4_s2"),
        ("b256 q1 k2048 h32/8 d128 bf16", "wgmma_d128_192x80_w16_s3"),
    ] {
        let plan = plan(line);
        assert_eq!(plan.kernel_name(), kernel, "{plan}");
    }
    for line in [
        // A last turn of few tiles, no second one, short tiles.
        "b40 q1 k4096 h32/8 d128 bf16",
        "b16 q1 k8192 h32/8 d128 bf16",
        "b64 q1 k1024 h32/8 d128 bf16",
        // Lengths that the host does not know, and bits that must not depend on the batch.
        "b64 q1 k4096 h32/8 d128 bf16 lengths=ragged",
        "b64 q1 k4096 h32/8 d128 bf16 pages=64",
        "b64 q1 k4096 h32/8 d128 bf16 splits=512",
        // Where it is slower.
        "b64 q1 k8192 h64/8 d64 bf16",
        "b64 q1 k4096 h32/8 d128 bf16 softcap=30",
    ] {
        assert_eq!(family(&plan(line)), Family::Decode, "{}", plan(line));
    }
}

/// More rows of a group than `decode` takes at the memory's speed.
#[test]
fn up_to_64_rows_of_a_group_on_long_caches_are_one_tile_of_wgmma() {
    let in_groups = |line: &str| {
        let plan = plan(&case(line), &DeviceProfile::h200());
        plan.image().unwrap().name.contains("serving_groups")
    };
    for line in [
        "b16 q16 k8192 h32/8 d128 bf16 mask=causal",
        "b8 q16 k4096 h32/8 d128 f16 mask=causal",
        "b1 q16 k32768 h32/8 d128 bf16 mask=causal",
        "b16 q16 k1024 h32/8 d128 bf16 mask=causal",
        "b8 q8 k16384 h64/8 d64 bf16 mask=causal",
        "b64 q8 k1024 h32/4 d64 bf16 mask=causal",
        "b16 q16 k8192 h32/8 d128 bf16 mask=causal pages=64",
    ] {
        assert!(in_groups(line), "{line}");
    }
    // CTAs with short sequences may have nothing to do for a while, and bits must not depend on the batch.
    for line in [
        "b64 q8 k1024 h32/8 d128 bf16 mask=causal lengths=ragged",
        "b16 q8 k8192 h32/8 d128 bf16 mask=causal pages=64",
        "b16 q16 k8192 h32/8 d128 bf16 mask=causal splits=512",
    ] {
        assert!(!in_groups(line), "{line}");
    }
}

/// Kernels with up to 1.5 times the time were chosen where an estimate took all multiprocessors for busy that clusters leave idle, or counted
/// no time for the sum of many parts (docs/notebook/wgmma.md, "More warps add up").
#[test]
fn few_queries_on_few_keys_take_the_kernels_that_were_fastest() {
    for (line, kernel) in [
        (
            "b1 q16 k4096 h32/8 d128 bf16 mask=causal",
            "wgmma_d128_128x128_w12_s2",
        ),
        ("b8 q1 k4096 h48/1 d128 bf16", "wgmma_d128_128x128_w12_s2"),
        (
            "b1 q4 k16384 h48/1 d128 bf16 mask=causal",
            "wgmma_d128_128x64_w12_s3",
        ),
        (
            "b1 q7 k4096 h71/1 d64 bf16 mask=causal",
            "wgmma_d64_64x128_w8_s2",
        ),
        ("b1 q1 k4096 h71/1 d64 bf16", "decode_d64_16x256_w8_s2"),
        (
            "b8 q32 k65536 h32/8 d128 bf16 mask=causal",
            "wgmma_d128_128x64_w12_s3",
        ),
        (
            "b8 q32 k16384 h32/8 d128 bf16 mask=causal",
            "wgmma_d128_128x64_w12_s3",
        ),
        (
            "b8 q4 k65536 h48/1 d128 bf16 mask=causal",
            "wgmma_d128_192x64_w16_s4",
        ),
        (
            "b8 q4 k16384 h71/1 d64 bf16 mask=causal",
            "wgmma_d64_192x96_w16_s3",
        ),
        (
            "b8 q7 k65536 h71/1 d64 bf16 mask=causal",
            "wgmma_d64_128x128_w12_s2",
        ),
    ] {
        let plan = plan(&case(line), &DeviceProfile::h200());
        assert_eq!(plan.kernel_name(), kernel, "{line}: {plan}");
    }
}

/// Groups of 16, 48 and 71 heads: the rows of all their heads are one tile, and each key is read once. `decode` took
/// 1.2 to 3.7 times as long on an H100 (docs/notebook/wgmma.md, 2026-11-28).
#[test]
fn groups_of_any_size_on_long_caches_are_tiles_of_wgmma() {
    let h100 = "NVIDIA H100 80GB HBM3";
    for line in [
        "b4 q1 k16384 h48/1 d128 bf16",
        "b32 q1 k8192 h48/1 d128 bf16",
        "b8 q1 k8192 h71/1 d64 bf16",
        "b8 q7 k16384 h71/1 d64 bf16 mask=causal",
        "b4 q1 k16384 h16/1 d256 bf16",
        "b4 q8 k16384 h16/1 d256 bf16 mask=causal",
    ] {
        let mut device = DeviceProfile::h200();
        h100.clone_into(&mut device.name);
        let plan = plan(&case(line), &device);
        assert!(
            plan.image().unwrap().name.contains("serving_groups"),
            "{plan}"
        );
    }
    // Where it is faster.
    let plan = plan(&case("b8 q1 k8192 h32/8 d128 bf16"), &DeviceProfile::h200());
    assert_eq!(family(&plan), Family::Decode, "{plan}");
}

/// Short sequences are not read by what reads long ones fastest.
#[test]
fn whole_tiles_of_few_keys_are_chosen_by_what_they_compute() {
    for line in ["b64 q64 k64 h16 d128 bf16", "b32 q49 k49 h32 d128 f16"] {
        let plan = plan(&case(line), &DeviceProfile::h200());
        assert!(plan.image().unwrap().tiling.block_m <= 64, "{plan}");
    }
}

#[test]
fn many_queries_are_for_wgmma_on_hopper_and_for_mma_elsewhere() {
    for case in problems("shapes.txt") {
        let hopper = plan(&case, &DeviceProfile::h200());
        assert_eq!(family(&hopper), Family::Wgmma, "{case}: {hopper}");
        for device in others() {
            let plan = plan(&case, &device);
            assert_eq!(
                family(&plan),
                Family::Mma,
                "{case} on {}: {plan}",
                device.name
            );
        }
    }
}

#[test]
fn what_wgmma_lacks_an_option_for_goes_to_mma() {
    for (words, expected) in [
        ("alibi=head", Family::Wgmma),
        ("bias", Family::Wgmma),
        ("keymask softcap=30", Family::Wgmma),
        ("scale=-0.5", Family::Mma),
        ("alibi=head pages=16", Family::Mma),
        ("bias pages=16", Family::Mma),
        ("keymask scale=-0.5", Family::Mma),
        ("bias=f32", Family::Mma),
        ("unaligned", Family::Mma),
        ("unaligned bias", Family::Mma),
    ] {
        for head_dim in [64, 96, 128, 160, 192, 256] {
            let case = case(&format!(
                "b4 h8 q2048 k2048 d{head_dim} bf16 {words} seed=1"
            ));
            let plan = plan(&case, &DeviceProfile::h200());
            assert_eq!(family(&plan), expected, "{case}: {plan}");
        }
    }
}

#[test]
fn no_combination_of_options_leaves_the_tensor_cores() {
    let options = [
        "softcap=30",
        "alibi=head",
        "bias",
        "keymask",
        "unaligned",
        "sinks",
        "scale=-0.5",
        "mask=window,100,0",
        "lengths=ragged",
        "pages=16",
    ];
    for device in iter::once(DeviceProfile::h200()).chain(others()) {
        for (q, head_dim, element) in [
            (1, 128, "f16"),
            (9, 256, "bf16"),
            (1, 128, "bf16"),
            (70, 128, "bf16"),
            (300, 64, "f16"),
            (2048, 96, "bf16"),
            (2048, 256, "f16"),
        ] {
            for chosen in 0..1 << options.len() {
                let words: Vec<_> = { options.iter().enumerate() }
                    .filter_map(|(i, words)| (chosen >> i & 1 == 1).then_some(*words))
                    .collect();
                let words = words.join(" ");
                let with_f32 = words.replace("bias", "bias=f32");
                let with_dropout = (q < 300).then(|| format!("{words} dropout=0.1"));
                let has_bias = with_f32 != words;
                let all = iter::once(words).chain(has_bias.then_some(with_f32));
                for words in all.chain(with_dropout) {
                    let case = case(&format!(
                        "b4 h8 q{q} k2048 d{head_dim} {element} {words} seed=1"
                    ));
                    let plan = plan(&case, &device);
                    assert_ne!(family(&plan), Family::Scalar, "{case}: {plan}");
                }
            }
        }
    }
}
