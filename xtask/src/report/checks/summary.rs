//! One line of the report for each kind of check.

use std::collections::{BTreeMap, BTreeSet};

use super::{Checks, Example, Ratio, ReadTile, Verified, day};
use crate::report::markdown_table;

/// One line per kind of check.
pub(in crate::report) fn summary(checks: &Checks) -> String {
    if checks.tests.is_empty() && checks.verify.is_empty() {
        return "Nothing has run on a GPU yet.\n".to_owned();
    }
    let mut rows = Vec::new();
    let mut row =
        |check: &str, of: String, result: String| rows.push(vec![check.to_owned(), of, result]);
    let tests: Vec<_> = checks.tests.iter().filter(|test| test.gpu).collect();
    let passed = tests.iter().filter(|test| test.passed).count();
    row(
        "GPU tests",
        "all families".to_owned(),
        format!("{passed} of {} passed", tests.len()),
    );
    for launched in &checks.launches.matrix {
        let waiting = match launched.sync.as_str() {
            "each" => "after each",
            "tenth" => "after every tenth",
            "end" => "once at the end",
            _ => "never",
        };
        row(
            &format!("{} launches in a row, waiting {waiting}", launched.launches),
            format!("{} images", launched.images.len()),
            format!(
                "{} of {} problems passed",
                launched.passed, launched.problems
            ),
        );
    }
    if let Some(invariance) = &checks.invariance {
        row(
            "A sequence's bits in a batch against those alone, `Splits::EveryKeys`",
            format!("{} random batches", invariance.compositions),
            match invariance.differing_bits {
                Some(bits) => format!("{bits} differing bits"),
                None => "FAILED".to_owned(),
            },
        );
    }
    if !checks.tiles.is_empty() {
        let taken: Vec<_> = (checks.tiles.iter().filter(|tile| tile.reason.is_none())).collect();
        let passed = taken.iter().filter(|tile| tile.passed).count();
        let worst = |value: fn(&ReadTile) -> &Option<Ratio>| {
            let values = taken.iter().filter_map(|tile| value(tile).as_ref());
            values.map(|value| value.ratio).fold(0.0, f64::max)
        };
        row(
            "Each score and weight of one tile against float64",
            match checks.tiles.len() - taken.len() {
                0 => format!("{} images", taken.len()),
                none => format!("{} images; {none} take none", taken.len()),
            },
            format!(
                "{passed} of {} passed; the worst score {:.2}, weight {:.2} of its bound",
                taken.len(),
                worst(|tile| &tile.score),
                worst(|tile| &tile.weight)
            ),
        );
    }
    for Verified {
        family,
        max_len,
        paged,
        gradients,
        count,
        failed,
    } in &checks.verify
    {
        let what = match (paged, gradients) {
            (true, _) => ", in pages",
            (_, true) => ", gradients",
            _ => "",
        };
        let lengths = max_len.map_or(String::new(), |length| format!(", lengths to {length}"));
        row(
            &format!("Random problems against float64{what}{lengths}"),
            family.clone(),
            format!("{} of {count} passed", count - failed),
        );
    }
    for Example { example, passed } in &checks.examples {
        row(
            "Example, its results compared on the spot",
            format!("`{example}`"),
            if *passed { "the same" } else { "FAILED" }.to_owned(),
        );
    }
    let mut families: BTreeMap<&str, (Vec<String>, BTreeSet<&String>)> = BTreeMap::new();
    for run in &checks.sanitizer.rows {
        let (results, images) = families.entry(&run.family).or_default();
        let errors = run
            .errors
            .map_or("no answer".to_owned(), |errors| errors.to_string());
        results.push(format!("{} {errors}", run.tool));
        images.extend(run.images.keys());
    }
    for (family, (results, images)) in families {
        let of = format!("{family}, {} images", images.len());
        row("compute-sanitizer errors", of, results.join(", "));
    }
    if !checks.sanitizer.controls.is_empty() {
        let caught = |caught| {
            let tools = checks
                .sanitizer
                .controls
                .iter()
                .filter(|row| row.caught == caught);
            let tools: Vec<&str> = tools.map(|row| row.tool.as_str()).collect();
            tools.join(", ")
        };
        let mut result = format!("caught by {}", caught(true));
        if checks.sanitizer.controls.iter().any(|row| !row.caught) {
            result.push_str(&format!("; NOT by {}", caught(false)));
        }
        row(
            "Broken kernels under compute-sanitizer",
            "one for each tool".to_owned(),
            result,
        );
    }
    let table = markdown_table(&["Check", "Of", "Result"], rows);
    let commit = match &checks.device.commit {
        Some(commit) => format!(", commit {}", commit.get(..12).unwrap_or(commit)),
        None => String::new(),
    };
    format!(
        "On {}, {}{commit}:\n\n{table}",
        checks.gpu(),
        day(&checks.device.date)
    )
}

#[cfg(test)]
mod tests {
    use super::super::Test;
    use super::*;

    #[test]
    fn a_line_says_how_near_tiles_came() {
        let tile = |passed, ratio: f64| serde_json::json!({ "image": "i", "passed": passed, "score": { "ratio": ratio }, "weight": null });
        let refused = serde_json::json!({ "image": "i", "passed": false, "reason": "reads quantized keys only" });
        let tiles = serde_json::json!([tile(true, 0.25), tile(false, 0.5), refused]);
        let invariance = serde_json::json!({ "compositions": 10_002, "differing_bits": 0 });
        let checks = Checks {
            tiles: serde_json::from_value(tiles).unwrap(),
            tests: vec![Test {
                gpu: true,
                passed: true,
            }],
            invariance: serde_json::from_value(invariance).unwrap(),
            ..Checks::default()
        };
        let of_batches = "| 10002 random batches | 0 differing bits |";
        assert!(
            summary(&checks).contains(of_batches),
            "{}",
            summary(&checks)
        );
        let line = "| 2 images; 1 take none | 1 of 2 passed; the worst score 0.50, weight 0.00 of its bound |";
        assert!(summary(&checks).contains(line), "{}", summary(&checks));
    }
}
