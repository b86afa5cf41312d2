//! The program on a GPU that is none: the stand-in for the driver. It launches nothing, and each operation takes a millisecond.

use crate::common::{expect_code, warptile};
use std::fs;
use std::path::Path;
use std::process::Command;
use warptile_fake_cuda::{DEVICES, FakeDriver, KERNEL_TIMES};
use warptile_fake_nccl::FakeNccl;

/// The program with the stand-in as its driver, on a terminal of 80 columns.
fn on(fake: &FakeDriver) -> Command {
    let mut command = warptile();
    command
        .env("WARPTILE_LIBCUDA", fake.path())
        .env("COLUMNS", "80");
    command
}

#[track_caller]
fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

const LONG: &str = "b2 q400 k600 h2 d16 f16 mask=window,100,100 scale=0.125 softcap=30 alibi=batch layout=gaps unaligned";

#[test]
fn the_machine_is_described() {
    let fake = FakeDriver::open();
    let (info, _) = expect_code(0, on(&fake).arg("info"));
    fits(&info);
    for part in [
        "driver   CUDA 12.8",
        "cuda:0 ",
        "chosen on cuda:0",
        "wgmma_d64_",
    ] {
        assert!(info.contains(part), "{part}: {info}");
    }
    let (explained, _) = expect_code(0, on(&fake).args(["info", "--explain"]));
    fits(&explained);
    let (version, _) = expect_code(0, on(&fake).arg("--version"));
    fits(&version);
    for line in info.lines().filter(|line| line.starts_with("cuda:0 ")) {
        assert!(version.contains(line), "{version}");
    }
    let (plan, _) = expect_code(0, on(&fake).args(["plan", LONG]));
    fits(&plan);
    assert!(plan.contains("compute capability 9.0"), "{plan}");
    assert!(plan.contains("\nforward  "), "{plan}");
}

#[test]
fn several_gpus_say_whose_memory_they_reach() {
    let fake = FakeDriver::open();
    let (one, _) = expect_code(0, on(&fake).arg("info"));
    assert!(!one.contains("reaches"), "{one}");
    assert!(!one.contains("nccl"), "{one}");
    let nccl = FakeNccl::open(fake.path());
    let three = |nccl: &Path| {
        let mut info = on(&fake);
        info.env(DEVICES, "3").env("WARPTILE_LIBNCCL", nccl);
        let (json, three) = expect_code(0, info.args(["info", "--json", "-"]));
        fits(&three);
        (json, three)
    };
    let (_, none) = three(Path::new("/nowhere/libnccl.so.2"));
    assert!(none.contains("nccl     none: NCCL not found"), "{none}");
    let (json, three) = three(nccl.path());
    assert!(three.contains("nccl     2.28.9, "), "{three}");
    let reaches = three.lines().filter(|line| line.starts_with("reaches  "));
    assert_eq!(
        Vec::from_iter(reaches),
        [
            "reaches  the memory of cuda:1, cuda:2",
            "reaches  the memory of cuda:0, cuda:2",
            "reaches  the memory of cuda:0, cuda:1",
        ]
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["devices"][1]["reaches"], serde_json::json!([0, 2]));
}

/// Nothing is launched, so outputs stay NaN.
#[test]
fn a_tile_that_is_not_computed_fails_and_is_named() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tile.json");
    for (kernel, keys) in [
        ("wmma_d64_32x64_w4_s2_f16_sm_90", 64),
        ("wgmma_d64_256x64_w20_s6_bf16_sm_90a", 64),
        // They take no problem without lists of blocks or a mask.
        ("wgmma_d64_128x128_w12_s2_f16_blocks_sm_90a", 128),
        ("wgmma_d192_128x64_w12_s3_f16_mask_sm_90a", 64),
    ] {
        let mut command = on(&fake);
        command.args(["verify", "--tile", "--kernel", kernel, "--json"]);
        let (stdout, stderr) = expect_code(1, command.arg(&file));
        fits(&stdout);
        assert!(stdout.contains("row 0, column 0: score NaN"), "{stdout}");
        let again = format!("warptile verify --tile --kernel {kernel} --seed 0");
        assert!(stderr.contains(&again), "{stderr}");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let tile = &record["tiles"][0];
        assert_eq!(tile["keys"], keys);
        assert_eq!(tile["fault"]["quantity"], "score");
        assert_eq!(
            (&record["passed"], &record["failed"]),
            (&0.into(), &1.into())
        );
    }
}

/// The simpler problems of a failing one may break the device.
#[test]
fn what_failed_is_written_before_it_is_made_smaller() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    // Without rows all is right.
    let (right, wrong) = ("b1 q0 k64 h2 d128 f16", "b1 q64 k64 h2 d128 f16");
    let (json, _) = expect_code(0, on(&fake).args(["plan", wrong, "--json", "-"]));
    let plans: serde_json::Value = serde_json::from_str(&json).unwrap();
    let kernel = plans[0]["kernel"].as_str().unwrap();
    let mut command = on(&fake);
    command.env(
        KERNEL_TIMES,
        format!("warptile_{kernel}_=1000,warptile_=nan"),
    );
    command.args(["verify", "--case", right, "--case", wrong, "--json"]);
    expect_code(3, command.arg(&file));
    let record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let counts = ["count", "passed", "failed"].map(|name| record[name].as_u64().unwrap());
    assert_eq!(counts, [2, 1, 1], "{record}");
    assert_eq!(record["cut_short"], true);
}

/// Gradients that are not computed stay NaN, and the kernel that was to compute them is named.
#[test]
fn gradients_are_verified_by_family() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let mut command = on(&fake);
    command.args(["verify", "--backward", "--count", "4", "--max-len", "40"]);
    command.args(["--kernel", "dqkv", "--each-kernel", "--json"]);
    let (stdout, stderr) = expect_code(1, command.arg(&file));
    fits(&stdout);
    assert!(
        stderr.contains("warptile verify --device auto --kernel dqkv_d")
            && stderr.contains(" backward"),
        "{stderr}"
    );
    let totals: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let images = totals["images"].as_object().unwrap();
    assert!(!images.is_empty());
    for (name, image) in images {
        assert!(name.starts_with("dqkv_d"), "{name}");
        assert_eq!(image["persistent"], true, "{name}");
    }
    let mut command = on(&fake);
    command.args(["verify", "--kernel", "dkv_d64_64x64_w4_s2_f16_sm_90"]);
    command.args(["--case", "q100 k100 d64 f16 backward", "--repeat", "2"]);
    let (stdout, stderr) = expect_code(1, &mut command);
    assert!(stdout.contains("dkv 1"), "{stdout}");
    // A command that is taken.
    assert!(stderr.contains(" --repeat 2 --case "), "{stderr}");
}

/// A kernel is proven to draw tiles by those that it drew itself: here only `wdq` has more of them than CTAs.
#[test]
fn tiles_that_another_kernel_draws_prove_nothing() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    for (kernel, drew) in [
        ("wdkv_d192_64x64_w12_s3_f16_sm_90a", false),
        ("wdq_d192_128x64_w12_s3_f16_sm_90a", true),
    ] {
        let mut command = on(&fake);
        command.args(["verify", "--kernel", kernel, "--multiprocessors", "1"]);
        command.args(["--case", "b1 q2000 k64 h1 d192 f16 backward", "--json"]);
        expect_code(1, command.arg(&file));
        let totals: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let row = &totals["problems"][0];
        assert_eq!(
            (&row["image"], &row["drew_tiles"]),
            (&kernel.into(), &drew.into())
        );
    }
}

/// No mma kernel fits in 1 KiB: nothing was verified, which is no success.
#[test]
fn an_image_without_a_problem_is_told() {
    let fake = FakeDriver::open();
    let mut command = on(&fake);
    command.args(["verify", "--device", "cuda:0", "--each-kernel"]);
    command.args(["--kernel", "mma", "--shared-kib", "1"]);
    let (_, stderr) = expect_code(2, &mut command);
    assert!(stderr.contains("shared memory"), "{stderr}");
}

#[test]
fn rows_of_a_gpu_fit_and_are_compared() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.json");
    let bench = |arguments: &[&str]| {
        let mut command = on(&fake);
        command.args(["bench", "--samples", "3", "--chart", "--shape", LONG]);
        command
            .args(["--shape", "q1 k4096 h8/2 d64 f16"])
            .args(arguments);
        let (stdout, _) = expect_code(0, &mut command);
        fits(&stdout);
        stdout
    };
    let stdout = bench(&["--json", rows.to_str().unwrap()]);
    for method in ["  graph ", "  call  "] {
        assert_eq!(stdout.matches(method).count(), 2, "{stdout}");
    }
    for word in LONG.split(' ') {
        assert!(
            stdout.split_whitespace().any(|one| one == word),
            "{word}: {stdout}"
        );
    }
    assert!(
        stdout.contains("B/s") && stdout.contains("FLOP/s"),
        "{stdout}"
    );
    let read: serde_json::Value = serde_json::from_slice(&fs::read(&rows).unwrap()).unwrap();
    let read = read.as_array().unwrap();
    assert_eq!(read.len(), 4);
    for row in read {
        assert_eq!(row["driver"], "CUDA 12.8");
        assert!(
            row["program"].as_str().unwrap().starts_with("warptile "),
            "{row}"
        );
    }
    // A launch takes a millisecond, now as before.
    let stdout = bench(&["--compare", rows.to_str().unwrap()]);
    assert_eq!(stdout.matches("  1.000 ").count(), 4, "{stdout}");
    assert!(!stdout.contains("differs"), "{stdout}");
    // An older driver and program are named.
    let older = fs::read_to_string(&rows)
        .unwrap()
        .replace("CUDA 12.8", "CUDA 12.4");
    fs::write(
        &rows,
        older.replace("\"program\": \"warptile ", "\"program\": \"old "),
    )
    .unwrap();
    let stdout = bench(&["--compare", rows.to_str().unwrap()]);
    assert!(
        stdout.contains("differs  driver: CUDA 12.4, then CUDA 12.8"),
        "{stdout}"
    );
    assert!(stdout.contains("differs  program: old "), "{stdout}");
    // Kernels told apart.
    let mut command = on(&fake);
    command.args([
        "bench",
        "--samples",
        "1",
        "--kernel",
        "families",
        "--shape",
        "q64 k64 d64 f16",
    ]);
    let (stdout, _) = expect_code(0, &mut command);
    fits(&stdout);
    for family in ["scalar_", "wmma_", "mma_", "wgmma_", "decode_"] {
        assert!(stdout.contains(family), "{stdout}");
    }
}

/// Gradients are timed as attention is: all their steps in a replayed graph, and calls.
#[test]
fn gradients_are_timed_by_kernel_and_by_target() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    let problem = "b2 q512 k512 h8/2 d64 f16 mask=causal backward";
    let rows = |arguments: &[&str]| {
        let mut command = on(&fake);
        command.args(["bench", "--samples", "2", "--shape", problem]);
        command.args(arguments).arg("--json").arg(&file);
        let (stdout, _) = expect_code(0, &mut command);
        fits(&stdout);
        let rows: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let rows = rows.as_array().unwrap().clone();
        assert!(rows.iter().all(|row| row["problem"] == problem), "{rows:?}");
        rows
    };
    let families = |rows: &[serde_json::Value], method: &str| -> Vec<String> {
        let of_method = rows.iter().filter(|row| row["method"] == method);
        of_method
            .map(|row| row["family"].as_str().unwrap().to_owned())
            .collect()
    };
    for (arguments, expected) in [
        (&[][..], &["dqkv"][..]),
        (&["--kernel", "families"], &["dkv", "dqkv", "wdkv"]),
        (&["--kernel", "dkv"], &["dkv"]),
        (&["--kernel", "dkv_d64_64x64_w4_s2,dq"], &["dkv", "dkv"]),
        (&["--target", "sm_90"], &["dkv"]),
        (&["--target", "compute_80"], &["dkv"]),
        (&["--target", "sm_90a"], &["dqkv"]),
    ] {
        let rows = rows(arguments);
        assert_eq!(families(&rows, "graph"), expected, "{arguments:?}");
        assert_eq!(families(&rows, "call"), expected, "{arguments:?}");
        // Three steps of a millisecond each for every launch.
        let of_graph = rows.iter().find(|row| row["method"] == "graph").unwrap();
        let median = of_graph["median_us"].as_f64().unwrap();
        assert!((3000.0..3100.0).contains(&median), "{median}");
        // The images of all three are on record.
        let others = of_graph["other_images"].as_array().unwrap();
        assert_eq!(others.len(), 2, "{of_graph}");
    }
    let mut other = on(&fake);
    other.args(["bench", "--shape", problem, "--kernel", "wgmma"]);
    let (_, error) = expect_code(2, &mut other);
    assert!(
        error.contains("--kernel wgmma: it computes outputs"),
        "{error}"
    );
}

/// `--target` chooses among the images of one target, and names one that has none for the GPU.
#[test]
fn a_bench_of_one_target_takes_its_images() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.json");
    let bench = |target: &str| {
        let mut command = on(&fake);
        let shape = "b1 q300 k300 h2 d64 f16";
        command.args([
            "bench",
            "--samples",
            "1",
            "--kernel",
            "mma",
            "--shape",
            shape,
        ]);
        command.args(["--target", target, "--json", rows.to_str().unwrap()]);
        command
    };
    for target in ["sm_90", "compute_80", "compute_89"] {
        expect_code(0, &mut bench(target));
        let written: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&rows).unwrap()).unwrap();
        let of_target = |row: &serde_json::Value| {
            let name = row["kernel"].as_str().unwrap();
            let image = { warptile_kernels::catalog().iter() }
                .find(|image| image.name == format!("{name}_f16_{target}"))
                .unwrap();
            row["sha256"].as_str() == Some(image.sha256)
        };
        assert!(
            written.as_array().unwrap().iter().all(of_target),
            "{written}"
        );
    }
    let (_, error) = expect_code(2, &mut bench("sm_80"));
    assert!(
        error.contains("no image of target sm_80 runs on"),
        "{error}"
    );
}

#[test]
fn what_a_gpu_gets_wrong_is_told_as_a_command() {
    let fake = FakeDriver::open();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let mut command = on(&fake);
    command.args([
        "verify", "--device", "cuda:0", "--kernel", "wmma", "--count", "5",
    ]);
    command.args(["--max-len", "40", "--threads", "1", "--json"]);
    let (stdout, stderr) = expect_code(1, command.arg(&file));
    fits(&stdout);
    for line in ["failed   wmma_", "families wmma ", "features ", "coverage "] {
        assert!(
            stdout.lines().any(|one| one.starts_with(line)),
            "{line}: {stdout}"
        );
    }
    let totals: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(totals["failed"].as_u64() > Some(0), "{totals}");
    let repeat = totals["repeat"].as_str().unwrap();
    assert!(
        repeat.starts_with("warptile verify --device cuda:0 --kernel wmma_"),
        "{repeat}"
    );
    // On one line, to be copied.
    assert!(stderr.contains(repeat), "{stderr}");
}
