//! `--devices`: ranks on the CPU, and two GPUs that are none.

use std::fs;
use std::process::Command;

use serde_json::Value;
use warptile_fake_cuda::{DEVICES, FakeDriver};
use warptile_fake_nccl::FakeNccl;

use crate::common::{expect_code, warptile};

/// The program on a terminal of 80 columns.
fn on_cpu(arguments: &[&str]) -> Command {
    let mut command = warptile();
    command.args(arguments).env("COLUMNS", "80");
    command
}

/// As above, with two GPUs of the stand-in.
fn on_two(fake: &FakeDriver, arguments: &[&str]) -> Command {
    let mut command = on_cpu(arguments);
    { command.env("WARPTILE_LIBCUDA", fake.path()) }.env(DEVICES, "2");
    command
}

#[track_caller]
fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// The JSON that the command wrote, and the text that it printed.
#[track_caller]
fn json_of(command: &mut Command) -> (Value, String) {
    let (json, printed) = expect_code(0, command.args(["--json", "-"]));
    fits(&printed);
    (serde_json::from_str(&json).unwrap(), printed)
}

const PROBLEM: &str = "q300 h4/2 d16 f32 mask=causal";

#[test]
fn ranks_on_the_cpu_are_measured_against_one() {
    let packed = "packed=70x70,600x600,9x9 h4/2 d16/8 bf16 mask=causal sinks alibi=head";
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--samples", "3"]);
    command.args([
        "--shape",
        PROBLEM,
        "--shape",
        packed,
        "--shape",
        "b3 q9 h2 d8",
    ]);
    let (rows, printed) = json_of(&mut command);
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!(printed.matches("efficiency ").count(), 3, "{printed}");
    let shardings = ["zigzag", "documents", "documents"];
    for (row, sharding) in rows.as_array().unwrap().iter().zip(shardings) {
        assert_eq!(row["backend"], "warptile");
        assert_eq!([&row["engine"], &row["direction"]], ["threads", "forward"]);
        assert_eq!([&row["scheme"], &row["sharding"]], ["gather", sharding]);
        assert_eq!(row["ranks"], 2);
        assert_eq!(row["values_unlike_one_gpu"], 0);
        assert_eq!(row["same_bits_again"], true);
        assert!(row["expected_us"].is_null());
        assert_eq!(row["each_us"].as_array().unwrap().len(), 1);
        let number = |name: &str| row[name].as_f64().unwrap();
        let efficiency = number("one_us") / number("median_us") / 2.0;
        assert!((number("efficiency") - efficiency).abs() < 1e-4, "{row}");
        assert_eq!(number("error"), number("one_error"));
        assert!((1e-8..0.02).contains(&number("error")), "{row}");
    }
    assert_eq!(rows[0]["key_len"], 300);
}

/// Distances of ALiBi are those of whole documents, with masks that end elsewhere, too.
#[test]
fn errors_with_alibi_are_those_of_each_query() {
    for mask in ["", " mask=causal", " mask=window,9,4"] {
        for direction in ["", " backward"] {
            let problem = format!("packed=64x64,64x64 h4 d64 f32 alibi=head{mask}{direction}");
            let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--samples", "1"]);
            let (rows, _) = json_of(command.args(["--shape", &problem]));
            for name in ["one_error", "error"] {
                let error = rows[0][name].as_f64().unwrap();
                assert!(error < 1e-4, "{problem}: {}", rows[0]);
            }
        }
    }
}

#[test]
fn steps_of_decoding_are_measured_over_pages_of_all_ranks() {
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu,cpu", "--samples", "1"]);
    let causal = "b3 q1 k1000 h8/2 d64/32 bf16 mask=causal";
    let (rows, printed) =
        json_of(command.args(["--shape", "q1 k300 h4/2 d16 f32", "--shape", causal]));
    assert!(
        printed.contains("scheme cache, sharding pages"),
        "{printed}"
    );
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--samples", "1"]);
    let (led, _) = json_of(command.args(["--lead", "700", "--shape", causal]));
    assert_eq!(led[0]["sharding"], "pages after 10");
    let rows = rows.as_array().unwrap().iter().zip([(3, 300), (3, 3000)]);
    for (row, (ranks, key_len)) in rows.chain([(&led[0], (2, 3000))]) {
        assert_eq!(row["direction"], "decode");
        assert_eq!([&row["ranks"], &row["key_len"]], [ranks, key_len]);
        assert_eq!(row["same_bits_again"], true);
        let [one, all] = ["one_error", "error"].map(|name| row[name].as_f64().unwrap());
        assert!((1e-9..0.02).contains(&all) && all < 4.0 * one, "{row}");
    }
    for (problem, rule) in [
        (
            "q1 k9 h2 mask=window,3,0",
            "a mask that hides keys is for one device",
        ),
        (
            "q1 k9 h2 sinks",
            "`sinks` is for one device where keys are dealt out",
        ),
        ("q1 k9 h2 pages=16", "`pages` is for one device"),
    ] {
        let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--shape", problem]);
        let (_, error) = expect_code(2, &mut command);
        assert!(error.contains(rule), "{error}");
    }
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--scheme", "heads"]);
    let (_, error) = expect_code(2, command.args(["--shape", "q1 k9 h2"]));
    assert!(
        error.contains("--scheme and --sharding are not for one query"),
        "{error}"
    );
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--lead", "64"]);
    let (_, error) = expect_code(2, command.args(["--shape", "q9 h2"]));
    assert!(
        error.contains("--lead is for one query for each"),
        "{error}"
    );
}

/// Two devices draw the mask of one.
#[test]
fn dropout_is_that_of_one_device() {
    let problem = "q384 h4/2 d16 f32 mask=causal dropout=0.2";
    let packed = "packed=70x70,64x64,9x9 h4/2 d16 f16 dropout=0.5";
    for (more, direction) in [("", "forward"), (" backward", "backward")] {
        let [problem, packed] = [problem, packed].map(|problem| format!("{problem}{more}"));
        let mut command = on_cpu(&["bench", "--devices", "cpu,cpu,cpu", "--samples", "1"]);
        let (rows, _) = json_of(command.args(["--shape", &problem, "--shape", &packed]));
        for row in rows.as_array().unwrap() {
            assert_eq!(row["direction"], direction);
            let [one, all] = ["one_error", "error"].map(|name| row[name].as_f64().unwrap());
            assert!((1e-9..0.02).contains(&one) && all < 1.1 * one, "{row}");
            if direction == "forward" {
                assert_eq!(row["values_unlike_one_gpu"], 0, "{row}");
            }
        }
        for (scheme, problem) in [
            ("gather", &problem),
            ("heads", &problem),
            ("gather", &packed),
        ] {
            let mut command = on_cpu(&["verify", "--devices", "cpu,cpu,cpu", "--case", problem]);
            expect_code(0, command.args(["--scheme", scheme]));
        }
    }
    let odd = [
        "bench",
        "--devices",
        "cpu,cpu",
        "--shape",
        "q100 h2 d8 dropout=0.5",
    ];
    let (_, error) = expect_code(2, &mut on_cpu(&odd));
    let rule = "with dropout its chunks must begin at multiples of 32";
    assert!(error.contains(rule), "{error}");
}

#[test]
fn random_problems_on_ranks_of_the_cpu_are_verified() {
    for more in [
        &[][..],
        &["--scheme", "heads"],
        &["--sharding", "contiguous"],
    ] {
        let mut command = on_cpu(&["verify", "--devices", "cpu,cpu,cpu"]);
        // Several sequences have no such sharding.
        match more.first() {
            Some(&"--sharding") => command.args(["--case", PROBLEM]),
            _ => command.args(["--count", "40", "--max-len", "300"]),
        };
        let (totals, printed) = json_of(command.args(more));
        assert_eq!([&totals["failed"], &totals["not_applicable"]], [0, 0]);
        assert_eq!(totals["devices"], "cpu,cpu,cpu");
        let worst = &totals["worst_lse"];
        assert!(worst["bound"].as_f64() > Some(0.0), "{worst}");
        assert!(worst["error"].as_f64() > Some(0.0), "{worst}");
        assert!(printed.contains(" on devices cpu,cpu,cpu in "), "{printed}");
        let ways = totals["coverage"]["families"].as_object().unwrap();
        let expected = match more {
            [] => 6,
            ["--scheme", _] => 4,
            _ => 1,
        };
        assert_eq!(ways.len(), expected, "{ways:?}");
    }
}

/// The stand-in computes nothing, but plans: each of the problems has a kernel.
#[test]
fn a_wrong_result_of_two_gpus_is_told_as_a_command() {
    let fake = FakeDriver::open();
    let mut command = on_two(&fake, &["verify", "--devices", "0,1", "--count", "100"]);
    let (stdout, stderr) = expect_code(1, command.args(["--max-len", "60"]));
    fits(&stdout);
    assert!(stdout.contains("failed   0,1: "), "{stdout}");
    let (_, command) = stderr
        .split_once("warptile verify --devices 0,1 --case \"")
        .unwrap();
    let (case, _) = command.split_once('"').unwrap();
    let again = ["verify", "--devices", "0,1", "--case", case];
    let (_, stderr) = expect_code(1, &mut on_two(&fake, &again));
    assert!(stderr.contains(case), "{stderr}");
}

#[test]
fn two_gpus_are_measured_and_predicted() {
    let fake = FakeDriver::open();
    let problem = "q4096 h8/2 d64 bf16 mask=causal";
    for (scheme, calls) in [("gather", 2), ("heads", 2)] {
        let arguments = [
            "bench",
            "--devices",
            "0,1",
            "--samples",
            "2",
            "--scheme",
            scheme,
        ];
        let mut command = on_two(&fake, &arguments);
        let (rows, printed) = json_of(command.args(["--shape", problem]));
        let row = &rows[0];
        assert_eq!([&row["engine"], &row["scheme"]], ["peers", scheme]);
        assert_eq!(row["each_us"].as_array().unwrap().len(), calls);
        let expected = row["expected_us"].as_f64().unwrap();
        assert!(expected > 0.4 * row["one_us"].as_f64().unwrap(), "{row}");
        assert!(printed.contains(" us predicted"), "{printed}");
    }
}

#[test]
fn two_gpus_compute_over_nccl() {
    let fake = FakeDriver::open();
    let nccl = FakeNccl::open(fake.path());
    let over_nccl = |arguments: &[&str]| {
        let mut command = on_two(&fake, arguments);
        command.args(["--devices", "0,1", "--engine", "nccl"]);
        command.env("WARPTILE_LIBNCCL", nccl.path());
        command
    };
    for scheme in ["gather", "heads"] {
        let mut command = over_nccl(&["bench", "--samples", "2", "--scheme", scheme]);
        for problem in [
            "q512 h4/2 d64 f16 mask=causal",
            "q300 h4/2 d64 f16 backward",
        ] {
            command.args(["--shape", problem]);
        }
        let (rows, printed) = json_of(&mut command);
        for row in rows.as_array().unwrap() {
            assert_eq!([&row["engine"], &row["scheme"]], ["nccl", scheme]);
            assert_eq!(row["ranks"], 2);
            assert_eq!(row["each_us"].as_array().unwrap().len(), 2);
        }
        assert!(printed.contains("devices  2 by nccl, scheme "), "{printed}");
    }
    let problem = "q512 h4/2 d64 f16 mask=causal";
    let (rows, _) = json_of(&mut over_nccl(&["tune", "--shape", problem]));
    assert_eq!(rows.as_array().unwrap().len(), 6);
    // The stand-in computes nothing.
    for more in [&[][..], &["--backward"]] {
        let mut command = over_nccl(&["verify", "--count", "2", "--max-len", "60"]);
        let (json, error) = expect_code(1, command.args(more).args(["--json", "-"]));
        let totals: Value = serde_json::from_str(&json).unwrap();
        assert_eq!([&totals["devices"], &totals["engine"]], ["0,1", "nccl"]);
        let again = "warptile verify --devices 0,1 --engine nccl --case \"";
        assert!(error.contains(again), "{error}");
    }
}

#[test]
fn an_absent_nccl_is_looked_for_by_name() {
    let fake = FakeDriver::open();
    let mut command = on_two(&fake, &["bench", "--devices", "0,1", "--engine", "nccl"]);
    command.env("WARPTILE_LIBNCCL", "/nowhere/libnccl.so.2");
    let (_, error) = expect_code(3, command.args(["--shape", PROBLEM]));
    assert!(
        error.starts_with("error: --devices 0,1: NCCL not found (")
            && error.contains("/nowhere/libnccl.so.2")
            && error.contains("WARPTILE_LIBNCCL"),
        "{error}"
    );
}

#[test]
fn schemes_and_shardings_are_compared() {
    let mut command = on_cpu(&["tune", "--devices", "cpu,cpu", "--shape", PROBLEM]);
    command.args(["--shape", "b2 q20 h4 d8 sinks mask=causal"]);
    let (rows, printed) = json_of(&mut command);
    let ways: Vec<_> = { rows.as_array().unwrap().iter() }
        .map(|row| {
            [
                row["scheme"].as_str().unwrap(),
                row["sharding"].as_str().unwrap(),
            ]
        })
        .collect();
    let expected = [
        ["gather", "zigzag"],
        ["gather", "two-zigzags"],
        ["gather", "contiguous"],
        ["heads", "zigzag"],
        ["heads", "two-zigzags"],
        ["heads", "contiguous"],
        ["gather", "documents"],
    ];
    assert_eq!(ways, expected);
    assert_eq!(
        printed.matches("\nfastest  scheme ").count(),
        2,
        "{printed}"
    );
}

#[test]
fn a_plan_for_several_gpus_compares_the_schemes() {
    let plan_on = |devices: &str, arguments: &[&str]| {
        let mut command = on_cpu(&["plan", "--gpu", "h100", "--devices", devices]);
        let (plans, printed) = json_of(command.args(arguments));
        (plans[0]["devices"].clone(), printed)
    };
    let plan = |arguments: &[&str]| plan_on("0,1,2,3", arguments);
    let (long, printed) = plan(&["q65536 h32/8 d128 bf16 mask=causal"]);
    assert_eq!([&long["scheme"], &long["sharding"]], ["gather", "zigzag"]);
    assert_eq!(long["ranks"], 4);
    assert!(long["gain"].as_f64().unwrap() > 3.8, "{long}");
    assert_eq!(long["not"]["scheme"], "heads");
    assert!(long["not"]["expected_us"].as_f64() > long["expected_us"].as_f64());
    assert!(long["warning"].is_null());
    assert!(
        printed.contains("\nnot      heads: ") && !printed.contains("\nwarning "),
        "{printed}"
    );
    assert!(
        printed.contains("gather in 2 groups of heads: "),
        "{printed}"
    );
    // Numbers for each head are those of one launch.
    let (_, printed) = plan(&["q65536 h32/8 d128 bf16 mask=causal sinks"]);
    assert!(printed.contains("gather: "), "{printed}");
    // Without grouped heads on many ranks, less travels by heads.
    let (heads, _) = plan_on("0,1,2,3,4,5,6,7", &["q4096 h32 d128 bf16"]);
    assert_eq!(heads["scheme"], "heads", "{heads}");
    let (short, printed) = plan(&["q512 h2 d128 bf16 mask=causal"]);
    let why = "4 devices need at least as many query heads, not 2";
    assert_eq!(short["not"]["reason"], why);
    assert!(
        printed.contains("\nwarning  several devices are expected to gain 0."),
        "{printed}"
    );
    let (given, _) = plan(&["--scheme", "heads", "q65536 h32/8 d128 bf16 mask=causal"]);
    assert_eq!(
        [&given["scheme"], &given["not"]["scheme"]],
        ["heads", "gather"]
    );
    // Shares of the keys' gradients travel as well.
    let (gradients, _) = plan(&["q65536 h32/8 d128 bf16 mask=causal backward"]);
    let bytes = |plan: &Value| plan["fetched_bytes"].as_u64().unwrap();
    assert!(bytes(&gradients) > 2 * bytes(&long), "{gradients}");
    let (over_nccl, printed) = plan(&["--engine", "nccl", "q512 h2 d128 bf16"]);
    assert_eq!([&over_nccl["engine"], &short["engine"]], ["nccl", "peers"]);
    assert!(printed.contains("\nengine   nccl, predicted"), "{printed}");
    let (_, printed) = json_of(&mut on_cpu(&["plan", "--devices", "cpu,cpu", PROBLEM]));
    assert!(printed.contains("devices  cpu,cpu: times are predicted for GPUs only"));
}

#[test]
fn errors_name_the_argument() {
    let fake = FakeDriver::open();
    let error = |code, arguments: &[&str]| expect_code(code, &mut on_two(&fake, arguments)).1;
    for (devices, rule) in [
        ("0", "there must be at least two, such as 0,1 or cpu,cpu"),
        ("0,cpu", "devices are all GPUs, or all the CPU"),
        ("a,b", "`a` is not a device"),
    ] {
        let error = error(2, &["bench", "--devices", devices]);
        assert!(
            error.contains("'--devices <") && error.contains(rule),
            "{error}"
        );
    }
    let missing = error(3, &["bench", "--devices", "0,7", "--shape", PROBLEM]);
    assert!(
        missing.starts_with("error: --devices 0,7: cuda:7: "),
        "{missing}"
    );
    let both = error(2, &["verify", "--devices", "0,1", "--device", "cpu"]);
    assert!(both.contains("'--devices <"), "{both}");
    for (devices, rule) in [
        ("cpu,cpu", "--engine is for GPUs"),
        ("0,1,0", "--engine nccl takes each GPU once"),
    ] {
        for command in ["bench", "verify", "tune"] {
            let mut arguments = vec![command, "--devices", devices, "--engine", "nccl"];
            if command != "verify" {
                arguments.extend(["--shape", PROBLEM]);
            }
            let expected = format!("error: --devices {devices}: {rule}");
            let error = error(2, &arguments);
            assert!(error.starts_with(&expected), "{error}");
        }
    }
    for (problem, rule) in [
        ("q9 h2 pages=16", "`pages` is for one device"),
        ("q9 k8 h2", "several devices need as many keys as queries"),
        (
            "q9 h1",
            "--scheme heads: 2 devices need at least as many query heads, not 1",
        ),
        (
            "q9 h2 sinks",
            "--scheme heads: it takes no options with a number for each head",
        ),
    ] {
        for command in ["bench", "plan", "verify", "tune"] {
            let mut arguments = vec![command, "--devices", "cpu,cpu", "--scheme", "heads"];
            match command {
                "plan" => {}
                "verify" => arguments.push("--case"),
                _ => arguments.push("--shape"),
            }
            arguments.push(problem);
            let error = error(2, &arguments);
            assert!(
                error.starts_with("error: --devices: `") && error.contains(rule),
                "{error}"
            );
        }
    }
    let alibi = error(
        2,
        &[
            "bench",
            "--devices",
            "cpu,cpu",
            "--shape",
            "q9 h2 alibi=head",
        ],
    );
    assert!(
        alibi.contains("--devices: `") && alibi.contains("needs a causal mask"),
        "{alibi}"
    );
}

#[test]
fn gradients_are_measured_and_verified() {
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--samples", "2"]);
    for problem in [
        "q300 h4/2 d16 f32 mask=causal backward",
        "packed=70x70,9x9,600x600 h4/2 d16/8 bf16 mask=causal sinks backward",
    ] {
        command.args(["--shape", problem]);
    }
    let (rows, _) = json_of(&mut command);
    for row in rows.as_array().unwrap() {
        assert_eq!(row["direction"], "backward");
        assert_eq!(row["same_bits_again"], true);
        let [one, all] = ["one_error", "error"].map(|name| row[name].as_f64().unwrap());
        assert!((1e-8..0.02).contains(&one) && all < 1.1 * one, "{row}");
        assert!(row["largest_difference"].as_f64().unwrap() < 0.1, "{row}");
    }
    for scheme in [&[][..], &["--scheme", "heads"]] {
        let mut command = on_cpu(&["verify", "--backward", "--devices", "cpu,cpu,cpu"]);
        command.args(["--count", "30", "--max-len", "200"]);
        let (totals, _) = json_of(command.args(scheme));
        assert_eq!([&totals["failed"], &totals["not_applicable"]], [0, 0]);
        assert_eq!(totals["coverage"]["features"]["backward"], 30);
    }
    let fake = FakeDriver::open();
    let problem = "q512 h4/2 d64 f16 mask=causal backward";
    let arguments = [
        "bench",
        "--devices",
        "0,1",
        "--samples",
        "1",
        "--shape",
        problem,
    ];
    let (rows, printed) = json_of(&mut on_two(&fake, &arguments));
    assert!(rows[0]["expected_us"].as_f64().is_some() && printed.contains("predicted"));
    let arguments = ["verify", "--backward", "--devices", "0,1", "--count", "2"];
    let (_, error) = expect_code(1, &mut on_two(&fake, &arguments));
    assert!(
        error.contains("warptile verify --devices 0,1 --case "),
        "{error}"
    );
}

/// Rows are written as they come.
#[test]
fn rows_are_written_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    let mut command = on_cpu(&["bench", "--devices", "cpu,cpu", "--samples", "1", "--json"]);
    expect_code(0, command.arg(&file).args(["--shape", PROBLEM]));
    let rows: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 1);
}
