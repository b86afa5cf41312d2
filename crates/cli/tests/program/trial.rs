//! `warptile trial` on the stand-in, which computes nothing and takes a millisecond for each operation.

use crate::common::{expect_code, warptile};
use crate::folder::{IMAGE, KERNEL, entry, original, write};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use warptile_fake_cuda::FakeDriver;

const SEEN: &str = "b1 q64 k64 h2 d64 f16";
const UNSEEN: &str = "b1 q128 k128 h2 d64 f16";

fn pack(folder: &Path) {
    let bytes = original().bytes().unwrap();
    let entry = entry(&bytes);
    let task = json!({
        "family": "wmma", "blocks": 9, "control_launches": 51, "tried": 1, "checks": 2, "seed": 1,
        "problems": [SEEN], "held_out": [UNSEEN],
        "candidates": [{ "kernel": KERNEL, "image": IMAGE, "sha256": entry["sha256"] }],
    });
    write(folder, &bytes, &[entry]);
    fs::write(folder.join("trial.json"), task.to_string()).unwrap();
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn runs<'a>(results: &'a Value, kernel: &str, pass: u64) -> Vec<&'a Value> {
    let all = results["runs"].as_array().unwrap().iter();
    all.filter(|run| run["kernel"] == kernel && run["pass"] == pass)
        .collect()
}

/// A profiler: a script.
fn profiler(folder: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("ncu");
    let asked = folder.join("asked");
    fs::write(
        &path,
        format!("#!/bin/sh\necho \"$*\" >>{}\n{script}\n", asked.display()),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The CSV output of ncu, after that of the program.
const COUNTERS: &str = r#"echo 'warptile: "ID" is no table'
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
echo '"0","warptile_a","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","81.5"'"#;

#[test]
fn what_computes_wrong_is_never_timed_and_a_control_is() {
    let fake = FakeDriver::open();
    let folder = tempfile::tempdir().unwrap();
    pack(folder.path());
    let out = folder.path().join("results.json");
    // Where programs are looked for: there is no ncu at first.
    let tools = tempfile::tempdir().unwrap();
    let trial = |code| {
        let mut command = warptile();
        command.env("WARPTILE_LIBCUDA", fake.path());
        command.env("PATH", tools.path());
        command.arg("trial").arg(folder.path()).arg("--out");
        expect_code(code, command.arg(&out))
    };
    // The stand-in skips all the work.
    trial(0);
    let mut results = read(&out);
    let wrong = results["checks"][KERNEL]["wrong"].as_str().unwrap();
    assert!(
        wrong.contains("problems failed") && wrong.contains(IMAGE),
        "{wrong}"
    );
    for pass in [1, 2] {
        assert!(runs(&results, KERNEL, pass).is_empty());
        let [control] = runs(&results, "control", pass)[..] else {
            panic!("{results}")
        };
        assert_eq!(control["problem"], SEEN);
        let blocks = control["blocks"].as_array().unwrap();
        assert_eq!(blocks.len(), 9);
        for block in blocks {
            let time = |at: usize| block[at].as_f64().unwrap();
            let ratio = (time(0) + time(3)) / (time(1) + time(2));
            assert!((0.975..0.99).contains(&ratio), "{block}");
        }
    }
    assert_ne!(
        runs(&results, "control", 1)[0]["process"],
        runs(&results, "control", 2)[0]["process"]
    );
    assert_eq!(results["cut_short"], false);

    // Were it right, it would be timed: equal speeds are no gain, so that nothing is repeated or measured on what is held out. What
    // there is already is not measured again.
    let control = results["runs"].clone();
    results["checks"][KERNEL]["wrong"] = Value::Null;
    fs::write(&out, results.to_string()).unwrap();
    let (said, _) = trial(0);
    assert!(said.contains("no certain gain"), "{said}");
    let after = read(&out);
    let [timed] = runs(&after, KERNEL, 1)[..] else {
        panic!("{after}")
    };
    assert_eq!(
        (&timed["problem"], &timed["held_out"]),
        (&json!(SEEN), &json!(false))
    );
    assert!(timed["baseline"].as_str().unwrap().starts_with("wmma_d64_"));
    assert!(runs(&after, KERNEL, 2).is_empty());
    let before = control.as_array().unwrap();
    assert_eq!(&after["runs"].as_array().unwrap()[..before.len()], before);

    assert!(
        said.contains("no counters of wmma_d64_") && said.contains("there is no ncu"),
        "{said}"
    );
    assert_eq!(after["counters"], json!({}));

    // With ncu, the counters of the kernel in use and of what was timed.
    profiler(tools.path(), "exit 1");
    let (said, _) = trial(0);
    assert!(said.contains("no counters of wmma_d64_"), "{said}");
    profiler(tools.path(), COUNTERS);
    trial(0);
    let counted = read(&out);
    let counters = counted["counters"].as_object().unwrap();
    let in_use = timed["baseline"].as_str().unwrap();
    let mut kernels: Vec<_> = counters.keys().map(String::as_str).collect();
    kernels.sort_by_key(|&kernel| kernel != in_use);
    assert_eq!(kernels, [in_use, KERNEL]);
    assert_eq!(counters[KERNEL], json!({ "dram_percent": 81.5 }));
    let asked = fs::read_to_string(tools.path().join("asked")).unwrap();
    let asked: Vec<&str> = asked.lines().collect();
    assert!(
        asked
            .iter()
            .all(|line| line.starts_with("--clock-control none ")),
        "{asked:?}"
    );
    assert!(asked.iter().all(|line| line.contains(SEEN)), "{asked:?}");
    assert!(
        asked
            .last()
            .unwrap()
            .ends_with(&format!("--kernel {IMAGE}")),
        "{asked:?}"
    );
    // Nothing is counted twice.
    profiler(tools.path(), "exit 1");
    let (said, _) = trial(0);
    assert!(!said.contains("no counters"), "{said}");

    // Results of another task are not added to.
    let mut other = after;
    other["task"]["blocks"] = json!(8);
    fs::write(&out, other.to_string()).unwrap();
    let (_, stderr) = trial(2);
    assert!(stderr.contains("is of another task"), "{stderr}");
    fs::write(&out, "{").unwrap();
    trial(4);
}

/// The verification of a candidate that no GPU has the shared memory for ends with code 2, which says nothing of its results.
#[test]
fn a_verification_that_cannot_run_calls_no_candidate_wrong() {
    let fake = FakeDriver::open();
    let folder = tempfile::tempdir().unwrap();
    pack(folder.path());
    let bytes = original().bytes().unwrap();
    let mut entry = entry(&bytes);
    entry["static_shared_bytes"] = json!(1_000_000);
    write(folder.path(), &bytes, &[entry]);
    // The next one is verified all the same, and is wrong, as the stand-in computes nothing.
    let task = folder.path().join("trial.json");
    let mut changed = read(&task);
    let (kernel, image) = (original().kernel, original().name);
    let next = json!({ "kernel": kernel, "image": image, "sha256": original().sha256 });
    changed["candidates"].as_array_mut().unwrap().push(next);
    fs::write(&task, changed.to_string()).unwrap();
    let out = folder.path().join("results.json");
    let mut command = warptile();
    command.env("WARPTILE_LIBCUDA", fake.path());
    command.arg("trial").arg(folder.path()).arg("--out");
    let (_, stderr) = expect_code(3, command.arg(&out));
    assert!(
        stderr.contains("run the command again to go on"),
        "{stderr}"
    );
    let checks = &read(&out)["checks"];
    assert!(
        checks[KERNEL].is_null() && checks[kernel]["wrong"].is_string(),
        "{checks}"
    );
}

#[test]
fn a_trial_that_is_killed_at_any_moment_goes_on() {
    let fake = FakeDriver::open();
    let folder = tempfile::tempdir().unwrap();
    pack(folder.path());
    // Four problems of the control: each is written once it is measured.
    let problems: Vec<String> = (1..=4)
        .map(|heads| format!("b1 q64 k64 h{heads} d64 f16"))
        .collect();
    let task = folder.path().join("trial.json");
    let mut changed = read(&task);
    changed["problems"] = json!(problems);
    fs::write(&task, changed.to_string()).unwrap();
    let out = folder.path().join("results.json");
    let pass = || {
        let mut command = warptile();
        command.env("WARPTILE_LIBCUDA", fake.path());
        command
            .arg("trial")
            .arg(folder.path())
            .args(["--pass", "1", "--out"]);
        command.arg(&out);
        command
    };
    let mut before = Vec::new();
    let mut kills = 0;
    while before.len() < problems.len() {
        let mut child = pass().stdout(std::process::Stdio::null()).spawn().unwrap();
        // Until it has written something more, or is done.
        let (mut ended, mut now) = (false, before.clone());
        while !ended && now.len() == before.len() {
            ended = child.try_wait().unwrap().is_some();
            if out.exists() {
                // Whole at any moment.
                now = read(&out)["runs"].as_array().unwrap().clone();
            }
        }
        if !ended {
            child.kill().unwrap();
            kills += 1;
        }
        child.wait().unwrap();
        now = read(&out)["runs"].as_array().unwrap().clone();
        assert!(now.starts_with(&before), "what was measured is kept");
        before = now;
    }
    assert!(kills > 1, "{kills}");
    expect_code(0, &mut pass());
    assert_eq!(read(&out)["runs"].as_array().unwrap(), &before);
}

#[test]
fn a_trial_needs_a_gpu_and_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("results.json");
    let trial = |code| {
        let mut command = warptile();
        command
            .args(["trial", "--device", "cpu"])
            .arg(folder.path());
        expect_code(code, command.arg("--out").arg(&out))
    };
    let (_, stderr) = trial(4);
    assert!(stderr.contains("trial.json"), "{stderr}");
    pack(folder.path());
    let (_, stderr) = trial(3);
    assert!(stderr.contains("timed on a GPU"), "{stderr}");
    assert!(!out.exists());
}
