//! The changes of `warptile tune` in the evidence, and their gains.

use serde::Deserialize;

use super::{checks, markdown_table};

/// `evidence/tune.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tuning {
    commit: String,
    date: String,
    device: String,
    seconds: f64,
    problems: Vec<Tuned>,
}

#[derive(Debug, Deserialize)]
struct Tuned {
    problem: String,
    verdict: String,
    old: Launch,
    chosen: Launch,
    /// Speed over the old choice's when both were measured once more, in a new process.
    again: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Launch {
    kernel: String,
    settings: String,
}

impl Launch {
    fn words(&self) -> String {
        match self.settings.is_empty() {
            true => format!("`{}`", self.kernel),
            // Earlier programs wrote the number that means all.
            false => format!(
                "`{} {}`",
                self.kernel,
                self.settings.replace("at-once=4294967295", "at-once=all")
            ),
        }
    }
}

/// A table of the tuned problems with a row for each choice that changed, the largest gain first.
pub(super) fn table(tuning: &Tuning) -> String {
    if tuning.problems.is_empty() {
        return "Nothing was tuned yet.\n".to_owned();
    }
    let of = |verdict: &'static str| {
        let all = tuning.problems.iter();
        all.filter(move |one| one.verdict == verdict)
    };
    let mut won: Vec<_> = of("won").collect();
    won.sort_by(|a, b| b.again.unwrap_or(0.0).total_cmp(&a.again.unwrap_or(0.0)));
    let row = |one: &&Tuned| {
        let gain = one.again.map_or("-".to_owned(), |again| {
            format!("{:.1}%", 100.0 * (again - 1.0))
        });
        vec![
            format!("`{}`", one.problem),
            one.old.words(),
            one.chosen.words(),
            gain,
        ]
    };
    format!(
        "Commit {}, {}, {}: {:.0} s for {} problems. {} choices stayed, {} changed, and {} others were not proven to be faster.\n\n{}",
        tuning.commit.chars().take(8).collect::<String>(),
        tuning.device,
        checks::day(&tuning.date),
        tuning.seconds,
        tuning.problems.len(),
        of("kept").count(),
        won.len(),
        of("not-proven").count(),
        markdown_table(&["problem", "from", "to", "gain"], won.iter().map(row))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_listed_by_its_gain() {
        assert_eq!(table(&Tuning::default()), "Nothing was tuned yet.\n");
        let tuning = r#"{"commit": "0123456789", "date": "2026-11-23T00:00:00Z", "device": "a GPU", "seconds": 58.9, "problems": [
            {"problem": "one", "verdict": "won", "old": {"kernel": "a", "settings": ""}, "chosen": {"kernel": "b", "settings": ""}, "again": 1.014},
            {"problem": "two", "verdict": "won", "old": {"kernel": "a", "settings": ""}, "chosen": {"kernel": "a", "settings": "ctas=1"}, "again": 1.03},
            {"problem": "three", "verdict": "kept", "old": {"kernel": "a", "settings": ""}, "chosen": {"kernel": "a", "settings": ""}, "again": null}]}"#;
        let text = table(&serde_json::from_str(tuning).unwrap());
        assert!(
            text.starts_with("Commit 01234567, a GPU, 2026-11-23: 59 s for 3 problems. 1 choices stayed, 2 changed, and 0 others"),
            "{text}"
        );
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| `two` | `a` | `a ctas=1` | 3.0% |",
                "| `one` | `a` | `b` | 1.4% |"
            ]
        );
    }
}
