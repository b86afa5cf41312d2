//! The program on a GPU.

use crate::common::{example, expect_code, warptile};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Processes with a GPU that run side by side.
const PROCESSES: usize = 4;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_example_is_as_expected_on_every_kernel_that_takes_it() {
    let mut kernels: Vec<&str> = warptile_kernels::images_for(warptile_kernels::Role::Forward)
        .filter(|image| image.element == warptile_kernels::ElementType::F16)
        .filter(|image| image.target.to_string() == "compute_80")
        .map(|image| image.kernel)
        .collect();
    kernels.dedup();
    assert!(!kernels.is_empty(), "the catalog has no portable kernel");
    let masks = [&[][..], &["--causal"], &["--causal", "--diagonal=top-left"]];
    let runs = { masks.iter() }.flat_map(|mask| kernels.iter().map(move |kernel| (mask, kernel)));
    // Most of a process's time is its start, and processes start at the same time.
    let runs = Mutex::new(runs);
    let next = || runs.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                while let Some((mask, kernel)) = next() {
                    let (stdout, _) = expect_code(
                        0,
                        warptile()
                            .arg("run")
                            .arg(example("minilm_qkv.safetensors"))
                            .args(["--device", "cuda:0", "--kernel", kernel, "--expect"])
                            .arg(example("minilm_expected.safetensors"))
                            .args(*mask),
                    );
                    assert!(
                        stdout.contains(&format!("ran      {kernel} on cuda:0")),
                        "{stdout}"
                    );
                }
            });
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn auto_takes_the_gpu_and_info_names_it() {
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args(["run", "--explain"])
            .arg(example("minilm_qkv.safetensors")),
    );
    assert!(stdout.contains(" on cuda:"), "{stdout}");
    let (stdout, _) = expect_code(0, warptile().args(["info", "--explain", "--kernels"]));
    for part in ["driver   CUDA ", "cuda:0 ", "chosen on cuda:0"] {
        assert!(stdout.contains(part), "{stdout}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn verify_covers_every_image_of_a_family_that_runs_here() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    expect_code(
        0,
        warptile()
            .args(["verify", "--device", "cuda:0", "--kernel", "scalar"])
            .args(["--count", "300", "--max-len", "200", "--json"])
            .arg(&file),
    );
    let totals: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(totals["passed"], 300);
    let images = totals["images"].as_object().unwrap();
    assert!(
        images.keys().any(|name| name.ends_with("compute_80")),
        "{images:?}"
    );
    let (_, stderr) = expect_code(
        2,
        warptile().args(["verify", "--device", "cuda:0", "--kernel", "vector"]),
    );
    assert!(
        stderr.contains("no image of kernel vector runs on cuda:0"),
        "{stderr}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_image_of_a_family_computes_its_tile() {
    let (stdout, _) = expect_code(
        0,
        warptile().args(["verify", "--tile", "--device", "cuda:0", "--kernel", "mma"]),
    );
    assert!(stdout.contains(" 0 failed"), "{stdout}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn verify_draws_tiles_on_every_persistent_image_and_repeats_its_launches() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let json =
        || -> serde_json::Value { serde_json::from_slice(&fs::read(&file).unwrap()).unwrap() };
    expect_code(0, warptile().args(["info", "--json"]).arg(&file));
    let is_hopper = json()["devices"][0]["compute_capability"] == "9.0";
    let mut images = vec![(["--kernel", "scalar_d64_32x64_w4_s2"], false)];
    if is_hopper {
        images.push((["--kernel", "wgmma"], true));
    }
    for (images, persistent) in images {
        expect_code(
            0,
            warptile()
                .args(["verify", "--device", "cuda:0", "--each-kernel"])
                .args(images)
                .args(["--repeat", "30", "--sync", "tenth", "--json"])
                .arg(&file),
        );
        let totals = json();
        assert_eq!(totals["launches"]["launches"], 30);
        let images = totals["images"].as_object().unwrap();
        assert!(!images.is_empty());
        for (name, image) in images {
            assert_eq!(image["persistent"], persistent, "{name}");
            assert_eq!(
                image["drew_tiles"],
                if persistent { 2 } else { 0 },
                "{name}"
            );
        }
        let rows = totals["problems"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["passed"] == true), "{rows:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn bench_times_launches_and_calls() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    expect_code(
        0,
        warptile()
            .args([
                "bench",
                "--device",
                "cuda:0",
                "--samples",
                "5",
                "--kernel",
                "all",
                "--json",
            ])
            .arg(&file)
            .args(["--shape", "b2 q512 k512 h8 d64 f16"])
            .args([
                "--shape",
                "packed=100x100,30x200 h4/2 d128 bf16 mask=causal alibi=head",
            ])
            .args([
                "--shape",
                "b2 q100 k200 h4/2 d128 f16 sinks bias keymask used=100x200,7x9",
            ]),
    );
    let rows: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let rows = rows.as_array().unwrap();
    for method in ["graph", "call"] {
        let times: Vec<f64> = rows
            .iter()
            .filter(|row| row["method"] == method)
            .map(|row| row["median_us"].as_f64().unwrap())
            .collect();
        // No kernel and no call takes less than a microsecond or, here, more than a tenth of a second.
        assert!(
            !times.is_empty() && times.iter().all(|time| (1.0..1e5).contains(time)),
            "{times:?}"
        );
    }
}

/// Ranks on one GPU: right, but no faster.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn two_ranks_on_a_gpu_are_verified_and_measured() {
    let (stdout, _) = expect_code(
        0,
        warptile().args(["verify", "--devices", "0,0", "--count", "200"]),
    );
    assert!(stdout.contains(" on devices 0,0 in "), "{stdout}");
    let gradients = ["verify", "--backward", "--devices", "0,0", "--count", "100"];
    expect_code(0, warptile().args(gradients));
    for scheme in ["gather", "heads"] {
        let problem = "q8192 h8/2 d128 bf16 mask=causal";
        let mut command = warptile();
        command.args(["bench", "--devices", "0,0", "--scheme", scheme]);
        command.args(["--json", "-", "--shape", problem]);
        let rows: serde_json::Value =
            serde_json::from_str(&expect_code(0, &mut command).0).unwrap();
        assert_eq!(rows[0]["same_bits_again"], true, "{rows}");
        let number = |name: &str| rows[0][name].as_f64().unwrap();
        assert!(number("error") < 1.05 * number("one_error"), "{rows}");
    }
}
