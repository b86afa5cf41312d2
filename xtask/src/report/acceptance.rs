//! The acceptance problems of the project's predecessor, kernel by kernel.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::markdown_table;

/// The acceptance problems.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Acceptance {
    rows: Vec<Accepted>,
}

/// One acceptance problem on one kernel.
#[derive(Debug, Deserialize)]
struct Accepted {
    problem: String,
    family: String,
    kernel: Option<String>,
    passed: bool,
    shared_kib: Option<u32>,
    out: Option<Bounded>,
    lse: Option<Bounded>,
}

#[derive(Debug, Deserialize)]
struct Bounded {
    error: f64,
    bound: f64,
}

impl Acceptance {
    /// How near each kernel's errors came to what is allowed.
    pub(super) fn text(&self) -> String {
        let rows = &self.rows;
        if rows.is_empty() {
            return "Nothing has run on a GPU yet.\n".to_owned();
        }
        let passed = rows.iter().filter(|row| row.passed).count();
        format!("{passed} of {} passed.\n\n{}", rows.len(), tables(rows))
    }
}

impl Accepted {
    /// The problem without its seed, which is the same in all of them.
    fn problem(&self) -> &str {
        self.problem.split(" seed=").next().unwrap_or_default()
    }

    /// The family, and the limit that it was planned within.
    fn group(&self) -> String {
        match self.shared_kib {
            Some(kib) => format!("{}, within {kib} KiB", self.family),
            None => self.family.clone(),
        }
    }

    fn ratio(&self) -> f64 {
        let ratio = |errors: &Option<Bounded>| match errors {
            Some(Bounded { error, bound }) if *bound > 0.0 => error / bound,
            _ => 0.0,
        };
        ratio(&self.out).max(ratio(&self.lse))
    }
}

/// A line for each family, and in a fold the largest error of each kernel: a column for each problem, under what it allows. Both follow
/// from the problem's inputs alone.
fn tables(rows: &[Accepted]) -> String {
    let mut groups: BTreeMap<String, Vec<&Accepted>> = BTreeMap::new();
    for row in rows {
        groups.entry(row.group()).or_default().push(row);
    }
    let summary = groups.iter().map(|(group, rows)| {
        let kernels: BTreeSet<_> = rows.iter().map(|row| &row.kernel).collect();
        let passed = rows.iter().filter(|row| row.passed).count();
        let worst = rows.iter().map(|row| row.ratio()).fold(0.0, f64::max);
        vec![
            group.clone(),
            kernels.len().to_string(),
            format!("{passed} of {}", rows.len()),
            format!("{worst:.2}"),
        ]
    });
    let mut text = markdown_table(
        &["Family", "Kernels", "Passed", "Worst, of its bound"],
        summary,
    );
    let elements = ["f16", "bf16"].map(|element| {
        let of_element = |row: &&Accepted| row.problem().split(' ').any(|word| word == element);
        (element, rows.iter().filter(of_element).collect::<Vec<_>>())
    });
    for (element, rows) in elements.iter().filter(|(_, rows)| !rows.is_empty()) {
        // In the order of the file, which is that of the problems.
        let mut problems: Vec<&str> = Vec::new();
        for row in rows {
            if !problems.contains(&row.problem()) {
                problems.push(row.problem());
            }
        }
        let mut header = vec!["Kernel"];
        header.extend(&problems);
        let bounds = problems.iter().map(|problem| {
            let bound = rows.iter().filter(|row| row.problem() == *problem);
            let bound = bound.filter_map(|row| row.out.as_ref()).next();
            bound.map_or("-".to_owned(), |out| format!("{:.1e}", out.bound))
        });
        let allowed = std::iter::once("*allowed*".to_owned()).chain(bounds);
        let mut lines = vec![allowed.collect::<Vec<String>>()];
        let mut kernels: BTreeMap<(String, &str), BTreeMap<&str, &Accepted>> = BTreeMap::new();
        for row in rows {
            let kernel = row.kernel.as_deref().unwrap_or("-");
            let of_kernel = kernels.entry((row.group(), kernel)).or_default();
            of_kernel.insert(row.problem(), row);
        }
        for ((_, kernel), of_kernel) in kernels {
            let limit = of_kernel.values().find_map(|row| row.shared_kib);
            let limit = limit.map_or(String::new(), |kib| format!(", within {kib} KiB"));
            let mut line = vec![format!("`{kernel}`{limit}")];
            line.extend(problems.iter().map(|problem| match of_kernel.get(problem) {
                None => "-".to_owned(),
                Some(row) => match &row.out {
                    Some(out) if row.passed => format!("{:.1e}", out.error),
                    _ => "FAILED".to_owned(),
                },
            }));
            lines.push(line);
        }
        text.push_str(&format!(
            "\n<details><summary>Largest error of out, {element}</summary>\n\n{}\n</details>\n",
            markdown_table(&header, lines)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernels_acceptance_stands_under_what_is_allowed() {
        let row = |kernel: &str, problem: &str, error: f64, passed: bool| {
            serde_json::json!({
                "family": "wmma", "target": "sm_90", "shared_kib": null, "kernel": kernel, "image": "i", "passed": passed,
                "problem": format!("{problem} seed=7"), "out": { "error": error, "bound": 2e-3 }, "lse": { "error": 0, "bound": 0 },
            })
        };
        let (short, long) = ("b1 q512 k512 h8 d64 f16", "b2 q2048 k2048 h8 d128 f16");
        let record = serde_json::json!({ "every_image": true, "rows": [
            row("wmma_d64", short, 1e-3, true),
            row("wmma_d128", short, 2e-4, true),
            row("wmma_d128", long, 1.0, false),
        ] });
        let acceptance: Acceptance = serde_json::from_value(record).unwrap();
        let text = acceptance.text();
        for line in [
            "2 of 3 passed.\n",
            "| wmma | 2 | 2 of 3 | 500.00 |",
            "| Kernel | b1 q512 k512 h8 d64 f16 | b2 q2048 k2048 h8 d128 f16 |",
            "| *allowed* | 2.0e-3 | 2.0e-3 |",
            "| `wmma_d128` | 2.0e-4 | FAILED |",
            "| `wmma_d64` | 1.0e-3 | - |",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("bf16"), "{text}");
    }
}
