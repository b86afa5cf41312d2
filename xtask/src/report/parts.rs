//! The time and date of each part of the evidence.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::markdown_table;
use crate::files;

/// `evidence/summary.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Summary {
    commit: String,
    device: String,
    missing: Vec<String>,
    /// Calls of the script; none in older files.
    runs: Vec<Run>,
    /// Seconds of the parts one after the other, except for those that run at the same time.
    in_turn: Option<f64>,
    parts: BTreeMap<String, Part>,
}

#[derive(Debug, Deserialize)]
struct Run {
    date: String,
    parts: Vec<String>,
    gpus: usize,
    seconds: f64,
}

/// A file of evidence that another commit's run wrote.
#[derive(Debug, Deserialize)]
pub(super) struct Other {
    #[serde(skip)]
    file: String,
    #[serde(default)]
    commit: String,
    #[serde(default)]
    date: String,
}

/// Those files of the folder that say that they are of a different commit than the summary, by their names. Baselines are of the
/// run that they were stored at.
pub(super) fn others(evidence: &Path, summary: &Summary) -> Result<Vec<Other>> {
    let mut found = Vec::new();
    for path in files::list(evidence)? {
        // Files of several runs are lists, and say in each row what it is of.
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let stamped = files::read_text(&path).is_ok_and(|text| text.starts_with('{'));
        if !stamped || !file.ends_with(".json") || file.starts_with("baseline-") {
            continue;
        }
        let other: Other = files::read_json(&path)?;
        if !other.commit.is_empty() && other.commit != summary.commit {
            let file = file.into_owned();
            found.push(Other { file, ..other });
        }
    }
    found.sort_by(|one, another| one.file.cmp(&another.file));
    Ok(found)
}

#[derive(Debug, Deserialize)]
struct Part {
    date: String,
    seconds: f64,
    passed: bool,
    /// True if it did not come to its end.
    #[serde(default)]
    cut_short: bool,
}

/// A line about each call of the script, and a row for each part, in the order in which they ended; and which files are of other runs.
pub(super) fn table(summary: &Summary, others: &[Other]) -> String {
    if summary.parts.is_empty() {
        return "Nothing has run on a GPU yet.\n".to_owned();
    }
    let short = |commit: &str| commit.chars().take(8).collect::<String>();
    let mut text = format!("Commit {}, {}.\n\n", short(&summary.commit), summary.device);
    for run in &summary.runs {
        text += &format!(
            "- {}: {} of the parts on {}, {:.0} s by the clock\n",
            run.date,
            run.parts.len(),
            if run.gpus == 1 { "one GPU" } else { "two GPUs" },
            run.seconds
        );
    }
    if let Some(seconds) = summary.in_turn {
        text += &format!(
            "- {seconds:.0} s in all, parts that run at the same time on a GPU counted once\n"
        );
    }
    if !summary.missing.is_empty() {
        text += &format!("- missing: {}\n", summary.missing.join(", "));
    }
    for Other { file, commit, date } in others {
        text += &format!("- `{file}` is of commit {}, {date}\n", short(commit));
    }
    let mut parts: Vec<_> = summary.parts.iter().collect();
    parts.sort_by_key(|(name, part)| (&part.date, *name));
    let row = |(name, part): (&String, &Part)| {
        let result = match (part.passed, part.cut_short) {
            (true, _) => "passed",
            (false, true) => "cut short",
            (false, false) => "FAILED",
        };
        vec![
            format!("`{name}`"),
            part.date.clone(),
            format!("{:.0}", part.seconds),
            result.to_owned(),
        ]
    };
    let blank = if text.ends_with("\n\n") { "" } else { "\n" };
    text + blank
        + &markdown_table(
            &["Part", "Ended", "Seconds", "Result"],
            parts.into_iter().map(row),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_listed_as_they_ended() {
        assert!(table(&Summary::default(), &[]).starts_with("Nothing"));
        let of = |runs: &str, cut_short: bool| {
            let part = r#"{"seconds": 1.5, "failures": [], "passed""#;
            let text = format!(
                r#"{{"commit": "0123456789", "device": "NVIDIA H200", "missing": ["ncu"], {runs}
                "parts": {{"a": {part}: true, "date": "2026-11-23T00:20:16Z"}}, "b": {part}: false, "cut_short": {cut_short}, "date": "2026-11-23T00:19:14Z"}}}}}}"#
            );
            table(&serde_json::from_str(&text).unwrap(), &[])
        };
        let rows = "- missing: ncu\n\n\
            | Part | Ended | Seconds | Result |\n| --- | --- | --- | --- |\n\
            | `b` | 2026-11-23T00:19:14Z | 2 | FAILED |\n| `a` | 2026-11-23T00:20:16Z | 2 | passed |\n";
        assert_eq!(
            of("", false),
            format!("Commit 01234567, NVIDIA H200.\n\n{rows}")
        );
        let run = r#""runs": [{"date": "2026-11-23T00:10:00Z", "parts": ["a", "b"], "gpus": 2, "seconds": 480.4}], "in_turn": 900.0,"#;
        let line = "- 2026-11-23T00:10:00Z: 2 of the parts on two GPUs, 480 s by the clock\n- 900 s in all, parts that run at the same time on a GPU counted once\n";
        assert_eq!(
            of(run, false),
            format!("Commit 01234567, NVIDIA H200.\n\n{line}{rows}")
        );
        assert!(of("", true).contains("| 2 | cut short |"));
    }

    #[test]
    fn files_of_other_runs_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write(
            "a.json",
            r#"{"commit": "0123456789", "date": "today", "rows": []}"#,
        );
        write("b.json", r#"{"commit": "9876543210", "date": "yesterday"}"#);
        write(
            "baseline-gpu.json",
            r#"{"commit": "9876543210", "date": "yesterday"}"#,
        );
        write("rows.json", r#"[{"commit": "9876543210"}]"#);
        write("text.txt", "{");
        let text = r#"{"commit": "0123456789", "parts": {"a": {"date": "today", "seconds": 1, "passed": true}}}"#;
        let summary: Summary = serde_json::from_str(text).unwrap();
        let text = table(&summary, &others(folder.path(), &summary).unwrap());
        assert!(
            text.contains("\n- `b.json` is of commit 98765432, yesterday\n"),
            "{text}"
        );
        assert_eq!(text.matches("is of commit").count(), 1, "{text}");
    }
}
