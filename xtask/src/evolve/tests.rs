//! A search from its beginning to a promotion, on a host that is a formula.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{Check, Results};
use super::*;

const INSTANCES: &str = r#"
[[family]]
name = "wmma"
source = "entry/wmma.cu"
elements = ["f16", "bf16"]
targets = ["sm_90"]
tensor_instruction = "HMMA"
tilings = [
    { head_dim = 64, block_m = 64, block_n = 64, warps = 4, stages = 2 },
    { head_dim = 64, block_m = 32, block_n = 64, warps = 4, stages = 2 },
    { head_dim = 128, block_m = 64, block_n = 64, warps = 4, stages = 1, flags = ["-DX", "-DY"] },
    { head_dim = 128, block_m = 32, block_n = 64, warps = 4, stages = 1, variants = ["serving"] },
]

[family.knobs]
block_m = [16, 32, 64, 128]
block_n = [32, 64, 128]
warps = [2, 4, 8]
stages = [1, 2, 3]
switches = ["-DX"]
rules = ["block_m % 16 == 0"]
"#;

const RATES: &str = "# Rates.\ndevice a formula\nkernel wmma_d64_64x64_w4_s2 230.0 2.5\nkernel wmma_d64_32x64_w4_s2 179.0 2.5\n";

fn plan() -> Plan {
    let text = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
    Plan {
        family: "wmma".to_owned(),
        target: "sm_90".parse().unwrap(),
        variant: None,
        problems: text(["b4 q4096 k4096 h8 d64 f16", "b1 q512 k512 h2 d64 f16"]),
        held_out: text([
            "b2 q2048 k2048 h8 d64 f16",
            "b1 q1000 k1000 h8 d64 f16 mask=causal",
        ]),
        multiprocessors: 132,
        seed: 1,
    }
}

/// The manifest entry that the compiler would give for an instance.
fn entry(instance: &Instance) -> crate::manifest::ManifestEntry {
    crate::manifest::ManifestEntry::with(serde_json::json!({
        "name": instance.image(), "kernel": instance.kernel(), "entry": instance.entry(), "family": "wmma", "registers": 100,
        "static_shared_bytes": 16, "dynamic_shared_bytes": 1024, "tensor_instructions": 8, "param_bytes": 432, "toolchain": "NVRTC",
        "source_hash": "s", "sha256": files::sha256(instance.image().as_bytes()), "pack": format!("{}.cubin", instance.image()), "len": 4,
    }))
}

fn repository() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| files::write(&root.path().join(path), text.as_bytes());
    write("kernels/instances.toml", INSTANCES).unwrap();
    write("kernels/entry/wmma.cu", "#ifdef WARPTILE_VARIANT_SERVING\n").unwrap();
    write("crates/attention/rates/a-formula.txt", RATES).unwrap();
    write("program", "ELF").unwrap();
    let listed = instances::load(&root.path().join("kernels/instances.toml")).unwrap();
    let manifest = Manifest {
        images: listed.iter().map(entry).collect(),
    };
    files::write_json(&root.path().join("crates/kernels/manifest.json"), &manifest).unwrap();
    root
}

/// In place of the compiler: every second candidate spills.
fn compiled(search: &mut Search) {
    let proposed: Vec<Candidate> = search.of_state(State::Proposed).cloned().collect();
    for (index, mut one) in proposed.into_iter().enumerate() {
        if index % 2 == 1 {
            one.verdict = Verdict::of(State::Refused, "8 bytes of spill stores");
        } else {
            let entry = entry(&search.instance(&one.genes).unwrap());
            let folder = search.images(&one.kernel);
            files::write(&folder.join(&entry.pack), b"ELF.").unwrap();
            one.report = Some(Report::from(&entry));
            one.verdict = Verdict::of(State::Compiled, "");
            let manifest = Manifest {
                images: vec![entry],
            };
            files::write_json(&folder.join("manifest.json"), &manifest).unwrap();
        }
        search.candidates.insert(one.kernel.clone(), one);
    }
    search.save().unwrap();
}

/// The results of a host whose times are exact: `gain` for the candidate that is `best`, and 3% less than what is in use for
/// others.
fn measured(task: &Task, best: &str, gain: f64) -> Results {
    let kernels: Vec<&str> = { task.candidates.iter() }
        .map(|asked| asked.kernel.as_str())
        .chain([format::CONTROL])
        .collect();
    let mut runs = Vec::new();
    for pass in [1, 2] {
        for &kernel in &kernels {
            let new = match kernel {
                format::CONTROL => 102.0,
                kernel if kernel == best => 100.0 / gain,
                _ => 103.0,
            };
            for (problems, held_out) in [(&task.problems, false), (&task.held_out, true)] {
                for problem in problems {
                    runs.push(format::Run {
                        kernel: kernel.to_owned(),
                        pass,
                        process: u64::from(pass),
                        problem: problem.clone(),
                        held_out,
                        baseline: "wmma_d64_64x64_w4_s2".to_owned(),
                        blocks: vec![[100.0, new, new, 100.0]; task.blocks],
                    });
                }
            }
        }
    }
    let right = Check {
        problems: task.checks,
        wrong: None,
    };
    Results {
        checks: { task.candidates.iter() }
            .map(|asked| (asked.kernel.clone(), right.clone()))
            .collect(),
        task: task.clone(),
        device: "a formula".to_owned(),
        driver: "none".to_owned(),
        program: "none".to_owned(),
        date: "now".to_owned(),
        cut_short: false,
        runs,
        counters: BTreeMap::new(),
    }
}

fn error<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_search_goes_from_what_is_shipped_to_a_promotion() {
    let root = repository();
    let root = root.path();
    let start = || Search::start(root, plan());
    let seeds: Vec<String> = start().unwrap().candidates.into_keys().collect();
    // Only seeds with the head sizes of the problems.
    assert_eq!(seeds, ["wmma_d64_32x64_w4_s2", "wmma_d64_64x64_w4_s2"]);
    assert!(error(start()).contains("is a search"));

    // Each step opens what the one before it left, as after an interruption.
    let open = || Search::open(root, "wmma").unwrap();
    assert!(error(open().pack(&root.join("pack"), None)).contains("nothing is compiled"));
    open().propose(6).unwrap();
    assert!(error(open().propose(6)).contains("generation 1 is proposed"));
    compiled(&mut open());
    let states = |state| open().of_state(state).count();
    assert_eq!((states(State::Compiled), states(State::Refused)), (3, 3));
    // Only the small grid gives a hint: few rows a CTA.
    let hinted = open().candidates;
    let hint = hinted
        .values()
        .find(|one| one.lineage.how == How::Hint)
        .unwrap();
    assert!(
        hint.lineage.why.contains("fewer rows"),
        "{}",
        hint.lineage.why
    );

    let pack = root.join("pack");
    let program = root.join("program");
    // A program that several packs share does not go along.
    open().pack(&pack, None).unwrap();
    assert!(!pack.join("warptile").exists());
    open().pack(&pack, Some(&program)).unwrap();
    for file in ["run.sh", "warptile", "manifest.json", "trial.json"] {
        assert!(pack.join(file).is_file(), "{file}");
    }
    let task: Task = files::read_json(&pack.join(TASK)).unwrap();
    assert_eq!(
        (task.candidates.len(), task.tried, task.blocks),
        (3, 3, LEAST_BLOCKS)
    );
    // One whose kernel would be shipped under a name of its own.
    let best = { task.candidates.iter() }
        .map(|asked| asked.kernel.clone())
        .find(|kernel| !kernel.contains("_x"))
        .unwrap();
    let results = root.join("results.json");
    let take = |results_of: &Results| {
        files::write_json(&results, results_of).unwrap();
        open().take(&results)
    };

    // Results of another image, of other problems or of a task for fewer candidates are not taken.
    let good = measured(&task, &best, 1.05);
    let mut other = good.clone();
    other.task.candidates[0].sha256 = "0".to_owned();
    assert!(error(take(&other)).contains("is not the archived image"));
    let mut other = good.clone();
    other.task.held_out.pop();
    assert!(error(take(&other)).contains("another search"));
    let mut other = good.clone();
    other.task.tried = 1;
    assert!(error(take(&other)).contains("pack again"));
    assert_eq!(states(State::Won), 0);

    let said = take(&good).unwrap();
    assert!(said.contains(&format!("{best}: won")), "{said}");
    assert_eq!((states(State::Won), states(State::Lost)), (1, 2));
    // Taken twice they change nothing; taken half, the other half follows.
    assert_eq!(take(&good).unwrap(), "");
    let mut half = open();
    half.candidates.get_mut(&best).unwrap().verdict = Verdict::of(State::Compiled, "");
    half.save().unwrap();
    assert_eq!(take(&good).unwrap(), format!("{best}: won\n"));
    // Counters that the host took, also of what was shipped, become hints.
    let mut counted = good.clone();
    let busy = BTreeMap::from([(format::SHARED_MEMORY.to_owned(), 93.0)]);
    counted.counters = [
        (best.clone(), busy.clone()),
        (seeds[1].clone(), busy.clone()),
    ]
    .into();
    let said = take(&counted).unwrap();
    assert_eq!(said.matches(": 1 counters").count(), 2, "{said}");
    assert_eq!(take(&counted).unwrap(), "");
    for kernel in [&best, &seeds[1]] {
        assert_eq!(open().candidates[kernel].counters, busy);
    }

    // The winner is a parent now, and the next trials are corrected for all that were tried.
    let said = open().propose(4).unwrap();
    assert!(said.contains("shared memory at 93% of its peak"), "{said}");
    let bred = open().candidates;
    assert!(
        bred.values()
            .any(|one| one.generation == 2 && one.lineage.parents.contains(&best))
    );
    compiled(&mut open());
    open().pack(&pack, None).unwrap();
    let task: Task = files::read_json(&pack.join(TASK)).unwrap();
    assert_eq!(task.tried, 3 + task.candidates.len());

    let table = open().show().unwrap();
    assert!(table.contains("1.050"), "{table}");
    let picture = files::read_text(&root.join("evidence/evolution/wmma.svg")).unwrap();
    assert_eq!(picture.matches("<title>").count(), bred.len());

    let lost = bred
        .values()
        .find(|one| one.verdict.state == State::Lost)
        .unwrap();
    for kernel in [seeds[0].as_str(), lost.kernel.as_str()] {
        assert!(
            error(open().promote(kernel)).contains("only what won"),
            "{kernel}"
        );
    }
    // A candidate that is slower than the stored baseline on one problem is not promoted, even if it gains over all problems.
    let baseline = root.join("evidence/baseline-a-formula.json");
    let store = |problem: &str| {
        let ratios = serde_json::json!({ problem: { "fa2": 2.0, "fa3": 1.25 } });
        files::write_json(
            &baseline,
            &serde_json::json!({ "device": "a formula", "driver": "", "date": "", "commit": null, "ratios": ratios }),
        )
        .unwrap();
    };
    let problems = plan().problems;
    let mut won = open();
    let verdict = &mut won.candidates.get_mut(&best).unwrap().verdict;
    let measured = verdict.measured.as_mut().unwrap();
    measured.problems.get_mut(&problems[1]).unwrap().ratio = 0.96;
    won.save().unwrap();
    store(&problems[1]);
    let why = error(open().promote(&best));
    assert!(
        why.contains("from 1.250") && why.ends_with("to 1.200"),
        "{why}"
    );
    assert_eq!(states(State::Promoted), 0);
    store(&problems[0]);
    let said = open().promote(&best).unwrap();
    assert!(
        said.contains("1.250 of the best peer's speed, 1.31"),
        "{said}"
    );
    assert!(
        said.contains(&format!("{}: not in the stored baseline", problems[1])),
        "{said}"
    );
    assert_eq!(states(State::Promoted), 1);
    let genes = &bred[&best].genes;
    let listed = instances::load(&root.join("kernels/instances.toml")).unwrap();
    let row = listed.iter().find(|one| {
        let tiling = &one.tiling;
        [tiling.block_m, tiling.block_n, tiling.warps, tiling.stages] == genes.numbers
    });
    assert_eq!(row.map(|one| one.element), Some(Element::F16));
    assert!(error(open().promote(&best)).contains("only what won"));
    // A promotion that was cut short before its last step adds nothing twice.
    let files = [
        "kernels/instances.toml",
        "crates/attention/rates/a-formula.txt",
    ];
    let texts = || files.map(|file| files::read_text(&root.join(file)).unwrap());
    let promoted = texts();
    let mut cut = open();
    cut.candidates.get_mut(&best).unwrap().verdict.state = State::Won;
    cut.save().unwrap();
    open().promote(&best).unwrap();
    assert_eq!(texts(), promoted);
    assert_eq!(states(State::Promoted), 1);
    let rates = files::read_text(&root.join("crates/attention/rates/a-formula.txt")).unwrap();
    // 4 * 4 * 8 * 4096 * 4096 * 64 FLOP in 100 / 1.05 microseconds, with the tile end of what it beat.
    let line = rates.lines().last().unwrap();
    assert!(
        line.starts_with("kernel wmma_d64_") && line.ends_with("1443.1 2.5"),
        "{line}"
    );
}

#[test]
fn a_search_of_a_variant_makes_nothing_else() {
    let root = repository();
    let root = root.path();
    let paged = |problem: &str| format!("{problem} d128 f16 pages=16");
    let plan = Plan {
        variant: Some("serving".to_owned()),
        problems: vec![paged("b4 q1 k4096 h8")],
        held_out: vec![paged("b1 q1 k8192 h8")],
        ..plan()
    };
    files::write(
        &root.join("crates/attention/rates/a-formula.txt"),
        b"device a formula\nkernel wmma_d128_32x64_w4_s1 230.0 2.5\n",
    )
    .unwrap();
    let unknown = Plan {
        variant: Some("plain".to_owned()),
        ..plan.clone()
    };
    let refused = Search::start(root, unknown).unwrap_err().to_string();
    assert!(refused.contains("this variant"), "{refused}");
    let mut search = Search::start(root, plan.clone()).unwrap();
    let seeds: Vec<&String> = search.candidates.keys().collect();
    assert_eq!(seeds, ["wmma_d128_32x64_w4_s1"]);
    let report = search.candidates[seeds[0]].report.clone().unwrap();
    assert_eq!(report.image, "wmma_d128_32x64_w4_s1_f16_serving_sm_90");
    search.propose(3).unwrap();
    let again = Search::open(root, "wmma").unwrap();
    assert_eq!(again.plan, plan);
    for candidate in again.candidates.values() {
        let instance = again.instance(&candidate.genes).unwrap();
        assert!(
            instance.image().contains("_serving_"),
            "{}",
            instance.image()
        );
        let flags = instance.flags();
        assert!(
            flags
                .iter()
                .any(|flag| flag == "-DWARPTILE_VARIANT_SERVING"),
            "{flags:?}"
        );
    }
}

#[test]
fn seeds_have_the_flags_of_their_rows_that_may_come_and_go() {
    let root = repository();
    let root = root.path();
    let of = |problem: &str| vec![format!("{problem} d128 f16")];
    let plan = Plan {
        problems: of("b1 q512 k512 h2"),
        held_out: of("b1 q1000 k1000 h8"),
        ..plan()
    };
    files::write(
        &root.join("crates/attention/rates/a-formula.txt"),
        b"device a formula\nkernel wmma_d128_64x64_w4_s1 230.0 2.5\n",
    )
    .unwrap();
    let mut search = Search::start(root, plan).unwrap();
    let seeds: Vec<String> = search.candidates.keys().cloned().collect();
    let switches = |kernel: &String| search.candidates[kernel].genes.switches.clone();
    assert_eq!(seeds, ["wmma_d128_32x64_w4_s1", "wmma_d128_64x64_w4_s1"]);
    assert_eq!(switches(&seeds[0]), [""; 0]);
    assert_eq!(switches(&seeds[1]), ["-DX"]);
    // Nothing takes the name of what is shipped, not even the same without the flags of its row.
    search.propose(40).unwrap();
    for seed in &seeds {
        assert_eq!(search.candidates[seed].verdict.state, State::Shipped);
    }
}

#[test]
fn a_search_needs_problems_that_fit_each_other() {
    let root = repository();
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        error(Search::start(root.path(), plan))
    };
    assert!(with(&|plan| plan.held_out = plan.problems.clone()).contains("held out and counted"));
    assert!(with(&|plan| plan.problems[0] = "q1 k1 d64 bf16".to_owned()).contains("of their own"));
    assert!(with(&|plan| plan.held_out[0] = "q1 k1 d128 f16".to_owned()).contains("of their own"));
    assert!(with(&|plan| plan.family = "scalar".to_owned()).contains("scalar"));
    assert!(with(&|plan| plan.target = "sm_80".parse().unwrap()).contains("ships nothing"));
    assert!(!root.path().join("evidence").exists());
    assert!(Search::open(root.path(), "wmma").is_err());
}

#[test]
fn knobs_of_the_repository_allow_what_is_shipped() {
    let path = files::repository_root().join("kernels/instances.toml");
    let listed = instances::load(&path).unwrap();
    let names: BTreeSet<_> = listed.iter().map(|instance| &instance.family).collect();
    let families = names.into_iter().filter_map(|family| {
        let declaration = instances::declaration(&path, family).unwrap();
        Some((family, declaration.knobs?))
    });
    let families: BTreeMap<_, _> = families.collect();
    assert!(!families.is_empty());
    for instance in &listed {
        let Some(knobs) = families.get(&instance.family) else {
            continue;
        };
        let tiling = &instance.tiling;
        // The rules count 16-bit keys, and as many values.
        if instance.kernel().ends_with("_e4m3") || tiling.value_dim() != tiling.head_dim {
            continue;
        }
        let genes = Genes {
            head_dim: tiling.head_dim,
            numbers: [tiling.block_m, tiling.block_n, tiling.warps, tiling.stages],
            switches: Vec::new(),
        };
        for rule in &knobs.rules {
            let holds = rule.holds(&|name| genes.value(name));
            assert!(holds, "{}: {}", instance.kernel(), rule.text());
        }
        for (values, value) in knobs.values().into_iter().zip(genes.numbers) {
            let is_listed = values.is_sorted() && values.contains(&value);
            assert!(is_listed, "{}", instance.kernel());
        }
    }
}
