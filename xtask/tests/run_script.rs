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

/// They fail on one GPU. The executable says which they are, where it does not run them.
#[test]
fn tests_of_several_gpus_are_left_out_on_one() {
    let of_gpus = format!(
        "one='test one ... ignored, needs an NVIDIA GPU'
         two='test a::two - should panic ... ignored, needs two NVIDIA GPUs and NCCL'
         case \"$*\" in '--ignored --list --format=terse') echo 'one: test'; echo 'a::two: test';;
         '--ignored --list --format=terse one') echo 'one: test';;
         '--ignored --list --format=terse two') echo 'a::two: test';;
         '--exact one a::two') echo \"$one\"; echo \"$two\";;
         '--exact one') echo \"$one\";; '--exact a::two') echo \"$two\";; *) {PASSING};; esac"
    );
    let bundle = bundle(&[("distributed", &of_gpus)]);
    let arguments = |gpus: &str, flags: &[&str]| {
        let info = format!("#!/bin/sh\nprintf 'cpu      4 threads\\n{gpus}'\n");
        files::write(&bundle.path().join("bin/warptile"), info.as_bytes()).unwrap();
        files::make_executable(&bundle.path().join("bin/warptile")).unwrap();
        let output = run(bundle.path(), flags);
        assert!(output.status.success(), "{output:?}");
        let log = std::fs::read_to_string(bundle.path().join("logs/distributed.log")).unwrap();
        let given = log
            .lines()
            .find_map(|line| line.strip_prefix("arguments: "));
        (given.unwrap().to_owned(), lines(&output))
    };
    let (given, printed) = arguments("cuda:0   NVIDIA H200\\n", &[]);
    assert_eq!(given, "--include-ignored --exact --skip a::two");
    let said = "# left out, as they need several GPUs: 1; GPUs here: 1";
    assert!(printed.iter().any(|line| line == said), "{printed:?}");
    let (given, _) = arguments("cuda:0   NVIDIA H200\\n", &["two"]);
    assert_eq!(given, "--include-ignored two --skip a::two");
    let two = "cuda:0   NVIDIA H200\\ncuda:1   NVIDIA H200\\n";
    for (gpus, flags, expected) in [
        (two, &[][..], "--include-ignored"),
        ("cuda:0   NVIDIA H200\\n", &["one"], "--include-ignored one"),
        ("", &["--cpu"], ""),
    ] {
        let (given, printed) = arguments(gpus, flags);
        assert_eq!(given, expected);
        assert!(
            printed.iter().all(|line| !line.contains("left out")),
            "{printed:?}"
        );
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
