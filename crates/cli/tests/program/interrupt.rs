//! Ctrl-C.

use crate::common::warptile;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use warptile_fake_cuda::{FakeDriver, KERNEL_TIMES};

/// Sends SIGINT once a line of standard output begins with `sign`; exit code, standard error, and all of standard output.
pub(crate) fn interrupted(command: &mut Command, sign: &str) -> (Option<i32>, String, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while text
        .lines()
        .next_back()
        .is_none_or(|line| !line.starts_with(sign))
    {
        assert!(stdout.read_line(&mut text).unwrap() > 0, "ended: {text}");
    }
    signal(&child);
    stdout.read_to_string(&mut text).unwrap();
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    (child.wait().unwrap().code(), stderr, text)
}

#[test]
fn bench_keeps_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    let mut command = warptile();
    command
        .args(["bench", "--device", "cpu", "--chart"])
        .args(["--samples", "1000000", "--seconds", "0.01"])
        // The second one takes far longer than the signal does.
        .args([
            "--shape",
            "q8 k8 d8",
            "--shape",
            "q2000 k2000 h16",
            "--json",
        ])
        .arg(&file);
    let (code, stderr, stdout) = interrupted(&mut command, "b1 q8 k8 h1 d8 f32 ");
    assert_eq!(code, Some(130), "{stderr}");
    assert!(
        stderr.contains("cut short: 1 row was measured before Ctrl-C"),
        "{stderr}"
    );
    assert!(!stdout.contains("q2000"), "{stdout}");
    let record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(record["cut_short"], true);
    assert_eq!(record["problems"], 2);
    assert_eq!(record["rows"][0]["problem"], "b1 q8 k8 h1 d8 f32");
    assert_eq!(record["rows"].as_array().unwrap().len(), 1);
}

#[test]
fn bench_keeps_its_rows_on_standard_output() {
    // The table is on standard error then; the first line of standard output comes at the end.
    let mut child = warptile()
        .args(["bench", "--device", "cpu", "--samples", "1000000"])
        .args(["--seconds", "0.01", "--json", "-"])
        .args(["--shape", "q8 k8 d8", "--shape", "q2000 k2000 h16"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("b1 q8 k8 h1 d8 f32 ") {
        assert!(stderr.read_line(&mut text).unwrap() > 0, "ended: {text}");
    }
    signal(&child);
    stderr.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["cut_short"], true);
    assert_eq!(record["rows"].as_array().unwrap().len(), 1);
}

#[test]
fn verify_keeps_its_totals() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("totals.json");
    let mut child = warptile()
        .args(["verify", "--device", "cpu", "--count", "100000000"])
        .args(["--max-len", "64", "--json"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is there once the first problem was computed.
    while !file.exists() {
        assert!(child.try_wait().unwrap().is_none(), "ended");
        thread::sleep(Duration::from_millis(20));
    }
    signal(&child);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    assert!(stderr.contains("cut short"), "{stderr}");
    assert!(stdout.contains("verified "), "{stdout}");
    let totals: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(totals["cut_short"], true);
    // The totals that were printed at the end, not those that were written after the first problem.
    let passed = format!(": {} passed, 0 failed", totals["passed"]);
    assert!(stdout.contains(&passed), "{passed}: {stdout}");
}

/// A file of some gigabytes would otherwise stay next to its place.
#[test]
fn gen_leaves_no_part_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let entries = || fs::read_dir(dir.path()).unwrap().count();
    let mut child = warptile()
        .args(["gen", "b64 q2048 k2048 h16 d64 f32", "-o"])
        .arg(dir.path().join("out.safetensors"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while entries() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "ended");
        thread::sleep(Duration::from_millis(2));
    }
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(entries(), 0);
}

/// At any moment: while it makes inputs, computes, or waits for the reference.
#[test]
fn every_command_on_the_cpu_ends_soon() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (input, output) = (path("qkv.safetensors"), path("out.npz"));
    let problem = "b1 q30000 k30000 h8 d64 f16";
    let made = warptile()
        .args(["gen", problem, "-o", &input])
        .output()
        .unwrap();
    assert!(made.status.success());
    let watched = "Ctrl-C again ends at once";
    for (arguments, says) in [
        (
            &["bench", "--shape", "b1 q100000 k100000 h8 d64 f16"][..],
            watched,
        ),
        // Decoding, and keys of 8 bits.
        (
            &[
                "bench",
                "--shape",
                "b256 q1 k40000 h8/2 d64 f16 cache=e4m3",
                "--seconds",
                "100",
                "--samples",
                "1000000",
            ],
            watched,
        ),
        (
            &[
                "bench",
                "--devices",
                "cpu,cpu",
                "--shape",
                "q30000 h8 d64 f16",
            ],
            watched,
        ),
        // The reference, then the inputs.
        (
            &["verify", "--case", "b1 q15000 k15000 h8 d64 f16"],
            watched,
        ),
        (
            &["verify", "--case", "b500 q1 k1000 h8 d64 f16 mask=none"],
            watched,
        ),
        // The reference of gradients, of one head.
        (
            &["verify", "--once", "--case", "q9000 h1 d64 backward"],
            watched,
        ),
        (
            &["verify", "--max-len", "2000", "--count", "100000"],
            watched,
        ),
        (
            &[
                "verify",
                "--devices",
                "cpu,cpu",
                "--case",
                "q400000 h4 d64 mask=window,63,0",
            ],
            watched,
        ),
        (&["run", &input, "-o", &output], ""),
        (&["gen", "b64 q4096 k4096 h16 d128 f16", "-o", &output], ""),
    ] {
        let mut command = warptile();
        // As slow on a large machine.
        command.args(arguments).env("RAYON_NUM_THREADS", "2");
        if arguments[0] != "gen" && arguments[1] != "--devices" {
            command.args(["--device", "cpu"]);
        }
        ends_soon(&mut command, says);
    }
}

#[test]
fn ways_to_compute_are_kept_as_they_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ways.json");
    let mut command = warptile();
    // The second problem takes minutes.
    command.args(["tune", "--devices", "cpu,cpu", "--shape", "q64 h2 d16"]);
    command.args(["--shape", "q30000 h8 d64 f16", "--json"]);
    command.arg(&file).env("RAYON_NUM_THREADS", "2");
    let mut child = { command.stdout(Stdio::null()) }
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let record = || -> Option<serde_json::Value> {
        serde_json::from_slice(&std::fs::read(&file).ok()?).ok()
    };
    while record().is_none() && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(20));
    }
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let record = record().expect("rows");
    assert_eq!(record["cut_short"], true, "{record}");
    assert_eq!(record["problems"], 2);
    assert!(!record["rows"].as_array().unwrap().is_empty());
}

/// The stand-in computes nothing: of no rows all is right, and gradients are compared with float64 after the last launch.
#[test]
fn repeated_launches_end_soon() {
    let fake = FakeDriver::open();
    for problem in ["b1 q0 k64 h2 d64 f16", "b1 q64 k64 h2 d64 f16 backward"] {
        let mut command = warptile();
        command.args(["verify", "--case", problem, "--repeat", "4294967295"]);
        command.env("WARPTILE_LIBCUDA", fake.path());
        ends_soon(&mut command, "Ctrl-C again ends at once");
    }
}

/// Sends SIGINT after a second, and expects the end soon and `says` on standard error.
pub(crate) fn ends_soon(command: &mut Command, says: &str) {
    let mut child = { command.stdout(Stdio::null()) }
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    assert!(
        child.try_wait().unwrap().is_none(),
        "{command:?} ended early"
    );
    let asked = Instant::now();
    signal(&child);
    let output = child.wait_with_output().unwrap();
    let (took, stderr) = (asked.elapsed(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(130), "{command:?}: {stderr}");
    // A second, and what a loaded machine makes of it. Without the signal each takes minutes.
    assert!(took < Duration::from_secs(6), "{command:?}: {took:?}");
    assert!(stderr.contains(says), "{command:?}: {stderr}");
}

/// A table that nobody reads: the command waits until it can print a row.
#[test]
fn what_does_not_stop_is_given_up() {
    let (reader, writer) = pipe().unwrap();
    let mut full = writer.try_clone().unwrap();
    let filling = thread::spawn(move || full.write_all(&[b'\n'; 1 << 20]));
    let mut child = warptile()
        .args(["bench", "--device", "cpu", "--shape", "q1 k1 d8"])
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(5));
    assert!(child.try_wait().unwrap().is_none(), "ended early");
    let asked = Instant::now();
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(6));
    drop(reader);
    assert!(filling.join().unwrap().is_err());
}

/// A kernel that never ends: the first signal waits for it, and says how to end at once.
#[test]
fn a_second_signal_ends_at_once() {
    let fake = FakeDriver::open();
    let mut child = warptile()
        .args(["bench", "--shape", "b1 q64 k64 h2 d64 f16", "--yes"])
        .env("WARPTILE_LIBCUDA", fake.path())
        .env(KERNEL_TIMES, "warptile_=inf")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    signal(&child);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("Ctrl-C again ends at once") {
        assert!(stderr.read_line(&mut text).unwrap() > 0, "ended: {text}");
    }
    assert!(child.try_wait().unwrap().is_none(), "ended: {text}");
    let asked = Instant::now();
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(asked.elapsed() < Duration::from_secs(3));
}

pub(crate) fn signal(child: &Child) {
    let id = child.id().to_string();
    let kill = Command::new("kill").args(["-INT", &id]).status();
    assert!(kill.unwrap().success());
}
