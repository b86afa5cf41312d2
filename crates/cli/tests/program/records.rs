//! Records of `bench`: compared, drawn, and read by people on 80 columns.

use crate::common::{expect_code, warptile};
use std::fs;
use std::path::PathBuf;

const LONG: &str = "b2 q3 k600 h2 d16 f16 mask=window,100,100 scale=0.125 softcap=30 alibi=batch layout=gaps unaligned";

/// A record of two rows that took this many microseconds, by this program.
fn record(dir: &tempfile::TempDir, name: &str, times: [f64; 2], program: &str) -> PathBuf {
    let path = dir.path().join(name);
    let row = |problem: &str, time: f64| {
        serde_json::json!({
            "backend": "warptile", "family": "wgmma", "kernel": "wgmma_d128_192x128_w16_s3", "problem": problem,
            "batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "query_len": 8, "key_len": 8, "element": "f32", "mask": "none",
            "method": "graph", "median_us": time, "p90_us": time, "tflops": 1.5, "kv_bytes": 1, "tb_s": 0.5,
            "device": "NVIDIA H200", "driver": "CUDA 13.0", "program": program, "date": "2026-11-22T00:00:00Z",
        })
    };
    let rows = [row("b1 q8 k8 h1 d8 f32", times[0]), row(LONG, times[1])];
    fs::write(&path, serde_json::to_vec(&rows).unwrap()).unwrap();
    path
}

#[track_caller]
fn fits(stdout: &str, columns: usize) {
    for line in stdout.lines() {
        assert!(line.chars().count() <= columns, "{line}");
    }
}

#[test]
fn two_records_are_compared_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let a = record(&dir, "a.json", [10.0, 100.0], "warptile 0.1.0 (commit a)");
    let b = record(&dir, "b.json", [10.2, 80.0], "warptile 0.1.0 (commit b)");
    let out = dir.path().join("out.json");
    let compare = |code, from: &PathBuf, to: &PathBuf, flags: &[&str]| {
        let mut command = warptile();
        command
            .arg("compare")
            .arg(from)
            .arg(to)
            .args(flags)
            .env("COLUMNS", "80");
        let (stdout, stderr) = expect_code(code, &mut command);
        fits(&stdout, 80);
        (stdout, stderr)
    };
    let (stdout, _) = compare(0, &a, &b, &["--chart", "--json", out.to_str().unwrap()]);
    assert!(
        stdout.contains("  1.250       100.0        80.0  b2 q3"),
        "{stdout}"
    );
    assert!(
        stdout.contains("differs  program: warptile 0.1.0 (commit a), then warptile 0.1.0"),
        "{stdout}"
    );
    assert!(!stdout.contains("differs  device"), "{stdout}");
    assert!(stdout.contains("█ 1.250"), "{stdout}");
    let rows: serde_json::Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(rows[1]["ratio"], 1.25);
    let (stdout, stderr) = compare(1, &b, &a, &[]);
    assert!(stdout.contains("SLOWER b2 q3"), "{stdout}");
    assert!(
        stderr.contains("1 of 2 rows are more than 3% slower"),
        "{stderr}"
    );
    compare(0, &b, &a, &["--tolerance", "20.1"]);
    compare(2, &b, &a, &["--tolerance", "-1"]);
    compare(2, &a, &dir.path().join("x.safetensors"), &[]);
    for (wrong, words) in [
        ("{}", "missing field `rows`"),
        ("[{}]", "missing field `backend`"),
        ("", "EOF"),
    ] {
        fs::write(&a, wrong).unwrap();
        let (_, stderr) = compare(4, &a, &b, &[]);
        assert!(stderr.contains(words), "{stderr}");
    }
    fs::write(&a, "{\"cut_short\": true, \"rows\": []}").unwrap();
    let (stdout, _) = compare(2, &a, &b, &[]);
    assert!(
        stdout.contains("a.json was cut short: rows are missing") || stdout.contains("cut"),
        "{stdout}"
    );
}

#[test]
fn every_table_fits_eighty_columns() {
    let help = "--help";
    for arguments in [
        &[
            "bench",
            "--device",
            "cpu",
            "--samples",
            "1",
            "--shape",
            LONG,
            "--chart",
        ][..],
        &[
            "verify",
            "--device",
            "cpu",
            "--count",
            "20",
            "--max-len",
            "40",
        ],
        &["info", "--kernels"],
        &["info"],
        &["--version"],
        &[help],
        &["run", help],
        &["verify", help],
        &["bench", help],
        &["plan", help],
        &["compare", help],
        &["gen", help],
        &["tune", help],
    ] {
        let mut command = warptile();
        command
            .args(arguments)
            .env("COLUMNS", "80")
            .env("WARPTILE_LIBCUDA", "/no/such/library");
        let (stdout, _) = expect_code(0, &mut command);
        fits(&stdout, 80);
        if arguments[0] == "bench" && !arguments.contains(&help) {
            for word in LONG.split(' ') {
                assert!(
                    stdout.split_whitespace().any(|one| one == word),
                    "{word}: {stdout}"
                );
            }
        }
    }
}

#[test]
fn progress_is_for_terminals() {
    let mut command = warptile();
    command.args([
        "verify",
        "--device",
        "cpu",
        "--count",
        "50",
        "--max-len",
        "30",
    ]);
    assert_eq!(expect_code(0, &mut command).1, "");
}

#[test]
fn nothing_is_coloured_where_colours_are_not_wanted() {
    let mut command = warptile();
    command
        .arg("--help")
        .env("NO_COLOR", "1")
        .env("CLICOLOR_FORCE", "1");
    let (stdout, _) = expect_code(0, &mut command);
    assert!(!stdout.contains('\u{1b}'), "{stdout}");
    // Colours are found where they are wanted.
    let mut command = warptile();
    command
        .arg("--help")
        .env_remove("NO_COLOR")
        .env("CLICOLOR_FORCE", "1");
    let (stdout, _) = expect_code(0, &mut command);
    assert!(stdout.contains('\u{1b}'), "{stdout}");
}

#[test]
fn a_report_is_one_page_that_needs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let bench = record(
        &dir,
        "bench.json",
        [10.0, 100.0],
        "<script>alert(1)</script>",
    );
    let (verify, page) = (dir.path().join("verify.json"), dir.path().join("page.html"));
    let mut command = warptile();
    command.args([
        "verify",
        "--device",
        "cpu",
        "--count",
        "30",
        "--max-len",
        "50",
        "--json",
    ]);
    expect_code(0, command.arg(&verify));
    let mut command = warptile();
    command
        .arg("report")
        .args([&bench, &verify])
        .arg("-o")
        .arg(&page);
    expect_code(0, &mut command);
    let html = fs::read_to_string(&page).unwrap();
    for part in [
        "<!DOCTYPE html>",
        "b1 q8 k8 h1 d8 f32",
        LONG,
        "NVIDIA H200; driver CUDA 13.0",
        "&lt;script&gt;alert(1)",
        "30 random problems against float64",
        ">head size<",
        "Results nearest to their bounds",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    for foreign in [
        "<script", "http:", "https:", "src=", "href=", "url(", "@import",
    ] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    for tag in [
        "section", "table", "tr", "td", "th", "svg", "div", "p", "h2", "h3",
    ] {
        let opened =
            html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    fs::write(&verify, "{}").unwrap();
    let mut command = warptile();
    command.arg("report").arg(&verify).arg("-o").arg(&page);
    expect_code(4, &mut command);
    assert_eq!(
        fs::read_to_string(&page).unwrap(),
        html,
        "a failure replaces nothing"
    );
    let mut command = warptile();
    command
        .arg("report")
        .arg(dir.path().join("none.json"))
        .arg("-o")
        .arg(&page);
    expect_code(4, &mut command);
}

#[test]
fn verify_says_what_was_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("verify.json");
    let mut command = warptile();
    command.args([
        "verify",
        "--device",
        "cpu",
        "--count",
        "200",
        "--max-len",
        "40",
        "--json",
    ]);
    let (stdout, _) = expect_code(0, command.arg(&file));
    for line in ["families cpu 200; ", "features ", "heads    "] {
        assert!(
            stdout.lines().any(|one| one.starts_with(line)),
            "{line}: {stdout}"
        );
    }
    let totals: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(totals["cut_short"], false);
    let coverage = &totals["coverage"];
    assert_eq!(coverage["families"]["cpu"], 200);
    let features = coverage["features"].as_object().unwrap();
    let never = { features.iter() }.filter(|(_, count)| count.as_u64() == Some(0));
    let never: Vec<&String> = never.map(|(name, _)| name).collect();
    // Gradients are drawn alone.
    assert_eq!(never, ["backward", "dbias"], "{coverage}");
    for (name, least) in [
        ("dropout", 40),
        ("blocks", 30),
        ("splits", 20),
        ("cache", 15),
    ] {
        assert!(features[name].as_u64() >= Some(least), "{name}: {coverage}");
    }
    let sizes = coverage["head_dims"].as_object().unwrap();
    assert_eq!(sizes.len(), 64);
}

#[test]
fn a_record_that_is_read_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let a = record(&dir, "a.json", [10.0, 100.0], "warptile 0.1.0");
    let b = record(&dir, "b.json", [10.0, 100.0], "warptile 0.1.0");
    let problems = dir.path().join("problems.txt");
    fs::write(&problems, "q8 k8 d8 f32\n").unwrap();
    let (records, lines) = (fs::read(&b).unwrap(), fs::read(&problems).unwrap());
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let problems = problems.to_str().unwrap();
    let bench = ["bench", "--device", "cpu", "--samples", "1"];
    for arguments in [
        &["report", a, b, "-o", b][..],
        &["compare", a, b, "--json", b],
        &[&bench[..], &["--compare", b, "--json", b]].concat(),
        &[&bench[..], &["--file", problems, "--json", problems]].concat(),
        &["tune", "--file", problems, "--json", problems],
        &["tune", "--file", problems, "--svg", problems],
        &["tune", "--from-log", problems, "--json", problems],
    ] {
        let (_, stderr) = expect_code(2, warptile().args(arguments));
        let words = "would replace a file that is read";
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        assert_eq!(fs::read(b).unwrap(), records, "{arguments:?}");
        assert_eq!(fs::read(problems).unwrap(), lines, "{arguments:?}");
    }
}

#[test]
fn a_report_names_the_devices_that_computed_together() {
    let dir = tempfile::tempdir().unwrap();
    let (verify, page) = (dir.path().join("verify.json"), dir.path().join("page.html"));
    let mut command = warptile();
    command.args(["verify", "--devices", "cpu,cpu", "--count", "3"]);
    expect_code(0, command.args(["--max-len", "40", "--json"]).arg(&verify));
    let mut command = warptile();
    command.arg("report").arg(&verify).arg("-o").arg(&page);
    expect_code(0, &mut command);
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("cpu,cpu"), "{html}");
}

/// 40,000 rows took minutes when each row was held against every other.
#[test]
fn a_report_of_many_rows_takes_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let one = record(&dir, "one.json", [10.0, 100.0], "warptile 0.1.0");
    let mut row: serde_json::Value = serde_json::from_slice(&fs::read(one).unwrap()).unwrap();
    let rows = (1..=40_000).map(|queries| {
        row[0]["problem"] = format!("b1 q{queries} k8 h1 d8 f32").into();
        row[0].clone()
    });
    let many = dir.path().join("many.json");
    let rows: Vec<serde_json::Value> = rows.collect();
    fs::write(&many, serde_json::to_vec(&rows).unwrap()).unwrap();
    let page = dir.path().join("page.html");
    let start = std::time::Instant::now();
    let mut report = warptile();
    expect_code(0, report.arg("report").arg(many).arg("-o").arg(&page));
    let elapsed = start.elapsed();
    assert!(elapsed.as_secs() < 60, "{elapsed:?}");
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("width=\"100.00\"").count(), 40_000);
}
