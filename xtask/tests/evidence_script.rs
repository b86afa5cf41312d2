//! `scripts/evidence`, on a bundle whose programs are scripts that answer as the real ones do.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use xtask::files;

/// `warptile`: one image per family, and one of an operation. FAULT=idle makes the persistent one draw no tile,
/// FAULT=missing leaves one out, FAULT=wide plans nearly everything for the whole GPU, FAULT=pages has nothing in
/// pages, FAULT=cut fails after the first rows of a measurement, FAULT=worse tunes for what is slower in the next
/// process, FAULT=late leaves a problem out, FAULT=long lets a family take until Ctrl-C, FAULT=hangs lets it and a measurement take no notice
/// of that, either. Without `-S` most of its time is a search for packages.
const PROGRAM: &str = r#"#!/usr/bin/env -S python3 -S -E
import json, os, sys, time
words, fault = sys.argv[1:], os.environ.get("FAULT")
print("warptile on", os.environ.get("CUDA_VISIBLE_DEVICES", "all") + ":", *words, "by", os.environ.get("CUDA_DEVICE_ORDER"), file=open("seen", "a"))
elements = {"scalar": "f16", "wgmma": "bf16", "wmma": "f16", "decode": "f16"}
option = lambda name, other: words[words.index(name) + 1] if name in words else other
images = [("scalar_sm_90", "scalar", "sm_90"), ("wgmma_sm_90a", "wgmma", "sm_90a"), ("wmma_89", "wmma", "compute_89"), ("wmma_sm_80", "wmma", "sm_80"), ("decode_e4m3_89", "decode", "compute_89")]
gradients = ("dq_sm_90", "dq", "sm_90")
if words[0] == "info":
    device = {"ordinal": 0, "compute_capability": "9.0", "shared_bytes_per_cta": 232448}
    paged = ["lse", "paged keys"] if fault != "pages" else ["lse"]
    fields = lambda name, family, target: {"image": name, "family": family, "target": target, "sha256": "ab", "shared_bytes": 1, "role": "forward", "element": elements.get(family), "schedule": "persistent", "features": paged if family == "wmma" else ["keys and values in e4m3"] if family == "decode" else []}
    result = {"driver": "CUDA 13.0", "date": "", "devices": [device], "images": [fields(*image) for image in images]}
    result["images"].append({**fields("merge_w4_sm_90", "merge", "sm_90"), "role": "combine"})
    result["images"] += [{**fields(*gradients), "role": "query gradients"}, {**fields("dqsum_sm_90", "dqsum", "sm_90"), "role": "query gradient sums"}]
elif words[0] == "verify":
    chosen = [i for i in ([gradients] if "--backward" in words else images) if i[2] != "sm_80" and option("--kernel", i[1]) == i[1] and option("--target", i[2]) == i[2]]
    chosen = [i for i in chosen if fault != "missing" or i[1] != "scalar"]
    cases = [words[at + 1] for at, word in enumerate(words) if word == "--case"]
    if cases and not any(f" {elements[i[1]]} " in cases[0] for i in chosen):
        sys.exit("no kernel")
    count = len(cases) or 10
    runs = lambda family: {"sha256": "ab", "persistent": family == "wgmma", "passed": 2, "failed": 0, "drew_tiles": int(family == "wgmma" and fault != "idle")}
    rows = [{"problem": "p", "image": i[0], "applicable": True, "passed": True, "reason": None} for i in chosen]
    tiles = [{"image": i[0], "passed": True, "fault": None} for i in chosen]
    result = {"device": "", "driver": "", "date": "", "seed": 1, "cut_short": False, "count": count, "passed": count, "failed": 0, "not_applicable": 0}
    result |= {"few_multiprocessors": count // 2 if fault != "wide" else 3, "drew_tiles": 1, "host_references": 4, "gpu_references": 6}
    result |= {"seconds": 1.0, "problems_per_second": 10.0, "threads": 16, "phases": {"planning": 0.1}}
    result |= {"worst_out": {"ratio": 0.5}, "worst_lse": None, "images": {i[0]: runs(i[1]) for i in chosen}, "problems": (rows * count)[:count]}
    result = {"tiles": tiles} if "--tile" in words else result
elif words[0] == "tune":
    kernel = lambda name: {"kernel": name, "settings": ""}
    found = {"problem": "p", "case": "p seed=0", "verdict": "won", "old": kernel("a"), "chosen": kernel("b"), "gain": 1.1}
    found |= {"first_bound": 1.05, "repeat_bound": 1.04, "screened": [{**kernel("b"), "microseconds": 1.0}]}
    result = {"problems": [found] + [{**found, "verdict": "open", "screened": []}] * (fault == "late")}
elif words[0] == "tune-trials":
    for request in json.load(sys.stdin):
        assert request["old"]["kernel"] == "a" and request["new"]["kernel"] == "b"
        print([0.97 if fault == "worse" else 1.09] * request["blocks"])
else:
    on_cache = any(name in str(option("--file", "")) for name in ("decode.txt", "few.txt"))
    problem = "b1 q1 k8192 h8 d64 f16" if on_cache else "b2 q512 k512 h8 d64 f16"
    problem = "b2 q512 k512 h8 d64 bf16 backward" if "backward.txt" in option("--file", "") else problem
    problem = "b2 q512 k512 h8 d64 bf16 bias" if "options.txt" in option("--file", "") else problem
    row = {"backend": "warptile", "problem": problem, "query_len": 512, "head_dim": 64, "method": "graph", "median_us": 3.0, "tb_s": 1.0}
    result = [{**row, "family": family, "kernel": family, "sha256": "ab"} for family in ("scalar", "wgmma")]
    result = {"cut_short": True, "rows": result} if fault == "cut" else result
    print('"ID","Metric Name","Metric Unit","Metric Value"\n"0","gpu__time_duration.sum","ns","1,000"')
if fault == "long" and "wmma" in words and "--max-len" in words:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        result["cut_short"] = True
if fault == "hangs" and ("wmma" in words and "--max-len" in words or "sparse.txt" in option("--file", "")):
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass
if "--json" in words:
    json.dump(result, open(option("--json", None), "w"))
sys.exit(3 * (fault == "cut" and words[0] == "bench"))
"#;

/// FAULT=without leaves FlashAttention-4 out, FAULT=slow makes the peer of decode the faster one, FAULT=alone leaves our own row out,
/// FAULT=inexact leaves an error of gradients out, FAULT=ends ends with an error after all, FAULT=uncompiled compiles nothing, FAULT=absent
/// lacks a peer.
const PEERS: &str = r#"import json, os, sys
words, fault = sys.argv, os.environ.get("FAULT")
print("peers on", os.environ.get("CUDA_VISIBLE_DEVICES", "all") + ":", *words[1:], file=open("seen", "a"))
if "--find" in words:
    assert "--fa3" in words and "--cudnn" in words, words
    sys.exit("fa3: not installed (no such file)" if fault == "absent" else 0)
assert ("--cudnn" in words) == ("--with" in words and "default" not in words)
of = lambda option: [words[at + 1] for at, word in enumerate(words) if word == option]
files, shapes = [name.rpartition("/")[2] for name in of("--file")], of("--shape")
swept = ["b2 q512 k512 h8 d64 bf16", "b2 q512 k512 h8 d64 f16", "b2 q9 k9 h8 d64 f16"]
if "--compile" in words:
    assert files == ["decode.txt"] and shapes == (swept if of("--peer") == ["fa4"] else [])
    places = " ".join(f"{name}={of(name)[0]}" for name in ("--fa4", "--flashinfer") if name in words)
    with open("compiled", "a") as log:
        print(of("--peer")[0], places, "on", os.environ.get("CUDA_VISIBLE_DEVICES"), file=log)
    sys.exit(3 * (fault == "uncompiled"))
row = {"problem": "b2 q512 k512 h8 d64 f16", "method": "graph", "error_rms": 1e-4, "error_max": 1e-3}
times = {"fa3": 4.0, "warptile": 2.0}
if "default" in words:
    times = {"default": 3.0, "warptile": 2.0}
elif files == ["few.txt"]:
    assert words[words.index("--method") + 1] == "graph" and "--splits" not in words
    row |= {"problem": "b1 q1 k8192 h8 d64 f16", "query_len": 1, "tb_s": 4.0, "kernel": "k"}
    times |= {"read": 1.6}
elif files == ["decode.txt"]:
    assert words[words.index("--method") + 1] == "graph"
    row |= {"problem": "b1 q1 k8192 h8 d64 f16", "query_len": 1, "tb_s": 4.0, "kernel": "k"}
    assert words[words.index("--splits") + 1] == "512"
    times = {"fa2": 9.0, "fa3": 4.0 if fault != "slow" else 1.9, "read": 1.6, "warptile": 2.0, "warptile splits=512": 2.2}
    print("cudnn (dispatched): not for b1 q1 k8192 h8 d64 f16: no pages: none", file=sys.stderr)
    if fault == "alone":
        del times["warptile"]
elif files == ["backward.txt"]:
    assert "--errors" in words or words[words.index("--method") + 1] == "graph"
    row["problem"] = "b2 q512 k512 h8 d64 bf16 backward"
    if "--errors" in words and fault == "inexact":
        del times["fa3"]
elif files == ["options.txt"]:
    assert "--errors" in words or words[words.index("--method") + 1] == "graph"
    row["problem"] = "b2 q512 k512 h8 d64 bf16 bias"
    times |= {"plain": 1.5} if "--errors" not in words else {}
else:
    assert not files and shapes == swept, shapes
    times |= {"fa4": 5.0} if fault != "without" else {}
rows = [{**row, "backend": name, "median_us": time} for name, time in times.items()]
if swept[-1] in shapes:
    rows += [{**row, "problem": "b2 q9 k9 h8 d64 f16"} for row in rows]
json.dump(rows, open(words[words.index("--json") + 1], "w"))
sys.exit(fault == "ends")
"#;

/// FAULT=blind makes it find nothing, the broken kernels included.
const SANITIZER: &str = r#"#!/bin/sh
[ "$1" = --version ] && echo 1 && exit
tool=$2; shift 4; found=0
echo "$(echo sanitizer) on ${CUDA_VISIBLE_DEVICES-all}: $*" >> seen
case "$*" in *controls.py*) echo "$tool: launched, then 0"; [ "$FAULT" = blind ] || found=3 ;; *) "$@" ;; esac
[ $found = 0 ] || echo "ERROR SUMMARY: 9 errors were not printed. Use --print-limit option"
case $tool in racecheck) echo "RACECHECK SUMMARY: $found hazards displayed" ;; *) echo "ERROR SUMMARY: $found errors" ;; esac
"#;

const NCU: &str = r#"#!/bin/sh
[ "$1" = --version ] && echo 1 && exit
[ "$1" = --query-metrics ] && echo "gpu__time_duration  time" && echo "sm__inst_executed_pipe_tensor_op_hmma  x" && exit
case "$*" in *op_hmma*) exit 1 ;; esac
while [ "${1%/bin/warptile}" = "$1" ]; do shift; done
exec "$@"
"#;

/// GPUS says how many there are; those of a number that it does not know have no UUID.
const SMI: &str = r#"#!/bin/sh
case "$*" in
*index,uuid*)
    [ "$GPUS" != 1 ] || echo '0, GPU-a'
    [ "$GPUS" != 2 ] || printf '0, GPU-a\n1, GPU-b\n'
    exit ;;
*"-i 0" | *"-i GPU-a") name=H200 ;;
*"-i 1" | *"-i GPU-b") name=H100 ;;
*) echo "which GPU: $*"; exit 6 ;;
esac
echo "NVIDIA $name, 580.1, 9.0, v, P0, 1, 2, 3, 4, 5 W, 6 W, 7, Enabled, 8 MiB"
"#;

/// FAULT=silent makes it compute nothing, FAULT=few only some compositions.
const OPERATIONS: &str = r#"#!/bin/sh
echo "$(basename "$0") on ${CUDA_VISIBLE_DEVICES-all}: $*" >> seen
[ "$1" = --list ] && echo 'merge::random: test' && exit
[ "$FAULT" = silent ] || echo 'test merge::random ... ran merge_w4_sm_90'
[ "$FAULT" = few ] && echo '100 compositions, no bit differs' || echo '10002 compositions, no bit differs'
echo ok
"#;

/// One test needs more GPUs than it would see.
const TEST: &str = r#"#!/bin/sh
echo "$(basename "$0") on ${CUDA_VISIBLE_DEVICES-all}: $*" >> seen
[ "$1" = --list ] && printf 'a::b: test\nc::d: test\n' && exit
[ "$*" = "--exact a::b c::d" ] && printf 'test %s ... ignored, needs %s\n' a::b 'an NVIDIA GPU' c::d 'two NVIDIA GPUs' && exit
case "$*" in *" --exact --skip c::d") ;; *) echo 'test c::d ... FAILED'; exit 101 ;; esac
echo 'test a::b ... ok'
"#;

/// FAULT=lonely has no GPU, FAULT=dispute other tokens on it.
const DECODER: &str = r#"#!/bin/sh
echo "$(basename "$0") on ${CUDA_VISIBLE_DEVICES-all}: $*" >> seen
[ "$*" = "--tokens 48 --device cuda:0" ] || exit 2
[ "$FAULT" = lonely ] && echo 'error: no GPU' && exit 3
echo 'float64 loop                168      9000  '
[ "$FAULT" = dispute ] || echo 'NVIDIA H200                 168      1200  the same'
echo 'CPU                         168       900  the same'
"#;

const CAPTURED_STEP: &str = r#"#!/bin/sh
echo "$(basename "$0") on ${CUDA_VISIBLE_DEVICES-all}: $*" >> seen
[ "$*" = "--replays 1000 --device 0" ] || exit 2
echo '1000 replays with 12 sequences, 0 of them differ'
"#;

/// FAULT=dead ends before it has a result.
const FIRST_RESULT: &str = r#"#!/bin/sh
echo "$(basename "$0") on ${CUDA_VISIBLE_DEVICES-all}: $*" >> seen
[ "$1" = cuda:0 ] || exit 2
echo '  200.00 ms  device: H200'
echo '  201.50 ms  tensors'
[ "$FAULT" != dead ] || exit 1
echo '  210.25 ms  result: by wgmma'
"#;

const PARTS: &str = "peers,errors,decode,backward,options,bench,ncu,tune,verify,launches,tile,acceptance,examples,sanitizer,tests,alone";

struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let bundle = directory.path().join("bundle");
        for (path, text) in [
            ("bin/warptile", PROGRAM),
            ("bin/examples/decoder", DECODER),
            ("bin/examples/captured_step", CAPTURED_STEP),
            ("bin/examples/08_first_result", FIRST_RESULT),
            ("benches/peers/attention_peers.py", PEERS),
            ("benches/peers/shapes.txt", "b2 q512 k512 h8 d64 bf16\n"),
            ("benches/peers/other.txt", "b2 q9 k9 h8 d64 f16\n"),
            (
                "benches/peers/decode.txt",
                "# one\nb1 q1 k8192 h8 d64 f16\n",
            ),
            ("benches/peers/few.txt", "# one\nb1 q1 k8192 h8 d64 f16\n"),
            (
                "benches/peers/backward.txt",
                "# one\nb2 q512 k512 h8 d64 bf16 backward\n",
            ),
            (
                "benches/peers/options.txt",
                "# one\nb2 q512 k512 h8 d64 bf16 bias\n",
            ),
            ("tests/attention-gpu", OPERATIONS),
            ("tests/driver-gpu", TEST),
            ("tests/driver-gpu_memory", TEST),
            ("tools/compute-sanitizer", SANITIZER),
            ("tools/ncu", NCU),
            ("tools/nvidia-smi", SMI),
        ] {
            let path = bundle.join(path);
            files::write(&path, text.as_bytes()).unwrap();
            files::make_executable(&path).unwrap();
        }
        let scripts = root.join("scripts");
        for folder in [scripts.clone(), scripts.join("evidence")] {
            for path in files::list(&folder).unwrap() {
                if path.is_file() {
                    let to = bundle.join(path.strip_prefix(&root).unwrap());
                    files::write(&to, &files::read(&path).unwrap()).unwrap();
                }
            }
        }
        Host { directory }
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    /// Exit code and output of some parts of the work on what `commit` built.
    fn run(&self, commit: &str, parts: &str, fault: &str) -> (Option<i32>, String) {
        self.run_with(commit, parts, fault, &[])
    }

    fn run_with(
        &self,
        commit: &str,
        parts: &str,
        fault: &str,
        options: &[&str],
    ) -> (Option<i32>, String) {
        let mut command = self.command(commit, parts, fault);
        if options.contains(&"--gpu") || options.contains(&"--second-gpu") {
            command.env("GPUS", "2");
        }
        said(command.args(options).output().unwrap())
    }

    fn command(&self, commit: &str, parts: &str, fault: &str) -> Command {
        let bundle = self.directory.path().join("bundle");
        files::write(&bundle.join("commit.txt"), commit.as_bytes()).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("sh");
        command
            .arg(bundle.join("scripts/evidence.sh"))
            .args([
                "--cudnn", "jit", "--fa3", "fa3.so", "--only", parts, "--out",
            ])
            .arg(self.out())
            .env("PATH", format!("{}:{path}", bundle.join("tools").display()))
            .env("FAULT", fault)
            .env("GPUS", "1")
            .env_remove("WARPTILE_COMMIT")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .current_dir(self.directory.path());
        command
    }

    /// Each command that has run since the last time, with what it saw of `CUDA_VISIBLE_DEVICES`.
    fn seen(&self) -> Vec<String> {
        let log = self.directory.path().join("seen");
        let text = String::from_utf8(files::read(&log).unwrap()).unwrap();
        files::write(&log, b"").unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The JSON files that there are.
    fn written(&self) -> Vec<String> {
        let paths = files::list(&self.out()).unwrap();
        let names = paths
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap());
        names
            .filter(|name| name.ends_with(".json"))
            .map(str::to_owned)
            .collect()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&files::read(&self.out().join(name)).unwrap()).unwrap()
    }
}

/// Exit code, and all that was printed.
fn said(output: Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text + &errors)
}

/// What Python says to a text, beside the script's modules.
fn python(text: &str) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/evidence");
    let mut command = Command::new("python3");
    command.args(["-B", "-c", text]).current_dir(folder);
    command.output().unwrap()
}

/// A host may be taken away before everything is done.
#[test]
fn what_was_computed_before_the_script_is_told_to_stop_is_kept() {
    let host = Host::new();
    let mut command = host.command("one", "verify,bench", "long");
    let mut script = command.stdout(Stdio::piped()).spawn().unwrap();
    // The family that takes long is the last one: what has no PTX comes first.
    let known = || {
        let text = std::fs::read(host.out().join("images.json")).ok()?;
        let images: Value = serde_json::from_slice(&text).ok()?;
        images["images"].get("decode_e4m3_89").map(drop)
    };
    while known().is_none() {
        assert!(script.try_wait().unwrap().is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Another call would take its files.
    let (code, text) = host.run("one", "tile", "");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("another call is at work in "), "{text}");
    // By whichever of its threads the signal is taken; the main one's number is the process's.
    let threads = std::fs::read_dir(format!("/proc/{}/task", script.id())).unwrap();
    let numbers = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
    let last = numbers.max_by_key(|number| number.parse::<u32>().unwrap());
    let told = Command::new("kill").arg(last.unwrap()).status();
    assert!(told.unwrap().success());
    let (code, text) = said(script.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("FAILED  verify was cut short"), "{text}");
    let images = host.json("images.json")["images"].clone();
    assert_eq!(images["scalar_sm_90"]["passed"], 4, "{images}");
    let rows = host.json("verify.json")["rows"].clone();
    let kept = |family: &str| {
        rows.as_array()
            .unwrap()
            .iter()
            .any(|row| row["family"] == family)
    };
    assert!(kept("scalar") && kept("decode"), "{rows}");
    let parts = host.json("summary.json")["parts"].clone();
    assert_eq!(parts["verify"]["cut_short"], true);
    assert!(parts["bench"].is_null(), "{parts}");
    let begun = host.json("summary.json")["runs"][0]["parts"].clone();
    assert_eq!(begun, serde_json::json!(["verify"]));

    // Two GPUs go on where one stopped.
    host.seen();
    let second = ["--resume", "--second-gpu", "1"];
    let (code, text) = host.run_with("one", "verify,bench", "", &second);
    assert_eq!(code, Some(0), "{text}");
    let seen = host.seen().join("\n");
    assert!(
        !seen.contains("--kernel scalar --max-len 1024 --count"),
        "{seen}"
    );
    let wanted = "on GPU-b: verify --device cuda:0 --kernel wmma --max-len 1024 --count";
    assert!(seen.contains(wanted), "{seen}");
    let rows = host.json("verify.json")["rows"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 4 * 2 + 1 + 2 + 1, "{rows}");
}

/// Of both GPUs: what ended is not measured again, and the summary never says more than what was.
#[test]
fn the_rest_of_a_run_that_was_killed_is_done_later() {
    let host = Host::new();
    let parts = "bench,ncu,verify,tile";
    let mut command = host.command("one", parts, "hangs");
    command.args(["--second-gpu", "1"]).env("GPUS", "2");
    let mut script = command.stdout(Stdio::null()).spawn().unwrap();
    let second = host.out().join("second-gpu");
    let verified = second.join("verify-decode-1024.json");
    let measured = host.out().join("uneven.json");
    while !verified.exists() || !measured.exists() {
        assert!(script.try_wait().unwrap().is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    // All of it at once, as when a host is taken away. Each process says where it writes.
    let mut pids = vec![script.id()];
    for entry in std::fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let words = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        let bundle = host.directory.path().display().to_string();
        if let Ok(pid) = path.file_name().unwrap().to_str().unwrap().parse()
            && words.contains(&bundle)
        {
            pids.push(pid);
        }
    }
    for pid in pids {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
    }
    script.wait().unwrap();
    let summary = host.json("summary.json");
    assert_eq!(summary["parts"]["bench"]["cut_short"], true, "{summary}");
    assert_eq!(summary["parts"]["bench"]["passed"], false);
    assert!(second.join("summary.json").exists());

    // What the second GPU did is joined without a GPU, too.
    let joined = host.directory.path().join("joined");
    let (code, text) = said(
        host.command("one", "tile", "")
            .arg("--out")
            .arg(&joined)
            .arg("--join")
            .arg(host.out())
            .output()
            .unwrap(),
    );
    assert_eq!(code, Some(0), "{text}");
    let summary: Value =
        serde_json::from_slice(&files::read(&joined.join("summary.json")).unwrap()).unwrap();
    assert_eq!(summary["parts"]["tile"]["passed"], true, "{summary}");
    assert_eq!(summary["parts"]["verify"]["cut_short"], true, "{summary}");
    assert_eq!(summary["runs"].as_array().unwrap().len(), 1, "{summary}");
    let begun = summary["runs"][0]["parts"].clone();
    assert_eq!(begun, serde_json::json!(["bench", "tile", "verify"]));
    assert!(joined.join("tile.json").exists() && joined.join("uneven.json").exists());
    // Not with another commit's.
    host.seen();
    let other = host.directory.path().join("other");
    let text = r#"{"commit": "two", "parts": {}, "runs": []}"#;
    files::write(&other.join("summary.json"), text.as_bytes()).unwrap();
    let (code, text) = host.run_with("one", "tile", "", &["--join", "other"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is of commit two"), "{text}");

    let (code, text) = host.run_with("one", parts, "", &["--resume"]);
    assert_eq!(code, Some(0), "{text}");
    let seen = host.seen().join("\n");
    assert!(!seen.contains("--tile"), "{seen}");
    assert!(!seen.contains("--kernel decode --max-len 1024"), "{seen}");
    assert!(seen.contains("--kernel wmma --max-len 1024"), "{seen}");
    assert!(!second.exists());
    let summary = host.json("summary.json");
    assert_eq!(summary["missing"].as_array().unwrap().len(), 12);
    for part in parts.split(',') {
        assert_eq!(summary["parts"][part]["passed"], true, "{summary}");
    }
    assert_eq!(summary["runs"].as_array().unwrap().len(), 2, "{summary}");
    // As much as one run gives.
    let rows = host.json("verify.json")["rows"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 4 * 2 + 1 + 2 + 1, "{rows}");
    let images = host.json("images.json")["images"].clone();
    assert_eq!(images["wgmma_sm_90a"]["passed"], 4, "{images}");
    let (code, text) = host.run_with("one", parts, "", &["--resume"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("nothing is left to do"), "{text}");
}

/// It would use its GPU while the next run takes times.
#[test]
fn the_second_gpu_does_not_outlive_the_run() {
    let host = Host::new();
    let mut command = host.command("one", "verify", "long");
    command.args(["--second-gpu", "1"]).env("GPUS", "2");
    let mut script = command.stdout(Stdio::null()).spawn().unwrap();
    let second = host.out().join("second-gpu");
    while !second.join("verify-decode-1024.json").exists() {
        assert!(script.try_wait().unwrap().is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    script.kill().unwrap();
    script.wait().unwrap();
    let begun = Instant::now();
    let told = || {
        let text = std::fs::read_to_string(second.join("summary.json")).unwrap();
        text.contains("verify was cut short: the script was told to stop")
    };
    while !told() {
        assert!(begun.elapsed() < Duration::from_secs(50), "it goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_ends_with_its_budget() {
    let host = Host::new();
    assert_eq!(host.run("one", "tile", "").0, Some(0));
    let names = ["summary.json", "tile.json", "device.json"];
    let before = names.map(|name| host.json(name));
    host.seen();
    for commit in ["one", "two"] {
        let options = ["--budget", "0", "--second-gpu", "1"];
        let (code, text) = host.run_with(commit, "tile,verify,bench", "", &options);
        assert_eq!(code, Some(1), "{text}");
        let words = "FAILED  the script was told to stop";
        assert!(text.contains(words), "{text}");
        // What was true before is true still.
        assert_eq!(names.map(|name| host.json(name)), before);
        let seen = host.seen().join("\n");
        assert!(
            !seen.contains("verify") && !seen.contains("bench"),
            "{seen}"
        );
    }
}

/// Whenever it ends, the summary claims nothing that is not there.
#[test]
fn nothing_is_deleted_that_the_summary_still_claims() {
    let host = Host::new();
    assert_eq!(host.run("one", "tile,launches", "").0, Some(0));
    let tile = host.out().join("tile.json");
    std::fs::remove_file(&tile).unwrap();
    // It cannot be deleted as a file: the script ends there.
    std::fs::create_dir(&tile).unwrap();
    let (code, text) = host.run("one", "launches,tile", "");
    assert_eq!(code, Some(1), "{text}");
    let parts = host.json("summary.json")["parts"].clone();
    assert_eq!(parts, serde_json::json!({}));
}

#[test]
fn a_failure_stays_until_its_part_runs_anew() {
    let host = Host::new();
    assert_eq!(host.run("one", "tile", "missing").0, Some(1));
    for parts in ["launches,tile", "launches,tile", "tile"] {
        let (code, text) = host.run_with("one", parts, "", &["--resume"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("FAILED"), "{text}");
    }
    let (code, text) = host.run_with("one", "launches", "", &["--resume"]);
    assert_eq!(code, Some(0), "{text}");
    for options in [&["--resume"][..], &["--resume", "--second-gpu", "1"]] {
        let mut summary = host.json("summary.json");
        let part = &mut summary["parts"]["tile"];
        part["cut_short"] = true.into();
        part["failures"] = serde_json::json!(["tile: wrong", "tile was cut short: so"]);
        let text = summary.to_string();
        files::write(&host.out().join("summary.json"), text.as_bytes()).unwrap();
        let (code, text) = host.run_with("one", "tile", "", options);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("FAILED  tile: wrong"), "{text}");
        let part = host.json("summary.json")["parts"]["tile"].clone();
        assert_eq!(part["cut_short"], false, "{part}");
        assert_eq!(part["failures"], serde_json::json!(["tile: wrong"]));
    }
    assert_eq!(host.run("one", "tile", "").0, Some(0));
    // Random problems of a family are computed again, and count.
    let name = "verify-scalar-1024.json";
    assert_eq!(host.run("one", "verify", "").0, Some(0));
    let mut family = host.json(name);
    family["failed"] = 1.into();
    files::write(&host.out().join(name), family.to_string().as_bytes()).unwrap();
    let mut summary = host.json("summary.json");
    summary["parts"]["verify"]["cut_short"] = true.into();
    let text = summary.to_string();
    files::write(&host.out().join("summary.json"), text.as_bytes()).unwrap();
    let (code, text) = host.run_with("one", "verify", "", &["--resume"]);
    assert_eq!(code, Some(1), "{text}");
    let words = "FAILED  verify scalar-1024: 1 failed before";
    assert!(text.contains(words), "{text}");
    assert_eq!(host.json(name)["failed"], 0);
}

/// The script may be killed before the part ends.
#[test]
fn a_failure_is_written_at_once() {
    const CHECKS: &str = r#"
import importlib.util
from types import SimpleNamespace
from host import Evidence

spec = importlib.util.spec_from_file_location("evidence", "__main__.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
evidence = object.__new__(Evidence)
vars(evidence).update(failures=[], compiled=SimpleNamespace(wait=lambda *_: None), prepared=None, ptx=None, options=None)
said = []
def part(own):
    own.fail("wrong")
    assert said[-1]["tile"]["failures"] == ["wrong", "tile was cut short: the script was killed"], said
    said.append("and")
script.PARTS["tile"] = part
script.run_part(evidence, "tile", [], lambda done: said.append(done))
assert [len(done["tile"]["failures"]) for done in said if done != "and"] == [1, 2, 1], said
"#;
    let output = python(CHECKS);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// While its process begins, too.
#[test]
fn a_stop_reaches_the_second_gpu() {
    const CHECKS: &str = r#"
import importlib.util, os, pathlib, signal, subprocess, tempfile
from types import SimpleNamespace
from host import STOP

signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell's background ignores
spec = importlib.util.spec_from_file_location("evidence", "__main__.py")
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
def begins(words, **options):
    STOP.set()
    return subprocess.Popen(["sleep", "60"], **options)
script.subprocess = SimpleNamespace(Popen=begins, STDOUT=subprocess.STDOUT)
folder = pathlib.Path(tempfile.mkdtemp())
options = dict.fromkeys(("fa3", "fa4", "flashinfer", "cudnn", "without_peers", "resume", "seed", "count", "long_count", "samples"))
evidence = SimpleNamespace(folder=folder, options=SimpleNamespace(**options), second_gpu="1")
cores = os.sched_getaffinity(0)
other = script.OtherGpu(evidence, ["tile"], cores, {})
try:
    assert other.process.wait(20) == -2
finally:
    other.process.kill()
    script.shutil.rmtree(folder)
"#;
    let output = python(CHECKS);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

#[test]
fn a_summary_is_of_one_kind_of_gpu() {
    let host = Host::new();
    assert_eq!(host.run("one", "tile", "").0, Some(0));
    let before = host.json("summary.json");
    for options in [&["--gpu", "1"][..], &["--gpu", "1", "--resume"]] {
        let (code, text) = host.run_with("one", "launches", "", options);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("device NVIDIA H200"), "{text}");
        assert!(text.contains("device NVIDIA H100"), "{text}");
        assert_eq!(host.json("summary.json"), before);
    }
    let other = host.directory.path().join("other");
    let of_other = |device: &str| {
        let mut summary = before.clone();
        summary["device"] = device.into();
        let text = summary.to_string();
        files::write(&other.join("summary.json"), text.as_bytes()).unwrap();
        files::write(&other.join("logs/tile.log"), b"theirs").unwrap();
        files::write(&other.join("logs/else.log"), b"theirs").unwrap();
        host.run_with("one", "tile", "", &["--join", "other"])
    };
    let (code, text) = of_other("NVIDIA H100");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("device NVIDIA H100"), "{text}");
    // A part that is not taken keeps its log.
    let (code, text) = of_other("NVIDIA H200");
    assert_eq!(code, Some(0), "{text}");
    let log = |name: &str| std::fs::read_to_string(host.out().join("logs").join(name)).unwrap();
    assert_ne!(log("tile.log"), "theirs");
    assert_eq!(log("else.log"), "theirs");
    std::fs::remove_file(host.out().join("summary.json")).unwrap();
    assert_eq!(of_other("NVIDIA H200").0, Some(0));
    assert_eq!(log("tile.log"), "theirs");
}

#[test]
fn parts_of_one_commit_are_put_together() {
    let host = Host::new();
    let (code, text) = host.run("one", "backward", "inexact");
    assert_eq!(code, Some(1), "{text}");
    let words = "FAILED  backward: no error of fa3 for b2 q512 k512 h8 d64 bf16 backward";
    assert!(text.contains(words), "{text}");
    let (code, text) = host.run("one", "peers,errors,decode,backward,bench", "");
    assert_eq!(code, Some(0), "{text}");
    let gradients = host.json("backward.json")["rows"].clone();
    assert_eq!(gradients.as_array().unwrap().len(), 2, "{gradients}");
    assert_eq!(gradients[0]["error_rms"], 1e-4);
    let summary = host.json("summary.json");
    assert_eq!(summary["passed"], false, "parts are missing");
    assert_eq!(summary["missing"].as_array().unwrap().len(), 11);
    let line = "2.0 us  4.000 TB/s; fa3             4.0 us, ratio 2.000; 1.250 of reading's 1.6 us; 1.100 with splits=512; k";
    assert!(text.contains(line), "{text}");

    let line = "ratio to the best peer, other problems  2.000 (mean of 1), 0 under 1.00, lowest 2.00: b2 q9 k9 h8 d64 f16";
    assert!(text.contains(line), "{text}");
    assert_eq!(host.json("other.json")["rows"].as_array().unwrap().len(), 3);
    let peers = host.json("bench-peers.json")["rows"].clone();
    assert_eq!(peers.as_array().unwrap().len(), 2, "{peers}");

    let starts = host.json("start.json")["rows"].clone();
    assert_eq!(starts.as_array().unwrap().len(), 11, "{starts}");
    assert_eq!(starts[0]["since_main"]["result"], 210.25);
    assert!(starts[0]["milliseconds"].as_f64().unwrap() > 0.0);
    assert!(text.contains(" in the median of 11 processes"), "{text}");

    let absent = host.json("decode.json")["absent"].clone();
    assert_eq!(absent.as_array().unwrap().len(), 1);
    assert_eq!(absent[0]["backend"], "cudnn (dispatched)");
    assert_eq!(absent[0]["problem"], "b1 q1 k8192 h8 d64 f16");
    assert_eq!(absent[0]["reason"], "no pages: none");

    let (code, text) = host.run(
        "one",
        "options,ncu,tune,verify,launches,tile,acceptance,examples,sanitizer,tests,alone",
        "",
    );
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "ratio to the best peer, f16 ",
        "2.000 (mean of 1)",
        "0 differing bits over 10002 compositions",
        "random problems to 1024, wgmma ",
        "random problems to 4096, wgmma ",
        "random problems to 1024 in pages, wmma ",
        "random cases, merge ",
        "decode against the best peer ",
        "0 of 1 lost, lowest 2.000: b1 q1 k8192 h8 d64 f16",
        "0 of 1 within 1.02, highest 1.250",
        "decode with splits=512 ",
        "1.100 of the time without (mean of 1), highest 1.100",
        "5 on few multiprocessors, 1 drew tiles; 10 a second on 16 threads",
        "1 of 1 persistent ones drew tiles",
        "500 launches, waiting: none ",
        "1 problems in ",
        " s, 1 choices changed, 1.090 and more once more\n",
        "tiles, each score and weight ",
        "example decoder ",
        "NVIDIA H200; CPU\n",
        "1000 replays with 12 sequences, 0 of them differ\n",
        "broken kernel caught",
        "part peers ",
        "3 of 3 passed; 2 left out, which need several GPUs\n",
        "part tests ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let summary = host.json("summary.json");
    assert_eq!(summary["passed"], true, "{summary}");
    // Each file says what it is about.
    for name in host.written() {
        let file = host.json(&name);
        assert_eq!(file["commit"], "one", "{name}");
        assert_eq!(file["device"], "NVIDIA H200", "{name}");
    }
    // A counter of another pipe is not even asked for.
    let profiles = host.json("ncu.json")["profiles"].clone();
    assert_eq!(profiles.as_array().unwrap().len(), 2);
    let sanitized = host.json("sanitizer.json");
    let rows = sanitized["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 4);
    assert_eq!(sanitized["controls"][0]["errors"], 3, "{sanitized}");
    for image in ["merge_w4_sm_90", "scalar_sm_90", "dq_sm_90"] {
        let of_image = rows.iter().filter(|row| row["images"][image] == "ab");
        assert_eq!(of_image.count(), 4, "{image}: {rows:?}");
    }
    assert_eq!(
        host.json("acceptance.json")["rows"]
            .as_array()
            .unwrap()
            .len(),
        // Two families compiled for this GPU and one as PTX, in the element type that each has.
        3 * 5
    );
    let left_out = host.json("tests.json")["left_out"].clone();
    assert_eq!(left_out[0]["test"], "c::d");
    assert_eq!(left_out[0]["needs"], "needs two NVIDIA GPUs");
    assert_eq!(host.json("default.json")["rows"][0]["backend"], "default");
    // Of all that every part wrote, nothing stays beside what another commit's part writes.
    assert_eq!(host.run("two", "tile", "").0, Some(0));
    let mut written = host.written();
    written.sort_unstable();
    let expected = ["device.json", "info.json", "summary.json", "tile.json"];
    assert_eq!(written, expected);
}

/// By the UUID, whichever way the driver counts; every command takes the first GPU that it sees.
#[test]
fn the_gpu_that_is_asked_for_is_the_only_one_that_is_seen() {
    let host = Host::new();
    let (code, text) = host.run_with("one", PARTS, "", &["--gpu", "1"]);
    assert_eq!(code, Some(0), "{text}");
    for line in host.seen() {
        assert!(line.contains(" on GPU-b: "), "{line}");
    }
    for name in host.written() {
        assert_eq!(host.json(&name)["device"], "NVIDIA H100", "{name}");
    }
    let both = ["--gpu", "1", "--second-gpu", "0"];
    let (code, text) = host.run_with("one", "bench,tile", "", &both);
    assert_eq!(code, Some(0), "{text}");
    for line in host.seen() {
        let tile = line.contains("--tile");
        let gpu = if tile { " on GPU-a: " } else { " on GPU-b: " };
        // Both ask the program what there is.
        assert!(line.contains(gpu) || line.contains(": info "), "{line}");
    }
    assert_eq!(host.json("noise.json")["device"], "NVIDIA H100");
    assert_eq!(host.json("tile.json")["device"], "NVIDIA H200");
    // How many GPUs nvidia-smi lists, what may be seen of them, and which one is asked for.
    for (gpus, visible, number, expected) in [
        ("1", None, "0", Ok("all")),
        ("1", Some("0"), "0", Ok("0")),
        ("0", None, "0", Ok("all")),
        ("0", None, "1", Ok("1")),
        ("0", Some("MIG-c"), "0", Ok("MIG-c")),
        ("2", None, "0", Ok("GPU-a")),
        ("2", Some("1,0"), "0", Ok("GPU-b")),
        ("2", Some("1,0"), "1", Ok("GPU-a")),
        ("2", Some("GPU-b"), "0", Ok("GPU-b")),
        (
            "1",
            None,
            "1",
            Err("there is no GPU 1; those that can be seen: 0"),
        ),
        (
            "2",
            Some("1"),
            "1",
            Err("there is no GPU 1; those that can be seen: 1"),
        ),
    ] {
        let _ = std::fs::remove_dir_all(host.out());
        let mut command = host.command("one", "tile", "");
        command.env("GPUS", gpus).args(["--gpu", number]);
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        let (code, text) = said(command.output().unwrap());
        match expected {
            Ok(gpu) => {
                assert_eq!(code, Some(0), "{text}");
                for line in host.seen() {
                    assert!(line.contains(&format!(" on {gpu}: ")), "{line}");
                    // As nvidia-smi counts.
                    let of_program = line.starts_with("warptile ");
                    assert!(!of_program || line.ends_with(" by PCI_BUS_ID"), "{line}");
                }
            }
            Err(words) => {
                assert_eq!(code, Some(2), "{text}");
                assert!(text.contains(words), "{text}");
            }
        }
    }
}

#[test]
fn nothing_of_another_commit_stays() {
    let host = Host::new();
    assert_eq!(host.run("one", "peers,verify", "").0, Some(0));
    // An image that ran on both lengths has one record.
    assert_eq!(
        host.json("images.json")["images"]["wgmma_sm_90a"]["passed"],
        4
    );
    assert_eq!(
        host.json("verify.json")["rows"].as_array().unwrap().len(),
        // Of lengths, pages, gradients and an operation.
        4 * 2 + 1 + 2 + 1
    );
    assert_eq!(
        host.json("images.json")["images"]["merge_w4_sm_90"]["passed"],
        2000
    );
    assert!(host.out().join("verify-wgmma-1024.json").exists());
    assert!(host.out().join("verify-wmma-paged-1024.json").exists());
    let kept = ["cpu.json", "baseline-nvidia-h200.json"];
    for name in kept {
        files::write(&host.out().join(name), b"{}").unwrap();
    }
    assert_eq!(host.run("two", "tests", "").0, Some(0));
    let present = |name: &str| host.out().join(name).exists();
    assert!(!present("bench-peers.json") && !present("verify-wgmma-1024.json"));
    assert!(present("tests.json") && kept.into_iter().all(present));
    assert_eq!(
        host.json("summary.json")["missing"]
            .as_array()
            .unwrap()
            .len(),
        15
    );
}

#[test]
fn a_second_gpu_does_the_rest_meanwhile() {
    let host = Host::new();
    let second = ["--second-gpu", "1"];
    let (code, text) = host.run_with("one", PARTS, "", &second);
    assert_eq!(code, Some(0), "{text}");
    let summary = host.json("summary.json");
    assert_eq!(summary["passed"], true, "{summary}");
    for name in ["bench-peers.json", "tune.json", "tile.json", "tests.json"] {
        assert_eq!(host.json(name)["commit"], "one", "{name}");
    }
    assert!(!host.out().join("second-gpu").exists());
    let run = summary["runs"][0].clone();
    assert_eq!(run["gpus"], 2);
    assert_eq!(run["parts"].as_array().unwrap().len(), 16);
    let seconds = |of: &Value| of["seconds"].as_f64().unwrap();
    assert!(summary["in_turn"].as_f64().unwrap() > 0.0);
    let parts = summary["parts"].as_object().unwrap();
    assert!(parts.values().all(|part| seconds(part) <= seconds(&run)));
    // A peer that was named must be there.
    for (fault, expected) in [("", Some(0)), ("without", Some(1))] {
        let (code, text) = host.run_with("one", "errors,peers", fault, &["--fa4", "site"]);
        assert_eq!(code, expected, "{text}");
        let named = text.contains("FAILED  peers: fa4 was asked for and has no row");
        assert_eq!(named, fault == "without", "{text}");
    }
    // Its failures are failures, and of another commit nothing stays.
    let (code, text) = host.run_with("two", "decode,tile", "missing", &second);
    assert_eq!(code, Some(1), "{text}");
    let words = "FAILED  tile: scalar_sm_90 computed no tile";
    assert!(text.contains(words), "{text}");
    let parts = host.json("summary.json")["parts"].clone();
    assert_eq!(parts.as_object().unwrap().len(), 2, "{parts}");
    assert_eq!(parts["decode"]["passed"], true);
    assert_eq!(parts["tile"]["passed"], false);
    assert!(!host.out().join("tune.json").exists());
}

/// Once for each peer, for all parts that need it, and on the second GPU if there is one.
#[test]
fn what_peers_compile_is_compiled_in_advance() {
    let host = Host::new();
    let places = ["--fa4", "site", "--flashinfer", "folder"];
    let all = "--fa4=site --flashinfer=folder on";
    for (parts, options, expected) in [
        (
            "errors",
            &places[..2],
            vec!["fa4 --fa4=site on None".into()],
        ),
        (
            "decode",
            &places[2..],
            vec!["flashinfer --flashinfer=folder on None".into()],
        ),
        (
            "peers,decode",
            &places[..],
            vec![format!("fa4 {all} None"), format!("flashinfer {all} None")],
        ),
        ("verify,bench", &places[..], vec![]),
        (
            "peers",
            &[&places[..2], &["--second-gpu", "1"]].concat()[..],
            vec!["fa4 --fa4=site on GPU-b".into()],
        ),
        (
            "peers",
            &[&places[..2], &["--without-peers"]].concat()[..],
            vec![],
        ),
    ] {
        let log = host.directory.path().join("compiled");
        let _ = std::fs::remove_file(&log);
        // The peers that the scripts know have no rows of decode: what was asked for is missing there.
        host.run_with("one", parts, "", options);
        let mut lines: Vec<String> = std::fs::read_to_string(&log)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort_unstable();
        assert_eq!(lines, expected, "{parts} {options:?}");
    }
    let without = ["--without-peers"];
    let (code, text) = host.run_with(
        "one",
        "bench,ncu,tune,errors,peers,decode,backward",
        "",
        &without,
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains(" s by the clock, on 1 GPU\npassed; see "),
        "{text}"
    );
    // A program that cannot be compiled is a failure of the parts that use it, and of no other.
    let (code, text) = host.run_with("one", "errors,bench,decode", "uncompiled", &places);
    assert_eq!(code, Some(1), "{text}");
    let parts = host.json("summary.json")["parts"].clone();
    for (part, peer) in [("errors", "fa4"), ("decode", "flashinfer")] {
        let words = format!("compiling {peer}: exit code 3");
        assert!(parts[part].to_string().contains(&words), "{parts}");
    }
    assert_eq!(parts["bench"]["passed"], true, "{parts}");
}

/// Found out at once, not after minutes, and before anything is deleted.
#[test]
fn a_peer_that_is_named_must_be_there() {
    let host = Host::new();
    assert_eq!(host.run("one", "errors,decode", "").0, Some(0));
    let before = host.json("decode.json");
    for commit in ["one", "two"] {
        let (code, text) = host.run(commit, "bench,decode", "absent");
        assert_eq!(code, Some(2), "{text}");
        let words = "a peer that was named is not there:\nfa3: not installed (no such file)";
        assert!(text.contains(words), "{text}");
        assert_eq!(host.json("decode.json"), before);
        assert!(!host.out().join("noise.json").exists());
    }
    // Parts without peers do not mind.
    assert_eq!(host.run("one", "bench", "absent").0, Some(0));
    assert_eq!(host.json("decode.json"), before);
}

#[test]
fn what_proves_nothing_is_a_failure() {
    let host = Host::new();
    for (fault, part, words) in [
        (
            "blind",
            "sanitizer",
            "memcheck did not catch its broken kernel",
        ),
        ("idle", "verify", "wgmma_sm_90a drew no tile"),
        (
            "wide",
            "verify",
            "verify wgmma 1024: only 3 of 10 problems were planned for few multiprocessors",
        ),
        (
            "missing",
            "launches",
            "launches each: scalar_sm_90 computed no problem",
        ),
        ("missing", "tile", "tile: scalar_sm_90 computed no tile"),
        ("pages", "verify", "no image takes keys and values in pages"),
        (
            "silent",
            "verify",
            "verify merge: merge_w4_sm_90 computed nothing",
        ),
        (
            "silent",
            "sanitizer",
            "memcheck merge: merge_w4_sm_90 computed nothing",
        ),
        (
            "alone",
            "decode",
            "decode: no time for b1 q1 k8192 h8 d64 f16",
        ),
        (
            "few",
            "tests",
            "batch invariance: 100 compositions, no bit differs",
        ),
        ("ends", "decode", "decode: exit code 1"),
        ("cut", "bench", "bench noise: exit code 3"),
        ("dead", "bench", "start: exit code 1:"),
        ("worse", "tune", "tune: p has 0.970 of its speed before"),
        ("late", "tune", "tune: 1 problems were not reached in 180 s"),
        ("lonely", "examples", "example decoder: exit code 3"),
        ("dispute", "examples", "example decoder: exit code 0"),
    ] {
        let (code, text) = host.run("one", part, fault);
        assert_eq!(code, Some(1), "{fault}: {text}");
        assert!(text.contains(words), "{fault}: {text}");
        assert_eq!(host.json("summary.json")["parts"][part]["passed"], false);
    }
    // Rows that were measured before a failure are kept.
    assert_eq!(host.run("one", "decode", "ends").0, Some(1));
    let measured = host.json("decode.json");
    assert_eq!(measured["rows"].as_array().unwrap().len(), 5);
    assert_eq!(host.run("one", "bench", "cut").0, Some(1));
    assert_eq!(host.json("noise.json")["rows"].as_array().unwrap().len(), 2);
    assert_eq!(host.run("one", "tset", "").0, Some(2));
    assert!(
        PARTS
            .split(',')
            .all(|part| host.run("one", "tset", "").1.contains(part))
    );
}

#[test]
fn rows_of_decode_that_lose_are_named_and_no_failure() {
    let host = Host::new();
    let (code, text) = host.run("one", "decode", "slow");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("ratio 0.950 LOST"), "{text}");
    assert!(text.contains("1 of 1 lost, lowest 0.950"), "{text}");
}

/// Pages of one tensor and of two are problems of their own, and both are compared with the same dense keys.
#[test]
fn pages_are_compared_with_dense_keys() {
    const CHECKS: &str = r#"
from summary import decode_lines, side_by_side

def row(problem, backend, time):
    return {"problem": problem, "backend": backend, "method": "graph", "median_us": time, "tb_s": 4.0, "kernel": "k"}

dense = "b1 q1 k8 h1 d8 f16"
problems = {dense: 10.0, f"{dense} pages=16": 10.2, f"{dense} layout=interleaved pages=16": 10.1}
rows = [row(problem, *of) for problem, time in problems.items() for of in (("warptile", time), ("fa3", 2 * time))]
lines = {line.split("  ")[0]: line for line in decode_lines(side_by_side(rows))}
assert list(map(len, (lines, problems))) == [3, 3], lines
assert "of dense" not in lines[dense], lines
for problem, expected in zip(list(problems)[1:], ("1.020 of dense", "1.010 of dense")):
    assert expected in lines[problem] and "ratio 2.000" in lines[problem], lines
"#;
    let output = python(CHECKS);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}
