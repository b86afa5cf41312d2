//! `run.sh`, on a bundle whose executables are shell scripts that speak libtest's language.
#![cfg(unix)]

use std::path::Path;
use std::process::{Command, Output};

use xtask::files;

const PASSING: &str = "echo \"test good ... ok\"; echo \"arguments: $*\"; echo \"root: $WARPTILE_ROOT\"; \
                       echo \"test result: ok. 1 passed; 0 failed; finished in 0.01s\"";
const FAILING: &str = "echo \"test fine ... ok\"; echo \"test memory::leak ... FAILED\"; \
                       echo \"test result: FAILED. 1 passed; 1 failed; finished in 0.01s\"; exit 101";
const CRASHING: &str = "echo \"about to crash\"; kill -SEGV $$";

fn bundle(tests: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = directory.path().join(name);
        files::write(&path, format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        files::make_executable(&path).unwrap();
    };
    script("bin/warptile", "echo \"warptile $1\"");
    for (name, text) in tests {
        script(&format!("tests/{name}"), text);
    }
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("run.sh");
    std::fs::copy(run, directory.path().join("run.sh")).unwrap();
    directory
}

fn run(bundle: &Path, arguments: &[&str]) -> Output {
    // From another directory, as a user may.
    Command::new("sh")
        .arg(bundle.join("run.sh"))
        .args(arguments)
        .current_dir("/")
        .output()
        .unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn all_passing() {
    let bundle = bundle(&[("driver", PASSING)]);
    let output = run(bundle.path(), &[]);
    assert!(output.status.success());
    assert_eq!(
        lines(&output),
        [
            "warptile info",
            "ok 1 - driver (1 passed; 0 failed)",
            "1..1",
            "# 1 tests passed, 0 failed"
        ]
    );
    let log = std::fs::read_to_string(bundle.path().join("logs/driver.log")).unwrap();
    assert!(log.contains("arguments: --include-ignored\n"), "{log}");
    let root = bundle.path().canonicalize().unwrap();
    assert!(
        log.contains(&format!("root: {}\n", root.display())),
        "{log}"
    );
}

#[test]
fn failures_are_named_last() {
    let bundle = bundle(&[
        ("attention", CRASHING),
        ("driver", FAILING),
        ("kernels", PASSING),
    ]);
    let output = run(bundle.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let lines = lines(&output);
    assert!(
        lines[1].starts_with("not ok 1 - attention (exit code "),
        "{lines:?}"
    );
    assert_eq!(lines[2], "not ok 2 - driver (1 passed; 1 failed)");
    assert_eq!(lines[3], "ok 3 - kernels (1 passed; 0 failed)");
    assert_eq!(
        lines[4..7],
        ["1..3", "# 2 tests passed, 1 failed", "# failed:"]
    );
    assert!(
        lines[7].starts_with("  attention ended with exit code "),
        "{lines:?}"
    );
    assert_eq!(lines[8], "  driver memory::leak");
}

#[test]
fn a_selection_of_executables_and_tests() {
    let bundle = bundle(&[("attention", FAILING), ("driver-memory", PASSING)]);
    let output = run(bundle.path(), &["--only", "driver", "--cpu", "one", "two"]);
    assert!(output.status.success());
    assert!(lines(&output).contains(&"1..1".to_owned()));
    let log = std::fs::read_to_string(bundle.path().join("logs/driver-memory.log")).unwrap();
    assert!(log.contains("arguments: one two\n"), "{log}");

    let nothing = run(bundle.path(), &["--only", "drivel"]);
    assert_eq!(
        nothing.status.code(),
        Some(1),
        "a selection of nothing is not a success"
    );
}

#[test]
fn integrations_run_by_scripts_of_their_own() {
    let bundle = bundle(&[("driver", PASSING)]);
    let script = |name: &str, text: &str| {
        let path = bundle.path().join("integrations").join(name).join("run.sh");
        files::write(&path, format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        files::make_executable(&path).unwrap();
    };
    script("candle", PASSING);
    // As gpu_check.py prints.
    script(
        "python",
        "echo 'ok      dense_problems                  1.2 s  worst 0.2'; \
         echo 'skipped forked_process                  0.0 s  no fork'; \
         echo 'FAILED  caches_in_e4m3                  0.1 s  AssertionError'; exit 1",
    );
    let output = run(bundle.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        lines(&output)[2..],
        [
            "ok 2 - integrations-candle (1 passed; 0 failed)",
            "not ok 3 - integrations-python (exit code 1)",
            "1..3",
            "# 3 tests passed, 1 failed",
            "# failed:",
            "  integrations-python caches_in_e4m3"
        ]
    );
    let only = run(bundle.path(), &["--only", "candle"]);
    assert!(only.status.success());
    assert!(lines(&only).contains(&"1..1".to_owned()));
    for arguments in [&["--cpu"][..], &["good"]] {
        let output = run(bundle.path(), arguments);
        assert!(lines(&output).contains(&"1..1".to_owned()));
    }
}

#[test]
fn a_hanging_executable_is_ended() {
    let bundle = bundle(&[("driver", "sleep 60")]);
    let output = Command::new("sh")
        .arg(bundle.path().join("run.sh"))
        .env("WARPTILE_TEST_TIMEOUT", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(lines(&output)[1].starts_with("not ok 1 - driver (exit code 124)"));
}

#[test]
fn an_unknown_option_is_refused() {
    let bundle = bundle(&[]);
    assert_eq!(run(bundle.path(), &["--fast"]).status.code(), Some(2));
    assert_eq!(run(bundle.path(), &["--only"]).status.code(), Some(2));
    assert_eq!(run(bundle.path(), &["--help"]).status.code(), Some(0));
}
