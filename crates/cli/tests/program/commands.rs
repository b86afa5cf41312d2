//! `info`, `verify`, `bench`, help, and an output nobody reads.

use crate::common::{expect_code, run, warptile};
use std::fs;
use std::process::Stdio;

fn json(path: &std::path::Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn help_says_what_the_exit_codes_mean() {
    let (stdout, _) = expect_code(0, warptile().arg("--help"));
    for line in [
        "0  success",
        "1  a comparison",
        "2  wrong usage",
        "3  the device",
        "4  a file",
        "130  interrupted by Ctrl-C",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    for command in [
        "run",
        "info",
        "verify",
        "bench",
        "plan",
        "compare",
        "gen",
        "report",
        "completions",
        "man",
    ] {
        assert!(stdout.contains(command), "{stdout}");
        expect_code(0, warptile().args([command, "--help"]));
    }
}

#[test]
fn info_works_without_a_driver() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("info.json");
    let (stdout, stderr) = expect_code(
        0,
        warptile()
            .args(["info", "--kernels", "--explain", "--json"])
            .arg(&file)
            // Not a library: this machine's driver, if it has one, is not asked.
            .env("WARPTILE_LIBCUDA", &file),
    );
    assert!(stdout.contains("driver   none: "), "{stdout}");
    assert!(stdout.contains("chosen   cpu"), "{stdout}");
    assert!(stdout.contains("auto     cpu"), "{stdout}");
    assert!(
        stderr.starts_with("note: ") && stderr.lines().count() == 1,
        "{stderr}"
    );
    let info = json(&file);
    assert_eq!(info["driver"], serde_json::Value::Null);
    assert!(info["cpu_threads"].as_u64() > Some(0));
    assert_eq!(
        info["images"].as_array().map(Vec::len),
        Some(warptile_kernels::catalog().len())
    );
}

#[test]
fn verify_counts_what_it_computed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args([
                "verify", "--device", "cpu", "--count", "60", "--seed", "5", "--json",
            ])
            .arg(&file),
    );
    assert!(stdout.contains("60 problems on cpu"), "{stdout}");
    let totals = json(&file);
    assert_eq!(
        (totals["passed"].as_u64(), totals["failed"].as_u64()),
        (Some(60), Some(0))
    );
    assert_eq!(totals["device"], "cpu");
    assert_eq!(totals["repeat"], serde_json::Value::Null);
}

#[test]
fn commands_take_gradients_or_say_that_they_do_not() {
    let (stdout, _) = expect_code(
        0,
        warptile().args(["verify", "--device", "cpu", "--count", "20", "--backward"]),
    );
    assert!(stdout.contains("20 problems on cpu"), "{stdout}");
    assert!(stdout.contains("backward 20,"), "{stdout}");
    let problem = "q9 h4/2 d16 f16 mask=causal backward";
    let (stdout, _) = expect_code(
        0,
        warptile().args(["verify", "--device", "cpu", "--case", problem]),
    );
    assert!(stdout.contains("verified 1 problem"), "{stdout}");
    // Each launch of gradients is waited for and read.
    let repeated = ["verify", "--device", "cpu", "--repeat", "3"];
    for gradients in [&["--case", problem][..], &["--backward", "--count", "1"]] {
        let mut command = warptile();
        let (json, _) = expect_code(
            0,
            command.args(repeated).args(gradients).args(["--json", "-"]),
        );
        let totals: serde_json::Value = serde_json::from_str(&json).unwrap();
        let each = serde_json::json!({ "launches": 3, "sync": "each" });
        assert_eq!(totals["launches"], each);
        let mut command = warptile();
        let (_, stderr) = expect_code(
            2,
            command
                .args(repeated)
                .args(gradients)
                .args(["--sync", "end"]),
        );
        assert!(stderr.contains("--sync"), "{stderr}");
    }
    let (_, stderr) = expect_code(2, warptile().args(["gen", problem, "-o", "no/such/file"]));
    assert!(stderr.contains("computes no gradients"), "{stderr}");
    let (_, stderr) = expect_code(2, warptile().args(["tune", "--shape", problem]));
    assert!(stderr.contains("planned by fixed rates"), "{stderr}");
    let (help, _) = expect_code(0, warptile().args(["bench", "--help"]));
    assert!(help.contains("backward        gradients"), "{help}");
}

/// Gradients count 2.5 times as many operations as their output.
#[test]
fn bench_times_gradients_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    let problem = "b1 q70 k70 h4/2 d16 f16 mask=causal dropout=0.5 sinks";
    let with = problem.to_owned() + " backward";
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args(["bench", "--device", "cpu", "--samples", "2"])
            .args(["--shape", problem, "--shape", &with, "--json"])
            .arg(&file),
    );
    assert!(stdout.contains(&with), "{stdout}");
    let rows = json(&file);
    let operations = |row: &serde_json::Value| {
        row["tflops"].as_f64().unwrap() * row["median_us"].as_f64().unwrap()
    };
    assert_eq!(rows[0]["problem"], problem);
    assert_eq!(rows[1]["problem"], *with);
    assert_eq!(
        (&rows[1]["method"], &rows[1]["kernel"]),
        (&"wall".into(), &"cpu".into())
    );
    let times = operations(&rows[1]) / operations(&rows[0]);
    assert!((times - 2.5).abs() < 1e-4, "{times}");
    let refused = [
        "bench",
        "--device",
        "cpu",
        "--shape",
        "q8 d8 f16 pages=16 backward",
    ];
    let (_, stderr) = expect_code(2, warptile().args(refused));
    assert!(stderr.contains("have no backward pass"), "{stderr}");
}

#[test]
fn verify_counts_the_same_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let totals = |threads: &str| {
        let (_, _) = expect_code(
            0,
            warptile()
                .args(["verify", "--device", "cpu", "--count", "40"])
                .args(["--max-len", "100", "--threads", threads, "--json"])
                .arg(&file),
        );
        json(&file)
    };
    let (one, many) = (totals("1"), totals("7"));
    for key in [
        "count",
        "passed",
        "worst_out",
        "worst_lse",
        "host_references",
    ] {
        assert_eq!(one[key], many[key], "{key}");
    }
    assert_eq!((&one["threads"], &many["threads"]), (&1.into(), &7.into()));
    assert!(one["problems_per_second"].as_f64().unwrap() > 0.0);
    // On one thread the phases are all there is, except for a little between them.
    let phases = one["phases"].as_object().unwrap();
    let seconds: f64 = phases.values().map(|phase| phase.as_f64().unwrap()).sum();
    assert!(
        phases["generating"].as_f64().unwrap() > 0.0
            && phases["reference"].as_f64().unwrap() > 0.0
            && seconds <= one["seconds"].as_f64().unwrap(),
        "{one}"
    );
}

#[test]
fn the_version_is_the_programs() {
    let (stdout, _) = expect_code(0, warptile().arg("--version"));
    let version = format!("warptile {} (", env!("CARGO_PKG_VERSION"));
    assert!(stdout.starts_with(&version), "{stdout}");
    for line in [
        "\nbuilt    for ",
        "\nkernels  ",
        "\ndriver   ",
        "\ncpu      ",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    let first = stdout.lines().next().unwrap();
    assert!(first.contains("commit"), "{first}");
}

#[test]
fn json_on_standard_output_stands_alone() {
    for command in [
        &["info", "--json", "-"][..],
        &["verify", "--device", "cpu", "--count", "3", "--json", "-"],
        &[
            "bench",
            "--device",
            "cpu",
            "--samples",
            "2",
            "--shape",
            "q8 k8 d8",
            "--json",
            "-",
        ],
    ] {
        let (stdout, stderr) = expect_code(0, warptile().args(command));
        assert!(
            serde_json::from_str::<serde_json::Value>(&stdout).is_ok(),
            "{stdout}"
        );
        assert!(
            !stderr.is_empty(),
            "what is for people is on standard error"
        );
    }
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn a_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (stdout, _) = expect_code(0, warptile().args(["completions", shell]));
        assert!(
            stdout.contains("warptile") && stdout.contains("verify"),
            "{shell}"
        );
    }
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let (stdout, _) = expect_code(0, warptile().arg("man"));
    assert!(stdout.contains(".TH warptile 1"), "{stdout}");
    for command in [
        "run", "info", "verify", "bench", "plan", "compare", "gen", "report",
    ] {
        let (page, _) = expect_code(0, warptile().args(["man", command]));
        assert!(
            page.contains(&format!("warptile\\-{command}"))
                || page.contains(&format!("warptile {command}")),
            "{page}"
        );
        assert!(page.contains(".SH OPTIONS"), "{page}");
    }
    expect_code(2, warptile().args(["man", "fly"]));
}

#[test]
fn verify_says_how_near_errors_came_to_their_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args([
                "verify", "--device", "cpu", "--repeat", "3", "--sync", "each",
            ])
            .args(["--case", "b2 q9 k20 h2 d16 f16 seed=1"])
            .args([
                "--case",
                "b1 q9 k20 h2 d16 bf16 mask=causal seed=2",
                "--json",
            ])
            .arg(&file),
    );
    assert!(
        stdout.contains("worst    out: 0.") && stdout.contains("worst    lse: 0."),
        "{stdout}"
    );
    let totals = json(&file);
    assert_eq!(
        totals["launches"],
        serde_json::json!({ "launches": 3, "sync": "each" })
    );
    let ratio = totals["worst_out"]["ratio"].as_f64().unwrap();
    assert!(ratio > 0.0 && ratio <= 1.0, "{ratio}");
    let rows = totals["problems"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let (error, bound) = (&row["out"]["error"], &row["out"]["bound"]);
        assert!(
            error.as_f64() <= bound.as_f64() && row["passed"] == true,
            "{row}"
        );
    }
}

#[test]
fn verify_reads_a_tile() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tile.json");
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args(["verify", "--device", "cpu", "--tile", "--json"])
            .arg(&file),
    );
    assert!(
        stdout.contains("read 3 tiles on cpu: 3 passed, 0 failed"),
        "{stdout}"
    );
    let record = json(&file);
    for tile in record["tiles"].as_array().unwrap() {
        // More keys than a head has elements: two slices of the identity.
        assert_eq!(tile["calls"], 76 + 2, "{tile}");
        let ratio = |value: &str| tile[value]["ratio"].as_f64().unwrap();
        // The scale is a power of two, so scores may be exact.
        assert!(ratio("score") <= 1.0, "{tile}");
        assert!(ratio("weight") > 0.0 && ratio("weight") <= 1.0, "{tile}");
    }
    for other in [["--count", "3"], ["--case", "q1 k1 h1 d8 f32"]] {
        expect_code(2, warptile().args(["verify", "--tile"]).args(other));
    }
}

#[test]
fn verify_repeats_a_case() {
    let (stdout, _) = expect_code(
        0,
        warptile().args([
            "verify",
            "--device",
            "cpu",
            "--case",
            "packed=3x5,0x2,4x0 h4/2 d40 bf16 mask=window,2,1 softcap=15 alibi=head layout=gaps unaligned seed=9",
        ]),
    );
    assert!(stdout.contains("verified 1 problem on cpu"), "{stdout}");
}

#[test]
fn verify_draws_problems_in_pages_only() {
    let (stdout, _) = expect_code(
        0,
        warptile().args([
            "verify",
            "--device",
            "cpu",
            "--paged",
            "--count",
            "30",
            "--max-len",
            "100",
        ]),
    );
    assert!(stdout.contains("verified 30 problems"), "{stdout}");
    let worst = stdout.lines().filter(|line| line.starts_with("worst"));
    assert!(
        worst.into_iter().all(|line| line.contains(" pages=")),
        "{stdout}"
    );
    expect_code(2, warptile().args(["verify", "--paged", "--case", "q1"]));
}

#[test]
fn every_option_is_verified_and_measured() {
    let cases = [
        "b2 q9 k20 h4/2 d16 f16 softcap=15 alibi=batch sinks bias keymask layout=bhsd seed=1",
        "b2 q9 k20 h2 d8 f32 scale=-0.5 bias keymask layout=gaps unaligned used=3x20,9x0 seed=2",
        "packed=3x5,0x2,4x0 h2 d8 bf16 mask=causal sinks used=1x5,0x1,4x0 device-lengths seed=3",
        "b2 q3 k600 h2 d16 f16 mask=causal splits=256 seed=4",
        "b3 q2 k70 h4/2 d16 f16 mask=causal sinks layout=interleaved pages=16 lengths=ragged seed=4",
        "packed=3x50,2x0 h2 d8 f32 layout=gaps pages=5 lengths=9,0 device-lengths seed=5",
    ];
    for case in cases {
        expect_code(
            0,
            warptile().args(["verify", "--device", "cpu", "--case", case]),
        );
        let (stdout, _) = expect_code(
            0,
            warptile().args([
                "bench",
                "--device",
                "cpu",
                "--samples",
                "1",
                "--shape",
                case,
            ]),
        );
        assert!(
            stdout.contains(case.split(" seed").next().unwrap()),
            "{stdout}"
        );
    }
    let (_, stderr) = expect_code(
        2,
        warptile().args(["bench", "--device", "cpu", "--shape", "q8 k8 d8 sms=2"]),
    );
    assert!(
        stderr.contains("sms=N is for `warptile verify`"),
        "{stderr}"
    );
    for kernel in ["scalar", "scalar_d64_32x64_w4_s2", "nonsense"] {
        let (_, stderr) = expect_code(
            2,
            warptile().args(["bench", "--device", "cpu", "--kernel", kernel]),
        );
        assert!(
            stderr.contains(&format!("--kernel {kernel} needs a GPU")),
            "{stderr}"
        );
    }
    expect_code(
        0,
        warptile().args([
            "bench",
            "--device",
            "cpu",
            "--samples",
            "1",
            "--kernel",
            "best",
        ]),
    );
}

#[test]
fn words_of_a_command_line_are_shown_in_part_and_escaped() {
    let hostile = format!("\u{1b}[2J{}", "x".repeat(100_000));
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record.json");
    fs::write(&record, serde_json::json!([hostile]).to_string()).unwrap();
    let record = record.to_str().unwrap();
    let hostile = hostile.as_str();
    let cases: [(i32, &[&str]); 6] = [
        (2, &["bench", "--device", "cpu", "--kernel", hostile]),
        (2, &["bench", "--device", "cpu", "--target", hostile]),
        (2, &["verify", "--device", "cpu", "--kernel", hostile]),
        (2, &["verify", "--device", "cpu", "--target", hostile]),
        (
            2,
            &["plan", "q8 k8 d64", "--gpu", "h200", "--kernel", hostile],
        ),
        (4, &["bench", "--device", "cpu", "--compare", record]),
    ];
    for (code, arguments) in cases {
        let (_, stderr) = expect_code(code, warptile().args(arguments));
        let name = stderr.replace(record, "");
        assert!(name.len() < 600 && !name.contains('\u{1b}'), "{stderr}");
        assert!(name.contains("\\u{1b}[2Jxxx"), "{stderr}");
    }
}

#[test]
fn verify_refuses_what_can_not_run() {
    let verify = |arguments: &[&str]| {
        expect_code(
            2,
            warptile()
                .args(["verify", "--device", "cpu"])
                .args(arguments),
        )
        .1
    };
    assert!(verify(&["--kernel", "scalar"]).contains("--kernel scalar needs a GPU"));
    assert!(verify(&["--each-kernel"]).contains("--each-kernel needs a GPU"));
    assert!(verify(&["--multiprocessors", "2"]).contains("--multiprocessors needs a GPU"));
    assert!(verify(&["--kernel", "scalar_d64_32x64_w4_s2"]).contains("needs a GPU"));
    assert!(verify(&["--case", "d12"]).contains("multiple of 8"));
    assert!(verify(&["--case", "h3/2"]).contains("q has 3 heads and k has 2"));
    assert!(verify(&["--case", "b1073741824 q8"]).contains("elements"));
}

#[test]
fn bench_writes_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (shapes, rows) = (dir.path().join("shapes"), dir.path().join("rows.json"));
    fs::write(
        &shapes,
        "# one problem\n\nb2 q16 k32 h4/2 d32 f32 mask=causal # and a comment\n",
    )
    .unwrap();
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args([
                "bench",
                "--device",
                "cpu",
                "--samples",
                "3",
                "--shape",
                "q8 k8 d8",
            ])
            .arg("--file")
            .arg(&shapes)
            .arg("--json")
            .arg(&rows),
    );
    assert!(stdout.contains("median us"), "{stdout}");
    let rows = json(&rows);
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
    let row = &rows[1];
    for (key, value) in [
        ("backend", "warptile"),
        ("family", "cpu"),
        ("kernel", "cpu"),
        ("element", "f32"),
        ("mask", "causal"),
        ("method", "wall"),
        ("device", "cpu"),
        ("driver", "none"),
    ] {
        assert_eq!(row[key], value, "{key}");
    }
    for (key, value) in [
        ("batch", 2),
        ("heads", 4),
        ("kv_heads", 2),
        ("query_len", 16),
        ("key_len", 32),
        ("head_dim", 32),
        ("samples", 3),
    ] {
        assert_eq!(row[key], value, "{key}");
    }
    let median = row["median_us"].as_f64().unwrap();
    assert!(median > 0.0 && row["p90_us"].as_f64().unwrap() >= median);
    // Row i of 16 sees i + 17 of the 32 keys: 392 pairs; 4 operations for each of 32 numbers of 4 heads of 2 entries.
    let flops = f64::from(4 * 2 * 4 * 392 * 32);
    let tflops = row["tflops"].as_f64().unwrap();
    assert!((tflops / (flops / median * 1e-6) - 1.0).abs() < 1e-6);
}

#[test]
fn a_paced_bench_takes_a_sample_for_each_line() {
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines");
    fs::write(&lines, "\n\n").unwrap();
    let (stdout, _) = expect_code(
        0,
        warptile()
            .args(["bench", "--device", "cpu", "--paced", "--samples", "5"])
            .args(["--shape", "q8 k8 d8"])
            .stdin(fs::File::open(&lines).unwrap()),
    );
    fs::write(dir.path().join("none"), "").unwrap();
    let (_, stderr) = expect_code(
        2,
        warptile()
            .args(["bench", "--device", "cpu", "--paced", "--shape", "q8 k8 d8"])
            .stdin(fs::File::open(dir.path().join("none")).unwrap()),
    );
    assert!(stderr.contains("nothing was measured"), "{stderr}");
    let samples = stdout.lines().map_while(|line| line.parse::<f64>().ok());
    assert_eq!(samples.filter(|&time| time > 0.0).count(), 2, "{stdout}");
    assert!(stdout.contains("median us"), "{stdout}");
}

#[test]
fn a_paced_bench_goes_on_to_the_next_problem_when_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (lines, rows) = (dir.path().join("lines"), dir.path().join("rows.json"));
    let bench = |text: &str| {
        fs::write(&lines, text).unwrap();
        let (stdout, _) = expect_code(
            0,
            warptile()
                .args(["bench", "--device", "cpu", "--paced", "--samples", "2"])
                .args(["--shape", "q8 k8 d8", "--shape", "q9 k9 d8"])
                .args(["--shape", "q10 k10 d8", "--json"])
                .arg(&rows)
                .stdin(fs::File::open(&lines).unwrap()),
        );
        let rows = json(&rows).as_array().unwrap().clone();
        let samples = rows.iter().map(|row| row["samples"].as_u64().unwrap());
        (stdout, samples.collect::<Vec<_>>())
    };
    // Two samples; the second problem, one sample; the third problem, two.
    let (stdout, samples) = bench("\n\nbegin\n\nnext\nbegin\n\n\n");
    assert_eq!(samples, [2, 1, 2], "{stdout}");
    for said in ["1 rows\n", "2 rows\n", "3 rows\n"] {
        assert!(stdout.contains(said), "{stdout}");
    }
    let (stdout, samples) = bench("\n\n");
    assert_eq!(samples, [2], "{stdout}");
}

#[test]
fn bench_fails_when_a_row_is_slower_than_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old.json");
    let bench = || {
        let mut command = warptile();
        command.args([
            "bench",
            "--device",
            "cpu",
            "--samples",
            "3",
            "--shape",
            "q8 k8 d8",
        ]);
        command
    };
    expect_code(0, bench().arg("--json").arg(&old));
    let rows = json(&old);
    let with = |key: &str, value: serde_json::Value| {
        let mut rows = rows.clone();
        rows[0][key] = value;
        fs::write(&old, rows.to_string()).unwrap();
    };
    // A thousand times slower than now is no reason to fail, a thousand times faster is one.
    let median = rows[0]["median_us"].as_f64().unwrap();
    let stamped = serde_json::json!({ "commit": "0", "rows": rows });
    fs::write(&old, stamped.to_string()).unwrap();
    // Faster or slower by chance, but read.
    let (code, stdout, stderr) = run(bench().arg("--compare").arg(&old));
    assert!(code < 2, "{stderr}");
    assert!(stdout.contains("b1 q8 k8 h1 d8 f32, wall, cpu"), "{stdout}");
    with("median_us", (median * 1e3).into());
    let (stdout, _) = expect_code(0, bench().arg("--compare").arg(&old));
    assert!(!stdout.contains("SLOWER"), "{stdout}");
    with("median_us", (median * 1e-3).into());
    let (stdout, stderr) = expect_code(1, bench().arg("--compare").arg(&old));
    assert!(stdout.contains("SLOWER b1 q8"), "{stdout}");
    assert!(
        stderr.contains("1 of 1 rows are more than 3% slower"),
        "{stderr}"
    );
    let (_, stderr) = expect_code(
        1,
        bench().args(["--tolerance", "12.5", "--compare"]).arg(&old),
    );
    assert!(stderr.contains("more than 12.5% slower"), "{stderr}");
    with("device", "another GPU".into());
    let (_, stderr) = expect_code(2, bench().arg("--compare").arg(&old));
    assert!(stderr.contains("measured on another GPU"), "{stderr}");
    with("problem", "b1 q9 k9 h1 d8 f32".into());
    let (_, stderr) = expect_code(2, bench().arg("--compare").arg(&old));
    assert!(stderr.contains("none of its rows"), "{stderr}");
    fs::write(&old, "{}").unwrap();
    expect_code(4, bench().arg("--compare").arg(&old));
}

#[test]
fn bench_names_the_line_it_can_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let shapes = dir.path().join("shapes");
    fs::write(&shapes, "q3\nqthree\n").unwrap();
    let (_, stderr) = expect_code(2, warptile().arg("bench").arg("--file").arg(&shapes));
    assert!(
        stderr.contains("shapes:2: `qthree` is not part of a problem"),
        "{stderr}"
    );
    fs::write(&shapes, "# nothing\n").unwrap();
    expect_code(2, warptile().arg("bench").arg("--file").arg(&shapes));
    expect_code(4, warptile().args(["bench", "--file", "no/such/file"]));
}

/// Standard output closed before the program writes to it.
#[test]
fn an_output_nobody_reads_does_not_change_the_exit_code() {
    for (arguments, code) in [
        (&["info"][..], 0),
        (&["--help"], 0),
        (&["verify", "--device", "cpu", "--count", "2"], 0),
        (&["verify", "--device", "cpu", "--case", "d9"], 2),
    ] {
        let mut child = warptile()
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{arguments:?}");
    }
}
