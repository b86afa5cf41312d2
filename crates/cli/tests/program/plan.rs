//! `plan`: GPUs that are not here.

use crate::common::{expect_code, warptile};
use std::fs;

const PROBLEM: &str = "b4 q4096 k4096 h32/8 d128 bf16 mask=causal";

fn plan(code: i32, arguments: &[&str]) -> (String, String) {
    // Nothing depends on a GPU of this machine, and everything fits 80 columns.
    let mut command = warptile();
    command.arg("plan").args(arguments).env("COLUMNS", "80");
    let (stdout, stderr) = expect_code(code, &mut command);
    for line in stdout.lines().filter(|_| !arguments.contains(&"-")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    (stdout, stderr)
}

#[test]
fn a_gpu_that_is_not_here_is_planned_for() {
    let (stdout, _) = plan(0, &[PROBLEM, "--gpu", "a100"]);
    for part in [
        "NVIDIA A100, compute capability 8.0, 108 multiprocessors",
        "_bf16_sm_80\n",
        "\nrates    modelled: ",
        "NVIDIA H200",
        "not      wgmma, ",
        "compiled for other GPUs only: sm_90a\n",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let (stdout, _) = plan(0, &[PROBLEM, "--gpu", "H200"]);
    assert!(stdout.contains("_sm_90a\n"), "{stdout}");
    assert!(
        stdout.contains("\nrates    measured on NVIDIA H200\n"),
        "{stdout}"
    );
    let (few, _) = plan(0, &[PROBLEM, "--gpu", "8.6", "--multiprocessors", "30"]);
    assert!(
        few.contains("sm_86, compute capability 8.6, 30 multiprocessors"),
        "{few}"
    );
}

/// A plan makes no tensor. What does make them refuses these.
#[test]
fn long_contexts_are_planned() {
    for words in [
        "q1048576 h32/8",
        "q1048576 h32 backward",
        "b1024 q1 k1048576 h32/8",
    ] {
        let problem = format!("{words} d128 bf16 mask=causal");
        let (stdout, _) = plan(0, &[&problem, "--gpu", "h200"]);
        assert!(stdout.contains("\nexpected "), "{stdout}");
        let mut bench = warptile();
        bench.args(["bench", "--device", "cpu", "--shape", &problem]);
        let (_, stderr) = expect_code(2, &mut bench);
        assert!(
            stderr.contains("elements in a tensor; the limit is 2147483648"),
            "{stderr}"
        );
    }
    let devices = [
        "q1048576 h32/8 d128 bf16 mask=causal",
        "--gpu",
        "h200",
        "--devices",
        "0,1",
    ];
    let (stdout, _) = plan(0, &devices);
    assert!(stdout.contains("\ndevices  2 by "), "{stdout}");
}

#[test]
fn times_and_speeds_are_printed_and_what_is_faster_has_a_reason() {
    let (stdout, _) = plan(0, &[PROBLEM, "--gpu", "b200"]);
    assert!(stdout.contains("\nexpected "), "{stdout}");
    assert!(
        stdout.contains(" us, ") && stdout.contains(" TFLOP/s\n"),
        "{stdout}"
    );
    assert!(!stdout.contains(" 0."), "{stdout}");
    assert!(stdout.contains("only as PTX"), "{stdout}");
    let (stdout, _) = plan(0, &[PROBLEM, "--gpu", "b200", "--json", "-"]);
    assert!(!stdout.contains("sm_90a sm_90a"), "{stdout}");
    let plans: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(plans[0]["expected_us"].as_f64().unwrap() > 1.0, "{stdout}");
    let slower = plans[0]["considered"].as_array().unwrap();
    let slower = slower.iter().find(|one| one["expected_tflops"].is_f64());
    let slower = slower.unwrap()["expected_us"].as_f64();
    assert!(slower > plans[0]["expected_us"].as_f64(), "{stdout}");
    let (stdout, _) = plan(0, &["q1 k64 h1 d64 f16", "--gpu", "h100"]);
    assert!(stdout.contains(" 1 CTA of "), "{stdout}");
}

#[test]
fn every_reason_can_be_asked_for() {
    let (stdout, _) = plan(0, &[PROBLEM, "--gpu", "l4", "--explain"]);
    let kernels: std::collections::BTreeSet<&str> =
        warptile_kernels::images_for(warptile_kernels::Role::Forward)
            .map(|image| image.kernel)
            .collect();
    for kernel in &kernels {
        assert!(stdout.contains(kernel), "{kernel}: {stdout}");
    }
    let reasons = stdout.lines().filter(|line| line.starts_with("not "));
    assert_eq!(reasons.count(), kernels.len() - 1);
}

#[test]
fn a_kernel_that_cannot_run_there_is_an_error_with_its_reason() {
    let (_, stderr) = plan(2, &[PROBLEM, "--gpu", "a100", "--kernel", "wgmma"]);
    assert!(stderr.contains("compiled for other GPUs only"), "{stderr}");
    let (_, stderr) = plan(2, &[PROBLEM, "--gpu", "t4"]);
    assert!(stderr.contains("no kernels for NVIDIA T4"), "{stderr}");
    let (_, stderr) = plan(2, &[PROBLEM, "--gpu", "a1000"]);
    assert!(
        stderr.contains("a100") && stderr.contains("rtx4090"),
        "{stderr}"
    );
    let (_, stderr) = plan(2, &[PROBLEM, "--gpu", "a100", "--kernel", "wmmma"]);
    assert!(stderr.contains("wmmma"), "{stderr}");
}

#[test]
fn all_gpus_are_a_table_and_json() {
    let (stdout, _) = plan(0, &[PROBLEM, "--gpu", "all"]);
    for name in ["NVIDIA T4 ", "NVIDIA A100 ", "NVIDIA GeForce RTX 4090 "] {
        assert!(stdout.contains(name), "{stdout}");
    }
    let (stdout, stderr) = plan(0, &[PROBLEM, "--gpu", "a100,t4", "--json", "-"]);
    assert!(stderr.contains("NVIDIA A100"), "{stderr}");
    let plans: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(plans[0]["gpu"], "NVIDIA A100");
    assert_eq!(plans[0]["measured"], false);
    assert!(plans[0]["image"].as_str().unwrap().ends_with("_sm_80"));
    assert_eq!(plans[1]["kernel"], serde_json::Value::Null);
    // Nothing that the program has was compiled for it, so nothing was considered.
    assert!(plans[1]["considered"].as_array().unwrap().is_empty());
}

#[test]
fn without_a_gpu_there_is_the_cpu() {
    let mut command = warptile();
    command
        .args(["plan", PROBLEM])
        .env("WARPTILE_LIBCUDA", "/no/such/library");
    let (stdout, _) = expect_code(0, &mut command);
    assert!(stdout.contains("kernel   cpu: "), "{stdout}");
}

/// The gradient of a bias is planned if a word asks for it.
#[test]
fn the_gradient_of_a_bias_is_planned_by_a_word() {
    let problem = "b4 q4096 k4096 h16 d128 bf16 bias backward";
    let step = "\nbias gradients dbias_d256_64x64_w4_s3_bf16_sm_90\n";
    let (text, _) = plan(0, &[problem, "--gpu", "h100"]);
    assert!(!text.contains(step), "{text}");
    let asked = format!("{problem} dbias");
    let (text, _) = plan(0, &[&asked, "--gpu", "h100"]);
    assert!(text.contains(step), "{text}");
    for (wrong, rule) in [
        (
            asked.replace(" backward", ""),
            "one of the gradients of `backward`",
        ),
        (asked.replace(" bias", ""), "there is none"),
    ] {
        let (_, error) = plan(2, &[&wrong]);
        assert!(error.contains(rule), "{error}");
    }
}

/// Gradients have their steps, a workspace, and a time.
#[test]
fn gradients_are_planned_step_by_step() {
    let problem = "b4 q4096 k4096 h16 d128 bf16 sinks backward";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let (text, _) = plan(
        0,
        &[problem, "--gpu", "h100", "--json", file.to_str().unwrap()],
    );
    for line in [
        "prepass  prepass_w4_bf16_sm_90",
        "all gradients dqkv_d128_64x128_w12_s2_bf16_sm_90a",
        "sink gradients dsinks_w8_f32_sm_90",
        "needs    136335616 bytes of workspace",
        "rates    measured on NVIDIA H100 80GB HBM3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let written = &written[0];
    assert_eq!(written["problem"], problem);
    assert_eq!(written["family"], "dqkv");
    assert_eq!(written["workspace_bytes"], 136_335_616);
    let steps = written["steps"].as_array().unwrap();
    let us: f64 = steps
        .iter()
        .map(|step| step["expected_us"].as_f64().unwrap())
        .sum();
    assert!((us - written["expected_us"].as_f64().unwrap()).abs() < 0.01 * us);
    assert_eq!(steps.len(), 4);
    let (text, _) = plan(0, &[problem, "--gpu", "h200", "--kernel", "dkv"]);
    assert!(text.contains("\nquery gradients dq_d128_"), "{text}");
    assert!(text.contains("modelled"), "{text}");
    for (problem, kernel, expected) in [
        (problem, "wgmma", "it computes outputs, not gradients"),
        (
            problem,
            "merge",
            "it computes combine, not gradients of inputs",
        ),
        (problem, "nokernel", "no kernel has this name"),
        (PROBLEM, "dqkv", "it computes all gradients, not outputs"),
    ] {
        let (_, error) = plan(2, &[problem, "--gpu", "h200", "--kernel", kernel]);
        let expected = format!("--kernel {kernel}: {expected}; ");
        assert!(error.contains(&expected), "{error}");
    }
}
