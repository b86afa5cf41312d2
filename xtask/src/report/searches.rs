//! The results of the searches of `cargo xtask evolve`: a table, and their pictures.

use super::markdown_table;
use crate::evolve::Search;
use crate::evolve::archive::{Candidate, State};

/// A line for each generation of each search, and what its best candidate came to.
pub(super) fn table(searches: &[Search]) -> String {
    let mut lines = Vec::new();
    let (mut made, mut timed, mut won) = (0, 0, 0);
    for Search {
        plan, candidates, ..
    } in searches
    {
        let generations = candidates.values().map(|one| one.generation).max();
        for generation in 1..=generations.unwrap_or(0) {
            let mut these = Vec::from_iter(candidates.values());
            these.retain(|one| one.generation == generation);
            let count =
                |is: &dyn Fn(&Candidate) -> bool| these.iter().filter(|one| is(one)).count();
            let of_state = |state| count(&|one| one.verdict.state == state);
            let gains = these
                .iter()
                .filter_map(|one| Some((one.verdict.gain()?, one)));
            let best = gains.max_by(|a, b| a.0.total_cmp(&b.0));
            let all = count(&|one| one.verdict.measured.is_some());
            made += these.len();
            timed += all;
            won += of_state(State::Won) + of_state(State::Promoted);
            let mut line = vec![
                format!("`{}`", plan.family),
                generation.to_string(),
                these.len().to_string(),
                of_state(State::Refused).to_string(),
                of_state(State::Wrong).to_string(),
                all.to_string(),
            ];
            line.extend(match best {
                None => ["-"; 3].map(str::to_owned),
                Some((gain, one)) => {
                    let why = Some(one.verdict.why.clone()).filter(|why| !why.is_empty());
                    let what = why.unwrap_or(one.verdict.state.to_string());
                    [format!("`{}`", one.kernel), format!("{gain:.3}"), what]
                }
            });
            lines.push(line);
        }
    }
    if lines.is_empty() {
        return "No search has candidates.\n".to_owned();
    }
    let header = [
        "family",
        "generation",
        "made",
        "refused",
        "wrong",
        "timed",
        "best",
        "gain",
        "what came of it",
    ];
    format!(
        "{}\n{made} candidates, {timed} of them timed; {won} won. Gains are medians over the problems of the search, against the family's own \
         kernel that the planner takes for each.\n",
        markdown_table(&header, lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    fn archive(verdicts: &[serde_json::Value]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let mut candidates = serde_json::Map::new();
        for (index, verdict) in verdicts.iter().enumerate() {
            let kernel = format!("k{index}");
            let candidate = serde_json::json!({
                "kernel": kernel, "generation": u32::from(index > 0),
                "genes": { "head_dim": 64, "numbers": [64, 64, 4, 2], "switches": [] },
                "lineage": { "how": "mutation", "parents": [], "why": "" },
                "report": null, "counters": {}, "verdict": verdict,
            });
            candidates.insert(kernel, candidate);
        }
        let search = serde_json::json!({
            "plan": {
                "family": "wmma", "target": "sm_90", "problems": ["p"], "held_out": ["h"], "multiprocessors": 132, "seed": 1,
            },
            "candidates": candidates,
        });
        let path = root.path().join("evidence/evolution/wmma.json");
        files::write_json(&path, &search).unwrap();
        root
    }

    fn measured(state: &str, median: f64, why: &str) -> serde_json::Value {
        serde_json::json!({
            "state": state, "why": why,
            "measured": {
                "device": "", "driver": "", "program": "", "date": "", "tried": 2, "blocks": 41,
                "trials": [{ "median": median, "bound": null }], "held_out": [], "problems": {},
            },
        })
    }

    #[test]
    fn a_generation_is_a_line_with_what_became_of_its_best() {
        let root = archive(&[
            serde_json::json!({ "state": "shipped" }),
            measured("lost", 0.99, "no certain gain"),
            measured("lost", 1.002, "the gain did not repeat"),
            serde_json::json!({ "state": "refused", "why": "spills" }),
            serde_json::json!({ "state": "compiled" }),
        ]);
        let text = table(&Search::all(root.path()).unwrap());
        assert!(
            text.contains(
                "| `wmma` | 1 | 4 | 1 | 0 | 2 | `k2` | 1.002 | the gain did not repeat |"
            ),
            "{text}"
        );
        assert!(
            text.contains("\n4 candidates, 2 of them timed; 0 won."),
            "{text}"
        );
        let root = archive(&[
            serde_json::json!({ "state": "shipped" }),
            measured("won", 1.05, ""),
            serde_json::json!({ "state": "wrong", "why": "NaN" }),
        ]);
        let text = table(&Search::all(root.path()).unwrap());
        assert!(
            text.contains("| `wmma` | 1 | 2 | 0 | 1 | 1 | `k1` | 1.050 | won |"),
            "{text}"
        );
        assert!(text.contains("; 1 won."), "{text}");
        let none = tempfile::tempdir().unwrap();
        assert_eq!(
            table(&Search::all(none.path()).unwrap()),
            "No search has candidates.\n"
        );
    }
}
