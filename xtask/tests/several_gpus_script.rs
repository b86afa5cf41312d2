//! `scripts/several_gpus.py`, in a bundle whose programs are scripts that answer as the real ones do.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use xtask::files;

/// `warptile`. FAULT=waits has NCCL take until Ctrl-C, FAULT=less leaves a number out of its rows, FAULT=dead ends
/// before it has any.
const PROGRAM: &str = r#"#!/usr/bin/env -S python3 -S -E
import json, os, sys, time
words, fault = sys.argv[1:], os.environ.get("FAULT")
print(*words, file=open("seen", "a"))
of = lambda option: [words[at + 1] for at, word in enumerate(words) if word == option]
direction = lambda problem: "backward" if "backward" in problem else "decode" if "q1 " in problem else "forward"
ranks = len(of("--devices")[0].split(","))
row = {"backend": "warptile", "engine": of("--engine")[0], "ranks": ranks, "one_us": 4.0, "each_us": [4.0, 4.0], "median_us": 2.0}
row |= {"p90_us": 2.0, "samples": 9, "efficiency": 1.0, "same_bits_again": True, "error": 1e-4, "one_error": 1e-4}
if fault == "less":
    del row["efficiency"]
if fault == "dead":
    sys.exit(3)
rows = [{**row, "problem": problem, "direction": direction(problem), "key_len": 131072 if "q1 " in problem else 16384} for problem in of("--shape")]
result = rows if words[0] == "bench" else {"count": 9, "failed": 0}
def write():
    with open(of("--json")[0], "w") as file:
        json.dump(result, file)
if fault == "waits" and "nccl" in words and words[0] == "bench":
    result = {"cut_short": True, "rows": rows[:1]}
    write()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
print("verified 9 problems")
write()
"#;

/// FAULT=none has no test of that name.
const TESTS: &str = r#"#!/bin/sh
echo "$(basename "$0") $*" >> seen
[ "$FAULT" = none ] && echo 'test result: ok. 0 passed; 0 failed' && exit
echo '4 loops have ended'
echo 'test result: ok. 1 passed; 0 failed'
"#;

const PEERS: &str = r#"import json
row = {"backend": "context_parallel fa2", "engine": "nccl", "ranks": 2, "key_len": 16384, "direction": "forward"}
print(json.dumps(row | {"one_us": None, "median_us": 3.0, "efficiency": None, "error": 1e-4}))
print(json.dumps({"backend": "ring", "key_len": 16384, "direction": "both", "failed": "it does"}))
"#;

struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Host(tempfile::tempdir().unwrap());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/several_gpus.py");
        let script = files::read_text(&script).unwrap();
        for (path, text) in [
            ("bin/warptile", PROGRAM),
            ("tests/distributed-processes", TESTS),
            ("tests/distributed-gpu", TESTS),
            ("benches/peers/context_parallel.py", PEERS),
            ("scripts/several_gpus.py", &script),
            ("commit.txt", "0123456789\n"),
        ] {
            let path = host.0.path().join(path);
            files::write(&path, text.as_bytes()).unwrap();
            files::make_executable(&path).unwrap();
        }
        host
    }

    fn command(&self, fault: &str, options: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command
            .arg(self.0.path().join("scripts/several_gpus.py"))
            .arg(self.0.path().join("out"))
            .args(options)
            .env("FAULT", fault);
        command
    }

    fn run(&self, fault: &str, options: &[&str]) -> (Option<i32>, String) {
        said(self.command(fault, options).output().unwrap())
    }

    fn json(&self, name: &str) -> Value {
        files::read_json(&self.0.path().join("out").join(name)).unwrap()
    }

    /// How a step ended.
    fn ended(&self, name: &str) -> Value {
        let steps = self.json("steps.json")["steps"].clone();
        let mut steps = steps.as_array().unwrap().iter();
        let found = steps.find(|step| step["name"] == name);
        found.map_or(Value::Null, |step| step["ended"].clone())
    }

    /// The commands that have run since the last time.
    fn seen(&self) -> String {
        let log = self.0.path().join("seen");
        let text = files::read_text(&log).unwrap_or_default();
        files::write(&log, b"").unwrap();
        text
    }
}

/// Exit code, and all that was printed.
fn said(output: Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text + &errors)
}

#[test]
fn all_steps_run_and_rows_stand_beside_goals() {
    let host = Host::new();
    let (code, text) = host.run("", &["--faults"]);
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "best peer forward 16384: context_parallel fa2 3 us; peers 2 us, ratio 1.500 ok",
        "decode-lead peers decode 131072 4 [4.0, 4.0] 2.0 2.0 9 1.0 0.75 ok",
        "both nccl 16384: 8 us alone, 4 us, efficiency 1.0000, goal 0.88 ok",
        "captures: 4 loops have ended",
        "verify-four-ranks: verified 9 problems",
        "faults: 0 ",
        "ring both 16384: failed: it does",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let rows = host.json("rows.json");
    let run = rows[0]["run"].as_str().unwrap();
    assert!(run.ends_with(", 01234567"), "{run}");
    // A number that a row lacks costs the table only.
    let (code, text) = host.run("less", &["--only", "decode"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("no table: KeyError"), "{text}");
    assert_eq!(host.json("rows.json").as_array().unwrap().len(), 6);
}

#[test]
fn what_did_not_run_is_no_success() {
    let host = Host::new();
    let (code, text) = host.run("none", &["--only", "captures"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(host.ended("captures"), "no test ran");
    assert!(!host.seen().contains("two_gpus_over_nccl"));
    let (code, text) = host.run("", &["--budget", "20", "--only", "decode"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(host.ended("decode"), "skipped");
    assert_eq!(host.ended("decode-nccl"), 0);
    let (code, text) = host.run("", &["--only", "captures,captivity"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = host.run("", &["--only", "captivity"]);
    assert_eq!(code, Some(2), "{text}");
    std::fs::remove_file(host.0.path().join("bin/warptile")).unwrap();
    let (code, text) = host.run("", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("unpacked bundle"), "{text}");
}

#[test]
fn a_run_that_is_told_to_stop_keeps_its_rows_and_is_resumed() {
    let host = Host::new();
    let mut command = host.command("waits", &[]);
    let mut script = command.stdout(Stdio::piped()).spawn().unwrap();
    let begun = host.0.path().join("out/logs/forward-nccl-64k-128k.json");
    while !begun.exists() {
        assert!(script.try_wait().unwrap().is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    let id = script.id().to_string();
    let told = Command::new("kill").args(["-TERM", &id]).status();
    assert!(told.unwrap().success());
    let (code, text) = said(script.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(host.ended("forward-peers-128k"), 0);
    assert_eq!(host.ended("forward-nccl-64k-128k"), "stopped");
    assert_eq!(host.ended("captures"), "skipped");
    // That of the step that passed, and the first one of the other.
    assert_eq!(host.json("rows.json").as_array().unwrap().len(), 2);
    // The next attempt has no row, and what the other one left is not taken for its own.
    let options = ["--resume", "--only", "forward-nccl-64k-128k"];
    let (code, text) = host.run("dead", &options);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(host.ended("forward-nccl-64k-128k"), 3);
    assert_eq!(host.json("rows.json").as_array().unwrap().len(), 1);

    host.seen();
    let (code, text) = host.run("", &["--resume"]);
    assert_eq!(code, Some(0), "{text}");
    let seen = host.seen();
    let again = "bench --devices 0,1 --engine peers --samples 20 --seconds 0.8 --yes --shape q131072 h32/8 d128 bf16 mask=causal --json";
    assert!(!seen.contains(again), "{seen}");
    assert!(seen.contains("two_gpus_over_nccl"), "{seen}");
    assert_eq!(host.ended("forward-nccl-64k-128k"), 0);
    let rows = host.json("rows.json");
    let of = |step: &str| {
        let rows = rows.as_array().unwrap().iter();
        rows.filter(|row| row["step"] == step).count()
    };
    assert_eq!(of("forward-peers-128k"), 1);
    assert_eq!(of("forward-nccl-64k-128k"), 2);
    // Not into what another commit measured.
    files::write(&host.0.path().join("commit.txt"), b"9876543210").unwrap();
    let (code, text) = host.run("", &["--resume"]);
    assert_ne!(code, Some(0), "{text}");
    assert!(text.contains("is of commit 0123456789"), "{text}");
}

/// Four GPUs have goals of their own, and no tests of two.
#[test]
fn four_gpus_are_measured_by_the_same_steps() {
    let host = Host::new();
    let (code, text) = host.run("", &["--gpus", "4"]);
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "forward-peers-16k-64k peers forward 16384 4 [4.0, 4.0] 2.0 2.0 9 1.0 0.87 ok",
        "best peer forward 16384: context_parallel fa2 3 us; peers 2 us, ratio 1.500 ok",
        "both nccl 16384: 8 us alone, 4 us, efficiency 0.5000, goal 0.83 BELOW",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    let seen = host.seen();
    assert!(seen.contains("--devices 0,1,2,3"), "{seen}");
    assert!(!seen.contains("distributed-"), "{seen}");
}

/// A filter that finds nothing is no failure of a test executable.
#[test]
fn tests_that_are_asked_for_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = files::read_text(&root.join("scripts/several_gpus.py")).unwrap();
    let mut names = Vec::new();
    for line in script
        .lines()
        .filter(|line| line.contains("tests/distributed-"))
    {
        let words: Vec<_> = line.split('"').collect();
        let file = words
            .iter()
            .find_map(|word| word.strip_prefix("tests/distributed-"));
        let path = format!("crates/distributed/tests/{}.rs", file.unwrap());
        let tests = files::read_text(&root.join(path)).unwrap();
        let name = words[words.len() - 2];
        assert!(tests.contains(&format!("fn {name}")), "{name}");
        names.push(name);
    }
    assert!(names.len() >= 6, "{names:?}");
}
