//! The kernels on wgmma as C++ of the CPU, whose warps, copies and messages come in random order: nobody waits for
//! ever, and nothing is read before it is there (kernels/emulation/README.md). Needs g++ 12 or newer.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use xtask::files;
use xtask::instances::{self, Element, Instance};

/// Problems for each tiling: many, because windows of boxes that end within a tile are rare.
const PROBLEMS: u32 = 80;

/// Seeds of `decode.cpp`, which has a list of tilings of its own: each is there for one of six.
const SEEDS: u32 = 6;

/// The rows of `instances.toml`. Those for softcap wait for nothing else than plain ones.
fn rows() -> Vec<Instance> {
    let listed = instances::load(&files::repository_root().join("kernels/instances.toml")).unwrap();
    listed
        .into_iter()
        .filter(|instance| instance.family == "wgmma" && instance.element == Element::F16)
        .collect()
}

/// A line of what kernels/emulation/wgmma.cpp includes.
fn line(instance: &Instance) -> String {
    let tiling = &instance.tiling;
    let variant = instance.variant.as_deref().unwrap_or("plain");
    let variant = variant.to_uppercase();
    format!(
        "TILING({}, {}, {}, {}, {}, {}, {variant})\n",
        tiling.head_dim,
        tiling.value_dim(),
        tiling.block_m,
        tiling.block_n,
        tiling.warps,
        tiling.stages
    )
}

/// Compiles the emulation of some tilings out of `kernels`, and runs it: what it says, and whether all problems passed.
fn emulate(kernels: &Path, tilings: &str) -> (String, bool) {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tilings");
    std::fs::write(&list, tilings).unwrap();
    let program = folder.path().join("wgmma");
    let tilings = format!("-DTILINGS=\"{}\"", list.display());
    let folders = ["emulation/hopper", "emulation", "generated", ""];
    compile(kernels, &folders, &tilings, "wgmma.cpp", &program);
    run(&program, &[&PROBLEMS.to_string()])
}

/// Compiles a file of kernels/emulation, which looks for headers in these folders of `kernels` one after the other.
fn compile(kernels: &Path, folders: &[&str], option: &str, source: &str, program: &Path) {
    let include = |inner: &&str| format!("-I{}", kernels.join(inner).display());
    let compiled = Command::new("g++")
        // Compiled with `-Og` in half of the time that `-O1` takes, they run a quarter longer.
        .args(["-std=c++20", "-Og", "-pthread", "-fno-strict-aliasing"])
        .args(["-Wno-unknown-pragmas", option])
        // Otherwise each conversion of f16 is a call.
        .args(cfg!(target_arch = "x86_64").then_some("-mf16c"))
        .args(folders.iter().map(include))
        .arg(kernels.join("emulation").join(source))
        .arg("-o")
        .arg(program)
        .output()
        .expect("g++ 12 or newer");
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
}

fn run(program: &Path, arguments: &[&str]) -> (String, bool) {
    let run = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    (said, run.status.success())
}

#[test]
fn every_kernel_on_wgmma_ends_and_reads_what_is_there() {
    let kernels = files::repository_root().join("kernels");
    let rows = rows();
    assert!(!rows.is_empty());
    let programs = thread::available_parallelism().map_or(1, |count| count.get().min(rows.len()));
    // Neighbours take about as long.
    let mut lists = vec![String::new(); programs];
    for (index, instance) in rows.iter().enumerate() {
        lists[index % programs].push_str(&line(instance));
    }
    let results: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = { lists.iter() }
            .map(|list| scope.spawn(|| emulate(&kernels, list)))
            .collect();
        { running.into_iter() }
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let mut said = String::new();
    for (text, _) in &results {
        write!(said, "{text}").unwrap();
    }
    assert!(results.iter().all(|(_, passed)| *passed), "{said}");
}

/// `decode` and `mma`, also while what the device holds of lengths and pages changes.
#[test]
fn kernels_on_mma_are_right_and_do_no_harm() {
    let kernels = files::repository_root().join("kernels");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("decode");
    let folders = ["emulation", "generated", ""];
    compile(&kernels, &folders, "-includeshim.h", "decode.cpp", &program);
    let (seeds, few) = (SEEDS.to_string(), (SEEDS / 3).to_string());
    let runs: [&[&str]; 2] = [&[&seeds], &[&few, "changes"]];
    thread::scope(|scope| {
        for arguments in runs {
            let program = &program;
            scope.spawn(move || {
                let (said, passed) = run(program, arguments);
                assert!(passed, "{said}");
            });
        }
    });
}

/// The kernels' sources with a change of some.
fn changed(to: &Path, changes: &[(&str, &str, &str)]) -> PathBuf {
    let kernels = to.join("kernels");
    for path in files::list(&files::repository_root().join("kernels")).unwrap() {
        copy(&path, &kernels.join(path.file_name().unwrap()));
    }
    for (file, before, after) in changes {
        let path = kernels.join(file);
        let text = files::read_text(&path).unwrap();
        assert_eq!(text.matches(before).count(), 1, "{file}: {before}");
        std::fs::write(&path, text.replace(before, after)).unwrap();
    }
    kernels
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for path in files::list(from).unwrap() {
            copy(&path, &to.join(path.file_name().unwrap()));
        }
    } else {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
}

/// With a loading thread that does not keep pace with those who load out of pages, and, as they have been, CTAs of a
/// pair that end while they are still told something.
#[test]
fn kernels_that_get_ahead_or_write_to_nobody_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = changed(
        folder.path(),
        &[
            (
                "forward/wgmma_producer.cuh",
                "barrier_wait(full + 8, keys_at.parity ^ 1);",
                "if (block == top) barrier_wait(full + 8, keys_at.parity ^ 1);",
            ),
            ("forward/wgmma.cuh", "cluster_leave();", "cluster_sync();"),
        ],
    );
    let tilings =
        "TILING(128, 128, 64, 128, 8, 2, SERVING)\nTILING(256, 256, 128, 64, 12, 2, PAIRS)\n";
    let (said, passed) = emulate(&kernels, tilings);
    assert!(!passed, "{said}");
    // Which of them comes first is random.
    let ahead = ["more arrivals than a phase has", "parity"];
    assert!(ahead.iter().any(|words| said.contains(words)), "{said}");
    assert!(said.contains("arrives at CTA"), "{said}");
}

/// With a loading thread that tells the next tile before the last one in its slot has been read. Those who load out
/// of pages fall so far behind where most tiles have no keys.
#[test]
fn tiles_that_are_told_too_early_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let wait = "if constexpr (PAGED) barrier_wait(layout.tile_empty(this->told_at.stage), this->told_at.parity ^ 1);";
    let change = ("forward/wgmma_producer.cuh", wait, "");
    let kernels = changed(folder.path(), &[change]);
    let (said, passed) = emulate(&kernels, "TILING(128, 128, 64, 128, 8, 2, SERVING)\n");
    assert!(!passed && said.contains("phases behind"), "{said}");
}

/// A share that is left out, and words that are left behind.
#[test]
fn sums_that_leave_something_behind_or_out_are_found() {
    let file = "forward/wgmma_joint_sum.cuh";
    for (before, after, found) in [
        ("*word(split) = 0;", "", "a semaphore is left"),
        ("return found == LEFT ? 1 : 0;", "return 0;", "expected"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let kernels = changed(folder.path(), &[(file, before, after)]);
        let tiling = "TILING(128, 128, 128, 128, 12, 2, SERVING_GROUPS)\n";
        let (said, passed) = emulate(&kernels, tiling);
        assert!(!passed && said.contains(found), "{said}");
    }
}
