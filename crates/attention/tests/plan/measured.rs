//! Choices against what was timed on an H200 and on an H100.

use std::collections::BTreeMap;

use warptile::kernels::{Family, Features};
use warptile::plan::{Choice, DeviceProfile, Plan, Rates};
use warptile_check::repository_file;

use crate::{case, choice_on};

/// A file of the record of each GPU with built-in rates, and the GPU. All of them have the H200's limits.
fn records(file: &str) -> [(DeviceProfile, serde_json::Value); 2] {
    ["evidence", "evidence/h100"].map(|folder| {
        let path = repository_file(&format!("{folder}/{file}"));
        let record: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut device = DeviceProfile::h200();
        record["device"]
            .as_str()
            .unwrap()
            .clone_into(&mut device.name);
        assert_eq!(Rates::embedded(&device).device(), device.name);
        (device, record)
    })
}

/// One kernel on one problem.
struct Timed {
    family: String,
    kernel: String,
    us: f64,
}

/// The timed kernels, by problem.
fn measured(record: &serde_json::Value) -> BTreeMap<String, Vec<Timed>> {
    let mut problems: BTreeMap<String, Vec<Timed>> = BTreeMap::new();
    for row in record["rows"].as_array().unwrap() {
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
            problems.entry(problem).or_default().push(Timed {
                family: text("family"),
                kernel: text("kernel"),
                us: row["median_us"].as_f64().unwrap(),
            });
        }
    }
    problems
}

/// On each GPU and at least this many problems, what was timed of the choice is within a tenth of the fastest: more
/// than that is a mistake and not noise.
fn assert_choices_near_fastest(
    file: &str,
    at_least: usize,
    is_of_choice: impl Fn(&Timed, &Plan) -> bool,
) {
    for (device, record) in records(file) {
        let problems = measured(&record);
        assert!(problems.len() >= at_least, "{} problems", problems.len());
        for (problem, times) in problems {
            let plan = choice_on(&device, &problem);
            let fastest = times.iter().map(|row| row.us).fold(f64::INFINITY, f64::min);
            let chosen = times.iter().find(|row| is_of_choice(row, &plan));
            let Timed { kernel, us, .. } = chosen.expect("the choice was timed");
            assert!(
                *us <= 1.1 * fastest,
                "{}: {problem}: {kernel} takes {us} us, the fastest {fastest}",
                device.name
            );
        }
    }
}

/// Compares all kernels, on the problems on which all were timed.
#[test]
fn the_choice_is_within_a_tenth_of_the_fastest_kernel_measured() {
    assert_choices_near_fastest("kernels.json", 3, |row, plan| {
        row.kernel == plan.kernel_name()
    });
}

/// Compares all families, on every problem of benches/peers/shapes.txt.
#[test]
fn the_choice_is_of_a_family_within_a_tenth_of_the_fastest_measured() {
    assert_choices_near_fastest("families.json", 41, |row, plan| {
        row.family == plan.image().unwrap().family.to_string()
    });
}

/// Compares all kernels, on every problem that `warptile tune` was asked about, decoding included: its first times
/// list those within a tenth of the fastest, and its trials, which are in turn, keep or choose one.
#[test]
fn the_choice_is_among_those_that_tuning_found_near_the_fastest() {
    for (device, record) in records("tune.json") {
        let problems = record["problems"].as_array().unwrap();
        assert!(problems.len() > 100, "{} problems", problems.len());
        for row in problems {
            let problem = row["problem"].as_str().unwrap();
            let plan = choice_on(&device, problem);
            let image = plan.image().unwrap();
            // Images that are newer than the records.
            if image.family == Family::Wgmma && image.features.contains(Features::ALIBI) {
                continue;
            }
            // By a trial on an H200, with other machine code than this record's.
            if plan.basis().unwrap().tuned && device.name != DeviceProfile::h200().name {
                continue;
            }
            let mut good = row["near"]
                .as_array()
                .unwrap()
                .iter()
                .chain([&row["chosen"]]);
            assert!(
                good.any(|one| one["kernel"] == plan.kernel_name()),
                "{}: {problem}: {}",
                device.name,
                plan.kernel_name()
            );
        }
    }
}

/// The lines `choice` of the built-in rates: each is found by its problem, and nowhere else.
#[test]
fn what_trials_chose_is_chosen() {
    let h200 = DeviceProfile::h200();
    let mut fewer = h200.clone();
    fewer.multiprocessors -= 1;
    let rates = Rates::embedded(&h200);
    let chosen = [
        (
            "b8 q2048 k2048 h32 d64 bf16 mask=causal",
            "wgmma_d64_256x64_w20_s6",
            "",
        ),
        (
            "b1 q16384 k16384 h16 d128 bf16 mask=causal",
            "wgmma_d128_192x64_w16_s4",
            "at-once=all",
        ),
        (
            "b1 q5120 k5120 h16 d96 bf16 mask=window,512,0",
            "wgmma_d128_192x64_w16_s4",
            "at-once=8",
        ),
        ("b3 q104 k128 h12 d64 f16", "wgmma_d64_64x64_w8_s2", ""),
        (
            "b1 q2048 k2048 h32/8 d128 bf16 mask=causal",
            "wgmma_d128_192x64_w16_s4",
            "",
        ),
        ("b32 q128 k128 h12 d64 f16", "wgmma_d64_64x64_w8_s2", ""),
        ("b32 q128 k128 h12 d64 bf16", "wgmma_d64_64x64_w8_s2", ""),
        ("b2 q4096 k77 h10 d64 f16", "wgmma_d64_64x80_w8_s2", ""),
        ("b2 q4096 k77 h10 d64 bf16", "wgmma_d64_64x80_w8_s2", ""),
        (
            "b1 q144 k9216 h32/8 d128 bf16 mask=causal",
            "wgmma_d128_192x64_w16_s4",
            "",
        ),
    ];
    assert_eq!(rates.chosen_problems(), chosen.len());
    for (problem, kernel, settings) in chosen {
        let problem = case(problem).call().problem();
        let plan = |device| Plan::gpu(problem, device, &Choice::Best).unwrap();
        let step = plan(&h200).steps()[0].clone();
        assert_eq!(step.image.kernel, kernel, "{problem:?}");
        assert_eq!(step.settings.to_string(), settings, "{problem:?}");
        assert!(plan(&h200).basis().unwrap().tuned);
        assert!(!plan(&fewer).basis().unwrap().tuned);
    }
}

/// For `decode`, tiles of many rows are for many rows. Where they have few, those of 16 rows were measured to be
/// faster.
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

/// Where all tiles begin at once under a causal mask, small ones spread the long ones over more multiprocessors: 29% faster on an H200 than
/// tiles of 128 rows, which have as many CTAs as there are places for (evidence/tune.json, fd119d4).
#[test]
fn tiles_that_all_begin_at_once_are_small() {
    let problem = "b2 q960 k960 h16 d64 f16 mask=causal alibi=head";
    let plan = Plan::gpu(
        case(problem).call().problem(),
        &DeviceProfile::h200(),
        &Choice::Family(Family::Mma),
    );
    let plan = plan.unwrap();
    let chosen = plan.image().unwrap();
    assert_eq!(chosen.tiling.block_m, 64, "{}", chosen.name);
}
